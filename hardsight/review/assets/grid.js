// Many examples at once: filter, mark, and decide for all marked ones. Only the rows on the screen are
// in the document, so a million examples scroll as smoothly as a hundred.

import { $, count, dialog, dialogIsOpen, h, isControl, isTyping, notice, number, plural, put, say, svg } from "./dom.js";
import { Refused, get, getBlob, post, shared, small } from "./api.js";
import { chooseClass } from "./choose.js";
import { smallView } from "./example.js";
import { go, replace, viewOf } from "./view.js";

const PAGE = 200, PAGES_KEPT = 60; // rows fetched at once
const LEAST_WIDTH = 124, CAPTION = 45, GAP = 8;
const MOST_HEIGHT = 15e6; // browsers cap an element near 16.8 million pixels: scaled beyond this
const MOST_RANGE = 20000;
const SCREENS_AHEAD = 1.5; // of pictures, in the direction of scrolling
const STATES = { any: "decided or not", open: "open", decided: "decided", keep: "kept", relabel: "changed", "cannot tell": "cannot tell", skip: "skipped", disagree: "in disagreement" };
const DONE = { keep: "kept", relabel: "changed", "cannot tell": "cannot tell", skip: "skipped" };

export class Grid {
  constructor(root, values) {
    this.root = root;
    this.values = { ...viewOf(values) };
    this.start_ = Number(values.at ?? 0) || 0;
    this.pages = new Map();
    this.asked = new Map();
    this.total = 0;
    this.cursor = 0; // place of the example that the keys are about
    this.anchor = null;
    this.marked = new Map(); // index -> place
    this.isAll = false;
    this.cells = new Map(); // place -> element
    this.stop = new AbortController();
    this.recent = [];
  }

  close() {
    this.stop.abort();
    this.resized?.disconnect();
    small.forget(() => false);
  }

  async start() {
    this.build();
    await this.reload(this.start_);
    get("queue", { count: 0, after: 0 }, this.stop.signal).then((content) => { this.recent = content.recent; }).catch(() => {});
  }

  // ------------------------------------------------------------------ filters

  build() {
    const about = shared.about;
    const classes = about.classes.map((name, label) => [String(label), name]);
    const titles = new Map(about.scores.map((one) => [one.name, one.title]));
    const scores = about.scores.map((one) => [one.name, one.title]);
    const select = (name, label, options, none) => h("label", {}, h("span", {}, label),
      h("select", { name, onchange: (event) => this.set({ [name]: event.target.value }) },
        none === undefined ? null : h("option", { value: "" }, none),
        options.map(([value, text]) => h("option", { value, selected: String(this.values[name] ?? "") === value }, text))));
    const input = (name, label, attributes) => h("label", {}, h("span", {}, label),
      h("input", { name, value: this.values[name] ?? "", onchange: (event) => this.set({ [name]: event.target.value.trim() }), ...attributes }));
    this.filters = h("form", { class: "filters", "aria-label": "Filter", onsubmit: (event) => event.preventDefault() },
      select("only", "Show", [["suspects", "suspects"]], "all examples"),
      select("state", "State", Object.entries(STATES).filter(([name]) => name !== "any"), STATES.any),
      select("label", "Label", classes, "any"),
      select("prediction", "Prediction", classes, "any"),
      select("group", "Group", about.groups.map((name, at) => [String(at), name]), "any"),
      select("by", "Score", scores, "none"),
      input("low", "from", { inputmode: "decimal", size: "6" }),
      input("high", "to", { inputmode: "decimal", size: "6" }),
      input("text", "Contains", { type: "search", size: "14", title: "Part of the id, of a class name (label or prediction), or of the text of the example" }),
      select("sort", "Sort by", about.sortable.filter((name) => name !== "suspect").map((name) => [name, titles.get(name) ?? name]), "most suspect"),
      select("order", "Order", [["asc", "smallest first"]], "largest first"),
      h("button", { type: "button", onclick: () => go("grid", {}) }, "clear"));
    this.pairs = h("div", { class: "pairs" }, about.pairs.length ? h("h2", { class: "soft" }, "Confused") : null,
      h("ul", {}, about.pairs.slice(0, 14).map(([label, other, size]) => h("li", {},
        h("button", { type: "button", onclick: () => this.set({ label: String(label), prediction: String(other) }) },
          h("bdi", {}, shared.name(label)), " → ", h("bdi", {}, shared.name(other)), " ", h("b", {}, count(size)))))));
    this.summary = h("p", { class: "summary", role: "status" });
    this.bar = h("div", { class: "actions", role: "group", "aria-label": "Decide for all marked" });
    this.layer = h("div", { class: "layer" });
    this.spacer = h("div", { class: "spacer" });
    this.scroller = h("div", {
      class: "scroller", id: "cells", role: "listbox", "aria-multiselectable": "true", "aria-label": "Examples", tabindex: "0",
      onscroll: () => this.scrolled(), onclick: (event) => this.clicked(event), ondblclick: (event) => this.opened(event),
    }, this.layer, this.spacer);
    put(this.root, h("h1", { class: "sr" }, "Grid"), this.filters, this.pairs,
      h("div", { class: "over" }, this.summary, this.bar),
      h("div", { class: "grid-body" }, this.scroller, about.map ? this.mapPanel() : null));
    this.resized = new ResizeObserver(() => this.laidOut());
    this.resized.observe(this.scroller);
  }

