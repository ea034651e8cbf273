//! What fields of ops are made of besides values, references and regions: functions, scopes, constants, texts of PTX.
//!
//! An enum of names is made by `names!`, what has fields by `texts!`: how it prints and is read follows ([`text`](super::text)).
use super::alloc::SmemTransforms;
use super::effects::Access;
use super::entities::Value;
use super::text::{names, texts};
use super::types::LayoutSpec;
use super::view::RefUse;
use crate::dtype::DType;

texts! {
/// A text of PTX and what its operands are.
pub struct InlinePtx {
    text: String,
    /// In the text's order, behind the results.
    "operands" operands: Vec<InlineOperand>,
    /// Neighbouring elements of an array that are in one register.
    pack: u32,
    /// One lane of the group runs it, behind a rendezvous of them all, and hands its results to the others. All are scalars.
    once: bool,
    /// Of each of the op's `refs`: nothing is done to it but to load from it. None before the text is read.
    loads_from: Vec<bool>,
    /// It is not read, and goes to the assembler as it is. The PTX ISA that it needs: 83 for 8.3.
    unchecked: Option<u32>,
    /// The first and last of the named barriers that it uses by numbers in registers; `None`: any that is not the compiler's.
    "barriers" barriers: Option<(u32, u32)>,
    /// The function of smalt that the text is made by, for messages.
    "called" called: Option<String>,
    /// Tensor maps over its references to device memory.
    "maps" maps: Vec<InlineMap>,
    /// The text runs once, on registers of all elements that a lane has of an array.
    "whole" whole: Option<Box<Whole>>,
}}

texts! {
/// A tensor map over a reference that a text copies from or to.
pub struct InlineMap {
    /// Which of the op's `refs`. The map begins where it does.
    of: u32,
    /// What the map counts, and a reduction adds or compares.
    element: DType,
    /// Elements along each dimension, minor first.
    dims: Vec<u64>,
    /// Bytes between neighbours along dimensions 1….
    strides: Vec<u64>,
    "box" box_dims: Vec<u32>,
    /// 0, 32, 64 or 128.
    swizzle: u32,
}}

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

texts! {
/// What a text that runs once relies on.
pub struct Whole {
    /// Elements of less than 32 bits fill words, the first in the low bits; else each has a register of its own.
    in_words: bool,
    /// Of each of the op's `args`; `None`: a scalar.
    "args_as" args: Vec<Option<LaneArray>>,
    /// Of each result.
    "results_as" results: Vec<Option<LaneArray>>,
    /// How each of its `refs` lies in memory: in shared memory as tiled and swizzled, elsewhere plainly. `None`: the text takes it as it is.
    "refs_as" refs: Vec<Option<SmemTransforms>>,
}}

texts! {
/// An array as a text that runs once sees it: its elements in a lane, in an order of their own.
pub struct LaneArray {
    layout: LayoutSpec,
    /// The elements of the group's first lane, by their numbers in row-major order. Other lanes have theirs in the same order.
    order: Vec<u64>,
}}

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

texts! { "operand of a text"
#[derive(Copy)]
pub enum InlineOperand {
    /// One of the op's `args`.
    Value "value" (i: u32),
    /// The address of the first element of one of its `refs`, or of a barrier: in the block's shared memory 32 bits, else 64.
    Ref "ref" (i: u32),
    /// The address of one of its `maps`: 64 bits.
    Map "map" (i: u32),
}}

names! { "effect of a text"
/// What a text does.
pub enum Does {
    /// Its results are made of its operands, element by element.
    Computes = "computes",
    /// They depend on the lane, or on other lanes, too.
    Exchanges = "exchanges",
    /// It may touch memory, wait, signal, look at clocks.
    Acts = "acts",
}}

names! { "access to tensor memory"
/// What of tensor memory is waited for.
pub enum TmemAccess {
    Loads = "loads",
    Stores = "stores",
}}

names! { "end of a print"
/// What becomes of a kernel that has printed.
pub enum AfterPrint {
    GoesOn = "goes_on",
    /// It fails: the text is the error's.
    Fails = "fails",
}}

names! { "edge of a range"
/// Which end of a range a mark is.
pub enum ProfileEdge {
    Begins = "begins",
    Ends = "ends",
}}

/// What `print_layout` reports on.
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

