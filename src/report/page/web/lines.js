// Lines over the steps.

/** A panel of lines. Each of `spec.lines` has a curve, a label, a colour and a dash; `spec.marks` are steps to point out. */
class LineChart extends Panel {
  constructor(spec, index) {
    super(spec, index);
    this.fillLegend();
  }

  lines() {
    return this.spec.lines;
  }

  /** Takes in marks that have come since. */
  renew() {
    if (!this.spec.markKeys) return;
    this.spec.marks = this.spec.markKeys.flatMap((key) => marksOf(key, view.runs));
    this.fillLegend();
  }

  /** The curve whose points the crosshair visits: the one with the most. */
  guide() {
    return this.spec.lines.reduce(
      (best, { curve }) => (best === undefined || curve.steps.length > best.steps.length ? curve : best),
      undefined,
    );
  }

  fillLegend() {
    const entry = (line) => {
      line.output = make("span", { class: `value ${this.hasRange(line) ? "long" : ""}` });
      const swatch = draw("svg", { class: `swatch c${line.color}`, viewBox: "0 0 22 8", "aria-hidden": "true" });
      swatch.append(draw("path", { class: `line dash${line.dash}`, d: "M1 4H21" }));
      return make("li", {}, swatch, make("span", { class: "name" }, line.label), line.output);
    };
    const mark = ({ label, count, color, shape }) => {
      const icon = draw("svg", { class: `swatch mark c${color}`, viewBox: "0 0 10 8", "aria-hidden": "true" }, draw("path", { d: shape }));
      return make("li", {}, icon, make("span", { class: "name" }, label), make("span", { class: "value" }, whole(count)));
    };
    this.legend.replaceChildren(...this.spec.lines.map(entry), ...this.spec.marks.map(mark));
  }

  drawContent() {
    const drawn = this.spec.lines.map((line) => this.visible(line));
    const all = drawn.flatMap(({ low, high }) => [low, high]).filter(Number.isFinite);
    const [low, high] = domain(Math.min(...all), Math.max(...all), this.isLog);
    this.y = scale(low, high, this.height - MARGIN.bottom, MARGIN.top, this.isLog);
    const ticks = this.y.ticks(this.spec.wide ? 6 : 4);
    const most = Math.max(...ticks.map(Math.abs));
    for (const tick of ticks) {
      const y = this.y(tick);
      this.svg.append(
        draw("line", { class: "grid-line", x1: MARGIN.left, x2: this.width - MARGIN.right, y1: y, y2: y }),
        draw("text", { class: "tick", x: MARGIN.left - 8, y: y + 4, "text-anchor": "end" }, tickText(tick, this.isLog ? tick : most)),
      );
    }
    const clip = `clip-${this.index}`;
    const box = { x: MARGIN.left - 4, y: 0, width: this.width - MARGIN.left - MARGIN.right + 8, height: this.height - MARGIN.bottom + 3 };
    const content = draw("g", { "clip-path": `url(#${clip})` });
    this.svg.append(draw("clipPath", { id: clip }, draw("rect", box)), content);
    this.drawMarks(content);
    drawn.forEach((line) => this.drawLine(content, line));
  }

  /** Whether the legend shows the extremes of a bin: not of many lines, which would take too much room. */
  hasRange({ curve, hasBand }) {
    return this.spec.lines.length <= 2 && (curve.points > 1 || hasBand === true);
  }

  /** Which bins of a line are in view, one more on each side, and their extremes. */
  visible(line) {
    const { curve } = line;
    const [first, last] = view.shown();
    const start = Math.max(curve.at(first) - 1, 0);
    const end = Math.min(curve.at(last) + 2, curve.steps.length);
    const isDrawn = (value) => value !== null && (!this.isLog || value > 0);
    const extremes = (from) => {
      let [low, high] = [Infinity, -Infinity];
      for (let index = from; index < end; index += 1) {
        if (isDrawn(curve.min[index])) low = Math.min(low, curve.min[index]);
        else if (isDrawn(curve.mean[index])) low = Math.min(low, curve.mean[index]);
        if (isDrawn(curve.max[index])) high = Math.max(high, curve.max[index]);
      }
      return [low, high];
    };
    let [low, high] = extremes(start);
    // The first step waits for what later ones find ready: where it would crush all others, it leaves the picture.
    if (start === 0 && end > 5) {
      const [least, most] = extremes(1);
      if (most > least && high - low > 4 * (most - least)) [low, high] = [least, most];
    }
    return { line, start, end, low, high, isDrawn };
  }

  /** Where a bin is drawn: at its step, or in the middle of its steps. */
  across(curve, index) {
    if (curve.points === 1) return this.x(curve.steps[index]);
    const end = index + 1 < curve.steps.length ? curve.steps[index + 1] - 1 : curve.to;
    return this.x((curve.steps[index] + end) / 2);
  }

