//! Scopes, calls and control flow; ids; hints to the compiler, reports to the user.
use super::decode::{damaged, newer};
use super::import::{Binding, Importer, required};
use super::op_reader::{OpReader, imports};
use super::proto;
use super::refs::{swizzle, untiled};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_ir::*;

/// Imports the op if it is one of these; false if it is not.
pub fn import(r: &mut OpReader<'_>) -> Result<bool> {
    imports! { r,
        "axis_index"(0) => OpKind::AxisIndex { axis: axis(r)? };
        "program_id"(0) => OpKind::AxisIndex { axis: grid_axis(r)? };
        "delay"(1) => OpKind::Delay { nanos: r.value(0)? };
        "set_max_registers"(0) => OpKind::SetMaxRegisters { action: register_action(r)?, n: r.count("n")? };
        "griddepcontrol_wait"(0) => OpKind::GridDependency { action: GridDependencyAction::Wait };
        "griddepcontrol_launch_dependents"(0) => OpKind::GridDependency { action: GridDependencyAction::LaunchDependents };
        others: {
            "run_scoped"(0) => run_scoped(r);
            "run_state" => run_state(r);
            "get_global"(0) => get_global(r);
            "call"(0) ignoring "name" => call(r);
            "warp_map"(0) => warp_map(r);
            "scan" => scan(r);
            "while" => while_loop(r);
            "cond"(1) => cond(r);
            "num_programs"(0) => num_programs(r);
            // Within a launch all prints are in order.
            "debug_print" ignoring "ordered", "partitioned" => debug_print(r);
            "profile_mark"(0) => profile_mark(r);
            "check" ignoring "messages" => check(r);
            "print_layout"(1) => print_layout(r);
            "inline_mgpu"(0) ignoring "arg_layouts", "result_layouts" => inline_mgpu(r);
            "inline_ptx" => inline_ptx(r);
        }
    }
}

/// The axis that the attribute names.
fn axis(r: &mut OpReader<'_>) -> Result<Axis> {
    let [id] = r.axis_ids("axis")? else {
        return Err(r.damaged("one axis is due"));
    };
    r.importer.axis(*id)
}

fn grid_axis(r: &mut OpReader<'_>) -> Result<Axis> {
    let rank = r.importer.kernel.grid.len();
    let i = r.dim("axis", rank)?;
    Ok(r.importer.kernel.grid[i as usize])
}

fn num_programs(r: &mut OpReader<'_>) -> Result<()> {
    let axis = grid_axis(r)?;
    let size = r.importer.kernel.axes[axis].size;
    let v = r.importer.kernel.append_int(r.region, DType::I32, size as i64, r.loc);
    r.results(&[v])
}

fn register_action(r: &mut OpReader<'_>) -> Result<RegisterAction> {
    let action = r.member("action", RegisterAction::from_name)?;
    action.ok_or_else(|| r.damaged("no action"))
}

fn print_layout(r: &mut OpReader<'_>) -> Result<()> {
    let format = r.optional_text("fmt")?.unwrap_or("{}").to_string();
    let what = match r.is_ref(0) {
        true => PrintLayoutOf::Ref(r.data_ref(0)?),
        false => PrintLayoutOf::Value(r.value(0)?),
    };
    r.declared(OpKind::PrintLayout { what, format })
}

/// What the transforms of `run_scoped`'s attribute make of a physical shape, as steps of a use. A use has those from a transposition
/// on as a view of its own.
fn allocation_steps(list: &proto::TransformList, physical: &[u64]) -> Result<Option<SmemTransforms>> {
    use proto::transform::Kind;
    let mut transforms = SmemTransforms::default();
    let mut is_transposed = false;
    for t in &list.transforms {
        match &t.kind {
            Some(Kind::Identity(_)) => {}
            Some(Kind::Unswizzle(_) | Kind::Swizzle(_)) if is_transposed => {
                return Err(
                    Error::unsupported("a swizzle in front of a transposition of an allocation")
                        .expected("plgpu.SwizzleTransform as the last one: rows in memory are swizzled")
                        .remedy("transposition and tiling first, in either order, then the swizzle"),
                );
            }
            Some(Kind::Unswizzle(s)) => transforms.swizzle_bytes = swizzle(s.bytes)?,
            Some(Kind::Swizzle(s)) => transforms.swizzle_bytes = swizzle(s.bytes)?,
            Some(Kind::Transpose(_)) => is_transposed = true,
            Some(Kind::Untile(_)) if is_transposed => {}
            Some(Kind::Untile(t)) if transforms.tiling.is_empty() => {
                untiled(physical, &t.tiling)?;
                transforms.tiling = t.tiling.iter().copied().collect();
            }
            _ => {
                return Err(Error::unsupported("this transform of a scratch allocation")
                    .expected("one tiling at most, transpositions, and a swizzle at the end")
                    .remedy("use plgpu.TilingTransform, TransposeTransform and plgpu.SwizzleTransform; reshape and index the reference where it is used"));
            }
        }
    }
    Ok(if list.transforms.is_empty() {
        None
    } else {
        Some(transforms)
    })
}

