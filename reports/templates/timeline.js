// Charts are drawn from the page's JSON with text nodes and canvas text alone: no name of the trace becomes markup.
const data = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const svg = (tag, attributes = {}, text = "") => {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text) node.textContent = text;
  return node;
};
const html = (tag, className = "", text = "") => {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text) node.textContent = text;
  return node;
};
const three = (value) => {
  const size = Math.abs(value);
  return value.toLocaleString("en", { minimumFractionDigits: 0, maximumFractionDigits: size < 9.995 ? 2 : size < 99.95 ? 1 : 0 });
};
const duration = (us) => (us < 999.5 ? `${three(us)} µs` : us < 999500 ? `${three(us / 1e3)} ms` : `${three(us / 1e6)} s`);
const bytes = (n) => (n < 999.5e6 ? `${three(n / 1e6)} MB` : `${three(n / 1e9)} GB`);
const percent = (part) => (part > 0 && part < 0.001 ? "<0.1%" : `${(part * 100).toFixed(part < 0.0995 ? 1 : 0)}%`);
// A C++ name without its return type, template and arguments.
const short = (name) => {
  const plain = name.replace(/^void /, "").replace(/\(anonymous namespace\)::/g, "");
  const cut = plain.search(/[<(]/);
  return (cut > 0 ? plain.slice(0, cut) : plain).split("::").pop() || name;
};
// 1, 2 or 5 times a power of ten, so that some `count` of them fill the span.
const tick = (span, count) => {
  const rough = span / count, power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((times) => times * power >= rough);
};
const GROUPS = {
  gemm: "gemm", conv: "conv", attention: "attention", elementwise: "pointwise", fused: "pointwise", norm: "norm",
  softmax: "norm", reduction: "norm", copy: "move", layout: "move", fill: "move", communication: "comm", optimizer: "optimizer",
};
const GROUP_NAMES = {
  gemm: "matrix products", conv: "convolutions", attention: "attention", pointwise: "pointwise", norm: "norms and reductions",
  move: "copies and fills", comm: "communication", optimizer: "optimizer", other: "other kernels",
};
const HOST_NAMES = {
  annotation: "annotations", python: "Python", op: "ops", call: "runtime calls", launch: "launches", sync: "sync waits",
  allocation: "allocator", profiler: "profiler",
};
const groupOf = (family) => (Object.hasOwn(GROUPS, family) ? GROUPS[family] : "other");
const labels = { gpu: short, idle: (cause) => spoken(cause), host: (name) => name };
const spoken = (text) => text.replaceAll("_", " ");
// Colours are the style sheet's, so that light, dark and print agree.
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const inkOn = (hex) => {
  const [r, g, b] = [1, 3, 5].map((at) => (parseInt(hex.slice(at, at + 2), 16) / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#0b0f14" : "#ffffff";
};
const redraws = new Set();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraws.forEach((draw) => draw()));
const whenSized = (node, draw) => {
  let width = 0;
  new ResizeObserver(() => {
    if (node.clientWidth && node.clientWidth !== width) { width = node.clientWidth; draw(); }
  }).observe(node);
  redraws.add(() => { if (node.clientWidth) draw(); });
};

// A cut of the trace: host threads above, GPU streams below; zoomed by wheel, keys, buttons and drag.
const timeline = (root, cut, { marks = [], span = [], label }) => {
  const ROW = 17, GAP = 22, AXIS = 22, PAD = 6;
  const number = cut.start.length;
  const sides = cut.lanes.map((lane) => lane[1]);
  const depths = cut.lanes.map(() => 0);
  const rowsOf = cut.lanes.map(() => []);
  for (let i = 0; i < number; i++) {
    depths[cut.lane[i]] = Math.max(depths[cut.lane[i]], cut.depth[i] + 1);
    rowsOf[cut.lane[i]].push(i);
  }
  const tops = [];
  let height = AXIS;
  cut.lanes.forEach((_, lane) => { tops.push(height + GAP - 2); height += GAP + depths[lane] * ROW + 4; });
  height += PAD;
  const launched = new Map();
  for (let i = 0; i < number; i++) if (cut.by[i] >= 0) launched.set(cut.by[i], [...(launched.get(cut.by[i]) ?? []), i]);
  const marked = new Set();
  marks.filter(([lane]) => lane >= 0).forEach(([lane, start, len]) => {
    rowsOf[lane].forEach((i) => { if (cut.start[i] < start + len && cut.start[i] + cut.len[i] > start && Math.abs(cut.start[i] - start) < 0.002) marked.add(i); });
  });

  const frame = html("div", "tl");
  const canvas = html("canvas");
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-roledescription", "timeline");
  canvas.setAttribute("aria-label", `${label}: ${number} slices on ${cut.lanes.length} lanes over ${duration(cut.dur)}. Arrow keys move from slice to slice, plus and minus zoom, A and D move, 0 shows all.`);
  const told = html("p", "tl-told");
  told.setAttribute("role", "status");
  const bar = html("div", "tl-bar");
  const legend = html("ul", "legend");
  bar.append(legend);
  const button = (text, name, act) => {
    const made = html("button", "quiet", text);
    made.type = "button";
    made.setAttribute("aria-label", name);
    made.addEventListener("click", act);
    return made;
  };
  const tools = html("div", "tools");
  tools.append(button("−", "Zoom out", () => zoom(1.6)), button("+", "Zoom in", () => zoom(1 / 1.6)), button("Reset", "Show the whole cut", () => look(0, cut.dur)));
  bar.append(tools);
  frame.append(bar, canvas, told);
  root.replaceChildren(frame);
  canvas.style.height = `${height}px`;

  const paint = (i) => {
    const kind = cut.kinds[cut.kind[i]], side = sides[cut.lane[i]];
    return side === "gpu" ? `--k-${groupOf(kind)}` : side === "idle" ? (kind === "unknown" ? "--k-other" : "--idle") : `--h-${Object.hasOwn(HOST_NAMES, kind) ? kind : "call"}`;
  };
  const kindName = (i) => {
    const kind = cut.kinds[cut.kind[i]], side = sides[cut.lane[i]];
    return side === "gpu" ? GROUP_NAMES[groupOf(kind)] : side === "idle" ? "idle" : HOST_NAMES[kind] ?? kind;
  };
  const paints = Array.from({ length: number }, (_, i) => paint(i));
  const seen = new Map();
  for (let i = 0; i < number; i++) seen.set(paints[i], kindName(i));
  seen.forEach((name, variable) => {
    const item = html("li", "", name);
    const swatch = html("i");
    swatch.style.background = `var(${variable})`;
    item.prepend(swatch);
    legend.append(item);
  });
  if (marks.length) {
    const item = html("li", "", "what the finding is about");
    item.prepend(html("i", "marked"));
    legend.append(item);
  }

  let from = 0, to = cut.dur, chosen = -1, hovered = -1, width = 0;
  const least = Math.max(cut.dur / 1e6, 0.05);
  const x = (time) => ((time - from) / (to - from)) * width;
  const look = (a, b) => {
    const size = Math.min(Math.max(b - a, least), cut.dur);
    from = Math.min(Math.max(a, 0), cut.dur - size);
    to = from + size;
    draw();
  };
  const zoom = (factor, around = chosen >= 0 ? cut.start[chosen] + cut.len[chosen] / 2 : (from + to) / 2) =>
    look(around - (around - from) * factor, around + (to - around) * factor);

  const rectOf = (i) => {
    const left = x(cut.start[i]);
    return [left, tops[cut.lane[i]] + cut.depth[i] * ROW, Math.max(x(cut.start[i] + cut.len[i]) - left, 1), ROW - 2];
  };
  const draw = () => {
    width = canvas.clientWidth;
    if (!width) return;
    const ratio = Math.min(devicePixelRatio || 1, 3);
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const g = canvas.getContext("2d");
    g.scale(ratio, ratio);
    g.clearRect(0, 0, width, height);
    const [ink, dim, line, sunk, mark] = ["--ink", "--dim", "--line", "--sunk", "--mark"].map(colour);
    g.font = "11px system-ui, sans-serif";
    g.textBaseline = "middle";
    const step = tick(to - from, Math.max(width / 110, 2));
    g.fillStyle = dim;
    g.strokeStyle = line;
    g.lineWidth = 1;
    for (let time = Math.ceil(from / step) * step; time <= to; time += step) {
      const at = Math.round(x(time)) + 0.5;
      g.beginPath(); g.moveTo(at, AXIS - 4); g.lineTo(at, height); g.stroke();
      if (at < width - 50) g.fillText(duration(Math.max(time, 0)), at + 3, 9);
    }
    if (span.length) {
      g.strokeStyle = dim; g.setLineDash([4, 3]);
      span.forEach((time) => { if (time >= from && time <= to) { const at = Math.min(Math.round(x(time)) + 0.5, width - 1); g.beginPath(); g.moveTo(at, 0); g.lineTo(at, height); g.stroke(); } });
      g.setLineDash([]);
    }
    marks.filter(([lane]) => lane < 0).forEach(([, start, len]) => {
      g.fillStyle = mark; g.globalAlpha = 0.14;
      g.fillRect(x(start), AXIS - 4, Math.max(x(start + len) - x(start), 2), height);
      g.globalAlpha = 1;
    });
    cut.lanes.forEach(([name, side], lane) => {
      g.fillStyle = sunk;
      g.globalAlpha = 0.6;
      g.fillRect(0, tops[lane], width, depths[lane] * ROW - 2);
      g.globalAlpha = 1;
      g.fillStyle = side === "host" ? dim : ink;
      g.fillText(name, 2, tops[lane] - 9);
    });
    // What is of the marks' kind and is not marked steps back.
    const faded = new Set([...marked].map((i) => sides[cut.lane[i]]));
    const dimmed = (i) => !marked.has(i) && faded.has(sides[cut.lane[i]]);
    for (let i = 0; i < number; i++) {
      const start = cut.start[i], end = start + cut.len[i];
      if (end < from || start > to) continue;
      const [left, top, wide, high] = rectOf(i);
      const shown = Math.max(left, 0), room = Math.min(left + wide, width) - shown;
      const fill = colours.get(paints[i]);
      g.globalAlpha = dimmed(i) ? 0.38 : cut.count[i] > 1 ? 0.75 : 1;
      g.fillStyle = fill;
      g.fillRect(shown, top, Math.max(room - (room > 3 ? 0.6 : 0), 0.7), high);
      g.globalAlpha = 1;
      if (room > 26) {
        const text = cut.count[i] > 1 ? `${cut.count[i]} slices` : labels[sides[cut.lane[i]]](cut.names[cut.name[i]]);
        const fits = Math.floor((room - 8) / 5.9);
        g.fillStyle = dimmed(i) ? ink : inkOn(fill);
        if (fits > 2) g.fillText(text.length > fits ? `${text.slice(0, fits - 1)}…` : text, shown + 4, top + high / 2 + 0.5);
      }
      if (marked.has(i)) { g.strokeStyle = mark; g.lineWidth = 2; g.strokeRect(shown + 1, top + 1, Math.max(room - 2, 1), high - 2); }
    }
    const one = hovered >= 0 ? hovered : chosen;
    if (one >= 0) {
      g.strokeStyle = ink; g.lineWidth = 2;
      g.strokeRect(...rectOf(one));
      const pairs = cut.by[one] >= 0 ? [[cut.by[one], one]] : (launched.get(one) ?? []).map((kernel) => [one, kernel]);
      g.lineWidth = 1.5;
      pairs.slice(0, 20).forEach(([call, kernel]) => {
        const a = rectOf(call), b = rectOf(kernel);
        g.beginPath(); g.moveTo(a[0] + Math.min(a[2], 4), a[1] + a[3]); g.lineTo(b[0], b[1]); g.stroke();
      });
    }
  };
  const colours = new Map();
  const repaint = () => { new Set(paints).forEach((name) => colours.set(name, colour(name))); draw(); };

  const tell = (i) => {
    if (i < 0) { told.replaceChildren(html("span", "dim", told.dataset.hint)); return; }
    const side = sides[cut.lane[i]];
    const name = side === "idle" ? `idle: ${spoken(cut.names[cut.name[i]])}` : cut.names[cut.name[i]];
    const facts = [duration(cut.len[i]), `at ${((cut.at + cut.start[i]) / 1e3).toLocaleString("en", { minimumFractionDigits: 3, maximumFractionDigits: 3 })} ms`, cut.lanes[cut.lane[i]][0]];
    if (cut.count[i] > 1) facts.unshift(`${cut.count[i]} slices merged, the longest`);
    if (cut.op[i] >= 0) facts.push(`from ${cut.names[cut.op[i]]}`);
    if (cut.by[i] >= 0) facts.push(`launched ${duration(Math.max(cut.start[i] - cut.start[cut.by[i]], 0))} before`);
    told.replaceChildren(html("b", "", name), document.createTextNode(` · ${facts.join(" · ")}`));
  };
  told.dataset.hint = "Hover or focus for details. Click, then wheel to zoom; drag to move; arrow keys go from slice to slice.";
  tell(-1);
  const hit = (event) => {
    const box = canvas.getBoundingClientRect();
    const px = event.clientX - box.left, py = event.clientY - box.top;
    let best = -1, near = 5;
    for (let i = 0; i < number; i++) {
      const [left, top, wide, high] = rectOf(i);
      if (py < top || py > top + high) continue;
      const away = px < left ? left - px : px > left + wide ? px - left - wide : 0;
      if (away < near) { near = away; best = i; if (!away) near = 0.01; }
    }
    return best;
  };
  const choose = (i) => {
    chosen = i;
    if (i >= 0) {
      const a = cut.start[i], b = a + cut.len[i];
      if (b < from || a > to) look((a + b) / 2 - (to - from) / 2, (a + b) / 2 + (to - from) / 2);
    }
    tell(i);
    draw();
  };
  const beside = (direction) => {
    const row = rowsOf[cut.lane[chosen]].filter((i) => cut.depth[i] === cut.depth[chosen]);
    return row[row.indexOf(chosen) + direction] ?? chosen;
  };
  const across = (direction) => {
    const middle = cut.start[chosen] + cut.len[chosen] / 2;
    let lane = cut.lane[chosen], depth = cut.depth[chosen] + direction;
    for (;;) {
      if (depth < 0) { lane -= 1; if (lane < 0) return chosen; depth = depths[lane] - 1; }
      if (depth >= depths[lane]) { lane += 1; if (lane >= depths.length) return chosen; depth = 0; }
      const row = rowsOf[lane].filter((i) => cut.depth[i] === depth);
      const away = (i) => Math.max(cut.start[i] - middle, middle - cut.start[i] - cut.len[i], 0);
      if (row.length) return row.reduce((best, i) => (away(i) < away(best) ? i : best));
      depth += direction;
    }
  };
  const first = () => marked.values().next().value ?? (rowsOf.find((row, lane) => sides[lane] === "gpu") ?? [0])[0];
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !number) return;
    const move = (to - from) / 5;
    const acts = {
      "+": () => zoom(1 / 1.6), "=": () => zoom(1 / 1.6), "-": () => zoom(1.6), w: () => zoom(1 / 1.6), s: () => zoom(1.6),
      a: () => look(from - move, to - move), d: () => look(from + move, to + move), 0: () => look(0, cut.dur), Home: () => look(0, cut.dur),
      ArrowRight: () => choose(chosen < 0 ? first() : beside(1)), ArrowLeft: () => choose(chosen < 0 ? first() : beside(-1)),
      ArrowDown: () => choose(chosen < 0 ? first() : across(1)), ArrowUp: () => choose(chosen < 0 ? first() : across(-1)),
      Enter: () => { if (chosen >= 0) { const pad = cut.len[chosen] || least; look(cut.start[chosen] - pad, cut.start[chosen] + cut.len[chosen] + pad); } },
      Escape: () => choose(-1),
    };
    const act = acts[event.key] ?? acts[event.key.toLowerCase()];
    if (act) { event.preventDefault(); act(); }
  });
  canvas.addEventListener("focus", () => { if (chosen < 0 && number && canvas.matches(":focus-visible")) choose(first()); });
  canvas.addEventListener("wheel", (event) => {
    // A page that scrolls past keeps scrolling: the wheel zooms once the chart is focused, or with Ctrl.
    if (document.activeElement !== canvas && !event.ctrlKey) return;
    event.preventDefault();
    const box = canvas.getBoundingClientRect();
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      const move = (((event.deltaX || event.deltaY) / width) * (to - from)) / 2;
      look(from + move, to + move);
    } else zoom(Math.exp(event.deltaY * 0.0018), from + ((event.clientX - box.left) / width) * (to - from));
  }, { passive: false });
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX, from, to, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag) {
      const away = event.clientX - drag.x;
      drag.moved ||= Math.abs(away) > 4;
      if (drag.moved) { const move = (-away / width) * (drag.to - drag.from); look(drag.from + move, drag.to + move); return; }
    }
    const over = hit(event);
    if (over !== hovered) { hovered = over; tell(over >= 0 ? over : chosen); draw(); }
  });
  canvas.addEventListener("pointerup", (event) => {
    if (drag && !drag.moved) choose(hit(event));
    drag = null;
  });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("pointerleave", () => { if (!drag) { hovered = -1; tell(chosen); draw(); } });
  canvas.addEventListener("dblclick", (event) => { const over = hit(event); if (over >= 0) look(cut.start[over] - cut.len[over], cut.start[over] + 2 * cut.len[over]); else look(0, cut.dur); });
  const left = [];
  const merged = cut.count.reduce((sum, count) => sum + (count > 1 ? count : 0), 0);
  if (merged) left.push(`${merged.toLocaleString("en")} slices narrower than a pixel are merged`);
  if (cut.deep) left.push(`${cut.deep.toLocaleString("en")} nested deeper are left out`);
  if (cut.left) left.push(`the ${cut.left.toLocaleString("en")} shortest are left out`);
  if (left.length) frame.append(html("p", "note", `${left.join("; ")}.`));
  redraws.add(repaint);
  repaint();
  new ResizeObserver(draw).observe(canvas);
  // For tests and the curious: what is shown.
  canvas.dataset.slices = number;
  return { draw };
};