  set(changes) {
    const values = { ...this.values, ...changes };
    go("grid", values);
  }

  async reload(at = this.top()) {
    this.pages.clear();
    this.asked.clear();
    this.unmark();
    try {
      await this.fetchPage(Math.floor(at / PAGE));
    } catch (error) {
      if (error.name !== "AbortError") notice(error.message);
      return;
    }
    this.cursor = Math.min(this.cursor, Math.max(0, this.total - 1));
    this.laidOut();
    if (at) this.goTo(at);
    this.scroller.focus({ preventScroll: true });
  }

  // ------------------------------------------------------------------ rows

  fetchPage(page) {
    if (this.pages.has(page)) return Promise.resolve(this.pages.get(page));
    if (this.asked.has(page)) return this.asked.get(page);
    const asked = get("grid", { ...this.values, start: page * PAGE, count: PAGE }, this.stop.signal).then((content) => {
      this.searched = content.searched;
      this.seen = content.seq; // what bulk decisions are based on
      if (!this.isLoaded || content.total !== this.total) {
        this.isLoaded = true;
        this.total = content.total;
        this.laidOut();
      }
      shared.seq = Math.max(shared.seq, content.seq);
      this.pages.set(page, content);
      while (this.pages.size > PAGES_KEPT) this.pages.delete(this.pages.keys().next().value);
      this.asked.delete(page);
      return content;
    }, (error) => { this.asked.delete(page); throw error; });
    this.asked.set(page, asked);
    return asked;
  }

  row(place) {
    const page = this.pages.get(Math.floor(place / PAGE));
    const at = place % PAGE;
    if (!page || at >= page.index.length) return null;
    return { place, index: page.index[at], id: page.id[at], label: page.label[at], prediction: page.prediction[at], suggestion: page.suggestion[at], action: page.action[at], new: page.new[at], value: page.value[at] };
  }

  // ------------------------------------------------------------------ layout

  laidOut() {
    const width = this.scroller.clientWidth;
    if (!width || !this.isLoaded) return; // neither the size nor the number of rows is known yet
    this.columns = Math.max(2, Math.floor((width + GAP) / (LEAST_WIDTH + GAP)));
    this.side = (width - GAP * (this.columns - 1)) / this.columns;
    this.high = this.side + CAPTION + GAP;
    this.full = Math.ceil(this.total / this.columns) * this.high;
    this.seenHigh = this.scroller.clientHeight;
    this.spacer.style.height = `${Math.max(this.seenHigh, Math.min(this.full, MOST_HEIGHT))}px`;
    this.draw();
  }