/// Whether an allocation over these axes is one for the whole block.
fn collective(r: &OpReader<'_>, ids: &[u32]) -> Result<bool> {
    match ids {
        [] => Ok(r.importer.kernel.num_warpgroups == 1),
        [id] if Some(r.importer.axis(*id)?) == r.importer.kernel.thread_axis => Ok(true),
        _ => Err(Error::unsupported("`run_scoped` over axes other than the thread axis")
            .remedy("name the thread axis alone in collective_axes")),
    }
}

fn run_scoped(r: &mut OpReader<'_>) -> Result<()> {
    let [body] = r.regions()?;
    let ids = r.axis_ids("collective_axes")?;
    let shared = collective(r, ids)?;
    let lists = r.transforms("ref_transforms")?;
    if !lists.is_empty() && lists.len() != body.params.len() {
        return Err(r.damaged("`ref_transforms` for another number of allocations"));
    }
    let of_warp = r.group() == Group::Warp;
    if of_warp && !ids.is_empty() {
        return Err(
            Error::unsupported("scratch of several threads allocated inside of a warp region")
                .remedy("leave collective_axes out, and each warp has its own; or allocate it before the warp region"),
        );
    }
    let region = r.importer.kernel.new_region(r.group());
    let (loc, threads) = (r.loc, r.importer.kernel.num_warpgroups);
    let (allocs, results) = r.importer.scoped(|importer| {
        let mut allocs = vec![];
        for (i, param) in body.params.iter().enumerate() {
            let mut data = scratch(importer, param, shared, loc)?;
            if let (Some(list), AllocKind::Smem { transforms, .. }) = (lists.get(i), &mut data.kind) {
                *transforms = allocation_steps(list, &data.shape)?;
            }
            match data.kind {
                AllocKind::Register { .. } if !ids.is_empty() => {
                    return Err(Error::invalid("an accumulator shared by several threads")
                        .expected("an accumulator allocated without `collective_axes`")
                        .remedy("give each warpgroup its own accumulator, of its part of the rows"));
                }
                AllocKind::Register { accumulator: true, .. } if of_warp => {
                    return Err(Error::invalid("an accumulator allocated inside of a warp region")
                        .expected("plgpu.ACC outside of it: all four warps of a warpgroup issue a wgmma together")
                        .remedy("carry an array through the loop, and multiply by jnp.dot"));
                }
                AllocKind::Register { .. } => data.collective = false,
                AllocKind::Semaphore { .. } => {}
                _ if !shared && threads > 1 && !of_warp => {
                    return Err(
                        Error::invalid("memory or barriers of one thread in a kernel of several")
                            .expected("`collective_axes` = the thread axis")
                            .remedy("pass collective_axes to pl.run_scoped"),
                    );
                }
                _ => {}
            }
            if data.is_gmem() {
                let base = device_scratch(importer, data, shared && !of_warp, region, loc)?;
                importer.define(param.id, Binding::Ref(base))?;
                continue;
            }
            let alloc = importer.kernel.allocs.push(data);
            importer.define_alloc(param.id, alloc)?;
            allocs.push(alloc);
        }
        importer.ops(&body.ops, region)?;
        let results = importer.operands_as_values(&body.results, region, loc)?;
        Ok((allocs, results))
    })?;
    scope(r, allocs, !ids.is_empty(), region, results)
}

/// The allocation that a region's parameter stands for.
fn scratch(importer: &Importer, param: &proto::Value, collective: bool, loc: crate::error::Loc) -> Result<AllocData> {
    match param.r#type.as_ref().and_then(|t| t.kind.as_ref()) {
        Some(proto::r#type::Kind::Ref(t)) => {
            let data = importer.alloc_data(t, GmemOrigin::Scratch { global: false }, collective, loc)?;
            Ok(data)
        }
        _ => Err(damaged("scratch that is no reference")),
    }
}

