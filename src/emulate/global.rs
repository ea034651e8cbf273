//! Global memory: the host's buffers, at addresses of our own.
//!
//! Buffer i starts at `(i + 1) << 40`, whatever its host address: runs are deterministic, neighbours are a terabyte apart,
//! and an address names its buffer. Pointers taken by `param_addr` (tensor maps) have their own range.
use super::grid::{Author, Clash, SharedLines, Written};
use super::options::{Names, Noted, Options, Undefined};
use super::overwrite::{self, Mask};
use crate::error::Loc;
use crate::lock::lock;
use crate::ptx::launch::Printer;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// What a buffer holds before the launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contents {
    /// Values that the kernel only reads.
    Constant,
    /// Values that the kernel may read, and write.
    Defined,
    /// Nothing: it is filled with poison, and reading it before writing it is an error.
    Undefined,
}

/// A buffer of the host that the kernel may access.
#[derive(Clone, Copy, Debug)]
pub struct HostBuffer {
    pub ptr: *mut u8,
    pub len: usize,
    pub contents: Contents,
}

/// Log2 of the distance of two buffers' addresses.
const BUFFER_SHIFT: u32 = 40;
/// Addresses of parameters: this plus the parameter's index times 256.
const PARAM_BASE: u64 = 0xfffe_0000_0000_0000;
/// What undefined memory holds: a NaN of every float type, −1 of every integer type.
pub const POISON_BYTE: u8 = 0xff;

/// The address of a buffer, by its number.
pub const fn buffer_address(buffer: u32) -> u64 {
    GlobalMemory::address(buffer)
}

/// Where the block's shared memory begins among generic addresses: nothing else is there.
pub const SHARED_WINDOW: u64 = 1 << 62;

/// The address of an entry parameter.
pub const fn param_address(index: u32) -> u64 {
    PARAM_BASE + (index as u64) * 256
}

/// The parameter at an address.
pub const fn param_at(address: u64) -> Option<u32> {
    if address >= PARAM_BASE && address.is_multiple_of(256) {
        Some(((address - PARAM_BASE) / 256) as u32)
    } else {
        None
    }
}

struct Mapped {
    ptr: *mut u8,
    len: u64,
    /// Per 4-byte granule, which bytes have been written; none: all.
    written: Option<Box<[AtomicU8]>>,
    /// Which cluster wrote what, where that is watched.
    authors: Option<Written>,
}

/// The buffers of one launch.
pub struct GlobalMemory {
    buffers: Vec<Mapped>,
    /// An address of which is noted who stores to it, and that.
    watched: Option<(u64, AtomicU32)>,
    names: Arc<Names>,
    shared: SharedLines,
}

// SAFETY: the pointers are to buffers that whoever called `new` lends for the launch. CTAs access them from several threads
// with plain loads and stores, as GPU threads do: a kernel that races gets unspecified values, as on the GPU; kernels with
// atomics or flags in global memory are run by one thread.
unsafe impl Send for GlobalMemory {}
unsafe impl Sync for GlobalMemory {}

impl GlobalMemory {
    /// Maps the buffers; fills undefined ones with poison, and tracks their initialisation unless the options ignore it, and which
    /// cluster wrote what if `isolates` says so.
    ///
    /// # Safety
    /// Each `ptr` must be valid for reads and writes of `len` bytes for the life of the result, and nothing else may access
    /// them meanwhile. Buffers may be the same (aliased results), not partly overlapping.
    pub unsafe fn new(buffers: &[HostBuffer], isolates: bool, options: &Options) -> GlobalMemory {
        let track = !matches!(options.undefined, Undefined::Ignored);
        let buffers = buffers
            .iter()
            .map(|b| {
                let undefined = b.contents == Contents::Undefined;
                if undefined && b.len > 0 {
                    // SAFETY: the caller's promise.
                    unsafe { std::ptr::write_bytes(b.ptr, options.poison, b.len) };
                }
                let written = (undefined && track).then(|| (0..b.len.div_ceil(4)).map(|_| AtomicU8::new(0)).collect());
                Mapped {
                    ptr: b.ptr,
                    len: b.len as u64,
                    written,
                    authors: isolates.then(|| Written::new(b.len, b.contents != Contents::Constant)),
                }
            })
            .collect();
        GlobalMemory {
            buffers,
            watched: options
                .watched
                .map(|address| (address, AtomicU32::new(Loc::CALL_SITE.0))),
            names: options.names.clone(),
            shared: SharedLines::default(),
        }
    }

    /// The address of a buffer.
    pub const fn address(buffer: u32) -> u64 {
        (buffer as u64 + 1) << BUFFER_SHIFT
    }

    /// Bytes of a buffer.
    pub fn size(&self, buffer: u32) -> Option<u64> {
        self.buffers.get(buffer as usize).map(|b| b.len)
    }

