//! Which rows registers live in: a linear scan over the kernel's instructions.
//!
//! A virtual register has a row from the first point where it is live to the last, in printing order, and registers that are
//! never live together share rows: a program needs as many rows as it has live registers, however long it is. Rows are 32
//! lanes and writes are masked, so that what a *thread's* control flow says about liveness holds for the lanes of a warp.
//!
//! Besides being read later, a register keeps its row
//! * to itself through an instruction that reads or writes it: bodies may write one lane, or be tried again, before they have
//!   read another;
//! * while a wgmma in flight reads or writes it ([`Asynchronous`]): the tensor core comes back to it at the wait;
//! * from the kernel's start where some path reads it unwritten, or only guarded instructions write it before: it then holds
//!   the poison that all registers start with, and never what another has left.
//!
//! The words of a thread's own memory are rows too, the first ones: no two threads see one, and every access names its place. 64-bit
//! registers live in pairs of rows behind the single ones, predicates in words of their own.
use crate::error::{Error, Result};
use crate::ptx::Flat;
use crate::ptx::asynchronous::Asynchronous;
use crate::ptx::flat::{Reg, Terminator};
use crate::ptx::flow::{Flow, number_registers};
use crate::ptx::operand::Class;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Operands are 15 bits: the top one tells constants apart. The decoder puts what one instruction needs of further constants
/// behind.
const MAX_ROWS: usize = 0x8000 - 512;
/// The decoder adds two.
const MAX_PREDICATES: usize = 0xfff0;

/// Rows of the register file.
pub struct Allocation {
    /// First register of each class in `places`.
    base: [usize; 4],
    /// The row or the number of every register; those that no instruction names have none.
    places: Vec<u16>,
    pub rows: usize,
    pub predicates: usize,
}

impl Allocation {
    /// The first row of a register, or the number of a predicate.
    pub fn row(&self, r: Reg) -> u16 {
        self.places[self.base[r.class as usize] + r.index as usize]
    }
}

/// From the first point to the last, both included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Interval {
    first: u32,
    last: u32,
}

impl Interval {
    const NONE: Interval = Interval {
        first: u32::MAX,
        last: 0,
    };
    fn is_some(self) -> bool {
        self.first <= self.last
    }
    fn cover(&mut self, point: u32) {
        self.first = self.first.min(point);
        self.last = self.last.max(point);
    }
}

pub fn run(flat: &Flat) -> Result<Allocation> {
    let intervals = live_intervals(flat);
    let mut base = [0; 4];
    let mut at = 0;
    for class in Class::ALL {
        base[class as usize] = at;
        at += flat.registers[class as usize] as usize;
    }
    let of = |class: Class| base[class as usize]..base[class as usize] + flat.registers[class as usize] as usize;
    let mut places = vec![0u16; intervals.len()];
    let mut assign = |classes: &[Class], width: usize, first: usize, limit: usize| -> Result<usize> {
        let mut starts: Vec<(u32, usize)> = classes
            .iter()
            .flat_map(|class| of(*class))
            .filter(|r| intervals[*r].is_some())
            .map(|r| (intervals[r].first, r))
            .collect();
        starts.sort_unstable();
        // Rows by the last point at which they are taken; the freed one that was used last is still in the host's cache.
        let mut taken: BinaryHeap<Reverse<(u32, usize)>> = BinaryHeap::new();
        let mut free: Vec<usize> = vec![];
        let mut count = 0;
        for (point, r) in starts {
            while let Some(Reverse((_, row))) = taken.peek().copied().filter(|Reverse((last, _))| *last < point) {
                taken.pop();
                free.push(row);
            }
            let row = free.pop().unwrap_or_else(|| {
                count += width;
                first + count - width
            });
            if row + width > limit {
                return Err(too_many(limit));
            }
            places[r] = row as u16;
            taken.push(Reverse((intervals[r].last, row)));
        }
        Ok(first + count)
    };
    let predicates = assign(&[Class::Pred], 1, 0, MAX_PREDICATES)?;
    let own = flat.local_bytes() as usize / 4;
    if own > MAX_ROWS {
        return Err(too_many(MAX_ROWS));
    }
    let single = assign(&[Class::B16, Class::B32], 1, own, MAX_ROWS)?;
    let rows = assign(&[Class::B64], 2, single, MAX_ROWS)?;
    Ok(Allocation {
        base,
        places,
        rows,
        predicates,
    })
}

