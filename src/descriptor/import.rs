//! The kernel, its parameters, and the walk over regions.
use super::decode::{damaged, decode_kernel, newer};
use super::op_reader::OpReader;
use super::proto;
use super::remedies::instead_of;
use super::types::{array_type, shape};
use super::{arrays, control, memory, types};
use crate::error::{Error, Loc, RefId, Result};
use crate::kernel_ir::*;
use cranelift_entity::PrimaryMap;

/// Decodes, checks and imports a kernel descriptor.
pub fn import(bytes: &[u8]) -> Result<Kernel> {
    let descriptor = decode_kernel(bytes)?;
    let mut importer = Importer::new(&descriptor)?;
    importer.params(&descriptor)?;
    let body = required(&descriptor.body, "the kernel descriptor", "body")?;
    let region = importer.kernel.body;
    if !body.results.is_empty() {
        return Err(damaged("the kernel's body has results"));
    }
    importer.ops(&body.ops, region)?;
    if importer.next_op as usize != importer.num_ops + 1 {
        return Err(damaged("op ids are not dense"));
    }
    Ok(importer.kernel)
}

/// A message field that must be there.
pub fn required<'a, T>(field: &'a Option<T>, message: &str, name: &str) -> Result<&'a T> {
    field
        .as_ref()
        .ok_or_else(|| damaged(format!("{message} has no `{name}`")))
}

/// What a descriptor's value id stands for.
#[derive(Clone)]
pub enum Binding {
    /// Not defined yet.
    Free,
    Value(Value),
    /// A reference, as a use without user transforms.
    Ref(RefUse),
    /// Defined, but in a region that has ended.
    OutOfScope,
}

pub struct Importer {
    pub kernel: Kernel,
    /// By descriptor value id; entry 0 is unused.
    bindings: Vec<Binding>,
    /// Ids in order of definition: what a region's end takes out of scope.
    defined: Vec<u32>,
    /// (descriptor axis id, axis).
    axes: Vec<(u32, Axis)>,
    /// Of the warp region that is being imported.
    pub warp_axis: Option<Axis>,
    /// The id that the next op must have.
    next_op: u32,
    num_ops: usize,
}

