// What the page says of the runs in words and single numbers.

const STATES = {
  complete: "Complete",
  running: "Running",
  interrupted: "Interrupted",
  failed: "Failed",
  stopped: "Stopped",
  lost: "Last known state",
};

/** The head of the page: name, state, and what the files lack. */
function showHead(runs) {
  const [run] = runs;
  const title = runs.length === 1 ? run.name : `${counted(runs.length, "run")} compared`;
  document.title = `${title} · Gristmill report`;
  byId("title").textContent = title;
  const state = byId("state");
  if (runs.length === 1) {
    const { first, last } = run.history;
    const when = !first ? run.folder : last ? `${clock(first)} to ${clock(last)} UTC` : `started ${clock(first)} UTC`;
    const done = run.state.word === "running" ? make("span", { class: "muted" }, run.state.detail) : "";
    state.replaceChildren(pill(run.state), done, make("span", { class: "muted" }, when));
  } else {
    state.replaceChildren();
  }
  byId("notes").replaceChildren(...runs.flatMap((one) => notes(one, runs.length > 1)));
}

function pill({ word }) {
  return make("span", { class: `pill ${word}` }, make("span", { class: "dot" }), STATES[word] ?? word);
}

/** What a reader must know to read the curves rightly. */
function notes(run, isNamed) {
  const isTold = run.state.detail !== "" && run.state.word !== "running";
  const texts = isTold ? [run.state.detail] : [];
  if (!run.history.first) texts.push(withoutEvents(run));
  for (const { name, unreadable, is_last_line_unfinished: isUnfinished } of run.gaps) {
    if (unreadable) texts.push(`${counted(unreadable, "line")} of ${name} could not be read and were left out`);
    if (isUnfinished) texts.push(`the last line of ${name} is incomplete and was left out`);
  }
  if (run.is_cut) texts.push("there are more curves in metrics.jsonl than a page can hold; some were left out");
  const text = (sentence) => (isNamed ? `${run.label}: ${sentence}` : sentence.charAt(0).toUpperCase() + sentence.slice(1));
  const isBad = (index) => index === 0 && run.state.word === "failed";
  return texts.map((sentence, index) => make("p", { class: `note ${isBad(index) ? "bad" : ""}` }, text(sentence)));
}

/** That a folder by an older version tells less. */
function withoutEvents({ checkpoint }) {
  const newest = checkpoint === null ? "" : `, of which the newest is of step ${whole(checkpoint)}`;
  return `no events.jsonl says what happened, as in a folder by an older version: the page shows what metrics.jsonl, config.yaml and the checkpoints hold${newest}`;
}

/** The numbers that matter most: tiles for a run, a table for several. */
function showSummary(runs) {
  byId("summary").replaceChildren(runs.length === 1 ? tiles(runs[0]) : comparison(runs));
}

function tiles(run) {
  const tile = (name, value, more) =>
    make("div", { class: "tile" }, make("dt", {}, name), make("dd", {}, make("span", { class: "big" }, value), make("span", { class: "muted" }, more)));
  const best = (key) => (run.least[key] ? `best ${number(run.least[key][0])} at step ${whole(run.least[key][1])}` : "");
  const list = [tile("Loss", number(run.curve("loss")?.last()), best("loss"))];
  const kept = run.best ? `best ${number(run.best.eval_loss)} at step ${whole(run.best.step)}, whose checkpoint is kept` : best("eval_loss");
  if (run.curve("eval_loss")) list.push(tile("Evaluation loss", number(run.curve("eval_loss").last()), kept));
  list.push(
    tile("Steps", run.history.total_steps ? `${whole(run.step)} of ${whole(run.history.total_steps)}` : whole(run.step), stepsNote(run)),
    tile("Tokens per second", number(median(run.curve("tokens_per_second"))), "median"),
    tile("Time in steps", duration(run.seconds), timeNote(run)),
  );
  return make("dl", { class: "tiles" }, ...list);
}

function stepsNote(run) {
  const skipped = run.updates === null || run.updates === undefined ? 0 : run.step - run.updates;
  const updates = skipped > 0 ? `${whole(run.updates)} updates, ${whole(skipped)} skipped` : "all updated the weights";
  return [epochNote(run), updates].filter(Boolean).join("; ");
}

