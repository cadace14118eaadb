// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Walks every page of the console in a real browser. Run by run.sh.

import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";
import { questions, step } from "./steps.mjs";

const { PENSTOCK, CHROMIUM, SHOTS, DOCS } = process.env;
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const work = mkdtempSync(join(tmpdir(), "penstock-console-"));
const children = [], faults = [];

function ok(what, yes, detail = "") {
  console.log((yes ? "ok    " : "FAIL  ") + what + (yes ? "" : ": " + detail));
  if (!yes) faults.push(what);
}

// start runs penstock until its output has the pattern, and gives the match.
function start(args, pattern) {
  const child = spawn(PENSTOCK, args, { stdio: ["ignore", "pipe", "pipe"], cwd: work });
  children.push(child);
  return new Promise((done, fail) => {
    let text = "";
    const look = (piece) => {
      text += piece;
      const m = text.match(pattern);
      if (m) done(m);
    };
    child.stdout.on("data", look);
    child.stderr.on("data", look);
    child.on("exit", (code) => fail(new Error("penstock " + args.join(" ") + " ended with " + code + ":\n" + text)));
    setTimeout(() => fail(new Error("penstock " + args[0] + " is not ready after a minute:\n" + text)), 60_000).unref();
  });
}

function freePort() {
  return new Promise((done) => {
    const s = createServer().listen(0, "127.0.0.1", () => {
      const { port } = s.address();
      s.close(() => done(port));
    });
  });
}

// visitor is a page that may say nothing to its console and ask nobody else.
async function visitor(browser, base, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(30_000);
  page.said = [];
  page.on("console", (m) => { if (m.type() === "error" || m.type() === "warning") page.said.push(m.text()); });
  page.on("pageerror", (e) => page.said.push(String(e)));
  page.on("request", (r) => { if (!r.url().startsWith(base)) page.said.push("asks " + r.url()); });
  return page;
}

async function accessible(page, what) {
  // The page's own policy allows no script from elsewhere: this one goes in
  // through the debugger.
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => axe.run(document, { resultTypes: ["violations"] }));
  const serious = violations.filter((v) => v.impact === "serious" || v.impact === "critical");
  ok("axe: " + what, serious.length === 0, serious.map((v) => v.id + ": " + v.nodes.map((n) => n.html.slice(0, 140) + " " + (n.any[0]?.message ?? "")).slice(0, 3).join(" | ")).join("\n"));
}

const shot = (page, name) => page.screenshot({ path: join(SHOTS, name + ".png"), fullPage: true });
const main = (page) => page.getByRole("main");
const field = (page, name) => main(page).locator(`form [name=${name}]`);

async function changes(page, locator, what) {
  const before = await locator.innerText();
  for (let i = 0; i < 100; i++) {
    await page.waitForTimeout(100);
    if (await locator.innerText() !== before) return ok(what + " changes live", true);
  }
  ok(what + " changes live", false, "it stays " + before);
}

function send(base, id, body, key) {
  return fetch(base + "/v1/chat/completions", { method: "POST", headers: { "Content-Type": "application/json", "X-Request-Id": id, ...(key && { Authorization: "Bearer " + key }) }, body: JSON.stringify(body) }).then((r) => r.text());
}

