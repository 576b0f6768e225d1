// Small pictures: angles to the nearest classes, and the label's probability through training.

import { degrees, svg } from "./dom.js";
import { shared } from "./api.js";

const text = (x, y, content, attributes = {}) => svg("text", { x, y, ...attributes }, content);

const LINE = 14; // from one label to the next

export function angleDiagram(nearest, label) {
  // A ray for each class. Its angle from the horizontal is the angle between the class and the example.
  const width = 360, height = 150, middle = 180, base = 128, reach = 92;
  const words = nearest.map((one) => `${one.label < 0 ? "the nearest other class" : shared.name(one.label)} at ${degrees(one.angle)}`);
  const place = (angle, radius) => [middle + radius * Math.cos(angle), base - radius * Math.sin(angle)];
  const labels = nearest.map((one) => {
    const [x, y] = place(one.angle, reach + 10);
    return { one, isLeft: one.angle > Math.PI / 2, x, y: y + 4 };
  });
  for (const side of [labels.filter((one) => one.isLeft), labels.filter((one) => !one.isLeft)]) {
    // from the top down: a text that would cover the one above it moves below it, and outside the rays next to it
    let column = [];
    for (const next of side.sort((a, b) => a.y - b.y)) {
      const above = column.at(-1);
      column = above && next.y < above.y + LINE ? [...column, next] : [next];
      if (column.length > 1) next.y = above.y + LINE;
      const x = (next.isLeft ? Math.min : Math.max)(...column.map((other) => other.x));
      for (const other of column) other.x = x;
    }
    let floor = base - 4; // and none below the example itself
    for (const next of side.reverse()) {
      next.y = Math.min(next.y, floor);
      floor = next.y - LINE;
    }
  }
  // the ray of the label is drawn last, over rays close to it
  const rays = labels.sort((a, b) => (a.one.label === label) - (b.one.label === label)).map(({ one, isLeft, x: tx, y: ty }) => {
    const [x, y] = place(one.angle, reach);
    const kind = one.label === label ? "own" : "rival";
    const name = one.label < 0 ? "nearest other" : shared.name(one.label);
    // as many letters as fit next to the angle; a capital is up to 9 units wide
    const most = Math.max(3, Math.min(14, Math.floor((isLeft ? tx : width - tx) / 9) - 4));
    const shown = name.length > most ? `${name.slice(0, most - 1)}…` : name;
    return [
      svg("line", { x1: middle, y1: base, x2: x, y2: y, class: `ray ${kind}` }),
      text(tx, ty, `${shown} ${degrees(one.angle)}`, { class: kind, "text-anchor": isLeft ? "end" : "start" }),
    ];
  });
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "angles", role: "img", "aria-label": `Angles: ${words.join(", ")}` },
    svg("path", { d: `M${middle + reach} ${base}A${reach} ${reach} 0 0 0 ${middle - reach} ${base}`, class: "arc" }),
    svg("line", { x1: middle, y1: base, x2: middle + reach + 16, y2: base, class: "ray example" }),
    text(middle + reach + 16, base + 16, "this example, 0°", { class: "soft", "text-anchor": "end" }),
    rays);
}

export function curve(values) {
  const width = 300, height = 80, top = 8, bottom = 72;
  const step = (width - 12) / Math.max(1, values.length - 1);
  const points = values.map((value, at) => [6 + at * step, bottom - (bottom - top) * (value ?? 0), value]).filter((point) => point[2] !== null);
  if (!points.length) return null;
  const path = points.map(([x, y], at) => `${at ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
  const ends = `from ${Math.round(100 * points[0][2])}% to ${Math.round(100 * points.at(-1)[2])}%`;
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "curve", role: "img", "aria-label": `Probability of the label through ${points.length} epochs, ${ends}` },
    svg("line", { x1: 6, x2: width - 6, y1: (top + bottom) / 2, y2: (top + bottom) / 2, class: "half" }),
    svg("line", { x1: 6, x2: width - 6, y1: bottom, y2: bottom, class: "axis" }),
    svg("path", { d: path, class: "line" }),
    points.length <= 40 && points.map(([x, y]) => svg("circle", { cx: x.toFixed(1), cy: y.toFixed(1), r: 2.2 })));
}
