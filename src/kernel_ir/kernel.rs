//! The kernel and its arenas.
use super::class::Class;
use super::entities::{Alloc, Axis, Op, Region, Value};
use super::op::{Constant, OpKind};
use super::text::{names, texts};
use super::types::{Elem, Facts, Group, Type};
use super::view::{Place, RefUse};
use super::{AllocData, AllocKind, GmemOrigin, arithmetic, visit};
use crate::dtype::DType;
use crate::error::{Loc, RefId, Result};
use crate::target::Target;
use cranelift_entity::packed_option::PackedOption;
use cranelift_entity::{EntitySet, PrimaryMap, SecondaryMap};
use smallvec::SmallVec;

/// A kernel: one body that every warpgroup of every block of the grid runs.
#[derive(Clone, Debug)]
pub struct Kernel {
    pub name: String,
    pub stage: Stage,
    pub semantics: Semantics,
    pub compiler_params: CompilerParams,
    /// The machine that it is compiled for.
    pub target: Target,
    pub axes: PrimaryMap<Axis, AxisData>,
    /// JAX order: the last axis varies fastest.
    pub grid: Vec<Axis>,
    pub cluster: Vec<Axis>,
    pub thread_axis: Option<Axis>,
    /// Outermost first.
    pub device_mesh: Vec<Axis>,
    /// Pallas threads in a block, ≥ 1.
    pub num_warpgroups: u32,
    pub params: Vec<ParamData>,
    pub allocs: PrimaryMap<Alloc, AllocData>,
    pub values: PrimaryMap<Value, ValueData>,
    pub ops: PrimaryMap<Op, OpData>,
    pub regions: PrimaryMap<Region, RegionData>,
    /// Its parameters are the kernel's scalar parameters in order; it has no results.
    pub body: Region,
    /// What passes have to say to the kernel's author; no part of what it means.
    pub notes: Vec<Note>,
    /// How tiles of products of arrays are dealt to warps; no part of what it means. Chosen where layouts are.
    pub dealing: Dealing,
    /// Which of the descriptor's references an allocation is, for messages; no part of what it means either.
    pub refs: SecondaryMap<Alloc, RefId>,
}

/// How tiles of products of arrays are dealt to the warps of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dealing {
    /// Along M first: rows are whole in a warp, as `wgmma` has them.
    Rows,
    /// So that each warp reads the least of the operands.
    Squares,
}

/// Why a pass left something as it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    pub loc: Loc,
    pub pass: &'static str,
    /// What it did, or did not.
    pub what: &'static str,
    pub text: &'static str,
}

impl Note {
    /// Why a pass left something as it is.
    pub fn not_deferred(loc: Loc, pass: &'static str, text: &'static str) -> Note {
        let what = "not deferred";
        Note { loc, pass, what, text }
    }
}

names! { "stage"
/// How far a kernel has come.
pub enum Stage {
    /// As JAX wrote it, without calls: views begin with allocation transforms, accumulators are references, waits have no phases.
    Imported = "imported",
    /// DESIGN §3's normal form.
    Normalized = "normalized",
}}

/// What nothing in an op shows: how the front end's version means it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Semantics {
    /// A false predicate on a gmem → smem copy suppresses the barrier arrival too, not only the copy.
    pub false_predicate_suppresses_arrival: bool,
    /// `orders_tensor_core` barriers may track copies with one elected arrival.
    pub tensor_core_barrier_tracks_copies: bool,
    /// Leader-tracked copies: only the last cluster axis must have size 2; else the whole cluster.
    pub leader_tracked_last_axis_only: bool,
    pub lowering: LoweringSemantics,
}

