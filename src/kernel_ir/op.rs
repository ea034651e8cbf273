//! The operations.
//!
//! One variant for each member of an operation family, with typed fields. Result types are in the kernel's value table; the
//! comments say which results an op has and what it means exactly. Unless noted, operands of element-wise ops and their result
//! have one shape (the importer broadcasts), and an op is done by every lane of the executing group.
//!
//! Arithmetic is lax's. Integers wrap. Floats are IEEE with round-to-nearest-even; a bf16, f16 or narrower operation is as if
//! done exactly and rounded once (add, sub, mul, div, sqrt) or done in f32 and rounded (everything else).
use super::alloc::SmemTransforms;
use super::effects::Access;
use super::entities::{Alloc, Axis, Region, Value};
use super::types::{Group, LayoutSpec};
use super::view::RefUse;
use crate::dtype::DType;

/// An operation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum OpKind {
    // ------------------------------------------------------------ values
    /// A constant scalar or array.
    Constant(Constant),
    Unary {
        op: UnaryOp,
        a: Value,
    },
    Binary {
        op: BinaryOp,
        a: Value,
        b: Value,
    },
    /// bool result. Float comparisons with a NaN are false, `Ne` true.
    Compare {
        op: CompareOp,
        a: Value,
        b: Value,
    },
    /// `cases[which]`. `which` is bool (two cases: false, true) or i32 in range; a scalar, or of the cases' shape.
    Select {
        which: Value,
        cases: Vec<Value>,
    },
    /// `min(max(x, lo), hi)`; NaN if any is NaN.
    Clamp {
        lo: Value,
        x: Value,
        hi: Value,
    },
    /// a^n by repeated multiplication, n < 0: 1 / a^|n|. Square is n = 2.
    IntegerPow {
        a: Value,
        n: i32,
    },
    /// To the result's dtype. int → int wraps; float → int truncates towards zero, saturates at the type's ends, NaN → 0 (XLA);
    /// to bool: `x != 0` (NaN is true); int → float and float → float round to nearest even, with the overflow rule of the
    /// destination: saturating only where the type has neither inf nor NaN, else inf or NaN as `ml_dtypes` does.
    Convert {
        a: Value,
    },
    /// The bits as the result's dtype. Widths differ by a factor n: to the narrower adds a minor dim of n (low bits first), to
    /// the wider removes it.
    Bitcast {
        a: Value,
    },
    /// Float with `exponent_bits` and `mantissa_bits` kept, in the same type.
    ReducePrecision {
        a: Value,
        exponent_bits: u32,
        mantissa_bits: u32,
    },
    /// The index along `dim`.
    Iota {
        dim: u32,
    },
    /// Dimension i of `a` (a scalar has none) becomes dimension `dims[i]` of the result; extents equal, or 1 in `a`.
    Broadcast {
        a: Value,
        dims: Vec<u32>,
    },
    /// Row-major. Scalars count as arrays of one element.
    Reshape {
        a: Value,
    },
    /// Result dimension i is dimension `permutation[i]` of `a`.
    Transpose {
        a: Value,
        permutation: Vec<u32>,
    },
    /// `starts[i] + j·strides[i]`; sizes are the result's.
    Slice {
        a: Value,
        starts: Vec<u64>,
        strides: Vec<u64>,
    },
    /// Starts are clamped so that the slice is inside; they are scalars.
    DynamicSlice {
        a: Value,
        starts: Vec<Value>,
    },
    /// `a` with `update` put at `starts`, clamped as in `DynamicSlice`.
    DynamicUpdateSlice {
        a: Value,
        update: Value,
        starts: Vec<Value>,
    },
    Concat {
        parts: Vec<Value>,
        dim: u32,
    },
    /// `low`, `high` may be negative (cropping); `interior` ≥ 0.
    Pad {
        a: Value,
        value: Value,
        low: Vec<i64>,
        high: Vec<i64>,
        interior: Vec<i64>,
    },
    Reverse {
        a: Value,
        dims: Vec<u32>,
    },
    /// Over `axes`, which are dropped; a full reduction gives a scalar. Max and min propagate NaN. The order of a float sum or
    /// product is fixed by the layout, not by this op. `parallel`: how many partial accumulators the user hinted at.
    Reduce {
        op: ReduceOp,
        a: Value,
        axes: Vec<u32>,
        parallel: Option<u32>,
    },
    /// The first index of the extreme element (NaN counts as extreme) along `axis`, in the result's dtype.
    ArgReduce {
        op: ArgReduceOp,
        a: Value,
        axis: u32,
    },
    /// Inclusive running reduction along `axis`.
    Cumulative {
        op: CumulativeOp,
        a: Value,
        axis: u32,
        reverse: bool,
    },
    /// The elements of `a` at these row-major positions (i32, of the result's shape); `fill` where a position is outside.
    Take {
        a: Value,
        at: Value,
        fill: Value,
    },
    /// `a` with each element of `update` put at its row-major position (i32, of `update`'s shape), or combined with what is
    /// there: one after the other, in row-major order. Positions outside are left out. `distinct`: none comes twice. Narrow
    /// floats are added and multiplied in f32, and rounded once. bool is a number, 0 or not.
    Put {
        op: PutOp,
        a: Value,
        at: Value,
        update: Value,
        distinct: bool,
    },
    /// Arrays of unsigned integers ordered along `axis`: by the first, among equals by the next, among equals of all as they
    /// came. Results: the `first` elements of the ordered arrays, then, where `indexed`, from where along the axis each of them
    /// came, i32.
    Sort {
        keys: Vec<Value>,
        axis: u32,
        indexed: bool,
        first: u64,
    },
    /// Returns its operands; no op moves across it.
    OptimizationBarrier {
        values: Vec<Value>,
    },
    /// The user's promise that the integer scalar is a multiple, which is checked where it stands; feeds facts.
    MultipleOf {
        a: Value,
        divisor: u64,
    },
    /// The array in the layout the user names.
    LayoutCast {
        a: Value,
        layout: LayoutSpec,
    },
    /// The array in another register layout: the one that the assignment of layouts gives the result. Inserted when layouts are
    /// chosen, so that every op finds its operands as it needs them.
    Relayout {
        a: Value,
    },

    // ------------------------------------------------------------ ids
    /// The executing group's index on an axis, i32.
    AxisIndex {
        axis: Axis,
    },

    // ------------------------------------------------------------ memory
    /// One result: the elements.
    Load {
        src: RefUse,
    },
    Store {
        dst: RefUse,
        value: Value,
    },
    /// Stores and returns what was there.
    Swap {
        dst: RefUse,
        value: Value,
    },
    /// The elements of the view where `mask` is true, zero for the others, which are not touched: windows may have them outside.
    LoadMasked {
        src: RefUse,
        mask: Value,
    },
    /// Stores the elements of `value` where `mask` is true; others are not touched.
    StoreMasked {
        dst: RefUse,
        mask: Value,
        value: Value,
    },
    /// `dst = op(dst, value)` element by element, relaxed, device scope; no result.
    AtomicUpdate {
        op: AtomicOp,
        dst: RefUse,
        value: Value,
    },
    /// The elements of a view at these indices (i32, or i64 where that does not count a dimension; of the result's shape), one array for
    /// each of its dimensions. Where `mask` is false nothing is touched, wherever the indices are, and the element is zero.
    LoadAt {
        src: RefUse,
        at: Vec<Value>,
        mask: Option<Value>,
    },
    /// Stores the elements of `value` at such indices. Which of several for one place stays is not said.
    StoreAt {
        dst: RefUse,
        at: Vec<Value>,
        mask: Option<Value>,
        value: Value,
    },
    /// As [`AtomicUpdate`](OpKind::AtomicUpdate), at such indices.
    AtomicUpdateAt {
        op: AtomicOp,
        dst: RefUse,
        at: Vec<Value>,
        value: Value,
    },
    /// Asynchronous; completes on `barrier` (its bytes are expected and arrived for by this op: one logical arrival), or, when
    /// there is none, joins the sm_80 copy group that `WaitGmemToSmem` counts.
    CopyGmemToSmem {
        src: RefUse,
        dst: RefUse,
        barrier: Option<RefUse>,
        /// Each CTA along these cluster axes loads its part for all.
        collective_axes: Vec<Axis>,
        leader_tracked: Option<LeaderTracked>,
        oob: OobMode,
        /// False: no copy; [`Semantics`](super::Semantics) says whether the arrival still happens.
        predicate: Option<Value>,
    },
    /// Asynchronous; reads SMEM until a `WaitSmemToGmem` covers its group.
    CopySmemToGmem {
        src: RefUse,
        dst: RefUse,
        reduction: Option<CopyReduction>,
        /// Ends its commit group at once.
        commit_group: bool,
        predicate: Option<Value>,
    },
    /// Ends a group of smem → gmem copies of this warpgroup (warp).
    CommitGroup,
    /// At most `n` groups of the executing group are left unfinished.
    WaitSmemToGmem {
        n: u32,
        scope: WaitScope,
    },
    /// sm_80 copies: at most `n` left.
    WaitGmemToSmem {
        n: u32,
    },
    /// GMEM → L2.
    Prefetch {
        src: RefUse,
        collective_axes: Vec<Axis>,
        leader_tracked: Option<LeaderTracked>,
        predicate: Option<Value>,
    },
    /// Asynchronous store of an array into a block of the cluster, completing on that block's `barrier`.
    AsyncStoreSmem {
        value: Value,
        dst: RefUse,
        barrier: RefUse,
        atomic: Option<AtomicOp>,
    },
    /// Makes the group's SMEM writes visible to copies and wgmma.
    CommitSmem,

    // ------------------------------------------------------------ synchronisation
    /// One logical arrival of the executing group.
    BarrierArrive {
        barrier: RefUse,
        predicate: Option<Value>,
    },
    /// Waits for the phase that the group's bit names. `phases`: one bit per barrier of the allocation; the result is `phases`
    /// with the barrier's bit flipped. No `phases` and no result before normalisation.
    BarrierWait {
        barrier: RefUse,
        phases: Option<Value>,
    },
    /// Results: (bool completed, `phases` with the bit flipped if completed). Does not block.
    BarrierTest {
        barrier: RefUse,
        phases: Option<Value>,
    },
    /// `count` (i32) arrivals of the author's counting: of one lane for the group, of one for each warp, or of every lane.
    MbarrierArrive {
        barrier: RefUse,
        count: Value,
        by: Arriving,
        order: BarrierOrder,
    },
    /// One lane tells the barrier of `bytes` (i32) to come in its phase, and arrives with that if it `arrives`.
    MbarrierExpect {
        barrier: RefUse,
        bytes: Value,
        arrives: bool,
    },
    /// Waits until the phase of the parity `phase` (i32, its lowest bit) is over: the author's, whatever the group has waited for.
    MbarrierWait {
        barrier: RefUse,
        phase: Value,
        order: BarrierOrder,
    },
    /// Execution and memory barrier of the group (`Block`: all warpgroups).
    Sync {
        group: Group,
    },
    Fence {
        kind: FenceKind,
    },
    /// Adds `value` (i32). Release, at `scope`.
    SemaphoreSignal {
        semaphore: RefUse,
        value: Value,
        scope: MemoryScope,
    },
    /// All of them at once: one release, relaxed adds.
    SemaphoreSignalParallel {
        signals: Vec<(RefUse, Value)>,
        scope: MemoryScope,
    },
    /// Until the semaphore is ≥ `value`; `decrement` subtracts it. Acquire.
    SemaphoreWait {
        semaphore: RefUse,
        value: Value,
        decrement: bool,
        scope: MemoryScope,
    },
    /// The value now, i32, relaxed.
    SemaphoreRead {
        semaphore: RefUse,
    },

    // ------------------------------------------------------------ tensor cores
    /// A fresh accumulator: zero, or an array's elements.
    AccInit {
        init: Option<Value>,
    },
    /// `acc + a @ b`. Asynchronous: the result is complete after a `WgmmaWait` that covers it. One commit group.
    /// Contract: when it returns, no older wgmma of the warpgroup is still running ([`WgmmaWait`](OpKind::WgmmaWait) placement
    /// is made explicit by a pass). One result (none while `acc` is a reference).
    Wgmma {
        acc: AccUse,
        a: MmaOperand,
        b: RefUse,
    },
    /// At most `n` wgmma groups are left running. Takes every accumulator that it may settle, and returns them in order.
    WgmmaWait {
        n: u32,
        accs: Vec<Value>,
    },
    /// Results: the elements, and the accumulator for further use (only the elements while `acc` is a reference).
    /// `acc` must be settled.
    AccRead {
        acc: AccUse,
    },
    /// `acc + a bᵀ` on arrays: `a` is [M, K] or [batch, M, K], `b` is [N, K] or [batch, N, K]; no dimension is empty. The types are
    /// those of [`DotArithmetic`]; the result and `acc` have one. The order of a float sum is the arithmetic's.
    Dot {
        acc: Option<Value>,
        a: Value,
        b: Value,
        arithmetic: DotArithmetic,
    },
    /// The same of matrices, by [`DotArithmetic::TensorCore`], where operands are read from shared memory as they are multiplied: one of
    /// them at least. Layout inference makes these of [`Dot`](OpKind::Dot)s.
    DotInPlace {
        acc: Option<Value>,
        a: MmaOperand,
        b: MmaOperand,
    },

    // ------------------------------------------------------------ control
    /// Runs `body` for i = lower, …, upper − 1 (none if upper ≤ lower). Bounds have one integer type.
    /// Region parameters: i, the carries, then a slice of each of `xs`. Region results: the carries, then one slice of each
    /// stacked result. Results: the carries, then the stacked arrays, all with `upper − lower` as new leading dimension.
    /// `reverse`: i runs downwards, and so do slices; `unroll` is the user's hint (≥ 1).
    For {
        lower: Value,
        upper: Value,
        inits: Vec<Value>,
        xs: Vec<Value>,
        reverse: bool,
        unroll: u32,
        body: Region,
    },
    /// Runs `cond` (parameters: the carries; results: one bool, then the values for `body`); while the bool is true, runs `body`
    /// with those values as parameters, whose results are the next carries. Results: the values that `cond` gave with false.
    /// All have the carries' types.
    While {
        inits: Vec<Value>,
        cond: Region,
        body: Region,
    },
    /// Runs `arms[selector]`. The selector is i32 in range or, with two arms, bool (false, true).
    Switch {
        selector: Value,
        arms: Vec<Region>,
    },
    /// Runs `body` with allocations that live that long. `collective`: for all warpgroups together; starts with a block barrier.
    Scope {
        allocs: Vec<Alloc>,
        collective: bool,
        body: Region,
    },
    /// Runs `body` in each warp of the warpgroup; `axis` is the warp's index. Carries (per-warp scalars: barrier phases) go in as
    /// parameters and come out as results.
    WarpMap {
        axis: Axis,
        inits: Vec<Value>,
        body: Region,
    },

    // ------------------------------------------------------------ other
    SetMaxRegisters {
        action: RegisterAction,
        n: u32,
    },
    /// Sleeps about that long.
    Delay {
        nanos: Value,
    },
    /// Programmatic dependent launch: griddepcontrol.
    GridDependency {
        action: GridDependencyAction,
    },
    /// Instructions of the user's, which every lane of the group runs: once for each element that it has of the arrays among operands
    /// and results, which have one shape (for each `pack` of them), without arrays once. Scalars are equal in all lanes. An element
    /// is in one lane, unless the text [`Computes`](Does::Computes). With [`InlinePtx::whole`] it runs once, for all elements.
    InlinePtx {
        does: Does,
        code: Box<InlinePtx>,
        refs: Vec<RefUse>,
        args: Vec<Value>,
    },
    /// `format` is that of [`super::text_format`]; the arguments are scalars and arrays. By the executing group, once.
    DebugPrint {
        format: String,
        args: Vec<Value>,
        then: AfterPrint,
    },
    /// A named range begins or ends here: the executing group records when. Ranges of a region are closed in it, the last one first.
    ProfileMark {
        name: String,
        edge: ProfileEdge,
    },
    /// Reported at compile time.
    PrintLayout {
        what: PrintLayoutOf,
        format: String,
    },
}

