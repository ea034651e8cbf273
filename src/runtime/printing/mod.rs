//! What kernels print: records in memory → text → Python's standard output.
//!
//! * [`records`] reads what one launch has left, and says who printed what, in order;
//! * [`values`] writes a number as Python's `format` would;
//! * [`sink`] is where text goes;
//! * [`mailbox`] is a GPU's memory for records, and the call behind each launch that empties it.
//!
//! The emulator executes the same PTX into memory of its own: the text is made here for both.
pub mod mailbox;
pub mod records;
pub mod sink;
pub mod values;
