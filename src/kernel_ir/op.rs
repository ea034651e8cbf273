//! The operations, from the rows of their [table](super::table). What their attributes are is in [`attributes`](super::attributes).
//!
//! Result types are in the kernel's value table; a row's text says which results an op has and what it means exactly. Unless noted,
//! operands of element-wise ops and their result have one shape (the importer broadcasts), and an op is done by every lane of the
//! executing group.
//!
//! Arithmetic is lax's. Integers wrap. Floats are IEEE with round-to-nearest-even; a bf16, f16 or narrower operation is as if
//! done exactly and rounded once (add, sub, mul, div, sqrt) or done in f32 and rounded (everything else).
use super::class::{
    Class, Control, Function, Pure, ShapeOp, Transfer, elementwise, instructions, loads, shape, stores,
};
use super::effects::*;
use super::entities::{Alloc, Axis, Region, Value};
use super::legality::{Legality, arithmetic, launch, memory, tensor_core, tensor_memory};
use super::parse::{self, Parser};
use super::print::Printer;
use super::table::op_table;
use super::text::{Text, given, parse_field, print_field, visits};
use super::types::{Group, LayoutSpec};
use super::types_of::{Checked, Typing};
use super::view::RefUse;
use crate::dtype::DType;

pub use super::attributes::*;

/// What a row of the table says, for documents and tests.
pub struct RowInfo {
    /// Of the variant.
    pub variant: &'static str,
    /// In dumps and messages; several where a field gives it.
    pub names: fn() -> Vec<&'static str>,
    pub doc: &'static [&'static str],
    pub fields: &'static [FieldInfo],
    /// Its class, as the row has it.
    pub kind: &'static str,
}

pub struct FieldInfo {
    pub label: &'static str,
    pub name: &'static str,
    pub ty: &'static str,
    pub has_default: bool,
}

/// A row's check of something.
fn checked_by<T, R>(of: T, row: impl FnOnce(T) -> R) -> R {
    row(of)
}

