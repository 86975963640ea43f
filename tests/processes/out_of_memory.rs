//! A device without memory for the run, or for the sample at its end: one line that names what takes it and what would
//! help.

use crate::launch::{assert_refused, gristmill, in_repository, run};
use crate::runs::Setup;
use gristmill::device::list_adapters;
use gristmill::perf::forecast::Forecast;
use gristmill::train::recordings::Recordings;
use pollster::block_on;
use std::process::Command;

/// Some 10 GB, most of it for activations.
const LARGE: [&str; 9] = [
    "--tier=software",
    "--model.model_config.hidden_size=1024",
    "--model.model_config.num_heads=16",
    "--model.model_config.intermediate_size=2048",
    "--model.model_config.num_layers=16",
    "--model.model_config.seq_length=512",
    "--batch_size=16",
    "--gradient_accumulation_steps=1",
    "--stop_step=1",
];

/// llvmpipe's memory is the process's, of which a shell can allow less: for the first arenas, or for some of the pool.
#[cfg(target_os = "linux")]
#[test]
fn a_run_that_finds_no_memory_names_the_largest_consumers() {
    let adapters = block_on(list_adapters());
    if !adapters.iter().any(|adapter| adapter.name.contains("llvmpipe")) {
        println!("only llvmpipe can be short of memory on request, and it is not installed here");
        return;
    }
    let home = tempfile::tempdir().expect("a folder");
    let output_dir = format!("--output_dir={}", home.path().display());
    for kibibytes in [3_500_000, 5_500_000] {
        let mut train = gristmill(["train", "configs/tiny.yaml", "--device_name=llvmpipe", &output_dir]);
        train.args(LARGE);
        let mut limited = Command::new("sh");
        in_repository(&mut limited);
        let script = format!("ulimit -v {kibibytes} && exec \"$0\" \"$@\"");
        // Threads of the driver and of malloc reserve addresses too.
        limited.env("LP_NUM_THREADS", "2").env("MALLOC_ARENA_MAX", "2");
        limited.args(["-c", &script]).arg(train.get_program()).args(train.get_args());
        assert_refused(
            &format!("{kibibytes} KiB"),
            &run(&mut limited),
            &[
                "error: out of memory allocating `",
                "MiB; the largest consumers: ",
                "layers.0.feed_forward.w_gate_up.y 128.0 MiB, ",
                "lower runner_config.batch_size, write `recompute_config.recompute: True`, ",
                "or see what fits with `gristmill plan --fit BYTES CONFIG`",
            ],
        );
    }
}

/// Ranks that share matrices write the sample by the whole model, beside what they have trained with. Without room for
/// both the run is complete, and the cap that a line names is enough.
#[test]
fn a_sample_without_room_names_the_cap_that_has_it() {
    const STEPS: u64 = 2;
    const SLACK: u64 = 16 << 10; // for what follows from the number of steps
    let setup = Setup::new("crowded", "").wide().with(&[
        "--sample={prompt: the, tokens: 12, temperature: 0}",
        "--use_parallel=True",
        "--parallel_config={model_parallel: 2, use_seq_parallel: True, vocab_emb_dp: False}",
    ]);
    let gpu = setup.gpu_for(&setup.plan_on_rank(0, 2));
    let peak = |rank| {
        let plan = setup.plan_on_rank(rank, 2);
        let recordings = Recordings::new(&plan, gpu.capabilities(), STEPS).expect("recordings");
        Forecast::new(&recordings).peak_bytes()
    };
    let peak = peak(0).max(peak(1)) + SLACK;
    let capped = |cap: &str| {
        let home = tempfile::tempdir().expect("a folder");
        let mut train = gristmill(["train", "--ranks=2"]);
        train.arg(setup.write(home.path())).args(&setup.overrides).args([
            &format!("--output_dir={}", home.path().display()),
            &format!("--stop_step={STEPS}"),
            &format!("--context.max_device_memory={cap}"),
        ]);
        let ended = run(&mut train).succeeded();
        format!("{}{}", ended.stdout, ended.stderr)
    };
    let text = capped(&peak.to_string());
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("no sample")).collect();
    let [line] = lines[..] else { panic!("not one line: {text}") };
    for part in ["the model takes ", " of the run, over context.max_device_memory of ", "gristmill generate "]
    {
        assert!(line.contains(part), "`{part}` is not in: {line}");
    }
    assert!(!text.contains("a sample of"), "{text}");
    let named =
        line.split("raise it to ").nth(1).and_then(|rest| rest.split(", or ").next()).expect("a size");
    let text = capped(named);
    assert!(text.contains("a sample of 12 tokens") && !text.contains("no sample"), "{named}: {text}");
}
