// Which charts a page has: known keys in an order that a reader expects, then whatever else the runs have measured.

/** More lines than these become a heat map. */
const MOST_LINES = 6;

const DOWN = "M1 1H9L5 8Z";
const DIAMOND = "M5 0L9 4L5 8L1 4Z";

/** The known charts. `keys` are pairs of a key and the name of its line; `members` names the items of a list. */
const CHARTS = [
  { group: "Loss", title: "Loss", unit: "nats per token", wide: true, smooth: true, log: "off", keys: [["loss", "training"], ["eval_loss", "evaluation"]] },
  { group: "Loss", title: "Multi-token prediction", unit: "nats per token", smooth: true, log: "off", keys: [["mtp_loss", "multi-token"], ["lm_loss", "language model"]] },
  { group: "Loss", title: "Balance of experts", unit: "losses, factors included", smooth: true, log: "on", keys: [["load_balancing_loss", "load"], ["z_loss", "router z"]] },
  { group: "Loss", title: "Perplexity", unit: "evaluation", log: "off", keys: [["eval_perplexity", "perplexity"]] },
  { group: "Loss", title: "Rewards", unit: "mean over pairs", smooth: true, log: "off", keys: [["rewards_chosen", "chosen"], ["rewards_rejected", "rejected"], ["rewards_margin", "margin"], ["eval_rewards_margin", "margin, evaluation"]] },
  { group: "Loss", title: "Accuracy of rewards", unit: "share of pairs", smooth: true, log: "off", keys: [["rewards_accuracy", "training"], ["eval_rewards_accuracy", "evaluation"]] },
  { group: "Loss", title: "Log-probabilities", unit: "nats, mean over answers", smooth: true, log: "off", keys: [["logps_chosen", "chosen"], ["logps_rejected", "rejected"]] },
  { group: "Loss", title: "Accuracy", unit: "evaluation", keys: [["eval_accuracy", "accuracy"]] },
  { group: "Optimisation", title: "Learning rate", log: "off", keys: [["lr", "rate"]] },
  { group: "Optimisation", title: "Gradient norm", unit: "before clipping", smooth: true, log: "off", keys: [["global_norm", "L2 norm"]], markKeys: ["is_skip"] },
  { group: "Optimisation", title: "Loss scale", log: "on", keys: [["loss_scale", "scale"]], markKeys: ["overflow", "is_skip"] },
  { group: "Optimisation", title: "Window of the loss scale", unit: "steps", log: "off", keys: [["loss_scale_window", "window"]] },
  { group: "Optimisation", title: "Changes of the loss scale", unit: "modulo 4", keys: [["loss_scale_increases", "increases"], ["loss_scale_decreases", "decreases"]] },
  { group: "Optimisation", title: "Gradient by parameter", unit: "sum of squares", log: "on", keys: [["local_norm", "parameter"]] },
  { group: "Speed and memory", title: "Throughput", unit: "tokens per second", smooth: true, keys: [["tokens_per_second", "tokens/s"]] },
  { group: "Speed and memory", title: "Step time", unit: "ms", smooth: true, log: "off", keys: [["step_ms", "step"]] },
  { group: "Speed and memory", title: "Step time by rank", unit: "ms", keys: [["rank_step_ms", "rank"]] },
  { group: "Speed and memory", title: "Memory", unit: "MiB", keys: [["device_memory_mib", "device"], ["host_memory_mib", "host"]] },
  { group: "Speed and memory", title: "Memory by rank", unit: "MiB", keys: [["rank_memory_mib", "rank"]] },
  { group: "Experts", title: "Evenness of the load", unit: "entropy by layer, 1: all equally busy", layers: true, keys: [["expert_load_entropy", "layer"]] },
  { group: "Experts", title: "Busiest expert", unit: "over the mean, by layer", layers: true, log: "off", keys: [["expert_load_max_over_mean", "layer"]] },
  { group: "Experts", title: "Dropped choices", unit: "share, by layer", layers: true, keys: [["drop_rate", "layer"]] },
  { group: "Experts", title: "Hot experts", unit: "number of the expert, by layer and place", layers: true, keys: [["hot_experts", "layer"]] },
  { group: "Experts", title: "Dropped choices, estimated", unit: "share, by layer", layers: true, isOptional: true, keys: [["drop_rate_estimate", "layer"]] },
];

const MARKS = {
  overflow: { label: "overflow, update skipped", color: 1, shape: DOWN },
  is_skip: { label: "update skipped for its norm", color: 3, shape: DIAMOND },
};

/** What is said once and is no curve. */
const FACTS = ["loss_scale_windows"];

/** The specifications of all charts for `runs`. */
function chartsOf(runs) {
  const known = new Set([...FACTS, ...CHARTS.flatMap(({ keys }) => keys.map(([key]) => key))]);
  const others = [...new Set(runs.flatMap((run) => [...run.families.keys()]))].filter((key) => !known.has(key));
  const free = others.map((key) => {
    const [map, tag] = key.split("/");
    const title = words(tag ?? map);
    return { group: map === "monitor" && tag ? "Monitors" : "Other values", title, log: "off", keys: [[key, ""]] };
  });
  return [...CHARTS, ...free].map((chart) => specification(chart, runs)).filter((spec) => spec.lines.length > 0);
}

