// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

import { h, num, secs, span, state, badge, table, panel, mono, muted, link, path } from "../dom.js";

export default function (ctx) {
  let data = null, find = "";
  return {
    title: "Models and targets",
    topics: ["models"],
    on(_, value) { data = value; },
    render() {
      if (!data) return h("p", { class: "muted" }, "Loading…");
      const models = data.models ?? [], targets = data.targets ?? [];
      const out = targets.filter((t) => t.state === "out" || t.state === "cooling");
      const aliases = models.filter((m) => m.alias);
      const own = models.filter((m) => !m.alias && m.name.toLowerCase().includes(find.toLowerCase()));
      return h("div", { class: "stack" },
        h("div", { class: "toolbar" }, h("span", { class: "verdict " + (out.length ? "bad" : "good") }, out.length ? out.length + (out.length > 1 ? " targets are out or cool down." : " target is out or cools down.") : "No target is out."),
          h("input", { type: "search", placeholder: "model", "aria-label": "Show models whose name has", oninput: (e) => { find = e.target.value; ctx.redraw(); } })),
        aliases.length > 0 && panel("Aliases", null, table("Aliases", [
          { name: "Name", cell: (m) => m.name }, { name: "Stands for", cell: (m) => h("b", null, m.alias) }], aliases, { key: (m) => m.name })),
        own.slice(0, 100).map((m) => model(m, targets.filter((t) => t.model === m.name))),
        own.length === 0 && h("p", { class: "muted" }, "No such model."), own.length > 100 && h("p", { class: "muted" }, num(own.length - 100) + " more models; narrow the name."));
    },
  };
}

const left = (until) => {
  const s = until ? (new Date(until) - Date.now()) / 1000 : 0;
  return s > 0 ? " for " + span(s) : "";
};

const health = (x) => h("span", null, x.state === "-" ? muted("no health of its own") : state(x.state), (x.reason || x.until) && h("span", { class: "reason" }, (x.reason ?? "") + left(x.until)));

function model(m, targets) {
  const where = new Map(m.targets.map((t) => [(t.pool || t.provider) + "/" + t.model, t]));
  return panel(m.name, link("requests?model=" + encodeURIComponent(m.name), "Requests"), table("Targets of " + m.name, [
    { name: "Target", cell: (t) => { const pool = where.get(t.target)?.pool; return pool ? link(path("pools", pool), t.target) : mono(t.target); } },
    { name: "State", class: "why", cell: health },
    { name: "Turn", cell: (t) => (t.fallback ? badge("fallback: " + t.fallback) : "priority " + t.priority) },
    { name: "Weight", num: true, cell: (t) => num(t.weight) },
    { name: "Members ready", num: true, cell: (t) => { const w = where.get(t.target); return w?.pool ? num(w.ready) : "–"; } },
    { name: "Under way", num: true, cell: (t) => num(t.open) },
    { name: "First output", num: true, cell: (t) => secs(t.firstOutputSeconds) },
    { name: "Accounts", class: "why", cell: (t) => t.credentials?.length ? t.credentials.map((c) => h("div", null, c.name + " ", health(c))) : muted("–") },
  ], targets, { key: (t) => t.target + t.fallback, empty: "no target" }));
}
