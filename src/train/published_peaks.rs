//! Published peaks of f32 arithmetic, by the names that drivers report.

/// Models and their peaks in TFLOP/s: two operations per multiply-add, f32 units, boost clock, no tensor cores. A name that
/// covers several configurations has the peak of the first GeForce and the largest Apple chip that was sold under it.
///
/// Sources, by vendor: NVIDIA's architecture papers (Turing, Ampere GA102, Ada, RTX Blackwell) and data sheets (A100, H100,
/// H200), or CUDA cores and boost clock on the product's page; "peak single precision performance" on AMD's product pages;
/// Xe cores of 128 lanes and the graphics clock on Intel's; Apple's announcements of M1, M1 Pro, M1 Max, M1 Ultra and M2.
/// Apple has published none since.
const PEAKS: &[(&str, f64)] = &[
    ("A100", 19.5),
    ("H100 80GB HBM3", 67.0),
    ("H100 NVL", 60.0),
    ("H100 PCIe", 51.0),
    ("H200", 67.0),
    ("H200 NVL", 60.0),
    ("RTX 2060", 6.5),
    ("RTX 2060 SUPER", 7.2),
    ("RTX 2070", 7.5),
    ("RTX 2070 SUPER", 9.1),
    ("RTX 2080", 10.1),
    ("RTX 2080 SUPER", 11.2),
    ("RTX 2080 Ti", 13.4),
    ("RTX 3060", 12.7),
    ("RTX 3060 Ti", 16.2),
    ("RTX 3070", 20.3),
    ("RTX 3070 Ti", 21.7),
    ("RTX 3080", 29.8),
    ("RTX 3080 Ti", 34.1),
    ("RTX 3090", 35.6),
    ("RTX 3090 Ti", 40.0),
    ("RTX 4060", 15.1),
    ("RTX 4060 Ti", 22.1),
    ("RTX 4070", 29.1),
    ("RTX 4070 SUPER", 35.5),
    ("RTX 4070 Ti", 40.1),
    ("RTX 4070 Ti SUPER", 44.1),
    ("RTX 4080", 48.7),
    ("RTX 4080 SUPER", 52.2),
    ("RTX 4090", 82.6),
    ("RTX 4090 D", 73.5),
    ("RTX 5050", 13.2),
    ("RTX 5060", 19.2),
    ("RTX 5060 Ti", 23.7),
    ("RTX 5070", 30.9),
    ("RTX 5070 Ti", 43.9),
    ("RTX 5080", 56.3),
    ("RTX 5090", 104.8),
    ("RTX 5090 D", 104.8),
    ("RX 6400", 3.6),
    ("RX 6500 XT", 5.8),
    ("RX 6600", 8.9),
    ("RX 6600 XT", 10.6),
    ("RX 6650 XT", 10.8),
    ("RX 6700 XT", 13.2),
    ("RX 6750 XT", 13.3),
    ("RX 6800", 16.2),
    ("RX 6800 XT", 20.7),
    ("RX 6900 XT", 23.0),
    ("RX 6950 XT", 23.7),
    ("RX 7600", 21.7),
    ("RX 7600 XT", 22.6),
    ("RX 7700 XT", 35.2),
    ("RX 7800 XT", 37.3),
    ("RX 7900 GRE", 46.0),
    ("RX 7900 XT", 51.5),
    ("RX 7900 XTX", 61.4),
    ("RX 9060 XT", 25.6),
    ("RX 9070", 36.1),
    ("RX 9070 GRE", 34.3),
    ("RX 9070 XT", 48.7),
    ("Arc A310", 3.1),
    ("Arc A380", 4.1),
    ("Arc A580", 10.4),
    ("Arc A750", 14.7),
    ("Arc A770", 17.2),
    ("Arc B570", 11.5),
    ("Arc B580", 13.7),
    ("Apple M1", 2.6),
    ("Apple M1 Pro", 5.2),
    ("Apple M1 Max", 10.4),
    ("Apple M1 Ultra", 21.0),
    ("Apple M2", 3.6),
];