    /// Where `bytes` bytes at an address are, if all are inside one buffer.
    #[inline(always)]
    pub fn resolve(&self, address: u64, bytes: u64) -> Option<*mut u8> {
        let (index, offset) = split(address);
        let buffer = self.buffers.get(index)?;
        if offset + bytes <= buffer.len {
            // SAFETY: within the buffer.
            Some(unsafe { buffer.ptr.add(offset as usize) })
        } else {
            None
        }
    }

    /// The address of a record of `bytes` bytes in the printer's memory, 0 where it is full; none: there is no such memory.
    pub fn reserve_record(&self, printer: u64, bytes: u64, weight: u32) -> Option<u64> {
        let start = self
            .resolve(printer, Printer::RECORDS)
            .filter(|p| p.addr().is_multiple_of(8))?;
        // SAFETY: inside the buffer, aligned, and touched by nobody else but here while the kernel runs.
        let (cursor, dropped, capacity) = unsafe {
            (
                AtomicU64::from_ptr(start.add(Printer::CURSOR as usize).cast()),
                AtomicU32::from_ptr(start.add(Printer::DROPPED as usize).cast()),
                start.add(Printer::CAPACITY as usize).cast::<u64>().read(),
            )
        };
        let at = cursor.fetch_add(bytes, Ordering::Relaxed);
        if at.saturating_add(bytes) <= capacity {
            return Some(printer + Printer::RECORDS + at);
        }
        dropped.fetch_add(weight, Ordering::Relaxed);
        Some(0)
    }

    /// Whether any buffer tracks its initialisation.
    #[inline(always)]
    fn tracked(&self, address: u64) -> Option<(&[AtomicU8], u64)> {
        let (index, offset) = split(address);
        self.buffers.get(index)?.written.as_deref().map(|w| (w, offset))
    }

    /// Tells what the launch has noted.
    pub fn note(&self, noted: &Noted) {
        let load = |written: &[AtomicU8]| written.iter().map(|granule| granule.load(Ordering::Relaxed)).collect();
        *lock(&noted.written) = self.buffers.iter().map(|b| b.written.as_deref().map(load)).collect();
        if let Some((_, stored)) = &self.watched {
            *lock(&noted.stored) = Some(Loc(stored.load(Ordering::Relaxed)));
        }
    }

    /// Whether somebody wants to know who stores to an address.
    pub fn is_watching(&self) -> bool {
        self.watched.is_some()
    }

    /// Notes that bytes have been written. The range is inside a buffer.
    #[inline(always)]
    pub fn mark_written(&self, address: u64, bytes: u64) {
        if let Some((written, offset)) = self.tracked(address) {
            if offset.is_multiple_of(4) && bytes.is_multiple_of(4) {
                // Others say no less of these.
                mark_held(written, offset, bytes);
                return;
            }
            for_granules(offset, bytes, |granule, mask| {
                written[granule].fetch_or(mask, Ordering::Relaxed);
                true
            });
        }
    }

    /// Whether all bytes have been written. The range is inside a buffer.
    #[inline(always)]
    pub fn is_written(&self, address: u64, bytes: u64) -> bool {
        match self.tracked(address) {
            None => true,
            Some((written, offset)) => for_granules(offset, bytes, |granule, mask| {
                written[granule].load(Ordering::Relaxed) & mask == mask
            }),
        }
    }

    /// Writes bytes inside a buffer. `by`: whose store it is, where that is watched; another cluster that wrote something else there, or
    /// read it.
    #[inline(always)]
    pub fn store(&self, by: Option<Author>, address: u64, data: &[u8]) -> Option<Clash> {
        let (index, offset) = split(address);
        let buffer = &self.buffers[index];
        let write = |from: usize, to: usize| {
            // SAFETY: the caller has seen `resolve` succeed for the range.
            unsafe {
                let at = buffer.ptr.add(offset as usize + from);
                std::ptr::copy_nonoverlapping(data[from..to].as_ptr(), at, to - from);
            }
        };
        if let (Some((watched, stored)), Some(by)) = (&self.watched, by)
            && (address..address + data.len() as u64).contains(watched)
        {
            stored.store(by.loc.0, Ordering::Relaxed);
        }
        let (Some(by), Some(authors)) = (by, &buffer.authors) else {
            write(0, data.len());
            self.mark_written(address, data.len() as u64);
            return None;
        };
        let mut found = None;
        let mut from = 0;
        while from < data.len() {
            let at = address + from as u64;
            let bytes = (data.len() - from).min(128 - (at & 127) as usize);
            let (to, line) = (from + bytes, at >> 7);
            let mask = Mask::MAX >> (128 - bytes) << (at & 127);
            let other = authors.store(
                &self.shared,
                (line, (offset + from as u64) >> 7),
                by,
                mask,
                || self.differences(address, data, line),
                || {
                    write(from, to);
                    if let Some(written) = &buffer.written {
                        mark_held(written, offset + from as u64, bytes as u64);
                    }
                },
            );
            found = found.or(other);
            from = to;
        }
        found
    }

