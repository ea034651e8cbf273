//! The table of ops: a row for each, from which everything follows that can be said of an op in a line.
//!
//! # Grammar
//! ```text
//! /// What it does: its results, and what exactly they are.
//! Variant "name" { [name: Names] "label" field: Type = default, … }
//!     kind class, types |t| check, legal |l| check, effects row;
//! ```
//! * `Variant` of [`OpKind`](super::OpKind), and its `name` in dumps and messages. Where a field `[op: Names]` stands first, its name is the op's.
//!   `(…)` instead of `{…}`: the one field has no name; neither: there are none.
//! * **Fields** stand in the order of the op's text, which is the order in which [`visit`](super::visit) finds them. The `Type` says what
//!   a field is: `Value`, `Vec<Value>`, `Option<Value>` are operands, `RefUse` is a use of a reference, `Region` a region, `AccUse` an
//!   accumulator, `MmaOperand` an operand in registers or in memory; all others are attributes. How they print and are read is in
//!   [`text`](super::text), once for each type. `label` stands before the field in the text; a field that is `default` is left out.
//! * `kind class`: what sort of op it is, a [`Class`](super::class::Class) with what it has. `promise`: one that is pure, but checked where it
//!   stands. `instructions`: what of the user's it is follows from what they do. `transfer`: a [`Transfer`](super::class::Transfer) between
//!   registers and a view of memory, from which its types, effects, layouts, accesses and their order follow.
//! * `types`: what types its operands and results have ([`types_of`](super::types_of)).
//! * `legal`: what of that can be compiled ([`legality`](super::legality)); without it, all.
//! * `effects`: what it does to memory and its order ([`effects`](super::effects)); without it, nothing.
//!
//! From the rows come `OpKind`, its names, text, visitors, class, effects, and `docs/OPS.md`. What a row does not say, and a new op does not
//! compile without: its lowering (`lower/dispatch.rs`) and, where its class does not answer for it, its layouts (`layout/signature.rs`), its
//! accesses (`plan/accesses.rs`) and their order (`plan/verify_order/walk.rs`).

