"use strict";
(() => {
  const $ = (selector, from = document) => from.querySelector(selector);
  const $$ = (selector, from = document) => [...from.querySelectorAll(selector)];

  // A picture that appears in several galleries is stored once; the others copy its address.
  function sharedPictures() {
    const stored = new Map($$("img[data-picture]").map((img) => [img.dataset.picture, img]));
    for (const img of $$("img[data-copy]")) img.src = stored.get(img.dataset.copy).src;
    return stored;
  }

  function sortableTable() {
    const table = $("#class-table");
    if (!table) return;
    const body = table.tBodies[0];
    const names = new Intl.Collator(undefined, { numeric: true });
    const headings = $$("thead th", table);
    headings.forEach((heading, column) => {
      const textual = column === 0;
      $("button", heading).addEventListener("click", () => {
        const up = heading.hasAttribute("aria-sort")
          ? heading.getAttribute("aria-sort") === "descending" : textual;
        for (const other of headings) other.removeAttribute("aria-sort");
        heading.setAttribute("aria-sort", up ? "ascending" : "descending");
        const value = (row) => row.cells[column].dataset.v;
        const compare = (a, b) => {
          if (textual) return (up ? 1 : -1) * names.compare(value(a), value(b));
          if (value(a) === "" || value(b) === "") return (value(a) === "") - (value(b) === ""); // none: last
          return (up ? 1 : -1) * (value(a) - value(b));
        };
        body.append(...[...body.rows].sort(compare));
      });
    });
  }

  function classFilter() {
    const input = $("#class-filter");
    if (!input) return;
    const rows = [...$("#class-table").tBodies[0].rows];
    input.addEventListener("input", () => {
      const wanted = input.value.trim().toLocaleLowerCase();
      for (const row of rows) row.hidden = !row.cells[0].dataset.v.toLocaleLowerCase().includes(wanted);
      const shown = rows.filter((row) => !row.hidden).length;
      $("#class-count").textContent = `${shown.toLocaleString("en")} of ${rows.length.toLocaleString("en")} classes`;
    });
  }

  function classPicker() {
    const picker = $("#class-picker");
    if (!picker) return;
    const show = () => {
      for (const panel of $$(".panel")) panel.classList.toggle("current", panel.id === `class-${picker.value}`);
      for (const button of $$("[data-pick]")) {
        const next = picker.selectedIndex + Number(button.dataset.pick);
        button.disabled = next < 0 || next >= picker.length;
      }
    };
    const followAddress = () => {
      const label = /^#class-(\d+)$/.exec(location.hash)?.[1];
      if (label === undefined || ![...picker.options].some((option) => option.value === label)) return;
      picker.value = label;
      show();
      $("#class-examples").scrollIntoView();
      picker.focus({ preventScroll: true });
    };
    picker.addEventListener("change", show);
    for (const button of $$("[data-pick]")) button.addEventListener("click", () => {
      picker.selectedIndex += Number(button.dataset.pick);
      show();
    });
    for (const link of $$('#class-table a')) link.addEventListener("click", (event) => {
      event.preventDefault();
      if (location.hash === link.hash) followAddress();
      else location.hash = link.hash;
    });
    addEventListener("hashchange", followAddress);
    show();
    followAddress();
  }

  function picture(stored, row) {
    const original = stored.get(String(row));
    if (!original) return null;
    const copy = new Image();
    copy.src = original.src;
    copy.alt = original.alt;
    copy.className = original.className;
    return copy;
  }

  function element(tag, text, className = "") {
    const made = document.createElement(tag);
    made.textContent = text; // never markup: names come from files
    made.className = className;
    return made;
  }

  function words(example) {
    return example.text ? element("p", example.text, "words") : null;
  }

  function verdict(example) {
    const parts = [element("bdi", example.label)];
    if (example.outcome === "right") parts.push(" ", element("span", "✓ predicted right", "mark"));
    else parts.push(" → ", element("bdi", example.prediction));
    return parts;
  }

  function enlargedView(data, stored) {
    const dialog = $("#enlarged");
    let rows = [];
    let at = 0;
    const fill = () => {
      const example = data.examples[rows[at]];
      $(".enlarged-picture", dialog).replaceChildren(picture(stored, rows[at]) ?? words(data.examples[rows[at]]) ?? "no picture");
      $("h2 bdi", dialog).textContent = example.id;
      const line = $(".verdict", dialog);
      line.replaceChildren(...verdict(example));
      line.parentElement.className = `enlarged-facts ${example.outcome}`;
      $(".reason", dialog).textContent = example.reason ?? "";
      $("dl", dialog).replaceChildren(...data.columns.map(([title, unit], i) => {
        const pair = document.createElement("div");
        pair.append(element("dt", title), element("dd", unit ? `${example.values[i]} ${unit}` : example.values[i]));
        return pair;
      }));
      for (const button of $$("[data-step]", dialog)) {
        const next = at + Number(button.dataset.step);
        button.disabled = next < 0 || next >= rows.length;
      }
    };
    const step = (by) => { if (rows[at + by] !== undefined) { at += by; fill(); } };
    for (const button of $$("[data-step]", dialog)) button.addEventListener("click", () => step(Number(button.dataset.step)));
    $("[data-close]", dialog).addEventListener("click", () => dialog.close());
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
    dialog.addEventListener("keydown", (event) => {
      if (event.key === "ArrowLeft") step(-1);
      if (event.key === "ArrowRight") step(1);
    });
    const open = (list, start) => { rows = list; at = start; fill(); dialog.showModal(); };
    for (const button of $$(".open")) button.addEventListener("click", () => {
      const siblings = $$(".open", button.closest(".cards"));
      open(siblings.map((one) => one.dataset.row), siblings.indexOf(button));
    });
    return open;
  }

  function mapPoints(layer, data, stored, open) {
    const points = $$(".pt", layer);
    const tip = $("#tip");
    if (!points.length) return;
    const rows = points.map((point) => point.dataset.row);
    let current = -1;
    const hide = () => { tip.hidden = true; points[current]?.classList.remove("current"); };
    const show = (i) => {
      points[current]?.classList.remove("current");
      current = i;
      points[i].classList.add("current");
      const example = data.examples[rows[i]];
      const text = document.createElement("div");
      const line = element("p", "", "verdict");
      line.append(...verdict(example));
      text.className = example.outcome;
      text.append(line, element("p", example.id, "id"));
      const image = picture(stored, rows[i]) ?? words(example);
      tip.replaceChildren(...(image ? [image] : []), text);
      tip.hidden = false;
      const box = points[i].getBoundingClientRect();
      tip.style.left = `${Math.max(8, Math.min(innerWidth - tip.offsetWidth - 8, box.left + 14))}px`;
      tip.style.top = `${box.bottom + 10 + tip.offsetHeight > innerHeight ? box.top - tip.offsetHeight - 10 : box.bottom + 10}px`;
    };
    points.forEach((point, i) => {
      point.addEventListener("pointerenter", () => show(i));
      point.addEventListener("pointerleave", hide);
      point.addEventListener("click", () => { hide(); open(rows, i); });
    });
    const moves = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    layer.addEventListener("keydown", (event) => {
      if (moves[event.key]) {
        event.preventDefault();
        const from = current < 0 && moves[event.key] < 0 ? 0 : current;
        show((from + moves[event.key] + points.length) % points.length);
      } else if (event.key === "Enter" && current >= 0) {
        event.preventDefault(); // or the same key press would also push a button of the dialog
        hide();
        open(rows, current);
      } else if (event.key === "Escape") hide();
    });
    layer.addEventListener("blur", hide);
    addEventListener("scroll", hide, { passive: true });
  }

  document.addEventListener("DOMContentLoaded", () => {
    sortableTable();
    classFilter();
    classPicker();
    const stored = sharedPictures();
    const data = JSON.parse($("#examples-data").textContent);
    const open = enlargedView(data, stored);
    for (const layer of $$(".points")) mapPoints(layer, data, stored, open);
  });
})();
