//! What both verifiers share: violations, and the rules that hold for any instruction.
use super::inst::{Effects, Inst};
use super::legal;
use super::operand::*;
use crate::error::{Error, Loc};
use std::fmt;

/// A broken rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// As the verifier's module documentation calls it.
    pub rule: &'static str,
    /// Block and instruction, or region.
    pub place: String,
    pub loc: Loc,
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.rule, self.place, self.message)
    }
}

/// All violations as one internal error.
pub fn into_error(form: &str, violations: &[Violation]) -> Error {
    let mut text = format!("{form} breaks its rules");
    for v in violations.iter().take(10) {
        text.push_str(&format!("\n    {v}"));
    }
    if violations.len() > 10 {
        text.push_str(&format!("\n    … and {} more", violations.len() - 10));
    }
    let error = Error::internal(text);
    match violations.first() {
        Some(first) => error.at(first.loc),
        None => error,
    }
}

/// `class`, `immediate` and `legal`: `class_of` gives a register's class.
pub(super) fn check_inst<R: Copy + fmt::Display>(
    inst: &Inst<R>,
    class_of: impl Fn(R) -> Class,
    mut report: impl FnMut(&'static str, String),
) {
    let mut class = |r: R, slot: Slot| {
        let got = class_of(r);
        if got != slot.class {
            report(
                "class",
                format!(
                    "{r} is {}, where {} is read or written",
                    got.ptx_type(),
                    slot.class.ptx_type()
                ),
            );
        }
    };
    inst.for_each_use(&mut class);
    inst.for_each_def(&mut class);
    inst.for_each_source(|s, slot| {
        if let Src::Imm(bits) = s {
            // The copy of a predicate is the one that takes a truth value.
            if slot.literal == LiteralStyle::None && !matches!(inst, Inst::MovPred { .. }) {
                report("immediate", format!("{bits:#x} where only a register may stand"));
            } else if bits & !slot.class.mask() != 0 {
                report("immediate", format!("{bits:#x} does not fit {}", slot.class.ptx_type()));
            }
        }
    });
    if let Err(expected) = legal::check(inst) {
        report("legal", format!("PTX has no such form: expected {expected}"));
    }
}

/// `guard`: what a predicate in front can guard.
pub(super) fn check_guarded<R: Copy>(inst: &Inst<R>, mut report: impl FnMut(&'static str, String)) {
    if inst.is_compound() {
        report("guard", "a loop or a block of PTX cannot be guarded".into());
    }
    if inst.effects().contains(Effects::CONVERGENT) {
        report("guard", "all lanes execute it together: it cannot be guarded".into());
    }
}
