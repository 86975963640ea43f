//! How products are divided among the workgroups of published GPUs. The listing is golden: grids follow from the problem and the
//! table of GPUs alone.
//!
//! `UPDATE_GOLDEN=1 cargo test --release --test without_adapter grids::` writes it again.

use crate::configs::assert_golden;
use gristmill::element::Element::F32;
use gristmill::kernels::{Capabilities, Units};
use gristmill::ops::matmul::Layout::{Nn, Nt, Tn};
use gristmill::ops::matmul::{Problem, plan};
use std::path::Path;

/// Desktop cards of three vendors, a server's, a laptop's, a handheld's, and one that is in no table.
const GPUS: [&str; 7] =
    ["RX 7900 XTX", "RTX 4090", "H100 80GB HBM3", "Apple M3 Max", "Arc A770", "Custom GPU 0405", "Voodoo 2"];

#[test]
fn published_gpus_have_their_grids() {
    // GPT-2 with 4,096 tokens, and its head with 1,024: forward, gradients of inputs, and those of weights.
    let problems = [
        (Nt, 4096, 2304, 768),
        (Nt, 4096, 768, 3072),
        (Nn, 4096, 768, 2304),
        (Nn, 1024, 768, 50304),
        (Tn, 2304, 768, 4096),
        (Tn, 768, 768, 4096),
        (Tn, 3072, 768, 4096),
        (Tn, 50304, 768, 1024),
    ];
    let mut listing = String::new();
    for adapter in GPUS {
        let capabilities = Capabilities::portable().with_units(Units::of(adapter));
        listing += &format!("{adapter}, {} units\n", capabilities.units.count);
        for (layout, m, n, k) in problems {
            let plan = plan(Problem { layout, m, n, k }, F32, capabilities);
            listing += &format!("{layout:?} {m}x{n}x{k}: {:?}, parts of {}\n", plan.grid, plan.part_k);
        }
    }
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/grids.txt");
    assert_golden(&golden, &listing);
}
