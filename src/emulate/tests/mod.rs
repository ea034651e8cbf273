//! Tests of the emulator on kernels made by hand.
mod build;
mod communicate;
mod control;
mod copies;
mod maps;
mod memory;
mod mma;
mod scalar;
mod synchronise;
mod tensor;
mod tensor_memory;
mod written;
