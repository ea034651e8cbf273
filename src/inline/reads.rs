//! Which references a text only loads from.
//!
//! What an address may have been made of goes from register to register, to a fixed point over the statements. Whatever does more
//! to memory than loading from it counts as a store to all that its operands were made of.
use super::program::{Program, Statement};
use crate::ptx::flat::Reg;
use crate::ptx::inst::{Effects, Inst, ROWS};
use crate::ptx::operand::{Class, Field};

/// Of each of these registers, which hold addresses, whether the text does no more to what they point to than to load from it.
pub fn only(program: &Program, addresses: &[Reg]) -> Vec<bool> {
    let mut made_of = vec![0u64; program.count()];
    for (i, reg) in addresses.iter().enumerate() {
        made_of[program.index(*reg)] |= bit(i);
    }
    let mut stored = 0;
    loop {
        let mut changed = false;
        for statement in &program.statements {
            let Statement::Inst { inst, .. } = statement else {
                continue;
            };
            let mut from = 0;
            inst.for_each_use(|r, _| from |= made_of[program.index(r)]);
            if stores(inst.effects()) {
                let mut to = 0;
                let is_source = sources(inst);
                inst.for_each_use(|r, _| {
                    to |= if is_source.contains(&r) {
                        0
                    } else {
                        made_of[program.index(r)]
                    }
                });
                changed |= to & !stored != 0;
                stored |= to;
            }
            // What is loaded is no address of the kernel's.
            if !is_access(inst) {
                inst.for_each_def(|r, _| {
                    let at = &mut made_of[program.index(r)];
                    changed |= from & !*at != 0;
                    *at |= from;
                });
            }
        }
        if !changed {
            break;
        }
    }
    (0..addresses.len()).map(|i| stored & bit(i) == 0).collect()
}

/// The registers by which an instruction reaches device memory that it copies from, or brings into a cache.
fn sources(inst: &Inst<Reg>) -> Vec<Reg> {
    let mut out = vec![];
    if inst.effects().intersects(Effects::WRITE_GLOBAL) {
        return out;
    }
    for ((_, name), field) in ROWS[inst.row()].fields.iter().zip(inst.fields()) {
        match (*name, field) {
            ("map", Field::Reg(r, _)) => out.push(*r),
            ("src", Field::Addr(addr, _)) if addr.base.class == Class::B64 => out.push(addr.base),
            _ => {}
        }
    }
    out
}

/// Whether an instruction may change what its operands point to. Loads with an order synchronise, and change nothing.
fn stores(effects: Effects) -> bool {
    let loads = effects.intersects(Effects::READ_GLOBAL | Effects::READ_SHARED);
    let writes = effects.intersects(Effects::WRITE_GLOBAL | Effects::WRITE_SHARED);
    writes || !loads && !Effects::CONVERGENT.contains(effects)
}

/// More references than bits share the last one.
fn bit(i: usize) -> u64 {
    1 << i.min(63)
}

fn is_access(inst: &Inst<Reg>) -> bool {
    inst.fields().iter().any(|field| matches!(field, Field::Addr(..)))
}

#[cfg(test)]
mod tests {
    use super::super::parse::{Limits, parse};
    use super::*;

    fn of(text: &str) -> Vec<bool> {
        let program = parse(text, &[Class::B32, Class::B64, Class::B32].into(), 0, Limits::WRITTEN).unwrap();
        only(&program, &program.interface[1..])
    }

    #[test]
    fn what_is_stored_to_goes_by_what_its_address_is_made_of() {
        let declared = ".reg .b32 t, u; .reg .b64 w; .reg .pred p;";
        let cases = [
            ("ld.global.b32 t, [{1}]; ld.shared.b32 u, [{2}+4];", [true, true]),
            ("add.s64 w, {1}, 8; st.global.b32 [w], t;", [false, true]),
            ("ld.shared.b32 t, [{2}]; st.global.b32 [{1}], t;", [false, true]),
            (
                "L: st.shared.b32 [t], u; add.u32 t, {2}, 4; setp.ne.u32 p, t, 0; @p bra L;",
                [true, false],
            ),
            ("atom.global.add.u32 t, [{1}], 1;", [false, true]),
            ("st.shared.b32 [{0}], {2};", [true, false]),
            ("ld.acquire.gpu.global.b32 t, [{1}];", [true, true]),
            ("mbarrier.arrive.shared::cta.b64 _, [{2}], 1;", [true, false]),
            ("cp.async.bulk.prefetch.L2.global [{1}], 64;", [true, true]),
            (
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{2}], [{1}], 64, [{2}+64];",
                [true, false],
            ),
            ("cp.async.ca.shared.global [{2}], [{1}], 8;", [true, false]),
            (
                "cp.async.bulk.global.shared::cta.bulk_group [{1}], [{2}], 64;",
                [false, false],
            ),
            (
                "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [{2}], [{1}, {t, u}], [{2}+64];",
                [true, false],
            ),
            (
                "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [{1}, {t, u}], [{2}];",
                [false, false],
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(of(&format!("{declared} {text}")), expected, "{text}");
        }
    }
}
