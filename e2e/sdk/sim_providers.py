# SPDX-FileCopyrightText: The Penstock Authors
# SPDX-License-Identifier: Apache-2.0

"""Runs each provider's own client for Python, unchanged, against the simulated
provider in its shape: proof that the simulator speaks as the provider does. A
line per case, as the clients of run.sh print them.

  python3 -m venv .cache/sdk/sim
  .cache/sdk/sim/bin/pip install -r e2e/sdk/sim_requirements.txt
  .cache/sdk/sim/bin/python e2e/sdk/sim_providers.py [SHAPE...]

Environment: PENSTOCK, default bin/penstock.
"""

import json
import os
import subprocess
import sys
import traceback
import urllib.request

SCHEMA = {
    "type": "object",
    "properties": {"place": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["place", "days"],
    "additionalProperties": False,
}
VALUE = {"days": 7, "place": "kot mel"}
TEXT = "Grüße 👋"
TOOLS = ("weather", "news")


def check(ok, what):
    if not ok:
        raise AssertionError(what)


def refused(kind, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except kind as e:
        return e
    raise AssertionError(f"no {kind}")


class Provider:
    """A simulated provider and the client under test."""

    shape = models = ()
    flags = ()

    def start(self):
        command = [os.environ.get("PENSTOCK", "bin/penstock"), "sim", "--provider", "--shape", self.shape, "--port", "0"]
        command += ["--ttft", "5ms", "--itl", "100us", "--model", self.models[0], *self.flags]
        for name in self.models[1:]:
            command += ["--alias", name]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().split()[0]

    def stop(self):
        self.process.terminate()
        self.process.wait()

    def faults(self, **faults):
        request = urllib.request.Request(self.url + "/sim/faults", json.dumps(faults).encode(), method="POST")
        urllib.request.urlopen(request, timeout=10).read()


class Anthropic(Provider):
    shape, models, flags = "anthropic", ["claude-sim"], ["--api-key", "k"]

    def connect(self):
        import anthropic

        self.sdk = anthropic
        self.client = anthropic.Anthropic(base_url=self.url, api_key="k", max_retries=0)

    def request(self, text, **more):
        return {"model": "claude-sim", "max_tokens": 3000, "messages": [{"role": "user", "content": text}], **more}

    def whole(self):
        m = self.client.messages.create(**self.request("say: " + TEXT))
        check(m.content[0].text == TEXT and m.stop_reason == "end_turn" and m.usage.output_tokens > 0, m)

    def stream(self):
        with self.client.messages.stream(**self.request("hello", max_tokens=50)) as s:
            text = "".join(s.text_stream)
            m = s.get_final_message()
        check(m.content[0].text == text and m.stop_reason == "max_tokens" and m.usage.output_tokens == 50, m)

    def tools(self, streamed=False):
        tools = [{"name": n, "description": n, "input_schema": SCHEMA} for n in TOOLS]
        a = self.request("use tools", tools=tools, thinking={"type": "enabled", "budget_tokens": 1024})
        if streamed:
            with self.client.messages.stream(**a) as s:
                m = s.get_final_message()
        else:
            m = self.client.messages.create(**a)
        calls = [b for b in m.content if b.type == "tool_use"]
        check(m.stop_reason == "tool_use" and [c.input for c in calls] == [VALUE, VALUE], m)
        check(m.content[0].type == "thinking" and m.content[0].signature, m)
        results = [{"type": "tool_result", "tool_use_id": b.id, "content": "sunny"} for b in calls]
        a["messages"] += [{"role": "assistant", "content": m.content}, {"role": "user", "content": results}]
        check("sunny" in self.client.messages.create(**a).content[-1].text, "no results in the answer")
        m.content[0].signature = "bad"
        check("signature" in str(refused(self.sdk.BadRequestError, self.client.messages.create, **a)), "which error?")

    def tools_stream(self):
        self.tools(streamed=True)

    def structured(self):
        form = {"format": {"type": "json_schema", "schema": SCHEMA}}
        m = self.client.messages.create(**self.request("x", output_config=form))
        check(json.loads(m.content[0].text) == VALUE, m)

    def count(self):
        a = self.request("hello")
        del a["max_tokens"]
        check(self.client.messages.count_tokens(**a).input_tokens == 8, "tokens")
        check([m.id for m in self.client.models.list()] == self.models, "models")

    def errors(self):
        s, create = self.sdk, self.client.messages.create
        for name, kind in [
            ("overloaded", s.InternalServerError), ("rate", s.RateLimitError), ("auth", s.AuthenticationError),
            ("context", s.BadRequestError), ("model", s.NotFoundError), ("permission", s.PermissionDeniedError),
        ]:
            self.faults(error=name, retryAfter=3)
            refused(kind, create, **self.request("x"))
        for place in ("preamble", "output"):
            self.faults(errorEvent=place, error="overloaded")
            refused(s.APIStatusError, lambda: list(create(**self.request("x", stream=True))))
        self.faults()
        refused(s.AuthenticationError, self.client.with_options(api_key="z").messages.create, **self.request("x"))


class Gemini(Provider):
    shape, models, flags = "gemini", ["gemini-sim", "gemini-3-sim"], ["--api-key", "k"]

    def connect(self):
        from google import genai

        self.sdk = genai
        self.options = genai.types.HttpOptions(base_url=self.url)
        self.client = genai.Client(api_key="k", http_options=self.options)

    def generate(self, contents, model="gemini-sim", **config):
        return self.client.models.generate_content(model=model, contents=contents, config=config)

    def whole(self):
        r = self.generate("say: " + TEXT)
        check(r.text == TEXT and r.usage_metadata.candidates_token_count > 0, r)

    def stream(self):
        last = None
        for last in self.client.models.generate_content_stream(
            model="gemini-sim", contents="hello", config={"max_output_tokens": 40}
        ):
            pass
        check(last.candidates[0].finish_reason.name == "MAX_TOKENS", last)
        check(last.usage_metadata.candidates_token_count == 40, last)

    def thoughts(self):
        r = self.generate("hello", thinking_config={"include_thoughts": True, "thinking_budget": 100})
        check(r.candidates[0].content.parts[0].thought and r.usage_metadata.thoughts_token_count > 0, r)

    def tools(self, streamed=False):
        t = self.sdk.types
        functions = [{"name": n, "description": n, "parameters_json_schema": SCHEMA} for n in TOOLS]
        config = {"tools": [{"function_declarations": functions}], "automatic_function_calling": {"disable": True}}
        contents = [t.Content(role="user", parts=[t.Part(text="use tools")])]
        parts = []
        if streamed:
            for r in self.client.models.generate_content_stream(model="gemini-3-sim", contents=contents, config=config):
                parts += [p for p in r.candidates[0].content.parts or [] if p.function_call]
        else:
            parts = self.generate(contents, "gemini-3-sim", **config).candidates[0].content.parts
        check([p.function_call.args for p in parts] == [VALUE, VALUE] and parts[0].thought_signature, parts)
        results = [t.Part.from_function_response(name=p.function_call.name, response={"r": "sunny"}) for p in parts]
        contents += [t.Content(role="model", parts=parts), t.Content(role="user", parts=results)]
        check("sunny" in self.generate(contents, "gemini-3-sim", **config).text, "no results in the answer")
        parts[0].thought_signature = None
        e = refused(self.sdk.errors.ClientError, self.generate, contents, "gemini-3-sim", **config)
        check(e.code == 400 and "thought_signature" in str(e), e)

    def tools_stream(self):
        self.tools(streamed=True)

    def structured(self):
        r = self.generate("x", response_mime_type="application/json", response_json_schema=SCHEMA)
        check(json.loads(r.text) == VALUE, r)

    def count(self):
        check(self.client.models.count_tokens(model="gemini-sim", contents="hello").total_tokens == 8, "tokens")
        check(len(list(self.client.models.list())) == 2, "models")
        check(self.client.models.embed_content(model="gemini-sim", contents="a").embeddings, "embeddings")

    def errors(self):
        for name, code in [("rate", 429), ("unavailable", 503), ("auth", 401), ("context", 400), ("model", 404)]:
            self.faults(error=name, retryAfter=17)
            e = refused(self.sdk.errors.APIError, self.generate, "x")
            check(e.code == code, f"{name}: {e}")
        self.faults(errorEvent="output", error="unavailable")
        stream = self.client.models.generate_content_stream
        refused(self.sdk.errors.APIError, lambda: list(stream(model="gemini-sim", contents="x")))
        self.faults(error="filter")
        check(self.generate("x").prompt_feedback.block_reason, "no reason")
        self.faults()
        wrong = self.sdk.Client(api_key="z", http_options=self.options)
        refused(self.sdk.errors.ClientError, wrong.models.generate_content, model="gemini-sim", contents="x")


class Bedrock(Provider):
    shape, models = "bedrock", ["eu.anthropic.claude-sim-v1:0"]
    flags = ["--access-key", "AKIASIM:secret", "--region", "eu-west-1"]

    def connect(self):
        import botocore

        self.sdk = botocore
        self.client = self.signed("secret")

    def signed(self, secret):
        import boto3
        from botocore.config import Config

        return boto3.client(
            "bedrock-runtime", region_name="eu-west-1", endpoint_url=self.url, aws_access_key_id="AKIASIM",
            aws_secret_access_key=secret, config=Config(retries={"total_max_attempts": 1}),
        )

    def request(self, text, *blocks, **more):
        return {"modelId": self.models[0], "messages": [{"role": "user", "content": [{"text": text}, *blocks]}], **more}

    def whole(self):
        r = self.client.converse(**self.request("say: " + TEXT))
        check(r["output"]["message"]["content"][0]["text"] == TEXT and r["usage"]["outputTokens"] > 0, r)

    def stream(self):
        events = list(self.client.converse_stream(**self.request("x", inferenceConfig={"maxTokens": 30}))["stream"])
        text = "".join(e["contentBlockDelta"]["delta"]["text"] for e in events if "contentBlockDelta" in e)
        check(text and events[-2]["messageStop"]["stopReason"] == "max_tokens", events)
        check(events[-1]["metadata"]["usage"]["outputTokens"] == 30, events)

    def image(self):
        r = self.client.converse(**self.request("x", {"image": {"format": "png", "source": {"bytes": b"123"}}}))
        check("1 images" in r["output"]["message"]["content"][0]["text"], r)

    def assemble(self, stream):
        """The content of a streamed message."""
        blocks = {}
        for e in stream:
            if "contentBlockStart" in e:
                start = e["contentBlockStart"]
                blocks[start["contentBlockIndex"]] = {"toolUse": {**start["start"]["toolUse"], "input": ""}}
            if "contentBlockDelta" in e:
                i, delta = e["contentBlockDelta"]["contentBlockIndex"], e["contentBlockDelta"]["delta"]
                if "toolUse" in delta:
                    blocks[i]["toolUse"]["input"] += delta["toolUse"]["input"]
                for name, text in delta.get("reasoningContent", {}).items():
                    empty = {"reasoningContent": {"reasoningText": {"text": "", "signature": ""}}}
                    blocks.setdefault(i, empty)["reasoningContent"]["reasoningText"][name] += text
        for b in blocks.values():
            if "toolUse" in b:
                b["toolUse"]["input"] = json.loads(b["toolUse"]["input"])
        return [blocks[i] for i in sorted(blocks)]

    def tools(self, streamed=False):
        specs = [{"toolSpec": {"name": n, "description": n, "inputSchema": {"json": SCHEMA}}} for n in TOOLS]
        thinking = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
        a = self.request("use tools", toolConfig={"tools": specs}, additionalModelRequestFields=thinking)
        if streamed:
            content = self.assemble(self.client.converse_stream(**a)["stream"])
        else:
            content = self.client.converse(**a)["output"]["message"]["content"]
        calls = [b["toolUse"] for b in content if "toolUse" in b]
        check([c["input"] for c in calls] == [VALUE, VALUE], content)
        results = [{"toolResult": {"toolUseId": c["toolUseId"], "content": [{"text": "sunny"}]}} for c in calls]
        a["messages"] += [{"role": "assistant", "content": content}, {"role": "user", "content": results}]
        r = self.client.converse(**a)
        check("sunny" in r["output"]["message"]["content"][-1]["text"], r)

    def tools_stream(self):
        self.tools(streamed=True)

    def errors(self):
        error, events = self.sdk.exceptions.ClientError, self.sdk.exceptions.EventStreamError
        for name, code in [
            ("rate", "ThrottlingException"), ("unavailable", "ServiceUnavailableException"),
            ("permission", "AccessDeniedException"), ("context", "ValidationException"),
            ("model", "ResourceNotFoundException"), ("timeout", "ModelTimeoutException"),
        ]:
            self.faults(error=name)
            e = refused(error, self.client.converse, **self.request("x"))
            check(e.response["Error"]["Code"] == code, e)
        for place in ("preamble", "output"):
            self.faults(errorEvent=place, error="rate")
            e = refused(events, lambda: list(self.client.converse_stream(**self.request("x"))["stream"]))
            check("throttlingException" in str(e), e)
        self.faults(malformed="output")
        mismatch = self.sdk.eventstream.ChecksumMismatch
        refused(mismatch, lambda: list(self.client.converse_stream(**self.request("x"))["stream"]))
        self.faults()
        e = refused(error, self.signed("wrong").converse, **self.request("x"))
        check(e.response["Error"]["Code"] == "InvalidSignatureException", e)


class OpenAI(Provider):
    shape, models, flags = "openai", ["gpt-sim", "o-sim"], ["--api-key", "k"]

    def connect(self):
        import openai

        self.sdk = openai
        self.client = self.v1 = openai.OpenAI(base_url=self.url + "/v1", api_key="k", max_retries=0)

    def chat(self, text, call=None, **more):
        call = call or self.client.chat.completions.create
        return call(**{"model": "gpt-sim", "messages": [{"role": "user", "content": text}], **more})

    def whole(self):
        r = self.chat("say: " + TEXT)
        check(r.choices[0].message.content == TEXT, r)

    def stream(self):
        chunks = list(self.chat("hello", stream=True, max_tokens=20, stream_options={"include_usage": True}))
        check(chunks[-1].usage.completion_tokens == 20, chunks)
        r = self.client.completions.create(model="gpt-sim", prompt=["a", "b"], max_tokens=4, n=2, echo=True)
        check(len(r.choices) == 4 and r.choices[2].text.startswith("b"), r)

    def tools(self):
        tools = [{"type": "function", "function": {"name": n, "parameters": SCHEMA, "strict": True}} for n in TOOLS]
        messages = [{"role": "user", "content": "use tools"}]
        a = {"model": "gpt-sim", "messages": messages, "tools": tools}
        with self.client.chat.completions.stream(**a) as s:
            m = s.get_final_completion().choices[0].message
        check([json.loads(c.function.arguments) for c in m.tool_calls] == [VALUE, VALUE], m)
        m = self.client.chat.completions.create(**a).choices[0].message
        messages += [m] + [{"role": "tool", "tool_call_id": c.id, "content": "sunny"} for c in m.tool_calls]
        check("sunny" in self.client.chat.completions.create(**a).choices[0].message.content, "no results")
        messages.pop()
        refused(self.sdk.BadRequestError, self.client.chat.completions.create, **a)

    def reasoning(self):
        e = refused(self.sdk.BadRequestError, self.chat, "x", model="o-sim", max_tokens=5)
        check(e.code == "unsupported_parameter", e)
        r = self.chat("x", model="o-sim", max_completion_tokens=50)
        check(r.usage.completion_tokens_details.reasoning_tokens > 0, r)

    def responses(self):
        create = self.v1.responses.create
        r = create(model="gpt-sim", input="say: hi")
        check(r.output_text == "hi" and self.v1.responses.retrieve(r.id).output_text == "hi", r)
        create(model="gpt-sim", input="x", previous_response_id=r.id)
        self.v1.responses.delete(r.id)
        e = refused(self.sdk.BadRequestError, create, model="gpt-sim", input="x", previous_response_id=r.id)
        check(e.code == "previous_response_not_found", e)

    def responses_stream(self):
        tools = [{"type": "function", "name": n, "parameters": SCHEMA, "strict": True} for n in TOOLS]
        a = {
            "model": "o-sim", "tools": tools, "reasoning": {"effort": "low", "summary": "auto"}, "store": False,
            "include": ["reasoning.encrypted_content"],
        }
        with self.v1.responses.stream(input="use tools", **a) as s:
            r = s.get_final_response()
        calls = [i for i in r.output if i.type == "function_call"]
        check(len(calls) == 2 and r.output[0].encrypted_content and r.output[0].summary[0].text, r)
        history = [{"role": "user", "content": "use tools"}]
        for item in r.output:
            history.append({k: v for k, v in item.model_dump(exclude_none=True).items() if k != "parsed_arguments"})
        history += [{"type": "function_call_output", "call_id": c.call_id, "output": "sunny"} for c in calls]
        check("sunny" in self.v1.responses.create(input=history, **a).output_text, "no results")
        history[1]["encrypted_content"] = "AAAA"
        e = refused(self.sdk.BadRequestError, self.v1.responses.create, input=history, **a)
        check(e.code == "invalid_encrypted_content", e)

    def structured(self):
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
        r = self.chat("x", response_format=form)
        check(json.loads(r.choices[0].message.content) == VALUE, r)

    def media(self):
        check(len(self.client.embeddings.create(model="gpt-sim", input=["a", "b"]).data[1].embedding) == 64, "embeddings")
        check(self.client.images.generate(model="gpt-sim", prompt="cat").data[0].b64_json, "images")
        check(self.client.audio.speech.create(model="gpt-sim", input="hi", voice="alloy").read(), "speech")
        check(self.client.audio.transcriptions.create(model="gpt-sim", file=("a.wav", b"x" * 40000)).text, "transcription")
        check(self.v1.moderations.create(model="gpt-sim", input="violence").results[0].flagged, "moderation")

    def errors(self):
        s = self.sdk
        for fault, kind in [
            ({"error": "rate", "retryAfter": 3}, s.RateLimitError), ({"error": "server"}, s.InternalServerError),
            ({"error": "auth"}, s.AuthenticationError), ({"error": "context"}, s.BadRequestError),
            ({"error": "model"}, s.NotFoundError), ({"wire": ["html"]}, s.InternalServerError),
            ({"error": "filter"}, s.BadRequestError), ({"cut": "start"}, s.APIConnectionError),
        ]:
            self.faults(**fault)
            refused(kind, self.chat, "x")
        self.faults(errorEvent="output", error="server")
        refused(s.APIError, lambda: list(self.chat("x", stream=True)))
        events = list(self.v1.responses.create(model="gpt-sim", input="x", stream=True))
        check(events[-1].type == "error" and events[-1].code == "server_error", events[-1])
        self.faults()


class Azure(OpenAI):
    shape = "azure"

    def connect(self):
        import openai

        self.sdk = openai
        self.client = openai.AzureOpenAI(azure_endpoint=self.url, api_key="k", api_version="2024-10-21", max_retries=0)
        self.v1 = openai.OpenAI(base_url=self.url + "/openai/v1/", api_key="k", max_retries=0)


class Cohere(Provider):
    shape, models, flags = "cohere", ["rerank-sim"], ["--api-key", "k"]

    def connect(self):
        import cohere

        self.sdk = cohere
        self.client = cohere.ClientV2(api_key="k", base_url=self.url)

    def rerank(self):
        a = {"model": "rerank-sim", "query": "blue sky", "documents": ["a red car", "the blue sky", "sky"]}
        r = self.client.rerank(**a, top_n=2)
        check([x.index for x in r.results] == [1, 2] and r.meta.billed_units.search_units == 1, r)
        wrong = self.sdk.ClientV2(api_key="z", base_url=self.url)
        refused(self.sdk.errors.UnauthorizedError, wrong.rerank, **a)


CASES = [
    "whole", "stream", "thoughts", "image", "tools", "tools_stream", "reasoning", "responses", "responses_stream",
    "structured", "count", "media", "rerank", "errors",
]


def main():
    failed = 0
    for kind in [Anthropic, Gemini, Bedrock, OpenAI, Azure, Cohere]:
        if sys.argv[1:] and kind.shape not in sys.argv[1:]:
            continue
        provider = kind()
        provider.start()
        try:
            provider.connect()
            for case in CASES:
                if not hasattr(provider, case):
                    continue
                try:
                    getattr(provider, case)()
                    print(f"{kind.shape} {case} ok", flush=True)
                except Exception as e:
                    failed += 1
                    print(f"{kind.shape} {case} FAILED {type(e).__name__}: {e}".replace("\n", " "), flush=True)
                    traceback.print_exc()
        finally:
            provider.stop()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
