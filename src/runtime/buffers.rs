//! The buffers of a launch: what the custom call passes, and what the kernel was compiled for.
use crate::error::{Error, RefId, Result};
use crate::kernel_ir::{Kernel, ParamBinding, ParamRole, num_elements};
use crate::ptx::launch::LaunchSpec;
use serde::{Deserialize, Serialize};

/// A buffer of the launch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BufferSpec {
    pub role: BufferRole,
    pub bytes: u64,
    /// E.g. `f32[64,128]`, for messages and random data.
    pub text: String,
    /// The operand whose memory this result is.
    #[serde(default)]
    pub alias_of: Option<u32>,
    /// What it is in the descriptor, for messages.
    #[serde(skip)]
    pub of: RefId,
}

impl BufferSpec {
    /// `output f32[64,128]`.
    pub fn in_words(&self) -> String {
        let role = match self.role {
            BufferRole::Input => "input",
            BufferRole::Output => "output",
            BufferRole::Mutable => "mutable",
            BufferRole::Scratch => "scratch",
            BufferRole::Position => "position",
        };
        format!("{role} {}", self.text)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BufferRole {
    /// Read.
    Input,
    /// Written.
    Output,
    /// Read and written in place.
    Mutable,
    /// Zeroed before the launch.
    Scratch,
    /// The executing device's position in its mesh, a `u32`.
    Position,
}

/// The buffers in the launch's numbering: operands, results, scratch.
pub fn of_kernel(kernel: &Kernel, launch: &LaunchSpec) -> Result<Vec<BufferSpec>> {
    let is_output = |role: &ParamRole| matches!(role, ParamRole::Output { .. });
    // Position of a parameter among the operands.
    let operand = |param: u32| {
        let before = &kernel.params[..param as usize];
        before.iter().filter(|param| !is_output(&param.role)).count() as u32
    };
    let mut buffers = Vec::new();
    for outputs in [false, true] {
        for param in kernel.params.iter().filter(|param| is_output(&param.role) == outputs) {
            let (role, alias_of) = match param.role {
                ParamRole::Input | ParamRole::Scalar => (BufferRole::Input, None),
                ParamRole::Mutable => (BufferRole::Mutable, None),
                ParamRole::Output { alias_of } => (BufferRole::Output, alias_of.map(operand)),
            };
            let bytes = param.ty.dtype().bytes(num_elements(param.ty.shape()));
            buffers.push(BufferSpec {
                role,
                bytes: bytes
                    .ok_or_else(|| Error::invalid(format!("a parameter of 2^61 bytes or more: {}", param.ty)))?,
                text: param.ty.to_string(),
                alias_of,
                of: match param.binding {
                    ParamBinding::Alloc(alloc) => kernel.refs[alloc],
                    ParamBinding::Scalar(_) => RefId::default(),
                },
            });
        }
    }
    buffers.extend(launch.scratch.iter().map(|scratch| BufferSpec {
        role: BufferRole::Scratch,
        bytes: scratch.bytes,
        text: format!("u8[{}]", scratch.bytes),
        alias_of: None,
        of: RefId::default(),
    }));
    buffers.extend(launch.mesh.iter().map(|mesh| BufferSpec {
        role: BufferRole::Position,
        bytes: 4,
        text: format!("u32[] (position among {} devices)", mesh.devices),
        alias_of: None,
        of: RefId::default(),
    }));
    Ok(buffers)
}
