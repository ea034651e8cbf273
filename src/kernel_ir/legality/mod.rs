//! What can be compiled, said once: by types and views, before any layout is chosen.
//!
//! * [`arithmetic`]: which op there is of which element type;
//! * [`tensor_core`]: wgmma and accumulators; [`tensor_memory`]: products in tensor memory;
//! * [`memory`]: references, copies, barriers and semaphores;
//! * [`registers`]: views of references to registers;
//! * [`launch`]: threads, clusters, grids, registers.
//!
//! [`run`] reports at the user's line, when a kernel is normalised: what is not needed is gone by then, and what is left will be
//! lowered; the passes between insert nothing but changes of layout and barriers. What depends on layouts is decided in `plan/`.
pub mod arithmetic;
pub mod launch;
pub mod memory;
pub mod registers;
pub mod tensor_core;
pub mod tensor_memory;

use super::*;
use crate::dtype::DType;
use crate::error::{Error, Loc, Result};

/// Refuses a normalised kernel that cannot be compiled.
pub fn run(kernel: &Kernel) -> Result<()> {
    let scalars = kernel
        .params
        .iter()
        .filter(|p| matches!(p.binding, ParamBinding::Scalar(_)));
    for param in scalars {
        memory::scalar(param.ty.dtype()).map_err(|e| e.at(Loc::CALL_SITE))?;
    }
    kernel.try_for_each_op(&mut |id| op(kernel, id))?;
    launch::peers(kernel)?;
    profile::check(kernel)
}

/// Whether an op of a normalised kernel can be compiled: it itself, and each of its references.
pub fn op(kernel: &Kernel, op: Op) -> Result<()> {
    let data = &kernel.ops[op];
    data.kind.check_legality(&Legality { kernel, data })?;
    let mut result = Ok(());
    // Nothing is done to what `print_layout` reports on.
    if !matches!(data.kind, OpKind::PrintLayout { .. }) {
        visit::for_each_ref(&data.kind, &mut |r| {
            if result.is_ok() {
                result = memory::reference(kernel, &data.kind, r);
            }
        });
    }
    result
}

/// An op and its kernel: what the rows of the [table](super::table) check.
pub(super) struct Legality<'a> {
    pub kernel: &'a Kernel,
    data: &'a OpData,
}

impl Legality<'_> {
    pub fn dtype(&self, v: Value) -> DType {
        self.kernel.ty(v).dtype()
    }
    pub fn result(&self) -> Value {
        self.data.results[0]
    }
    pub fn result_dtype(&self) -> DType {
        self.dtype(self.result())
    }

    /// A function that is defined for some types.
    pub fn defined(&self, a: Value, is_defined: bool) -> Result<()> {
        arithmetic::is_defined(&self.data.kind, self.dtype(a), is_defined)
    }

    /// What does not depend on the types.
    fn lacks(&self, what: &str, remedy: &str) -> Result<()> {
        Err(Error::unsupported(format!("{}: {what}", self.data.kind.name())).remedy(remedy))
    }

    pub fn loaded(&self) -> Result<()> {
        match self.kernel.ty(self.result()).is_scalar() {
            true => memory::scalar(self.result_dtype()),
            false => Ok(()),
        }
    }

    pub fn stored(&self, value: Value) -> Result<()> {
        let ty = self.kernel.ty(value);
        match ty.is_scalar() {
            true => memory::scalar(ty.dtype()),
            false if ty.dtype().bits() < 8 => memory::whole_bytes(ty),
            false => Ok(()),
        }
    }

    pub fn async_store(&self, barrier: &RefUse, atomic: Option<AtomicOp>, value: Value) -> Result<()> {
        memory::arrival(self.kernel, barrier)?;
        if let Some(op) = atomic {
            arithmetic::async_reduction(op, self.dtype(value))?;
        }
        match self.kernel.ty(value).is_scalar() {
            true => self.lacks("a scalar", "an array, one element for each thread or more"),
            false => Ok(()),
        }
    }

    pub fn copy_in(
        &self,
        collective_axes: &[Axis],
        leader_tracked: Option<LeaderTracked>,
        by_threads: bool,
    ) -> Result<()> {
        match (leader_tracked, by_threads) {
            (Some(_), _) => self.lacks(
                "leader-tracked copies",
                "copy with collective_axes, or each block its part",
            ),
            (None, true) if !collective_axes.is_empty() => self.lacks(
                "copies by threads that blocks share",
                "pass a barrier (plgpu.Barrier), and wait for it, or let each block copy its part",
            ),
            (None, _) => Ok(()),
        }
    }

    pub fn copy_out(&self, src: &RefUse, reduction: Option<CopyReduction>, by_threads: bool) -> Result<()> {
        let (Some(op), Some(dtype), true) = (reduction, src.dtype(), by_threads) else {
            return Ok(());
        };
        let is_word = matches!(dtype.bits(), 32 | 64);
        let has = match op {
            CopyReduction::Add => is_word || dtype == DType::F16,
            CopyReduction::Min | CopyReduction::Max => is_word && dtype.is_int(),
            CopyReduction::Inc | CopyReduction::Dec => dtype == DType::U32,
            CopyReduction::And | CopyReduction::Or | CopyReduction::Xor => is_word,
        };
        match has {
            true => Ok(()),
            false => self.lacks(
                &format!(
                    "a copy that reduces {dtype} in device memory, on {}",
                    self.kernel.target.name
                ),
                "combine it with plgpu.atomic_add, or in a type of 32 or 64 bits",
            ),
        }
    }

    pub fn prefetch(&self, collective_axes: &[Axis], leader_tracked: Option<LeaderTracked>) -> Result<()> {
        match leader_tracked.is_some() || !collective_axes.is_empty() {
            true => self.lacks(
                "prefetches shared by blocks",
                "let each block prefetch its part, without collective_axes",
            ),
            false => Ok(()),
        }
    }

    pub fn print(&self, format: &str, args: &[Value]) -> Result<()> {
        for piece in text_format::parse(format, args.len())? {
            if let text_format::Piece::Field(field) = piece {
                field.check(self.dtype(args[field.arg]))?;
            }
        }
        Ok(())
    }
}
