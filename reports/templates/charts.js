// A details line under a chart: what is hovered or focused.
const teller = (root, hint) => {
  const line = html("p", "tl-told");
  line.setAttribute("role", "status");
  const tell = (head, rest) => line.replaceChildren(...(head ? [html("b", "", head), document.createTextNode(` · ${rest}`)] : [html("span", "dim", hint)]));
  tell();
  root.append(line);
  return tell;
};
const interactive = (node, label, tell, head, rest) => {
  node.setAttribute("tabindex", "0");
  node.setAttribute("aria-label", label);
  for (const event of ["pointerenter", "focus"]) node.addEventListener(event, () => tell(head, rest));
  for (const event of ["pointerleave", "blur"]) node.addEventListener(event, () => tell());
};
// One tab stop a chart; arrow keys go on from there.
const roving = (picture) => {
  const stops = [...picture.querySelectorAll("[tabindex]")];
  stops.forEach((stop, at) => {
    stop.setAttribute("tabindex", at ? "-1" : "0");
    stop.addEventListener("keydown", (event) => {
      const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: stops.length - 1 }[event.key];
      if (to === undefined || !stops[to]) return;
      event.preventDefault();
      stop.setAttribute("tabindex", "-1");
      stops[to].setAttribute("tabindex", "0");
      stops[to].focus();
    });
  });
};
const canvasOf = (root, height, label, role = "group") => {
  const box = html("div", "plot");
  root.prepend(box);
  return (draw) => whenSized(box, () => {
    const width = box.clientWidth;
    const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role, "aria-label": label });
    draw(picture, width);
    roving(picture);
    box.replaceChildren(picture);
  });
};

// Each step's period, stacked by what the GPU did, with the median and outliers.
const stepsChart = (root, steps) => {
  const { period, parts, outlier, middle } = steps;
  const tell = teller(root, "Hover or focus a step for its times; arrow keys go on.");
  const height = 190, left = 62, bottom = 24;
  const top = Math.max(...period) * 1.12;
  const sorted = [...period].sort((a, b) => a - b);
  const median = (sorted[Math.floor((sorted.length - 1) / 2)] + sorted[Math.ceil((sorted.length - 1) / 2)]) / 2;
  const names = { compute: "compute", exposed_comm: "communication", exposed_copy: "copies", exposed_memset: "memsets", idle: "idle" };
  const y = (us) => height - bottom - (us / top) * (height - bottom - 8);
  canvasOf(root, height, "Time of each step")((picture, width) => {
    const room = width - left - 8, each = room / period.length, bar = Math.min(Math.max(each - Math.min(each * 0.2, 6), 0.6), 90);
    const size = tick(top, 4);
    for (let us = 0; us <= top; us += size) {
      picture.append(svg("line", { x1: left, x2: width - 8, y1: y(us), y2: y(us), class: "grid" }));
      picture.append(svg("text", { x: left - 6, y: y(us) + 4, class: "tick end" }, duration(us)));
    }
    const labels = Math.ceil(period.length / Math.max(room / 44, 1));
    period.forEach((us, at) => {
      const x = left + each * at + (each - bar) / 2;
      const group = svg("g", { role: "img", class: "hot" });
      group.append(svg("rect", { x: left + each * at, y: 0, width: Math.max(each, 1), height: height - bottom, class: "hit" }));
      let sum = 0;
      const said = [];
      for (const [key, values] of Object.entries(parts)) {
        if (!(values[at] > 0)) continue;
        group.append(svg("rect", { x, width: bar, y: y(sum + values[at]), height: Math.max(y(sum) - y(sum + values[at]), 0.3), class: `p-${key}` }));
        sum += values[at];
        said.push(`${names[key]} ${duration(values[at])}`);
      }
      if (outlier.includes(at)) group.append(svg("path", { d: `M${x + bar / 2 - 5} ${y(us) - 12}h10l-5 8z`, class: "flag" }));
      const head = `Step ${at + 1}: ${duration(us)}${outlier.includes(at) ? ", an outlier" : ""}${at === middle ? ", drawn in the timeline" : ""}`;
      interactive(group, `${head}; ${said.join(", ")}`, tell, head, said.join(", "));
      picture.append(group);
      if (at % labels === 0) picture.append(svg("text", { x: x + bar / 2, y: height - 7, class: "tick mid" }, String(at + 1)));
    });
    picture.append(svg("line", { x1: left, x2: width - 8, y1: y(median), y2: y(median), class: "median" }));
  });
  const legend = html("ul", "legend");
  Object.keys(parts).filter((key) => parts[key].some((us) => us > 0)).forEach((key) => {
    const item = html("li", "", names[key]);
    item.prepend(html("i", `p-${key}`));
    legend.append(item);
  });
  root.append(legend);
  if (steps.all > period.length) root.append(html("p", "note", `The first ${period.length} of ${steps.all} steps.`));
};

