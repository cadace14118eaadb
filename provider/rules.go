// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package provider

import (
	"slices"
	"strings"

	"github.com/penstock/penstock/llm"
)

// rule gives the class of the errors that it fits. What is not set fits any.
type rule struct {
	dialect llm.Dialect
	status  []int
	codes   []string // one of them is the code, the type or the status name; lower case, without "_" and "exception"
	texts   []string // one of them is in the message, lower case
	class   Class
}

var (
	badRequest = []int{400, 413, 422}
	refusals   = []int{400, 403, 404, 422}
)

// ruleTable is read from the top; the first rule that fits decides. Codes are the
// providers' own words, and come before texts; what is special comes before what
// is general, statuses alone come last.
var ruleTable = []rule{
	// The prompt is too long. A request that is larger than the tokens of a whole
	// minute never fits into this account: the way out is the same.
	{codes: []string{"contextlengthexceeded", "contextwindowexceeded", "modelcontextwindowexceeded"}, class: ContextWindow},
	{status: []int{413, 429}, texts: []string{"request too large for "}, class: ContextWindow},
	{status: badRequest, texts: []string{
		"prompt is too long", "maximum context length", "context length", "context window", "input is too long", "input length and `max_tokens` exceed",
		"input token count", "exceeds the maximum number of tokens", "maximum number of tokens allowed", "too many input tokens", "input tokens exceed",
		"reduce the length of the messages", "prompt too long", "exceed_context_size", "longer than the model's context", "max_model_len", "max_total_tokens",
		"range of input length",
	}, class: ContextWindow},

	// Content.
	{codes: []string{"contentfilter", "contentpolicyviolation", "responsibleaipolicyviolation", "moderationblocked", "datainspectionfailed", "contentmoderation", "safety", "prohibitedcontent", "sensitive"}, class: ContentPolicy},
	{status: []int{400, 403, 422, 451}, texts: []string{"content management policy", "content policy", "flagged by moderation", "safety system", "requires moderation", "blocked by the guardrail", "input data may contain inappropriate content"}, class: ContentPolicy},

	// The account. Google says "quota" for limits of a minute too.
	{dialect: llm.DialectGemini, status: []int{429}, codes: []string{"perday"}, class: Quota},
	{dialect: llm.DialectGemini, codes: []string{"resourceexhausted"}, class: RateLimit},
	{codes: []string{"insufficientquota", "billingerror", "billinghardlimitreached", "billingnotactive", "exceededcurrentquotaerror", "arrearage", "insufficientbalance", "insufficientcredits", "creditsexhausted", "accountdeactivated", "1113"}, class: Quota},
	{status: []int{402}, class: Quota},
	{status: []int{400, 403, 429}, texts: []string{"credit balance", "insufficient balance", "insufficient credit", "exceeded your current quota", "billing details", "billing hard limit", "out of credits", "used all available credits"}, class: Quota},

	// The credential.
	{codes: []string{"invalidapikey", "authenticationerror", "apikeyinvalid", "unauthenticated", "unrecognizedclient", "invalidsignature", "expiredtoken", "missingauthenticationtoken", "invalidclienttokenid", "signaturedoesnotmatch", "incompletesignature"}, class: Auth},
	{status: []int{400}, texts: []string{"api key not valid", "api key expired", "invalid api key", "incorrect api key"}, class: Auth},
	{status: []int{401}, class: Auth},

	// What a request names besides the model: a client that names what is not
	// there, or another's, must not take the credential from the others.
	{codes: []string{"previousresponsenotfound"}, class: BadRequest},
	{status: []int{400, 403, 404, 410}, texts: []string{
		"permission to access the file", "no such file", "file not found", "file with id", "cachedcontent", "cached content", "conversation with id", "conversation not found",
		"response with id", "previous response", "item with id", "prompt with id", "prompt not found", "vector store", "vector_store", "container with id", "container not found",
		"no such container", "no such response", "no such conversation", "batch not found", "skill not found", "tuning job",
	}, class: BadRequest},

	// The model.
	{codes: []string{"modelnotfound", "deploymentnotfound", "modelnotavailable", "modeldecommissioned", "invalidmodel", "modelnotsupported", "unknownmodel", "nosuchmodel", "resourcenotfound", "operationnotsupported"}, class: ModelNotFound},
	{status: refusals, texts: []string{
		"model identifier is invalid", "on-demand throughput isn", "is not a valid model", "model does not exist", "model not found", "no endpoints found", "does not have access to model",
		"don't have access to the model", "not authorized to invoke this model", "model has reached the end of its life", "decommissioned",
	}, class: ModelNotFound},
	{status: []int{403}, class: Forbidden},

	// Limits and load.
	{codes: []string{"modelnotready", "overloaded", "overloadederror", "engineoverloaded", "slowdown", "serviceunavailable", "serverbusy", "capacityexceeded", "servicetiercapacityexceeded", "modeloverloaded"}, class: Overloaded},
	{codes: []string{"ratelimitexceeded", "ratelimiterror", "ratelimited", "throttling", "throttlingratequota", "toomanyrequests", "resourceexhausted", "servicequotaexceeded", "ratelimitreachederror", "requestlimitexceeded", "tokensperminuteexceeded"}, class: RateLimit},
	{status: []int{429}, class: RateLimit},
	{status: []int{498, 503, 529}, class: Overloaded}, // 498: Groq's flex tier is full

	// Faults.
	{codes: []string{"modeltimeout", "requesttimeout"}, class: Timeout},
	{status: []int{408}, class: Timeout},
	{codes: []string{"modelerror", "modelstreamerror", "internalserver", "internalservererror", "apierror", "servererror", "internalerror", "internal", "unavailable", "deadlineexceeded", "timeouterror"}, class: Server},
	{status: []int{424}, class: Server},
	{status: []int{404, 410}, class: ModelNotFound},
	{status: []int{301, 302, 303, 307, 308}, class: ModelNotFound}, // the base URL leads elsewhere, and no redirect is followed
}

// decide is the class of an error that stands in an answer. status is that of the
// answer, or the one that an event of a stream names; 0: none.
func decide(d llm.Dialect, status int, e *evidence) Class {
	text := strings.ToLower(e.message)
	if d == llm.DialectPredict {
		d = llm.DialectGemini // Google's errors are the same
	}
	for i := range ruleTable {
		r := ruleTable[i]
		if r.dialect != 0 && r.dialect != d || r.status != nil && !slices.Contains(r.status, status) && !(status == 0 && r.texts != nil) {
			continue
		}
		if r.codes != nil && !e.has(r.codes) {
			continue
		}
		if r.texts != nil && !slices.ContainsFunc(r.texts, func(t string) bool { return strings.Contains(text, t) }) {
			continue
		}
		return r.class
	}
	switch {
	case status >= 500:
		return Server
	case status >= 400:
		return BadRequest
	case e.has([]string{"invalidrequesterror", "invalidrequest", "invalidargument", "validation"}):
		return BadRequest
	}
	return StreamBroken
}
