// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

import { h, num, short, usd, span, when, badge, state, bar, table, panel, mono, muted, link } from "../dom.js";
import { ask } from "../live.js";

export default function (ctx) {
  let limits = null, keys = null, tenants = [], spend = null, find = "", since = "24h", by = "tenant", made = null;
  const faults = {};
  const keep = (name, f) => (e) => { faults[name] = e.message; f?.(); ctx.redraw(); };
  const loadKeys = async () => {
    try {
      keys = (await ask("/api/v1/keys?limit=1000")).items;
      tenants = (await ask("/api/v1/tenants?limit=1000")).items;
      delete faults.keys;
    } catch (e) { keep("keys", () => { keys = []; })(e); }
    ctx.redraw();
  };
  const loadSpend = async () => {
    if (!limits?.ledger) return;
    try {
      spend = await ask("/usage?top=50&order=cost&by=" + by + "&since=" + since);
      delete faults.spend;
    } catch (e) { keep("spend", () => { spend = null; })(e); }
    ctx.redraw();
  };
  loadKeys();
  const timer = setInterval(loadSpend, 10000);

  const act = async (key, action, question) => {
    if (question && !await ctx.confirm(question, action[0].toUpperCase() + action.slice(1))) return;
    try {
      const out = await ask("/api/v1/keys/" + encodeURIComponent(key.id) + "/" + action, { method: "POST", ...(action === "rotate" ? { body: {} } : {}) });
      if (out.secret) made = out;
      ctx.tell("Key " + key.name + ": " + { revoke: "revoked", disable: "disabled", enable: "enabled", rotate: "has a new secret" }[action] + ".");
    } catch (e) { ctx.tell(e.message); }
    loadKeys();
  };
  const create = async (e) => {
    e.preventDefault();
    const f = e.target.elements, expires = f.expires.value;
    try {
      made = await ask("/api/v1/keys", { method: "POST", body: { tenant: f.tenant.value, name: f.name.value.trim(), spec: expires ? { expires } : {} } });
      e.target.reset();
      delete faults.create;
      ctx.tell("Key " + made.name + " is made. Its secret is shown once.");
    } catch (err) { keep("create")(err); }
    loadKeys();
  };

  return {
    title: "Tenants",
    topics: ["tenants"],
    on(_, value) {
      const before = limits?.ledger;
      limits = value;
      if (value.ledger && !before) loadSpend();
    },
    close: () => clearInterval(timer),
    render: () => h("div", { class: "stack" },
      limitPanel(limits, find, (v) => { find = v; ctx.redraw(); }),
      panel("Spend", h("span", { class: "row" },
        h("label", null, "by ", h("select", { id: "spend-by", onchange: (e) => { by = e.target.value; loadSpend(); } }, ["tenant", "key", "model", "user", "account"].map((n) => h("option", { value: n }, n)))),
        h("label", null, "since ", h("select", { onchange: (e) => { since = e.target.value; loadSpend(); } }, [["24h", "24 hours"], ["1h", "1 hour"], ["7d", "7 days"], ["30d", "30 days"]].map(([v, n]) => h("option", { value: v }, n))))),
      limits && !limits.ledger && !limits.error ? h("p", { class: "muted" }, "This gateway keeps no ledger. ledger: {path: ledger.db} in its configuration gives it one.") : faults.spend ? h("p", { class: "muted" }, faults.spend) : spendTable(spend, by)),
      panel("Keys", muted("what a file owns is changed there"),
        made && h("div", { class: "secret", role: "status", key: "secret" }, h("p", null, "The secret of ", h("b", null, made.tenant + ":" + made.name), ". It is shown once, here:"),
          h("code", { id: "secret", tabindex: "0" }, made.secret),
          h("span", { class: "row" }, h("button", { type: "button", onclick: () => navigator.clipboard.writeText(made.secret).then(() => ctx.tell("Copied."), () => ctx.tell("Select and copy it by hand.")) }, "Copy"),
            h("button", { type: "button", onclick: () => { made = null; ctx.redraw(); } }, "I have it"))),
        ctx.may("operator") && !faults.keys && h("form", { class: "toolbar", onsubmit: create },
          h("label", null, "Tenant ", h("select", { name: "tenant", required: true }, tenants.map((t) => h("option", { key: t.path, value: t.path }, t.path)))),
          h("label", null, "Name ", h("input", { name: "name", required: true, maxlength: "64", autocomplete: "off" })),
          h("label", null, "Expires ", h("input", { name: "expires", type: "date" })),
          h("button", { class: "main", type: "submit" }, "Make a key"), faults.create && h("span", { class: "wrong", role: "alert" }, faults.create)),
        faults.keys ? h("p", { class: "muted" }, faults.keys) : keyTable(keys ?? [], ctx.may("operator") ? act : null))),
  };
}

const amount = (l, x) => (l.unit === "usd" ? usd(x) : Math.abs(x) < 1e5 ? num(x) : short(x));
const nearly = 0.95; // what is left may be less than the next request needs