/// A scratch array in device memory. Each block (where warpgroups don't share it: each warpgroup, in a warp region each warp) has its own: they are one array
/// with the owner as leading dimension, of which the use that is returned is a part.
fn device_scratch(
    importer: &mut Importer,
    mut data: AllocData,
    shared: bool,
    region: Region,
    loc: crate::error::Loc,
) -> Result<RefUse> {
    let kernel = &mut importer.kernel;
    let threads = kernel.thread_axis.filter(|_| !shared);
    let warps = importer
        .warp_axis
        .filter(|_| kernel.regions[region].group == Group::Warp);
    let axes: Vec<Axis> = kernel
        .grid
        .iter()
        .chain(&kernel.cluster)
        .copied()
        .chain(threads)
        .chain(warps)
        .collect();
    let own = data.shape.clone();
    let owners = axes.iter().try_fold(1u64, |n, a| n.checked_mul(kernel.axes[*a].size));
    let whole = owners.and_then(|n| own.iter().try_fold(n, |n, d| n.checked_mul(*d)));
    if owners.is_none_or(|n| n > i32::MAX as u64) || whole.is_none_or(|n| n > i32::MAX as u64) {
        return Err(Error::unsupported("a scratch array in device memory")
            .expected("fewer than 2^31 elements over all blocks")
            .got(format!(
                "{:?} in each of {} blocks",
                own.as_slice(),
                owners.unwrap_or(u64::MAX)
            ))
            .remedy("launch fewer blocks that take several parts each, or pass the array as a mutable argument"));
    }
    data.shape = std::iter::once(owners.unwrap_or(1))
        .chain(own.iter().copied())
        .collect();
    let mut owner = kernel.append_int(region, DType::I32, 0, loc);
    let scalar = Type::Scalar(DType::I32);
    for axis in axes {
        let size = kernel.axes[axis].size as i64;
        let size = kernel.append_int(region, DType::I32, size, loc);
        let index = kernel.append1(region, OpKind::AxisIndex { axis }, scalar.clone(), loc);
        let rows = |op, a, b| OpKind::Binary { op, a, b };
        let scaled = kernel.append1(region, rows(BinaryOp::Mul, owner, size), scalar.clone(), loc);
        owner = kernel.append1(region, rows(BinaryOp::Add, scaled, index), scalar.clone(), loc);
    }
    let alloc = kernel.allocs.push(data);
    let mut base = kernel.whole(alloc);
    let mut dims = vec![DimIndex::At(Index::Value(owner))];
    dims.extend(own.iter().map(|n| DimIndex::all(*n)));
    base.steps = vec![Step::Index(dims)];
    base.shape = own;
    Ok(base)
}

/// Ends a scope: its op, whose results are the region's.
fn scope(r: &mut OpReader<'_>, allocs: Vec<Alloc>, collective: bool, body: Region, results: Vec<Value>) -> Result<()> {
    r.importer.kernel.regions[body].results = results;
    r.declared(OpKind::Scope {
        allocs,
        collective,
        body,
    })
}

/// Register references with initial values; their final values are the results.
fn run_state(r: &mut OpReader<'_>) -> Result<()> {
    let [body] = r.regions()?;
    if !body.results.is_empty() {
        return Err(r.damaged("the body has results"));
    }
    let mut inits = vec![];
    for i in 0..r.op.operands.len() {
        if r.is_ref(i) {
            r.reference(i)?;
        } else {
            inits.push(r.value(i)?);
        }
    }
    if inits.len() != body.params.len() {
        return Err(r.damaged("parameters for another number of values"));
    }
    let region = r.importer.kernel.new_region(r.group());
    let loc = r.loc;
    let (allocs, results) = r.importer.scoped(|importer| {
        let mut allocs = vec![];
        for (param, &value) in body.params.iter().zip(&inits) {
            let data = scratch(importer, param, false, loc)?;
            let ty = importer.kernel.ty(value);
            if !matches!(data.kind, AllocKind::Register { .. })
                || data.elem() != Elem::Data(ty.dtype())
                || data.shape.as_slice() != ty.shape()
            {
                return Err(damaged("`run_state`: a reference and its initial value do not fit"));
            }
            let alloc = importer.kernel.allocs.push(data);
            importer.define_alloc(param.id, alloc)?;
            let dst = importer.base_use(alloc);
            importer.kernel.append(region, OpKind::Store { dst, value }, [], loc);
            allocs.push(alloc);
        }
        importer.ops(&body.ops, region)?;
        let mut results = vec![];
        for (&alloc, &init) in allocs.iter().zip(&inits) {
            let src = importer.base_use(alloc);
            let ty = importer.kernel.ty(init).clone();
            results.push(importer.kernel.append1(region, OpKind::Load { src }, ty, loc));
        }
        Ok((allocs, results))
    })?;
    scope(r, allocs, false, region, results)
}

