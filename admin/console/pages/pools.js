// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

import { h, num, short, pct, secs, ago, span, badge, state, bar, table, panel, facts, mono, muted, link } from "../dom.js";
import { spark } from "../chart.js";

const kept = 60; // seconds of each member's past

export default function (ctx, [only]) {
  let pools = null, outAlone = false;
  const past = new Map(); // pool and address: {kv, load}
  return {
    title: only ? "Pool " + only : "Pools",
    topics: ["pools"],
    on(_, value) {
      pools = value;
      const here = new Set();
      for (const p of pools) for (const m of p.memberStatus) {
        const k = p.name + " " + m.address, was = past.get(k) ?? { load: [] };
        was.load = [...was.load, m.requests].slice(-kept);
        past.set(k, was);
        here.add(k);
      }
      for (const k of past.keys()) if (!here.has(k)) past.delete(k);
    },
    render() {
      if (!pools) return h("p", { class: "muted" }, "Loading…");
      const list = only ? pools.filter((p) => p.name === only) : pools;
      const out = list.flatMap((p) => p.memberStatus.filter((m) => !inTurn(m)));
      return h("div", { class: "stack" },
        h("div", { class: "toolbar" },
          h("span", { class: "verdict " + (out.length ? "bad" : "good"), id: "members-verdict" }, out.length === 0 ? "No member is out." : out.length + (out.length > 1 ? " members are out." : " member is out.")),
          h("label", { class: "check" }, h("input", { type: "checkbox", onchange: (e) => { outAlone = e.target.checked; ctx.redraw(); } }), "Only members that are out"),
          only && link("pools", "All pools")),
        list.length === 0 && h("p", { class: "muted" }, only ? "There is no pool " + only + "." : "No pool is configured."),
        list.map((p) => pool(p, outAlone, past)));
    },
  };
}

const inTurn = (m) => m.state === "ready" || m.state === "returning";

function pool(p, outAlone, past) {
  const members = [...p.memberStatus].sort((a, b) => inTurn(a) - inTurn(b) || a.address.localeCompare(b.address)).filter((m) => !outAlone || !inTurn(m));
  const top = Math.max(1, ...p.memberStatus.flatMap((m) => past.get(p.name + " " + m.address)?.load ?? []));
  return panel(p.name, h("span", { class: "row" }, p.ready === 0 ? badge("not scheduled", "bad") : badge(p.ready + " of " + p.members + " ready", p.ready < p.members ? "warn" : "good"), muted(num(p.requests) + " in flight")),
    facts([["Engine", p.engine], ["Protocol", p.protocol], ["Picker", p.profile], ["Members from", p.source], ["Scraped every", secs(p.scrapeIntervalSeconds)],
      p.discoveryError && ["Discovery", h("span", { class: "wrong" }, p.discoveryError)]]),
    p.picker && replicas(p.picker),
    table("Members of " + p.name, [
      { name: "Member", cell: (m) => mono(m.address) },
      { name: "State", class: "why", cell: (m) => h("span", null, state(m.state), !inTurn(m) && h("span", { class: "reason" }, reason(m)), m.state === "returning" && muted(" " + pct(m.share) + " of its share")) },
      { name: "In flight", num: true, cell: (m) => num(m.requests) },
      { name: "Last minute", cell: (m) => spark(past.get(p.name + " " + m.address)?.load ?? [], top, "requests in flight, at most " + num(Math.max(0, ...(past.get(p.name + " " + m.address)?.load ?? [])))) },
      { name: "Queued tokens", num: true, cell: (m) => short(m.queuedTokens) },
      { name: "Waiting", num: true, title: "requests in the server's own queue", cell: (m) => num(m.metrics?.waiting) },
      { name: "Running", num: true, cell: (m) => num(m.metrics?.running) },
      { name: "KV cache", cell: (m) => bar(m.metrics?.kvUsage, undefined, "of its blocks in use") },
      { name: "Prefix hits", num: true, title: "prompt tokens that its cache had, since it started", cell: (m) => pct(m.metrics?.prefixQueryTokens ? m.metrics.prefixHitTokens / m.metrics.prefixQueryTokens : null) },
      { name: "LoRA", cell: (m) => m.metrics?.adapters?.length ? m.metrics.adapters.map((a) => badge(a)) : muted("–") },
      { name: "Metrics", cell: (m) => metrics(m) },
    ], members, { key: (m) => m.address, empty: outAlone ? "no member is out" : "this pool has no members" }),
    p.members > p.memberStatus.length && h("p", { class: "muted" }, num(p.members - p.memberStatus.length) + " more members; penstock get members has all."));
}

function reason(m) {
  const until = m.until ? (new Date(m.until) - Date.now()) / 1000 : 0;
  return (m.reason || "no reason is known") + (until > 0 ? "; tried again in " + span(until) : "");
}

function metrics(m) {
  if (!m.metrics) return h("span", { class: "wide" }, badge("never scraped", "warn"), m.scrapeError && h("span", { class: "reason" }, m.scrapeError));
  return h("span", null, m.metrics.stale ? badge("stale, " + secs(m.metrics.ageSeconds), "warn") : muted(secs(m.metrics.ageSeconds) + " old"), m.missing?.length ? muted(" without " + m.missing.join(", ")) : null);
}

const replicas = (r) => table("Replicas of the picker " + r.address, [
  { name: "Replica of the picker", cell: (x) => mono(x.address) }, { name: "State", cell: (x) => state(x.state) },
  { name: "Streams", num: true, cell: (x) => num(x.streams) }, { name: "Last error", class: "wide", cell: (x) => x.error ?? "" },
], r.replicas, { key: (x) => x.address, empty: r.error ?? "none" });
