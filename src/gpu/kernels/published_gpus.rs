//! Published figures of GPUs, by the names that drivers report.

use super::capabilities::{Capabilities, Matrices};
use super::units::{Unit, Units};

/// A GPU as its vendor describes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PublishedGpu {
    /// The model.
    pub model: &'static str,
    /// The peak of f32 arithmetic in FLOP/s: two operations per multiply-add, f32 units, boost clock, no tensor cores.
    /// `None` where none is published.
    pub flops: Option<f64>,
    /// Memory bandwidth in bytes per second.
    pub memory_bytes: f64,
    /// The compute units.
    pub units: Units,
    /// Multiply-adds per unit and clock at that peak.
    pub multiply_adds: u32,
    /// Invocations for which a unit issues an instruction per clock: fewer than `multiply_adds` if the peak assumes two
    /// instructions at once.
    pub issued: u32,
    /// The cooperative matrices, and the multiply-adds of f16 with sums in f32 that the matrices of a unit compute per
    /// clock at their peak. `None` if the GPU has no matrices that WGSL can express.
    pub matrices: Option<(Matrices, u32)>,
}

/// GPUs with units of one kind.
struct Family {
    unit: Unit,
    multiply_adds: u32,
    issued: u32,
    /// Side of a matrix, invocations of a subgroup, and multiply-adds.
    matrices: Option<(u32, u32, u32)>,
    /// Model, peak in TFLOP/s (0: not published), units, and memory in GB/s.
    models: &'static [(&'static str, f64, u32, f64)],
}