/// A text of PTX and what its operands are.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct InlinePtx {
    pub text: String,
    /// In the text's order, behind the results.
    pub operands: Vec<InlineOperand>,
    /// Neighbouring elements of an array that are in one register.
    pub pack: u32,
    /// One lane of the group runs it, behind a meeting of them all, and tells the others its results. All are scalars.
    pub once: bool,
    /// Of each of the op's `refs`: nothing is done to it but to load from it. Where nobody has looked, none.
    pub loads_from: Vec<bool>,
    /// The text runs once, on registers of all elements that a lane has of an array.
    pub whole: Option<Box<Whole>>,
    /// The first and last of the named barriers that it uses by numbers in registers; `None`: any that is not the compiler's.
    pub barriers: Option<(u32, u32)>,
    /// Nobody reads it: it goes to the assembler as it is. The PTX ISA that it asks for: 83 for 8.3.
    pub unchecked: Option<u32>,
    /// The function of smalt that the text is made by, for messages.
    pub called: Option<String>,
    /// Tensor maps over its references to device memory.
    pub maps: Vec<InlineMap>,
}

/// A tensor map over a reference that a text copies from or to.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct InlineMap {
    /// Which of the op's `refs`. The map begins where it does.
    pub of: u32,
    /// What the map counts, and a reduction adds or compares.
    pub element: DType,
    /// Elements along each dimension, minor first.
    pub dims: Vec<u64>,
    /// Bytes between neighbours along dimensions 1….
    pub strides: Vec<u64>,
    pub box_dims: Vec<u32>,
    /// 0, 32, 64 or 128.
    pub swizzle: u32,
}

