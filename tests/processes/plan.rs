//! `gristmill plan` and the help of every command.
//!
//! A plan for ranks that are not there has memory, bytes, time and warnings; degrees that do not fill them are one
//! line. The keys that `--fit` prints can be pasted.

use crate::launch::{assert_refused, gristmill, run, without_adapter};
use crate::place::Place;
use crate::runs::is_long;
use std::path::Path;

#[test]
fn plan_needs_no_adapter() {
    let planned =
        run(without_adapter(&mut gristmill(["plan", "configs/tiny.yaml", "--batch_size", "4"]))).succeeded();
    println!("{}", planned.stdout);
    for text in [
        "918,656 parameters",
        "1 x 4 windows of 128 tokens: 512 tokens",
        "200 steps",
        "weights 0",
        "micro_step",
    ] {
        assert!(planned.stdout.contains(text), "`{text}` is missing:\n{}", planned.stdout);
    }
}

/// Whatever names a model elsewhere names it here: a run or its checkpoint is planned as it was trained, a folder of
/// Hugging Face's as trained whole, and an adapter as trained on its base.
#[test]
fn plan_takes_a_model_for_a_file() {
    let planned = |model: &Path, flags: &[&str]| {
        run(without_adapter(gristmill(["plan"]).arg(model).args(flags))).succeeded().stdout
    };
    let place = Place::with_run();
    let of_run = planned(&place.folder(), &[]);
    assert!(of_run.contains("saves"), "{of_run}");
    assert_eq!(of_run, planned(&place.folder().join("config.yaml"), &[]));
    assert_eq!(of_run, planned(&place.newest().1, &[]));

    let folder = Path::new("tests/data/folders/llama");
    let whole = planned(folder, &[]);
    let unknown = "The number of steps is not known without the data: tests/data/folders/llama: is a model, which names no data";
    assert!(whole.contains(unknown) && whole.contains("9,168 parameters"), "{whole}");
    // In the type that `finetune` trains in, unless another is written.
    let dtype = |name: &str| planned(folder, &[&format!("--model.model_config.compute_dtype={name}")]);
    assert_eq!(whole, dtype("bfloat16"));
    assert_ne!(whole, dtype("float32"));
    let loader = "{type: TextDataLoader, dataset_files: [tests/data/mill.txt]}";
    for text in [
        format!("--train_dataset.data_loader={loader}"),
        format!("--train-dataset.data-loader={loader}"),
        format!("--train_dataset={{data_loader: {loader}}}"),
    ] {
        let with_text = planned(folder, &[&text]);
        assert!(with_text.contains("steps") && !with_text.contains("not known"), "{with_text}");
    }

    let adapter = place.path("adapter");
    let lora = "{pet_type: lora, lora_rank: 4, target_modules: '.*wq|.*wv'}";
    let file = place.path("tuned.yaml");
    let config = format!(
        "output_dir: {}\nrun_name: tuned\nload_checkpoint: {}\nmodel: {{model_config: {{pet_config: {lora}}}}}\n\
         train_dataset: {{data_loader: {{type: TextDataLoader, dataset_files: [tests/data/mill.txt]}}}}\n\
         runner_config: {{stop_step: 1}}\nlr_schedule: {{learning_rate: 1.0e-3}}\n",
        place.home.path().display(),
        folder.canonicalize().expect("a folder").display(),
    );
    std::fs::write(&file, config).expect("a file");
    run(gristmill(["train"]).arg(&file)).succeeded();
    std::fs::rename(place.path("tuned/checkpoint/step_0000001/adapter"), &adapter).expect("an adapter");
    let adapted = planned(&adapter, &[]);
    let trained = |planned: &str| planned.lines().find(|line| line.starts_with("model ")).map(str::to_string);
    assert_eq!(trained(&adapted), trained(&planned(&file, &[])), "{adapted}");
    assert_ne!(trained(&adapted), trained(&whole));

    let nothing = run(without_adapter(gristmill(["plan"]).arg(place.home.path())));
    assert_refused(
        "no model",
        &nothing,
        &["neither the folder of a run (output/tiny), nor a checkpoint in one"],
    );
}

