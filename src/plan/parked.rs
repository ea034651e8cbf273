//! Accumulators that do not fit into registers: which columns of them are parked in memory between products.
//!
//! ```text
//! dv = wgmma p @ do, acc dv                  dv[:, :48] = wgmma p @ do[:, :48], acc dv[:, :48]
//!                                      =>    for each 16 or 32 of the other columns:
//!                                                load; wgmma; wgmma_wait 0; store
//! ```
//!
//! Where accumulators need more registers than a thread has, ptxas spills them around every instruction, and lets none run beside
//! another (C7512). A loop that carries them has no use for most of them at most places, so those columns wait in memory for
//! their product. Attention's backward pass of head 256 on an H200 (dk and dv are 256 registers; 4096 rows), µs of the kernel for dk and
//! dv: spilled 2,985; all of dv in local memory 2,020; half of that in shared memory 1,617; 104 words of it 1,290; 88 words 1,191. A word in
//! local memory costs 7 µs, since it goes to the L2 cache and back, so shared memory that the kernel leaves is taken first.
//!
//! Parked is as little as makes the loop fit ([`Target::parks_below`](crate::target::Target::parks_below)), from the accumulators whose
//! products come first. Every element stays with its thread, in words that only this thread touches, so nothing is to be ordered; and a
//! product on parked columns is complete where it stands, which a wait for it may expect anyway. It needs a *chain*: a value each of
//! whose successors is the only one, from `acc_init` over products of the whole accumulator, waits, reads and loops to the last read. All of a chain have one place.
use super::allocate::Allocation;
use crate::error::Result;
use crate::kernel_ir::executor::{Executor, arm_taken};
use crate::kernel_ir::liveness::{self, Around, is_held};
use crate::kernel_ir::rewrite::regions_of;
use crate::kernel_ir::*;
use crate::layout::Assignment;
use cranelift_entity::SecondaryMap;
use cranelift_entity::packed_option::PackedOption;
use rustc_hash::{FxHashMap, FxHashSet};

/// Columns that are parked, or not, together: the narrowest products.
pub const UNIT: u64 = 16;
/// Columns that are loaded at once.
pub const AT_ONCE: u64 = 32;
/// Registers that are left at least where all that can be parked is.
const SPILLED_RATHER: u32 = 8;
/// The widest accumulator: one instruction's columns.
const MAX_COLUMNS: u64 = 256;
/// What parking costs, in halves of a word that is spilled and filled again: a word in shared memory, one in the thread's own memory,
/// which goes to the L2 cache, and a wait for a product that would run beside others.
const SHARED_COSTS: u64 = 2;
const OWN_COSTS: u64 = 5;
const WAIT_COSTS: u64 = 24;

/// Where the parked columns of an accumulator are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Home {
    /// Columns that stay in registers, the first ones.
    pub kept: u64,
    /// The first of the thread's parked words.
    pub first: u32,
}

/// Words that a thread moves to where they are parked and back, once for each product of them in the program's text.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct Moved {
    pub shared: u64,
    /// Those in memory of its own.
    pub own: u64,
}

impl Moved {
    /// Whether it would be faster if an assembler spilled `words`, each to the thread's own memory and back, and nothing were parked;
    /// `waits`: those for products that there are only with columns parked.
    ///
    /// Random loops that carry too many accumulators, on an H200 (`benchmarks/parked.py`). The costs are from 108 of them; none of 124
    /// others is slower parked than spilled where this parks it. Of all 232, over the time that they take spilled, geometric mean and range:
    /// parked 0.709, 0.13 to 9.7; by this choice 0.662, 0.13 to 1.02.
    pub fn is_worse_than_spilling(self, words: u64, waits: u64) -> bool {
        SHARED_COSTS * self.shared + OWN_COSTS * self.own + WAIT_COSTS * waits > 2 * words
    }
}

