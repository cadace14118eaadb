# SPDX-FileCopyrightText: The Penstock Authors
# SPDX-License-Identifier: Apache-2.0

"""LangChain's ChatOpenAI."""

import openai
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI
from rig import KEY
from sim_providers import SCHEMA, TEXT, TOOLS, VALUE, check, refused
from with_openai import IMAGE, LONG, RESULTS, answered, only, told


class LangChain:
    name = "langchain"

    def __init__(self, url):
        self.url = url

    def model(self, name, key=KEY, **more):
        more = {"max_retries": 0, **more}
        return ChatOpenAI(model=name, base_url=self.url + "/v1", api_key=key, timeout=30, **more)

    def ask(self, name, text, **more):
        return self.model(name, **more).invoke(text)

    def text(self, b):
        m = self.ask(b.name, [SystemMessage("Be brief."), HumanMessage("say: " + TEXT)])
        check(m.content == TEXT and m.response_metadata["finish_reason"] == "stop", m)
        check(m.response_metadata["model_name"] == b.name, m)
        m = self.ask(b.name, "hello", max_tokens=10)
        check(m.response_metadata["finish_reason"] == "length", m)

    def whole(self, stream):
        all = None
        for chunk in stream:
            all = chunk if all is None else all + chunk
        return all

    def stream(self, b):
        m = self.whole(self.model(b.name).stream("say: " + TEXT))
        check(m.content == TEXT, m)

    def usage(self, b):
        for stream in (False, True):
            for _ in range(2):
                if stream:
                    u = self.whole(self.model(b.name, stream_usage=True, max_tokens=20).stream(LONG + "stream")).usage_metadata
                else:
                    u = self.ask(b.name, LONG, max_tokens=20).usage_metadata
                got = u["input_tokens"], u.get("input_token_details", {}).get("cache_read", 0), u["output_tokens"]
                check(got == b.counted(), f"stream {stream}: {got}, the server counted {b.counted()}")

    def calls(self, b, model, streamed):
        tools = [{"type": "function", "function": {"name": n, "description": n, "parameters": SCHEMA}} for n in TOOLS]
        bound = model.bind_tools(tools)
        say = (lambda h: self.whole(bound.stream(h))) if streamed else bound.invoke
        history = [HumanMessage("use tools")]
        m = say(history)
        check([c["name"] for c in m.tool_calls] == list(TOOLS) and [c["args"] for c in m.tool_calls] == [VALUE, VALUE], m)
        history += [m] + [ToolMessage(r, tool_call_id=c["id"]) for c, r in zip(m.tool_calls, RESULTS)]
        text = say(history).content
        answered(b, text)

    def tools(self, b):
        self.calls(b, self.model(b.name), False)

    def tools_stream(self, b):
        self.calls(b, self.model(b.name), True)

    def think_tools(self, b):
        self.calls(b, self.model(b.name + "-thinks", reasoning_effort="low"), False)
        self.calls(b, self.model(b.name + "-thinks", reasoning_effort="low"), True)

    def image(self, b):
        parts = [{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64," + IMAGE}}]
        m = self.ask(b.name, [HumanMessage(parts)])
        check("1 images" in m.content, m)

    def thinking(self, b):
        # The client shows no reasoning of others than OpenAI: only its tokens.
        m = self.ask(b.name + "-thinks", "hello", reasoning_effort="low")
        check(m.content, m)
        check(m.usage_metadata.get("output_token_details", {}).get("reasoning"), "no tokens of reasoning")

    def structured(self, b):
        schema = {"title": "n", "description": "n", **SCHEMA}
        for method in ("json_schema", "function_calling"):
            got = self.model(b.name).with_structured_output(schema, method=method).invoke("hello")
            check(got == VALUE, f"{method}: {got}")

    def error_model(self, b):
        told(refused(openai.NotFoundError, self.ask, "no-such-model", "hi"), 404)

    def error_request(self, b):
        told(refused(openai.BadRequestError, self.ask, b.name, "hi", max_tokens=-1), 400)
        b.faults(model=b.model + "-bad", error="invalid")
        told(refused(openai.BadRequestError, self.ask, b.name + "-bad", "hi"), 400)

    def error_rate(self, b):
        b.faults(model=b.model + "-bad", error="rate", retryAfter=30)
        told(refused(openai.RateLimitError, self.ask, b.name + "-bad", "hi"), 429)

    def error_down(self, b):
        e = refused(openai.InternalServerError, self.ask, b.name + "-down", "hi")
        told(e, e.status_code)

    def patient(self, model):
        refused(openai.InternalServerError, self.ask, model, "hi", max_retries=3)

    def error_retries(self, b):
        only(b, lambda: self.patient(b.name + "-bad"))

    def error_key(self, b):
        told(refused(openai.AuthenticationError, self.ask, b.name, "hi", key="sk-wrong"), 401)

    def error_stream(self, b):
        b.faults(model=b.model + "-bad", errorEvent="output", error="overloaded", after=3)
        got = []

        def read():
            for chunk in self.model(b.name + "-bad").stream("hello"):
                got.append(chunk.content)

        refused(openai.APIError, read)
        check("".join(got), "nothing came before the error")

    def cancel(self, b):
        before = b.stats().get("cancelled", 0)
        b.faults(model=b.model + "-slow", stall="output", after=3)
        stream = self.model(b.name + "-slow").stream("hello")
        for chunk in stream:
            if chunk.content:
                break
        stream.close()
        b.left(before)


CLIENTS = [LangChain]
