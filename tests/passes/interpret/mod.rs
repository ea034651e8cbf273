//! What a kernel computes: an interpreter of the kernel IR over arrays.
//!
//! It is sequential and knows values, not order: blocks run cluster by cluster, and a group runs until it waits for another. Copies and
//! products are complete when they are issued, which no kernel that waits for what it needs can tell. Memory that nothing has written
//! holds a pattern. Floats are computed in f64 and rounded once, sums in the order of elements: one way of several that the hardware may
//! choose, and the same before and after a pass.
//!
//! What it does not do ends in [`Stop::Unsupported`], with the name of the op.
mod control;
mod memory;
pub use memory::{read, write};
pub mod numbers;
mod values;

use memory::{Barrier, Memory, Outside, View};
use smalt::dtype::DType;
use smalt::kernel_ir::*;
use std::collections::HashMap;
use std::rc::Rc;

/// Why there is no result.
#[derive(Clone, PartialEq, Debug)]
pub enum Stop {
    /// Not known here: an op, or a form of it.
    Unsupported(String),
    /// The kernel does what no kernel may: an index outside, a deadlock.
    Invalid(String),
    /// More steps than were allowed.
    TooLong,
}

pub type Outcome<T> = Result<T, Stop>;

fn unsupported<T>(what: impl Into<String>) -> Outcome<T> {
    Err(Stop::Unsupported(what.into()))
}

fn invalid<T>(what: impl Into<String>) -> Outcome<T> {
    Err(Stop::Invalid(what.into()))
}

/// A value: the bits of its elements in row-major order; of a scalar, one.
pub type Bits = Rc<Vec<u64>>;

/// What a kernel has done.
#[derive(Clone, PartialEq, Debug)]
pub struct Results {
    /// What is in the parameters afterwards, by their numbers: packed elements.
    pub params: Vec<(DType, Vec<u8>)>,
    /// Prints, sorted: their order is nobody's promise.
    pub prints: Vec<String>,
    /// Facts that did not hold: the value, and what it was.
    pub untrue: Vec<String>,
}

/// Runs a kernel on these parameters: packed elements of arrays, bits of scalars. `fuel`: how many elements it may compute.
pub fn run(kernel: &Kernel, params: &[Vec<u8>], fuel: u64) -> Outcome<Results> {
    let mut machine = Machine::new(kernel, params, fuel)?;
    machine.run()?;
    machine.results()
}

/// Bytes of a parameter.
pub fn param_bytes(param: &ParamData) -> Option<usize> {
    let elements = param.ty.shape().iter().try_fold(1u64, |n, d| n.checked_mul(*d))?;
    Some(param.ty.dtype().bytes(elements)? as usize)
}

type MemoryId = usize;

/// Where an allocation is.
#[derive(Clone, Copy)]
struct Home {
    memory: MemoryId,
    /// Of a member of a union: where it begins.
    bit: u64,
}

/// One block of the grid.
struct Block {
    /// Indices on the grid's and the cluster's axes.
    grid: Vec<u64>,
    cluster: Vec<u64>,
    shared: HashMap<Alloc, Home>,
    /// How often all warpgroups have met, and how many wait for the others now.
    rendezvous: u64,
    arrived: u32,
}

/// A warpgroup, or a warp of one in a warp region.
struct Agent {
    block: usize,
    warpgroup: u32,
    warp: Option<u32>,
    env: Vec<Option<Bits>>,
    own: HashMap<Alloc, Home>,
    stack: Vec<Frame>,
    /// Of a warp: who waits for it.
    parent: Option<usize>,
    waiting: Option<Waiting>,
    done: bool,
}

/// A region that runs.
struct Frame {
    region: Region,
    next: usize,
    /// The op whose region it is; none: the kernel's body, a warp's.
    op: Option<Op>,
    role: Role,
}

enum Role {
    /// Its results are the op's.
    Once,
    For {
        i: i128,
        last: i128,
        stacked: Vec<Vec<Bits>>,
    },
    Condition,
    Body,
    /// The body of a warp region.
    Warp,
}

/// What somebody waits for.
#[derive(Clone, Copy)]
enum Waiting {
    /// The others of the block, to come to a rendezvous more often than this.
    Rendezvous(u64),
    Warps,
    /// Something that the op looks at again.
    Again,
}

/// What an op makes of its agent.
enum Next {
    Goes,
    /// The op runs again when somebody else has.
    Waits,
    /// Others first.
    Yields,
}

