// Filter, order and place are kept in the address, so a reload or another device shows the same.

export const FIELDS = ["label", "prediction", "group", "by", "low", "high", "text", "only", "lasso", "sort", "order", "state"];

export function readAddress() {
  const [page, rest] = location.hash.slice(1).split("?");
  const values = Object.fromEntries(new URLSearchParams(rest ?? ""));
  return { page: ["queue", "grid", "dashboard"].includes(page) ? page : "queue", values };
}

export function address(page, values) {
  const kept = Object.entries(values).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const rest = new URLSearchParams(kept).toString();
  return `#${page}${rest ? `?${rest}` : ""}`;
}

export const viewOf = (values) => Object.fromEntries(FIELDS.filter((name) => values[name]).map((name) => [name, values[name]]));

export function replace(page, values) {
  history.replaceState(null, "", address(page, values)); // no new page, only its address
}

export function go(page, values) {
  location.hash = address(page, values);
}