// Log–log: FLOP/byte against TFLOP/s, the roofs of the device, kernels as circles by time.
const roofChart = (root, roof) => {
  const tell = teller(root, "Hover or focus a kernel for its rates; choose one to find it in the table.");
  const height = 400, left = 58, bottom = 42, right = 14, topPad = 22;
  const slope = roof.gbps / 1e3;
  const peak = Math.max(...roof.roofs.map(([, tera]) => tera), slope);
  const ridges = roof.roofs.map(([, tera]) => tera / slope);
  const x0 = Math.min(0.05, ...roof.points.map((p) => p[5] / 2)), x1 = Math.max(3e3, ...ridges.map((r) => r * 3), ...roof.points.map((p) => p[5] * 2));
  const y1 = peak * 2, y0 = Math.max(Math.min(slope * x0, ...roof.points.filter((p) => p[4] >= 0.005).map((p) => p[6] / 2)), y1 / 1e7);
  // A rate below the chart would lie on its edge as if it were there.
  const drawn = roof.points.filter((p) => p[6] >= y0 && p[5] >= x0);
  const decade = (value) => (value >= 1e3 ? `${value / 1e3}k` : value >= 1 ? String(value) : String(Number(value.toPrecision(1))));
  canvasOf(root, height, "Roofline: kernels by arithmetic intensity and achieved rate")((picture, width) => {
    const px = (v) => left + (Math.log(v / x0) / Math.log(x1 / x0)) * (width - left - right);
    const py = (v) => height - bottom - (Math.log(Math.max(v, y0) / y0) / Math.log(y1 / y0)) * (height - bottom - topPad);
    const every = width < 500 ? 2 : 1;
    for (let e = Math.ceil(Math.log10(x0)); 10 ** e <= x1; e++) {
      picture.append(svg("line", { x1: px(10 ** e), x2: px(10 ** e), y1: topPad, y2: height - bottom, class: "grid" }));
      if (e % every === 0) picture.append(svg("text", { x: px(10 ** e), y: height - bottom + 16, class: "tick mid" }, decade(10 ** e)));
    }
    for (let e = Math.ceil(Math.log10(y0)); 10 ** e <= y1; e++) {
      picture.append(svg("line", { x1: left, x2: width - right, y1: py(10 ** e), y2: py(10 ** e), class: "grid" }));
      picture.append(svg("text", { x: left - 6, y: py(10 ** e) + 4, class: "tick end" }, decade(10 ** e)));
    }
    picture.append(svg("text", { x: (left + width) / 2, y: height - 6, class: "tick mid" }, "FLOP per byte"));
    picture.append(svg("text", { x: left - 50, y: 12, class: "tick" }, "TFLOP/s"));
    const top = roof.roofs.reduce((best, one) => (one[1] > best ? one[1] : best), 0) || slope * x1;
    picture.append(svg("path", { d: `M${px(x0)} ${py(slope * x0)}L${px(top / slope)} ${py(top)}`, class: "roof" }));
    const memory = svg("text", { class: "roof-name" }, `${three(roof.gbps)} GB/s`);
    const at = Math.sqrt(x0 * Math.min(...ridges, x1)) / 2, tilt = (-Math.atan2(py(slope * x0) - py(top), px(top / slope) - px(x0)) * 180) / Math.PI;
    memory.setAttribute("transform", `translate(${px(at)} ${py(slope * at) - 7}) rotate(${tilt})`);
    const names = [memory];
    let last = Infinity;
    [...roof.roofs].sort((a, b) => a[1] - b[1]).forEach(([name, tera]) => {
      const ridge = tera / slope;
      picture.append(svg("path", { d: `M${px(ridge)} ${py(tera)}H${width - right}`, class: "roof" }));
      picture.append(svg("circle", { cx: px(ridge), cy: py(tera), r: 3, class: "ridge" }));
      const y = Math.min(py(tera) - 5, last - 13);
      last = y;
      names.push(svg("text", { x: width - right, y, class: "roof-name end" }, `${name.toUpperCase()} ${three(tera)} TFLOP/s`));
    });
    const most = Math.max(...roof.points.map((p) => p[3]));
    [...drawn].sort((a, b) => b[3] - a[3]).forEach(([name, family, precision, us, share, intensity, tera, gbps, reached]) => {
      const circle = svg("circle", { cx: px(intensity), cy: py(tera), r: 3.5 + 17 * Math.sqrt(us / most), class: `dot k-${groupOf(family)}`, role: "button" });
      const rest = `${duration(us)}, ${percent(share)} of busy time · ${three(intensity)} FLOP/byte · ${three(tera)} TFLOP/s · ${three(gbps)} GB/s · ${percent(reached)} of its roofline${precision ? ` · ${precision}` : ""}`;
      interactive(circle, `${name}: ${rest}`, tell, name, rest);
      const find = () => {
        const box = document.getElementById("search-kernel-table");
        box.value = name.length < 150 ? name : name.slice(0, 60);
        box.dispatchEvent(new Event("input"));
        box.focus();
        document.getElementById("kernels").scrollIntoView();
      };
      circle.addEventListener("click", find);
      circle.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); find(); } });
      picture.append(circle);
    });
    picture.append(...names);
  });
  root.append(legendOf(new Set(drawn.map((p) => groupOf(p[1])))));
  const below = roof.points.length - drawn.length;
  if (below) root.append(html("p", "note", `${below} ${below > 1 ? "kernels lie" : "kernel lies"} below the chart.`));
};
const legendOf = (groups) => {
  const list = html("ul", "legend");
  Object.keys(GROUP_NAMES).filter((group) => groups.has(group)).forEach((group) => {
    const item = html("li", "", GROUP_NAMES[group]);
    item.prepend(html("i", `k-${group}`));
    list.append(item);
  });
  return list;
};

