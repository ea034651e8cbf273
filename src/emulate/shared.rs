//! Shared memory of a CTA: bytes, and a shadow byte per 4-byte granule.
use super::global::for_granules;

/// Position of a resident CTA in the machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct CtaSlot(pub u32);

/// The shared-window address of the dynamic shared memory: the system keeps the first kilobyte on Hopper.
pub const SMEM_BASE: u32 = 1024;
/// `shared::cluster` addresses: the CTA's rank plus one above this bit; zero is the executing CTA.
pub const RANK_SHIFT: u32 = 24;

/// The CTA and offset that a shared-window address of a CTA stands for, in clusters of `size` CTAs.
#[inline(always)]
pub fn locate(from: CtaSlot, size: u32, address: u32) -> Option<(CtaSlot, u32)> {
    let rank = address >> RANK_SHIFT;
    let offset = (address & ((1 << RANK_SHIFT) - 1)).wrapping_sub(SMEM_BASE);
    match rank {
        0 => Some((from, offset)),
        rank => (rank <= size).then(|| (CtaSlot(from.0 - from.0 % size + rank - 1), offset)),
    }
}

/// Bits of a shadow byte: the low nibble says which bytes are defined.
const DEFINED: u8 = 0x0f;

/// The dynamic shared memory of one CTA.
pub struct Shared {
    poison: u8,
    bytes: Box<[u8]>,
    shadow: Box<[u8]>,
}

impl Shared {
    /// `poison`: what it holds before it is written.
    pub fn new(bytes: u32, poison: u8) -> Shared {
        Shared {
            poison,
            bytes: vec![poison; bytes as usize].into_boxed_slice(),
            shadow: vec![0; bytes.div_ceil(4) as usize].into_boxed_slice(),
        }
    }

    /// As before a CTA starts.
    pub fn reset(&mut self) {
        self.bytes.fill(self.poison);
        self.shadow.fill(0);
    }

    /// Its bytes.
    pub fn size(&self) -> u32 {
        self.bytes.len() as u32
    }

    /// Whether a range lies inside.
    #[inline(always)]
    pub fn contains(&self, offset: u32, bytes: u32) -> bool {
        u64::from(offset) + u64::from(bytes) <= self.bytes.len() as u64
    }

    #[inline(always)]
    pub fn get(&self, offset: u32, bytes: u32) -> &[u8] {
        &self.bytes[offset as usize..(offset + bytes) as usize]
    }

    /// For writing. Marks the bytes as defined.
    #[inline(always)]
    pub fn get_mut(&mut self, offset: u32, bytes: u32) -> &mut [u8] {
        self.mark(offset, bytes);
        &mut self.bytes[offset as usize..(offset + bytes) as usize]
    }

    #[inline(always)]
    fn mark(&mut self, offset: u32, bytes: u32) {
        let (first, last) = ((offset / 4) as usize, ((offset + bytes).div_ceil(4)) as usize);
        if offset.is_multiple_of(4) && bytes.is_multiple_of(4) {
            self.shadow[first..last].fill(DEFINED);
        } else {
            let shadow = &mut self.shadow;
            for_granules(u64::from(offset), u64::from(bytes), |granule, mask| {
                shadow[granule] |= mask;
                true
            });
        }
    }

    /// Whether something has written every byte.
    #[inline(always)]
    pub fn is_defined(&self, offset: u32, bytes: u32) -> bool {
        if offset.is_multiple_of(4) && bytes.is_multiple_of(4) {
            let granules = &self.shadow[(offset / 4) as usize..((offset + bytes) / 4) as usize];
            granules.iter().fold(DEFINED, |all, shadow| all & shadow) == DEFINED
        } else {
            let shadow = &self.shadow;
            for_granules(u64::from(offset), u64::from(bytes), |granule, mask| {
                shadow[granule] & mask == mask
            })
        }
    }

    /// Forgets the contents: barriers of `mbarrier.init` are no data.
    pub fn undefine(&mut self, offset: u32, bytes: u32) {
        let (first, last) = ((offset / 4) as usize, ((offset + bytes).div_ceil(4)) as usize);
        self.shadow[first..last].fill(0);
        self.bytes[offset as usize..(offset + bytes) as usize].fill(self.poison);
    }
}
