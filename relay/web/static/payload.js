// A payload as stored, indented for reading: its numbers and strings stay as they are, character by character.

import { h } from "./dom.js";

const TOKEN = /("(?:[^"\\]|\\.)*")(\s*:)?|(-?\d[\d.eE+-]*)|(true|false|null)|([{}[\],])|(\s+)|(.)/gsu;
const LONGEST = 100000;

export function pretty(text) {
  if (text === null || text === undefined) return "";
  if (text.length > LONGEST) return text;
  const parts = [];
  let depth = 0;
  let last = "";
  const line = () => `\n${"  ".repeat(Math.min(depth, 40))}`;
  for (const [, string, colon, figure, word, mark] of text.matchAll(TOKEN)) {
    if (string !== undefined) parts.push(h("span", { class: colon ? "j-name" : "j-text" }, string), colon ? ": " : "");
    else if (figure !== undefined) parts.push(h("span", { class: "j-number" }, figure));
    else if (word !== undefined) parts.push(h("span", { class: "j-word" }, word));
    else if (mark === "{" || mark === "[") { depth += 1; parts.push(mark, line()); }
    else if (mark === "}" || mark === "]") {
      depth -= 1;
      if (last === "{" || last === "[") parts.pop();
      else parts.push(line());
      parts.push(mark);
    } else if (mark === ",") parts.push(mark, line());
    else continue;
    last = mark || "";
  }
  return parts;
}
