// Start, pages, keys and what all pages share.

import { $, dialog, dialogIsOpen, h, isTyping, notice } from "./dom.js";
import { get, kept, setToken, shared, takeToken } from "./api.js";
import { readAddress, replace } from "./view.js";
import { Queue } from "./queue.js";
import { Grid } from "./grid.js";
import { Dashboard } from "./dashboard.js";

const POLL_MS = 3000;
const PAGES = { queue: Queue, grid: Grid, dashboard: Dashboard };
const KEYS = [
  ["Queue", [["Enter", "accept the suggested class"], ["K", "keep the label"], ["/", "another class: type to find it, Enter to choose it"],
    ["1 … 9, 0", "the class next to the digit"], ["C", "cannot tell"], ["S", "skip"], ["U or Ctrl+Z", "undo, even after a reload"],
    ["Z", "zoom"], ["M", "show or hide where the model looked (Grad-CAM)"], ["← →", "previous and next example"]]],
  ["Grid", [["arrows", "move"], ["Space", "mark"], ["Shift", "with arrows or a click: mark a range"], ["A", "mark everything that matches the filter"],
    ["Enter, K, /, C, S", "decide for all marked examples"], ["O", "open in the queue"], ["Escape", "unmark"], ["Home, End", "first, last"]]],
  ["Everywhere", [["G, Q, D", "grid, queue, dashboard"], ["?", "show these keys"]]],
];

let page = null;

function show() {
  const { page: name, values } = readAddress();
  page?.close();
  $("#notice").hidden = true; // it was about the page that is left
  document.body.dataset.page = name;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.page === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  page = new PAGES[name]($("#main"), values);
  page.start();
}

function help() {
  if (dialogIsOpen()) return;
  const parts = KEYS.map(([title, keys]) => h("section", {}, h("h3", {}, title),
    h("dl", { class: "keys" }, keys.map(([key, text]) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, text))))));
  const box = dialog("Keys", h("div", { class: "sheet" }, parts), h("button", { type: "button", onclick: () => box.close() }, "Close"));
}

function askName() {
  const input = h("input", { type: "text", value: shared.reviewer, maxlength: "40", "aria-label": "Your name", autocomplete: "off" });
  const form = h("form", { method: "dialog" }, h("p", {}, "Every reviewer decides independently. You see what others decided about an example once you have decided about it yourself."), input,
    h("button", { type: "submit", class: "main" }, "Use this name"));
  const box = dialog("Who is reviewing?", form);
  form.addEventListener("submit", () => {
    const name = input.value.trim();
    if (!name) return;
    shared.reviewer = name;
    $("#reviewer").textContent = name;
    const { page: shown, values: { at, index, ...view } } = readAddress(); // the place was another's
    replace(shown, view);
    show();
  });
  input.select();
  return box;
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

function toggleTheme() {
  const isDark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  kept.set("hardsight-theme", isDark ? "light" : "dark");
  setTheme(isDark ? "light" : "dark");
}

async function poll() {
  if (document.visibilityState === "visible" && page) {
    try {
      const since = shared.seq;
      const { seq, changed, count } = await get("changes", { since });
      if (seq > shared.seq) {
        shared.seq = seq;
        if (count && page) await page.changed(changed);
      }
    } catch { /* if the app is gone, the next decision reports it */ }
  }
  setTimeout(poll, POLL_MS);
}

function keys(event) {
  if (page?.key(event)) {
    event.preventDefault();
    return;
  }
  if (event.repeat || event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target) || dialogIsOpen()) return;
  if (event.key === "?") help();
  const name = { q: "queue", g: "grid", d: "dashboard" }[event.key.toLowerCase()];
  if (name) location.hash = `#${name}`;
}

function askToken(why) {
  const input = h("input", { type: "password", "aria-label": "Token", autocomplete: "off" });
  const form = h("form", {}, h("h1", {}, "Almost there"), h("p", {}, why),
    h("p", {}, "Open the full address that the command printed, or enter the part after ", h("code", {}, "#token="), "."),
    input, h("button", { type: "submit", class: "main" }, "Continue"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    setToken(input.value.trim().replace(/^.*token=/, ""));
    begin();
  });
  $("#main").replaceChildren(h("div", { class: "empty" }, form));
  input.focus();
}

async function begin() {
  try {
    shared.about = await get("start", { reviewer: "" });
  } catch (error) {
    if (error.status === 401) askToken("This page needs a token.");
    else $("#main").replaceChildren(h("p", { class: "empty" }, error.message));
    return;
  }
  shared.seq = shared.about.seq;
  document.title = `${shared.about.title} · hardsight review`;
  $("#title").textContent = shared.about.title;
  $("#reviewer").textContent = shared.reviewer;
  show();
  addEventListener("hashchange", () => {
    if (new URLSearchParams(location.hash.slice(1)).get("token")) takeToken();
    show();
  });
  document.addEventListener("keydown", keys);
  setTimeout(poll, POLL_MS);
}

setTheme(kept.get("hardsight-theme"));
$("#help").addEventListener("click", help);
$("#theme").addEventListener("click", toggleTheme);
$("#reviewer").addEventListener("click", askName);
$("#skip").addEventListener("click", () => $("#main").focus());
$("#notice button").addEventListener("click", () => { $("#notice").hidden = true; });
addEventListener("unhandledrejection", (event) => { if (event.reason?.name !== "AbortError") notice(String(event.reason?.message ?? event.reason)); });
if (takeToken()) begin();
else askToken("This page needs a token.");
