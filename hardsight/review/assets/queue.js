// One example at a time, one key per decision. A decision is stored before the next picture is shown, so
// that nothing is lost if the browser or the machine stops.

import { $, below, count, degrees, dialogIsOpen, h, isControl, isTyping, notice, number, plural, put, say } from "./dom.js";
import { Refused, get, kept, maps, post, shared, small } from "./api.js";
import { angleDiagram, curve } from "./plots.js";
import { chooseClass } from "./choose.js";
import { largeView, smallView } from "./example.js";
import { address, replace, viewOf } from "./view.js";

const AHEAD = 8, BEHIND = 3;
const MAPS = "hardsight-maps"; // key in this browser's storage: whether to show Grad-CAM maps
const MAP_MS = 400; // between two requests for a map that is still being made
const WORDS = { keep: "kept", relabel: "changed", "cannot tell": "cannot tell", skip: "skipped" };

const made = []; // who decided what, and when, in this window

export class Queue {
  constructor(root, values) {
    this.root = root;
    this.values = { only: "suspects", ...values };
    this.view = viewOf(this.values);
    delete this.view.state;
    this.ahead = []; // open examples that come next
    this.trail = []; // examples that were shown, the current one at `this.at`
    this.at = -1;
    this.images = new Map(); // decoded pictures by index
    this.isReady = false; // the picture of the current example is painted
    this.isBusy = false;
    this.recent = [];
    this.total = this.open = 0;
    this.after = Number(this.values.at ?? 0) || 0; // place from which nothing has been fetched yet
    this.stop = new AbortController();
  }

  get current() { return this.trail[this.at]; }

  async start() {
    this.build();
    const wanted = this.values.index;
    try {
      await this.fill();
      if (wanted !== undefined) await this.open_(Number(wanted));
      else await this.next();
    } catch (error) {
      if (error.name !== "AbortError") notice(error.message);
    }
  }

  close() {
    this.stop.abort();
  }

  // ------------------------------------------------------------------ what is shown

  build() {
    this.picture = h("div", { class: "picture", id: "picture" });
    this.panel = h("section", { class: "panel", "aria-label": "About this example" });
    this.progress = h("div", { class: "progress" });
    this.bar = h("div", { class: "actions", role: "group", "aria-label": "Decide" });
    this.last = h("div", { class: "last" });
    put(this.root,
      h("h1", { class: "sr" }, "Queue"),
      this.progress,
      h("div", { class: "stage" }, this.picture, this.panel),
      this.bar,
      this.last,
    );
  }

  showProgress() {
    const done = this.total - this.open;
    const parts = [`${count(done)} of ${count(this.total)}`];
    const own = made.filter((one) => one.reviewer === shared.reviewer);
    const recent = own.filter((one) => Date.now() - one.time < 5 * 60e3);
    if (recent.length >= 5) {
      const minutes = Math.max((Date.now() - recent[0].time) / 60e3, 1 / 60);
      const rate = recent.length / minutes;
      const left = this.open / rate;
      parts.push(`${Math.round(rate)}/min`, left < 600 ? `${plural(Math.ceil(left), "minute")} left` : `${plural(Math.round(left / 60), "hour")} left`);
    }
    const judged = own.filter((one) => one.action === "keep" || one.action === "relabel").slice(-20);
    if (judged.length >= 8) {
      const wrong = judged.filter((one) => one.action === "relabel").length;
      parts.push(`about ${Math.round((10 * wrong) / judged.length)} of 10 here are wrong`);
    }
    const bar = h("progress", { max: Math.max(1, this.total), value: done, "aria-label": "Decided" });
    const filters = Object.entries(this.view).filter(([name]) => !["only", "sort", "order"].includes(name));
    put(this.progress,
      bar,
      h("p", {}, parts.join(" · ")),
      filters.length ? [h("span", {}, this.filterWords()), h("a", { href: "#queue" }, "all suspects")] : null,
      h("a", { href: address("grid", this.view) }, "as a grid"),
    );
  }

