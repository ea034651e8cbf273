//! Modifiers of instructions: closed enums whose text is what PTX prints.
//!
//! An optional modifier's text starts with its dot (`""` when absent); a mandatory one has none (the row's syntax
//! writes the dot).
use super::operand::Slot;
use crate::target::Features;

/// A modifier: text and back.
pub trait Modifier: Copy + Sized + 'static {
    const ALL: &'static [Self];
    fn text(self) -> &'static str;
    /// What a machine must have for it, whatever the instruction.
    fn features(self) -> Features;
    /// The longest member whose text starts `input`, and how many bytes it took.
    fn parse_prefix(input: &str) -> Option<(Self, usize)> {
        Self::ALL
            .iter()
            .filter(|m| input.starts_with(m.text()))
            .max_by_key(|m| m.text().len())
            .map(|m| (*m, m.text().len()))
    }
}

/// The parts of a machine that a text names.
const fn named(text: &str) -> Features {
    let mut named = Features::empty();
    if contains(text, b"cluster") {
        named = named.union(Features::CLUSTERS);
    }
    if contains(text, b"wgmma") {
        named = named.union(Features::WGMMA);
    }
    if contains(text, b"setmaxnreg") {
        named = named.union(Features::SET_MAX_REG);
    }
    if contains(text, b"cp.async.bulk") {
        named = named.union(Features::BULK_COPIES);
    }
    named
}

/// Whether `part` is in `text`.
const fn contains(text: &str, part: &[u8]) -> bool {
    let text = text.as_bytes();
    let mut at = 0;
    while at + part.len() <= text.len() {
        let mut equal = 0;
        while equal < part.len() && text[at + equal] == part[equal] {
            equal += 1;
        }
        if equal == part.len() {
            return true;
        }
        at += 1;
    }
    false
}