impl InlineMap {
    /// Bytes from its start to behind its last element; none: no tensor map is so (CUDA driver API, `cuTensorMapEncodeTiled`).
    pub fn span(&self) -> Option<u64> {
        let bytes = u64::from(self.element.bits() / 8);
        let rank = self.dims.len();
        let minor = u64::from(*self.box_dims.first()?) * bytes;
        let fits = (1..=5).contains(&rank)
            && self.strides.len() + 1 == rank
            && self.box_dims.len() == rank
            && self.dims.iter().all(|n| (1..=1 << 31).contains(n))
            && self.strides.iter().all(|n| n.is_multiple_of(16) && *n < 1 << 40)
            && self.box_dims.iter().all(|n| (1..=256).contains(n))
            && bytes > 0
            && minor.is_multiple_of(16)
            && match self.swizzle {
                0 => true,
                32 | 64 | 128 => minor <= u64::from(self.swizzle),
                _ => false,
            };
        let strides = std::iter::once(bytes).chain(self.strides.iter().copied());
        let last: u64 = self
            .dims
            .iter()
            .zip(strides)
            .map(|(n, stride)| n.saturating_sub(1) * stride)
            .sum();
        fits.then_some(last + bytes)
    }
}

/// What a text that runs once relies on.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Whole {
    /// Elements of less than 32 bits fill words, the first in the low bits; else each has a register of its own.
    pub in_words: bool,
    /// Of each of the op's `args`; `None`: a scalar.
    pub args: Vec<Option<LaneArray>>,
    /// Of each result.
    pub results: Vec<Option<LaneArray>>,
    /// How each of its `refs` lies in memory: in shared memory as tiled and swizzled, elsewhere plainly. `None`: the text takes it as it is.
    pub refs: Vec<Option<SmemTransforms>>,
}