fn get_global(r: &mut OpReader<'_>) -> Result<()> {
    let Some(what) = r.optional_type("what")? else {
        return Err(r.damaged("`what` is missing"));
    };
    let Some(proto::r#type::Kind::Ref(t)) = &what.kind else {
        return Err(r.damaged("`what` is no reference"));
    };
    let data = r
        .importer
        .alloc_data(t, GmemOrigin::Scratch { global: true }, true, r.loc)?;
    if !matches!(data.kind, AllocKind::Semaphore { .. }) {
        return Err(Error::unsupported("global memory other than semaphores")
            .remedy("pass an array as an argument or an output of the kernel"));
    }
    let [result] = r.op.results.as_slice() else {
        return Err(r.damaged("one result is due"));
    };
    if result.r#type.as_ref() != Some(what) {
        return Err(r.damaged("a result of another type"));
    }
    let alloc = r.importer.kernel.allocs.push(data);
    r.importer.define_alloc(result.id, alloc)
}

/// The callee's ops take the op's place.
fn call(r: &mut OpReader<'_>) -> Result<()> {
    let [body] = r.regions()?;
    if !body.params.is_empty() {
        return Err(r.damaged("the body has parameters"));
    }
    let (region, loc) = (r.region, r.loc);
    let results = r.importer.scoped(|importer| {
        importer.ops(&body.ops, region)?;
        importer.operands_as_values(&body.results, region, loc)
    })?;
    r.results(&results)
}

fn warp_map(r: &mut OpReader<'_>) -> Result<()> {
    let [body] = r.regions()?;
    let [id] = r.axis_ids("axis")? else {
        return Err(r.damaged("one axis is due"));
    };
    if r.int_or("size", 4)? != 4 {
        return Err(Error::unsupported("warp regions of a size other than 4")
            .remedy("a warpgroup has four warps: plgpu.WarpMesh"));
    }
    if r.group() == Group::Warp {
        return Err(Error::unsupported("a warp region inside of a warp region")
            .remedy("branch on the warp's index instead of nesting"));
    }
    let axis = match r.importer.axis(*id) {
        Ok(axis) if r.importer.kernel.axes[axis].kind == AxisKind::Warp => axis,
        Ok(_) => return Err(r.damaged("an axis that is not one of warps")),
        Err(_) => r.importer.add_axis(*id, "", 4, AxisKind::Warp)?,
    };
    r.importer.warp_axis = Some(axis);
    let body = r.importer.region(body, Group::Warp, r.loc)?;
    r.importer.warp_axis = None;
    r.declared(OpKind::WarpMap {
        axis,
        inits: vec![],
        body,
    })
}

fn scan(r: &mut OpReader<'_>) -> Result<()> {
    let [body] = r.regions()?;
    let length = r.int("length")?;
    let num_carry = r.count("num_carry")? as usize;
    let reverse = r.bool_or("reverse", false)?;
    let unroll = r.int_or("unroll", 1)?;
    if !(0..i64::from(i32::MAX)).contains(&length) {
        return Err(Error::unsupported(format!("a scan of length {length}"))
            .expected("0 to 2^31 - 2 steps")
            .remedy("nest two loops"));
    }
    let mut inits = r.values_from(0)?;
    if num_carry > inits.len() || num_carry > r.op.results.len() {
        return Err(r.damaged("the number of carries"));
    }
    let xs = inits.split_off(num_carry);
    let unroll = u32::try_from(unroll).ok().filter(|&n| n >= 1);
    let unroll = unroll.ok_or_else(|| r.damaged("`unroll`"))?;
    let mut stacked: Vec<Type> = xs.iter().map(|x| r.ty(*x).clone()).collect();
    for i in num_carry..r.op.results.len() {
        stacked.push(r.result_type(i)?);
    }
    if stacked.iter().any(|ty| ty.shape().first() != Some(&(length as u64))) {
        return Err(r.damaged("an array of another length than the scan's"));
    }
    let region = r.importer.kernel.new_region(r.group());
    let counter = r.importer.kernel.new_value(Type::Scalar(DType::I32), r.group());
    r.importer.kernel.regions[region].params.push(counter);
    r.importer.fill(body, region, r.loc)?;
    let lower = r.importer.kernel.append_int(r.region, DType::I32, 0, r.loc);
    let upper = r.importer.kernel.append_int(r.region, DType::I32, length, r.loc);
    r.declared(OpKind::For {
        lower,
        upper,
        inits,
        xs,
        reverse,
        unroll,
        body: region,
    })
}

