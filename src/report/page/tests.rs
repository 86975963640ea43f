//! Pages of run folders in the states in which they may be found.

use super::{Known, RunFiles, live_data, page};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// The events of a complete run, with texts that look like markup.
const EVENTS: &str = concat!(
    r#"{"time":"2026-11-22T18:30:29Z</script>","kind":"start","step":0,"total_steps":2,"announced":["adapter: </script><b>"]}"#,
    "\n",
    r#"{"time":"2026-11-22T18:30:30Z","kind":"warning","text":"<img src=x onerror=alert(1)>"}"#,
    "\n",
    r#"{"time":"2026-11-22T18:30:31Z","kind":"sample","tokens":20,"text":"</script><script>alert(1)</script>\n<!-- \u2028 &"}"#,
    "\n",
    r#"{"time":"2026-11-22T18:30:32Z","kind":"complete"}"#,
    "\n",
);

fn data(folder: &Path) -> Value {
    let text = page(&[RunFiles::open(folder).unwrap()], Some(false));
    let (_, rest) = text.split_once("<script type=\"application/json\" id=\"data\">").expect("the data");
    serde_json::from_str(rest.split_once("</script>").expect("its end").0).expect("JSON")
}

#[test]
fn any_file_may_be_missing() {
    let folder = tempfile::tempdir().unwrap();
    let run = &data(folder.path())["runs"][0];
    assert_eq!((&run["step"], &run["state"]["word"]), (&Value::Null, &Value::from("stopped")));
    assert_eq!(run["settings"]["text"]["reason"], "config.yaml is missing");
    fs::write(folder.path().join("metrics.jsonl"), "{\"step\":1,\"loss\":null}\n{\"step\":2,\"lo").unwrap();
    let run = &data(folder.path())["runs"][0];
    assert_eq!(run["step"], 1);
    let gaps = serde_json::json!({"name": "metrics.jsonl", "unreadable": 0, "is_last_line_unfinished": true});
    assert_eq!(run["gaps"][0], gaps);
    assert_eq!(run["curves"][0]["mean"], Value::from(vec![Value::Null]), "a gap is no zero");
    fs::write(folder.path().join("events.jsonl"), EVENTS).unwrap();
    let run = &data(folder.path())["runs"][0];
    assert_eq!(run["state"]["word"], "complete");
    assert_eq!(run["history"]["last"], "2026-11-22T18:30:32Z");
    let error = RunFiles::open(&folder.path().join("nowhere")).unwrap_err().to_string();
    assert!(
        error.ends_with("nowhere: no such folder; name the folder of a run, such as output/tiny"),
        "{error}"
    );
}

#[test]
fn no_text_of_a_run_can_leave_the_data() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("a<script>alert(2)<");
    fs::create_dir(&folder).unwrap();
    fs::write(
        folder.join("metrics.jsonl"),
        "{\"step\":1,\"loss\":1.0,\"</script><b>\":2.0,\"m\":{\"<i>/<u>\":1}}\n",
    )
    .unwrap();
    fs::write(folder.join("events.jsonl"), EVENTS).unwrap();
    fs::write(folder.join("config.yaml"), "</script>: <script>\n").unwrap();
    let text = page(&[RunFiles::open(&folder).unwrap()], Some(false));
    let (_, rest) = text.split_once("id=\"data\">").unwrap();
    let (json, after) = rest.split_once("</script>").unwrap();
    assert!(!json.contains('<') && after.trim_start().starts_with("<script nonce=\""), "{json}");
    assert_eq!(text.matches("</script>").count(), 2, "the data and the script");
    let run = &data(&folder)["runs"][0];
    let history = &run["history"];
    assert_eq!(history["samples"][0]["text"], "</script><script>alert(1)</script>\n<!-- \u{2028} &");
    assert_eq!(history["troubles"][0]["text"], "<img src=x onerror=alert(1)>");
    assert_eq!(history["announced"][0], "adapter: </script><b>");
    assert_eq!(history["first"], "2026-11-22T18:30:29Z</script>");
    assert_eq!(run["name"], "a<script>alert(2)<");
    assert_eq!(run["curves"][1]["key"], "</script><b>");
    assert_eq!(run["settings"]["text"]["text"], "</script>: <script>\n");
}

#[test]
fn damaged_events_are_left_out_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let (cut, odd) = (&EVENTS[..EVENTS.len() - 7], "{\"kind\":\"start\"}\nnot a line\n\n");
    fs::write(folder.path().join("events.jsonl"), odd.to_string() + cut).unwrap();
    let run = &data(folder.path())["runs"][0];
    let gaps = serde_json::json!({"name": "events.jsonl", "unreadable": 2, "is_last_line_unfinished": true});
    assert_eq!((&run["gaps"][1], &run["state"]["word"]), (&gaps, &Value::from("stopped")));
    assert_eq!(run["history"]["starts"], 1);
    let live: Value =
        serde_json::from_str(&live_data(&RunFiles::open(folder.path()).unwrap(), None, true)).unwrap();
    assert_eq!(live["runs"][0]["gaps"][1]["is_last_line_unfinished"], false, "it is under way");
}

