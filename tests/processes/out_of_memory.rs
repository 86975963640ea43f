//! A device without memory for the run: one line that names what takes it and what would save some.

use crate::launch::{assert_refused, gristmill, in_repository, run};
use gristmill::device::list_adapters;
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
