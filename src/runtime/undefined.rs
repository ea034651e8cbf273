//! Memory that was never written: whether it matters what it holds.
//!
//! Reading it is no error by itself: kernels load padding and discard it. So a run in the emulator notes the reads, and if there are any
//! the kernel runs again on copies, with other contents in all undefined memory. If it then stores something else, or does something else, a
//! value of that memory has reached an output or a decision: nothing but that differs. An element that holds nothing but such memory, as
//! it was, has not been computed with: blocks of which a part is stored are copied whole. Outputs that have such values are warnings, for
//! they may never be used (JAX's own tests compute with buffers that are filled in part); what decides is an error.
use super::buffers::BufferSpec;
use crate::emulate::{Noted, Position, Watch};
use crate::error::{Error, Fault, Loc};

/// What undefined memory holds in the second run: nothing that the first run's is (`emulate::Options::poison`), neither a NaN nor −1.
pub const OTHER_POISON: u8 = 0;
/// Reads that a message names.
const NAMED: usize = 3;

/// Watches while the kernel runs again: findings have been reported.
pub struct Again<'a>(pub &'a dyn Watch);

impl Watch for Again<'_> {
    fn poll(&self, at: Position) -> Result<(), Error> {
        self.0.poll(at)
    }
    fn look(&self) {
        self.0.look();
    }
    fn finding(&self, _: Error) {}
}

fn remedy() -> &'static str {
    "store to it first (scratch and outputs begin with anything: zero an accumulator before the first `+=`, e.g. under `pl.when(step == 0)`), or wait for the copy that fills it"
}

fn read_at(reads: &[Loc]) -> String {
    let named: Vec<String> = reads.iter().take(NAMED).map(Loc::to_string).collect();
    let more = match reads.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more places"),
    };
    format!("memory that nothing wrote is read at {}{more}", named.join(", "))
}

/// A value of undefined memory is in an output, whose byte `byte` was stored at `stored`.
pub fn reaches(spec: &BufferSpec, byte: usize, stored: Option<Loc>, reads: &[Loc]) -> Error {
    let stored = stored.filter(|at| *at != Loc::CALL_SITE);
    let stored = stored.map_or(String::new(), |at| format!(", stored at {at}"));
    let error = Error::new(
        Fault::Execution,
        "a value of memory that nothing wrote reaches an output",
    )
    .expected("every value of an output to be made of memory that was written")
    .got(format!("{}{stored}; {}", element(spec, byte), read_at(reads)))
    .remedy(remedy());
    error.at(reads[0])
}

/// Whether the element around a byte is undefined memory as it was, in both runs.
pub fn is_copy(spec: &BufferSpec, byte: usize, poison: u8, one: &[u8], other: &[u8]) -> bool {
    let size = bytes_of_element(spec).unwrap_or(1);
    let element = byte / size * size..((byte / size + 1) * size).min(one.len());
    one[element.clone()].iter().all(|b| *b == poison) && other[element].iter().all(|b| *b == OTHER_POISON)
}

/// Whether two bytes differ only in bits that no element has: those behind the last one of a type that is narrower than a byte.
pub fn is_padding(spec: &BufferSpec, byte: usize, one: u8, other: u8) -> bool {
    let bits = match spec.text.split('[').next() {
        Some("i4" | "u4" | "e2m1") => 4,
        Some("i2" | "u2") => 2,
        _ => return false,
    };
    let elements: usize = shape(spec).unwrap_or_default().iter().product();
    let own = (elements * bits).saturating_sub(byte * 8).min(8);
    (u16::from(one ^ other) & ((1 << own) - 1)) == 0
}

/// Undefined memory was copied to an output, whose byte `byte` was stored at `stored`.
pub fn copied(spec: &BufferSpec, byte: usize, stored: Option<Loc>, reads: &[Loc]) -> Error {
    let mut error = reaches(spec, byte, stored, reads);
    error.what = "memory that nothing wrote is copied to an output".into();
    error
}