/// A folder may be copied without `events.jsonl`.
#[test]
fn a_folder_without_events_shows_what_else_it_holds() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let mill = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/runs/mill").join(name);
    for name in ["metrics.jsonl", "config.yaml", "log.txt"] {
        fs::copy(mill(name), file(name)).unwrap();
    }
    let run = &data(folder.path())["runs"][0];
    // Its settings end it after step 12.
    assert_eq!((&run["step"], &run["state"]["word"]), (&Value::from(12), &Value::from("complete")));
    assert_eq!((&run["checkpoint"], &run["history"]["first"]), (&Value::Null, &Value::Null));
    assert!(run["curves"].as_array().unwrap().len() > 8 && run["settings"]["rows"].is_array());
    for step in ["step_0000010", "step_0000011", "step_0000012.tmp"] {
        fs::create_dir_all(file("checkpoint").join(step)).unwrap();
    }
    let metrics = fs::read_to_string(file("metrics.jsonl")).unwrap();
    fs::write(file("metrics.jsonl"), &metrics[..metrics.rfind("{\"step\":12").unwrap()]).unwrap();
    let run = &data(folder.path())["runs"][0];
    assert_eq!((&run["step"], &run["state"]["word"]), (&Value::from(11), &Value::from("stopped")));
    assert_eq!(run["checkpoint"], 11);
    #[cfg(unix)]
    {
        fs::rename(file("checkpoint"), file("elsewhere")).unwrap();
        std::os::unix::fs::symlink(file("elsewhere"), file("checkpoint")).unwrap();
        assert_eq!(data(folder.path())["runs"][0]["older"]["checkpoint"], Value::Null, "a link");
    }
}

#[test]
fn a_page_allows_nothing_but_itself() {
    let folder = tempfile::tempdir().unwrap();
    let text = page(&[RunFiles::open(folder.path()).unwrap()], None);
    let policy = text.lines().find(|line| line.contains("Content-Security-Policy")).expect("a policy");
    for rule in ["default-src 'none'", "connect-src 'none'", "script-src 'nonce-", "base-uri 'none'"] {
        assert!(policy.contains(rule), "{rule}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    let links = text.matches("http").filter(|_| true).count();
    // The namespace of drawings, twice, and the attribute `http-equiv`.
    assert_eq!(links, 3, "something else may be loaded");
    assert!(!text.contains("{{"), "a place of page.html is left open");
    let other = page(&[RunFiles::open(folder.path()).unwrap()], None);
    let nonce = |text: &str| text.split_once("nonce-").unwrap().1[..32].to_string();
    assert_ne!(nonce(&text), nonce(&other));
}

#[test]
fn settings_stand_beside_their_defaults() {
    let folder = tempfile::tempdir().unwrap();
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/tiny.yaml");
    fs::copy(tiny, folder.path().join("config.yaml")).unwrap();
    let run = &data(folder.path())["runs"][0];
    let rows = run["settings"]["rows"].as_array().expect("rows");
    let row = rows.iter().find(|row| row["path"] == "eval_batches").expect("a row");
    assert_eq!((&row["value"], &row["differs"]), (&Value::from(16), &Value::from(row["default"] != 16)));
}

#[test]
fn what_is_new_goes_on_where_a_reader_stands() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics.jsonl");
    let line = |step: u64| format!("{{\"step\":{step},\"loss\":{step}.5}}\n");
    fs::write(&path, (1..=5000).map(line).collect::<String>()).unwrap();
    let mut files = RunFiles::open(folder.path()).unwrap();
    let news = |files: &RunFiles, step| {
        let known = Known { step, generation: files.generation() };
        let data: Value = serde_json::from_str(&live_data(files, Some(known), true)).unwrap();
        data["runs"][0].clone()
    };
    fs::write(&path, (1..=5003).map(line).collect::<String>()).unwrap();
    files.refresh().unwrap();
    let run = news(&files, 5000);
    // Bins of four: the last one is continued, and its mean is the mean of all its points.
    assert_eq!(run["axes"][0], Value::from(vec![5001]));
    assert_eq!(run["curves"][0]["mean"], Value::from(vec![5002.5]));
    // A run that begins anew makes a reader begin anew too.
    let before = files.generation();
    fs::write(&path, line(1)).unwrap();
    files.refresh().unwrap();
    assert!(files.generation() > before && files.step() == Some(1));
    let known = Known { step: 5003, generation: before };
    let data: Value = serde_json::from_str(&live_data(&files, Some(known), true)).unwrap();
    assert!(data["runs"][0].get("after").is_none(), "everything is sent");
}
