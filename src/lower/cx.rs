//! What lowering shares: the program under construction, lowered values, cached ids and pointers.
use super::debug_print::PrintSite;
use super::emit::{ALL_LANES, S, V};
use super::exchange::Mesh;
use super::give_up::{self, Limit};
use super::value::{AccRegs, ArrayRegs, Lowered, Packing, scalar_class};
use super::{dispatch, exchange, relayout, semaphore};
use crate::error::{Error, Result};
use crate::kernel_ir as ir;
use crate::kernel_ir::{Alloc, AllocKind, GmemOrigin, Group, Kernel, Type};
use crate::layout::facts::DynId;
use crate::layout::smem_layout::SmemView;
use crate::layout::tensor_memory::TmemView;
use crate::layout::wgmma::Operand;
use crate::layout::{Assignment, RegisterLayout, register_layout};
use crate::plan::accesses::{Copy, Operands, Product, Tensor, Transfer};
use crate::plan::parked::Home;
use crate::plan::{Accesses, Allocation, Exchanges, FeedingPart, size};
use crate::ptx::build::Builder;
use crate::ptx::inst::Inst;
use crate::ptx::launch::{EntryParam, Scratch, TensorMapSpec};
use crate::ptx::least_live;
use crate::ptx::modifier::*;
use crate::ptx::operand::{Class, ParamRef, Src};
use crate::ptx::ssa::{Ssa, Uniform};
use cranelift_entity::{EntitySet, SecondaryMap};
use rustc_hash::FxHashSet;

/// One value that a loop carries.
#[derive(Clone, Copy, Debug)]
pub struct Carried {
    pub init: S,
    pub class: Class,
    /// Over what the value is equal, at the start and after every iteration.
    pub uniform: Uniform,
}

pub struct LowerCx<'a> {
    pub kernel: &'a Kernel,
    pub assignment: &'a Assignment,
    pub plan: &'a Allocation,
    pub exchanges: &'a Exchanges,
    pub accesses: &'a Accesses,
    /// The program.
    pub b: Builder,
    /// What each kernel value is in registers.
    pub env: SecondaryMap<ir::Value, Option<Lowered>>,
    /// The executor of what is being lowered: a warpgroup or a warp.
    pub group: Group,
    /// Within a feeding loop: for which warps of the warpgroup it is being lowered.
    pub feeding: Option<FeedingPart>,
    pub entry: Entry,
    /// The other devices.
    pub mesh: Mesh,
    /// Whether blocks of a cluster see what others of it have stored: in device memory that the kernel writes, too, or in shared memory.
    pub shares_stores: bool,
    /// Barriers at which other blocks of the cluster arrive, or stores of theirs complete.
    pub signalled_by_peers: SecondaryMap<ir::Alloc, bool>,
    /// The address of the block's tensor memory, if it has some.
    pub tensor_memory: Option<V>,
    /// Whether waits look all the time ([`ir::intensity::Limit`]).
    pub waits_poll: bool,
    /// What it has if its waits have a limit, and whether warps may leave yet.
    pub limit: Option<Limit>,
    pub may_leave: bool,
    /// The threads that record when ranges begin and end, if the kernel has a profile.
    pub profile: Option<ir::profile::Profile>,
    /// Values that some op or region uses.
    pub used: EntitySet<ir::Value>,
    /// Loops that wait for others, and what they look at.
    pub polling: ir::polling::Polling,
    /// Dynamic values of views that are no kernel values, which are signed: [`DynId`]s count down from the largest number.
    extra: Vec<(Class, S)>,
    /// What is to come, at least.
    pub lengths: size::Lengths,
    /// The ops of the region behind the one that is being lowered, and those of them that were lowered with it.
    pub following: &'a [ir::Op],
    pub joined: FxHashSet<ir::Op>,
    /// From so many instructions on it is time to see whether too many values are live.
    look_at: u64,
}

/// Programs of fewer instructions are optimised whatever they hold: that takes less than it would to look at more of them.
const LONG: u64 = 1 << 16;

/// The entry's parameters, and what is made of them.
#[derive(Default)]
pub struct Entry {
    /// Pointer of each buffer.
    pointers: Vec<(u32, V)>,
    tensor_maps: Vec<(TensorMapSpec, V)>,
    pub params: Vec<EntryParam>,
    pub scratch: Vec<Scratch>,
    /// Buffer of each scratch allocation.
    scratch_buffers: Vec<(Alloc, u32)>,
    pub uses_programmatic_launch: bool,
    /// What the kernel prints, by number, and the address of what it prints to.
    pub prints: Vec<PrintSite>,
    printer: Option<V>,
    /// Names of the profile's ranges, by number.
    pub ranges: Vec<String>,
}

