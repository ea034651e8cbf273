//! The control flow of `ptx::Flat`: who precedes whom, an order in which to visit blocks, what dominates what.
use super::flat::*;

/// The blocks that a block may go on to.
pub fn successors(t: &Terminator) -> impl Iterator<Item = usize> + use<> {
    let (a, b) = match t {
        Terminator::Branch { to } => (Some(*to), None),
        Terminator::CondBranch { then, otherwise, .. } => (Some(*then), Some(*otherwise)),
        Terminator::Return => (None, None),
    };
    a.into_iter().chain(b).map(|b| b.0 as usize)
}

const NONE: u32 = u32::MAX;

/// The graph of a kernel whose labels are sound. Blocks that the entry does not reach have no predecessors, are nobody's
/// predecessors, and are in no order.
pub struct Flow {
    pub predecessors: Vec<Vec<u32>>,
    /// Reverse postorder: but for loops, a block comes after all that precede it.
    pub order: Vec<u32>,
    /// Where a block is in `order`.
    pub position: Vec<u32>,
    /// When a walk over the tree of dominators enters and leaves a block.
    enters: Vec<u32>,
    leaves: Vec<u32>,
}

impl Flow {
    pub fn new(flat: &Flat) -> Flow {
        let n = flat.blocks.len();
        let next: Vec<Vec<usize>> = flat
            .blocks
            .iter()
            .map(|b| successors(&b.terminator).collect())
            .collect();
        let mut order: Vec<u32> = Vec::with_capacity(n);
        let mut seen = vec![false; n];
        let mut stack: Vec<(usize, usize)> = vec![];
        if n > 0 {
            seen[0] = true;
            stack.push((0, 0));
        }
        while let Some((b, i)) = stack.last_mut() {
            match next[*b].get(*i) {
                Some(&to) => {
                    *i += 1;
                    if !std::mem::replace(&mut seen[to], true) {
                        stack.push((to, 0));
                    }
                }
                None => {
                    order.push(*b as u32);
                    stack.pop();
                }
            }
        }
        order.reverse();
        let mut position = vec![NONE; n];
        for (at, b) in order.iter().enumerate() {
            position[*b as usize] = at as u32;
        }
        let mut predecessors = vec![vec![]; n];
        for &b in &order {
            for &to in &next[b as usize] {
                let list: &mut Vec<u32> = &mut predecessors[to];
                if list.last() != Some(&b) {
                    list.push(b);
                }
            }
        }
        let (enters, leaves) = dominators(&order, &position, &predecessors);
        Flow {
            predecessors,
            order,
            position,
            enters,
            leaves,
        }
    }

    /// The entry reaches it.
    pub fn reached(&self, block: usize) -> bool {
        self.position[block] != NONE
    }

    /// Every way from the entry to `b` comes through `a`, and they are different blocks.
    pub fn strictly_dominates(&self, a: usize, b: usize) -> bool {
        a != b
            && self.reached(a)
            && self.reached(b)
            && self.enters[a] <= self.enters[b]
            && self.leaves[b] <= self.leaves[a]
    }
}

/// Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm": immediate dominators by intersection in reverse
/// postorder; then the tree's intervals, so that a question costs nothing.
fn dominators(order: &[u32], position: &[u32], predecessors: &[Vec<u32>]) -> (Vec<u32>, Vec<u32>) {
    let n = position.len();
    // By position in the order.
    let mut idom = vec![NONE; order.len()];
    if let Some(entry) = idom.first_mut() {
        *entry = 0;
    }
    let mut changed = true;
    while changed {
        changed = false;
        for at in 1..order.len() {
            let mut new = NONE;
            for p in &predecessors[order[at] as usize] {
                let mut p = position[*p as usize];
                if idom[p as usize] == NONE {
                    continue;
                }
                if new == NONE {
                    new = p;
                    continue;
                }
                while p != new {
                    while p > new {
                        p = idom[p as usize];
                    }
                    while new > p {
                        new = idom[new as usize];
                    }
                }
            }
            if idom[at] != new {
                idom[at] = new;
                changed = true;
            }
        }
    }
    let mut children: Vec<Vec<u32>> = vec![vec![]; order.len()];
    for at in 1..order.len() {
        children[idom[at] as usize].push(at as u32);
    }
    let (mut enters, mut leaves) = (vec![0; n], vec![0; n]);
    let mut clock = 0;
    let mut stack: Vec<(u32, usize)> = vec![];
    if !order.is_empty() {
        enters[order[0] as usize] = clock;
        stack.push((0, 0));
    }
    while let Some((at, i)) = stack.last_mut() {
        clock += 1;
        match children[*at as usize].get(*i) {
            Some(&child) => {
                *i += 1;
                enters[order[child as usize] as usize] = clock;
                stack.push((child, 0));
            }
            None => {
                leaves[order[*at as usize] as usize] = clock;
                stack.pop();
            }
        }
    }
    (enters, leaves)
}

