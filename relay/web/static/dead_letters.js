// Parked events by what went wrong, to be sent out again or given up together.

import { h } from "./dom.js";
import { get } from "./api.js";
import { badge, number, plural, time } from "./words.js";
import { empty } from "./states.js";
import { act } from "./act.js";

export function deadLetters({ polling, session }) {
  const ask = polling({ seconds: 8, load: (signal) => get("/api/dead-letters", {}, signal), render: (data) => render(data, session, () => ask()) });
}

function render({ groups, complete, rows }, session, again) {
  if (!groups.length) return empty("No dead letters", "Every event that was tried has been published, or still has attempts before it.");
  return [
    h("p", { class: "lead" }, `${plural(groups.reduce((sum, group) => sum + group.events, 0), "event")} in ${plural(groups.length, "group")} by type and error.`,
      complete ? null : h("span", { class: "badge" }, `the newest ${number(rows)} were looked at`)),
    groups.map((group) => card(group, session.role === "operator", again)),
  ];
}

function card(group, operator, again) {
  const filter = { status: group.status, type: group.event_type, ...(group.contains ? { error: group.contains } : {}) };
  const name = `all ${group.status === "failed" ? "failed events" : "dead letters"} of type ${group.event_type}${group.contains ? ` whose error contains “${cut(group.contains)}”` : ""}`;
  const id = `${group.status} ${group.event_type} ${group.error}`;
  return h("section", { class: "card group", "aria-label": `${group.event_type}: ${cut(group.error || "no error")}` },
    h("div", { class: "group-count" }, h("b", {}, number(group.events)), h("small", {}, plural(group.keys, "key"))),
    h("div", { class: "group-main" },
      h("p", { class: "group-head" }, badge(group.status), h("b", {}, group.event_type), h("span", { class: "hint" }, "last ", time(group.last_at), ", first ", time(group.first_at))),
      h("pre", { class: "error" }, group.error || "no error was kept"),
      group.variants > 1 ? h("p", { class: "hint" }, `${plural(group.variants, "variant")} of this error; what varies is shown as …`) : null,
      h("p", { class: "buttons start" },
        operator ? h("button", { type: "button", class: "button primary", data: { focus: `retry ${id}` }, onclick: () => act("retry", filter, name, again) }, "Retry all…") : null,
        operator && group.status === "failed" ? h("button", { type: "button", class: "button", data: { focus: `skip ${id}` }, onclick: () => act("skip", filter, name, again) }, "Skip all…") : null,
        h("a", { class: "button", href: `/events?${new URLSearchParams(filter)}` }, "Show events"), h("a", { class: "quiet", href: `/event?id=${encodeURIComponent(group.event_id)}` }, "The latest"))));
}

function cut(text) {
  return text.length > 80 ? `${text.slice(0, 80)}…` : text;
}
