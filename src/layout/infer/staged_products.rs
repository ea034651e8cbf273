//! Products for `wgmma` whose right operand has to be brought to shared memory first.
//!
//! The left operand is where it is in shared memory, or in registers, as fragments; the right one is stored and swizzled, a slice of K at a
//! time. That is for f32, which has to be rounded to tf32 on its way, for bytes, which may not lie along N, and for what a kernel computes
//! (narrow weights that it converts and scales). Every element is rounded and stored once, and the tensor core reads it from there, where
//! `mma.sync` needs it in the registers of each warp. 16-bit operands that are loaded from device memory are faster by `mma.sync`
//! (64×64×256: 54 µs against 74, H200), whose way to registers has no slices to wait for.
//!
//! Slices lie along K; 16-bit ones that were computed along N stay so, and are one slice.
//!
//! **Legal** as in [`products`](super::products): operands are loads from which to the product nothing is stored there and nothing
//! released, converted and transposed; they are loaded anew, a slice at a time. Operands of one slice may be anything. What has no whole
//! steps of K, or no room, stays what it is.
use super::products::{self, acc_type, multiply};
use super::smem;
use crate::dtype::DType;
use crate::error::Loc;
use crate::kernel_ir::legality::tensor_core;
use crate::kernel_ir::loads::{Chain, Loads};
use crate::kernel_ir::*;
use crate::layout::signature;
use crate::layout::views::Transforms;
use crate::target::Target;
use cranelift_entity::{EntitySet, SecondaryMap};

/// Bytes of one slice of the right operand, as far as K's steps allow. Chosen: 128 columns of a swizzle's row.
const SLICE_BYTES: u64 = 16 << 10;
/// Bytes of a computed operand, which is one slice.
const COMPUTED_BYTES: u64 = 64 << 10;
/// Slices of one product: all are written one after the other.
const MAX_SLICES: u64 = 32;
/// Shared memory of a block that is left to the compiler's scratch and to barriers.
const SPARE: u64 = 8 << 10;

/// Returns the transforms that left operands want of their allocations.
pub(super) fn run(kernel: &mut Kernel) -> Transforms {
    let mut uses = kernel.use_counts();
    let mut wanted = Transforms::new();
    let mut gone: EntitySet<Op> = EntitySet::new();
    let mut room = Room::of(kernel);
    for region in kernel.live_regions() {
        if kernel.regions[region].group == Group::Warp {
            continue;
        }
        let mut loads = Loads::default();
        for op in kernel.regions[region].ops.clone() {
            loads.pass(kernel, op);
            let Some(mut product) = Product::of(kernel, op, &loads, &uses, &mut room) else {
                continue;
            };
            product.add_preference(kernel, &mut wanted);
            product.leave_left(kernel, &loads, &wanted);
            product.write(kernel, op, &mut uses, &mut gone);
        }
    }
    for region in kernel.regions.values_mut() {
        region.ops.retain(|op| !gone.contains(*op));
    }
    wanted
}

/// The shared memory that is left.
struct Room {
    taken: u64,
    target: Target,
}

impl Room {
    fn of(kernel: &Kernel) -> Room {
        let all = kernel.allocs.values().filter(|data| data.within.is_none());
        let taken = all
            .map(|data| match &data.kind {
                AllocKind::Smem { dtype, .. } => {
                    let copies = if data.collective { 1 } else { kernel.num_warpgroups };
                    dtype.bytes(num_elements(&data.shape)).unwrap_or(0) * u64::from(copies)
                }
                AllocKind::SmemUnion => num_elements(&data.shape),
                _ => 0,
            })
            .sum();
        Room {
            taken,
            target: kernel.target.clone(),
        }
    }

    /// Takes so many bytes once, or up to `most` (1 or 2) times where no fewer blocks fit a multiprocessor then. The number; none: it does
    /// not fit.
    fn take(&mut self, bytes: u64, most: u64) -> Option<u64> {
        let blocks = |n: u64| self.target.blocks_by_smem(self.taken + n * bytes);
        let fits = |n: u64| self.taken + n * bytes + SPARE <= self.target.max_smem_bytes.into();
        let n = (1..=most)
            .rev()
            .find(|n| fits(*n) && (*n == 1 || blocks(*n) == blocks(1)))?;
        self.taken += n * bytes;
        Some(n)
    }
}