/// An array as a text that runs once sees it: its elements in a lane, in an order of their own.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LaneArray {
    pub layout: LayoutSpec,
    /// The elements of the group's first lane, by their numbers in row-major order. Other lanes have theirs in the same order.
    pub order: Vec<u64>,
}

impl InlinePtx {
    /// What is done to one of the op's `refs`.
    pub fn access(&self, i: usize) -> Access {
        match self.loads_from.get(i) {
            Some(true) => Access::Read,
            Some(false) | None => Access::Update,
        }
    }
    /// What a message calls it.
    pub fn name(&self) -> &str {
        self.called.as_deref().unwrap_or("inline PTX")
    }
    /// The registers that stand for one of the op's `args`, of this type.
    pub fn registers_of_arg(&self, i: usize, ty: &super::Type) -> usize {
        self.registers(self.whole.as_ref().and_then(|w| w.args.get(i)), ty)
    }
    /// The registers that stand for one of the results, of this type.
    pub fn registers_of_result(&self, k: usize, ty: &super::Type) -> usize {
        self.registers(self.whole.as_ref().and_then(|w| w.results.get(k)), ty)
    }
    fn registers(&self, array: Option<&Option<LaneArray>>, ty: &super::Type) -> usize {
        match array {
            Some(Some(array)) => array.order.len().div_ceil(self.pack_of(ty) as usize),
            Some(None) | None => 1,
        }
    }
    /// Elements of a value in one register.
    pub fn pack_of(&self, ty: &super::Type) -> u32 {
        match &self.whole {
            _ if ty.is_scalar() => 1,
            Some(whole) if whole.in_words && ty.dtype() != DType::Bool => (32 / ty.dtype().bits()).max(1),
            Some(_) => 1,
            None => self.pack,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum InlineOperand {
    /// One of the op's `args`.
    Value(u32),
    /// The address of the first element of one of its `refs`, or of a barrier: in the block's shared memory 32 bits, else 64.
    Ref(u32),
    /// The address of one of its `maps`: 64 bits.
    Map(u32),
}

/// What a text does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Does {
    /// Its results are made of its operands, element by element.
    Computes,
    /// They depend on the lane, or on other lanes, too.
    Exchanges,
    /// It may touch memory, wait, signal, look at clocks.
    Acts,
}

/// What becomes of a kernel that has printed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AfterPrint {
    GoesOn,
    /// It fails: the text is the error's.
    Fails,
}

/// Which end of a range a mark is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ProfileEdge {
    Begins,
    Ends,
}