impl Importer {
    fn new(d: &proto::KernelDescriptor) -> Result<Importer> {
        let mut counts = Counts::default();
        if let Some(body) = &d.body {
            counts.region(body);
        }
        let semantics = required(&d.semantics, "the kernel descriptor", "semantics")?;
        let lowering = match proto::LoweringSemantics::try_from(semantics.lowering) {
            Ok(proto::LoweringSemantics::Lane) => LoweringSemantics::Lane,
            Ok(proto::LoweringSemantics::Warpgroup) => LoweringSemantics::Warpgroup,
            Ok(proto::LoweringSemantics::Unspecified) => return Err(damaged("no lowering semantics")),
            Err(_) => return Err(newer("lowering semantics")),
        };
        let params = d.compiler_params.clone().unwrap_or_default();
        let fp_contract = match proto::FpContract::try_from(params.fp_contract) {
            Ok(proto::FpContract::Unspecified | proto::FpContract::On) => FpContract::On,
            Ok(proto::FpContract::Off) => FpContract::Off,
            Err(_) => return Err(newer("`fp_contract`")),
        };
        if d.num_threads == 0 {
            return Err(damaged("a kernel of no threads"));
        }
        let mut kernel = Kernel::empty(d.name.clone(), d.num_threads);
        kernel.semantics = Semantics {
            false_predicate_suppresses_arrival: semantics.false_predicate_suppresses_arrival,
            tensor_core_barrier_tracks_copies: semantics.tensor_core_barrier_tracks_copies,
            leader_tracked_last_axis_only: semantics.leader_tracked_last_axis_only,
            lowering,
        };
        kernel.compiler_params = CompilerParams {
            approx_math: params.approx_math,
            accumulate_products: params.accumulate_products || params.approx_math,
            unsafe_no_auto_barriers: params.unsafe_no_auto_barriers,
            reduction_scratch_bytes: params.reduction_scratch_bytes,
            skip_device_barrier: params.skip_device_barrier,
            is_multi_process: params.is_multi_process,
            fp_contract,
            quotients: if params.precise_division {
                Quotients::Rounded
            } else {
                Quotients::Full
            },
            target: params.target,
            wait_timeout_ns: params.wait_timeout_ns,
            profile_space: params.profile_space,
            // Whoever finds no room never writes: there is nothing to choose.
            profile_scope: match params.profile_warps {
                false => ProfileScope::Warpgroup,
                true => ProfileScope::Warp,
            },
            every_lane_arrives: false,
        };
        kernel.values = PrimaryMap::with_capacity(counts.values + counts.ops);
        kernel.ops = PrimaryMap::with_capacity(counts.ops * 2);
        let mut importer = Importer {
            kernel,
            bindings: vec![Binding::Free; counts.values + 1],
            defined: Vec::with_capacity(counts.values),
            axes: vec![],
            warp_axis: None,
            next_op: 1,
            num_ops: counts.ops,
        };
        for (i, axis) in d.grid.iter().enumerate() {
            let axis = importer.add_axis(axis.id, &axis.name, axis.size, AxisKind::Grid(i as u32))?;
            importer.kernel.grid.push(axis);
        }
        for (i, axis) in d.cluster.iter().enumerate() {
            let axis = importer.add_axis(axis.id, &axis.name, axis.size, AxisKind::Cluster(i as u32))?;
            importer.kernel.cluster.push(axis);
        }
        if d.thread_axis != 0 {
            let size = u64::from(d.num_threads);
            let axis = importer.add_axis(d.thread_axis, "", size, AxisKind::Thread)?;
            importer.kernel.thread_axis = Some(axis);
        } else if d.num_threads > 1 {
            return Err(damaged("several threads without a thread axis"));
        }
        for (i, axis) in d.device_mesh.iter().enumerate() {
            let axis = importer.add_axis(axis.id, &axis.name, axis.size, AxisKind::DeviceMesh(i as u32))?;
            importer.kernel.device_mesh.push(axis);
        }
        let devices = d
            .device_mesh
            .iter()
            .try_fold(1u64, |n, axis| n.checked_mul(axis.size.max(1)));
        if devices.is_none_or(|n| n >= 1 << 31) {
            return Err(damaged("a device mesh of too many devices"));
        }
        if d.device_mesh.iter().any(|axis| axis.size == 0) {
            return Err(damaged("a device mesh of no devices"));
        }
        Ok(importer)
    }

    /// Adds an axis with a descriptor id that is not in use.
    pub fn add_axis(&mut self, id: u32, name: &str, size: u64, kind: AxisKind) -> Result<Axis> {
        if id == 0 || self.axes.iter().any(|&(other, _)| other == id) {
            return Err(damaged(format!("axis id {id} is zero or taken")));
        }
        let axis = self.kernel.axes.push(AxisData {
            name: name.to_string(),
            size,
            kind,
        });
        self.axes.push((id, axis));
        Ok(axis)
    }

    /// The axis with this descriptor id.
    pub fn axis(&self, id: u32) -> Result<Axis> {
        let found = self.axes.iter().find(|&&(other, _)| other == id);
        found
            .map(|&(_, axis)| axis)
            .ok_or_else(|| damaged(format!("axis id {id} is not defined")))
    }

