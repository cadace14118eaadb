// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Building and updating the page. Every text goes in as a text node, so that what
// clients and servers wrote is shown and never read as markup.

const svgTags = new Set(["svg", "path", "line", "rect", "g"]);

// h makes an element. Attributes: false and null are left out; on… are handlers;
// key tells siblings apart; width100 is a width in per cent, which the policy of
// the page does not allow as a style attribute.
export function h(tag, attrs, ...children) {
  const el = svgTags.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attrs ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "key") el.$key = value;
    else if (name.startsWith("on")) (el.$on ??= {})[name] = el[name] = value;
    else if (name === "width100") { el.$width = value; el.style.width = value + "%"; }
    else if (name === "left100") { el.$left = value; el.style.marginLeft = value + "%"; }
    else el.setAttribute(name, value === true ? "" : value);
  }
  add(el, children);
  return el;
}

function add(el, children) {
  for (const c of children) {
    if (c === null || c === undefined || c === false) continue;
    if (Array.isArray(c)) add(el, c);
    else el.append(c instanceof Node ? c : String(c));
  }
}

// slot stands for an element that looks after itself, such as a chart.
export function slot(live) {
  const el = document.createElement("span");
  el.$live = live;
  return el;
}

// morph makes old look as next does and keeps what it can, so that focus,
// selection and scroll positions survive an update.
export function morph(old, next) {
  if (next.$live) {
    if (old !== next.$live) old.replaceWith(next.$live);
    return;
  }
  if (old.nodeType !== next.nodeType || old.nodeName !== next.nodeName || old.$key !== next.$key || old.$owned) {
    settle(next);
    old.replaceWith(next);
    return;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== next.data) old.data = next.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!next.hasAttribute(name) && name !== "style" && !(name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(name);
  }
  for (const { name, value } of next.attributes) {
    if (name !== "style" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (next.$width !== old.$width) { old.$width = next.$width; old.style.width = next.$width + "%"; }
  if (next.$left !== old.$left) { old.$left = next.$left; old.style.marginLeft = next.$left + "%"; }
  for (const name of Object.keys(old.$on ?? {})) if (!next.$on?.[name]) old[name] = null;
  Object.assign(old, next.$on ?? {});
  old.$on = next.$on;
  children(old, next);
}

function children(old, next) {
  const keyed = new Map();
  for (const c of old.childNodes) if (c.$key !== undefined) keyed.set(c.$key, c);
  let at = old.firstChild;
  for (const want of [...next.childNodes]) {
    const found = want.$live ? (want.$live.parentNode === old ? want.$live : null) : want.$key !== undefined ? keyed.get(want.$key) : at?.$key === undefined ? at : null;
    if (!found) {
      settle(want);
      old.insertBefore(want.$live ?? want, at);
      continue;
    }
    if (found !== at) old.insertBefore(found, at);
    else at = at.nextSibling;
    morph(found, want);
  }
  while (at) {
    const after = at.nextSibling;
    at.remove();
    at = after;
  }
}

// settle puts the elements in place that slots below a new node stand for.
function settle(node) {
  for (const c of [...node.childNodes]) c.$live ? c.replaceWith(c.$live) : settle(c);
}

// mount shows a node as the only child.
export function show(parent, node) {
  const holder = document.createElement("div");
  holder.append(node);
  children(parent, holder);
}

// What numbers and times look like.

const none = "–";

export function num(x, digits = 0) {
  if (x === null || x === undefined || Number.isNaN(x)) return none;
  return x.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

// short has three digits and a letter: 12.3k.
export function short(x) {
  if (x === null || x === undefined) return none;
  for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(x) >= size) return num(x / size, Math.abs(x) >= 100 * size ? 0 : 1) + letter;
  }
  return num(x, x !== 0 && Math.abs(x) < 10 && !Number.isInteger(x) ? 1 : 0);
}

export function secs(s) {
  if (!s) return none;
  if (s < 0.001) return num(s * 1e6) + " µs";
  if (s < 1) return num(s * 1e3, s < 0.01 ? 1 : 0) + " ms";
  if (s < 60) return num(s, s < 10 ? 2 : 1) + " s";
  return span(s);
}

// span is a length of time in words that people say.
export function span(s) {
  if (s < 60) return Math.round(s) + " s";
  if (s < 3600) return Math.floor(s / 60) + " min " + Math.round(s % 60) + " s";
  if (s < 86400) return Math.floor(s / 3600) + " h " + Math.floor((s % 3600) / 60) + " min";
  return Math.floor(s / 86400) + " d " + Math.floor((s % 86400) / 3600) + " h";
}

export function usd(x) {
  if (x === null || x === undefined) return none;
  const a = Math.abs(x);
  return "$" + num(x, a === 0 || a >= 1 ? 2 : a >= 0.01 ? 4 : 6);
}

export const pct = (x, digits = 0) => (x === null || x === undefined ? none : num(100 * x, digits) + " %");

const two = (n) => String(n).padStart(2, "0");

// clock is the time of day, with tenths where many things happen in a second.
export function clock(text, fine) {
  const t = new Date(text);
  if (Number.isNaN(+t)) return none;
  return two(t.getHours()) + ":" + two(t.getMinutes()) + ":" + two(t.getSeconds()) + (fine ? "." + Math.floor(t.getMilliseconds() / 100) : "");
}

export function when(text) {
  const t = new Date(text);
  if (Number.isNaN(+t)) return none;
  return t.getFullYear() + "-" + two(t.getMonth() + 1) + "-" + two(t.getDate()) + " " + clock(text);
}

export function ago(text, now = Date.now()) {
  const s = (now - new Date(text)) / 1000;
  return s < 2 ? "now" : span(s) + " ago";
}

// Parts that several pages use.

// badge is a state: its colour repeats what its word says.
export function badge(text, kind = "") {
  return h("span", { class: "badge " + kind }, text);
}

const kinds = { ready: "good", active: "good", ok: "good", returning: "warn", "half-open": "warn", probing: "warn", cooling: "warn", disabled: "warn", pending: "warn", ejected: "bad", down: "bad", out: "bad", expired: "bad", revoked: "bad" };

export const state = (text) => badge(text, kinds[text] ?? "");

export function statusBadge(n) {
  return badge(n || none, n >= 500 ? "bad" : n >= 400 ? "warn" : "good");
}

// bar is a share of 1 with its number beside it.
export function bar(share, text, label, kind = "") {
  if (share === null || share === undefined) return h("span", { class: "muted" }, none);
  const full = Math.max(0, Math.min(100, 100 * share));
  return h("span", { class: "bar " + (kind || (share >= 0.95 ? "bad" : share >= 0.8 ? "warn" : "")) },
    h("span", { class: "track", "aria-hidden": "true" }, h("span", { class: "fill", width100: full.toFixed(1) })),
    h("span", { class: "value", title: label }, text ?? pct(share)));
}

// table of columns {name, num, class, cell(row), title} and rows. The region
// scrolls on its own, and by keyboard too. made, a Map, is for rows that never
// change: each is built once and kept as long as it is shown.
export function table(label, columns, rows, { key, empty = "nothing here", row: attrs, made } = {}) {
  const build = (r, i) => h("tr", { key: key ? key(r, i) : undefined, ...attrs?.(r) },
    columns.map((c) => h("td", { class: (c.num ? "num " : "") + (c.class ?? "") || null }, c.cell(r))));
  const keep = (r, i) => {
    const k = key(r, i);
    if (!made.has(k)) made.set(k, build(r, i));
    return slot(made.get(k));
  };
  if (made) {
    const here = new Set(rows.map(key));
    for (const k of made.keys()) if (!here.has(k)) made.delete(k);
  }
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    h("table", null,
      h("thead", null, h("tr", null, columns.map((c) => h("th", { scope: "col", class: c.num ? "num" : null, title: c.title }, c.name)))),
      h("tbody", null, rows.length ? rows.map(made ? keep : build)
        : h("tr", { key: "empty" }, h("td", { colspan: columns.length, class: "empty" }, empty)))));
}

export function panel(title, extra, ...content) {
  return h("section", { class: "panel", key: "panel " + title }, h("header", null, h("h2", null, title), extra), content);
}

export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter((p) => p && p[1] !== null && p[1] !== undefined && p[1] !== "").map(([k, v]) =>
    h("div", null, h("dt", null, k), h("dd", null, v))));
}

export const mono = (text) => h("span", { class: "mono" }, text || none);
export const muted = (text) => h("span", { class: "muted" }, text);
export const link = (to, text, cls) => h("a", { href: "#/" + to, class: cls }, text);
export const path = (...parts) => parts.map(encodeURIComponent).join("/");
