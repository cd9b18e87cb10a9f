// What a page shows while there is nothing to show: it loads, it is empty, or something is wrong.

import { h, icon } from "./dom.js";

export function loading(rows = 4) {
  return h("div", { class: "card skeleton", role: "status", "aria-label": "Loading" },
    Array.from({ length: rows }, (_, row) => h("div", { class: `bone w${row % 3}` })));
}

export function empty(title, text, ...more) {
  return h("div", { class: "state" }, h("span", { class: "state-icon" }, icon("empty", 28)), h("h2", {}, title), h("p", {}, text), more);
}

const TITLES = {
  slow: "Too slow: narrow the filter",
  offline: "No connection to the relay",
  unreachable: "The database is out of reach",
  busy: "Many look at once",
  closed: "No token is set",
  wrong: "This cannot be looked for",
};
const HINTS = {
  slow: "A status, a key, a type or a shorter time lets an index find the events.",
  offline: "Nothing is wrong with the events because of that: this page only lost sight of them. It tries again by itself.",
  unreachable: "The page tries again by itself as soon as the database answers.",
  busy: "The pages ask the database two things at a time, so that they never slow the relay down.",
  closed: "Set http_token (RELAY_HTTP_TOKEN) so that people can sign in, or let the relay listen on 127.0.0.1.",
};

export function trouble(error, again = null) {
  const kind = error.kind || "failed";
  return h("div", { class: `state bad kind-${kind}`, role: "alert" },
    h("span", { class: "state-icon" }, icon(kind === "slow" ? "slow" : kind === "offline" || kind === "unreachable" ? "away" : "dead", 28)),
    h("h2", {}, TITLES[kind] || "That did not work"),
    h("p", { class: "mono" }, error.message),
    HINTS[kind] ? h("p", {}, HINTS[kind]) : null,
    again ? h("button", { type: "button", class: "button", onclick: again }, "Try again") : null);
}

/** Content stays while the connection is lost, with a word above it. */
export function stale(error, wait) {
  return h("div", { class: "notice warn", role: "status" }, icon("away"), h("span", {},
    error.kind === "offline" ? "No connection to the relay. " : `${error.message}. `,
    `What you see is from before; the page tries again in ${Math.round(wait)} s.`));
}