/// With other contents in undefined memory the run ends like this.
pub fn decides(end: &Error, reads: &[Loc]) -> Error {
    let at = end.loc.map_or(String::new(), |loc| format!(" at {loc}"));
    let error = Error::new(
        Fault::Execution,
        "a value of memory that nothing wrote decides what the kernel does",
    )
    .expected("branches, loops and indices to depend on memory that was written")
    .got(format!(
        "with other contents of that memory: {}{at}; {}",
        end.what,
        read_at(reads)
    ))
    .remedy(remedy());
    error.at(reads[0])
}

/// An output of which some elements were never stored.
pub fn unstored(spec: &BufferSpec, buffer: usize, noted: &Noted) -> Option<Error> {
    let (bytes, first) = noted.unwritten(buffer, spec.bytes as usize)?;
    let size = bytes_of_element(spec).unwrap_or(1);
    let count = match size {
        1 => format!("{bytes} bytes"),
        size => format!("{} elements", bytes.div_ceil(size)),
    };
    let error = Error::new(Fault::Execution, "a part of an output is never stored")
        .expected("the blocks of the grid to store every element of it")
        .got(format!("{count} not stored, the first is {}", element(spec, first)))
        .remedy("let the grid cover the output (`pl.cdiv`), and store all of each block");
    Some(error.at(Loc::CALL_SITE))
}

/// The extents in `f32[64,128]`.
fn shape(spec: &BufferSpec) -> Option<Vec<usize>> {
    let (_, inside) = spec.text.split_once('[')?;
    let inside = inside.split_once(']')?.0;
    let extents = inside.split(',').map(str::trim).filter(|extent| !extent.is_empty());
    extents.map(|extent| extent.parse().ok()).collect()
}

/// None where elements are no whole bytes.
fn bytes_of_element(spec: &BufferSpec) -> Option<usize> {
    let count: usize = shape(spec)?.iter().product();
    let bytes = spec.bytes as usize;
    (count > 0 && bytes.is_multiple_of(count)).then(|| bytes / count)
}

/// `element (3, 0) of output f32[64,128]`, with what the user calls that.
fn element(spec: &BufferSpec, byte: usize) -> String {
    let (Some(shape), Some(size)) = (shape(spec), bytes_of_element(spec)) else {
        return format!("byte {byte} of {}{}", spec.of, spec.in_words());
    };
    let mut left = byte / size;
    let mut index: Vec<String> = vec![];
    for extent in shape.iter().rev() {
        index.push((left % extent).to_string());
        left /= extent;
    }
    index.reverse();
    format!("element ({}) of {}{}", index.join(", "), spec.of, spec.in_words())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::RefId;
    use crate::runtime::BufferRole;

    #[test]
    fn elements_have_indices() {
        let spec = |text: &str, bytes| BufferSpec {
            role: BufferRole::Output,
            bytes,
            text: text.into(),
            alias_of: None,
            of: RefId(3),
        };
        let at = |text, bytes, byte| element(&spec(text, bytes), byte);
        assert_eq!(at("f32[4,8]", 128, 40), "element (1, 2) of %ref3, output f32[4,8]");
        assert_eq!(at("f32[]", 4, 0), "element () of %ref3, output f32[]");
        assert_eq!(at("i4[16]", 8, 3), "byte 3 of %ref3, output i4[16]");
        let padding = |text, bytes, byte, one, other| is_padding(&spec(text, bytes), byte, one, other);
        assert!(padding("i4", 1, 0, 0xa3, 0xf3) && !padding("i4", 1, 0, 0xa3, 0xa4));
        assert!(!padding("i4[3]", 2, 0, 0xa3, 0xf3) && padding("i4[3]", 2, 1, 0xa3, 0xf3));
        assert!(padding("u2[5]", 2, 1, 0x13, 0xf3) && !padding("f32", 4, 3, 1, 2));
    }
}
