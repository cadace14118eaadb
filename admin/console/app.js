// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// The frame of the console: who is signed in, which page is shown, what is live.

import { h, show, link, path } from "./dom.js";
import { ask, watch } from "./live.js";
import overview from "./pages/overview.js";
import pools from "./pages/pools.js";
import picks from "./pages/picks.js";
import models from "./pages/models.js";
import tenants from "./pages/tenants.js";
import requests from "./pages/requests.js";
import playground from "./pages/playground.js";

const pages = { overview, pools, picks, models, tenants, requests, playground };
const names = { overview: "Overview", pools: "Pools", picks: "Picks", models: "Models", tenants: "Tenants", requests: "Requests", playground: "Playground" };
const icons = {
  overview: "M3 13h4l2-7 4 12 2-5h4", pools: "M4 5h14v4H4zM4 13h14v4H4zM7 7h.01M7 15h.01", picks: "M11 3v5M11 14v5M3 11h5M14 11h5M11 8a3 3 0 1 0 0 6a3 3 0 0 0 0-6",
  models: "M11 3l7 4v8l-7 4l-7-4V7zM4 7l7 4l7-4M11 11v8", tenants: "M8 10a3 3 0 1 0 0-6a3 3 0 0 0 0 6M3 18c0-6 10-6 10 0M15 10a2.5 2.5 0 1 0 0-5M15 13c3 0 4 2 4 5",
  requests: "M4 6h14M4 11h14M4 16h9", playground: "M7 4l10 7l-10 7z",
};
const rank = { nobody: 0, viewer: 1, operator: 2, admin: 3 };
const words = { live: "Live", waiting: "Waiting", lost: "Connection lost", paused: "Paused", off: "" };

const app = { me: null, page: null, name: "", status: "off", paused: false, drawing: false, note: "" };
const root = document.body.appendChild(h("div", { id: "app" }));
const announcer = document.body.appendChild(h("div", { class: "quiet", role: "status", "aria-live": "polite" }));

const context = {
  get role() { return app.me?.role ?? "nobody"; },
  may: (role) => rank[app.me?.role ?? "nobody"] >= rank[role],
  redraw: () => draw(),
  // tell shows a line at the foot of the page for a while, and reads it out.
  tell(text) {
    app.note = announcer.textContent = text;
    clearTimeout(app.noteTimer);
    app.noteTimer = setTimeout(() => { app.note = ""; draw(); }, 6000);
    draw();
  },
  go: (...parts) => { location.hash = "#/" + path(...parts); },
  confirm: (text, verb) => dialog(text, verb),
};

// draw shows the page anew, once for all that has changed meanwhile.
function draw() {
  if (app.drawing) return;
  app.drawing = true;
  requestAnimationFrame(() => {
    app.drawing = false;
    show(root, app.me?.role === "nobody" ? signIn() : frame());
  });
}

function frame() {
  const { me, page } = app;
  const title = page?.title ?? names[app.name] ?? "";
  document.title = title + " · Penstock";
  return h("div", { class: "frame", key: "frame" },
    h("a", { class: "skip", href: "#main", onclick: (e) => { e.preventDefault(); document.getElementById("main").focus(); } }, "Skip to the page"),
    h("nav", { "aria-label": "Pages" },
      h("a", { class: "mark", href: "#/overview" }, h("img", { src: "icon.svg", alt: "", width: "22", height: "22" }), "Penstock"),
      h("ul", null, Object.keys(pages).filter((n) => n !== "playground" || context.may("operator")).map((n) =>
        h("li", { key: n }, h("a", { href: "#/" + n, "aria-current": n === app.name ? "page" : null },
          h("svg", { viewBox: "0 0 22 22", "aria-hidden": "true" }, h("path", { d: icons[n] })), names[n])))),
      h("div", { class: "foot" }, h("div", { class: "who" }, h("b", null, me?.name), " ", h("span", null, me?.role)),
        h("div", { class: "row" },
          h("button", { type: "button", class: "small", onclick: theme }, "Theme: " + (localStorage.getItem("theme") ?? "auto")),
          me?.signOut && h("button", { type: "button", class: "small", onclick: signOut }, "Sign out")),
        h("div", { class: "muted" }, me?.version && "version " + me.version))),
    h("main", { id: "main", tabindex: "-1" },
      h("header", { class: "top" }, h("h1", null, title),
        page?.topics.length > 0 && h("div", { class: "live" },
          h("span", { class: "state " + app.status }, h("i", { "aria-hidden": "true" }), words[app.status]),
          h("button", { type: "button", class: "small", "aria-pressed": String(app.paused), onclick: pause }, app.paused ? "Resume" : "Pause"))),
      h("div", { class: "page", key: "page " + app.name + location.hash.split("?")[0] }, page ? page.render() : h("p", { class: "muted" }, "Loading…"))),
    app.note && h("div", { class: "note", key: "note" }, app.note));
}

