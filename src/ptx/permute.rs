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

/// The instruction for these bytes: of two registers, or of one and constants. These stand in front: behind the register ptxas 13.0
/// makes them the immediate, keeps the selector in a register and copies it for nearly every use.
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
        [a] => (Src::Imm(constant), a),
        [a, b] if !has_constant => (Src::Reg(a), b),
        _ => return None,
    };
    let mut selector = 0;
    for (i, byte) in bytes.iter().enumerate() {
        let nibble = match *byte {
            Byte::Constant(_) => i as u32,
            Byte::Of { v, at, sign } => u32::from(v == b) << 2 | at | u32::from(sign) << 3,
        };
        selector |= nibble << (4 * i);
    }
    Some(Inst::prmt(
        PrmtMode::Bytes,
        Value::NEW,
        a,
        Src::Reg(b),
        Src::u32(selector),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ptx::evaluate::{ConstantFunctions, NoFunctions, evaluate};
    use cranelift_entity::EntityRef;
    use rustc_hash::FxHashMap;

    /// Definitions of values; what is not defined is a number.
    struct Program(FxHashMap<Value, Inst<Value>>);

    impl Facts for Program {
        fn constant(&self, _: Value) -> Option<u64> {
            None
        }
        fn definition(&self, v: Value) -> Option<&Inst<Value>> {
            self.0.get(&v)
        }
        fn bound(&self, _: Value) -> u64 {
            u64::MAX
        }
        fn functions(&self) -> &dyn ConstantFunctions {
            &NoFunctions
        }
    }

    impl Program {
        fn value(&self, v: Value) -> Option<u64> {
            match self.0.get(&v) {
                Some(inst) => evaluate(inst, |v| self.value(v), &NoFunctions),
                None => Some((v.index() as u64 + 1) * 0x93a7_c0e5 & 0xffff_ffff),
            }
        }
        fn operand(&self, s: Src<Value>) -> Option<u64> {
            match s {
                Src::Imm(bits) => Some(bits),
                Src::Reg(v) => self.value(v),
            }
        }
    }

    fn prmt(a: Src<Value>, b: Src<Value>, selector: u32) -> Inst<Value> {
        Inst::Prmt {
            mode: PrmtMode::Bytes,
            d: Value::NEW,
            a,
            b,
            c: Src::u32(selector),
        }
    }

    fn value(i: usize) -> Src<Value> {
        Src::Reg(Value::new(i))
    }

    /// The simplest form, which has the same value as all on the way.
    fn simplest(program: &Program, mut inst: Inst<Value>) -> Inst<Value> {
        let want = evaluate(&inst, |v| program.value(v), &NoFunctions).unwrap();
        for _ in 0..8 {
            let Inst::Prmt {
                a, b, c: Src::Imm(c), ..
            } = &inst
            else {
                panic!("{inst:?}")
            };
            match simplify([*a, *b], *c as u32, program) {
                Simplified::Inst(better) => inst = better,
                Simplified::Operand(s) => {
                    assert_eq!(program.operand(s), Some(want), "{inst:?}");
                    return inst;
                }
                Simplified::Same => return inst,
            }
            let got = evaluate(&inst, |v| program.value(v), &NoFunctions);
            assert_eq!(got, Some(want), "{inst:?}");
        }
        panic!("it never ends: {inst:?}")
    }

    #[test]
    fn values_stay() {
        let mut state = 1u64;
        let mut next = |n: u64| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 33) % n
        };
        for _ in 0..20_000 {
            let mut program = Program(FxHashMap::default());
            for i in 3..6 {
                let mut word = || match next(4) {
                    0 => Src::u32(next(1 << 32) as u32),
                    _ => value(next(i) as usize),
                };
                let (a, b) = (word(), word());
                let selector = next(0x10000) as u32;
                program.0.insert(Value::new(i as usize), prmt(a, b, selector));
            }
            let inst = prmt(value(5), value(next(6) as usize), next(0x10000) as u32);
            simplest(&program, inst);
        }
    }

    #[test]
    fn halves_are_taken_where_they_come_from() {
        let mut program = Program(FxHashMap::default());
        program.0.insert(Value::new(2), prmt(value(0), value(1), 0x5410));
        for (selector, from, direct) in [(0x4140, 0, 0x3514), (0x4342, 1, 0x3514)] {
            let inst = simplest(&program, prmt(value(2), Src::u32(0x43), selector));
            assert_eq!(inst, prmt(Src::u32(0x4300_4300), value(from), direct));
        }
        // Bytes of both and a constant are three words.
        let inst = prmt(value(2), Src::u32(0x43), 0x4240);
        assert_eq!(simplest(&program, inst.clone()), inst);
        // All bytes where they were.
        program.0.insert(Value::new(3), prmt(value(0), value(1), 0x0123));
        assert!(matches!(
            simplify([value(3), value(3)], 0x0123, &program),
            Simplified::Inst(_)
        ));
    }
}