/// Grids and memory depend on the compute units, which a name is enough for.
#[test]
fn plan_names_the_units_that_it_assumes() {
    for (flags, line) in [
        (&[][..], "divided for 64 compute units, as on an unknown GPU; context.device_name may name one"),
        (&["--device_name=RX 7900 XTX"], "divided for RX 7900 XTX, which has 96 compute units"),
        (&["--device_name=Voodoo 2"], "divided for 64 compute units"),
    ] {
        let planned = run(without_adapter(gristmill(["plan", "configs/tiny.yaml"]).args(flags))).succeeded();
        assert!(planned.stdout.contains(line), "`{line}` is missing:\n{}", planned.stdout);
    }
    let software = ["plan", "configs/tiny.yaml", "--tier=software"];
    let planned = run(without_adapter(&mut gristmill(software))).succeeded();
    assert!(!planned.stdout.contains("compute units"), "{}", planned.stdout);
}

/// As many ranks as the file asks for, and what of it cannot be trained.
#[test]
fn plan_takes_the_ranks_from_the_file() {
    let spread = ["plan", "configs/tiny.yaml", "--batch_size=4", "--use_parallel=True"];
    let planned = |flags: &[&str]| run(without_adapter(gristmill(spread).args(flags))).succeeded();
    let four = planned(&["--parallel_config.data_parallel=4", "--gradient_accumulation_steps=2"]);
    let step = "8 x 4 windows of 128 tokens: 4,096 tokens";
    assert!(four.stdout.contains(step) && four.stdout.contains(", shared by 4 ranks\n"), "{}", four.stdout);
    assert!(!four.stdout.contains("not built") && !four.stderr.contains("not built"), "{}", four.stderr);
    let stages = planned(&["--parallel_config.pipeline_stage=2", "--parallel_config.micro_batch_num=8"]);
    for text in ["8 x 4 windows", "ranks    2: pipeline 2\n", "rows between stages in 8 exchanges\n"] {
        assert!(stages.stdout.contains(text), "`{text}` is missing:\n{}", stages.stdout);
    }
    let matrices = planned(&["--parallel_config.model_parallel=2"]);
    let text = "ranks    2: model 2\n";
    assert!(matrices.stdout.contains(text), "`{text}` is missing:\n{}", matrices.stdout);
}

/// Both ways, so that the difference can be weighed.
#[test]
fn plan_says_what_recomputation_saves() {
    let planned = |recompute: &[&str]| {
        let report =
            run(without_adapter(gristmill(["plan", "configs/tiny.yaml"]).args(recompute))).succeeded();
        let lines = report.stdout.lines().filter(|line| line.contains(" of activations"));
        let bytes = |line: &str| {
            let (before, _) = line.split_once(" of activations").expect("an amount");
            before.rsplit(", ").next().expect("an amount").trim().to_string()
        };
        assert!(report.stdout.contains("recompute"), "{}", report.stdout);
        lines.map(bytes).collect::<Vec<_>>()
    };
    let (none, all) = (planned(&[]), planned(&["--recompute_config.recompute=True"]));
    assert_eq!(none.len(), 2, "{none:?}");
    assert_eq!((&none[0], &none[1]), (&all[1], &all[0]), "{none:?} and {all:?}");
    assert_ne!(none[0], none[1]);
    let some = planned(&["--recompute_config.select_recompute=True"]);
    assert_eq!(some[1], none[0], "{some:?}");
    assert_ne!(some[0], none[0]);
}

/// The parts of the memory add up to the whole, and the largest buffers and binding are named.
#[test]
fn plan_says_what_the_memory_is_for() {
    let planned = |extra: &[&str]| {
        run(without_adapter(gristmill(["plan", "configs/tiny.yaml"]).args(extra))).succeeded().stdout
    };
    let half = planned(&["--model.model_config.compute_dtype=bfloat16", "--recompute_config.recompute=[2]"]);
    println!("{half}");
    for text in [
        " of weights in f32\n",
        " of weights again, in bf16, for the layers\n",
        " of gradients\n",
        " of moments\n",
        " of activations with 2 of 4 layers recomputed\n",
        " of activations with nothing recomputed\n",
        " of activations with every layer recomputed",
        " until the first step\n",
        "the largest binding takes ",
    ] {
        assert!(half.contains(text), "`{text}` is missing:\n{half}");
    }
    let whole = planned(&[]);
    assert!(!whole.contains("weights again"), "f32 needs no copies:\n{whole}");
    let (total, parts) =
        whole.split_once("memory   ").and_then(|(_, rest)| rest.split_once(" at its peak")).expect("memory");
    let parts = parts.split_once("otherwise").expect("the parts").0.lines().skip(1);
    let sum: f64 = parts.map(|line| mebibytes(line.split(" of ").next().expect("an amount"))).sum();
    assert!((sum - mebibytes(total)).abs() < 0.1, "{sum} MiB in parts:\n{whole}");
}

