// Where the outbox stands, and how it got there.

import { h, icon, replace } from "./dom.js";
import { chart } from "./charts.js";
import { live, watch } from "./live.js";
import { get } from "./api.js";
import { bounded, plural, short, span } from "./words.js";
import { loading, stale, trouble } from "./states.js";

const SPANS = [5, 15, 30];

export function overview({ body, notice, tools, signal }) {
  let minutes = 5;
  const charts = [
    chart({ title: "Throughput", hint: "confirmed by the broker, events per second, all workers", least: 10,
      format: (value) => `${short(value)}/s`, series: [{ name: "delivered", tone: "t-good", value: (x) => x.rates.delivered }] }),
    chart({ title: "Lag", hint: "age of the oldest event that could be published", least: 1, format: span,
      series: [{ name: "oldest", tone: "t-main", value: (x) => (x.counts ? x.counts.oldest_pending_seconds || 0 : null) }] }),
    chart({ title: "Outcomes", hint: "per second: ", stack: true, least: 10, format: (value) => `${short(value)}/s`,
      series: [{ name: "refused", tone: "t-bad", value: (x) => x.rates.refused }, { name: "unconfirmed", tone: "t-warn", value: (x) => x.rates.unconfirmed },
        { name: "delivered", tone: "t-good", value: (x) => x.rates.delivered }] }),
    chart({ title: "Latency", hint: "from the row's creation to the broker's confirmation: ", least: 0.01, format: span,
      series: [{ name: "p99", tone: "t-bad", value: (x) => x.latency.p99 ?? null }, { name: "p95", tone: "t-warn", value: (x) => x.latency.p95 ?? null },
        { name: "p50", tone: "t-main", value: (x) => x.latency.p50 ?? null }] }),
  ];
  const hero = h("div", { class: "hero", role: "status" });
  const tiles = h("div", { class: "tiles" });
  const attention = h("div", {});
  let holds = [];
  let drawn = false;

  replace(tools, h("div", { class: "segments", role: "group", "aria-label": "Time shown" }, SPANS.map((one) =>
    h("button", { type: "button", "aria-pressed": one === minutes, onclick: (click) => {
      minutes = one;
      for (const other of click.target.parentNode.children) other.setAttribute("aria-pressed", other === click.target);
      draw();
    } }, `${one} min`))));

  function draw() {
    if (!live.latest) {
      replace(body, live.trouble ? trouble(live.trouble) : loading());
      drawn = false;
      return;
    }
    if (!drawn) {
      document.getElementById("main").removeAttribute("aria-busy");
      replace(body, hero, attention, tiles, h("div", { class: "charts" }, charts.map((one) => one.element)));
      drawn = true;
    }
    replace(notice, live.trouble ? stale(live.trouble, 2) : null);
    const { counts } = live.latest;
    if (counts) {
      sentence(hero, counts, live.latest.rates.delivered, holds);
      replace(tiles, tile("Pending", counts.pending, "/events?status=pending", "pending"), tile("In flight", counts.processing, "/events?status=processing", "processing"),
        tile("Failed, holding their key", counts.failed, "/events?status=failed", "failed"), tile("Dead letters", counts.dead_letter, "/dead-letters", "dead_letter"),
        tile("Completed", counts.completed, "/events?status=completed", "completed", true),
        counts.archived.value ? tile("Archived", counts.archived, "/events?status=completed", "completed", true) : null);
    }
    for (const one of charts) one.draw(live.samples, minutes);
    replace(attention, needs(counts, holds));
  }

  watch(draw, signal);
  draw();
  // Pauses and breakers change rarely: asked for apart from the samples.
  const ask = async () => {
    try { holds = (await get("/api/pauses", {}, signal)).pauses; } catch { /* the samples tell */ }
    if (!signal.aborted) { draw(); setTimeout(() => { if (!signal.aborted && !document.hidden) ask(); }, 8000); }
  };
  ask();
}

function tile(name, count, address, tone, estimate = false) {
  return h("a", { class: `tile ${tone} ${count.value ? "some" : "none"}`, href: address, data: { focus: name } },
    h("span", { class: "tile-name" }, name), h("span", { class: "tile-number" }, bounded(count, estimate)));
}

function sentence(place, counts, rate, holds) {
  const all = holds.find((hold) => hold.scope === "all" && hold.origin === "operator");
  const broken = holds.find((hold) => hold.origin === "breaker");
  let [tone, text, more] = ["good", "Everything written has been published.", "Nothing waits."];
  if (all) [tone, text, more] = ["warn", "Everything is paused.", `By ${all.paused_by}: ${all.reason}`];
  else if (!counts.workers) [tone, text, more] = [counts.pending.value ? "bad" : "warn", "No worker relays.", counts.pending.value ? "Events wait: start one with relay run." : "Start one with relay run."];
  else if (broken) [tone, text, more] = ["bad", `A breaker holds ${broken.subject}.`, broken.reason];
  else if (counts.oldest_pending_seconds > 60) [tone, text, more] = ["warn", `The oldest event has waited ${span(counts.oldest_pending_seconds)}.`, `${short(rate)} events per second are confirmed.`];
  else if (rate > 0 || counts.pending.value || counts.processing.value) [tone, text, more] = ["good", "Events flow.", `${short(rate)} per second are confirmed; the oldest has waited ${span(counts.oldest_pending_seconds || 0)}.`];
  if (place.dataset.said === text + more) return;
  place.dataset.said = text + more;
  replace(place, h("i", { class: `lamp ${tone}`, "aria-hidden": "true" }), h("div", {}, h("p", { class: "hero-text" }, text), h("p", { class: "hero-more" }, more)));
}

function needs(counts, holds) {
  const items = holds.map((hold) => chip("/pauses", "pauses", hold.origin === "breaker", hold.origin === "breaker" ? `Breaker: ${hold.subject} – ${hold.reason}` : `Paused: ${hold.subject} – ${hold.reason}`));
  const say = (count, one, many) => `${bounded(count)} ${count.exact && count.value === 1 ? one : many}`;
  if (counts?.failed.value) items.push(chip("/waiting", "dead", true, say(counts.failed, "failed event holds its key", "failed events hold their keys")));
  if (counts?.dead_letter.value) items.push(chip("/dead-letters", "dead", true, say(counts.dead_letter, "dead letter waits for a decision", "dead letters wait for a decision")));
  if (counts?.stuck) items.push(chip("/events?status=pending", "waiting", false, `${plural(counts.stuck, "event")} due for more than an hour`));
  return items.length ? h("ul", { class: "attention", "aria-label": "Needs attention" }, items) : null;
}

function chip(address, glyph, bad, text) {
  return h("li", {}, h("a", { href: address, class: bad ? "bad" : "", title: text, data: { focus: text } }, icon(glyph, 16), h("span", {}, text)));
}
