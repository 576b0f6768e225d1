// What axe-core would complain about first: no name, no role, too little contrast, doubled ids.
const found = [];
const visible = (e) => e.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true });
const name = (e) => (e.getAttribute('aria-label') || e.textContent || '').trim()
  || (e.getAttribute('aria-labelledby') && document.getElementById(e.getAttribute('aria-labelledby'))?.textContent)
  || (e.labels && [...e.labels].map((l) => l.textContent).join('').trim()) || e.title;
for (const e of document.querySelectorAll('button, a, input, select, summary, [role=listbox], [role=option], [role=img], dialog'))
  if (visible(e) && !name(e)) found.push('no name: ' + e.outerHTML.slice(0, 80));
for (const e of document.querySelectorAll('img')) if (!e.hasAttribute('alt')) found.push('no alt');
if (!document.documentElement.lang) found.push('no language');
if (document.querySelectorAll('h1').length !== 1) found.push('one h1');
if (document.querySelectorAll('main').length !== 1) found.push('one main');
const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);
for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) found.push('twice: ' + id);
const ref = document.querySelector('[aria-activedescendant]');
if (ref && !document.getElementById(ref.getAttribute('aria-activedescendant'))) found.push('nobody is active');
const rgb = (text) => (text.match(/[\d.]+/g) || []).map(Number);
const light = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
const behind = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c.length === 3 || c[3] === 1) return c; } return [255, 255, 255]; };
for (const e of document.querySelectorAll('body *')) {
  const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  if (!own || !visible(e) || e.matches(':disabled, :disabled *, .sr, .sr *') || e instanceof SVGElement) continue;
  if (e.closest('.cell')?.dataset.action) continue;
  const a = light(rgb(getComputedStyle(e).color)), b = light(behind(e));
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) found.push('contrast ' + ratio.toFixed(1) + ': ' + e.outerHTML.slice(0, 80));
}
return found;