/// A number for every declared register, and how many there are.
pub fn number_registers(flat: &Flat) -> (impl Fn(Reg) -> usize + use<>, usize) {
    use super::operand::Class;
    let mut base = [0usize; 4];
    let mut total = 0;
    for class in Class::ALL {
        base[class as usize] = total;
        total += flat.registers[class as usize] as usize;
    }
    (move |r: Reg| base[r.class as usize] + r.index as usize, total)
}

#[cfg(test)]
mod tests {
    use super::super::launch::LaunchSpec;
    use super::super::operand::Class;
    use super::*;
    use crate::error::Loc;

    /// A kernel of empty blocks with these successors.
    pub fn graph(next: &[&[u32]]) -> Flat {
        let pred = Reg {
            class: Class::Pred,
            index: 0,
        };
        let block = |to: &&[u32]| Block {
            insts: vec![],
            terminator: match **to {
                [] => Terminator::Return,
                [to] => Terminator::Branch { to: BlockId(to) },
                [then, otherwise, ..] => Terminator::CondBranch {
                    guard: Guard { pred, negated: false },
                    then: BlockId(then),
                    otherwise: BlockId(otherwise),
                    uniformity: Uniformity::Uniform,
                },
            },
            loc: Loc::CALL_SITE,
        };
        Flat {
            launch: LaunchSpec::of_one_block(32),
            target: "sm_90a".into(),
            registers: [1, 0, 0, 0],
            blocks: next.iter().map(block).collect(),
            min_ctas_per_sm: None,
        }
    }

    /// `a` dominates `b` when no way from the entry reaches `b` without `a`.
    fn dominates_by_removal(flat: &Flat, a: usize, b: usize) -> bool {
        let mut seen = vec![false; flat.blocks.len()];
        let mut work = vec![0];
        while let Some(at) = work.pop() {
            if at == a || std::mem::replace(&mut seen[at], true) {
                continue;
            }
            work.extend(successors(&flat.blocks[at].terminator));
        }
        !seen[b]
    }

    #[test]
    fn dominance_is_what_removing_a_block_says() {
        let mut seed = 1u32;
        let mut random = move |n: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 8) % n
        };
        for _ in 0..200 {
            let n = 2 + random(9);
            let next: Vec<Vec<u32>> = (0..n).map(|_| (0..random(3)).map(|_| random(n)).collect()).collect();
            let flat = graph(&next.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let flow = Flow::new(&flat);
            for a in 0..n as usize {
                for b in 0..n as usize {
                    if flow.reached(a) && flow.reached(b) && a != b {
                        assert_eq!(
                            flow.strictly_dominates(a, b),
                            dominates_by_removal(&flat, a, b),
                            "{next:?}: B{a}, B{b}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn what_nothing_reaches_precedes_nothing() {
        let flow = Flow::new(&graph(&[&[2], &[2], &[]]));
        assert_eq!(flow.predecessors, [vec![], vec![], vec![0]]);
        assert!(!flow.reached(1) && !flow.strictly_dominates(1, 2) && flow.strictly_dominates(0, 2));
    }
}
