# SPDX-FileCopyrightText: The Penstock Authors
# SPDX-License-Identifier: Apache-2.0

"""The servers of the matrix: a simulated provider for each shape and one gateway
in front of them all, with keys. Every process is ended by its id."""

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import sim_providers  # noqa: E402

PENSTOCK = os.environ.get("PENSTOCK", "bin/penstock")
KEY = "sk-matrix-client"  # of the clients; the simulators must never see it
TENANT = "matrix"
ATTEMPTS = 3  # of the gateway, at most, whatever the client does


class Server(sim_providers.Provider):
    """A simulated provider with what the gateway is told of it."""

    def __init__(self, name, shape, model, thinks, flags, config, quirks=()):
        self.name, self.shape, self.model, self.thinks = name, shape, model, thinks
        self.models = list(dict.fromkeys([model, thinks, model + "-bad", model + "-slow"]))
        self.config = config  # of the provider; None: it is the member of a pool
        self.flags = ["--keep-bodies", *flags, *(f for q in quirks for f in ("--quirk", q))]

    def provider(self, name, url):
        text = self.config.replace("AT", url)
        return f'  - {{name: {name}, {text}, cooldown: {{after: 1000, for: 10ms, max: 10ms}}}}\n'

    def entries(self, closed):
        """Providers, pools and models of this server; at closed nobody listens."""
        pools = providers = ""
        if self.config:
            providers = self.provider(self.name, self.url) + self.provider(self.name + "-gone", f"http://127.0.0.1:{closed}")
            target, gone = f"provider: {self.name}", f"provider: {self.name}-gone"
        else:
            for name, address in ((self.name, self.url.removeprefix("http://")), (self.name + "-gone", f"127.0.0.1:{closed}")):
                pools += f'  - {{name: {name}, metrics: {{off: true}}, apiKey: k, members: {{static: ["{address}"]}}}}\n'
            target, gone = f"pool: {self.name}", f"pool: {self.name}-gone"
        models = ""
        for name, where, model in [
            (self.name, target, self.model), (self.name + "-thinks", target, self.thinks), (self.name + "-down", gone, self.model),
            (self.name + "-bad", target, self.model + "-bad"), (self.name + "-slow", target, self.model + "-slow"),
        ]:
            models += f'  - {{name: {name}, targets: [{{{where}, model: "{model}"}}], retries: {{attempts: {ATTEMPTS}, perTarget: {ATTEMPTS}}}}}\n'
        return pools, providers, models

    def stats(self):
        with urllib.request.urlopen(self.url + "/sim/stats", timeout=10) as r:
            return json.load(r)

    def attempts(self):
        """Requests that arrived, refused ones too."""
        return self.stats().get("attempts", 0)

    def counted(self):
        """Tokens that the simulator counted for its last request: prompt, cached, output."""
        last = self.stats()["records"][-1]
        return last["promptTokens"], last["cachedTokens"], last["outputTokens"]

    def asked(self):
        """Body of the last request that the simulator got."""
        return self.stats()["seen"][-1]["body"]

    def left(self, before):
        """Waits until a client has been seen to leave since before."""
        for _ in range(60):
            if self.stats().get("cancelled", 0) > before:
                return
            time.sleep(0.1)
        raise AssertionError("the server still serves 6 s after the client left")


def servers():
    """One for each shape. The pool's member speaks as a model server does that
    shows its reasoning: the simulated engine calls one tool at a time only."""
    key = ["--api-key", "k"]
    credentials = "credentials: [{secret: k}]"
    return [
        Server("pool", "openai", "pool-sim", "pool-sim", key, None, ["reasoning-content"]),
        Server("openai", "openai", "gpt-sim", "o-sim", key, f'baseURL: "AT/v1", quirks: openai, {credentials}'),
        Server("azure", "azure", "gpt-sim", "o-sim", key, f'dialect: azure, baseURL: "AT", apiVersion: "2024-10-21", {credentials}'),
        Server("anthropic", "anthropic", "claude-sim", "claude-sim", key, f'dialect: anthropic, baseURL: "AT", {credentials}'),
        Server("gemini", "gemini", "gemini-sim", "gemini-3-sim", key, f'dialect: gemini, baseURL: "AT", {credentials}'),
        Server(
            "bedrock", "bedrock", "eu.anthropic.claude-sim-v1:0", "eu.anthropic.claude-sim-v1:0",
            ["--access-key", "AKIASIM:secret", "--region", "eu-west-1"],
            'dialect: bedrock, baseURL: "AT", region: eu-west-1, credentials: [{accessKeyID: AKIASIM, secret: secret}]',
        ),
    ]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Gateway:
    def __init__(self, servers, work):
        self.work = work
        port, closed = free_port(), free_port()
        self.url = f"http://127.0.0.1:{port}"
        pools, providers, models = (("".join(parts)) for parts in zip(*(s.entries(closed) for s in servers)))
        asked = [s for s in servers if s.config]
        if asked:
            targets = ", ".join(f'{{provider: {s.name}, model: "{s.model}-bad"}}' for s in asked)
            models += f"  - {{name: all, targets: [{targets}], retries: {{attempts: {ATTEMPTS}}}}}\n"
        digest = hashlib.sha256(KEY.encode()).hexdigest()
        self.config = os.path.join(work, "penstock.yaml")
        with open(self.config, "w") as f:
            f.write(
                f'listeners: [{{name: public, address: "127.0.0.1:{port}"}}]\nadmin: {{address: "off"}}\n'
                f'tenants: [{{name: {TENANT}, keys: [{{name: client, hash: "sha256:{digest}"}}]}}]\n'
                f'{"pools:" if pools else ""}\n{pools}{"providers:" if providers else ""}\n{providers}models:\n{models}'
                f'retries: {{backoff: 10ms, budget: 10}}\nrecords: {{path: "{work}/records.jsonl"}}\n'
            )
        self.log = open(os.path.join(work, "run.err"), "w+")
        self.process = subprocess.Popen([PENSTOCK, "run", "-c", self.config], stdout=self.log, stderr=self.log)
        for _ in range(300):
            if self.process.poll() is not None:
                break
            with socket.socket() as s:
                s.settimeout(1)
                if s.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.1)
        self.stop()
        raise SystemExit("penstock run is not ready:\n" + self.text())

    def text(self):
        self.log.flush()
        self.log.seek(0)
        return self.log.read()

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