/// What plan says that another way to recompute takes is what it says of a run that is written so.
#[test]
fn plan_says_what_recomputed_exchanges_take() {
    let file = ["configs/tiny.yaml", "--use_parallel=True", "--parallel_config.model_parallel=2"];
    let planned =
        |keys: &[&str]| planned(&[&file[..], &["--recompute_config.recompute=True"], keys].concat());
    let amount_of = |report: &str, what: &str| -> String {
        let found = report.lines().find_map(|line| line.split_once(what));
        found.unwrap_or_else(|| panic!("`{what}` is missing:\n{report}")).0.trim().to_string()
    };
    let report = planned(&[]);
    for key in ["mp_comm_recompute: False", "recompute_slice_activation: True"] {
        let flag = format!("--recompute_config.{}", key.replace(": ", "="));
        let written = planned(&[&flag]);
        let held = amount_of(&written, " of activations with every layer recomputed");
        let sent = amount_of(&written, " of tensor parallel activations in ");
        let line = format!(
            "{held} of activations with `recompute_config.{key}`, {sent} of tensor parallel ones sent"
        );
        assert!(report.contains(&line), "`{line}` is missing:\n{report}");
        assert_ne!(sent, amount_of(&report, " of tensor parallel activations in "), "{key}");
    }
}

/// `1.50 GiB` in MiB.
fn mebibytes(amount: &str) -> f64 {
    let (count, unit) = amount.trim().split_once(' ').expect("an amount and its unit");
    let factor = match unit {
        "GiB" => 1024.0,
        "MiB" => 1.0,
        "KiB" => 1.0 / 1024.0,
        _ => 1.0 / 1048576.0,
    };
    count.parse::<f64>().expect("a number") * factor
}

/// What `--fit` prints is pasted behind the configuration, as flags and as YAML, and the run fits.
#[test]
fn plan_finds_what_fits() {
    let plan = |arguments: &[&str]| run(without_adapter(&mut gristmill(arguments)));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("narrow.yaml");
    let file = file.to_str().expect("a path in UTF-8");
    // From a few windows on, with more and with less than a run keeps in all. The first two with GRISTMILL_LONG.
    let left_out = if is_long() { 0 } else { 2 };
    for (memory, had) in [
        ("120MB", "recompute: False"),
        ("40000000", "recompute: False"),
        ("60MiB", "recompute: False"),
        ("120MB", "recompute: True"),
        ("40000000", "recompute: [2]"),
        ("40000000", "layers: [1]"),
        ("60MiB", "select_recompute: True"),
        ("40000000", r"select_recompute_exclude: ['attention\.flash_attention', 'feed_forward\.mul']"),
    ]
    .into_iter()
    .skip(left_out)
    {
        let base = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/tiny.yaml");
        let text = format!(
            "base_config: {base}\nmodel: {{model_config: {{num_layers: 6}}}}\nrunner_config: {{batch_size: 32, \
             gradient_accumulation_steps: 2}}\nrecompute_config: {{{had}}}\n"
        );
        std::fs::write(file, text).expect("a file");
        let found = plan(&["plan", file, "--fit", memory]).succeeded().stdout;
        println!("{found}");
        assert_eq!(found.matches("<- least work that fits").count(), 1, "{found}");
        let limit = memory.parse::<f64>().map_or_else(
            |_| memory.trim_end_matches(|letter: char| letter.is_alphabetic()).parse().expect("a number"),
            |bytes| bytes / 1048576.0,
        );

        let (yaml, flags) =
            found.split_once("\nwrite\n").and_then(|(_, rest)| rest.split_once("or give\n")).expect("keys");
        let flags: Vec<String> = shell_words(flags.lines().next().expect("flags"));
        let mut again = vec!["plan", file];
        again.extend(flags.iter().map(String::as_str));
        let by_flags = plan(&again).succeeded().stdout;
        let headline = by_flags.lines().find_map(|line| line.strip_prefix("memory   ")).expect("memory");
        let peak = mebibytes(headline.split(" at its peak").next().expect("a peak"));
        assert!(peak <= 0.9 * limit + 0.005, "{memory}: a tenth of it stays free: {headline}");
        assert!(found.contains(" without 10 % for everything else\n"), "{found}");
        assert!(found.contains(headline), "the same as was printed with --fit:\n{by_flags}");
        // A run that keeps everything is looked at, whatever the file selects.
        assert!(
            found.lines().any(|line| line.trim_end_matches("  <- least work that fits").ends_with(" 0.0 %")),
            "{found}"
        );
        // As YAML: sections with one key to a line.
        let mut section = "";
        let as_flags: Vec<String> = yaml
            .lines()
            .filter_map(|line| match line.strip_prefix("  ") {
                None => {
                    section = line.trim_end_matches(':');
                    None
                }
                Some(key) => Some(format!("--{section}.{}", key.replacen(": ", "=", 1))),
            })
            .collect();
        assert_eq!(as_flags, flags);
    }
}

