"use strict";
// Adds to a page that is complete without it: sorting, search, copying, and opening what a link points at.
(() => {
  const all = (selector, root = document) => Array.from(root.querySelectorAll(selector));
  document.documentElement.classList.add("js");

  // Sorting: each heading becomes a button; cells carry their number in data-v, or are sorted by their text.
  const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
  const valueOf = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.v === undefined ? cell.textContent.trim() : Number(cell.dataset.v);
  };
  const sort = (table, heading) => {
    const column = heading.cellIndex;
    const body = table.tBodies[0];
    const down = heading.getAttribute("aria-sort")
      ? heading.getAttribute("aria-sort") === "ascending"
      : heading.classList.contains("n");
    const rows = Array.from(body.rows).sort((a, b) => {
      const x = valueOf(a, column), y = valueOf(b, column);
      const order = typeof x === "number" && typeof y === "number" ? x - y : collator.compare(x, y);
      return down ? -order : order;
    });
    all("th[aria-sort]", table).forEach((other) => other.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    body.append(...rows);
  };
  all("table[data-sortable]").forEach((table) => {
    all("thead th", table).forEach((heading) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...heading.childNodes);
      heading.append(button);
      button.addEventListener("click", () => sort(table, heading));
    });
  });

  // Tables show their ten largest rows until all are asked for.
  all("table[data-top]").forEach((table) => {
    const count = table.tBodies[0].rows.length;
    if (count <= 12) { table.classList.add("all"); return; }
    const button = document.createElement("button");
    button.type = "button";
    button.className = "quiet more-rows";
    const name = table.caption.textContent;
    const label = () => {
      button.textContent = table.classList.contains("all") ? "Show the first ten" : `Show all ${count}`;
      button.setAttribute("aria-label", `${button.textContent}: ${name}`);
    };
    button.addEventListener("click", () => { table.classList.toggle("all"); label(); });
    label();
    table.parentElement.after(button);
  });

  // Search: rows stay that hold every word.
  all("[data-search]").forEach((box) => {
    const table = document.getElementById(box.dataset.search);
    const told = document.getElementById(box.getAttribute("aria-describedby"));
    const rows = Array.from(table.tBodies[0].rows, (row) => [row, row.textContent.toLowerCase()]);
    box.closest("[hidden]")?.removeAttribute("hidden");
    const search = () => {
      const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      rows.forEach(([row, text]) => {
        row.hidden = !words.every((word) => text.includes(word));
        shown += row.hidden ? 0 : 1;
      });
      table.classList.toggle("searched", words.length > 0);
      told.textContent = words.length ? `${shown} of ${rows.length} shown` : "";
    };
    box.addEventListener("input", search);
    search();
  });

  // Copying: the text of the code that the button stands with.
  const copy = async (code) => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      return "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      return document.execCommand("copy") ? "Copied" : "Press Ctrl+C";
    }
  };
  all("[data-copy]").forEach((frame) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    const what = frame.querySelector("figcaption")?.textContent ?? "the command";
    button.setAttribute("aria-label", `Copy: ${what} of ${frame.closest(".finding")?.querySelector("h3").textContent.trim() ?? frame.closest("section")?.querySelector("h2")?.textContent ?? "the page"}`);
    const told = document.createElement("span");
    told.className = "sr";
    told.setAttribute("role", "status");
    button.addEventListener("click", async () => {
      told.textContent = button.textContent = await copy(frame.querySelector("code"));
      setTimeout(() => { button.textContent = "Copy"; told.textContent = ""; }, 2000);
    });
    frame.append(button, told);
  });

  // Links to a finding open it; printing and the button open all.
  const reveal = () => {
    let target = null;
    try { target = document.getElementById(decodeURIComponent(location.hash.slice(1))); } catch { return; }
    if (!target) return;
    const fold = target.querySelector(":scope > details.fold:not(.rest)");
    if (fold) fold.open = true;
    for (let node = target; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  if (location.hash) reveal();
  all("[data-expand]").forEach((button) => {
    const findings = all(button.dataset.expand);
    const label = () => { button.textContent = findings.every((one) => one.open) ? "Close all" : "Open all"; };
    button.hidden = findings.length < 2;
    button.addEventListener("click", () => {
      const open = !findings.every((one) => one.open);
      [...findings, ...all(".rest")].forEach((one) => { one.open = open; });
      label();
    });
    findings.forEach((one) => one.addEventListener("toggle", label));
    label();
  });
  // On paper stand what is open and the first findings.
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = all("details.key:not([open])");
    closed.forEach((one) => { one.open = true; });
  });
  addEventListener("afterprint", () => closed.forEach((one) => { one.open = false; }));
})();
