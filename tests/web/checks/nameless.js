// Controls, pictures and regions that a screen reader could not name.
const named = "button, a[href], input, select, img, dialog, section, [role=img]";
return [...document.querySelectorAll(named)].filter((element) => {
  if (!element.checkVisibility()) return false;
  if (element.matches("img")) return !element.hasAttribute("alt");
  if (element.matches("input, select")) return !element.labels.length && !element.getAttribute("aria-label");
  return !(element.getAttribute("aria-label") || element.textContent.trim());
}).map((element) => element.outerHTML.slice(0, 120));
