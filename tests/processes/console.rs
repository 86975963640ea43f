//! What a run prints where stderr is no terminal.
//!
//! Lines of one form, and those of MindFormers in `log.txt` alone. A complete run saves its end, and says what it
//! leaves and where it goes on.

use crate::launch::{gristmill, run};
use crate::place::Place;

/// The lines of 40 steps under the callbacks given, on stderr and in `log.txt`.
fn lines(callbacks: &str) -> (Vec<String>, String) {
    let place = Place::new();
    let callbacks = format!("--callbacks=[{callbacks}]");
    let evaluated =
        ["--stop_step=40", "--train_dataset.eval_fraction=0.3", "--do_eval=True", "--eval_step_interval=15"];
    let mut arguments = vec!["train".to_owned()];
    arguments.extend(place.arguments(&evaluated));
    arguments.extend([callbacks, "--metric=[{type: PerplexityMetric}, {type: Accuracy}]".into()]);
    let ended = run(&mut gristmill(arguments)).succeeded();
    let log = std::fs::read_to_string(place.folder().join("log.txt")).expect("a log");
    (ended.stderr.lines().map(str::to_owned).collect(), log)
}

/// The number of MindFormers' lines in `text`.
fn of_original(text: &str) -> usize {
    text.lines().filter(|line| line.contains("{ Epoch:[") && line.contains("per_step_time: ")).count()
}

/// What a run leaves, where it goes on, and that nothing is left of it.
#[test]
fn a_run_says_what_it_leaves_and_where_it_goes_on() {
    let place = Place::new();
    let train = |extra: &[&str]| {
        let mut arguments = vec!["train".to_owned()];
        arguments.extend(
            place.arguments(extra).into_iter().filter(|argument| !argument.starts_with("--callbacks")),
        );
        run(&mut gristmill(arguments)).succeeded().stderr
    };
    let folder = place.folder().display().to_string();
    let ends = |printed: &str, step: u32| {
        for line in [
            format!("checkpoint: {folder}/checkpoint/step_{step:07}"),
            format!("report: {folder}/report.html"),
            format!("next: {} generate {folder} --prompt \"...\"", env!("CARGO_BIN_EXE_gristmill")),
        ] {
            assert_eq!(
                printed.lines().filter(|printed| **printed == line).count(),
                1,
                "{line} in\n{printed}"
            );
        }
    };
    // No callback asks for a checkpoint.
    let first = train(&[]);
    ends(&first, 4);
    assert!(!first.contains("continuing") && place.newest().0 == 4);
    let done = train(&["--resume_training"]);
    let newest = place.newest().1.display().to_string();
    let start = format!("this run is complete: {newest} is of step 4, the last one; to train on: ");
    let longer = done.lines().find_map(|printed| printed.strip_prefix(&start)).expect("how it goes on");
    assert!(longer.ends_with(" --resume_training=extend --stop_step 8"), "{longer}");
    assert!(!longer.contains("--stop_step=4"), "{longer}");
    ends(&done, 4);
    let more = train(&["--resume_training", "--stop-step", "6", "--save-final=False"]);
    assert!(
        more.lines().any(|printed| printed == format!("continuing after step 4 of 6, from {newest}")),
        "{more}"
    );
    assert!(more.contains("were not saved, as the configuration says `save_final: False`"), "{more}");
    assert!(!more.contains("checkpoint: ") && place.newest().0 == 4);
}

#[test]
fn the_console_has_lines_of_one_form_and_the_log_those_of_mindformers() {
    let (printed, log) = lines("");
    let plain: Vec<&String> = printed.iter().filter(|line| line.starts_with("step ")).collect();
    let steps: Vec<&str> = plain.iter().map(|line| line.split("  ").next().expect("a first field")).collect();
    let wanted: Vec<String> =
        [1, 2, 4, 6, 8, 10, 12, 14, 15, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34, 36, 38, 40]
            .map(|step| format!("step {step}/40"))
            .into();
    assert_eq!(steps, wanted, "a step of 40 is two, and 15 is evaluated");
    for line in &plain {
        let fields: Vec<&str> = line.split("  ").collect();
        let is_evaluated = ["step 15/40", "step 30/40", "step 40/40"].contains(&fields[0]);
        assert_eq!(fields.len(), if is_evaluated { 8 } else { 5 }, "{line}");
        assert!(fields[1].starts_with("loss ") && fields[1].len() == "loss 5.545".len(), "{line}");
        assert!(fields[2].starts_with("lr ") && fields[2].contains(".") && fields[2].contains("e"), "{line}");
        assert!(fields[3].ends_with(" tokens/s") && fields[4].ends_with(" left"), "{line}");
        if is_evaluated {
            let numbers =
                [("eval_loss ", fields[5]), ("eval_perplexity ", fields[6]), ("eval_accuracy ", fields[7])];
            let [loss, perplexity, accuracy] = numbers.map(|(name, field)| {
                field.strip_prefix(name).and_then(|text| text.parse::<f64>().ok()).expect("a number")
            });
            assert!((loss.exp() / perplexity - 1.0).abs() < 1e-3, "{line}");
            assert!(accuracy > 0.0 && accuracy < 1.0, "{line}");
        }
    }
    assert!(plain.last().expect("a last line").contains("  0:00 left  "), "{plain:?}");
    assert_eq!(of_original(&printed.join("\n")), 0);
    assert_eq!(of_original(&log), 40, "every step in the log");
    assert!(
        log.contains(" samples/s/p ") && log.contains("step 15: eval_loss ") && !log.contains("step 1/40")
    );

    let (printed, log) = lines("{type: MFLossMonitor, per_print_times: 10}");
    assert_eq!((of_original(&printed.join("\n")), of_original(&log)), (0, 5));
    assert_eq!(printed.iter().filter(|line| line.contains("/40  loss ")).count(), 22, "{printed:?}");
}
