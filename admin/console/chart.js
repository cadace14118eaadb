// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

import { h, clock } from "./dom.js";

const width = 600, height = 100;

// Chart is lines over time: one scale from zero, a legend with the values of now,
// or of the moment under the pointer or the arrow keys.
export class Chart {
  // series: {name, color (a class), value(point)}, text(value) for people.
  constructor(title, series, text) {
    Object.assign(this, { title, series, text, points: [], at: -1 });
    this.legend = h("span", { class: "legend" });
    this.max = h("span", { class: "max" });
    this.from = h("span", null);
    this.to = h("span", null, "now");
    this.lines = series.map((s) => h("path", { class: "line " + s.color }));
    this.areas = series.map((s, i) => (i === 0 ? h("path", { class: "area " + s.color }) : null)).filter(Boolean);
    this.cross = h("line", { class: "cross", y1: "0", y2: height });
    this.svg = h("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" },
      [0, 0.5, 1].map((y) => h("line", { class: "grid", x1: 0, x2: width, y1: y * height, y2: y * height })), this.areas, this.lines, this.cross);
    this.plot = h("div", {
      class: "plot", tabindex: "0", role: "img",
      onpointermove: (e) => this.point((e.offsetX / this.plot.clientWidth) * (this.points.length - 1)),
      onpointerleave: () => this.point(-1),
      onblur: () => this.point(-1),
      onkeydown: (e) => {
        const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -30, PageDown: 30 }[e.key];
        if (!step) return;
        e.preventDefault();
        this.point(Math.max(0, (this.at < 0 ? this.points.length - 1 : this.at) + step));
      },
    }, this.max, this.svg);
    this.el = h("figure", { class: "chart panel" }, h("figcaption", null, h("span", { class: "name" }, title), this.legend), this.plot,
      h("div", { class: "axis", "aria-hidden": "true" }, this.from, this.to));
    this.el.$owned = true;
  }

  point(i) {
    this.at = i < 0 ? -1 : Math.min(this.points.length - 1, Math.round(i));
    this.describe();
  }

  // set shows points, oldest first, each with its second in at.
  set(points) {
    this.points = points;
    const values = this.series.map((s) => points.map(s.value));
    const top = nice(Math.max(0, ...values.flat().filter((v) => v !== null)));
    const x = (i) => ((i * width) / Math.max(1, points.length - 1)).toFixed(1);
    const y = (v) => (height - (v / top) * (height - 4)).toFixed(1);
    values.forEach((list, k) => {
      // A gap is a value that is not there: no line leads over it.
      let d = "", pen = false;
      list.forEach((v, i) => {
        if (v === null) { pen = false; return; }
        d += (pen ? "L" : "M") + x(i) + " " + y(v);
        if (!pen && (list[i + 1] ?? null) === null) d += "h2"; // one alone is a dash
        pen = true;
      });
      this.lines[k].setAttribute("d", d);
      if (k === 0) this.areas[0].setAttribute("d", d && !list.includes(null) ? d + `L${width} ${height}L0 ${height}Z` : "");
    });
    this.max.textContent = this.text(top);
    if (points.length) this.from.textContent = clock(points[0].at * 1000);
    this.describe();
  }

  describe() {
    const i = this.at < 0 ? this.points.length - 1 : this.at, p = this.points[i];
    if (!p) return;
    const shown = this.series.map((s) => {
      const v = s.value(p);
      return [s, v === null ? "–" : this.text(v)];
    });
    this.legend.replaceChildren(...shown.map(([s, v]) => h("span", { class: "item" }, h("i", { class: s.color, "aria-hidden": "true" }), s.name + " ", h("b", null, v))));
    this.to.textContent = this.at < 0 ? "now" : clock(p.at * 1000);
    this.plot.setAttribute("aria-label", this.title + (this.at < 0 ? ", now: " : " at " + clock(p.at * 1000) + ": ") + shown.map(([s, v]) => s.name + " " + v).join(", "));
    const at = this.at < 0 ? -5 : (i * width) / Math.max(1, this.points.length - 1);
    this.cross.setAttribute("x1", at);
    this.cross.setAttribute("x2", at);
  }
}

// nice is the next of 1, 2, 5 times a power of ten.
function nice(x) {
  if (x <= 0) return 1;
  const size = 10 ** Math.floor(Math.log10(x));
  return [1, 2, 5, 10].find((k) => k * size >= x) * size;
}

// spark is a small line of values from 0 to top, for a cell.
export function spark(values, top, label) {
  const n = Math.max(2, values.length);
  const d = values.map((v, i) => (i ? "L" : "M") + ((i * 80) / (n - 1)).toFixed(1) + " " + (18 - (16 * Math.min(v, top)) / (top || 1)).toFixed(1)).join("");
  return h("svg", { class: "spark", viewBox: "0 0 80 20", role: "img", "aria-label": label }, h("path", { class: "line c1", d }));
}
