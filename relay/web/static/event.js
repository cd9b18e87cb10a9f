// One event with its whole life.

import { h, copy, icon, replace } from "./dom.js";
import { get } from "./api.js";
import { badge, moment, plural, time } from "./words.js";
import { empty } from "./states.js";
import { act } from "./act.js";
import { pretty } from "./payload.js";
import { describe } from "./audit.js";

const RETRY = ["dead_letter", "failed"];
const SKIP = ["failed", "pending"];

export function event({ params, polling, session, title, tools }) {
  const id = params.get("id") || "";
  title(id);
  const ask = polling({ seconds: 3, load: (signal) => get("/api/event", { id }, signal), render: (data) => render(data, id, session, tools, () => ask()) });
}

function render({ event: row, lane, audit }, id, session, tools, again) {
  if (!row) {
    replace(tools);
    return empty("There is no such event", "It is neither in the outbox nor in its archive: it may have been pruned, or deleted after it was published.", h("a", { class: "button", href: "/events" }, "All events"));
  }
  const one = { ids: [row.event_id] };
  const operator = session.role === "operator" && !row.archived;
  const waits = row.status === "pending" && row.attempts > 0;
  replace(tools, operator ? [
    RETRY.includes(row.status) || waits ? h("button", { type: "button", class: "button primary", data: { focus: "retry" }, onclick: () => act("retry", one, `event ${id}`, again) }, "Retry") : null,
    SKIP.includes(row.status) ? h("button", { type: "button", class: "button", data: { focus: "skip" }, onclick: () => act("skip", one, `event ${id}`, again) }, "Skip") : null] : null);
  return [
    h("p", { class: "lead" }, badge(row.status), row.archived ? h("span", { class: "badge" }, "Archived") : null, h("span", {}, row.event_type), h("span", { class: "hint" }, "of"), h("a", { class: "mono", href: `/events?key=${encodeURIComponent(row.key)}` }, row.key)),
    h("div", { class: "columns" }, h("div", {}, payload(row), headers(row)), h("div", {}, life(row, lane), facts(row), trail(audit))),
  ];
}

function payload(row) {
  const button = row.payload ? h("button", { type: "button", class: "button small", onclick: (click) => copy(row.payload, click.currentTarget) }, icon("copy", 15), "Copy") : null;
  return h("section", { class: "card", "aria-label": "Payload" }, h("header", {}, h("h2", {}, "Payload"), button),
    row.payload_hidden ? h("p", { class: "hint" }, icon("lock", 15), " Hidden here by the setting hide_payloads.") : h("pre", { class: "payload", tabindex: "0" }, pretty(row.payload)),
    row.payload_cut ? h("p", { class: "hint" }, `The first ${plural(row.payload.length, "character")} of it; relay show prints all.`) : null);
}

function headers(row) {
  const names = Object.entries(row.headers || {});
  if (!names.length) return null;
  return h("section", { class: "card", "aria-label": "Headers" }, h("header", {}, h("h2", {}, "Headers")),
    h("dl", { class: "facts" }, names.map(([name, value]) => [h("dt", { class: "mono" }, name), h("dd", { class: "mono" }, value === null ? "hidden" : value)])));
}

function life(row, lane) {
  const step = (tone, title, at, ...more) => h("li", { class: tone }, h("div", { class: "step-head" }, h("b", {}, title), at ? h("span", { class: "hint" }, time(at)) : null), at ? h("small", {}, moment(at)) : null, more);
  const steps = [step("done", "Written", row.created_at, h("small", {}, `position ${row.position}, bucket ${row.bucket}`))];
  const delayed = row.available_at && !row.attempts && new Date(row.available_at) > new Date(row.created_at);
  if (delayed) steps.push(step(new Date(row.available_at) > new Date() ? "now" : "done", new Date(row.available_at) > new Date() ? "Delayed until" : "Was delayed until", row.available_at));
  if (row.claimed_at) steps.push(step(row.status === "processing" ? "now" : "done", row.status === "processing" ? "In flight" : "Last taken", row.claimed_at, h("small", {}, "by ", h("span", { class: "mono" }, row.claimed_by || "a worker"), `, generation ${row.lease_generation}`),
    row.lease_expires_at ? h("small", {}, "lease ends ", time(row.lease_expires_at)) : null));
  if (row.last_error) steps.push(step("bad", `Attempt ${row.attempts} of ${row.max_attempts} failed`, null, h("pre", { class: "error" }, row.last_error)));
  if (row.losses) steps.push(step("warn", `Lost with a worker ${row.losses === 1 ? "once" : `${row.losses} times`}`, null));
  if (row.redriven_at) steps.push(step("done", "Sent out again by an operator", row.redriven_at));
  if (row.status === "pending" && !delayed) steps.push(step("now", row.attempts ? "Waits for its retry" : "Waits", row.attempts ? row.available_at : null, ...ahead(lane, row)));
  if (row.status === "failed") steps.push(step("bad", "Failed: holds its key", row.parked_at, h("small", {}, "The events of its key wait until it is retried or skipped.")));
  if (row.status === "dead_letter") steps.push(step("bad", "Dead letter", row.parked_at, h("small", {}, "It no longer holds its key.")));
  if (row.status === "completed") steps.push(step("good", "Published", row.completed_at, row.receipt ? h("small", {}, "receipt ", h("span", { class: "mono" }, row.receipt)) : null));
  return h("section", { class: "card", "aria-label": "Life" }, h("header", {}, h("h2", {}, "Life")), h("ol", { class: "life" }, steps));
}

function ahead(lane, row) {
  if (!lane) return [];
  if (lane.event_id === row.event_id) return [h("small", {}, "It is the head of its key: nothing is before it.")];
  return [h("small", {}, `${lane.ahead_exact ? "" : "≥ "}${plural(lane.ahead, "event")} of its key before it; the first is `, h("a", { class: "mono", href: `/event?id=${encodeURIComponent(lane.event_id)}` }, lane.event_id), `, ${lane.status.replace("_", " ")}`,
    lane.available_at && !lane.due ? [", due ", time(lane.available_at)] : null)];
}

function facts(row) {
  const pairs = [["Event id", row.event_id], ["Key", row.key], ["Type", row.event_type], ["Destination", row.destination || "the relay's"], ["Attempts", `${row.attempts} of ${row.max_attempts}`], ["Lost leases", String(row.losses)], ["Receipt", row.receipt || "–"]];
  return h("section", { class: "card", "aria-label": "Facts" }, h("header", {}, h("h2", {}, "Facts")), h("dl", { class: "facts" }, pairs.map(([name, value]) => [h("dt", {}, name), h("dd", { class: "mono" }, value)])));
}

function trail(entries) {
  if (!entries?.length) return null;
  return h("section", { class: "card", "aria-label": "Audit" }, h("header", {}, h("h2", {}, "What operators did")), h("ul", { class: "trail" }, entries.map((entry) => h("li", {}, h("b", {}, describe(entry)), h("small", {}, `${entry.actor}, `, time(entry.at))))));
}
