//! What layout every op needs of its operands and gives to its results: defined here alone.
//!
//! [`of`] is a table over the ops. Inference reads it for its constraints, `insert_relayouts` makes it true by inserting
//! [`OpKind::Relayout`]s, [`super::verify_layouts`] checks that it is, and lowering takes every operand as it lies.
//!
//! A *splat* ([`RegisterLayout::is_splat`]) is an array of one scalar: it fits any layout.
use super::derivation::{
    Derivation, has_runs, has_whole_bytes, is_constant_along, storable, with_dim_in_slots, with_slices_dealt,
};
use super::dot;
use super::infer::{group_of, spec};
use super::register_layout::RegisterLayout;
use super::sorting::{SortPlan, Way};
use super::tensor_memory;
use super::tiled::TiledLayout;
use crate::error::{Error, Result};
use crate::kernel_ir::class::{Transfer, aside_ops, synchronisation_ops, transfer_ops};
use crate::kernel_ir::visit::{for_each_region, for_each_value};
use crate::kernel_ir::{
    AccUse, Does, DotArithmetic, Kernel, LaneArray, MmaOperand, Op, OpKind, RefUse, Region, Value, op, words,
};
use cranelift_entity::SecondaryMap;
use smallvec::{SmallVec, smallvec};

/// The layout that each array and accumulator has.
pub type Layouts = SecondaryMap<Value, Option<RegisterLayout>>;

/// What an op needs of an operand, or of what a region hands on.
#[derive(Clone, Debug)]
pub enum Need {
    /// Nothing; scalars are of no layout.
    Any,
    /// The layout that this value has.
    Same(Value),
    /// Nothing, but an op whose operand has the layout of this value does less.
    Prefers(Value),
    /// The same of the layout that one of several equal parts of this value has.
    PrefersPartOf(Value),
    /// This layout. `pulls`: preferred for the operand's op, too.
    Exactly {
        layout: RegisterLayout,
        pulls: bool,
        why: &'static str,
    },
    /// One from which the layout of the op's result follows ([`Signature::derived`]).
    Derives,
    /// Whole runs along a dimension in every thread.
    Runs(usize),
    /// As memory is written in which dimension `along` is contiguous: every element is in some slot, elements that share a byte are
    /// in one thread.
    Stored {
        along: usize,
        /// As [`Need::Prefers`].
        like: Option<Value>,
    },
}

