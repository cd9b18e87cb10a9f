// Numbers, times and statuses as people read them.

import { h } from "./dom.js";

const whole = new Intl.NumberFormat("en-US");

export const STATUS = {
  pending: "Pending", processing: "In flight", completed: "Completed", dead_letter: "Dead letter", failed: "Failed",
};

export function number(value) {
  return value === null || value === undefined ? "–" : whole.format(value);
}

export function short(value) {
  if (value === null || value === undefined) return "–";
  if (value < 10 && value % 1) return value.toFixed(1);
  if (value < 10000) return whole.format(Math.round(value));
  if (value < 1e6) return `${(value / 1e3).toFixed(value < 1e5 ? 1 : 0)}k`;
  if (value < 1e9) return `${(value / 1e6).toFixed(1)}M`;
  return `${(value / 1e9).toFixed(1)}G`;
}

/** A count that may be bounded: `≥` where there are more than were counted. */
export function bounded(count, estimate = false) {
  if (!count) return "–";
  return count.exact ? number(count.value) : `${estimate ? "~" : "≥"} ${count.value < 1e5 ? number(count.value) : short(count.value)}`;
}

export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.001) return "0 ms";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10 && seconds % 1) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

export function moment(text) {
  return new Date(text).toLocaleString(undefined, {
    year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit",
  });
}

function distance(text) {
  const seconds = (Date.now() - new Date(text).getTime()) / 1000;
  if (Math.abs(seconds) < 2) return "now";
  return seconds > 0 ? `${span(Math.round(seconds))} ago` : `in ${span(Math.round(-seconds))}`;
}

/** A time that stays true: the page says "3 s ago" anew every second. */
export function time(text) {
  if (!text) return "–";
  return h("time", { datetime: text, title: moment(text), class: "ago" }, distance(text));
}

export function keepTimes() {
  setInterval(() => {
    if (document.hidden) return;
    for (const element of document.querySelectorAll("time.ago")) {
      const now = distance(element.dateTime);
      if (element.textContent !== now) element.textContent = now;
    }
  }, 1000);
}

export function badge(status) {
  return h("span", { class: `badge ${status}` }, STATUS[status] || status);
}

export function events(count) {
  return `${number(count)} event${count === 1 ? "" : "s"}`;
}

export function plural(count, thing) {
  return `${number(count)} ${thing}${count === 1 ? "" : "s"}`;
}
