// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

import { h, num, secs, usd, badge, panel, facts, mono, muted, link, path } from "../dom.js";
import { ask } from "../live.js";

export default function (ctx) {
  let models = [], listeners = [], run = null, stop = null;
  ask("/models").then((v) => { models = v; ctx.redraw(); }, (e) => ctx.tell(e.message));
  ask("/readyz?verbose").then((v) => { listeners = v.listeners.filter((l) => !l.name.startsWith("picker:")); ctx.redraw(); }, (e) => ctx.tell(e.message));

  const send = async (e) => {
    e.preventDefault();
    const f = e.target.elements, began = performance.now(), gone = () => (performance.now() - began) / 1000;
    stop?.abort();
    stop = new AbortController();
    const mine = run = { text: "", raw: "", state: "waiting", pieces: 0 };
    ctx.redraw();
    const messages = [f.system.value.trim() && { role: "system", content: f.system.value }, { role: "user", content: f.prompt.value }].filter(Boolean);
    const body = { model: f.model.value, stream: true, stream_options: { include_usage: true }, messages };
    if (f.max.value) body.max_tokens = Number(f.max.value);
    if (f.temperature.value) body.temperature = Number(f.temperature.value);
    try {
      const res = await fetch("/console/play", {
        method: "POST", headers: { "Content-Type": "application/json" }, signal: stop.signal, credentials: "same-origin",
        body: JSON.stringify({ listener: f.listener.value, path: "/v1/chat/completions", key: f.key.value.trim(), body }),
      });
      Object.assign(mine, { status: res.status, id: res.headers.get("X-Request-Id") });
      await read(res.body, (piece) => {
        if (!res.ok) mine.raw += piece;
        else for (const delta of deltas(mine, piece)) {
          if (delta) mine.ttft ??= gone();
          mine.text += delta;
        }
        ctx.redraw();
      });
      mine.state = res.ok ? "done" : "refused";
      if (!res.ok) mine.fault = message(mine.raw);
    } catch (err) {
      mine.state = err.name === "AbortError" ? "stopped" : "failed";
      if (mine.state === "failed") mine.fault = err.message;
    }
    mine.total = gone();
    ctx.redraw();
    if (mine.id) record(mine, 8);
  };
  // record asks for what the gateway wrote down, which it does right after the end.
  const record = async (mine, tries) => {
    try {
      const id = encodeURIComponent(mine.id);
      if ((await ask("/console/requests?n=1&id=" + id)).found) mine.record = await ask("/console/requests/" + id);
      else if (tries > 1) setTimeout(() => record(mine, tries - 1), 250);
      ctx.redraw();
    } catch (e) { ctx.tell(e.message); }
  };

  return {
    topics: [], on() {},
    close: () => stop?.abort(),
    render() {
      if (!ctx.may("operator")) return h("p", { class: "muted" }, "The playground sends requests, for which the role operator is needed.");
      return h("div", { class: "columns even" },
        h("form", { class: "panel form", onsubmit: send }, h("header", null, h("h2", null, "Request")),
          h("div", { class: "pair" },
            h("label", null, "Listener", h("select", { name: "listener" }, listeners.map((l) => h("option", { key: l.name, value: l.name }, l.name + " (" + l.address + ")")))),
            h("label", null, "Model", h("select", { name: "model", required: true }, models.map((m) => h("option", { key: m.name, value: m.name }, m.name))))),
          h("label", null, "Key ", h("input", { name: "key", type: "password", autocomplete: "off", placeholder: "the secret; empty on an anonymous listener" })),
          h("label", null, "System ", h("textarea", { name: "system", rows: 2 })),
          h("label", null, "Prompt ", h("textarea", { name: "prompt", rows: 5, required: true }, "Why do mills have a penstock?")),
          h("div", { class: "pair" },
            h("label", null, "Tokens at most", h("input", { name: "max", type: "number", min: 1, value: 120 })),
            h("label", null, "Temperature", h("input", { name: "temperature", type: "number", min: 0, max: 2, step: 0.1 }))),
          h("div", { class: "row" }, h("button", { class: "main", type: "submit" }, "Send"), h("button", { type: "button", disabled: !run || run.state !== "waiting", onclick: () => stop?.abort() }, "Stop"))),
        panel("Answer", run && badge({ waiting: run.text ? "streaming" : "waiting" }[run.state] ?? run.state, { done: "good", refused: "bad", failed: "bad", stopped: "warn" }[run.state] ?? ""),
          !run && h("p", { class: "muted" }, "Nothing was sent yet."), run && answer(run)));
    },
  };
}

function answer(run) {
  const r = run.record, tokens = r ? (r.tokens.output ?? 0) + (r.tokens.reasoning ?? 0) : null;
  return h("div", { class: "stack" }, run.fault && h("p", { class: "wrong long", role: "alert" }, (run.status ? run.status + ": " : "") + run.fault),
    h("div", { class: "answer", id: "answer", role: "region", "aria-label": "Answer", tabindex: "0" }, run.text || muted(run.state === "waiting" ? "…" : "no text")),
    facts([["First token", secs(run.ttft)], ["Total", secs(run.total)], ["At the gateway", r && secs(r.ttftSeconds) + ", " + secs(r.totalSeconds) + " in all"],
      ["Output", r && num(tokens) + " tokens" + (r.tpotSeconds ? ", " + num(1 / r.tpotSeconds, 0) + " per second" : "")], ["Cost", r && (r.costUSD === null ? "not known" : usd(r.costUSD))],
      ["Served by", r && mono(r.endpointServed)], ["Request", run.id && mono(run.id)]]),
    r && h("div", { class: "row" }, link(path("requests", run.id), "The request"), r.pool && link(path("picks", run.id), "Its pick")));
}

async function read(body, on) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    on(value);
  }
}

// deltas are the texts of the events that piece completes.
function* deltas(run, piece) {
  run.raw += piece;
  for (let at; (at = run.raw.search(/\r?\n/)) >= 0;) {
    const line = run.raw.slice(0, at);
    run.raw = run.raw.slice(at).replace(/^\r?\n/, "");
    if (!line.startsWith("data:") || line.includes("[DONE]")) continue;
    let event;
    try { event = JSON.parse(line.slice(5)); } catch { continue; }
    if (event.error) run.fault = event.error.message;
    yield event.choices?.[0]?.delta?.content ?? "";
  }
}

function message(raw) {
  try { return JSON.parse(raw).error.message; } catch { return raw.slice(0, 500); }
}
