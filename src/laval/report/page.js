// A friendlier tooltip than the browser's own; without JavaScript the title attributes do the work.
(() => {
  const tip = document.body.appendChild(document.createElement("div"));
  tip.id = "tip";
  tip.hidden = true;
  let token = null;

  const leave = () => {
    if (token) token.title = token.dataset.told;
    token = null;
    tip.hidden = true;
  };

  const strip = (told) => {
    const layers = Number(told.match(/of (\d+)/)[1]);
    const skipped = new Set();
    for (const [, a, b] of (told.split("skipped")[1] || "").matchAll(/(\d+)(?:–(\d+))?/g))
      for (let layer = +a; layer <= +(b || a); layer++) skipped.add(layer);
    const cells = document.createElement("u");
    for (let layer = 0; layer < layers; layer++)
      cells.appendChild(document.createElement("i")).className = skipped.has(layer) ? "off" : "on";
    return cells;
  };

  const enter = (span) => {
    leave();
    token = span;
    token.dataset.told = token.title;
    token.removeAttribute("title");
    const name = document.createElement("bdi");
    name.textContent = token.textContent.trim() || (token.textContent ? "whitespace" : "part of the next character");
    tip.replaceChildren(name, document.createElement("br"), token.dataset.told, strip(token.dataset.told));
    tip.hidden = false;
    const at = token.getClientRects()[0], box = tip.getBoundingClientRect();
    const above = at.top > box.height + 12;
    tip.style.left = Math.max(8, Math.min(at.left, innerWidth - box.width - 8)) + "px";
    tip.style.top = (above ? at.top - box.height - 6 : at.bottom + 8) + "px";
  };

  document.addEventListener("pointerover", (event) => {
    const span = event.target.closest(".map span");
    if (span !== token) span ? enter(span) : leave();
  });
  addEventListener("scroll", leave, { passive: true });
})();