/// A name that covers several configurations has the figures of the first GeForce, of the A100 with 40 GB, and of the
/// largest Apple chip sold under it.
///
/// Sources, by vendor: NVIDIA's architecture papers (Turing, Ampere GA100 and GA102, Hopper, Ada, RTX Blackwell) and
/// data sheets (A100, H100, H200), or CUDA cores and boost clock on the product's page; AMD's product pages ("peak
/// single precision performance") and its papers and instruction set guides of RDNA 2 to 4; Intel's product pages and
/// optimisation guide of oneAPI: Xe cores of 128 lanes and the graphics clock; Valve's page of the Deck; Apple's
/// announcements, which have peaks up to M2. The registers and the workgroup memory of Apple's cores are as measured by
/// Philip Turner (metal-benchmarks). The rates of matrices are the published ones for dense f16 with sums in f32, which
/// on GeForce are half of the others; for RDNA 4 they are those of RDNA 3, which it doubles. Apple's matrices are
/// computed by its lanes, and WGSL cannot express Intel's.
const FAMILIES: &[Family] = &[
    Family {
        unit: Unit { lanes: 2048, registers: 65536, workgroup_bytes: 164 << 10 },
        multiply_adds: 64,
        issued: 64,
        matrices: Some((16, 32, 1024)),
        models: &[("A100", 19.5, 108, 1555.0)],
    },
    Family {
        unit: Unit { lanes: 2048, registers: 65536, workgroup_bytes: 227 << 10 },
        multiply_adds: 128,
        issued: 128,
        matrices: Some((16, 32, 1890)),
        models: &[
            ("H100 80GB HBM3", 67.0, 132, 3350.0),
            ("H100 NVL", 60.0, 132, 3900.0),
            ("H100 PCIe", 51.0, 114, 2000.0),
            ("H200", 67.0, 132, 4800.0),
            ("H200 NVL", 60.0, 132, 4800.0),
        ],
    },
    Family {
        unit: Unit { lanes: 1024, registers: 65536, workgroup_bytes: 64 << 10 },
        multiply_adds: 64,
        issued: 64,
        matrices: Some((16, 32, 256)),
        models: &[
            ("RTX 2060", 6.5, 30, 336.0),
            ("RTX 2060 SUPER", 7.2, 34, 448.0),
            ("RTX 2070", 7.5, 36, 448.0),
            ("RTX 2070 SUPER", 9.1, 40, 448.0),
            ("RTX 2080", 10.1, 46, 448.0),
            ("RTX 2080 SUPER", 11.2, 48, 496.0),
            ("RTX 2080 Ti", 13.4, 68, 616.0),
        ],
    },
    Family {
        unit: Unit { lanes: 1536, registers: 65536, workgroup_bytes: 100 << 10 },
        multiply_adds: 128,
        issued: 128,
        matrices: Some((16, 32, 256)),
        models: &[
            ("RTX 3060", 12.7, 28, 360.0),
            ("RTX 3060 Ti", 16.2, 38, 448.0),
            ("RTX 3070", 20.3, 46, 448.0),
            ("RTX 3070 Ti", 21.7, 48, 608.0),
            ("RTX 3080", 29.8, 68, 760.0),
            ("RTX 3080 Ti", 34.1, 80, 912.0),
            ("RTX 3090", 35.6, 82, 936.0),
            ("RTX 3090 Ti", 40.0, 84, 1008.0),
            ("RTX 4060", 15.1, 24, 272.0),
            ("RTX 4060 Ti", 22.1, 34, 288.0),
            ("RTX 4070", 29.1, 46, 504.0),
            ("RTX 4070 SUPER", 35.5, 56, 504.0),
            ("RTX 4070 Ti", 40.1, 60, 504.0),
            ("RTX 4070 Ti SUPER", 44.1, 66, 672.0),
            ("RTX 4080", 48.7, 76, 717.0),
            ("RTX 4080 SUPER", 52.2, 80, 736.0),
            ("RTX 4090", 82.6, 128, 1008.0),
            ("RTX 4090 D", 73.5, 114, 1008.0),
            ("RTX 5050", 13.2, 20, 320.0),
            ("RTX 5060", 19.2, 30, 448.0),
            ("RTX 5060 Ti", 23.7, 36, 448.0),
            ("RTX 5070", 30.9, 48, 672.0),
            ("RTX 5070 Ti", 43.9, 70, 896.0),
            ("RTX 5080", 56.3, 84, 960.0),
            ("RTX 5090", 104.8, 170, 1792.0),
            ("RTX 5090 D", 104.8, 170, 1792.0),
        ],
    },
    Family {
        unit: Unit { lanes: 1024, registers: 65536, workgroup_bytes: 64 << 10 },
        multiply_adds: 64,
        issued: 64,
        matrices: None,
        models: &[
            ("RX 6400", 3.6, 12, 128.0),
            ("RX 6500 XT", 5.8, 16, 144.0),
            ("RX 6600", 8.9, 28, 224.0),
            ("RX 6600 XT", 10.6, 32, 256.0),
            ("RX 6650 XT", 10.8, 32, 280.0),
            ("RX 6700 XT", 13.2, 40, 384.0),
            ("RX 6750 XT", 13.3, 40, 432.0),
            ("RX 6800", 16.2, 60, 512.0),
            ("RX 6800 XT", 20.7, 72, 512.0),
            ("RX 6900 XT", 23.0, 80, 512.0),
            ("RX 6950 XT", 23.7, 80, 576.0),
            ("Custom GPU 0405", 1.6, 8, 88.0),  // the Steam Deck
            ("Custom GPU 0932", 1.6, 8, 102.0), // the Deck with an OLED
        ],
    },
    Family {
        unit: Unit { lanes: 1024, registers: 65536, workgroup_bytes: 64 << 10 },
        multiply_adds: 128,
        issued: 64,
        matrices: Some((16, 64, 256)),
        models: &[("RX 7600", 21.7, 32, 288.0), ("RX 7600 XT", 22.6, 32, 288.0)],
    },
    Family {
        unit: Unit { lanes: 1024, registers: 98304, workgroup_bytes: 64 << 10 },
        multiply_adds: 128,
        issued: 64,
        matrices: Some((16, 64, 256)),
        models: &[
            ("RX 7700 XT", 35.2, 54, 432.0),
            ("RX 7800 XT", 37.3, 60, 624.0),
            ("RX 7900 GRE", 46.0, 80, 576.0),
            ("RX 7900 XT", 51.5, 84, 800.0),
            ("RX 7900 XTX", 61.4, 96, 960.0),
            ("RX 9060 XT", 25.6, 32, 320.0),
            ("RX 9070", 36.1, 56, 640.0),
            ("RX 9070 GRE", 34.3, 48, 432.0),
            ("RX 9070 XT", 48.7, 64, 640.0),
        ],
    },
    Family {
        unit: Unit { lanes: 1024, registers: 131_072, workgroup_bytes: 128 << 10 },
        multiply_adds: 128,
        issued: 128,
        matrices: None,
        models: &[
            ("Arc A310", 3.1, 6, 124.0),
            ("Arc A380", 4.1, 8, 186.0),
            ("Arc A580", 10.4, 24, 512.0),
            ("Arc A750", 14.7, 28, 512.0),
            ("Arc A770", 17.2, 32, 560.0),
            ("Arc B570", 11.5, 18, 380.0),
            ("Arc B580", 13.7, 20, 456.0),
        ],
    },
    Family {
        unit: Unit { lanes: 3072, registers: 53248, workgroup_bytes: 60 << 10 },
        multiply_adds: 128,
        issued: 128,
        matrices: Some((8, 32, 128)),
        models: &[
            ("Apple M1", 2.6, 8, 68.0),
            ("Apple M1 Pro", 5.2, 16, 200.0),
            ("Apple M1 Max", 10.4, 32, 400.0),
            ("Apple M1 Ultra", 21.0, 64, 800.0),
            ("Apple M2", 3.6, 10, 100.0),
            ("Apple M2 Pro", 0.0, 19, 200.0),
            ("Apple M2 Max", 0.0, 38, 400.0),
            ("Apple M2 Ultra", 0.0, 76, 800.0),
            ("Apple M3", 0.0, 10, 100.0),
            ("Apple M3 Pro", 0.0, 18, 150.0),
            ("Apple M3 Max", 0.0, 40, 400.0),
            ("Apple M3 Ultra", 0.0, 80, 819.0),
            ("Apple M4", 0.0, 10, 120.0),
            ("Apple M4 Pro", 0.0, 20, 273.0),
            ("Apple M4 Max", 0.0, 40, 546.0),
        ],
    },
];

