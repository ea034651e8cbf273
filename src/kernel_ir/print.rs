//! Kernels as text, for dumps and tests. [`parse`](super::parse) reads it.
//!
//! Scalar constants print where they are used (`64`, `0:u32`, `1.5:f32`) and have no line of their own. A trailing comment gives
//! the op of the descriptor, and what is known about an integer scalar: `// op7; 0..=63, multiple of 8`. Options print where they are
//! not those of [`Kernel::empty`]. What is not in the text: facts of regions' parameters, which [`facts`] computes, and where
//! allocations are from.
use super::entities::{Op, Region, Value};
use super::kernel::bits_int;
use super::types::{LayoutSpec, write_array};
use super::*;
use crate::dtype::DType;
use std::fmt::{self, Display, Formatter, Write};

impl Display for Kernel {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Kernel {
            name,
            stage,
            axes,
            grid,
            cluster,
            thread_axis,
            num_warpgroups,
            params,
            allocs,
            values: _,
            ops: _,
            regions: _,
            body,
            semantics,
            compiler_params: _,
            target: _,
            device_mesh: _,
            notes: _,
            refs: _,
        } = self;
        let lowering = match semantics.lowering {
            LoweringSemantics::Lane => "lane",
            LoweringSemantics::Warpgroup => "warpgroup",
        };
        let stage = match stage {
            Stage::Imported => "imported",
            Stage::Normalized => "normalized",
        };
        writeln!(
            f,
            "kernel {name:?} {stage}, {num_warpgroups} warpgroup(s), {lowering} semantics"
        )?;
        let options = options(self);
        if !options.is_empty() {
            writeln!(f, "options: {}", options.join(", "))?;
        }
        for (axis, data) in axes {
            let kind = match data.kind {
                AxisKind::Grid(i) => format!("grid {i}"),
                AxisKind::Cluster(i) => format!("cluster {i}"),
                AxisKind::Thread => "thread".to_string(),
                AxisKind::Warp => "warp".to_string(),
                AxisKind::DeviceMesh(i) => format!("device mesh {i}"),
            };
            writeln!(f, "{axis}: {kind}, size {}, {:?}", data.size, data.name)?;
        }
        assert!(grid.len() + cluster.len() + usize::from(thread_axis.is_some()) <= axes.len());
        for (i, param) in params.iter().enumerate() {
            let role = match param.role {
                ParamRole::Input => "input".to_string(),
                ParamRole::Output { alias_of: None } => "output".to_string(),
                ParamRole::Output { alias_of: Some(m) } => format!("output (is param{m})"),
                ParamRole::Scalar => "scalar".to_string(),
                ParamRole::Mutable => "mutable".to_string(),
            };
            match param.binding {
                ParamBinding::Alloc(alloc) => writeln!(f, "param{i}: {role} {alloc}")?,
                ParamBinding::Scalar(v) => {
                    write!(f, "param{i}: {role} {v}: {}", self.ty(v))?;
                    match self.values[v].group {
                        Group::Warpgroup => writeln!(f)?,
                        group => writeln!(f, " per {group}")?,
                    }
                }
            }
        }
        for (alloc, data) in allocs {
            write!(f, "{alloc}: ")?;
            write_alloc(f, data)?;
            writeln!(f)?;
        }
        writeln!(f, "{{")?;
        write_region_body(f, self, *body, 1)?;
        writeln!(f, "}}")
    }
}

/// `name value` of what is not as in an empty kernel.
fn options(kernel: &Kernel) -> Vec<String> {
    let plain = Kernel::empty("", 1);
    let Semantics {
        false_predicate_suppresses_arrival,
        tensor_core_barrier_tracks_copies,
        leader_tracked_last_axis_only,
        lowering: _,
    } = plain.semantics;
    let CompilerParams {
        approx_math,
        accumulate_products,
        unsafe_no_auto_barriers,
        reduction_scratch_bytes,
        skip_device_barrier,
        is_multi_process,
        fp_contract,
        quotients,
        target,
        wait_timeout_ns,
        profile_space,
        profile_scope,
        every_lane_arrives,
    } = plain.compiler_params;
    let (semantics, params) = (kernel.semantics, &kernel.compiler_params);
    let mut options = vec![];
    let mut option = |differs: bool, text: String| {
        if differs {
            options.push(text);
        }
    };
    macro_rules! plain {
        ($of:expr, $($name:ident)*) => {
            $(option($of.$name != $name, format!("{} {:?}", stringify!($name), $of.$name));)*
        };
    }
    plain!(semantics, false_predicate_suppresses_arrival tensor_core_barrier_tracks_copies leader_tracked_last_axis_only);
    plain!(params, approx_math accumulate_products unsafe_no_auto_barriers reduction_scratch_bytes skip_device_barrier is_multi_process);
    let contract = match params.fp_contract {
        FpContract::On => "fp_contract on",
        FpContract::Off => "fp_contract off",
    };
    option(params.fp_contract != fp_contract, contract.to_string());
    let of_quotients = match params.quotients {
        Quotients::Full => "quotients full",
        Quotients::Rounded => "quotients rounded",
    };
    option(params.quotients != quotients, of_quotients.to_string());
    plain!(params, target wait_timeout_ns profile_space);
    let scope = match params.profile_scope {
        ProfileScope::Warpgroup => "profile_scope warpgroup",
        ProfileScope::Warp => "profile_scope warp",
    };
    option(params.profile_scope != profile_scope, scope.to_string());
    plain!(params, every_lane_arrives);
    options
}

