//! How ops touch memory: the plan of every load and store, of every copy, of every operand of a wgmma in shared memory, made once on
//! the kernel and its layouts, for lowering to emit. What cannot be done is refused here.
use crate::error::{Error, Fault, Result};
use crate::kernel_ir::class::{aside_ops, pure_ops, synchronisation_ops, transfer_ops};
use crate::kernel_ir::polling::{self, Polling};
use crate::kernel_ir::{
    AccUse, Does, Elem, InlineMap, InlinePtx, Kernel, MmaOperand, Op, OpKind, Place, RefUse, SmemTransforms, Value,
    num_elements, op, words,
};
use crate::layout::infer::{group_of, spec};
use crate::layout::smem_layout::SmemView;
use crate::layout::tensor_memory::{self, Accumulates, TmemView};
use crate::layout::tma::{CopyError, CopyPlan};
use crate::layout::transfer::{self, AccessKind, Direction, Memory, Options, TransferError, TransferPlan};
use crate::layout::views::{self, CopyUse};
use crate::layout::wgmma::{Major, Operand, OperandError, Unit};
use crate::layout::{Assignment, RegisterLayout, signature};
use cranelift_entity::EntitySet;
use rustc_hash::FxHashMap;

/// The plans of a kernel's accesses.
#[derive(Clone, Debug, Default)]
pub struct Accesses {
    /// Of loads, stores, swaps and atomic updates.
    pub transfers: FxHashMap<Op, Transfer>,
    /// Of copies and prefetches; none of those of no bytes, which no bulk copy and no tensor map can express.
    pub copies: FxHashMap<Op, Option<Copy>>,
    /// Of wgmmas.
    pub operands: FxHashMap<Op, Operands>,
    /// Of loads and stores of tensor memory.
    pub tensor_memory: FxHashMap<Op, Tensor>,
    /// Of copies of shared memory to tensor memory.
    pub to_tensor_memory: FxHashMap<Op, (SmemView, Operand, TmemView)>,
    /// Of products in tensor memory.
    pub products: FxHashMap<Op, Product>,
    /// Of inline PTX, what its references show.
    pub inline: FxHashMap<Op, Vec<Option<SmemView>>>,
}

/// The view that an op takes of memory, and how an array of registers comes from there and gets there.
#[derive(Clone, Debug)]
pub struct Transfer {
    pub view: SmemView,
    /// Absent: it loads nothing, or one element.
    pub load: Option<TransferPlan>,
    /// Absent: it stores nothing, or one element.
    pub store: Option<TransferPlan>,
}

/// A bulk or tensor copy.
#[derive(Clone, Debug)]
pub struct Copy {
    /// Its side in shared memory.
    pub smem: SmemView,
    pub plan: CopyPlan,
    /// Of the whole copy, all parts.
    pub bytes: u32,
}

/// What a wgmma reads of shared memory.
#[derive(Clone, Debug)]
pub struct Operands {
    /// Columns of one instruction.
    pub n: u64,
    pub right: (SmemView, Operand),
    /// Absent: in registers.
    pub left: Option<(SmemView, Operand)>,
}

/// How an array is moved from or to tensor memory.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub view: TmemView,
    /// The array's; of one value in all elements, one that can be moved.
    pub layout: RegisterLayout,
    pub pieces: Vec<tensor_memory::Piece>,
}

/// A product that accumulates in tensor memory.
#[derive(Clone, Debug)]
pub struct Product {
    /// Columns of one instruction.
    pub n: u64,
    pub acc: (TmemView, Accumulates),
    pub left: Left,
    pub right: (SmemView, Operand),
}

#[derive(Clone, Debug)]
pub enum Left {
    Smem(SmemView, Operand),
    Tmem(TmemView),
}

/// Plans all accesses.
pub fn run(kernel: &Kernel, assignment: &Assignment) -> Result<Accesses> {
    let mut planner = Planner {
        kernel,
        assignment,
        polling: polling::find(kernel),
        used: kernel.used_values(),
        out: Accesses::default(),
    };
    kernel.try_for_each_op(&mut |op| planner.op(op))?;
    Ok(planner.out)
}

