//! The arithmetic of Hopper (sm_90a), bit for bit, as pure functions: no machine state, no memory, no registers.
//!
//! * [`tensor_core`]: one step of `wgmma` and `mma.sync`, exact, one output at a time: the reference.
//! * [`tensor_core_fast`]: whole tiles of the same step with SIMD, equal to the reference on every input.
//! * [`mma_sync`]: that step on one warp's registers.
//! * [`special`]: the approximate functions of the special-function unit, and the divisions built on it.
//! * [`convert`], [`float`]: the other instructions on floats, as scalar functions to be vectorised by their callers.
//!
//! Architecture Invariant: nothing here imports another room, reads the environment, or depends on the host's rounding
//! mode; host arithmetic is assumed to keep subnormals (no FTZ/DAZ).

pub mod convert;
pub mod exact;
pub mod float;
pub mod mma_sync;
pub mod special;
mod special_tables;
pub mod tensor_core;
pub mod tensor_core_fast;

/// Whether the AVX2 tier of this module can run: the x86-64-v3 level, as far as used.
#[cfg(target_arch = "x86_64")]
#[inline]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("f16c")
        && is_x86_feature_detected!("popcnt")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
}
