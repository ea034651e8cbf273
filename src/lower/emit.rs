//! Frequent sequences of instructions, on top of [`Builder`].
use crate::ptx::build::{Builder, Operand};
use crate::ptx::inst::Inst;
use crate::ptx::modifier::*;
use crate::ptx::operand::{Class, Src, Srcs};
use crate::ptx::ssa::{Negated, Uniform, Value};
use smallvec::smallvec;

/// A per-thread value of the emitted program.
pub type V = Value;
/// A source: a value or a constant's bits, zero-extended; predicates are 0 and 1.
pub type S = Operand;

pub const ALL_LANES: i64 = 0xffff_ffff;

const NEW: Value = Value::NEW;

impl Builder {
    pub fn r16(&mut self, s: S) -> V {
        self.value(s, Class::B16)
    }
    pub fn r32(&mut self, s: S) -> V {
        self.value(s, Class::B32)
    }
    pub fn r64(&mut self, s: S) -> V {
        self.value(s, Class::B64)
    }
    pub fn pred(&mut self, s: S) -> V {
        self.value(s, Class::Pred)
    }

    /// An instruction that defines nothing, executed where `guard` holds.
    pub fn inst_if(&mut self, guard: Option<V>, inst: Inst<V>) {
        match guard {
            None => {
                self.inst(inst);
            }
            Some(g) => self.guarded(g, Negated::No, |b| {
                b.inst(inst);
            }),
        }
    }

    // ------------------------------------------------------------ fields of words

    /// `len` bits of a word from bit `pos`, zero- or sign-extended. The field is inside the word.
    pub fn field(&mut self, a: S, pos: u32, len: u32, signed: bool) -> S {
        let ty = if signed { IntType::S32 } else { IntType::U32 };
        if len == 32 {
            a
        } else if !signed && pos == 0 {
            self.and(LogicType::B32, a, mask32(len))
        } else if pos + len == 32 {
            self.shr(ty.as_shift(), a, pos)
        } else {
            self.emit(Inst::bfe(ty, NEW, a, Src::u32(pos), Src::u32(len)))
        }
    }
    /// `b` with `len` bits from bit `pos` replaced by the low bits of `a`.
    pub fn insert_field(&mut self, a: S, b: S, pos: u32, len: u32) -> S {
        let (pos, len) = (Src::u32(pos), Src::u32(len));
        self.emit(Inst::bfi(WordType::B32, NEW, a, b, pos, len))
    }
    /// The bytes of `b:a` (`a` has bytes 0 to 3) that the nibbles of `selector` name.
    pub fn prmt(&mut self, a: S, b: S, selector: u32) -> S {
        self.emit(Inst::prmt(PrmtMode::Bytes, NEW, a, b, Src::u32(selector)))
    }
    /// The same, where the nibbles are not known yet.
    pub fn prmt_by(&mut self, a: S, b: S, selector: S) -> S {
        self.emit(Inst::prmt(PrmtMode::Bytes, NEW, a, b, selector))
    }
    /// Two halves as one word: `low` in the low bits.
    pub fn pack16(&mut self, low: S, high: S) -> S {
        if let (Src::Imm(x), Src::Imm(y)) = (low, high) {
            return Src::Imm(x & 0xffff | (y & 0xffff) << 16);
        }
        let a: Srcs<V> = smallvec![low, high];
        self.emit(Inst::PackB32 { d: NEW, a })
    }
    /// The halves of a word, low first.
    pub fn unpack16(&mut self, word: S) -> [S; 2] {
        match word {
            Src::Imm(x) => [Src::Imm(x & 0xffff), Src::Imm(x >> 16 & 0xffff)],
            Src::Reg(a) => {
                let d = self.inst(Inst::unpack_b32(smallvec![NEW, NEW], a));
                [d[0].into(), d[1].into()]
            }
        }
    }
    /// The words of a 64-bit value, low first.
    pub fn unpack64(&mut self, x: S) -> [S; 2] {
        match x {
            Src::Imm(x) => [Src::Imm(x & 0xffff_ffff), Src::Imm(x >> 32)],
            Src::Reg(a) => {
                let d = self.inst(Inst::unpack_b64(smallvec![NEW, NEW], a));
                [d[0].into(), d[1].into()]
            }
        }
    }
    pub fn pack64(&mut self, low: S, high: S) -> S {
        if let (Src::Imm(x), Src::Imm(y)) = (low, high) {
            return Src::Imm(x & 0xffff_ffff | y << 32);
        }
        let a: Srcs<V> = smallvec![low, high];
        self.emit(Inst::PackB64 { d: NEW, a })
    }

