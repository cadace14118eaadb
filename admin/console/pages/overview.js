// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

import { h, slot, num, short, secs, usd, pct, span, when, clock, ago, badge, table, panel, facts, mono, muted, link, path } from "../dom.js";
import { Chart } from "../chart.js";
import { ask } from "../live.js";

const shown = 300, least = 90; // seconds; of a gateway that is younger, as long as it is there

// smooth is the mean of a field over the n seconds up to each point; null, of a
// field that is 0 when there is none, when there was none in all of them.
function smooth(points, field, n, sparse) {
  return points.map((_, i) => {
    const part = points.slice(Math.max(0, i - n + 1), i + 1).filter((p) => !sparse || p[field] > 0);
    return part.length ? part.reduce((sum, p) => sum + p[field], 0) / part.length : null;
  });
}

export default function (ctx) {
  let points = [], data = null, refused = null;
  const rate = (name, color, field) => ({ name, color, value: (p) => p.mean[field] });
  const charts = [
    new Chart("Requests per second", [rate("all", "c1", "requests"), rate("refused", "c3", "refused"), rate("failed", "c4", "failed")], (v) => short(v)),
    new Chart("Time to first token", [rate("median", "c1", "ttft50"), rate("90 %", "c2", "ttft90")], secs),
    new Chart("Tokens per second", [rate("prompt", "c2", "input"), rate("output", "c1", "output")], (v) => short(Math.round(v))),
    new Chart("Cost per minute", [{ name: "all", color: "c5", value: (p) => p.mean.cost * 60 }], usd),
  ];
  const age = () => (data ? Math.round((Date.now() - new Date(data.ready.startedAt)) / 1000) : shown);
  const plot = () => {
    const means = Object.fromEntries(["requests", "refused", "failed", "input", "output", "cost"].map((f) => [f, smooth(points, f, 5)]));
    for (const f of ["ttft50", "ttft90"]) means[f] = smooth(points, f, 10, true);
    const list = points.map((p, i) => ({ ...p, mean: Object.fromEntries(Object.entries(means).map(([f, v]) => [f, v[i]])) })).slice(-Math.min(shown, Math.max(least, age())));
    for (const c of charts) c.set(list);
  };
  ask("/console/traffic").then((list) => { points = merge(list, points); plot(); }, (err) => { refused = err; ctx.redraw(); });

  return {
    topics: ["overview"],
    on(_, value) {
      data = value;
      points = merge(points, value.now.newest);
      plot();
    },
    render() {
      if (!data) return h("p", { class: "muted" }, refused ? refused.message : "Loading…");
      return h("div", { class: "stack" }, tiles(data.now), h("div", { class: "charts" }, charts.map((c) => slot(c.el))),
        h("div", { class: "columns" },
          h("div", { class: "stack" }, pools(data), errors(data.now.errors), models(data.now.models)),
          h("div", { class: "stack" }, reload(data.reloads, data.ready.config), gateway(data.ready))));
    },
  };
}

// merge adds points by their second.
function merge(old, more) {
  const last = old.at(-1)?.at ?? 0;
  return [...old, ...more.filter((p) => p.at > last)].slice(-600);
}

function tiles(now) {
  const m = now.minute, n = now.seconds, failed = m.requests ? m.failed / m.requests : 0, refused = m.requests ? m.refused / m.requests : 0;
  const tile = (name, value, unit, more, kind = "") => h("div", { class: "tile " + kind }, h("dt", null, name), h("dd", null, h("b", null, value), " ", unit && h("small", null, unit), h("div", { class: "more" }, more)));
  return h("dl", { class: "tiles", "aria-label": "The last minute" },
    tile("Requests", num(m.requests / n, 1), "/s", short(m.requests) + " in the last " + (n === 60 ? "minute" : n + " s")),
    tile("Failed", pct(failed, failed && failed < 0.1 ? 1 : 0), "", pct(refused, refused && refused < 0.1 ? 1 : 0) + " refused, " + num(m.left) + " left", failed > 0.01 ? "bad" : ""),
    tile("First token", secs(m.ttft50), "median", secs(m.ttft90) + " for 90 %"),
    tile("Output", short(m.output / n), "tokens/s", short(m.input / n) + " of prompts"),
    tile("Cost now", usd((m.cost / n) * 3600), "/h", now.unpriced ? num(now.unpriced) + " without a price" : usd(m.cost) + " in the last minute"),
    tile("Under way", num(now.open), "", "requests at this moment"));
}