fn write_alloc(f: &mut Formatter<'_>, data: &AllocData) -> fmt::Result {
    let AllocData {
        kind,
        shape,
        collective,
        within,
        loc: _,
    } = data;
    match kind {
        AllocKind::Gmem { dtype, origin } => {
            f.write_str("gmem ")?;
            write_array(f, dtype, shape)?;
            write_origin(f, *origin)?;
        }
        AllocKind::Smem { dtype, transforms } => {
            f.write_str("smem ")?;
            write_array(f, dtype, shape)?;
            if let Some(transforms) = transforms {
                write_transforms(f, transforms)?;
            }
        }
        AllocKind::SmemUnion => write!(f, "smem_union {} bytes", shape[0])?,
        AllocKind::Tmem {
            dtype,
            layout,
            collective_mma,
        } => {
            f.write_str("tmem ")?;
            write_array(f, dtype, shape)?;
            if let Some(layout) = layout {
                f.write_char(' ')?;
                write_layout(f, layout, Named::Whole)?;
            }
            if *collective_mma {
                f.write_str(" collective_mma")?;
            }
        }
        AllocKind::TmemUnion => write!(f, "tmem_union {} columns", shape.last().copied().unwrap_or(0))?,
        AllocKind::Barrier {
            num_arrivals,
            orders_tensor_core,
            cluster,
        } => {
            write_array(f, "barrier", shape)?;
            write!(f, " arrivals {num_arrivals}")?;
            if *orders_tensor_core {
                f.write_str(" orders_tensor_core")?;
            }
            if let Some(ClusterBarrier {
                collective_axes,
                leader_tracked,
            }) = cluster
            {
                f.write_str(" cluster")?;
                for axes in collective_axes {
                    write!(f, "({})", Commas(axes))?;
                }
                if *leader_tracked {
                    f.write_str(" leader_tracked")?;
                }
            }
        }
        AllocKind::Semaphore { origin } => {
            write_array(f, "semaphore", shape)?;
            write_origin(f, *origin)?;
        }
        AllocKind::Register { dtype, accumulator } => {
            f.write_str(if *accumulator { "accumulator " } else { "register " })?;
            write_array(f, dtype, shape)?;
        }
    }
    if let Some(Within { union, offset, group }) = within {
        write!(f, " in {union} at {offset} group {group}")?;
    }
    if *collective && !matches!(kind, AllocKind::Gmem { .. }) {
        f.write_str(" collective")?;
    }
    Ok(())
}

fn write_transforms(f: &mut Formatter<'_>, transforms: &SmemTransforms) -> fmt::Result {
    let SmemTransforms { tiling, swizzle_bytes } = transforms;
    if !tiling.is_empty() {
        write!(f, " tile({})", Commas(tiling))?;
    }
    write!(f, " swizzle({swizzle_bytes})")
}

fn write_origin(f: &mut Formatter<'_>, origin: GmemOrigin) -> fmt::Result {
    match origin {
        GmemOrigin::Param(i) => write!(f, " param{i}"),
        GmemOrigin::Scratch { global: true } => f.write_str(" global"),
        GmemOrigin::Scratch { global: false } => f.write_str(" per block"),
    }
}

/// `a,b,c`.
struct Commas<'a, T>(&'a [T]);

impl<T: Display> Display for Commas<'_, T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (i, x) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_char(',')?;
            }
            write!(f, "{x}")?;
        }
        Ok(())
    }
}

/// How a layout with a name prints.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Named {
    /// As its name, for messages.
    Short,
    /// With what it is, for dumps.
    Whole,
}

impl Display for LayoutSpec {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write_layout(f, self, Named::Short)
    }
}

fn write_layout(f: &mut Formatter<'_>, layout: &LayoutSpec, named: Named) -> fmt::Result {
    match layout {
        LayoutSpec::Tiled {
            name,
            tiling,
            warp_dims,
            lane_dims,
            vector_dim,
        } => {
            match named {
                _ if name.is_empty() => {}
                Named::Short => return f.write_str(name),
                Named::Whole => write!(f, "{name:?}=")?,
            }
            f.write_str("TILED(")?;
            for tile in tiling {
                write!(f, "({})", Commas(tile))?;
            }
            for (what, dims) in [("warp", warp_dims), ("lane", lane_dims)] {
                write!(f, " {what}")?;
                for dim in dims {
                    match dim {
                        LayoutDim::Dim(d) => write!(f, " {d}")?,
                        LayoutDim::Replicated(n) => write!(f, " R{n}")?,
                    }
                }
            }
            write!(f, " vec {vector_dim})")
        }
        LayoutSpec::Strided { shape, vec } => write!(f, "WG_STRIDED({}; {vec})", Commas(shape)),
        LayoutSpec::Splat { shape } => write!(f, "WG_SPLAT({})", Commas(shape)),
        LayoutSpec::Named { name, args } => {
            write!(f, "{name}(")?;
            for (i, (key, arg)) in args.iter().enumerate() {
                if i > 0 {
                    f.write_str(", ")?;
                }
                write!(f, "{key}=")?;
                match arg {
                    LayoutArg::Int(x) => write!(f, "{x}")?,
                    LayoutArg::Bool(x) => write!(f, "{x}")?,
                    LayoutArg::Ints(x) => write!(f, "({})", Commas(x))?,
                    LayoutArg::Text(x) => write!(f, "{x:?}")?,
                    LayoutArg::DType(x) => write!(f, "{x}")?,
                    LayoutArg::Layout(x) => write_layout(f, x, named)?,
                }
            }
            f.write_char(')')
        }
    }
}

