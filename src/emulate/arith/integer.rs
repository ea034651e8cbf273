//! Integer and bit instructions of PTX whose meaning differs from Rust's operators.
//!
//! Add, sub and the low half of mul are the wrapping operators and not repeated here.

macro_rules! shifts {
    ($($unsigned:ty, $signed:ty, $shl:ident, $shr_u:ident, $shr_s:ident;)*) => {
        $(
            /// `shl.b`: 0 from the type's width on.
            #[inline(always)]
            pub const fn $shl(a: $unsigned, n: u32) -> $unsigned {
                let shifted = a << (n & (<$unsigned>::BITS - 1));
                if n >= <$unsigned>::BITS { 0 } else { shifted }
            }

            /// `shr.u`, `shr.b`: 0 from the type's width on.
            #[inline(always)]
            pub const fn $shr_u(a: $unsigned, n: u32) -> $unsigned {
                let shifted = a >> (n & (<$unsigned>::BITS - 1));
                if n >= <$unsigned>::BITS { 0 } else { shifted }
            }

            /// `shr.s`: all sign from the type's width on.
            #[inline(always)]
            pub const fn $shr_s(a: $signed, n: u32) -> $signed {
                a >> (if n >= <$unsigned>::BITS { <$unsigned>::BITS - 1 } else { n })
            }
        )*
    };
}

shifts! {
    u16, i16, shl_b16, shr_u16, shr_s16;
    u32, i32, shl_b32, shr_u32, shr_s32;
    u64, i64, shl_b64, shr_u64, shr_s64;
}

macro_rules! divisions {
    ($($type:ty, $all_ones:expr, $div:ident, $rem:ident;)*) => {
        $(
            /// `div`: by zero all ones, the most negative by -1 itself. PTX leaves these open; so does the sequence that
            /// ptxas 13.0 makes of it.
            #[inline(always)]
            pub const fn $div(a: $type, b: $type) -> $type {
                if b == 0 { $all_ones } else { a.wrapping_div(b) }
            }

            /// `rem`: by zero all ones, the most negative by -1 zero. PTX leaves these open; so does the sequence that
            /// ptxas 13.0 makes of it.
            #[inline(always)]
            pub const fn $rem(a: $type, b: $type) -> $type {
                if b == 0 { $all_ones } else { a.wrapping_rem(b) }
            }
        )*
    };
}

divisions! {
    i16, -1, div_s16, rem_s16;
    u16, u16::MAX, div_u16, rem_u16;
    i32, -1, div_s32, rem_s32;
    u32, u32::MAX, div_u32, rem_u32;
    i64, -1, div_s64, rem_s64;
    u64, u64::MAX, div_u64, rem_u64;
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
        FunnelShift::Clamp => {
            if n > 32 {
                32
            } else {
                n
            }
        }
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