  filterWords() {
    const { label, prediction, group, by, text, lasso } = this.view;
    const parts = [
      label && `label ${shared.name(Number(label))}`, prediction && `prediction ${shared.name(Number(prediction))}`,
      group && shared.about.groups[Number(group)], by && (this.view.low || this.view.high) && `a range of ${by}`, text && `examples that contain “${text}”`, lasso && "a region of the map",
    ];
    return `only ${parts.filter(Boolean).join(", ") || "some examples"}`;
  }

  async show(item, { back = false } = {}) {
    this.isReady = this.isOver = false;
    const wasReady = this.images.get(item.index)?.node !== undefined;
    const image = await this.image(item.index);
    if (this.stop.signal.aborted) return;
    this.picture.classList.remove("zoomed");
    put(this.picture, image.node);
    this.picture.classList.toggle("tiny", image.isTiny);
    this.picture.dataset.index = item.index;
    this.note = image.note;
    this.showPanel(item, image.note);
    this.showActions(item);
    this.showLast();
    this.showProgress();
    const place = { ...this.view, ...(item.place !== null && item.place !== undefined ? { at: item.place } : {}) };
    if (this.view.only === "suspects") delete place.only;
    replace("queue", item.place === null || back ? { ...place, index: item.index } : place);
    say(`Example ${item.index}: label ${shared.name(item.label)}. ${item.reason}`);
    performance.mark("shown", { detail: { index: item.index, wasReady } });
    // keys are ignored until the picture is painted, which is certain two frames later: nobody should
    // decide about a picture that was not visible yet
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    if (this.current === item) {
      this.isReady = true;
      this.picture.dataset.ready = item.index;
      performance.mark("painted", { detail: item.index });
    }
    this.prefetch();
  }

  async image(index) {
    if (this.images.has(index)) return this.images.get(index);
    const made = largeView(index);
    this.images.set(index, made);
    const done = await made;
    this.images.set(index, done);
    if (done.note) this.images.delete(index); // a note says that a better picture may come
    return done;
  }

  prefetch() {
    const wanted = new Set([
      ...this.trail.slice(Math.max(0, this.at - BEHIND), this.at + 2).map((item) => item.index),
      ...this.ahead.slice(0, AHEAD).map((item) => item.index),
    ]);
    for (const index of this.images.keys()) if (!wanted.has(index)) this.images.delete(index);
    for (const index of wanted) this.image(index);
  }

  showPanel(item, note) {
    const scores = new Map(shared.about.scores.map((one) => [one.name, one]));
    const facts = item.scores.map(([name, value, share]) => {
      const about = scores.get(name);
      return h("tr", {},
        h("th", { scope: "row", title: about.meaning }, about.title, about.unit ? h("span", { class: "soft" }, `, ${about.unit}`) : null),
        h("td", {}, number(value)),
        h("td", { class: "soft" }, share === null ? "" : `above ${below(share)}`));
    });
    const path = item.curve.length ? curve(item.curve) : null;
    const verdict = item.action ? h("p", { class: "verdict" }, `You decided: ${this.words(item)}`) : null;
    const others = item.others.map((one) => h("p", { class: one.new === item.new && one.action === item.action ? "verdict" : "verdict differs" },
      h("bdi", {}, one.reviewer), ` decided: ${this.words({ ...one, label: item.label })}`));
    const open = this.panel.querySelector("details")?.open ?? window.matchMedia("(min-width: 60rem)").matches;
    put(this.panel,
      h("h2", {}, h("bdi", { class: "class" }, shared.name(item.label)),
        item.suggestion >= 0 ? [h("span", { class: "arrow" }, " → "), h("bdi", { class: "class suggested" }, shared.name(item.suggestion))] : null),
      item.prediction < 0 ? null : h("p", { class: "soft prediction" }, "prediction ", h("bdi", {}, shared.name(item.prediction)), ` · ${item.group}`),
      h("p", { class: "reason" }, item.reason),
      item.error_share === null ? null : this.share(item),
      verdict, others,
      note ? h("p", { class: "missing-note" }, note) : null,
      item.nearest.length ? angleDiagram(item.nearest, item.label) : null,
      shared.about.nearest_note ? h("p", { class: "soft hint" }, shared.about.nearest_note, ".") : null,
      shared.about.has_nearest && !item.nearest.length ? h("p", { class: "soft hint" }, "The nearest classes are stored only for the examples whose label is most in doubt.") : null,
      shared.about.has_similar ? this.similar(item) : null,
      this.map(item),
      path ? h("figure", {}, path, h("figcaption", { class: "soft" }, "Probability of the label through training")) : null,
      h("details", { open }, h("summary", {}, "Scores"), h("table", { class: "facts" }, h("tbody", {}, facts))),
      // last, since it is the same for every example of the run
      item.error_share === null && shared.about.share_note ? h("p", { class: "soft hint" }, `How many such labels are wrong is not known: ${shared.about.share_note}.`) : null,
      h("p", { class: "soft id" }, `example ${item.index} · `, h("bdi", {}, item.id)),
    );
  }

