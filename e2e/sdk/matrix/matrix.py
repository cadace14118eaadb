# SPDX-FileCopyrightText: The Penstock Authors
# SPDX-License-Identifier: Apache-2.0

"""Runs real clients, unchanged, against every kind of backend through one
gateway with keys, and prints what works: client, scenario, backend. See
run.sh, which fetches the clients.

  matrix.py [NAME...]    these clients, backends and scenarios only

A cell that fails makes the whole fail, unless UNSUPPORTED says why it cannot
work; a cell named there that works fails too, so that the table stays true.
"""

import importlib
import os
import sys
import tempfile
import time
import traceback

import rig

MODULES = ["with_openai", "with_anthropic", "with_genai", "with_langchain", "with_others"]
SCENARIOS = [
    "text", "stream", "usage", "tools", "tools_stream", "image", "thinking", "think_tools", "structured",
    "models", "error_model", "error_request", "error_rate", "error_down", "error_retries", "error_key", "error_stream", "cancel",
]

# (client, scenario, backend) that cannot work, with the reason; "*" is any.
HIDDEN = "OpenAI's chat completions do not show the reasoning of its models (responses do)"
UNCOUNTED = "Anthropic counts no tokens of reasoning apart, and this client shows nothing else of it"
PASSED_ON = "a single failure of a pool's member is passed on as it is: the client's own retries follow"
UNSUPPORTED = {
    ("openai chat", "error_retries", "pool"): PASSED_ON,
    ("openai node", "error_retries", "pool"): PASSED_ON,
    ("openai go", "error_retries", "pool"): PASSED_ON,
    ("openai responses", "error_retries", "pool"): PASSED_ON,
    ("anthropic", "error_retries", "pool"): PASSED_ON,
    ("anthropic go", "error_retries", "pool"): PASSED_ON,
    ("langchain", "error_retries", "pool"): PASSED_ON,
    ("openai chat", "thinking", "openai"): HIDDEN,
    ("openai chat", "thinking", "azure"): HIDDEN,
    ("openai node", "thinking", "openai"): HIDDEN,
    ("openai node", "thinking", "azure"): HIDDEN,
    ("openai go", "thinking", "openai"): HIDDEN,
    ("openai go", "thinking", "azure"): HIDDEN,
    ("anthropic", "thinking", "openai"): HIDDEN,
    ("anthropic", "thinking", "azure"): HIDDEN,
    ("anthropic go", "thinking", "openai"): HIDDEN,
    ("anthropic go", "thinking", "azure"): HIDDEN,
    ("google-genai", "thinking", "openai"): HIDDEN,
    ("google-genai", "thinking", "azure"): HIDDEN,
    ("langchain", "thinking", "anthropic"): UNCOUNTED,
    ("langchain", "thinking", "bedrock"): UNCOUNTED,
}


def reason(client, scenario, backend):
    for (c, s, b), why in UNSUPPORTED.items():
        if c in ("*", client) and s in ("*", scenario) and b in ("*", backend):
            return why
    return None


def run(client, scenario, server):
    """One cell: ok, unsupported, FAIL, or - where the client has no such thing; and
    what there is to say."""
    if getattr(client, scenario, None) is None:
        return "-", ""
    why = reason(client.name, scenario, server.name)
    try:
        getattr(client, scenario)(server)
    except Exception as e:
        if why and isinstance(e, AssertionError):  # an error of the client is never meant
            return "unsupported", why
        traceback.print_exc()
        return "FAIL", f"{type(e).__name__}: {e}".replace("\n", " ")[:600]
    finally:
        server.faults()
    return ("FAIL", "works, and is listed as unsupported") if why else ("ok", "")


def chosen(names, only):
    return [n for n in names if not only or n in only] or list(names)


def leaks(servers):
    """Backends that were shown the clients' key, or another than their own."""
    hidden = rig.hashlib.sha256(rig.KEY.encode()).hexdigest()[:16]
    found = []
    for s in servers:
        stats = s.stats()
        if hidden in str(stats) or rig.KEY in str(stats):
            found.append(f"{s.name} was sent the client's key")
        if len({c["credential"] for c in stats.get("calls", []) if c["credential"]}) > 1:
            found.append(f"{s.name} was sent several keys: {stats['calls']}")
    return found


def all_fail(client, servers):
    """Asks the model that every provider serves while all of them fail: how many
    requests arrive, though the client would try four times by itself."""
    asked = [s for s in servers if s.config]
    if not asked or not hasattr(client, "patient"):
        return None
    for s in asked:
        s.faults(error="server")
    before = sum(s.attempts() for s in asked)
    try:
        client.patient("all")
    except Exception:
        traceback.print_exc()
        return -1
    finally:
        for s in asked:
            s.faults()
    return sum(s.attempts() for s in asked) - before


def main():
    only = sys.argv[1:]
    kinds = [kind for m in MODULES for kind in importlib.import_module(m).CLIENTS]
    names = chosen([k.name for k in kinds], only)
    scenarios = chosen(SCENARIOS, only)
    servers = rig.servers()
    servers = [s for s in servers if s.name in chosen([s.name for s in servers], only)]
    began, started, gateway = time.monotonic(), [], None
    rows, notes, failed = [], [], 0
    with tempfile.TemporaryDirectory() as work:
        try:
            for s in servers:
                s.start()
                started.append(s)
            gateway = rig.Gateway(servers, work)
            for kind in kinds:
                if kind.name not in names:
                    continue
                client = kind(gateway.url)
                try:
                    for scenario in scenarios:
                        row = []
                        for s in servers:
                            state, note = run(client, scenario, s)
                            row.append(state)
                            if note:
                                notes.append(f"{state}: {kind.name}, {scenario}, {s.name}: {note}")
                            failed += state == "FAIL"
                        rows.append((kind.name, scenario, row))
                    if "error_retries" in scenarios and (came := all_fail(client, servers)) is not None:
                        bad = not 0 < came <= rig.ATTEMPTS
                        failed += bad
                        notes.append(f"{'FAIL' if bad else 'ok'}: {kind.name}: every provider of a model fails: {came} requests arrive")
                finally:
                    if hasattr(client, "close"):
                        client.close()
            for what in leaks(servers):
                failed += 1
                notes.append("FAIL: " + what)
            if failed and os.environ.get("KEEP"):
                print(gateway.text(), file=sys.stderr)
        finally:
            if gateway:
                gateway.stop()
            for s in started:
                s.stop()
    show(rows, [s.name for s in servers], notes)
    count = {state: sum(r.count(state) for _, _, r in rows) for state in ("ok", "unsupported", "FAIL")}
    print(f"{count['ok']} ok, {count['unsupported']} unsupported, {failed} failed in {time.monotonic() - began:.0f} s")
    return 1 if failed or not rows else 0


def show(rows, columns, notes):
    print(f"{'client':<18}{'scenario':<15}" + "".join(f"{c:<13}" for c in columns))
    for client, scenario, row in rows:
        print(f"{client:<18}{scenario:<15}" + "".join(f"{state:<13}" for state in row))
    for note in sorted(notes):
        print(note)


if __name__ == "__main__":
    sys.exit(main())