/// What `print_layout` asks about.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum PrintLayoutOf {
    Value(Value),
    Ref(RefUse),
}

/// A constant's elements. The dtype and shape are the result's type.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Constant {
    /// Every element has these low bits (sub-byte types: in the low bits; bool: 0 or 1).
    Splat(u64),
    /// Row-major, little endian, sub-byte types one byte an element.
    Dense(Vec<u8>),
}

/// An accumulator: a reference while importing, then a value.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum AccUse {
    Ref(RefUse),
    Value(Value),
    /// Whole tiles of a value, from row and column `at` on: what a `Wgmma` adds to. It takes and gives all of it.
    Part {
        acc: Value,
        at: [u64; 2],
        shape: [u64; 2],
    },
}

impl AccUse {
    /// The value that it is (of); none while it is a reference.
    pub fn value(&self) -> Option<Value> {
        match self {
            AccUse::Ref(_) => None,
            AccUse::Value(acc) | AccUse::Part { acc, .. } => Some(*acc),
        }
    }
}

/// How a product of arrays is computed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DotArithmetic {
    /// f16 or bf16 to f32; f32 to f32, operands rounded to tf32 (nearest, ties away from zero); i8 or u8 to i32, which wraps.
    TensorCore,
    /// f32, f64, i32 or i64, one multiply-add for each element of K in order.
    MultiplyAdd,
}

impl DotArithmetic {
    /// The type of the sums of products of this type; none: it does not take the type.
    pub fn result(self, operand: DType) -> Option<DType> {
        use DType::*;
        match (self, operand) {
            (DotArithmetic::TensorCore, F16 | BF16 | F32) => Some(F32),
            (DotArithmetic::TensorCore, I8 | U8) => Some(I32),
            (DotArithmetic::MultiplyAdd, F32 | F64 | I32 | I64) => Some(operand),
            _ => None,
        }
    }
}

/// The left operand of a wgmma; an operand of a [`OpKind::DotInPlace`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum MmaOperand {
    Smem(RefUse),
    Registers(Value),
}

