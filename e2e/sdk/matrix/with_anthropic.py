# SPDX-FileCopyrightText: The Penstock Authors
# SPDX-License-Identifier: Apache-2.0

"""Anthropic's client for Python."""

import json

import anthropic
from rig import KEY
from sim_providers import SCHEMA, TEXT, TOOLS, VALUE, check, refused
from with_openai import IMAGE, LONG, RESULTS, answered, only

THINK = {"type": "enabled", "budget_tokens": 1024}


def told(e, status, kind=None):
    check(e.status_code == status, f"status {e.status_code}: {e}")
    check(isinstance(e.body, dict) and e.body.get("type") == "error" and e.body["error"].get("message"), f"body {e.body!r}")
    if kind:
        check(e.body["error"]["type"] == kind, f"type {e.body['error']['type']}")


class Messages:
    name = "anthropic"

    def __init__(self, url, max_retries=0):
        self.url = url
        self.client = anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=max_retries, timeout=30)

    def request(self, model, text, **more):
        messages = [{"role": "user", "content": text}] if isinstance(text, str) else text
        return {"model": model, "max_tokens": 3000, "messages": messages, **more}

    def ask(self, *args, **more):
        return self.client.messages.create(**self.request(*args, **more))

    def text(self, b):
        m = self.ask(b.name, "say: " + TEXT, system="Be brief.")
        check(m.content[0].text == TEXT and m.stop_reason == "end_turn" and m.model == b.name, m)
        m = self.ask(b.name, "hello", max_tokens=10)
        check(m.stop_reason == "max_tokens", m)
        m = self.ask(b.name, "say: one two three", stop_sequences=["two"])
        check(m.content[0].text.strip() == "one", m)

    def stream(self, b):
        text = "".join(self.texts(b.name, "say: " + TEXT))
        m = self.message(True, **self.request(b.name, "say: " + TEXT))
        check(text == TEXT and m.content[0].text == TEXT and m.stop_reason == "end_turn" and m.model == b.name, m)
        kinds = [e.type for e in self.ask(b.name, "say: " + TEXT, stream=True)]
        check(kinds[0] == "message_start" and kinds[-1] == "message_stop", kinds)

    def usage(self, b):
        for stream in (False, True):
            text = LONG + ("stream" if stream else "")
            parts = [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]
            for _ in range(2):
                a = self.request(b.name, [{"role": "user", "content": parts}], max_tokens=20)
                u = self.message(stream, **a).usage
                read = u.cache_read_input_tokens or 0
                got = u.input_tokens + read + (u.cache_creation_input_tokens or 0), read, u.output_tokens
                check(got == b.counted(), f"stream {stream}: {got}, the server counted {b.counted()}")
            if b.name in ("anthropic", "bedrock"):
                check(read > 0, "the mark of the cache did not arrive")

    def message(self, streamed, **a):
        if streamed:
            with self.client.messages.stream(**a) as s:
                return s.get_final_message()
        return self.client.messages.create(**a)

    def texts(self, model, text):
        with self.client.messages.stream(**self.request(model, text)) as s:
            yield from s.text_stream

    def calls(self, b, model, streamed, **more):
        tools = [{"name": n, "description": n, "input_schema": SCHEMA} for n in TOOLS]
        a = self.request(model, "use tools", tools=tools, **more)
        m = self.message(streamed, **a)
        calls = [p for p in m.content if p.type == "tool_use"]
        check(m.stop_reason == "tool_use" and [c.name for c in calls] == list(TOOLS), m)
        check([c.input for c in calls] == [VALUE, VALUE], m)
        results = [{"type": "tool_result", "tool_use_id": c.id, "content": r} for c, r in zip(calls, RESULTS)]
        a["messages"] += [{"role": "assistant", "content": m.content}, {"role": "user", "content": results}]
        text = self.message(streamed, **a).content[-1].text
        answered(b, text)

    def tools(self, b):
        self.calls(b, b.name, False)

    def tools_stream(self, b):
        self.calls(b, b.name, True)

    def think_tools(self, b):
        self.calls(b, b.name + "-thinks", False, thinking=THINK)
        self.calls(b, b.name + "-thinks", True, thinking=THINK)

    def image(self, b):
        source = {"type": "base64", "media_type": "image/png", "data": IMAGE}
        m = self.ask(b.name, [{"role": "user", "content": [{"type": "image", "source": source}, {"type": "text", "text": "what is it?"}]}])
        check("1 images" in m.content[0].text, m)

    def thinking(self, b):
        m = self.ask(b.name + "-thinks", "hello", thinking=THINK)
        check(m.content[-1].type == "text", m)
        check(m.content[0].type == "thinking" and m.content[0].thinking, "no thinking")
        m = self.message(True, **self.request(b.name + "-thinks", "hello", thinking=THINK))
        check(m.content[0].type == "thinking" and m.content[0].thinking and m.content[-1].type == "text", m)

    def structured(self, b):
        m = self.ask(b.name, "hello", output_config={"format": {"type": "json_schema", "schema": SCHEMA}})
        check(json.loads(m.content[0].text) == VALUE, m)

    def models(self, b):
        check(b.name in [m.id for m in self.client.models.list()], "the model is not listed")
        check(self.client.models.retrieve(b.name).id == b.name, "another model")

    def error_model(self, b):
        told(refused(anthropic.NotFoundError, self.ask, "no-such-model", "hi"), 404, "not_found_error")

    def error_request(self, b):
        told(refused(anthropic.BadRequestError, self.ask, b.name, []), 400, "invalid_request_error")
        b.faults(model=b.model + "-bad", error="invalid")
        told(refused(anthropic.BadRequestError, self.ask, b.name + "-bad", "hi"), 400, "invalid_request_error")

    def error_rate(self, b):
        b.faults(model=b.model + "-bad", error="rate", retryAfter=30)
        e = refused(anthropic.RateLimitError, self.ask, b.name + "-bad", "hi")
        told(e, 429, "rate_limit_error")
        check(e.response.headers.get("retry-after"), "no retry-after")

    def error_down(self, b):
        e = refused(anthropic.InternalServerError, self.ask, b.name + "-down", "hi")
        if b.config:  # the attempts at a provider are the gateway's alone
            check(e.response.headers.get("x-should-retry") == "false", f"x-should-retry {e.response.headers.get('x-should-retry')}")
        told(e, e.status_code)

    def patient(self, model):
        keen = Messages(self.url, max_retries=3)
        refused(anthropic.InternalServerError, keen.ask, model, "hi")

    def error_retries(self, b):
        only(b, lambda: self.patient(b.name + "-bad"))

    def error_key(self, b):
        wrong = self.client.with_options(api_key="sk-wrong")
        told(refused(anthropic.AuthenticationError, wrong.messages.create, **self.request(b.name, "x")), 401, "authentication_error")

    def error_stream(self, b):
        b.faults(model=b.model + "-bad", errorEvent="output", error="overloaded", after=3)
        got = []

        def read():
            for text in self.texts(b.name + "-bad", "hello"):
                got.append(text)

        e = refused(anthropic.APIStatusError, read)
        check(got, "nothing came before the error")
        check(isinstance(e.body, dict) and e.body.get("type") == "error", f"body {e.body!r}")

    def cancel(self, b):
        before = b.stats().get("cancelled", 0)
        b.faults(model=b.model + "-slow", stall="output", after=3)
        with self.client.messages.stream(**self.request(b.name + "-slow", "hello")) as s:
            check(next(iter(s.text_stream)), "no text")
        b.left(before)


CLIENTS = [Messages]
