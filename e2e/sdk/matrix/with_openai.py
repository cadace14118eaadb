# SPDX-FileCopyrightText: The Penstock Authors
# SPDX-License-Identifier: Apache-2.0

"""OpenAI's client for Python: chat completions and responses."""

import json

import openai
from rig import ATTEMPTS, KEY
from sim_providers import SCHEMA, TEXT, TOOLS, VALUE, check, refused

IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
LONG = "A prefix that is long enough to be cached. " * 200


RESULTS = ["sunny", "rainy"]


def answered(b, text):
    """The answer to a turn with RESULTS: both arrived at the server b."""
    check(RESULTS[1] in text, f"no result in the answer: {text!r}")
    check(all(r in b.asked() for r in RESULTS), f"not both results in the request: {b.asked()}")


def only(b, ask):
    """A request that fails with 500 reaches the server b at most ATTEMPTS times."""
    b.faults(model=b.model + "-bad", error="server")
    before = b.attempts()
    ask()
    came = b.attempts() - before
    check(0 < came <= ATTEMPTS, f"{came} requests arrived")


def told(e, status):
    """What an error of this client must have, whoever failed."""
    check(e.status_code == status, f"status {e.status_code}: {e}")
    check(e.request_id, "no request id")
    check(isinstance(e.body, dict) and e.body.get("message"), f"body {e.body!r}")


class Base:
    def __init__(self, url, max_retries=0):
        self.url = url
        self.client = openai.OpenAI(base_url=url + "/v1", api_key=KEY, max_retries=max_retries, timeout=30)

    def models(self, b):
        check(b.name in [m.id for m in self.client.models.list()], "the model is not listed")
        check(self.client.models.retrieve(b.name).id == b.name, "another model")

    def error_model(self, b):
        e = refused(openai.NotFoundError, self.ask, "no-such-model", "hi")
        told(e, 404)
        check(e.code == "model_not_found", f"code {e.code}")

    def error_request(self, b):
        told(refused(openai.BadRequestError, self.ask, b.name, []), 400)
        b.faults(model=b.model + "-bad", error="invalid")
        e = refused(openai.BadRequestError, self.ask, b.name + "-bad", "hi")
        told(e, 400)
        check(e.type == "invalid_request_error", f"type {e.type}")

    def error_rate(self, b):
        b.faults(model=b.model + "-bad", error="rate", retryAfter=30)
        e = refused(openai.RateLimitError, self.ask, b.name + "-bad", "hi")
        told(e, 429)
        check(e.response.headers.get("retry-after"), "no retry-after")

    def error_down(self, b):
        e = refused(openai.InternalServerError, self.ask, b.name + "-down", "hi")
        if b.config:  # the attempts at a provider are the gateway's alone
            check(e.response.headers.get("x-should-retry") == "false", f"x-should-retry {e.response.headers.get('x-should-retry')}")
        told(e, e.status_code)

    def patient(self, model):
        """Asks a model that fails, with retries of the client's own."""
        keen = type(self)(self.url, max_retries=3)
        refused(openai.InternalServerError, keen.ask, model, "hi")

    def error_retries(self, b):
        only(b, lambda: self.patient(b.name + "-bad"))

    def error_key(self, b):
        wrong = self.client.with_options(api_key="sk-wrong")
        e = refused(openai.AuthenticationError, wrong.chat.completions.create, model=b.name, messages=[{"role": "user", "content": "x"}])
        told(e, 401)

    def error_stream(self, b):
        b.faults(model=b.model + "-bad", errorEvent="output", error="overloaded", after=3)
        got = []

        def read():
            for text in self.texts(b.name + "-bad", "hello"):
                got.append(text)

        e = refused(openai.APIError, read)
        check(got, "nothing came before the error")
        check(str(e), "no message")

    def cancel(self, b):
        before = b.stats().get("cancelled", 0)
        b.faults(model=b.model + "-slow", stall="output", after=3)
        stream, texts = self.open(b.name + "-slow", "hello")
        check(next(texts), "no text")
        stream.close()
        b.left(before)