  offset() {
    // Where the top of the window is among all rows. It is scaled if the rows are higher than a browser
    // can scroll.
    const real = Math.min(this.full, MOST_HEIGHT) - this.seenHigh;
    if (this.full <= MOST_HEIGHT || real <= 0) return this.scroller.scrollTop;
    return (this.scroller.scrollTop / real) * (this.full - this.seenHigh);
  }

  setOffset(offset) {
    const wanted = Math.max(0, Math.min(offset, this.full - this.seenHigh));
    const real = Math.min(this.full, MOST_HEIGHT) - this.seenHigh;
    this.scroller.scrollTop = this.full <= MOST_HEIGHT || real <= 0 ? wanted : (wanted / (this.full - this.seenHigh)) * real;
  }

  top() { return this.columns ? Math.floor(this.offset() / this.high) * this.columns : 0; }

  goTo(place) {
    this.cursor = place;
    this.setOffset(Math.floor(place / this.columns) * this.high);
    this.draw();
  }

  scrolled() {
    this.draw();
    clearTimeout(this.settling);
    this.settling = setTimeout(() => replace("grid", { ...this.values, at: this.top() || "" }), 300);
  }

  draw() {
    if (!this.columns) return;
    const offset = this.offset();
    const first = Math.max(0, Math.floor(offset / this.high) - 1);
    const last = Math.ceil((offset + this.seenHigh) / this.high) + 1;
    const from = first * this.columns, to = Math.min(this.total, last * this.columns);
    for (const [place, cell] of this.cells) {
      if (place < from || place >= to) {
        cell.remove();
        this.cells.delete(place);
      }
    }
    for (let place = from; place < to; place += 1) {
      let cell = this.cells.get(place);
      if (!cell) {
        cell = this.cell(place);
        this.cells.set(place, cell);
        this.layer.append(cell);
      }
      const x = (place % this.columns) * (this.side + GAP);
      const y = Math.floor(place / this.columns) * this.high - offset;
      cell.style.transform = `translate(${x}px, ${y}px)`;
      cell.style.width = `${this.side}px`;
      this.filled(cell, place);
    }
    const isUp = offset < (this.lastOffset ?? 0);
    this.lastOffset = offset;
    const screen = (to - from) * SCREENS_AHEAD;
    const [begin, end] = isUp ? [Math.max(0, from - screen), from] : [to, Math.min(this.total, to + screen)];
    const seen = new Set();
    for (const cell of this.cells.values()) if (cell.dataset.index) seen.add(Number(cell.dataset.index));
    const soon = [];
    for (let place = begin; place < end; place += 1) {
      const row = this.row(place);
      if (row) soon.push(row.index);
    }
    const near = new Set(soon);
    small.forget((index) => seen.has(index) || near.has(index));
    for (const index of isUp ? soon.reverse() : soon) small.want(index, true);
    const pages = new Set();
    const lowest = Math.min(begin, from), highest = Math.max(lowest, Math.max(end, to) - 1);
    for (let page = Math.floor(lowest / PAGE); page <= Math.floor(highest / PAGE); page += 1) pages.add(page);
    for (const page of pages) if (!this.pages.has(page) && !this.asked.has(page)) this.fetchPage(page).then(() => this.draw()).catch((error) => { if (error.name !== "AbortError") notice(error.message); });
    this.drawState();
  }

  cell(place) {
    return h("div", { class: "cell", role: "option", id: `cell-${place}`, "data-place": place, "aria-selected": "false" },
      h("div", { class: "thumb" }), h("div", { class: "caption" }));
  }