impl<'a> LowerCx<'a> {
    pub fn new(
        kernel: &'a Kernel,
        assignment: &'a Assignment,
        plan: &'a Allocation,
        exchanges: &'a Exchanges,
        accesses: &'a Accesses,
    ) -> LowerCx<'a> {
        let mut cx = LowerCx {
            kernel,
            assignment,
            plan,
            exchanges,
            accesses,
            b: Builder::new().for_machine(kernel.target.features, super::substitute::run),
            env: SecondaryMap::new(),
            group: kernel.regions[kernel.body].group,
            feeding: None,
            entry: Entry::default(),
            mesh: Mesh::default(),
            shares_stores: shares_stores(kernel),
            signalled_by_peers: signalled_by_peers(kernel),
            tensor_memory: None,
            waits_poll: ir::intensity::limit(kernel) == ir::intensity::Limit::TensorCores,
            limit: None,
            may_leave: false,
            profile: ir::profile::of(kernel),
            polling: ir::polling::find(kernel),
            used: kernel.used_values(),
            extra: vec![],
            lengths: size::Lengths::of(kernel, assignment, Some(accesses)),
            following: &[],
            joined: FxHashSet::default(),
            look_at: LONG,
        };
        cx.number_scratch();
        let tid = cx.b.tid();
        cx.b.assume_at_most(tid, u64::from(128 * kernel.num_warpgroups) - 1);
        cx
    }

    // ------------------------------------------------------------ kernel values

    pub fn bind(&mut self, v: ir::Value, x: Lowered) {
        self.env[v] = Some(x);
    }
    pub fn bind_scalar(&mut self, v: ir::Value, x: S) {
        // What the kernel IR proves of an index spares the signed forms of divisions and remainders.
        let facts = self.kernel.facts(v);
        let integer = self.kernel.ty(v).dtype().is_int();
        if integer && facts.within(0, i32::MAX - 1) {
            self.b.assume_at_most(x, facts.hi as u64);
        }
        self.bind(v, Lowered::Scalar(x));
    }
    pub fn bind_array(&mut self, v: ir::Value, x: ArrayRegs) {
        self.bind(v, Lowered::Array(x));
    }

    pub fn get(&self, v: ir::Value) -> Result<&Lowered> {
        self.env[v]
            .as_ref()
            .ok_or_else(|| Error::internal(format!("{v} is used before it is lowered")).at(self.b.loc()))
    }
    pub fn scalar(&self, v: ir::Value) -> Result<S> {
        match self.get(v)? {
            Lowered::Scalar(s) => Ok(*s),
            Lowered::Array(_) | Lowered::Acc(_) => {
                Err(Error::internal(format!("{v} is no scalar but {}", self.kernel.ty(v))).at(self.b.loc()))
            }
        }
    }
    pub fn acc(&self, v: ir::Value) -> Result<AccRegs> {
        match self.get(v)? {
            Lowered::Acc(acc) => Ok(acc.clone()),
            Lowered::Scalar(_) | Lowered::Array(_) => {
                Err(Error::internal(format!("{v} is no accumulator but {}", self.kernel.ty(v))).at(self.b.loc()))
            }
        }
    }

    /// Where columns of an accumulator wait in memory.
    pub fn home(&self, v: ir::Value) -> Option<Home> {
        self.plan.parked.homes[v]
    }
    /// Registers that an accumulator is in.
    pub fn acc_words(&self, v: ir::Value) -> Result<usize> {
        let words = self.assignment.layout(v)?.words(self.ty(v).dtype().bits()) as usize;
        Ok(match self.home(v) {
            Some(home) => words * home.kept as usize / self.ty(v).shape()[1] as usize,
            None => words,
        })
    }

    /// The layout that inference chose for an array or accumulator.
    pub fn layout_of(&self, v: ir::Value) -> Result<RegisterLayout> {
        self.assignment.layout(v).cloned()
    }

    /// A value as an array in the layout that it has; a scalar as a splat of rank 0.
    pub fn array(&mut self, v: ir::Value) -> Result<ArrayRegs> {
        match self.get(v)?.clone() {
            Lowered::Array(a) => Ok(a),
            Lowered::Scalar(s) => {
                let layout = RegisterLayout::splat(&[], self.layout_group());
                Ok(self.from_elements(self.kernel.ty(v).dtype(), layout, &[s]))
            }
            Lowered::Acc(_) => Err(Error::internal(format!("{v} is an accumulator, not an array")).at(self.b.loc())),
        }
    }

    /// A value as an array in `layout`, which it has; a scalar or splat fills it.
    pub fn array_in(&mut self, v: ir::Value, layout: &RegisterLayout) -> Result<ArrayRegs> {
        match self.get(v)?.clone() {
            Lowered::Array(a) => relayout::filled(self, &a, layout),
            Lowered::Scalar(s) => Ok(self.fill(self.kernel.ty(v).dtype(), layout.clone(), s)),
            Lowered::Acc(_) => Err(Error::internal(format!("{v} is an accumulator, not an array")).at(self.b.loc())),
        }
    }

    /// The executing group in the layouts' terms.
    pub fn layout_group(&self) -> register_layout::Group {
        match self.group {
            Group::Warp => register_layout::Group::Warp,
            Group::Warpgroup | Group::Block => register_layout::Group::Warpgroup,
        }
    }

    /// How uniform a scalar of the executing group is.
    pub fn group_uniform(&self) -> Uniform {
        match self.group {
            Group::Warp => Uniform::Warp,
            Group::Warpgroup => Uniform::Warpgroup,
            Group::Block => Uniform::Cta,
        }
    }

    /// A number for a value that views depend on and that is no kernel value.
    pub fn extra_dyn(&mut self, class: Class, x: S) -> DynId {
        self.extra.push((class, x));
        DynId(u32::MAX - (self.extra.len() - 1) as u32)
    }
    /// The value of such a number.
    pub fn extra_value(&self, id: DynId) -> Option<(Class, S)> {
        self.extra.get((u32::MAX - id.0) as usize).copied()
    }

    /// An integer scalar in 32 bits (facts prove that it fits).
    pub fn index32(&mut self, v: ir::Value) -> Result<S> {
        let s = self.scalar(v)?;
        Ok(match scalar_class(self.kernel.ty(v).dtype()) {
            Class::B64 => self.b.truncate(s),
            Class::Pred => self.b.pick(Class::B32, s, Src::u32(1), Src::u32(0)),
            Class::B16 | Class::B32 => s,
        })
    }
    /// An integer scalar in 64 bits.
    pub fn index64(&mut self, v: ir::Value) -> Result<S> {
        let dtype = self.kernel.ty(v).dtype();
        let s = self.scalar(v)?;
        Ok(match scalar_class(dtype) {
            Class::B64 => s,
            _ => {
                let s = self.index32(v)?;
                self.b.widen(s, dtype.is_signed_int())
            }
        })
    }

    // ------------------------------------------------------------ elements of arrays

    /// All elements of a thread's part, as scalars, in slot order.
    pub fn elements(&mut self, a: &ArrayRegs) -> Vec<S> {
        let slots = a.layout.slots() as usize;
        let per_word = match Packing::of(a.dtype) {
            Packing::Predicates | Packing::Wide | Packing::Words(1) => return a.regs.clone(),
            Packing::Words(n) => n as usize,
        };
        let bits = a.dtype.bits();
        let mut out = Vec::with_capacity(slots);
        for (w, &word) in a.regs.iter().enumerate() {
            let here = per_word.min(slots - w * per_word);
            if scalar_class(a.dtype) == Class::B16 {
                out.extend(self.b.unpack16(word).into_iter().take(here));
            } else {
                let signed = a.dtype.is_signed_int();
                out.extend((0..here as u32).map(|i| self.b.field(word, i * bits, bits, signed)));
            }
        }
        out
    }

    /// An array from a scalar for each slot.
    pub fn from_elements(&mut self, dtype: crate::dtype::DType, layout: RegisterLayout, elements: &[S]) -> ArrayRegs {
        assert_eq!(elements.len(), layout.slots() as usize);
        let per_word = match Packing::of(dtype) {
            Packing::Predicates | Packing::Wide | Packing::Words(1) => 1,
            Packing::Words(n) => n as usize,
        };
        if per_word == 1 {
            return ArrayRegs {
                dtype,
                layout,
                regs: elements.to_vec(),
            };
        }
        let bits = dtype.bits();
        let regs = elements
            .chunks(per_word)
            .map(|c| self.pack_word(dtype, bits, c))
            .collect();
        ArrayRegs { dtype, layout, regs }
    }

    pub fn pack_word(&mut self, dtype: crate::dtype::DType, bits: u32, elements: &[S]) -> S {
        if scalar_class(dtype) == Class::B16 {
            let high = elements.get(1).copied().unwrap_or(Src::Imm(0));
            return self.b.pack16(elements[0], high);
        }
        match bits {
            16 => match elements {
                [a, b] => self.b.prmt(*a, *b, 0x5410),
                _ => elements[0],
            },
            8 => match elements {
                [a, b, c, d] => {
                    let (low, high) = (self.b.prmt(*a, *b, 0x0040), self.b.prmt(*c, *d, 0x0040));
                    self.b.prmt(low, high, 0x5410)
                }
                [a, b, c] => {
                    let low = self.b.prmt(*a, *b, 0x0040);
                    self.b.prmt(low, *c, 0x5410)
                }
                [a, b] => self.b.prmt(*a, *b, 0x0040),
                _ => elements[0],
            },
            _ => {
                let mut word = elements[0];
                for (i, &x) in elements.iter().enumerate().skip(1) {
                    word = self.b.insert_field(x, word, i as u32 * bits, bits);
                }
                word
            }
        }
    }

    /// An array whose elements are all `x`.
    pub fn fill(&mut self, dtype: crate::dtype::DType, layout: RegisterLayout, x: S) -> ArrayRegs {
        let packing = Packing::of(dtype);
        let reg = match packing {
            Packing::Predicates | Packing::Wide | Packing::Words(1) => x,
            Packing::Words(n) => {
                let elements = vec![x; n as usize];
                self.pack_word(dtype, dtype.bits(), &elements)
            }
        };
        let regs = vec![reg; packing.regs(layout.slots()) as usize];
        ArrayRegs { dtype, layout, regs }
    }

    // ------------------------------------------------------------ control

    /// `if cond { then } else { otherwise }`; both yield values of these classes.
    pub fn if_else(
        &mut self,
        cond: S,
        classes: &[Class],
        then: impl FnOnce(&mut Self) -> Result<Vec<S>>,
        otherwise: impl FnOnce(&mut Self) -> Result<Vec<S>>,
    ) -> Result<Vec<S>> {
        if let Some(bits) = self.b.as_constant(cond) {
            return if bits & 1 == 1 { then(self) } else { otherwise(self) };
        }
        self.b.open_if(cond);
        let results = then(self)?;
        let results = self.in_registers(classes, &results);
        self.b.open_else(&results);
        let results = otherwise(self)?;
        let results = self.in_registers(classes, &results);
        Ok(self.b.close_if(&results).into_iter().map(Src::Reg).collect())
    }

    /// `if cond { then }`.
    pub fn if_then(&mut self, cond: S, then: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.if_else(cond, &[], |cx| then(cx).map(|()| vec![]), |_| Ok(vec![]))
            .map(|_| ())
    }

    /// A `while` loop. `cond` sees the carried values and decides whether to go on, `body` gives the next ones. `uniform`: over what
    /// the carried values are provably equal.
    pub fn while_loop(
        &mut self,
        carried: &[Carried],
        cond: impl FnOnce(&mut Self, &[S]) -> Result<S>,
        body: impl FnOnce(&mut Self, &[S]) -> Result<Vec<S>>,
    ) -> Result<Vec<S>> {
        let inits: Vec<V> = carried.iter().map(|c| self.b.value(c.init, c.class)).collect();
        let classes: Vec<Class> = carried.iter().map(|c| c.class).collect();
        let params = self.b.open_loop(&inits);
        self.claim(&params, carried);
        let values: Vec<S> = params.iter().map(|&v| v.into()).collect();
        let go_on = cond(self, &values)?;
        let params = self.b.open_body(go_on, &params);
        self.claim(&params, carried);
        let values: Vec<S> = params.iter().map(|&v| v.into()).collect();
        let next = body(self, &values)?;
        let next = self.in_registers(&classes, &next);
        let results = self.b.close_loop(&next);
        self.claim(&results, carried);
        Ok(results.into_iter().map(Src::Reg).collect())
    }

    fn claim(&mut self, values: &[V], carried: &[Carried]) {
        for (&v, c) in values.iter().zip(carried) {
            self.b.claim_uniform(v, c.uniform);
        }
    }

    fn in_registers(&mut self, classes: &[Class], values: &[S]) -> Vec<S> {
        assert_eq!(classes.len(), values.len());
        classes
            .iter()
            .zip(values)
            .map(|(&class, &s)| Src::Reg(self.b.value(s, class)))
            .collect()
    }

    /// Emits all ops of a region.
    pub fn lower_ops(&mut self, region: ir::Region) -> Result<()> {
        let kernel = self.kernel;
        let ops = &kernel.regions[region].ops;
        for (i, &op) in ops.iter().enumerate() {
            let loc = kernel.ops[op].loc;
            self.b.set_loc(loc);
            self.following = &ops[i + 1..];
            self.b.emit_at_most(self.lengths.begin(&kernel.target, op));
            dispatch::lower_op(self, op).map_err(|e| e.at(loc))?;
            // As the program doubles: in all not much more than looking at it once.
            if self.b.emitted() >= self.look_at {
                self.look_at = 2 * self.b.emitted();
                check_least_live(kernel, self.b.program())?;
            }
        }
        Ok(())
    }

    /// The op that is being lowered makes the program too long.
    pub fn too_long(&self) -> Error {
        size::too_long(&self.kernel.target, self.lengths.with(self.b.emitted())).at(self.b.loc())
    }

    // ------------------------------------------------------------ groups

    /// True in the warpgroup's first warp, one lane of which issues copies.
    pub fn is_issuing_warp(&mut self) -> S {
        let warp = self.b.warp_in_warpgroup();
        self.b.setp(Compare::Eq, CompareType::U32, warp, Src::u32(0))
    }

    /// All threads of the executing group have arrived, and see each other's memory.
    pub fn sync_group(&mut self) {
        self.sync(self.group);
    }
    pub fn sync(&mut self, group: Group) {
        let inst = match group {
            Group::Warp => Inst::BarWarp { mask: ALL_LANES },
            Group::Warpgroup => {
                let warpgroup = self.warpgroup();
                let id = self.b.add(IntType::U32, warpgroup, Src::u32(1));
                Inst::bar_sync(id, Src::u32(128))
            }
            Group::Block => {
                let threads = Src::u32(128 * self.kernel.num_warpgroups);
                Inst::bar_sync(Src::u32(0), threads)
            }
        };
        self.b.inst(inst);
        if group != Group::Warp {
            give_up::leave(self);
        }
    }

    /// The executing warpgroup in the block.
    pub fn warpgroup(&mut self) -> S {
        if self.kernel.num_warpgroups == 1 {
            Src::u32(0)
        } else {
            self.b.warpgroup().into()
        }
    }
    /// The thread in the executing group.
    pub fn thread_in_group(&mut self) -> V {
        match self.group {
            Group::Warp => self.b.lane(),
            Group::Warpgroup | Group::Block => self.b.thread_in_warpgroup(),
        }
    }
    /// The thread's warp's number in its group, which has its own scratch.
    pub fn warp_in_group(&mut self) -> S {
        match self.group {
            Group::Warp => Src::u32(0),
            Group::Warpgroup | Group::Block => self.b.warp_in_warpgroup().into(),
        }
    }
    /// True in the executing group's first warp. Branches on one thread are kept out of loops that poll: ptxas 13.0 threads such
    /// a branch through the loop and executes the `shfl.sync` behind it with the warp still divergent (a hang on an H200).
    pub fn is_leading_warp(&mut self) -> S {
        match self.group {
            Group::Warp => Src::Imm(1),
            Group::Warpgroup | Group::Block => self.is_issuing_warp(),
        }
    }
    /// True in one thread of the executing group, the first.
    pub fn leader(&mut self) -> V {
        let thread = self.thread_in_group();
        let leader = self.b.setp(Compare::Eq, CompareType::U32, thread, Src::u32(0));
        self.b.pred(leader)
    }
    /// The block in its cluster.
    pub fn cluster_rank(&mut self) -> S {
        if self.kernel.cluster_size() == 1 {
            Src::u32(0)
        } else {
            self.b.special(SpecialReg32::ClusterCtarank).into()
        }
    }
    /// The distance in a cluster of two blocks that are neighbours on an axis: row-major, the last axis is CUDA's x.
    pub fn cluster_stride(&self, axis: ir::Axis) -> Result<u32> {
        let cluster = &self.kernel.cluster;
        let at = cluster.iter().position(|a| *a == axis);
        let at = at.ok_or_else(|| Error::internal(format!("{axis} is no axis of the cluster")).at(self.b.loc()))?;
        Ok(cluster[at + 1..]
            .iter()
            .map(|a| self.kernel.axes[*a].size as u32)
            .product())
    }
    /// The block in the grid, x fastest.
    pub fn linear_block(&mut self) -> S {
        use SpecialReg32::*;
        let [x, y, z, nx, ny] = [CtaidX, CtaidY, CtaidZ, NctaidX, NctaidY].map(|r| self.b.special(r));
        let rows = self.b.mad(IntType::U32, z, ny, y);
        self.b.mad(IntType::U32, rows, nx, x)
    }

    // ------------------------------------------------------------ memory and parameters

    /// The shared-window address of an SMEM or barrier allocation's first byte: a base and a constant offset.
    pub fn smem_address(&mut self, alloc: Alloc) -> Result<(V, i32)> {
        let offset = self.plan.smem[alloc]
            .ok_or_else(|| Error::internal(format!("{alloc} has no place in shared memory")).at(self.b.loc()))?;
        Ok((self.b.smem_base(), offset as i32))
    }

    /// Compiler scratch of the executing group: its address and bytes.
    pub fn scratch(&mut self) -> (V, u32) {
        let area = self.plan.scratch;
        let base = self.b.smem_base();
        let warpgroup = self.warpgroup();
        let start = self.b.add(IntType::U32, base, Src::u32(area.start));
        let own = self.b.mad(IntType::U32, warpgroup, Src::u32(area.bytes), start);
        match self.group {
            Group::Warpgroup | Group::Block => (self.b.r32(own), area.bytes),
            Group::Warp => {
                let warp = self.b.warp_in_warpgroup();
                let own = self.b.mad(IntType::U32, warp, Src::u32(area.bytes / 4), own);
                (self.b.r32(own), area.bytes / 4)
            }
        }
    }

    /// The number of the buffer that holds a GMEM allocation or semaphore.
    pub fn buffer_of(&self, alloc: Alloc) -> Result<u32> {
        let origin = match &self.kernel.allocs[alloc].kind {
            AllocKind::Gmem { origin, .. } | AllocKind::Semaphore { origin } => *origin,
            AllocKind::Smem { .. }
            | AllocKind::SmemUnion
            | AllocKind::Tmem { .. }
            | AllocKind::TmemUnion
            | AllocKind::Barrier { .. }
            | AllocKind::Register { .. } => {
                return Err(Error::internal(format!("{alloc} is not in device memory")).at(self.b.loc()));
            }
        };
        match origin {
            GmemOrigin::Param(p) => Ok(self.buffer_of_param(p as usize)),
            GmemOrigin::Scratch { .. } if self.mesh.semaphores.iter().any(|(a, _)| *a == alloc) => {
                Ok((self.kernel.params.len() + self.entry.scratch.len()) as u32 + 1)
            }
            GmemOrigin::Scratch { .. } => Ok(self
                .entry
                .scratch_buffers
                .iter()
                .find(|(a, _)| *a == alloc)
                .expect("scratch is numbered at the start")
                .1),
        }
    }

    /// Buffers: the INPUT, SCALAR and MUTABLE parameters in order, then the OUTPUT parameters in order. An aliased output is
    /// reached through its operand.
    pub fn buffer_of_param(&self, param: usize) -> u32 {
        use ir::ParamRole::*;
        let params = &self.kernel.params;
        let is_output = |p: &ir::ParamData| matches!(p.role, Output { .. });
        if let Output {
            alias_of: Some(operand),
        } = params[param].role
        {
            return self.buffer_of_param(operand as usize);
        }
        let same_before = |output: bool| params[..param].iter().filter(|p| is_output(p) == output).count();
        let number = if is_output(&params[param]) {
            params.iter().filter(|p| !is_output(p)).count() + same_before(true)
        } else {
            same_before(false)
        };
        number as u32
    }

    /// Blocks of the grid.
    pub fn blocks(&self) -> u64 {
        self.kernel.grid_sizes().iter().product::<u64>() * self.kernel.cluster_size()
    }

    fn number_scratch(&mut self) {
        let kernel = self.kernel;
        let blocks = self.blocks();
        let all = kernel
            .allocs
            .keys()
            .map(|alloc| semaphore::scratch_bytes(kernel, alloc, blocks));
        let talks = exchange::keeps_semaphores(kernel, all.sum());
        let mut kept = 0;
        for (alloc, data) in &kernel.allocs {
            let elements = ir::types::num_elements(&data.shape);
            let bytes = match data.kind {
                AllocKind::Semaphore {
                    origin: GmemOrigin::Scratch { .. },
                } => {
                    let bytes = semaphore::scratch_bytes(kernel, alloc, blocks);
                    if talks {
                        self.mesh.semaphores.push((alloc, kept));
                        kept += bytes;
                        continue;
                    }
                    bytes
                }
                // Its owners are a dimension of it.
                AllocKind::Gmem {
                    dtype,
                    origin: GmemOrigin::Scratch { .. },
                } => (elements * u64::from(dtype.bits())).div_ceil(8),
                AllocKind::Semaphore {
                    origin: GmemOrigin::Param(_),
                }
                | AllocKind::Gmem {
                    origin: GmemOrigin::Param(_),
                    ..
                }
                | AllocKind::Smem { .. }
                | AllocKind::SmemUnion
                | AllocKind::Tmem { .. }
                | AllocKind::TmemUnion
                | AllocKind::Barrier { .. }
                | AllocKind::Register { .. } => continue,
            };
            let number = (kernel.params.len() + self.entry.scratch.len()) as u32;
            self.entry.scratch.push(Scratch { bytes: bytes.max(4) });
            self.entry.scratch_buffers.push((alloc, number));
        }
        if let Some(flag) = self.plan.gave_up {
            let buffer = (kernel.params.len() + self.entry.scratch.len()) as u32;
            self.entry.scratch.push(Scratch { bytes: give_up::BYTES });
            let ns = kernel.compiler_params.wait_timeout_ns.min(i64::MAX as u64) as i64;
            let flag = flag.into();
            let drain = give_up::drain(kernel);
            self.limit = Some(Limit {
                ns,
                flag,
                buffer,
                drain,
            });
        }
    }

    /// A buffer's address, loaded once.
    pub fn buffer_pointer(&mut self, buffer: u32) -> V {
        if let Some((_, v)) = self.entry.pointers.iter().find(|(b, _)| *b == buffer) {
            return *v;
        }
        let p = ParamRef(self.entry.params.len() as u32);
        self.entry.params.push(EntryParam::Pointer { buffer });
        let v = self.b.param(p);
        self.entry.pointers.push((buffer, v));
        v
    }

    /// The number of the buffer for the profile: behind the call's own, the device's position, and the exchange's block.
    pub fn profile_buffer(&self) -> u32 {
        let own = (self.kernel.params.len() + self.entry.scratch.len()) as u32;
        match &self.mesh.launch {
            None => own,
            Some(mesh) => own + 1 + u32::from(mesh.exchange.is_some()),
        }
    }

    /// The number of the buffer that prints go to: the last one.
    pub fn printer_buffer(&self) -> u32 {
        self.profile_buffer() + u32::from(self.profile.is_some())
    }

    /// Where prints go.
    pub fn printer_pointer(&mut self) -> V {
        if let Some(printer) = self.entry.printer {
            return printer;
        }
        let p = ParamRef(self.entry.params.len() as u32);
        let buffer = self.printer_buffer();
        self.entry.params.push(EntryParam::Pointer { buffer });
        let v = self.b.param(p);
        self.entry.printer = Some(v);
        v
    }

    /// The address of a row of what each device adds to the address of an exchanged buffer.
    pub fn row_pointer(&mut self, buffer: u32) -> V {
        let p = ParamRef(self.entry.params.len() as u32);
        self.entry.params.push(EntryParam::Row { exchanged: buffer });
        self.b.param(p)
    }

    /// The generic address of a tensor map that is passed by value; equal specifications share one parameter.
    pub fn tensor_map(&mut self, spec: TensorMapSpec) -> V {
        if let Some((_, v)) = self.entry.tensor_maps.iter().find(|(s, _)| *s == spec) {
            return *v;
        }
        let p = ParamRef(self.entry.params.len() as u32);
        self.entry.params.push(EntryParam::TensorMap(spec.clone()));
        let v = self.b.param_addr(p);
        self.entry.tensor_maps.push((spec, v));
        v
    }

    /// The finished program, its parameters, and what it needs of its devices.
    pub fn finish(self) -> Result<(Ssa, Entry, Mesh)> {
        let long = self.b.emitted() >= LONG;
        let ssa = self.b.finish();
        if long {
            check_least_live(self.kernel, &ssa)?;
        }
        Ok((ssa, self.entry, self.mesh))
    }

    /// An op that should not have come here: an earlier pass refuses it, or plans it.
    pub fn unexpected(&self, op: ir::Op) -> Error {
        let data = &self.kernel.ops[op];
        Error::internal(format!("`{}` is lowered without a check or a plan", data.kind.name())).at(data.loc)
    }
    /// How an op loads and stores.
    pub fn transfer(&self, op: ir::Op) -> Result<&'a Transfer> {
        self.accesses.transfers.get(&op).ok_or_else(|| self.unexpected(op))
    }
    /// How an op copies; none: there is nothing to copy.
    pub fn copy(&self, op: ir::Op) -> Result<Option<&'a Copy>> {
        let planned = self.accesses.copies.get(&op).ok_or_else(|| self.unexpected(op))?;
        Ok(planned.as_ref())
    }
    /// How an op moves tensor memory.
    pub fn tensor_memory_plan(&self, op: ir::Op) -> Result<&'a Tensor> {
        let planned = self.accesses.tensor_memory.get(&op);
        planned.ok_or_else(|| self.unexpected(op))
    }
    pub fn copy_to_tensor_memory(&self, op: ir::Op) -> Result<&'a (SmemView, Operand, TmemView)> {
        let planned = self.accesses.to_tensor_memory.get(&op);
        planned.ok_or_else(|| self.unexpected(op))
    }
    pub fn product_plan(&self, op: ir::Op) -> Result<&'a Product> {
        self.accesses.products.get(&op).ok_or_else(|| self.unexpected(op))
    }
    /// What a wgmma reads of shared memory.
    pub fn operands(&self, op: ir::Op) -> Result<&'a Operands> {
        self.accesses.operands.get(&op).ok_or_else(|| self.unexpected(op))
    }

    /// Whether warps by themselves signal a semaphore or wait for it.
    pub fn counted_by_warps(&self, semaphore: Alloc) -> bool {
        self.kernel.live_regions().into_iter().any(|region| {
            let region = &self.kernel.regions[region];
            region.group == Group::Warp
                && region.ops.iter().any(|&op| {
                    let kind = &self.kernel.ops[op].kind;
                    let mut here = false;
                    ir::visit::for_each_ref(kind, &mut |r| here |= r.alloc == semaphore);
                    here && !matches!(kind, ir::OpKind::SemaphoreRead { .. })
                })
        })
    }

    /// The type of an op's only result.
    pub fn result(&self, op: ir::Op) -> ir::Value {
        self.kernel.ops[op].results[0]
    }
    pub fn ty(&self, v: ir::Value) -> &'a Type {
        self.kernel.ty(v)
    }
}

