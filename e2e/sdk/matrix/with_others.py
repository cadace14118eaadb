# SPDX-FileCopyrightText: The Penstock Authors
# SPDX-License-Identifier: Apache-2.0

"""OpenAI's clients for Node and Go, chat completions, and Anthropic's for Go: they
ask and read, and the checks are those of the clients for Python."""

import json
import os
import subprocess

import anthropic
import anthropic._models
import httpx
import openai
import openai._models
import with_anthropic
import with_openai
from anthropic.types import Message, RawMessageStreamEvent
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from rig import KEY
from sim_providers import check


def read(kind, value):
    """As the client for Python reads an answer: it insists on nothing."""
    library = anthropic if kind.__module__.startswith("anthropic") else openai
    return library._models.construct_type(type_=kind, value=value)


class Process:
    """A client in a process of its own: see ask."""

    command = ()
    path = ""  # of the base URL
    models = None  # asked by the client for Python alone

    def __init__(self, url, max_retries=0):
        super().__init__(url, max_retries)
        self.retries, self.key = max_retries, KEY
        env = {**os.environ, "GATEWAY_URL": url + self.path}
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def talk(self, op, body, take=False):
        """What the client says, line by line; its error as that of the client for Python."""
        question = {"op": op, "key": self.key, "retries": self.retries, "take": take, "body": body}
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            said = json.loads(line)
            if "error" in said:
                raise self.failed(said["error"])
            if "end" in said:
                return
            yield said.get("chunk") or said["result"]
            if "result" in said:
                return
        raise AssertionError("the client ended")

    def failed(self, e):
        """The error as that of the client for Python."""
        if not e["status"]:
            return self.library.APIError(e["message"], request=None, body=e["body"])
        headers = {k: v for k, v in e["headers"].items() if k.lower() not in ("content-encoding", "content-length", "transfer-encoding")}
        response = httpx.Response(e["status"], headers=headers, request=httpx.Request("POST", self.url))
        told = self.client._make_status_error(e["message"], body=e["body"], response=response)
        check(e["name"] in ("Error", type(told).__name__), f"the client calls {e['status']} {e['name']}")
        return told

    def impatient(self, what, *args):
        """what, with retries of the client's own."""
        self.retries = 3
        try:
            what(*args)
        finally:
            self.retries = 0


class OpenAI(Process, with_openai.Chat):
    library = openai
    path = "/v1"

    def ask(self, model, text, stream=False, **more):
        messages = [{"role": "user", "content": text}] if isinstance(text, str) else text
        body = {"model": model, "messages": messages, **more}
        if stream:
            return [read(ChatCompletionChunk, c) for c in list(self.talk("stream", body))]
        return read(ChatCompletion, next(self.talk("create", body)))

    def message(self, streamed, **body):
        return read(ChatCompletion, next(self.talk("final" if streamed else "create", body))).choices[0]

    def stream(self, b):
        chunks = self.chunks(b.name, "say: " + with_openai.TEXT)
        check("".join(c.choices[0].delta.content or "" for c in chunks) == with_openai.TEXT, chunks)
        c = self.message(True, model=b.name, messages=[{"role": "user", "content": "say: " + with_openai.TEXT}])
        check(c.message.content == with_openai.TEXT and c.finish_reason == "stop", c)

    def texts(self, model, text):
        for c in self.talk("stream", {"model": model, "messages": [{"role": "user", "content": text}]}):
            if c["choices"] and c["choices"][0].get("delta", {}).get("content"):
                yield c["choices"][0]["delta"]["content"]

    def patient(self, model):
        self.impatient(with_openai.refused, openai.InternalServerError, self.ask, model, "hi")

    def error_key(self, b):
        self.key = "sk-wrong"
        try:
            with_openai.told(with_openai.refused(openai.AuthenticationError, self.ask, b.name, "hi"), 401)
        finally:
            self.key = KEY

    def cancel(self, b):
        before = b.stats().get("cancelled", 0)
        b.faults(model=b.model + "-slow", stall="output", after=3)
        body = {"model": b.name + "-slow", "messages": [{"role": "user", "content": "hello"}]}
        check(list(self.talk("stream", body, take=True)), "nothing came")
        b.left(before)


class Anthropic(Process, with_anthropic.Messages):
    library = anthropic

    def ask(self, *args, stream=False, **more):
        body = self.request(*args, **more)
        if stream:
            return [read(RawMessageStreamEvent, e) for e in list(self.talk("stream", body))]
        return read(Message, next(self.talk("create", body)))

    def message(self, streamed, **body):
        body["messages"] = [{**m, "content": plain(m["content"])} for m in body["messages"]]
        return read(Message, next(self.talk("final" if streamed else "create", body)))

    def texts(self, model, text, take=False):
        for e in self.talk("stream", self.request(model, text), take):
            if e["type"] == "content_block_delta" and e["delta"].get("text"):
                yield e["delta"]["text"]

    def patient(self, model):
        self.impatient(with_anthropic.refused, anthropic.InternalServerError, self.ask, model, "hi")

    def error_key(self, b):
        self.key = "sk-wrong"
        try:
            with_anthropic.told(with_anthropic.refused(anthropic.AuthenticationError, self.ask, b.name, "x"), 401, "authentication_error")
        finally:
            self.key = KEY

    def cancel(self, b):
        before = b.stats().get("cancelled", 0)
        b.faults(model=b.model + "-slow", stall="output", after=3)
        check(list(self.texts(b.name + "-slow", "hello", take=True)), "no text")
        b.left(before)


def plain(content):
    """Blocks that a client has read, as it sends them back."""
    return content if isinstance(content, str) else [c if isinstance(c, dict) else c.model_dump(exclude_none=True) for c in content]


class Node(OpenAI):
    name = "openai node"
    command = ("node", os.path.join(os.environ.get("NODE_CLIENT", "."), "ask.mjs"))


class Go(OpenAI):
    name = "openai go"
    command = (os.environ.get("GO_CLIENT", "ask"),)


class AnthropicGo(Anthropic):
    name = "anthropic go"
    command = (os.environ.get("GO_CLIENT", "ask"), "anthropic")


CLIENTS = [kind for kind, var in ((Node, "NODE_CLIENT"), (Go, "GO_CLIENT"), (AnthropicGo, "GO_CLIENT")) if os.environ.get(var)]