async function demo(browser) {
  const [, proxy, base] = await start(["demo", "--requests", "40"], /listens on (http:\/\/\S+)\. Its console is at (http:\/\/[^/]+)\/console\//);
  const hostile = `<img src=x onerror="window.taken=1">`;
  await send(proxy, "console-hostile", { model: hostile, messages: [{ role: "user", content: "x" }] });
  await send(proxy, "console-slow", { model: "demo", stream: true, max_tokens: 300, messages: [{ role: "user", content: "Tell me a long story." }] });

  const page = await visitor(browser, base);
  const answer = await page.goto(base + "/");
  ok("the address leads a browser to the console", page.url().startsWith(base + "/console/"), page.url());
  ok("the policy forbids the rest", answer.headers()["content-security-policy"]?.startsWith("default-src 'none'; script-src 'self'"), JSON.stringify(answer.headers()));

  // Overview
  await page.locator(".tile").first().waitFor();
  await changes(page, page.locator(".tile").first(), "the overview");
  await accessible(page, "overview");
  await shot(page, "overview-light");

  // Pools
  await step(page, "open Pools");
  await main(page).getByText("member is out.").waitFor();
  await accessible(page, "pools");
  await shot(page, "pools-light");

  // Picks
  await step(page, "open Picks");
  const newest = page.getByRole("region", { name: "Newest picks" }).locator("tbody tr").first();
  await newest.waitFor();
  await changes(page, newest, "the stream of picks");
  await accessible(page, "picks");
  await shot(page, "picks-light");
  await step(page, "follow Newest picks");
  await page.getByRole("region", { name: "Candidates" }).waitFor();
  ok("a pick opens with four candidates", await page.getByRole("region", { name: "Candidates" }).locator("tbody tr").count() === 4, "");
  ok("what would change it is told", /leads by|is level/.test(await page.locator("#change-lead").innerText()));
  await accessible(page, "a pick");
  await shot(page, "pick-light");

  // Models
  await step(page, "open Models");
  await main(page).getByText("no member is ready").waitFor();
  await accessible(page, "models");
  await shot(page, "models-light");

  // Tenants: a key is made, used and revoked.
  await step(page, "open Tenants");
  await field(page, "tenant").selectOption("search");
  await field(page, "name").fill("from-the-console");
  await step(page, "press Make a key");
  const secret = await page.locator("#secret").innerText();
  ok("a key is made", secret.startsWith("pk_"), secret);
  const row = page.getByRole("region", { name: "Keys" }).locator("tr", { hasText: "from-the-console" });
  await row.waitFor();
  await accessible(page, "tenants");
  await shot(page, "tenants-light");

  // Playground, as that key.
  await step(page, "open Playground");
  await field(page, "model").selectOption("demo");
  await field(page, "key").fill(secret);
  await field(page, "max").fill("200");
  await step(page, "press Send");
  const out = page.locator("#answer");
  await page.waitForFunction(() => document.querySelector("#answer")?.innerText.length > 20);
  const early = (await out.innerText()).length;
  await main(page).getByText("done", { exact: true }).waitFor();
  ok("the playground streams", (await out.innerText()).length > early, early + " characters at first and at the end");
  await main(page).getByRole("link", { name: "The request" }).waitFor();
  ok("it has a cost and a first token", /Cost\s*\$0\.\d+/.test(await main(page).innerText()), await main(page).innerText());
  await accessible(page, "playground");
  await shot(page, "playground-light");
  await main(page).getByRole("link", { name: "Its pick" }).click();
  await page.getByRole("region", { name: "Candidates" }).waitFor();
  await page.goBack();

  await step(page, "open Tenants");
  await row.getByRole("button", { name: "Revoke" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Revoke" }).click();
  await row.waitFor({ state: "detached" });
  await send(proxy, "after-revocation", { model: "demo", max_tokens: 1, messages: [{ role: "user", content: "x" }] }, secret);
  const later = (await (await fetch(base + "/console/requests?id=after-revocation")).json()).requests[0];
  ok("a revoked key is nobody's", later && later.tenant === "", JSON.stringify(later)); // the listener lets anybody in

  // Requests
  await step(page, "open Requests");
  await page.getByRole("region", { name: "Requests" }).locator("tbody tr").nth(3).waitFor();
  await accessible(page, "requests");
  await shot(page, "requests-light");
  await step(page, "enter Request id: console-hostile");
  await step(page, "press Search");
  await page.getByRole("region", { name: "Requests" }).getByText(hostile).waitFor();
  await step(page, "follow Requests");
  await main(page).getByText(hostile).first().waitFor();
  ok("a hostile name is text", await page.evaluate(() => window.taken === undefined && !document.querySelector("main img")));
  await shot(page, "request-hostile");

  // The questions of whoever is on call, as the page of documentation has them.
  const list = questions(DOCS);
  ok("there are five questions", list.length === 5, String(list.length));
  for (const q of list) {
    await page.goto(base + "/console/#/playground");
    let at = "";
    try {
      for (at of q.steps) await step(page, at);
      ok(q.title, true);
    } catch (e) {
      ok(q.title, false, at + ": " + e.message);
      await shot(page, "failed");
    }
  }
  await page.goto(base + "/console/#/requests/console-slow");
  await page.locator("#time-verdict").waitFor();
  await accessible(page, "a request");
  await shot(page, "request-light");

  // By keyboard alone: to the menu, into a page, and a pause.
  await page.goto(base + "/console/");
  await page.locator(".tile").first().waitFor();
  await page.keyboard.press("Tab");
  ok("the first stop leads past the menu", await page.evaluate(() => document.activeElement.className) === "skip");
  for (let i = 0; i < 4; i++) await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { level: 1, name: "Picks" }).waitFor();
  ok("the focus is on the page that was opened", await page.waitForFunction(() => document.activeElement.id === "main").then(() => true, () => false));
  await step(page, "press Pause");
  await main(page).getByText("Paused").waitFor();

  ok("nothing was said in the console of the browser", page.said.length === 0, page.said.join("\n"));
  await page.context().close();

  await flood(browser, base);
  for (const [name, options] of [["dark", { colorScheme: "dark" }], ["phone", { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true }], ["phone-dark", { colorScheme: "dark", viewport: { width: 390, height: 844 } }]]) {
    const p = await visitor(browser, base, options);
    for (const where of ["overview", "pools", "picks", "picks/console-slow", "models", "tenants", "requests", "requests/console-slow", "playground"]) {
      await p.goto(base + "/console/#/" + where);
      await main(p).locator(".panel, .tile").first().waitFor();
      await p.waitForTimeout(1200);
      await accessible(p, where + ", " + name);
      const wide = await p.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      ok(where + " fits, " + name, wide <= 0, wide + " pixels too wide");
      await shot(p, where.replace("/console-slow", "-one") + "-" + name);
    }
    ok("nothing was said, " + name, p.said.length === 0, p.said.join("\n"));
    await p.context().close();
  }
}

// flood shows what 2,000 picks a second come to in the browser: fifty new rows with
// each update.
async function flood(browser, base) {
  const page = await visitor(browser, base);
  let n = 0;
  await page.route("**/console/events*", (r) => {
    const picks = Array.from({ length: 50 }, (_, i) => ({ requestId: "flood-" + n + "-" + i, at: new Date().toISOString(), tookSeconds: 1e-4, pool: "demo", profile: "default", model: "demo-8b", reason: "picked", to: "127.0.0.1:1", candidates: 64, refused: 3, lead: Math.random(), matchedTokens: 10, promptTokens: 100 }));
    n++;
    return r.fulfill({ contentType: "text/event-stream", body: `event: tick\ndata: 1\n\nevent: picks\ndata: ${JSON.stringify({ total: n * 2000, perSecond: 2000, pools: [{ pool: "demo", total: n * 2000, perSecond: 2000 }], picks })}\n\n` });
  });
  await page.addInitScript(() => {
    window.longest = 0;
    new PerformanceObserver((list) => { for (const e of list.getEntries()) window.longest = Math.max(window.longest, e.duration); }).observe({ type: "longtask" });
  });
  await page.goto(base + "/console/#/picks");
  await page.getByText("2,000.0").waitFor();
  await page.evaluate(() => { window.longest = 0; });
  await page.waitForTimeout(8000);
  const longest = await page.evaluate(() => window.longest);
  const began = Date.now();
  await main(page).getByLabel("Pool").selectOption("demo");
  console.log(`      ${n} updates of fifty picks; the longest task took ${longest || "less than 50"} ms, a choice ${Date.now() - began} ms`);
  ok("the browser stays responsive at 2,000 picks a second", n > 3 && longest < 500, n + " updates, " + longest + " ms");
  await page.context().close();
}

// roles: who may what, and how one comes in and out.
async function roles(browser) {
  const [port, admin] = [await freePort(), await freePort()], base = "http://127.0.0.1:" + admin;
  const user = (role) => `{name: ${role}, role: ${role}, hash: "sha256:${createHash("sha256").update("token-of-" + role).digest("hex")}"}`;
  writeFileSync(join(work, "penstock.yaml"), `
listeners: [{name: public, address: "127.0.0.1:${port}", anonymous: true}]
admin: {address: "127.0.0.1:${admin}", users: [${user("viewer")}, ${user("operator")}, ${user("admin")}]}
pools: [{name: llama, members: {static: ["127.0.0.1:1"]}}]
models: [{name: chat, targets: [{pool: llama}]}]
tenants: [{name: acme}]
keys: {store: sqlite, path: keys.db, pepper: a pepper of the test}
`);
  const ended = start(["run", "-c", "penstock.yaml"], /never printed/);
  ended.catch(() => {});
  for (let i = 0; i < 100; i++) {
    if (await fetch(base + "/healthz").then((r) => r.ok, () => false)) break;
    await new Promise((r) => setTimeout(r, 100));
  }
  const page = await visitor(browser, base);
  await page.goto(base + "/");
  await page.getByLabel("Token").waitFor();
  await accessible(page, "sign in");
  await shot(page, "sign-in-light");
  const enter = async (token) => { await page.getByLabel("Token").fill(token); await step(page, "press Sign in"); };
  page.said = page.said.filter((t) => !t.includes("401"));
  await enter("nonsense");
  await page.getByText("this is no token").waitFor();
  page.said = page.said.filter((t) => !t.includes("401")); // the browser tells of the refusal by itself
  await enter("token-of-viewer");
  await page.locator(".tile").first().waitFor();
  ok("a viewer has no playground", await page.getByRole("link", { name: "Playground" }).count() === 0);
  await step(page, "open Tenants");
  await page.getByRole("region", { name: "Keys" }).waitFor();
  ok("a viewer makes no keys", await page.getByRole("button", { name: "Make a key" }).count() === 0);
  const cookie = (await page.context().cookies())[0];
  ok("the session is a cookie that no script reads and no other page sends", cookie.httpOnly && cookie.sameSite === "Strict", JSON.stringify(cookie));
  const tried = await page.evaluate(() => fetch("/console/play", { method: "POST", headers: { "Content-Type": "application/json" }, body: "{}" }).then((r) => r.status));
  ok("and is refused when it tries", tried === 403, String(tried));
  page.said = page.said.filter((t) => !t.includes("403"));
  await step(page, "press Sign out");
  await page.getByLabel("Token").waitFor();
  await enter("token-of-operator");
  await step(page, "open Playground");
  await page.getByRole("button", { name: "Send" }).waitFor();
  ok("nothing was said with users", page.said.length === 0, page.said.join("\n"));
  await page.context().close();
}

const browser = await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox"] });
try {
  await demo(browser);
  await roles(browser);
} catch (e) {
  ok("the walk", false, e.stack);
} finally {
  await browser.close();
  await Promise.all(children.filter((c) => c.exitCode === null).map((c) => { c.removeAllListeners("exit"); const gone = new Promise((r) => c.on("exit", r)); c.kill("SIGTERM"); return gone; }));
  rmSync(work, { recursive: true });
}
console.log(faults.length ? faults.length + " faults" : "the console works; screenshots are in " + SHOTS);
process.exit(faults.length ? 1 : 0);
