# SPDX-FileCopyrightText: The Penstock Authors
# SPDX-License-Identifier: Apache-2.0

"""Runs the OpenAI client for Python against a gateway, a line per case.

Environment: GATEWAY_URL (with /v1), ADMIN_URL (optional), MODEL.
The cases are those of the Node and Go clients.
"""

import json
import os
import sys
import time
import traceback
import urllib.request

import openai

MODEL = os.environ["MODEL"]
client = openai.OpenAI(base_url=os.environ["GATEWAY_URL"], api_key="unused", max_retries=0, timeout=60)
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why is the sky blue? ☁️"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather at a place",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}


def check(ok, what):
    if not ok:
        raise AssertionError(what)


def models():
    check(MODEL in [m.id for m in client.models.list()], "the model is not listed")


def chat():
    r = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=16)
    check(r.model == MODEL, f"model is {r.model}")
    check(r.choices[0].message.content, "no content")
    check(r.usage.prompt_tokens > 0 and 0 < r.usage.completion_tokens <= 16, f"usage is {r.usage}")


def chat_stream():
    text, finish = "", None
    for chunk in client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=16, stream=True):
        check(chunk.model == MODEL, f"model is {chunk.model}")
        check(chunk.usage is None, "usage that nobody asked for")
        check(len(chunk.choices) == 1, f"{len(chunk.choices)} choices in a chunk")
        text += chunk.choices[0].delta.content or ""
        finish = chunk.choices[0].finish_reason or finish
    check(text and finish, f"text {text!r}, finish {finish}")


def stream_usage():
    usage = []
    for chunk in client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=16, stream=True, stream_options={"include_usage": True}
    ):
        if chunk.usage:
            usage.append(chunk.usage)
            check(chunk.choices == [], "the usage chunk has choices")
    check(len(usage) == 1 and usage[0].completion_tokens > 0, f"usage is {usage}")


def tools():
    r = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=64, tools=[TOOL], tool_choice="required"
    )
    call = r.choices[0].message.tool_calls[0]
    check(call.function.name == "get_weather", f"called {call.function.name}")
    json.loads(call.function.arguments)


def tools_stream():
    name, arguments = "", ""
    for chunk in client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=64, tools=[TOOL], tool_choice="required", stream=True
    ):
        for call in chunk.choices[0].delta.tool_calls or []:
            name += call.function.name or ""
            arguments += call.function.arguments or ""
    check(name == "get_weather", f"called {name}")
    json.loads(arguments)


def n2():
    r = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=8, n=2)
    check(sorted(c.index for c in r.choices) == [0, 1], f"choices {[c.index for c in r.choices]}")
    seen = set()
    for chunk in client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=8, n=2, stream=True):
        seen |= {c.index for c in chunk.choices}
    check(seen == {0, 1}, f"streamed choices {seen}")


def completions():
    r = client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=8)
    check(r.choices[0].text and r.usage.completion_tokens > 0, "no text or usage")
    text = "".join(
        c.choices[0].text for c in client.completions.create(model=MODEL, prompt="Once", max_tokens=8, stream=True)
    )
    check(text, "no streamed text")


def embeddings():
    r = client.embeddings.create(model=MODEL, input=["one", "two"])
    check(len(r.data) == 2 and len(r.data[0].embedding) > 0, f"{len(r.data)} embeddings")
    check(r.usage.prompt_tokens > 0, "no usage")


def responses():
    r = client.responses.create(model=MODEL, input="Why is the sky blue?", max_output_tokens=16)
    check(r.output_text, "no text")
    check(r.usage.output_tokens > 0, f"usage is {r.usage}")


def responses_stream():
    kinds, text = [], ""
    for event in client.responses.create(
        model=MODEL, input="Why is the sky blue?", max_output_tokens=16, stream=True
    ):
        kinds.append(event.type)
        if event.type == "response.output_text.delta":
            text += event.delta
    check(text, "no text")
    check(kinds[0] == "response.created", f"begins with {kinds[0]}")
    check(kinds[-1] in ("response.completed", "response.incomplete"), f"ends with {kinds[-1]}")


def refused(kind, status, **request):
    try:
        client.chat.completions.create(**{"model": MODEL, "messages": MESSAGES, **request})
    except openai.APIStatusError as e:
        check(isinstance(e, kind) and e.status_code == status, f"{type(e).__name__} {e.status_code}")
        check(e.request_id, "no request id")
        check(isinstance(e.body, dict) and e.body.get("message"), f"body {e.body}")
        return e
    raise AssertionError("not refused")


def not_found():
    e = refused(openai.NotFoundError, 404, model="no-such-model")
    check(e.code == "model_not_found", f"code {e.code}")


def bad_request():
    e = refused(openai.BadRequestError, 400, extra_body={"kv_transfer_params": {"remote_host": "x"}})
    check("kv_transfer_params" in str(e), str(e))


def too_large():
    refused(openai.APIStatusError, 413, messages=[{"role": "user", "content": "x" * (2 << 20)}])


def cancel():
    # Twenty seconds of answer: it cannot have ended by itself when it is looked for.
    stream = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=20000, stream=True, extra_body={"ignore_eos": True}
    )
    for i, _ in enumerate(stream):
        if i == 2:
            break
    stream.close()
    admin = os.environ.get("ADMIN_URL")
    if not admin:
        return
    for _ in range(100):
        with urllib.request.urlopen(admin + "/pools", timeout=10) as r:
            flying = sum(p["requests"] for p in json.load(r))
        if flying == 0:
            return
        time.sleep(0.1)
    raise AssertionError(f"{flying} requests in flight 10 s after the client left")


CASES = [
    models, chat, chat_stream, stream_usage, tools, tools_stream, n2, completions, embeddings,
    responses, responses_stream, not_found, bad_request, too_large, cancel,
]


def main():
    failed = 0
    for case in CASES:
        try:
            case()
            print(f"python {case.__name__} ok", flush=True)
        except Exception as e:
            failed += 1
            print(f"python {case.__name__} FAILED {type(e).__name__}: {e}".replace("\n", " "), flush=True)
            traceback.print_exc()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
