// Retry or skip: first how many it would be, then a confirmation, then progress. And plain confirmations.

import { h, replace, toast } from "./dom.js";
import { post } from "./api.js";
import { events, number } from "./words.js";

/** A modal dialog; the browser keeps the focus inside and gives it back. Escape closes it. */
export function dialog(title, ...content) {
  const box = h("dialog", { class: "dialog", "aria-label": title }, h("h2", {}, title), content);
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
  return box;
}

export function confirm({ title, text, button, danger = false, run }) {
  const said = h("p", { class: "error-text", role: "alert" });
  const yes = h("button", { type: "button", class: `button ${danger ? "danger" : "primary"}`, onclick: async () => {
    yes.disabled = true;
    try { await run(); box.close(); } catch (error) { replace(said, error.message); yes.disabled = false; }
  } }, button);
  const box = dialog(title, h("p", {}, text), said, h("div", { class: "buttons" }, h("button", { type: "button", class: "button", onclick: () => box.close() }, "Cancel"), yes));
  yes.focus();
}

const WORDS = {
  retry: { title: "Retry", will: "will be sent out again, with all their attempts before them.", none: "No event that matches can be retried now.", done: "sent out again" },
  skip: { title: "Skip", will: "will be given up: they become dead letters, and their keys go on without them.", none: "No event that matches can be skipped now.", done: "skipped" },
};

/** `filter` as the server takes it; `name` says in words which events these are. */
export function act(action, filter, name, then) {
  const words = WORDS[action];
  const count = h("p", { class: "preview", role: "status" }, "Counting…");
  const reason = h("input", { type: "text", id: "reason", maxlength: 500, required: action === "skip", autocomplete: "off" });
  const said = h("p", { class: "error-text", role: "alert" });
  const yes = h("button", { type: "submit", class: `button ${action === "skip" ? "danger" : "primary"}`, disabled: true }, words.title);
  const cancel = h("button", { type: "button", class: "button", onclick: () => box.close() }, "Cancel");
  const form = h("form", { method: "dialog" }, count,
    h("label", { for: "reason" }, action === "skip" ? "Why (kept with the events and in the audit trail)" : "Why (for the audit trail, if you like)"), reason, said, h("div", { class: "buttons" }, cancel, yes));
  const box = dialog(`${words.title} ${name}`, form);
  reason.focus();
  form.addEventListener("submit", async (submit) => {
    submit.preventDefault();
    yes.disabled = true;
    try {
      const { job } = await post("/api/do/redrive", { action, ...filter, reason: reason.value });
      follow(box, job, words, then);
    } catch (error) {
      replace(said, error.message);
      yes.disabled = false;
    }
  });
  preview(action, filter, words, count, yes);
}

async function preview(action, filter, words, place, yes) {
  try {
    const found = (await post("/api/do/preview", { action, ...filter })).preview;
    const others = Object.values(found.others);
    replace(place, found.events ? h("b", {}, `${found.exact ? "" : "At least "}${events(found.events)} `) : words.none, found.events ? words.will.replace("their attempts", found.events === 1 ? "its attempts" : "their attempts") : null,
      found.in_flight ? h("small", {}, `${events(found.in_flight)} in flight at the moment ${found.in_flight === 1 ? "is" : "are"} left out.`) : null,
      others.length ? h("small", {}, `Its status is ${others.join(", ")}.`) : null);
    yes.disabled = !found.events;
    if (found.events > 1 || !found.exact) yes.textContent = `${words.title} ${found.exact ? number(found.events) : "all"}`;
  } catch (error) {
    replace(place, h("span", { class: "error-text" }, error.message));
  }
}

async function follow(box, job, words, then) {
  const line = h("p", { class: "preview", role: "status" });
  const stop = h("button", { type: "button", class: "button", onclick: () => post("/api/do/stop", { number: job.number }).catch(() => {}) }, "Stop after this batch");
  const bar = h("progress", { "aria-label": "Progress" });
  box.querySelector("form").replaceWith(h("div", {}, line, bar, h("div", { class: "buttons" }, stop)));
  let now = job;
  for (;;) {
    line.textContent = `${events(now.changed)} ${words.done}${now.in_flight ? `, ${number(now.in_flight)} in flight left out` : ""}${now.gone ? `, ${number(now.gone)} changed meanwhile` : ""}.`;
    if (now.state !== "running") break;
    await new Promise((wake) => { setTimeout(wake, 300); });
    try { now = (await post("/api/do/job", { number: job.number })).job; } catch (error) {
      if (error.kind !== "offline" && error.kind !== "busy") { now = { ...now, state: "failed", trouble: error.message }; }
    }
  }
  bar.remove();
  then?.();
  if (now.state === "failed") {
    line.classList.add("error-text");
    line.textContent = `${line.textContent} Then it broke off: ${now.trouble}`;
  } else if (now.state === "done" && box.open) {
    box.close();
    toast(line.textContent);
    return;
  }
  stop.replaceWith(h("button", { type: "button", class: "button primary", onclick: () => box.close() }, "Close"));
}