// Squarified (Bruls, Huizing, van Wijk 2000): areas in proportion, sides as even as they come.
const squarify = (items, x, y, w, h) => {
  const placed = [];
  const sum = items.reduce((total, item) => total + item.us, 0);
  if (!(sum > 0) || w <= 0 || h <= 0) return placed;
  const scale = (w * h) / sum;
  let rest = items.slice();
  while (rest.length) {
    const side = Math.min(w, h);
    let row = [], area = 0, worst = Infinity;
    for (const item of rest) {
      const next = area + item.us * scale;
      const sizes = [...row, item].map((one) => one.us * scale);
      const ratio = Math.max((side * side * Math.max(...sizes)) / (next * next), (next * next) / (side * side * Math.min(...sizes)));
      if (row.length && ratio > worst) break;
      row.push(item); area = next; worst = ratio;
    }
    const thick = area / side;
    let along = 0;
    row.forEach((item) => {
      const length = (item.us * scale) / thick;
      placed.push(w >= h ? [item, x, y + along, thick, length] : [item, x + along, y, length, thick]);
      along += length;
    });
    if (w >= h) { x += thick; w -= thick; } else { y += thick; h -= thick; }
    rest = rest.slice(row.length);
  }
  return placed;
};
// Leaves as a tree: by module and op, and for a flame graph by line of the program between the two.
const treeOf = (leaves, whole, lines = false) => {
  const root = { name: whole, said: whole, us: 0, calls: 0, children: new Map() };
  leaves.forEach(([names, family, us, calls, line, modules]) => {
    const path = lines && line >= 0 ? [...names.slice(0, modules), line, ...names.slice(modules)] : names;
    let node = root;
    root.us += us; root.calls += calls;
    path.forEach((code, depth) => {
      const name = nameOf(code), last = depth === path.length - 1, key = last ? `${name}\n${family}` : name;
      if (!node.children.has(key)) node.children.set(key, { name, said: shortOf(code), us: 0, calls: 0, children: new Map(), family: last ? family : "" });
      node = node.children.get(key);
      node.us += us; node.calls += calls;
    });
  });
  const settle = (node) => {
    node.children = [...node.children.values()].map(settle).sort((a, b) => b.us - a.us);
    if (node.children.length) {
      const sums = {};
      node.children.forEach((child) => Object.entries(child.sums).forEach(([family, us]) => { sums[family] = (sums[family] ?? 0) + us; }));
      node.sums = sums;
      node.family = Object.keys(sums).reduce((best, family) => (sums[family] > sums[best] ? family : best));
    } else node.sums = { [node.family]: node.us };
    // A chain of only children is one box.
    while (!lines && node.children.length === 1 && node.children[0].children.length) {
      node.said += ` › ${node.children[0].said}`;
      node.name += ` › ${node.children[0].name}`;
      node.children = node.children[0].children;
    }
    return node;
  };
  const settled = settle(root);
  settled.name = settled.said = whole;
  return settled;
};
const treeChart = (root, tree) => {
  const whole = treeOf(tree, "all GPU work");
  const tell = teller(root, "Hover or focus for time; choose a box to look into it.");
  const crumbs = html("nav", "crumbs");
  crumbs.setAttribute("aria-label", "Where the treemap is");
  let path = [whole];
  const height = 270, HEAD = 18;
  let again = () => {};
  const go = (next, focus) => { path = next; again(); if (focus) crumbs.querySelector("button:last-of-type")?.focus(); };
  canvasOf(root, height, "GPU time by module, op and kernel")((picture, width) => {
    const place = (node, x, y, w, h, depth, parents) => {
      if (w < 2 || h < 2) return;
      const leaf = !node.children.length;
      const closed = leaf || h <= HEAD + 8 || w <= 14 || depth >= 6;
      const seen = w > 6 && h > 6;
      const group = svg("g", seen ? { class: "hot", role: leaf ? "img" : "button" } : {});
      group.append(svg("rect", { x: x + 0.5, y: y + 0.5, width: w - 1, height: h - 1, rx: 2, class: closed ? `box k-${groupOf(node.family)}` : "box branch" }));
      // What is read out begins with what is seen.
      let seenText = "";
      const text = h > 15 ? fitting(node.said, w - 10, closed ? FONT.bold : FONT.plain) : "";
      if (text) {
        seenText = leaf && h > 32 && w > 60 ? `${text} ${percent(node.us / whole.us)}` : text;
        group.append(svg("text", { x: x + 5, y: y + 13, class: closed ? `box-name on-${groupOf(node.family)}` : "branch-name" }, text));
        if (leaf && h > 32 && w > 60) group.append(svg("text", { x: x + 5, y: y + 28, class: `box-name on-${groupOf(node.family)}` }, percent(node.us / whole.us)));
      }
      if (seen) {
        const rest = `${duration(node.us)}, ${percent(node.us / whole.us)} of busy time · ${node.calls.toLocaleString("en")} calls`;
        interactive(group, `${seenText} ${seenText === node.name ? "" : node.name}: ${rest}`, tell, node.name, rest);
      }
      if (seen && !leaf) {
        const enter = (event) => { event.stopPropagation(); go([...path, ...parents, node], event.type === "keydown"); };
        group.addEventListener("click", enter);
        group.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); enter(event); } });
      }
      picture.append(group);
      if (!closed)
        squarify(node.children, x + 2, y + HEAD, w - 4, h - HEAD - 2).forEach(([child, ...box]) => place(child, ...box, depth + 1, [...parents, node]));
    };
    again = () => {
      const at = path[path.length - 1];
      picture.replaceChildren();
      tell();
      crumbs.replaceChildren(...path.map((node, depth) => {
        const button = html("button", "quiet", `${depth ? "› " : ""}${node.said}`);
        button.type = "button";
        button.disabled = depth === path.length - 1 && depth === 0;
        if (depth === path.length - 1) button.setAttribute("aria-current", "true");
        button.addEventListener("click", () => go(path.slice(0, depth + 1), true));
        return button;
      }));
      squarify(at.children.length ? at.children : [at], 0, 0, width, height).forEach(([child, ...box]) => place(child, ...box, 0, []));
      roving(picture);
    };
    again();
  });
  root.prepend(crumbs);
  const groups = new Set(tree.map((leaf) => groupOf(leaf[1])));
  root.append(legendOf(groups));
};

