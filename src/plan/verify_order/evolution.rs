//! Scalar evolution: by how much the numbers of a loop change from one turn of its rings to the next, and for how many turns to come
//! every decision by them is the same.
use super::scalars::{Applied, Val};
use crate::dtype::DType;
use crate::kernel_ir::{BinaryOp, Facts, Value};
use cranelift_entity::SecondaryMap;

/// From one turn to the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    By(i64),
    Unknown,
}

impl Change {
    pub const NONE: Change = Change::By(0);
}

/// What is found out while a turn is walked.
pub struct Evolution {
    /// What is not here is from outside of the loop, and stays.
    changes: SecondaryMap<Value, Option<Change>>,
    /// Symbols from this number on are new in each turn.
    fresh: u32,
    /// Further turns in which each result follows from its operands' changes.
    pub turns: u64,
}

impl Evolution {
    pub fn new(fresh: u32) -> Evolution {
        Evolution {
            changes: SecondaryMap::new(),
            fresh,
            turns: u64::MAX,
        }
    }

    pub fn set(&mut self, v: Value, change: Change) {
        self.changes[v] = Some(change);
    }

    /// How a value changes that is `x` in this turn.
    pub fn of(&self, v: Value, x: Val) -> Change {
        match x {
            Val::Sym { id, .. } if id >= self.fresh => Change::Unknown,
            Val::Int(_) | Val::Sym { .. } => self.changes[v].unwrap_or(Change::NONE),
        }
    }

    /// How the result of an op changes, by its operands in this turn and their changes.
    pub fn computed(&mut self, what: Applied, dtype: DType, on: &[Val], changes: &[Change]) -> Change {
        if changes.iter().all(|change| *change == Change::NONE) {
            return Change::NONE;
        }
        self.follow(what, dtype, on, changes)
            .map_or(Change::Unknown, Change::By)
    }

    fn follow(&mut self, what: Applied, dtype: DType, on: &[Val], changes: &[Change]) -> Option<i64> {
        let by = |i: usize| match changes.get(i)? {
            Change::By(n) => Some(i128::from(*n)),
            Change::Unknown => None,
        };
        let number = |i: usize| match on.get(i)? {
            Val::Int(n) => Some(i128::from(*n)),
            Val::Sym { .. } => None,
        };
        match what {
            Applied::Same => i64::try_from(by(0)?).ok(),
            Applied::Select if by(0)? == 0 => {
                let case = usize::try_from(number(0)?).ok()?;
                i64::try_from(by(case.checked_add(1)?)?).ok()
            }
            Applied::Convert(from) if from.is_int() && dtype.is_int() => self.line(dtype, number(0)?, by(0)?),
            Applied::Compare(_) => {
                self.keeps_sign(number(0)? - number(1)?, by(0)? - by(1)?);
                Some(0)
            }
            Applied::Binary(op) if dtype.is_int() => {
                let ((a, s), (b, t)) = ((number(0)?, by(0)?), (number(1)?, by(1)?));
                let divides = |n: i128| t == 0 && n > 0 && a >= 0 && s % n == 0;
                match op {
                    BinaryOp::Add => self.line(dtype, a + b, s + t),
                    BinaryOp::Sub => self.line(dtype, a - b, s - t),
                    BinaryOp::Mul if s == 0 || t == 0 => self.line(
                        dtype,
                        a.checked_mul(b)?,
                        a.checked_mul(t)?.checked_add(b.checked_mul(s)?)?,
                    ),
                    BinaryOp::Div if divides(b) => {
                        self.keeps_sign(a + 1, s);
                        i64::try_from(s / b).ok()
                    }
                    BinaryOp::Rem if divides(b) => {
                        self.keeps_sign(a + 1, s);
                        Some(0)
                    }
                    BinaryOp::And if b >= 0 && (b & (b + 1)) == 0 && divides(b + 1) => {
                        self.keeps_sign(a + 1, s);
                        Some(0)
                    }
                    BinaryOp::Max | BinaryOp::Min => {
                        self.keeps_sign(a - b, s - t);
                        let first = (a > b) == (op == BinaryOp::Max);
                        i64::try_from(if first { s } else { t }).ok()
                    }
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// What is `x` now and changes by `by` in each turn, as long as the type has it.
    fn line(&mut self, dtype: DType, x: i128, by: i128) -> Option<i64> {
        let range = Facts::of_dtype(dtype);
        let (lo, hi) = (range.lo.max(i64::MIN.into()), range.hi.min(i64::MAX.into()));
        if !(lo..=hi).contains(&x) {
            return None;
        }
        let room = if by > 0 { hi - x } else { x - lo };
        if by != 0 {
            self.at_most(room / by.abs());
        }
        i64::try_from(by).ok()
    }

    /// As long as the sign of a difference stays, which is `x` now.
    fn keeps_sign(&mut self, x: i128, by: i128) {
        if by != 0 && (x == 0 || (x > 0) != (by > 0)) {
            let (x, by) = (x.abs(), by.abs());
            self.at_most((x.max(1) + by - 1) / by - 1);
        }
    }

    fn at_most(&mut self, turns: i128) {
        self.turns = self.turns.min(u64::try_from(turns.max(0)).unwrap_or(u64::MAX));
    }
}
