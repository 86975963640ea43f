// How a page looks and can be used, in numbers and short names that a test can compare.

/** A name of an element for messages. */
function nameOf(element) {
  const kind = [element.localName, ...element.classList].join(".");
  const label = element.getAttribute("aria-label") ?? element.textContent.trim();
  return `${kind}${element.id && `#${element.id}`} "${label.slice(0, 40)}"`;
}

/** The number of an element in the document, which tells elements of one name apart. */
function placeOf(element) {
  return [...document.querySelectorAll("*")].indexOf(element);
}

/** Whether an element can be seen: not folded away, nor for screen readers alone, nor the link that shows on focus. */
function isSeen(element) {
  return element.checkVisibility({ visibilityProperty: true }) && !element.closest(".unseen, .skip");
}

/** Charts in which nothing is drawn. */
function emptyCharts() {
  const hasLine = (plot) => [...plot.querySelectorAll("path.line")].some((line) => line.getAttribute("d"));
  const bytes = (map) => map.getContext("2d").getImageData(0, 0, map.width, map.height).data;
  const hasMap = (plot) => [...plot.querySelectorAll("canvas")].some((map) => bytes(map).some((byte) => byte));
  const plots = [...document.querySelectorAll(".plot")];
  return plots.filter((plot) => !hasLine(plot) && !hasMap(plot)).map((plot) => nameOf(plot.parentElement));
}

/** Unfolds everything. What an element shows when it unfolds is built in an event, which comes later. */
function unfold() {
  document.querySelectorAll("details").forEach((details) => (details.open = true));
  return new Promise((resolve) => setTimeout(resolve, 50));
}

/** Elements that reach beyond a side of the window, but for what scrolls by itself. */
function outside() {
  const isOutside = ({ left, right }) => left < -1 || right > innerWidth + 1;
  const isScrolled = (element) => element.parentElement.closest(".scroll, pre, svg");
  const elements = [...document.body.querySelectorAll("*")].filter((element) => !isScrolled(element));
  return elements.filter((element) => isSeen(element) && isOutside(element.getBoundingClientRect())).map(nameOf);
}

/** Labels of axes that are cut off by the edge of their chart, or lie on one another. */
function badLabels() {
  const shared = (start, end, one, other) => Math.min(one[end], other[end]) - Math.max(one[start], other[start]);
  // Boxes are as high as the font, which is higher than digits.
  const meet = (one, other) => shared("left", "right", one, other) > 0 && shared("top", "bottom", one, other) > 3;
  const isCut = (one, all) =>
    one.left < all.left - 1 || one.right > all.right + 1 || one.top < all.top - 1 || one.bottom > all.bottom + 1;
  const ofChart = (svg) => {
    const labels = [...svg.querySelectorAll(".tick")];
    const boxes = labels.map((label) => label.getBoundingClientRect());
    const all = svg.getBoundingClientRect();
    const isBad = (box, index) => isCut(box, all) || boxes.slice(0, index).some((other) => meet(box, other));
    const bad = labels.filter((_, index) => isBad(boxes[index], index));
    return bad.map((label) => `${label.textContent} of ${nameOf(svg.closest("figure"))}`);
  };
  return [...document.querySelectorAll(".plot svg")].flatMap(ofChart);
}

/** Red, green, blue from 0 to 255, and opacity. */
function channels(color) {
  const [red, green, blue, alpha = 1] = color.match(/[\d.]+/g).map(Number);
  return { rgb: [red, green, blue], alpha };
}

/** The contrast of two colours, from 1 to 21: WCAG 2.2, contrast ratio. */
function contrast(one, other) {
  const linear = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const luminance = (color) => {
    const [red, green, blue] = channels(color).rgb.map((value) => linear(value / 255));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

/** The colour behind an element. */
function behind(element) {
  const color = element ? getComputedStyle(element).backgroundColor : "rgb(255, 255, 255)";
  return channels(color).alpha > 0 ? color : behind(element.parentElement);
}

/** Texts with less contrast than `least`; controls that are disabled need none. */
function faintTexts(least) {
  const isText = (node) => node.nodeType === Node.TEXT_NODE && node.data.trim();
  const hasText = (element) => element.placeholder || [...element.childNodes].some(isText);
  const ratio = (element) => {
    const style = getComputedStyle(element, element.placeholder ? "::placeholder" : null);
    const isOnLabel = element.matches(".cursor-text");
    const back = isOnLabel ? getComputedStyle(element.previousElementSibling).fill : behind(element);
    return contrast(element.closest("svg") ? style.fill : style.color, back);
  };
  const elements = [...document.body.querySelectorAll("*:not(script, noscript, :disabled)")];
  const faint = elements.filter((element) => isSeen(element) && hasText(element) && ratio(element) < least);
  return faint.map((element) => `${ratio(element).toFixed(2)}: ${nameOf(element)}`);
}

/** Everything that a mouse can use: what HTML makes usable, what the pointer changes over, and what scrolls. */
function controls() {
  const changesPointer = (element) => /pointer|crosshair/.test(getComputedStyle(element).cursor);
  const isPointedAt = (element) => changesPointer(element) && !changesPointer(element.parentElement);
  const scrolls = (element) =>
    element.matches(".scroll, pre") &&
    (element.scrollWidth > element.clientWidth || element.scrollHeight > element.clientHeight);
  const isUsed = (element) =>
    element.matches("a[href], button:enabled, input, summary") || isPointedAt(element) || scrolls(element);
  const elements = [...document.body.querySelectorAll("*")];
  const used = elements.filter((element) => element.checkVisibility() && isUsed(element));
  return used.map((element) => ({ place: placeOf(element), name: nameOf(element) }));
}

/** The element with the focus, null where none has it, and whether a reader finds it: WCAG 2.2, 2.4.7 and 2.4.11. */
function focused() {
  const element = document.activeElement;
  if (element === document.body) return null;
  const { outlineStyle, outlineWidth, outlineColor } = getComputedStyle(element);
  const hasOutline = outlineStyle !== "none" && parseFloat(outlineWidth) >= 2;
  const isMarked = hasOutline && contrast(outlineColor, behind(element.parentElement)) >= 3;
  const { left, right, top, bottom } = element.getBoundingClientRect();
  const middle = (low, high, end) => (Math.max(low, 0) + Math.min(high, end)) / 2;
  const onTop = document.elementFromPoint(middle(left, right, innerWidth), middle(top, bottom, innerHeight));
  return { place: placeOf(element), name: nameOf(element), isMarked, isInView: element.contains(onTop) };
}

/** What the crosshair of each chart says; null where there is none. */
function crosshairs() {
  const texts = [...document.querySelectorAll(".cursor-text")];
  return texts.map((text) => (text.style.display === "none" ? null : text.textContent));
}