    fn params(&mut self, d: &proto::KernelDescriptor) -> Result<()> {
        let body = required(&d.body, "the kernel descriptor", "body")?;
        if body.params.len() != d.params.len() {
            return Err(damaged("the kernel's parameters and its body's differ in number"));
        }
        for (i, (param, value)) in d.params.iter().zip(&body.params).enumerate() {
            if param.r#type != value.r#type {
                return Err(damaged(format!(
                    "parameter {i} and the body's parameter differ in type"
                )));
            }
            let ty = required(&param.r#type, "a parameter", "type")?;
            let role = match proto::param::Role::try_from(param.role) {
                Ok(proto::param::Role::Unspecified) => return Err(damaged(format!("parameter {i} has no role"))),
                Ok(role) => role,
                Err(_) => return Err(newer(format!("the role of parameter {i}"))),
            };
            if param.aliased_output != 0 && role != proto::param::Role::Mutable {
                return Err(damaged(format!("parameter {i} is aliased but not mutable")));
            }
            let kind = required(&ty.kind, "a type", "kind")?;
            let (role, binding, ty) = match (role, kind) {
                (proto::param::Role::Scalar, proto::r#type::Kind::Array(array)) => {
                    let ty = array_type(array).map_err(|e| e.at(Loc::CALL_SITE))?;
                    if !ty.is_scalar() {
                        return Err(damaged(format!("parameter {i} is a scalar of shape {:?}", ty.shape())));
                    }
                    let v = self.kernel.new_value(ty.clone(), Group::Warpgroup);
                    let region = self.kernel.body;
                    self.kernel.regions[region].params.push(v);
                    self.define(value.id, Binding::Value(v))?;
                    (ParamRole::Scalar, ParamBinding::Scalar(v), ty)
                }
                (proto::param::Role::Scalar, _) | (_, proto::r#type::Kind::Array(_)) => {
                    return Err(damaged(format!("parameter {i}'s role and type do not fit")));
                }
                (role, proto::r#type::Kind::Ref(r)) => {
                    let origin = GmemOrigin::Param(i as u32);
                    let data = self.alloc_data(r, origin, true, Loc::CALL_SITE)?;
                    let dtype = match (&data.kind, role) {
                        (AllocKind::Gmem { dtype, .. }, _) => *dtype,
                        (AllocKind::Semaphore { .. }, proto::param::Role::Mutable) => crate::dtype::DType::I32,
                        _ => return Err(damaged(format!("parameter {i} is no reference to GMEM"))),
                    };
                    let ty = Type::of(dtype, data.shape.clone());
                    let role = match role {
                        proto::param::Role::Input => ParamRole::Input,
                        proto::param::Role::Output => ParamRole::Output { alias_of: None },
                        proto::param::Role::Mutable => ParamRole::Mutable,
                        proto::param::Role::Scalar | proto::param::Role::Unspecified => unreachable!("handled above"),
                    };
                    let alloc = self.kernel.allocs.push(data);
                    self.define_alloc(value.id, alloc)?;
                    (role, ParamBinding::Alloc(alloc), ty)
                }
            };
            self.kernel.params.push(ParamData { role, binding, ty });
        }
        for (i, param) in d.params.iter().enumerate().filter(|(_, p)| p.aliased_output != 0) {
            let output = param.aliased_output as usize - 1;
            let mutable = self.kernel.params[i].clone();
            match self.kernel.params.get_mut(output) {
                Some(out)
                    if out.role == (ParamRole::Output { alias_of: None })
                        && out.ty == mutable.ty
                        && matches!(self.kernel.allocs[alloc_of(&mutable)].kind, AllocKind::Gmem { .. }) =>
                {
                    out.role = ParamRole::Output {
                        alias_of: Some(i as u32),
                    };
                    out.binding = mutable.binding;
                    // The body must not use the output: its value id refers to the same memory in any case.
                    let base = self.base_use(alloc_of(&mutable));
                    self.bindings[body.params[output].id as usize] = Binding::Ref(base);
                }
                _ => {
                    return Err(damaged(format!("parameter {i} is aliased with parameter {output}"))
                        .expected("an output of the same type that no other parameter is aliased with"));
                }
            }
        }
        Ok(())
    }