  share(item) {
    const note = shared.about.share_note;
    const rounded = Math.round(10 * item.error_share);
    const few = rounded === 0 ? "By estimate, fewer than 1 of 20 such labels is wrong." : null;
    const about = rounded === 10 ? "By estimate, nearly all such labels are wrong." : `By estimate, about ${rounded} of 10 such labels are wrong.`;
    return h("p", { class: "soft" }, few ?? (note ? `By estimate, at most about ${rounded} of 10 such labels are wrong, probably fewer: ${note}.` : about));
  }

  similar(item) {
    // The nearest examples by embedding. They are added when they arrive; the queue does not wait.
    const list = h("ul", {});
    const box = h("figure", { class: "similar" }, h("figcaption", { class: "soft" }, "Most similar examples"), list);
    const known = item.similar ??= get(`similar/${item.index}`, {}, this.stop.signal);
    known.then(({ similar }) => {
      put(list, similar.map((one) => {
        const thumb = h("span", { class: "thumb" });
        small.want(one.index).then((found) => put(thumb, smallView(found)));
        return h("li", {}, h("button", { type: "button", title: one.id, class: one.label === item.label ? "" : "other", onclick: () => this.open_(one.index), "aria-label": `example ${one.index}, label ${shared.name(one.label)}, at ${degrees(one.angle)}` },
          thumb, h("bdi", {}, shared.name(one.label)), h("span", { class: "soft" }, degrees(one.angle))));
      }));
      if (!similar.length) put(box, h("figcaption", { class: "soft" }, "No similar examples: its embedding is zero or not finite"));
    }).catch((error) => { item.similar = undefined; if (error.name !== "AbortError") put(box, h("figcaption", { class: "soft" }, error.message)); });
    return box;
  }

  map(item) {
    // Where the model looked. Another process makes the map; it is added when it arrives.
    if (!this.picture.querySelector("img")) return null;
    if (item.map === null && kept.get(MAPS) !== "on") {
      return h("button", { type: "button", class: "ask", onclick: () => this.toggleMaps(), "aria-keyshortcuts": "M" }, h("kbd", {}, "M"), "where the model looked");
    }
    const place = h("span", { class: "thumb" });
    const words = h("figcaption", { class: "soft" }, "Grad-CAM is being computed …");
    const box = h("figure", { class: "cam" }, place, words);
    const ask = async () => {
      const ahead = this.ahead.slice(0, 3).map((one) => one.index).join(",");
      const found = await get(`explained/${item.index}`, { ahead }, this.stop.signal);
      if (this.current !== item) return;
      if (found.state === "pending") setTimeout(() => box.isConnected && ask().catch(failed), MAP_MS);
      else if (found.state === "none") put(words, `No Grad-CAM map: ${found.note}`);
      else {
        put(place, smallView(await maps.want(item.index)));
        put(words, "Where the model looked (Grad-CAM) for ", h("bdi", {}, shared.name(found.prediction)));
      }
    };
    const failed = (error) => { if (error.name !== "AbortError") put(words, error.message); };
    ask().catch(failed);
    return box;
  }