struct Planner<'a> {
    kernel: &'a Kernel,
    assignment: &'a Assignment,
    polling: Polling,
    used: EntitySet<Value>,
    out: Accesses,
}

impl Planner<'_> {
    fn op(&mut self, op: Op) -> Result<()> {
        let kernel = self.kernel;
        let data = &kernel.ops[op];
        match &data.kind {
            transfer_ops!() => data.kind.transfer().map_or(Ok(()), |moved| {
                if moved.at.is_some() {
                    return self.transfer(op, moved.view, None, None);
                }
                // What a store replaces may never have been written: it is loaded only where something uses it.
                let mut loaded = data.results.first().copied();
                loaded = loaded.filter(|v| moved.value.is_none() || self.used.contains(*v));
                self.transfer(op, moved.view, loaded, moved.value)
            }),
            OpKind::AsyncStoreSmem { dst, value, .. } => {
                self.transfer(op, dst, None, Some(*value))?;
                self.whole_words(op, dst)
            }
            OpKind::CopyGmemToSmem { .. } | OpKind::CopySmemToGmem { .. } | OpKind::Prefetch { .. } => self.copy(op),
            OpKind::Wgmma { acc, a, b } => self.operands(op, acc, a, b),
            OpKind::TmemLoad { src: r } => self.tensor_memory(op, r, data.results[0]),
            OpKind::TmemStore { dst: r, value } => self.tensor_memory(op, r, *value),
            OpKind::Tcgen05Mma { acc, a, b, .. } => self.product(op, acc, a, b),
            OpKind::TmemCopy { src, dst } => self.copy_to_tensor_memory(op, src, dst),
            OpKind::TmemWait { .. } | OpKind::Tcgen05Commit { .. } => Ok(()),
            pure_ops!() => self.pure(op),
            OpKind::InlinePtx { does, code, refs, args } => self.inline(op, *does, code, refs, args),
            OpKind::For { inits, xs, .. } => {
                let made = &data.results[inits.len()..];
                xs.iter().chain(made).try_for_each(|v| {
                    let (whole, _) = signature::stacked(kernel, *v)?;
                    self.held(op, &whole, kernel.target.max_stacked_slots)
                })
            }
            synchronisation_ops!()
            | aside_ops!()
            | OpKind::OptimizationBarrier { .. }
            | OpKind::AccInit { .. }
            | OpKind::WgmmaWait { .. }
            | OpKind::AccRead { .. }
            | OpKind::DotInPlace { .. }
            | OpKind::While { .. }
            | OpKind::Switch { .. }
            | OpKind::Scope { .. }
            | OpKind::WarpMap { .. } => Ok(()),
        }
    }

    /// What is computed of values accesses nothing, but may take many elements into each thread.
    fn pure(&mut self, op: Op) -> Result<()> {
        let kernel = self.kernel;
        let kind = &kernel.ops[op].kind;
        if let OpKind::InlinePtx { does, code, refs, args } = kind {
            return self.inline(op, *does, code, refs, args);
        }
        let run = if let OpKind::ArgReduce { a, .. } = kind {
            Some(*a)
        } else if let OpKind::Cumulative { a, axis, .. } = kind {
            Some(*a).filter(|a| op::is_short_run(kernel.ty(*a).shape(), *axis as usize))
        } else {
            None
        };
        run.map_or(Ok(()), |a| {
            self.held(op, self.assignment.layout(a)?, kernel.target.max_run_slots)
        })
    }

    /// What is unrolled over a thread's elements does not have too many of them.
    fn held(&self, op: Op, layout: &RegisterLayout, limit: u32) -> Result<()> {
        let slots = layout.slots();
        if slots <= limit {
            return Ok(());
        }
        let (name, shape) = (self.kernel.ops[op].kind.name(), layout.shape());
        Err(
            Error::unsupported(format!("{name}: an array of {slots} elements a thread"))
                .expected(format!(
                    "at most {limit} of an array that is taken apart along a dimension"
                ))
                .got(format!("shape {shape:?}"))
                .remedy("work on smaller blocks, or keep the array in shared memory and index it in the loop"),
        )
    }

    fn transfer(&mut self, op: Op, r: &RefUse, loaded: Option<Value>, stored: Option<Value>) -> Result<()> {
        let kernel = self.kernel;
        let shared = kernel.allocs[r.alloc].is_smem();
        let (view, memory) = match shared {
            true => (views::smem(kernel, &self.assignment.smem, r, true)?, Memory::Shared),
            false => {
                let align = kernel.target.gmem_alignment;
                (views::gmem(kernel, r)?, Memory::Global { align })
            }
        };
        let array = |v: Option<Value>| v.filter(|v| !kernel.ty(*v).is_scalar());
        let near = shared && r.place == Place::Here;
        let moved = kernel.ops[op].kind.transfer();
        let masked = moved.is_some_and(|moved| moved.mask.is_some());
        let singly = r.has_windows() && !masked;
        let refused = |e: TransferError| {
            let name = kernel.ops[op].kind.name();
            let remedy = match e {
                TransferError::Shape { .. } => "take whole tiles of the buffer, or give it no transforms",
                TransferError::SubByteStore { .. } => {
                    "store slices that begin and end with whole bytes, or keep the array as int8"
                }
            };
            Error::unsupported(format!("{name} of {}: {e}", words::of_use(kernel, r))).remedy(remedy)
        };
        let mut load = None;
        if let Some(v) = array(loaded) {
            // `ldmatrix` is a weak load; what a loop waits for is looked at by others.
            let matrix = near && !masked && self.polling.looks[op].is_none();
            let options = Options {
                matrix,
                stagger: !masked,
                singly,
            };
            let plan = transfer::plan(self.assignment.layout(v)?, &view, memory, Direction::Load, options);
            load = Some(plan.map_err(refused)?);
        }
        let mut store = None;
        if let Some(v) = array(stored) {
            let layout = self.assignment.layout(v)?;
            let plan = if moved.is_some_and(|moved| moved.update.is_some()) {
                // Reductions of single elements, or of neighbours in one lane.
                let options = Options {
                    matrix: false,
                    stagger: false,
                    singly,
                };
                transfer::plan(layout, &view, memory, Direction::Store, options)
            } else {
                let options = Options {
                    matrix: near && !masked,
                    stagger: !masked,
                    singly,
                };
                transfer::plan_store(layout, &view, memory, options)
            };
            store = Some(plan.map_err(refused)?);
        }
        self.out.transfers.insert(op, Transfer { view, load, store });
        Ok(())
    }

    /// What `st.async` stores at once is one, two or four words.
    fn whole_words(&self, op: Op, dst: &RefUse) -> Result<()> {
        let plan = self.out.transfers.get(&op).and_then(|t| t.store.as_ref());
        let is_word = |kind: &AccessKind| matches!(kind, AccessKind::Vector { bytes } if *bytes >= 4);
        if plan.is_some_and(|plan| plan.accesses.iter().all(|access| is_word(&access.kind))) {
            return Ok(());
        }
        Err(Error::unsupported(format!(
            "async_store_smem to {}: stores of less than 4 bytes",
            words::of_use(self.kernel, dst)
        ))
        .expected("32 or 64 bits of neighbouring elements in one lane")
        .remedy(
            "plgpu.layout_cast to a layout in which a lane has neighbours (WG_STRIDED with vec_size), or a 32-bit type",
        ))
    }

    /// What a text that runs once takes for granted of a reference: that it is tiled and swizzled so, and begins where a swizzle begins.
    fn relied_on(
        &self,
        code: &InlinePtx,
        r: &RefUse,
        view: &SmemView,
        expected: Option<&SmemTransforms>,
    ) -> Result<()> {
        let (kernel, name) = (self.kernel, code.name());
        let transforms = match kernel.allocs[r.alloc].is_smem() {
            true => self.assignment.smem[r.alloc].clone().unwrap_or_default(),
            false => SmemTransforms::default(),
        };
        let plain = |t: &SmemTransforms| (t.tiling.clone(), t.swizzle_bytes.max(16));
        if let Some(expected) = expected
            && plain(&transforms) != plain(expected)
        {
            let words = |t: &SmemTransforms| format!("tiles of {:?}, swizzle {}", t.tiling, t.swizzle_bytes.max(16));
            return Err(Error::unsupported(format!("{name} of {}", words::of_use(kernel, r)))
                .expected(format!(
                    "the function's plgpu.RefType as the buffer is: {}",
                    words(&transforms)
                ))
                .got(words(expected))
                .remedy("give the buffer (plgpu.SMEM, plgpu.BlockSpec) and its plgpu.RefType the same transforms"));
        }
        // The pattern repeats after eight rows.
        let pattern = u64::from(view.swizzle.bytes()) * 8 * 8;
        let begins = view.swizzle.is_none() || view.base_alignment().is_multiple_of(pattern);
        if !begins || view.dims.iter().any(|d| !d.loose.is_empty()) {
            return Err(Error::unsupported(format!(
                "{name} of {}: where it begins",
                words::of_use(kernel, r)
            ))
            .expected("slices that begin at whole tiles")
            .remedy("start slices at multiples of the tile, and state what is known with pl.multiple_of; or pass the whole buffer and slice it in there"));
        }
        Ok(())
    }

    /// A tensor map is made before the launch, of an array in device memory.
    fn mapped(&self, code: &InlinePtx, r: &RefUse, view: Option<&SmemView>, map: &InlineMap) -> Result<()> {
        let kernel = self.kernel;
        let name = code.name();
        let data = &kernel.allocs[r.alloc];
        let (Some(view), true) = (view, data.is_gmem()) else {
            return Err(
                Error::unsupported(format!("{name}: a tensor map over {}", words::of_use(kernel, r)))
                    .expected("an array in device memory")
                    .remedy("copy between device memory and shared memory"),
            );
        };
        let is_fixed = view.dynamic.is_empty() && view.dropped.is_empty() && view.is_regular();
        if !is_fixed || !view.offset.is_multiple_of(128) {
            return Err(
                Error::unsupported(format!("{name}: a tensor map over {}", words::of_use(kernel, r)))
                    .expected(
                        "a reference that begins at a multiple of 16 bytes which is known when the kernel is compiled",
                    )
                    .got(match is_fixed {
                        true => format!("a slice that begins at byte {}", view.offset / 8),
                        false => "a slice whose start is computed".to_string(),
                    })
                    .remedy("pass the whole reference, and slice it in the copy (gmem_slice=)"),
            );
        }
        let end = map.span().map(|n| n + view.offset / 8);
        let bytes = r.dtype().and_then(|dtype| dtype.bytes(num_elements(&data.shape)));
        if end > bytes {
            return Err(
                Error::invalid(format!("{name}: a tensor map over {}", words::of_use(kernel, r)))
                    .expected(format!("at most {} bytes", bytes.unwrap_or(0)))
                    .got(format!("{} bytes", end.unwrap_or(0)))
                    .remedy("make the map of what the reference has"),
            );
        }
        Ok(())
    }

    /// The references of inline PTX begin where their first elements are; its arrays are in one lane each, where lanes matter.
    fn inline(&mut self, op: Op, does: Does, code: &InlinePtx, refs: &[RefUse], args: &[Value]) -> Result<()> {
        let kernel = self.kernel;
        let mut views = vec![];
        for (i, r) in refs.iter().enumerate() {
            if r.elem == Elem::Barrier {
                views.push(None);
                continue;
            }
            let shared = kernel.allocs[r.alloc].is_smem();
            let view = match shared {
                true => views::smem(kernel, &self.assignment.smem, r, true)?,
                false => views::gmem(kernel, r)?,
            };
            if let Some(whole) = &code.whole {
                self.relied_on(code, r, &view, whole.refs[i].as_ref())?;
                views.push(Some(view));
                continue;
            }
            // One element has an address wherever it is; of more, the text counts on.
            let one = r.shape.iter().product::<u64>() == 1;
            if !one && !view.has_plain_start() {
                return Err(Error::unsupported(format!(
                    "{}: the address of {}",
                    code.name(),
                    words::of_use(kernel, r)
                ))
                .expected("a buffer without swizzle, and slices that begin at whole tiles; or one element")
                .remedy("give the buffer no transforms, or pass a single element of it"));
            }
            views.push(Some(view));
        }
        for map in &code.maps {
            self.mapped(code, &refs[map.of as usize], views[map.of as usize].as_ref(), map)?;
        }
        self.out.inline.insert(op, views);
        if let Some(whole) = &code.whole {
            let data = &kernel.ops[op];
            let arrays = whole.args.iter().zip(args);
            for (array, v) in arrays.chain(whole.results.iter().zip(&data.results)) {
                let Some(array) = array else { continue };
                let ty = kernel.ty(*v);
                let layout = spec::of_value(&array.layout, kernel, *v)?;
                if layout.slots_of(&array.order).is_none() {
                    return Err(Error::unsupported(format!("{} of {ty} in {layout}", code.name()))
                        .expected("a layout in which each thread has as many elements, all of the array's")
                        .remedy("another shape, or another layout"));
                }
            }
            return Ok(());
        }
        if does == Does::Computes {
            return Ok(());
        }
        // The layout that the text runs in, and an array that has it.
        let arrays: Vec<Value> = args
            .iter()
            .chain(&kernel.ops[op].results)
            .copied()
            .filter(|v| !kernel.ty(*v).is_scalar())
            .collect();
        let mut laid_out = None;
        for &v in &arrays {
            let layout = self.assignment.layout(v)?;
            if laid_out.is_none() && !layout.is_splat() {
                laid_out = Some((v, layout.clone()));
            }
        }
        let Some((v, layout)) = laid_out.or_else(|| {
            let data = &kernel.values[*arrays.first()?];
            let dealt = RegisterLayout::dealt(data.ty.shape(), group_of(data.group));
            Some((arrays[0], dealt))
        }) else {
            return Ok(());
        };
        let refuse = |what: &str| {
            let (expected, remedy) = match code.called {
                None => (
                    "each element in one lane, and elements for all lanes: the text does more than compute from its operands",
                    "an array with as many elements for each thread (a multiple of 128 for a warpgroup, of `pack` a thread), or plgpu.layout_cast to a layout that repeats nothing",
                ),
                Some(_) => (
                    "a multiple of 128 elements (in a warp region, of 32), each in one lane, or one element",
                    "ref.at[i] for each of a few words; as many elements for each thread for more",
                ),
            };
            Err(Error::invalid(format!("{} of an array {what}", code.name()))
                .expected(expected)
                .got(format!("{} in {layout}", kernel.ty(v)))
                .remedy(remedy))
        };
        if layout.replication() > 1 || layout.is_constant_somewhere() {
            return refuse("that several lanes hold the same elements of");
        }
        let is_even = !layout.is_padded() && layout.slots() % code.pack == 0;
        if does == Does::Acts && !is_even {
            return refuse("that some lanes have no elements of");
        }
        Ok(())
    }

    fn copy(&mut self, op: Op) -> Result<()> {
        let kernel = self.kernel;
        let kind = &kernel.ops[op].kind;
        let copy = CopyUse::of(kernel, kind).ok_or_else(|| Error::internal(format!("`{}` as a copy", kind.name())))?;
        let shape = &copy.gmem.shape;
        if shape.contains(&0) {
            self.out.copies.insert(op, None);
            return Ok(());
        }
        let (smem, plan) = copy.plan(kernel, &self.assignment.smem)?;
        let plan = plan.and_then(|plan| match &plan {
            CopyPlan::Tensor(tensor) if matches!(kind, OpKind::CopySmemToGmem { .. }) => {
                tensor.check_room_behind().map(|()| plan)
            }
            CopyPlan::Tensor(_) | CopyPlan::Bulk(_) => Ok(plan),
        });
        let plan = plan.map_err(|e| copy_error(kernel, kind.name(), copy.gmem, e))?;
        let elements: u64 = shape.iter().product();
        let bytes = (elements * u64::from(smem.bits) / 8) as u32;
        self.out.copies.insert(op, Some(Copy { smem, plan, bytes }));
        Ok(())
    }

    fn tensor_memory(&mut self, op: Op, r: &RefUse, array: Value) -> Result<()> {
        let view = tensor_memory::view(self.kernel, r)?;
        let unknown = || Error::internal("an array in a layout that tensor memory does not take");
        let mut layout = self.assignment.layout(array)?.clone();
        if layout.is_splat() {
            layout = tensor_memory::best(&view).ok_or_else(unknown)?;
        }
        let pieces = tensor_memory::plan(&view, &layout).ok_or_else(unknown)?;
        self.out.tensor_memory.insert(op, Tensor { view, layout, pieces });
        Ok(())
    }

    fn copy_to_tensor_memory(&mut self, op: Op, src: &RefUse, dst: &RefUse) -> Result<()> {
        let kernel = self.kernel;
        let to = tensor_memory::left_operand(kernel, dst)?;
        let view = views::smem(kernel, &self.assignment.smem, src, false)?;
        let operand = Operand::of(Unit::Tcgen05, &view, 0, 1, tensor_memory::LANES)
            .map_err(|e| operand_error(kernel, "async_copy_smem_to_tmem: source", src, e))?;
        if operand.major != Major::K {
            return Err(
                Error::unsupported("`async_copy_smem_to_tmem` of a transposed reference")
                    .got(words::of_use(kernel, src))
                    .remedy("copy what lies row by row"),
            );
        }
        self.out.to_tensor_memory.insert(op, (view, operand, to));
        Ok(())
    }

    fn product(&mut self, op: Op, acc: &RefUse, a: &RefUse, b: &RefUse) -> Result<()> {
        let kernel = self.kernel;
        let in_smem = |r: &RefUse| kernel.allocs[r.alloc].is_smem();
        let acc = tensor_memory::accumulator(kernel, acc)?;
        let integer = acc.0.dtype.is_int();
        let view = views::smem(kernel, &self.assignment.smem, b, false)?;
        // Of 64 rows an instruction has half of the columns.
        let columns = match acc.1 {
            Accumulates::Rows => b.shape[1],
            Accumulates::HalfLanes => b.shape[1] / 2,
        };
        let (n, operand) = Operand::widest_of(Unit::Tcgen05, &view, 1, 0, columns, integer)
            .map_err(|e| operand_error(kernel, "tcgen05_mma: right operand", b, e))?;
        let right = (view, operand);
        let left = if in_smem(a) {
            let view = views::smem(kernel, &self.assignment.smem, a, false)?;
            let operand = Operand::of(Unit::Tcgen05, &view, 0, 1, a.shape[0])
                .map_err(|e| operand_error(kernel, "tcgen05_mma: left operand", a, e))?;
            Left::Smem(view, operand)
        } else {
            Left::Tmem(tensor_memory::left_operand(kernel, a)?)
        };
        self.out.products.insert(op, Product { n, acc, left, right });
        Ok(())
    }

    fn operands(&mut self, op: Op, acc: &AccUse, a: &MmaOperand, b: &RefUse) -> Result<()> {
        let kernel = self.kernel;
        let Some(acc) = acc.value() else {
            return Err(Error::internal("wgmma on an accumulator that is still a reference"));
        };
        let integer = kernel.ty(acc).dtype().is_int();
        // B is K × N: dimension 1 is N.
        let view = views::smem(kernel, &self.assignment.smem, b, false)?;
        let (n, operand) =
            Operand::widest(&view, 1, 0, integer).map_err(|e| operand_error(kernel, "wgmma right operand", b, e))?;
        let right = (view, operand);
        let left = match a {
            MmaOperand::Registers(_) => None,
            MmaOperand::Smem(r) => {
                let view = views::smem(kernel, &self.assignment.smem, r, false)?;
                let operand = Operand::of(Unit::Wgmma, &view, 0, 1, 64)
                    .map_err(|e| operand_error(kernel, "wgmma left operand", r, e))?;
                Some((view, operand))
            }
        };
        self.out.operands.insert(op, Operands { n, right, left });
        Ok(())
    }
}