function theme() {
  const order = ["auto", "light", "dark"];
  const next = order[(order.indexOf(localStorage.getItem("theme") ?? "auto") + 1) % order.length];
  localStorage.setItem("theme", next);
  applyTheme();
  draw();
}

function applyTheme() {
  document.documentElement.dataset.theme = localStorage.getItem("theme") ?? "auto";
}

function pause() {
  app.paused = !app.paused;
  app.status = app.paused ? "paused" : "waiting";
  follow();
  draw();
}

// follow watches what the page shows.
function follow() {
  app.stop?.();
  app.stop = null;
  if (!app.page?.topics.length || app.paused) return;
  const page = app.page;
  app.stop = watch(page.topics, (topic, value) => { page.on(topic, value); draw(); }, (status) => {
    if (status === app.status) return;
    app.status = status;
    if (status === "lost") announcer.textContent = "The connection is lost; trying again.";
    if (status === "lost") whoAmI();
    draw();
  });
}

async function whoAmI() {
  try {
    app.me = await ask("/console/session");
  } catch {
    return; // out of reach: the stream says so
  }
  if (app.me.role === "nobody") leave();
  draw();
}

function leave() {
  app.stop?.();
  app.page?.close?.();
  app.page = app.stop = null;
}

function route() {
  if (!app.me || app.me.role === "nobody") return;
  const [where, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...parts] = where.split("/").map(decodeURIComponent);
  leave();
  const moved = app.name !== "";
  app.name = pages[name] ? name : "overview";
  app.status = app.paused ? "paused" : "waiting";
  app.page = pages[app.name](context, parts, new URLSearchParams(query));
  follow();
  draw();
  if (moved) requestAnimationFrame(() => requestAnimationFrame(() => { document.getElementById("main")?.focus({ preventScroll: true }); scrollTo(0, 0); }));
  requestAnimationFrame(() => requestAnimationFrame(() => document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" })));
}

let wrong = "";

function signIn() {
  document.title = "Sign in · Penstock";
  return h("main", { class: "sign", key: "sign" },
    h("form", {
      class: "panel", onsubmit: async (e) => {
        e.preventDefault();
        const field = e.target.elements.token;
        try {
          app.me = await ask("/console/session", { method: "POST", body: { token: field.value } });
          wrong = "";
          route();
        } catch (err) {
          wrong = err.message;
        }
        field.value = "";
        draw();
      },
    },
    h("img", { src: "icon.svg", alt: "", width: "36", height: "36" }), h("h1", null, "Penstock"),
    h("label", { for: "token" }, "Token"),
    h("input", { id: "token", name: "token", type: "password", autocomplete: "current-password", required: true, "aria-describedby": "token-help", "aria-invalid": wrong ? "true" : null }),
    h("p", { id: "token-help", class: wrong ? "wrong" : "muted", role: wrong ? "alert" : null }, wrong || "That of one of admin.users in the configuration."),
    h("button", { class: "main", type: "submit" }, "Sign in")));
}

async function signOut() {
  await ask("/console/session", { method: "DELETE" });
  await whoAmI();
}

// dialog asks, and answers true for the verb.
function dialog(text, verb) {
  return new Promise((done) => {
    const box = h("dialog", { "aria-label": verb, onclose: () => { box.remove(); done(box.returnValue === "yes"); } },
      h("form", { method: "dialog" }, h("p", null, text),
        h("div", { class: "row end" }, h("button", { value: "no" }, "Cancel"), h("button", { value: "yes", class: "danger" }, verb))));
    document.body.append(box);
    box.showModal();
  });
}

applyTheme();
addEventListener("hashchange", route);
await whoAmI();
route();
