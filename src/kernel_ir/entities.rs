//! The ids of the kernel IR. They print as they appear in dumps.
use cranelift_entity::entity_impl;

/// A value: the result of an op or the parameter of a region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value(u32);
entity_impl!(Value, "%v");

/// An operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Op(u32);
entity_impl!(Op, "op");

/// A list of ops with parameters and results.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Region(u32);
entity_impl!(Region, "region");

/// Memory, barriers or semaphores: a kernel parameter or what a scope allocates.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Alloc(u32);
entity_impl!(Alloc, "alloc");

/// An axis of the grid, the cluster, the block's warpgroups, a warp region or the device mesh.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Axis(u32);
entity_impl!(Axis, "axis");
