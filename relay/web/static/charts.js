// Small charts of the last minutes, drawn as SVG: lines or stacked areas, with the value under the pointer.

import { h, s } from "./dom.js";

const HEIGHT = 168;
const PAD = { top: 12, right: 10, bottom: 20, left: 48 };
const GAP_SECONDS = 50;

/**
 * series: [{ name, tone, value: sample => number|null }]. `stack` piles them up. `format` writes a value.
 * Returns { element, draw(samples, minutes) }.
 */
export function chart({ title, hint, series, format, stack = false, least = 1 }) {
  const plot = s("svg", { class: "plot", role: "img", height: HEIGHT, "aria-label": title });
  const tip = h("div", { class: "tip", "aria-hidden": "true" });
  const now = h("span", { class: "chart-now" });
  const holder = h("div", { class: "chart-area" }, plot, tip);
  const legend = series.length > 1 ? h("ul", { class: "legend" }, series.map((one) => h("li", {}, h("i", { class: `swatch ${one.tone}` }), one.name))) : null;
  const element = h("section", { class: "card chart", "aria-label": title },
    h("header", {}, h("h2", {}, title), now), h("p", { class: "hint" }, hint, legend), holder);
  let last = null;

  function draw(samples, minutes) {
    last = [samples, minutes];
    const width = holder.clientWidth || 480;
    const end = Date.now() / 1000;
    const start = end - minutes * 60;
    const seen = samples.filter((sample) => sample.at >= start - 20);
    const rows = seen.map((sample) => ({ at: sample.at, values: series.map((one) => (sample.trouble ? null : one.value(sample))) }));
    const tops = rows.map((row) => (stack ? row.values.reduce((sum, value) => sum + (value || 0), 0) : Math.max(0, ...row.values.map((value) => value || 0))));
    const top = nice(Math.max(least, ...tops));
    const x = (at) => PAD.left + ((at - start) / (end - start)) * (width - PAD.left - PAD.right);
    const y = (value) => HEIGHT - PAD.bottom - (value / top) * (HEIGHT - PAD.top - PAD.bottom);
    plot.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    plot.setAttribute("width", width);
    plot.replaceChildren(...grid(width, top, minutes, y, format), ...marks(rows, x, y), s("line", { class: "cursor", y1: PAD.top, y2: HEIGHT - PAD.bottom, x1: -9, x2: -9 }));
    summary(rows, tops);
    pointer(rows, x, width);
  }

  function marks(rows, x, y) {
    const found = [];
    let base = rows.map(() => 0);
    series.forEach((one, index) => {
      const ends = stack ? rows.map((row, at) => (row.values[index] === null ? null : base[at] + row.values[index])) : rows.map((row) => row.values[index]);
      for (const run of runs(rows, ends)) {
        const line = run.map((at) => `${x(rows[at].at).toFixed(1)},${y(ends[at]).toFixed(1)}`).join("L");
        if (stack || index === 0) {
          const floor = stack ? base : rows.map(() => 0);
          const back = [...run].reverse().map((at) => `${x(rows[at].at).toFixed(1)},${y(floor[at]).toFixed(1)}`).join("L");
          found.push(s("path", { class: `area ${one.tone}`, d: `M${line}L${back}Z` }));
        }
        found.push(s("path", { class: `line ${one.tone}`, d: run.length > 1 ? `M${line}` : `M${line}h0.1` }));
      }
      if (stack) base = ends.map((end, at) => (end === null ? base[at] : end));
    });
    return found;
  }

  function summary(rows, tops) {
    const newest = rows.at(-1);
    const value = newest ? (stack ? tops.at(-1) : newest.values[0]) : null;
    const named = stack || series.length === 1 ? "" : `${series[0].name} `;
    now.textContent = value === null || value === undefined ? "–" : named + format(value);
    const said = newest ? series.map((one, index) => `${one.name} ${newest.values[index] === null ? "unknown" : format(newest.values[index])}`).join(", ") : "no data yet";
    plot.setAttribute("aria-label", `${title}: now ${said}; highest ${format(Math.max(0, ...tops))}`);
  }

  function pointer(rows, x, width) {
    const cursor = plot.querySelector(".cursor");
    holder.onpointerleave = () => { tip.classList.remove("on"); cursor.setAttribute("x1", -9); cursor.setAttribute("x2", -9); };
    holder.onpointermove = (move) => {
      const at = move.clientX - holder.getBoundingClientRect().left;
      let best = null;
      for (const row of rows) if (best === null || Math.abs(x(row.at) - at) < Math.abs(x(best.at) - at)) best = row;
      if (!best) return;
      const place = x(best.at);
      cursor.setAttribute("x1", place);
      cursor.setAttribute("x2", place);
      tip.replaceChildren(h("b", {}, new Date(best.at * 1000).toLocaleTimeString()),
        ...series.map((one, index) => h("span", {}, h("i", { class: `swatch ${one.tone}` }), one.name, h("em", {}, best.values[index] === null ? "–" : format(best.values[index])))));
      tip.classList.add("on");
      tip.style.left = `${Math.min(Math.max(place - tip.offsetWidth / 2, 0), width - tip.offsetWidth)}px`;
    };
  }

  new ResizeObserver(() => { if (last) draw(...last); }).observe(holder);
  return { element, draw };
}

