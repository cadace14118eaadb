// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// The questions of docs/console.md, with the clicks that answer them. A block
//
//   ```clicks
//   open Pools
//   tick Only members that are out
//   read 1 member is out
//   ```
//
// is done line by line in the browser.

import { readFileSync } from "node:fs";

// questions are {title, steps}: the heading above each block, and its lines.
export function questions(file) {
  const out = [];
  let title = "", steps = null;
  for (const line of readFileSync(file, "utf8").split("\n")) {
    if (line.startsWith("### ")) title = line.slice(4);
    else if (line === "```clicks") steps = [];
    else if (line === "```" && steps) { out.push({ title, steps }); steps = null; }
    else if (steps && line.trim()) steps.push(line.trim());
  }
  return out;
}

// step does one line.
export async function step(page, line) {
  const cut = line.indexOf(" "), verb = line.slice(0, cut), rest = line.slice(cut + 1);
  switch (verb) {
    case "open":
      return page.getByRole("navigation", { name: "Pages" }).getByRole("link", { name: rest, exact: true }).click();
    case "tick":
      return page.getByLabel(rest).check();
    case "press":
      return page.getByRole("button", { name: rest, exact: true }).click();
    case "enter": {
      const [label, value] = rest.split(": ");
      return page.getByLabel(label, { exact: true }).fill(value);
    }
    case "follow": // the first link of a table
      return page.getByRole("region", { name: rest, exact: true }).locator("tbody a").first().click();
    case "read":
      return page.getByRole("main").getByText(rest).first().waitFor({ state: "visible", timeout: 60_000 });
    default:
      throw new Error("no such step: " + line);
  }
}
