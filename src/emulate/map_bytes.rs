//! What 128 bytes of a tensor map hold here: not what a GPU's hold, but as opaque to a kernel, and the address where a GPU has it.
//!
//! Bytes 0..8: the tensor's address. 8..16: a magic word. 16..20: which map it is. The rest says only that it is there.
/// Bytes of a tensor map, and what its address is a multiple of.
pub const MAP_BYTES: usize = 128;
/// "smaltmap", as it stands in memory.
const MAGIC: u64 = u64::from_le_bytes(*b"smaltmap");
/// Where the rest begins.
const FILLED: usize = 20;
/// Of the numbers that name parameters.
const PARAMETER: u32 = 1 << 31;

/// Which of a launch's tensor maps says everything but the address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapName {
    /// One of `LaunchSpec::map_templates`.
    Template(u32),
    /// An entry parameter.
    Parameter(u32),
}

/// What a byte of the rest is: a copy of the first bytes is no map, on no machine.
const fn filler(i: usize) -> u8 {
    0x80 ^ i as u8
}

/// The bytes of a map over the tensor at an address.
pub fn encode(map: MapName, address: u64) -> [u8; MAP_BYTES] {
    let number = match map {
        MapName::Template(k) => k,
        MapName::Parameter(p) => p | PARAMETER,
    };
    let mut bytes: [u8; MAP_BYTES] = std::array::from_fn(filler);
    bytes[..8].copy_from_slice(&address.to_le_bytes());
    bytes[8..16].copy_from_slice(&MAGIC.to_le_bytes());
    bytes[16..20].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Which map it is, and the address of its tensor; `None`: it is no map.
pub fn decode(bytes: &[u8; MAP_BYTES]) -> Option<(MapName, u64)> {
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(word)
    };
    if word(8) != MAGIC || (FILLED..MAP_BYTES).any(|i| bytes[i] != filler(i)) {
        return None;
    }
    let number = word(16) as u32;
    let map = match number & PARAMETER {
        0 => MapName::Template(number),
        _ => MapName::Parameter(number & !PARAMETER),
    };
    Some((map, word(0)))
}

/// What a host writes to memory for a launch's tensor map `template`, before the kernel sets its address.
pub fn encode_map_template(template: u32) -> [u8; MAP_BYTES] {
    encode(MapName::Template(template), 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        for map in [0, 1, 77]
            .into_iter()
            .flat_map(|n| [MapName::Template(n), MapName::Parameter(n)])
        {
            for address in [0, 16, 5 << 40, u64::MAX - 15] {
                assert_eq!(decode(&encode(map, address)), Some((map, address)));
            }
        }
        assert_eq!(decode(&encode_map_template(3)), Some((MapName::Template(3), 0)));
    }

    #[test]
    fn other_bytes_are_no_map() {
        assert_eq!(decode(&[0; MAP_BYTES]), None);
        assert_eq!(decode(&[0xff; MAP_BYTES]), None);
        for byte in (8..16).chain(20..MAP_BYTES) {
            let mut bytes = encode_map_template(0);
            bytes[byte] ^= 1;
            assert_eq!(decode(&bytes), None);
        }
    }

    #[test]
    fn the_address_is_where_a_gpu_has_it() {
        // ptxas 13.0 makes `tensormap.replace…global_address` a store of the first eight bytes.
        let mut bytes = encode_map_template(9);
        bytes[..8].copy_from_slice(&48u64.to_le_bytes());
        assert_eq!(decode(&bytes), Some((MapName::Template(9), 48)));
    }
}