function words(key) {
  const text = key.replaceAll("_", " ");
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** The lines of a chart: a colour for each line of a single run; of several runs a colour each, and a dash for each kind. */
function specification(chart, runs) {
  const lines = [];
  const present = chart.keys.filter(([key]) => runs.some((run) => run.families.has(key)));
  runs.forEach((run, index) => {
    present.forEach(([key, kind], order) => {
      const curves = run.families.get(key) ?? [];
      if (!curves.length || (chart.isOptional && curves.every(({ max }) => max.every((value) => !value)))) return;
      if (runs.length === 1) lines.push(...ofRun(run, chart, curves, kind, order));
      else lines.push(ofMany(run, index, chart, curves, kind, order));
    });
  });
  const marks = (chart.markKeys ?? []).flatMap((key) => marksOf(key, runs));
  const isHeat = runs.length === 1 && lines.length > MOST_LINES;
  return { ...chart, lines, marks, isHeat };
}

function ofRun(run, chart, curves, kind, order) {
  if (curves.length === 1 && curves[0].name === "") {
    return [{ run, curve: curves[0], label: kind || "value", short: kind, color: order % 8, dash: order % 4 }];
  }
  const first = chart.layers ? Number(run.valueOf("moe_config.first_k_dense_replace") ?? 0) : 0;
  return curves.map((curve, index) => {
    const [item, inner] = curve.name.split(".");
    const isItem = /^\d+(\.\d+)?$/.test(curve.name);
    const place = isItem ? [Number(item) + first, ...(inner ? [Number(inner) + 1] : [])].join(".") : curve.name;
    const name = `${kind} ${place}`.trim();
    return { run, curve, label: name || chart.title, short: isItem ? place : String(index + 1), color: index % 8, dash: 0 };
  });
}

function ofMany(run, index, chart, curves, kind, order) {
  const isOne = curves.length === 1;
  const curve = isOne ? curves[0] : together(curves);
  const what = chart.keys.length > 1 ? `, ${kind}` : isOne ? "" : ", mean";
  return { run, curve, label: `${run.label}${what}`, short: run.label, color: index % 8, dash: order % 4, hasBand: !isOne };
}

/** The mean of curves over the same steps, and their extremes. */
function together(curves) {
  const [first] = curves;
  const fold = (index, list, pick) => {
    const values = curves.map((curve) => curve[list][index]).filter((value) => value !== null && value !== undefined);
    return values.length ? pick(values) : null;
  };
  const each = (list, pick) => first.steps.map((_, index) => fold(index, list, pick));
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const { key, points, to, steps } = first;
  const [low, high] = [(values) => Math.min(...values), (values) => Math.max(...values)];
  return new Curve({ key, name: "", points, to, mean: each("mean", mean), min: each("min", low), max: each("max", high) }, steps);
}

function marksOf(key, runs) {
  return runs.flatMap((run, index) => {
    const found = run.marksOf(key);
    if (!found?.steps.length) return [];
    const { label, color, shape } = MARKS[key];
    const one = { label, color, shape };
    return [{ ...one, ...found, ...(runs.length > 1 && { label: `${run.label}: ${label}`, color: index % 8 }) }];
  });
}

/** Lets the last chart of a group take the whole row where nothing would stand beside it. */
function markAlone(specs) {
  specs.forEach((spec, index) => {
    const narrow = specs.filter(({ group, wide }) => group === spec.group && !wide);
    spec.isAlone = narrow.length % 2 === 1 && specs.indexOf(narrow[narrow.length - 1]) === index;
  });
}

/** Builds all panels below `place`. */
function buildCharts(place, runs) {
  const all = chartsOf(runs);
  const specs = all.filter(moves);
  markAlone(specs);
  view.panels = specs.map((spec, index) => (spec.isHeat ? new HeatMap(spec, index) : new LineChart(spec, index)));
  const groups = [...new Set(specs.map(({ group }) => group))];
  const section = (group) => {
    const panels = view.panels.filter(({ spec }) => spec.group === group);
    const id = `group-${groups.indexOf(group)}`;
    return make(
      "section",
      { class: "group", "aria-labelledby": id },
      make("h2", { id }, group),
      make("div", { class: "grid" }, ...panels.map(({ element }) => element)),
    );
  };
  const nothing = make("p", { class: "muted nothing" }, "There are no curves before the first step.");
  place.replaceChildren(...(groups.length ? groups.map(section) : [nothing]), ...still(all.filter((spec) => !moves(spec))));
}

/** Whether a chart has something to show: a loss, a mark, or a line that is not the same all along. */
function moves({ group, lines, marks }) {
  const isConstant = ({ curve }) => curve.steps.length > 1 && new Set([...curve.min, ...curve.max]).size === 1;
  return group === "Loss" || marks.length > 0 || !lines.every(isConstant);
}

/** What never changed, in words, folded away. */
function still(specs) {
  if (!specs.length) return [];
  const value = ({ label, curve }) => (label === "value" ? "" : `${label} `) + number(curve.last());
  const entry = ({ title, lines }) => [make("dt", {}, title), make("dd", {}, lines.map(value).join(", "))];
  const list = make("dl", { class: "facts card" }, ...specs.flatMap(entry));
  return [make("details", { class: "more" }, make("summary", {}, `${counted(specs.length, "value")} that did not change`), list)];
}
