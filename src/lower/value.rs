//! Lowered values: what a kernel value is in the registers of one thread.
use super::emit::{S, V};
use crate::dtype::DType;
use crate::layout::RegisterLayout;
use crate::plan::parked::Home;
use crate::ptx::operand::Class;

/// A kernel value in registers.
#[derive(Clone, Debug)]
pub enum Lowered {
    /// bool: a predicate (constants 0 and 1). Integers of up to 32 bits: sign- or zero-extended in a 32-bit register. i64, u64, f64:
    /// 64 bits. f16, bf16: 16 bits. f32: 32 bits. Narrower floats: the low bits of a 32-bit register, zero-extended.
    Scalar(S),
    Array(ArrayRegs),
    Acc(AccRegs),
}

/// The part of an array that a thread holds.
#[derive(Clone, Debug)]
pub struct ArrayRegs {
    pub dtype: DType,
    pub layout: RegisterLayout,
    /// In slot order. bool: a predicate per slot. Types below 32 bits: words of `32 / bits` slots, the lowest slot in the low bits,
    /// unused high bits of the last word unspecified. Else one register per slot.
    pub regs: Vec<S>,
}

/// The part of an accumulator that a thread holds: the slots of its layout, 32 bits each (f16: packed pairs).
#[derive(Clone, Debug)]
pub struct AccRegs {
    pub dtype: DType,
    pub layout: RegisterLayout,
    /// Without those of parked columns.
    pub regs: Vec<V>,
    /// Where those are.
    pub home: Option<Home>,
}

impl AccRegs {
    /// Words of a 64-row block that hold its first columns.
    pub fn words(&self, columns: u64) -> usize {
        (columns * 64 / 128 * u64::from(self.dtype.bits()) / 32) as usize
    }
    pub fn rows(&self) -> u64 {
        self.layout.shape()[0]
    }
    pub fn columns(&self) -> u64 {
        self.layout.shape()[1]
    }
    /// Columns that are in registers.
    pub fn kept(&self) -> u64 {
        self.home.map_or(self.columns(), |home| home.kept)
    }
    /// Words of a block that are parked.
    pub fn parked(&self) -> usize {
        self.words(self.columns()) - self.words(self.kept())
    }
}

/// How the elements of an array are kept in registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Packing {
    Predicates,
    /// Slots in a 32-bit word: 1 for 32-bit types.
    Words(u32),
    Wide,
}

impl Packing {
    pub fn of(dtype: DType) -> Packing {
        match (dtype, dtype.bits()) {
            (DType::Bool, _) => Packing::Predicates,
            (_, 64) => Packing::Wide,
            (_, bits) => Packing::Words(32 / bits),
        }
    }
    /// The class of one register.
    pub fn class(self) -> Class {
        match self {
            Packing::Predicates => Class::Pred,
            Packing::Words(_) => Class::B32,
            Packing::Wide => Class::B64,
        }
    }
    /// Registers for so many slots.
    pub fn regs(self, slots: u32) -> u32 {
        match self {
            Packing::Predicates | Packing::Wide => slots,
            Packing::Words(n) => slots.div_ceil(n),
        }
    }
}

/// The class of a scalar, or of one element taken out of an array.
pub fn scalar_class(dtype: DType) -> Class {
    match (dtype, dtype.bits()) {
        (DType::Bool, _) => Class::Pred,
        (DType::F16 | DType::BF16, _) => Class::B16,
        (_, 64) => Class::B64,
        _ => Class::B32,
    }
}

/// The bits of a scalar constant as [`Lowered::Scalar`] keeps them, from its low bits.
pub fn scalar_constant(dtype: DType, bits: u64) -> S {
    let width = dtype.bits();
    let low = if width >= 64 { bits } else { bits & ((1 << width) - 1) };
    S::Imm(match dtype {
        DType::Bool => u64::from(low & 1),
        d if d.is_signed_int() && width < 32 => {
            let shift = 64 - width;
            ((low << shift) as i64 >> shift) as u64 & 0xffff_ffff
        }
        _ => low,
    })
}
