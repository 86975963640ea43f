//! In modules by cooperative matrices, which declare Vulkan's memory model, every access to memory that invocations
//! share is marked as such, and every barrier makes what was written available and visible. Where a `spirv-val` is
//! installed that knows cooperative matrices, it accepts the modules.

use gristmill::kernels::{Composed, Kernel, ordered_spirv};
use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

/// Panics unless memory is in order in the module that a device gets, and out of order in the one of naga.
pub fn check(kernel: &Kernel, composed: &Composed, of_naga: &[u32]) {
    for is_checked in [false, true] {
        let words = ordered_spirv(kernel, composed, is_checked).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(words.is_some(), kernel.is_by_matrices(), "{kernel}");
        let Some(words) = words else { return };
        let faults = faults(&words);
        assert!(faults.is_empty(), "{kernel}: {faults:#?}");
        if *HAS_VALIDATOR {
            validate(kernel, &words);
        }
    }
    // The control: once naga writes what is missing, `ordered_spirv` has had its day.
    let faults = faults(of_naga);
    for expected in ["is private", "hands nothing on"] {
        assert!(faults.iter().any(|fault| fault.ends_with(expected)), "{kernel}: nothing {expected}");
    }
}

/// What of a module leaves memory unordered, by the tables of the SPIR-V specification.
fn faults(words: &[u32]) -> Vec<String> {
    let (mut pointers, mut constants) = (HashSet::new(), HashMap::new());
    let (mut has_model, mut faults) = (false, Vec::new());
    let mut rest = &words[5..];
    while let Some(first) = rest.first() {
        let (each, after) = rest.split_at((first >> 16) as usize);
        rest = after;
        let opcode = first & 0xffff;
        let mut access = |name: &str, pointer: u32, operands: usize| {
            let marks = each.get(operands).copied().unwrap_or(0);
            if pointers.contains(&pointer) && marks & 0x20 == 0 {
                faults.push(format!("{name} of %{pointer} is private"));
            }
        };
        match opcode {
            14 => has_model = each[2] == 3,
            32 if [4, 12].contains(&each[2]) => _ = pointers.insert(each[1]), // Workgroup, StorageBuffer
            43 => _ = constants.insert(each[2], each[3]),
            61 => access("OpLoad", each[3], 4),
            62 => access("OpStore", each[1], 3),
            63 => [1, 2].into_iter().for_each(|side| access("OpCopyMemory", each[side], 3)),
            4457 => access("OpCooperativeMatrixLoadKHR", each[3], 6),
            4458 => access("OpCooperativeMatrixStoreKHR", each[1], 5),
            224 | 225 => {
                let semantics = constants[&each[each.len() - 1]];
                // AcquireRelease, MakeAvailable, MakeVisible, and one of UniformMemory and WorkgroupMemory.
                if semantics & 0x6008 != 0x6008 || semantics & 0x140 == 0 {
                    faults.push(format!("a barrier with semantics {semantics:#x} hands nothing on"));
                }
            }
            // Whatever has the type of such a pointer is one: variables, arguments, places within them.
            54.. if each.len() > 2 && pointers.contains(&each[1]) => _ = pointers.insert(each[2]),
            _ => {}
        }
    }
    assert!(has_model, "the memory model is not Vulkan");
    faults
}

/// Whether `spirv-val` is installed, of at least v2023.4, the first with cooperative matrices.
static HAS_VALIDATOR: LazyLock<bool> = LazyLock::new(|| {
    let Ok(said) = Command::new("spirv-val").arg("--version").output() else { return false };
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let version = said.split_whitespace().find_map(|word| word.strip_prefix('v')?.split_once('.'));
    version.is_some_and(|(year, number)| {
        let number: String = number.chars().take_while(char::is_ascii_digit).collect();
        (year.parse().unwrap_or(0), number.parse().unwrap_or(0)) >= (2023, 4)
    })
});

fn validate(kernel: &Kernel, words: &[u32]) {
    let mut command = Command::new("spirv-val");
    command.args(["--target-env", "vulkan1.3", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().expect("spirv-val");
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    child.stdin.take().expect("a pipe").write_all(&bytes).expect("spirv-val reads");
    let output = child.wait_with_output().expect("spirv-val ends");
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{kernel}: {}", String::from_utf8_lossy(&said));
}