macro_rules! name_of {
    ($name:literal) => {
        $name
    };
    ([$op:ident]) => {
        $op.name()
    };
}
macro_rules! names_of {
    ($name:literal) => {
        vec![$name]
    };
    ([$ty:ty]) => {
        <$ty>::ALL.iter().map(|op| op.name()).collect()
    };
}
macro_rules! class_of {
    (pinned) => {
        Class::Pinned
    };
    (tensor) => {
        Class::Tensor
    };
    (memory) => {
        Class::Memory
    };
    (transfer $transfer:expr) => {
        Class::Memory
    };
    (synchronisation) => {
        Class::Synchronisation
    };
    (accumulator) => {
        Class::Accumulator
    };
    (aside) => {
        Class::Aside
    };
    (control $control:expr) => {
        Class::Control($control)
    };
    (instructions $does:expr) => {
        instructions($does)
    };
    ($pure:ident $what:expr) => {
        Class::Pure($what)
    };
}
macro_rules! transfer_of {
    (transfer $transfer:expr) => {
        Some($transfer)
    };
    ($kind:ident $($class:expr)?) => {
        None
    };
}
macro_rules! is_promise {
    (promise) => {
        true
    };
    ($kind:ident) => {
        false
    };
}
macro_rules! has_default {
    () => {
        false
    };
    ($default:expr) => {
        true
    };
}
macro_rules! legality_of {
    ($l:ident) => {
        Ok(())
    };
    ($l:ident, $legal:expr) => {
        checked_by($l, $legal)
    };
}
/// The types and effects of a transfer are no row's own.
macro_rules! types_of {
    ($t:ident, transfer $transfer:expr) => {
        $t.transfer(&$transfer)
    };
    ($t:ident, $kind:ident $($class:expr)?, $types:expr) => {
        checked_by($t, $types)
    };
}
macro_rules! effects_of {
    (transfer $transfer:expr) => {
        transferred(&$transfer)
    };
    ($kind:ident $($class:expr)?) => {
        Effects::none()
    };
    ($kind:ident $($class:expr)?, $effects:expr) => {
        $effects
    };
}
/// Makes the ops of some classes patterns, for tables with an arm for each other op.
macro_rules! patterns {
    ([$($pure:tt)*] [$($transfer:tt)*] [$($synchronisation:tt)*] [$($aside:tt)*]) => {
        /// The ops of [`Class::Pure`].
        macro_rules! pure_ops { () => { $($pure)* }; }
        /// The ops that are [`Transfer`]s.
        macro_rules! transfer_ops { () => { $($transfer)* }; }
        /// The ops of [`Class::Synchronisation`].
        macro_rules! synchronisation_ops { () => { $($synchronisation)* }; }
        /// The ops of [`Class::Aside`].
        macro_rules! aside_ops { () => { $($aside)* }; }
    };
    ([$($pure:tt)*] $transfer:tt $synchronisation:tt $aside:tt pure $variant:ident $($rest:tt)*) => {
        patterns! { [$($pure)* | $crate::kernel_ir::OpKind::$variant { .. }] $transfer $synchronisation $aside $($rest)* }
    };
    ($pure:tt $transfer:tt $synchronisation:tt $aside:tt promise $variant:ident $($rest:tt)*) => {
        patterns! { $pure $transfer $synchronisation $aside pure $variant $($rest)* }
    };
    ($pure:tt [$($transfer:tt)*] $synchronisation:tt $aside:tt transfer $variant:ident $($rest:tt)*) => {
        patterns! { $pure [$($transfer)* | $crate::kernel_ir::OpKind::$variant { .. }] $synchronisation $aside $($rest)* }
    };
    ($pure:tt $transfer:tt [$($synchronisation:tt)*] $aside:tt synchronisation $variant:ident $($rest:tt)*) => {
        patterns! { $pure $transfer [$($synchronisation)* | $crate::kernel_ir::OpKind::$variant { .. }] $aside $($rest)* }
    };
    ($pure:tt $transfer:tt $synchronisation:tt [$($aside:tt)*] aside $variant:ident $($rest:tt)*) => {
        patterns! { $pure $transfer $synchronisation [$($aside)* | $crate::kernel_ir::OpKind::$variant { .. }] $($rest)* }
    };
    ($pure:tt $transfer:tt $synchronisation:tt $aside:tt $kind:ident $variant:ident $($rest:tt)*) => {
        patterns! { $pure $transfer $synchronisation $aside $($rest)* }
    };
}

