//! The emulator's arithmetic against the hardware: recorded results of the tensor core, hashes of the special functions.
mod rng;
mod tensor_core;