function pools(data) {
  const list = data.ready.pools ?? [], rates = new Map(data.picks.map((p) => [p.pool, p.perSecond]));
  const out = list.filter((p) => p.ready === 0);
  const says = list.length === 0 ? "There is no pool." : out.length === 0 ? "Every pool is scheduled." : out.map((p) => p.name).join(", ") + (out.length > 1 ? " have" : " has") + " no member that may be picked.";
  return panel("Pools", h("span", { class: "verdict " + (out.length ? "bad" : "good"), id: "pools-verdict" }, says),
    table("Pools", [
      { name: "Pool", cell: (p) => link(path("pools", p.name), p.name) },
      { name: "State", cell: (p) => p.ready === 0 ? badge("not scheduled", "bad") : p.ready < p.members ? badge("scheduled, members out", "warn") : badge("scheduled", "good") },
      { name: "Ready", num: true, cell: (p) => p.ready + " of " + p.members },
      { name: "Picks/s", num: true, cell: (p) => num(rates.get(p.name) ?? null, 1) },
    ], list, { key: (p) => p.name, empty: "no pool is configured" }));
}

const errors = (list) => panel("Errors", muted("among the newest requests, five minutes"),
  table("Errors", [
    { name: "Class", cell: (e) => link("requests?class=" + encodeURIComponent(e.class), e.class) },
    { name: "Count", num: true, cell: (e) => num(e.count) },
    { name: "Last", cell: (e) => link(path("requests", e.requestId), clock(e.last)) },
    { name: "What it said", class: "wide", cell: (e) => e.text },
  ], list, { key: (e) => e.class, empty: "none" }));

const models = (list) => panel("Busiest models", muted("likewise"),
  table("Busiest models", [
    { name: "Model", cell: (m) => link("requests?model=" + encodeURIComponent(m.model), m.model || "–") },
    { name: "Requests", num: true, cell: (m) => num(m.requests) },
    { name: "Failed", num: true, cell: (m) => num(m.failed) },
    { name: "First token", num: true, cell: (m) => secs(m.ttft50) },
    { name: "Output tokens", num: true, cell: (m) => short(m.output) },
    { name: "Cost", num: true, cell: (m) => usd(m.cost) },
  ], list, { key: (m) => m.model, empty: "no requests yet" }));

const lines = (r) => h("ul", { class: "changes" }, r.changes.map((c) => {
  const cut = c.indexOf(": ");
  return h("li", null, h("code", null, c.slice(0, cut)), c.slice(cut));
}), r.more && h("li", null, "and " + r.more + " more lines, in the log"));

function reload(list, config) {
  const last = list[0];
  if (!last) return null;
  const result = (r) => (r.error ? badge("refused", "bad") : badge(r.first ? "first configuration" : "in force", "good"));
  return panel("Last reload", result(last),
    facts([["When", when(last.at) + ", " + ago(last.at)], ["Took", secs(last.tookSeconds)], ["File", config.file && mono(config.file)]]),
    last.error ? h("pre", { class: "wrong" }, last.error) : last.changes.length ? h("div", { id: "reload-changes" }, h("h3", null, "What changed"), lines(last))
      : h("p", { class: "muted" }, last.first ? "There was none before." : "Nothing that the gateway shows."),
    list.length > 1 && h("details", null, h("summary", null, "Before that (" + (list.length - 1) + ")"), list.slice(1).map((r) =>
      h("div", { key: r.at }, h("h3", null, when(r.at) + " ", result(r)), r.error ? h("pre", { class: "wrong" }, r.error) : lines(r)))));
}

const gateway = (ready) => panel("Gateway", ready.ready ? badge("ready", "good") : badge(ready.reason ?? "not ready", "bad"),
  facts([["Version", ready.version], ["Up for", span((Date.now() - new Date(ready.startedAt)) / 1000)],
    ["Configurations", num(ready.config.loads) + " loaded"],
    ready.controller && ["Controller", ready.controller.connected ? badge("connected", "good") : badge("out of touch: " + (ready.controller.error ?? ""), "bad")],
    ready.keys && ["Keys", h("span", null, ready.keys.reachable ? badge(ready.keys.store + " reachable", "good") : badge(ready.keys.store + " out of reach", "bad"), " " + num(ready.keys.keys) + " keys")]]),
  table("Listeners", [
    { name: "Listener", cell: (l) => l.name }, { name: "Address", cell: (l) => mono(l.address) },
    { name: "State", cell: (l) => l.up ? badge(l.tls ? "up, TLS" : "up", l.certificateError ? "warn" : "good") : badge("down", "bad") },
  ], ready.listeners ?? [], { key: (l) => l.name }));
