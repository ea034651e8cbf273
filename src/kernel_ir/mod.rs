//! The kernel IR: structured SSA over arrays, accumulators and uniform scalars, with references to memory.
//!
//! **Form.** A [`Kernel`] owns everything in arenas and is addressed by copyable ids: [`Value`] (`%v3`), [`Op`] (`op5`),
//! [`Region`] (`region2`), [`Alloc`] (`alloc1`), [`Axis`] (`axis1`). An op sits in exactly one region; a region sits in exactly
//! one op or is the kernel's body. A nested region sees every value defined before its op (captures need no parameters); what a
//! loop carries, and what a region yields, is explicit: [`RegionData::params`], [`RegionData::results`].
//!
//! **Values** have a [`Type`]: `scalar` (one number, bit-equal in all lanes of the group it is uniform over), `array`
//! (distributed over the executing group), `acc` (an accumulator of wgmma; linear: used at most once on every path).
//! References and barriers are no values: an op holds a [`RefUse`], an allocation and a view of it in logical coordinates.
//!
//! **Groups.** Every region has an executing [`Group`]. The kernel's body runs once in every *warpgroup* (a Pallas thread), all
//! warpgroups of a block concurrently; a `warp_map` region once in every warp of the warpgroup.
//!
//! **Order.** Ops run in program order in each executing group, as JAX's reference semantics have it: a load sees the latest store
//! of its own group. Asynchronous ops (copies, wgmma) take effect somewhere between their issue and the wait that covers them.
//!
//! **Stages.** The importer makes [`Stage::Imported`]; [`passes`](crate::passes) take a kernel from one to the next. What each
//! stage promises is in [`verify`].
//!
//! Architecture invariant: this room knows no layouts beyond what the user wrote ([`types::LayoutSpec`]), no PTX, and no protobuf.
pub mod alloc;
pub mod arithmetic;
mod attributes;
pub mod class;
pub mod effects;
pub mod entities;
pub mod executor;
pub mod facts;
pub mod intensity;
pub mod kernel;
pub mod legality;
pub mod liveness;
pub mod loads;
pub mod motion;
pub mod op;
pub mod parse;
pub mod polling;
pub mod print;
pub mod profile;
pub mod rewrite;
pub mod rings;
mod table;
#[doc(hidden)]
pub mod testing;
pub(crate) mod text;
pub mod text_format;
pub mod types;
mod types_of;
pub mod verify;
pub mod view;
pub mod visit;
pub mod words;

pub use alloc::{AllocData, AllocKind, ClusterBarrier, GmemOrigin, Owner, SmemTransforms, Within};
pub use entities::{Alloc, Axis, Op, Region, Value};
pub use kernel::{
    AxisData, AxisKind, CompilerParams, Dealing, FpContract, Kernel, LoweringSemantics, Note, OpData, ParamBinding,
    ParamData, ParamRole, ProfileScope, Quotients, RegionData, Semantics, Stage, ValueData,
};
pub use op::*;
pub use types::{Elem, Facts, Group, LayoutArg, LayoutDim, LayoutSpec, Shape, Type, num_elements};
pub use types_of::check_types;
pub use view::{DimIndex, Index, Place, RefUse, Step};
