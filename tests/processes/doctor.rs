//! `gristmill doctor`: its verdict comes first, and it tests the kernels of every tier.

use crate::launch::{gristmill, run, without_adapter};

#[test]
fn doctor_tests_the_kernels() {
    let report = run(&mut gristmill(["doctor", "--memory=8GB"])).succeeded().stdout;
    println!("{report}");
    let verdict = report.lines().next().expect("a line");
    assert!(verdict.starts_with("verdict    ") && verdict.contains(" passes: all "), "{verdict}");
    for text in [
        "adapters",
        "<- this one",
        "self-test  tier portable",
        "GFLOP/s",
        "checks     without the driver's checks of buffers products are ",
        "fits: ",
        "8.00 GiB (as given)",
    ] {
        assert!(report.contains(text), "`{text}` is missing:\n{report}");
    }
    // The self-test covers the backward kernels too: on each tier where the result is known, else between the tiers.
    let tested: Vec<&str> = report.split("self-test").skip(1).collect();
    let known = [
        "matmul dyᵀ x",
        "layer_norm db",
        "gelu dx",
        "swiglu dx",
        "route ids",
        "permute dx",
        "combine dgates",
        "grouped_matmul dw",
    ];
    let compared = ["rms_norm dw", "layer_norm dx", "attention dqkv", "cross_entropy dh", "route dlogits"];
    assert_eq!(tested.len(), 3, "{report}");
    for (table, labels) in tested.iter().zip([&known[..], &known[..], &compared[..]]) {
        for text in labels {
            assert!(table.contains(&format!("\n  {text} ")), "`{text}` was not tested:\n{report}");
        }
    }
    for table in tested {
        let rows = table.lines().skip(1).take_while(|line| line.starts_with("  "));
        let errors: Vec<f64> = rows
            .map(|row| row.split_whitespace().last().and_then(|error| error.parse().ok()).expect("an error"))
            .collect();
        assert!(errors.len() > 10 && errors.is_sorted_by(|one, next| one >= next), "{report}");
    }
    let none = run(without_adapter(&mut gristmill(["doctor"])));
    assert_eq!(none.code, Some(2));
    assert!(none.stderr.starts_with("error: no usable GPU adapter: "), "{}", none.stderr);
}

#[test]
fn doctor_begins_with_its_verdict_and_names_its_flag() {
    let ended = run(&mut gristmill(["doctor", "--device-name=no such adapter"]));
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("set --device-name to one of: "), "{}", ended.stderr);
    assert!(!ended.stderr.contains("context.device_name"), "{}", ended.stderr);
}
