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
// A place on an axis, in the unit of its far end, to as many digits as tell it from the next.
const onAxis = (us, step, most) => {
  const [size, unit] = most < 999.5 ? [1, "µs"] : most < 999500 ? [1e3, "ms"] : [1e6, "s"];
  const digits = Math.min(Math.max(Math.ceil(-Math.log10(step / size) - 1e-9), 0), 9);
  return `${us < 0 ? "−" : ""}${(Math.abs(us) / size).toFixed(digits)} ${unit}`;
};
const duration = (us) => (us < 999.5 ? `${three(us)} µs` : us < 999500 ? `${three(us / 1e3)} ms` : `${three(us / 1e6)} s`);
const bytes = (n) => (n < 999.5e6 ? `${three(n / 1e6)} MB` : `${three(n / 1e9)} GB`);
const percent = (part) => (part > 0 && part < 0.001 ? "<0.1%" : `${(part * 100).toFixed(part < 0.0995 ? 1 : 0)}%`);
// Names stand once in the data, and beside the long ones how people say them.
const nameOf = (code) => data.names[code] ?? "";
const shortOf = (code) => data.short[code] ?? nameOf(code);
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
const spoken = (text) => text.replaceAll("_", " ");
// Colours are the style sheet's, so that light, dark and print agree.
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const inkOn = (hex) => {
  const [r, g, b] = [1, 3, 5].map((at) => (parseInt(hex.slice(at, at + 2), 16) / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#0b0f14" : "#ffffff";
};
const FONT = Object.fromEntries([["small", "11px"], ["plain", "12px"], ["bold", "600 12px"]].map(([name, size]) => [name, `${size} ${colour("--sans")}`]));
// As much of a text as fits in the font that it is drawn in; "" where that says nothing.
const ruler = document.createElement("canvas").getContext("2d"), widths = new Map();
const fitting = (text, room, font) => {
  const key = `${font} ${text}`, measured = (part) => { ruler.font = font; return ruler.measureText(part).width; };
  if (!widths.has(key)) widths.set(key, measured(text));
  if (widths.get(key) <= room) return text;
  let fits = Math.floor((text.length * room) / widths.get(key));
  while (fits > 2 && measured(`${text.slice(0, fits - 1)}…`) > room) fits--;
  return fits > 2 ? `${text.slice(0, fits - 1)}…` : "";
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