names! { "lowering"
pub enum LoweringSemantics {
    Lane = "lane",
    Warpgroup = "warpgroup",
}}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CompilerParams {
    pub approx_math: bool,
    /// `acc + x @ y` of floats starts from `acc`.
    pub accumulate_products: bool,
    pub unsafe_no_auto_barriers: bool,
    pub reduction_scratch_bytes: u64,
    pub skip_device_barrier: bool,
    pub is_multi_process: bool,
    pub fp_contract: FpContract,
    pub quotients: Quotients,
    /// E.g. "sm_90a"; empty: the caller's choice.
    pub target: String,
    /// 0: waits spin for ever.
    pub wait_timeout_ns: u64,
    /// Ranges that each track can record; 0: the kernel has no profile.
    pub profile_space: u64,
    /// What has a track.
    pub profile_scope: ProfileScope,
    /// On mbarriers, instead of one lane for its warp: compute-sanitizer's racecheck follows no other way. Not in descriptors.
    pub every_lane_arrives: bool,
}

names! { "scope of a profile"
/// Who records the ranges of a profile.
pub enum ProfileScope {
    /// The first warp of each warpgroup; in a warp region, each warp.
    Warpgroup = "warpgroup",
    Warp = "warp",
}}

names! { "contraction"
pub enum FpContract {
    On = "on",
    Off = "off",
}}

names! { "rounding of quotients"
/// What a quotient of f32 is.
pub enum Quotients {
    /// XLA's: within 2 ulp over the whole range.
    Full = "full",
    /// Correctly rounded.
    Rounded = "rounded",
}}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AxisData {
    /// For reports; may be empty.
    pub name: String,
    pub size: u64,
    pub kind: AxisKind,
}

texts! { "kind of axis"
#[derive(Copy)]
pub enum AxisKind {
    /// Position in [`Kernel::grid`]. The index counts clusters, not blocks.
    Grid "grid" (i: u32),
    /// Position in [`Kernel::cluster`].
    Cluster "cluster" (i: u32),
    /// The warpgroup in its block.
    Thread "thread",
    /// The warp in its warpgroup.
    Warp "warp",
    /// Position in [`Kernel::device_mesh`].
    DeviceMesh "device_mesh" (i: u32),
}}

/// A parameter of the kernel. The custom call's operands are the INPUT, SCALAR and MUTABLE parameters in order, its results the
/// OUTPUT parameters in order.
#[derive(Clone, PartialEq, Debug)]
pub struct ParamData {
    pub role: ParamRole,
    pub binding: ParamBinding,
    pub ty: Type,
}

texts! { "role of a parameter"
#[derive(Copy)]
pub enum ParamRole {
    /// Read-only array.
    Input "input",
    /// Uninitialised at entry. `alias_of`: index of the MUTABLE parameter whose buffer this is.
    Output "output" { alias_of: Option<u32> },
    /// A plain value, passed as a rank-0 buffer.
    Scalar "scalar",
    /// Modified in place: a mutable ref, or a semaphore argument.
    Mutable "mutable",
}}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParamBinding {
    /// An aliased OUTPUT has the allocation of its MUTABLE parameter.
    Alloc(Alloc),
    /// A parameter of the body region.
    Scalar(Value),
}

#[derive(Clone, Debug)]
pub struct ValueData {
    pub ty: Type,
    /// A scalar's value is equal over this group (`Warp`: each warp has its own; outside of warp regions it is only carried).
    pub group: Group,
    /// Of integer and bool scalars.
    pub facts: Facts,
    /// The op whose result this is; none: a parameter of a region.
    pub def: PackedOption<Op>,
}

#[derive(Clone, Debug)]
pub struct OpData {
    pub kind: OpKind,
    pub results: SmallVec<[Value; 2]>,
    pub loc: Loc,
}

#[derive(Clone, Debug)]
pub struct RegionData {
    pub params: Vec<Value>,
    pub ops: Vec<Op>,
    pub results: Vec<Value>,
    /// Who executes it together.
    pub group: Group,
}

