// The frame: pages by address, who looks, the theme, and whether the connection holds.

import { h, icon, replace } from "./dom.js";
import { get, post, useToken, onConnection, poll, Trouble } from "./api.js";
import { begin, live, watch } from "./live.js";
import { keepTimes, short } from "./words.js";
import { loading, stale, trouble } from "./states.js";
import { overview } from "./overview.js";
import { workers } from "./workers.js";
import { waiting } from "./waiting.js";
import { events } from "./events.js";
import { event } from "./event.js";
import { deadLetters } from "./dead_letters.js";
import { pauses } from "./pauses.js";
import { audit } from "./audit.js";
import { doctor } from "./doctor.js";
import { signIn } from "./sign_in.js";

const PAGES = {
  "/": { title: "Overview", icon: "overview", page: overview },
  "/workers": { title: "Workers", icon: "workers", page: workers },
  "/waiting": { title: "Waiting keys", icon: "waiting", page: waiting },
  "/events": { title: "Events", icon: "events", page: events },
  "/dead-letters": { title: "Dead letters", icon: "dead", page: deadLetters },
  "/pauses": { title: "Pauses", icon: "pauses", page: pauses },
  "/audit": { title: "Audit trail", icon: "audit", page: audit },
  "/doctor": { title: "Doctor", icon: "doctor", page: doctor },
  "/event": { title: "Event", page: event, hidden: true },
  "/sign-in": { title: "Sign in", page: signIn, hidden: true },
};

const main = document.getElementById("main");
let session = null;
let leaving = new AbortController();
let watching = null;

async function open({ focus = false } = {}) {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const path = location.pathname;
  const known = PAGES[path];
  mark(path);
  if (!known) {
    document.title = "Not found · Outbox Relay";
    replace(main, h("h1", {}, "Not found"), h("p", {}, h("a", { href: "/" }, "Go to the overview")));
    return;
  }
  document.title = `${known.title} · Outbox Relay`;
  try {
    session = session || await meet();
  } catch (error) {
    replace(main, trouble(error, () => open()));
    setTimeout(() => { if (!signal.aborted) open(); }, 3000);
    return;
  }
  if (session.closed && path !== "/sign-in") {
    replace(main, trouble(new Trouble("closed", "These pages are open to other machines and no token is set.")));
    return;
  }
  if (!session.may_look && path !== "/sign-in") {
    go(`/sign-in?next=${encodeURIComponent(path + location.search)}`, { instead: true });
    return;
  }
  if (session.may_look && !watching) {
    watching = new AbortController();
    begin(watching.signal);
    watch(beat, watching.signal);
  }
  const body = h("div", { class: "page-body" });
  const notice = h("div", { class: "page-notice" });
  const tools = h("div", { class: "page-tools" });
  replace(main, h("div", { class: "page-head" }, h("h1", {}, known.title), tools), notice, body);
  replace(body, loading());
  main.setAttribute("aria-busy", "true");
  known.page({ body, notice, tools, signal, session, params: new URLSearchParams(location.search), go, polling: polling(signal, body, notice), again, title });
  if (focus) main.focus({ preventScroll: true });
  scrollTo(0, 0);
}

function title(text) {
  main.querySelector("h1").textContent = text;
  document.title = `${text} · Outbox Relay`;
}

/** Poll for a page: renders what changed, and has all its troubles shown in the usual way. */
function polling(signal, body, notice) {
  return ({ load, seconds, render }) => {
    let shown = null;
    const ask = poll({
      signal, load, seconds,
      show: (data) => {
        main.removeAttribute("aria-busy");
        replace(notice);
        const text = JSON.stringify(data);
        if (text === shown) return;
        shown = text;
        replace(body, render(data));
      },
      fail: (error, wait) => {
        main.removeAttribute("aria-busy");
        if (error.kind === "token") { again(); return; }
        if (shown === null || error.kind === "slow" || error.kind === "wrong") {
          shown = null;
          replace(body, trouble(error, ask));
        } else replace(notice, stale(error, wait));
      },
    });
    return () => { shown = null; return ask(); };
  };
}

/** Whoever looks has changed: ask again who it is. */
function again() {
  session = null;
  watching?.abort();
  watching = null;
  open();
}

async function meet() {
  const found = await get("/api/session");
  useToken(found.csrf);
  document.getElementById("table").textContent = found.table || "";
  const who = document.getElementById("who");
  if (found.role === "operator" || found.role === "viewer") {
    replace(who, h("span", { class: `chip ${found.role}` }, found.role === "operator" ? found.name || "Operator" : "Read-only"),
      found.role === "viewer" && found.can_operate ? h("a", { class: "button small", href: "/sign-in" }, "Operate") : null,
      h("button", { type: "button", class: "button small", onclick: leave }, "Sign out"));
  } else if (found.may_look) {
    replace(who, h("a", { class: "chip", href: "/sign-in", title: "How to change something from here" }, icon("lock", 14), "Read-only"));
  } else replace(who);
  return found;
}

async function leave() {
  try { await post("/api/sign-out"); } catch { /* the next page tells */ }
  again();
}

export function go(address, { instead = false } = {}) {
  history[instead ? "replaceState" : "pushState"](null, "", address);
  open({ focus: true });
}

function mark(path) {
  const place = path === "/event" ? "/events" : path;
  replace(document.getElementById("nav"), h("ul", {}, Object.entries(PAGES).filter(([, page]) => !page.hidden).map(([address, page]) =>
    h("li", {}, h("a", { href: address, "aria-current": address === place ? "page" : null, data: { focus: address } },
      icon(page.icon), h("span", {}, page.title), h("span", { class: "count", data: { count: address } }))))));
  counts();
  document.querySelector(".side [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
}

function counts() {
  const now = live.latest?.counts;
  if (!now) return;
  const shown = { "/dead-letters": now.dead_letter.value + now.failed.value };
  for (const [address, value] of Object.entries(shown)) {
    const place = document.querySelector(`[data-count="${address}"]`);
    if (place) place.textContent = value ? short(value) : "";
  }
}

function beat() {
  const text = document.getElementById("live-text");
  const place = document.getElementById("live");
  const state = !live.trouble ? "on" : live.trouble.kind === "offline" ? "off" : "ill";
  const said = { on: "Live", off: "Disconnected", ill: "No database" }[state];
  place.dataset.state = state;
  if (text.textContent !== said) text.textContent = said;
  counts();
}

function themes() {
  const button = document.getElementById("theme");
  const names = ["system", "light", "dark"];
  const now = () => document.documentElement.dataset.theme || "system";
  const draw = () => {
    button.replaceChildren(icon({ system: "system", light: "sun", dark: "moon" }[now()]));
    button.setAttribute("aria-label", `Theme: ${now()}`);
    button.title = `Theme: ${now()}`;
  };
  button.addEventListener("click", () => {
    const next = names[(names.indexOf(now()) + 1) % names.length];
    if (next === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try { next === "system" ? localStorage.removeItem("relay-theme") : localStorage.setItem("relay-theme", next); } catch { /* not kept then */ }
    draw();
    document.dispatchEvent(new Event("themechange"));
  });
  draw();
}

document.addEventListener("click", (click) => {
  const link = click.target.closest?.("a[href]");
  if (!link || click.defaultPrevented || click.button || click.ctrlKey || click.metaKey || click.shiftKey || link.target) return;
  const address = new URL(link.href);
  if (address.origin !== location.origin || !PAGES[address.pathname] || link.hash) return;
  click.preventDefault();
  go(address.pathname + address.search);
});
addEventListener("popstate", () => open());
onConnection((state) => { if (state === false) beat(); });

themes();
keepTimes();
open();