fn while_loop(r: &mut OpReader<'_>) -> Result<()> {
    let [cond, body] = r.regions()?;
    let inits = r.values_from(0)?;
    let cond = r.importer.region(cond, r.group(), r.loc)?;
    let body = r.importer.region(body, r.group(), r.loc)?;
    // JAX's condition only looks at the carries; ours hands them on.
    let passed = r.importer.kernel.regions[cond].params.clone();
    r.importer.kernel.regions[cond].results.extend(passed);
    r.declared(OpKind::While { inits, cond, body })
}

fn cond(r: &mut OpReader<'_>) -> Result<()> {
    let selector = r.value(0)?;
    let mut arms = vec![];
    for branch in &r.op.regions {
        arms.push(r.importer.region(branch, r.group(), r.loc)?);
    }
    r.declared(OpKind::Switch { selector, arms })
}

fn debug_print(r: &mut OpReader<'_>) -> Result<()> {
    let args = r.values_from(0)?;
    let mut format = r.text("fmt")?.to_string();
    let placeholders = r.bool_or("has_placeholders", false)?;
    if !placeholders {
        format = format.replace('{', "{{").replace('}', "}}");
        for _ in &args {
            format.push_str(" {}");
        }
    }
    text_format::parse(&format, args.len())?;
    r.declared(OpKind::DebugPrint {
        format,
        args,
        then: AfterPrint::GoesOn,
    })
}

fn profile_mark(r: &mut OpReader<'_>) -> Result<()> {
    let name = r.text("name")?.to_string();
    let edge = match r.bool_or("ends", false)? {
        false => ProfileEdge::Begins,
        true => ProfileEdge::Ends,
    };
    if r.importer.kernel.compiler_params.profile_space == 0 {
        return Err(r.damaged("a kernel without a profile"));
    }
    r.declared(OpKind::ProfileMark { name, edge })
}

/// A check that is not enabled is none.
fn check(r: &mut OpReader<'_>) -> Result<()> {
    let format = r.optional_text("fmt")?;
    if !r.bool_or("enabled", false)? {
        return r.results(&[]);
    }
    let failed = r.scalar(0, "a bool", |dtype| dtype == DType::Bool)?;
    let args = r.values_from(1)?;
    let format = format.unwrap_or("").to_string();
    text_format::parse(&format, args.len())?;
    let (group, loc) = (r.group(), r.loc);
    let kernel = &mut r.importer.kernel;
    let (holds, fails) = (kernel.new_region(group), kernel.new_region(group));
    let print = OpKind::DebugPrint {
        format,
        args,
        then: AfterPrint::Fails,
    };
    kernel.append(fails, print, [], loc);
    r.declared(OpKind::Switch {
        selector: failed,
        arms: vec![holds, fails],
    })
}

/// Three fences that JAX's own helpers write as inline PTX are ops of their own, which the compiler knows the meaning of.
fn fence_of(asm: &str) -> Option<FenceKind> {
    match asm.trim().trim_end_matches(';') {
        "fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster" => {
            Some(FenceKind::ProxyAsyncGenericAcquire)
        }
        "fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster" => {
            Some(FenceKind::ProxyAsyncGenericRelease)
        }
        "fence.proxy.async.shared::cta" => Some(FenceKind::ProxyAsyncSharedCta),
        _ => None,
    }
}