impl Kernel {
    /// A kernel without axes, parameters and ops, as the newest JAX means it.
    pub fn empty(name: impl Into<String>, num_warpgroups: u32) -> Kernel {
        let mut regions = PrimaryMap::new();
        let body = regions.push(RegionData {
            params: vec![],
            ops: vec![],
            results: vec![],
            group: Group::Warpgroup,
        });
        Kernel {
            name: name.into(),
            stage: Stage::Imported,
            semantics: Semantics {
                false_predicate_suppresses_arrival: true,
                tensor_core_barrier_tracks_copies: true,
                leader_tracked_last_axis_only: true,
                lowering: LoweringSemantics::Warpgroup,
            },
            compiler_params: CompilerParams {
                approx_math: false,
                accumulate_products: false,
                unsafe_no_auto_barriers: false,
                reduction_scratch_bytes: 2048,
                skip_device_barrier: false,
                is_multi_process: false,
                fp_contract: FpContract::On,
                quotients: Quotients::Full,
                target: String::new(),
                wait_timeout_ns: 0,
                profile_space: 0,
                profile_scope: ProfileScope::Warpgroup,
                every_lane_arrives: false,
            },
            target: Target::sm_90a(),
            axes: PrimaryMap::new(),
            grid: vec![],
            cluster: vec![],
            thread_axis: None,
            device_mesh: vec![],
            num_warpgroups,
            params: vec![],
            allocs: PrimaryMap::new(),
            values: PrimaryMap::new(),
            ops: PrimaryMap::new(),
            regions,
            body,
            notes: vec![],
            dealing: Dealing::Rows,
            refs: SecondaryMap::new(),
        }
    }

    /// How many devices run the kernel together.
    pub fn devices(&self) -> u32 {
        self.device_mesh.iter().map(|a| self.axes[*a].size).product::<u64>() as u32
    }

    /// Whether it names memory of other devices.
    pub fn talks(&self) -> bool {
        !self.shared_with_peers().is_empty()
    }

    /// What other devices have of their own, and the kernel names there.
    pub fn shared_with_peers(&self) -> Vec<Alloc> {
        let mut shared = vec![];
        self.for_each_op(&mut |op| {
            visit::for_each_ref(&self.ops[op].kind, &mut |r| {
                if matches!(r.place, Place::Peer { .. }) && !shared.contains(&r.alloc) {
                    shared.push(r.alloc);
                }
            });
        });
        shared
    }

    /// Takes an op without results out of whatever region it is in.
    pub fn remove(&mut self, op: Op) {
        for region in self.regions.values_mut() {
            region.ops.retain(|o| *o != op);
        }
    }

    /// The whole of an allocation.
    pub fn whole(&self, alloc: Alloc) -> RefUse {
        let data = &self.allocs[alloc];
        RefUse {
            alloc,
            steps: vec![],
            place: Place::Here,
            elem: data.elem(),
            shape: data.shape.clone(),
        }
    }

    /// A new value. Facts start as all that its type allows.
    pub fn new_value(&mut self, ty: Type, group: Group) -> Value {
        let facts = if ty.is_scalar() {
            Facts::of_dtype(ty.dtype())
        } else {
            Facts::UNKNOWN
        };
        self.values.push(ValueData {
            ty,
            group,
            facts,
            def: None.into(),
        })
    }

    /// An empty region.
    pub fn new_region(&mut self, group: Group) -> Region {
        self.regions.push(RegionData {
            params: vec![],
            ops: vec![],
            results: vec![],
            group,
        })
    }

    /// A new op with results of these types, uniform over `group`. It is in no region yet.
    pub fn new_op(&mut self, kind: OpKind, results: impl IntoIterator<Item = Type>, group: Group, loc: Loc) -> Op {
        let op = self.ops.next_key();
        let mut values = SmallVec::new();
        for ty in results {
            let v = self.new_value(ty, group);
            self.values[v].def = op.into();
            values.push(v);
        }
        self.ops.push(OpData {
            kind,
            results: values,
            loc,
        })
    }

    /// A new op at the end of `region`.
    pub fn append(
        &mut self,
        region: Region,
        kind: OpKind,
        results: impl IntoIterator<Item = Type>,
        loc: Loc,
    ) -> SmallVec<[Value; 2]> {
        let op = self.new_op(kind, results, self.regions[region].group, loc);
        self.regions[region].ops.push(op);
        self.ops[op].results.clone()
    }

    /// A new op with one result at the end of `region`.
    pub fn append1(&mut self, region: Region, kind: OpKind, ty: Type, loc: Loc) -> Value {
        self.append(region, kind, [ty], loc)[0]
    }