/// What is parked. Word `w` of a thread is in shared memory if it is one of the first `shared_words`, and else in memory of its own.
#[derive(Clone, Debug, Default)]
pub struct Parked {
    /// Of every accumulator that is not all in registers.
    pub homes: SecondaryMap<Value, Option<Home>>,
    /// Words of a thread.
    pub words: u32,
    /// A multiple of four.
    pub shared_words: u32,
    /// Where they are in the block's shared memory: [`Parked::bytes`] for each warpgroup, from the first that parks to the last.
    pub start: u32,
    pub warpgroups: std::ops::Range<u32>,
    pub moved: Moved,
}

impl Parked {
    /// Of shared memory for each warpgroup.
    pub fn bytes(&self) -> u32 {
        self.shared_words * 4 * 128
    }

    /// All of it.
    pub fn end(&self) -> u32 {
        self.start + self.bytes() * self.warpgroups.len() as u32
    }
}

/// Parks what does not fit, and gives it what shared memory is left; `spill`: leaves it to the assembler. Says so of each accumulator.
pub fn run(kernel: &Kernel, assignment: &Assignment, allocation: &mut Allocation, spill: bool) -> Result<Vec<Note>> {
    let mut finder = Finder {
        kernel,
        assignment,
        chains: chains(kernel),
        most_registers: 0,
        out: Parked::default(),
    };
    if finder.chains.is_empty() {
        return Ok(vec![]);
    }
    let all: Vec<u32> = (0..kernel.num_warpgroups).collect();
    finder.region(kernel.body, Around::new(kernel), &all)?;
    let Finder {
        chains,
        mut out,
        most_registers,
        ..
    } = finder;
    if out.words == 0 {
        return Ok(vec![]);
    }
    let (what, text) = match spill {
        false => (
            "parked",
            "columns that do not fit into registers wait for their products in memory",
        ),
        true => (
            "spilled",
            "an assembler's spills move less than columns that wait in memory for their products",
        ),
    };
    let parks = chains.iter().filter(|chain| chain.words > 0);
    let notes = parks.clone().map(|chain| Note {
        loc: kernel.ops[chain.start].loc,
        pass: "park_accumulators",
        what,
        text,
    });
    let notes = notes.collect();
    if spill {
        return Ok(notes);
    }
    // What moves nothing by itself.
    let mut joined = FxHashSet::default();
    for region in kernel.live_regions() {
        let region = &kernel.regions[region];
        let is_behind = |(a, b): (&Op, &Op)| {
            let OpData { kind, results, .. } = &kernel.ops[*a];
            let joins = matches!(kind, OpKind::Wgmma { .. }) && adds_to(kernel, *b, *results.first()?);
            joins.then_some(*b)
        };
        joined.extend(region.ops.iter().zip(region.ops.iter().skip(1)).filter_map(is_behind));
    }
    let start = allocation.smem_bytes.next_multiple_of(128);
    let available = available(kernel, most_registers, start);
    let each = available.saturating_sub(start) / (512 * out.warpgroups.len() as u32);
    out.shared_words = out.words.min(each / 4 * 4);
    out.start = start;
    if out.shared_words > 0 {
        allocation.smem_bytes = out.end();
    }
    for chain in parks {
        let words = chain.first..chain.first + chain.words;
        let shared = out.shared_words.clamp(words.start, words.end) - words.start;
        let products = chain.products.difference(&joined).count() as u64;
        out.moved.shared += products * u64::from(shared);
        out.moved.own += products * u64::from(chain.words - shared);
    }
    allocation.parked = out;
    Ok(notes)
}

/// Bytes of shared memory that a block may have without keeping another one off the SM, which has registers for it.
fn available(kernel: &Kernel, thread_registers: u32, taken: u32) -> u32 {
    let target = &kernel.target;
    let by_registers = target.blocks_by_registers(128 * kernel.num_warpgroups, thread_registers);
    let by_smem = target.blocks_by_smem(taken.into()) as u32;
    target.smem_share(by_registers.min(by_smem))
}

