// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

import { h, num, short, secs, pct, clock, when, badge, state, bar, table, panel, facts, mono, muted, link, path } from "../dom.js";
import { ask } from "../live.js";

const kept = 200, most = 60; // rows, and those of one pool or all that are shown

export default function (ctx, [id]) {
  return id ? one(ctx, id) : stream(ctx);
}

function stream(ctx) {
  let rows = [], last = null, pool = "";
  const made = new Map(), key = (p) => p.at + p.requestId;
  return {
    topics: ["picks"],
    on(_, value) {
      const now = new Set(value.picks.map(key)); // those that were under way may have ended
      rows = [...value.picks, ...rows.filter((p) => !now.has(key(p)))].slice(0, kept);
      last = value;
    },
    render() {
      if (!last) return h("p", { class: "muted" }, "Loading…");
      const list = rows.filter((p) => !pool || p.pool === pool).slice(0, most);
      return h("div", { class: "stack" },
        h("div", { class: "toolbar" },
          h("span", { id: "picks-rate" }, h("b", null, num(last.perSecond, 1)), " picks per second"), muted(num(last.total) + " since the start" + (last.perSecond > 50 ? "; a sample of them is shown" : "")),
          h("label", null, "Pool ", h("select", { onchange: (e) => { pool = e.target.value; ctx.redraw(); } }, h("option", { value: "" }, "all"), last.pools.map((p) => h("option", { key: p.pool, value: p.pool }, p.pool)))),
          h("form", { class: "row", role: "search", onsubmit: (e) => { e.preventDefault(); const v = e.target.elements.id.value.trim(); if (v) ctx.go("picks", v); } },
            h("input", { name: "id", type: "search", placeholder: "request id", "aria-label": "Request id" }), h("button", { type: "submit" }, "Open"))),
        h("section", { class: "panel" }, table("Newest picks", [
          { name: "Time", cell: (p) => link(path("picks", p.requestId), clock(p.at, true)) },
          { name: "Request", class: "id", cell: (p) => mono(p.requestId) },
          { name: "Pool", cell: (p) => p.pool }, { name: "Model", cell: (p) => p.model },
          { name: "Picked", cell: (p) => p.to ? mono(p.to) : badge("nobody", "bad") },
          { name: "Outcome", cell: (p) => (p.reason === "picked" ? muted("picked") : badge(p.reason || "under way", "warn")) },
          { name: "Of", num: true, title: "candidates, and those that a filter refused", cell: (p) => p.candidates + (p.refused ? " − " + p.refused : "") },
          { name: "Lead", num: true, title: "of the total over the next best", cell: (p) => num(p.lead, 3) },
          { name: "Cached", cell: (p) => bar(p.promptTokens ? p.matchedTokens / p.promptTokens : 0, undefined, short(p.matchedTokens) + " of " + short(p.promptTokens) + " tokens", "plain") },
          { name: "Took", num: true, cell: (p) => secs(p.tookSeconds) },
        ], list, { key: (p) => key(p) + p.reason + p.to, made, empty: "no picks yet" })));
    },
  };
}

function one(ctx, id) {
  let pick = null, refused = null;
  const load = () => ask("/picks/" + encodeURIComponent(id)).then((v) => { pick = v; refused = null; ctx.redraw(); }, (e) => { refused = e; ctx.redraw(); });
  load();
  return {
    title: "Pick", topics: [], on() {},
    render() {
      const back = h("div", { class: "toolbar" }, link("picks", "All picks"), link(path("requests", id), "The request"));
      if (refused) return h("div", { class: "stack" }, back, h("p", { class: "wrong", role: "alert" }, refused.message));
      if (!pick) return h("p", { class: "muted" }, "Loading…");
      return h("div", { class: "stack" }, back, pick.pool && decision(pick), pick.pool && change(pick), pick.route && route(pick.route));
    },
  };
}