/// Element-wise functions of one operand. Float operands unless the comment says otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum UnaryOp {
    /// Integers too (wraps: −MIN = MIN); floats flip the sign bit, NaN's included.
    Neg,
    /// Integers and bool: bitwise (logical) complement.
    Not,
    /// Signed integers too (|MIN| = MIN).
    Abs,
    /// −1, 0, 1; integers too. Floats: ±0 → ±0, NaN → NaN.
    Sign,
    Floor,
    Ceil,
    /// Halves away from zero.
    RoundAwayFromZero,
    /// Halves to even.
    RoundToEven,
    /// To the nearest tf32 (10 bits behind the point), halves away from zero; narrower floats are what they were.
    RoundToTf32,
    /// bool: neither inf nor NaN.
    IsFinite,
    Exp,
    Exp2,
    Expm1,
    Log,
    Log1p,
    Log2,
    Sqrt,
    Rsqrt,
    Cbrt,
    Sin,
    Cos,
    Tan,
    Asin,
    Acos,
    Atan,
    Sinh,
    Cosh,
    Tanh,
    Asinh,
    Acosh,
    Atanh,
    Erf,
    Erfc,
    ErfInv,
    Lgamma,
    /// 1 / (1 + exp(−x)).
    Logistic,
    /// Integers: leading zeros (of 0: the width).
    CountLeadingZeros,
    /// Integers.
    PopulationCount,
}

/// Element-wise functions of two operands of one type (bool: only And, Or, Xor).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BinaryOp {
    Add,
    Sub,
    Mul,
    /// Integers truncate towards zero; x / 0 = −1 (all bits set), MIN / −1 = MIN. Floats: full range.
    Div,
    /// Sign of the dividend. Integers: x rem 0 = x, MIN rem −1 = 0. Floats: C's fmod.
    Rem,
    /// Floats: NaN if either is NaN; +0 > −0.
    Max,
    Min,
    /// Integers and bool.
    And,
    Or,
    Xor,
    /// Integers; b is unsigned here: a shift ≥ the width (or "negative") gives 0.
    ShiftLeft,
    /// The same for right shifts of the unsigned bits.
    ShiftRightLogical,
    /// A shift ≥ the width gives 0 or −1 by the sign.
    ShiftRightArithmetic,
    Pow,
    Atan2,
    NextAfter,
    /// |a| with b's sign bit.
    CopySign,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CompareOp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ReduceOp {
    Sum,
    Prod,
    Max,
    Min,
    /// Integers and bool.
    And,
    Or,
    Xor,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ArgReduceOp {
    ArgMax,
    ArgMin,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CumulativeOp {
    Sum,
    Prod,
    Max,
    Min,
    LogSumExp,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AtomicOp {
    Add,
    Max,
    Min,
    And,
    Or,
    Xor,
}

/// What `put` does with the element that is there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PutOp {
    Set,
    Add,
    Mul,
    Max,
    Min,
}

/// The reductions of a smem → gmem copy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CopyReduction {
    Add,
    Min,
    Max,
    Inc,
    Dec,
    And,
    Or,
    Xor,
}

/// How the two CTAs of a `leader_tracked` copy share it. The leader's barrier expects both parts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LeaderTracked {
    /// CTA i loads part i of the source, which has twice the destination's extent along this dimension.
    Partitioned { dim: u32 },
    /// Both load everything.
    Replicated,
}

/// What a copy's elements outside the GMEM array are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OobMode {
    Zeros,
    /// There are none.
    PromiseInBounds,
    Undefined,
}

/// What a wait for smem → gmem copies covers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WaitScope {
    /// SMEM has been read and may be overwritten.
    SmemRead,
    /// GMEM has been written too.
    Complete,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MemoryScope {
    Gpu,
    Sys,
}

/// Who arrives on a barrier for its group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Arriving {
    /// One lane, behind a meeting of the group.
    One,
    /// One lane of each warp, behind a meeting of the warp.
    Warps,
    /// Every lane, by itself.
    All,
}

/// What an arrival releases, and a wait acquires, and for whom.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BarrierOrder {
    /// Nothing: fences do.
    pub relaxed: bool,
    /// `None`: as wide as who uses the barrier are apart.
    pub scope: Option<BarrierScope>,
}

