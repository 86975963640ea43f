use std::fs;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};

use super::*;
use crate::report::events::Line;
use crate::report::instrument::{Instrument, StepReport};
use crate::report::metrics::StepMetrics;
use crate::report::mindformers_log::{LogPlan, MindFormersLog};
use crate::report::pace::Work;
use crate::report::progress::Progress;

/// A separate log, so that concurrent tests do not get each other's events.
fn with_log(console: Console, test: impl FnOnce(&Log)) {
    let log = Log { console, ..Log::default() };
    tracing::subscriber::with_default(log.subscriber(), || test(&log));
}

fn hidden() -> Console {
    Console { bars: MultiProgress::with_draw_target(ProgressDrawTarget::hidden()) }
}

#[test]
fn the_file_has_what_was_logged_before_and_after_it_was_attached() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second, events] =
        ["log.txt", "other.txt", "events.jsonl"].map(|name| folder.path().join(name));
    with_log(hidden(), |log| {
        tracing::info!("adapter: a toaster");
        tracing::debug!("not for users");
        log.attach(&first, &events).unwrap();
        tracing::warn!("it is warm");
        log.attach(&second, &events).unwrap();
        tracing::info!("elsewhere");
    });
    let text = fs::read_to_string(&first).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].contains(" INFO adapter: a toaster") && lines[1].contains(" WARN it is warm"), "{text}");
    let year_first = |line: &&str| line.starts_with("20") && line.contains('T') && line.contains("Z ");
    assert!(lines.iter().all(year_first), "{text}");
    assert!(fs::read_to_string(&second).unwrap().ends_with(" INFO elsewhere\n"));
}

#[test]
fn events_have_warnings_and_errors_and_what_is_noted_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let [text, events] = ["log.txt", "events.jsonl"].map(|name| folder.path().join(name));
    // A line as a kill may leave it.
    fs::write(&events, "{\"time\":\"20").unwrap();
    let start = Event::Start {
        step: 0,
        total_steps: 9,
        steps_per_epoch: None,
        announced: vec!["adapter: a toaster".into()],
    };
    with_log(hidden(), |log| {
        tracing::warn!("an old \"key\"");
        log.note(start.clone());
        tracing::info!("not an event");
        log.attach(&text, &events).unwrap();
        tracing::error!("too\nhot");
        tracing::error!(target: FILE_TARGET, "the end");
        log.note(Event::Failed { text: "the end".into() });
    });
    let written = fs::read_to_string(&events).unwrap();
    let (cut, rest) = written.split_once('\n').unwrap();
    assert_eq!(cut, "{\"time\":\"20");
    let read = |line: &str| serde_json::from_str::<Line>(line).unwrap().event;
    let expected = [
        Event::Warning { text: "an old \"key\"".into() },
        start,
        Event::Error { text: "too\nhot".into() },
        Event::Failed { text: "the end".into() },
    ];
    assert_eq!(rest.lines().map(read).collect::<Vec<_>>(), expected);
    assert_eq!(fs::read_to_string(&text).unwrap().matches("the end").count(), 1);
}

#[test]
fn a_log_without_a_file_forgets_rather_than_grows() {
    let mut log = FileLog::default();
    for _ in 0..WAITING_BYTES {
        log.write_all(b"four").unwrap();
    }
    let FileState::Waiting(kept) = &*log.lock() else { panic!("nothing was attached") };
    assert_eq!(kept.len(), WAITING_BYTES);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_ends_a_file_and_not_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let term = Screen::default();
    with_log(terminal(&term), |log| {
        let full = Path::new("/dev/full");
        log.attach(full, &folder.path().join("events.jsonl")).unwrap();
        tracing::info!("one");
        tracing::info!("two");
        log.attach(&folder.path().join("log.txt"), full).unwrap();
        tracing::warn!("three");
        log.note(Event::Complete);
    });
    let screen = term.contents();
    assert_eq!(screen.matches("disk full").count(), 2, "one line for each file: {screen}");
    assert!(["one", "two", "three"].iter().all(|line| screen.contains(line)), "{screen}");
}

#[test]
fn a_missing_folder_is_one_line() {
    let log = FileLog::default();
    let line = log.attach(Path::new("no/such/folder/log.txt"), &hidden()).unwrap_err().to_string();
    assert_eq!(line, "no/such/folder/log.txt: cannot open for writing: no such file or folder");
}

/// A terminal as a grid of characters with 120 columns, just enough for a progress bar; long lines wrap.
#[derive(Debug, Clone, Default)]
struct Screen {
    grid: Arc<Mutex<Grid>>,
}

#[derive(Debug, Default)]
struct Grid {
    rows: Vec<Vec<char>>,
    row: usize,
    column: usize,
}

