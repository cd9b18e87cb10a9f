// The samples of the last half hour, shared by whatever shows them.

import { poll, get } from "./api.js";

const KEPT_MS = 30 * 60 * 1000;

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
  live.samples = [];
  poll({
    seconds: 2,
    signal,
    load: (signal) => get("/api/live", { after: last }, signal),
    show: ({ samples }) => {
      if (samples.length && samples[0].number <= last) live.samples = []; // another process answers
      for (const sample of samples) {
        last = sample.number;
        live.samples.push(sample);
      }
      // A server that was restarted counts from the beginning.
      if (!samples.length && live.latest && Date.now() / 1000 - live.latest.at > 40) last = 0;
      while (live.samples.length && live.samples[0].at * 1000 < Date.now() - KEPT_MS) live.samples.shift();
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
