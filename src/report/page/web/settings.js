// Settings: what differs between runs, and a table of all that can be searched.

/** More differing settings than these are folded away. */
const MOST_SHOWN = 16;

/** The settings in which runs differ, those first that all of them have. */
function showDifferences(runs) {
  const place = byId("differences");
  const read = runs.filter((run) => run.rows().length > 0);
  place.hidden = runs.length < 2;
  if (place.hidden) return;
  const ignored = ["run_name", "output_dir"];
  const values = read.map((run) => new Map(run.rows().map((row) => [row.path, row.value])));
  const keys = [...new Set(values.flatMap((map) => [...map.keys()]))].filter((key) => !ignored.includes(key));
  const differing = keys.filter((key) => new Set(values.map((map) => JSON.stringify(map.get(key)))).size > 1);
  const lacks = (key) => values.some((map) => !map.has(key));
  const sorted = [...differing.filter((key) => !lacks(key)), ...differing.filter(lacks)];
  const row = (key) =>
    make("tr", {}, make("th", { scope: "row" }, ...path(key)), ...values.map((map) => make("td", {}, setting(map.get(key)))));
  const head = ["Setting", ...read.map((run) => run.label)].map((text) => make("th", { scope: "col" }, text));
  const table = (keys) =>
    make("div", { class: "scroll card" }, make("table", { class: "settings" }, make("thead", {}, make("tr", {}, ...head.map((one) => one.cloneNode(true)))), make("tbody", {}, ...keys.map(row))));
  const rest = sorted.slice(MOST_SHOWN);
  const more = rest.length ? make("details", { class: "more" }, make("summary", {}, `${counted(rest.length, "more setting")}`), table(rest)) : "";
  const unread = runs.filter((run) => !read.includes(run)).map((run) => run.label);
  place.replaceChildren(
    make("h2", {}, "Settings that differ"),
    differing.length
      ? table(sorted.slice(0, MOST_SHOWN))
      : make("p", { class: "muted" }, read.length > 1 ? "None: the runs differ in their name and folder alone." : "Too few settings could be read to compare them."),
    more,
    unread.length ? make("p", { class: "muted" }, `Not compared, because their config.yaml could not be read: ${unread.join(", ")}.`) : "",
  );
}

/** The settings of each run. */
function settingsOf(runs) {
  return runs.map((run) => {
    const title = runs.length > 1 ? `Settings: ${run.label}` : "Settings";
    const { rows, text } = run.settings;
    return section(title, ...(rows ? settingsTable(rows, run.index) : settingsText(text)));
  });
}

function settingsText({ text, reason }) {
  const note = make("p", { class: "note" }, text ? `This version cannot read config.yaml, which is shown as it is. ${reason}` : reason);
  return text ? [note, make("pre", { class: "card file", tabindex: "0" }, text)] : [note];
}

function settingsTable(rows, index) {
  const changed = rows.filter((row) => row.differs).length;
  const line = (row) => {
    const name = make("th", { scope: "row" }, ...path(row.path), row.about ? make("span", { class: "about" }, ...prose(row.about)) : null);
    const mark = row.differs ? make("span", { class: "unseen" }, " (not a default)") : null;
    const cells = [make("td", { class: "given" }, setting(row.value), mark), make("td", {}, setting(row.default))];
    return make("tr", { class: row.differs ? "differs" : "" }, name, ...cells);
  };
  const lines = rows.map((row) => ({ element: line(row), row, text: `${row.path} ${setting(row.value)} ${row.about}`.toLowerCase() }));
  const body = make("tbody", {}, ...lines.map(({ element }) => element));
  const count = make("span", { class: "muted", role: "status" });
  const search = make("input", { type: "search", id: `search-${index}`, placeholder: "Search keys, values, meanings", "aria-label": "Search the settings" });
  const all = make("input", { type: "checkbox", id: `all-${index}` });
  const filter = () => {
    const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const { element, row, text } of lines) {
      const isShown = wanted.length ? wanted.every((word) => text.includes(word)) : all.checked || row.differs;
      element.hidden = !isShown;
      shown += isShown;
    }
    count.textContent = wanted.length || all.checked ? `${whole(shown)} of ${whole(rows.length)}` : `${whole(changed)} of ${whole(rows.length)} differ from their default, or have none`;
  };
  search.addEventListener("input", filter);
  all.addEventListener("change", filter);
  filter();
  const bar = make("div", { class: "filter" }, search, make("label", {}, all, "Show all"), count);
  const head = ["Setting", "Value", "Default"].map((text) => make("th", { scope: "col" }, text));
  return [bar, make("div", { class: "scroll card" }, make("table", { class: "settings" }, make("thead", {}, make("tr", {}, ...head)), body))];
}
