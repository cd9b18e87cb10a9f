// Who did what, and when.

import { h, replace } from "./dom.js";
import { get } from "./api.js";
import { moment, time } from "./words.js";
import { empty } from "./states.js";

const ACTIONS = { pause: "Paused", resume: "Resumed", close_breaker: "Closed the breaker of", retry: "Retried", skip: "Skipped", replay: "Replayed", prune: "Pruned" };

export function describe(entry) {
  const { scope, value } = entry.details || {};
  const subject = scope ? (scope === "all" ? "everything" : `${scope.replace("_", " ")} ${value}`) : "";
  return `${ACTIONS[entry.action] || entry.action} ${subject}`.trim();
}

export function audit({ params, polling, tools, go }) {
  const action = params.get("action") || "";
  const before = params.get("before");
  const chosen = h("select", { "aria-label": "Action", onchange: () => go(chosen.value ? `/audit?action=${chosen.value}` : "/audit") }, h("option", { value: "" }, "All actions"),
    Object.keys(ACTIONS).map((name) => h("option", { value: name, selected: name === action }, name.replace("_", " "))));
  replace(tools, chosen);
  polling({ seconds: before ? 0 : 4, load: (signal) => get("/api/audit", { action, before }, signal), render: (data) => render(data, action, before) });
}

function render({ entries, next }, action, before) {
  if (!entries.length) return empty("Nothing was done", "Each pause, resume, retry and skip is recorded here, from these pages and from the command line.");
  const more = (at) => `/audit?${new URLSearchParams({ ...(action ? { action } : {}), ...(at ? { before: at } : {}) })}`;
  return [h("div", { class: "card flush" }, h("table", { class: "list" }, h("caption", { class: "only-read" }, "Audit trail"),
    h("thead", {}, h("tr", {}, ["When", "What", "Who", "Details"].map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, entries.map(row)))),
  before || next ? h("nav", { class: "pager", "aria-label": "Pages of the list" }, before ? h("a", { class: "button", href: more(null) }, "Newest") : null, next ? h("a", { class: "button", href: more(next) }, "Older") : null) : null];
}

function row(entry) {
  const details = Object.entries(entry.details || {}).filter(([name, value]) => value !== null && !["scope", "value", "sha256"].includes(name));
  return h("tr", {},
    h("td", { data: { label: "When" } }, time(entry.at), h("small", {}, moment(entry.at))),
    h("td", { data: { label: "What" } }, h("b", {}, describe(entry)), entry.event_id ? h("a", { class: "mono clip", href: `/event?id=${encodeURIComponent(entry.event_id)}`, title: entry.event_id }, entry.event_id) : null),
    h("td", { data: { label: "Who" } }, h("span", { class: "wrap" }, entry.actor)),
    h("td", { data: { label: "Details" } }, h("dl", { class: "small-facts" }, details.map(([name, value]) => [h("dt", {}, name.replace("_", " ")), h("dd", {}, typeof value === "object" ? JSON.stringify(value) : String(value))]))));
}