    // ------------------------------------------------------------ integers

    pub fn and32(&mut self, a: S, mask: u32) -> S {
        self.and(LogicType::B32, a, Src::u32(mask))
    }
    pub fn neg(&mut self, ty: IntType, a: S) -> S {
        self.emit(Inst::NegInt { ty, d: NEW, a })
    }
    /// The high half of the product.
    pub fn mul_hi(&mut self, ty: IntType, a: S, b: S) -> S {
        self.emit(Inst::MulHi { ty, d: NEW, a, b })
    }
    /// A 32-bit integer as 64 bits.
    pub fn widen(&mut self, a: S, signed: bool) -> S {
        match a {
            Src::Imm(bits) if signed => Src::Imm(bits as u32 as i32 as i64 as u64),
            Src::Imm(bits) => Src::Imm(bits & 0xffff_ffff),
            a if signed => self.cvt_int(CvtType::S64, CvtType::S32, a),
            a => self.cvt_int(CvtType::U64, CvtType::U32, a),
        }
    }
    /// The low 32 bits of a 64-bit integer.
    pub fn truncate(&mut self, a: S) -> S {
        match a {
            Src::Imm(bits) => Src::Imm(bits & 0xffff_ffff),
            a => self.cvt_int(CvtType::U32, CvtType::U64, a),
        }
    }

    // ------------------------------------------------------------ conversions and floats

    pub fn cvt(&mut self, to: CvtType, from: CvtType, rnd: CvtRound, a: S) -> S {
        let a = self.value(a, from.slot().class);
        self.emit(Inst::cvt(rnd, Ftz::No, Sat::No, to, from, NEW, a))
    }
    pub fn mufu(&mut self, op: Mufu, ftz: Ftz, a: S) -> S {
        self.emit(Inst::Mufu { op, ftz, d: NEW, a })
    }
    pub fn fneg(&mut self, ty: FloatType, a: S) -> S {
        self.emit(Inst::neg_float(Ftz::No, ty, NEW, a))
    }
    pub fn fabs(&mut self, ty: FloatType, a: S) -> S {
        self.emit(Inst::abs_float(Ftz::No, ty, NEW, a))
    }
    pub fn fmin_max(&mut self, op: MinMax, nan: NanMode, ty: FloatType, a: S, b: S) -> S {
        self.emit(Inst::min_max_float(op, Ftz::No, nan, ty, NEW, a, b))
    }
    pub fn fdiv(&mut self, ty: WideFloatType, a: S, b: S) -> S {
        self.emit(Inst::div_float(Ftz::No, ty, NEW, a, b))
    }
    pub fn exact(&mut self, op: Exact, ty: WideFloatType, a: S) -> S {
        self.emit(Inst::exact(op, Ftz::No, ty, NEW, a))
    }

    // ------------------------------------------------------------ predicates