    /// The allocation that a ref type describes.
    pub fn alloc_data(&self, r: &proto::RefType, origin: GmemOrigin, collective: bool, loc: Loc) -> Result<AllocData> {
        use proto::ref_type::Element;
        let space = match proto::Space::try_from(r.space) {
            Ok(proto::Space::Unspecified) => return Err(damaged("a reference without a memory space")),
            Ok(space) => space,
            Err(_) => return Err(newer("a memory space")),
        };
        let element = required(&r.element, "a reference type", "element")?;
        let kind = match (space, element) {
            (proto::Space::Gmem, Element::Dtype(d)) => AllocKind::Gmem {
                dtype: types::dtype(*d)?,
                origin,
            },
            (proto::Space::Smem, Element::Dtype(d)) => AllocKind::Smem {
                dtype: types::dtype(*d)?,
                transforms: None,
            },
            (proto::Space::Tmem, Element::Dtype(d)) => AllocKind::Tmem {
                dtype: types::dtype(*d)?,
                layout: r.tmem_layout.as_ref().map(types::layout).transpose()?,
                collective_mma: r.tmem_collective,
            },
            (proto::Space::Regs, Element::Dtype(d)) => AllocKind::Register {
                dtype: types::dtype(*d)?,
                accumulator: r.accumulator,
            },
            (proto::Space::Smem, Element::Barrier(b)) => AllocKind::Barrier {
                num_arrivals: b.num_arrivals,
                orders_tensor_core: b.orders_tensor_core,
                cluster: None,
            },
            (proto::Space::Smem, Element::ClusterBarrier(b)) => AllocKind::Barrier {
                num_arrivals: b.num_arrivals,
                orders_tensor_core: b.orders_tensor_core,
                cluster: Some(ClusterBarrier {
                    collective_axes: b
                        .collective_axes
                        .iter()
                        .map(|axes| {
                            axes.ids
                                .iter()
                                .map(|&id| self.cluster_axis(id))
                                .collect::<Result<Vec<_>>>()
                        })
                        .collect::<Result<_>>()?,
                    leader_tracked: b.leader_tracked,
                }),
            },
            (proto::Space::Gmem, Element::Semaphore(s)) => {
                match proto::semaphore_type::Kind::try_from(s.kind) {
                    Ok(proto::semaphore_type::Kind::Regular) => {}
                    Ok(proto::semaphore_type::Kind::Barrier | proto::semaphore_type::Kind::Dma) => {
                        return Err(Error::unsupported("DMA and barrier semaphores")
                            .at(loc)
                            .remedy("plgpu.SemaphoreType.REGULAR, or plgpu.Barrier for copies"));
                    }
                    Err(_) => return Err(newer("a kind of semaphore")),
                }
                AllocKind::Semaphore { origin }
            }
            _ => return Err(damaged("a reference's memory space and element do not fit")),
        };
        if let AllocKind::Barrier { num_arrivals, .. } = kind
            && !(1..=1 << 12).contains(&num_arrivals)
        {
            return Err(Error::invalid("a barrier's number of arrivals")
                .at(loc)
                .expected("num_arrivals from 1 to 4096: one for each warpgroup (or warp) that arrives")
                .got(num_arrivals.to_string())
                .remedy("count the barrier_arrive calls of one phase"));
        }
        let shape = match kind {
            AllocKind::Register { .. } => types::computed(&r.shape)?,
            AllocKind::Gmem { .. } | AllocKind::Semaphore { .. } => shape(&r.shape)?,
            AllocKind::Smem { .. }
            | AllocKind::SmemUnion
            | AllocKind::Barrier { .. }
            | AllocKind::Tmem { .. }
            | AllocKind::TmemUnion => types::on_chip(&r.shape)?,
        };
        Ok(AllocData {
            kind,
            shape,
            collective,
            within: None,
            owner: Owner::Author,
            loc,
        })
    }

    /// The axis with this id, which must be one of the cluster.
    pub fn cluster_axis(&self, id: u32) -> Result<Axis> {
        let axis = self.axis(id)?;
        let (got, remedy) = match self.kernel.axes[axis].kind {
            AxisKind::Cluster(_) => return Ok(axis),
            AxisKind::Grid(_) => ("an axis of the grid", "move the axis from grid= to cluster="),
            AxisKind::Thread => ("the thread axis", "name axes of cluster="),
            AxisKind::Warp => ("the warp axis", "name axes of cluster="),
            AxisKind::DeviceMesh(_) => ("an axis of the device mesh", "name axes of cluster="),
        };
        let what = match &self.kernel.axes[axis].name[..] {
            "" => "a collective axis".to_owned(),
            name => format!("the collective axis {name:?}"),
        };
        Err(Error::invalid(what)
            .expected("an axis of the cluster (cluster_names=)")
            .got(got)
            .remedy(format!(
                "{remedy}: only blocks of one cluster can share a copy or a barrier"
            )))
    }

    /// The whole of an allocation.
    pub fn base_use(&self, alloc: Alloc) -> RefUse {
        self.kernel.whole(alloc)
    }

    /// Defines a value id.
    pub fn define(&mut self, id: u32, binding: Binding) -> Result<()> {
        match self.bindings.get_mut(id as usize) {
            Some(slot @ Binding::Free) if id != 0 => {
                *slot = binding;
                self.defined.push(id);
                Ok(())
            }
            _ => Err(damaged(format!("value id {id} is out of range or defined twice"))),
        }
    }