const WIDTH: usize = 120;

impl Grid {
    fn put(&mut self, character: char) {
        match character {
            '\r' => self.column = 0,
            '\n' => (self.row, self.column) = (self.row + 1, 0),
            _ => {
                if self.column == WIDTH {
                    (self.row, self.column) = (self.row + 1, 0);
                }
                self.rows.resize(self.rows.len().max(self.row + 1), vec![' '; WIDTH]);
                self.rows[self.row][self.column] = character;
                self.column += 1;
            }
        }
    }
}

impl Screen {
    fn contents(&self) -> String {
        let rows = &self.grid.lock().unwrap().rows;
        let text: Vec<String> =
            rows.iter().map(|row| row.iter().collect::<String>().trim_end().to_owned()).collect();
        text.join("\n").trim_end().to_owned()
    }

    fn change(&self, change: impl FnOnce(&mut Grid)) -> io::Result<()> {
        change(&mut self.grid.lock().unwrap());
        Ok(())
    }
}

impl TermLike for Screen {
    fn width(&self) -> u16 {
        WIDTH as u16
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.change(|grid| grid.row -= n)
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.change(|grid| grid.row += n)
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.change(|grid| grid.column = (grid.column + n).min(WIDTH))
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.change(|grid| grid.column = grid.column.saturating_sub(n))
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.write_str(text)?;
        self.write_str("\n")
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.change(|grid| text.chars().for_each(|character| grid.put(character)))
    }

    fn clear_line(&self) -> io::Result<()> {
        self.change(|grid| {
            grid.column = 0;
            let row = grid.row;
            grid.rows.get_mut(row).into_iter().for_each(|row| row.fill(' '));
        })
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

fn terminal(term: &Screen) -> Console {
    let target = ProgressDrawTarget::term_like(Box::new(term.clone()) as Box<dyn TermLike>);
    Console { bars: MultiProgress::with_draw_target(target) }
}

#[test]
fn messages_stand_above_the_bar_and_step_lines_only_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.txt");
    let term = Screen::default();
    with_log(terminal(&term), |log| {
        log.attach(&path, &folder.path().join("events.jsonl")).unwrap();
        assert!(log.is_interactive());
        let mut progress = Progress::new(0, 4, Work::default(), log);
        let plan = LogPlan {
            total_steps: 4,
            epochs: 1,
            steps_per_epoch: 4,
            samples_per_rank: 8.0,
            ..LogPlan::default()
        };
        let mut lines = MindFormersLog::new(plan);
        for step in [1, 2] {
            let eval_loss = (step == 1).then_some(4.25);
            let metrics =
                StepMetrics { step, loss: 3.5, eval_loss, step_ms: 500.0, ..StepMetrics::default() };
            progress.show(&metrics);
            lines.step(&StepReport { metrics: &metrics, loads: None, watched: &[] }).unwrap();
        }
        tracing::info!("checkpoint written");
        tracing::warn!("the disk is nearly full");
        progress.finish();
    });
    let screen = term.contents();
    let lines: Vec<&str> = screen.lines().collect();
    assert!(
        lines[0].starts_with("step 1/4  loss 3.500") && lines[0].ends_with("  eval_loss 4.250"),
        "{screen}"
    );
    assert_eq!(lines[1..3], ["checkpoint written", "warning: the disk is nearly full"], "{screen}");
    assert_eq!(lines.len(), 4, "one bar, not torn: {screen}");
    assert!(lines[3].contains("2/4") && lines[3].contains("loss 3.5000"), "{screen}");
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(" INFO { Epoch:[  1/  1], step:[    2/    4], loss: 3.500000, "), "{text}");
    assert!(
        text.contains(" 50.0% |█████████████████████████ ") && text.contains(" 16.00000 samples/s/p "),
        "{text}"
    );
    assert!(text.contains(" INFO checkpoint written"), "{text}");
}

#[test]
fn messages_stand_above_a_bar_of_other_work_which_leaves_nothing() {
    let term = Screen::default();
    with_log(terminal(&term), |log| {
        let bar = ProgressBar::with_draw_target(Some(10), ProgressDrawTarget::hidden());
        let bar = log.add_bar(bar.with_style(ProgressStyle::with_template("{pos} of {len}").unwrap()));
        bar.set_position(4);
        bar.tick();
        tracing::info!("tokens are kept");
        assert_eq!(term.contents().trim_end(), "tokens are kept\n4 of 10");
        bar.finish_and_clear();
        tracing::info!("the run begins");
    });
    assert_eq!(term.contents().trim_end(), "tokens are kept\nthe run begins");
}