function limitPanel(page, find, look) {
  if (!page) return h("p", { class: "muted" }, "Loading…");
  if (page.error) return panel("Limits", badge("the store is out of reach", "bad"), h("p", { class: "wrong" }, page.error));
  const share = (l) => (l.amount ? l.used / l.amount : 1);
  const all = [...page.limits ?? []].sort((a, b) => share(b) - share(a) || a.node.localeCompare(b.node));
  const list = all.filter((l) => l.node.toLowerCase().includes(find.toLowerCase()));
  const full = all.filter((l) => share(l) >= nearly && !l.shadow);
  return panel("Limits", h("span", { class: "verdict " + (full.length ? "bad" : "good"), id: "limits-verdict" }, all.length === 0 ? "There are none." : full.length ? "Used up, or nearly: " + full.map((l) => l.node + " (" + l.limit + ")").join(", ") : "None is used up."),
    h("div", { class: "toolbar" }, h("input", { type: "search", placeholder: "tenant or key", "aria-label": "Show limits of nodes whose name has", oninput: (e) => look(e.target.value) })),
    table("Limits", [
      { name: "Of", cell: (l) => h("b", null, l.node) },
      { name: "Limit", cell: (l) => h("span", null, l.limit, l.shadow && badge("shadow")) },
      { name: "In use", cell: (l) => bar(share(l), pct(share(l)), amount(l, l.used) + " of " + amount(l, l.amount)) },
      { name: "Used", num: true, cell: (l) => amount(l, l.used) },
      { name: "Reserved", num: true, title: "by requests under way", cell: (l) => amount(l, l.reserved) },
      { name: "Left", num: true, cell: (l) => amount(l, l.left) },
      { name: "New in", num: true, cell: (l) => (l.resetSeconds > 0 ? span(l.resetSeconds) : "–") },
    ], list, { key: (l) => l.node + l.limit, empty: "no limits" }), page.next && h("p", { class: "muted" }, "The first nodes alone; penstock get limits has all."));
}

const pct = (x) => num(100 * x) + " %";

function spendTable(spend, by) {
  if (!spend) return h("p", { class: "muted" }, "Loading…");
  const all = Number(spend.total.cost) || 0;
  const t = (g, f) => Number(g.tokens[f] ?? 0);
  return table("Spend", [
    { name: by[0].toUpperCase() + by.slice(1), cell: (g) => g.key[0] ? link("requests?" + (by === "model" ? "model" : "tenant") + "=" + encodeURIComponent(g.key[0]), g.key[0]) : muted("anonymous") },
    { name: "Cost", num: true, cell: (g) => h("b", null, usd(Number(g.cost))) },
    { name: "Share", cell: (g) => bar(all ? Number(g.cost) / all : 0, undefined, "of the cost", "plain") },
    { name: "Requests", num: true, cell: (g) => num(g.requests) }, { name: "Failed", num: true, cell: (g) => num(g.failed) },
    { name: "Prompt tokens", num: true, cell: (g) => short(t(g, "input") + t(g, "cachedRead") + t(g, "cachedWrite5m") + t(g, "cachedWrite1h")) },
    { name: "Cached", num: true, cell: (g) => short(t(g, "cachedRead")) }, { name: "Output tokens", num: true, cell: (g) => short(t(g, "output") + t(g, "reasoning")) },
    { name: "Unpriced", num: true, cell: (g) => num(g.unpriced) },
  ], spend.groups, { key: (g) => g.key.join(" "), empty: "nothing yet" });
}

function keyTable(keys, act) {
  const button = (text, k, action, question) => h("button", { type: "button", class: "small" + (action === "revoke" ? " danger" : ""), "aria-label": text + " " + k.name, onclick: () => act(k, action, question) }, text);
  return table("Keys", [
    { name: "Tenant", cell: (k) => k.tenant }, { name: "Name", cell: (k) => h("b", null, k.name) },
    { name: "State", cell: (k) => state(k.state) },
    { name: "Secret", cell: (k) => k.secrets?.length ? mono(k.secrets.map((s) => s.shown).filter(Boolean).join(", ")) : muted("–") },
    { name: "Last used", cell: (k) => (k.lastUsed ? when(k.lastUsed) : muted("–")) },
    { name: "Expires", cell: (k) => (k.spec?.expires ? k.spec.expires : muted("never")) },
    { name: "Origin", cell: (k) => muted(k.origin) },
    { name: "", class: "actions", cell: (k) => act && k.origin !== "file" && k.state !== "revoked" && h("span", { class: "row" },
      button("Rotate", k, "rotate", "A further secret is drawn for " + k.name + "; the one before is taken for another 24 hours."),
      k.state === "disabled" ? button("Enable", k, "enable") : button("Disable", k, "disable"),
      button("Revoke", k, "revoke", "The key " + k.tenant + ":" + k.name + " ends for good, within a second, on every gateway.")) },
  ], keys, { key: (k) => k.id, empty: "no keys" });
}
