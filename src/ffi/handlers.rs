//! What the handlers do, by stage.
use super::bridge::{self, Attributes, Buffer, Handler, Platform, Status};
use crate::error::{Error, Fault};
use crate::runtime::{self, BufferView, CallSite, Locations};
use smallvec::SmallVec;

/// The state of one call site: a kernel ready to run, or why it is none.
pub struct Kernel(Result<CallSite, Status>);

impl Kernel {
    pub(super) fn status(&self) -> Status {
        match &self.0 {
            Ok(_) => ok(),
            Err(status) => Status {
                code: status.code,
                message: status.message.clone(),
            },
        }
    }
}

/// XLA's threads share it; cxx does not check that of opaque types.
const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<Kernel>();
};

/// The address of an `XLA_FFI_Handler`, to be wrapped in a PyCapsule; 0 if the number names none.
#[unsafe(no_mangle)]
pub extern "C" fn smalt_xla_handler(number: u32) -> usize {
    let handlers = [
        Handler::InstantiateCpu,
        Handler::ExecuteCpu,
        Handler::InstantiateCuda,
        Handler::InitializeCuda,
        Handler::ExecuteCuda,
        Handler::ExecuteCudaUncaptured,
    ];
    handlers
        .get(number as usize)
        .map_or(0, |handler| bridge::handler_address(*handler))
}

pub(super) fn instantiate(platform: Platform, attributes: &Attributes) -> Box<Kernel> {
    let locations = runtime::contain_panics(|| Ok(Locations::decode(attributes.debug))).unwrap_or_default();
    let site = runtime::contain_panics(|| {
        let attributes = runtime::CallSiteAttributes {
            descriptor: attributes.descriptor,
            debug: attributes.debug,
            hash: text("hash", attributes.hash)?,
            target: text("target", attributes.target)?,
            flags: attributes.flags,
        };
        let site = CallSite::new(attributes, locations.clone())?;
        if platform == Platform::Cuda {
            site.assemble_in_background();
        }
        Ok(site)
    });
    Box::new(Kernel(site.map_err(|error| status(&error, &locations))))
}

pub(super) fn initialize_cuda(kernel: &Kernel, device: i32) -> Status {
    run(kernel, |site| site.initialize_cuda(device))
}

pub(super) fn execute_cuda(
    kernel: &Kernel,
    device: i32,
    run_id: i64,
    stream: usize,
    operands: usize,
    buffers: &[Buffer],
) -> Status {
    run(kernel, |site| {
        site.execute_cuda((device, run_id), stream, operands, &views(buffers)?)
    })
}

/// As [`execute_cuda`], for a call site whose buffers' sizes have been checked before.
pub(super) fn execute_cuda_again(
    kernel: &Kernel,
    device: i32,
    run_id: i64,
    stream: usize,
    operands: usize,
    addresses: &[usize],
) -> Status {
    run(kernel, |site| {
        site.execute_cuda_again((device, run_id), stream, operands, addresses)
    })
}

pub(super) fn execute_cpu(kernel: &Kernel, device: i32, run_id: i64, operands: usize, buffers: &[Buffer]) -> Status {
    run(kernel, |site| {
        // SAFETY: XLA keeps every buffer of the call frame alive and unaliased (but for the custom call's own
        // operand/result aliases) until the handler returns, and `views` computes their true sizes.
        unsafe { site.execute_host(device, run_id, operands, &views(buffers)?) }
    })
}

/// Host time of one call of the CUDA handler, decoding included.
pub(super) fn count_call(nanos: u64) {
    runtime::handler_calls().add(nanos);
}

fn run(kernel: &Kernel, body: impl FnOnce(&CallSite) -> Result<(), Error>) -> Status {
    let Ok(site) = &kernel.0 else {
        return kernel.status();
    };
    match runtime::contain_panics(|| body(site)) {
        Ok(()) => ok(),
        Err(error) => status(&error, site.locations()),
    }
}

