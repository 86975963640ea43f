//! A finished recording, as plain data.

use super::exchange::{Collective, Exchange};
use super::fields::{Field, Scalar};
use super::span::Span;
use super::tensor::{BINDING_ALIGNMENT, Binding, BufferId, TransientId};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::kernels::{Access, Kernel, ParamsLayout, Variable};

/// Arguments of an indirect dispatch: three `u32`, the workgroups along x, y and z.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GridArguments {
    /// The buffer. The dispatch must not bind it as well, because WebGPU tracks usage per buffer.
    pub buffer: BufferId,
    /// Byte offset, a multiple of 4.
    pub offset: u64,
}

/// One GPU dispatch of a kernel.
#[derive(Clone, Debug)]
pub struct Dispatch {
    /// Path of the op that recorded it: `layers.3.feed_forward.w2`.
    pub path: String,
    /// The kernel variant.
    pub kernel: Kernel,
    /// The bound tensors, by the names of their variables, without the params struct.
    pub bindings: Vec<Binding>,
    /// The bytes of the params struct.
    pub params: Vec<u8>,
    /// The fields of the params struct.
    pub fields: &'static [Field],
    /// Workgroups along x, y and z; an upper bound if the dispatch is indirect.
    pub grid: [u32; 3],
    /// Set if the dispatch is indirect: where the device reads the grid.
    pub arguments: Option<GridArguments>,
}

impl Dispatch {
    /// The buffers that it binds or reads its grid from.
    pub fn buffers(&self) -> impl Iterator<Item = BufferId> + '_ {
        let bound = self.bindings.iter().map(|binding| binding.buffer);
        bound.chain(self.arguments.map(|arguments| arguments.buffer))
    }

    /// The ranges of buffers that it binds or reads its grid from.
    pub fn spans(&self) -> impl Iterator<Item = Span> + '_ {
        let bound = self.bindings.iter().map(Binding::span);
        let grid = self.arguments.map(|GridArguments { buffer, offset }| Span {
            buffer,
            offset,
            bytes: 12,
            element: Element::U32,
        });
        bound.chain(grid)
    }

    /// Bytes that the params struct occupies in the recording's uniform buffer, where each struct starts at a multiple
    /// of [`BINDING_ALIGNMENT`].
    pub fn params_slot(&self) -> u64 {
        (self.params.len() as u64).next_multiple_of(BINDING_ALIGNMENT)
    }

    /// The value of the field `name` of the params struct, if there is a field of that name with the type `u32`.
    pub fn param(&self, name: &str) -> Option<u32> {
        let field = self.fields.iter().find(|field| field.name == name && field.scalar == Scalar::U32)?;
        let word = self.params.get(field.offset..field.offset + 4)?;
        Some(u32::from_ne_bytes(word.try_into().ok()?))
    }

    /// The binding of `variable`, a variable of the kernel's entry point.
    ///
    /// # Errors
    /// Nothing is bound to the variable.
    pub fn binding_of(&self, variable: &Variable) -> Result<&Binding> {
        let given = self.bindings.iter().find(|binding| binding.variable == variable.name);
        given.ok_or_else(|| self.fault(&format!("nothing is bound to `{}`", variable.name)))
    }

    /// Checks that each binding belongs to one of `variables`, the variables of the kernel's entry point.
    ///
    /// # Errors
    /// The name of a binding that belongs to none of them.
    pub fn check_names(&self, variables: &[Variable]) -> Result<()> {
        let tensors = variables.iter().filter(|variable| variable.access != Access::Uniform);
        let names: Vec<&str> = tensors.map(|variable| variable.name.as_str()).collect();
        match self.bindings.iter().find(|binding| !names.contains(&binding.variable)) {
            None => Ok(()),
            Some(Binding { variable, .. }) => {
                Err(self.fault(&format!("binds `{variable}`, but its tensors are {}", names.join(", "))))
            }
        }
    }

    /// Checks that the params match those of the shader; `layout` is `None` if it declares no params struct.
    ///
    /// # Errors
    /// The first difference.
    pub fn check_params(&self, layout: Option<&ParamsLayout>) -> Result<()> {
        let fields = self.fields.iter().map(|field| (field.name, field.offset, field.scalar.name()));
        let difference = match layout {
            Some(layout) => layout.difference(&fields.collect::<Vec<_>>(), self.params.len()),
            None if self.params.is_empty() => None,
            None => {
                Some("the recording passes params, and the shader declares no uniform struct".to_string())
            }
        };
        difference.map_or(Ok(()), |what| Err(self.fault(&what)))
    }

    /// An error at this dispatch.
    pub(crate) fn fault(&self, what: &str) -> Error {
        let path = if self.path.is_empty() { "a dispatch" } else { &self.path };
        Error::Device(format!("{path} ({}): {what}", self.kernel))
    }
}

/// A buffer that lives within one recording, from its first to its last use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transient {
    /// Path and name, for memory reports.
    pub label: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Index of the first dispatch that uses it; `usize::MAX` if none does.
    pub first: usize,
    /// Index of the last dispatch that uses it; `usize::MAX` if it stays alive to the end (see `Recorder::keep`).
    pub last: usize,
}

/// Dispatches in order, the exchanges between them, and their transient buffers.
#[derive(Clone, Debug)]
pub struct Recording {
    /// `micro_step`, `update`, `eval`, `prefill`, `decode`.
    pub name: &'static str,
    /// The dispatches, in order.
    pub dispatches: Vec<Dispatch>,
    /// The exchanges with other ranks, in order; none in a run of one rank.
    pub exchanges: Vec<Exchange>,
    /// The transient buffers, indexed by [`TransientId`].
    pub transients: Vec<Transient>,
    /// The first dispatch of the second half, if the recording is replayed in two halves with others in between.
    pub cut: Option<usize>,
}

impl Recording {
    /// The transient buffer `id`.
    pub fn transient(&self, id: TransientId) -> &Transient {
        &self.transients[id.0 as usize]
    }

    /// Bytes of the params structs of all launches.
    pub fn params_bytes(&self) -> u64 {
        self.dispatches.iter().map(Dispatch::params_slot).sum()
    }

    /// Whether the first half (`is_first`), or else the second, ends by sending rows to another stage.
    pub fn sends(&self, is_first: bool) -> bool {
        let cut = self.cut.unwrap_or(usize::MAX);
        let is_of_half = |exchange: &&Exchange| exchange.is_after(cut) != is_first;
        let sent = |exchange: &Exchange| matches!(exchange.collective, Collective::Send { .. });
        self.exchanges.iter().filter(is_of_half).any(sent)
    }

    /// Whether `transient` has to keep its contents between the two halves, while others are replayed.
    pub fn keeps(&self, transient: &Transient) -> bool {
        self.cut.is_some_and(|cut| transient.first < cut && transient.last >= cut)
    }

    /// One line per dispatch: path, kernel variant and grid; and one per exchange: path, kind, bytes sent and ranks.
    /// Golden files hold this text.
    pub fn listing(&self) -> String {
        let bound = |d: &Dispatch| if d.arguments.is_some() { "at most " } else { "" };
        let mut exchanges = self.exchanges.iter().peekable();
        let mut lines = String::new();
        for index in 0..=self.dispatches.len() {
            while let Some(exchange) = exchanges.next_if(|exchange| exchange.at == index) {
                lines += &format!("{exchange}\n");
            }
            if let Some(d) = self.dispatches.get(index) {
                lines += &format!("{}: {} {}{:?}\n", d.path, d.kernel, bound(d), d.grid);
            }
        }
        lines
    }
}