    pub fn define_alloc(&mut self, id: u32, alloc: Alloc) -> Result<()> {
        self.kernel.refs[alloc] = RefId(id);
        let base = self.base_use(alloc);
        self.define(id, Binding::Ref(base))
    }

    /// What a value id stands for here.
    pub fn binding(&self, id: u32) -> Result<&Binding> {
        match self.bindings.get(id as usize) {
            None | Some(Binding::Free) => Err(damaged(format!("value id {id} is used before its definition"))),
            Some(Binding::OutOfScope) => Err(damaged(format!("value id {id} is used outside of its region"))),
            Some(binding) => Ok(binding),
        }
    }

    /// Runs `f`; what it defined is out of scope afterwards.
    pub fn scoped<T>(&mut self, f: impl FnOnce(&mut Importer) -> Result<T>) -> Result<T> {
        let mark = self.defined.len();
        let result = f(self)?;
        for id in self.defined.drain(mark..) {
            self.bindings[id as usize] = Binding::OutOfScope;
        }
        Ok(result)
    }

    /// Defines a region's parameters as new values of `region`.
    pub fn region_params(&mut self, params: &[proto::Value], region: Region) -> Result<()> {
        let group = self.kernel.regions[region].group;
        for p in params {
            let ty = value_type(p)?;
            let v = self.kernel.new_value(ty, group);
            self.kernel.regions[region].params.push(v);
            self.define(p.id, Binding::Value(v))?;
        }
        Ok(())
    }

    /// A descriptor region as a region of the kernel: parameters, ops, results.
    pub fn region(&mut self, r: &proto::Region, group: Group, loc: Loc) -> Result<Region> {
        let region = self.kernel.new_region(group);
        self.fill(r, region, loc)?;
        Ok(region)
    }

    /// The same into a region of the kernel, behind what is there.
    pub fn fill(&mut self, r: &proto::Region, region: Region, loc: Loc) -> Result<()> {
        self.scoped(|this| {
            this.region_params(&r.params, region)?;
            this.ops(&r.ops, region)?;
            let results = this.operands_as_values(&r.results, region, loc)?;
            this.kernel.regions[region].results = results;
            Ok(())
        })
    }

    pub fn operands_as_values(&mut self, operands: &[proto::Operand], region: Region, loc: Loc) -> Result<Vec<Value>> {
        operands.iter().map(|o| self.value(o, region, loc)).collect()
    }

    /// Imports ops to the end of `region`.
    pub fn ops(&mut self, ops: &[proto::Op], region: Region) -> Result<()> {
        for op in ops {
            let loc = Loc(op.id);
            if op.id != self.next_op {
                return Err(damaged(format!("op id {} where {} is due", op.id, self.next_op)));
            }
            self.next_op += 1;
            self.op(op, region).map_err(|e| e.at(loc))?;
        }
        Ok(())
    }

    fn op(&mut self, op: &proto::Op, region: Region) -> Result<()> {
        let mut reader = OpReader::new(self, op, region)?;
        let known = arrays::import(&mut reader)? || control::import(&mut reader)? || memory::import(&mut reader)?;
        if !known {
            return Err(
                Error::unsupported(format!("the primitive `{}`", op.primitive)).remedy(instead_of(&op.primitive))
            );
        }
        reader.finish()
    }
}

/// The type of a value that must not be a reference.
pub fn value_type(v: &proto::Value) -> Result<Type> {
    match v.r#type.as_ref().and_then(|t| t.kind.as_ref()) {
        Some(proto::r#type::Kind::Array(a)) => array_type(a),
        Some(proto::r#type::Kind::Ref(_)) => Err(damaged(format!("value {} is a reference", v.id))),
        None => Err(damaged(format!("value {} has no type", v.id))),
    }
}

fn alloc_of(param: &ParamData) -> Alloc {
    match param.binding {
        ParamBinding::Alloc(alloc) => alloc,
        ParamBinding::Scalar(_) => unreachable!("mutable parameters are references"),
    }
}

/// How many ops and values a descriptor has; ids are dense, so tables of that size hold them.
#[derive(Default)]
struct Counts {
    ops: usize,
    values: usize,
}

impl Counts {
    fn region(&mut self, r: &proto::Region) {
        self.values += r.params.len();
        for op in &r.ops {
            self.ops += 1;
            self.values += op.results.len();
            for region in &op.regions {
                self.region(region);
            }
        }
    }
}