    /// An integer or bool scalar constant at the end of `region`; `x` is truncated to the type.
    pub fn append_int(&mut self, region: Region, dtype: DType, x: i64, loc: Loc) -> Value {
        let v = self.append1(
            region,
            OpKind::Constant(Constant::Splat(int_bits(dtype, x))),
            Type::Scalar(dtype),
            loc,
        );
        self.values[v].facts = Facts::constant(arithmetic::wrap(dtype, x.into()));
        v
    }

    pub fn ty(&self, v: Value) -> &Type {
        &self.values[v].ty
    }

    /// Whether nothing writes what a view names while the kernel runs, and no thread has to wait for it: it is of an input of this device.
    pub fn is_constant(&self, view: &RefUse) -> bool {
        self.is_input(view.alloc) && view.place == Place::Here
    }

    /// Whether this is a read-only array in device memory: nothing writes it while the kernel runs.
    pub fn is_input(&self, alloc: Alloc) -> bool {
        match self.allocs[alloc].kind {
            AllocKind::Gmem {
                origin: GmemOrigin::Param(p),
                ..
            } => self.params[p as usize].role == ParamRole::Input,
            _ => false,
        }
    }

    /// The op whose result this is; none: a parameter of a region.
    pub fn def_op(&self, v: Value) -> Option<Op> {
        self.values[v].def.expand()
    }

    pub fn facts(&self, v: Value) -> Facts {
        self.values[v].facts
    }

    /// Values that some op or region uses.
    pub fn used_values(&self) -> EntitySet<Value> {
        let mut used = EntitySet::new();
        self.for_each_op(&mut |op| {
            visit::for_each_value(&self.ops[op].kind, &mut |v| {
                used.insert(v);
            });
        });
        for region in self.live_regions() {
            used.extend(self.regions[region].results.iter().copied());
        }
        used
    }

    /// How often the ops and regions of the kernel's body use each value.
    pub fn use_counts(&self) -> SecondaryMap<Value, u32> {
        let mut uses: SecondaryMap<Value, u32> = SecondaryMap::new();
        self.for_each_op(&mut |op| {
            let kind = &self.ops[op].kind;
            visit::for_each_value(kind, &mut |v| uses[v] += 1);
            visit::for_each_region(kind, &mut |r| {
                self.regions[r].results.iter().for_each(|v| uses[*v] += 1)
            });
        });
        uses
    }

    /// The sizes of the grid's axes in JAX order.
    pub fn grid_sizes(&self) -> Vec<u64> {
        self.grid.iter().map(|&a| self.axes[a].size).collect()
    }

    /// The sizes of the cluster's axes in JAX order.
    pub fn cluster_sizes(&self) -> Vec<u64> {
        self.cluster.iter().map(|&a| self.axes[a].size).collect()
    }

    /// Blocks in a cluster.
    pub fn cluster_size(&self) -> u64 {
        self.cluster_sizes().iter().product()
    }

    /// Calls `f` on every op in the kernel's body, outer ops before those inside them, in program order.
    pub fn for_each_op(&self, f: &mut dyn FnMut(Op)) {
        self.for_each_op_in(self.body, f);
    }

    /// The regions that are part of the kernel, outer ones first: what passes have taken out of it is still in `regions`.
    pub fn live_regions(&self) -> Vec<Region> {
        let mut found = vec![self.body];
        self.for_each_op(&mut |op| visit::for_each_region(&self.ops[op].kind, &mut |r| found.push(r)));
        found
    }

    /// The same for ops that are lowered, which those of loops that never run are not; up to the first error, which is one of its op.
    pub fn try_for_each_op(&self, f: &mut dyn FnMut(Op) -> Result<()>) -> Result<()> {
        self.try_for_each_op_in(self.body, f)
    }