/// A GPU has 255 registers a thread and 512 KiB of local memory: such a kernel runs nowhere.
fn too_many(limit: usize) -> Error {
    Error::unsupported("a kernel whose live values do not fit the emulator's registers")
        .expected(format!("at most {limit} live 32-bit registers a thread"))
        .got("more, at one point of the kernel")
        .remedy("work on smaller blocks, or give each block more threads (`num_threads`)")
}

/// Every register's interval, by its number. A point is an instruction or a terminator.
fn live_intervals(flat: &Flat) -> Vec<Interval> {
    const NOWHERE: u32 = u32::MAX;
    let flow = Flow::new(flat);
    let (index, total) = number_registers(flat);
    let mut intervals = vec![Interval::NONE; total];
    // First and last point of every block.
    let mut spans = Vec::with_capacity(flat.blocks.len());
    let mut point = 0u32;
    // The last block that wrote each register whole; blocks with reads that no such write precedes.
    let mut written = vec![NOWHERE; total];
    let mut wanted: Vec<(u32, u32)> = vec![];
    for (b, block) in flat.blocks.iter().enumerate() {
        let (b, first) = (b as u32, point);
        let mut want = |r: usize, written: &[u32]| {
            if written[r] != b {
                wanted.push((r as u32, b));
            }
        };
        for fi in &block.insts {
            if let Some(guard) = fi.guard {
                let r = index(guard.pred);
                intervals[r].cover(point);
                want(r, &written);
            }
            fi.inst.for_each_use(|r, _| {
                intervals[index(r)].cover(point);
                want(index(r), &written);
            });
            fi.inst.for_each_def(|r, _| {
                let r = index(r);
                intervals[r].cover(point);
                match fi.guard {
                    None => written[r] = b,
                    // Lanes that the guard holds back keep what they had.
                    Some(_) => want(r, &written),
                }
            });
            point += 1;
        }
        if let Terminator::CondBranch { guard, .. } = &block.terminator {
            let r = index(guard.pred);
            intervals[r].cover(point);
            want(r, &written);
        }
        spans.push((first, point));
        point += 1;
    }
    // Blocks that write each register whole, for those that are live between blocks.
    wanted.sort_unstable();
    wanted.dedup();
    let mut crosses = vec![false; total];
    wanted.iter().for_each(|(r, _)| crosses[*r as usize] = true);
    let mut writers: Vec<Vec<u32>> = vec![vec![]; total];
    for (b, block) in flat.blocks.iter().enumerate() {
        for fi in block.insts.iter().filter(|fi| fi.guard.is_none()) {
            fi.inst.for_each_def(|r, _| {
                let r = index(r);
                if crosses[r] && writers[r].last() != Some(&(b as u32)) {
                    writers[r].push(b as u32);
                }
            });
        }
    }
    let mut live_in = vec![NOWHERE; flat.blocks.len()];
    let mut writes = vec![NOWHERE; flat.blocks.len()];
    let mut work = vec![];
    for uses in wanted.chunk_by(|a, b| a.0 == b.0) {
        let r = uses[0].0;
        let interval = &mut intervals[r as usize];
        writers[r as usize].iter().for_each(|b| writes[*b as usize] = r);
        work.extend(uses.iter().map(|(_, b)| *b));
        while let Some(b) = work.pop() {
            if std::mem::replace(&mut live_in[b as usize], r) == r {
                continue;
            }
            interval.cover(spans[b as usize].0);
            for &p in &flow.predecessors[b as usize] {
                interval.cover(spans[p as usize].1);
                if writes[p as usize] != r {
                    work.push(p);
                }
            }
        }
    }
    if let Some(analysis) = Asynchronous::of(flat, &flow) {
        analysis.in_flight(|b, at, r| {
            let (first, _) = spans[b];
            intervals[index(r)].cover(at.map_or(first, |i| first + i as u32));
        });
    }
    intervals
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Loc;
    use crate::ptx::flat::{Block, BlockId, FlatInst, Guard, Uniformity};
    use crate::ptx::inst::Inst;
    use crate::ptx::launch::LaunchSpec;
    use crate::ptx::modifier::{BitType, IntType};
    use crate::ptx::operand::Src;

    fn r(index: u32) -> Reg {
        Reg {
            class: Class::B32,
            index,
        }
    }
    fn p(index: u32) -> Reg {
        Reg {
            class: Class::Pred,
            index,
        }
    }
    fn set(d: Reg) -> FlatInst {
        plain(Inst::Mov {
            ty: BitType::B32,
            d,
            a: Src::u32(1),
        })
    }
    fn add(d: Reg, a: Reg, b: Reg) -> FlatInst {
        plain(Inst::AddInt {
            ty: IntType::U32,
            d,
            a: Src::Reg(a),
            b: Src::Reg(b),
        })
    }
    fn plain(inst: Inst<Reg>) -> FlatInst {
        FlatInst {
            guard: None,
            inst,
            loc: Loc::CALL_SITE,
        }
    }
    fn guarded(mut fi: FlatInst) -> FlatInst {
        fi.guard = Some(Guard {
            pred: p(0),
            negated: false,
        });
        fi
    }
    fn flat(registers: u32, blocks: Vec<(Vec<FlatInst>, Terminator)>) -> Flat {
        Flat {
            launch: LaunchSpec::of_one_block(32),
            target: "sm_90a".into(),
            registers: [1, 0, registers, 0],
            blocks: blocks
                .into_iter()
                .map(|(insts, terminator)| Block {
                    insts,
                    terminator,
                    loc: Loc::CALL_SITE,
                })
                .collect(),
            min_ctas_per_sm: None,
        }
    }
    fn branch(then: u32, otherwise: u32) -> Terminator {
        Terminator::CondBranch {
            guard: Guard {
                pred: p(0),
                negated: false,
            },
            then: BlockId(then),
            otherwise: BlockId(otherwise),
            uniformity: Uniformity::Uniform,
        }
    }
    fn to(b: u32) -> Terminator {
        Terminator::Branch { to: BlockId(b) }
    }

    #[test]
    fn a_long_chain_needs_two_rows() {
        let n = 100_000;
        let insts = std::iter::once(set(r(0)))
            .chain((1..n).map(|i| add(r(i), r(i - 1), r(i - 1))))
            .collect();
        let allocation = run(&flat(n, vec![(insts, Terminator::Return)])).unwrap();
        assert_eq!(allocation.rows, 2);
    }

    #[test]
    fn what_an_instruction_reads_and_writes_has_different_rows() {
        let insts = vec![set(r(0)), set(r(1)), add(r(2), r(0), r(1)), add(r(3), r(2), r(2))];
        let a = run(&flat(4, vec![(insts, Terminator::Return)])).unwrap();
        assert!(a.row(r(2)) != a.row(r(0)) && a.row(r(2)) != a.row(r(1)));
        assert_eq!(a.rows, 3);
    }

    #[test]
    fn what_a_loop_reads_keeps_its_row_throughout() {
        // r0 is read at the loop's head: nothing behind the read takes its row.
        let blocks = vec![
            (vec![set(r(0))], to(1)),
            (vec![add(r(1), r(0), r(0)), add(r(2), r(1), r(1))], to(2)),
            (vec![set(r(3)), add(r(4), r(3), r(3))], branch(1, 3)),
            (vec![], Terminator::Return),
        ];
        let a = run(&flat(5, blocks)).unwrap();
        assert!((1..5).all(|i| a.row(r(i)) != a.row(r(0))), "{:?}", a.places);
    }

    #[test]
    fn what_may_be_read_unwritten_holds_the_poison_of_the_start() {
        // r1 is written on one path only, r3 under a guard only: neither takes over r0's row.
        let blocks = vec![
            (vec![set(r(0)), add(r(2), r(0), r(0))], branch(1, 2)),
            (vec![set(r(1))], to(2)),
            (vec![guarded(set(r(3))), add(r(4), r(1), r(3))], Terminator::Return),
        ];
        let a = run(&flat(5, blocks)).unwrap();
        for undefined in [1, 3] {
            assert!(
                (0..5)
                    .filter(|i| *i != undefined)
                    .all(|i| a.row(r(i)) != a.row(r(undefined)))
            );
        }
    }

    #[test]
    fn more_live_registers_than_rows_are_refused_in_one_sentence() {
        let n = MAX_ROWS as u32 + 1;
        let insts = (0..n)
            .map(|i| set(r(i)))
            .chain((1..n).map(|i| add(r(0), r(i), r(0))))
            .collect();
        let Err(error) = run(&flat(n, vec![(insts, Terminator::Return)])) else {
            panic!("{n} live registers")
        };
        assert!(error.to_string().contains("live values"), "{error}");
    }
}