function* runs(rows, ends) {
  let run = [];
  for (let at = 0; at < rows.length; at += 1) {
    const broken = ends[at] === null || ends[at] === undefined || (run.length && rows[at].at - rows[run.at(-1)].at > GAP_SECONDS);
    if (broken && run.length) { yield run; run = []; }
    if (ends[at] !== null && ends[at] !== undefined) run.push(at);
  }
  if (run.length) yield run;
}

function grid(width, top, minutes, y, format) {
  const lines = [0, 0.5, 1].map((share) => {
    const place = Math.round(y(top * share)) + 0.5;
    return [s("line", { class: "rule", x1: PAD.left, x2: width - PAD.right, y1: place, y2: place }),
      s("text", { class: "tick", x: PAD.left - 8, y: place + 4, "text-anchor": "end" }, format(top * share).replace("/s", ""))];
  });
  const ends = [s("text", { class: "tick", x: PAD.left, y: HEIGHT - 4 }, `${minutes} min ago`), s("text", { class: "tick", x: width - PAD.right, y: HEIGHT - 4, "text-anchor": "end" }, "now")];
  return [...lines.flat(), ...ends];
}

/** The next round number, so that the axis does not tremble with each sample. */
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  for (const step of [1, 1.5, 2, 3, 4, 5, 6, 8, 10]) if (step * power >= value) return step * power;
  return 10 * power;
}

/** The buckets of a worker as slices of a ring: one path for all of them. */
function slices(spans, total, inner, outer) {
  const point = (bucket, radius) => {
    const turn = (bucket / total) * 2 * Math.PI - Math.PI / 2;
    return `${(Math.cos(turn) * radius).toFixed(2)} ${(Math.sin(turn) * radius).toFixed(2)}`;
  };
  return spans.map(([first, last]) => {
    const end = last + 1;
    if (end - first >= total) {
      return `M0 ${-outer}A${outer} ${outer} 0 1 1 -0.01 ${-outer}ZM0 ${-inner}A${inner} ${inner} 0 1 0 -0.01 ${-inner}Z`;
    }
    const large = end - first > total / 2 ? 1 : 0;
    return `M${point(first, outer)}A${outer} ${outer} 0 ${large} 1 ${point(end, outer)}L${point(end, inner)}A${inner} ${inner} 0 ${large} 0 ${point(first, inner)}Z`;
  }).join("");
}

export function ring({ workers, total, label }) {
  const paths = workers.map((worker, index) => s("path", {
    class: `slice tone-${index % 8}`, d: slices(worker.owned, total, 74, 98), "fill-rule": "evenodd", data: { worker: worker.id },
  }, s("title", {}, `${worker.id}: ${worker.buckets} of ${total} buckets`)));
  const said = workers.map((worker) => `${worker.id} ${worker.buckets}`).join(", ");
  return s("svg", { class: "ring", viewBox: "-100 -100 200 200", role: "img", "aria-label": `Shares of the ${total} buckets: ${said || "nobody"}` },
    s("circle", { class: "ring-base", r: 86, "stroke-width": 24 }), paths,
    s("text", { class: "ring-number", y: 2 }, label), s("text", { class: "ring-word", y: 20 }, label === "1" ? "worker" : "workers"));
}
