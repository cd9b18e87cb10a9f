// Events by filters that are in the address: a list can be sent to somebody else.

import { h, replace } from "./dom.js";
import { get } from "./api.js";
import { STATUS, badge, bounded, time } from "./words.js";
import { empty } from "./states.js";
import { act } from "./act.js";

const NAMES = ["status", "key", "type", "error", "since"];
const ACTIONS = { dead_letter: ["retry"], failed: ["retry", "skip"], pending: ["skip"] };

export function events({ body, params, polling, session, go, signal }) {
  const filter = Object.fromEntries(NAMES.map((name) => [name, params.get(name) || ""]).filter(([, value]) => value));
  const before = params.get("before");
  const list = h("div", {});
  const count = h("span", { class: "hint", role: "status" });
  const form = filters(filter, go);
  const ask = polling({
    seconds: before ? 0 : 3,
    load: (signal) => get("/api/events", { ...filter, before }, signal),
    render: (data) => {
      replace(list, table(data, filter, before));
      return [form, summary(filter, count, session, () => ask()), list];
    },
  });
  replace(body, form, h("p", { class: "hint" }, "Looking…"));
  matches(filter, count, signal);
}

function filters(filter, go) {
  const field = (name, label, attributes = {}) => h("label", {}, h("span", {}, label), h("input", { type: "text", name, value: filter[name] || "", autocomplete: "off", spellcheck: "false", data: { focus: `filter ${name}` }, ...attributes }));
  const status = h("select", { name: "status", data: { focus: "filter status" } }, h("option", { value: "" }, "Any status"),
    Object.entries(STATUS).map(([value, name]) => h("option", { value, selected: filter.status === value }, name)));
  const form = h("form", { class: "card filters", role: "search", "aria-label": "Filters" }, h("label", {}, h("span", {}, "Status"), status),
    field("key", "Key", { placeholder: "order:9182" }), field("type", "Type", { placeholder: "OrderPaid" }), field("error", "Error contains", { placeholder: "timeout" }),
    field("since", "Written since", { placeholder: "2h, 7 days" }),
    h("div", { class: "buttons" }, h("button", { type: "submit", class: "button primary" }, "Show"), h("a", { class: "button", href: "/events" }, "Clear")));
  const submit = () => {
    const query = new URLSearchParams([...new FormData(form)].map(([name, value]) => [name, value.trim()]).filter(([, value]) => value));
    go(query.size ? `/events?${query}` : "/events");
  };
  form.addEventListener("submit", (event) => { event.preventDefault(); submit(); });
  status.addEventListener("change", submit);
  return form;
}

function summary(filter, count, session, again) {
  const can = session.role === "operator" ? ACTIONS[filter.status] || [] : [];
  const { type, ...rest } = filter;
  const named = NAMES.filter((name) => filter[name]).map((name) => `${name} ${filter[name]}`).join(", ");
  return h("div", { class: "summary" }, count, h("span", { class: "spacer" }),
    can.map((action) => h("button", { type: "button", class: "button", data: { focus: `all ${action}` }, onclick: () => act(action, { ...rest, ...(type ? { type } : {}) }, `all events of ${named}`, again) }, `${action === "retry" ? "Retry" : "Skip"} all that match…`)));
}

async function matches(filter, place, signal) {
  place.textContent = "Counting…";
  try {
    const { count } = await get("/api/count", filter, signal);
    place.textContent = count ? `${bounded(count)} match${count.exact && count.value === 1 ? "es" : ""}${count.exact ? "" : " (counting stops there)"}` : "How many match took too long to count.";
  } catch (error) {
    if (!signal.aborted) place.textContent = "";
  }
}

function table({ events: rows, next, complete }, filter, before) {
  const query = (more) => `/events?${new URLSearchParams({ ...filter, ...more })}`;
  const parts = [];
  if (!complete) {
    parts.push(h("div", { class: "notice warn", role: "status" }, rows.length
      ? "Matches are so rare that looking took too long: these were found so far. Narrow the filter, or go on."
      : next ? "Too slow: no match was found among the newest events in time. Narrow the filter, or go on looking further back."
        : "Too slow: narrow the filter by a key, a type or a time."));
  }
  if (rows.length) {
    parts.push(h("div", { class: "card flush" }, h("table", { class: "list events" }, h("caption", { class: "only-read" }, "Events"),
      h("thead", {}, h("tr", {}, ["Event", "Status", "Key", "Type", "Attempts", "Written", "Receipt or error"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, rows.map(row)))));
  } else if (complete) parts.push(Object.keys(filter).length || before ? empty("No event matches", "Widen the filter, or clear it.") : empty("No events yet", "Whatever is inserted into the outbox appears here at once."));
  if (before || next) {
    parts.push(h("nav", { class: "pager", "aria-label": "Pages of the list" }, before ? h("a", { class: "button", href: query({}) }, "Newest") : null,
      next ? h("a", { class: "button", href: query({ before: next }), data: { focus: "older" } }, complete ? "Older" : "Look further back") : null));
  }
  return parts;
}

function row(event) {
  const outcome = event.status === "completed" ? event.receipt : event.last_error || event.receipt;
  return h("tr", {},
    h("td", { data: { label: "Event" } }, h("a", { class: "mono clip", href: `/event?id=${encodeURIComponent(event.event_id)}`, title: event.event_id, data: { focus: `event ${event.event_id}` } }, event.event_id), h("small", {}, `position ${event.position}`)),
    h("td", { data: { label: "Status" } }, badge(event.status)),
    h("td", { data: { label: "Key" } }, h("a", { class: "mono clip quiet", href: `/events?key=${encodeURIComponent(event.key)}`, title: event.key }, event.key)),
    h("td", { data: { label: "Type" } }, h("span", { class: "clip", title: event.event_type }, event.event_type)),
    h("td", { data: { label: "Attempts" }, class: "num" }, `${event.attempts}/${event.max_attempts}`),
    h("td", { data: { label: "Written" } }, time(event.created_at)),
    h("td", { data: { label: event.status === "completed" ? "Receipt" : "Error" }, class: outcome ? "" : "blank" }, outcome ? h("span", { class: `mono clip wide ${event.status === "completed" ? "" : "error-text"}`, title: outcome }, outcome) : "–"));
}