/// Expands `$callback! { rows }`.
macro_rules! op_table {
    ($callback:ident) => { $callback! {
// ---------------------------------------------------------------- values
/// A constant scalar or array.
Constant "constant" (constant: Constant)
    pure Pure::Constant(constant), types |t| t.constant(constant), legal |l| memory::constant(l.kernel, constant, l.result());
Unary { [op: UnaryOp] a: Value }
    pure elementwise(Function::Unary { op: *op, a: *a }), types |t| t.unary(*op, *a),
    legal |l| l.defined(*a, arithmetic::unary(*op, l.dtype(*a)));
Binary { [op: BinaryOp] a: Value, "," b: Value }
    pure elementwise(Function::Binary { op: *op, a: *a, b: *b }), types |t| t.same(*a, *b)?.gives(*a),
    legal |l| l.defined(*a, arithmetic::binary(*op, l.dtype(*a)));
/// bool result. Float comparisons with a NaN are false, `Ne` true.
Compare { [op: CompareOp] a: Value, "," b: Value }
    pure elementwise(Function::Compare { op: *op, a: *a, b: *b }), types |t| t.same(*a, *b)?.gives_flags(*a);
/// `cases[which]`. `which` is bool (two cases: false, true) or i32 in range; a scalar, or of the cases' shape.
Select "select" { which: Value, "," cases: Vec<Value> }
    pure elementwise(Function::Select { which: *which, cases }), types |t| t.select(*which, cases);
/// `min(max(x, lo), hi)`; NaN if any is NaN.
Clamp "clamp" { lo: Value, "," x: Value, "," hi: Value }
    pure elementwise(Function::Clamp { lo: *lo, x: *x, hi: *hi }), types |t| t.clamp(*lo, *x, *hi),
    legal |l| l.defined(*x, arithmetic::binary(BinaryOp::Max, l.dtype(*x)));
/// a^n by repeated multiplication, n < 0: 1 / a^|n|. Square is n = 2.
IntegerPow "integer_pow" { a: Value, "," n: i32 }
    pure elementwise(Function::IntegerPow { a: *a, n: *n }), types |t| t.gives(*a),
    legal |l| l.defined(*a, arithmetic::integer_pow(*n, l.dtype(*a)));
/// To the result's dtype. int → int wraps; float → int truncates towards zero, saturates at the type's ends, NaN → 0 (XLA);
/// to bool: `x != 0` (NaN is true); int → float and float → float round to nearest even, with the overflow rule of the
/// destination: saturating only where the type has neither inf nor NaN, else inf or NaN as `ml_dtypes` does.
Convert "convert" { a: Value }
    pure elementwise(Function::Convert { a: *a }), types |t| t.convert(*a),
    legal |l| arithmetic::convert(l.dtype(*a), l.result_dtype());
/// The bits as the result's dtype. Widths differ by a factor n: to the narrower adds a minor dim of n (low bits first), to
/// the wider removes it.
Bitcast "bitcast" { a: Value }
    pure Pure::Bitcast, types |t| t.bitcast(*a), legal |l| arithmetic::bitcast(l.dtype(*a), l.result_dtype());
/// Float with `exponent_bits` and `mantissa_bits` kept, in the same type.
ReducePrecision "reduce_precision" { a: Value, "exponent" exponent_bits: u32, "mantissa" mantissa_bits: u32 }
    pure elementwise(Function::Other), types |t| t.reduce_precision(*a, *exponent_bits, *mantissa_bits),
    legal |l| l.defined(*a, arithmetic::reduce_precision(l.dtype(*a)));
/// The index along `dim`.
Iota "iota" { dim: u32 }
    pure Pure::Iota, types |t| t.iota(*dim), legal |l| arithmetic::convert(DType::I32, l.result_dtype());
/// Dimension i of `a` (a scalar has none) becomes dimension `dims[i]` of the result; extents equal, or 1 in `a`.
Broadcast "broadcast" { a: Value, dims: Vec<u32> }
    pure shape(ShapeOp::Broadcast { dims }), types |t| t.broadcast(*a, dims);
/// Row-major. Scalars count as arrays of one element.
Reshape "reshape" { a: Value }
    pure shape(ShapeOp::Reshape), types |t| t.reshape(*a);
/// Result dimension i is dimension `permutation[i]` of `a`.
Transpose "transpose" { a: Value, permutation: Vec<u32> }
    pure shape(ShapeOp::Transpose), types |t| t.transpose(*a, permutation);
/// `starts[i] + j·strides[i]`; sizes are the result's.
Slice "slice" { a: Value, starts: Vec<u64>, strides: Vec<u64> = vec![1; starts.len()] }
    pure shape(ShapeOp::Slice { starts, strides }), types |t| t.slice(*a, starts, strides);
/// Starts are clamped so that the slice is inside; they are scalars.
DynamicSlice "dynamic_slice" { a: Value, "," starts: Vec<Value> }
    pure shape(ShapeOp::DynamicSlice { starts }), types |t| t.dynamic_slice(*a, starts);
/// `a` with `update` put at `starts`, clamped as in `DynamicSlice`.
DynamicUpdateSlice "dynamic_update_slice" { a: Value, "," update: Value, "," starts: Vec<Value> }
    pure shape(ShapeOp::DynamicUpdateSlice { starts }), types |t| t.dynamic_update_slice(*a, *update, starts);
Concat "concat" { parts: Vec<Value>, dim: u32 }
    pure shape(ShapeOp::Concat { dim: *dim }), types |t| t.concat(parts, *dim);
/// `low`, `high` may be negative (cropping); `interior` ≥ 0.
Pad "pad" { a: Value, "," value: Value, low: Vec<i64>, high: Vec<i64>, interior: Vec<i64> }
    pure shape(ShapeOp::Pad { low, interior }), types |t| t.pad(*a, *value, [low, high, interior]);
Reverse "reverse" { a: Value, dims: Vec<u32> }
    pure shape(ShapeOp::Reverse { dims }), types |t| t.gives(*a);
/// Over `axes`, which are dropped; a full reduction gives a scalar. Max and min propagate NaN. The order of a float sum or
/// product is fixed by the layout, not by this op. `parallel`: how many partial accumulators the user hinted at.
Reduce { [op: ReduceOp] a: Value, axes: Vec<u32>, parallel: Option<u32> }
    pure Pure::Reduce { a: *a, axes }, types |t| t.reduce(*a, axes),
    legal |l| l.defined(*a, arithmetic::reduce(*op, l.dtype(*a)));
/// The first index of the extreme element (NaN counts as extreme) along `axis`, in the result's dtype.
ArgReduce { [op: ArgReduceOp] a: Value, axis: u32 }
    pure Pure::Run, types |t| t.arg_reduce(*a, *axis);
/// Inclusive running reduction along `axis`.
Cumulative { [op: CumulativeOp] a: Value, axis: u32, reverse: bool }
    pure Pure::Run, types |t| t.gives(*a), legal |l| l.defined(*a, arithmetic::cumulative(*op, l.dtype(*a)));
/// The elements of `a` at these row-major positions (i32, of the result's shape); `fill` where a position is outside.
Take "take" { a: Value, "," at: Value, "," fill: Value }
    pure Pure::Exchange, types |t| t.take(*a, *at, *fill);
/// `a` with each element of `update` put at its row-major position (i32, of `update`'s shape), or combined with what is
/// there: one after the other, in row-major order. Positions outside are left out. `distinct`: none comes twice. Narrow
/// floats are added and multiplied in f32, and rounded once. bool is a number, 0 or not.
Put { [op: PutOp] a: Value, "," at: Value, "," update: Value, distinct: bool }
    pure Pure::Exchange, types |t| t.put(*a, *at, *update), legal |l| l.defined(*a, arithmetic::put(*op, l.dtype(*a)));
/// Arrays of unsigned integers ordered along `axis`: by the first, among equals by the next, among equals of all as they
/// came. Results: the `first` elements of the ordered arrays, then, where `indexed`, from where along the axis each of them
/// came, i32.
Sort "sort" { keys: Vec<Value>, axis: u32, first: u64, indexed: bool }
    pure Pure::Exchange, types |t| t.sort(keys, *axis, *first, *indexed);
/// Returns its operands; no op moves across it.
OptimizationBarrier "optimization_barrier" { values: Vec<Value> }
    pinned, types |t| t.gives_all(values);
/// The user's promise that the integer scalar is a multiple, which is checked where it stands; feeds facts.
MultipleOf "multiple_of" { a: Value, "," divisor: u64 }
    promise elementwise(Function::MultipleOf { a: *a, divisor: *divisor }), types |t| t.gives(*a);
/// The array in the layout the user names.
LayoutCast "layout_cast" { a: Value, layout: LayoutSpec }
    pure Pure::LayoutCast, types |t| t.gives(*a);
/// The array in another register layout: the one that the assignment of layouts gives the result. Inserted when layouts are
/// chosen, so that every op finds its operands as it needs them.
Relayout "relayout" { a: Value }
    pure Pure::Relayout { a: *a }, types |t| t.gives(*a);

// ---------------------------------------------------------------- ids
/// The executing group's index on an axis, i32.
AxisIndex "axis_index" { axis: Axis }
    pure Pure::AxisIndex(*axis), types |t| t.gives_i32();

// ---------------------------------------------------------------- memory
/// One result: the elements.
Load "load" { src: RefUse }
    transfer loads(src), legal |l| l.loaded();
Store "store" { dst: RefUse, "<-" value: Value }
    transfer stores(dst, *value), legal |l| l.stored(*value);
/// Stores and returns what was there.
Swap "swap" { dst: RefUse, "<-" value: Value }
    transfer stores(dst, *value).and_loads(), legal |l| l.stored(*value);
/// The elements of the view where `mask` is true, zero for the others, which are not touched: windows may have them outside.
LoadMasked "load_masked" { src: RefUse, "where" mask: Value }
    transfer loads(src).masked(Some(*mask)), legal |l| memory::element(l.result_dtype());
/// Stores the elements of `value` where `mask` is true; others are not touched.
StoreMasked "store_masked" { dst: RefUse, "where" mask: Value, "<-" value: Value }
    transfer stores(dst, *value).masked(Some(*mask)), legal |l| memory::element(l.dtype(*value));
/// `dst = op(dst, value)` element by element, relaxed, device scope; no result.
AtomicUpdate "atomic_update" { op: AtomicOp, dst: RefUse, "<-" value: Value }
    transfer stores(dst, *value).by(*op), legal |l| arithmetic::atomic(*op, l.dtype(*value));
/// The elements of a view at these indices (i32, or i64 where that does not count a dimension; of the result's shape), one array for
/// each of its dimensions. Where `mask` is false nothing is touched, wherever the indices are, and the element is zero.
LoadAt "load_at" { src: RefUse, "at" at: Vec<Value>, "where" mask: Option<Value> }
    transfer loads(src).at(at).masked(*mask), legal |l| memory::scalar(l.result_dtype());
/// Stores the elements of `value` at such indices. Which of several for one place stays is not said.
StoreAt "store_at" { dst: RefUse, "at" at: Vec<Value>, "where" mask: Option<Value>, "<-" value: Value }
    transfer stores(dst, *value).at(at).masked(*mask), legal |l| memory::element(l.dtype(*value));
/// As [`AtomicUpdate`](OpKind::AtomicUpdate), at such indices.
AtomicUpdateAt "atomic_update_at" { op: AtomicOp, dst: RefUse, "at" at: Vec<Value>, "<-" value: Value }
    transfer stores(dst, *value).at(at).by(*op), legal |l| arithmetic::atomic(*op, l.dtype(*value));
/// Asynchronous; completes on `barrier` (its bytes are expected and arrived for by this op: one logical arrival), or, when
/// there is none, is a group of those that `WaitGmemToSmem` counts.
CopyGmemToSmem "copy_gmem_to_smem" {
    src: RefUse,
    "->" dst: RefUse,
    "using" barrier: Option<RefUse>,
    /// Each CTA along these cluster axes loads its part for all.
    "collective" collective_axes: Vec<Axis>,
    "leader_tracked" leader_tracked: Option<LeaderTracked>,
    "oob" oob: OobMode = OobMode::Zeros,
    /// By all threads of the group, each a part, instead of one that starts the copy engine; each arrives for itself.
    by_threads: bool,
    /// Their arrivals are none of those that end a phase: each is one more that the phase waits for, from when the copy begins.
    uncounted: bool,
    /// False: no copy; [`Semantics`](super::Semantics) says whether the arrival still happens.
    "if" predicate: Option<Value>,
}
    memory, types |t| t.gmem(src)?.smem(dst)?.copy(src, dst, *leader_tracked)?.barriers(barrier.as_ref())?.predicate(*predicate)?.none(),
    legal |l| l.copy_in(collective_axes, *leader_tracked, *by_threads), effects copy_in(src, dst, barrier.as_ref(), *by_threads);
/// Asynchronous; reads SMEM until a `WaitSmemToGmem` covers its group.
CopySmemToGmem "copy_smem_to_gmem" {
    src: RefUse,
    "->" dst: RefUse,
    "reduce" reduction: Option<CopyReduction>,
    /// Ends its commit group at once.
    commit_group: bool,
    /// By all threads of the group, each a part: it is done when the op is, and in no commit group.
    by_threads: bool,
    "if" predicate: Option<Value>,
}
    memory, types |t| t.smem(src)?.gmem(dst)?.copy(src, dst, None)?.predicate(*predicate)?.none(),
    legal |l| l.copy_out(src, *reduction, *by_threads), effects copy_out(src, dst, reduction.is_some(), *commit_group, *by_threads);
/// Ends a group of smem → gmem copies of this warpgroup (warp).
CommitGroup "commit_group"
    synchronisation, types |t| t.none(), effects orders(Order::CommitStores);
/// At most `n` groups of the executing group are left unfinished.
WaitSmemToGmem "wait_smem_to_gmem" { "" n: u32, scope: WaitScope }
    synchronisation, types |t| t.none(), effects orders(Order::WaitStores { n: *n, scope: *scope });
/// Until at most `n` of the group's copies without a barrier are left; then all of the group see the others.
WaitGmemToSmem "wait_gmem_to_smem" { "" n: u32 }
    synchronisation, types |t| t.none(), effects orders(Order::RendezvousExecuting { acquires: false, signals: false });
/// GMEM → L2: it changes nothing that anyone can see.
Prefetch "prefetch" {
    src: RefUse,
    "collective" collective_axes: Vec<Axis>,
    "leader_tracked" leader_tracked: Option<LeaderTracked>,
    "if" predicate: Option<Value>,
}
    memory, types |t| t.gmem(src)?.predicate(*predicate)?.none(),
    legal |l| l.prefetch(collective_axes, *leader_tracked);
/// Asynchronous store of an array into a block of the cluster, completing on that block's `barrier`.
AsyncStoreSmem "async_store_smem" { value: Value, "->" dst: RefUse, "using" barrier: RefUse, "atomic" atomic: Option<AtomicOp> }
    memory, types |t| t.smem(dst)?.barrier(barrier)?.stored(dst, *value)?.none(),
    legal |l| l.async_store(barrier, *atomic, *value), effects async_store(dst, barrier, atomic.is_some());
/// Makes the group's SMEM writes visible to copies and wgmma.
CommitSmem "commit_smem"
    synchronisation, types |t| t.none(), effects orders(Order::CommitSmem);

// ---------------------------------------------------------------- synchronisation
/// One logical arrival of the executing group.
BarrierArrive "barrier_arrive" { barrier: RefUse, "if" predicate: Option<Value> }
    synchronisation, types |t| t.barrier(barrier)?.predicate(*predicate)?.none(),
    legal |l| memory::arrival(l.kernel, barrier), effects orders(Order::Arrive);
/// Waits for the phase that the group's bit names. `phases`: one bit per barrier of the allocation; the result is `phases`
/// with the barrier's bit flipped. No `phases` and no result before normalisation.
BarrierWait "barrier_wait" { barrier: RefUse, "phases" phases: Option<Value> }
    synchronisation, types |t| t.barrier(barrier)?.phases(&[], *phases), effects orders(Order::Wait(barrier));
/// Results: (bool completed, `phases` with the bit flipped if completed). Does not block.
BarrierTest "barrier_test" { barrier: RefUse, "phases" phases: Option<Value> }
    synchronisation, types |t| t.barrier(barrier)?.phases(&[DType::Bool], *phases),
    effects orders(Order::Wait(barrier)).looks_at(Look::Barrier);
/// `count` (i32) arrivals of the author's counting: of one lane for the group, of one for each warp, or of every lane.
MbarrierArrive "mbarrier_arrive" { barrier: RefUse, "by" count: Value, "of" by: Arriving, order: BarrierOrder }
    synchronisation, types |t| t.barrier(barrier)?.i32(*count)?.none(),
    legal |l| memory::arrival(l.kernel, barrier), effects orders(match by {
        Arriving::One => SIGNALS,
        Arriving::Warps | Arriving::All => Order::Arrive,
    });
/// One lane adds `bytes` (i32) to what the barrier expects in its phase, and arrives with that if it `arrives`.
MbarrierExpect "mbarrier_expect" { barrier: RefUse, bytes: Value, arrives: bool }
    synchronisation, types |t| t.barrier(barrier)?.i32(*bytes)?.none(),
    legal |l| memory::arrival(l.kernel, barrier), effects orders(SIGNALS);
/// Waits until the phase of the parity `phase` (i32, its lowest bit) is over: the author's, whatever the group has waited for.
MbarrierWait "mbarrier_wait" { barrier: RefUse, "phase" phase: Value, order: BarrierOrder }
    synchronisation, types |t| t.barrier(barrier)?.i32(*phase)?.none(),
    legal |l| memory::arrival(l.kernel, barrier),
    effects orders(if order.relaxed { Order::Unknown } else { Order::Wait(barrier) });
/// Execution and memory barrier of the group (`Block`: all warpgroups).
Sync "sync" { group: Group }
    synchronisation, types |t| t.none(), effects orders(Order::Rendezvous(*group));
Fence "fence" { kind: FenceKind }
    synchronisation, types |t| t.none(), effects orders(match kind {
        FenceKind::ProxyAsyncGlobal => Order::FenceDevice,
        FenceKind::ProxyAsyncSharedCta => Order::FenceShared,
        FenceKind::ProxyAsyncGenericAcquire | FenceKind::ProxyAsyncGenericRelease => Order::None,
    });
/// Adds `value` (i32). Release, at `scope`.
SemaphoreSignal "semaphore_signal" { semaphore: RefUse, "+=" value: Value, scope: MemoryScope }
    synchronisation, types |t| t.semaphore(semaphore)?.i32(*value)?.none(), effects orders(SIGNALS);
/// All of them at once: one release, relaxed adds.
SemaphoreSignalParallel "semaphore_signal_parallel" { signals: Vec<(RefUse, Value)>, scope: MemoryScope }
    synchronisation, types |t| t.signals(signals)?.none(), effects orders(SIGNALS);
/// Until the semaphore is ≥ `value`; `decrement` subtracts it. Acquire.
SemaphoreWait "semaphore_wait" { semaphore: RefUse, ">=" value: Value, decrement: bool, scope: MemoryScope }
    synchronisation, types |t| t.semaphore(semaphore)?.i32(*value)?.none(), effects orders(ACQUIRES);
/// The value now, i32, relaxed: it orders no other memory, as a wait does.
SemaphoreRead "semaphore_read" { semaphore: RefUse }
    synchronisation, types |t| t.semaphore(semaphore)?.gives_i32(),
    effects orders(Order::None).looks_at(Look::Semaphore);

// ---------------------------------------------------------------- tensor cores
/// A fresh accumulator: zero, or an array's elements.
AccInit "acc_init" { "from" init: Option<Value> }
    accumulator, types |t| t.acc_init(*init), legal |l| tensor_core::accumulator(l.kernel.ty(l.result()));
/// `acc + a @ b`. Asynchronous: the result is complete after a `WgmmaWait` that covers it. One commit group.
/// Contract: when it returns, no older wgmma of the warpgroup is still running ([`WgmmaWait`](OpKind::WgmmaWait) placement
/// is made explicit by a pass). One result (none while `acc` is a reference).
Wgmma "wgmma" { acc: AccUse, "+=" a: MmaOperand, "@" b: RefUse }
    accumulator, types |t| t.wgmma(acc, a, b), effects tensor_core(a, b);
/// At most `n` wgmma groups are left running. Takes every accumulator that it may settle, and returns them in order.
WgmmaWait "wgmma_wait" { "" n: u32, accs: Vec<Value> }
    accumulator, types |t| t.accumulators(accs)?.gives_all(accs), effects orders(Order::WaitWgmma { n: *n });
/// Results: the elements, and the accumulator for further use (only the elements while `acc` is a reference).
/// `acc` must be settled.
AccRead "acc_read" { acc: AccUse }
    accumulator, types |t| t.acc_read(acc);
// ------------------------------------------------------------ tensor memory
// Its accesses are ordered by the author, with the waits and barriers that JAX has for that; no pass moves them.
/// Loads tensor memory: the elements are there, but the load may be going on for all others until [`TmemWait`](OpKind::TmemWait).
TmemLoad "tmem_load" { src: RefUse }
    tensor, types |t| t.tmem(src)?.loaded(src);
/// Stores to tensor memory; it may be going on until a wait for stores.
TmemStore "tmem_store" { dst: RefUse, "<-" value: Value }
    tensor, types |t| t.tmem(dst)?.stored(dst, *value)?.none();
/// Waits for the loads, or the stores, of the executing threads; then they meet.
TmemWait "tmem_wait" { what: TmemAccess }
    tensor, types |t| t.none(), effects orders(Order::RendezvousExecuting { acquires: false, signals: false });
/// Shared memory to tensor memory, by the unit that one lane starts; as products, until a commit.
TmemCopy "copy_smem_to_tmem" { src: RefUse, "->" dst: RefUse }
    tensor, types |t| t.tmem(dst)?.smem(src)?.copy(src, dst, None)?.none(), effects reads_of_tcgen05(None, src, false);
/// `acc = a @ b`, or `acc += a @ b` where `accumulate` is true, by the unit that one lane starts. It goes on until a phase of the barrier at
/// which it arrives, or a later [`Tcgen05Commit`](OpKind::Tcgen05Commit) of the same lane does. `a` is in shared memory, or in tensor memory.
Tcgen05Mma "tcgen05_mma" { acc: RefUse, "=" a: RefUse, "@" b: RefUse, a_in_tmem: bool, "accumulate" accumulate: Value, "arrive" barrier: Option<RefUse> }
    tensor, types |t| t.tcgen05(acc, [a, b], *a_in_tmem)?.predicate(Some(*accumulate))?.barriers(barrier.as_ref())?.none(),
    legal |l| tensor_memory::product(l.kernel, acc, a, b), effects reads_of_tcgen05((!a_in_tmem).then_some(a), b, barrier.is_some());
/// One arrival at the barrier when all products that the same lane has started are complete.
Tcgen05Commit "tcgen05_commit" { barrier: RefUse, "if" predicate: Option<Value> }
    tensor, types |t| t.barrier(barrier)?.predicate(*predicate)?.none(), effects orders(Order::ArriveByIssuer);
// ------------------------------------------------------------ products of arrays
/// `acc + a bᵀ` on arrays: `a` is [M, K] or [batch, M, K], `b` is [N, K] or [batch, N, K]; no dimension is empty. The types are
/// those of [`DotArithmetic`]; the result and `acc` have one. The order of a float sum is the arithmetic's.
Dot "dot_general" { "from" acc: Option<Value>, a: Value, "@" b: Value, arithmetic: DotArithmetic }
    pure Pure::Product { acc: *acc, a: *a, b: *b }, types |t| t.dot(*acc, *a, *b, *arithmetic);
/// The same of matrices, by [`DotArithmetic::TensorCore`], where operands are read from shared memory as they are multiplied: one of
/// them at least. Layout inference makes these of [`Dot`](OpKind::Dot)s.
DotInPlace "dot_in_place" { "from" acc: Option<Value>, a: MmaOperand, "@" b: MmaOperand }
    memory, types |t| t.dot_in_place(*acc, a, b), effects in_place(a, b);

// ---------------------------------------------------------------- control
/// Runs `body` for i = lower, …, upper − 1 (none if upper ≤ lower). Bounds have one integer type.
/// Region parameters: i, the carries, then a slice of each of `xs`. Region results: the carries, then one slice of each
/// stacked result. Results: the carries, then the stacked arrays, all with `upper − lower` as new leading dimension.
/// `reverse`: i runs downwards, and so do slices; `unroll` is the user's hint (≥ 1).
For "for" {
    lower: Value,
    ".." upper: Value,
    "from" inits: Vec<Value>,
    "over" xs: Vec<Value>,
    reverse: bool,
    unroll: u32 = 1,
    "do" body: Region,
}
    control Control::For { lower: *lower, upper: *upper, inits, xs, body: *body }, types |t| t.for_loop(*lower, *upper, [inits, xs], *body);
/// Runs `cond` (parameters: the carries; results: one bool, then the values for `body`); while the bool is true, runs `body`
/// with those values as parameters, whose results are the next carries. Results: the values that `cond` gave with false.
/// All have the carries' types.
While "while" { "from" inits: Vec<Value>, "if" cond: Region, "do" body: Region }
    control Control::While { inits, cond: *cond, body: *body }, types |t| t.while_loop(inits, *cond, *body);
/// Runs `arms[selector]`. The selector is i32 in range or, with two arms, bool (false, true).
Switch "switch" { selector: Value, arms: Vec<Region> }
    control Control::Switch { selector: *selector, arms }, types |t| t.switch(*selector, arms);
/// Runs `body` with allocations that live that long. `collective`: for all warpgroups together; starts with a block barrier.
Scope "scope" { allocs: Vec<Alloc>, collective: bool, body: Region }
    control Control::Scope { allocs, collective: *collective, body: *body }, types |t| t.yields(*body, "a scope");
/// Runs `body` in each warp of the warpgroup; `axis` is the warp's index. Carries (per-warp scalars: barrier phases) go in as
/// parameters and come out as results.
WarpMap "warp_map" { axis: Axis, "from" inits: Vec<Value>, "do" body: Region }
    control Control::WarpMap { inits, body: *body }, types |t| t.warp_map(*axis, inits, *body);

// ---------------------------------------------------------------- other
SetMaxRegisters "set_max_registers" { action: RegisterAction, "" n: u32 }
    aside, types |t| t.none(), legal |l| launch::register_count(l.kernel, *n);
/// Sleeps about that long.
Delay "delay" { nanos: Value }
    aside, types |t| t.int(*nanos)?.none();
/// Programmatic dependent launch: griddepcontrol.
GridDependency "grid_dependency" { action: GridDependencyAction }
    aside, types |t| t.none();
/// Instructions of the user's, which every lane of the group runs: once for each element that it has of the arrays among operands
/// and results, which have one shape (for each `pack` of them), without arrays once. Scalars are equal in all lanes. An element
/// is in one lane, unless the text [`Computes`](Does::Computes). With [`InlinePtx::whole`] it runs once, for all elements.
InlinePtx "inline_ptx" { does: Does, code: Box<InlinePtx>, "refs" refs: Vec<RefUse>, "args" args: Vec<Value> }
    instructions *does, types |t| t.inline_ptx(code, refs, args),
    legal |l| refs.iter().try_for_each(|r| memory::address(l.kernel, code, r)), effects text(*does, code, refs);
/// `format` is that of [`super::text_format`]; the arguments are scalars and arrays. By the executing group, once.
DebugPrint "debug_print" { format: String, args: Vec<Value>, "then" then: AfterPrint = AfterPrint::GoesOn }
    aside, types |t| t.none(), legal |l| l.print(format, args);
/// A named range begins or ends here: the executing group records when. Ranges of a region are closed in it, the last one first.
ProfileMark "profile_mark" { name: String, edge: ProfileEdge }
    aside, types |t| t.none();
/// Reported at compile time.
PrintLayout "print_layout" { format: String, what: PrintLayoutOf }
    aside, types |t| t.none();
    } };
}
pub(super) use op_table;

