"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  for (const button of all(".unfold")) {
    const parts = all("details", button.closest(".group"));
    button.hidden = false;
    button.addEventListener("click", () => {
      const open = button.getAttribute("aria-expanded") !== "true";
      parts.forEach((part) => { part.open = open; });
      button.setAttribute("aria-expanded", String(open));
      button.textContent = open ? "Fold all" : "Unfold all";
    });
  }

  for (const drawing of all(".drawing")) {
    const named = drawing.querySelector(".tensor.named");
    if (!named) continue;
    const [outer, inner] = [drawing.getBoundingClientRect(), named.getBoundingClientRect()];
    drawing.scrollTop = inner.top - outer.top - (outer.height - inner.height) / 2;
    drawing.scrollLeft = inner.left - outer.left - (outer.width - inner.width) / 2;
  }

  const form = document.getElementById("filter");
  if (!form) return;
  const panel = document.getElementById("panel");
  const boxes = all(".mx").map((box) => ({
    box,
    graph: box.dataset.graph,
    heads: all("th[data-version]", box),
    rows: all("tr[data-target]", box),
  }));
  const cells = boxes.flatMap((owner) => owner.rows.flatMap((row) =>
    all("td", row).map((td, index) => {
      const button = td.querySelector("button");
      const key = { graph: owner.graph, target: row.dataset.target, version: owner.heads[index].dataset.version };
      const says = button ? [button.ariaLabel, button.dataset.cause, button.title] : ["not judged"];
      const text = [...Object.values(key), ...says].join("\n").toLowerCase();
      return { ...key, td, row, button, owner, outcome: says[0], text };
    })));
  const cellOf = new Map(cells.filter((cell) => cell.button).map((cell) => [cell.button, cell]));

  const line = (kind, text) => {
    const part = document.createElement("p");
    part.className = kind;
    part.textContent = text;
    return part;
  };

  const show = (cell) => {
    all(".cell.chosen").forEach((other) => other.classList.remove("chosen"));
    panel.hidden = !cell;
    if (!cell) return;
    cell.button.classList.add("chosen");
    const close = document.createElement("button");
    close.type = "button";
    close.textContent = "Close";
    close.addEventListener("click", () => { show(null); cell.button.focus(); });
    const where = `${cell.graph} on ${cell.target}, cuDNN ${cell.version}`;
    const { cause, stage } = cell.button.dataset;
    const small = [cause, stage && `last stage reached: ${stage}`].filter(Boolean).join(" · ");
    panel.replaceChildren(
      line("headline", `${cell.outcome}: ${where}`), line("", cell.button.title), line("dim", small), close);
  };

  const stop = (box) => {
    const open = cells.filter((cell) => cell.owner === box && cell.button && !cell.td.hidden && !cell.row.hidden);
    const current = open.find((cell) => cell.button.tabIndex === 0) || open[0];
    cells.filter((cell) => cell.owner === box && cell.button).forEach((cell) => { cell.button.tabIndex = -1; });
    if (current) current.button.tabIndex = 0;
  };

  const apply = () => {
    const want = Object.fromEntries(new FormData(form));
    const text = want.text.trim().toLowerCase();
    const keys = ["graph", "target", "version", "outcome"];
    let count = 0;
    for (const cell of cells) {
      cell.fits = keys.every((key) => !want[key] || cell[key] === want[key]) && cell.text.includes(text);
      cell.td.classList.toggle("faded", !cell.fits);
      cell.td.hidden = Boolean(want.version) && cell.version !== want.version;
      count += cell.fits;
    }
    for (const owner of boxes) {
      owner.heads.forEach((head) => { head.hidden = Boolean(want.version) && head.dataset.version !== want.version; });
      owner.rows.forEach((row) => { row.hidden = !cells.some((cell) => cell.row === row && cell.fits); });
      owner.box.hidden = owner.rows.every((row) => row.hidden);
      stop(owner);
    }
    form.elements.count.value = `${count} of ${cells.length}`;
  };

  const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  const step = (cell, key) => {
    const rows = cell.owner.rows.filter((row) => !row.hidden).map((row) =>
      cells.filter((item) => item.row === row && item.button && !item.td.hidden));
    const y = rows.findIndex((row) => row.includes(cell));
    const x = rows[y].indexOf(cell);
    if (key === "Home") return rows[y][0];
    if (key === "End") return rows[y].at(-1);
    const [down, right] = moves[key];
    const row = rows[y + down];
    if (right) return rows[y][x + right];
    return row && (row.find((item) => item.version === cell.version) || row[Math.min(x, row.length - 1)]);
  };

  const focus = (cell) => {
    cells.filter((item) => item.owner === cell.owner && item.button).forEach((item) => { item.button.tabIndex = -1; });
    cell.button.tabIndex = 0;
    cell.button.focus();
  };

  const grids = document.querySelector(".grids");
  grids.addEventListener("click", (event) => {
    const cell = cellOf.get(event.target.closest("button.cell"));
    if (cell) { focus(cell); show(cell); }
  });
  grids.addEventListener("keydown", (event) => {
    const cell = cellOf.get(event.target);
    if (!cell || !(event.key in moves || event.key === "Home" || event.key === "End")) return;
    event.preventDefault();
    const next = step(cell, event.key);
    if (next) focus(next);
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") show(null); });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", apply);
  form.addEventListener("reset", () => setTimeout(apply));
  form.hidden = false;
  apply();
})();