/// The words of a line as a shell splits it; quotes are single.
fn shell_words(line: &str) -> Vec<String> {
    let parts = line.split('\'').enumerate();
    let words = parts.flat_map(|(number, part)| match number % 2 {
        0 => part.split_whitespace().map(str::to_string).collect(),
        _ => vec![part.to_string()],
    });
    words.collect()
}

#[test]
fn plan_says_when_nothing_fits() {
    let plan = |fit: &str| run(without_adapter(&mut gristmill(["plan", "configs/tiny.yaml", fit])));
    let refused = plan("--fit=4MB");
    println!("{}{}", refused.stdout, refused.stderr);
    assert_eq!((refused.code, refused.stderr.lines().count()), (Some(2), 1), "{}", refused.stderr);
    assert!(refused.stdout.contains("recomputed layers"), "what was looked at: {}", refused.stdout);
    for text in ["error: nothing fits 3.6 MiB: ", "compute_dtype: bfloat16", "seq_length"] {
        assert!(refused.stderr.contains(text), "`{text}` is not in: {}", refused.stderr);
    }
    let refused = plan("--fit=8");
    assert_eq!((refused.code, refused.stderr.lines().count()), (Some(2), 1), "{}", refused.stderr);
    assert!(refused.stderr.contains("expected a size such as 8GB or 512MB, found `8`"), "{}", refused.stderr);
}

/// Without the data the number of steps stays open; a memory cap that is too small is said beside what a run takes.
#[test]
fn plan_says_what_is_missing_and_what_is_too_large() {
    let text = "--train_dataset.data_loader.type=TextDataLoader";
    let missing = run(&mut gristmill(["plan", "configs/tiny.yaml", text, "--train_dataset_dir=/nowhere"]));
    let missing = missing.succeeded().stdout;
    assert!(missing.contains("not known without the data: /nowhere"), "{missing}");
    assert!(missing.contains("918,656 parameters"), "{missing}");

    let capped = run(&mut gristmill(["plan", "configs/tiny.yaml", "--context.max_device_memory=2MB"]));
    let capped = capped.succeeded().stdout;
    let refusal = capped.lines().last().expect("a line");
    assert!(refusal.starts_with("refused  by `train` as it stands: the run takes "), "{refusal}");
    assert_eq!(refusal.matches(" MiB,").count(), 5, "{refusal}");
}

/// What `--fit` finds for one device that does the work of several is pasted beside `--as-single`.
#[test]
fn what_fits_counts_the_devices_once() {
    let file = "tests/without_adapter/settings/dialect/pretrain_llama.yaml";
    let plan = |arguments: &[&str]| run(without_adapter(&mut gristmill(arguments))).succeeded().stdout;
    let step =
        |planned: &str| planned.lines().find(|line| line.starts_with("step ")).expect("a step").to_string();
    let found = plan(&["plan", "--as-single", file, "--fit", "1GB"]);
    let flags = found.split_once("or give\n").expect("keys").1.lines().next().expect("flags");
    let flags = shell_words(flags);
    let mut again = vec!["plan", file, "--as-single"];
    again.extend(flags.iter().map(String::as_str));
    assert_eq!(step(&plan(&again)), step(&found), "{found}");
}

