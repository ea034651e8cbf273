//! A gate in a stream: what is queued behind it goes on when a word is zero.
//!
//! It costs the stream 4 µs where the word is zero (H100); a call of the host's, which would look at the word, costs 40 to 140.
use super::driver::{ERROR_NOT_SUPPORTED, driver};
use crate::error::Error;
use cudarc::driver::sys;
use std::sync::atomic::AtomicU64;

/// Words of pinned memory, which [`host_words`](super::host_words) gave.
#[derive(Clone, Copy)]
pub struct Gate {
    /// The number of the last passage whose stream has come to the gate.
    pub came: &'static AtomicU64,
    /// Zero: it is open.
    pub closed: &'static AtomicU64,
    /// The number of the last passage that is over.
    pub passed: &'static AtomicU64,
}

impl Gate {
    /// Queues a passage on `stream` (a `CUstream` of the current context); false: the driver has no such thing here.
    pub fn queue(&self, stream: usize, number: u64) -> Result<bool, Error> {
        use sys::CUstreamBatchMemOpType_enum::{CU_STREAM_MEM_OP_WAIT_VALUE_64, CU_STREAM_MEM_OP_WRITE_VALUE_64};
        let driver = driver()?;
        let address = |word: &'static AtomicU64| word.as_ptr() as u64;
        let write = |word| {
            // SAFETY: all zeros is a value of each of the union's types.
            let mut op: sys::CUstreamBatchMemOpParams = unsafe { std::mem::zeroed() };
            op.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
            op.writeValue.address = address(word);
            op.writeValue.__bindgen_anon_1.value64 = number;
            op
        };
        // SAFETY: as above.
        let mut wait: sys::CUstreamBatchMemOpParams = unsafe { std::mem::zeroed() };
        wait.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
        wait.waitValue.address = address(self.closed);
        wait.waitValue.flags = sys::CUstreamWaitValue_flags_enum::CU_STREAM_WAIT_VALUE_EQ as u32;
        let mut ops = [write(self.came), wait, write(self.passed)];
        // SAFETY: three operations on pinned words that are never freed; the driver copies what it needs.
        let code =
            unsafe { (driver.stream_batch_mem_op)(stream as sys::CUstream, ops.len() as u32, ops.as_mut_ptr(), 0) };
        match code {
            ERROR_NOT_SUPPORTED => Ok(false),
            code => driver.check("cuStreamBatchMemOp", code).map(|()| true),
        }
    }
}