/// Refuses a program of which more values are live at once than a thread can hold, in either order. That the optimiser may shorten lives in the
/// order as it is, and may fold some, is allowed for.
fn check_least_live(kernel: &Kernel, ssa: &Ssa) -> Result<()> {
    let (least, most) = (least_live::run(ssa), kernel.target.max_live_words);
    if least.emitted <= 2 * u64::from(most) {
        return Ok(());
    }
    size::check_live(kernel, least.listed, most, least.loc)
}

fn signalled_by_peers(kernel: &Kernel) -> SecondaryMap<ir::Alloc, bool> {
    let mut signalled = SecondaryMap::new();
    for (alloc, data) in kernel.allocs.iter() {
        signalled[alloc] = matches!(data.kind, ir::AllocKind::Barrier { cluster: Some(_), .. });
    }
    kernel.for_each_op(&mut |op| {
        ir::visit::for_each_ref(&kernel.ops[op].kind, &mut |r| {
            signalled[r.alloc] |= r.elem == ir::Elem::Barrier && r.place != ir::Place::Here;
        });
    });
    signalled
}

/// Whether blocks read what others of their cluster have stored, or store in their memory: arrivals have to release that, and waits to acquire
/// it. (A store that no arrival has released may come when its block has ended.)
fn shares_stores(kernel: &Kernel) -> bool {
    let written = ir::effects::written(kernel, |_| true);
    let mut shares = false;
    kernel.for_each_op(&mut |op| {
        let kind = &kernel.ops[op].kind;
        for effect in ir::effects::of(kind) {
            let far = effect.view.place != ir::Place::Here;
            // A `swap` reads, other updates in place give nothing back. Bulk loads and stores read as ordinary loads do.
            if effect.access == ir::effects::Access::Read || ir::effects::look(kind).is_some() {
                shares |= far || written[effect.alloc] && kernel.allocs[effect.alloc].is_gmem();
            }
            shares |= far && effect.access.writes();
        }
    });
    shares
}