/// In the form of MindFormers' launcher, on a file of MindFormers' for several devices.
#[test]
fn plan_needs_neither_the_devices_nor_the_data_of_the_original() {
    let file = "tests/without_adapter/settings/dialect/pretrain_llama.yaml";
    for arguments in
        [&["plan", "--as-single", file][..], &["plan", "--seed", "1", "--config", file, "--as-single"]]
    {
        let planned = run(without_adapter(&mut gristmill(arguments))).succeeded().stdout;
        for text in [
            "32 x 3 windows of 64 tokens",
            "not known without the data: ",
            "/data/wiki.mindrecord: no such file or folder",
        ] {
            assert!(planned.contains(text), "`{text}` is missing:\n{planned}");
        }
    }
    let refused = |arguments: &[&str]| {
        let ended = run(without_adapter(&mut gristmill(arguments)));
        assert_eq!((ended.code, ended.stderr.lines().count()), (Some(2), 1), "{}", ended.stderr);
        ended.stderr
    };
    let answer =
        refused(&["train", "--config", file, "--as-single", "--train_dataset.data_loader.dataset_dir=''"]);
    assert!(answer.contains("makes `train_dataset.data_loader.type` wrong: needs `dataset_dir`"), "{answer}");
    let answer = refused(&["train", "--config", file]);
    assert!(
        answer.contains("asks for 16 ranks (data_parallel 2, model_parallel 4, pipeline_stage 2)"),
        "{answer}"
    );
    let shared = ["--parallel_config.model_parallel=1", "--parallel_config.pipeline_stage=1"];
    let answer = refused(&[&["train", file], &shared[..]].concat());
    assert!(
        answer.contains(
            "--parallel_config.pipeline_stage: asks for 2 ranks (data_parallel 2), and 1 was started"
        ),
        "{answer}"
    );
    let whole = ["plan", "--config", file];
    let planned = run(without_adapter(&mut gristmill(whole))).succeeded().stdout;
    assert!(planned.contains("32 x 3 windows of 64 tokens"), "{planned}");
    assert!(planned.contains(", shared by 2 ranks\n"), "{planned}");
    let answer = refused(&["plan", file, "--config", file]);
    assert!(answer.contains("--config: the configuration is named twice; name it once"), "{answer}");
}

/// A matrix of 1792 MiB, more than any run may bind: it can be planned for, and not trained.
#[test]
fn plan_shows_what_is_too_large_to_train() {
    let sizes = ["hidden_size=8192", "num_heads=64", "intermediate_size=28672", "num_layers=1"];
    let sizes = sizes.map(|size| format!("--model.model_config.{size}"));
    let planned =
        run(without_adapter(gristmill(["plan", "configs/tiny.yaml"]).args(&sizes))).succeeded().stdout;
    for text in [
        "tensors of at most 4096 MiB, more than a run may have",
        "refused  by `train` as it stands: ",
        "1792 MiB",
    ] {
        assert!(planned.contains(text), "`{text}` is missing:\n{planned}");
    }
}

/// A feed-forward matrix of 312 MiB exceeds llvmpipe's bindings and not those of a GPU, which plans are made for by
/// default.
#[test]
fn plan_and_shaders_assume_the_limits_of_the_tier() {
    let wide = ["hidden_size=2048", "num_heads=16", "intermediate_size=20000"]
        .map(|size| format!("--model.model_config.{size}"));
    let place = tempfile::tempdir().expect("a folder");
    let folder = place.path().to_str().expect("a plain path");
    let planned =
        |tier: &[&str]| run(without_adapter(gristmill(["plan", "configs/tiny.yaml"]).args(&wide).args(tier)));
    let dumped = |tier: &str| {
        run(without_adapter(gristmill(["dump-wgsl", folder, "configs/tiny.yaml", tier]).args(&wide)))
    };
    for report in [planned(&[]).succeeded(), planned(&["--context.tier=portable"]).succeeded()] {
        assert!(report.stdout.contains("tensors of at most 1024 MiB"), "{}", report.stdout);
    }
    dumped("--context.tier=portable").succeeded();
    let software = "--context.tier=software";
    for refused in [planned(&[software]), dumped(software)] {
        assert_eq!(refused.code, Some(2));
        assert!(refused.stderr.contains("largest binding of 128 MiB"), "{}", refused.stderr);
    }
}

/// `gristmill plan` with `arguments`, which need no adapter.
fn planned(arguments: &[&str]) -> String {
    run(without_adapter(gristmill(["plan"]).args(arguments))).succeeded().stdout
}

/// The one line with which `gristmill plan` refuses `arguments`.
fn refused(arguments: &[&str]) -> String {
    let ended = run(without_adapter(gristmill(["plan"]).args(arguments)));
    assert_eq!((ended.code, ended.stderr.lines().count()), (Some(2), 1), "{}", ended.stderr);
    ended.stderr
}

