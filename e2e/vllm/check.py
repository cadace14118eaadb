# SPDX-FileCopyrightText: The Penstock Authors
# SPDX-License-Identifier: Apache-2.0
"""Checks a running gateway in front of running vLLM servers.

Started by run.sh. Prints one line per check and at the end
"N passed, N failed"; exits 1 if a check failed. Standard library only. Every
call has a time limit; the addresses are those given on the command line.
"""

import argparse
import concurrent.futures
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
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


class Stream:
    """A streamed answer that was read to its end, as the clients' libraries do,
    or to [DONE] alone."""

    def __init__(self, address, path, body, to_end=True):
        connection, response = open_request(address, "POST", path, {**body, "stream": True})
        try:
            start = time.monotonic()
            self.id = response.getheader("x-request-id")
            self.chunks, self.times = [], []
            for chunk in events(response):
                self.chunks.append(chunk)
                self.times.append(time.monotonic() - start)
            if to_end:
                rest = response.read().strip()
                need(not rest, f"after [DONE] came {rest!r}")
        finally:
            connection.close()


def stream(address, path, body):
    return Stream(address, path, body).chunks


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


def at_once(calls):
    """Runs all calls at the same time and gives their results."""
    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        return [f.result() for f in [pool.submit(c) for c in calls]]


