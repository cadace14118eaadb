# SPDX-FileCopyrightText: The Penstock Authors
# SPDX-License-Identifier: Apache-2.0
"""Checks a running gateway in front of running vLLM servers.

Started by run.sh. Prints one line per check and at the end
"N passed, N failed"; exits 1 if a check failed. Standard library only. Every
call has a time limit; the addresses are those given on the command line.
"""

import argparse
import http.client
import json
import os
import re
import subprocess
import sys
import threading
import time

MODEL = "chat"  # what clients ask for
SERVED = "tiny"  # what the servers call it
TIMEOUT = 60  # seconds without a byte


class Failed(Exception):
    """A check did not see what it should."""


def need(ok, what):
    if not ok:
        raise Failed(what)


class Answer:
    """A response that was read to its end."""

    def __init__(self, response):
        self.status = response.status
        self.headers = {k.lower(): v for k, v in response.getheaders()}
        self.text = response.read().decode()

    def json(self, status=200):
        need(self.status == status, f"status {self.status}, want {status}: {self.text[:300]}")
        return json.loads(self.text)


def open_request(address, method, path, body=None):
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT)
    data = None if body is None else json.dumps(body).encode()
    connection.request(method, path, data, {"Content-Type": "application/json"} if data else {})
    return connection, connection.getresponse()


def call(address, method, path, body=None):
    connection, response = open_request(address, method, path, body)
    try:
        return Answer(response)
    finally:
        connection.close()


def events(response):
    """The data of each event of a stream; it must end with [DONE]."""
    need(response.status == 200, f"status {response.status}: {response.read(300)!r}")
    kind = response.getheader("Content-Type", "")
    need(kind.startswith("text/event-stream"), f"content type {kind!r}")
    for line in response:
        line = line.strip()
        if line == b"data: [DONE]":
            return
        if line.startswith(b"data:"):
            yield json.loads(line[5:])
    raise Failed("the stream ended without [DONE]")


def stream(address, path, body):
    connection, response = open_request(address, "POST", path, {**body, "stream": True})
    try:
        return list(events(response))
    finally:
        connection.close()


def chat(content, **more):
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 16, "temperature": 0, **more}


def text_of(chunks, index=0):
    return "".join(
        c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"] if c["index"] == index
    )


def series(page, name):
    """The sum of a metric's samples on a page; None if it is not there."""
    found = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", page, re.M)
    return sum(map(float, found)) if found else None


def wait_for(what, seconds, probe):
    end = time.monotonic() + seconds
    while True:
        last = probe()
        if last is True:
            return
        need(time.monotonic() < end, f"{what}: still {last} after {seconds} s")
        time.sleep(0.1)


