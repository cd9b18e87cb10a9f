// Keys that wait, and why: the head of a key's lane decides for all of it.

import { h } from "./dom.js";
import { get } from "./api.js";
import { number, plural, time } from "./words.js";
import { empty } from "./states.js";
import { act } from "./act.js";

const WHY = {
  blocked: ["Blocked", "bad"], retry: ["Retry", "warn"], delayed: ["Delayed", "calm"], paused: ["Paused", "warn"],
  breaker: ["Breaker", "bad"], in_flight: ["In flight", "calm"], due: ["Due", "good"],
};

export function waiting({ params, polling, session }) {
  const after = params.get("after");
  const ask = polling({
    seconds: after ? 0 : 4,
    load: (signal) => get("/api/waiting", { after }, signal),
    render: (data) => render(data, after, session, () => ask()),
  });
}

function render({ keys, next, held, in_flight: flying }, after, session, again) {
  const parts = [];
  if (flying) parts.push(h("p", { class: "lead" }, flying.events ? `${plural(flying.keys, "key")} with ${plural(flying.events, "event")} in flight now.` : "Nothing is in flight now."));
  for (const hold of held || []) parts.push(holdCard(hold));
  if (keys.length) parts.push(table(keys, session, again));
  else if (!(held || []).length) parts.push(empty("No key waits", "No retry is pending, nothing is delayed, and nothing holds its key."));
  if (after || next) {
    parts.push(h("nav", { class: "pager", "aria-label": "Pages of the list" },
      after ? h("a", { class: "button", href: "/waiting" }, "To the first") : null,
      next ? h("a", { class: "button", href: `/waiting?after=${encodeURIComponent(next)}` }, "Next keys") : null));
  }
  return parts;
}

function holdCard(hold) {
  const keys = hold.keys;
  return h("section", { class: "card hold", "aria-label": `Held: ${hold.subject}` },
    h("header", {}, h("span", { class: `badge tone-${hold.origin === "breaker" ? "bad" : "warn"}` }, hold.origin === "breaker" ? "Breaker" : "Paused"),
      h("h2", {}, hold.subject), h("a", { href: "/pauses" }, "Pauses")),
    h("p", {}, hold.reason, h("span", { class: "hint" }, ` · by ${hold.paused_by}, `, time(hold.paused_at), hold.until ? [hold.origin === "breaker" ? ", tries again " : ", ends ", time(hold.until)] : null)),
    keys === null ? h("p", { class: "hint" }, "Which keys it holds took too long to find.")
      : keys.length ? h("ul", { class: "keys" }, keys.map((one) => h("li", {}, h("a", { class: "mono", href: `/events?status=pending&key=${encodeURIComponent(one.key)}` }, one.key), h("small", {}, plural(one.events, "event"), ", oldest ", time(one.oldest)))))
        : h("p", { class: "hint" }, "It holds nothing at the moment."));
}

function table(keys, session, again) {
  const operator = session.role === "operator";
  return h("div", { class: "card flush" }, h("table", { class: "list" },
    h("caption", { class: "only-read" }, "Keys that wait"),
    h("thead", {}, h("tr", {}, ["Key", "Why", "Until", "Head of the lane", "Behind it", operator ? "Act" : null].filter(Boolean).map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, keys.map((key) => row(key, operator, again)))));
}

function row(key, operator, again) {
  const [word, tone] = WHY[key.why];
  const until = key.why === "blocked" ? "somebody retries or skips it" : key.hold ? (key.hold.until ? time(key.hold.until) : "resumed") : key.why === "due" ? "a worker takes it" : key.why === "in_flight" ? "it is settled" : time(key.available_at);
  return h("tr", {},
    h("td", { data: { label: "Key" } }, h("a", { class: "mono clip", href: `/events?key=${encodeURIComponent(key.key)}`, title: key.key, data: { focus: `key ${key.key}` } }, key.key)),
    h("td", { data: { label: "Why" } }, h("span", { class: `badge tone-${tone}` }, word), key.hold ? h("small", {}, key.hold.subject) : null),
    h("td", { data: { label: "Until" } }, until),
    h("td", { data: { label: "Head" } }, h("a", { class: "mono clip", href: `/event?id=${encodeURIComponent(key.event_id)}`, title: key.event_id }, key.event_id),
      h("small", {}, `${key.event_type} · attempt ${key.attempts} of ${key.max_attempts}`), key.last_error ? h("small", { class: "error-text clip", title: key.last_error }, key.last_error) : null),
    h("td", { data: { label: "Behind it" }, class: "num" }, `${key.behind_exact ? "" : "≥ "}${number(key.behind)}`),
    operator ? h("td", { data: { label: "Act" }, class: "acts" }, buttons(key, again)) : null);
}

function buttons(key, again) {
  if (key.why === "in_flight") return "–";
  const one = { ids: [key.event_id] };
  const name = `event ${key.event_id} of ${key.key}`;
  const waits = key.why === "retry" || key.why === "blocked";
  return [
    waits ? h("button", { type: "button", class: "button small", data: { focus: `retry ${key.event_id}` }, onclick: () => act("retry", one, name, again) }, "Retry now") : null,
    h("button", { type: "button", class: "button small", data: { focus: `skip ${key.event_id}` }, onclick: () => act("skip", one, name, again) }, "Skip"),
  ];
}
