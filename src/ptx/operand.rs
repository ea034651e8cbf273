//! Operands of instructions: register classes, sources, addresses, lists.
//!
//! Everything is generic over `R`, the register name: [`crate::ptx::ssa::Value`] in the optimised form,
//! [`crate::ptx::flat::Reg`] in the printed and executed one.
use smallvec::SmallVec;

/// A register class. smalt declares untyped registers (`.b16`, `.b32`, `.b64`, `.pred`): PTX lets an instruction of
/// any type of the same size use them (PTX ISA, "Type Checking"). 8-bit values live in `B32` registers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Class {
    Pred,
    B16,
    B32,
    B64,
}

impl Class {
    pub const ALL: [Class; 4] = [Class::Pred, Class::B16, Class::B32, Class::B64];

    /// Bits of a register; a predicate counts 1.
    pub const fn bits(self) -> u32 {
        match self {
            Class::Pred => 1,
            Class::B16 => 16,
            Class::B32 => 32,
            Class::B64 => 64,
        }
    }
    /// The bits of an immediate that such a register holds.
    pub const fn mask(self) -> u64 {
        u64::MAX >> (64 - self.bits())
    }
    /// The letter(s) after `%` of a printed register.
    pub const fn prefix(self) -> &'static str {
        match self {
            Class::Pred => "p",
            Class::B16 => "h",
            Class::B32 => "r",
            Class::B64 => "d",
        }
    }
    pub const fn ptx_type(self) -> &'static str {
        match self {
            Class::Pred => ".pred",
            Class::B16 => ".b16",
            Class::B32 => ".b32",
            Class::B64 => ".b64",
        }
    }
}

/// How an immediate of an operand is written.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LiteralStyle {
    Integer,
    /// `0f3F800000`
    F32,
    /// `0d3FF0000000000000`
    F64,
    /// The operand takes no immediate (16-bit and packed floats).
    None,
}

/// What an operand slot takes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Slot {
    pub class: Class,
    pub literal: LiteralStyle,
}

impl Slot {
    pub const PRED: Slot = Slot {
        class: Class::Pred,
        literal: LiteralStyle::None,
    };
    pub const B16: Slot = Slot {
        class: Class::B16,
        literal: LiteralStyle::Integer,
    };
    pub const B32: Slot = Slot {
        class: Class::B32,
        literal: LiteralStyle::Integer,
    };
    pub const B64: Slot = Slot {
        class: Class::B64,
        literal: LiteralStyle::Integer,
    };
    pub const F32: Slot = Slot {
        class: Class::B32,
        literal: LiteralStyle::F32,
    };
    pub const F64: Slot = Slot {
        class: Class::B64,
        literal: LiteralStyle::F64,
    };
    /// 16-bit registers of instructions that take no literal.
    pub const H16: Slot = Slot {
        class: Class::B16,
        literal: LiteralStyle::None,
    };
    /// 32-bit registers of instructions that take no literal: fragments of matrices.
    pub const FRAGMENT: Slot = Slot {
        class: Class::B32,
        literal: LiteralStyle::None,
    };
    /// 64-bit registers that take no literal.
    pub const WIDE: Slot = Slot {
        class: Class::B64,
        literal: LiteralStyle::None,
    };
    /// Packed 16-bit pairs.
    pub const H16X2: Slot = Slot {
        class: Class::B32,
        literal: LiteralStyle::None,
    };
}

/// A source: a register, or the bits of an immediate (zero-extended to 64).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Src<R> {
    Reg(R),
    Imm(u64),
}

impl<R> Src<R> {
    pub fn imm32(value: i32) -> Src<R> {
        Src::Imm(u64::from(value as u32))
    }
    pub fn u32(value: u32) -> Src<R> {
        Src::Imm(u64::from(value))
    }
    pub fn f32(value: f32) -> Src<R> {
        Src::Imm(u64::from(value.to_bits()))
    }
    pub fn f64(value: f64) -> Src<R> {
        Src::Imm(value.to_bits())
    }
    pub fn reg(self) -> Option<R> {
        match self {
            Src::Reg(r) => Some(r),
            Src::Imm(_) => None,
        }
    }
    pub fn imm(self) -> Option<u64> {
        match self {
            Src::Reg(_) => None,
            Src::Imm(bits) => Some(bits),
        }
    }
}

/// A number: negative ones are sign-extended, and cut to the class of the slot that they land in.
impl From<i32> for Src<super::ssa::Value> {
    fn from(v: i32) -> Self {
        Src::Imm(i64::from(v) as u64)
    }
}
impl From<u32> for Src<super::ssa::Value> {
    fn from(v: u32) -> Self {
        Src::u32(v)
    }
}

impl<R> From<R> for Src<R> {
    fn from(r: R) -> Src<R> {
        Src::Reg(r)
    }
}

/// `[base + offset]`, offset in bytes. Shared addresses are 32-bit, global and generic ones 64-bit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Addr<R> {
    pub base: R,
    pub offset: i32,
}

impl<R> Addr<R> {
    pub fn new(base: R) -> Addr<R> {
        Addr { base, offset: 0 }
    }
    pub fn at(base: R, offset: i32) -> Addr<R> {
        Addr { base, offset }
    }
}

/// A list of registers, printed `{a, b}`, or bare when it has one element.
pub type Regs<R> = SmallVec<[R; 4]>;
/// A list of sources. Nearly all have one or two; room for more would double the size of every instruction.
pub type Srcs<R> = SmallVec<[Src<R>; 2]>;

/// Registers that an instruction reads and redefines in place (accumulator fragments). In SSA form `output[i]` is the
/// new name of `input[i]`; in flat form both are the same register, and `output` is printed.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Tied<R> {
    pub input: Vec<R>,
    pub output: Vec<R>,
}

impl<R: Copy> Tied<R> {
    /// The flat form: the same registers in and out.
    pub fn in_place(regs: Vec<R>) -> Tied<R> {
        Tied {
            input: regs.clone(),
            output: regs,
        }
    }
}

/// A parameter of the entry, by position.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ParamRef(pub u32);

/// A field of an instruction. `usize`-free: names and order are the row's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Field<'a, R> {
    /// A modifier's text, e.g. `.ftz` or `s32`.
    Modifier(&'static str),
    Def(&'a R, Slot),
    /// A register that takes no immediate.
    Reg(&'a R, Slot),
    Src(&'a Src<R>, Slot),
    Addr(&'a Addr<R>, Slot),
    Defs(&'a [R], Slot),
    Srcs(&'a [Src<R>], Slot),
    Tied(&'a Tied<R>, Slot),
    /// A number that is part of the instruction.
    Number(i64),
    Param(ParamRef),
    Text(&'a str),
}