/// An operand, and where its slices come from; absent: it is one slice.
struct Operand {
    value: Value,
    chain: Option<Chain>,
}

impl Operand {
    /// A slice of K, rounded if it must be.
    fn part(&self, kernel: &mut Kernel, region: Region, start: u64, size: u64, loc: Loc) -> Value {
        let part = match &self.chain {
            Some(chain) => chain.part(kernel, region, start, size),
            None => self.value,
        };
        if kernel.ty(part).dtype() != DType::F32 {
            return part;
        }
        let (op, ty) = (UnaryOp::RoundToTf32, kernel.ty(part).clone());
        kernel.append1(region, OpKind::Unary { op, a: part }, ty, loc)
    }
}

struct Product {
    acc: Option<Value>,
    a: Operand,
    /// Where the left operand is in shared memory.
    left: Option<RefUse>,
    b: Operand,
    /// Whether the right operand's slices, K × N, lie along N.
    is_along_n: bool,
    k: u64,
    /// Of one slice.
    depth: u64,
    /// Buffers for slices of the right operand, in turn.
    buffers: u64,
    /// Bytes of a swizzled row.
    row: u64,
    /// What made the operands wider, without other uses.
    converted: Vec<Op>,
}

impl Product {
    fn of(kernel: &Kernel, op: Op, loads: &Loads, uses: &SecondaryMap<Value, u32>, room: &mut Room) -> Option<Product> {
        let OpKind::Dot {
            acc, a: wide, b: other, ..
        } = kernel.ops[op].kind
        else {
            return None;
        };
        let [a, b] = products::factors(kernel, op)?;
        let converted = [(wide, a), (other, b)]
            .into_iter()
            .filter(|(v, factor)| v != factor && uses[*v] == 1);
        let converted = converted.filter_map(|(v, _)| kernel.def_op(v)).collect();
        let (left, right) = (kernel.ty(a), kernel.ty(b));
        let result = kernel.ty(kernel.ops[op].results[0]);
        let (&[n, k], [_, _]) = (right.shape(), left.shape()) else {
            return None;
        };
        tensor_core::wgmma(&acc_type(result), left, &Type::of(right.dtype(), [k, n].as_slice())).ok()?;
        let element = u64::from(right.dtype().bits() / 8);
        if element == 2 {
            return Product::of_computed(kernel, (acc, a, b), (n, k), (loads, uses), room);
        }
        let row = [128, 64, 32]
            .into_iter()
            .find(|row| (k * element).is_multiple_of(*row))?;
        // The longest slice of whole rows, within its bytes.
        let rows = k * element / row;
        let most = (SLICE_BYTES / (n * row)).clamp(1, rows);
        let count = (1..=most).rev().find(|c| rows.is_multiple_of(*c))?;
        let depth = count * row / element;
        let operand = |value| Operand {
            value,
            chain: Chain::of(kernel, value, loads, uses),
        };
        let (a, b) = (operand(a), operand(b));
        let is_cut = a.chain.is_some() && b.chain.is_some();
        if k / depth > MAX_SLICES || depth < k && !is_cut {
            return None;
        }
        let bytes = n * depth * element * u64::from(kernel.num_warpgroups);
        let buffers = room.take(bytes, (k / depth).min(2))?;
        Some(Product {
            acc,
            a,
            left: None,
            b,
            is_along_n: false,
            k,
            depth,
            buffers,
            row,
            converted,
        })
    }

