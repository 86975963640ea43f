// Numbers, times and elements as the page shows them.

const MINUS = "\u2212";

/** A number with four significant digits: 2.700, 12,480, 3.2e−5. Whole ones have no decimals. */
function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  const isPlain = size >= 0.1 && size < 1000 && !Number.isInteger(value);
  return isPlain ? value.toPrecision(4).replace("-", MINUS) : short(value);
}

/** The same without trailing zeros. */
function short(value) {
  const size = Math.abs(value);
  let text = String(Number(value.toPrecision(4)));
  if (size >= 1e7 || (size < 1e-3 && size > 0)) text = value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
  else if (size >= 1000) text = Math.round(value).toLocaleString("en-US");
  return text.replaceAll("-", MINUS);
}

/** A whole number with separators. */
function whole(value) {
  return value === null || value === undefined ? "–" : value.toLocaleString("en-US");
}

/** Seconds as 45 s, 3 min 20 s, 2 h 5 min, 3 d 4 h. */
function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 60) return `${Number(seconds.toPrecision(seconds < 10 ? 2 : 3))} s`;
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = units.findIndex(([, length]) => seconds >= length);
  const [name, length] = units[first];
  const [smaller, part] = units[first + 1];
  const rest = Math.floor((seconds % length) / part);
  return `${Math.floor(seconds / length)} ${name}${rest ? ` ${rest} ${smaller}` : ""}`;
}

/** A time of an event, to the second. */
function clock(time) {
  const date = new Date(time);
  if (Number.isNaN(date.getTime())) return time;
  return date.toISOString().replace("T", " ").slice(0, 19);
}

/** A value of a setting. */
function setting(value) {
  if (value === undefined || value === null) return "–";
  if (value === "" || (Array.isArray(value) && value.length === 0)) return "none";
  if (value === true) return "True";
  if (value === false) return "False";
  return typeof value === "string" ? value : JSON.stringify(value).replaceAll(",", ", ");
}

/** A word for a count: 1 step, 2 steps. */
function counted(count, one, many = `${one}s`) {
  return `${whole(count)} ${count === 1 ? one : many}`;
}

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children; texts become text, never markup. */
function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same within a drawing. */
function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** A dotted path that may break after its dots and underscores. */
function path(text) {
  return text.split(/(?<=[._])/).flatMap((part) => [part, make("wbr")]).slice(0, -1);
}

/** Text in which backticks mark what is written in files and commands. */
function prose(text) {
  return text.split("`").map((part, index) => (index % 2 ? make("code", {}, part) : part));
}

function byId(id) {
  return document.getElementById(id);
}
