"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");

  // Storage may be closed to pages opened from disk; the toggle then lasts until the page closes.
  const remembered = () => { try { return localStorage.getItem("hardsight-theme"); } catch { return null; } };
  const remember = (theme) => { try { localStorage.setItem("hardsight-theme", theme); } catch { /* see above */ } };
  const chosen = remembered();
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen; // before the first paint

  function themeToggle() {
    const button = document.querySelector("#theme");
    const system = matchMedia("(prefers-color-scheme: dark)");
    const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
    const show = () => button.setAttribute("aria-pressed", String(isDark()));
    button.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      remember(root.dataset.theme);
      show();
    });
    system.addEventListener("change", show);
    show();
  }

  document.addEventListener("DOMContentLoaded", themeToggle);
})();
