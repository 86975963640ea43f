// A panel with a plot over the steps, and the panel that draws lines.

/** What all panels share: which steps are shown, where the crosshair is, how strongly lines are smoothed. */
const view = {
  panels: [],
  runs: [],
  /** First and last step of all runs. */
  extent: [1, 2],
  /** The steps that are shown; null: all. */
  range: null,
  /** The step under the crosshair; null: none. */
  cursor: null,
  smoothing: 0.6,
  whenRangeChanges: () => {},

  shown() {
    return this.range ?? this.extent;
  },

  show(low, high) {
    const [first, last] = this.extent;
    const length = Math.min(Math.max(high - low, 2), Math.max(last - first, 2));
    const start = Math.min(Math.max(low, first), Math.max(last - length, first));
    this.range = length >= last - first ? null : [start, start + length];
    this.draw();
    this.whenRangeChanges();
  },

  zoom(factor) {
    const [low, high] = this.shown();
    const center = this.cursor ?? (low + high) / 2;
    this.show(center - (center - low) * factor, center + (high - center) * factor);
  },

  point(step) {
    if (step === this.cursor) return;
    this.cursor = step;
    this.panels.forEach((panel) => panel.drawCursor());
  },

  draw() {
    this.panels.forEach((panel) => panel.draw());
  },
};

const MARGIN = { left: 50, right: 12, top: 10, bottom: 24 };

/** A figure with a title, a legend that shows the values under the crosshair, a plot, and a table of numbers. */
class Panel {
  constructor(spec, index) {
    Object.assign(this, { spec, index, height: spec.wide ? 320 : 210, width: 0, isFocused: false });
    this.isLog = spec.log === "on";
    this.heading = make("h3", { id: `chart-${index}` }, spec.title);
    this.tools = make("span", { class: "tools" });
    if (spec.log) {
      const toggle = () => {
        this.isLog = !this.isLog;
        this.logButton.setAttribute("aria-pressed", this.isLog);
        this.draw();
      };
      const label = `Logarithmic scale of ${spec.title}`;
      this.logButton = make("button", { type: "button", "aria-pressed": String(this.isLog), "aria-label": label, onclick: toggle }, "log");
      this.tools.append(this.logButton);
    }
    this.legend = make("ul", { class: "legend" });
    this.svg = draw("svg", { "aria-hidden": "true" });
    this.plot = make("div", {
      class: "plot",
      tabindex: "0",
      role: "application",
      "aria-roledescription": "chart",
      "aria-labelledby": `chart-${index}`,
      "aria-describedby": "keys",
      onkeydown: (event) => this.press(event),
      onfocus: () => (this.isFocused = true),
      onblur: () => (this.isFocused = false),
      onpointerdown: (event) => this.grab(event),
      onpointermove: (event) => this.hover(event),
      onpointerup: (event) => this.release(event),
      onpointercancel: () => this.drop(),
      onpointerleave: () => this.leave(),
      ondblclick: () => view.show(...view.extent),
    });
    this.plot.style.height = `${this.height}px`;
    this.plot.append(this.svg);
    this.numbers = make("details", { class: "numbers", ontoggle: () => this.fillNumbers() }, make("summary", {}, "Numbers"));
    const unit = spec.unit ? make("span", { class: "unit" }, spec.unit) : null;
    this.element = make(
      "figure",
      { class: `chart${spec.wide || spec.isAlone ? " wide" : ""}` },
      make("figcaption", {}, make("div", { class: "heading" }, this.heading, unit, this.tools), this.legend),
      this.plot,
      this.numbers,
    );
  }

