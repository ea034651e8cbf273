//! The kernel descriptor: bytes from JAX's side → validated kernel IR. Its protobuf types never leave this room.
pub mod debug;

/// The types of `proto/descriptor.proto`.
pub(crate) mod proto {
    // Generated: it has what the schema has, used here or not.
    #![allow(clippy::all, dead_code)]
    include!(concat!(env!("OUT_DIR"), "/smalt.v1.rs"));
}
