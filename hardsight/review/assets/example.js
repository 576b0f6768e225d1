// How an example is shown, large and small. Only this file knows whether it is a picture or a text.

import { h } from "./dom.js";
import { large } from "./api.js";

const TINY = 64; // up to this many pixels a side a picture keeps its pixels sharp
const LONGEST = 120; // letters of a text in a small place

const nothing = () => h("div", { class: "missing", role: "img", "aria-label": "No picture" }, h("span", {}, "no picture"));

async function decoded(url, alt) {
  const node = h("img", { alt, src: url, decoding: "sync" });
  try { await node.decode(); } catch { /* shown as far as it goes */ }
  return { node, isTiny: Math.max(node.naturalWidth, node.naturalHeight) <= TINY };
}

export async function largeView(index, found = undefined) {
  // { node, note, isTiny }, ready to be shown at once.
  const shown = found ?? await large.want(index);
  if (shown?.text !== undefined) return { node: h("div", { class: "text", tabindex: "0", role: "region", "aria-label": `Text of example ${index}` }, shown.text), note: shown.note };
  if (!shown?.url) return { node: nothing(), note: shown?.note ?? "no picture" };
  return { ...await decoded(shown.url, `Example ${index}`), note: shown.note };
}

export function smallView(found) {
  if (found?.text !== undefined) return h("span", { class: "soft" }, found.text.slice(0, LONGEST));
  if (!found?.url) return h("span", { class: "soft" }, "no picture");
  const image = h("img", { alt: "", src: found.url, draggable: "false" });
  image.addEventListener("load", () => { if (Math.max(image.naturalWidth, image.naturalHeight) <= TINY) image.classList.add("tiny"); });
  return image;
}