    /// Of a right operand of 16 bits, if it is not only loaded.
    fn of_computed(
        kernel: &Kernel,
        (acc, a, b): (Option<Value>, Value, Value),
        (n, k): (u64, u64),
        (loads, uses): (&Loads, &SecondaryMap<Value, u32>),
        room: &mut Room,
    ) -> Option<Product> {
        let mut origin = b;
        while let OpKind::Transpose { a, .. } = kernel.ops[kernel.def_op(origin)?].kind {
            origin = a;
        }
        if let OpKind::Load { .. } | OpKind::LoadMasked { .. } = kernel.ops[kernel.def_op(origin)?].kind {
            return None;
        }
        let is_along_n = matches!(kernel.ops[kernel.def_op(b)?].kind, OpKind::Transpose { .. });
        let row = [128, 64, 32]
            .into_iter()
            .find(|row| (if is_along_n { n } else { k } * 2).is_multiple_of(*row))?;
        if n * k * 2 > COMPUTED_BYTES || k % 16 != 0 {
            return None;
        }
        room.take(n * k * 2 * u64::from(kernel.num_warpgroups), 1)?;
        Some(Product {
            acc,
            a: Operand {
                value: a,
                chain: Chain::of(kernel, a, loads, uses),
            },
            left: None,
            b: Operand { value: b, chain: None },
            is_along_n,
            k,
            depth: k,
            buffers: 1,
            row,
            converted: vec![],
        })
    }

    /// Leaves the left operand in shared memory, if it lies there as the tensor core reads it.
    fn leave_left(&mut self, kernel: &Kernel, loads: &Loads, wanted: &Transforms) {
        if self.depth != self.k || kernel.ty(self.a.value).dtype() == DType::F32 {
            return;
        }
        let Some(r) = products::operand(kernel, self.a.value, loads) else {
            return;
        };
        let AllocKind::Smem { transforms, .. } = &kernel.allocs[r.alloc].kind else {
            return;
        };
        let mut with = Transforms::new();
        with[r.alloc] = transforms.clone().or_else(|| wanted[r.alloc].clone());
        if with[r.alloc].is_some() && smem::is_operand(kernel, &with, &r, smem::Side::Left) {
            self.left = Some(r);
        }
    }

    /// Fragments are read from shared memory without bank conflicts where it is swizzled.
    fn add_preference(&self, kernel: &Kernel, wanted: &mut Transforms) {
        let Some(chain) = &self.a.chain else { return };
        let source = chain.source(kernel);
        let data = &kernel.allocs[source.alloc];
        let AllocKind::Smem {
            dtype,
            transforms: None,
        } = data.kind
        else {
            return;
        };
        if wanted[source.alloc].is_some() {
            return;
        }
        let used = smem::matrix_dims(kernel, source, Loc::CALL_SITE, "");
        let Some(transforms) = used.and_then(|used| smem::widest(&data.shape, dtype, &used)) else {
            return;
        };
        let mut with = wanted.clone();
        with[source.alloc] = Some(transforms);
        let mut is_allowed = true;
        kernel.for_each_op(&mut |op| {
            let kind = &kernel.ops[op].kind;
            visit::for_each_ref(kind, &mut |r| {
                is_allowed &= r.alloc != source.alloc || products::allows(kernel, kind, r, &with);
            });
        });
        if is_allowed {
            *wanted = with;
        }
    }

    /// A slice of the right operand, dealt so that both its load and its store have no bank conflicts: 32-bit elements that are contiguous
    /// along N. A thread has four of K of one column.
    fn dealt(&self, kernel: &mut Kernel, body: Region, value: Value, loc: Loc) -> Value {
        let Some(chain) = &self.b.chain else { return value };
        let ty = kernel.ty(value).clone();
        let &[n, depth] = ty.shape() else { return value };
        let is_along_k = signature::contiguous(kernel, chain.source(kernel)) == chain.dim();
        let columns = [4, 2, 1].into_iter().find(|w| n.is_multiple_of(32 * w));
        let Some(columns) = columns.filter(|_| !is_along_k && ty.dtype().bits() == 32) else {
            return value;
        };
        let rest = 4 / columns;
        if depth % (4 * rest) != 0 {
            return value;
        }
        let layout = LayoutSpec::Tiled {
            name: String::new(),
            tiling: vec![vec![32 * columns, 4 * rest], vec![32, 4]],
            warp_dims: vec![LayoutDim::Dim(-4), LayoutDim::Dim(-3)],
            lane_dims: vec![LayoutDim::Dim(-2)],
            vector_dim: -1,
        };
        kernel.append1(body, OpKind::LayoutCast { a: value, layout }, ty, loc)
    }