/// Writes a constant's element.
fn write_bits(f: &mut impl Write, dtype: DType, bits: u64) -> fmt::Result {
    match dtype {
        DType::Bool => write!(f, "{}", bits & 1 != 0),
        DType::I32 => write!(f, "{}", bits as u32 as i32),
        // A NaN other than the usual one.
        DType::F32 if f32::from_bits(bits as u32).is_nan() && bits != u64::from(f32::NAN.to_bits()) => {
            write!(f, "{bits:#x}:f32")
        }
        DType::F64 if f64::from_bits(bits).is_nan() && bits != f64::NAN.to_bits() => write!(f, "{bits:#x}:f64"),
        DType::F16 if half::f16::from_bits(bits as u16).is_nan() && bits != u64::from(half::f16::NAN.to_bits()) => {
            write!(f, "{bits:#x}:f16")
        }
        DType::BF16 if half::bf16::from_bits(bits as u16).is_nan() && bits != u64::from(half::bf16::NAN.to_bits()) => {
            write!(f, "{bits:#x}:bf16")
        }
        DType::F32 => write!(f, "{:?}:f32", f32::from_bits(bits as u32)),
        DType::F64 => write!(f, "{:?}:f64", f64::from_bits(bits)),
        DType::F16 => write!(f, "{:?}:f16", half::f16::from_bits(bits as u16)),
        DType::BF16 => write!(f, "{:?}:bf16", half::bf16::from_bits(bits as u16)),
        _ => match bits_int(dtype, bits) {
            Some(x) => write!(f, "{x}:{dtype}"),
            None => write!(f, "{bits:#x}:{dtype}"),
        },
    }
}

/// Prints uses, with scalar constants in place.
struct Printer<'a> {
    kernel: &'a Kernel,
    /// Scalar constants: their bits.
    constants: cranelift_entity::SecondaryMap<Value, Option<u64>>,
}