#[cfg(test)]
mod tests {
    use crate::kernel_ir::op::{FieldInfo, ROWS, RowInfo};
    use std::fmt::Write;

    /// A field in an op's text, in brackets where it may be left out.
    fn field(info: &FieldInfo) -> String {
        let FieldInfo { label, name, ty, .. } = *info;
        let ty = ty.replace(' ', "").replace(',', ", ");
        let (label, space) = match label {
            "" => ("", ""),
            "," => (",", " "),
            _ => (label, " "),
        };
        let option = ty.strip_prefix("Option<").and_then(|ty| ty.strip_suffix('>'));
        let is_optional = option.is_some() || info.has_default || ty.starts_with("Vec<") && !["", ","].contains(&label);
        let text = match ty.as_str() {
            "bool" => return format!(" [{name}]"),
            _ => format!("{label}{space}{{{name}: {}}}", option.unwrap_or(&ty)),
        };
        match (is_optional, label) {
            (true, _) => format!(" [{text}]"),
            (false, ",") => text,
            (false, _) => format!(" {text}"),
        }
    }

    /// A row's text without the links of Rust's documentation.
    fn doc(row: &RowInfo) -> String {
        let text: Vec<&str> = row.doc.iter().map(|line| line.trim()).collect();
        let mut out = String::new();
        let mut parts = text.join(" ");
        while let Some((before, link)) = parts.split_once("[`") {
            let (name, after) = link.split_once("`]").expect("a link ends");
            let after = match after.strip_prefix('(') {
                Some(target) => target.split_once(')').expect("a target ends").1,
                None => after,
            };
            write!(out, "{before}`{name}`").expect("a string");
            parts = after.to_string();
        }
        out + &parts
    }

