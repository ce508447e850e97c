// Draws what the page has room for, once each, when it is looked at.
const each = (selector, act) => document.querySelectorAll(selector).forEach(act);
const drawn = new WeakSet();
const once = (node, act) => { if (!drawn.has(node)) { drawn.add(node); node.hidden = false; act(); } };
const charts = {
  steps: (root) => data.steps && stepsChart(root, data.steps),
  roofline: (root) => data.roofline && roofChart(root, data.roofline),
  tree: (root) => data.tree.length && timeChart(root),
  queue: (root) => data.queues?.[Number(root.dataset.at)] && queueChart(root, data.queues[Number(root.dataset.at)]),
  memory: (root) => data.memory?.[Number(root.dataset.at)] && memoryChart(root, data.memory[Number(root.dataset.at)]),
};
each("[data-chart]", (root) => { if (charts[root.dataset.chart]) once(root, () => charts[root.dataset.chart](root)); });

const searchOf = (shown) => {
  const label = html("label", "search"), box = html("input"), told = html("span");
  box.type = "search";
  box.placeholder = "name of an op or kernel";
  box.autocomplete = "off";
  told.setAttribute("role", "status");
  label.append("Find", box);
  box.addEventListener("input", () => { const count = shown.search(box.value); told.textContent = box.value ? `${count.toLocaleString("en")} found` : ""; });
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    const at = shown.find(event.shiftKey ? -1 : 1);
    if (at) told.textContent = `${at.toLocaleString("en")} of ${shown.search(box.value).toLocaleString("en")}`;
  });
  const row = html("div", "search");
  row.append(label, told);
  return row;
};
const drawTimeline = async () => {
  const root = document.querySelector("[data-chart=timeline]");
  if (!root || !data.timeline) return;
  const cut = await unpack(data.timeline);
  root.hidden = false;
  const main = timeline(root, cut, { view: data.view, span: data.span, label: "The trace", main: true });
  const bar = html("div", "tl-find");
  const moments = html("div", "tools");
  moments.setAttribute("role", "group");
  moments.setAttribute("aria-label", "Moments of the findings");
  const show = (at) => { main.show(data.moments[at]); document.getElementById("timeline").scrollIntoView(); main.canvas.focus({ preventScroll: true }); };
  each(".finding", (finding, at) => {
    const moment = data.moments[at];
    if (!moment) return;
    const title = finding.querySelector("h3").textContent.trim();
    if (moments.childElementCount < 3) moments.append(button(title, title, () => show(at)));
    const holder = finding.querySelector("[data-moment]");
    const drawMoment = () => once(holder, () => {
      const one = timeline(holder.querySelector(".chart"), cut, { view: [moment.from, moment.to], marks: moment.marks, label: `The moment of: ${title}` });
      one.bar.querySelector(".tools").append(button("In the timeline", `In the timeline: ${title}`, () => show(at)));
    });
    if (finding.open) drawMoment();
    finding.addEventListener("toggle", () => { if (finding.open) drawMoment(); });
    addEventListener("beforeprint", drawMoment);
  });
  bar.append(searchOf(main), moments);
  root.prepend(bar);
  root.dataset.ready = "true";
};
drawTimeline();