/// Whether an op multiplies, and adds the product to all of an accumulator. Products directly behind one another, each of which adds to
/// what the one before it gives, load and store what is parked once.
pub fn adds_to(kernel: &Kernel, op: Op, acc: Value) -> bool {
    matches!(&kernel.ops[op].kind, OpKind::Wgmma { acc: AccUse::Value(v), .. } if *v == acc)
}

/// An accumulator from its start to its last read.
struct Chain {
    start: Op,
    values: Vec<Value>,
    products: FxHashSet<Op>,
    loops: FxHashSet<Op>,
    /// The words that are parked, of a thread's.
    first: u32,
    words: u32,
}

/// The uses of a value.
#[derive(Clone, Copy)]
enum User {
    Op(Op),
    /// A region hands it on, as its result of this number.
    Result(Region, usize),
}

fn chains(kernel: &Kernel) -> Vec<Chain> {
    let mut users: FxHashMap<Value, Vec<User>> = FxHashMap::default();
    let mut starts = vec![];
    let mut region_of: SecondaryMap<Op, PackedOption<Region>> = SecondaryMap::new();
    for op in &kernel.regions[kernel.body].ops {
        region_of[*op] = kernel.body.into();
    }
    kernel.for_each_op(&mut |op| {
        let kind = &kernel.ops[op].kind;
        visit::for_each_value(kind, &mut |v| {
            if kernel.ty(v).is_acc() {
                users.entry(v).or_default().push(User::Op(op));
            }
        });
        visit::for_each_region(kind, &mut |r| {
            for op in &kernel.regions[r].ops {
                region_of[*op] = r.into();
            }
            for (i, v) in kernel.regions[r].results.iter().enumerate() {
                if kernel.ty(*v).is_acc() {
                    users.entry(*v).or_default().push(User::Result(r, i));
                }
            }
        });
        if let OpKind::AccInit { .. } = kind {
            starts.push(op);
        }
    });
    let chain = |start: Op| {
        let v = kernel.ops[start].results[0];
        let &[rows, columns] = kernel.ty(v).shape() else {
            return None;
        };
        let fits = rows % 64 == 0 && columns % AT_ONCE == 0 && columns <= MAX_COLUMNS;
        let mut chain = Chain {
            start,
            values: vec![],
            products: FxHashSet::default(),
            loops: FxHashSet::default(),
            first: 0,
            words: 0,
        };
        let uses = Uses {
            users: &users,
            region_of: &region_of,
        };
        let at = region_of[start].expand()?;
        let ends = fits && chain.follow(kernel, &uses, v, at, None);
        (ends && !chain.loops.is_empty()).then_some(chain)
    };
    starts.into_iter().filter_map(chain).collect()
}

/// The uses of accumulators, and where ops are.
struct Uses<'a> {
    users: &'a FxHashMap<Value, Vec<User>>,
    region_of: &'a SecondaryMap<Op, PackedOption<Region>>,
}

impl Chain {
    /// Follows a value of a region to where it ends: behind its last read or, in a loop's body, as its result of the number `carried`. A
    /// region that takes it from outside may run twice.
    fn follow(&mut self, kernel: &Kernel, uses: &Uses, from: Value, at: Region, carried: Option<usize>) -> bool {
        let mut v = from;
        loop {
            self.values.push(v);
            let op = match uses.users.get(&v).map(Vec::as_slice) {
                None => return carried.is_none(),
                Some([User::Result(region, i)]) => return *region == at && carried == Some(*i),
                Some([User::Op(op)]) if uses.region_of[*op].expand() == Some(at) => *op,
                Some(_) => return false,
            };
            let OpData { kind, results, .. } = &kernel.ops[op];
            let next = if let OpKind::Wgmma {
                acc: AccUse::Value(_), ..
            } = kind
            {
                self.products.insert(op);
                results.first()
            } else if let OpKind::WgmmaWait { accs, .. } = kind {
                accs.iter().position(|a| *a == v).and_then(|i| results.get(i))
            } else if let OpKind::AccRead { .. } = kind {
                match results.get(1) {
                    None => return carried.is_none(),
                    next => next,
                }
            } else if let OpKind::For { inits, xs, body, .. } = kind
                && xs.is_empty()
                && let Some(i) = inits.iter().position(|a| *a == v)
                && self.follow(kernel, uses, kernel.regions[*body].params[1 + i], *body, Some(i))
            {
                self.loops.insert(op);
                results.get(i)
            } else {
                return false;
            };
            let Some(next) = next else { return false };
            v = *next;
        }
    }
}