names! { "arithmetic of products"
/// How a product of arrays is computed.
pub enum DotArithmetic {
    /// f16 or bf16 to f32; f32 to f32, operands rounded to tf32 (nearest, ties away from zero); i8 or u8 to i32, which wraps.
    TensorCore = "tensor_core",
    /// f32, f64, i32 or i64, one multiply-add for each element of K in order.
    MultiplyAdd = "multiply_add",
}}

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

/// The left operand of a wgmma; an operand of a [`DotInPlace`](super::OpKind::DotInPlace).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum MmaOperand {
    Smem(RefUse),
    Registers(Value),
}

impl MmaOperand {
    /// Where it is in memory, if it is.
    pub fn reference(&self) -> Option<&RefUse> {
        match self {
            MmaOperand::Smem(r) => Some(r),
            MmaOperand::Registers(_) => None,
        }
    }
}

names! { "function"
/// Element-wise functions of one operand. Float operands unless the comment says otherwise.
pub enum UnaryOp {
    /// Integers too (wraps: −MIN = MIN); floats flip the sign bit, NaN's included.
    Neg = "neg",
    /// Integers and bool: bitwise (logical) complement.
    Not = "not",
    /// Signed integers too (|MIN| = MIN).
    Abs = "abs",
    /// −1, 0, 1; integers too. Floats: ±0 → ±0, NaN → NaN.
    Sign = "sign",
    Floor = "floor",
    Ceil = "ceil",
    /// Halves away from zero.
    RoundAwayFromZero = "round_away",
    /// Halves to even.
    RoundToEven = "round_even",
    /// To the nearest tf32 (10 bits behind the point), halves away from zero; narrower floats are what they were.
    RoundToTf32 = "round_tf32",
    /// bool: neither inf nor NaN.
    IsFinite = "is_finite",
    Exp = "exp",
    Exp2 = "exp2",
    Expm1 = "expm1",
    Log = "log",
    Log1p = "log1p",
    Log2 = "log2",
    Sqrt = "sqrt",
    Rsqrt = "rsqrt",
    Cbrt = "cbrt",
    Sin = "sin",
    Cos = "cos",
    Tan = "tan",
    Asin = "asin",
    Acos = "acos",
    Atan = "atan",
    Sinh = "sinh",
    Cosh = "cosh",
    Tanh = "tanh",
    Asinh = "asinh",
    Acosh = "acosh",
    Atanh = "atanh",
    Erf = "erf",
    Erfc = "erfc",
    ErfInv = "erf_inv",
    Lgamma = "lgamma",
    /// 1 / (1 + exp(−x)).
    Logistic = "logistic",
    /// Integers: leading zeros (of 0: the width).
    CountLeadingZeros = "clz",
    /// Integers.
    PopulationCount = "population_count",
}}

names! { "function"
/// Element-wise functions of two operands of one type (bool: only And, Or, Xor).
pub enum BinaryOp {
    Add = "add",
    Sub = "sub",
    Mul = "mul",
    /// Integers truncate towards zero; x / 0 = −1 (all bits set), MIN / −1 = MIN. Floats: full range.
    Div = "div",
    /// Sign of the dividend. Integers: x rem 0 = x, MIN rem −1 = 0. Floats: C's fmod.
    Rem = "rem",
    /// Floats: NaN if either is NaN; +0 > −0.
    Max = "max",
    Min = "min",
    /// Integers and bool.
    And = "and",
    Or = "or",
    Xor = "xor",
    /// Integers; b is unsigned here: a shift ≥ the width (or "negative") gives 0.
    ShiftLeft = "shift_left",
    /// The same for right shifts of the unsigned bits.
    ShiftRightLogical = "shift_right_logical",
    /// A shift ≥ the width gives 0 or −1 by the sign.
    ShiftRightArithmetic = "shift_right_arithmetic",
    Pow = "pow",
    Atan2 = "atan2",
    NextAfter = "nextafter",
    /// |a| with b's sign bit.
    CopySign = "copysign",
}}

names! { "comparison"
pub enum CompareOp {
    Eq = "eq",
    Ne = "ne",
    Lt = "lt",
    Le = "le",
    Gt = "gt",
    Ge = "ge",
}}