struct Machine<'k> {
    kernel: &'k Kernel,
    fuel: u64,
    memories: Vec<Memory>,
    /// Those that are there before the first block is, and stay.
    lasting: usize,
    global: HashMap<Alloc, Home>,
    blocks: Vec<Block>,
    agents: Vec<Agent>,
    /// How often a group has waited for a barrier, before that is data: by allocation, index, block, warpgroup and warp.
    waits: HashMap<(Alloc, u64, usize, u32, u32), u64>,
    prints: Vec<String>,
    untrue: Vec<String>,
    scalars: Vec<(Value, u64)>,
}

impl<'k> Machine<'k> {
    fn new(kernel: &'k Kernel, params: &[Vec<u8>], fuel: u64) -> Outcome<Machine<'k>> {
        if kernel.devices() > 1 {
            return unsupported("several devices");
        }
        let mut machine = Machine {
            kernel,
            fuel,
            memories: vec![],
            lasting: 0,
            global: HashMap::new(),
            blocks: vec![],
            agents: vec![],
            waits: HashMap::new(),
            prints: vec![],
            untrue: vec![],
            scalars: vec![],
        };
        for (param, bytes) in kernel.params.iter().zip(params) {
            match param.binding {
                ParamBinding::Alloc(_) if matches!(param.role, ParamRole::Output { alias_of: Some(_) }) => {}
                ParamBinding::Alloc(alloc) => {
                    let memory = match kernel.allocs[alloc].elem() {
                        Elem::Data(_) => Memory::Bits(bytes.clone()),
                        Elem::Semaphore => {
                            Memory::Semaphores(vec![0; num_elements(&kernel.allocs[alloc].shape) as usize])
                        }
                        Elem::Barrier => return unsupported("a barrier as a parameter"),
                    };
                    let home = machine.home(memory);
                    machine.global.insert(alloc, home);
                }
                ParamBinding::Scalar(v) => {
                    let bits = memory::read(bytes, 0, param.ty.dtype().bits());
                    machine.scalars.push((v, bits & numbers::mask(param.ty.dtype())));
                }
            }
        }
        for (alloc, data) in &kernel.allocs {
            if let AllocKind::Gmem {
                origin: GmemOrigin::Scratch { .. },
                ..
            }
            | AllocKind::Semaphore {
                origin: GmemOrigin::Scratch { global: true },
            } = data.kind
            {
                let memory = machine.fresh(data)?;
                let home = machine.home(memory);
                machine.global.insert(alloc, home);
            }
        }
        machine.lasting = machine.memories.len();
        Ok(machine)
    }

    fn home(&mut self, memory: Memory) -> Home {
        self.memories.push(memory);
        Home {
            memory: self.memories.len() - 1,
            bit: 0,
        }
    }

    /// Memory as an allocation is at first.
    fn fresh(&self, data: &AllocData) -> Outcome<Memory> {
        let n = num_elements(&data.shape);
        Ok(match &data.kind {
            AllocKind::Register { dtype, accumulator } => {
                memory::bits(n, *dtype, if *accumulator { 0 } else { memory::POISON })
            }
            AllocKind::Gmem { dtype, .. } | AllocKind::Smem { dtype, .. } => memory::bits(n, *dtype, memory::POISON),
            AllocKind::SmemUnion => memory::bits(n, DType::I8, memory::POISON),
            AllocKind::Barrier {
                cluster: Some(ClusterBarrier {
                    leader_tracked: true, ..
                }),
                ..
            } => return unsupported("a barrier that a leader tracks"),
            AllocKind::Barrier { .. } => Memory::Barriers(vec![Barrier::default(); n as usize]),
            AllocKind::Semaphore { .. } => Memory::Semaphores(vec![0; n as usize]),
            AllocKind::Tmem { .. } | AllocKind::TmemUnion => return unsupported("tensor memory"),
        })
    }

    fn run(&mut self) -> Outcome<()> {
        let grid = self.kernel.grid_sizes();
        let mut clusters = vec![];
        memory::for_each_index(&grid, |index| clusters.push(index.to_vec()));
        let mut clusters = clusters.into_iter();
        loop {
            self.run_agents()?;
            if self.agents.iter().all(|a| a.done) {
                self.agents.clear();
                self.blocks.clear();
                self.waits.clear();
                self.memories.truncate(self.lasting);
            }
            // Those who wait may wait for what a later block does.
            match clusters.next() {
                Some(at) => self.launch(&at),
                None if self.agents.is_empty() => return Ok(()),
                None => return invalid("a deadlock: all who are left wait"),
            }
        }
    }

    /// The blocks of a cluster, and their warpgroups.
    fn launch(&mut self, at: &[u64]) {
        let mut places = vec![];
        memory::for_each_index(&self.kernel.cluster_sizes(), |index| places.push(index.to_vec()));
        for cluster in places {
            self.blocks.push(Block {
                grid: at.to_vec(),
                cluster,
                shared: HashMap::new(),
                rendezvous: 0,
                arrived: 0,
            });
            for warpgroup in 0..self.kernel.num_warpgroups {
                let mut env = vec![None; self.kernel.values.len()];
                for (v, bits) in &self.scalars {
                    env[v.as_u32() as usize] = Some(Rc::new(vec![*bits]));
                }
                self.agents.push(Agent {
                    block: self.blocks.len() - 1,
                    warpgroup,
                    warp: None,
                    env,
                    own: HashMap::new(),
                    stack: vec![Frame {
                        region: self.kernel.body,
                        next: 0,
                        op: None,
                        role: Role::Once,
                    }],
                    parent: None,
                    waiting: None,
                    done: false,
                });
            }
        }
    }

    /// Lets everybody run until nobody can.
    fn run_agents(&mut self) -> Outcome<()> {
        loop {
            let mut progress = false;
            for agent in 0..self.agents.len() {
                progress |= self.run_agent(agent)?;
            }
            if !progress {
                return Ok(());
            }
        }
    }

    /// Whether the agent did anything.
    fn run_agent(&mut self, a: usize) -> Outcome<bool> {
        if self.agents[a].done {
            return Ok(false);
        }
        match self.agents[a].waiting {
            Some(Waiting::Rendezvous(n)) if self.blocks[self.agents[a].block].rendezvous <= n => return Ok(false),
            Some(Waiting::Warps) if self.agents.iter().any(|w| w.parent == Some(a) && !w.done) => return Ok(false),
            Some(Waiting::Rendezvous(_) | Waiting::Warps | Waiting::Again) | None => {}
        }
        let mut did = !matches!(self.agents[a].waiting, Some(Waiting::Again) | None);
        self.agents[a].waiting = None;
        loop {
            match self.step(a)? {
                Next::Goes => did = true,
                Next::Yields => return Ok(true),
                Next::Waits => return Ok(did),
            }
            if self.agents[a].done {
                return Ok(true);
            }
        }
    }

    fn spend(&mut self, elements: u64) -> Outcome<()> {
        match self.fuel.checked_sub(elements + 1) {
            Some(left) => {
                self.fuel = left;
                Ok(())
            }
            None => Err(Stop::TooLong),
        }
    }

    // -------------------------------------------------------- values
    fn get(&self, a: usize, v: Value) -> Outcome<Bits> {
        match &self.agents[a].env[v.as_u32() as usize] {
            Some(bits) => Ok(bits.clone()),
            None => invalid(format!("{v} is used before it is computed")),
        }
    }

    /// Whether a scalar is the same for all: an integer, as the number that it is.
    fn int(&self, a: usize, v: Value) -> Outcome<i128> {
        Ok(numbers::to_int(self.kernel.ty(v).dtype(), self.get(a, v)?[0]))
    }

    fn holds(&self, a: usize, predicate: Option<Value>) -> Outcome<bool> {
        match predicate {
            Some(p) => Ok(self.get(a, p)?[0] & 1 == 1),
            None => Ok(true),
        }
    }

    fn set(&mut self, a: usize, v: Value, bits: Bits) -> Outcome<()> {
        let data = &self.kernel.values[v];
        self.spend(bits.len() as u64)?;
        if data.ty.is_scalar() && !data.ty.dtype().is_float() {
            let x = numbers::to_int(data.ty.dtype(), bits[0]);
            let Facts { lo, hi, divisor } = data.facts;
            // No bound for a u64.
            let below = x <= i128::from(hi) || i128::from(hi) == i128::from(i64::MAX) && data.ty.dtype() == DType::U64;
            let multiple = match divisor {
                0 => x == 0,
                n => x % i128::from(n) == 0,
            };
            if !(below && x >= i128::from(lo) && multiple) && self.untrue.len() < 8 {
                self.untrue
                    .push(format!("{v}: {} is {x}, and not {}", data.ty, data.facts));
            }
        }
        assert!(
            bits.len() as u64 == num_elements(data.ty.shape()) || bits.len() == 4 && data.group == Group::Warp,
            "{v}: {} has {} elements",
            data.ty,
            bits.len()
        );
        self.agents[a].env[v.as_u32() as usize] = Some(bits);
        Ok(())
    }

    // -------------------------------------------------------- memory
    /// The block that a use names.
    fn block_of(&self, a: usize, place: &Place) -> Outcome<usize> {
        let own = self.agents[a].block;
        match place {
            Place::Here => Ok(own),
            Place::Cluster { axes, indices } => {
                let mut cluster = self.blocks[own].cluster.clone();
                for (axis, index) in axes.iter().zip(indices) {
                    let index = self.int(a, *index)?;
                    let position = self.kernel.cluster.iter().position(|x| x == axis);
                    cluster[position.expect("an axis of the cluster")] = index as u64;
                }
                let grid = &self.blocks[own].grid;
                let found = self
                    .blocks
                    .iter()
                    .rposition(|b| b.grid == *grid && b.cluster == cluster);
                found.map_or_else(|| invalid("a block that the cluster does not have"), Ok)
            }
            Place::Peer { .. } | Place::Multicast { .. } => unsupported("memory of another device"),
        }
    }

    fn home_of(&mut self, a: usize, alloc: Alloc, place: &Place) -> Outcome<Home> {
        if let Some(home) = self.global.get(&alloc) {
            return Ok(*home);
        }
        if *place == Place::Here
            && let Some(home) = self.agents[a].own.get(&alloc)
        {
            return Ok(*home);
        }
        let block = self.block_of(a, place)?;
        if let Some(Within { union, offset, .. }) = self.kernel.allocs[alloc].within {
            let whole = self.home_of(a, union, place)?;
            return Ok(Home {
                memory: whole.memory,
                bit: whole.bit + offset * 8,
            });
        }
        self.home_in(block, alloc)
    }

    /// Barriers live as long as the kernel, and what a peer of the cluster has may be needed before it gets there.
    fn home_in(&mut self, block: usize, alloc: Alloc) -> Outcome<Home> {
        if let Some(home) = self.blocks[block].shared.get(&alloc) {
            return Ok(*home);
        }
        let memory = self.fresh(&self.kernel.allocs[alloc])?;
        let home = self.home(memory);
        self.blocks[block].shared.insert(alloc, home);
        Ok(home)
    }

    fn view(&mut self, a: usize, r: &RefUse, outside: Outside) -> Outcome<(Home, View)> {
        let mut home = self.home_of(a, r.alloc, &r.place)?;
        let data = &self.kernel.allocs[r.alloc];
        let mut view = View::whole(&data.shape);
        let mut dtype = data.elem().dtype();
        let this = &*self;
        let index = |i: Index| match i {
            Index::Const(x) => Ok(i128::from(x)),
            Index::Value(v) => this.int(a, v),
        };
        let array = |v: Value| -> Outcome<Vec<i128>> {
            let dtype = this.kernel.ty(v).dtype();
            Ok(this.get(a, v)?.iter().map(|x| numbers::to_int(dtype, *x)).collect())
        };
        for step in &r.steps {
            if let Step::ExtractAlias { offset, member, .. } = step {
                home.bit += offset * 8;
                view = View::whole(&member.shape);
                dtype = member.elem().dtype();
                continue;
            }
            view = view.step(step, dtype, outside, &index, &array)?;
            if let Step::Bitcast { dtype: to, .. } = step {
                dtype = Some(*to);
            }
        }
        Ok((home, view))
    }

    /// The elements of a view; 0 where nothing is.
    fn load(&mut self, a: usize, r: &RefUse, outside: Outside) -> Outcome<Vec<u64>> {
        let (home, view) = self.view(a, r, outside)?;
        self.spend(view.len())?;
        let positions = view.list()?;
        let Some(dtype) = r.dtype() else {
            return unsupported("loads of barriers or semaphores");
        };
        let Memory::Bits(bytes) = &self.memories[home.memory] else {
            return unsupported("data in barriers or semaphores");
        };
        let width = dtype.bits();
        let element = |p: &Option<i64>| match p {
            Some(p) => memory::read(bytes, home.bit + *p as u64 * u64::from(width), width) & numbers::mask(dtype),
            None => 0,
        };
        Ok(positions.iter().map(element).collect())
    }

    /// Puts an element at each position of a view, made of what is there and the new one; what was there.
    fn update(
        &mut self,
        a: usize,
        r: &RefUse,
        outside: Outside,
        new: &[u64],
        with: &dyn Fn(u64, u64) -> Outcome<u64>,
    ) -> Outcome<Vec<u64>> {
        let (home, view) = self.view(a, r, outside)?;
        self.update_at(home, r, &view.list()?, new, with)
    }

    fn update_at(
        &mut self,
        home: Home,
        r: &RefUse,
        positions: &[Option<i64>],
        new: &[u64],
        with: &dyn Fn(u64, u64) -> Outcome<u64>,
    ) -> Outcome<Vec<u64>> {
        self.spend(positions.len() as u64)?;
        let Some(dtype) = r.dtype() else {
            return unsupported("stores to barriers or semaphores");
        };
        let Memory::Bits(bytes) = &mut self.memories[home.memory] else {
            return unsupported("data in barriers or semaphores");
        };
        let width = dtype.bits();
        let mut old = Vec::with_capacity(positions.len());
        for (p, new) in positions.iter().zip(new) {
            let Some(p) = p else {
                old.push(0);
                continue;
            };
            let at = home.bit + *p as u64 * u64::from(width);
            let was = memory::read(bytes, at, width) & numbers::mask(dtype);
            memory::write(bytes, at, width, with(was, *new)?);
            old.push(was);
        }
        Ok(old)
    }

    /// The barrier or semaphore that a use names: its memory, and its index there.
    fn single(&mut self, a: usize, r: &RefUse) -> Outcome<(MemoryId, usize)> {
        let (home, view) = self.view(a, r, Outside::Refused)?;
        match view.list()?.as_slice() {
            [Some(at)] => Ok((home.memory, *at as usize)),
            _ => unsupported("several barriers or semaphores at once"),
        }
    }

    fn barrier(&mut self, (memory, at): (MemoryId, usize)) -> &mut Barrier {
        match &mut self.memories[memory] {
            Memory::Barriers(barriers) => &mut barriers[at],
            Memory::Bits(_) | Memory::Semaphores(_) => unreachable!("the verifier knows barriers"),
        }
    }

    fn semaphore(&mut self, (memory, at): (MemoryId, usize)) -> &mut i32 {
        match &mut self.memories[memory] {
            Memory::Semaphores(semaphores) => &mut semaphores[at],
            Memory::Bits(_) | Memory::Barriers(_) => unreachable!("the verifier knows semaphores"),
        }
    }

    /// Arrivals that end a phase: of a cluster's barrier from every block that arrives at it.
    fn arrivals(&self, r: &RefUse) -> u64 {
        let AllocKind::Barrier {
            num_arrivals, cluster, ..
        } = &self.kernel.allocs[r.alloc].kind
        else {
            return 1;
        };
        let groups = cluster.iter().flat_map(|c| &c.collective_axes);
        let others = groups.map(|axes| axes.iter().map(|a| self.kernel.axes[*a].size).product::<u64>() - 1);
        num_arrivals * (1 + others.sum::<u64>())
    }

    /// One arrival: at a cluster's barrier at those of all blocks that differ along one of its axes at most.
    fn arrive(&mut self, a: usize, r: &RefUse) -> Outcome<()> {
        let ((memory, index), arrivals) = (self.single(a, r)?, self.arrivals(r));
        self.barrier((memory, index)).arrive(1, arrivals);
        let AllocKind::Barrier { cluster: Some(c), .. } = &self.kernel.allocs[r.alloc].kind else {
            return Ok(());
        };
        let own = self.block_of(a, &r.place)?;
        let position = |axis: &Axis| self.kernel.cluster.iter().position(|x| x == axis);
        let groups: Vec<Vec<usize>> = c
            .collective_axes
            .iter()
            .map(|axes| axes.iter().filter_map(position).collect())
            .collect();
        let mut peers = vec![];
        for (other, block) in self
            .blocks
            .iter()
            .enumerate()
            .filter(|(_, b)| b.grid == self.blocks[own].grid)
        {
            let differs = |d: usize| block.cluster[d] != self.blocks[own].cluster[d];
            let along: Vec<usize> = (0..block.cluster.len()).filter(|d| differs(*d)).collect();
            if !along.is_empty() && groups.iter().any(|axes| along.iter().all(|d| axes.contains(d))) {
                peers.push(other);
            }
        }
        for block in peers {
            let home = self.home_in(block, r.alloc)?;
            self.barrier((home.memory, index)).arrive(1, arrivals);
        }
        Ok(())
    }

    fn results(mut self) -> Outcome<Results> {
        let mut params = vec![];
        for param in &self.kernel.params {
            let bytes = match param.binding {
                ParamBinding::Alloc(alloc) => match &self.memories[self.global[&alloc].memory] {
                    Memory::Bits(bytes) => bytes.clone(),
                    Memory::Semaphores(words) => words.iter().flat_map(|w| w.to_le_bytes()).collect(),
                    Memory::Barriers(_) => vec![],
                },
                ParamBinding::Scalar(_) => vec![],
            };
            params.push((param.ty.dtype(), bytes));
        }
        self.prints.sort();
        Ok(Results {
            params,
            prints: self.prints,
            untrue: self.untrue,
        })
    }
}