macro_rules! modifiers {
    ($( $(#[$doc:meta])* $name:ident { $( $variant:ident = $text:literal ),+ $(,)? } )+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        pub enum $name { $( $variant ),+ }
        impl Modifier for $name {
            const ALL: &'static [$name] = &[$( $name::$variant ),+];
            fn text(self) -> &'static str { match self { $( $name::$variant => $text ),+ } }
            fn features(self) -> Features { match self { $( $name::$variant => const { named($text) } ),+ } }
        }
    )+};
}

/// Types that also say what an operand slot takes.
macro_rules! types {
    ($( $(#[$doc:meta])* $name:ident { $( $variant:ident = $text:literal : $slot:ident ),+ $(,)? } )+) => {$(
        modifiers! { $(#[$doc])* $name { $( $variant = $text ),+ } }
        impl $name {
            /// What an operand of this type takes.
            pub const fn slot(self) -> Slot { match self { $( $name::$variant => Slot::$slot ),+ } }
        }
    )+};
}

types! {
    /// Types of integer arithmetic.
    IntType { U16 = "u16": B16, S16 = "s16": B16, U32 = "u32": B32, S32 = "s32": B32, U64 = "u64": B64, S64 = "s64": B64 }
    /// Sources of widening multiplications; the result is twice as wide.
    WideType { U16 = "u16": B16, S16 = "s16": B16, U32 = "u32": B32, S32 = "s32": B32 }
    /// Types of untyped moves.
    BitType { B16 = "b16": B16, B32 = "b32": B32, B64 = "b64": B64 }
    /// Types of bitwise logic.
    LogicType { Pred = "pred": PRED, B16 = "b16": B16, B32 = "b32": B32, B64 = "b64": B64 }
    /// 32- and 64-bit types.
    WordType { B32 = "b32": B32, B64 = "b64": B64 }
    /// Shifts to the right.
    ShiftType { U16 = "u16": B16, S16 = "s16": B16, U32 = "u32": B32, S32 = "s32": B32, U64 = "u64": B64, S64 = "s64": B64 }
    /// Types of floating-point arithmetic.
    FloatType { F16 = "f16": H16, F16x2 = "f16x2": H16X2, BF16 = "bf16": H16, BF16x2 = "bf16x2": H16X2, F32 = "f32": F32, F64 = "f64": F64 }
    /// f32 and f64.
    WideFloatType { F32 = "f32": F32, F64 = "f64": F64 }
    /// 16-bit floats.
    HalfType { F16 = "f16": H16, F16x2 = "f16x2": H16X2, BF16 = "bf16": H16, BF16x2 = "bf16x2": H16X2 }
    /// Types of comparisons and selections.
    CompareType { U16 = "u16": B16, S16 = "s16": B16, U32 = "u32": B32, S32 = "s32": B32, U64 = "u64": B64, S64 = "s64": B64,
        B16 = "b16": B16, B32 = "b32": B32, B64 = "b64": B64, F16 = "f16": H16, BF16 = "bf16": H16, F32 = "f32": F32, F64 = "f64": F64 }
    /// Scalar types of `cvt`. 8-bit integers live in 32-bit registers.
    CvtType { U8 = "u8": B32, S8 = "s8": B32, U16 = "u16": B16, S16 = "s16": B16, U32 = "u32": B32, S32 = "s32": B32, U64 = "u64": B64, S64 = "s64": B64,
        F16 = "f16": H16, BF16 = "bf16": H16, F32 = "f32": F32, F64 = "f64": F64 }
    /// Types of loads and stores. A byte is loaded zero-extended (`U8`) or sign-extended (`S8`) into a 32-bit register.
    MemType { U8 = "u8": B32, S8 = "s8": B32, B16 = "b16": B16, B32 = "b32": B32, B64 = "b64": B64 }
    /// Types of atomics.
    AtomType { B32 = "b32": B32, B64 = "b64": B64, U32 = "u32": B32, S32 = "s32": B32, U64 = "u64": B64, S64 = "s64": B64, F32 = "f32": F32, F64 = "f64": F64,
        F16 = "noftz.f16": H16, F16x2 = "noftz.f16x2": H16X2, BF16 = "noftz.bf16": H16, BF16x2 = "noftz.bf16x2": H16X2 }
    /// 32-bit integers.
    Int32Type { U32 = "u32": B32, S32 = "s32": B32 }
    /// Pairs of 16-bit integers. No immediates.
    PairIntType { U16x2 = "u16x2": H16X2, S16x2 = "s16x2": H16X2 }
    /// Integers of which a minimum or maximum may be clamped to zero.
    ReluIntType { S16x2 = "s16x2": H16X2, S32 = "s32": B32 }
    /// Floats of which results may be clamped to [0, 1].
    SatFloatType { F16 = "f16": H16, F16x2 = "f16x2": H16X2, F32 = "f32": F32 }
    /// Floats of which minima and maxima may take their sign from both operands.
    SignedMinType { F16 = "f16": H16, F16x2 = "f16x2": H16X2, BF16 = "bf16": H16, BF16x2 = "bf16x2": H16X2, F32 = "f32": F32 }
    /// What `set` answers with: all ones, or 1.0.
    SetType { U32 = "u32": B32, S32 = "s32": B32, F32 = "f32": F32 }
    /// Scalar 16-bit floats.
    Scalar16Type { F16 = "f16": H16, BF16 = "bf16": H16 }
    /// Accumulator types of tensor-core instructions. f16 accumulators are packed in pairs.
    AccType { F32 = "f32": F32, F16 = "f16": H16X2, S32 = "s32": B32 }
}

/// Who reads the same number of a special register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reader {
    /// Each lane its own.
    Lane,
    /// All threads of the block.
    Block,
    /// None: it changes. Read by one instruction of a warp it is equal in its lanes on every machine we run on, but that is not promised.
    Clock,
}

/// Names, who reads the same, and the largest number that is read.
macro_rules! special_registers {
    ($($variant:ident = $text:literal: $reader:ident $most:expr,)*) => {
        modifiers! {
            /// Special registers that are read with `mov.u32`.
            SpecialReg32 { $($variant = $text),* }
        }
        impl SpecialReg32 {
            pub const fn reader(self) -> Reader {
                match self { $(SpecialReg32::$variant => Reader::$reader),* }
            }
            /// No number that is read is larger.
            pub const fn most(self) -> u32 {
                match self { $(SpecialReg32::$variant => $most),* }
            }
        }
    };
}

const ANY: u32 = u32::MAX;
const GRID: u32 = 0x7fff_ffff;
// CUDA's limits: 1024 threads a block, 16 blocks a cluster.
special_registers! {
    TidX = "%tid.x": Lane 1023, NtidX = "%ntid.x": Block 1024,
    CtaidX = "%ctaid.x": Block GRID, CtaidY = "%ctaid.y": Block 65535, CtaidZ = "%ctaid.z": Block 65535,
    NctaidX = "%nctaid.x": Block GRID, NctaidY = "%nctaid.y": Block 65535, NctaidZ = "%nctaid.z": Block 65535,
    ClusterCtaidX = "%cluster_ctaid.x": Block 15, ClusterCtaidY = "%cluster_ctaid.y": Block 15, ClusterCtaidZ = "%cluster_ctaid.z": Block 15,
    ClusteridX = "%clusterid.x": Block GRID, ClusteridY = "%clusterid.y": Block GRID, ClusteridZ = "%clusterid.z": Block GRID,
    ClusterCtarank = "%cluster_ctarank": Block 15, ClusterNctarank = "%cluster_nctarank": Block 16,
    Laneid = "%laneid": Lane 31, Smid = "%smid": Block GRID, Nsmid = "%nsmid": Block GRID,
    Clock = "%clock": Clock ANY, GlobaltimerLo = "%globaltimer_lo": Clock ANY,
    LanemaskLt = "%lanemask_lt": Lane ANY, LanemaskEq = "%lanemask_eq": Lane ANY, LanemaskLe = "%lanemask_le": Lane ANY,
    LanemaskGe = "%lanemask_ge": Lane ANY, LanemaskGt = "%lanemask_gt": Lane ANY,
    TidY = "%tid.y": Lane 1023, TidZ = "%tid.z": Lane 1023, NtidY = "%ntid.y": Block 1024, NtidZ = "%ntid.z": Block 1024,
    Warpid = "%warpid": Clock ANY, Nwarpid = "%nwarpid": Block ANY,
    NclusteridX = "%nclusterid.x": Block ANY, NclusteridY = "%nclusterid.y": Block ANY, NclusteridZ = "%nclusterid.z": Block ANY,
    ClusterNctaidX = "%cluster_nctaid.x": Block ANY, ClusterNctaidY = "%cluster_nctaid.y": Block ANY, ClusterNctaidZ = "%cluster_nctaid.z": Block ANY,
    ClockHi = "%clock_hi": Clock ANY, GlobaltimerHi = "%globaltimer_hi": Clock ANY,
    DynamicSmemSize = "%dynamic_smem_size": Block ANY, TotalSmemSize = "%total_smem_size": Block ANY,
}

modifiers! {
    /// Whether `tcgen05` acts on one CTA, or on two whose ranks in the cluster differ in the lowest bit.
    CtaGroup { One = "1", Two = "2" }
    /// Lanes of tensor memory that a warp loads or stores, and bits of each.
    TmemShape { L32B32 = "32x32b", L16B64 = "16x64b", L16B128 = "16x128b", L16B256 = "16x256b" }
    /// Whether a register takes the low halves of two columns.
    TmemPack { No = "", Pack = ".pack::16b" }
    /// Whether a register's halves go to two columns.
    TmemUnpack { No = "", Unpack = ".unpack::16b" }
    TmemAccess { Loads = "ld", Stores = "st" }
    ThreadSync { Before = "before", After = "after" }
    /// Rows and bits of each; where there are fewer rows than lanes, which lanes take copies.
    TmemCopyShape { L128B256 = "128x256b", L128B128 = "128x128b", L64B128 = "64x128b.warpx2::01_23", L32B128 = "32x128b.warpx4" }
    /// Types of operands of `tcgen05.mma`.
    Tcgen05Kind { F16 = "f16", TF32 = "tf32", F8F6F4 = "f8f6f4", I8 = "i8" }
    /// Special registers that are read with `mov.u64`.
    SpecialReg64 { Clock64 = "%clock64", Globaltimer = "%globaltimer", Gridid = "%gridid" }
    /// Special registers that are predicates.
    SpecialPred { IsExplicitCluster = "%is_explicit_cluster" }
    Ftz { No = "", Yes = ".ftz" }
    /// Saturation to [0, 1] (floats) or to the range of the type (integers).
    Sat { No = "", Yes = ".sat" }
    /// A result that is NaN if an operand is.
    NanMode { Number = "", Propagate = ".NaN" }
    /// Rounding of `cvt`, `add`, `mul`, `fma`: never left to the assembler where a contraction could follow.
    Round { Rn = ".rn", Rz = ".rz", Rm = ".rm", Rp = ".rp" }
    /// Rounding of conversions: none (exact), to a float, or to an integral value.
    CvtRound { None = "", Rn = ".rn", Rz = ".rz", Rm = ".rm", Rp = ".rp", Rni = ".rni", Rzi = ".rzi", Rmi = ".rmi", Rpi = ".rpi" }
    /// Rounding other than to nearest.
    DirectedRound { Rz = ".rz", Rm = ".rm", Rp = ".rp" }
    Relu { No = "", Yes = ".relu" }
    /// Arithmetic of two floats.
    FloatOp { Add = "add", Sub = "sub", Mul = "mul" }
    AddSub { Add = "add", Sub = "sub" }
    /// Which half of a product, or of a pair.
    Half { Lo = "lo", Hi = "hi" }
    /// How a comparison is combined with a predicate.
    BoolOp { And = ".and", Or = ".or", Xor = ".xor" }
    Inverted { No = "", Yes = "!" }
    /// What `lop3` combines with a predicate.
    OrAnd { Or = "or", And = "and" }
    /// Kinds of floats that `testp` finds.
    FloatTest { Finite = "finite", Infinite = "infinite", Number = "number", NotANumber = "notanumber", Normal = "normal", Subnormal = "subnormal" }
    /// Integers that `cvt.pack` saturates to.
    PackType { U16 = "u16", S16 = "s16" }
    /// Narrower ones, of which there is room for more in a word.
    NarrowPackType { U8 = "u8", S8 = "s8", U4 = "u4", S4 = "s4", U2 = "u2", S2 = "s2" }
    /// Pairs of 16-bit floats.
    Pair16 { F16x2 = "f16x2", BF16x2 = "bf16x2" }
    /// Pairs of fp8, in a 16-bit register.
    Pair8 { E4M3x2 = "e4m3x2", E5M2x2 = "e5m2x2" }
    /// How a float division is done.
    DivMode { Approx = ".approx", Full = ".full" }
    Unary16 { Ex2F16 = "ex2.approx.f16", Ex2F16x2 = "ex2.approx.f16x2", Ex2BF16 = "ex2.approx.ftz.bf16", Ex2BF16x2 = "ex2.approx.ftz.bf16x2",
        TanhF16 = "tanh.approx.f16", TanhF16x2 = "tanh.approx.f16x2", TanhBF16 = "tanh.approx.bf16", TanhBF16x2 = "tanh.approx.bf16x2" }
    /// Approximate functions of the special-function unit, f32.
    Mufu { Ex2 = "ex2", Lg2 = "lg2", Rcp = "rcp", Rsqrt = "rsqrt", Sqrt = "sqrt", Sin = "sin", Cos = "cos" }
    /// Correctly rounded functions.
    Exact { Rcp = "rcp", Sqrt = "sqrt" }
    /// f64 seeds.
    Mufu64 { Rcp = "rcp", Rsqrt = "rsqrt" }
    /// Comparisons. The `…u` forms are true when an operand is NaN; `num` and `nan` test for NaN.
    Compare { Eq = "eq", Ne = "ne", Lt = "lt", Le = "le", Gt = "gt", Ge = "ge", Lo = "lo", Ls = "ls", Hi = "hi", Hs = "hs",
        Equ = "equ", Neu = "neu", Ltu = "ltu", Leu = "leu", Gtu = "gtu", Geu = "geu", Num = "num", Nan = "nan" }
    Logic { And = "and", Or = "or", Xor = "xor" }
    ShiftDirection { Left = "l", Right = "r" }
    /// What a funnel shift does with amounts above 31.
    ShiftAmount { Wrap = ".wrap", Clamp = ".clamp" }
    /// What has a dimension that an index is of: a buffer by its number, the rest by the offset in shared memory; a hint says
    /// of what number (`size`) it is a multiple; named barriers are from `place` on.
    Indexed { Buffer = "buffer", Shared = "shared", Tensor = "tensor", Barriers = "barriers", Devices = "devices", Hint = "hint", Named = "named" }
    PrmtMode { Bytes = "", F4e = ".f4e", B4e = ".b4e", Rc8 = ".rc8", Ecl = ".ecl", Ecr = ".ecr", Rc16 = ".rc16" }
    MinMax { Min = "min", Max = "max" }
    /// State space of a load, store or atomic.
    Space { Global = ".global", Shared = ".shared", SharedCluster = ".shared::cluster", Generic = "" }
    /// Semantics of a load.
    LoadSem { Weak = "", Volatile = ".volatile", RelaxedCta = ".relaxed.cta", RelaxedCluster = ".relaxed.cluster", RelaxedGpu = ".relaxed.gpu",
        RelaxedSys = ".relaxed.sys", AcquireCta = ".acquire.cta", AcquireCluster = ".acquire.cluster", AcquireGpu = ".acquire.gpu", AcquireSys = ".acquire.sys" }
    /// Semantics of a store.
    StoreSem { Weak = "", Volatile = ".volatile", RelaxedCta = ".relaxed.cta", RelaxedCluster = ".relaxed.cluster", RelaxedGpu = ".relaxed.gpu", RelaxedSys = ".relaxed.sys",
        ReleaseCta = ".release.cta", ReleaseCluster = ".release.cluster", ReleaseGpu = ".release.gpu", ReleaseSys = ".release.sys" }
    /// Semantics of an atomic or a fence.
    AtomSem { Relaxed = ".relaxed", Acquire = ".acquire", Release = ".release", AcqRel = ".acq_rel" }
    FenceSem { AcqRel = ".acq_rel", Sc = ".sc", Acquire = ".acquire", Release = ".release" }
    /// Fences of accesses to shared memory alone: of the executing block's before, of the cluster's behind.
    SharedFence { Release = "release.sync_restrict::shared::cta", Acquire = "acquire.sync_restrict::shared::cluster" }
    Scope { Cta = ".cta", Cluster = ".cluster", Gpu = ".gpu", Sys = ".sys" }
    AtomOp { Add = "add", Min = "min", Max = "max", And = "and", Or = "or", Xor = "xor", Exch = "exch", Inc = "inc", Dec = "dec" }
    /// Reductions of vectors of 16-bit floats.
    HalfRedOp { Add = "add", Min = "min", Max = "max" }
    RedOp { Add = "add", Min = "min", Max = "max", And = "and", Or = "or", Xor = "xor", Inc = "inc", Dec = "dec" }
    ShuffleMode { Idx = "idx", Up = "up", Down = "down", Bfly = "bfly" }
    VoteMode { All = "all", Any = "any", Uni = "uni" }
    ReduxOp { AddU32 = "add.u32", AddS32 = "add.s32", MinU32 = "min.u32", MinS32 = "min.s32", MaxU32 = "max.u32", MaxS32 = "max.s32",
        And = "and.b32", Or = "or.b32", Xor = "xor.b32" }
    MatrixTrans { No = "", Yes = ".trans" }
    ClusterArriveSem { Release = "", Relaxed = ".relaxed" }
    /// Proxy fences.
    ProxyFence { Async = "async", AsyncGlobal = "async.global", AsyncSharedCta = "async.shared::cta", AsyncSharedCluster = "async.shared::cluster", Alias = "alias",
        AsyncGenericAcquireCluster = "async::generic.acquire.sync_restrict::shared::cluster.cluster",
        AsyncGenericReleaseCluster = "async::generic.release.sync_restrict::shared::cta.cluster" }
    /// Bulk-copy waits: until the sources may be overwritten, or until the writes are visible.
    BulkWait { Complete = "", Read = ".read" }
    /// What a warp may have in flight that leaves a kernel early.
    Drain { Nothing = "", Products = "\n\twgmma.wait_group.sync.aligned 0;" }
    /// What it does with its registers, for which others may wait.
    LeftRegisters { Kept = "", Released = "\n\tsetmaxnreg.dec.sync.aligned.u32 24;" }
    /// What it may have copied in bulk, for which it waits.
    LeftCopies { Nothing = "", Bulk = "\n\tcp.async.bulk.commit_group;\n\tcp.async.bulk.wait_group 0;" }
    /// Whom a block waits for where it ends: only itself, or the others of its cluster.
    EndsWith { Itself = "", Cluster = "\n\tbarrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" }
    /// Reductions of predicates at a barrier.
    BarRedOp { And = "and", Or = "or" }
    /// What a thread does to the count of an mbarrier: arrives, or arrives and no more.
    MbarrierOp { Arrive = "arrive", ArriveDrop = "arrive_drop" }
    /// Semantics of an arrival: release in the block by default.
    ArriveSem { Default = "", ReleaseCta = ".release.cta", ReleaseCluster = ".release.cluster", RelaxedCta = ".relaxed.cta", RelaxedCluster = ".relaxed.cluster" }
    /// Where an mbarrier is.
    BarrierSpace { Cta = "shared::cta", Cluster = "shared::cluster" }
    /// What happens to the transaction count of an mbarrier.
    TxOp { Expect = "expect_tx", Complete = "complete_tx" }
    TxScope { Cta = ".cta", Cluster = ".cluster" }
    /// How a phase of an mbarrier is asked for: `try_wait` may sleep a while.
    MbarrierAsk { Test = "test_wait", Try = "try_wait" }
    /// Semantics of asking: acquire in the block by default.
    AskSem { Default = "", AcquireCta = ".acquire.cta", AcquireCluster = ".acquire.cluster", RelaxedCta = ".relaxed.cta", RelaxedCluster = ".relaxed.cluster" }
    /// How a load uses the caches: hints, without a meaning for what is loaded.
    LoadCache { Ca = ".ca", Cg = ".cg", Cs = ".cs", Lu = ".lu", Cv = ".cv", Normal = ".L1::evict_normal", Unchanged = ".L1::evict_unchanged",
        First = ".L1::evict_first", Last = ".L1::evict_last", NoAllocate = ".L1::no_allocate", L2B64 = ".L2::64B", L2B128 = ".L2::128B", L2B256 = ".L2::256B",
        NoAllocateL2B64 = ".L1::no_allocate.L2::64B", NoAllocateL2B128 = ".L1::no_allocate.L2::128B", NoAllocateL2B256 = ".L1::no_allocate.L2::256B" }
    /// The same of loads through the read-only path.
    ReadCache { Ca = ".ca.nc", Cg = ".cg.nc", Cs = ".cs.nc", Normal = ".nc.L1::evict_normal", Unchanged = ".nc.L1::evict_unchanged",
        First = ".nc.L1::evict_first", Last = ".nc.L1::evict_last", NoAllocate = ".nc.L1::no_allocate", L2B64 = ".nc.L2::64B", L2B128 = ".nc.L2::128B",
        L2B256 = ".nc.L2::256B", NoAllocateL2B64 = ".nc.L1::no_allocate.L2::64B", NoAllocateL2B128 = ".nc.L1::no_allocate.L2::128B",
        NoAllocateL2B256 = ".nc.L1::no_allocate.L2::256B" }
    /// The same of stores.
    StoreCache { Wb = ".wb", Cg = ".cg", Cs = ".cs", Wt = ".wt", Normal = ".L1::evict_normal", Unchanged = ".L1::evict_unchanged",
        First = ".L1::evict_first", Last = ".L1::evict_last", NoAllocate = ".L1::no_allocate" }
    /// Sums and differences that leave a carry in the condition code, take the one that is there, or do both.
    CarryOp { AddCc = "add.cc", Addc = "addc", AddcCc = "addc.cc", SubCc = "sub.cc", Subc = "subc", SubcCc = "subc.cc" }
    CarryMad { MadLoCc = "mad.lo.cc", MadcLo = "madc.lo", MadcLoCc = "madc.lo.cc", MadHiCc = "mad.hi.cc", MadcHi = "madc.hi", MadcHiCc = "madc.hi.cc" }
    /// How long lines stay in the L2 cache: of a policy's part of the accesses, and of the others.
    PolicyPriority { Last = ".L2::evict_last", Normal = ".L2::evict_normal", First = ".L2::evict_first", Unchanged = ".L2::evict_unchanged" }
    PolicyOthers { Unchanged = "", First = ".L2::evict_first", AlsoUnchanged = ".L2::evict_unchanged" }
    /// The same in the L1 cache, of one access.
    L1Priority { No = "", Normal = ".L1::evict_normal", Unchanged = ".L1::evict_unchanged", First = ".L1::evict_first", Last = ".L1::evict_last",
        NoAllocate = ".L1::no_allocate" }
    /// Which lanes execute a text: those of the warp together, or one by itself.
    Lanes { Warp = "warp", One = "one" }
    /// Where a line of memory is brought.
    PrefetchLevel { L1 = ".L1", L2 = ".L2", GlobalL1 = ".global.L1", GlobalL2 = ".global.L2", GlobalL2Last = ".global.L2::evict_last", GlobalL2Normal = ".global.L2::evict_normal" }
    /// Which caches a small copy goes through.
    CopyCache { Ca = ".ca", Cg = ".cg" }
    PrefetchSize { No = "", B64 = ".L2::64B", B128 = ".L2::128B", B256 = ".L2::256B" }
    /// Whether an arrival is one of those that the barrier takes: else it takes one more.
    Counted { No = "", Yes = ".noinc" }
    /// Whose writes a wait for an mbarrier makes visible: the block's, or the cluster's.
    Acquire { Cta = "", Cluster = ".acquire.cluster", RelaxedCta = ".relaxed.cta", RelaxedCluster = ".relaxed.cluster" }
    /// Whose view of what came before an arrival makes visible: the block's, or the cluster's.
    Release { Cta = "", Cluster = ".release.cluster" }
    /// How long a wait may sleep before it looks again, in nanoseconds: as the hardware likes, or 10 ms.
    Suspend { Short = "", Long = ", 10000000" }
    /// Reductions of bulk tensor copies.
    TensorRed { Add = ".add", Min = ".min", Max = ".max", Inc = ".inc", Dec = ".dec", And = ".and", Or = ".or", Xor = ".xor" }
    /// Operand types of wgmma: `a.b`.
    WgmmaTypes { F16 = "f16.f16", BF16 = "bf16.bf16", TF32 = "tf32.tf32", E4M3E4M3 = "e4m3.e4m3", E4M3E5M2 = "e4m3.e5m2", E5M2E4M3 = "e5m2.e4m3",
        E5M2E5M2 = "e5m2.e5m2", S8S8 = "s8.s8", S8U8 = "s8.u8", U8S8 = "u8.s8", U8U8 = "u8.u8" }
    SatFinite { No = "", Yes = ".satfinite" }
    /// Shapes of `mma` with 32-bit registers: rows of A, columns of B, and depth.
    MmaShape { M16N8K4 = "m16n8k4", M16N8K8 = "m16n8k8", M16N8K16 = "m16n8k16", M16N8K32 = "m16n8k32", M16N8K64 = "m16n8k64", M16N8K128 = "m16n8k128",
        M8N8K16 = "m8n8k16", M8N8K32 = "m8n8k32" }
    /// Types of D, A, B and C.
    MmaTypes { F16 = "f32.f16.f16.f32", F16Half = "f16.f16.f16.f16", BF16 = "f32.bf16.bf16.f32", TF32 = "f32.tf32.tf32.f32",
        E4M3E4M3 = "f32.e4m3.e4m3.f32", E4M3E5M2 = "f32.e4m3.e5m2.f32", E5M2E4M3 = "f32.e5m2.e4m3.f32", E5M2E5M2 = "f32.e5m2.e5m2.f32",
        E4M3E4M3Half = "f16.e4m3.e4m3.f16", E4M3E5M2Half = "f16.e4m3.e5m2.f16", E5M2E4M3Half = "f16.e5m2.e4m3.f16", E5M2E5M2Half = "f16.e5m2.e5m2.f16",
        S8S8 = "s32.s8.s8.s32", S8U8 = "s32.s8.u8.s32", U8S8 = "s32.u8.s8.s32", U8U8 = "s32.u8.u8.s32",
        S4S4 = "s32.s4.s4.s32", S4U4 = "s32.s4.u4.s32", U4S4 = "s32.u4.s4.s32", U4U4 = "s32.u4.u4.s32" }
    MmaBitShape { M8N8K128 = "m8n8k128", M16N8K128 = "m16n8k128", M16N8K256 = "m16n8k256" }
    /// What joins single bits.
    BitProduct { Xor = ".xor", And = ".and" }
    MmaF64Shape { M8N8K4 = "m8n8k4", M16N8K4 = "m16n8k4", M16N8K8 = "m16n8k8", M16N8K16 = "m16n8k16" }
    /// Rounding of products and sums of doubles.
    MmaF64Round { Rn = "", Rz = ".rz", Rm = ".rm", Rp = ".rp" }
    /// Whether lanes have rows or columns of a matrix.
    MmaMajor { Row = "row", Col = "col" }
    /// Types of D, A, B and C of products of eight lanes.
    MmaQuadTypes { F32 = "f32.f16.f16.f32", F32OfF16 = "f32.f16.f16.f16", F16 = "f16.f16.f16.f16" }
    /// Whether the places of a chunk's two elements must rise.
    MetadataOrder { Ordered = "sp::ordered_metadata", Any = "sp" }
    RegCount { Increase = ".inc", Decrease = ".dec" }
    GridDep { Wait = "wait", LaunchDependents = "launch_dependents" }
}

impl CvtType {
    /// Bits and signedness of an integer.
    pub const fn integer(self) -> Option<(u32, bool)> {
        match self {
            CvtType::U8 => Some((8, false)),
            CvtType::S8 => Some((8, true)),
            CvtType::U16 => Some((16, false)),
            CvtType::S16 => Some((16, true)),
            CvtType::U32 => Some((32, false)),
            CvtType::S32 => Some((32, true)),
            CvtType::U64 => Some((64, false)),
            CvtType::S64 => Some((64, true)),
            CvtType::F16 | CvtType::BF16 | CvtType::F32 | CvtType::F64 => None,
        }
    }
}

impl IntType {
    pub const fn bits(self) -> u32 {
        self.slot().class.bits()
    }
    pub const fn is_signed(self) -> bool {
        matches!(self, IntType::S16 | IntType::S32 | IntType::S64)
    }
}

/// Members of one enum as those of another: `name: From { A, … } => To`, of the same names, or of others where they are given.
macro_rules! conversions {
    ($($(#[$doc:meta])* $name:ident: $From:ident { $($($a:ident)|+ $(= $b:ident)?),+ } => $To:ident;)*) => {$(
        impl $From {
            $(#[$doc])*
            pub const fn $name(self) -> $To {
                match self { $( conversions!(@from $From $($a)|+) => conversions!(@to $To $($a)|+ $(= $b)?) ),+ }
            }
        }
    )*};
    (@from $From:ident $($a:ident)|+) => { $($From::$a)|+ };
    (@to $To:ident $($a:ident)|+ = $b:ident) => { $To::$b };
    (@to $To:ident $a:ident) => { $To::$a };
}
conversions! {
    /// The untyped view of the same width.
    as_bits: IntType { U16 | S16 = B16, U32 | S32 = B32, U64 | S64 = B64 } => BitType;
    as_logic: IntType { U16 | S16 = B16, U32 | S32 = B32, U64 | S64 = B64 } => LogicType;
    as_unsigned: IntType { U16 | S16 = U16, U32 | S32 = U32, U64 | S64 = U64 } => IntType;
    as_signed: IntType { U16 | S16 = S16, U32 | S32 = S32, U64 | S64 = S64 } => IntType;
    /// The shift to the right that divides (rounding down).
    as_shift: IntType { U16, S16, U32, S32, U64, S64 } => ShiftType;
    as_cvt: IntType { U16, S16, U32, S32, U64, S64 } => CvtType;
    as_compare: IntType { U16, S16, U32, S32, U64, S64 } => CompareType;
    as_float: SatFloatType { F16, F16x2, F32 } => FloatType;
    /// The type of each half.
    as_half: Pair16 { F16x2 = F16, BF16x2 = BF16 } => CompareType;
    as_atom: RedOp { Add, Min, Max, And, Or, Xor, Inc, Dec } => AtomOp;
}

/// What an instruction with carries does with the condition code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Carries {
    pub takes: bool,
    pub leaves: bool,
    /// It is the borrow of a difference.
    pub borrows: bool,
}

impl CarryOp {
    pub const fn carries(self) -> Carries {
        let (takes, leaves, borrows) = match self {
            CarryOp::AddCc => (false, true, false),
            CarryOp::Addc => (true, false, false),
            CarryOp::AddcCc => (true, true, false),
            CarryOp::SubCc => (false, true, true),
            CarryOp::Subc => (true, false, true),
            CarryOp::SubcCc => (true, true, true),
        };
        Carries { takes, leaves, borrows }
    }
}

impl CarryMad {
    pub const fn carries(self) -> Carries {
        let (takes, leaves) = match self {
            CarryMad::MadLoCc | CarryMad::MadHiCc => (false, true),
            CarryMad::MadcLo | CarryMad::MadcHi => (true, false),
            CarryMad::MadcLoCc | CarryMad::MadcHiCc => (true, true),
        };
        Carries {
            takes,
            leaves,
            borrows: false,
        }
    }
    /// Whether it is the product's high half that is added.
    pub const fn is_high(self) -> bool {
        matches!(self, CarryMad::MadHiCc | CarryMad::MadcHi | CarryMad::MadcHiCc)
    }
}

/// Reductions of contiguous elements in global memory: the operation and the type of its elements.
macro_rules! bulk_reductions {
    ($($variant:ident = $text:literal: $op:ident $ty:ident,)*) => {
        modifiers! {
            /// Reductions of contiguous elements in global memory.
            BulkRed { $($variant = $text),* }
        }
        impl BulkRed {
            /// The operation and the type of its elements.
            pub const fn parts(self) -> (AtomOp, AtomType) {
                match self { $(BulkRed::$variant => (AtomOp::$op, AtomType::$ty)),* }
            }
        }
    };
}
bulk_reductions! {
    AddU32 = "add.u32": Add U32, AddS32 = "add.s32": Add S32, AddU64 = "add.u64": Add U64,
    AddF16 = "add.noftz.f16": Add F16, AddBF16 = "add.noftz.bf16": Add BF16, AddF32 = "add.f32": Add F32, AddF64 = "add.f64": Add F64,
    MinU32 = "min.u32": Min U32, MinS32 = "min.s32": Min S32, MinU64 = "min.u64": Min U64, MinS64 = "min.s64": Min S64,
    MinF16 = "min.f16": Min F16, MinBF16 = "min.bf16": Min BF16,
    MaxU32 = "max.u32": Max U32, MaxS32 = "max.s32": Max S32, MaxU64 = "max.u64": Max U64, MaxS64 = "max.s64": Max S64,
    MaxF16 = "max.f16": Max F16, MaxBF16 = "max.bf16": Max BF16,
    IncU32 = "inc.u32": Inc U32, DecU32 = "dec.u32": Dec U32,
    AndB32 = "and.b32": And B32, OrB32 = "or.b32": Or B32, XorB32 = "xor.b32": Xor B32,
    AndB64 = "and.b64": And B64, OrB64 = "or.b64": Or B64, XorB64 = "xor.b64": Xor B64,
}

/// How many registers a lane holds of each matrix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MmaFragments {
    pub a: usize,
    pub b: usize,
    /// Of the accumulators, in and out.
    pub acc: usize,
}

impl MmaShape {
    /// Rows of A.
    pub const fn rows(self) -> usize {
        match self {
            MmaShape::M16N8K4
            | MmaShape::M16N8K8
            | MmaShape::M16N8K16
            | MmaShape::M16N8K32
            | MmaShape::M16N8K64
            | MmaShape::M16N8K128 => 16,
            MmaShape::M8N8K16 | MmaShape::M8N8K32 => 8,
        }
    }
    /// Columns of A: of a sparse one, those that are left out included.
    pub const fn depth(self) -> usize {
        match self {
            MmaShape::M16N8K4 => 4,
            MmaShape::M16N8K8 => 8,
            MmaShape::M16N8K16 | MmaShape::M8N8K16 => 16,
            MmaShape::M16N8K32 | MmaShape::M8N8K32 => 32,
            MmaShape::M16N8K64 => 64,
            MmaShape::M16N8K128 => 128,
        }
    }
    /// PTX ISA, "Matrix Fragments for mma": 32-bit registers of a dense A.
    pub const fn fragments(self, ty: MmaTypes) -> MmaFragments {
        let b = self.depth() * ty.element_bits() / 128;
        MmaFragments {
            a: self.rows() / 8 * b,
            b,
            acc: self.rows() * ty.accumulator_bits() / 128,
        }
    }
    /// The same where half of A's elements are there.
    pub const fn sparse_fragments(self, ty: MmaTypes) -> MmaFragments {
        let MmaFragments { a, b, acc } = self.fragments(ty);
        MmaFragments { a: a / 2, b, acc }
    }
    /// How many places there are for the metadata of a sparse A among each four lanes.
    pub const fn selectors(self, ty: MmaTypes) -> i64 {
        // Of a row: two bits for each unit that is there; four lanes' words are for two rows.
        let metadata = match ty.element_bits() {
            4 => self.depth() / 2,
            32 => 2 * self.depth(),
            _ => self.depth(),
        };
        64 / metadata as i64
    }
}

impl MmaTypes {
    /// Bits of an element of A and of B.
    pub const fn element_bits(self) -> usize {
        match self {
            MmaTypes::S4S4 | MmaTypes::S4U4 | MmaTypes::U4S4 | MmaTypes::U4U4 => 4,
            MmaTypes::S8S8 | MmaTypes::S8U8 | MmaTypes::U8S8 | MmaTypes::U8U8 => 8,
            MmaTypes::E4M3E4M3
            | MmaTypes::E4M3E5M2
            | MmaTypes::E5M2E4M3
            | MmaTypes::E5M2E5M2
            | MmaTypes::E4M3E4M3Half
            | MmaTypes::E4M3E5M2Half
            | MmaTypes::E5M2E4M3Half
            | MmaTypes::E5M2E5M2Half => 8,
            MmaTypes::F16 | MmaTypes::F16Half | MmaTypes::BF16 => 16,
            MmaTypes::TF32 => 32,
        }
    }
    /// Bits of an element of C and D.
    pub const fn accumulator_bits(self) -> usize {
        match self {
            MmaTypes::F16Half
            | MmaTypes::E4M3E4M3Half
            | MmaTypes::E4M3E5M2Half
            | MmaTypes::E5M2E4M3Half
            | MmaTypes::E5M2E5M2Half => 16,
            MmaTypes::F16
            | MmaTypes::BF16
            | MmaTypes::TF32
            | MmaTypes::E4M3E4M3
            | MmaTypes::E4M3E5M2
            | MmaTypes::E5M2E4M3
            | MmaTypes::E5M2E5M2
            | MmaTypes::S8S8
            | MmaTypes::S8U8
            | MmaTypes::U8S8
            | MmaTypes::U8U8
            | MmaTypes::S4S4
            | MmaTypes::S4U4
            | MmaTypes::U4S4
            | MmaTypes::U4U4 => 32,
        }
    }
    pub const fn is_integer(self) -> bool {
        matches!(
            self,
            MmaTypes::S8S8
                | MmaTypes::S8U8
                | MmaTypes::U8S8
                | MmaTypes::U8U8
                | MmaTypes::S4S4
                | MmaTypes::S4U4
                | MmaTypes::U4S4
                | MmaTypes::U4U4
        )
    }
    pub const fn is_fp8(self) -> bool {
        self.element_bits() == 8 && !self.is_integer()
    }
}

impl MmaBitShape {
    pub const fn fragments(self) -> MmaFragments {
        let (a, b, acc) = match self {
            MmaBitShape::M8N8K128 => (1, 1, 2),
            MmaBitShape::M16N8K128 => (2, 1, 4),
            MmaBitShape::M16N8K256 => (4, 2, 4),
        };
        MmaFragments { a, b, acc }
    }
}

impl MmaF64Shape {
    /// Of 64-bit registers.
    pub const fn fragments(self) -> MmaFragments {
        let (a, b, acc) = match self {
            MmaF64Shape::M8N8K4 => (1, 1, 2),
            MmaF64Shape::M16N8K4 => (2, 1, 4),
            MmaF64Shape::M16N8K8 => (4, 2, 4),
            MmaF64Shape::M16N8K16 => (8, 4, 4),
        };
        MmaFragments { a, b, acc }
    }
}

impl MmaQuadTypes {
    /// Registers of C and of D; there are two of A and two of B.
    pub const fn accumulators(self) -> (usize, usize) {
        match self {
            MmaQuadTypes::F32 => (8, 8),
            MmaQuadTypes::F32OfF16 => (4, 8),
            MmaQuadTypes::F16 => (4, 4),
        }
    }
}

impl TmemShape {
    /// Registers of a thread, and columns, of the shape once.
    pub const fn once(self) -> (usize, u32) {
        match self {
            TmemShape::L32B32 => (1, 1),
            TmemShape::L16B64 => (1, 2),
            TmemShape::L16B128 => (2, 4),
            TmemShape::L16B256 => (4, 8),
        }
    }
}

impl ShiftType {
    pub const fn is_signed(self) -> bool {
        matches!(self, ShiftType::S16 | ShiftType::S32 | ShiftType::S64)
    }
}

impl BitType {
    /// The untyped move of a class, for all but predicates.
    pub const fn of(class: super::operand::Class) -> Option<BitType> {
        match class {
            super::operand::Class::Pred => None,
            super::operand::Class::B16 => Some(BitType::B16),
            super::operand::Class::B32 => Some(BitType::B32),
            super::operand::Class::B64 => Some(BitType::B64),
        }
    }
}
