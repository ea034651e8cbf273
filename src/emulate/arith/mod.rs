//! The arithmetic of Hopper (sm_90a), bit for bit, as pure functions: no machine state, no memory, no registers.
//!
//! * [`tensor_core`]: one step of `wgmma` and `mma.sync`, exact, one output at a time: the reference.
//! * [`tensor_core_fast`]: whole tiles of the same step with SIMD, equal to the reference on every input.
//!
//! Architecture Invariant: nothing here imports another room, reads the environment, or depends on the host's rounding
//! mode; host arithmetic is assumed to keep subnormals (no FTZ/DAZ).

pub mod tensor_core;
pub mod tensor_core_fast;
