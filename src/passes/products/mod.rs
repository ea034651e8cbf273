//! Products of the tensor cores: which run at the same time, in which accumulators, with which operands.
pub mod carry_accumulators;
pub mod fuse_sums;
pub mod overlap_products;
pub mod stage_operands;
pub mod wgmma_groups;