  /** Draws axes and content anew, for the width that the plot has. */
  draw() {
    this.width = Math.max(this.plot.clientWidth, 160);
    const { width, height } = this;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren();
    const [low, high] = view.shown();
    this.x = scale(low, Math.max(high, low + 1), MARGIN.left, width - MARGIN.right);
    this.drawStepAxis(low, high);
    this.drawContent();
    this.cursorLine = draw("line", { class: "cursor", y1: MARGIN.top, y2: height - MARGIN.bottom });
    this.cursorText = draw("text", { class: "cursor-text", y: height - 8 });
    this.cursorBack = draw("rect", { class: "cursor-back", y: height - MARGIN.bottom + 3, height: 18, rx: 4 });
    this.cursorDots = draw("g", { class: "dots" });
    this.selection = draw("rect", { class: "selection", y: MARGIN.top, height: height - MARGIN.top - MARGIN.bottom });
    this.svg.append(this.selection, this.cursorLine, this.cursorDots, this.cursorBack, this.cursorText);
    this.selection.style.display = "none";
    this.drawCursor();
    if (this.numbers.open) this.fillNumbers();
  }

  drawStepAxis(low, high) {
    const { width, height } = this;
    const bottom = height - MARGIN.bottom;
    this.svg.append(draw("line", { class: "axis", x1: MARGIN.left, x2: width - MARGIN.right, y1: bottom, y2: bottom }));
    for (const tick of stepTicks(this.x, low, high, Math.max(2, Math.floor(width / 90)))) {
      const text = tickText(tick, high);
      const x = Math.min(this.x(tick), width - 4 - text.length * 3.5);
      this.svg.append(draw("text", { class: "tick", x, y: height - 8, "text-anchor": "middle" }, text));
    }
  }

  /** Moves the crosshair and shows the values there, or the last ones where there is no crosshair. */
  drawCursor() {
    if (!this.x) return;
    const step = view.cursor;
    const [low, high] = view.shown();
    const isSeen = step !== null && step >= low && step <= high;
    for (const part of [this.cursorLine, this.cursorText, this.cursorBack, this.cursorDots]) {
      part.style.display = isSeen ? "" : "none";
    }
    this.cursorDots.replaceChildren();
    if (isSeen) {
      const text = this.stepText(step);
      const half = text.length * 3.5 + 8;
      const x = this.x(step);
      const middle = Math.min(Math.max(x, MARGIN.left + half - 12), this.width - half - 2);
      this.cursorLine.setAttribute("x1", x);
      this.cursorLine.setAttribute("x2", x);
      this.cursorText.textContent = text;
      this.cursorText.setAttribute("x", middle);
      this.cursorBack.setAttribute("x", middle - half);
      this.cursorBack.setAttribute("width", half * 2);
    }
    this.drawValues(isSeen ? step : null);
  }

  /** The step under the crosshair, or the steps of its bin. */
  stepText(step) {
    const curve = this.guide();
    const at = curve ? curve.at(step) : -1;
    if (at < 0 || curve.points === 1) return `step ${whole(step)}`;
    const end = at + 1 < curve.steps.length ? curve.steps[at + 1] - 1 : curve.to;
    return `steps ${whole(curve.steps[at])}–${whole(end)}`;
  }

  /** The step nearest to the pixel `x` that the chart has a point for. */
  nearest(x) {
    const [low, high] = view.shown();
    const step = Math.min(Math.max(Math.round(this.x.inverse(x)), low), high);
    const curve = this.guide();
    if (!curve?.steps.length) return Math.round(step);
    const at = Math.max(curve.at(step), 0);
    const next = curve.steps[at + 1];
    const isNextNearer = next !== undefined && curve.points === 1 && next - step < step - curve.steps[at] && next <= high;
    return isNextNearer ? next : Math.max(curve.steps[at], Math.ceil(low));
  }

  /** Moves the crosshair by so many points. */
  move(count) {
    const curve = this.guide();
    if (!curve?.steps.length) return;
    const from = view.cursor ?? view.shown()[count > 0 ? 0 : 1];
    const at = curve.at(from);
    const last = curve.steps.length - 1;
    const to = Math.min(Math.max(view.cursor === null ? Math.max(at, 0) : at + count, 0), last);
    this.goTo(curve.steps[to]);
  }

  /** Moves the crosshair to `step`, and what is shown along with it. */
  goTo(step) {
    const [low, high] = view.shown();
    if (step < low) view.show(step, step + high - low);
    if (step > high) view.show(step - (high - low), step);
    view.point(step);
    this.speak();
  }

