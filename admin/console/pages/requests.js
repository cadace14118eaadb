// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

import { h, num, short, secs, usd, clock, when, badge, statusBadge, table, panel, facts, mono, muted, link, path } from "../dom.js";
import { ask } from "../live.js";
import { decision, route } from "./picks.js";

const fields = ["id", "tenant", "model", "status", "class", "slower"];

export default function (ctx, [id], query) {
  return id ? one(ctx, id) : list(ctx, query);
}

function list(ctx, query) {
  const asked = Object.fromEntries(fields.map((f) => [f, query.get(f) ?? ""])), searching = fields.some((f) => asked[f]);
  let found = null, refused = null;
  const made = new Map();
  const search = () => ask("/console/requests?" + new URLSearchParams(Object.entries(asked).filter(([, v]) => v))).then((v) => { found = v; refused = null; ctx.redraw(); }, (e) => { refused = e; ctx.redraw(); });
  if (searching) search();
  const input = (name, label, more) => h("label", null, label + " ", h("input", { name, value: asked[name], autocomplete: "off", ...more }));
  const submit = (e) => {
    e.preventDefault();
    const parts = fields.map((f) => [f, e.target.elements[f].value.trim()]).filter(([, v]) => v);
    const next = "#/requests" + (parts.length ? "?" + new URLSearchParams(parts) : "");
    if (next === location.hash) search();
    else location.hash = next;
  };
  return {
    topics: searching ? [] : ["requests"],
    on(_, value) { found = value; },
    render: () => h("div", { class: "stack" },
      h("form", { class: "panel toolbar search", role: "search", onsubmit: submit },
        input("id", "Request id"), input("tenant", "Tenant"), input("model", "Model"),
        h("label", null, "Status ", h("select", { name: "status" }, [["", "any"], ["ok", "below 400"], ["failed", "400 and above"], ["4xx", "4xx"], ["5xx", "5xx"], ["429", "429"], ["499", "499, the client left"]].map(([v, n]) => h("option", { value: v, selected: v === asked.status }, n)))),
        input("class", "Error class"), input("slower", "Slower than", { placeholder: "2s", size: 6 }),
        h("button", { class: "main", type: "submit" }, "Search"), searching && link("requests", "Newest, live")),
      refused && h("p", { class: "wrong", role: "alert" }, refused.message),
      !found && !refused && h("p", { class: "muted" }, "Loading…"),
      found && h("section", { class: "panel" }, h("header", null, h("h2", null, searching ? num(found.found) + " found" : "Newest requests"), muted("of " + num(found.kept) + " that are kept")),
        table("Requests", [
          { name: "Time", cell: (r) => link(path("requests", r.requestId), clock(r.at, true)) },
          { name: "Status", cell: (r) => h("span", { class: "row" }, statusBadge(r.status), r.errorClass && muted(r.errorClass)) },
          { name: "Model", class: "long", cell: (r) => r.model || muted("–") },
          { name: "Tenant", cell: (r) => (r.tenant ? r.tenant + (r.key ? ":" + r.key : "") : muted("anonymous")) },
          { name: "Served by", class: "long", cell: (r) => (r.target ? h("span", null, r.target + " ", muted(r.served)) : muted("nobody")) },
          { name: "First token", num: true, cell: (r) => secs(r.ttftSeconds) }, { name: "Total", num: true, cell: (r) => secs(r.totalSeconds) },
          { name: "Prompt", num: true, cell: (r) => short(r.input) }, { name: "Output", num: true, cell: (r) => short(r.output) },
          { name: "Cost", num: true, cell: (r) => usd(r.costUSD) },
          { name: "Tries", num: true, cell: (r) => num(r.attempts) },
          { name: "Request", class: "id", cell: (r) => mono(r.requestId) },
        ], found.requests, { key: (r) => r.at + r.requestId, made, empty: searching ? "none of those that are kept" : "no requests yet" }))),
  };
}

function one(ctx, id) {
  let record = null, pick = null, refused = null;
  ask("/console/requests/" + encodeURIComponent(id)).then((v) => {
    record = v;
    if (v.tries?.length || v.skipped?.length) ask("/picks/" + encodeURIComponent(id)).then((p) => { pick = p; ctx.redraw(); }, () => { /* it is not kept any more */ });
    ctx.redraw();
  }, (e) => { refused = e; ctx.redraw(); });
  return {
    title: "Request", topics: [], on() {},
    render() {
      const back = h("div", { class: "toolbar" }, link("requests", "All requests"), pick?.pool && link(path("picks", id), "What would change its pick"));
      if (refused) return h("div", { class: "stack" }, back, h("p", { class: "wrong", role: "alert" }, refused.message));
      if (!record) return h("p", { class: "muted" }, "Loading…");
      return h("div", { class: "stack" }, back, summary(record), waterfall(record), pick?.pool && decision(pick), pick?.route && route(pick.route),
        panel("Record", muted("as it is written"), h("details", null, h("summary", null, "JSON"), h("pre", { tabindex: "0" }, JSON.stringify(record, null, 2)))));
    },
  };
}

