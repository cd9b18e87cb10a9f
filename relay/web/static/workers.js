// Who relays, and which share of the buckets each has.

import { h } from "./dom.js";
import { get } from "./api.js";
import { live } from "./live.js";
import { ring } from "./charts.js";
import { number, short, span, time } from "./words.js";
import { empty } from "./states.js";

const TONES = { alive: "good", draining: "warn", dead: "bad" };

export function workers({ polling }) {
  polling({ seconds: 5, load: (signal) => get("/api/workers", {}, signal), render });
}

function render({ workers: all, buckets }) {
  if (!all.length) return empty("No worker relays", "Start one with relay run. What is written waits safely in the table until then.");
  const sharing = all.filter((worker) => worker.buckets);
  return [
    h("section", { class: "card ring-card", "aria-label": "Shares of the buckets" },
      ring({ workers: sharing, total: buckets, label: String(sharing.length) }),
      h("div", { class: "ring-side" },
        h("h2", {}, "Who watches which keys"),
        h("p", { class: "hint" }, `Keys are spread over ${number(buckets)} buckets; each slice of the ring is one. A worker that joins or leaves moves only its own share.`),
        h("ul", { class: "shares" }, sharing.map((worker, index) => h("li", {}, h("i", { class: `swatch tone-${index % 8}` }), h("span", { class: "mono clip", title: worker.id }, worker.id),
          h("b", {}, `${number(worker.buckets)}`), h("span", { class: "hint" }, `${((worker.buckets / buckets) * 100).toFixed(1)} %`)))))),
    h("div", { class: "card flush" }, h("table", { class: "list" },
      h("caption", { class: "only-read" }, "Workers"),
      h("thead", {}, h("tr", {}, ["Worker", "Status", "Buckets", "Per second", "In flight", "Behind", "Seen", "Version"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, all.map(row)))),
  ];
}

function row(worker) {
  const behind = worker.lag_seconds === null ? "–" : `${worker.lag_exact ? "" : "≥ "}${span(worker.lag_seconds)}`;
  return h("tr", {},
    h("td", { data: { label: "Worker" } }, h("span", { class: "mono clip", title: worker.id }, worker.id), h("small", {}, `${worker.publisher || "?"} → ${worker.destination || "?"} · ${worker.host || "?"}`),
      worker.remark ? h("small", { class: "warn-text" }, worker.remark) : null),
    h("td", { data: { label: "Status" } }, h("span", { class: `badge tone-${TONES[worker.status]}` }, worker.status)),
    h("td", { data: { label: "Buckets" }, class: "num" }, worker.buckets ? number(worker.buckets) : "–"),
    h("td", { data: { label: "Per second" }, class: "num" }, worker.status === "dead" ? "–" : short(live.latest?.workers?.[worker.id] ?? 0)),
    h("td", { data: { label: "In flight" }, class: "num" }, number(worker.in_flight), worker.oldest_lease_seconds ? h("small", {}, `oldest ${span(worker.oldest_lease_seconds)}`) : null),
    h("td", { data: { label: "Behind" }, class: "num" }, behind),
    h("td", { data: { label: "Seen" } }, time(worker.last_seen_at)),
    h("td", { data: { label: "Version" } }, worker.version || "–"));
}