fn copy_error(kernel: &Kernel, op: &str, gmem: &RefUse, e: CopyError) -> Error {
    let remedy = match &e {
        CopyError::Start { needed, .. } => {
            format!("start the slice at a multiple of {needed} and say so with pl.multiple_of, or use a smaller tile")
        }
        CopyError::Extent { tile, .. } => format!("pad the array to a multiple of {tile}"),
        CopyError::NotDense => "copy whole tiles, into a buffer (or slot) of its own".into(),
        CopyError::MinorStart { unit, .. } => format!(
            "begin at a multiple of {unit} and slice what was copied, or load it with ref[...] and store it with ref[...] = value"
        ),
        CopyError::MinorSize { .. } => "copy rows of a multiple of 16 bytes".into(),
        CopyError::SwizzleWidth { .. } => "tile the buffer's minor dimension by exactly the swizzle's width".into(),
        CopyError::SmemAlignment { needed, .. } => format!(
            "copy to whole slots (a leading dimension of the buffer), or start at a multiple of {needed} bytes and say so \
             with pl.multiple_of"
        ),
        CopyError::Stride { .. } | CopyError::Alignment { .. } => {
            "pad the array's minor dimension to a multiple of 16 bytes, or load it with ref[...] instead of a copy"
                .into()
        }
        CopyError::MinorStride => "transpose the array outside of the kernel, or load it with ref[...]".into(),
        CopyError::Dimensions { .. } => "copy in a loop over the outer dimensions".into(),
        CopyError::Pieces { .. } => "copy in a loop, or tile the buffer so that rows are contiguous".into(),
        CopyError::NoRoomBehind { .. } => "store smaller slices, in a loop, or make the array shorter".into(),
        CopyError::Shapes { .. } | CopyError::Limits { .. } => "change the array's or the block's shape".into(),
    };
    let fault = match &e {
        // Copies that another compiler splits up, or whose alignment it takes for granted.
        CopyError::SmemAlignment { .. }
        | CopyError::Start { .. }
        | CopyError::NotDense
        | CopyError::Dimensions { .. }
        | CopyError::Pieces { .. } => Fault::Unsupported,
        CopyError::Extent { .. }
        | CopyError::MinorSize { .. }
        | CopyError::MinorStart { .. }
        | CopyError::SwizzleWidth { .. }
        | CopyError::Stride { .. }
        | CopyError::Alignment { .. }
        | CopyError::MinorStride
        | CopyError::Shapes { .. }
        | CopyError::Limits { .. }
        | CopyError::NoRoomBehind { .. } => Fault::InvalidKernel,
    };
    Error::new(fault, op)
        .expected("a slice that the copy engine can move")
        .got(format!("{}: {e}", words::of_use(kernel, gmem)))
        .remedy(remedy)
}

fn operand_error(kernel: &Kernel, which: &str, r: &RefUse, e: OperandError) -> Error {
    let bytes = 128;
    let elements = r.dtype().map_or(0, |d| bytes * 8 / d.bits());
    Error::invalid(which.to_string())
        .expected(format!("an SMEM tile of 8 rows × the swizzle's width, e.g. tiling [8, {elements}] with a {bytes}-byte swizzle"))
        .got(format!("{}: {e}", words::of_use(kernel, r)))
        .remedy("give the buffer plgpu.TilingTransform((8, swizzle elements)) and plgpu.SwizzleTransform, and slice whole tiles")
}
