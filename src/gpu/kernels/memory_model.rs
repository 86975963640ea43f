//! SPIR-V in which barriers order memory, for kernels by cooperative matrices.
//!
//! A module with cooperative matrices declares Vulkan's memory model. In it an access is private to its invocation
//! unless it is marked, and a barrier hands on what was written only if it names availability and visibility. naga 30
//! writes neither: no barrier would order anything, and a driver could move an access across it. So every access to
//! memory that invocations share is marked here, and every barrier hands on what was written. The GLSL450 model, which
//! all other modules declare, implies both.

use super::compose::Composed;
use super::kernel::Kernel;
use crate::error::{Error, Result};
use naga::back::{PipelineConstants, pipeline_constants::process_overrides, spv};
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::{Capabilities, ValidationFlags, Validator};
use naga::{ResourceBinding, ShaderStage, TypeInner};
use std::collections::{HashMap, HashSet};

/// Words before the first instruction, and which of them is one past the highest id.
const HEADER: usize = 5;
const BOUND: usize = 3;

/// Opcodes of SPIR-V.
mod op {
    pub const MEMORY_MODEL: u32 = 14;
    pub const CAPABILITY: u32 = 17;
    pub const TYPE_POINTER: u32 = 32;
    pub const CONSTANT: u32 = 43;
    pub const FUNCTION_PARAMETER: u32 = 55;
    pub const VARIABLE: u32 = 59;
    pub const LOAD: u32 = 61;
    pub const STORE: u32 = 62;
    pub const ACCESS_CHAIN: u32 = 65;
    pub const IN_BOUNDS_ACCESS_CHAIN: u32 = 66;
    pub const CONTROL_BARRIER: u32 = 224;
    pub const MEMORY_BARRIER: u32 = 225;
    pub const COOPERATIVE_LOAD: u32 = 4457;
    pub const COOPERATIVE_STORE: u32 = 4458;
}

/// The memory model Vulkan, and the capability to order memory for the whole device in it, which `storageBarrier` does;
/// wgpu turns it on with cooperative matrices.
const VULKAN: u32 = 3;
const DEVICE_SCOPE: u32 = 5346;

/// The storage classes Workgroup and StorageBuffer.
const SHARED: [u32; 2] = [4, 12];

/// `NonPrivatePointer` of a memory access.
const NON_PRIVATE: u32 = 0x20;

/// `AcquireRelease`, `MakeAvailable` and `MakeVisible` of a barrier.
const HANDS_ON: u32 = 0x8 | 0x2000 | 0x4000;

/// The words of `kernel` for Vulkan, if it uses cooperative matrices; `None` if wgpu may write them. Bindings are
/// numbered in their order, as wgpu's bind group layouts are on Vulkan.
///
/// # Errors
/// naga cannot write the module, which is a defect of the shader.
pub fn ordered_spirv(kernel: &Kernel, composed: &Composed, is_checked: bool) -> Result<Option<Vec<u32>>> {
    let mut types = composed.module.types.iter();
    if !types.any(|(_, each)| matches!(each.inner, TypeInner::CooperativeMatrix { .. })) {
        return Ok(None);
    }
    let fault = |what: String| Error::Device(format!("shader {kernel} does not compile to SPIR-V: {what}"));
    // The module may have been unrolled since it was composed.
    let info = Validator::new(ValidationFlags::all(), Capabilities::all()).validate(&composed.module);
    let info = info.map_err(|error| fault(error.as_inner().to_string()))?;
    let entry = Some((ShaderStage::Compute, kernel.entry));
    let used = process_overrides(&composed.module, &info, entry, &PipelineConstants::default());
    let (module, info) = used.map_err(|error| fault(error.to_string()))?;
    let bindings = composed.variables.iter().zip(0..).map(|(variable, binding)| {
        let target = spv::BindingInfo { descriptor_set: 0, binding, binding_array_size: None };
        (ResourceBinding { group: 0, binding: variable.index }, target)
    });
    let policy = if is_checked { BoundsCheckPolicy::Restrict } else { BoundsCheckPolicy::Unchecked };
    let options = spv::Options {
        lang_version: (1, 3), // the oldest with cooperative matrices
        flags: spv::WriterFlags::empty(),
        fake_missing_bindings: false,
        binding_map: bindings.collect(),
        bounds_check_policies: BoundsCheckPolicies {
            index: policy,
            buffer: policy,
            image_load: policy,
            binding_array: policy,
        },
        // Every kernel writes it before reading.
        zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::None,
        force_loop_bounding: is_checked,
        emit_int_div_checks: is_checked,
        ..spv::Options::default()
    };
    let pipeline =
        spv::PipelineOptions { shader_stage: ShaderStage::Compute, entry_point: kernel.entry.to_string() };
    let words = spv::write_vec(&module, &info, &options, Some(&pipeline));
    Ok(Some(ordered(&words.map_err(|error| fault(error.to_string()))?)))
}