  filled(cell, place) {
    const row = this.row(place);
    cell.setAttribute("aria-posinset", place + 1);
    cell.setAttribute("aria-setsize", this.total);
    const isMarked = row && (this.isAll || this.marked.has(row.index));
    cell.setAttribute("aria-selected", isMarked ? "true" : "false");
    cell.classList.toggle("cursor", place === this.cursor);
    if (!row) return;
    const mark = `${row.index} ${row.action} ${row.new}`;
    if (cell.dataset.mark === mark) return;
    const isNew = cell.dataset.index !== String(row.index);
    cell.dataset.mark = mark;
    cell.dataset.index = row.index;
    cell.dataset.action = row.action;
    const [thumb, caption] = cell.children;
    const to = row.action === "relabel" ? row.new : row.suggestion;
    const done = row.action ? DONE[row.action] : "";
    const change = to >= 0 && h("bdi", { class: row.action === "relabel" ? "new" : "suggested" }, ` → ${shared.name(to)}`);
    put(caption, h("span", { class: "names" }, h("bdi", {}, shared.name(row.label)), change || null),
      h("span", { class: "soft" }, done || number(row.value)));
    cell.setAttribute("aria-label", `example ${row.index}, label ${shared.name(row.label)}${to >= 0 ? `, ${row.action === "relabel" ? "changed to" : "suggested"} ${shared.name(to)}` : ""}${done ? `, ${done}` : ""}`);
    cell.title = row.id;
    if (isNew) {
      const kept = small.get(row.index);
      put(thumb);
      if (kept) put(thumb, smallView(kept));
      else small.want(row.index).then((picture) => { if (picture && cell.dataset.index === String(row.index)) put(thumb, smallView(picture)); });
    }
  }

  drawState() {
    const chosen = this.isAll ? this.total : this.marked.size;
    this.summary.textContent = `${count(this.total)} of ${plural(shared.about.rows, "example")}${this.searched ? ` · searched ${this.searched}` : ""}${chosen ? ` · ${count(chosen)} marked` : ""}`;
    if (this.total) this.scroller.setAttribute("aria-activedescendant", `cell-${this.cursor}`);
    else this.scroller.removeAttribute("aria-activedescendant");
    const key = `${chosen} ${this.isAll} ${this.total}`;
    if (this.barKey === key) return;
    this.barKey = key;
    const button = (keys, text, act) => h("button", { type: "button", disabled: !chosen, "aria-keyshortcuts": keys, onclick: act }, h("kbd", {}, keys), text);
    put(this.bar,
      h("button", { type: "button", "aria-pressed": this.isAll ? "true" : "false", disabled: !this.total, onclick: () => this.markAll() }, h("kbd", {}, "A"), `all ${count(this.total)}`),
      button("Enter", "accept suggestions", () => this.decide("relabel")),
      shared.about.has_labels ? button("K", "keep labels", () => this.decide("keep")) : null,
      button("/", "one class", () => this.choose()),
      button("C", "cannot tell", () => this.decide("cannot tell")),
      button("S", "skip", () => this.decide("skip")),
      h("button", { type: "button", onclick: () => this.undo() }, h("kbd", {}, "U"), "undo"),
      h("button", { type: "button", disabled: !this.total, onclick: () => this.oneByOne() }, "one by one"));
  }

  // ------------------------------------------------------------------ marking

  unmark() {
    this.marked.clear();
    this.isAll = false;
    this.anchor = null;
  }

  markAll() {
    this.isAll = !this.isAll;
    this.marked.clear();
    this.draw();
    say(this.isAll ? `all ${count(this.total)} marked` : "nothing marked");
  }

  toggle(place) {
    const row = this.row(place);
    if (!row) return;
    if (this.isAll) this.unmark();
    if (this.marked.has(row.index)) this.marked.delete(row.index);
    else this.marked.set(row.index, place);
    this.anchor = place;
    this.draw();
  }

  async markRange(from, to) {
    const [first, last] = from < to ? [from, to] : [to, from];
    if (last - first >= MOST_RANGE) {
      notice(`A range can have at most ${count(MOST_RANGE)} examples. Narrow the filter, then press A to mark everything that matches it.`);
      return;
    }
    for (let page = Math.floor(first / PAGE); page <= Math.floor(last / PAGE); page += 1) await this.fetchPage(page);
    this.isAll = false;
    this.marked.clear();
    for (let place = first; place <= last; place += 1) {
      const row = this.row(place);
      if (row) this.marked.set(row.index, place);
    }
    this.draw();
  }