macro_rules! define_ops {
    ($(
        $(#[doc = $doc:literal])*
        $variant:ident $($name:literal)? $(($of:ident : $of_ty:ty))?
        $({
            $([$op:ident : $op_ty:ty])?
            $($(#[doc = $field_doc:literal])* $($label:literal)? $field:ident : $ty:ty $(= $default:expr)?),* $(,)?
        })?
        $kind:ident $($class:expr)? $(, types $types:expr)? $(, legal $legal:expr)? $(, effects $effects:expr)?;
    )*) => {
        /// An operation; the [table](super::table) has the rows.
        #[derive(Clone, PartialEq, Eq, Hash, Debug)]
        pub enum OpKind {
            $($(#[doc = $doc])* $variant $(($of_ty))? $({ $($op: $op_ty,)? $($(#[doc = $field_doc])* $field: $ty),* })?),*
        }

        /// Every row, in the table's order.
        pub const ROWS: &[RowInfo] = &[$(
            RowInfo {
                variant: stringify!($variant),
                names: || names_of!($($name)? $($([$op_ty])?)?),
                doc: &[$($doc),*],
                fields: &[
                    $(FieldInfo { label: "", name: stringify!($of), ty: stringify!($of_ty), has_default: false })?
                    $($(FieldInfo {
                        label: super::text::label::<$ty>(given!($($label)?), stringify!($field)),
                        name: stringify!($field),
                        ty: stringify!($ty),
                        has_default: has_default!($($default)?),
                    }),*)?
                ],
                kind: stringify!($kind),
            }
        ),*];

        #[allow(unused_variables)]
        impl OpKind {
            /// The name in dumps and messages.
            pub fn name(&self) -> &'static str {
                match self {
                    $(OpKind::$variant $(($of))? $({ $($op,)? $($field),* })? => name_of!($($name)? $($([$op])?)?),)*
                }
            }

            /// What sort of op it is.
            pub fn class(&self) -> Class<'_> {
                match self {
                    $(OpKind::$variant $(($of))? $({ $($op,)? $($field),* })? => class_of!($kind $($class)?),)*
                }
            }

            /// What it moves between registers and memory, if that is all that it does.
            pub fn transfer(&self) -> Option<Transfer<'_>> {
                match self {
                    $(OpKind::$variant $(($of))? $({ $($op,)? $($field),* })? => transfer_of!($kind $($class)?),)*
                }
            }

            /// Whether its operands and results have the types that they must.
            pub(super) fn check_types<'t, 'a>(&self, t: &'t Typing<'a>) -> Checked<'t, 'a> {
                if self.is_pure() {
                    t.no_accumulators(self)?;
                }
                match self {
                    $(OpKind::$variant $(($of))? $({ $($op,)? $($field),* })? => types_of!(t, $kind $($class)? $(, $types)?),)*
                }
            }

            /// Whether what depends on its types alone can be compiled.
            pub(super) fn check_legality(&self, l: &Legality<'_>) -> crate::error::Result<()> {
                match self {
                    $(OpKind::$variant $(($of))? $({ $($op,)? $($field),* })? => legality_of!(l $(, $legal)?),)*
                }
            }

            /// Whether something of it is checked where it stands.
            pub(super) fn is_promise(&self) -> bool {
                match self { $(OpKind::$variant { .. } => is_promise!($kind),)* }
            }

            /// What it does to memory and its order.
            pub(super) fn effects(&self) -> Effects<'_> {
                match self {
                    $(OpKind::$variant $(($of))? $({ $($op,)? $($field),* })? => effects_of!($kind $($class)? $(, $effects)?),)*
                }
            }
        }

        #[allow(unused_variables)]
        impl Text for OpKind {
            fn print(&self, p: &mut Printer<'_>) -> std::fmt::Result {
                std::fmt::Write::write_str(p, self.name())?;
                match self {
                    $(OpKind::$variant $(($of))? $({ $($op,)? $($field),* })? => {
                        $($of.print_field("", p)?;)?
                        $($(print_field!(p, $field: $ty, [$($label)?], [$($default)?]);)*)?
                    })*
                }
                Ok(())
            }

            fn parse(p: &mut Parser<'_>) -> parse::Result<OpKind> {
                p.blanks();
                let start = p.at();
                let name = p.word("an op")?;
                $('row: {
                    $(if name != $name { break 'row; })?
                    $($(let Some($op) = <$op_ty>::from_name(name) else { break 'row };)?)?
                    $(let $of = <$of_ty>::parse(p)?;)?
                    $($(let $field: $ty = parse_field!(p, $field: $ty, [$($label)?], [$($default)?]);)*)?
                    return Ok(OpKind::$variant $(($of))? $({ $($op,)? $($field),* })?);
                })*
                p.error_at(start, format!("there is no op `{name}`"))
            }

            visits!($(
                OpKind::$variant $(($of))? $({ $($op,)? $($field),* })? => [$($of)? $($($field),*)?]
            ),*);
        }

        patterns! {
            [$crate::kernel_ir::OpKind::InlinePtx {
                does: $crate::kernel_ir::Does::Computes | $crate::kernel_ir::Does::Exchanges,
                ..
            }] [] [] [] $($kind $variant)*
        }
        pub(crate) use {aside_ops, pure_ops, synchronisation_ops, transfer_ops};
    };
}
op_table!(define_ops);
