// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// What the gateway is asked, and what it tells by itself.

export class Refused extends Error {
  constructor(status, body) {
    const e = body?.error ?? {};
    super([e.param, e.message ?? "the gateway answered " + status].filter(Boolean).join(" ") + (e.hint ? "; " + e.hint : ""));
    this.status = status;
  }
}

// ask is a request for JSON.
export async function ask(path, { method = "GET", body, header } = {}) {
  const res = await fetch(path, {
    method, headers: { Accept: "application/json", ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...header },
    body: body === undefined ? undefined : JSON.stringify(body), credentials: "same-origin",
  });
  const text = await res.text();
  let value = null;
  try { value = text ? JSON.parse(text) : null; } catch { /* not JSON: told below */ }
  if (!res.ok && !(value && path.startsWith("/readyz"))) throw new Refused(res.status, value);
  return value;
}

// watch calls on(topic, value) for what changes and status(word) for how the
// stream does: live, waiting, lost. It returns what ends it.
export function watch(topics, on, status) {
  let source, quiet, retry, wait = 1000, over = false;
  const alive = () => {
    status("live");
    wait = 1000;
    clearTimeout(quiet);
    quiet = setTimeout(() => status("waiting"), 4000);
  };
  const open = () => {
    source = new EventSource("/console/events?topics=" + topics.join(","));
    source.addEventListener("tick", alive);
    for (const t of topics) source.addEventListener(t, (e) => on(t, JSON.parse(e.data)));
    source.onerror = () => {
      status("lost");
      clearTimeout(quiet);
      source.close(); // its own retries end at an answer that is not 200
      if (over) return;
      retry = setTimeout(open, wait);
      wait = Math.min(2 * wait, 15000);
    };
  };
  open();
  return () => {
    over = true;
    clearTimeout(quiet);
    clearTimeout(retry);
    source.close();
  };
}