  press(event) {
    const moves = {
      ArrowLeft: () => this.move(event.shiftKey ? -10 : -1),
      ArrowRight: () => this.move(event.shiftKey ? 10 : 1),
      ArrowUp: () => this.choose(-1),
      ArrowDown: () => this.choose(1),
      Home: () => this.goTo(view.extent[0]),
      End: () => this.goTo(view.extent[1]),
      "+": () => view.zoom(0.5),
      "=": () => view.zoom(0.5),
      "-": () => view.zoom(2),
      0: () => view.show(...view.extent),
      Escape: () => {
        view.show(...view.extent);
        view.point(null);
      },
    };
    const move = !event.ctrlKey && !event.metaKey && !event.altKey && moves[event.key];
    if (!move || (event.key.startsWith("ArrowUp") || event.key === "ArrowDown") && !this.choose) return;
    event.preventDefault();
    move();
  }

  /** Lets a screen reader say the values under the crosshair, once the keys rest. */
  speak() {
    clearTimeout(Panel.speaking);
    Panel.speaking = setTimeout(() => {
      const texts = (item) => [...item.children].map((part) => part.textContent).filter(Boolean);
      const values = [...this.legend.querySelectorAll("li:not(.ramp-entry)")].map((item) => texts(item).join(" "));
      byId("spoken").textContent = `${this.stepText(view.cursor)}: ${values.join(", ")}`;
    }, 250);
  }

  place(event) {
    const box = this.plot.getBoundingClientRect();
    return Math.min(Math.max(event.clientX - box.left, MARGIN.left), this.width - MARGIN.right);
  }

  grab(event) {
    if (event.pointerType === "touch" || event.button !== 0) return;
    this.grabbedAt = this.place(event);
    this.plot.setPointerCapture(event.pointerId);
  }

  hover(event) {
    const x = this.place(event);
    view.point(this.nearest(x));
    this.point?.(event);
    if (this.grabbedAt === undefined) return;
    this.selection.style.display = "";
    this.selection.setAttribute("x", Math.min(x, this.grabbedAt));
    this.selection.setAttribute("width", Math.abs(x - this.grabbedAt));
  }

  release(event) {
    const [from, to] = [this.grabbedAt, this.place(event)];
    this.drop();
    if (from === undefined || Math.abs(to - from) < 6) return;
    view.show(this.x.inverse(Math.min(from, to)), this.x.inverse(Math.max(from, to)));
  }

  drop() {
    this.grabbedAt = undefined;
    this.selection.style.display = "none";
  }

  leave() {
    if (this.grabbedAt === undefined && !view.panels.some((panel) => panel.isFocused)) view.point(null);
  }

  fillNumbers() {
    if (!this.numbers.open) return;
    const cells = (curve) => {
      const known = curve.steps.map((_, index) => index).filter((index) => curve.mean[index] !== null);
      if (!known.length) return ["–", "–", "–", "–"];
      const least = known.reduce((best, index) => (curve.min[index] < curve.min[best] ? index : best));
      const most = known.reduce((best, index) => (curve.max[index] > curve.max[best] ? index : best));
      const last = known[known.length - 1];
      const at = (value, index) => `${number(value)} at ${whole(curve.steps[index])}`;
      return [number(curve.mean[last]), whole(curve.to), at(curve.min[least], least), at(curve.max[most], most)];
    };
    const row = ({ label, curve }) =>
      make("tr", {}, make("th", { scope: "row" }, label), ...cells(curve).map((text) => make("td", {}, text)));
    const head = ["", "last", "step", "least", "greatest"].map((text) => make("th", { scope: "col" }, text));
    const caption = make("caption", { class: "unseen" }, `Numbers of ${this.spec.title}`);
    const table = make("table", {}, caption, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...this.lines().map(row)));
    this.numbers.replaceChildren(this.numbers.firstChild, make("div", { class: "scroll" }, table));
  }
}