fn ok() -> Status {
    Status {
        code: 0,
        message: String::new(),
    }
}

/// The numbers are those of `absl::StatusCode`. Only what is our defect is INTERNAL.
fn status(error: &Error, locations: &Locations) -> Status {
    let code = match error.fault {
        Fault::Interrupted => 1,                              // CANCELLED
        Fault::InvalidKernel | Fault::InvalidDescriptor => 3, // INVALID_ARGUMENT
        Fault::Timeout => 4,                                  // DEADLINE_EXCEEDED
        Fault::Environment | Fault::Execution => 9,           // FAILED_PRECONDITION
        Fault::Unsupported => 12,                             // UNIMPLEMENTED
        Fault::Internal => 13,                                // INTERNAL
    };
    let message = locations.describe(error);
    runtime::remember_reported(&message, error, locations);
    Status { code, message }
}

fn text<'a>(name: &str, bytes: &'a [u8]) -> Result<&'a str, Error> {
    std::str::from_utf8(bytes).map_err(|_| {
        Error::new(
            Fault::InvalidDescriptor,
            format!("the custom call's attribute `{name}` is not UTF-8"),
        )
    })
}

fn views(buffers: &[Buffer]) -> Result<SmallVec<[BufferView; 64]>, Error> {
    let mut views = SmallVec::new();
    for buffer in buffers {
        let bits = element_bits(buffer.dtype).ok_or_else(|| {
            let what = format!("a buffer of the XLA element type {}", buffer.dtype);
            Error::unsupported(what).remedy("bitcast it to integers of its size in front of the kernel")
        })?;
        let bytes = (buffer.elements as u64)
            .checked_mul(bits)
            .ok_or_else(|| Error::invalid("a buffer of more than 2^61 bytes"))?
            .div_ceil(8);
        views.push(BufferView {
            address: buffer.address,
            bytes,
        });
    }
    Ok(views)
}

/// Bits of an element in memory. XLA's own `size_bytes()` counts one byte for sub-byte types, which are packed.
/// The numbers are those of `XLA_FFI_DataType` in `xla/ffi/api/c_api.h`.
fn element_bits(dtype: u32) -> Option<u64> {
    Some(match dtype {
        17 => 0,                                                // TOKEN: what puts effects in order has no bytes
        26 | 27 => 2,                                           // S2, U2
        21 | 22 | 32 => 4,                                      // S4, U4, F4E2M1FN
        1 | 2 | 6 | 19 | 20 | 23 | 24 | 25 | 28 | 29 | 33 => 8, // PRED, S8, U8, F8*
        3 | 7 | 10 | 16 => 16,                                  // S16, U16, F16, BF16
        4 | 8 | 11 => 32,                                       // S32, U32, F32
        5 | 9 | 12 | 15 => 64,                                  // S64, U64, F64, C64
        18 => 128,                                              // C128
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sub_byte_buffers_are_packed() {
        let bytes = |dtype, elements| {
            let buffer = Buffer {
                address: 16,
                elements,
                dtype,
            };
            views(&[buffer]).map(|views| views[0].bytes)
        };
        assert_eq!(bytes(21, 7), Ok(4), "seven int4");
        assert_eq!(bytes(27, 8), Ok(2), "eight uint2");
        assert_eq!(bytes(1, 3), Ok(3), "bool is a byte");
        assert_eq!(bytes(16, 3), Ok(6), "bfloat16");
        assert_eq!(bytes(17, 1), Ok(0), "a token");
        assert!(bytes(99, 1).unwrap_err().to_string().contains("element type 99"));
    }

    #[test]
    fn every_handler_has_an_address() {
        let mut addresses = (0..6).map(|number| smalt_xla_handler(number)).collect::<Vec<_>>();
        addresses.sort_unstable();
        addresses.dedup();
        assert_eq!(addresses.len(), 6);
        assert!(addresses[0] != 0);
        assert_eq!(smalt_xla_handler(6), 0);
    }
}