    /// Replaces an op by it, in a scope with the buffers.
    fn write(&self, kernel: &mut Kernel, op: Op, uses: &mut SecondaryMap<Value, u32>, gone: &mut EntitySet<Op>) {
        let loc = kernel.ops[op].loc;
        let result = kernel.ops[op].results[0];
        let ty = acc_type(kernel.ty(result));
        let (dtype, n) = (kernel.ty(self.b.value).dtype(), kernel.ty(self.b.value).shape()[0]);
        let elements = self.row * 8 / u64::from(dtype.bits());
        let (rows, columns) = if self.is_along_n {
            (self.depth, n)
        } else {
            (n, self.depth)
        };
        let buffers: Vec<Alloc> = (0..self.buffers)
            .map(|_| {
                kernel.allocs.push(AllocData {
                    kind: AllocKind::Smem {
                        dtype,
                        transforms: Some(SmemTransforms {
                            tiling: [8, elements].as_slice().into(),
                            swizzle_bytes: self.row as u32,
                        }),
                    },
                    shape: [u64::from(kernel.num_warpgroups), rows, columns].as_slice().into(),
                    collective: true,
                    within: None,
                    owner: Owner::Compiler,
                    loc,
                })
            })
            .collect();
        let body = kernel.new_region(kernel.values[result].group);
        let mut acc = kernel.append1(body, OpKind::AccInit { init: self.acc }, ty, loc);
        let own = own_index(kernel, body, loc);
        for (i, start) in (0..self.k).step_by(self.depth as usize).enumerate() {
            let a = match &self.left {
                Some(r) => MmaOperand::Smem(r.clone()),
                None => MmaOperand::Registers(self.a.part(kernel, body, start, self.depth, loc)),
            };
            let value = self.b.part(kernel, body, start, self.depth, loc);
            let value = self.dealt(kernel, body, value, loc);
            let mut dst = kernel.whole(buffers[i % buffers.len()]);
            dst.shape = [rows, columns].as_slice().into();
            dst.steps = vec![Step::Index(vec![
                DimIndex::At(own),
                DimIndex::all(rows),
                DimIndex::all(columns),
            ])];
            let (b, value) = if self.is_along_n
                && let Some(op) = kernel.def_op(value)
                && let OpKind::Transpose { a, .. } = kernel.ops[op].kind
            {
                uses[a] += 1;
                products::unused(kernel, uses, value, gone);
                (dst.clone(), a)
            } else {
                (products::transposed(dst.clone(), &[1, 0]), value)
            };
            kernel.append(body, OpKind::Store { dst, value }, [], loc);
            kernel.append(body, OpKind::CommitSmem, [], loc);
            // The buffer that is stored to next has been read.
            let running = if start + self.depth == self.k {
                0
            } else {
                self.buffers - 1
            };
            (_, acc) = multiply(kernel, body, acc, (a, b), running as u32, loc);
        }
        let array = kernel.ty(result).clone();
        let acc = AccUse::Value(acc);
        let ty = acc_type(&array);
        let read = kernel.append(body, OpKind::AccRead { acc }, [array, ty], loc);
        kernel.regions[body].results = vec![read[0]];
        kernel.ops[op].kind = OpKind::Scope {
            allocs: buffers,
            collective: false,
            body,
        };
        gone.extend(self.converted.iter().copied());
        if self.left.is_some() {
            products::unused(kernel, uses, self.a.value, gone);
        }
        let left = Some(&self.a).filter(|_| self.left.is_none());
        for operand in left.into_iter().chain([&self.b]) {
            gone.extend(operand.chain.iter().flat_map(|chain| chain.ops().iter().copied()));
        }
    }
}

/// Which of the buffers' parts is the executing warpgroup's.
fn own_index(kernel: &mut Kernel, region: Region, loc: Loc) -> Index {
    let Some(axis) = kernel.thread_axis.filter(|_| kernel.num_warpgroups > 1) else {
        return Index::Const(0);
    };
    let own = kernel.append1(region, OpKind::AxisIndex { axis }, Type::Scalar(DType::I32), loc);
    kernel.values[own].facts = Facts::range(0, i64::from(kernel.num_warpgroups) - 1);
    Index::Value(own)
}
