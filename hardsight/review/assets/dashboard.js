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
        : card("Errors left, estimated", "–", "shown after the first decisions"),
      accuracy ? card("Accuracy", `${percent(accuracy.before)} → ${percent(accuracy.after)}`, `same predictions, labels before and after the review, ${count(accuracy.rows)} examples`) : null,
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
      left ? h("p", { class: "how" }, `Of the ${plural(left.decided, "suspect")} decided so far, ${count(left.wrong)} had a wrong label: ${percent(left.wrong_share[1])}, with a 95% interval from ${percent(left.wrong_share[0])} to ${percent(left.wrong_share[2])}. The estimate goes through the queue part by part and assumes that open examples are wrong as often as decided ones in the same part. For a part that nobody has reviewed, the share lies between those of the reviewed parts before and after it; after the last reviewed part, between its share and zero.`) : null,
      h("h2", {}, "Reviewers"),
      reviewers.length
        ? h("div", { class: "wide" }, h("table", {}, h("thead", {}, h("tr", {}, ["Name", "Kept", "Changed", "Cannot tell", "Skipped"].map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, reviewers)))
        : h("p", { class: "how" }, "Nobody has decided anything yet."),
      agreement.length ? [
        h("h2", {}, "Agreement"),
        h("p", { class: "how" }, "How often two reviewers chose the same class for the examples that both decided, and Cohen's kappa, the agreement beyond chance."),
        h("div", { class: "wide" }, h("table", {}, h("thead", {}, h("tr", {}, ["Reviewers", "Both decided", "Same class", "Kappa"].map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, agreement))),
      ] : [],
      differing.length ? [h("h2", {}, "Disagreements"), h("p", { class: "how" }, "Open an example, talk about it, and change your decision if you are convinced."), h("ul", { class: "differing" }, differing)] : [],
      found.classes.length ? [
        h("h2", {}, "By class"),
        h("div", { class: "wide" }, h("table", {}, h("thead", {}, h("tr", {}, ["Label", "Suspects", "Decided", "Changed"].map((name) => h("th", { scope: "col" }, name)))),
          h("tbody", {}, found.classes.map((one) => h("tr", {},
            h("th", { scope: "row" }, h("a", { href: address("queue", { label: one.label }) }, h("bdi", {}, shared.name(one.label)))),
            [one.suspects, one.decided, one.changed].map((value) => h("td", {}, count(value)))))))),
        found.more_classes ? h("p", { class: "how" }, `${plural(found.more_classes, "more class", "more classes")} with fewer suspects; the grid can filter by any of them`) : null,
      ] : [],
    );
  }
}
