// A map of members (layers, parameters, ranks) by steps, where there are too many for lines.

/** From the least value to the greatest, for light pages and dark ones; blues, which everybody can tell apart. */
const RAMPS = {
  light: [[236, 243, 250], [180, 211, 240], [96, 165, 220], [28, 106, 176], [8, 44, 92]],
  dark: [[20, 34, 50], [22, 70, 112], [40, 120, 188], [116, 184, 236], [228, 243, 255]],
};

/** The colour at `share` (0 to 1) of a ramp. */
function rampColor(ramp, share) {
  const place = Math.min(Math.max(share, 0), 1) * (ramp.length - 1);
  const index = Math.min(Math.floor(place), ramp.length - 2);
  return ramp[index].map((from, channel) => Math.round(from + (ramp[index + 1][channel] - from) * (place - index)));
}

class HeatMap extends Panel {
  constructor(spec, index) {
    super(spec, index);
    this.row = 0;
    this.height = spec.wide ? 260 : Math.min(Math.max(spec.lines.length * 7, 150), 320) + MARGIN.top + MARGIN.bottom;
    this.plot.style.height = `${this.height}px`;
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.plot.prepend(this.canvas);
    this.chosen = make("li");
    this.average = make("li");
    this.scaleBar = make("canvas", { class: "ramp", width: "64", height: "8", "aria-hidden": "true" });
    this.scaleLow = make("span", { class: "value" });
    this.scaleHigh = make("span", { class: "value" });
    this.legend.append(this.chosen, this.average, make("li", { class: "ramp-entry" }, this.scaleLow, this.scaleBar, this.scaleHigh));
  }

  lines() {
    return this.spec.lines;
  }

  guide() {
    return this.spec.lines[0].curve;
  }

  drawContent() {
    const { lines } = this.spec;
    const [left, top] = [MARGIN.left, MARGIN.top];
    const [width, height] = [this.width - left - MARGIN.right, this.height - top - MARGIN.bottom];
    const count = lines.length;
    this.rowHeight = height / count;
    const every = Math.ceil(count / Math.max(1, Math.floor(height / 16)));
    for (let row = 0; row < count; row += every) {
      const y = top + (row + 0.5) * this.rowHeight + 4;
      this.svg.append(draw("text", { class: "tick", x: left - 8, y, "text-anchor": "end" }, lines[row].short));
    }
    this.frame = draw("rect", { class: "row-frame", x: left - 1, width: width + 2, height: Math.max(this.rowHeight, 3) });
    this.svg.append(this.frame);
    this.paint(width, height);
  }

  /** Paints a pixel for each device pixel across and each member down. */
  paint(width, height) {
    const { lines } = this.spec;
    const columns = Math.max(1, Math.round(width * (window.devicePixelRatio || 1)));
    const [low, high] = this.limits();
    const ramp = RAMPS[isDark() ? "dark" : "light"];
    this.canvas.width = columns;
    this.canvas.height = lines.length;
    Object.assign(this.canvas.style, { left: `${MARGIN.left}px`, top: `${MARGIN.top}px`, width: `${width}px`, height: `${height}px` });
    const context = this.canvas.getContext("2d");
    const image = context.createImageData(columns, lines.length);
    lines.forEach(({ curve }, row) => {
      for (let column = 0; column < columns; column += 1) {
        const step = this.x.inverse(MARGIN.left + ((column + 0.5) / columns) * width);
        const at = curve.at(step);
        const value = at < 0 || step > curve.to + this.reach(curve) ? null : curve.mean[at];
        if (value === null) continue;
        const share = this.isLog ? Math.log(Math.max(value, low) / low) / Math.log(high / low || 2) : (value - low) / (high - low || 1);
        image.data.set([...rampColor(ramp, share), 255], 4 * (row * columns + column));
      }
    });
    context.putImageData(image, 0, 0);
    this.paintScale(ramp, low, high);
  }

  /** How far the last bin is painted beyond its step: as far as bins lie apart. */
  reach(curve) {
    const count = curve.steps.length;
    return count > 1 ? (curve.steps[count - 1] - curve.steps[0]) / (count - 1) : 1;
  }

  limits() {
    const values = this.spec.lines.flatMap(({ curve }) => curve.mean).filter((value) => value !== null && (!this.isLog || value > 0));
    const low = values.reduce((least, value) => Math.min(least, value), Infinity);
    const high = values.reduce((most, value) => Math.max(most, value), -Infinity);
    return Number.isFinite(low) ? [low, high] : [0, 1];
  }

  paintScale(ramp, low, high) {
    const context = this.scaleBar.getContext("2d");
    for (let column = 0; column < 64; column += 1) {
      context.fillStyle = `rgb(${rampColor(ramp, column / 63).join(" ")})`;
      context.fillRect(column, 0, 1, 8);
    }
    this.scaleLow.textContent = number(low);
    this.scaleHigh.textContent = number(high);
  }

  /** Moves to another row. */
  choose(by) {
    this.row = Math.min(Math.max(this.row + by, 0), this.spec.lines.length - 1);
    this.drawCursor();
    this.speak();
  }

  /** The row under the pointer. */
  point(event) {
    const y = event.clientY - this.plot.getBoundingClientRect().top - MARGIN.top;
    this.row = Math.min(Math.max(Math.floor(y / this.rowHeight), 0), this.spec.lines.length - 1);
    this.drawCursor();
  }

  drawValues(step) {
    const { lines } = this.spec;
    const value = ({ curve }) => (step === null ? curve.last() : (curve.mean[curve.at(step)] ?? null));
    const known = lines.map(value).filter((one) => one !== null);
    const mean = known.length ? known.reduce((sum, one) => sum + one, 0) / known.length : null;
    const { label } = lines[this.row];
    const entry = (name, one) => [make("span", { class: "name" }, name), make("span", { class: "value" }, number(one))];
    this.chosen.replaceChildren(...entry(label, value(lines[this.row])));
    this.average.replaceChildren(...entry("mean", mean));
    this.frame.setAttribute("y", MARGIN.top + this.row * this.rowHeight);
    this.frame.style.display = step === null ? "none" : "";
  }
}

function isDark() {
  return window.matchMedia("(prefers-color-scheme: dark)").matches;
}
