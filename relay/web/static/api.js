// Requests to the relay. Every failure has a kind, and every kind has a state of its own on the pages.

export class Trouble extends Error {
  constructor(kind, message, status = 0, retryAfter = 0) {
    super(message);
    this.kind = kind;
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

const LONGEST_MS = 45000;
let csrf = null;
const listeners = new Set();
let connected = null;

export function useToken(token) { csrf = token; }

export function onConnection(listener) { listeners.add(listener); }

function connection(state) {
  if (state === connected) return;
  connected = state;
  for (const listener of listeners) listener(state);
}

async function request(path, options = {}) {
  let answer;
  const limit = AbortSignal.timeout(LONGEST_MS);
  const signal = options.signal ? AbortSignal.any([options.signal, limit]) : limit;
  try {
    answer = await fetch(path, { ...options, signal, credentials: "same-origin", cache: "no-store" });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    connection(false);
    throw new Trouble("offline", "The relay does not answer.");
  }
  connection(true);
  let body = null;
  try { body = await answer.json(); } catch { /* told by the status */ }
  if (answer.ok && body) return body;
  throw new Trouble(body?.error || "failed", body?.message || `The relay answered ${answer.status}.`, answer.status,
    Number(answer.headers.get("Retry-After")) || 0);
}

export function get(path, params = {}, signal = undefined) {
  const query = new URLSearchParams(Object.entries(params).filter(([, value]) => value !== null && value !== undefined && value !== ""));
  return request(query.size ? `${path}?${query}` : path, { signal });
}

export function post(path, body = {}, signal = undefined) {
  const headers = { "Content-Type": "application/json" };
  if (csrf) headers["X-Relay-CSRF"] = csrf;
  return request(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}

/**
 * Ask again and again while the page is seen; `show` gets each answer, `fail` each trouble.
 * Returns a function that asks at once.
 */
export function poll({ load, seconds, show, fail, signal }) {
  let timer = null;
  let failures = 0;
  let asking = false;
  async function ask() {
    clearTimeout(timer);
    if (signal.aborted || asking) return;
    asking = true;
    let wait = seconds;
    try {
      const data = await load(signal);
      if (signal.aborted) return;
      failures = 0;
      show(data);
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof Trouble)) throw error;
      failures += 1;
      wait = Math.min(Math.max(error.retryAfter, seconds, 1) * 2 ** Math.min(failures - 1, 4), 30);
      fail(error, wait);
    } finally {
      asking = false;
      if (!signal.aborted && seconds > 0 && !document.hidden) timer = setTimeout(ask, wait * 1000);
    }
  }
  document.addEventListener("visibilitychange", () => { if (!document.hidden && seconds > 0) ask(); }, { signal });
  signal.addEventListener("abort", () => clearTimeout(timer));
  ask();
  return ask;
}