class Chat(Base):
    name = "openai chat"

    def ask(self, model, text, **more):
        messages = [{"role": "user", "content": text}] if isinstance(text, str) else text
        return self.client.chat.completions.create(model=model, messages=messages, **more)

    def open(self, model, text, **more):
        stream = self.ask(model, text, stream=True, **more)
        return stream, (c.choices[0].delta.content for c in stream if c.choices and c.choices[0].delta and c.choices[0].delta.content)

    def texts(self, model, text):
        return self.open(model, text)[1]

    def chunks(self, model, text, **more):
        """Those with a delta: Azure begins with one without choices, and tells what
        its filter says of a text apart."""
        return [c for c in self.ask(model, text, stream=True, **more) if c.choices and c.choices[0].delta]

    def text(self, b):
        r = self.ask(b.name, [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "say: " + TEXT}])
        c = r.choices[0]
        check(c.message.content == TEXT and c.finish_reason == "stop" and r.model == b.name, r)
        r = self.ask(b.name, "hello", max_completion_tokens=10)
        check(r.choices[0].finish_reason == "length", r)
        r = self.ask(b.name, "say: one two three", stop=["two"])
        check(r.choices[0].message.content.strip() == "one", r)

    def stream(self, b):
        chunks = self.chunks(b.name, "say: " + TEXT)
        check("".join(c.choices[0].delta.content or "" for c in chunks) == TEXT, chunks)
        check([c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["stop"], chunks)
        check(all(c.model == b.name and c.usage is None for c in chunks), chunks[-1])
        with self.client.chat.completions.stream(model=b.name, messages=[{"role": "user", "content": "say: " + TEXT}]) as s:
            check(s.get_final_completion().choices[0].message.content == TEXT, "the final completion")

    def usage(self, b):
        for stream in (False, True):
            for _ in range(2):
                if stream:
                    u = list(self.ask(b.name, LONG + "stream", stream=True, stream_options={"include_usage": True}, max_completion_tokens=20))[-1].usage
                else:
                    u = self.ask(b.name, LONG, max_completion_tokens=20).usage
                got = u.prompt_tokens, u.prompt_tokens_details.cached_tokens or 0 if u.prompt_tokens_details else 0, u.completion_tokens
                check(got == b.counted(), f"stream {stream}: {got}, the server counted {b.counted()}")
                check(u.total_tokens == u.prompt_tokens + u.completion_tokens, u)

    def message(self, streamed, **a):
        if streamed:
            with self.client.chat.completions.stream(**a) as s:
                return s.get_final_completion().choices[0]
        return self.client.chat.completions.create(**a).choices[0]

    def calls(self, b, model, streamed, **more):
        tools = [{"type": "function", "function": {"name": n, "description": n, "parameters": SCHEMA}} for n in TOOLS]
        messages = [{"role": "user", "content": "use tools"}]
        a = {"model": model, "messages": messages, "tools": tools, **more}
        c = self.message(streamed, **a)
        calls = c.message.tool_calls or []
        check([call.function.name for call in calls] == list(TOOLS) and c.finish_reason == "tool_calls", c)
        check([json.loads(call.function.arguments) for call in calls] == [VALUE, VALUE], c)
        said = c.message.model_dump(exclude_none=True)
        for call in said["tool_calls"]:
            call["function"].pop("parsed_arguments", None)
            call.pop("index", None)
        said.pop("parsed", None)
        messages += [said] + [{"role": "tool", "tool_call_id": call.id, "content": r} for call, r in zip(calls, RESULTS)]
        text = self.message(streamed, **a).message.content
        answered(b, text)
        return c.message

    def tools(self, b):
        self.calls(b, b.name, False)

    def tools_stream(self, b):
        self.calls(b, b.name, True)

    def think_tools(self, b):
        self.calls(b, b.name + "-thinks", False, reasoning_effort="low")
        self.calls(b, b.name + "-thinks", True, reasoning_effort="low")

    def image(self, b):
        parts = [{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64," + IMAGE}}]
        r = self.ask(b.name, [{"role": "user", "content": parts}])
        check("1 images" in r.choices[0].message.content, r)

    def thinking(self, b):
        r = self.ask(b.name + "-thinks", "hello", reasoning_effort="low")
        check(r.choices[0].message.content, r)
        check(getattr(r.choices[0].message, "reasoning_content", None), "no reasoning_content")
        chunks = self.chunks(b.name + "-thinks", "hello", reasoning_effort="low")
        check(any(getattr(c.choices[0].delta, "reasoning_content", None) for c in chunks), "no reasoning_content in the stream")
        check(any(c.choices[0].delta.content for c in chunks), "no text in the stream")

    def structured(self, b):
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
        r = self.ask(b.name, "hello", response_format=form)
        check(json.loads(r.choices[0].message.content) == VALUE, r)
        chunks = self.chunks(b.name, "hello", response_format=form)
        check(json.loads("".join(c.choices[0].delta.content or "" for c in chunks)) == VALUE, chunks)


class Responses(Base):
    name = "openai responses"

    def ask(self, model, input, **more):
        return self.client.responses.create(model=model, input=input, **more)

    def open(self, model, text):
        stream = self.ask(model, text, stream=True)

        def texts():
            for e in stream:
                if e.type in ("error", "response.failed"):
                    # The client hands these on as events.
                    raise openai.APIError(str(e), request=None, body=None)
                if e.type == "response.output_text.delta":
                    yield e.delta

        return stream, texts()

    def texts(self, model, text):
        return self.open(model, text)[1]

    def text(self, b):
        r = self.ask(b.name, "say: " + TEXT, instructions="Be brief.")
        check(r.output_text == TEXT and r.status == "completed" and r.model == b.name, r)
        r = self.ask(b.name, "hello", max_output_tokens=20)
        check(r.status == "incomplete" and r.incomplete_details.reason == "max_output_tokens", r)

    def stream(self, b):
        events = list(self.ask(b.name, "say: " + TEXT, stream=True))
        check("".join(e.delta for e in events if e.type == "response.output_text.delta") == TEXT, events)
        check(events[0].type == "response.created" and events[-1].type == "response.completed", events)
        check([e.sequence_number for e in events] == list(range(len(events))), [e.sequence_number for e in events])
        check(events[-1].response.output_text == TEXT and events[-1].response.model == b.name, events[-1])
        with self.client.responses.stream(model=b.name, input="say: " + TEXT) as s:
            check(s.get_final_response().output_text == TEXT, "the final response")

    def usage(self, b):
        for stream in (False, True):
            for _ in range(2):
                if stream:
                    u = list(self.ask(b.name, LONG + "stream", stream=True, max_output_tokens=20))[-1].response.usage
                else:
                    u = self.ask(b.name, LONG, max_output_tokens=20).usage
                got = u.input_tokens, u.input_tokens_details.cached_tokens, u.output_tokens
                check(got == b.counted(), f"stream {stream}: {got}, the server counted {b.counted()}")
                check(u.total_tokens == u.input_tokens + u.output_tokens, u)

    def answer(self, streamed, **a):
        if streamed:
            with self.client.responses.stream(**a) as s:
                return s.get_final_response()
        return self.client.responses.create(**a)

    def calls(self, b, model, streamed, **more):
        tools = [{"type": "function", "name": n, "description": n, "parameters": SCHEMA, "strict": True} for n in TOOLS]
        a = {"model": model, "tools": tools, "store": False, **more}
        r = self.answer(streamed, input="use tools", **a)
        calls = [i for i in r.output if i.type == "function_call"]
        check([c.name for c in calls] == list(TOOLS), r)
        check([json.loads(c.arguments) for c in calls] == [VALUE, VALUE], r)
        history = [{"role": "user", "content": "use tools"}]
        for item in r.output:
            history.append({k: v for k, v in item.model_dump(exclude_none=True).items() if k != "parsed_arguments"})
        history += [{"type": "function_call_output", "call_id": c.call_id, "output": r} for c, r in zip(calls, RESULTS)]
        text = self.answer(streamed, input=history, **a).output_text
        answered(b, text)

    def tools(self, b):
        self.calls(b, b.name, False)

    def tools_stream(self, b):
        self.calls(b, b.name, True)

    def think_tools(self, b):
        more = {"reasoning": {"effort": "low"}, "include": ["reasoning.encrypted_content"]}
        self.calls(b, b.name + "-thinks", False, **more)
        self.calls(b, b.name + "-thinks", True, **more)

    def image(self, b):
        parts = [{"type": "input_text", "text": "what is it?"}, {"type": "input_image", "image_url": "data:image/png;base64," + IMAGE, "detail": "auto"}]
        r = self.ask(b.name, [{"role": "user", "content": parts}])
        check("1 images" in r.output_text, r)

    def thinking(self, b):
        a = {"reasoning": {"effort": "low", "summary": "auto"}}
        r = self.ask(b.name + "-thinks", "hello", **a)
        check(r.output[0].type == "reasoning" and r.output[0].summary[0].text and r.output_text, r)
        events = list(self.ask(b.name + "-thinks", "hello", stream=True, **a))
        check(any(e.type == "response.reasoning_summary_text.delta" for e in events), {e.type for e in events})
        check(events[-1].response.output_text, events[-1])

    def structured(self, b):
        form = {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}}
        r = self.ask(b.name, "hello", text=form)
        check(json.loads(r.output_text) == VALUE, r)


CLIENTS = [Chat, Responses]
