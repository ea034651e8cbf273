//! Sinks the tail of a loop's iteration into the next iteration.
//!
//! ```text
//! for i in l..u {                for i in l..u (kept) {
//!   head                           head, and at places of it: if i > l { a part of tail(kept) }
//!   tail                 =>        yield what the tail takes
//! }                              }
//!                                if l < u { tail(kept) }
//! ```
//!
//! What the tail takes from its iteration is carried to the next one. What tails hand on from one to the next, and nothing else uses, is a
//! [`Chain`]. Which tail, and to which places, the pass decides; whether that is observable, [`motion`](crate::kernel_ir::motion).
use crate::error::Loc;
use crate::kernel_ir::rewrite::{Substitution, append_compare, append_copies, append_if, carry};
use crate::kernel_ir::*;
use rustc_hash::FxHashMap;

/// A value that only tails take and give, from one to the next (the phases of barriers that only they wait for): it goes through the loop's carries.
pub struct Chain {
    /// Which of the values that the loop carries.
    pub carry: usize,
    /// What it is at the tail's beginning, and at the end of each of its parts.
    pub at: Vec<Value>,
}

/// A loop whose iterations run the tail of the one before.
pub struct Sink<'a> {
    op: Op,
    body: Region,
    chains: &'a [Chain],
    /// What stands for what the tail takes, in the next iteration and behind the loop.
    before: FxHashMap<Value, Value>,
    behind: FxHashMap<Value, Value>,
    /// The parts that are placed, and what chains are behind them.
    parts: usize,
    now: Vec<Value>,
    pub loc: Loc,
}

impl<'a> Sink<'a> {
    /// Appends a `for` loop that is in no region, which carries what its tail takes.
    pub fn new(kernel: &mut Kernel, at: Region, op: Op, kept: &[Value], chains: &'a [Chain]) -> Sink<'a> {
        let OpKind::For { body, .. } = kernel.ops[op].kind else {
            unreachable!("a loop")
        };
        let [before, behind] = carry(kernel, at, op, kept);
        Sink {
            op,
            body,
            chains,
            before,
            behind,
            parts: 0,
            now: chains.iter().map(|chain| chain.at[0]).collect(),
            loc: kernel.ops[op].loc,
        }
    }

    /// Whether there was an iteration before, for a region of the loop.
    pub fn is_again(&self, kernel: &mut Kernel, at: Region) -> Value {
        is_again(kernel, at, self.op, self.loc)
    }

    /// Appends the next part of the tail of the iteration before, if there was one.
    pub fn place(&mut self, kernel: &mut Kernel, at: Region, is_again: Value, part: &[Op]) {
        let map = self.before.clone();
        self.now = self.append(kernel, at, is_again, part, map, self.parts..self.parts + 1, &self.now);
        self.parts += 1;
    }

    /// Appends the last iteration's tail, behind the loop. What stands for the loop's results.
    pub fn last(self, kernel: &mut Kernel, at: Region, tail: &[Op]) -> Substitution {
        for (chain, v) in self.chains.iter().zip(&self.now) {
            kernel.regions[self.body].results[chain.carry] = *v;
        }
        let is_any = is_any(kernel, at, self.op, self.loc);
        let ends: Vec<Value> = self
            .chains
            .iter()
            .map(|chain| kernel.ops[self.op].results[chain.carry])
            .collect();
        let results = self.append(kernel, at, is_any, tail, self.behind.clone(), 0..self.parts, &ends);
        let mut stands = Substitution::default();
        for (end, v) in ends.into_iter().zip(results).filter(|(end, v)| end != v) {
            stands.replace(end, v);
        }
        stands
    }

    /// Appends copies of ops that run if `condition` holds, from one place of the chains to another. What these are then.
    #[allow(clippy::too_many_arguments)]
    fn append(
        &self,
        kernel: &mut Kernel,
        at: Region,
        condition: Value,
        ops: &[Op],
        mut map: FxHashMap<Value, Value>,
        parts: std::ops::Range<usize>,
        now: &[Value],
    ) -> Vec<Value> {
        map.extend(
            self.chains
                .iter()
                .map(|chain| chain.at[parts.start])
                .zip(now.iter().copied()),
        );
        let moves = |i: &usize| self.chains[*i].at[parts.start] != self.chains[*i].at[parts.end];
        let moved: Vec<usize> = (0..self.chains.len()).filter(moves).collect();
        let stay: Vec<Value> = moved.iter().map(|i| now[*i]).collect();
        let results = append_if(kernel, at, condition, &stay, self.loc, |kernel, then| {
            append_copies(kernel, then, ops, &mut map);
            moved.iter().map(|i| map[&self.chains[*i].at[parts.end]]).collect()
        });
        let mut then = now.to_vec();
        moved.iter().zip(results).for_each(|(i, v)| then[*i] = v);
        then
    }
}

/// Whether there was an iteration before, for a region of a `for` loop.
pub fn is_again(kernel: &mut Kernel, at: Region, op: Op, loc: Loc) -> Value {
    let OpKind::For { lower, body, .. } = kernel.ops[op].kind else {
        unreachable!("a loop")
    };
    let i = kernel.regions[body].params[0];
    append_compare(kernel, at, CompareOp::Gt, i, lower, loc)
}

/// Whether a `for` loop has any iteration.
pub fn is_any(kernel: &mut Kernel, at: Region, op: Op, loc: Loc) -> Value {
    let OpKind::For { lower, upper, .. } = kernel.ops[op].kind else {
        unreachable!("a loop")
    };
    append_compare(kernel, at, CompareOp::Lt, lower, upper, loc)
}
