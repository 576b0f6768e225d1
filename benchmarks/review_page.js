// What the benchmark of the review app does and measures inside the page; times in milliseconds.

const seen = () => new Promise((done) => requestAnimationFrame(() => { // right after a frame was drawn
  const channel = new MessageChannel();
  channel.port1.onmessage = () => done(performance.now());
  channel.port2.postMessage(0);
}));

async function until(test, most = 30000) {
  const end = performance.now() + most;
  while (!test()) {
    if (performance.now() > end) throw new Error(`waited for ${test}`);
    await seen();
  }
  return performance.now();
}

function cellsInSight() {
  const box = document.querySelector("#cells").getBoundingClientRect();
  return [...document.querySelectorAll(".cell")].filter((cell) => {
    const own = cell.getBoundingClientRect();
    return own.bottom - 40 > box.top && own.top + 40 < box.bottom;
  });
}

function showsPicture(cell) {
  const image = cell.querySelector("img");
  return Boolean(image?.complete && image.naturalWidth);
}

function isFull() {
  const cells = cellsInSight();
  return cells.length > 0 && cells.every(showsPicture);
}

window.bench = {
  until,

  full: () => until(isFull),

  async watch() { // from now on: a time and a hit for every picture that a key brings
    window.taken = [];
    window.hits = [];
    let pressed = 0;
    addEventListener("keydown", (event) => { pressed = event.timeStamp; }, true);
    new PerformanceObserver((list) => {
      for (const { name, detail } of list.getEntries()) {
        if (name !== "shown") continue;
        const from = pressed;
        hits.push(detail.wasReady);
        seen().then((now) => taken.push(now - from));
      }
    }).observe({ type: "mark" });
  },

  async filter(view) { // until the rows of another filter are there
    const before = document.querySelector(".summary");
    const start = performance.now();
    location.hash = `#grid?${view}`;
    return await until(() => {
      const now = document.querySelector(".summary");
      const cells = now && now !== before && now.textContent ? cellsInSight() : [];
      return cells.length > 0 && cells.every((cell) => cell.dataset.index);
    }) - start;
  },

  async goTo(key, place) { // until the picture of a place is there after a key
    const cells = document.querySelector("#cells");
    const start = performance.now();
    cells.focus();
    cells.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    return await until(() => {
      const cell = document.querySelector(`[data-place="${place}"]`);
      return cell && showsPicture(cell) && isFull();
    }) - start;
  },

  async jump(share) { // until all pictures of another part are there
    const cells = document.querySelector("#cells");
    const start = performance.now();
    cells.scrollTop = share * cells.scrollHeight;
    await seen();
    return await until(isFull) - start;
  },

  async notice(text) {
    const start = performance.now();
    return await until(() => document.querySelector("#notice p").textContent.includes(text)) - start;
  },

  scroll(seconds, speed) { // the longest time that a cell in sight had no picture
    const cells = document.querySelector("#cells");
    const blankSince = new Map();
    const began = performance.now();
    let longest = 0, last = began;
    return new Promise((done) => {
      const step = () => {
        const now = performance.now();
        cells.scrollTop += (speed * (now - last)) / 1000;
        last = now;
        const places = new Set();
        for (const cell of cellsInSight()) {
          const { place } = cell.dataset;
          places.add(place);
          if (showsPicture(cell)) blankSince.delete(place);
          else if (!blankSince.has(place)) blankSince.set(place, now);
          else longest = Math.max(longest, now - blankSince.get(place));
        }
        for (const place of blankSince.keys()) if (!places.has(place)) blankSince.delete(place);
        if (now - began < seconds * 1000) requestAnimationFrame(step);
        else done(longest);
      };
      requestAnimationFrame(step);
    });
  },
};