const MACHINE: [&str; 4] = ["--link-gbs", "25", "--device-tflops=100", "--ranks=4096"];

/// Thousands of ranks by the degrees of a file, in a few seconds: what they take, exchange and wait for, in narrow
/// lines.
#[test]
fn plan_looks_at_ranks_that_are_not_there() {
    let file = ["configs/tiny.yaml", "--use_parallel=True", "--parallel.enable_parallel_optimizer=True"];
    let report = planned(&[&file[..], &MACHINE].concat());
    println!("{report}");
    for text in [
        "ranks    4,096: data 4096\n",
        "4096 share moments and master weights (ZeRO-1)",
        "while it trains, of one rank\n",
        " of staging of exchanges, and ",
        "sent by a rank in a step",
        " of sums of gradients in ",
        " of gathered weights in ",
        " of counts, losses and the norm in ",
        " a step, ",
        " of launches\n",
        "bound by ",
        "with 100 TFLOP/s x 0.4 (--efficiency), 25 GB/s each way between ranks,",
        "4,194,304 tokens",
    ] {
        assert!(report.contains(text), "`{text}` is missing:\n{report}");
    }
    let of_ranks =
        report.split("exchange ").nth(1).and_then(|rest| rest.split("kernels ").next()).expect("ranks");
    assert!(of_ranks.lines().all(|line| line.chars().count() <= 80), "{of_ranks}");
    // Without the machine there is no time, and a line says how to have it.
    let without = planned(&[&file[..], &["--ranks", "2"]].concat());
    assert!(without.contains("time     is predicted with --device-tflops and --link-gbs"), "{without}");
    assert!(!planned(&["configs/tiny.yaml"]).contains("exchange"), "one rank exchanges nothing");
}

/// Ranks that share matrices are planned by formulas, which are marked as such.
#[test]
fn plan_forecasts_stages_and_parts_of_matrices() {
    let degrees = "--parallel_config={model_parallel: 2, pipeline_stage: 2, micro_batch_num: 4}";
    let file = ["configs/tiny.yaml", "--use_parallel=True", degrees];
    let report = planned(&[&file[..], &["--ranks=8", "--link-gbs=25", "--device-tflops=1"]].concat());
    println!("{report}");
    for text in [
        "ranks    8: data 2 x model 2 x pipeline 2\n",
        // 2 layers x 4 sums x 4 micro-batches, of 8 windows x 128 tokens x 128 f32, of which each of 2 ranks sends half
        // twice.
        "16.00 MiB of tensor parallel activations in 64 exchanges",
        "2.00 MiB of rows between stages in 4 exchanges",
        "a bubble of 20.0 %",
    ] {
        assert!(report.contains(text), "`{text}` is missing:\n{report}");
    }
    let answer = refused(&[&file[..], &["--ranks=8", "--fit=1GB"]].concat());
    assert!(answer.contains("--fit: ") && answer.contains("pipeline_stage: 1"), "{answer}");
    let answer = refused(&["configs/tiny.yaml", "--use_parallel=True", "--parallel_config.model_parallel=3"]);
    assert!(answer.contains("3 ranks cannot share 4 attention heads evenly"), "{answer}");
    let stages = "--parallel_config={pipeline_stage: 5, micro_batch_num: 5}";
    let answer = refused(&["configs/tiny.yaml", "--use_parallel=True", stages]);
    assert!(answer.contains("4 layers are too few for 5 stages x 1 interleaves"), "{answer}");
}

#[test]
fn plan_refuses_ranks_that_the_degrees_do_not_fill() {
    let file = ["configs/tiny.yaml", "--use_parallel=True"];
    let written = [&file[..], &["--parallel_config.data_parallel=4", "--ranks=6"]].concat();
    let answer = refused(&written);
    assert!(answer.contains("asks for 4 ranks (data_parallel 4), and 6 are planned for"), "{answer}");
    let answer = refused(&[&file[..], &["--parallel_config.model_parallel=4", "--ranks=6"]].concat());
    assert!(answer.contains("asks for 4 ranks (model_parallel 4), and 6 are planned for"), "{answer}");
    let answer = refused(&["configs/tiny.yaml", "--ranks=6"]);
    assert!(answer.contains("6 ranks are planned for, and the file is for one"), "{answer}");
    let answer = refused(&["configs/tiny.yaml", "--link-gbs=0"]);
    assert!(answer.contains("expected a number above 0, found `0`"), "{answer}");
}