impl Printer<'_> {
    fn value(&self, f: &mut Formatter<'_>, v: Value) -> fmt::Result {
        match self.constants[v] {
            Some(bits) => write_bits(f, self.kernel.ty(v).dtype(), bits),
            None => write!(f, "{v}"),
        }
    }

    fn values(&self, f: &mut Formatter<'_>, vs: &[Value]) -> fmt::Result {
        for (i, &v) in vs.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            self.value(f, v)?;
        }
        Ok(())
    }

    fn index(&self, f: &mut Formatter<'_>, index: Index) -> fmt::Result {
        match index {
            Index::Const(x) => write!(f, "{x}"),
            Index::Value(v) => self.value(f, v),
        }
    }

    /// Arrays of indices.
    fn positions(&self, f: &mut Formatter<'_>, at: &[Value]) -> fmt::Result {
        f.write_str(" at(")?;
        self.values(f, at)?;
        f.write_char(')')
    }

    fn masked(&self, f: &mut Formatter<'_>, mask: Option<Value>) -> fmt::Result {
        if let Some(mask) = mask {
            f.write_str(" where ")?;
            self.value(f, mask)?;
        }
        Ok(())
    }

    fn reference(&self, f: &mut Formatter<'_>, r: &RefUse) -> fmt::Result {
        write!(f, "{}", r.alloc)?;
        for step in &r.steps {
            match step {
                Step::Index(dims) => {
                    f.write_char('[')?;
                    for (i, dim) in dims.iter().enumerate() {
                        if i > 0 {
                            f.write_str(", ")?;
                        }
                        match dim {
                            DimIndex::At(index) => self.index(f, *index)?,
                            DimIndex::Slice { start, size, stride } => {
                                self.index(f, *start)?;
                                write!(f, ":+{size}")?;
                                if *stride != 1 {
                                    write!(f, ":{stride}")?;
                                }
                            }
                            DimIndex::Window { start, size } => {
                                f.write_str("window ")?;
                                self.index(f, *start)?;
                                write!(f, ":+{size}")?;
                            }
                            DimIndex::Gather(v) => write!(f, "gather {v}")?,
                        }
                    }
                    f.write_char(']')?;
                }
                Step::Transpose(permutation) => write!(f, ".transpose({})", Commas(permutation))?,
                Step::Reshape(shape) => write!(f, ".reshape({})", Commas(shape))?,
                Step::Bitcast { dtype, shape } => write!(f, ".bitcast({dtype}; {})", Commas(shape))?,
                Step::Im2Col { window, padding, shape } => {
                    write!(f, ".im2col({};", Commas(window))?;
                    for (lo, hi) in padding {
                        write!(f, " {lo}:{hi}")?;
                    }
                    write!(f, "; {})", Commas(shape))?;
                }
                Step::ExpandLeadingBatch(shape) => write!(f, ".expand_leading_batch({})", Commas(shape))?,
                Step::ExtractAlias { offset, group, member } => {
                    write!(f, ".alias({offset}, group {group}, ")?;
                    write_alloc(f, member)?;
                    f.write_char(')')?;
                }
                Step::Unswizzle(bytes) => write!(f, ".unswizzle({bytes})")?,
                Step::Untile(tiling) => write!(f, ".untile({})", Commas(tiling))?,
            }
        }
        match &r.place {
            Place::Here => {}
            Place::Cluster { axes, indices } => {
                write!(f, "@cluster({} = ", Commas(axes))?;
                self.values(f, indices)?;
                f.write_char(')')?;
            }
            Place::Peer { device } => {
                f.write_str("@peer(")?;
                self.value(f, *device)?;
                f.write_char(')')?;
            }
            Place::Multicast { axes } => write!(f, "@multicast({})", Commas(axes))?,
        }
        f.write_str(": ")?;
        write_array(f, r.elem, &r.shape)
    }

    fn predicate(&self, f: &mut Formatter<'_>, predicate: Option<Value>) -> fmt::Result {
        match predicate {
            Some(p) => {
                f.write_str(" if ")?;
                self.value(f, p)
            }
            None => Ok(()),
        }
    }

    fn leader(&self, f: &mut Formatter<'_>, leader: Option<LeaderTracked>) -> fmt::Result {
        match leader {
            None => Ok(()),
            Some(LeaderTracked::Replicated) => f.write_str(" leader_tracked(replicated)"),
            Some(LeaderTracked::Partitioned { dim }) => write!(f, " leader_tracked(partitioned {dim})"),
        }
    }

    fn region(&self, f: &mut Formatter<'_>, region: Region, indent: usize) -> fmt::Result {
        writeln!(f, "{{")?;
        self.region_body(f, region, indent + 1)?;
        write!(f, "{:1$}}}", "", indent * 2)
    }

    fn region_body(&self, f: &mut Formatter<'_>, region: Region, indent: usize) -> fmt::Result {
        let data = &self.kernel.regions[region];
        for &op in &data.ops {
            self.op(f, op, indent)?;
        }
        if !data.results.is_empty() {
            write!(f, "{:1$}yield ", "", indent * 2)?;
            self.values(f, &data.results)?;
            writeln!(f)?;
        }
        Ok(())
    }

    /// `(%v1 = init, …)`.
    fn carries(&self, f: &mut Formatter<'_>, params: &[Value], inits: &[Value], group: Group) -> fmt::Result {
        f.write_char('(')?;
        for (i, (&p, &init)) in params.iter().zip(inits).enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{p}: {}", self.kernel.ty(p))?;
            self.group(f, p, group)?;
            f.write_str(" = ")?;
            self.value(f, init)?;
        }
        f.write_char(')')
    }

    /// Over whom a value is uniform, where that is not `usual`.
    fn group(&self, f: &mut Formatter<'_>, v: Value, usual: Group) -> fmt::Result {
        match self.kernel.values[v].group {
            group if group == usual => Ok(()),
            group => write!(f, " per {group}"),
        }
    }

    fn op(&self, f: &mut Formatter<'_>, op: Op, indent: usize) -> fmt::Result {
        let OpData { kind, results, loc } = &self.kernel.ops[op];
        if let [v] = results.as_slice()
            && self.constants[*v].is_some()
        {
            return Ok(());
        }
        write!(f, "{:1$}", "", indent * 2)?;
        for (i, &v) in results.iter().enumerate() {
            let sep = if i > 0 { ", " } else { "" };
            write!(f, "{sep}{v}: {}", self.kernel.ty(v))?;
            self.group(f, v, Group::Warpgroup)?;
        }
        if !results.is_empty() {
            f.write_str(" = ")?;
        }
        f.write_str(kind.name())?;
        self.fields(f, kind, indent)?;
        let mut comments = vec![];
        if self.kernel.num_warpgroups > 0 && loc.0 != 0 {
            comments.push(format!("op{}", loc.0));
        }
        for &v in results {
            let data = &self.kernel.values[v];
            if data.ty.is_scalar() && !data.ty.dtype().is_float() && data.facts != Facts::of_dtype(data.ty.dtype()) {
                comments.push(match results.len() {
                    1 => data.facts.to_string(),
                    _ => format!("{v} {}", data.facts),
                });
            }
        }
        if !comments.is_empty() {
            write!(f, "  // {}", comments.join("; "))?;
        }
        writeln!(f)
    }

    fn fields(&self, f: &mut Formatter<'_>, kind: &OpKind, indent: usize) -> fmt::Result {
        let regions = &self.kernel.regions;
        let mut parts = vec![];
        visit::for_each_value(kind, &mut |v| parts.push(v));
        let plain = |f: &mut Formatter<'_>| -> fmt::Result {
            if !parts.is_empty() {
                f.write_char(' ')?;
            }
            self.values(f, &parts)
        };
        match kind {
            OpKind::Constant(Constant::Splat(bits)) => {
                f.write_str(" splat ")?;
                // The dtype shows in the result's type.
                write!(f, "{bits:#x}")
            }
            OpKind::Constant(Constant::Dense(bytes)) => {
                f.write_str(" dense ")?;
                bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            OpKind::Unary { .. }
            | OpKind::Binary { .. }
            | OpKind::Compare { .. }
            | OpKind::Select { .. }
            | OpKind::Clamp { .. }
            | OpKind::Convert { .. }
            | OpKind::Bitcast { .. }
            | OpKind::Reshape { .. }
            | OpKind::Relayout { .. }
            | OpKind::DynamicSlice { .. }
            | OpKind::DynamicUpdateSlice { .. }
            | OpKind::Take { .. }
            | OpKind::OptimizationBarrier { .. }
            | OpKind::AccInit { .. }
            | OpKind::CommitGroup
            | OpKind::CommitSmem
            | OpKind::Delay { .. } => plain(f),
            OpKind::Dot { acc, arithmetic, .. } => {
                plain(f)?;
                let how = match arithmetic {
                    DotArithmetic::TensorCore => "tensor_core",
                    DotArithmetic::MultiplyAdd => "multiply_add",
                };
                write!(f, " {how}{}", if acc.is_some() { " added" } else { "" })
            }
            OpKind::IntegerPow { n, .. } => {
                plain(f)?;
                write!(f, ", {n}")
            }
            OpKind::ReducePrecision {
                exponent_bits,
                mantissa_bits,
                ..
            } => {
                plain(f)?;
                write!(f, " e{exponent_bits}m{mantissa_bits}")
            }
            OpKind::Iota { dim } => write!(f, " dim {dim}"),
            OpKind::Broadcast { dims, .. } => {
                plain(f)?;
                write!(f, " dims({})", Commas(dims))
            }
            OpKind::Transpose { permutation, .. } => {
                plain(f)?;
                write!(f, " ({})", Commas(permutation))
            }
            OpKind::Slice { starts, strides, .. } => {
                plain(f)?;
                write!(f, " starts({})", Commas(starts))?;
                if strides.iter().any(|&s| s != 1) {
                    write!(f, " strides({})", Commas(strides))?;
                }
                Ok(())
            }
            OpKind::Concat { dim, .. } => {
                plain(f)?;
                write!(f, " dim {dim}")
            }
            OpKind::Pad {
                low, high, interior, ..
            } => {
                plain(f)?;
                write!(
                    f,
                    " low({}) high({}) interior({})",
                    Commas(low),
                    Commas(high),
                    Commas(interior)
                )
            }
            OpKind::Reverse { dims, .. } => {
                plain(f)?;
                write!(f, " dims({})", Commas(dims))
            }
            OpKind::Reduce { axes, parallel, .. } => {
                plain(f)?;
                write!(f, " axes({})", Commas(axes))?;
                match parallel {
                    Some(n) => write!(f, " parallel({n})"),
                    None => Ok(()),
                }
            }
            OpKind::ArgReduce { axis, .. } => {
                plain(f)?;
                write!(f, " axis {axis}")
            }
            OpKind::Cumulative { axis, reverse, .. } => {
                plain(f)?;
                write!(f, " axis {axis}{}", if *reverse { " reverse" } else { "" })
            }
            OpKind::Put { distinct, .. } => {
                plain(f)?;
                f.write_str(if *distinct { " distinct" } else { "" })
            }
            OpKind::Sort {
                axis, indexed, first, ..
            } => {
                plain(f)?;
                write!(
                    f,
                    " axis {axis} first {first}{}",
                    if *indexed { " indexed" } else { "" }
                )
            }
            OpKind::MultipleOf { divisor, .. } => {
                plain(f)?;
                write!(f, ", {divisor}")
            }
            OpKind::LayoutCast { layout, .. } => {
                plain(f)?;
                f.write_char(' ')?;
                write_layout(f, layout, Named::Whole)
            }
            OpKind::AxisIndex { axis } => write!(f, " {axis}"),
            OpKind::Load { src } => {
                f.write_char(' ')?;
                self.reference(f, src)
            }
            OpKind::Store { dst, value } | OpKind::Swap { dst, value } => {
                f.write_char(' ')?;
                self.reference(f, dst)?;
                f.write_str(" <- ")?;
                self.value(f, *value)
            }
            OpKind::AtomicUpdate { op, dst, value } => {
                write!(f, " {} ", op.name())?;
                self.reference(f, dst)?;
                f.write_str(" <- ")?;
                self.value(f, *value)
            }
            OpKind::LoadMasked { src, mask } => {
                f.write_char(' ')?;
                self.reference(f, src)?;
                self.masked(f, Some(*mask))
            }
            OpKind::StoreMasked { dst, mask, value } => {
                f.write_char(' ')?;
                self.reference(f, dst)?;
                self.masked(f, Some(*mask))?;
                f.write_str(" <- ")?;
                self.value(f, *value)
            }
            OpKind::LoadAt { src, at, mask } => {
                f.write_char(' ')?;
                self.reference(f, src)?;
                self.positions(f, at)?;
                self.masked(f, *mask)
            }
            OpKind::StoreAt { dst, at, mask, value } => {
                f.write_char(' ')?;
                self.reference(f, dst)?;
                self.positions(f, at)?;
                self.masked(f, *mask)?;
                f.write_str(" <- ")?;
                self.value(f, *value)
            }
            OpKind::AtomicUpdateAt { op, dst, at, value } => {
                write!(f, " {} ", op.name())?;
                self.reference(f, dst)?;
                self.positions(f, at)?;
                f.write_str(" <- ")?;
                self.value(f, *value)
            }
            OpKind::CopyGmemToSmem {
                src,
                dst,
                barrier,
                collective_axes,
                leader_tracked,
                oob,
                predicate,
            } => {
                f.write_char(' ')?;
                self.reference(f, src)?;
                f.write_str(" -> ")?;
                self.reference(f, dst)?;
                if let Some(barrier) = barrier {
                    f.write_str(" using ")?;
                    self.reference(f, barrier)?;
                }
                if !collective_axes.is_empty() {
                    write!(f, " collective({})", Commas(collective_axes))?;
                }
                self.leader(f, *leader_tracked)?;
                if *oob != OobMode::Zeros {
                    write!(f, " oob {}", oob.name())?;
                }
                self.predicate(f, *predicate)
            }
            OpKind::CopySmemToGmem {
                src,
                dst,
                reduction,
                commit_group,
                predicate,
            } => {
                f.write_char(' ')?;
                self.reference(f, src)?;
                f.write_str(" -> ")?;
                self.reference(f, dst)?;
                if let Some(op) = reduction {
                    write!(f, " reduce {}", op.name())?;
                }
                if *commit_group {
                    f.write_str(" commit_group")?;
                }
                self.predicate(f, *predicate)
            }
            OpKind::WaitSmemToGmem { n, scope } => write!(f, " {n} {}", scope.name()),
            OpKind::WaitGmemToSmem { n } => write!(f, " {n}"),
            OpKind::Prefetch {
                src,
                collective_axes,
                leader_tracked,
                predicate,
            } => {
                f.write_char(' ')?;
                self.reference(f, src)?;
                if !collective_axes.is_empty() {
                    write!(f, " collective({})", Commas(collective_axes))?;
                }
                self.leader(f, *leader_tracked)?;
                self.predicate(f, *predicate)
            }
            OpKind::AsyncStoreSmem {
                value,
                dst,
                barrier,
                atomic,
            } => {
                f.write_char(' ')?;
                self.value(f, *value)?;
                f.write_str(" -> ")?;
                self.reference(f, dst)?;
                f.write_str(" using ")?;
                self.reference(f, barrier)?;
                match atomic {
                    Some(op) => write!(f, " atomic {}", op.name()),
                    None => Ok(()),
                }
            }
            OpKind::BarrierArrive { barrier, predicate } => {
                f.write_char(' ')?;
                self.reference(f, barrier)?;
                self.predicate(f, *predicate)
            }
            OpKind::BarrierWait { barrier, phases } | OpKind::BarrierTest { barrier, phases } => {
                f.write_char(' ')?;
                self.reference(f, barrier)?;
                match phases {
                    Some(phases) => {
                        f.write_str(" phases ")?;
                        self.value(f, *phases)
                    }
                    None => Ok(()),
                }
            }
            OpKind::MbarrierArrive {
                barrier,
                count,
                by,
                order,
            } => {
                f.write_char(' ')?;
                self.reference(f, barrier)?;
                f.write_str(" by ")?;
                self.value(f, *count)?;
                write!(f, " of {}", by.name())?;
                barrier_order(f, order)
            }
            OpKind::MbarrierExpect {
                barrier,
                bytes,
                arrives,
            } => {
                f.write_char(' ')?;
                self.reference(f, barrier)?;
                f.write_char(' ')?;
                self.value(f, *bytes)?;
                f.write_str(if *arrives { " arrives" } else { "" })
            }
            OpKind::MbarrierWait { barrier, phase, order } => {
                f.write_char(' ')?;
                self.reference(f, barrier)?;
                f.write_str(" phase ")?;
                self.value(f, *phase)?;
                barrier_order(f, order)
            }
            OpKind::Sync { group } => write!(f, " {group}"),
            OpKind::Fence { kind } => write!(f, " {}", kind.name()),
            OpKind::SemaphoreSignal {
                semaphore,
                value,
                scope,
            } => {
                f.write_char(' ')?;
                self.reference(f, semaphore)?;
                f.write_str(" += ")?;
                self.value(f, *value)?;
                write!(f, " {}", scope.name())
            }
            OpKind::SemaphoreSignalParallel { signals, scope } => {
                for (semaphore, value) in signals {
                    f.write_str(" (")?;
                    self.reference(f, semaphore)?;
                    f.write_str(" += ")?;
                    self.value(f, *value)?;
                    f.write_char(')')?;
                }
                write!(f, " {}", scope.name())
            }
            OpKind::SemaphoreWait {
                semaphore,
                value,
                decrement,
                scope,
            } => {
                f.write_char(' ')?;
                self.reference(f, semaphore)?;
                f.write_str(" >= ")?;
                self.value(f, *value)?;
                write!(f, "{} {}", if *decrement { " decrement" } else { "" }, scope.name())
            }
            OpKind::SemaphoreRead { semaphore } => {
                f.write_char(' ')?;
                self.reference(f, semaphore)
            }
            OpKind::Wgmma { acc, a, b } => {
                f.write_char(' ')?;
                self.acc(f, acc)?;
                f.write_str(" += ")?;
                match a {
                    MmaOperand::Smem(r) => self.reference(f, r)?,
                    MmaOperand::Registers(v) => self.value(f, *v)?,
                }
                f.write_str(" @ ")?;
                self.reference(f, b)
            }
            OpKind::DotInPlace { acc, a, b } => {
                f.write_char(' ')?;
                if let Some(acc) = acc {
                    self.value(f, *acc)?;
                    f.write_str(" + ")?;
                }
                for (operand, between) in [(a, " @ "), (b, "")] {
                    match operand {
                        MmaOperand::Smem(r) => self.reference(f, r)?,
                        MmaOperand::Registers(v) => self.value(f, *v)?,
                    }
                    f.write_str(between)?;
                }
                Ok(())
            }
            OpKind::WgmmaWait { n, accs } => {
                write!(f, " {n} ")?;
                self.values(f, accs)
            }
            OpKind::AccRead { acc } => {
                f.write_char(' ')?;
                self.acc(f, acc)
            }
            OpKind::For {
                lower,
                upper,
                inits,
                xs,
                reverse,
                unroll,
                body,
            } => {
                let params = &regions[*body].params;
                let group = regions[*body].group;
                match params.first() {
                    Some(i) => {
                        write!(f, " {i}: {}", self.kernel.ty(*i))?;
                        self.group(f, *i, group)?;
                    }
                    None => f.write_str(" ?")?,
                }
                f.write_str(" in ")?;
                self.value(f, *lower)?;
                f.write_str("..")?;
                self.value(f, *upper)?;
                if *reverse {
                    f.write_str(" reverse")?;
                }
                if *unroll != 1 {
                    write!(f, " unroll {unroll}")?;
                }
                f.write_char(' ')?;
                let carries = params.get(1..).unwrap_or(&[]);
                self.carries(f, carries, inits, group)?;
                if !xs.is_empty() {
                    f.write_str(" slices ")?;
                    self.carries(f, carries.get(inits.len()..).unwrap_or(&[]), xs, group)?;
                }
                f.write_char(' ')?;
                self.region(f, *body, indent)
            }
            OpKind::While { inits, cond, body } => {
                f.write_char(' ')?;
                self.carries(f, &regions[*cond].params, inits, regions[*cond].group)?;
                f.write_char(' ')?;
                self.region(f, *cond, indent)?;
                f.write_str(" do (")?;
                for (i, v) in regions[*body].params.iter().enumerate() {
                    write!(f, "{}{v}", if i > 0 { ", " } else { "" })?;
                    self.group(f, *v, regions[*body].group)?;
                }
                f.write_str(") ")?;
                self.region(f, *body, indent)
            }
            OpKind::Switch { selector, arms } => {
                f.write_char(' ')?;
                self.value(f, *selector)?;
                for (i, &arm) in arms.iter().enumerate() {
                    write!(f, " case {i} ")?;
                    self.region(f, arm, indent)?;
                }
                Ok(())
            }
            OpKind::Scope {
                allocs,
                collective,
                body,
            } => {
                write!(
                    f,
                    " {}{} ",
                    Commas(allocs),
                    if *collective { " collective" } else { "" }
                )?;
                self.region(f, *body, indent)
            }
            OpKind::WarpMap { axis, inits, body } => {
                write!(f, " {axis} ")?;
                self.carries(f, &regions[*body].params, inits, Group::Warp)?;
                f.write_char(' ')?;
                self.region(f, *body, indent)
            }
            OpKind::SetMaxRegisters { action, n } => write!(f, " {} {n}", action.name()),
            OpKind::GridDependency { action } => write!(f, " {}", action.name()),
            OpKind::InlinePtx { does, code, refs, args } => {
                write!(f, " {}", does.name())?;
                self.inline_ptx(f, code)?;
                if !refs.is_empty() {
                    f.write_str(" refs(")?;
                    for (i, r) in refs.iter().enumerate() {
                        f.write_str(if i > 0 { ", " } else { "" })?;
                        self.reference(f, r)?;
                    }
                    f.write_char(')')?;
                }
                if !args.is_empty() {
                    f.write_str(" args(")?;
                    self.values(f, args)?;
                    f.write_char(')')?;
                }
                Ok(())
            }
            OpKind::DebugPrint { format, args: _, then } => {
                f.write_str(match then {
                    AfterPrint::GoesOn => "",
                    AfterPrint::Fails => " fails",
                })?;
                write!(f, " {format:?}")?;
                plain(f)
            }
            OpKind::ProfileMark { name, edge } => {
                let edge = match edge {
                    ProfileEdge::Begins => "begins",
                    ProfileEdge::Ends => "ends",
                };
                write!(f, " {name:?} {edge}")?;
                plain(f)
            }
            OpKind::PrintLayout { what, format } => {
                write!(f, " {format:?} ")?;
                match what {
                    PrintLayoutOf::Value(v) => self.value(f, *v),
                    PrintLayoutOf::Ref(r) => self.reference(f, r),
                }
            }
        }
    }

    fn inline_ptx(&self, f: &mut Formatter<'_>, code: &InlinePtx) -> fmt::Result {
        let InlinePtx {
            text,
            operands,
            pack,
            once,
            loads_from,
            whole,
            barriers,
            unchecked,
            called,
            maps,
        } = code;
        let order = operands.iter().map(|operand| match operand {
            InlineOperand::Value(i) => format!("v{i}"),
            InlineOperand::Ref(i) => format!("r{i}"),
            InlineOperand::Map(i) => format!("m{i}"),
        });
        write!(f, " {text:?} pack {pack} [{}]", order.collect::<Vec<_>>().join(" "))?;
        if *once {
            f.write_str(" once")?;
        }
        if !loads_from.is_empty() {
            write!(f, " loads_from({})", Commas(loads_from))?;
        }
        if let Some(isa) = unchecked {
            write!(f, " unchecked {isa}")?;
        }
        if let Some((first, last)) = barriers {
            write!(f, " barriers {first}..={last}")?;
        }
        if let Some(called) = called {
            write!(f, " called {called:?}")?;
        }
        if !maps.is_empty() {
            let each = maps.iter().map(|m| {
                let (dims, strides, boxes) = (Commas(&m.dims), Commas(&m.strides), Commas(&m.box_dims));
                let InlineMap {
                    of, element, swizzle, ..
                } = m;
                format!("r{of} {element} dims({dims}) strides({strides}) box({boxes}) swizzle {swizzle}")
            });
            write!(f, " maps({})", each.collect::<Vec<_>>().join(", "))?;
        }
        let Some(whole) = whole else {
            return Ok(());
        };
        let Whole {
            in_words,
            args,
            results,
            refs,
        } = &**whole;
        f.write_str(if *in_words { " whole in_words (" } else { " whole (" })?;
        for (i, arrays) in [args, results].into_iter().enumerate() {
            f.write_str(if i > 0 { "; " } else { "" })?;
            for (i, array) in arrays.iter().enumerate() {
                f.write_str(if i > 0 { ", " } else { "" })?;
                match array {
                    Some(LaneArray { layout, order }) => {
                        write_layout(f, layout, Named::Whole)?;
                        write!(f, " order({})", Commas(order))?;
                    }
                    None => f.write_str("scalar")?,
                }
            }
        }
        f.write_str("; ")?;
        for (i, transforms) in refs.iter().enumerate() {
            f.write_str(if i > 0 { ", " } else { "" })?;
            match transforms {
                Some(transforms) => {
                    f.write_str("lies")?;
                    write_transforms(f, transforms)?;
                }
                None => f.write_str("as_is")?,
            }
        }
        f.write_char(')')
    }

    fn acc(&self, f: &mut Formatter<'_>, acc: &AccUse) -> fmt::Result {
        match acc {
            AccUse::Ref(r) => self.reference(f, r),
            AccUse::Value(v) => self.value(f, *v),
            AccUse::Part { acc, at, shape } => {
                self.value(f, *acc)?;
                write!(f, "[{}:+{}, {}:+{}]", at[0], shape[0], at[1], shape[1])
            }
        }
    }
}

