// What is decided, what is left, and what it changes.

import { count, h, notice, percent, plural, put } from "./dom.js";
import { get, shared } from "./api.js";
import { address } from "./view.js";

const card = (title, value, ...more) => h("div", {}, h("dt", {}, title), h("dd", {}, h("span", { class: "value" }, value), h("span", {}, ...more)));

export class Dashboard {
  constructor(root) {
    this.root = root;
    this.stop = new AbortController();
  }

  async start() {
    try {
      this.show(await get("dashboard", {}, this.stop.signal));
    } catch (error) {
      if (error.name !== "AbortError") notice(error.message);
    }
  }

  close() { this.stop.abort(); }

  key() { return false; }

  changed() { return this.start(); }

  show(found) {
    const { accuracy, left } = found;
    const agreed = found.unresolved ? `${plural(found.unresolved, "disagreement")} unresolved` : found.agreement.some((one) => one.both) ? "all reviewers agree on them" : `of ${plural(found.decided, "decision")}`;
    const cards = [
      card("Decided", count(found.decided), `of ${plural(found.suspects, "suspect")} and ${plural(found.rows, "example")}`),
      card("Labels changed", count(found.changed), agreed),
      left
        ? card("Errors left, estimated", count(left.estimate), `between ${count(left.low)} and ${count(left.high)}, among ${plural(left.open, "open suspect")}`)
        : card("Errors left, estimated", "–", "known after the first decisions"),
      accuracy ? card("Accuracy", `${percent(accuracy.before)} → ${percent(accuracy.after)}`, `the same predictions, labels before and after, ${count(accuracy.rows)} examples`) : null,
    ];
    const reviewers = found.reviewers.map((one) => h("tr", {},
      h("th", { scope: "row" }, h("bdi", {}, one.name)),
      ["keep", "relabel", "cannot tell", "skip"].map((action) => h("td", {}, count(one[action])))));
    const agreement = found.agreement.map((one) => h("tr", {},
      h("th", { scope: "row" }, h("bdi", {}, one.names[0]), " and ", h("bdi", {}, one.names[1])),
      h("td", {}, count(one.both)),
      h("td", {}, one.both ? percent(one.same / one.both) : "–"),
      h("td", {}, one.kappa === null ? "–" : one.kappa.toFixed(2))));
    const differing = found.disagreements.map((one) => h("li", {},
      h("a", { href: `#queue?index=${one.index}` }, `example ${one.index}`), " ", h("bdi", { class: "soft" }, one.id), ": ",
      Object.entries(one.said).map(([name, label], at) => [at ? ", " : "", h("bdi", {}, name), " says ", h("bdi", {}, label < 0 ? "cannot tell" : shared.name(label))])));
    put(
      this.root,
      h("h1", {}, "Dashboard"),
      h("dl", { class: "cards" }, cards),
      left ? h("p", { class: "how" }, `Of ${plural(left.decided, "suspect")} decided, ${count(left.wrong)} had a wrong label: ${percent(left.wrong_share[1])}, between ${percent(left.wrong_share[0])} and ${percent(left.wrong_share[2])}. The estimate takes the share of each part of the queue from what was decided there; a part that nobody has looked into has a share between those of the parts before and after it that somebody has, or none at the end.`) : null,
      h("h2", {}, "Reviewers"),
      reviewers.length
        ? h("div", { class: "wide" }, h("table", {}, h("thead", {}, h("tr", {}, ["Name", "Kept", "Changed", "Cannot tell", "Skipped"].map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, reviewers)))
        : h("p", { class: "how" }, "Nobody has decided anything yet."),
      agreement.length ? [
        h("h2", {}, "Agreement"),
        h("p", { class: "how" }, "How often two reviewers give the same class to the examples that both decided, and Cohen's kappa: the agreement beyond chance."),
        h("div", { class: "wide" }, h("table", {}, h("thead", {}, h("tr", {}, ["Reviewers", "Both decided", "Same class", "Kappa"].map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, agreement))),
      ] : [],
      differing.length ? [h("h2", {}, "To be resolved"), h("p", { class: "how" }, "Open one, talk about it, and change your decision if you are convinced."), h("ul", { class: "differing" }, differing)] : [],
      found.classes.length ? [
        h("h2", {}, "By class"),
        h("div", { class: "wide" }, h("table", {}, h("thead", {}, h("tr", {}, ["Label", "Suspects", "Decided", "Changed"].map((name) => h("th", { scope: "col" }, name)))),
          h("tbody", {}, found.classes.map((one) => h("tr", {},
            h("th", { scope: "row" }, h("a", { href: address("queue", { label: one.label }) }, h("bdi", {}, shared.name(one.label)))),
            [one.suspects, one.decided, one.changed].map((value) => h("td", {}, count(value)))))))),
        found.more_classes ? h("p", { class: "how" }, `and ${plural(found.more_classes, "class", "classes")} more, with fewer suspects: the grid filters by each`) : null,
      ] : [],
    );
  }
}