/// The same module with marked accesses, and with barriers that hand on what was written.
fn ordered(words: &[u32]) -> Vec<u32> {
    if !instructions(words).any(|each| code(each) == op::MEMORY_MODEL && each[2] == VULKAN) {
        return words.to_vec();
    }
    let semantics: HashSet<u32> = instructions(words)
        .filter_map(|each| match code(each) {
            op::CONTROL_BARRIER => Some(each[3]),
            op::MEMORY_BARRIER => Some(each[2]),
            _ => None,
        })
        .collect();
    let mut shared = HashSet::new(); // pointers to shared memory, and their types
    let mut handing_on = HashMap::new(); // constants of semantics, by those that they replace in barriers
    let mut bound = words[BOUND];
    let mut written = words[..HEADER].to_vec();
    written.extend([2 << 16 | op::CAPABILITY, DEVICE_SCOPE]);
    for each in instructions(words) {
        let mut new = each.to_vec();
        match code(each) {
            op::TYPE_POINTER if SHARED.contains(&each[2]) => _ = shared.insert(each[1]),
            op::VARIABLE | op::FUNCTION_PARAMETER | op::ACCESS_CHAIN | op::IN_BOUNDS_ACCESS_CHAIN
                if shared.contains(&each[1]) =>
            {
                shared.insert(each[2]);
            }
            op::CONSTANT if semantics.contains(&each[2]) => {
                handing_on.insert(each[2], bound);
                new.extend([each[0], each[1], bound, each[3] | HANDS_ON]);
                bound += 1;
            }
            op::LOAD if shared.contains(&each[3]) => mark(&mut new, 4),
            op::STORE if shared.contains(&each[1]) => mark(&mut new, 3),
            op::COOPERATIVE_LOAD if shared.contains(&each[3]) => mark(&mut new, 6),
            op::COOPERATIVE_STORE if shared.contains(&each[1]) => mark(&mut new, 5),
            op::CONTROL_BARRIER => new[3] = handing_on[&each[3]],
            op::MEMORY_BARRIER => new[2] = handing_on[&each[2]],
            _ => {}
        }
        written.extend(new);
    }
    written[BOUND] = bound;
    written
}

/// Marks an access whose memory operands start at word `at`, if it has any.
fn mark(instruction: &mut Vec<u32>, at: usize) {
    match instruction.get_mut(at) {
        Some(operands) => *operands |= NON_PRIVATE,
        None => {
            instruction.push(NON_PRIVATE);
            instruction[0] += 1 << 16;
        }
    }
}

/// The instructions of a module, each with its first word, which holds its opcode and how many words it has.
fn instructions(words: &[u32]) -> impl Iterator<Item = &[u32]> {
    let mut rest = &words[HEADER..];
    std::iter::from_fn(move || {
        let (instruction, after) = rest.split_at((rest.first()? >> 16) as usize);
        rest = after;
        Some(instruction)
    })
}

fn code(instruction: &[u32]) -> u32 {
    instruction[0] & 0xffff
}
