//! What integer and bit instructions compute: functions of one thread's operands, which rows of the [table](super::table) name. The emulator
//! makes them operations on lanes, [`evaluate`](super::evaluate) folds constants by them.

/// `$e` with `$T` the type of lanes that a modifier stands for. `width`: of integers whose sign does not matter; `row`: of anything of
/// which the upper half of a row does not matter.
macro_rules! by {
    (@ $E:ident $ty:expr, $T:ident => $e:expr; $($V:ident $t:ty),+) => {
        match $ty { $( $E::$V => { type $T = $t; $e } )+ }
    };
    (IntType $ty:expr, $T:ident => $e:expr) => {
        by!(@ IntType $ty, $T => $e; U16 u16, S16 i16, U32 u32, S32 i32, U64 u64, S64 i64)
    };
    (ShiftType $ty:expr, $T:ident => $e:expr) => {
        by!(@ ShiftType $ty, $T => $e; U16 u16, S16 i16, U32 u32, S32 i32, U64 u64, S64 i64)
    };
    (WideType $ty:expr, $T:ident => $e:expr) => {
        by!(@ WideType $ty, $T => $e; U16 u16, S16 i16, U32 u32, S32 i32)
    };
    (BitType $ty:expr, $T:ident => $e:expr) => {
        by!(@ BitType $ty, $T => $e; B16 u16, B32 u32, B64 u64)
    };
    (WordType $ty:expr, $T:ident => $e:expr) => {
        by!(@ WordType $ty, $T => $e; B32 u32, B64 u64)
    };
    (width $ty:expr, $T:ident => $e:expr) => {
        by!(BitType $ty.as_bits(), $T => $e)
    };
    (row $ty:expr, $T:ident => $e:expr) => {
        if $ty.slot().class == crate::ptx::operand::Class::B64 { type $T = u64; $e } else { type $T = u32; $e }
    };
}
pub(crate) use by;

/// What integers of a width and a sign have of their own.
pub trait Int: Copy + Ord {
    type Wide: Int;
    /// The low bits.
    fn of(bits: u64) -> Self;
    fn bits(self) -> u64;
    fn mul_hi(self, b: Self) -> Self;
    fn mul_wide(self, b: Self) -> Self::Wide;
    /// By zero all ones, the most negative by -1 itself. PTX leaves these open; so does the sequence that ptxas 13.0 makes of it.
    fn div(self, b: Self) -> Self;
    /// By zero all ones, the most negative by -1 zero: open as for `div`.
    fn rem(self, b: Self) -> Self;
    fn magnitude(self) -> Self;
    /// The number, or its complement where it is negative.
    fn significant(self) -> Self;
    /// Amounts beyond the width give 0.
    fn shl(self, n: u32) -> Self;
    /// Amounts beyond the width give 0, or the sign.
    fn shr(self, n: u32) -> Self;
}

macro_rules! ints {
    ($($t:ident, $wide:ident, $double:ident, $signed:literal;)*) => {$(
        impl Int for $t {
            type Wide = $wide;
            #[inline(always)]
            fn of(bits: u64) -> $t { bits as $t }
            #[inline(always)]
            fn bits(self) -> u64 { self as u64 }
            #[inline(always)]
            fn mul_hi(self, b: $t) -> $t { ((self as $double).wrapping_mul(b as $double) >> $t::BITS) as $t }
            #[inline(always)]
            fn mul_wide(self, b: $t) -> $wide { (self as $wide).wrapping_mul(b as $wide) }
            #[inline(always)]
            fn div(self, b: $t) -> $t { if b == 0 { !0 } else { self.wrapping_div(b) } }
            #[inline(always)]
            fn rem(self, b: $t) -> $t { if b == 0 { !0 } else { self.wrapping_rem(b) } }
            #[inline(always)]
            fn magnitude(self) -> $t { if $signed && self >> ($t::BITS - 1) != 0 { self.wrapping_neg() } else { self } }
            #[inline(always)]
            fn significant(self) -> $t { if $signed && self >> ($t::BITS - 1) != 0 { !self } else { self } }
            #[inline(always)]
            fn shl(self, n: u32) -> $t {
                let shifted = self << (n & ($t::BITS - 1));
                if n >= $t::BITS { 0 } else { shifted }
            }
            #[inline(always)]
            fn shr(self, n: u32) -> $t {
                let shifted = self >> (if $signed && n >= $t::BITS { $t::BITS - 1 } else { n & ($t::BITS - 1) });
                if !$signed && n >= $t::BITS { 0 } else { shifted }
            }
        }
    )*};
}
ints! {
    u32, u64, u64, false;
    i32, i64, i64, true;
    // 64-bit integers have no wider product in PTX; their own width stands in.
    u64, u64, u128, false;
    i64, i64, i128, true;
    u16, u32, u32, false;
    i16, i32, i32, true;
}

