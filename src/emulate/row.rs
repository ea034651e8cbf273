//! Rows: one 32-bit register of a warp, 32 lanes; and how lanes of each type sit in them.

/// One 32-bit register of a warp. A 64-bit register is two consecutive rows seen as `[u64; 32]`; a 16-bit register is one
/// row whose upper halves are zero.
#[repr(C, align(128))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row(pub [u32; 32]);

impl Row {
    pub const ZERO: Row = Row([0; 32]);

    /// Every lane the same.
    pub const fn splat(value: u32) -> Row {
        Row([value; 32])
    }
    /// `0` or `!0` per lane.
    #[inline(always)]
    pub fn of_mask(mask: u32) -> Row {
        let mut row = [0; 32];
        for (i, lane) in row.iter_mut().enumerate() {
            *lane = 0u32.wrapping_sub(mask >> i & 1);
        }
        Row(row)
    }
}

/// The bits of a lane as they sit in rows: `u32` or `u64`.
pub trait Raw: Copy + Default + 'static {
    const ROWS: usize;
    /// `new` where the mask row's lane is `!0`, else `old`.
    fn blend(mask: u32, new: Self, old: Self) -> Self;
}
impl Raw for u32 {
    const ROWS: usize = 1;
    #[inline(always)]
    fn blend(mask: u32, new: u32, old: u32) -> u32 {
        (new & mask) | (old & !mask)
    }
}
impl Raw for u64 {
    const ROWS: usize = 2;
    #[inline(always)]
    fn blend(mask: u32, new: u64, old: u64) -> u64 {
        let mask = mask as i32 as i64 as u64;
        (new & mask) | (old & !mask)
    }
}

/// A type of operands: how it sits in a row.
pub trait Lane: Copy + 'static {
    type Raw: Raw;
    fn from_raw(raw: Self::Raw) -> Self;
    fn into_raw(self) -> Self::Raw;
}

macro_rules! lanes {
    ($($t:ty: $raw:ty, |$r:ident| $from:expr, |$v:ident| $into:expr;)*) => {$(
        impl Lane for $t {
            type Raw = $raw;
            #[inline(always)]
            fn from_raw($r: $raw) -> $t { $from }
            #[inline(always)]
            fn into_raw(self) -> $raw { let $v = self; $into }
        }
    )*};
}
lanes! {
    u16: u32, |r| r as u16, |v| u32::from(v);
    i16: u32, |r| r as i16, |v| u32::from(v as u16);
    u32: u32, |r| r, |v| v;
    i32: u32, |r| r as i32, |v| v as u32;
    f32: u32, |r| f32::from_bits(r), |v| v.to_bits();
    u64: u64, |r| r, |v| v;
    i64: u64, |r| r as i64, |v| v as u64;
    f64: u64, |r| f64::from_bits(r), |v| v.to_bits();
}

/// The set lanes, lowest first.
#[inline(always)]
pub fn lanes(mask: u32) -> Lanes {
    Lanes(mask)
}

pub struct Lanes(u32);

impl Iterator for Lanes {
    type Item = usize;
    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let lane = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some(lane)
    }
}
