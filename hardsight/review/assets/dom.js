// Elements from plain values. Text from data only ever becomes a text node, so a class name or an id
// cannot inject HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
export const put = (element, ...children) => { // in place of what is there
  element.replaceChildren();
  return fill(element, {}, children);
};
export const $ = (selector, within = document) => within.querySelector(selector);

export const count = (value) => Math.round(value).toLocaleString("en");
export const plural = (value, noun, many = `${noun}s`) => `${count(value)} ${value === 1 ? noun : many}`;
export const percent = (share) => `${(100 * share).toFixed(1)}%`;
export const below = (share) => (share >= 0.9995 ? "all others" : share < 0.0005 ? "none" : `${(Math.floor(1000 * share) / 10).toFixed(1)}%`);
export const degrees = (radians) => `${Math.round((radians * 180) / Math.PI)}°`;

export function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  const text = size !== 0 && (size >= 1e5 || size < 1e-3) ? value.toExponential(2) : String(Number(value.toPrecision(4)));
  return text.replace("-", "−");
}

export function say(text) {
  $("#live").textContent = text; // for screen readers
}

let fading = 0;

export function notice(text, kind = "warning") {
  const box = $("#notice");
  $("p", box).textContent = text;
  box.dataset.kind = kind;
  box.hidden = false;
  clearTimeout(fading);
  if (kind === "note") fading = setTimeout(() => { box.hidden = true; }, 6000);
}

export function dialog(title, ...children) {
  const heading = h("h2", { id: "dialog-title" }, title);
  const box = h("dialog", { "aria-labelledby": "dialog-title" }, heading, ...children);
  box.addEventListener("close", () => box.remove());
  box.addEventListener("click", (event) => { if (event.target === box) box.close(); });
  document.body.append(box);
  box.showModal();
  return box;
}

export const isTyping = (target) => target instanceof HTMLElement && target.matches("input, select, textarea");
export const isControl = (target) => target instanceof HTMLElement && target.matches("button, a, summary");
export const dialogIsOpen = () => $("dialog[open]") !== null;