function summary(r) {
  const t = r.tokens ?? {}, prompt = (t.input ?? 0) + (t.cacheRead ?? 0) + (t.cacheWrite ?? 0) + (t.cacheWrite1h ?? 0);
  return panel("What became of it", h("span", { class: "row" }, statusBadge(r.status), r.errorClass && badge(r.errorClass, "bad")),
    r.error && h("p", { class: "wrong long" }, r.error), r.limit && h("p", null, "Refused by the limit ", h("b", null, r.limit), "."),
    facts([["Request", mono(r.requestId)], ["When", when(r.time)], ["Asked for", r.modelAsked], ["Served as", r.modelUsed], ["Tenant", r.tenant && r.tenant + (r.key ? ":" + r.key : "")],
      ["Client", mono(r.client)], ["Listener", r.listener], ["Path", mono(r.path)], ["Pool", r.pool && link(path("pools", r.pool), r.pool)], ["Provider", r.provider], ["Member", r.endpointServed && mono(r.endpointServed)],
      ["Attempts", num(r.attempts)], ["Fallback", r.fallback], ["Prompt", num(prompt) + " tokens" + (t.cacheRead ? ", " + num(t.cacheRead) + " of them cached" : "")],
      ["Output", num((t.output ?? 0) + (t.reasoning ?? 0)) + " tokens"], ["Cost", r.costUSD === null || r.costUSD === undefined ? "not known" + (r.unpriced ? ": " + r.unpriced : "") : usd(r.costUSD)],
      ["End", r.finishReason], ["Trace", r.trace?.traceId && mono(r.trace.traceId)], ["Warned", r.limitWarned?.join("; ")]]));
}

// phases are the parts of the time that a request took: [name, from, to, kind].
export function phases(r) {
  const total = r.totalSeconds || 0, out = [], read = r.readSeconds ?? 0;
  if (read) out.push(["read the body", 0, read, "c3"]);
  if (r.reserveSeconds) out.push(["ask the limits", read, read + r.reserveSeconds, "c3"]);
  let answered = 0;
  for (const t of r.tries ?? []) {
    const at = t.atSeconds ?? 0, picked = at + (t.pickSeconds ?? 0), end = at + t.seconds, name = t.server || t.target;
    if (t.pickSeconds) out.push(["pick", at, picked, "c5"]);
    out.push([(t.error ? "failed at " : "wait for ") + name, Math.min(picked, end), end, t.error ? "c4" : "c2"]);
    answered = end;
  }
  if (r.ttftSeconds && r.ttftSeconds > answered) out.push(["first token", answered, r.ttftSeconds, "c2"]);
  const from = Math.max(answered, r.ttftSeconds ?? 0);
  if (from && total > from) out.push([r.stream ? "stream the answer" : "pass the answer on", from, total, "c1"]);
  return out;
}

function waterfall(r) {
  const total = r.totalSeconds || 0, list = phases(r);
  if (!total) return null;
  const longest = list.reduce((a, b) => (b[2] - b[1] > (a ? a[2] - a[1] : 0) ? b : a), null);
  return panel("Where the time went", h("span", { class: "verdict", id: "time-verdict" }, secs(total) + " in all" + (longest ? ", most of it: " + longest[0] + " (" + num((100 * (longest[2] - longest[1])) / total) + " %)" : "")),
    h("div", { class: "waterfall", role: "list", "aria-label": "Phases" }, list.map(([name, from, to, kind], i) => h("div", { class: "phase", role: "listitem", key: i },
      h("span", { class: "name", title: name }, name),
      h("span", { class: "lane", "aria-hidden": "true" }, h("span", { class: "block " + kind, left100: Math.min(99.5, (100 * from) / total).toFixed(2), width100: Math.max(0.5, (100 * (to - from)) / total).toFixed(2) })),
      h("span", { class: "num" }, secs(to - from))))),
    facts([["First token after", secs(r.ttftSeconds)], ["Per output token", secs(r.tpotSeconds)], ["Stream", r.stream ? "yes" : "no"]]));
}
