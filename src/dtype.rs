//! Element types, shared by every room.
use std::fmt;

/// An element type of arrays, refs and scalars. Names and semantics are JAX's (`ml_dtypes` for the narrow floats).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum DType {
    Bool,
    I2,
    I4,
    I8,
    I16,
    I32,
    I64,
    U2,
    U4,
    U8,
    U16,
    U32,
    U64,
    F16,
    BF16,
    F32,
    F64,
    F8E4M3FN,
    F8E5M2,
    F8E8M0FNU,
    F4E2M1FN,
    F6E2M3FN,
    F6E3M2FN,
    F8E4M3B11FNUZ,
    F8E4M3FNUZ,
    F8E5M2FNUZ,
    F8E3M4,
    F8E4M3,
}

impl DType {
    pub const ALL: [DType; 28] = {
        use DType::*;
        [
            Bool,
            I2,
            I4,
            I8,
            I16,
            I32,
            I64,
            U2,
            U4,
            U8,
            U16,
            U32,
            U64,
            F16,
            BF16,
            F32,
            F64,
            F8E4M3FN,
            F8E5M2,
            F8E8M0FNU,
            F4E2M1FN,
            F6E2M3FN,
            F6E3M2FN,
            F8E4M3B11FNUZ,
            F8E4M3FNUZ,
            F8E5M2FNUZ,
            F8E3M4,
            F8E4M3,
        ]
    };

    /// Bits of one element in GMEM and SMEM. `bool` is one byte in memory; sub-byte types are packed, low bits first.
    pub const fn bits(self) -> u32 {
        use DType::*;
        match self {
            I2 | U2 => 2,
            I4 | U4 | F4E2M1FN => 4,
            F6E2M3FN | F6E3M2FN => 6,
            Bool | I8 | U8 | F8E4M3FN | F8E5M2 | F8E8M0FNU | F8E4M3B11FNUZ | F8E4M3FNUZ | F8E5M2FNUZ | F8E3M4
            | F8E4M3 => 8,
            I16 | U16 | F16 | BF16 => 16,
            I32 | U32 | F32 => 32,
            I64 | U64 | F64 => 64,
        }
    }

    /// Bytes that `elements` consecutive elements take in memory, rounded up; `None` on overflow.
    pub fn bytes(self, elements: u64) -> Option<u64> {
        elements
            .checked_mul(u64::from(self.bits()))
            .map(|bits| bits.div_ceil(8))
    }

    pub const fn is_float(self) -> bool {
        use DType::*;
        !matches!(
            self,
            Bool | I2 | I4 | I8 | I16 | I32 | I64 | U2 | U4 | U8 | U16 | U32 | U64
        )
    }

    pub const fn is_signed_int(self) -> bool {
        use DType::*;
        matches!(self, I2 | I4 | I8 | I16 | I32 | I64)
    }

    pub const fn is_unsigned_int(self) -> bool {
        use DType::*;
        matches!(self, U2 | U4 | U8 | U16 | U32 | U64)
    }

    pub const fn is_int(self) -> bool {
        self.is_signed_int() || self.is_unsigned_int()
    }

    /// JAX's name, e.g. `bfloat16`.
    pub const fn name(self) -> &'static str {
        use DType::*;
        match self {
            Bool => "bool",
            I2 => "int2",
            I4 => "int4",
            I8 => "int8",
            I16 => "int16",
            I32 => "int32",
            I64 => "int64",
            U2 => "uint2",
            U4 => "uint4",
            U8 => "uint8",
            U16 => "uint16",
            U32 => "uint32",
            U64 => "uint64",
            F16 => "float16",
            BF16 => "bfloat16",
            F32 => "float32",
            F64 => "float64",
            F8E4M3FN => "float8_e4m3fn",
            F8E5M2 => "float8_e5m2",
            F8E8M0FNU => "float8_e8m0fnu",
            F4E2M1FN => "float4_e2m1fn",
            F6E2M3FN => "float6_e2m3fn",
            F6E3M2FN => "float6_e3m2fn",
            F8E4M3B11FNUZ => "float8_e4m3b11fnuz",
            F8E4M3FNUZ => "float8_e4m3fnuz",
            F8E5M2FNUZ => "float8_e5m2fnuz",
            F8E3M4 => "float8_e3m4",
            F8E4M3 => "float8_e4m3",
        }
    }

    /// The short name of IR dumps, e.g. `bf16`.
    pub const fn short(self) -> &'static str {
        use DType::*;
        match self {
            Bool => "bool",
            I2 => "i2",
            I4 => "i4",
            I8 => "i8",
            I16 => "i16",
            I32 => "i32",
            I64 => "i64",
            U2 => "u2",
            U4 => "u4",
            U8 => "u8",
            U16 => "u16",
            U32 => "u32",
            U64 => "u64",
            F16 => "f16",
            BF16 => "bf16",
            F32 => "f32",
            F64 => "f64",
            F8E4M3FN => "e4m3",
            F8E5M2 => "e5m2",
            F8E8M0FNU => "e8m0",
            F4E2M1FN => "e2m1",
            F6E2M3FN => "e2m3",
            F6E3M2FN => "e3m2",
            F8E4M3B11FNUZ => "e4m3b11fnuz",
            F8E4M3FNUZ => "e4m3fnuz",
            F8E5M2FNUZ => "e5m2fnuz",
            F8E3M4 => "e3m4",
            F8E4M3 => "e4m3_ieee",
        }
    }

    /// The type with this short name.
    pub fn from_short(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|d| d.short() == name)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.short())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_are_unique() {
        for d in DType::ALL {
            assert_eq!(DType::from_short(d.short()), Some(d));
        }
    }

    #[test]
    fn packed_sizes_round_up_and_do_not_overflow() {
        assert_eq!(DType::I4.bytes(3), Some(2));
        assert_eq!(DType::Bool.bytes(3), Some(3));
        assert_eq!(DType::F64.bytes(u64::MAX), None);
    }
}
