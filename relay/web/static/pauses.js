// What is held back, by whom, and the means to hold and let go.

import { h, replace, toast } from "./dom.js";
import { get, post } from "./api.js";
import { plural, time } from "./words.js";
import { empty } from "./states.js";
import { confirm } from "./act.js";

const SCOPES = { all: "Everything", destination: "One destination", event_type: "One event type", key: "One key" };

export function pauses({ polling, session, tools, body }) {
  const form = session.role === "operator" ? pauseForm(() => ask()) : null;
  const ask = polling({ seconds: 3, load: (signal) => get("/api/pauses", {}, signal), render: ({ pauses: all }) => [form, all.length ? all.map((one) => card(one, session, () => ask()))
    : empty("Nothing is held", session.role === "operator" ? "Hold a destination back while its broker is upgraded: what is written meanwhile waits, in order." : "No pause and no breaker holds anything back.")] });
}

export function holding(holds) {
  if (!holds) return null;
  if (holds.unknown) return `How many events it holds is not known: ${holds.unknown}.`;
  const least = holds.exact ? "" : "at least ";
  return `Holds ${least}${plural(holds.events, "pending event")} of ${least}${plural(holds.keys, "key")}${holds.behind ? `; ${least}${plural(holds.behind, "more")} of these keys wait behind` : ""}${holds.in_flight ? `; ${plural(holds.in_flight, "event")} in flight still go out` : ""}.`.replace(/mores? of/, "more of");
}

function card(one, session, again) {
  const breaker = one.origin === "breaker";
  const resume = () => confirm({
    title: breaker ? `Close the breaker of ${one.subject}` : `Resume ${one.subject}`,
    text: breaker ? "The relays try again at once. If the trouble is still there, it opens again." : `${holding(one.holds) || ""} The relays go on within a second.`,
    button: breaker ? "Close breaker" : "Resume",
    run: async () => { await post("/api/do/resume", { reference: one.reference }); toast(breaker ? "The breaker is closed." : `${one.subject} goes on.`); again(); },
  });
  return h("section", { class: "card hold", "aria-label": one.subject },
    h("header", {}, h("span", { class: `badge tone-${breaker ? "bad" : "warn"}` }, breaker ? "Breaker" : "Paused"), h("h2", {}, one.subject),
      session.role === "operator" ? h("button", { type: "button", class: "button", data: { focus: `resume ${one.reference}` }, onclick: resume }, breaker ? "Close breaker" : "Resume") : null),
    h("p", {}, one.reason),
    h("p", { class: "hint" }, `by ${one.paused_by}, `, time(one.paused_at), one.until ? [breaker ? ", tries again " : ", ends ", time(one.until)] : ", until resumed", breaker ? `, ${plural(one.failures, "failure")} in a row` : null),
    h("p", { class: "hint" }, holding(one.holds)));
}

function pauseForm(again) {
  const value = h("input", { type: "text", name: "value", autocomplete: "off", spellcheck: "false", data: { focus: "pause value" } });
  const named = h("label", { class: "named", hidden: true }, h("span", {}, "Which"), value);
  const scope = h("select", { name: "scope", data: { focus: "pause scope" } }, Object.entries(SCOPES).map(([name, word]) => h("option", { value: name }, word)));
  const said = h("p", { class: "hint", role: "status" });
  const form = h("form", { class: "card filters pause-form", "aria-label": "Pause" }, h("label", {}, h("span", {}, "Pause"), scope), named,
    h("label", {}, h("span", {}, "Why"), h("input", { type: "text", name: "reason", maxlength: 500, placeholder: "broker upgrade", autocomplete: "off", data: { focus: "pause reason" } })),
    h("label", {}, h("span", {}, "Ends after"), h("input", { type: "text", name: "for", placeholder: "until resumed, or 2h", autocomplete: "off", data: { focus: "pause for" } })),
    h("div", { class: "buttons" }, h("button", { type: "submit", class: "button primary" }, "Pause…")), said);
  scope.addEventListener("change", () => { named.hidden = scope.value === "all"; });
  form.addEventListener("submit", async (submit) => {
    submit.preventDefault();
    const body = Object.fromEntries(new FormData(form));
    if (body.scope === "all") delete body.value;
    replace(said, "Counting what it would hold…");
    try {
      const found = await post("/api/do/held", body);
      replace(said);
      confirm({
        title: `Pause ${found.subject}`, text: `${holding(found.holds).replace("Holds", "It would hold").replace("How many events it holds", "How many events it would hold")} Running relays notice within a second; what they have in flight still goes out.`,
        button: "Pause", danger: true,
        run: async () => { await post("/api/do/pause", body); toast(`${found.subject} is paused.`); form.reset(); named.hidden = true; again(); },
      });
    } catch (error) {
      replace(said, h("span", { class: "error-text" }, error.message));
    }
  });
  return form;
}