struct Finder<'a> {
    kernel: &'a Kernel,
    assignment: &'a Assignment,
    chains: Vec<Chain>,
    /// Registers of a thread where something is parked.
    most_registers: u32,
    out: Parked,
}

impl Finder<'_> {
    fn region(&mut self, at: Region, mut around: Around, by: &[u32]) -> Result<()> {
        let kernel = self.kernel;
        let ops = &kernel.regions[at].ops;
        let mut behind = around.behind(kernel, at, |op| !regions_of(kernel, op).is_empty());
        for &op in ops {
            around.pass(kernel, op);
            let inner = regions_of(kernel, op);
            if inner.is_empty() {
                continue;
            }
            let mut inside = around.with_alive(behind.pop().unwrap_or_default());
            for &region in &inner {
                liveness::captured(kernel, region, &mut inside.alive);
            }
            for &region in &inner {
                let kind = &kernel.ops[op].kind;
                let takes = |w: &u32| arm_taken(kernel, kind, Executor::warpgroup(*w)).is_none_or(|arm| arm == region);
                let by: Vec<u32> = by.iter().copied().filter(takes).collect();
                self.region(region, inside.clone(), &by)?;
            }
            // Inner loops first: what they need is parked in outer ones, too.
            self.fit(op, &inside, by)?;
        }
        Ok(())
    }

    /// Parks of the accumulators that a loop carries and multiplies what does not fit.
    fn fit(&mut self, op: Op, around: &Around, by: &[u32]) -> Result<()> {
        let kernel = self.kernel;
        let OpKind::For { body, .. } = kernel.ops[op].kind else {
            return Ok(());
        };
        let ops = &kernel.regions[body].ops;
        let product = |chain: &Chain| ops.iter().position(|op| chain.products.contains(op));
        let carried = (0..self.chains.len()).filter(|i| self.chains[*i].loops.contains(&op));
        let mut here: Vec<(usize, usize)> = carried.filter_map(|i| Some((product(&self.chains[i])?, i))).collect();
        here.sort_unstable();
        if here.is_empty() || by.is_empty() {
            return Ok(());
        }
        let these: FxHashSet<Value> = here
            .iter()
            .flat_map(|(_, i)| &self.chains[*i].values)
            .copied()
            .collect();
        let mut need = 0;
        for (_, i) in &here {
            need += self.words(self.chains[*i].values[0])?;
        }
        let others = self.others(body, around, &these)?;
        let left = |least: u32| u64::from(around.registers.saturating_sub(least));
        let fits = left(kernel.target.parks_below).saturating_sub(others.most);
        if need <= fits {
            return Ok(());
        }
        // What is loaded for a product must fit as well.
        let registers = left(kernel.target.park_reserve);
        let mut chosen = vec![];
        let mut most = others.most;
        let mut parked = 0;
        for (_, i) in here {
            let chain = &self.chains[i];
            if chain.words > 0 {
                continue;
            }
            let ty = kernel.ty(chain.values[0]);
            let columns = ty.shape()[1];
            let all = self.words(chain.values[0])?;
            let unit = all / (columns / UNIT);
            let buffer = AT_ONCE * 64 * u64::from(ty.dtype().bits()) / (128 * 32);
            for (at, op) in ops.iter().enumerate() {
                if chain.products.contains(op) {
                    most = most.max(others.during[at] + buffer);
                }
            }
            let over = (need + most).saturating_sub(registers + parked);
            let units = over.div_ceil(unit).min(columns / UNIT);
            parked += units * unit;
            chosen.push((i, columns - units * UNIT, units * unit));
            if need + most <= registers + parked {
                break;
            }
        }
        // Something is spilled then. Little: less than without. Much: what is parked would only make more of it.
        let is_too_little = need + most > left(SPILLED_RATHER) + parked;
        if is_too_little || u64::from(self.out.words) + parked > kernel.target.max_parked_words.into() {
            return Ok(());
        }
        self.most_registers = self.most_registers.max(around.registers);
        for (i, kept, words) in chosen.into_iter().filter(|(_, _, words)| *words > 0) {
            let home = Home {
                kept,
                first: self.out.words,
            };
            let chain = &mut self.chains[i];
            (chain.first, chain.words) = (home.first, words as u32);
            self.out.words += chain.words;
            for v in &chain.values {
                self.out.homes[*v] = Some(home);
            }
        }
        let (first, last) = (by[0], by[by.len() - 1] + 1);
        let old = &self.out.warpgroups;
        self.out.warpgroups = match old.is_empty() {
            true => first..last,
            false => old.start.min(first)..old.end.max(last),
        };
        Ok(())
    }

    /// 32-bit registers of a thread that hold a value.
    fn words(&self, v: Value) -> Result<u64> {
        let ty = self.kernel.ty(v);
        if !is_held(self.kernel, v) {
            return Ok(0);
        }
        let layout = self.assignment.layout(v)?;
        let words = u64::from(layout.words(ty.dtype().bits().max(8)));
        Ok(match self.out.homes[v] {
            Some(home) => words * home.kept / ty.shape()[1],
            None => words,
        })
    }

    /// The value whose registers `v` has.
    fn holder(&self, mut v: Value) -> Value {
        while let Some(op) = self.kernel.def_op(v) {
            let OpData { kind, results, .. } = &self.kernel.ops[op];
            v = if let OpKind::Broadcast { a, .. } | OpKind::LayoutCast { a, .. } = *kind {
                a
            } else if let OpKind::Wgmma { acc, .. } = kind
                && let Some(acc) = acc.value()
            {
                acc
            } else if let OpKind::WgmmaWait { accs, .. } = kind
                && let Some(i) = results.iter().position(|r| *r == v)
            {
                accs[i]
            } else if let OpKind::AccRead { acc, .. } = kind
                && let Some(acc) = acc.value()
                && results.last() == Some(&v)
            {
                acc
            } else {
                break;
            };
        }
        v
    }

    /// What else is in registers in a loop's body, besides the accumulators `these`.
    fn others(&self, body: Region, around: &Around, these: &FxHashSet<Value>) -> Result<Others> {
        let kernel = self.kernel;
        let RegionData {
            ops, params, results, ..
        } = &kernel.regions[body];
        let is_other = |v: &Value| !these.contains(v) && !kernel.ty(*v).is_scalar();
        // From where on a value is there, and behind which op no more.
        let mut spans: FxHashMap<Value, (usize, usize)> = FxHashMap::default();
        for v in params.iter().filter(|v| is_other(v)) {
            spans.insert(self.holder(*v), (0, 0));
        }
        let mut late = FxHashSet::default();
        let mut multiplies = vec![];
        let mut waits = vec![];
        for (i, &op) in ops.iter().enumerate() {
            let OpData { kind, results, .. } = &kernel.ops[op];
            for v in liveness::uses(kernel, op).iter().filter(|v| is_other(v)) {
                let holder = self.holder(*v);
                let first = if late.contains(&holder) { i } else { 0 };
                spans.entry(holder).or_insert((first, i)).1 = i;
            }
            // The assembler fills an accumulator with constants where its first product begins.
            let is_late = if let OpKind::AccInit { init } = kind {
                init.is_none_or(|v| !is_held(kernel, self.holder(v)))
            } else {
                false
            };
            if is_late {
                late.extend(results.iter().copied());
                continue;
            }
            for v in results.iter().filter(|v| is_other(v)) {
                spans.entry(self.holder(*v)).or_insert((i, i)).1 = i;
            }
            if let OpKind::Wgmma { acc, a, .. } = kind {
                let is_complete = acc.value().is_some_and(|acc| these.contains(&acc));
                multiplies.push((i, a.clone(), is_complete));
            } else if let OpKind::WgmmaWait { n, .. } = kind {
                waits.push((i, *n as usize));
            }
        }
        // A running product reads its left operand.
        for (k, (i, a, is_complete)) in multiplies.iter().enumerate() {
            let MmaOperand::Registers(a) = a else { continue };
            let covers = |(at, n): &&(usize, usize)| {
                let issued = multiplies.iter().take_while(|(i, ..)| i < at).count();
                at > i && issued > k + n
            };
            let end = match is_complete {
                true => *i,
                false => waits.iter().find(covers).map_or(ops.len(), |(at, _)| *at),
            };
            if let Some(span) = spans.get_mut(&self.holder(*a)) {
                span.1 = span.1.max(end);
            }
        }
        for v in results.iter().filter(|v| is_other(v)) {
            spans.entry(self.holder(*v)).or_insert((0, 0)).1 = ops.len();
        }
        let stops = |range: std::ops::Range<usize>| {
            let stop = |op: &Op| matches!(kernel.ops[*op].kind, OpKind::Wgmma { .. } | OpKind::WgmmaWait { .. });
            ops[range].iter().any(stop)
        };
        let alive: FxHashSet<Value> = around
            .alive
            .iter()
            .filter(|v| is_other(v))
            .map(|v| self.holder(*v))
            .collect();
        let mut all = 0;
        for v in &alive {
            all += if these.contains(v) { 0 } else { self.words(*v)? };
        }
        // Behind each op.
        let mut now = vec![all; ops.len() + 1];
        for (v, (from, to)) in spans {
            let is_load = kernel
                .def_op(v)
                .is_some_and(|op| matches!(kernel.ops[op].kind, OpKind::Load { .. }));
            // The assembler loads late, but not beyond a product or a wait for it.
            let is_late = is_load && to < ops.len() && !stops(from + 1..to.max(from + 1));
            if alive.contains(&v) || these.contains(&v) || is_late {
                continue;
            }
            let words = self.words(v)?;
            now[from..to].iter_mut().for_each(|n| *n += words);
        }
        let during = (0..ops.len()).map(|i| now[i].max(now[i.saturating_sub(1)])).collect();
        Ok(Others {
            most: now.iter().copied().max().unwrap_or(0),
            during,
        })
    }
}