/// Words of a name that stand for a slower GPU: of a laptop, or a part of one.
const SLOWER: [&str; 4] = ["laptop", "mobile", "q", "mig"];

/// Words after a model's name that make it another model, which the table may lack.
const OTHER_MODELS: [&str; 11] = ["ti", "super", "d", "xt", "xtx", "gre", "le", "pro", "max", "ultra", "nvl"];

/// The model and its peak in FLOP/s, if the table has the GPU that a driver calls `adapter`. The longest name wins:
/// `NVIDIA GeForce RTX 4070 Ti SUPER` is not an `RTX 4070`. Laptop GPUs, whose clocks depend on the laptop, are unknown.
pub fn published_peak(adapter: &str) -> Option<(&'static str, f64)> {
    let name = words(adapter);
    // Some drivers know only the chip and list what it was sold as: `RX 6800/6800 XT`.
    if adapter.contains('/') || name.iter().any(|word| SLOWER.contains(&word.as_str())) {
        return None;
    }
    let found = PEAKS.iter().filter_map(|(model, tflops)| {
        let words = words(model);
        let start = name.windows(words.len()).position(|part| part == words)?;
        Some((start + words.len(), model, tflops * 1e12))
    });
    let (end, model, flops) = found.max_by_key(|(end, ..)| *end)?;
    let is_other = name.get(end).is_some_and(|word| OTHER_MODELS.contains(&word.as_str()));
    (!is_other).then_some((model, flops))
}

/// The words of a name in lower case, without trademark signs.
fn words(name: &str) -> Vec<String> {
    let words = name.split(|letter: char| !letter.is_ascii_alphanumeric());
    let words = words.map(str::to_ascii_lowercase);
    words.filter(|word| !["", "r", "tm"].contains(&word.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_model_is_found_by_its_name() {
        for (model, tflops) in PEAKS {
            assert_eq!(published_peak(model), Some((*model, tflops * 1e12)));
        }
    }

    #[test]
    fn names_as_drivers_report_them() {
        for (adapter, model) in [
            ("NVIDIA GeForce RTX 4070", "RTX 4070"),
            ("NVIDIA GeForce RTX 4070 Ti SUPER", "RTX 4070 Ti SUPER"),
            ("NVIDIA GeForce RTX 3080 (NVK GA102)", "RTX 3080"),
            ("NVIDIA A100-SXM4-80GB", "A100"),
            ("NVIDIA A100-PCIE-40GB", "A100"),
            ("NVIDIA H100 80GB HBM3", "H100 80GB HBM3"),
            ("NVIDIA H200", "H200"),
            ("AMD Radeon RX 7900 XTX (RADV NAVI31)", "RX 7900 XTX"),
            ("Intel(R) Arc(TM) A770 Graphics", "Arc A770"),
            ("Intel(R) Arc(tm) B580 Graphics (BMG G21)", "Arc B580"),
            ("Apple M1 Max (G13C C0)", "Apple M1 Max"),
        ] {
            assert_eq!(published_peak(adapter).map(|(model, _)| model), Some(model), "{adapter}");
        }
    }

    #[test]
    fn other_models_are_unknown() {
        for adapter in [
            "llvmpipe (LLVM 15.0.6, 256 bits)",
            "NVIDIA GeForce RTX 4090 Laptop GPU",
            "NVIDIA GeForce RTX 2080 with Max-Q Design",
            "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
            "NVIDIA RTX A4000",
            "AMD Radeon RX 6800/6800 XT / 6900 XT",
            "AMD Radeon RX 6600 LE",
            "AMD Radeon RX 7900M",
            "Intel(R) Arc(TM) A770M Graphics",
            "Apple M2 Pro",
            "Apple M4",
        ] {
            assert_eq!(published_peak(adapter), None, "{adapter}");
        }
    }
}
