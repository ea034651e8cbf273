//! The passes of the kernel IR, each held against what the kernel computed before it.
//!
//! | variable | |
//! |---|---|
//! | `SMALT_PASSES_FOLDER` | descriptors (`*.pb`) to go through besides |
//! | `SMALT_PASSES_RANDOM` | how many random kernels, 400 if not given |
//! | `SMALT_PASSES_SEED` | the first one's seed, 0 if not given |
//! | `SMALT_PASSES_FUEL` | elements that one run may compute |
mod dead_regions;
mod differential;
mod files;
mod generate;
mod interpret;
mod order;
mod round_trip;