class Checks:
    """The checks, in the order of their names' appearance here."""

    def __init__(self, o):
        self.o = o
        self.gateway = o.gateway
        self.busy = None  # a page of a server with requests running and waiting

    # What the servers say of themselves.

    def page(self, server):
        a = call(server, "GET", "/metrics")
        need(a.status == 200, f"/metrics of {server}: status {a.status}")
        return a.text

    def total(self, name):
        values = [series(self.page(s), name) for s in self.o.servers]
        need(None not in values, f"no {name} on the page of a server")
        return sum(values)

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
        got = Stream(self.gateway, "/v1/chat/completions", chat("Hello"))
        need(text_of(got.chunks), "no content")
        shown = [c for c in got.chunks if c.get("usage") or not c["choices"]]
        need(not shown, f"the client did not ask for usage but got {shown}")
        r = self.record(got.id)
        need(r["status"] == 200 and r["tokens"]["output"] == 16 and r["tokens"]["source"] == "reported", f"record {r}")
        return f"{len(got.chunks)} chunks, usage kept for the record: {r['tokens']}"

    def check_stream_comes_piecewise(self):
        times = Stream(self.gateway, "/v1/chat/completions", chat("Hello", max_tokens=200)).times
        need(len(times) >= 20, f"{len(times)} chunks for 200 tokens")
        need(times[0] < times[-1] / 2, f"first chunk after {times[0]:.3f} s of {times[-1]:.3f} s")
        return f"{len(times)} chunks, first after {times[0] * 1e3:.0f} ms, last after {times[-1] * 1e3:.0f} ms"

    def check_close_at_done(self):
        count = 20
        ids = [Stream(self.gateway, "/v1/chat/completions", chat("Hello", max_tokens=4), to_end=False).id for _ in range(count)]
        statuses = [self.record(i)["status"] for i in ids]
        need(statuses == [200] * count,
             f"{statuses.count(499)} of {count} clients that had [DONE] and left are recorded as 499: {statuses}")
        return f"{count} clients that left at [DONE] are recorded as 200"

    def check_n_2(self):
        body = chat("Hello", n=2, temperature=1, seed=1)
        r = call(self.gateway, "POST", "/v1/chat/completions", body).json()
        need([c["index"] for c in r["choices"]] == [0, 1], f"choices {r['choices']}")
        chunks = stream(self.gateway, "/v1/chat/completions", body)
        need(text_of(chunks, 0) and text_of(chunks, 1), "a choice of the stream is empty")
        return f"{r['usage']['completion_tokens']} tokens out for both, streamed too"

    def tools(self):
        return [{"type": "function", "function": {
            "name": "weather", "description": "Weather of a city", "strict": True,
            "parameters": {"type": "object", "properties": {"city": {"type": "string", "enum": ["Lima", "Oslo"]}},
                           "required": ["city"], "additionalProperties": False}}}]

    def check_tools_accepted(self):
        without = call(self.gateway, "POST", "/v1/chat/completions", chat("Hello")).json()
        r = call(self.gateway, "POST", "/v1/chat/completions", chat("Hello", tools=self.tools(), tool_choice="auto")).json()
        more = r["usage"]["prompt_tokens"] - without["usage"]["prompt_tokens"]
        need(more > 100, f"the tools made the prompt {more} tokens longer")
        return f"the tools are {more} tokens of the prompt"

    def check_tool_call(self):
        # The grammar of the call allows blanks without end, and a random model
        # can fall in love with them.
        blanks = call(self.o.servers[0], "POST", "/tokenize", {"model": SERVED, "prompt": " \t\n\r"}).json()["tokens"]
        body = chat("Hello", tools=self.tools(), max_tokens=200, logit_bias={str(i): -100 for i in blanks},
                    tool_choice={"type": "function", "function": {"name": "weather"}})
        r = call(self.gateway, "POST", "/v1/chat/completions", body).json()
        calls = r["choices"][0]["message"].get("tool_calls")
        need(calls, f"no tool call in {r['choices']}")
        f = calls[0]["function"]
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

    def administration(self):
        """What the server itself serves besides inference, by its own list."""
        served = call(self.o.servers[0], "GET", "/openapi.json").json()["paths"]
        inference = ("/v1/", "/tokenize", "/detokenize", "/invocations", "/generative_scoring", "/openapi.json")
        found = {p: next(iter(m)).upper() for p, m in served.items() if not p.startswith(inference)}
        need(len(found) > 20 and "/metrics" in found and "/sleep" in found, f"the server lists {sorted(served)}")
        return found

    def check_administration_unreachable(self):
        found = self.administration()
        found["/openapi.json"] = "GET"
        for path in ("/metrics", "/version", "/openapi.json"):
            direct = call(self.o.servers[0], "GET", path)
            need(direct.status == 200, f"{path} on the server itself: {direct.status}; the check would prove nothing")
        tried = 0
        for path, method in found.items():
            for form in (path, "/v1/.." + path, "/v1/%2e%2e" + path, "/" + path, path + "/", path.upper()):
                a = call(self.gateway, method, form, {"model": MODEL} if method == "POST" else None)
                need(a.status in (400, 404), f"{method} {form}: {a.status} {a.text[:200]}")
                need("request_id" in a.json(a.status), f"{method} {form} is not the gateway's own answer: {a.text[:200]}")
                tried += 1
        return f"{len(found)} paths of the server, {tried} forms refused by the gateway"

    def check_administration_cannot_be_allowed(self):
        with open(self.o.config) as f:
            text = f.read()
        allowed = []
        with tempfile.TemporaryDirectory() as folder:
            name = os.path.join(folder, "penstock.yaml")
            for path in self.administration():
                with open(name, "w") as f:
                    f.write(text.replace("    engine: vllm\n", f"    engine: vllm\n    paths: [{path}]\n"))
                r = subprocess.run([self.o.penstock, "check", "-c", name], capture_output=True, text=True, timeout=30)
                if r.returncode == 0:
                    allowed.append(path)
        need(not allowed, f"a pool's paths may name {' '.join(sorted(allowed))}")
        return "none of them may stand in a pool's paths"

    def check_prefix_hits_rise(self):
        block = self.members()[0]["metrics"]["blockSize"]
        prefixes = [f"Conversation {i}. " + f"Rule {i} of this house is that it has a rule. " * 60 for i in range(4)]
        hits = [series(self.page(s), "vllm:prefix_cache_hits_total") for s in self.o.servers]
        queries = self.total("vllm:prefix_cache_queries_total")

        def ask(prefix, turn, tokens):
            r = call(self.gateway, "POST", "/v1/chat/completions", chat(f"{prefix} Question {turn}?", max_tokens=tokens)).json()
            return (r["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0

        # All at once, so that they spread over the servers; then one by one.
        cached = sum(at_once([lambda p=p: ask(p, 0, 100) for p in prefixes]))
        repeats = 4
        for turn in range(1, 1 + repeats):
            cached += sum(ask(p, turn, 4) for p in prefixes)
        # Every repeat finds the whole blocks of its prefix, or it went to a
        # server that does not have them.
        least = sum(len(p) // block * block for p in prefixes) * repeats
        rose = [series(self.page(s), "vllm:prefix_cache_hits_total") - h for s, h in zip(self.o.servers, hits)]
        asked = self.total("vllm:prefix_cache_queries_total") - queries
        need(sum(rose) >= least, f"vllm:prefix_cache_hits_total rose by {rose}, want {least} or more")
        need(all(rose), f"vllm:prefix_cache_hits_total rose by {rose}: a server got nothing")
        need(cached == sum(rose), f"answers say {cached} cached tokens, the servers' counters {rose}")
        return f"vllm:prefix_cache_hits_total rose by {' + '.join(f'{n:.0f}' for n in rose)} of {asked:.0f} tokens, as the answers' usage says"

    def check_picks_explain_the_prefix(self):
        body = chat("Conversation 0. " + "Rule 0 of this house is that it has a rule. " * 60 + " Question 9?", max_tokens=4)
        request_id = call(self.gateway, "POST", "/v1/chat/completions", body).headers["x-request-id"]
        out = subprocess.run([self.o.penstock, "explain", request_id, "--admin", self.o.admin],
                             check=True, capture_output=True, text=True, timeout=30).stdout
        need(any(s in out for s in self.o.servers), out)
        r = self.record(request_id)
        need(r["tokens"].get("cacheRead", 0) > 1000, f"record {r}")
        return f"served by the warm member, {r['tokens']['cacheRead']} cached tokens in the record"

    def check_load_is_seen(self):
        # More at once than the servers run at once.
        count, tokens, done = self.o.seats * len(self.o.servers) + 8, 200, threading.Event()
        seen = {"waiting": 0, "running": 0, "kvUsage": 0, "requests": 0}

        def watch():
            while not done.is_set():
                for s in self.o.servers:
                    page = self.page(s)
                    if series(page, "vllm:num_requests_waiting") and series(page, "vllm:num_requests_running"):
                        self.busy = page
                members = self.members()
                for key in ("waiting", "running", "kvUsage"):
                    seen[key] = max(seen[key], sum(m["metrics"][key] for m in members))
                seen["requests"] = max(seen["requests"], sum(m["requests"] for m in members))

        def one(i):
            chunks = stream(self.gateway, "/v1/chat/completions",
                            chat(f"Stream {i}", max_tokens=tokens, stream_options={"include_usage": True}))
            return chunks[-1]["usage"]["completion_tokens"]

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            watching = pool.submit(watch)
            try:
                made = at_once([lambda i=i: one(i) for i in range(count)])
            finally:
                done.set()
            watching.result()
        need(made == [tokens] * count, f"{made}")
        need(all(seen.values()), f"the gateway saw {seen}")
        wait_for("requests in flight", 5, lambda: sum(m["requests"] for m in self.members()) == 0 or "not 0")
        return f"{count} streams at once, whole; the gateway saw up to {seen['running']:.0f} running, {seen['waiting']:.0f} waiting; 0 in flight after it"

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
    p.add_argument("--config", required=True, help="file of the gateway's configuration")
    p.add_argument("--records", required=True, help="file of the gateway's records")
    p.add_argument("--seats", type=int, required=True, help="requests that one server runs at once")
    p.add_argument("--page", required=True, help="file to write a server's metrics page under load to")
    p.add_argument("servers", nargs="+", help="host:port of each vLLM")
    o = p.parse_args()
    checks = Checks(o)
    passed, failed = checks.run()
    if checks.busy:
        with open(o.page, "w") as f:
            f.write(checks.busy)
        print(f"the metrics page of a server under load is in {os.path.relpath(o.page)}")
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