/// 32-bit registers of a thread.
struct Others {
    most: u64,
    /// While each op runs.
    during: Vec<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::kernel_ir::testing::KernelBuilder;
    use crate::layout;
    use crate::plan::scratch;

    #[derive(Clone, Copy, PartialEq, Debug)]
    enum What {
        Products,
        /// Read and started anew in every iteration.
        Scaled,
        /// Arrays of 64 words beside them.
        Crowded,
        /// Two products of each, directly behind one another, or with a wait between them.
        Twice,
        Separate,
    }

    /// What is parked of accumulators of `[64, columns]` that a loop carries: the columns that stay of each, and words in shared memory.
    fn parked(columns: &[u64], what: What, unused_bytes: u64) -> (Vec<u64>, u32, u32) {
        let mut b = KernelBuilder::new();
        let left = b.smem(DType::F16, &[64, 64], None);
        let mut of_columns: FxHashMap<u64, Alloc> = FxHashMap::default();
        let mut right = |n: &u64| {
            *of_columns
                .entry(*n)
                .or_insert_with(|| b.smem(DType::F16, &[64, *n], None))
        };
        let rights: Vec<Alloc> = columns.iter().map(&mut right).collect();
        let other = b.input(DType::F32, &[64, 128]);
        let ballast = b.smem(DType::I8, &[unused_bytes.max(16)], None);
        let out = b.output(DType::F32, &[64, 128]);
        let accs: Vec<Type> = columns
            .iter()
            .map(|n| Type::Acc {
                dtype: DType::F32,
                shape: Shape::from_slice(&[64, *n]),
            })
            .collect();
        let allocs = of_columns.into_values().chain([left, ballast]).collect();
        let scope = b.region(Group::Warpgroup, &[], |b, _| {
            let starts: Vec<Value> = accs
                .iter()
                .map(|ty| b.op(OpKind::AccInit { init: None }, std::slice::from_ref(ty))[0])
                .collect();
            let (lower, upper) = (b.int(DType::I32, 0), b.int(DType::I32, 4));
            let params: Vec<Type> = std::iter::once(Type::Scalar(DType::I32)).chain(accs.clone()).collect();
            let body = b.region(Group::Warpgroup, &params, |b, params| {
                let x = (what == What::Crowded).then(|| {
                    let x = b.load(b.whole(other));
                    b.op1(
                        OpKind::Unary {
                            op: UnaryOp::Exp2,
                            a: x,
                        },
                        DType::F32,
                        &[64, 128],
                    )
                });
                let mut results = vec![];
                for ((acc, right), ty) in params[1..].iter().zip(&rights).zip(&accs) {
                    let mut acc = *acc;
                    if what == What::Scaled {
                        let array = Type::of(DType::F32, Shape::from_slice(ty.shape()));
                        let a = b.op(
                            OpKind::AccRead {
                                acc: AccUse::Value(acc),
                            },
                            &[array.clone(), ty.clone()],
                        )[0];
                        let a = b.op(OpKind::Unary { op: UnaryOp::Neg, a }, &[array])[0];
                        acc = b.op(OpKind::AccInit { init: Some(a) }, std::slice::from_ref(ty))[0];
                    }
                    let multiplied = |b: &mut KernelBuilder, acc| {
                        let (a, r) = (MmaOperand::Smem(b.whole(left)), b.whole(*right));
                        let kind = OpKind::Wgmma {
                            acc: AccUse::Value(acc),
                            a,
                            b: r,
                        };
                        b.op(kind, std::slice::from_ref(ty))[0]
                    };
                    let waited = |b: &mut KernelBuilder, acc| {
                        b.op(OpKind::WgmmaWait { n: 0, accs: vec![acc] }, std::slice::from_ref(ty))[0]
                    };
                    acc = multiplied(b, acc);
                    if what == What::Separate {
                        acc = waited(b, acc);
                    }
                    if matches!(what, What::Twice | What::Separate) {
                        acc = multiplied(b, acc);
                    }
                    results.push(waited(b, acc));
                }
                if let Some(x) = x {
                    b.store(b.whole(out), x);
                }
                results
            });
            let kind = OpKind::For {
                lower,
                upper,
                inits: starts,
                xs: vec![],
                reverse: false,
                unroll: 1,
                body,
            };
            let done = b.op(kind, &accs);
            for (acc, ty) in done.into_iter().zip(&accs) {
                let array = Type::of(DType::F32, Shape::from_slice(ty.shape()));
                b.op(
                    OpKind::AccRead {
                        acc: AccUse::Value(acc),
                    },
                    &[array, ty.clone()],
                );
            }
            vec![]
        });
        b.op(
            OpKind::Scope {
                allocs,
                collective: false,
                body: scope,
            },
            &[],
        );
        let mut kernel = b.finish();
        verify::run(&kernel).unwrap();
        let assignment = layout::infer::run(&mut kernel).unwrap();
        let (_, mut allocation) = scratch::allocate(&kernel, &assignment).unwrap();
        let spilled = run(&kernel, &assignment, &mut allocation, true).unwrap();
        assert_eq!(allocation.parked.words, 0);
        let notes = run(&kernel, &assignment, &mut allocation, false).unwrap();
        assert_eq!(spilled.len(), notes.len());
        let parked = &allocation.parked;
        let trips = if what == What::Separate { 2 } else { 1 };
        let Moved { shared, own } = parked.moved;
        assert_eq!(shared, trips * u64::from(parked.shared_words));
        assert_eq!(shared + own, trips * u64::from(parked.words));
        let mut kept = vec![];
        kernel.for_each_op(&mut |op| {
            if matches!(kernel.ops[op].kind, OpKind::AccInit { init: None }) {
                let v = kernel.ops[op].results[0];
                kept.push(parked.homes[v].map_or(kernel.ty(v).shape()[1], |home| home.kept));
            }
        });
        assert_eq!(
            notes.len(),
            kept.iter().zip(columns).filter(|(kept, all)| kept < all).count()
        );
        assert!(allocation.smem_bytes <= kernel.target.max_smem_bytes);
        (kept, parked.words, parked.shared_words)
    }