  toggleMaps() {
    const isOn = kept.get(MAPS) !== "on";
    kept.set(MAPS, isOn ? "on" : "off");
    say(isOn ? "Grad-CAM maps are shown" : "Grad-CAM maps are not shown");
    if (this.current && this.isReady) this.showPanel(this.current, this.note);
  }

  words(item) {
    if (item.action === "relabel" && item.label < 0) return shared.name(item.new);
    if (item.action === "relabel") return `${shared.name(item.new)} instead of ${shared.name(item.label)}`;
    if (item.action === "keep") return `${shared.name(item.label)} is right`;
    return WORDS[item.action] ?? "";
  }

  digits(item) {
    const fixed = shared.about.digits;
    // sorted by class, because JavaScript orders the keys of an object by number: 0 would come before 1
    if (Object.keys(fixed).length) return Object.entries(fixed).sort((one, other) => one[1] - other[1]);
    const near = [item.suggestion, item.prediction, ...item.nearest.map((one) => one.label),
      ...shared.about.pairs.filter(([label]) => label === item.label).map(([, other]) => other)];
    return [...new Set(near)].filter((label) => label >= 0 && label !== item.label).slice(0, 9).map((label, at) => [String(at + 1), label]);
  }

  showActions(item) {
    const button = (key, text, act, kind) => h("button", { type: "button", class: kind, onclick: act, "aria-keyshortcuts": key }, h("kbd", {}, key), h("bdi", {}, text));
    put(this.bar,
      item.suggestion >= 0 ? button("Enter", shared.name(item.suggestion), () => this.accept(), "main") : null,
      item.label >= 0 ? button("K", `keep ${shared.name(item.label)}`, () => this.keepLabel(), "main") : null,
      button("/", item.label >= 0 ? "another class" : "a class", () => this.choose()),
      button("C", "cannot tell", () => this.decide("cannot tell")),
      button("S", "skip", () => this.decide("skip")),
      button("U", "undo", () => this.undo()),
      button("Z", "zoom", () => this.zoom()),
      h("span", { class: "digits" }, this.digits(item).map(([key, label]) =>
        h("button", { type: "button", class: "digit", onclick: () => this.decide("relabel", label), "aria-keyshortcuts": key, "aria-label": `class ${shared.name(label)}` }, h("kbd", {}, key), shared.name(label) === key ? null : h("bdi", {}, shared.name(label))))),
    );
  }

  showLast() {
    const entries = this.recent.map((one) => {
      const what = one.action === "relabel" ? `${shared.name(one.old)} → ${shared.name(one.new)}` : WORDS[one.action];
      const text = one.count > 1 ? `${count(one.count)} examples ${WORDS[one.action]}` : `${one.index} ${what}`;
      return h("li", {}, one.count > 1 ? h("span", {}, text) : h("button", { type: "button", onclick: () => this.open_(one.index) }, h("bdi", {}, text)));
    });
    put(this.last, (entries.length ? [h("h2", { class: "soft" }, "Recent"), h("ol", { reversed: true }, entries)] : []));
  }

  showEnd() {
    this.isReady = false;
    this.isOver = true; // nothing is open any more
    put(this.picture);
    this.picture.removeAttribute("data-ready");
    put(this.bar, h("button", { type: "button", onclick: () => this.undo() }, h("kbd", {}, "U"), "undo"));
    const everything = this.view.only === "suspects";
    put(this.panel, h("h2", {}, this.total ? "All decided" : "Nothing here"),
      h("p", {}, this.total ? "Every example in this part of the queue is decided." : "No example matches the filter."),
      h("p", {}, h("a", { href: "#dashboard" }, "See what this changes"), everything ? [" or ", h("a", { href: "#queue?only=all" }, "continue with all examples"), "."] : "."));
    this.showLast();
    this.showProgress();
    say("All decided");
  }

