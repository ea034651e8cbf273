//! PTX in two forms; see `docs/ARCHITECTURE.md`.
pub mod launch;