/// The layout of a result or of a region's parameter.
#[derive(Clone, Debug)]
pub enum Gives {
    /// Any: the op makes it as it is wanted.
    Any,
    /// Any but one that is constant along this dimension.
    Varies(usize),
    /// All elements are equal.
    Splat,
    /// This one, preferred for what is combined with the value, too.
    Exactly(RegisterLayout, &'static str),
    /// This one, which no other op prefers.
    Made(RegisterLayout),
    /// The layout that this value has.
    Same(Value),
    /// What follows from the first operand's ([`Signature::derived`]).
    Derived,
}

/// What goes in and out of a region of an op.
#[derive(Clone, Debug)]
pub struct Border {
    pub region: Region,
    pub params: SmallVec<[Gives; 4]>,
    pub results: SmallVec<[Need; 4]>,
}

/// What an op needs and gives.
#[derive(Clone, Debug)]
pub struct Signature {
    /// Of every value that the op uses, in `for_each_value` order.
    pub operands: SmallVec<[Need; 4]>,
    pub results: SmallVec<[Gives; 2]>,
    /// In `for_each_region` order.
    pub regions: SmallVec<[Border; 2]>,
    /// Regions run many times.
    pub is_loop: bool,
    /// How the first result follows from the first operand.
    pub derived: Option<Derivation>,
    /// Where the result does not follow, [`super::movement`] plans how elements get to it from operands in any layout.
    pub moves: bool,
    /// Works along single dimensions: best where each dimension of the operands has digits of its own.
    pub separable: bool,
    /// The same of the results.
    pub makes_separable: bool,
}

fn wgmma(kernel: &Kernel, v: Value) -> Result<RegisterLayout> {
    let ty = kernel.ty(v);
    let layout = TiledLayout::wgmma().instantiate(ty.shape());
    layout.map_err(|e| Error::internal(format!("an accumulator of type {ty}: {e}")))
}

/// The layout of a left operand of wgmma in registers.
pub fn wgmma_left(kernel: &Kernel, v: Value) -> Result<RegisterLayout> {
    let ty = kernel.ty(v);
    let tiled = match ty.dtype().bits() {
        8 => TiledLayout::wgmma_8bit(),
        32 => TiledLayout::wgmma_left_32bit(),
        _ => TiledLayout::wgmma(),
    };
    let layout = tiled.instantiate(ty.shape());
    layout.map_err(|e| Error::internal(format!("a left operand of wgmma of type {ty}: {e}")))
}

/// The layout of an array that is loaded from tensor memory, or stored there: the author's, if instructions can move it, else the best of those
/// that they can.
fn tensor_memory_array(kernel: &Kernel, r: &RefUse, v: Value) -> Result<RegisterLayout> {
    let view = tensor_memory::view(kernel, r)?;
    let mut named = None;
    kernel.for_each_op(&mut |op| {
        if let OpKind::LayoutCast { a, layout } = &kernel.ops[op].kind
            && (*a == v || kernel.ops[op].results.contains(&v))
            && let Ok(layout) = spec::of_value(layout, kernel, v)
            && tensor_memory::plan(&view, &layout).is_some()
        {
            named = named.take().or(Some(layout));
        }
    });
    named.or_else(|| tensor_memory::best(&view)).ok_or_else(|| {
        let ty = kernel.ty(v);
        Error::unsupported(format!("{ty} from or to tensor memory: {}", words::of_use(kernel, r)))
            .expected("32-bit elements, 16-bit ones, or packed ones of 8 bits, in rows of 128 or 64")
            .remedy("load the whole reference, or slices of its columns that are a multiple of 8")
    })
}

/// The dimension of a view along which memory is contiguous, as far as it follows from views without reshapes; else the last. One of a single
/// element has no neighbours: those are along the one before it.
pub fn contiguous(kernel: &Kernel, r: &RefUse) -> usize {
    let whole = &kernel.allocs[r.alloc].shape;
    let kept = match r.kept_dims(whole.len()) {
        Some((dims, true)) => dims.iter().position(|d| *d == minor(whole)),
        Some((_, false)) | None => None,
    };
    kept.filter(|d| r.shape[*d] != 1).unwrap_or(minor(&r.shape))
}

/// The last dimension that has neighbours in row-major order.
fn minor(shape: &[u64]) -> usize {
    let last = shape.iter().rposition(|n| *n != 1);
    last.unwrap_or(shape.len().saturating_sub(1))
}

/// An array that a loop splits or stacks along its leading dimension, and one of its slices.
pub fn stacked(kernel: &Kernel, v: Value) -> Result<(RegisterLayout, RegisterLayout)> {
    let data = &kernel.values[v];
    let whole = with_slices_dealt(data.ty.shape(), group_of(data.group));
    let slice = whole
        .reduce(&[0])
        .ok_or_else(|| Error::internal("a leading dimension that is no slot"))?;
    Ok((whole, slice))
}

/// An array as it is stored in row-major order.
fn stored(kernel: &Kernel, v: Value) -> Need {
    Need::Stored {
        along: minor(kernel.ty(v).shape()),
        like: None,
    }
}

/// Elements of an array dealt to the threads, one after the other, where operands must agree and there is no result to agree with.
fn dealt(kernel: &Kernel, v: Value, why: &'static str) -> Need {
    let data = &kernel.values[v];
    Need::Exactly {
        layout: RegisterLayout::dealt(data.ty.shape(), group_of(data.group)),
        pulls: false,
        why,
    }
}

/// A reference's indices come first, then those of elements, the mask, the value.
fn transfer(kernel: &Kernel, moved: &Transfer<'_>, results: &[Value], sig: &mut Signature) {
    let count = moved.at.map_or(0, <[Value]>::len) + moved.mask.iter().chain(&moved.value).count();
    let first = sig.operands.len() - count;
    let own = &mut sig.operands[first..];
    match moved.value {
        Some(value) if moved.at.is_some() => own.fill(dealt(kernel, value, "one element a thread")),
        Some(value) if !kernel.ty(value).is_scalar() => {
            own.fill(Need::Same(value));
            own[count - 1] = Need::Stored {
                along: contiguous(kernel, moved.view),
                like: results.first().copied(),
            };
        }
        Some(_) => {}
        None => {
            own.fill(Need::Same(results[0]));
            if moved.at.is_none() && moved.mask.is_some() {
                // Elements differ though the mask may be of one value.
                sig.results[0] = Gives::Varies(0);
            }
        }
    }
}

/// The signature of an op. Errors: shapes that a layout the op needs does not fit.
pub fn of(kernel: &Kernel, op: Op) -> Result<Signature> {
    let data = &kernel.ops[op];
    let results = &data.results;
    let mut sig = Signature {
        operands: smallvec![],
        results: results.iter().map(|_| Gives::Any).collect(),
        regions: smallvec![],
        is_loop: false,
        derived: None,
        moves: false,
        separable: false,
        makes_separable: false,
    };
    for_each_value(&data.kind, &mut |_| sig.operands.push(Need::Any));
    let is_array = |v: Value| !kernel.ty(v).is_scalar();
    let region = |r: Region| &kernel.regions[r];
    let index = |v: &[u32]| v.iter().map(|d| *d as usize).collect();
    let accumulator = |v: Value| wgmma(kernel, v).map(|layout| Gives::Exactly(layout, "accumulator of wgmma"));
    let whole_result = |sig: &mut Signature, a: Value, how: Derivation| {
        if is_array(a) {
            sig.derived = Some(how);
            sig.operands[0] = Need::Derives;
            sig.results[0] = Gives::Derived;
        } else {
            sig.results[0] = Gives::Splat;
        }
    };
    match &data.kind {
        OpKind::Constant(constant) => {
            let data = &kernel.values[results[0]];
            sig.results[0] = match constant.splat() {
                Some(_) => Gives::Splat,
                None => Gives::Made(RegisterLayout::replicated(data.ty.shape(), group_of(data.group))),
            };
        }
        OpKind::Unary { .. }
        | OpKind::Binary { .. }
        | OpKind::Compare { .. }
        | OpKind::Select { .. }
        | OpKind::Clamp { .. }
        | OpKind::IntegerPow { .. }
        | OpKind::Convert { .. }
        | OpKind::ReducePrecision { .. }
        | OpKind::MultipleOf { .. } => sig.operands.fill(Need::Same(results[0])),
        OpKind::Bitcast { a } => {
            let (from, to) = (kernel.ty(*a).dtype().bits(), kernel.ty(results[0]).dtype().bits());
            match from.cmp(&to) {
                std::cmp::Ordering::Equal => sig.operands[0] = Need::Same(results[0]),
                order => {
                    (sig.separable, sig.makes_separable) = (true, true);
                    sig.operands[0] = Need::Derives;
                    sig.results[0] = Gives::Derived;
                    sig.derived = Some(match order {
                        std::cmp::Ordering::Greater => Derivation::Split { n: from / to },
                        _ => Derivation::Join { n: to / from },
                    });
                }
            }
        }
        OpKind::InlinePtx {
            does: _,
            code,
            refs: _,
            args,
        } if code.whole.is_some() => {
            // A reference's indices come first.
            let first = sig.operands.len() - args.len();
            let arrays = |arrays: &[Option<LaneArray>], values: &[Value]| {
                let mut out = vec![];
                for (i, (array, v)) in arrays.iter().zip(values).enumerate() {
                    if let Some(array) = array {
                        out.push((i, spec::of_value(&array.layout, kernel, *v)?));
                    }
                }
                Ok::<_, Error>(out)
            };
            if let Some(whole) = &code.whole {
                let why = if whole.in_words { "inline PTX" } else { "inline_mgpu" };
                for (i, layout) in arrays(&whole.args, args)? {
                    sig.operands[first + i] = Need::Exactly {
                        layout,
                        pulls: true,
                        why,
                    };
                }
                for (k, layout) in arrays(&whole.results, results)? {
                    sig.results[k] = Gives::Exactly(layout, why);
                }
            }
        }
        OpKind::InlinePtx {
            does,
            code: _,
            refs: _,
            args,
        } => {
            // A reference's indices come first.
            let first = sig.operands.len() - args.len();
            let of_args = args
                .iter()
                .enumerate()
                .map(|(i, v)| (first + i, *v))
                .filter(|(_, v)| is_array(*v));
            let array = |v: &Value| is_array(*v);
            match results.iter().position(|v| is_array(*v)) {
                Some(k) => {
                    of_args.for_each(|(i, _)| sig.operands[i] = Need::Same(results[k]));
                    (k + 1..results.len())
                        .filter(|i| array(&results[*i]))
                        .for_each(|i| sig.results[i] = Gives::Same(results[k]));
                    if *does != Does::Computes {
                        // Equal elements of operands do not make equal results. (The first result stands for all in `keeps_splats`.)
                        sig.results[0] = Gives::Varies(0);
                        sig.results[k] = Gives::Varies(0);
                    }
                }
                None => of_args.for_each(|(i, v)| sig.operands[i] = dealt(kernel, v, "inline PTX, one element a lane")),
            }
        }
        OpKind::OptimizationBarrier { values } => {
            sig.operands = values.iter().zip(results).map(|(_, r)| Need::Same(*r)).collect();
        }
        OpKind::LayoutCast { layout, .. } => {
            if !kernel.ty(results[0]).is_scalar() {
                let layout = spec::of_value(layout, kernel, results[0])?;
                sig.operands[0] = Need::Same(results[0]);
                sig.results[0] = Gives::Exactly(layout, "layout_cast");
            }
        }
        // What it moves from is its operand's layout, what it moves to is its result's.
        OpKind::Relayout { .. } => {}
        OpKind::Iota { dim } => {
            sig.makes_separable = true;
            sig.results[0] = Gives::Varies(*dim as usize);
        }
        OpKind::Broadcast { a, dims } => {
            (sig.moves, sig.separable, sig.makes_separable) = (true, true, true);
            whole_result(&mut sig, *a, Derivation::Broadcast { dims: index(dims) });
        }
        OpKind::Reshape { a } => {
            let to = &kernel.values[results[0]];
            if to.ty.is_scalar() {
                sig.operands[0] = Need::Exactly {
                    layout: RegisterLayout::replicated(kernel.ty(*a).shape(), group_of(to.group)),
                    pulls: false,
                    why: "one value in all threads",
                };
            } else {
                sig.moves = true;
                whole_result(&mut sig, *a, Derivation::Reshape);
            }
        }
        OpKind::Transpose { a, permutation } => {
            (sig.moves, sig.separable, sig.makes_separable) = (true, true, true);
            let permutation = index(permutation);
            whole_result(&mut sig, *a, Derivation::Transpose { permutation });
        }
        OpKind::Slice { a, starts, strides } => {
            sig.moves = true;
            if strides.iter().all(|s| *s == 1) {
                (sig.separable, sig.makes_separable) = (true, true);
                let starts = starts.as_slice().into();
                whole_result(&mut sig, *a, Derivation::Slice { starts });
            }
        }
        OpKind::DynamicSlice { a, .. } | OpKind::Reverse { a, .. } => {
            sig.moves = true;
            if kernel.ty(*a).shape() == kernel.ty(results[0]).shape() {
                sig.operands[0] = Need::Prefers(results[0]);
            }
        }
        OpKind::DynamicUpdateSlice { .. } => {
            sig.moves = true;
            sig.operands[0] = Need::Prefers(results[0]);
        }
        OpKind::Concat { parts, .. } => {
            (sig.moves, sig.separable, sig.makes_separable) = (true, true, true);
            let shape = kernel.ty(parts[0]).shape();
            if parts.iter().all(|p| kernel.ty(*p).shape() == shape) {
                sig.operands.fill(Need::PrefersPartOf(results[0]));
            }
        }
        OpKind::Pad { .. } => (sig.moves, sig.separable) = (true, true),
        OpKind::Reduce { a, axes, .. } => {
            (sig.separable, sig.makes_separable) = (true, true);
            if is_array(*a) {
                whole_result(&mut sig, *a, Derivation::Reduce { axes: index(axes) });
            }
        }
        OpKind::ArgReduce { axis, .. } => {
            sig.separable = true;
            sig.operands[0] = Need::Runs(*axis as usize);
            sig.results[0] = Gives::Derived;
            sig.derived = Some(Derivation::Reduce { axes: index(&[*axis]) });
        }
        OpKind::Cumulative { a, axis, .. } if !op::is_short_run(kernel.ty(*a).shape(), *axis as usize) => {
            sig.operands[0] = stored(kernel, *a);
            sig.results[0] = Gives::Derived;
            sig.derived = Some(Derivation::Running { axis: *axis as usize });
        }
        OpKind::Cumulative { axis, .. } => {
            sig.operands[0] = Need::Runs(*axis as usize);
            sig.results[0] = Gives::Derived;
            sig.derived = Some(Derivation::Running { axis: *axis as usize });
        }
        OpKind::Dot { acc, a, b, arithmetic } => {
            sig.separable = true;
            let data = &kernel.values[results[0]];
            let tiling = dot::tiling(*arithmetic, data.ty.shape(), group_of(data.group), kernel.dealing);
            let acc = acc.iter().map(|_| Need::Same(results[0]));
            sig.operands = acc.chain([stored(kernel, *a), stored(kernel, *b)]).collect();
            sig.results[0] = Gives::Exactly(tiling.result, "product of arrays");
        }
        OpKind::DotInPlace { acc, a, b } => {
            let data = &kernel.values[results[0]];
            let tiling = dot::tiling(
                DotArithmetic::TensorCore,
                data.ty.shape(),
                group_of(data.group),
                kernel.dealing,
            );
            let (first, last) = (usize::from(acc.is_some()), sig.operands.len().saturating_sub(1));
            if acc.is_some() {
                sig.operands[0] = Need::Same(results[0]);
            }
            // A reference's indices stand where it does.
            for (operand, at) in [(a, first), (b, last)] {
                if let MmaOperand::Registers(v) = operand {
                    sig.operands[at] = stored(kernel, *v);
                }
            }
            sig.results[0] = Gives::Exactly(tiling.result, "product of arrays");
        }
        OpKind::Take { a, .. } => {
            sig.operands[0] = stored(kernel, *a);
            sig.operands[1] = Need::Same(results[0]);
        }
        OpKind::Put { a, update, .. } => {
            sig.operands[0] = stored(kernel, *a);
            sig.operands[1..].fill(dealt(kernel, *update, "one update a thread"));
        }
        OpKind::Sort { keys, .. } => {
            let lying = SortPlan::of_op(kernel, op).map(|plan| plan.way);
            if let Some(Way::Registers(lying) | Way::Kept { lying, .. }) = lying {
                sig.operands.fill(Need::Exactly {
                    layout: lying.from,
                    pulls: lying.pulls,
                    why: "runs that are sorted in registers",
                });
                sig.results.fill(Gives::Made(lying.to));
            } else {
                for (need, key) in sig.operands.iter_mut().zip(keys) {
                    *need = stored(kernel, *key);
                }
            }
        }
        transfer_ops!() => {
            if let Some(moved) = data.kind.transfer() {
                transfer(kernel, &moved, results, &mut sig);
            }
        }
        OpKind::AccInit { init } => {
            let layout = wgmma(kernel, results[0])?;
            if init.is_some() {
                sig.operands[0] = Need::Exactly {
                    layout: layout.clone(),
                    pulls: true,
                    why: "initial value of an accumulator",
                };
            }
            sig.results[0] = Gives::Exactly(layout, "accumulator of wgmma");
        }
        OpKind::Wgmma { acc, a, .. } => {
            // No result and no operand here while the accumulator is a reference.
            if let (Some(_), Some(&result)) = (acc.value(), results.first()) {
                sig.operands[0] = Need::Same(result);
                sig.results[0] = accumulator(result)?;
                if let MmaOperand::Registers(v) = a {
                    sig.operands[1] = Need::Exactly {
                        layout: wgmma_left(kernel, *v)?,
                        pulls: true,
                        why: "left operand of wgmma",
                    };
                }
            }
        }
        OpKind::TmemLoad { src } => {
            let layout = tensor_memory_array(kernel, src, results[0])?;
            sig.results[0] = Gives::Exactly(layout, "load of tensor memory");
        }
        OpKind::TmemStore { dst, value } => {
            if let Some(need) = sig.operands.last_mut() {
                *need = Need::Exactly {
                    layout: tensor_memory_array(kernel, dst, *value)?,
                    pulls: true,
                    why: "store to tensor memory",
                };
            }
        }
        OpKind::TmemWait { .. }
        | OpKind::TmemCopy { .. }
        | OpKind::Tcgen05Mma { .. }
        | OpKind::Tcgen05Commit { .. } => {}
        OpKind::WgmmaWait { .. } => {
            sig.operands = results.iter().map(|r| Need::Same(*r)).collect();
            sig.results = results.iter().map(|r| accumulator(*r)).collect::<Result<_>>()?;
        }
        OpKind::AccRead { acc } => {
            if let AccUse::Value(_) = acc {
                sig.operands[0] = Need::Same(results[0]);
            }
            sig.results = results.iter().map(|r| accumulator(*r)).collect::<Result<_>>()?;
        }
        OpKind::For { inits, xs, body, .. } => {
            sig.is_loop = true;
            let data = region(*body);
            let (carries, slices) = data.params[1..].split_at(inits.len());
            let (_, pieces) = data.results.split_at(inits.len());
            let mut border = Border {
                region: *body,
                params: data.params.iter().map(|_| Gives::Any).collect(),
                results: carries.iter().map(|p| Need::Same(*p)).collect(),
            };
            for (i, &carry) in carries.iter().enumerate() {
                sig.operands[2 + i] = Need::Same(carry);
                sig.results[i] = Gives::Same(carry);
            }
            for (i, (&x, &slice)) in xs.iter().zip(slices).enumerate() {
                let (whole, part) = stacked(kernel, x)?;
                sig.operands[2 + inits.len() + i] = Need::Exactly {
                    layout: whole,
                    pulls: true,
                    why: "taken apart by a loop",
                };
                if is_array(slice) {
                    border.params[1 + inits.len() + i] = Gives::Exactly(part, "slice of what a loop takes apart");
                }
            }
            for (&piece, (&whole, gives)) in pieces
                .iter()
                .zip(results.iter().zip(&mut sig.results).skip(inits.len()))
            {
                let (layout, part) = stacked(kernel, whole)?;
                *gives = Gives::Made(layout);
                border.results.push(match is_array(piece) {
                    true => Need::Exactly {
                        layout: part,
                        pulls: true,
                        why: "put together by a loop",
                    },
                    false => Need::Any,
                });
            }
            sig.regions.push(border);
        }
        OpKind::While { cond, body, .. } => {
            sig.is_loop = true;
            let params = &region(*body).params;
            let same = || params.iter().map(|p| Need::Same(*p));
            sig.operands = same().collect();
            sig.results = params.iter().map(|p| Gives::Same(*p)).collect();
            sig.regions.push(Border {
                region: *cond,
                params: params.iter().map(|p| Gives::Same(*p)).collect(),
                results: std::iter::once(Need::Any).chain(same()).collect(),
            });
            sig.regions.push(Border {
                region: *body,
                params: params.iter().map(|_| Gives::Any).collect(),
                results: same().collect(),
            });
        }
        OpKind::Switch { .. } | OpKind::Scope { .. } => {
            for_each_region(&data.kind, &mut |r| {
                sig.regions.push(Border {
                    region: r,
                    params: smallvec![],
                    results: results.iter().map(|r| Need::Same(*r)).collect(),
                });
            });
        }
        OpKind::WarpMap { body, .. } => {
            let params = &region(*body).params;
            sig.operands = params.iter().map(|p| Need::Same(*p)).collect();
            sig.regions.push(Border {
                region: *body,
                params: params.iter().map(|_| Gives::Any).collect(),
                results: results.iter().map(|r| Need::Same(*r)).collect(),
            });
        }
        synchronisation_ops!()
        | aside_ops!()
        | OpKind::AsyncStoreSmem { .. }
        | OpKind::AxisIndex { .. }
        | OpKind::CopyGmemToSmem { .. }
        | OpKind::CopySmemToGmem { .. }
        | OpKind::Prefetch { .. } => {}
    }
    Ok(sig)
}

impl Signature {
    /// Whether the result is a splat where all operands are: each of its elements is made of their elements.
    pub fn keeps_splats(&self, result: Value) -> bool {
        let made_of = |need: &Need| matches!(need, Need::Derives) || matches!(need, Need::Same(r) if *r == result);
        self.regions.is_empty()
            && matches!(self.results[0], Gives::Any | Gives::Derived)
            && self.operands.iter().any(made_of)
    }
}

impl Signature {
    /// The layout that the op gives its `k`th result, an array, when its operands are laid out as they are; `None`: any.
    /// `operands`: what the op uses.
    pub fn natural(
        &self,
        kernel: &Kernel,
        op: Op,
        layouts: &Layouts,
        operands: &[Value],
        k: usize,
    ) -> Option<RegisterLayout> {
        let result = kernel.ops[op].results[k];
        let data = &kernel.values[result];
        match &self.results[k] {
            Gives::Any => None,
            Gives::Varies(dim) => layouts[result]
                .as_ref()
                .filter(|l| is_constant_along(l, *dim))
                .map(|l| with_dim_in_slots(l.shape(), None, l.group())),
            Gives::Splat => Some(RegisterLayout::splat(data.ty.shape(), group_of(data.group))),
            Gives::Exactly(layout, _) | Gives::Made(layout) => Some(layout.clone()),
            Gives::Same(other) => layouts[*other].clone(),
            Gives::Derived => {
                let scalar = || RegisterLayout::splat(&[], group_of(data.group));
                let from = layouts[operands[0]].clone().unwrap_or_else(scalar);
                let natural = self.derived.as_ref()?.forward(&from, data.ty.shape())?;
                let free = self.moves
                    && layouts[result]
                        .as_ref()
                        .is_some_and(|to| natural.rename_to(to).is_some());
                (!free).then_some(natural)
            }
        }
    }
}

impl Gives {
    /// The same of a region's parameter.
    pub fn of_param(&self, layouts: &Layouts) -> Option<RegisterLayout> {
        match self {
            Gives::Exactly(layout, _) | Gives::Made(layout) => Some(layout.clone()),
            Gives::Same(other) => layouts[*other].clone(),
            Gives::Any | Gives::Varies(_) | Gives::Splat | Gives::Derived => None,
        }
    }
}

impl Need {
    /// What the operand would have to be laid out as; `None`: it is right as it is.
    pub fn unmet(&self, kernel: &Kernel, layouts: &Layouts, v: Value) -> Option<RegisterLayout> {
        let ty = kernel.ty(v);
        let own = layouts[v].as_ref()?;
        let fills = own.is_splat() && !ty.is_acc();
        match self {
            Need::Any | Need::Prefers(_) | Need::PrefersPartOf(_) | Need::Derives => None,
            Need::Same(other) => layouts[*other].clone().filter(|l| l != own && !fills),
            Need::Exactly { layout, .. } => (layout != own && !fills).then(|| layout.clone()),
            Need::Runs(dim) => (!has_runs(own, *dim)).then(|| with_dim_in_slots(own.shape(), Some(*dim), own.group())),
            Need::Stored { along, .. } => {
                let bits = ty.dtype().bits();
                let bits = if ty.dtype() == crate::dtype::DType::Bool {
                    8
                } else {
                    bits
                };
                let right = fills || !own.is_constant_somewhere() && has_whole_bytes(own, bits, *along);
                // Where there is none with whole bytes the plan of the access reports it.
                (!right).then(|| storable(own, bits, *along)).filter(|l| l != own)
            }
        }
    }
}