/// Words in a name that mean a slower GPU: one of a laptop, or a part of one.
const SLOWER: [&str; 4] = ["laptop", "mobile", "q", "mig"];

/// Words after a model's name that make it another model, which the table may lack.
const OTHER_MODELS: [&str; 11] = ["ti", "super", "d", "xt", "xtx", "gre", "le", "pro", "max", "ultra", "nvl"];

impl PublishedGpu {
    /// The GPU that a driver calls `adapter`, if the table has it. The longest name wins: `NVIDIA GeForce RTX 4070 Ti
    /// SUPER` is not an `RTX 4070`. Laptop GPUs, whose clocks depend on the laptop, are unknown.
    pub fn named(adapter: &str) -> Option<Self> {
        let name = words(adapter);
        // Some drivers know only the chip and list the models that it was sold as: `RX 6800/6800 XT`.
        if adapter.contains('/') || name.iter().any(|word| SLOWER.contains(&word.as_str())) {
            return None;
        }
        let found = Self::all().filter_map(|gpu| {
            let words = words(gpu.model);
            let start = name.windows(words.len()).position(|part| part == words)?;
            Some((start + words.len(), gpu))
        });
        let (end, gpu) = found.max_by_key(|(end, _)| *end)?;
        let is_other = name.get(end).is_some_and(|word| OTHER_MODELS.contains(&word.as_str()));
        (!is_other).then_some(gpu)
    }

    /// The capabilities of a run on this GPU that names no tier: its units, and its matrices if the run
    /// `tries_matrices`.
    pub fn capabilities(&self, tries_matrices: bool) -> Capabilities {
        let capabilities = Capabilities::portable().with_units(self.units);
        match self.matrices {
            Some((matrices, _)) if tries_matrices && matrices.are_preferred() => {
                capabilities.with_matrices(matrices)
            }
            _ => capabilities,
        }
    }

    /// The whole table.
    pub fn all() -> impl Iterator<Item = Self> {
        FAMILIES.iter().flat_map(|family| {
            family.models.iter().map(|&(model, tflops, count, gigabytes)| Self {
                model,
                flops: (tflops > 0.0).then_some(1e12 * tflops),
                memory_bytes: 1e9 * gigabytes,
                units: Units { count, each: family.unit },
                multiply_adds: family.multiply_adds,
                issued: family.issued,
                matrices: family
                    .matrices
                    .map(|(side, subgroup, multiply_adds)| (Matrices { side, subgroup }, multiply_adds)),
            })
        })
    }
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
        assert!(PublishedGpu::all().count() > 80);
        for gpu in PublishedGpu::all() {
            assert_eq!(PublishedGpu::named(gpu.model), Some(gpu));
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
            ("AMD Custom GPU 0405 (RADV VANGOGH)", "Custom GPU 0405"),
            ("Intel(R) Arc(TM) A770 Graphics", "Arc A770"),
            ("Intel(R) Arc(tm) B580 Graphics (BMG G21)", "Arc B580"),
            ("Apple M1 Max (G13C C0)", "Apple M1 Max"),
            ("Apple M3 Max", "Apple M3 Max"),
        ] {
            assert_eq!(PublishedGpu::named(adapter).map(|gpu| gpu.model), Some(model), "{adapter}");
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
            "Apple M4 Ultra",
            "Apple M9",
        ] {
            assert_eq!(PublishedGpu::named(adapter), None, "{adapter}");
        }
    }

    /// The clocks that follow from peaks and units are plausible, so that a slip in a row shows.
    #[test]
    fn peaks_and_units_give_clocks() {
        for gpu in PublishedGpu::all() {
            let Some(flops) = gpu.flops else { continue };
            let clock = flops / f64::from(2 * gpu.multiply_adds * gpu.units.count);
            assert!((1.2e9..3.2e9).contains(&clock), "{}: {clock:e}", gpu.model);
            let balance = flops / gpu.memory_bytes;
            assert!((10.0..100.0).contains(&balance), "{}: {balance}", gpu.model);
        }
    }
}