impl BarrierOrder {
    /// Of arrivals that the author gives no order.
    pub const RELEASE: BarrierOrder = BarrierOrder {
        relaxed: false,
        scope: None,
    };
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BarrierScope {
    Block,
    Cluster,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RegisterAction {
    Increase,
    Decrease,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum GridDependencyAction {
    Wait,
    LaunchDependents,
}

/// Fences between the generic and the async proxy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FenceKind {
    /// `fence.proxy.async.shared::cta`.
    ProxyAsyncSharedCta,
    /// `fence.proxy.async.global`: placed where copies meet what ordinary stores left in device memory.
    ProxyAsyncGlobal,
    /// `fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster`.
    ProxyAsyncGenericAcquire,
    /// `fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster`.
    ProxyAsyncGenericRelease,
}

impl OpKind {
    /// The name in dumps and messages.
    pub fn name(&self) -> &'static str {
        match self {
            OpKind::Constant(_) => "constant",
            OpKind::Unary { op, .. } => op.name(),
            OpKind::Binary { op, .. } => op.name(),
            OpKind::Compare { op, .. } => op.name(),
            OpKind::Select { .. } => "select",
            OpKind::Clamp { .. } => "clamp",
            OpKind::IntegerPow { .. } => "integer_pow",
            OpKind::Convert { .. } => "convert",
            OpKind::Bitcast { .. } => "bitcast",
            OpKind::ReducePrecision { .. } => "reduce_precision",
            OpKind::Iota { .. } => "iota",
            OpKind::Broadcast { .. } => "broadcast",
            OpKind::Reshape { .. } => "reshape",
            OpKind::Transpose { .. } => "transpose",
            OpKind::Slice { .. } => "slice",
            OpKind::DynamicSlice { .. } => "dynamic_slice",
            OpKind::DynamicUpdateSlice { .. } => "dynamic_update_slice",
            OpKind::Concat { .. } => "concat",
            OpKind::Pad { .. } => "pad",
            OpKind::Reverse { .. } => "reverse",
            OpKind::Reduce { op, .. } => op.name(),
            OpKind::ArgReduce {
                op: ArgReduceOp::ArgMax,
                ..
            } => "argmax",
            OpKind::ArgReduce {
                op: ArgReduceOp::ArgMin,
                ..
            } => "argmin",
            OpKind::Cumulative { op, .. } => op.name(),
            OpKind::Take { .. } => "take",
            OpKind::Put { op, .. } => op.name(),
            OpKind::Sort { .. } => "sort",
            OpKind::OptimizationBarrier { .. } => "optimization_barrier",
            OpKind::MultipleOf { .. } => "multiple_of",
            OpKind::LayoutCast { .. } => "layout_cast",
            OpKind::Relayout { .. } => "relayout",
            OpKind::AxisIndex { .. } => "axis_index",
            OpKind::Load { .. } => "load",
            OpKind::Store { .. } => "store",
            OpKind::Swap { .. } => "swap",
            OpKind::AtomicUpdate { .. } => "atomic_update",
            OpKind::LoadMasked { .. } => "load_masked",
            OpKind::StoreMasked { .. } => "store_masked",
            OpKind::LoadAt { .. } => "load_at",
            OpKind::StoreAt { .. } => "store_at",
            OpKind::AtomicUpdateAt { .. } => "atomic_update_at",
            OpKind::CopyGmemToSmem { .. } => "copy_gmem_to_smem",
            OpKind::CopySmemToGmem { .. } => "copy_smem_to_gmem",
            OpKind::CommitGroup => "commit_group",
            OpKind::WaitSmemToGmem { .. } => "wait_smem_to_gmem",
            OpKind::WaitGmemToSmem { .. } => "wait_gmem_to_smem",
            OpKind::Prefetch { .. } => "prefetch",
            OpKind::AsyncStoreSmem { .. } => "async_store_smem",
            OpKind::CommitSmem => "commit_smem",
            OpKind::BarrierArrive { .. } => "barrier_arrive",
            OpKind::BarrierWait { .. } => "barrier_wait",
            OpKind::BarrierTest { .. } => "barrier_test",
            OpKind::MbarrierArrive { .. } => "mbarrier_arrive",
            OpKind::MbarrierExpect { .. } => "mbarrier_expect",
            OpKind::MbarrierWait { .. } => "mbarrier_wait",
            OpKind::Sync { .. } => "sync",
            OpKind::Fence { .. } => "fence",
            OpKind::SemaphoreSignal { .. } => "semaphore_signal",
            OpKind::SemaphoreSignalParallel { .. } => "semaphore_signal_parallel",
            OpKind::SemaphoreWait { .. } => "semaphore_wait",
            OpKind::SemaphoreRead { .. } => "semaphore_read",
            OpKind::AccInit { .. } => "acc_init",
            OpKind::Wgmma { .. } => "wgmma",
            OpKind::WgmmaWait { .. } => "wgmma_wait",
            OpKind::AccRead { .. } => "acc_read",
            OpKind::Dot { .. } => "dot_general",
            OpKind::DotInPlace { .. } => "dot_in_place",
            OpKind::For { .. } => "for",
            OpKind::While { .. } => "while",
            OpKind::Switch { .. } => "switch",
            OpKind::Scope { .. } => "scope",
            OpKind::WarpMap { .. } => "warp_map",
            OpKind::SetMaxRegisters { .. } => "set_max_registers",
            OpKind::Delay { .. } => "delay",
            OpKind::GridDependency { .. } => "grid_dependency",
            OpKind::InlinePtx { .. } => "inline_ptx",
            OpKind::DebugPrint { .. } => "debug_print",
            OpKind::ProfileMark { .. } => "profile_mark",
            OpKind::PrintLayout { .. } => "print_layout",
        }
    }
}

/// Runs that one thread has whole, in its registers, and elements of all of its runs.
const SHORT_RUN: u64 = 32;
const HELD: u64 = 64;

/// Whether runs along a dimension are gone through in single threads, which then have whole ones: they are short, and the other
/// dimensions' factors of two are threads enough.
pub fn is_short_run(shape: &[u64], axis: usize) -> bool {
    let others = shape.iter().enumerate().filter(|(d, _)| *d != axis);
    let twos: u32 = others.map(|(_, n)| n.trailing_zeros().min(7)).sum();
    let held = shape.iter().product::<u64>() >> twos.min(7);
    shape[axis] <= SHORT_RUN && held <= HELD
}

macro_rules! names {
    ($ty:ident { $($variant:ident => $name:literal,)* }) => {
        impl $ty {
            pub const ALL: &[$ty] = &[$($ty::$variant),*];
            /// The name in dumps.
            pub const fn name(self) -> &'static str {
                match self { $($ty::$variant => $name),* }
            }
            /// The member with this name.
            pub fn from_name(name: &str) -> Option<$ty> {
                $ty::ALL.iter().copied().find(|x| x.name() == name)
            }
        }
    };
}

