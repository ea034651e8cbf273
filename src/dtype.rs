//! Element types, shared by every room.
use std::fmt;

macro_rules! dtypes {
    ($($variant:ident $kind:ident $bits:literal $name:literal $short:literal,)*) => {
        /// An element type of arrays, refs and scalars. Names and semantics are JAX's (`ml_dtypes` for the narrow floats).
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        pub enum DType {
            $($variant,)*
        }

        impl DType {
            pub const ALL: [DType; [$($bits),*].len()] = [$(DType::$variant),*];

            const fn kind(self) -> Kind {
                match self { $(DType::$variant => Kind::$kind,)* }
            }

            /// Bits of one element in GMEM and SMEM. `bool` is one byte in memory; sub-byte types are packed, low bits first.
            pub const fn bits(self) -> u32 {
                match self { $(DType::$variant => $bits,)* }
            }

            /// JAX's name, e.g. `bfloat16`.
            pub const fn name(self) -> &'static str {
                match self { $(DType::$variant => $name,)* }
            }

            /// The short name of IR dumps, e.g. `bf16`.
            pub const fn short(self) -> &'static str {
                match self { $(DType::$variant => $short,)* }
            }
        }
    };
}

dtypes! {
    Bool Bool 8 "bool" "bool",
    I2 Signed 2 "int2" "i2",
    I4 Signed 4 "int4" "i4",
    I8 Signed 8 "int8" "i8",
    I16 Signed 16 "int16" "i16",
    I32 Signed 32 "int32" "i32",
    I64 Signed 64 "int64" "i64",
    U2 Unsigned 2 "uint2" "u2",
    U4 Unsigned 4 "uint4" "u4",
    U8 Unsigned 8 "uint8" "u8",
    U16 Unsigned 16 "uint16" "u16",
    U32 Unsigned 32 "uint32" "u32",
    U64 Unsigned 64 "uint64" "u64",
    F16 Float 16 "float16" "f16",
    BF16 Float 16 "bfloat16" "bf16",
    F32 Float 32 "float32" "f32",
    F64 Float 64 "float64" "f64",
    F8E4M3FN Float 8 "float8_e4m3fn" "e4m3",
    F8E5M2 Float 8 "float8_e5m2" "e5m2",
    F8E8M0FNU Float 8 "float8_e8m0fnu" "e8m0",
    F4E2M1FN Float 4 "float4_e2m1fn" "e2m1",
    F6E2M3FN Float 6 "float6_e2m3fn" "e2m3",
    F6E3M2FN Float 6 "float6_e3m2fn" "e3m2",
    F8E4M3B11FNUZ Float 8 "float8_e4m3b11fnuz" "e4m3b11fnuz",
    F8E4M3FNUZ Float 8 "float8_e4m3fnuz" "e4m3fnuz",
    F8E5M2FNUZ Float 8 "float8_e5m2fnuz" "e5m2fnuz",
    F8E3M4 Float 8 "float8_e3m4" "e3m4",
    F8E4M3 Float 8 "float8_e4m3" "e4m3_ieee",
}

enum Kind {
    Bool,
    Signed,
    Unsigned,
    Float,
}

impl DType {
    /// Bytes that `elements` consecutive elements take in memory, rounded up; `None` on overflow.
    pub fn bytes(self, elements: u64) -> Option<u64> {
        elements
            .checked_mul(u64::from(self.bits()))
            .map(|bits| bits.div_ceil(8))
    }

    pub const fn is_float(self) -> bool {
        matches!(self.kind(), Kind::Float)
    }

    pub const fn is_signed_int(self) -> bool {
        matches!(self.kind(), Kind::Signed)
    }

    pub const fn is_unsigned_int(self) -> bool {
        matches!(self.kind(), Kind::Unsigned)
    }

    pub const fn is_int(self) -> bool {
        matches!(self.kind(), Kind::Signed | Kind::Unsigned)
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
    fn names_have_the_number_of_bits() {
        for d in DType::ALL.into_iter().filter(|d| *d != DType::Bool) {
            let number = d.name().trim_start_matches(char::is_alphabetic);
            let bits = number.split('_').next().and_then(|bits| bits.parse().ok());
            assert_eq!(bits, Some(d.bits()), "{d}");
            assert!(d.is_float() != d.is_int(), "{d}");
            assert_eq!(d.is_unsigned_int(), d.name().starts_with('u'), "{d}");
        }
    }

    #[test]
    fn packed_sizes_round_up_and_do_not_overflow() {
        assert_eq!(DType::I4.bytes(3), Some(2));
        assert_eq!(DType::Bool.bytes(3), Some(3));
        assert_eq!(DType::F64.bytes(u64::MAX), None);
    }
}