  // ------------------------------------------------------------------ moving

  async fill() {
    const content = await get("queue", { ...this.view, after: this.after, count: AHEAD + 4 }, this.stop.signal);
    this.take(content);
    const known = new Set([...this.ahead, ...this.trail].map((item) => item.index));
    this.ahead.push(...content.items.filter((item) => !known.has(item.index)));
    if (content.items.length) this.after = content.items.at(-1).place + 1;
    else if (this.after && content.open) { // the open examples come before the place in the address
      this.after = 0;
      if (!this.ahead.length) await this.fill();
    }
  }

  take(content) {
    // an answer from before the last decision would count that example as open, and make U undo an
    // earlier decision
    if (content.seq >= shared.seq || !this.total) {
      shared.seq = Math.max(shared.seq, content.seq);
      [this.total, this.open] = [content.total, content.open];
      this.recent = content.recent;
    }
    if (content.problem && !this.isTold) notice(content.problem);
    this.isTold ||= Boolean(content.problem);
  }

  async next() {
    if (this.at < this.trail.length - 1) {
      this.at += 1;
      return this.show(this.current, { back: Boolean(this.current.action) });
    }
    if (!this.ahead.length) await this.fill();
    const item = this.ahead.shift();
    if (!item) return this.showEnd();
    this.trail.push(item);
    if (this.trail.length > 200) this.trail.shift();
    this.at = this.trail.length - 1;
    if (this.ahead.length < AHEAD) this.fill().then(() => this.prefetch()).catch(() => {});
    return this.show(item);
  }

  async back() {
    if (this.isBusy || (this.at <= 0 && !this.isOver)) return;
    if (!this.isOver) this.at -= 1; // after the end of the queue, the last example is the previous one
    if (!this.current) return;
    await this.show(this.current, { back: true });
  }

  async open_(index) {
    try {
      const item = await get(`example/${index}`, {}, this.stop.signal);
      this.trail = this.trail.filter((one) => one.index !== index);
      this.trail.push(item);
      this.at = this.trail.length - 1;
      await this.show(item, { back: true });
    } catch (error) {
      if (error.name !== "AbortError") notice(error.message);
    }
  }

  // ------------------------------------------------------------------ deciding

  accept() {
    const item = this.current;
    if (!item) return;
    if (item.suggestion >= 0) this.decide("relabel", item.suggestion);
    else notice(`There is no suggestion for this example. ${item.label < 0 ? "Choose" : "Keep its label, or choose"} a class with /.`, "note");
  }

  keepLabel() {
    const item = this.current;
    if (item && item.label < 0) notice("This example has no label to keep. Choose a class with its digit, or with /.", "note");
    else this.decide("keep");
  }

  choose() {
    const item = this.current;
    if (!item || !this.isReady) return;
    const first = this.digits(item).map(([, label]) => label);
    chooseClass(`Which class is example ${item.index}?`, first, (label) => this.decide("relabel", label));
  }

  async decide(action, label) {
    const item = this.current;
    if (!item || !this.isReady || this.isBusy) return;
    this.isBusy = true;
    performance.mark("decided", { detail: item.index });
    try {
      // with the index that is on the screen, so that a late key never hits the next example
      const content = await post("decide", { index: item.index, action, new: label ?? null, base: item.base });
      const kept = action === "relabel" && label === item.label;
      if (!item.action) this.open -= 1;
      Object.assign(item, { action: kept ? "keep" : action, new: action === "relabel" && !kept ? label : -1, base: content.base, others: content.others });
      this.recent = content.recent;
      made.push({ time: Date.now(), action: item.action, reviewer: shared.reviewer });
      const differing = content.others.filter((one) => one.action !== item.action || one.new !== item.new);
      if (differing.length) notice(differing.map((one) => `${one.reviewer} decided differently about example ${item.index}: ${this.words({ ...one, label: item.label })}.`).join(" "));
      else if (this.hasFailed || $("#notice").dataset.kind !== "warning") $("#notice").hidden = true;
      this.hasFailed = false; // a warning about it is now out of date
      $("#main").focus({ preventScroll: true });
      await this.next();
    } catch (error) {
      if (error instanceof Refused && error.status === 409) await this.conflict(item);
      else if (error.name !== "AbortError") {
        notice(`Not stored: ${error.message}`);
        this.hasFailed = true;
      }
    } finally {
      this.isBusy = false;
    }
  }

