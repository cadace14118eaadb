# SPDX-FileCopyrightText: The Penstock Authors
# SPDX-License-Identifier: Apache-2.0

"""Google's client for Python (google-genai)."""

import base64
import json

from google import genai
from google.genai import errors, types
from rig import KEY
from sim_providers import SCHEMA, TEXT, TOOLS, VALUE, check, refused
from with_openai import IMAGE, LONG, RESULTS, answered, only


def told(e, code, status=None):
    check(e.code == code, f"code {e.code}: {e}")
    check(e.message and e.status, f"message {e.message!r}, status {e.status!r}")
    if status:
        check(e.status == status, f"status {e.status}")


class Generate:
    name = "google-genai"

    def __init__(self, url):
        self.url = url
        self.client = self.connect(KEY)

    def connect(self, key):
        return genai.Client(api_key=key, http_options=types.HttpOptions(base_url=self.url, timeout=30000))

    def ask(self, model, contents, **config):
        return self.client.models.generate_content(model=model, contents=contents, config=config)

    def chunks(self, model, contents, **config):
        return self.client.models.generate_content_stream(model=model, contents=contents, config=config)

    def text(self, b):
        r = self.ask(b.name, "say: " + TEXT, system_instruction="Be brief.")
        check(r.text == TEXT and r.candidates[0].finish_reason.name == "STOP" and r.model_version == b.name, r)
        r = self.ask(b.name, "hello", max_output_tokens=10)
        check(r.candidates[0].finish_reason.name == "MAX_TOKENS", r)
        r = self.ask(b.name, "say: one two three", stop_sequences=["two"])
        check(r.text.strip() == "one", r)

    def stream(self, b):
        chunks = list(self.chunks(b.name, "say: " + TEXT))
        check("".join(c.text or "" for c in chunks) == TEXT, chunks)
        check(chunks[-1].candidates[0].finish_reason.name == "STOP" and chunks[-1].model_version == b.name, chunks[-1])

    def usage(self, b):
        for stream in (False, True):
            for _ in range(2):
                if stream:
                    u = list(self.chunks(b.name, LONG + "stream", max_output_tokens=20))[-1].usage_metadata
                else:
                    u = self.ask(b.name, LONG, max_output_tokens=20).usage_metadata
                out = (u.candidates_token_count or 0) + (u.thoughts_token_count or 0)
                got = u.prompt_token_count, u.cached_content_token_count or 0, out
                check(got == b.counted(), f"stream {stream}: {got}, the server counted {b.counted()}")
                check(u.total_token_count == u.prompt_token_count + out, u)

    def parts(self, streamed, model, contents, **config):
        if streamed:
            return [p for r in self.chunks(model, contents, **config) for p in (r.candidates[0].content and r.candidates[0].content.parts) or []]
        return self.ask(model, contents, **config).candidates[0].content.parts

    def calls(self, b, model, streamed, **more):
        functions = [{"name": n, "description": n, "parameters_json_schema": SCHEMA} for n in TOOLS]
        config = {"tools": [{"function_declarations": functions}], "automatic_function_calling": {"disable": True}, **more}
        contents = [types.Content(role="user", parts=[types.Part(text="use tools")])]
        parts = self.parts(streamed, model, contents, **config)
        calls = [p.function_call for p in parts if p.function_call]
        check([c.name for c in calls] == list(TOOLS) and [c.args for c in calls] == [VALUE, VALUE], parts)
        results = []
        for c, result in zip(calls, RESULTS):
            part = types.Part.from_function_response(name=c.name, response={"r": result})
            part.function_response.id = c.id
            results.append(part)
        contents += [types.Content(role="model", parts=parts), types.Content(role="user", parts=results)]
        text = "".join(p.text or "" for p in self.parts(streamed, model, contents, **config) if not p.thought)
        answered(b, text)

    def tools(self, b):
        self.calls(b, b.name, False)

    def tools_stream(self, b):
        self.calls(b, b.name, True)

    def think_tools(self, b):
        think = {"include_thoughts": True, "thinking_budget": 1024}
        self.calls(b, b.name + "-thinks", False, thinking_config=think)
        self.calls(b, b.name + "-thinks", True, thinking_config=think)

    def image(self, b):
        r = self.ask(b.name, [types.Part.from_bytes(data=base64.b64decode(IMAGE), mime_type="image/png"), "what is it?"])
        check("1 images" in r.text, r)

    def thinking(self, b):
        think = {"include_thoughts": True, "thinking_budget": 1024}
        r = self.ask(b.name + "-thinks", "hello", thinking_config=think)
        check(r.text, r)
        check(r.candidates[0].content.parts[0].thought, "no thought")
        chunks = list(self.chunks(b.name + "-thinks", "hello", thinking_config=think))
        parts = [p for c in chunks for p in (c.candidates[0].content and c.candidates[0].content.parts) or []]
        check(any(p.thought and p.text for p in parts) and any(p.text and not p.thought for p in parts), parts)

    def structured(self, b):
        r = self.ask(b.name, "hello", response_mime_type="application/json", response_json_schema=SCHEMA)
        check(json.loads(r.text) == VALUE, r)
        schema = {"type": "OBJECT", "properties": {"place": {"type": "STRING"}, "days": {"type": "INTEGER"}}, "required": ["place", "days"]}
        r = self.ask(b.name, "hello", response_mime_type="application/json", response_schema=schema)
        check(json.loads(r.text) == VALUE, r)

    def models(self, b):
        check("models/" + b.name in [m.name for m in self.client.models.list()], "the model is not listed")
        check(self.client.models.get(model=b.name).name == "models/" + b.name, "another model")

    def error_model(self, b):
        told(refused(errors.ClientError, self.ask, "no-such-model", "hi"), 404, "NOT_FOUND")

    def error_request(self, b):
        nothing = [types.Content(role="user", parts=[])]
        told(refused(errors.ClientError, self.ask, b.name, nothing), 400, "INVALID_ARGUMENT")
        b.faults(model=b.model + "-bad", error="invalid")
        told(refused(errors.ClientError, self.ask, b.name + "-bad", "hi"), 400, "INVALID_ARGUMENT")

    def error_rate(self, b):
        b.faults(model=b.model + "-bad", error="rate", retryAfter=30)
        told(refused(errors.ClientError, self.ask, b.name + "-bad", "hi"), 429, "RESOURCE_EXHAUSTED")

    def error_down(self, b):
        e = refused(errors.ServerError, self.ask, b.name + "-down", "hi")
        told(e, e.code)

    def patient(self, model):
        # This client tries again only where it is told to, and obeys no header.
        refused(errors.ServerError, self.ask, model, "hi")

    def error_retries(self, b):
        only(b, lambda: self.patient(b.name + "-bad"))

    def error_key(self, b):
        wrong = self.connect("sk-wrong")
        told(refused(errors.ClientError, wrong.models.generate_content, model=b.name, contents="x"), 401, "UNAUTHENTICATED")

    def error_stream(self, b):
        b.faults(model=b.model + "-bad", errorEvent="output", error="overloaded", after=3)
        got = []

        def read():
            for c in self.chunks(b.name + "-bad", "hello"):
                got.append(c)

        e = refused(errors.APIError, read)
        check(got, "nothing came before the error")
        told(e, e.code)

    def cancel(self, b):
        before = b.stats().get("cancelled", 0)
        b.faults(model=b.model + "-slow", stall="output", after=3)
        chunks = self.chunks(b.name + "-slow", "hello")
        check(next(chunks).text, "no text")
        chunks.close()
        b.left(before)


CLIENTS = [Generate]