/// JAX's `inline_mgpu`, of which `inline_ptx` is one.
fn inline_mgpu(r: &mut OpReader<'_>) -> Result<()> {
    let function = r.text("function")?;
    let constants = r.optional_attrs("constants")?;
    let of_ptx = function == "inline_ptx.<locals>.ptx";
    let asm = constants.iter().find(|a| of_ptx && a.name == "asm");
    let asm = match asm.map(|a| required(&a.value, "a constant", "value")).transpose()? {
        Some(proto::attr::Value::Text(text)) => text,
        None => {
            return Err(Error::unsupported(format!("`inline_mgpu` of {function:?}"))
                .expected("inline PTX")
                .remedy("inline_mgpu builds MLIR, which smalt has none of: write it with plgpu and jax.numpy operations, or with smalt.inline_ptx"));
        }
        Some(_) => return Err(newer("the constant `asm` of `inline_mgpu`")),
    };
    match fence_of(asm) {
        Some(kind) => r.declared(OpKind::Fence { kind }),
        None => {
            let code = InlinePtx {
                text: asm.clone(),
                operands: vec![],
                pack: 1,
                once: false,
                loads_from: vec![],
                whole: None,
                barriers: None,
                called: None,
                unchecked: None,
                maps: vec![],
            };
            r.declared(inline(code, vec![], vec![]))
        }
    }
}

fn inline(code: InlinePtx, refs: Vec<RefUse>, args: Vec<Value>) -> OpKind {
    OpKind::InlinePtx {
        // Until it is read.
        does: Does::Acts,
        code: Box::new(code),
        refs,
        args,
    }
}

const MAX_INLINE_REFS: usize = 32;

fn inline_ptx(r: &mut OpReader<'_>) -> Result<()> {
    let text = r.text("text")?;
    let pack = r.int_or("pack", 1)?;
    let pack = u32::try_from(pack).map_err(|_| {
        Error::invalid("inline PTX: a `pack` of elements")
            .expected("a positive number")
            .got(pack.to_string())
            .remedy("pack=1 for one element in each register")
    })?;
    let (mut operands, mut refs, mut args) = (vec![], vec![], vec![]);
    for i in 0..r.op.operands.len() {
        if r.is_ref(i) {
            operands.push(InlineOperand::Ref(refs.len() as u32));
            refs.push(r.reference(i)?);
        } else {
            operands.push(InlineOperand::Value(args.len() as u32));
            args.push(r.value(i)?);
        }
    }
    if refs.len() > MAX_INLINE_REFS {
        return Err(Error::unsupported(format!("inline PTX of {} references", refs.len()))
            .expected(format!("at most {MAX_INLINE_REFS}"))
            .remedy("pass slices of one array, or split the text"));
    }
    let maps = maps(r, refs.len())?;
    operands.extend((0..maps.len()).map(|i| InlineOperand::Map(i as u32)));
    let types = (0..r.op.results.len())
        .map(|i| r.result_type(i))
        .collect::<Result<Vec<Type>>>()?;
    let whole = match r.bool_or("whole", false)? {
        true => Some(Box::new(whole(r, &args, &types, refs.len())?)),
        false => None,
    };
    let code = InlinePtx {
        text: text.to_string(),
        operands,
        pack,
        once: r.bool_or("once", false)?,
        loads_from: vec![],
        whole,
        barriers: barriers(r)?,
        called: r.optional_text("called")?.map(str::to_string),
        unchecked: match r.int_or("unchecked", 0)? {
            0 => None,
            isa => Some(u32::try_from(isa).map_err(|_| r.damaged("a negative PTX ISA"))?),
        },
        maps,
    };
    if code.once && code.whole.is_some() {
        return Err(r.damaged("a text that runs once a lane and in one lane"));
    }
    // What does not fit together is the user's mistake, found when the text is read.
    let results = r.emit(inline(code, refs, args), types);
    r.results(&results)
}