    /// A cluster loads bytes; another that wrote some of them.
    #[inline(always)]
    pub fn load(&self, by: Author, address: u64, bytes: u64) -> Option<Author> {
        let (index, offset) = split(address);
        let buffer = self.buffers.get(index)?;
        let authors = buffer.authors.as_ref().filter(|authors| authors.heeds_loads())?;
        if offset + bytes > buffer.len {
            return None;
        }
        overwrite::lines_of(address, bytes).find_map(|(line, mask)| {
            let index = (offset & !127) / 128 + line - (address >> 7);
            authors.load(&self.shared, (line, index), by, mask)
        })
    }

    /// Whether clusters' stores are watched.
    pub fn is_watched(&self) -> bool {
        self.buffers.iter().any(|b| b.authors.is_some())
    }

    /// Whether clusters are watched, and loads from the buffer of an address matter.
    #[inline(always)]
    pub fn heeds_loads(&self, address: u64) -> bool {
        let buffer = self.buffers.get(split(address).0);
        buffer.is_some_and(|b| b.authors.as_ref().is_some_and(Written::heeds_loads))
    }

    /// Which bytes of a line (`line` · 128 on) differ from `new`, which is for `address`.
    pub fn differences(&self, address: u64, new: &[u8], line: u64) -> Mask {
        let from = address.max(line << 7);
        let to = (address + new.len() as u64).min((line + 1) << 7);
        let differ = |at: u64| {
            let new = &new[(at - address) as usize..];
            overwrite::differences(at, &self.peek(at, 1)[..1], &new[..1])
        };
        (from..to).map(differ).fold(0, |all, one| all | one)
    }

    /// At most 16 bytes at an address; nothing's where no buffer is.
    pub fn peek(&self, address: u64, bytes: u64) -> [u8; 16] {
        let mut out = [0; 16];
        if let Some(at) = self.resolve(address, bytes) {
            // SAFETY: `resolve` checked that the range is inside a buffer lent for the launch.
            unsafe { std::ptr::copy_nonoverlapping(at, out.as_mut_ptr(), bytes as usize) };
        }
        out
    }

    /// What a word of four bytes holds.
    pub fn word(&self, address: u64) -> u32 {
        let [a, b, c, d, ..] = self.peek(address, 4);
        u32::from_le_bytes([a, b, c, d])
    }

    /// A word of four bytes, and what it holds, in words.
    pub fn describe_word(&self, address: u64) -> String {
        let (index, offset) = split(address);
        let held = self.word(address);
        format!(
            "the word at byte {offset} of {}, which is {held},",
            self.names.buffer(index)
        )
    }

    /// What is at an address, in words.
    pub fn describe(&self, address: u64) -> String {
        let (index, offset) = split(address);
        let name = |index: usize| self.names.buffer(index);
        match self.buffers.get(index) {
            Some(b) if offset < b.len => format!("byte {offset} of {}, which has {} bytes", name(index), b.len),
            Some(b) if offset < 1 << 39 => {
                format!(
                    "{} bytes beyond {}, which has {} bytes",
                    offset - b.len,
                    name(index),
                    b.len
                )
            }
            _ => match self.buffers.get(index.wrapping_add(1)) {
                Some(b) => {
                    let before = (1u64 << BUFFER_SHIFT) - offset;
                    format!(
                        "{before} bytes before {}, which has {} bytes",
                        name(index.wrapping_add(1)),
                        b.len
                    )
                }
                None => format!("address 0x{address:x}, which belongs to no buffer"),
            },
        }
    }
}

#[inline(always)]
pub fn split(address: u64) -> (usize, u64) {
    (
        (address >> BUFFER_SHIFT).wrapping_sub(1) as usize,
        address & ((1 << BUFFER_SHIFT) - 1),
    )
}

/// Marks bytes of a line that this thread alone writes.
#[inline(always)]
fn mark_held(written: &[AtomicU8], offset: u64, bytes: u64) {
    if offset.is_multiple_of(4) && bytes.is_multiple_of(4) {
        for granule in &written[(offset / 4) as usize..((offset + bytes) / 4) as usize] {
            granule.store(0xf, Ordering::Relaxed);
        }
        return;
    }
    for_granules(offset, bytes, |granule, mask| {
        let old = written[granule].load(Ordering::Relaxed);
        written[granule].store(old | mask, Ordering::Relaxed);
        true
    });
}

/// Calls `f(granule, byte mask)` over the 4-byte granules of a range until it says false; whether it never did.
#[inline(always)]
pub fn for_granules(offset: u64, bytes: u64, mut f: impl FnMut(usize, u8) -> bool) -> bool {
    let end = offset + bytes;
    let mut at = offset;
    while at < end {
        let granule = at / 4;
        let stop = end.min((granule + 1) * 4);
        let mask = ((1u8 << (stop - at)) - 1) << (at % 4);
        if !f(granule as usize, mask) {
            return false;
        }
        at = stop;
    }
    true
}