/** The epoch of all that the run goes through. */
function epochNote({ step, history: { total_steps: total, steps_per_epoch: each } }) {
  if (!each || !total || !step) return "";
  return `epoch ${whole(Math.ceil(step / each))} of ${whole(Math.ceil(total / each))}`;
}

function timeNote(run) {
  const median_ = median(run.curve("step_ms"));
  if (median_ === null) return "";
  const left = run.state.word === "running" ? Math.max((run.history.total_steps ?? 0) - run.step, 0) : 0;
  return `${duration(median_ / 1e3)} a step${left ? `, about ${duration((left * median_) / 1e3)} left` : ""}`;
}

function comparison(runs) {
  const head = ["Run", "State", "Steps", "Loss", "Best loss", "Best evaluation", "Tokens/s", "Time in steps"];
  const best = (run, key) => (run.least[key] ? `${number(run.least[key][0])} at ${whole(run.least[key][1])}` : "–");
  const row = (run, index) => {
    const swatch = draw("svg", { class: `swatch c${index % 8}`, viewBox: "0 0 22 8", "aria-hidden": "true" });
    swatch.append(draw("path", { class: "line dash0", d: "M1 4H21" }));
    const cells = [
      whole(run.step),
      number(run.curve("loss")?.last()),
      best(run, "loss"),
      best(run, "eval_loss"),
      number(median(run.curve("tokens_per_second"))),
      duration(run.seconds),
    ];
    return make(
      "tr",
      {},
      make("th", { scope: "row" }, swatch, run.label),
      make("td", { "data-label": head[1] }, pill(run.state)),
      ...cells.map((text, column) => make("td", { "data-label": head[column + 2] }, text)),
    );
  };
  const header = make("thead", {}, make("tr", {}, ...head.map((text) => make("th", { scope: "col" }, text))));
  return make("div", { class: "scroll card" }, make("table", { class: "compare" }, header, make("tbody", {}, ...runs.map(row))));
}

/** What the events of each run tell, below the charts. */
function detailsOf(runs) {
  const named = (run, title) => (runs.length > 1 ? `${title}: ${run.label}` : title);
  return runs.flatMap((run) => {
    const { announced, samples, troubles, troubles_left_out: left_out } = run.history;
    const parts = [];
    if (announced.length) parts.push(section(named(run, "The run"), facts(run, announced)));
    if (samples.length) parts.push(section(named(run, "Samples"), ...samples.map(sample).reverse()));
    if (troubles.length) parts.push(section(named(run, "Warnings and errors"), troubleList(troubles, left_out)));
    return parts;
  });
}

function section(title, ...content) {
  const id = `part-${title.toLowerCase().replace(/[^a-z0-9]+/g, "-")}`;
  return make("section", { class: "part", "aria-labelledby": id }, make("h2", { id }, title), ...content);
}

/** The lines that a run announces, each `name: what`, as a list. */
function facts(run, announced) {
  const entry = (line) => {
    const [name, ...rest] = line.split(": ");
    const isNamed = rest.length > 0 && name.length < 24;
    return [make("dt", {}, isNamed ? name : "note"), make("dd", {}, isNamed ? rest.join(": ") : line)];
  };
  const starts = run.history.starts > 1 ? [`starts: ${run.history.starts}, the last of which is shown here`] : [];
  return make("dl", { class: "facts card" }, ...[`folder: ${run.folder}`, ...starts, ...announced].flatMap(entry));
}

function sample({ time, tokens, text }) {
  return make(
    "figure",
    { class: "sample card" },
    make("figcaption", {}, `A sample of ${counted(tokens, "token")}`, make("span", { class: "muted" }, `${clock(time)} UTC`)),
    make("pre", { tabindex: "0" }, text),
  );
}

function troubleList(troubles, leftOut) {
  const item = ({ time, kind, text }) =>
    make(
      "li",
      { class: kind === "warning" ? "" : "bad" },
      make("span", { class: "level" }, kind === "warning" ? "warning" : "error"),
      make("span", { class: "text" }, text),
      make("time", { class: "muted" }, clock(time)),
    );
  const rest = leftOut ? make("p", { class: "muted" }, `${whole(leftOut)} more are in events.jsonl.`) : null;
  return make("div", { class: "card" }, make("ul", { class: "troubles" }, ...troubles.map(item)), rest);
}
