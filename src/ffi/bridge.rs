//! The border to C++. Plain data in, a status out.
pub use bridge_types::{Attributes, Buffer, Handler, Platform, Status, handler_address};

use super::handlers::{
    Kernel, count_call, execute_cpu, execute_cuda, execute_cuda_again, initialize_cuda, instantiate,
};

#[cxx::bridge(namespace = "smalt::ffi")]
mod bridge_types {
    /// Where a call site runs.
    enum Platform {
        Cpu,
        Cuda,
    }

    /// The handlers that the shim has.
    enum Handler {
        InstantiateCpu,
        ExecuteCpu,
        InstantiateCuda,
        InitializeCuda,
        ExecuteCuda,
        ExecuteCudaUncaptured,
    }

    /// The attributes of the custom call (`docs/descriptor.md`, section "custom call").
    struct Attributes<'a> {
        descriptor: &'a [u8],
        debug: &'a [u8],
        hash: &'a [u8],
        target: &'a [u8],
        flags: i64,
    }

    /// An operand or a result.
    struct Buffer {
        address: usize,
        elements: usize,
        /// An `XLA_FFI_DataType`.
        dtype: u32,
    }

    /// `code` is an `absl::StatusCode`; 0 is success and has no message.
    struct Status {
        code: u8,
        message: String,
    }

    extern "Rust" {
        type Kernel;
        fn status(self: &Kernel) -> Status;
        fn instantiate(platform: Platform, attributes: &Attributes) -> Box<Kernel>;
        fn initialize_cuda(kernel: &Kernel, device: i32) -> Status;
        fn execute_cuda(
            kernel: &Kernel,
            device: i32,
            run_id: i64,
            stream: usize,
            operands: usize,
            buffers: &[Buffer],
        ) -> Status;
        fn execute_cuda_again(
            kernel: &Kernel,
            device: i32,
            run_id: i64,
            stream: usize,
            operands: usize,
            addresses: &[usize],
        ) -> Status;
        fn execute_cpu(kernel: &Kernel, device: i32, run_id: i64, operands: usize, buffers: &[Buffer]) -> Status;
    }

    extern "Rust" {
        fn count_call(nanos: u64);
    }

    unsafe extern "C++" {
        include!("smalt/ffi/shim.h");
        fn handler_address(handler: Handler) -> usize;
    }
}