macro_rules! bit_fields {
    ($($unsigned:ty, $signed:ty, $bfe_u:ident, $bfe_s:ident, $bfi:ident;)*) => {
        $(
            /// `bfe.u`: `length` bits from `position`; both are taken modulo 256, missing bits are 0.
            #[inline(always)]
            pub const fn $bfe_u(a: $unsigned, position: u32, length: u32) -> $unsigned {
                const BITS: u32 = <$unsigned>::BITS;
                let (position, length) = (position & 0xff, length & 0xff);
                let field = if position >= BITS { 0 } else { a >> position };
                if length >= BITS { field } else { field & ((1 << length) - 1) }
            }

            /// `bfe.s`: as `bfe.u`, with missing and upper bits filled with the field's last bit (the operand's sign, if
            /// the field reaches that far); 0 for no length.
            #[inline(always)]
            pub const fn $bfe_s(a: $signed, position: u32, length: u32) -> $signed {
                const BITS: u32 = <$unsigned>::BITS;
                let (position, length) = (position & 0xff, length & 0xff);
                let field = a >> (if position >= BITS { BITS - 1 } else { position });
                let unused = if length >= BITS { 0 } else { BITS - length };
                if length == 0 { 0 } else { field << (unused & (BITS - 1)) >> (unused & (BITS - 1)) }
            }

            /// `bfi`: the low `length` bits of `a` put into `b` at `position`; both modulo 256.
            #[inline(always)]
            pub const fn $bfi(a: $unsigned, b: $unsigned, position: u32, length: u32) -> $unsigned {
                const BITS: u32 = <$unsigned>::BITS;
                let (position, length) = (position & 0xff, length & 0xff);
                let mask = if length >= BITS { <$unsigned>::MAX } else { (1 << length) - 1 };
                let (mask, a) = if position >= BITS { (0, 0) } else { (mask << position, a << position) };
                b & !mask | a & mask
            }
        )*
    };
}

bit_fields! {
    u32, i32, bfe_u32, bfe_s32, bfi_b32;
    u64, i64, bfe_u64, bfe_s64, bfi_b64;
}

/// How `prmt` reads its selector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permute {
    /// Four nibbles, each a byte of `b:a` and a bit to replicate its sign instead.
    Generic,
    /// Forward four bytes from the selected one.
    ForwardFour,
    /// Backward four bytes.
    BackwardFour,
    /// One byte four times.
    Replicate8,
    /// Edge clamp left.
    EdgeLeft,
    /// Edge clamp right.
    EdgeRight,
    /// One half-word twice.
    Replicate16,
}

/// `prmt.b32`.
#[inline(always)]
pub const fn prmt(a: u32, b: u32, selector: u32, mode: Permute) -> u32 {
    // PTX ISA, `prmt`: the table of the special modes, by selector & 3, most significant byte first.
    let selector = match mode {
        Permute::Generic => selector,
        Permute::ForwardFour => [0x3210, 0x4321, 0x5432, 0x6543][selector as usize & 3],
        Permute::BackwardFour => [0x5670, 0x6701, 0x7012, 0x0123][selector as usize & 3],
        Permute::Replicate8 => [0x0000, 0x1111, 0x2222, 0x3333][selector as usize & 3],
        Permute::EdgeLeft => [0x3210, 0x3211, 0x3222, 0x3333][selector as usize & 3],
        Permute::EdgeRight => [0x0000, 0x1110, 0x2210, 0x3210][selector as usize & 3],
        Permute::Replicate16 => [0x1010, 0x3232, 0x1010, 0x3232][selector as usize & 3],
    };
    let bytes = (b as u64) << 32 | a as u64;
    let mut result = 0;
    let mut i = 0;
    while i < 4 {
        let nibble = selector >> (4 * i) & 15;
        let byte = (bytes >> (8 * (nibble & 7))) as u32 & 0xff;
        let sign = 0u32.wrapping_sub(byte >> 7) & 0xff;
        result |= (if nibble & 8 != 0 { sign } else { byte }) << (8 * i);
        i += 1;
    }
    result
}

/// `lop3.b32`: bit i of the result is bit `a_i·4 + b_i·2 + c_i` of the table.
#[inline(always)]
pub const fn lop3(a: u32, b: u32, c: u32, table: u8) -> u32 {
    let mut result = 0;
    let mut i = 0;
    while i < 8 {
        let x = if i & 4 != 0 { a } else { !a };
        let y = if i & 2 != 0 { b } else { !b };
        let z = if i & 1 != 0 { c } else { !c };
        let selected = 0u32.wrapping_sub((table >> i & 1) as u32);
        result |= x & y & z & selected;
        i += 1;
    }
    result
}

/// What `shf` does with amounts above 31.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FunnelShift {
    Wrap,
    Clamp,
}

#[inline(always)]
const fn funnel_amount(n: u32, mode: FunnelShift) -> u32 {
    match mode {
        FunnelShift::Wrap => n & 31,
        FunnelShift::Clamp if n > 32 => 32,
        FunnelShift::Clamp => n,
    }
}

/// `shf.l.b32 d, a, b, n`: the high word of `b:a << n`.
#[inline(always)]
pub const fn shf_l(a: u32, b: u32, n: u32, mode: FunnelShift) -> u32 {
    ((((b as u64) << 32 | a as u64) << funnel_amount(n, mode)) >> 32) as u32
}

/// `shf.r.b32 d, a, b, n`: the low word of `b:a >> n`.
#[inline(always)]
pub const fn shf_r(a: u32, b: u32, n: u32, mode: FunnelShift) -> u32 {
    (((b as u64) << 32 | a as u64) >> funnel_amount(n, mode)) as u32
}
