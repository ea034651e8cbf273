//! The emulator's arithmetic against the hardware: recorded results of the tensor core, hashes of the special functions.
mod integer;
mod rng;
mod scalar;
mod special;
mod tensor_core;