    fn try_for_each_op_in(&self, region: Region, f: &mut dyn FnMut(Op) -> Result<()>) -> Result<()> {
        for &op in &self.regions[region].ops {
            let OpData { kind, loc, .. } = &self.ops[op];
            f(op).map_err(|e| e.at(*loc))?;
            if let OpKind::For { lower, upper, .. } = kind
                && let (Some(lower), Some(upper)) = (self.facts(*lower).as_constant(), self.facts(*upper).as_constant())
                && lower == upper
            {
                continue;
            }
            let mut result = Ok(());
            visit::for_each_region(kind, &mut |r| {
                if result.is_ok() {
                    result = self.try_for_each_op_in(r, f);
                }
            });
            result?;
        }
        Ok(())
    }

    /// The same for one region.
    pub fn for_each_op_in(&self, region: Region, f: &mut dyn FnMut(Op)) {
        self.regions[region]
            .ops
            .iter()
            .for_each(|op| self.for_each_op_of(*op, f));
    }

    /// Whether any warpgroup ever sets its count of registers.
    pub fn sets_registers(&self) -> bool {
        let mut any = false;
        self.for_each_op(&mut |op| any |= matches!(self.ops[op].kind, OpKind::SetMaxRegisters { .. }));
        any
    }

    /// Whether users' own instructions may do something to memory and its order, or barriers have phases and arrivals of their counting:
    /// then nothing is known of who waits for whom.
    pub fn has_instructions(&self) -> bool {
        let mut found = false;
        self.for_each_op(&mut |op| {
            let kind = &self.ops[op].kind;
            found |= matches!(kind.class(), Class::Instructions) || by_hand(kind).is_some();
        });
        found
    }

    /// Barriers whose phases, arrivals or bytes the author counts: no analysis knows more of them than what it sees.
    pub fn barriers_by_hand(&self) -> SecondaryMap<Alloc, bool> {
        let mut found = SecondaryMap::new();
        self.for_each_op(&mut |op| {
            let kind = &self.ops[op].kind;
            if let Some(barrier) = by_hand(kind) {
                found[barrier.alloc] = true;
            } else if let OpKind::InlinePtx { refs, .. } = kind {
                for r in refs.iter().filter(|r| r.elem == Elem::Barrier) {
                    found[r.alloc] = true;
                }
            }
        });
        found
    }

    /// Whether anything is multiplied on the tensor cores.
    pub fn multiplies(&self) -> bool {
        self.ops.values().any(|op| op.kind.is_product())
    }

    /// Whether there are products in an op's regions.
    pub fn multiplies_within(&self, op: Op) -> bool {
        let mut found = false;
        visit::for_each_region(&self.ops[op].kind, &mut |r| {
            self.for_each_op_in(r, &mut |op| found |= self.ops[op].kind.is_product());
        });
        found
    }

    /// The same for one op, itself first.
    pub fn for_each_op_of(&self, op: Op, f: &mut dyn FnMut(Op)) {
        f(op);
        visit::for_each_region(&self.ops[op].kind, &mut |r| self.for_each_op_in(r, f));
    }
}

/// The low bits of an integer in a type of `dtype`'s width.
pub fn int_bits(dtype: DType, x: impl Into<i128>) -> u64 {
    let x = x.into();
    match dtype {
        DType::Bool => u64::from(x != 0),
        _ if dtype.bits() >= 64 => x as u64,
        _ => x as u64 & ((1u64 << dtype.bits()) - 1),
    }
}

/// The integer that the low bits stand for in `dtype` (bool: 0 or 1; floats: `None`).
pub fn bits_int(dtype: DType, bits: u64) -> Option<i128> {
    match dtype {
        DType::Bool => Some(i128::from(bits & 1)),
        d if d.is_int() => Some(arithmetic::wrap(d, bits.into())),
        _ => None,
    }
}

/// The barrier of an op that counts by its author's numbers, or that a peer makes.
fn by_hand(kind: &OpKind) -> Option<&RefUse> {
    if let OpKind::AsyncStoreSmem { barrier, .. }
    | OpKind::MbarrierArrive { barrier, .. }
    | OpKind::MbarrierExpect { barrier, .. }
    | OpKind::MbarrierWait { barrier, .. } = kind
    {
        Some(barrier)
    } else {
        None
    }
}
