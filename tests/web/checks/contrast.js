// Texts with less contrast to what lies behind them than WCAG asks for (AA).
const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
function rgba(colour) {
  paint.clearRect(0, 0, 1, 1);
  paint.fillStyle = colour;
  paint.fillRect(0, 0, 1, 1);
  return [...paint.getImageData(0, 0, 1, 1).data].map((part, at) => (at === 3 ? part / 255 : part));
}
function over(top, under) {
  return [0, 1, 2].map((at) => top[at] * top[3] + under[at] * (1 - top[3])).concat(1);
}
function behind(element) {
  const layers = [];
  for (let at = element; at; at = at.parentElement) layers.push(rgba(getComputedStyle(at).backgroundColor));
  return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255, 1]);
}
function light(colour) {
  const linear = (part) => (part / 255 <= 0.03928 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4);
  const [r, g, b] = colour.map(linear);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
const faint = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const text = walker.currentNode.data.trim();
  const element = walker.currentNode.parentElement;
  if (!text || element.closest("svg, option, script, noscript, :disabled") || !element.checkVisibility()) continue;
  const back = behind(element);
  const front = over(rgba(getComputedStyle(element).color), back);
  const [more, less] = [light(front), light(back)].sort((a, b) => b - a);
  const contrast = (more + 0.05) / (less + 0.05);
  if (contrast < 4.5) faint.push(`${text.slice(0, 40)}: ${contrast.toFixed(2)}`);
}
return faint;