impl Display for Facts {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        const LEAST: i128 = i64::MIN as i128;
        const GREATEST: i128 = i64::MAX as i128;
        const UNSIGNED: i128 = u64::MAX as i128;
        match (self.lo, self.hi) {
            (LEAST, GREATEST | UNSIGNED) => f.write_str("..")?,
            (LEAST, hi) => write!(f, "..={hi}")?,
            (lo, GREATEST | UNSIGNED) => write!(f, "{lo}..")?,
            (lo, hi) => write!(f, "{lo}..={hi}")?,
        }
        if self.divisor > 1 && self.lo != self.hi {
            write!(f, ", multiple of {}", self.divisor)?;
        }
        Ok(())
    }
}

fn write_region_body(f: &mut Formatter<'_>, kernel: &Kernel, region: Region, indent: usize) -> fmt::Result {
    let mut constants = cranelift_entity::SecondaryMap::new();
    for (_, op) in &kernel.ops {
        if let (OpKind::Constant(Constant::Splat(bits)), [v]) = (&op.kind, op.results.as_slice())
            && kernel.ty(*v).is_scalar()
        {
            constants[*v] = Some(*bits);
        }
    }
    Printer { kernel, constants }.region_body(f, region, indent)
}

fn barrier_order(f: &mut fmt::Formatter<'_>, order: &BarrierOrder) -> fmt::Result {
    if order.relaxed {
        f.write_str(" relaxed")?;
    }
    match order.scope {
        Some(scope) => write!(f, " {}", scope.name()),
        None => Ok(()),
    }
}