    #[test]
    fn what_fits_stays() {
        for what in [What::Products, What::Scaled] {
            assert_eq!(parked(&[256], what, 0), (vec![256], 0, 0));
            assert_eq!(parked(&[128, 256], what, 0), (vec![128, 256], 0, 0));
        }
    }

    #[test]
    fn as_little_as_need_be_is_parked_of_the_first() {
        // 256 words, 16 more for a product, and 223 registers.
        assert_eq!(parked(&[256, 256], What::Products, 0), (vec![144, 256], 56, 56));
        assert_eq!(parked(&[64, 224, 256], What::Products, 0), (vec![0, 144, 256], 72, 72));
    }

    #[test]
    fn products_behind_one_another_move_it_once() {
        for what in [What::Twice, What::Separate] {
            assert_eq!(parked(&[256, 256], what, 0), (vec![144, 256], 56, 56));
            let (_, words, shared) = parked(&[256, 256], what, 172 * 1024);
            assert!(shared < words);
        }
    }

    #[test]
    fn what_is_computed_beside_them_counts() {
        assert_eq!(parked(&[128, 256], What::Crowded, 0), (vec![16, 256], 56, 56));
    }

    #[test]
    fn what_shared_memory_has_no_room_for_is_in_the_threads_own() {
        let (kept, words, shared) = parked(&[256, 256], What::Products, 172 * 1024);
        assert_eq!((kept, words), (vec![144, 256], 56));
        assert!(shared < words && shared % 4 == 0, "{shared}");
    }

    #[test]
    fn where_too_much_would_be_parked_all_stays() {
        let (_, words, _) = parked(&[256; 9], What::Products, 0);
        assert!((900..=1024).contains(&words), "{words}");
        assert_eq!(parked(&[256; 10], What::Products, 0), (vec![256; 10], 0, 0));
    }

    #[test]
    fn an_accumulator_that_is_computed_with_stays() {
        assert_eq!(parked(&[256, 256], What::Scaled, 0), (vec![256, 256], 0, 0));
    }

    #[test]
    fn what_parking_costs_in_spilled_words() {
        let worse = |shared, own, words, waits| Moved { shared, own }.is_worse_than_spilling(words, waits);
        assert!(worse(9, 0, 8, 0) && !worse(8, 0, 8, 0));
        assert!(worse(0, 4, 9, 0) && !worse(0, 4, 10, 0));
        assert!(worse(8, 0, 31, 2) && !worse(8, 0, 32, 2));
    }
}