names! { "reduction"
pub enum ReduceOp {
    Sum = "reduce_sum",
    Prod = "reduce_prod",
    Max = "reduce_max",
    Min = "reduce_min",
    /// Integers and bool.
    And = "reduce_and",
    Or = "reduce_or",
    Xor = "reduce_xor",
}}

names! { "reduction"
pub enum ArgReduceOp {
    ArgMax = "argmax",
    ArgMin = "argmin",
}}

names! { "reduction"
pub enum CumulativeOp {
    Sum = "cumsum",
    Prod = "cumprod",
    Max = "cummax",
    Min = "cummin",
    LogSumExp = "cumlogsumexp",
}}

names! { "atomic operation"
pub enum AtomicOp {
    Add = "add",
    Max = "max",
    Min = "min",
    And = "and",
    Or = "or",
    Xor = "xor",
}}

names! { "update"
/// What `put` does with the element that is there.
pub enum PutOp {
    Set = "put",
    Add = "put_add",
    Mul = "put_mul",
    Max = "put_max",
    Min = "put_min",
}}

names! { "reduction"
/// The reductions of a smem → gmem copy.
pub enum CopyReduction {
    Add = "add",
    Min = "min",
    Max = "max",
    Inc = "inc",
    Dec = "dec",
    And = "and",
    Or = "or",
    Xor = "xor",
}}

texts! { "way to share a copy"
/// How the two CTAs of a `leader_tracked` copy share it. The leader's barrier expects both parts.
#[derive(Copy)]
pub enum LeaderTracked {
    /// CTA i loads part i of the source, which has twice the destination's extent along this dimension.
    Partitioned "partitioned" { dim: u32 },
    /// Both load everything.
    Replicated "replicated",
}}

names! { "mode of elements outside"
/// What a copy's elements outside the GMEM array are.
pub enum OobMode {
    Zeros = "zeros",
    /// There are none.
    PromiseInBounds = "promise_in_bounds",
    Undefined = "undefined",
}}

names! { "scope of a wait"
/// What a wait for smem → gmem copies covers.
pub enum WaitScope {
    /// SMEM has been read and may be overwritten.
    SmemRead = "smem_read",
    /// GMEM has been written too.
    Complete = "complete",
}}

names! { "scope"
pub enum MemoryScope {
    Gpu = "gpu",
    Sys = "sys",
}}

names! { "arriving lanes"
/// Who arrives on a barrier for its group.
pub enum Arriving {
    /// One lane, behind a rendezvous of the group.
    One = "one",
    /// One lane of each warp, behind a rendezvous of the warp.
    Warps = "warps",
    /// Every lane, by itself.
    All = "all",
}}

texts! {
/// What an arrival releases, and a wait acquires, and for whom.
#[derive(Copy)]
pub struct BarrierOrder {
    /// Nothing: fences do.
    relaxed: bool,
    /// `None`: as wide as those that use the barrier need.
    "scope" scope: Option<BarrierScope>,
}}

impl BarrierOrder {
    /// Of arrivals that the author gives no order.
    pub const RELEASE: BarrierOrder = BarrierOrder {
        relaxed: false,
        scope: None,
    };
}

names! { "scope"
pub enum BarrierScope {
    Block = "block",
    Cluster = "cluster",
}}

names! { "change of registers"
pub enum RegisterAction {
    Increase = "increase",
    Decrease = "decrease",
}}

names! { "part of a dependent launch"
pub enum GridDependencyAction {
    Wait = "wait",
    LaunchDependents = "launch_dependents",
}}

names! { "fence"
/// Fences between the generic and the async proxy.
pub enum FenceKind {
    /// `fence.proxy.async.shared::cta`.
    ProxyAsyncSharedCta = "proxy_async_shared_cta",
    /// `fence.proxy.async.global`: placed where copies touch what ordinary stores left in device memory.
    ProxyAsyncGlobal = "proxy_async_global",
    /// `fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster`.
    ProxyAsyncGenericAcquire = "proxy_async_generic_acquire",
    /// `fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster`.
    ProxyAsyncGenericRelease = "proxy_async_generic_release",
}}

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

impl Constant {
    /// A scalar's or uniform array's bits, if all elements are equal by construction.
    pub fn splat(&self) -> Option<u64> {
        match self {
            Constant::Splat(bits) => Some(*bits),
            Constant::Dense(_) => None,
        }
    }
}