  clicked(event) {
    const cell = event.target.closest(".cell");
    if (!cell) return;
    this.cursor = Number(cell.dataset.place);
    if (event.shiftKey && this.anchor !== null) this.markRange(this.anchor, this.cursor);
    else this.toggle(this.cursor);
  }

  opened(event) {
    const cell = event.target.closest(".cell");
    if (cell?.dataset.index) go("queue", { ...this.values, only: this.values.only ?? "all", index: cell.dataset.index });
  }

  move(step, isExtending) {
    if (!this.total) return;
    const from = this.cursor;
    this.cursor = Math.max(0, Math.min(this.total - 1, this.cursor + step));
    const y = Math.floor(this.cursor / this.columns) * this.high;
    const offset = this.offset();
    if (y < offset) this.setOffset(y);
    else if (y + this.high > offset + this.seenHigh) this.setOffset(y + this.high - this.seenHigh);
    if (isExtending) {
      this.anchor ??= from;
      this.markRange(this.anchor, this.cursor);
    }
    this.draw();
  }

  // ------------------------------------------------------------------ deciding

  choose() {
    if (!this.isAll && !this.marked.size) return;
    const near = this.values.prediction ? [Number(this.values.prediction)] : [];
    chooseClass("Which class are they all?", near, (label) => this.decide("relabel", label));
  }

  decide(action, label) {
    const chosen = this.isAll ? this.total : this.marked.size;
    if (!chosen || this.isBusy) return;
    const what = action === "relabel" ? (label === undefined ? "Accept the suggestions for" : `Give the class “${shared.name(label)}” to`) : { keep: "Keep the labels of", "cannot tell": "Answer “cannot tell” for", skip: "Skip" }[action];
    const act = () => this.send(action, label);
    if (chosen <= 100 && !this.isAll) {
      act();
      return;
    }
    const yes = h("button", { type: "button", class: "main", onclick: () => { box.close(); act(); } }, "Yes");
    const box = dialog(`${what} ${plural(chosen, "example")}?`, h("p", {}, "Pressing U once undoes all of it."), h("div", { class: "actions" }, yes, h("button", { type: "button", onclick: () => box.close() }, "No")));
    yes.focus();
  }

  oneByOne() {
    const { state, ...view } = this.values;
    go("queue", { ...view, only: view.only ?? "all" });
  }

  async send(action, label) {
    this.isBusy = true;
    const which = this.isAll ? { view: this.values, expect: this.total } : { indices: [...this.marked.keys()] };
    try {
      const content = await post("decide-many", { ...which, action, new: label ?? null, seen: this.seen });
      this.recent = content.recent;
      this.isBusy = false;
      notice(`${plural(content.count, "decision")} stored. Press U to undo all of it.`, "note");
      await this.reload();
    } catch (error) {
      if (error instanceof Refused && error.status === 409) {
        notice(`Meanwhile you decided ${plural(error.content.count, "of these", "of these")} in another window, so nothing was stored. Check them, then decide again.`);
        await this.reload();
      } else if (error.name !== "AbortError") notice(`Not stored: ${error.message}`);
    } finally {
      this.isBusy = false;
    }
  }

  async undo() {
    const last = this.recent[0];
    if (this.isBusy) return;
    if (!last) {
      notice("There is nothing to undo.", "note");
      return;
    }
    this.isBusy = true;
    try {
      const content = await post("undo", { batch: last.batch });
      this.recent = content.recent;
      this.isBusy = false;
      notice(`${plural(content.count, "decision")} undone.`, "note");
      await this.reload();
    } catch (error) {
      notice(error.status === 409 ? "That was already undone in another window." : `Not undone: ${error.message}`);
    } finally {
      this.isBusy = false;
    }
  }

