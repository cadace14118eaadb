// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/penstock/penstock/config"

// litellmKind is what the word before the slash of a LiteLLM model stands for.
type litellmKind struct {
	dialect config.ProviderKind
	label   string // of the provider's name
	quirks  string
	base    string // base URL that LiteLLM knows; "" where package config does, or where it must be given
	key     string // variable that LiteLLM reads where there is no api_key; "": it needs none
	asked   bool   // the base URL must be given
}

// litellmKinds have the variables and addresses of litellm/litellm_core_utils/
// get_llm_provider_logic.py and of LiteLLM's pages about providers.
var litellmKinds = map[string]litellmKind{
	"openai":                 {dialect: config.ProviderOpenAI, label: "openai", key: "OPENAI_API_KEY"},
	"text-completion-openai": {dialect: config.ProviderOpenAI, label: "openai", key: "OPENAI_API_KEY"},
	"custom_openai":          {dialect: config.ProviderOpenAI, label: "openai", asked: true},
	"openai_like":            {dialect: config.ProviderOpenAI, label: "openai", asked: true},
	"azure":                  {dialect: config.ProviderAzure, label: "azure", key: "AZURE_API_KEY", asked: true},
	"azure_text":             {dialect: config.ProviderAzure, label: "azure", key: "AZURE_API_KEY", asked: true},
	"azure_ai":               {dialect: config.ProviderAzure, label: "azure-ai", key: "AZURE_AI_API_KEY", asked: true},
	"anthropic":              {dialect: config.ProviderAnthropic, label: "anthropic", key: "ANTHROPIC_API_KEY"},
	"gemini":                 {dialect: config.ProviderGemini, label: "gemini", key: "GEMINI_API_KEY"},
	"vertex_ai":              {dialect: config.ProviderVertex, label: "vertex"},
	"vertex_ai_beta":         {dialect: config.ProviderVertex, label: "vertex"},
	"bedrock":                {dialect: config.ProviderBedrock, label: "bedrock"},
	"bedrock_converse":       {dialect: config.ProviderBedrock, label: "bedrock"},
	"cohere":                 {dialect: config.ProviderCohere, label: "cohere", key: "COHERE_API_KEY"},
	"cohere_chat":            {dialect: config.ProviderCohere, label: "cohere", key: "COHERE_API_KEY"},

	"mistral":      {dialect: config.ProviderOpenAI, label: "mistral", quirks: "mistral", base: "https://api.mistral.ai/v1", key: "MISTRAL_API_KEY"},
	"codestral":    {dialect: config.ProviderOpenAI, label: "codestral", quirks: "mistral", base: "https://codestral.mistral.ai/v1", key: "CODESTRAL_API_KEY"},
	"groq":         {dialect: config.ProviderOpenAI, label: "groq", quirks: "groq", base: "https://api.groq.com/openai/v1", key: "GROQ_API_KEY"},
	"deepseek":     {dialect: config.ProviderOpenAI, label: "deepseek", quirks: "deepseek", base: "https://api.deepseek.com/beta", key: "DEEPSEEK_API_KEY"},
	"together_ai":  {dialect: config.ProviderOpenAI, label: "together", quirks: "together", base: "https://api.together.xyz/v1", key: "TOGETHERAI_API_KEY"},
	"openrouter":   {dialect: config.ProviderOpenAI, label: "openrouter", quirks: "openrouter", base: "https://openrouter.ai/api/v1", key: "OPENROUTER_API_KEY"},
	"xai":          {dialect: config.ProviderOpenAI, label: "xai", quirks: "xai", base: "https://api.x.ai/v1", key: "XAI_API_KEY"},
	"fireworks_ai": {dialect: config.ProviderOpenAI, label: "fireworks", quirks: "fireworks", base: "https://api.fireworks.ai/inference/v1", key: "FIREWORKS_API_KEY"},
	"perplexity":   {dialect: config.ProviderOpenAI, label: "perplexity", quirks: "perplexity", base: "https://api.perplexity.ai", key: "PERPLEXITYAI_API_KEY"},
	"cerebras":     {dialect: config.ProviderOpenAI, label: "cerebras", quirks: "cerebras", base: "https://api.cerebras.ai/v1", key: "CEREBRAS_API_KEY"},
	"deepinfra":    {dialect: config.ProviderOpenAI, label: "deepinfra", quirks: "deepinfra", base: "https://api.deepinfra.com/v1/openai", key: "DEEPINFRA_API_KEY"},
	"sambanova":    {dialect: config.ProviderOpenAI, label: "sambanova", quirks: "sambanova", base: "https://api.sambanova.ai/v1", key: "SAMBANOVA_API_KEY"},
	"nvidia_nim":   {dialect: config.ProviderOpenAI, label: "nvidia", quirks: "nvidia", base: "https://integrate.api.nvidia.com/v1", key: "NVIDIA_NIM_API_KEY"},
	"moonshot":     {dialect: config.ProviderOpenAI, label: "moonshot", quirks: "moonshot", base: "https://api.moonshot.ai/v1", key: "MOONSHOT_API_KEY"},
	"hyperbolic":   {dialect: config.ProviderOpenAI, label: "hyperbolic", quirks: "hyperbolic", base: "https://api.hyperbolic.xyz/v1", key: "HYPERBOLIC_API_KEY"},
	"nebius":       {dialect: config.ProviderOpenAI, label: "nebius", quirks: "nebius", base: "https://api.studio.nebius.ai/v1", key: "NEBIUS_API_KEY"},
	"novita":       {dialect: config.ProviderOpenAI, label: "novita", quirks: "novita", base: "https://api.novita.ai/v3/openai", key: "NOVITA_API_KEY"},
	"dashscope":    {dialect: config.ProviderOpenAI, label: "dashscope", quirks: "dashscope", base: "https://dashscope-intl.aliyuncs.com/compatible-mode/v1", key: "DASHSCOPE_API_KEY"},
	"zai":          {dialect: config.ProviderOpenAI, label: "zhipu", quirks: "zhipu", base: "https://api.z.ai/api/paas/v4", key: "ZAI_API_KEY"},
	"meta_llama":   {dialect: config.ProviderOpenAI, label: "meta-llama", base: "https://api.llama.com/compat/v1", key: "LLAMA_API_KEY"},
	"friendliai":   {dialect: config.ProviderOpenAI, label: "friendli", base: "https://api.friendli.ai/serverless/v1", key: "FRIENDLI_TOKEN"},
	"github":       {dialect: config.ProviderOpenAI, label: "github", base: "https://models.inference.ai.azure.com", key: "GITHUB_API_KEY"},
	"volcengine":   {dialect: config.ProviderOpenAI, label: "volcengine", base: "https://ark.cn-beijing.volces.com/api/v3", key: "VOLCENGINE_API_KEY"},

	"litellm_proxy": {dialect: config.ProviderOpenAI, label: "litellm", key: "LITELLM_PROXY_API_KEY", asked: true},
	"hosted_vllm":   {dialect: config.ProviderOpenAI, label: "vllm", quirks: "vllm", asked: true},
	"vllm":          {dialect: config.ProviderOpenAI, label: "vllm", quirks: "vllm", asked: true},
	"lm_studio":     {dialect: config.ProviderOpenAI, label: "lm-studio", asked: true},
	"llamafile":     {dialect: config.ProviderOpenAI, label: "llamafile", asked: true},
	"ollama":        {dialect: config.ProviderOpenAI, label: "ollama", quirks: "ollama", base: "http://localhost:11434/v1"},
	"ollama_chat":   {dialect: config.ProviderOpenAI, label: "ollama", quirks: "ollama", base: "http://localhost:11434/v1"},
}