// A flame graph, root on top: modules, then the line of the program, then ops and what they ran; a box is as wide as its time.
const flameChart = (root, leaves, what) => {
  const whole = treeOf(leaves, `all ${what}`, true);
  const tell = teller(root, "Hover or focus for time; choose a box to widen it.");
  const ROW = 19;
  const depthOf = (node) => 1 + Math.max(0, ...node.children.map(depthOf));
  let path = [whole], again = () => {};
  const go = (next) => { path = next; again(); };
  canvasOf(root, Math.min(depthOf(whole), 24) * ROW + 2, `Flame graph of ${what}`)((picture, width) => {
    const place = (node, x, y, wide, parents, above) => {
      if (wide < 0.7 || y > 23 * ROW) return;
      const group = svg("g", wide > 5 ? { class: "hot", role: node.children.length ? "button" : "img" } : {});
      const family = node.family === "host" ? "host" : groupOf(node.family);
      group.append(svg("rect", { x, y, width: Math.max(wide - 0.6, 0.5), height: ROW - 1.5, rx: 1.5, class: `box k-${family}${above ? " above" : ""}${node.children.length ? " inner" : ""}` }));
      const text = wide > 20 ? fitting(node.said, wide - 8, node.children.length ? FONT.plain : FONT.bold) : "";
      if (text) group.append(svg("text", { x: x + 4, y: y + 13, class: `box-name on-${node.children.length ? "inner" : family}` }, text));
      if (wide > 5) {
        const rest = `${duration(node.us)}, ${percent(node.us / whole.us)} of ${what} · ${node.calls.toLocaleString("en")} calls`;
        interactive(group, `${text} ${text === node.name ? "" : node.name}: ${rest}`, tell, node.name, rest);
        const enter = () => go([...parents, node]);
        group.addEventListener("click", enter);
        group.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); enter(); } });
      }
      picture.append(group);
      let at = x;
      if (!above) node.children.forEach((child) => { const share = (child.us / node.us) * wide; place(child, at, y + ROW, share, [...parents, node], false); at += share; });
    };
    again = () => {
      picture.replaceChildren();
      tell();
      path.slice(0, -1).forEach((node, depth) => place(node, 0, depth * ROW, width, path.slice(0, depth), true));
      place(path[path.length - 1], 0, (path.length - 1) * ROW, width, path.slice(0, -1), false);
      roving(picture);
    };
    again();
  });
};
// The same time in three pictures, one shown.
const timeChart = (root) => {
  const views = [["Treemap", (node) => treeChart(node, data.tree)]];
  if (data.timeline !== undefined) {
    views.push(["Flame graph, GPU", (node) => flameChart(node, data.tree, "GPU time")]);
    if (data.hostTree?.length) views.push(["Flame graph, host", (node) => flameChart(node, data.hostTree, "host time")]);
  }
  const bar = html("div", "tools switch"), area = html("div");
  bar.setAttribute("role", "group");
  bar.setAttribute("aria-label", "How time is drawn");
  const buttons = views.map(([name, make]) => button(name, name, (event) => {
    buttons.forEach((one) => one.setAttribute("aria-pressed", String(one === event.currentTarget)));
    area.replaceChildren();
    make(area);
  }));
  bar.append(...buttons);
  root.append(...(views.length > 1 ? [bar, area] : [area]));
  buttons[0].setAttribute("aria-pressed", "true");
  views[0][1](area);
};

