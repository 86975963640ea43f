//! Every variant through naga's writers, as wgpu calls them on Vulkan, Metal and DX12, for which loops over arrays of
//! an invocation are unrolled: a shader that one of them refuses would fail only on machines that no test reaches. DX12
//! has no cooperative matrices.
//!
//! A variant of `portable` needs no optional feature, but for `shader-f16` in those that convert by it.

use crate::statements::statements;
use crate::{matrix_memory, memory_model};
use gristmill::element::Element::F32;
use gristmill::kernels::{Access, Composed, Condition, Kernel, Variable, compose, unroll};
use naga::back::pipeline_constants::process_overrides;
use naga::back::{PipelineConstants, hlsl, msl, spv};
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{AddressSpace, Expression, Function, Handle, Module, ResourceBinding, ShaderStage, Statement};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

/// Panics unless every API that can run a variant has it written, and, if it is one of GPUs, with arrays that stay in
/// registers.
pub fn check(kernel: &Kernel, mut composed: Composed, of_gpus: Option<&Indexed>) {
    let shader = Shader::new(kernel, &composed);
    let words = shader.spirv().unwrap_or_else(|e| panic!("{kernel}: SPIR-V: {e}"));
    memory_model::check(kernel, &composed, &words);
    if shader.has_matrices {
        matrix_memory::check(kernel, &shader.module, &shader.info);
        // Metal has matrices of 8 x 8 alone.
        if !kernel.conditions().any(|condition| condition == Condition::SmallMatrices) {
            return;
        }
        composed = compose(&kernel.clone().on_metal()).unwrap_or_else(|e| panic!("{e}"));
    }
    unroll(&mut composed.module);
    if let Some(indexed) = of_gpus {
        indexed.check(kernel, &composed.module);
    }
    let shader = Shader::new(kernel, &composed);
    shader.msl().unwrap_or_else(|e| panic!("{kernel}: MSL: {e}"));
    match shader.has_matrices {
        true => matrix_memory::check_on_metal(kernel, &shader.module, &shader.info),
        false => shader.hlsl().unwrap_or_else(|e| panic!("{kernel}: HLSL: {e}")),
    }
}

/// What is indexed by other values, by file and name: `values` by an argument that is a constant of each call, the
/// others are vectors, one of whose components is read or written outside of the loop over keys, or in the rarest form
/// of a rotation.
const INDEXED_BY_VALUES: [(&str, &str); 8] = [
    ("attention/portable/backward_kv", "values"),
    ("attention/portable/backward_q", "delta_of"),
    ("attention/portable/backward_q", "values"),
    ("attention/portable/decode", "a value"),
    ("attention/portable/forward", "highest"),
    ("attention/portable/forward", "total"),
    ("attention/portable/forward", "values"),
    ("rope", "a value"),
];

