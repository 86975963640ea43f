// The page: builds everything from the data, and follows a run that goes on.

/** Longest pause between questions to a server that does not answer, in milliseconds. */
const LONGEST_PAUSE = 30000;

const errors = [];

function noteError(text) {
  errors.push(text);
  document.documentElement.dataset.errors = errors.join("; ");
}

window.addEventListener("error", (event) => noteError(`${event.message} at line ${event.lineno}`));
document.addEventListener("securitypolicyviolation", (event) => noteError(`${event.violatedDirective}: ${event.blockedURI}`));
window.addEventListener("unhandledrejection", (event) => noteError(String(event.reason)));

const data = JSON.parse(byId("data").textContent);

function start() {
  view.runs = data.runs.map((run, index) => new Run(run, index));
  name(view.runs);
  const longest = Math.max(...view.runs.map((run) => run.step ?? 0));
  view.smoothing = longest < 50 ? 0 : 0.6;
  prepareToolbar();
  build();
  new ResizeObserver(() => view.draw()).observe(byId("charts"));
  const themes = window.matchMedia("(prefers-color-scheme: dark)");
  themes.addEventListener("change", () => view.draw());
  if (data.poll_ms) follow(view.runs[0], data.poll_ms);
}

/** Gives each run a label: its name, and the folder where names are equal. */
function name(runs) {
  const isShared = (run) => runs.some((other) => other !== run && other.name === run.name);
  runs.forEach((run) => (run.label = isShared(run) ? run.folder : run.name));
}

/** Builds the whole page anew. */
function build() {
  measureExtent();
  buildCharts(byId("charts"), view.runs);
  showDifferences(view.runs);
  showTexts();
  view.draw();
  view.whenRangeChanges();
  document.documentElement.dataset.charts = document.querySelectorAll("#charts .plot > svg").length;
}

function showTexts() {
  showHead(view.runs);
  showSummary(view.runs);
  byId("details").replaceChildren(...detailsOf(view.runs));
  byId("settings").replaceChildren(...settingsOf(view.runs));
  showFooter();
}

function measureExtent() {
  const first = Math.min(...view.runs.map((run) => run.firstStep));
  const last = Math.max(...view.runs.map((run) => run.step ?? 0));
  view.extent = Number.isFinite(first) ? [first, Math.max(last, first + 1)] : [0, 1];
}

function prepareToolbar() {
  const slider = byId("smoothing");
  slider.value = view.smoothing;
  const show = () => {
    view.smoothing = Number(slider.value);
    byId("smoothing-value").textContent = view.smoothing ? view.smoothing.toFixed(2) : "off";
  };
  slider.addEventListener("input", () => {
    show();
    view.draw();
  });
  show();
  byId("zoom-in").addEventListener("click", () => view.zoom(0.5));
  byId("zoom-out").addEventListener("click", () => view.zoom(2));
  byId("zoom-reset").addEventListener("click", () => view.show(...view.extent));
  view.whenRangeChanges = () => {
    const [low, high] = view.shown().map(Math.round);
    byId("range").textContent = view.panels.length ? `Steps ${whole(low)}–${whole(high)}` : "";
    for (const id of ["zoom-out", "zoom-reset"]) byId(id).disabled = view.range === null;
  };
}

function showFooter() {
  const points = Math.max(1, ...view.runs.flatMap((run) => run.curve("loss")?.points ?? 1));
  const bins =
    points > 1
      ? ` A curve has at most ${whole(data.most_bins)} points here: of the loss, one stands for up to ${whole(points)} steps, with their mean as the line and their least and greatest value as the band.`
      : " Curves show every step.";
  const written = `Written ${clock(data.written * 1000)} UTC by gristmill ${data.version}.`;
  byId("footer").textContent = written + bins + " Gaps are values that are not finite.";
}

/** Asks for what is new until the run has ended; where the server is gone before that, ever more rarely. */
function follow(run, pause) {
  const status = make("span", { class: "live" });
  byId("eyebrow").append(status);
  let wait = pause;
  let history = JSON.stringify(run.history);
  const show = (text, state) => {
    status.textContent = text;
    for (const name of ["lost", "ended"]) byId("eyebrow").classList.toggle(name, name === state);
  };
  const ask = async () => {
    if (!document.hidden) {
      try {
        const answer = await fetch(`data?after=${run.step ?? 0}&generation=${run.generation}`, { cache: "no-store" });
        if (!answer.ok) throw new Error(`status ${answer.status}`);
        wait = pause;
        show("live", "live");
        const [news] = (await answer.json()).runs;
        history = update(run, news, history);
        if (run.state.word !== "running") return show("ended", "ended");
      } catch {
        wait = Math.min(wait * 2, LONGEST_PAUSE);
        show("the run has ended or cannot be reached; this page shows its last state", "lost");
        run.state = { word: "lost", detail: "" };
        showHead(view.runs);
      }
    }
    document.documentElement.dataset.polls = Number(document.documentElement.dataset.polls ?? 0) + 1;
    setTimeout(ask, wait);
  };
  if (run.state.word !== "running") return show("ended", "ended");
  show("live", "live");
  setTimeout(ask, pause);
}

/** Takes in what is new. Texts are built anew only if there are more events, so that what is selected stays so. */
function update(run, news, history) {
  const families = [...run.families.values()].flat().length;
  const isWhole = news.after === undefined;
  run.take(news);
  const isMore = [...run.families.values()].flat().length !== families;
  const isNew = isWhole || isMore || chartsOf(view.runs).filter(moves).length !== view.panels.length;
  measureExtent();
  if (isNew) {
    build();
  } else {
    showHead(view.runs);
    showSummary(view.runs);
    view.panels.forEach((panel) => panel.renew?.());
    view.draw();
    view.whenRangeChanges();
  }
  const now = JSON.stringify(run.history);
  if (now !== history && !isNew) byId("details").replaceChildren(...detailsOf(view.runs));
  return now;
}

start();