class Checks:
    """The checks, in the order of their names' appearance here."""

    def __init__(self, o):
        self.o = o
        self.gateway = o.gateway

    # What the servers say of themselves.

    def page(self, server):
        a = call(server, "GET", "/metrics")
        need(a.status == 200, f"/metrics of {server}: status {a.status}")
        return a.text

    def total(self, name):
        values = [series(self.page(s), name) for s in self.o.servers]
        need(None not in values, f"no {name} on the page of a server")
        return sum(values)

    def prefix_hits(self):
        return self.total("vllm:prefix_cache_hits_total")

    def members(self):
        out = subprocess.run(
            [self.o.penstock, "get", "members", "--admin", self.o.admin, "-o", "json"],
            check=True, capture_output=True, text=True, timeout=30,
        ).stdout
        return json.loads(out)

    def record(self, request_id):
        """The gateway's record of a request; it is written after the answer."""
        found = {}

        def probe():
            with open(self.o.records) as f:
                for line in f:
                    if request_id in line:
                        found.update(json.loads(line))
                        return True
            return "missing"

        wait_for(f"record of {request_id}", 10, probe)
        return found

    # The checks.

    def check_model_list(self):
        ids = [m["id"] for m in call(self.gateway, "GET", "/v1/models").json()["data"]]
        need(ids == [MODEL], f"models {ids}")
        return ", ".join(ids)

    def check_members_and_metrics(self):
        members = self.members()
        need(len(members) == len(self.o.servers), f"{len(members)} members for {len(self.o.servers)} servers")
        for m in members:
            need(m["state"] == "ready", f"{m['address']} is {m['state']}")
            need(m["metrics"], f"{m['address']} was never scraped")
            lacking = [k for k in ("waiting", "running", "kvUsage", "blockSize", "blocks", "prefixQueryTokens", "prefixHitTokens")
                       if m["metrics"].get(k) is None]
            need(not lacking, f"{m['address']} lacks {lacking}")
            need(not m["metrics"]["stale"], f"{m['address']} is stale")
            info = re.search(r"^vllm:cache_config_info\{(.*)\} 1\.0$", self.page(m["address"]), re.M)
            need(info, "no vllm:cache_config_info")
            labels = dict(re.findall(r'(\w+)="([^"]*)"', info[1]))
            need([str(m["metrics"]["blockSize"]), str(m["metrics"]["blocks"])] == [labels["block_size"], labels["num_gpu_blocks"]],
                 f"cache {m['metrics']} but the page says {labels}")
        return f"{len(members)} members, {m['metrics']['blocks']} blocks of {m['metrics']['blockSize']} tokens"

    def check_no_signal_is_missing(self):
        page = call(self.o.admin, "GET", "/metrics").text
        lines = re.findall(r"^penstock_pool_metric_missing\{.*$", page, re.M)
        missing = [line for line in lines if float(line.rsplit(" ", 1)[1]) > 0]
        need(not missing, f"missing: {missing}")
        need("penstock_pool_members" in page, "the gateway's own page has no penstock_pool_members")
        return f"penstock_pool_metric_missing: {len(lines)} series, none above 0"

    def check_chat(self):
        a = call(self.gateway, "POST", "/v1/chat/completions", chat("Hello"))
        r = a.json()
        need(r["model"] == MODEL, f"model {r['model']!r}")
        need(a.headers.get("x-model-used") == SERVED, f"x-model-used {a.headers.get('x-model-used')!r}")
        need(r["choices"][0]["message"]["content"], "no content")
        need(r["usage"]["completion_tokens"] == 16, f"usage {r['usage']}")
        return f"{r['usage']['prompt_tokens']} tokens in, {r['usage']['completion_tokens']} out"

    def check_chat_stream_with_usage(self):
        chunks = stream(self.gateway, "/v1/chat/completions", chat("Hello", stream_options={"include_usage": True}))
        need({c["model"] for c in chunks} == {MODEL}, f"models {({c['model'] for c in chunks})}")
        need(text_of(chunks), "no content")
        need(chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 16, f"last chunk {chunks[-1]}")
        return f"{len(chunks)} chunks, the last with usage"

    def check_chat_stream_without_usage(self):
        connection, response = open_request(self.gateway, "POST", "/v1/chat/completions", chat("Hello", stream=True))
        try:
            chunks = list(events(response))
            request_id = response.getheader("x-request-id")
        finally:
            connection.close()
        need(text_of(chunks), "no content")
        shown = [c for c in chunks if c.get("usage") or not c["choices"]]
        need(not shown, f"the client did not ask for usage but got {shown}")
        r = self.record(request_id)
        need(r["tokens"]["output"] == 16, f"record {r}")
        return f"{len(chunks)} chunks, usage kept for the record: {r['tokens']}"

    def check_stream_comes_piecewise(self):
        connection, response = open_request(self.gateway, "POST", "/v1/chat/completions", chat("Hello", stream=True, max_tokens=200))
        try:
            start, times = time.monotonic(), []
            for _ in events(response):
                times.append(time.monotonic() - start)
        finally:
            connection.close()
        need(len(times) >= 20, f"{len(times)} chunks for 200 tokens")
        need(times[0] < times[-1] / 2, f"first chunk after {times[0]:.3f} s of {times[-1]:.3f} s")
        return f"{len(times)} chunks, first after {times[0] * 1e3:.0f} ms, last after {times[-1] * 1e3:.0f} ms"

    def check_n_2(self):
        body = chat("Hello", n=2, temperature=1, seed=1)
        r = call(self.gateway, "POST", "/v1/chat/completions", body).json()
        need([c["index"] for c in r["choices"]] == [0, 1], f"choices {r['choices']}")
        chunks = stream(self.gateway, "/v1/chat/completions", body)
        need(text_of(chunks, 0) and text_of(chunks, 1), "a choice of the stream is empty")
        return f"{r['usage']['completion_tokens']} tokens out for both, streamed too"

    def tools(self):
        return [{"type": "function", "function": {
            "name": "weather", "description": "Weather of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string", "enum": ["Lima", "Oslo"]}},
                           "required": ["city"], "additionalProperties": False}}}]

    def check_tools_accepted(self):
        without = call(self.gateway, "POST", "/v1/chat/completions", chat("Hello")).json()
        r = call(self.gateway, "POST", "/v1/chat/completions", chat("Hello", tools=self.tools(), tool_choice="auto")).json()
        more = r["usage"]["prompt_tokens"] - without["usage"]["prompt_tokens"]
        need(more > 100, f"the tools made the prompt {more} tokens longer")
        return f"the tools are {more} tokens of the prompt"

    def check_tool_call(self):
        body = chat("Hello", tools=self.tools(), max_tokens=200,
                    tool_choice={"type": "function", "function": {"name": "weather"}})
        r = call(self.gateway, "POST", "/v1/chat/completions", body).json()
        f = r["choices"][0]["message"]["tool_calls"][0]["function"]
        need(f["name"] == "weather" and json.loads(f["arguments"])["city"] in ("Lima", "Oslo"), f"{f}")
        parts = [t["function"].get("arguments") or "" for c in stream(self.gateway, "/v1/chat/completions", body)
                 for ch in c["choices"] for t in ch["delta"].get("tool_calls") or []]
        need(json.loads("".join(parts))["city"] in ("Lima", "Oslo"), f"streamed {parts}")
        return f"{f['arguments']}, streamed in {len(parts)} parts"

    def check_completions(self):
        body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 16, "temperature": 0}
        r = call(self.gateway, "POST", "/v1/completions", body).json()
        need(r["usage"]["prompt_tokens"] == 16 and r["choices"][0]["text"], f"{r}")
        r = call(self.gateway, "POST", "/v1/completions", {**body, "prompt": [50, 60, 70, 80]}).json()
        need(r["usage"]["prompt_tokens"] == 4, f"{r}")
        return "text and token ids"

    def check_responses(self):
        body = {"model": MODEL, "input": "Hello", "max_output_tokens": 16, "temperature": 0, "store": False}
        r = call(self.gateway, "POST", "/v1/responses", body).json()
        need(r["model"] == MODEL and r["output"], f"{r}")
        connection, response = open_request(self.gateway, "POST", "/v1/responses", {**body, "stream": True})
        try:
            need(response.status == 200, f"status {response.status}")
            kinds = re.findall(r'"type":\s?"(response\.[a-z_.]+)"', response.read().decode())
        finally:
            connection.close()
        need(kinds[-1] in ("response.completed", "response.incomplete"), f"events {kinds}")
        return f"{r['usage']['output_tokens']} tokens out, {len(kinds)} events streamed"

    def check_embeddings_refused(self):
        a = call(self.gateway, "POST", "/v1/embeddings", {"model": MODEL, "input": "Hello"})
        need(400 <= a.status < 500, f"status {a.status}: {a.text[:300]}")
        need("x-request-id" in a.headers, "no x-request-id")
        e = json.loads(a.text)
        return f"{a.status} {json.dumps(e)[:120]}"

    def check_server_errors_pass(self):
        a = call(self.gateway, "POST", "/v1/chat/completions", chat("Hello", temperature=-1))
        need("temperature" in a.json(400)["error"]["message"], a.text[:300])
        b = call(self.gateway, "POST", "/v1/chat/completions", chat("x" * 20000))
        need(b.json(400)["error"]["message"], b.text[:300])
        return "temperature -1 and a prompt over the context: 400 with the server's words"

    def check_gateway_errors(self):
        a = call(self.gateway, "POST", "/v1/chat/completions", {**chat("Hello"), "model": SERVED})
        need("message" in a.json(404)["error"], a.text[:300])
        b = call(self.gateway, "POST", "/v1/chat/completions", chat("Hello", kv_transfer_params={"do_remote_prefill": True}))
        need("kv_transfer_params" in b.json(400)["error"]["message"], b.text[:300])
        return "unknown model: 404, engine control field: 400"

    def check_tokenize(self):
        text = "Grüße, 世界"
        r = call(self.gateway, "POST", "/tokenize", {"model": MODEL, "prompt": text}).json()
        need(r["count"] == len(text.encode()), f"{r}")
        back = call(self.gateway, "POST", "/detokenize", {"model": MODEL, "tokens": r["tokens"]}).json()
        need(back["prompt"] == text, f"{back}")
        return f"{r['count']} tokens, and back"

    def check_administration_unreachable(self):
        paths = [("GET", "/metrics"), ("GET", "/version"), ("GET", "/load"), ("GET", "/health"),
                 ("GET", "/server_info?config_format=json"), ("POST", "/reset_prefix_cache"), ("GET", "/openapi.json")]
        for method, path in paths:
            direct = call(self.o.servers[0], method, path)
            need(direct.status == 200, f"{method} {path} on the server itself: {direct.status}; the check would prove nothing")
        tried = 0
        for method, path in paths + [("POST", "/sleep"), ("POST", "/v1/load_lora_adapter"), ("POST", "/collective_rpc")]:
            for form in (path, "/v1/.." + path, "/" + path, path.upper()):
                a = call(self.gateway, method, form, {} if method == "POST" else None)
                need(a.status in (400, 404, 405), f"{method} {form}: {a.status} {a.text[:200]}")
                need("vllm" not in a.text.lower(), f"{method} {form} answers from the server: {a.text[:200]}")
                tried += 1
        return f"{len(paths)} paths that the server answers, {tried} forms refused by the gateway"

    def check_prefix_hits_rise(self):
        block = self.members()[0]["metrics"]["blockSize"]
        prefixes = [f"Conversation {i}. " + f"Rule {i} of this house is that it has a rule. " * 60 for i in range(4)]
        before = self.prefix_hits()
        queries = self.total("vllm:prefix_cache_queries_total")
        cached, repeats = 0, 4
        for turn in range(1 + repeats):
            for p in prefixes:
                r = call(self.gateway, "POST", "/v1/chat/completions", chat(f"{p} Question {turn}?", max_tokens=4)).json()
                details = r["usage"].get("prompt_tokens_details") or {}
                cached += details.get("cached_tokens") or 0
        # Every repeat finds the whole blocks of its prefix, or it went to the
        # server that does not have them.
        least = sum(len(p) // block * block for p in prefixes) * repeats
        rose = self.prefix_hits() - before
        asked = self.total("vllm:prefix_cache_queries_total") - queries
        need(rose >= least, f"vllm:prefix_cache_hits_total rose by {rose:.0f}, want {least} or more")
        need(cached == rose, f"answers say {cached} cached tokens, the servers' counter {rose:.0f}")
        return f"vllm:prefix_cache_hits_total rose by {rose:.0f} of {asked:.0f} tokens, all seen in the answers' usage"

    def check_picks_explain_the_prefix(self):
        body = chat("Conversation 0. " + "Rule 0 of this house is that it has a rule. " * 60 + " Question 9?", max_tokens=4)
        request_id = call(self.gateway, "POST", "/v1/chat/completions", body).headers["x-request-id"]
        out = subprocess.run([self.o.penstock, "explain", request_id, "--admin", self.o.admin],
                             check=True, capture_output=True, text=True, timeout=30).stdout
        need(any(s in out for s in self.o.servers), out)
        r = self.record(request_id)
        need(r["tokens"]["cached"] > 1000, f"record {r}")
        return f"served by the warm member, {r['tokens']['cached']} cached tokens in the record"

    def check_concurrent_streams(self):
        results = []

        def one(i):
            try:
                chunks = stream(self.gateway, "/v1/chat/completions",
                                chat(f"Stream {i}", max_tokens=64, stream_options={"include_usage": True}))
                results.append(chunks[-1]["usage"]["completion_tokens"])
            except Exception as e:
                results.append(e)

        threads = [threading.Thread(target=one, args=(i,)) for i in range(24)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        need(results == [64] * 24, f"{results}")
        wait_for("requests in flight", 5, lambda: sum(m["requests"] for m in self.members()) == 0 or "not 0")
        return "24 at once, every one with 64 tokens; nothing left in flight"

    def check_cancel(self):
        wait_for("servers idle", 10, lambda: self.total("vllm:num_requests_running") == 0 or "running")
        before = self.total("vllm:generation_tokens_total")
        bound = 6000
        connection, response = open_request(
            self.gateway, "POST", "/v1/chat/completions", chat("Hello", stream=True, max_tokens=bound, ignore_eos=True))
        request_id = response.getheader("x-request-id")
        for count, _ in enumerate(events(response)):
            if count == 5:
                break
        need(self.total("vllm:num_requests_running") == 1, "the request is not running before the cancel")
        response.close()
        connection.close()
        start = time.monotonic()
        wait_for("vllm:num_requests_running", 3, lambda: self.total("vllm:num_requests_running") == 0 or "not 0")
        took = time.monotonic() - start
        made = self.total("vllm:generation_tokens_total") - before
        need(made < bound, f"the server made all {made:.0f} tokens")
        r = self.record(request_id)
        need(r["status"] == 499, f"record {r}")
        return f"running 0 after {took:.1f} s, {made:.0f} of {bound} tokens made, 499 in the record"

    def run(self):
        passed = failed = 0
        for name in [n for n in vars(Checks) if n.startswith("check_")]:
            title = name.removeprefix("check_").replace("_", " ")
            try:
                detail = getattr(self, name)()
                passed += 1
                print(f"ok    {title}: {detail}", flush=True)
            except Exception as e:
                failed += 1
                print(f"FAIL  {title}: {type(e).__name__}: {e}", flush=True)
        return passed, failed


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--gateway", required=True, help="host:port of the listener")
    p.add_argument("--admin", required=True, help="host:port of the admin interface")
    p.add_argument("--penstock", required=True, help="the binary")
    p.add_argument("--records", required=True, help="file of the gateway's records")
    p.add_argument("--page", required=True, help="file to write the first server's metrics page to")
    p.add_argument("servers", nargs="+", help="host:port of each vLLM")
    o = p.parse_args()
    checks = Checks(o)
    passed, failed = checks.run()
    with open(o.page, "w") as f:
        f.write(checks.page(o.servers[0]))
    print(f"the metrics page is in {os.path.relpath(o.page)}")
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