  async conflict(item) {
    const now = await get(`example/${item.index}`);
    Object.assign(item, { action: now.action, new: now.new, base: now.base, others: now.others });
    this.take(await get("queue", { ...this.view, count: 1 })); // how many are open by now
    await this.show(item, { back: true });
    notice(now.action
      ? `Meanwhile you decided example ${item.index} in another window: ${this.words(item)}. Nothing was overwritten; decide again to change it.`
      : `Meanwhile you undid your decision about example ${item.index} in another window. Decide again if you want to.`);
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
      const taken = made.findLastIndex((one) => one.reviewer === shared.reviewer);
      if (taken >= 0) made.splice(taken, 1);
      if (content.count > 1) {
        notice(`${count(content.count)} decisions undone.`, "note");
        this.ahead = [];
        this.after = 0;
        await this.fill();
        await this.next();
      } else {
        const item = await get(`example/${content.index}`);
        if (!item.action) this.open += 1; // else an earlier decision about it counts again
        const known = this.trail.findIndex((one) => one.index === content.index);
        if (known >= 0) {
          item.place = this.trail[known].place;
          this.trail[known] = item;
          this.at = known;
        } else {
          this.trail.splice(this.at, 0, item);
          this.at = Math.max(0, this.at);
        }
        await this.show(item);
        notice(item.action ? `Undone: example ${content.index} is again as you decided before: ${this.words(item)}.` : `Undone: example ${content.index} is open again.`, "note");
      }
    } catch (error) {
      if (error instanceof Refused && error.status === 409) {
        notice("That was already undone in another window.");
        await this.fill();
        this.showLast();
      } else if (error.name !== "AbortError") notice(`Not undone: ${error.message}`);
    } finally {
      this.isBusy = false;
    }
  }

  zoom() {
    const isOn = this.picture.classList.toggle("zoomed");
    say(isOn ? "Zoomed" : "Not zoomed");
  }

  // ------------------------------------------------------------------ keys and other windows

  key(event) {
    if (event.repeat || isTyping(event.target) || dialogIsOpen()) return false;
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z") return this.undo(), true;
    if (event.ctrlKey || event.metaKey || event.altKey) return false;
    if (isControl(event.target) && (event.key === "Enter" || event.key === " ")) return false;
    const act = {
      Enter: () => this.accept(), k: () => this.keepLabel(), "/": () => this.choose(),
      c: () => this.decide("cannot tell"), s: () => this.decide("skip"), u: () => this.undo(),
      z: () => this.zoom(), m: () => this.toggleMaps(), ArrowLeft: () => this.back(), ArrowRight: () => (this.at < this.trail.length - 1 && !this.isBusy ? this.next() : null),
      Escape: () => this.picture.classList.remove("zoomed"),
    }[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (act) return act(), true;
    const digit = this.current && this.digits(this.current).find(([key]) => key === event.key);
    if (digit) return this.decide("relabel", digit[1]), true;
    return false;
  }

  async changed(indices) {
    // Decisions of the same reviewer in another window.
    const known = new Set(indices);
    this.ahead = this.ahead.filter((item) => !known.has(item.index));
    const item = this.current;
    if (item && known.has(item.index) && !this.isBusy) {
      const now = await get(`example/${item.index}`);
      if (now.base !== item.base && this.current === item && !this.isBusy) await this.conflict(item);
    }
  }
}
