// The timeline: host threads above, GPU streams below, each row of slices sorted by start. A row draws as much as it is busy: of a pixel
// that slices cover in part, that part, in the colour of those that cover most of it.
const COLUMNS = ["start", "len", "name", "kind", "op", "by", "count", "blank"];
const unfolded = (value) => (value & 1 ? -((value + 1) / 2) : value / 2);
const unpack = async (packed) => {
  const bytes = Uint8Array.from(atob(packed.columns), (char) => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const planes = new Uint8Array(await new Response(stream).arrayBuffer());
  const n = packed.n, cut = { ...packed, columns: null, n };
  COLUMNS.forEach((name, at) => {
    const from = at * 4 * n, column = new Uint32Array(n);
    for (let i = 0; i < n; i++) column[i] = planes[from + i] | (planes[from + n + i] << 8) | (planes[from + 2 * n + i] << 16) | (planes[from + 3 * n + i] << 24);
    cut[name] = column;
  });
  const start = new Float64Array(n), len = new Float64Array(n), full = new Float32Array(n), reach = new Float64Array(n), filled = new Float64Array(n), by = new Int32Array(n), first = new Int32Array(n).fill(-1), next = new Int32Array(n).fill(-1);
  for (let i = 0, time = 0, call = 0; i < n; i++) {
    time += unfolded(cut.start[i]);
    call += unfolded(cut.by[i]);
    start[i] = time * packed.unit;
    len[i] = cut.len[i] * packed.unit;
    // The share of a merged slice that its slices fill.
    full[i] = cut.len[i] ? 1 - cut.blank[i] / cut.len[i] : 1;
    by[i] = call - 1;
    if (by[i] >= 0) { next[i] = first[by[i]]; first[by[i]] = i; }
  }
  Object.assign(cut, { start, len, full, reach, filled, by, first, next, lane: new Uint16Array(n), depth: new Uint16Array(n) });
  let at = 0;
  cut.rows = packed.rows.map(([lane, depth, count]) => {
    cut.lane.fill(lane, at, at + count);
    cut.depth.fill(depth, at, at + count);
    // Until when something of the row has run, and for how long before this slice: slices of one stream may overlap.
    for (let i = at, end = 0, busy = 0; i < at + count; i++) {
      filled[i] = busy;
      reach[i] = Math.max(end, start[i] + len[i]);
      busy += (reach[i] - Math.max(end, Math.min(start[i], reach[i]))) * full[i];
      end = reach[i];
    }
    at += count;
    return { lane, depth, first: at - count, end: at };
  });
  return cut;
};
// The first of [low, high) whose time, of `times` in order, is `time` or later.
const reaching = (times, low, high, time) => {
  while (low < high) { const middle = (low + high) >> 1; if (times[middle] < time) low = middle + 1; else high = middle; }
  return low;
};
const button = (text, name, act) => {
  const made = html("button", "quiet", text);
  made.type = "button";
  if (name !== text) made.setAttribute("aria-label", name);
  made.addEventListener("click", act);
  return made;
};

// What a search does not find; and of a pixel, what is too little to be seen.
const DIM = 0.25, SPECK = 0.2;
// Where more slices than this begin in one column they are added up by what was worked out before, and every so many are asked for their
// colour: so a step of zooming costs by the screen, not by the trace.
const CROWD = 32;
// Paints slices in order of their start onto one row, each column of the screen once: of a column that they cover in part that part, in the
// colour of those that cover most of it. `slice` takes columns and their fractions; `full` is the share of it that is covered. `share` adds a part
// of one column.
const strip = (g, fills, top, high, ratio) => {
  const bright = new Float64Array(fills.length), faint = new Float64Array(fills.length), specks = fills.map(() => []);
  // What is painted next: neighbours of one colour are one rectangle.
  let left = 0, right = 0, hue = 0, alpha = 1;
  const paint = () => { if (right > left) { g.globalAlpha = alpha; g.fillStyle = fills[hue]; g.fillRect(left / ratio, top, (right - left) / ratio, high); } left = right = 0; };
  const extend = (a, b, newHue, newAlpha) => {
    if (a !== right || newHue !== hue || newAlpha !== alpha) { paint(); left = a; hue = newHue; alpha = newAlpha; }
    right = b;
  };
  // The column that slices share: how much of it is covered, and of that by what a search finds.
  let column = -1, covered = 0, found = 0;
  const settle = () => {
    if (covered > 0) {
      const weights = found > 0 ? bright : faint;
      let most = 0;
      for (let one = 1; one < weights.length; one++) if (weights[one] > weights[most]) most = one;
      if (covered < SPECK) specks[most].push(column);
      extend(column, covered > 0.999 ? column + 1 : column + covered, most, found > 0 ? 1 : DIM);
      bright.fill(0);
      faint.fill(0);
    }
    covered = found = 0;
  };
  const share = (at, one, part, dim) => {
    if (at !== column) { settle(); column = at; }
    if (dim) faint[one] += part; else { bright[one] += part; found += part; }
    covered = Math.min(covered + part, 1);
  };
  const slice = (a, b, one, full, dim) => {
    const first = Math.floor(a), last = Math.floor(b);
    if (first === last) { share(first, one, (b - a) * full, dim); return; }
    share(first, one, (first + 1 - a) * full, dim);
    if (last > first + 1) {
      settle();
      extend(first + 1, last, one, (dim ? DIM : 1) * full);
      if (full < SPECK) specks[one].push(first + 1);
    }
    if (b > last) share(last, one, (b - last) * full, dim);
  };
  // A hairline stands below what covers too little of its column.
  const done = () => {
    settle();
    paint();
    g.globalAlpha = 1; g.lineWidth = 1;
    specks.forEach((columns, one) => {
      if (!columns.length) return;
      g.strokeStyle = fills[one];
      g.beginPath();
      columns.forEach((at) => { g.moveTo(at / ratio, top + high - 0.5); g.lineTo((at + 1) / ratio, top + high - 0.5); });
      g.stroke();
    });
  };
  return { slice, share, done };
};

const timeline = (root, cut, { view, marks = [], span = [], label, main = false }) => {
  const ROW = 16, GAP = 20, AXIS = 22;
  const home = view;
  const sides = cut.lanes.map((lane) => lane[1]);
  const seenIn = (row) => { const i = reaching(cut.start, row.first, row.end, view[1]); return i > row.first && (main || cut.reach[i - 1] > view[0]); };
  const rows = cut.rows.filter((row) => main || seenIn(row));
  const rowAt = cut.lanes.map(() => []);
  rows.forEach((row) => { rowAt[row.lane][row.depth] = row; });
  const tops = [];
  let height = AXIS;
  cut.lanes.forEach((_, lane) => { tops.push(height + GAP - 2); if (rowAt[lane].length) height += GAP + rowAt[lane].length * ROW; });
  height += 4;

  const frame = html("div", "tl"), canvas = html("canvas"), told = html("p", "tl-told"), bar = html("div", "tl-bar"), legend = html("ul", "legend"), tools = html("div", "tools");
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-roledescription", "timeline");
  canvas.setAttribute("aria-label", `${label}: ${cut.n.toLocaleString("en")} slices on ${cut.lanes.length} lanes over ${duration(cut.dur)}. Arrow keys move from slice to slice, plus and minus zoom, A and D move, 0 shows all.`);
  told.setAttribute("role", "status");
  tools.append(button("−", "Zoom out", () => zoom(1.6)), button("+", "Zoom in", () => zoom(1 / 1.6)), button(main ? "Step" : "Back", `${main ? "Step" : "Back"}: show what was shown first`, () => look(...home)));
  if (main) tools.append(button("All", "All: show the whole trace", () => look(0, cut.dur)));
  bar.append(...(main ? [legend] : []), tools);
  frame.append(bar, canvas, told);
  root.replaceChildren(frame);
  canvas.style.height = `${height}px`;

  // A colour by side and kind; what a kind is called.
  const paint = (side, kind) => (side === "gpu" ? `--k-${groupOf(kind)}` : side === "idle" ? (kind === "unknown" ? "--k-other" : "--idle") : `--h-${Object.hasOwn(HOST_NAMES, kind) ? kind : "call"}`);
  const kindName = (side, kind) => (side === "gpu" ? GROUP_NAMES[groupOf(kind)] : side === "idle" ? "idle" : HOST_NAMES[kind] ?? kind);
  const paints = Object.fromEntries(["host", "idle", "gpu"].map((side) => [side, cut.kinds.map((kind) => paint(side, kind))]));
  const tones = [...new Set(Object.values(paints).flat())], toneOf = Object.fromEntries(Object.entries(paints).map(([side, names]) => [side, names.map((name) => tones.indexOf(name))]));
  let fills = {}, inks = {};
  const seen = new Map();
  rows.forEach((row) => {
    const side = sides[row.lane], kinds = new Set();
    const low = main ? row.first : reaching(cut.reach, row.first, row.end, view[0]), high = main ? row.end : reaching(cut.start, row.first, row.end, view[1]);
    for (let i = low; i < high; i++) kinds.add(cut.kind[i]);
    kinds.forEach((kind) => seen.set(paints[side][kind], kindName(side, cut.kinds[kind])));
  });
  const explain = (name, swatch) => { const item = html("li", "", name); item.prepend(swatch); legend.append(item); };
  seen.forEach((name, variable) => { const swatch = html("i"); swatch.style.background = `var(${variable})`; explain(name, swatch); });

  let [from, to] = view, chosen = -1, hovered = -1, width = 0, matching = null, matches = [];
  const least = 0.2;
  const x = (time) => ((time - from) / (to - from)) * width;
  const look = (a, b) => {
    const size = Math.min(Math.max(b - a, least), cut.dur);
    from = Math.min(Math.max(a, 0), cut.dur - size);
    to = from + size;
    draw();
  };
  const zoom = (factor, around = chosen >= 0 && cut.start[chosen] < to && cut.start[chosen] + cut.len[chosen] > from ? cut.start[chosen] + cut.len[chosen] / 2 : (from + to) / 2) =>
    look(around - (around - from) * factor, around + (to - around) * factor);
  const rectOf = (i) => {
    const left = x(cut.start[i]);
    return [left, tops[cut.lane[i]] + cut.depth[i] * ROW, Math.max(x(cut.start[i] + cut.len[i]) - left, 1), ROW - 2];
  };
  const labelOf = (i) => (cut.count[i] > 1 ? `${cut.count[i]} slices` : sides[cut.lane[i]] === "idle" ? spoken(nameOf(cut.name[i])) : shortOf(cut.name[i]));

  const drawRow = (g, row, arrows) => {
    const side = sides[row.lane], top = tops[row.lane] + row.depth * ROW, high = ROW - 2, ratio = pixels(), scale = (width * ratio) / (to - from), columns = Math.round(width * ratio);
    const text = [], seams = [], painted = strip(g, tones.map((name) => fills[name]), top, high, ratio);
    // The colour of most of the slices from i to j.
    const commonest = (i, j) => {
      const weights = new Float64Array(tones.length), stride = Math.ceil((j - i) / CROWD);
      for (let k = i; k < j; k += stride) weights[toneOf[side][cut.kind[k]]] += cut.len[k];
      return weights.indexOf(Math.max(...weights));
    };
    let until = from;
    for (let i = reaching(cut.reach, row.first, row.end, from); i < row.end && cut.start[i] < to; i++) {
      const start = Math.max(cut.start[i], until), end = Math.min(cut.start[i] + cut.len[i], to);
      if (end <= start) continue;
      until = end;
      const a = (start - from) * scale, b = Math.min((end - from) * scale, columns);
      painted.slice(a, b, toneOf[side][cut.kind[i]], cut.full[i], matching && !matching[cut.name[i]]);
      if (b - a < 1 && !matching) {
        const column = Math.floor(b), last = reaching(cut.start, i + 1, row.end, from + (column + 1) / scale) - 1;
        if (last - i > CROWD && cut.start[i + 1] >= from + column / scale) {
          painted.share(column, commonest(i + 1, last), (cut.filled[last] - cut.filled[i + 1]) * scale, false);
          until = cut.reach[last - 1];
          i = last - 1;
          continue;
        }
      }
      if (b - a > 3 * ratio) seams.push(b);
      if (b - a > 26 * ratio) text.push(i, a / ratio, b / ratio);
      if (b - a > 1.5 * ratio && cut.by[i] >= 0 && arrows.length < 400) arrows.push(i);
    }
    painted.done();
    // Where one slice ends and the next may begin.
    g.globalAlpha = 0.35;
    g.strokeStyle = inks.ink; g.lineWidth = 1 / ratio;
    g.beginPath();
    seams.forEach((at) => { const edge = (Math.round(at) - 0.5) / ratio; g.moveTo(edge, top); g.lineTo(edge, top + high); });
    g.stroke();
    g.globalAlpha = 1;
    for (let at = 0; at < text.length; at += 3) {
      const [i, a, b] = text.slice(at, at + 3), said = fitting(labelOf(i), b - a - 8, FONT.small);
      g.fillStyle = matching && !matching[cut.name[i]] ? inks.page : inks[paints[side][cut.kind[i]]];
      g.fillText(said, a + 4, top + high / 2 + 0.5);
    }
  };
  const arrow = (g, call, kernel) => {
    if (!rowAt[cut.lane[call]][cut.depth[call]]) return;
    const a = rectOf(call), b = rectOf(kernel), [ax, ay, bx, by] = [a[0] + Math.min(a[2], 4), a[1] + a[3], b[0], b[1]];
    g.beginPath(); g.moveTo(ax, ay); g.bezierCurveTo(ax, (ay + by) / 2, bx, (ay + by) / 2, bx, by);
    g.moveTo(bx - 3, by - 5); g.lineTo(bx, by); g.lineTo(bx + 3, by - 5); g.stroke();
  };
  // Of the screen, to each of the page's.
  const pixels = () => Math.min(devicePixelRatio || 1, 3);
  const draw = () => {
    width = canvas.clientWidth;
    if (!width) return;
    const began = performance.now(), ratio = pixels();
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const g = canvas.getContext("2d");
    g.scale(ratio, ratio);
    const { ink, dim, line, sunk, mark } = inks;
    g.font = FONT.small;
    g.textBaseline = "middle";
    const step = tick(to - from, Math.max(width / 110, 2));
    g.fillStyle = dim; g.strokeStyle = line; g.lineWidth = 1;
    const origin = span[0] ?? home[0];
    for (let k = Math.ceil((from - origin) / step); k * step + origin <= to; k++) {
      const time = k * step || 0, at = Math.round(x(time + origin)) + 0.5;
      g.beginPath(); g.moveTo(at, AXIS - 4); g.lineTo(at, height); g.stroke();
      if (at < width - 50) g.fillText(onAxis(time, step, to - origin), at + 3, 9);
    }
    g.strokeStyle = dim; g.setLineDash([4, 3]);
    span.forEach((time) => { if (time >= from && time <= to) { const at = Math.min(Math.round(x(time)) + 0.5, width - 1); g.beginPath(); g.moveTo(at, 0); g.lineTo(at, height); g.stroke(); } });
    g.setLineDash([]);
    marks.filter(([lane]) => lane < 0).forEach(([, start, len]) => {
      g.fillStyle = mark; g.globalAlpha = 0.14;
      g.fillRect(x(start), AXIS - 4, Math.max(x(start + len) - x(start), 2), height);
      g.globalAlpha = 1;
    });
    cut.lanes.forEach(([name, side], lane) => {
      if (!rowAt[lane].length) return;
      g.fillStyle = sunk; g.globalAlpha = 0.6;
      g.fillRect(0, tops[lane], width, rowAt[lane].length * ROW - 2);
      g.globalAlpha = 1;
      g.fillStyle = side === "host" ? dim : ink;
      g.fillText(name, 2, tops[lane] - 9);
    });
    const arrows = [];
    rows.forEach((row) => drawRow(g, row, arrows));
    g.strokeStyle = mark; g.lineWidth = 2;
    marks.filter(([lane]) => lane >= 0 && rowAt[lane].length).forEach(([lane, start, len]) => {
      if (start + len < from || start > to) return;
      const row = rowAt[lane].findLast((one) => { const i = one ? reaching(cut.start, one.first, one.end, start - 0.02 - cut.unit) : 0; return one && i < one.end && Math.abs(cut.start[i] - start) < 0.05 + 2 * cut.unit; });
      g.strokeRect(x(start), tops[lane] + (row?.depth ?? 0) * ROW, Math.max(x(start + len) - x(start), 2), ROW - 2);
    });
    const one = hovered >= 0 ? hovered : chosen;
    g.strokeStyle = ink;
    if (arrows.length < 150) { g.lineWidth = 0.8; g.globalAlpha = 0.45; arrows.forEach((kernel) => arrow(g, cut.by[kernel], kernel)); g.globalAlpha = 1; }
    if (one >= 0) {
      g.lineWidth = 2;
      g.strokeRect(...rectOf(one));
      g.lineWidth = 1.5;
      if (cut.by[one] >= 0) arrow(g, cut.by[one], one);
      for (let kernel = cut.first[one], left = 20; kernel >= 0 && left; kernel = cut.next[kernel], left--) arrow(g, one, kernel);
    }
    // For tests and the curious: what is shown, and how long a step of zooming takes.
    Object.assign(canvas.dataset, { from: from.toFixed(2), to: to.toFixed(2), ms: (performance.now() - began).toFixed(2) });
  };
  const repaint = () => {
    fills = Object.fromEntries(tones.map((name) => [name, colour(name)]));
    inks = Object.fromEntries(tones.map((name) => [name, inkOn(fills[name])]));
    ["ink", "dim", "line", "sunk", "mark"].forEach((name) => { inks[name] = colour(`--${name}`); });
    inks.page = inks.ink;
    draw();
  };

  const HINT = main ? "Hover or focus for details. Click, then wheel to zoom; drag to move; arrow keys go from slice to slice." : "Framed is what the finding is about.";
  const tell = (i) => {
    if (i < 0) { told.replaceChildren(html("span", "dim", HINT)); return; }
    const side = sides[cut.lane[i]], name = nameOf(cut.name[i]);
    const facts = [duration(cut.len[i]), `at ${((cut.at + cut.start[i]) / 1e3).toLocaleString("en", { minimumFractionDigits: 3, maximumFractionDigits: 3 })} ms of the trace`, cut.lanes[cut.lane[i]][0]];
    if (cut.count[i] > 1) facts.unshift(`${cut.count[i]} slices merged, the longest`);
    if (cut.op[i]) facts.push(`from ${nameOf(cut.op[i] - 1)}`);
    if (cut.by[i] >= 0) facts.push(`launched ${duration(Math.max(cut.start[i] - cut.start[cut.by[i]], 0))} before`);
    told.replaceChildren(html("b", "", side === "idle" ? `idle: ${spoken(name)}` : name), document.createTextNode(` · ${facts.join(" · ")}`));
  };
  tell(-1);
  const hit = (event) => {
    const box = canvas.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top, time = from + (px / width) * (to - from);
    const row = rows.find((one) => { const top = tops[one.lane] + one.depth * ROW; return py >= top && py < top + ROW; });
    if (!row) return -1;
    const after = reaching(cut.start, row.first, row.end, time), away = (i) => (i < row.first || i >= row.end ? Infinity : Math.max(cut.start[i] - time, time - cut.start[i] - cut.len[i], 0));
    const best = away(after - 1) <= away(after) ? after - 1 : after;
    return away(best) <= (4 / width) * (to - from) ? best : -1;
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
    const row = rowAt[cut.lane[chosen]][cut.depth[chosen]];
    return row && chosen + direction >= row.first && chosen + direction < row.end ? chosen + direction : chosen;
  };
  const across = (direction) => {
    const middle = cut.start[chosen] + cut.len[chosen] / 2, at = rows.indexOf(rowAt[cut.lane[chosen]][cut.depth[chosen]]), row = rows[at + direction];
    if (!row) return chosen;
    const after = reaching(cut.start, row.first, row.end, middle);
    return Math.min(Math.max(after - 1, row.first), row.end - 1);
  };
  // What the arrow keys begin with: what is marked, else the first work on a GPU in view.
  const first = () => {
    const near = (row) => Math.min(Math.max(reaching(cut.start, row.first, row.end, from), row.first), row.end - 1);
    const marked = marks.find(([lane]) => lane >= 0 && rowAt[lane].length);
    const row = (marked && rowAt[marked[0]].find(Boolean)) ?? rows.find((one) => sides[one.lane] === "gpu") ?? rows[0];
    return marked ? Math.min(reaching(cut.start, row.first, row.end, marked[1] - 0.05), row.end - 1) : near(row);
  };
  const into = (i) => { const pad = Math.max(cut.len[i] * 4, 2); chosen = i; tell(i); look(cut.start[i] - pad, cut.start[i] + cut.len[i] + pad); };
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !cut.n) return;
    const move = (to - from) / 5;
    const acts = {
      "+": () => zoom(1 / 1.6), "=": () => zoom(1 / 1.6), "-": () => zoom(1.6), w: () => zoom(1 / 1.6), s: () => zoom(1.6),
      a: () => look(from - move, to - move), d: () => look(from + move, to + move), 0: () => look(...(main ? [0, cut.dur] : home)), Home: () => look(...home),
      ArrowRight: () => choose(chosen < 0 ? first() : beside(1)), ArrowLeft: () => choose(chosen < 0 ? first() : beside(-1)),
      ArrowDown: () => choose(chosen < 0 ? first() : across(1)), ArrowUp: () => choose(chosen < 0 ? first() : across(-1)),
      Enter: () => { if (chosen >= 0) into(chosen); }, Escape: () => choose(-1),
    };
    const act = acts[event.key] ?? acts[event.key.toLowerCase()];
    if (act) { event.preventDefault(); act(); }
  });
  canvas.addEventListener("focus", () => { if (chosen < 0 && cut.n && canvas.matches(":focus-visible")) choose(first()); });
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
  canvas.addEventListener("dblclick", (event) => { const over = hit(event); if (over >= 0) into(over); else look(...home); });

  // Search: what matches keeps its colour, Enter goes from one to the next.
  const search = (words) => {
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    matching = wanted.length ? data.names.map((name) => wanted.every((word) => name.toLowerCase().includes(word))) : null;
    matches = [];
    if (matching) for (let i = 0; i < cut.n; i++) if (matching[cut.name[i]] && cut.count[i] === 1 && rowAt[cut.lane[i]][cut.depth[i]]) matches.push(i);
    matches.sort((a, b) => cut.start[a] - cut.start[b]);
    draw();
    return matches.length;
  };
  const find = (direction) => {
    if (!matches.length) return 0;
    const time = chosen >= 0 && matching[cut.name[chosen]] ? cut.start[chosen] : from - 1e-3;
    let at = reaching(matches.map((i) => cut.start[i]), 0, matches.length, time);
    if (matches[at] === chosen || direction < 0) at += direction;
    at = (at + matches.length) % matches.length;
    into(matches[at]);
    return at + 1;
  };
  const left = [];
  if (cut.merged) left.push(`${cut.merged.toLocaleString("en")} short slices outside of this step and of the findings are merged with their neighbours`);
  if (cut.deep) left.push(`${cut.deep.toLocaleString("en")} nested deeper are left out`);
  if (cut.left) left.push(`the ${cut.left.toLocaleString("en")} shortest are left out`);
  if (main && left.length) frame.append(html("p", "note", `To keep this page small, ${left.join("; ")}.`));
  redraws.add(repaint);
  repaint();
  new ResizeObserver(draw).observe(canvas);
  canvas.dataset.slices = cut.n;
  const mark = (found) => { marks = found; if (!legend.querySelector(".marked")) explain("what the finding is about", html("i", "marked")); };
  return { bar, canvas, find, search, show: (moment) => { mark(moment.marks); chosen = -1; tell(-1); look(moment.from, moment.to); } };
};