    /// An item of a list, in lines as a page has them.
    fn wrapped(item: &str) -> String {
        let (mut out, mut line) = (String::new(), String::new());
        for word in item.split(' ') {
            if !line.is_empty() && line.chars().count() + word.chars().count() > 150 {
                out += &format!("\n{line}");
                line = " ".into();
            }
            line += if line.is_empty() { "" } else { " " };
            line += word;
        }
        out + &format!("\n{line}")
    }

    #[test]
    fn the_page_is_the_table() {
        let mut page = String::from(
            "# Ops\n\nWhat a kernel is made of between its descriptor and PTX (`SMALT_DUMP=ir` shows it): the table of ops \
             (`src/kernel_ir/table.rs`), printed by a\ntest. Results stand in front (`%v3: f32[64] = load …`). What is in brackets may be \
             left out. What passes may do with an op\nfollows from its class, in parentheses (`src/kernel_ir/class.rs`).\n",
        );
        for row in ROWS {
            let names: Vec<String> = (row.names)().iter().map(|name| format!("`{name}`")).collect();
            let fields: String = row.fields.iter().map(field).collect();
            let class = match row.kind {
                "promise" => "pure, checked where it stands",
                "transfer" => "memory",
                kind => kind,
            };
            let text = match names.as_slice() {
                [name] => format!("{}{fields}`", name.trim_end_matches('`')),
                _ => format!("{} with `{}`", names.join(" "), fields.trim_start()),
            };
            let doc = doc(row).replace("super::", "");
            let colon = if doc.is_empty() { "" } else { ": " };
            page += &wrapped(&format!("* {text} ({class}){colon}{doc}"));
        }
        page.push('\n');
        expect_test::expect_file!["../../docs/OPS.md"].assert_eq(&page);
    }
}