// decision is the table of candidates by filters and scorers.
export function decision(p) {
  const sent = p.remote?.served ?? p.picked?.[0], head = facts([
    ["Request", mono(p.requestId)], ["Pool", link(path("pools", p.pool), p.pool)], [p.remote ? "Picker" : "Profile", p.remote?.picker ?? p.profile],
    ["Model", p.model + (p.asked && p.asked !== p.model ? ", asked for as " + p.asked : "")], ["Prompt", "about " + num(p.promptTokens) + " tokens"],
    ["Outcome", p.reason === "picked" ? badge("picked", "good") : badge(p.reason || "under way", "warn")], ["Picked", sent && mono(sent)], p.picked?.length > 1 && ["If that fails", mono(p.picked.slice(1).join(", "))],
    ["When", when(p.at)], ["Took", secs(p.tookNs / 1e9)]]);
  if (p.remote) return panel("Decision", null, head, remote(p.remote));
  const known = (c, name) => c.metrics !== "unknown" && !c.missing?.includes(name);
  return panel("Decision", null, head, table("Candidates", [
    { name: "Member", cell: (c) => mono(c.endpoint) },
    { name: "Verdict", class: "why", cell: (c) => c.refusedBy ? h("span", null, badge("refused", "bad"), h("span", { class: "reason" }, c.refusedBy + ": " + c.why)) : c.endpoint === sent ? badge("picked", "good") : muted("passed") },
    { name: "State", cell: (c) => h("span", null, state(c.state), c.metrics && c.metrics !== "fresh" && muted(" metrics " + c.metrics)) },
    ...p.columns.map((col, k) => ({ name: col.name + " ×" + num(col.weight, Number.isInteger(col.weight) ? 0 : 2), title: "score from 0 to 1, before the weight", cell: (c) => c.scores ? bar(c.scores[k], num(c.scores[k], 3), col.name, "plain") : muted("–") })),
    { name: "Total", num: true, cell: (c) => c.refusedBy ? muted("–") : h("b", null, num(c.total, 3)) },
    { name: "In flight", num: true, cell: (c) => num(c.requests) }, { name: "Queued tokens", num: true, cell: (c) => short(c.queuedTokens) },
    { name: "Waiting", num: true, cell: (c) => num(known(c, "waiting") ? c.waiting : null) }, { name: "Running", num: true, cell: (c) => num(known(c, "running") ? c.running : null) },
    { name: "KV cache", num: true, cell: (c) => pct(known(c, "kvUsage") ? c.kvUsage : null) }, { name: "Cached tokens", num: true, cell: (c) => num(c.matchedTokens) },
  ], p.candidates ?? [], { key: (c) => c.endpoint, row: (c) => ({ class: c.endpoint === sent ? "won" : c.refusedBy ? "lost" : null }) }), p.omitted > 0 && h("p", { class: "muted" }, num(p.omitted) + " more candidates are not kept."));
}

function remote(r) {
  const at = (ns) => secs(ns / 1e9);
  return table("What passed with the picker", [{ name: "At", num: true, cell: (x) => x[0] }, { name: "What", class: "wide", cell: (x) => x[1] }], [
    r.replica && [at(r.askedNs), "asked " + r.replica], r.failure && [at(r.failedNs), "failed: " + r.failure], r.status && [at(r.answeredNs), "refused the request, status " + r.status],
    r.answeredNs && !r.status && [at(r.answeredNs), "answered"], ...(r.notMembers ?? []).map((m) => [at(r.answeredNs), m + " is no member of the pool"]),
    ...(r.attempts ?? []).map((a) => [at(a.atNs), "sent to " + a.endpoint]), r.served && [at(r.servedNs), "served by " + r.served]].filter(Boolean));
}

// change says what would have led the pick elsewhere.
function change(p) {
  const c = p.change;
  if (!c) return null;
  const lead = c.rivals?.some((r) => !r.refusedBy) ? (c.lead > 1e-9 ? "leads by " + num(c.lead, 3) + " of the total." : "is level with the next best; one of those is taken.") : "is the only one that no filter refused.";
  const largest = (r) => {
    const k = (r.by ?? []).reduce((best, v, i, all) => (v > all[best] ? i : best), 0);
    return r.by?.[k] > 1e-9 ? "most by " + p.columns[k].name + " (" + num(r.by[k], 3) + ")" : "";
  };
  // differs is what was known of a member where it is not as of the winner.
  const won = p.candidates.find((x) => x.endpoint === c.winner);
  const differs = (r) => {
    const x = p.candidates.find((y) => y.endpoint === r.endpoint);
    return [["matchedTokens", "cached tokens"], ["requests", "in flight"], ["queuedTokens", "queued tokens"], ["waiting", "waiting"], ["running", "running"]]
      .filter(([f]) => x && x[f] !== won[f]).map(([f, name]) => num(x[f]) + " " + name + ", not " + num(won[f])).join("; ");
  };
  return panel("What would change the answer", null, h("p", { id: "change-lead" }, mono(c.winner), " " + lead),
    c.without?.length > 0 && h("ul", { class: "plain" }, c.without.map((w) => h("li", null, "Without ", h("b", null, w.column), " it would have been ", mono(w.winner), "."))),
    c.rivals?.length > 0 && table("What the others lack", [
      { name: "Member", cell: (r) => mono(r.endpoint) },
      { name: "Behind by", num: true, cell: (r) => (r.refusedBy ? "–" : num(r.gap, 3)) },
      { name: "Where", cell: (r) => (r.refusedBy ? r.refusedBy : largest(r)) },
      { name: "What differed", class: "wide", cell: differs },
      { name: "It would have drawn level", class: "wide", cell: (r) => r.refusedBy ? "if " + r.refusedBy + " had let it pass: " + r.why
        : r.gap <= 1e-9 ? "it did" : r.needs?.length ? "with " + r.needs.map((n) => n.column + " at " + num(n.score, 3) + " instead of " + num(n.was, 3)).join(", or ") : "by no single score" },
    ], c.rivals, { key: (r) => r.endpoint }));
}

// route is how the request went through the targets of its model.
export function route(r) {
  return panel("Targets tried", r.fallback && badge("fallback: " + r.fallback, "warn"), r.bound && h("p", null, "No further attempt: " + r.bound + " is used up."),
    table("Targets tried", [
      { name: "Target", cell: (t) => t.target }, { name: "Took", num: true, cell: (t) => secs(t.seconds) },
      { name: "What became of it", class: "wide", cell: (t) => t.reason ? "left out: " + t.reason : t.error ? h("span", { class: "wrong" }, t.error) : badge("answered", "good") },
    ], [...r.tries ?? [], ...r.skipped ?? []]));
}
