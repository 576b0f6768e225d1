// Requests. The token is sent as a header, which an <img> cannot do, so pictures are fetched as bytes
// and shown as blobs.

const KEY = "hardsight-token";
const NAME = "hardsight-reviewer";

// In a frame of another site, as in some notebooks, browsers block storage; then values last as long
// as the page.
function storage(kind) {
  const own = new Map();
  return {
    get(key) { try { return window[kind].getItem(key) ?? own.get(key) ?? null; } catch { return own.get(key) ?? null; } },
    set(key, value) { own.set(key, value); try { window[kind].setItem(key, value); } catch { /* remembered above */ } },
  };
}
const tab = storage("sessionStorage");
export const kept = storage("localStorage");

export class Refused extends Error {
  constructor(status, content) {
    super(content.error ?? `the app answered ${status}`);
    this.status = status;
    this.content = content;
  }
}

export function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    tab.set(KEY, given);
    history.replaceState(null, "", "#queue"); // out of the address bar, and of what is shared
  }
  return tab.get(KEY) !== null;
}

export const setToken = (token) => tab.set(KEY, token);

export const shared = {
  about: null, // what the run is, from the server
  seq: 0, // the last row of the log that this window knows of
  get reviewer() { return kept.get(NAME) || shared.about?.reviewer || "me"; },
  set reviewer(name) { kept.set(NAME, name); },
  name(label) { return label < 0 ? "none" : shared.about.classes[label] ?? String(label); },
};

async function answer(path, options) {
  const headers = { "X-Hardsight-Token": tab.get(KEY) ?? "", ...options.headers };
  let response;
  try {
    response = await fetch(path, { ...options, headers, credentials: "omit", redirect: "error" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, { error: "the app does not answer; is the command still running?" });
  }
  if (response.ok) return response;
  const text = await response.text();
  let content = { error: text.trim() };
  try { content = JSON.parse(text); } catch { /* words */ }
  throw new Refused(response.status, content);
}

const query = (values) => new URLSearchParams(
  Object.entries(values).filter(([, value]) => value !== undefined && value !== null && value !== ""),
).toString();

export const get = async (path, values = {}, signal = undefined) =>
  (await answer(`api/${path}?${query({ reviewer: shared.reviewer, ...values })}`, { signal })).json();

export const getBlob = async (path, values = {}, signal = undefined) =>
  (await answer(`api/${path}?${query(values)}`, { signal })).blob();

export async function post(path, body) {
  const options = {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ reviewer: shared.reviewer, ...body }),
  };
  const content = await (await answer(`api/${path}`, options)).json();
  shared.seq = Math.max(shared.seq, content.seq);
  return content;
}

// ------------------------------------------------------------------ pictures

const MOST = 64; // in one request
const PATIENCE_MS = 60; // the time a request should take: the faster pictures are made, the more it asks for
const AT_ONCE = 3; // requests; the browser has six connections for all tabs

export class Pictures {
  // Pictures of one size. Those used last are kept, up to a number of bytes.
  constructor(size, mostBytes) {
    this.size = size;
    this.most = mostBytes;
    this.kept = new Map(); // index -> picture, least recently used first
    this.held = 0;
    this.waiting = new Map(); // index -> { promise, resolve, isSoon, isAsked }, in the order of asking
    this.running = 0;
    this.pace = size === "small" ? 4 : 30; // milliseconds a picture, learned
  }

  get(index) {
    const found = this.kept.get(index);
    if (found) {
      this.kept.delete(index);
      this.kept.set(index, found);
    }
    return found;
  }

  want(index, isSoon = false) {
    // Pictures that are wanted soon are requested after all those that are wanted now.
    const found = this.get(index);
    if (found) return Promise.resolve(found);
    let entry = this.waiting.get(index);
    if (!entry) {
      entry = { isSoon };
      entry.promise = new Promise((resolve) => { entry.resolve = resolve; });
      this.waiting.set(index, entry);
    }
    entry.isSoon &&= isSoon;
    if (!entry.isAsked && !this.isCalled) {
      this.isCalled = true; // once for all that one turn wants
      queueMicrotask(() => { this.isCalled = false; this.ask(); });
    }
    return entry.promise;
  }

  forget(keep) {
    // Drop requests that are no longer needed, such as those for rows that were scrolled past.
    for (const [index, entry] of this.waiting) {
      if (!entry.isAsked && !keep(index)) {
        this.waiting.delete(index);
        entry.resolve(null);
      }
    }
  }

  async ask() {
    if (this.running >= AT_ONCE) return;
    const open = [...this.waiting].filter(([, entry]) => !entry.isAsked).sort(([, a], [, b]) => a.isSoon - b.isSoon);
    if (!open.length) return;
    const part = open.slice(0, Math.max(1, Math.min(MOST, Math.round(PATIENCE_MS / this.pace))));
    for (const [, entry] of part) entry.isAsked = true;
    this.running += 1;
    if (open.length > part.length) this.ask();
    let pictures;
    const began = performance.now();
    try {
      pictures = await this.fetched(part.map(([index]) => index));
    } catch (error) {
      pictures = part.map(() => ({ note: error.message, bytes: 0 }));
    }
    this.running -= 1;
    this.pace += 0.3 * (Math.max(0.2, (performance.now() - began) / part.length) - this.pace);
    part.forEach(([index, entry], at) => {
      this.waiting.delete(index);
      const picture = pictures[at];
      if (picture.isPending) setTimeout(() => this.want(index).then(entry.resolve), 700);
      else entry.resolve(this.keep(index, picture));
    });
    if (this.waiting.size) this.ask();
  }

  async fetched(indices) {
    const response = await answer(`api/pictures?${query({ of: indices.join(","), size: this.size })}`, {});
    const bytes = await response.arrayBuffer();
    const length = new DataView(bytes).getUint32(0, true);
    const head = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 4, length)));
    let start = 4 + length;
    return head.map(([kind, note, size]) => {
      const part = bytes.slice(start, start + size);
      start += size;
      if (kind === "pending") return { isPending: true };
      if (!size) return { note: note || "no picture", bytes: 0 };
      if (kind === "text/plain") return { text: new TextDecoder().decode(part), note, bytes: size };
      return { url: URL.createObjectURL(new Blob([part], { type: kind })), note, bytes: size };
    });
  }

  keep(index, picture) {
    if (!picture.url && !picture.text) return picture; // not kept: it may be there next time
    this.kept.set(index, picture);
    this.held += picture.bytes;
    for (const [old, other] of this.kept) {
      if (this.held <= this.most) break;
      if (old === index) continue;
      this.kept.delete(old);
      this.held -= other.bytes;
      if (other.url) URL.revokeObjectURL(other.url);
    }
    return picture;
  }
}

export const large = new Pictures("large", 32 * 2 ** 20);
export const maps = new Pictures("map", 4 * 2 ** 20);
export const small = new Pictures("small", 48 * 2 ** 20);
