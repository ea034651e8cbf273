//! Checks of indices: where a view begins must lie in its dimension, whatever else the buffer holds there.
//!
//! An address outside of a buffer shows by itself; one that is in another row, or in the next allocation, does not. So
//! lowering says beside an access what it could not prove, in a comment (`CheckIndex` of the instruction table): the
//! GPU's assembler skips it, and here it is executed.
use super::check::Hooks;
use super::machine::Machine;
use super::options::Names;
use super::uop::{Body, Flow, Step, Uop, fail};
use super::warp::{Warp, lanes};
use crate::error::{Error, Fault};
use crate::ptx::modifier::{Indexed, IntType};

/// One check: of the index on, `size` positions lie in a dimension of `extent`; of a hint, that the index is a multiple of `size`.
#[derive(Clone, Copy, Debug)]
pub struct IndexCheck {
    pub ty: IntType,
    pub of: Indexed,
    /// A buffer's number, an offset in shared memory, or a column of the block's tensor memory.
    pub place: i64,
    pub dim: i64,
    pub size: i64,
    pub extent: i64,
}

/// `a` is the index, `aux` the [`IndexCheck`].
pub struct CheckIndex;

impl<H: Hooks> Body<H> for CheckIndex {
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let check = m.program.checks[u.aux as usize];
        for lane in lanes(w.exec) {
            let index = match check.ty {
                IntType::U64 => i128::from(w.read::<u64>(u.a)[lane]),
                IntType::S64 => i128::from(w.read::<u64>(u.a)[lane] as i64),
                IntType::U16 | IntType::U32 => i128::from(w.read::<u32>(u.a)[lane]),
                IntType::S16 => i128::from(w.read::<u32>(u.a)[lane] as i16),
                IntType::S32 => i128::from(w.read::<u32>(u.a)[lane] as i32),
            };
            if check.of == Indexed::Hint {
                if index % i128::from(check.size) != 0 {
                    return fail(untrue(check.size, index));
                }
            } else if check.of == Indexed::Named {
                if index < i128::from(check.place) || index >= i128::from(check.extent) {
                    return fail(unnamed(&check, index));
                }
            } else if index < 0 || index + i128::from(check.size) > i128::from(check.extent) {
                // The access itself says whether it leaves its buffer.
                let error = outside(&m.options.names, &check, index);
                let verdict = match check.of {
                    Indexed::Buffer | Indexed::Shared | Indexed::Tensor => m.judge(w, Err(Box::new(error))),
                    Indexed::Barriers | Indexed::Devices | Indexed::Hint | Indexed::Named => Err(Box::new(error)),
                };
                return verdict.map(|()| Flow::Next);
            }
        }
        Ok(Flow::Next)
    }
}

/// An unchecked text: `aux` is what of it the table does not have.
pub struct Unknown;

impl<H: Hooks> Body<H> for Unknown {
    fn run(_: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let text = m.program.unknown[u.aux as usize].clone();
        let error = match text.is_empty() {
            true => Error::unsupported("unchecked inline PTX, in the emulator")
                .remedy("leave out `unchecked`: all of its instructions are in smalt's table"),
            false => Error::unsupported(format!(
                "the emulator does not have an instruction of inline PTX: {text}"
            ))
            .expected("instructions of the table (docs/INSTRUCTIONS.md)")
            .remedy("run it on a GPU, or branch around it here"),
        };
        fail(error)
    }
}

fn untrue(divisor: i64, got: i128) -> Error {
    Error::new(Fault::Execution, "a hint that is not true (pl.multiple_of)")
        .expected(format!("a multiple of {divisor}"))
        .got(got.to_string())
        .remedy("say what is true: what follows is compiled for it")
}

fn unnamed(check: &IndexCheck, got: i128) -> Error {
    Error::new(
        Fault::Execution,
        "a named barrier that is not among those that were declared",
    )
    .expected(format!("a number from {} to {}", check.place, check.extent - 1))
    .got(got.to_string())
    .remedy("declare all that it may be (`among` of smalt.named_barrier_sync), or compute it within them")
}

fn outside(names: &Names, check: &IndexCheck, index: i128) -> Error {
    let IndexCheck {
        place,
        dim,
        size,
        extent,
        ..
    } = *check;
    let whose = match check.of {
        Indexed::Buffer => format!("{}, which", names.buffer(usize::try_from(place).unwrap_or(usize::MAX))),
        Indexed::Tensor => format!("the reference in tensor memory that begins at column {place}, which"),
        Indexed::Shared => format!(
            "shared memory {}, which",
            names.place(u32::try_from(place).unwrap_or(u32::MAX))
        ),
        Indexed::Barriers => format!(
            "barriers {}, which",
            names.place(u32::try_from(place).unwrap_or(u32::MAX))
        ),
        Indexed::Devices => {
            return Error::new(Fault::Execution, "a device that is not there")
                .expected(format!("a logical id from 0 to {}", extent - 1))
                .got(index.to_string())
                .remedy("count around the mesh (`(i + 1) % lax.axis_size(axis)`)");
        }
        Indexed::Hint => return untrue(size, index),
        Indexed::Named => return unnamed(check, index),
    };
    let (expected, got) = if size == 1 {
        (
            format!("an index from 0 to {}", extent - 1),
            format!("{index} in dimension {dim} of {whose} has {extent} there"),
        )
    } else {
        (
            format!("a slice of {size} that starts from 0 to {}", extent - size),
            format!(
                "{index} to {} in dimension {dim} of {whose} has {extent} there",
                index + i128::from(size) - 1
            ),
        )
    };
    Error::new(Fault::Execution, "an index outside of its dimension")
        .expected(expected)
        .got(got)
        .remedy("bound the index (indices at run time are not clamped), or do nothing there (pl.when)")
}