// litellmBare are the beginnings of names whose provider LiteLLM finds without
// a word before a slash, and the names that stand for one provider's wildcard
// when clients leave that word out.
var litellmBare = []struct{ begins, kind string }{
	{"gpt-", "openai"}, {"o1", "openai"}, {"o3", "openai"}, {"o4", "openai"}, {"chatgpt-", "openai"}, {"ft:gpt-", "openai"},
	{"text-embedding-", "openai"}, {"omni-moderation", "openai"}, {"dall-e-", "openai"}, {"tts-1", "openai"}, {"whisper-1", "openai"},
	{"claude-", "anthropic"}, {"gemini-", "vertex_ai"}, {"command-", "cohere"},
}

// litellmFamilies are the names that a wildcard of one provider serves when
// clients leave out the word before the slash.
var litellmFamilies = map[string][]string{
	"openai": {"gpt-*", "o1*", "o3*", "o4*", "text-embedding-*"}, "anthropic": {"claude-*"}, "gemini": {"gemini-*"}, "vertex_ai": {"gemini-*"},
	"mistral": {"mistral-*"}, "xai": {"grok-*"}, "deepseek": {"deepseek-*"}, "cohere": {"command-*"}, "perplexity": {"sonar*"},
}

// bodyParameters of litellm_params are members of the body that a client may
// set otherwise.
var bodyParameters = map[string]bool{
	"temperature": true, "top_p": true, "max_tokens": true, "max_completion_tokens": true, "n": true, "stop": true, "seed": true,
	"presence_penalty": true, "frequency_penalty": true, "logit_bias": true, "logprobs": true, "top_logprobs": true,
	"response_format": true, "tools": true, "tool_choice": true, "parallel_tool_calls": true, "functions": true, "function_call": true,
	"user": true, "reasoning_effort": true, "reasoning": true, "thinking": true, "service_tier": true, "store": true, "verbosity": true,
	"modalities": true, "audio": true, "prediction": true, "web_search_options": true, "stream_options": true, "metadata": true,
	"top_k": true, "min_p": true, "repetition_penalty": true, "stop_sequences": true, "safety_settings": true, "prompt_cache_key": true,
	"dimensions": true, "encoding_format": true, "input_type": true, "truncate": true, "voice": true, "language": true, "size": true, "quality": true,
	"enable_thinking": true, "chat_template_kwargs": true, "guided_json": true, "guided_regex": true, "guided_choice": true, "guided_grammar": true,
	"best_of": true, "min_tokens": true, "ignore_eos": true, "skip_special_tokens": true, "num_ctx": true, "safe_prompt": true,
	"provider": true, "models": true, "transforms": true, "route": true, "include_reasoning": true, "reasoning_format": true, "search_domain_filter": true,
}

