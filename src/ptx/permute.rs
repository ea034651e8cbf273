//! Permutations of bytes: one of another is one.
use super::inst::Inst;
use super::modifier::PrmtMode;
use super::operand::Src;
use super::simplify::{Facts, Simplified};
use super::ssa::Value;

/// Where a byte of a result comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Byte {
    Constant(u8),
    /// A register's byte, or its sign in all bits.
    Of {
        v: Value,
        at: u32,
        sign: bool,
    },
}

/// One step for `prmt` of two words.
pub fn simplify(words: [Src<Value>; 2], selector: u32, facts: &impl Facts) -> Simplified {
    let bytes = [0, 1, 2, 3].map(|i| byte(words, selector >> (4 * i), facts));
    let is_identity = |v: Value| {
        (0u32..4)
            .zip(bytes)
            .all(|(at, byte)| byte == Byte::Of { v, at, sign: false })
    };
    if let Byte::Of { v, .. } = bytes[0]
        && is_identity(v)
    {
        return Simplified::Operand(Src::Reg(v));
    }
    let outer = registers(&bytes);
    // Through both inner permutations, or through one of them.
    let through = |which: &[Value]| bytes.map(|b| if b.is_of(which) { b.traced(facts) } else { b });
    let mut choices = vec![through(&outer)];
    choices.extend(outer.iter().map(|&v| through(&[v])));
    for traced in choices {
        if traced != bytes
            && let Some(inst) = permutation(&traced)
        {
            return Simplified::Inst(inst);
        }
    }
    Simplified::Same
}

fn byte(words: [Src<Value>; 2], nibble: u32, facts: &impl Facts) -> Byte {
    let (at, sign) = (nibble & 3, nibble & 8 != 0);
    let word = words[(nibble >> 2 & 1) as usize];
    let constant = match word {
        Src::Imm(bits) => Some(bits),
        Src::Reg(v) => facts.constant(v),
    };
    match (constant, word) {
        (Some(bits), _) => Byte::Constant((bits >> (8 * at)) as u8).replicated(sign),
        (None, Src::Reg(v)) => Byte::Of { v, at, sign },
        (None, Src::Imm(_)) => unreachable!("an immediate is a constant"),
    }
}

impl Byte {
    /// The sign in all bits, if asked for: that of a sign is the same.
    fn replicated(self, sign: bool) -> Byte {
        match self {
            Byte::Constant(c) if sign => Byte::Constant(if c & 0x80 != 0 { 0xff } else { 0 }),
            Byte::Constant(_) => self,
            Byte::Of { v, at, sign: before } => Byte::Of {
                v,
                at,
                sign: before || sign,
            },
        }
    }

    fn is_of(self, which: &[Value]) -> bool {
        matches!(self, Byte::Of { v, .. } if which.contains(&v))
    }

    /// The byte of what the register is a permutation of.
    fn traced(self, facts: &impl Facts) -> Byte {
        let Byte::Of { v, at, sign } = self else { return self };
        match facts.definition(v) {
            Some(Inst::Prmt {
                mode: PrmtMode::Bytes,
                a,
                b,
                c: Src::Imm(selector),
                ..
            }) => byte([*a, *b], *selector as u32 >> (4 * at), facts).replicated(sign),
            _ => self,
        }
    }
}

fn registers(bytes: &[Byte; 4]) -> Vec<Value> {
    let mut out = vec![];
    for byte in bytes {
        if let Byte::Of { v, .. } = byte
            && !out.contains(v)
        {
            out.push(*v);
        }
    }
    out
}

/// The instruction for these bytes: of two registers, or of one and constants.
fn permutation(bytes: &[Byte; 4]) -> Option<Inst<Value>> {
    let mut constant = 0u64;
    let mut has_constant = false;
    for (i, byte) in bytes.iter().enumerate() {
        if let Byte::Constant(c) = byte {
            constant |= u64::from(*c) << (8 * i);
            has_constant = true;
        }
    }
    let (a, b) = match registers(bytes)[..] {
        [a] => (a, Src::Imm(constant)),
        [a, b] if !has_constant => (a, Src::Reg(b)),
        _ => return None,
    };
    let mut selector = 0;
    for (i, byte) in bytes.iter().enumerate() {
        let nibble = match *byte {
            Byte::Constant(_) => 4 + i as u32,
            Byte::Of { v, at, sign } => u32::from(v != a) << 2 | at | u32::from(sign) << 3,
        };
        selector |= nibble << (4 * i);
    }
    Some(Inst::Prmt {
        mode: PrmtMode::Bytes,
        d: Value::NEW,
        a: Src::Reg(a),
        b,
        c: Src::u32(selector),
    })
}