  key(event) {
    if (isTyping(event.target) || dialogIsOpen()) return false;
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns, Home: -this.total, End: this.total, PageUp: -this.columns * Math.floor(this.seenHigh / this.high), PageDown: this.columns * Math.floor(this.seenHigh / this.high) };
    if (event.key in steps && !event.ctrlKey && !event.metaKey && !event.altKey) return this.move(steps[event.key], event.shiftKey), true;
    if (event.repeat) return false;
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z") return this.undo(), true;
    if (event.ctrlKey || event.metaKey || event.altKey) return false;
    if (isControl(event.target) && (event.key === "Enter" || event.key === " ")) return false;
    const act = {
      " ": () => this.toggle(this.cursor), a: () => this.markAll(), Enter: () => this.decide("relabel"), k: () => (shared.about.has_labels ? this.decide("keep") : notice("These examples have no labels to keep. Choose a class with /.", "note")),
      "/": () => this.choose(), c: () => this.decide("cannot tell"), s: () => this.decide("skip"), u: () => this.undo(),
      o: () => { const row = this.row(this.cursor); if (row) go("queue", { ...this.values, only: this.values.only ?? "all", index: row.index }); },
      Escape: () => { this.unmark(); this.draw(); },
    }[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act) return false;
    act();
    return true;
  }

  async changed() {
    if (!this.isBusy && !this.marked.size && !this.isAll) await this.reload();
  }

  // ------------------------------------------------------------------ the map

  mapPanel() {
    const { side } = shared.about.map;
    const drawn = svg("polygon", { class: "lasso", points: (this.values.lasso ?? "").replace(/(\d+),(\d+),?/g, "$1,$2 ") });
    const image = h("img", { alt: "Map of all examples that match the filter: angle to their class from left to right, length of their features from bottom to top", draggable: "false" });
    const surface = h("div", { class: "map" }, image, svg("svg", { viewBox: `0 0 ${side} ${side}`, "aria-hidden": "true" }, drawn));
    let points = null;
    const place = (event) => {
      const box = surface.getBoundingClientRect();
      return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height].map((share) => Math.round(Math.max(0, Math.min(1, share)) * side));
    };
    surface.addEventListener("pointerdown", (event) => {
      points = [place(event)];
      surface.setPointerCapture(event.pointerId);
      event.preventDefault();
    });
    surface.addEventListener("pointermove", (event) => {
      if (!points) return;
      const next = place(event), last = points.at(-1);
      if (Math.hypot(next[0] - last[0], next[1] - last[1]) < 4) return;
      points.push(next);
      drawn.setAttribute("points", points.map((one) => one.join(",")).join(" "));
    });
    surface.addEventListener("pointerup", () => {
      if (!points) return;
      const step = Math.ceil(points.length / 120);
      const kept = points.filter((_, at) => at % step === 0);
      points = null;
      if (kept.length >= 3) this.set({ lasso: kept.flat().join(",") });
    });
    const shown = { ...this.values, lasso: "" };
    const axes = h("p", { class: "soft" });
    const load = () => Promise.all([getBlob("map", shown, this.stop.signal), get("axes", {}, this.stop.signal)]).then(([blob, ends]) => {
      image.src = URL.createObjectURL(blob);
      put(axes, `Left to right: angle to the labelled class, from ${Math.round(ends.angle_low)}° to ${Math.round(ends.angle_high)}°. Bottom to top: length of the features, from ${number(Math.exp(ends.norm_low))} to ${number(Math.exp(ends.norm_high))}. Orange: suspects.`);
    }).catch(() => {});
    const panel = h("details", { class: "map-panel", open: Boolean(this.values.lasso), ontoggle: (event) => { if (event.target.open && !image.src) load(); this.laidOut(); } },
      h("summary", {}, "Map: angle and norm"),
      h("div", { class: "map-box" }, surface,
        h("div", {},
          axes,
          h("p", {}, "Draw around a region to see its examples."),
          this.values.lasso ? h("button", { type: "button", onclick: () => this.set({ lasso: "" }) }, "clear the region") : null)));
    if (panel.open) load();
    return panel;
  }
}
