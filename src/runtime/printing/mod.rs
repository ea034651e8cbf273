//! What kernels print: records in memory → text → Python's standard output.
//!
//! * [`records`] reads what one launch has left, and attributes it to warps, in order;
//! * [`values`] writes a number as Python's `format` would;
//! * [`sink`] is where text goes;
//! * [`mailbox`] is a GPU's memory for records, and the gate behind each launch that opens when it is empty;
//! * [`collector`] is the thread that empties them.
//!
//! The emulator executes the same PTX into memory of its own: the text is made here for both.
mod collector;
pub mod mailbox;
pub mod records;
pub mod sink;
pub mod values;