names!(UnaryOp {
    Neg => "neg", Not => "not", Abs => "abs", Sign => "sign", Floor => "floor", Ceil => "ceil",
    RoundAwayFromZero => "round_away", RoundToEven => "round_even", RoundToTf32 => "round_tf32", IsFinite => "is_finite", Exp => "exp", Exp2 => "exp2",
    Expm1 => "expm1", Log => "log", Log1p => "log1p", Log2 => "log2", Sqrt => "sqrt", Rsqrt => "rsqrt", Cbrt => "cbrt",
    Sin => "sin", Cos => "cos", Tan => "tan", Asin => "asin", Acos => "acos", Atan => "atan", Sinh => "sinh", Cosh => "cosh",
    Tanh => "tanh", Asinh => "asinh", Acosh => "acosh", Atanh => "atanh", Erf => "erf", Erfc => "erfc", ErfInv => "erf_inv",
    Lgamma => "lgamma", Logistic => "logistic", CountLeadingZeros => "clz", PopulationCount => "population_count",
});
names!(BinaryOp {
    Add => "add", Sub => "sub", Mul => "mul", Div => "div", Rem => "rem", Max => "max", Min => "min", And => "and",
    Or => "or", Xor => "xor", ShiftLeft => "shift_left", ShiftRightLogical => "shift_right_logical",
    ShiftRightArithmetic => "shift_right_arithmetic", Pow => "pow", Atan2 => "atan2", NextAfter => "nextafter",
    CopySign => "copysign",
});
names!(CompareOp { Eq => "eq", Ne => "ne", Lt => "lt", Le => "le", Gt => "gt", Ge => "ge", });
names!(ReduceOp {
    Sum => "reduce_sum", Prod => "reduce_prod", Max => "reduce_max", Min => "reduce_min", And => "reduce_and",
    Or => "reduce_or", Xor => "reduce_xor",
});
names!(CumulativeOp {
    Sum => "cumsum", Prod => "cumprod", Max => "cummax", Min => "cummin", LogSumExp => "cumlogsumexp",
});
names!(AtomicOp { Add => "add", Max => "max", Min => "min", And => "and", Or => "or", Xor => "xor", });
names!(PutOp { Set => "put", Add => "put_add", Mul => "put_mul", Max => "put_max", Min => "put_min", });
names!(CopyReduction {
    Add => "add", Min => "min", Max => "max", Inc => "inc", Dec => "dec", And => "and", Or => "or", Xor => "xor",
});
names!(OobMode { Zeros => "zeros", PromiseInBounds => "promise_in_bounds", Undefined => "undefined", });
names!(WaitScope { SmemRead => "smem_read", Complete => "complete", });
names!(MemoryScope { Gpu => "gpu", Sys => "sys", });
names!(Arriving { One => "one", Warps => "warps", All => "all", });
names!(BarrierScope { Block => "block", Cluster => "cluster", });
names!(RegisterAction { Increase => "increase", Decrease => "decrease", });
names!(GridDependencyAction { Wait => "wait", LaunchDependents => "launch_dependents", });
names!(Does { Computes => "computes", Exchanges => "exchanges", Acts => "acts", });
names!(FenceKind {
    ProxyAsyncSharedCta => "proxy_async_shared_cta", ProxyAsyncGlobal => "proxy_async_global",
    ProxyAsyncGenericAcquire => "proxy_async_generic_acquire",
    ProxyAsyncGenericRelease => "proxy_async_generic_release",
});

impl Constant {
    /// A scalar's or uniform array's bits, if all elements are equal by construction.
    pub fn splat(&self) -> Option<u64> {
        match self {
            Constant::Splat(bits) => Some(*bits),
            Constant::Dense(_) => None,
        }
    }
}
