// Elements from data. Text is only ever set as text: nothing here, or anywhere, turns data into HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || (value === false && !name.startsWith("aria-"))) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "data") Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true && !name.startsWith("aria-") ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

export function s(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

const ICONS = {
  overview: "M4 13h6V4H4zM14 20h6V4h-6zM4 20h6v-3H4z",
  workers: "M12 3a9 9 0 1 0 9 9M12 3v9h9",
  waiting: "M12 7v5l3 2M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18z",
  events: "M4 6h16M4 12h16M4 18h10",
  dead: "M12 8v5m0 3v.5M10.3 3.9 2.6 17.5A2 2 0 0 0 4.3 20.5h15.4a2 2 0 0 0 1.7-3L13.7 3.9a2 2 0 0 0-3.4 0z",
  pauses: "M8 5v14M16 5v14",
  audit: "M7 3h7l5 5v13H7zM14 3v5h5M10 13h6M10 17h6",
  doctor: "M4 12h4l2-6 4 12 2-6h4",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M4 12H2M22 12h-2M5 5l1.5 1.5M17.5 17.5 19 19M5 19l1.5-1.5M17.5 6.5 19 5",
  moon: "M20 14.5A8.5 8.5 0 1 1 9.5 4a7 7 0 0 0 10.5 10.5z",
  system: "M4 5h16v11H4zM9 20h6M12 16v4",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  check: "M5 12.5l4.5 4.5L19 7.5",
  away: "M4 4l16 16M9 4.5A9 9 0 0 1 21 12M3 12a9 9 0 0 0 13 8",
  slow: "M12 7v5l3 2M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18z",
  empty: "M4 13l2.5-8h11L20 13v6H4zM4 13h5l1.5 2.5h3L15 13h5",
  lock: "M6 11h12v9H6zM8.5 11V8a3.5 3.5 0 0 1 7 0v3",
};

export function icon(name, size = 18) {
  return s("svg", { viewBox: "0 0 24 24", width: size, height: size, class: "glyph", "aria-hidden": "true" },
    s("path", { d: ICONS[name] }));
}

/** Put new content in place without losing the focus: elements with the same data-focus take it over. */
export function replace(container, ...content) {
  const active = document.activeElement;
  const name = container.contains(active) ? active.dataset.focus : null;
  const caret = name && active.selectionStart !== undefined ? [active.selectionStart, active.selectionEnd] : null;
  container.replaceChildren(...content.flat(Infinity).filter(Boolean));
  if (name) {
    const again = container.querySelector(`[data-focus="${CSS.escape(name)}"]`);
    if (again) {
      again.focus({ preventScroll: true });
      if (caret) try { again.setSelectionRange(...caret); } catch { /* not a text field */ }
    }
  }
}

export function toast(text, kind = "good") {
  const box = h("div", { class: `toast ${kind}` }, text);
  document.getElementById("toasts").append(box);
  setTimeout(() => box.remove(), 6000);
}

export async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    const before = [...button.childNodes];
    button.replaceChildren(icon("check", 15), "Copied");
    setTimeout(() => button.replaceChildren(...before), 1500);
  } catch {
    toast("The browser did not let this page copy.", "bad");
  }
}