/// The arrays of an invocation that kernels index by more than constants: a GPU's compiler does not keep these in
/// registers.
#[derive(Default)]
pub struct Indexed(Mutex<BTreeSet<(&'static str, String)>>);

impl Indexed {
    /// Panics if an unrolled module has one that is not expected.
    fn check(&self, kernel: &Kernel, module: &Module) {
        let functions = module.functions.iter().map(|(_, function)| function);
        for function in functions.chain(module.entry_points.iter().map(|entry| &entry.function)) {
            for array in arrays_indexed_by_values(module, function) {
                let is_known = INDEXED_BY_VALUES.contains(&(kernel.file, &array));
                assert!(is_known, "{kernel}: `{array}` is indexed by values");
                self.0.lock().expect("no thread panics with it").insert((kernel.file, array));
            }
        }
    }

    /// Panics unless each expected one was found.
    pub fn are_all(self) {
        let found = self.0.into_inner().expect("no thread panicked with it");
        let expected = INDEXED_BY_VALUES.map(|(file, array)| (file, array.to_string()));
        assert_eq!(found.into_iter().collect::<Vec<_>>(), expected);
    }
}

#[test]
#[should_panic(expected = "`sums` is indexed by values")]
fn an_array_that_is_indexed_by_values_is_found() {
    let module = naga::front::wgsl::parse_str(include_str!("writers/indexed.wgsl")).expect("WGSL");
    Indexed::default().check(&Kernel::new("mine/file", "main", F32), &module);
}

/// The names of a function's arrays, of those of its invocation, and of arguments, that it indexes by what it computes.
fn arrays_indexed_by_values(module: &Module, function: &Function) -> BTreeSet<String> {
    let expressions = &function.expressions;
    let root = |mut base: Handle<Expression>| loop {
        match expressions[base] {
            Expression::Access { base: outer, .. } | Expression::AccessIndex { base: outer, .. } => {
                base = outer
            }
            Expression::LocalVariable(variable) => return function.local_variables[variable].name.clone(),
            Expression::FunctionArgument(index) => return function.arguments[index as usize].name.clone(),
            Expression::GlobalVariable(variable) => {
                let variable = &module.global_variables[variable];
                return variable.name.clone().filter(|_| variable.space == AddressSpace::Private);
            }
            _ => return Some("a value".to_string()),
        }
    };
    let emitted = statements(&function.body).into_iter().filter_map(|(statement, _)| match statement {
        Statement::Emit(range) => Some(range.clone()),
        _ => None,
    });
    emitted
        .flatten()
        .filter_map(|each| match expressions[each] {
            Expression::Access { base, .. } => root(base),
            _ => None,
        })
        .collect()
}

struct Shader<'a> {
    entry: &'a str,
    composed: &'a Composed,
    /// The module with nothing but what the entry point uses.
    module: Module,
    info: ModuleInfo,
    /// Whether it needs subgroups, which no shader of the tier `portable` may.
    has_subgroups: bool,
    /// Whether it needs 64-bit integers, which only products on software adapters do.
    has_u64: bool,
    /// Whether it needs `shader-f16`, which only the variants with conversions of the adapter's own, or by matrices,
    /// do.
    has_f16: bool,
    has_matrices: bool,
}

impl<'a> Shader<'a> {
    /// Validated with the capabilities that WebGPU demands of every adapter, or with these and the features it may
    /// need.
    fn new(kernel: &'a Kernel, composed: &'a Composed) -> Self {
        let has = |wanted| kernel.conditions().any(|condition| condition == wanted);
        let has_matrices = kernel.is_by_matrices();
        let has_subgroups = has(Condition::Shuffled) || has_matrices;
        let has_f16 = has(Condition::NativeF16) || has_matrices;
        let has_u64 = has(Condition::Wide);
        let mut capabilities = Capabilities::SHADER_FLOAT16_IN_FLOAT32; // unpack2x16float
        capabilities.set(Capabilities::SUBGROUP, has_subgroups);
        capabilities.set(Capabilities::SHADER_INT64, has_u64);
        capabilities.set(Capabilities::SHADER_FLOAT16, has_f16);
        capabilities.set(Capabilities::COOPERATIVE_MATRIX, has_matrices);
        let mut validator = Validator::new(ValidationFlags::all(), capabilities);
        let info = validator.validate(&composed.module);
        let info = info.unwrap_or_else(|e| panic!("{kernel}: {}", e.emit_to_string(&composed.wgsl)));
        let entry = Some((ShaderStage::Compute, kernel.entry));
        let compact = process_overrides(&composed.module, &info, entry, &PipelineConstants::default());
        let (module, info) = compact.unwrap_or_else(|e| panic!("{kernel}: {e}"));
        let (module, info) = (module.into_owned(), info.into_owned());
        Self { entry: kernel.entry, composed, module, info, has_subgroups, has_u64, has_f16, has_matrices }
    }

    fn has_features(&self) -> bool {
        self.has_subgroups || self.has_u64 || self.has_f16
    }

    /// The oldest SPIR-V that wgpu writes, or that of the features it needs.
    fn spirv(&self) -> Result<Vec<u32>, spv::Error> {
        let target = |variable: &Variable| {
            let target =
                spv::BindingInfo { descriptor_set: 0, binding: variable.index, binding_array_size: None };
            (resource(variable.index), target)
        };
        let options = spv::Options {
            lang_version: match (self.has_matrices, self.has_features()) {
                (true, _) => (1, 6),
                (false, true) => (1, 3),
                (false, false) => (1, 0),
            },
            fake_missing_bindings: false,
            binding_map: self.composed.variables.iter().map(target).collect(),
            capabilities: (!self.has_features()).then(|| [spv::Capability::Shader].into_iter().collect()),
            bounds_check_policies: CHECKED,
            ..spv::Options::default()
        };
        let pipeline =
            spv::PipelineOptions { shader_stage: ShaderStage::Compute, entry_point: self.entry.into() };
        spv::write_vec(&self.module, &self.info, &options, Some(&pipeline))
    }

    /// Buffers have consecutive slots, and the sizes of arrays come after them.
    fn msl(&self) -> Result<(), String> {
        let mut resources = BTreeMap::new();
        for (slot, variable) in self.composed.variables.iter().enumerate() {
            let buffer = Some(slot as msl::Slot);
            let mutable = variable.access == Access::ReadWrite;
            let target = msl::BindTarget { buffer, mutable, ..msl::BindTarget::default() };
            resources.insert(resource(variable.index), target);
        }
        let sizes_buffer = Some(resources.len() as msl::Slot);
        let entry = msl::EntryPointResources { resources, immediates_buffer: None, sizes_buffer };
        let options = msl::Options {
            lang_version: if self.has_matrices { (2, 3) } else { (2, 1) },
            per_entry_point_map: BTreeMap::from([(self.entry.to_string(), entry)]),
            fake_missing_bindings: false,
            bounds_check_policies: CHECKED,
            ..msl::Options::default()
        };
        let pipeline = msl::PipelineOptions {
            entry_point: Some((ShaderStage::Compute, self.entry.into())),
            ..msl::PipelineOptions::default()
        };
        let written = msl::write_string(&self.module, &self.info, &options, &pipeline);
        let (_, translation) = written.map_err(|e| e.to_string())?;
        for name in translation.entry_point_names {
            name.map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    /// A register of its kind for each buffer; the shader model of DX12's older compiler, or the oldest with the
    /// features it needs.
    fn hlsl(&self) -> Result<(), hlsl::Error> {
        let mut next = [0; 3];
        let mut binding_map = hlsl::BindingMap::new();
        for variable in &self.composed.variables {
            let register = &mut next[variable.access as usize];
            let target = hlsl::BindTarget { register: *register, ..hlsl::BindTarget::default() };
            binding_map.insert(resource(variable.index), target);
            *register += 1;
        }
        let options = hlsl::Options {
            shader_model: match (self.has_subgroups, self.has_f16) {
                (_, true) => hlsl::ShaderModel::V6_2,
                (true, false) => hlsl::ShaderModel::V6_0,
                (false, false) => hlsl::ShaderModel::V5_1,
            },
            binding_map,
            fake_missing_bindings: false,
            ..hlsl::Options::default()
        };
        let pipeline = hlsl::PipelineOptions { entry_point: Some((ShaderStage::Compute, self.entry.into())) };
        let mut text = String::new();
        let mut writer = hlsl::Writer::new(&mut text, &options, &pipeline);
        let reflection = writer.write(&self.module, &self.info, None)?;
        for name in reflection.entry_point_names {
            name.map_err(|e| hlsl::Error::Custom(e.to_string()))?;
        }
        let is_definition = |line: &&str| line.ends_with(") {") && !line.starts_with([' ', '}']);
        let mut defined = BTreeSet::new();
        match text.lines().filter(is_definition).find(|line| !defined.insert(*line)) {
            Some(line) => Err(hlsl::Error::Custom(format!("defined twice: {line}"))),
            None => Ok(()),
        }
    }
}

/// The run-time checks of a device with its default options.
const CHECKED: BoundsCheckPolicies = BoundsCheckPolicies {
    index: BoundsCheckPolicy::Restrict,
    buffer: BoundsCheckPolicy::Restrict,
    image_load: BoundsCheckPolicy::Restrict,
    binding_array: BoundsCheckPolicy::Unchecked,
};

fn resource(binding: u32) -> ResourceBinding {
    ResourceBinding { group: 0, binding }
}
