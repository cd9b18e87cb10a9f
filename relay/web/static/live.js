// The samples of the last half hour, shared by whatever shows them.

import { poll, get } from "./api.js";

const KEPT_MS = 30 * 60 * 1000;
const KEPT = 900;
const SILENCE_MS = 40 * 1000;

export const live = { samples: [], latest: null, trouble: null };
const watchers = new Set();

export function watch(show, signal) {
  watchers.add(show);
  signal.addEventListener("abort", () => watchers.delete(show));
  if (live.latest || live.trouble) show();
}

function tell() { for (const show of watchers) show(); }

export function begin(signal) {
  let last = 0;
  let heard = performance.now();
  live.samples = [];
  poll({
    seconds: 2,
    signal,
    load: (signal) => get("/api/live", { after: last }, signal),
    show: ({ samples }) => {
      // Asked from the beginning it tells all of them again; one that is not newer is of another process.
      if (samples.length && (!last || samples[0].number <= last)) live.samples = [];
      for (const sample of samples) {
        last = sample.number;
        live.samples.push(sample);
      }
      // A server that was restarted counts from the beginning. How long it is silent is a matter of the
      // browser's own clock: the times in the samples are of another one, that may be wrong.
      if (samples.length) heard = performance.now();
      else if (performance.now() - heard > SILENCE_MS) last = 0;
      while (live.samples.length > KEPT || live.samples[0]?.at * 1000 < Date.now() - KEPT_MS) live.samples.shift();
      const newest = live.samples.at(-1);
      if (newest) {
        live.trouble = newest.trouble ? { kind: "unreachable", message: newest.trouble } : null;
        if (!newest.trouble) live.latest = newest;
      }
      tell();
    },
    fail: (error) => {
      live.trouble = error;
      tell();
    },
  });
}