// Two stairs over the window: `used` with its area, `held` as a thin line.
const stairsChart = (root, curve, label, unit, least = 0) => {
  const height = 180, left = 66, bottom = 24;
  const top = Math.max(...curve.held, ...curve.used, 1) * 1.1, end = curve.end ?? (curve.time[curve.time.length - 1] || 1);
  const y = (n) => height - bottom - (n / top) * (height - bottom - 8);
  canvasOf(root, height, label, "img")((picture, width) => {
    const x = (us) => left + (us / end) * (width - left - 10);
    const size = Math.max(tick(top, 4), least);
    for (let n = 0; n <= top; n += size) {
      picture.append(svg("line", { x1: left, x2: width - 10, y1: y(n), y2: y(n), class: "grid" }));
      picture.append(svg("text", { x: left - 6, y: y(n) + 4, class: "tick end" }, unit(n)));
    }
    const size2 = tick(end, Math.max(width / 120, 2));
    for (let us = 0; us <= end; us += size2) picture.append(svg("text", { x: x(us), y: height - 7, class: "tick mid" }, duration(us)));
    const stair = (values) => values.map((n, at) => `${at ? `H${x(curve.time[at]).toFixed(1)}V` : `M${x(curve.time[at]).toFixed(1)} `}${y(n).toFixed(1)}`).join("");
    picture.append(svg("path", { d: `${stair(curve.used)}H${x(end)}V${y(0)}H${x(0)}Z`, class: "used" }));
    picture.append(svg("path", { d: `${stair(curve.used)}H${x(end)}`, class: "used-line" }));
    if (Math.max(...curve.held) > 0) picture.append(svg("path", { d: `${stair(curve.held)}H${x(end)}`, class: "held-line" }));
  });
};
const memoryChart = (root, curve) =>
  stairsChart(root, curve, `Memory of GPU ${curve.device} over the window: at most ${bytes(Math.max(...curve.used))} allocated`, bytes);
const queueChart = (root, curve) =>
  stairsChart(root, curve, `Launch queue of GPU ${curve.device} over the window: at most ${Math.max(...curve.used).toLocaleString("en")} ops`, (n) => n.toLocaleString("en"), 1);