const (
	noCache      = "response caching is not there yet"
	noGuardrails = "guardrails are not there yet"
	noPrices     = "prices and budgets are not part of the configuration"
	noShare      = "each process keeps its own account of failures and load; nothing is shared over Redis"
	noDatabase   = "no database is used: keys, teams and budgets in LiteLLM's are not read; write tenants with keys (docs/models.md)"
	noCallback   = "nothing is sent to callbacks; every request is told in the records (records.path) and in metrics"
	noTags       = "targets are not chosen by tags; a condition (when) over headers or the tenant's tier can do it"
	noAlerts     = "alerts are for your monitoring, over the metrics"
	noLimit      = "requests and tokens per minute are not limited"
	noRole       = "roles, profiles and tokens of other identities are not taken; give an access key"
	noEntra      = "tokens of Entra ID are not made here; give a key of the resource"
	noMock       = "there are no mock answers; penstock sim is a server that makes some up"
)

// litellmReasons say why a known key is not carried. Keys are paths without
// indexes.
var litellmReasons = map[string]string{
	"guardrails": noGuardrails, "policies": noGuardrails, "callback_settings": noCallback,
	"mcp_servers": "tools of MCP servers are not served", "mcp_tools": "tools of MCP servers are not served",
	"vector_store_registry": "vector stores are not served", "search_tools": "search tools are not served", "prompts": "prompts are not kept here",
	"assistant_settings": "assistants are not served", "files_settings": "files are not served", "finetune_settings": "fine-tuning is not served",
	"agent_list": "agents are not served", "worker_registry": "there is no control plane of this kind; see docs/gateway.md",
	"default_vertex_config": "belongs to LiteLLM's pass-through paths, which are not served",

	"litellm_params.tags": noTags, "litellm_params.tag_regex": noTags, "litellm_params.mock_response": noMock,
	"litellm_params.max_parallel_requests": "requests at a time to one provider are not limited",
	"litellm_params.max_budget":            noPrices, "litellm_params.budget_duration": noPrices,
	"litellm_params.aws_role_name": noRole, "litellm_params.aws_session_name": noRole, "litellm_params.aws_profile_name": noRole,
	"litellm_params.aws_web_identity_token": noRole, "litellm_params.aws_sts_endpoint": noRole, "litellm_params.aws_external_id": noRole,
	"litellm_params.azure_ad_token": noEntra, "litellm_params.tenant_id": noEntra, "litellm_params.client_id": noEntra, "litellm_params.client_secret": noEntra,
	"litellm_params.azure_scope": noEntra, "litellm_params.azure_username": noEntra, "litellm_params.azure_password": noEntra,
	"litellm_params.additional_drop_params":              "which parameters a target has no word for is known of each dialect and server",
	"litellm_params.allowed_openai_params":               "which parameters a target has no word for is known of each dialect and server",
	"litellm_params.configurable_clientside_auth_params": "clients cannot bring credentials or addresses of their own",
	"litellm_params.keepalive_seconds":                   "no comments are put into quiet streams",
	"litellm_params.itpm":                                noLimit, "litellm_params.otpm": noLimit,
	"litellm_params.use_in_pass_through":                "the provider's own paths are not passed through",
	"litellm_params.merge_reasoning_content_in_choices": "reasoning stays apart from the answer",
	"litellm_params.ssl_verify":                         "certificates of providers are always verified",
	"litellm_params.cache_control_injection_points":     "marks for prompt caching are the client's",
	"litellm_params.auto_router_config":                 "models are not chosen by the meaning of a prompt",
	"litellm_params.auto_router_config_path":            "models are not chosen by the meaning of a prompt",
	"litellm_params.auto_router_default_model":          "models are not chosen by the meaning of a prompt",
	"litellm_params.auto_router_embedding_model":        "models are not chosen by the meaning of a prompt",
	"model_info.base_model":                             "is for LiteLLM's price table; " + noPrices,
	"model_info.access_groups":                          "a key lists its models: tenants[].keys[].models",
	"model_info.tier":                                   "a target's condition can ask for a tier: when: identity.tier == 'paid'",
	"model_info.team_id":                                noDatabase,
	"model_info.supported_environments":                 "is not asked for here; write a file per environment",
	"model_info.health_check_model":                     "providers are not probed: their health is what requests find",
	"model_info.disable_background_health_check":        "providers are not probed: their health is what requests find",
	"router_settings.redis_host":                        noShare, "router_settings.redis_port": noShare, "router_settings.redis_password": noShare, "router_settings.redis_url": noShare,
	"router_settings.redis_db": noShare, "router_settings.cache_responses": noCache, "router_settings.cache_kwargs": noCache, "router_settings.caching_groups": noCache,
	"router_settings.retry_policy":             "retries are decided by class of failure, with one number for all of them",
	"router_settings.model_group_retry_policy": "retries are decided by class of failure, with one number for all; write models[].retries",
	"router_settings.allowed_fails_policy":     "a cool-down counts failures that the provider is to blame for, of whatever class",
	"router_settings.routing_strategy_args":    "there is nothing to set about how the faster one of two is found",
	"router_settings.routing_groups":           "each model has its own priorities and weights; write them at its targets",
	"router_settings.enable_tag_filtering":     noTags, "router_settings.tag_filtering_match_any": noTags, "router_settings.tag_routing_prefix": noTags,
	"router_settings.provider_budget_config": noPrices, "router_settings.alerting_config": noAlerts,
	"router_settings.default_max_parallel_requests":    "requests at a time to one provider are not limited",
	"router_settings.enable_health_check_routing":      "providers are not probed: their health is what requests find",
	"router_settings.health_check_staleness_threshold": "providers are not probed: their health is what requests find",
	"router_settings.assistants_config":                "assistants are not served", "router_settings.guardrail_list": noGuardrails, "router_settings.search_tools": "search tools are not served",

	"litellm_settings.cache": noCache, "litellm_settings.cache_params": noCache, "litellm_settings.enable_redis_auth_cache": noShare,
	"litellm_settings.callbacks": noCallback, "litellm_settings.success_callback": noCallback, "litellm_settings.failure_callback": noCallback,
	"litellm_settings.service_callback": noCallback, "litellm_settings.audit_log_callbacks": noCallback, "litellm_settings.langfuse_default_tags": noCallback,
	"litellm_settings.guardrails": noGuardrails, "litellm_settings.modify_params": "messages are not changed to please a provider, beyond what its dialect needs",
	"litellm_settings.ssl_verify": "certificates of providers are always verified", "litellm_settings.force_ipv4": "addresses are tried in the order of the resolver",
	"litellm_settings.max_budget": noPrices, "litellm_settings.budget_duration": noPrices, "litellm_settings.max_internal_user_budget": noPrices,
	"litellm_settings.cost_discount_config": noPrices, "litellm_settings.cost_margin_config": noPrices, "litellm_settings.upperbound_key_generate_params": noDatabase,
	"litellm_settings.default_internal_user_params": noDatabase, "litellm_settings.default_team_settings": noDatabase, "litellm_settings.default_key_generate_params": noDatabase,
	"litellm_settings.set_verbose": "the level of the log is log.level", "litellm_settings.mcp_aliases": "tools of MCP servers are not served",
	"litellm_settings.store_audit_logs": noDatabase, "litellm_settings.add_function_to_prompt": "tools are never written into the prompt",
	"litellm_settings.public_model_groups": "every model is listed to the keys that may ask for it", "litellm_settings.prometheus_metrics_config": noCallback,

	"general_settings.database_url": noDatabase, "general_settings.store_model_in_db": "models are in the file; models in LiteLLM's database are not read",
	"general_settings.store_prompts_in_spend_logs": "records hold no prompts and no answers", "general_settings.disable_spend_logs": noDatabase,
	"general_settings.alerting": noAlerts, "general_settings.alerting_threshold": noAlerts, "general_settings.alert_types": noAlerts, "general_settings.alert_to_webhook_url": noAlerts,
	"general_settings.alerting_args": noAlerts, "general_settings.spend_report_frequency": noAlerts,
	"general_settings.completion_model":                  "the model is the one that the client asks for",
	"general_settings.custom_auth":                       "keys are the only way in; see docs/models.md",
	"general_settings.enable_jwt_auth":                   "keys are the only way in; see docs/models.md",
	"general_settings.litellm_jwtauth":                   "keys are the only way in; see docs/models.md",
	"general_settings.enable_oauth2_auth":                "keys are the only way in; see docs/models.md",
	"general_settings.key_management_system":             "secrets are read from variables and files",
	"general_settings.key_management_settings":           "secrets are read from variables and files",
	"general_settings.use_google_kms":                    "secrets are read from variables and files",
	"general_settings.use_azure_key_vault":               "secrets are read from variables and files",
	"general_settings.pass_through_endpoints":            "other paths are served by HTTP routes (httpRoutes)",
	"general_settings.max_parallel_requests":             "requests at a time are not limited",
	"general_settings.global_max_parallel_requests":      "requests at a time are not limited; limits.connections bounds connections",
	"general_settings.background_health_checks":          "providers are not probed: their health is what requests find",
	"general_settings.health_check_interval":             "providers are not probed: their health is what requests find",
	"general_settings.enforce_user_param":                "a user is not asked for",
	"general_settings.forward_client_headers_to_llm_api": "headers that providers know pass; others do not",
	"general_settings.allowed_ips":                       "addresses of clients are for the network to limit",
	"general_settings.ui_access_mode":                    "there is no such interface", "general_settings.proxy_batch_write_at": noDatabase,
	"general_settings.allow_requests_on_db_unavailable": noDatabase, "general_settings.user_header_name": "the user is the one of the body",
	"general_settings.max_response_size_mb":  "answers are passed on as they come, without a bound",
	"general_settings.infer_model_from_keys": "models are those of the file",
}

// litellmAnyway are settings that are of no consequence here, with the reason.
var litellmAnyway = map[string]string{
	"litellm_settings.turn_off_message_logging":      "records hold no prompts and no answers",
	"litellm_settings.redact_user_api_key_info":      "records hold names of keys, never keys",
	"litellm_settings.telemetry":                     "nothing is sent anywhere",
	"general_settings.enforce_fallback_model_access": "always holds: a fallback is taken only if the key may ask for that model",
	"general_settings.litellm_license":               "there is nothing to license",
}