    /// `p ? a : b`, of any class.
    pub fn pick(&mut self, class: Class, p: S, a: S, b: S) -> S {
        if a == b {
            return a;
        }
        match (BitType::of(class), p) {
            (_, Src::Imm(bits)) => {
                if bits & 1 == 1 {
                    a
                } else {
                    b
                }
            }
            (Some(ty), p) => self.select(ty, p, a, b),
            (None, p) => {
                let yes = self.both(p, a);
                let not = self.not_pred(p);
                let no = self.both(not, b);
                self.either(yes, no)
            }
        }
    }
    pub fn logic_pred(&mut self, op: Logic, a: S, b: S) -> S {
        match (a, b, op) {
            (Src::Imm(x), Src::Imm(y), Logic::And) => Src::Imm(x & y),
            (Src::Imm(x), Src::Imm(y), Logic::Or) => Src::Imm(x | y),
            (Src::Imm(x), Src::Imm(y), Logic::Xor) => Src::Imm(x ^ y),
            (Src::Imm(_), Src::Reg(_), _) => self.logic_pred(op, b, a),
            (_, Src::Imm(0), Logic::And) => b,
            (_, Src::Imm(_), Logic::And) => a,
            (_, Src::Imm(0), Logic::Or | Logic::Xor) => a,
            (_, Src::Imm(_), Logic::Or) => b,
            (_, Src::Imm(_), Logic::Xor) => self.not_pred(a),
            _ => self.logic(op, LogicType::Pred, a, b),
        }
    }
    pub fn both(&mut self, a: S, b: S) -> S {
        self.logic_pred(Logic::And, a, b)
    }
    pub fn either(&mut self, a: S, b: S) -> S {
        self.logic_pred(Logic::Or, a, b)
    }
    pub fn not_pred(&mut self, a: S) -> S {
        match a {
            Src::Imm(bits) => Src::Imm(bits & 1 ^ 1),
            a => self.not(LogicType::Pred, a),
        }
    }
    // ------------------------------------------------------------ warps

    /// The word of lane `lane ^ bits`; all lanes of the warp take part.
    pub fn shfl_xor(&mut self, a: S, bits: u32) -> S {
        self.shfl(ShuffleMode::Bfly, a, Src::u32(bits))
    }
    /// The word of lane `lane`.
    pub fn shfl_idx(&mut self, a: S, lane: S) -> S {
        self.shfl(ShuffleMode::Idx, a, lane)
    }
    fn shfl(&mut self, mode: ShuffleMode, a: S, b: S) -> S {
        match a {
            Src::Imm(_) => a,
            Src::Reg(a) => {
                let lane_uniform = self.uniform(b) >= Uniform::Warp;
                let v = self.emit_value(Inst::shfl(mode, NEW, a, b, Src::u32(31), ALL_LANES));
                if mode == ShuffleMode::Idx && lane_uniform {
                    self.claim_uniform(v, Uniform::Warp);
                }
                v.into()
            }
        }
    }
    /// [`Builder::shfl_xor`] of a value of any class.
    pub fn shfl_xor_any(&mut self, class: Class, a: S, bits: u32) -> S {
        self.shuffled(class, a, |b, word| b.shfl_xor(word, bits))
    }
    /// [`Builder::shfl_idx`] of a value of any class.
    pub fn shfl_idx_any(&mut self, class: Class, a: S, lane: S) -> S {
        self.shuffled(class, a, |b, word| b.shfl_idx(word, lane))
    }
    fn shuffled(&mut self, class: Class, a: S, mut f: impl FnMut(&mut Builder, S) -> S) -> S {
        if a.imm().is_some() {
            return a;
        }
        match class {
            Class::B32 => f(self, a),
            Class::B64 => {
                let [low, high] = self.unpack64(a);
                let (low, high) = (f(self, low), f(self, high));
                self.pack64(low, high)
            }
            Class::B16 => {
                let word = self.pack16(a, Src::Imm(0));
                let word = f(self, word);
                self.unpack16(word)[0]
            }
            Class::Pred => {
                let word = self.pick(Class::B32, a, Src::u32(1), Src::u32(0));
                let word = f(self, word);
                self.setp(Compare::Ne, CompareType::U32, word, Src::u32(0))
            }
        }
    }
    /// The value of lane 0 in all lanes of the warp, of any class.
    pub fn broadcast_lane0(&mut self, class: Class, a: S) -> S {
        if self.uniform(a) >= Uniform::Warp {
            a
        } else {
            self.shfl_idx_any(class, a, Src::u32(0))
        }
    }
}

/// The low `len` bits.
pub fn mask32(len: u32) -> S {
    Src::u32(if len >= 32 { u32::MAX } else { (1 << len) - 1 })
}
