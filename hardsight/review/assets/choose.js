// A dialog to find a class by typing. Choosing a class stores the decision.

import { count, dialog, h } from "./dom.js";
import { shared } from "./api.js";

const MOST = 60;

export function chooseClass(title, first, chosen) {
  const input = h("input", {
    type: "text", role: "combobox", "aria-expanded": "true", "aria-controls": "class-list",
    "aria-autocomplete": "list", "aria-label": "Class", placeholder: "type to find a class", autocomplete: "off", spellcheck: "false",
  });
  const list = h("ul", { id: "class-list", role: "listbox", "aria-label": "Classes" });
  const more = h("p", { class: "soft" });
  const box = dialog(title, input, list, more);
  let found = [], at = 0;

  const show = () => {
    const part = input.value.trim().toLowerCase();
    const every = shared.about.classes.map((name, label) => ({ name, label }));
    const known = new Set(first);
    const ordered = [...first.map((label) => every[label]).filter(Boolean), ...every.filter((one) => !known.has(one.label))];
    const matches = ordered.filter((one) => one.name.toLowerCase().includes(part));
    if (part) { // an exact match first, then names that begin with the text
      const rank = (one) => (one.name.toLowerCase() === part ? 0 : one.name.toLowerCase().startsWith(part) ? 1 : 2);
      matches.sort((a, b) => rank(a) - rank(b));
    }
    found = matches.slice(0, MOST);
    at = Math.min(at, Math.max(0, found.length - 1));
    list.replaceChildren(...found.map((one, place) => h("li", {
      id: `class-${place}`, role: "option", "aria-selected": place === at ? "true" : "false",
      onclick: () => pick(place),
    }, h("bdi", {}, one.name))));
    more.textContent = matches.length > MOST ? `and ${count(matches.length - MOST)} more: keep typing` : found.length ? "" : "no class has this name";
    if (found.length) input.setAttribute("aria-activedescendant", `class-${at}`);
    else input.removeAttribute("aria-activedescendant");
    list.children[at]?.scrollIntoView({ block: "nearest" });
  };
  const pick = (place) => {
    if (!found[place]) return;
    box.close();
    chosen(found[place].label);
  };
  input.addEventListener("input", () => { at = 0; show(); });
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      at = Math.max(0, Math.min(found.length - 1, at + (event.key === "ArrowDown" ? 1 : -1)));
      show();
    } else if (event.key === "Enter" && !event.repeat) {
      pick(at);
    } else return;
    event.preventDefault();
  });
  show();
  input.focus();
}
