//! From descriptor bytes to the kernel IR.
//!
//! The bytes are untrusted: any byte string gives a kernel or an [`Error`]. [`import`] decodes, checks every op against the
//! vocabulary (`docs/descriptor.md`: arity, element types, shapes, scoping) and builds a kernel at
//! [`Stage::Imported`](crate::kernel_ir::Stage). What the vocabulary has and this crate lacks is an error of
//! [`Fault::Unsupported`](crate::error::Fault) that names the primitive and carries the op's id; [`DebugTable`] turns that into the user's line.
//!
//! Architecture invariant: the protobuf types never leave this room.
mod arrays;
mod compose;
mod control;
mod debug_table;
mod decode;
mod gather;
mod half_bytes;
mod import;
mod indexed;
mod masked;
mod memory;
mod multicast;
mod op_reader;
mod order;
mod products;
mod refs;
mod remedies;
mod tensor_memory;
mod types;

pub use debug_table::{DebugTable, Frame};
pub use import::import;
pub use types::decode_layout;

/// The generated protobuf types.
mod proto {
    #![allow(clippy::all)]
    include!(concat!(env!("OUT_DIR"), "/smalt.v1.rs"));
}