  drawLine(content, { line, start, end, isDrawn }) {
    const { curve } = line;
    const group = draw("g", { class: `c${line.color}` });
    if (curve.points > 1 || line.hasBand) group.append(draw("path", { class: "band", d: this.bandPath(curve, start, end, isDrawn) }));
    const smooth = this.isSmooth(line) ? curve.smoothed(view.smoothing) : null;
    const path = (values) => this.linePath(curve, values, start, end, isDrawn);
    if (smooth) group.append(draw("path", { class: "line raw", d: path(curve.mean) }));
    group.append(draw("path", { class: `line dash${line.dash}`, d: path(smooth ?? curve.mean) }));
    // Evaluations are few and far between: each is a dot, and the best, if its checkpoint is kept, has a ring.
    const isEvaluation = curve.key.startsWith("eval");
    if (end - start <= (isEvaluation ? 200 : 40)) {
      group.append(...this.points(curve, smooth ?? curve.mean, start, end, isDrawn, isEvaluation ? 3.6 : 2.4));
    }
    const best = curve.key === "eval_loss" ? line.run.best : null;
    if (best && isDrawn(best.eval_loss)) group.append(draw("circle", { class: "best", cx: this.x(best.step), cy: this.y(best.eval_loss), r: 6.5 }));
    content.append(group);
  }

  /** Whether a line is smoothed: not where its points are few, as those of evaluations. */
  isSmooth({ curve }) {
    return this.spec.smooth && view.smoothing > 0 && curve.steps.length > 5 && !curve.key.startsWith("eval");
  }

  linePath(curve, values, start, end, isDrawn) {
    let path = "";
    let isOpen = false;
    for (let index = start; index < end; index += 1) {
      const value = values[index];
      if (!isDrawn(value)) {
        isOpen = false;
        continue;
      }
      path += `${isOpen ? "L" : "M"}${this.across(curve, index).toFixed(1)} ${this.y(value).toFixed(1)}`;
      // A point between two gaps shows as a dot of the line's width.
      if (!isOpen && !isDrawn(values[index + 1])) path += "h.01";
      isOpen = true;
    }
    return path;
  }

  bandPath(curve, start, end, isDrawn) {
    let path = "";
    let index = start;
    while (index < end) {
      const [above, below] = [[], []];
      for (; index < end && isDrawn(curve.max[index]); index += 1) {
        const x = this.across(curve, index).toFixed(1);
        const low = isDrawn(curve.min[index]) ? curve.min[index] : curve.max[index];
        above.push(`${x} ${this.y(curve.max[index]).toFixed(1)}`);
        below.unshift(`${x} ${this.y(low).toFixed(1)}`);
      }
      if (above.length) path += `M${above.join("L")}L${below.join("L")}Z`;
      index += 1;
    }
    return path;
  }

  points(curve, values, start, end, isDrawn, r) {
    const seen = [];
    for (let index = start; index < end; index += 1) {
      if (isDrawn(values[index])) seen.push(draw("circle", { class: "point", cx: this.across(curve, index), cy: this.y(values[index]), r }));
    }
    return seen;
  }

  drawMarks(content) {
    for (const { steps, color, shape } of this.spec.marks) {
      const hasLines = steps.length <= 100;
      for (const step of steps) {
        const x = this.x(step);
        if (x < MARGIN.left - 1 || x > this.width - MARGIN.right + 1) continue;
        const line = { class: `mark-line c${color}`, x1: x, x2: x, y1: MARGIN.top, y2: this.height - MARGIN.bottom };
        content.append(
          hasLines ? draw("line", line) : "",
          draw("path", { class: `mark c${color}`, d: shape, transform: `translate(${x - 5} ${MARGIN.top - 8})` }),
        );
      }
    }
  }

  drawValues(step) {
    for (const line of this.spec.lines) {
      const { curve } = line;
      const at = step === null || step > line.run.step ? -1 : curve.at(step);
      const value = step === null ? curve.last() : at < 0 ? null : curve.mean[at];
      const hasRange = at >= 0 && this.hasRange(line) && value !== null;
      line.output.textContent = hasRange ? `${number(value)} (${number(curve.min[at])}–${number(curve.max[at])})` : number(value);
      if (at < 0 || value === null || (this.isLog && value <= 0)) continue;
      const y = this.y(this.isSmooth(line) ? curve.smoothed(view.smoothing)[at] : value);
      this.cursorDots.append(draw("circle", { class: `c${line.color}`, cx: this.across(curve, at), cy: y, r: 3.2 }));
    }
  }
}
