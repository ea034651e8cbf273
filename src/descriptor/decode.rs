//! Bytes → protobuf types, with the checks that protobuf itself does not make.
use super::proto;
use crate::error::{Error, Fault, Result};
use prost::Message;

/// The descriptor version that this crate writes and the newest that it reads.
const VERSION: u32 = 1;

/// Decodes a message; unknown fields are an error.
pub fn decode<M: Message + Default>(bytes: &[u8], what: &str) -> Result<M> {
    let message = M::decode(bytes).map_err(|e| damaged(format!("{what} cannot be decoded: {e}")))?;
    // A decoder skips unknown fields silently, so what it kept is shorter than what it read.
    if message.encoded_len() != bytes.len() {
        return Err(newer(format!("{what} has fields that this version does not know")));
    }
    Ok(message)
}

/// Decodes a kernel descriptor of a version that we know.
pub fn decode_kernel(bytes: &[u8]) -> Result<proto::KernelDescriptor> {
    let kernel: proto::KernelDescriptor = decode(bytes, "the kernel descriptor")?;
    match kernel.version {
        0 => Err(damaged("the kernel descriptor has no version")),
        VERSION => Ok(kernel),
        v => Err(newer(format!("the kernel descriptor has version {v}")).expected(format!("version {VERSION}"))),
    }
}

/// The bytes are no descriptor.
pub fn damaged(what: impl Into<String>) -> Error {
    Error::new(Fault::InvalidDescriptor, what)
}

/// The bytes may be right, but we cannot know what they mean.
pub fn newer(what: impl Into<String>) -> Error {
    damaged(format!("{}: made by a newer version of smalt, or damaged", what.into()))
        .remedy("use the smalt that made it, or a newer one")
}