/// The tensor maps over a text's references.
fn maps(r: &mut OpReader<'_>, num_refs: usize) -> Result<Vec<InlineMap>> {
    let mut maps = vec![];
    for attr in r.optional_attrs("maps")? {
        let mut map = InlineMap {
            of: 0,
            element: DType::U8,
            dims: vec![],
            strides: vec![],
            box_dims: vec![],
            swizzle: 0,
        };
        let small = |n: &i64| u32::try_from(*n).map_err(|_| damaged("a negative number"));
        for field in fields(attr)? {
            match (field.name.as_str(), &field.value) {
                ("of", Some(proto::attr::Value::Int(n))) => map.of = small(n)?,
                ("element", Some(proto::attr::Value::Dtype(element))) => map.element = super::types::dtype(*element)?,
                ("dims", Some(proto::attr::Value::Ints(ints))) => map.dims = numbers(&ints.values)?,
                ("strides", Some(proto::attr::Value::Ints(ints))) => map.strides = numbers(&ints.values)?,
                ("box", Some(proto::attr::Value::Ints(ints))) => {
                    map.box_dims = ints.values.iter().map(small).collect::<Result<_>>()?;
                }
                ("swizzle", Some(proto::attr::Value::Int(n))) => map.swizzle = small(n)?,
                (name, _) => return Err(newer(format!("`{name}` of a tensor map"))),
            }
        }
        if map.of as usize >= num_refs || map.span().is_none() {
            return Err(damaged("a tensor map that there cannot be").got(format!("{map:?}")));
        }
        maps.push(map);
    }
    Ok(maps)
}

/// The first and last named barrier that a text may use by a number in a register.
fn barriers(r: &mut OpReader<'_>) -> Result<Option<(u32, u32)>> {
    let Some(ints) = r.optional_ints("barriers")? else {
        return Ok(None);
    };
    let &[first, last] = ints else {
        return Err(r.damaged("the first and the last barrier are due"));
    };
    let number = |n: i64| u32::try_from(n).map_err(|_| damaged("a negative barrier"));
    Ok(Some((number(first)?, number(last)?)))
}

/// What a text that runs once relies on: `arrays` of operands and then of results, `refs`.
fn whole(r: &mut OpReader<'_>, args: &[Value], results: &[Type], num_refs: usize) -> Result<Whole> {
    let mut arrays = r.optional_attrs("arrays")?.iter();
    let mut array = |ty: &Type| -> Result<Option<LaneArray>> {
        if ty.is_scalar() {
            return Ok(None);
        }
        let fields = fields(arrays.next().ok_or_else(|| damaged("fewer `arrays` than arrays"))?)?;
        let (mut layout, mut order) = (None, vec![]);
        for field in fields {
            match (field.name.as_str(), &field.value) {
                ("layout", Some(proto::attr::Value::Layout(l))) => layout = Some(super::types::layout(l)?),
                ("order", Some(proto::attr::Value::Ints(ints))) => order = numbers(&ints.values)?,
                (name, _) => return Err(newer(format!("`{name}` of an array"))),
            }
        }
        let layout = layout.ok_or_else(|| damaged("an array without its layout"))?;
        Ok(Some(LaneArray { layout, order }))
    };
    let of_args = args
        .iter()
        .map(|v| array(&r.importer.kernel.ty(*v).clone()))
        .collect::<Result<Vec<_>>>()?;
    let of_results = results.iter().map(&mut array).collect::<Result<Vec<_>>>()?;
    if arrays.next().is_some() {
        return Err(damaged("more `arrays` than arrays"));
    }
    let in_words = r.bool_or("words", false)?;
    let mut refs = match in_words {
        true => vec![None; num_refs],
        false => vec![],
    };
    for attr in r.optional_attrs("refs")? {
        let mut transforms = SmemTransforms::default();
        for field in fields(attr)? {
            match (field.name.as_str(), &field.value) {
                ("tiling", Some(proto::attr::Value::Ints(ints))) => {
                    transforms.tiling = numbers(&ints.values)?.into_iter().collect();
                }
                ("swizzle", Some(proto::attr::Value::Int(n))) => {
                    transforms.swizzle_bytes = match u32::try_from(*n).map_err(|_| damaged("a negative swizzle"))? {
                        0 => 0,
                        bytes => swizzle(bytes)?,
                    };
                }
                (name, _) => return Err(newer(format!("`{name}` of a reference"))),
            }
        }
        refs.push(Some(transforms));
    }
    if refs.len() != num_refs {
        return Err(damaged("as many `refs` as references are due"));
    }
    Ok(Whole {
        in_words,
        args: of_args,
        results: of_results,
        refs,
    })
}

fn fields(attr: &proto::Attr) -> Result<&[proto::Attr]> {
    match &attr.value {
        Some(proto::attr::Value::Attrs(fields)) => Ok(&fields.attrs),
        Some(_) | None => Err(damaged(format!("attributes are due in `{}`", attr.name))),
    }
}

fn numbers(values: &[i64]) -> Result<Vec<u64>> {
    let number = |n: &i64| u64::try_from(*n).map_err(|_| damaged("a negative number"));
    values.iter().map(number).collect()
}
