// What is wrong or unsafe around the outbox, and how to fix it.

import { h, copy, icon, replace } from "./dom.js";
import { get } from "./api.js";
import { plural, time } from "./words.js";
import { loading, trouble } from "./states.js";

const SEVERITY = { error: ["Error", "bad"], warning: ["Warning", "warn"], info: ["Note", "calm"] };

export function doctor({ polling, tools }) {
  let again = false;
  const button = h("button", { type: "button", class: "button", onclick: () => { again = true; ask(); } }, "Look again");
  replace(tools, button);
  const ask = polling({
    seconds: 2,
    load: async (signal) => {
      const found = await get("/api/doctor", again ? { again: 1 } : {}, signal);
      again = false;
      return found;
    },
    render: (data) => { button.disabled = data.running; button.textContent = data.running ? "Looking…" : "Look again"; return render(data); },
  });
}

function render({ findings, running, known, at, trouble: said }) {
  if (!known) return said ? trouble({ kind: "failed", message: said }) : [h("p", { class: "lead" }, "Examining the outbox, its database and the broker…"), loading(5)];
  const open = findings.filter((one) => !one.fine);
  const fine = findings.filter((one) => one.fine);
  const serious = open.filter((one) => one.severity !== "info");
  return [
    said ? h("div", { class: "notice warn" }, said) : null,
    h("p", { class: "lead" }, h("i", { class: `lamp ${open.some((one) => one.severity === "error") ? "bad" : serious.length ? "warn" : "good"}` }), h("span", {}, serious.length ? `${plural(serious.length, "thing")} to look at` : "Nothing is wrong"), h("span", { class: "hint" }, "as of ", time(new Date(at * 1000).toISOString()))),
    ["error", "warning", "info"].flatMap((severity) => open.filter((one) => one.severity === severity)).map(card),
    fine.length ? h("section", { class: "card", "aria-label": "In order" }, h("header", {}, h("h2", {}, "In order")), h("ul", { class: "fine" }, fine.map((one) => h("li", {}, icon("check", 16), h("b", {}, one.family), h("span", {}, one.what))))) : null,
  ];
}

function card(one) {
  const [word, tone] = SEVERITY[one.severity];
  return h("section", { class: `card finding ${one.severity}`, "aria-label": one.what },
    h("p", { class: "group-head" }, h("span", { class: `badge tone-${tone}` }, word), h("span", { class: "hint" }, one.family)),
    h("h2", {}, one.what), one.why ? h("p", {}, one.why) : null,
    one.fix ? h("div", { class: "fix" }, h("pre", { tabindex: "0" }, one.fix), h("button", { type: "button", class: "button small", onclick: (click) => copy(one.fix, click.currentTarget) }, icon("copy", 15), "Copy")) : null);
}