/// Of what is foolish each has its line, and what `train` refuses, too.
#[test]
fn plan_warns_of_foolish_layouts() {
    let mixture = "--moe_config={expert_num: 16, num_experts_chosen: 2, use_gmm: True}";
    let file = ["configs/tiny.yaml", "--use_parallel=True", mixture, "--parallel_config.expert_parallel=16"];
    let slow = ["--ranks=16", "--link-gbs=0.001", "--device-tflops=100", "--context.max_device_memory=2MB"];
    let accumulated = ["--batch_size=1", "--gradient_accumulation_steps=8"];
    let report = planned(&[&file[..], &slow, &accumulated].concat());
    println!("{report}");
    for text in [
        "over context.max_device_memory of 2.0 MiB",
        "warning  groups of 16 for experts span 16 ranks, and machines have 8",
        "warning  a step waits longer for exchanges than it computes",
        "warning  batch_size 1 with 8 accumulation steps: ",
    ] {
        assert!(report.contains(text), "`{text}` is missing:\n{report}");
    }
    let long = "--parallel_config={pipeline_stage: 4, micro_batch_num: 4}";
    let report = planned(&["configs/tiny.yaml", "--use_parallel=True", long]);
    assert!(report.contains("warning  a bubble of 43 %"), "{report}");
}

/// What copies of hot experts take, send and save.
#[test]
fn plan_says_what_copies_of_hot_experts_are_worth() {
    let mixture = "--moe_config={expert_num: 8, num_experts_chosen: 2, capacity_factor: 1.5, moe_intermediate_size: 40, \
                   enable_cold_hot_expert: True, hot_expert_num: 2, cold_token_percent: 0.5}";
    let file = ["configs/tiny.yaml", "--use_parallel=True", mixture, "--parallel_config.data_parallel=4"];
    let report = planned(&[&file[..], &["--parallel_config.expert_parallel=4"]].concat());
    println!("{report}");
    for text in [
        "of copies of hot experts and their gradients",
        "of copies of hot experts in ",
        "of hot experts' rows are not sent: they have copies",
    ] {
        assert!(report.contains(text), "`{text}` is missing:\n{report}");
    }
    let report = planned(&file);
    assert!(!report.contains("copies of hot experts"), "every rank has all experts:\n{report}");
}

/// What `--fit` finds for a rank is found for all.
#[test]
fn plan_fits_a_rank() {
    let spread = ["configs/tiny.yaml", "--use_parallel=True", "--ranks=4"];
    let found = planned(&[&spread[..], &["--fit=120MB"]].concat());
    assert_eq!(found.matches("<- least work that fits").count(), 1, "{found}");
    assert!(found.contains("while it trains, of one rank"), "{found}");
    let divided = ["configs/tiny.yaml", "--use_parallel=True", "--parallel_config.model_parallel=2"];
    let found = planned(&[&divided[..], &["--parallel_config.use_seq_parallel=True", "--fit=30MB"]].concat());
    assert_eq!(found.matches("<- least work that fits").count(), 1, "{found}");
}

/// A device without the layer of Khronos, which this names as one that is installed and cannot be loaded: an instance
/// that asks for it cannot be created, so a run that asked would find no adapter.
#[cfg(target_os = "linux")]
#[test]
fn the_layers_of_khronos_are_loaded_only_where_a_run_asks_for_them() {
    let place = Place::new();
    let layer = r#"{"file_format_version": "1.1.2", "layer": {"name": "VK_LAYER_KHRONOS_validation", "type": "GLOBAL",
        "library_path": "./libabsent.so", "api_version": "1.3.250", "implementation_version": "1", "description": "absent"}}"#;
    std::fs::write(place.path("VkLayer_khronos_validation.json"), layer).expect("a manifest");
    let train = |flag: &str| {
        let mut command = place.command(&["--stop_step=1", flag]);
        command
            .env("VK_LAYER_PATH", place.home.path())
            .env("VK_LOADER_DEBUG", "error,warn,layer")
            .env_remove("WGPU_VALIDATION");
        run(&mut command)
    };
    let asks = |ended: &crate::launch::Ended| ended.stderr.contains("libabsent.so");
    let asked = train("--context.validation=True");
    assert!(asks(&asked), "{}", asked.stderr);
    let not_asked = train("--context.validation=False").succeeded();
    assert!(!asks(&not_asked), "{}", not_asked.stderr);
}
