//! Bytes of lines, and what stores change of them: unordered stores of one value to one place are no race, others are.
use crate::error::{Error, Fault};

/// Bytes of a line of 128.
pub type Mask = u128;

/// The lines of a range, by address / 128, and which bytes of each.
#[inline(always)]
pub fn lines_of(address: u64, bytes: u64) -> impl Iterator<Item = (u64, Mask)> + Clone {
    let end = address + bytes;
    (address >> 7..end.div_ceil(128)).map(move |line| {
        let (first, last) = (address.max(line << 7) & 127, (end - 1).min((line << 7) + 127) & 127);
        (line, Mask::MAX << first & Mask::MAX >> (127 - last))
    })
}

/// The bytes that a store has for a lane; those beyond its width are not looked at.
pub type Values<'a> = dyn Fn(usize) -> [u8; 16] + 'a;

/// Of loads.
pub fn no_values(_: usize) -> [u8; 16] {
    [0; 16]
}

/// Where `new` differs from `old`, which lies at `at`: bytes of the line of 128 that holds it.
pub fn differences(at: u64, old: &[u8], new: &[u8]) -> Mask {
    let differs = |(i, (old, new)): (usize, (&u8, &u8))| Mask::from(old != new) << i;
    let differ: Mask = old.iter().zip(new).enumerate().map(differs).sum();
    differ << (at & 127)
}

/// Two lanes of one store have different values for one place.
#[cold]
pub fn collision(space: &str, lane: usize, place: String) -> Box<Error> {
    Box::new(
        Error::new(
            Fault::Execution,
            format!("two lanes of one store have different values for one place in {space} memory"),
        )
        .expected("lanes that store to one place to store the same value: which of others stays is not defined")
        .got(format!("lane {lane} and another, {place}"))
        .remedy("let each element be stored once: where indices are equal (`ref[idx] = x`), values have to be, too"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_cut_ranges() {
        let lines = |address, bytes| lines_of(address, bytes).collect::<Vec<_>>();
        assert_eq!(lines(127, 2), [(0, 1 << 127), (1, 1)]);
        assert_eq!(lines(256, 128), [(2, !0)]);
        assert_eq!(lines(4, 4), [(0, 0xf0)]);
    }

    #[test]
    fn differences_are_bytes_of_the_line() {
        assert_eq!(differences(130, &[1, 2, 3], &[1, 0, 4]), 0b110 << 2);
        assert_eq!(differences(127, &[1], &[1]), 0);
    }
}
