//! What the instruction table yields: the enum, its fields, the renaming, requirements and effects.
use super::modifier::*;
use super::operand::*;
use crate::target::Features;
use std::sync::Arc;

bitflags::bitflags! {
    /// What an instruction does besides defining registers.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct Effects: u16 {
        const READ_GLOBAL = 1;
        const WRITE_GLOBAL = 1 << 1;
        const READ_SHARED = 1 << 2;
        const WRITE_SHARED = 1 << 3;
        /// Orders memory, waits, arrives, commits: nothing with memory effects moves across.
        const SYNC = 1 << 4;
        /// All lanes of the warp (or warps of the group) execute it together.
        const CONVERGENT = 1 << 5;
        /// Uses registers after it has returned.
        const ASYNC_REGISTERS = 1 << 6;
        /// Acts on memory through the async proxy.
        const ASYNC_PROXY = 1 << 7;
        /// Reads something that changes (a clock), or ends the kernel: neither removed nor merged.
        const VOLATILE = 1 << 8;
        /// Takes a carry from the condition code, or leaves one there: in order with others that do.
        const CARRY = 1 << 9;
        const BULK_LOAD = Self::READ_GLOBAL.bits() | Self::WRITE_SHARED.bits() | Self::ASYNC_PROXY.bits() | Self::SYNC.bits();
        const BULK_STORE = Self::READ_SHARED.bits() | Self::WRITE_GLOBAL.bits() | Self::ASYNC_PROXY.bits() | Self::SYNC.bits();
        const WGMMA = Self::READ_SHARED.bits() | Self::ASYNC_PROXY.bits() | Self::ASYNC_REGISTERS.bits() | Self::CONVERGENT.bits() | Self::SYNC.bits();
        /// A product that accumulates in tensor memory, issued by one thread.
        const TCGEN05 = Self::READ_SHARED.bits() | Self::ASYNC_PROXY.bits() | Self::SYNC.bits();
    }
}

impl Effects {
    /// A function of its operands: may be removed, merged, moved.
    pub const PURE: Effects = Effects::empty();
    pub const fn is_pure(self) -> bool {
        self.is_empty()
    }
}

/// The lowest PTX ISA (80 = 8.0) that an instruction needs, and the parts of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Requirement {
    pub isa: u16,
    pub features: Features,
}

impl Requirement {
    /// These parts, too.
    const fn on(self, features: Features) -> Requirement {
        Requirement {
            isa: self.isa,
            features: self.features.union(features),
        }
    }
    /// These parts, too, if it is so.
    const fn on_if(self, condition: bool, features: Features) -> Requirement {
        if condition { self.on(features) } else { self }
    }
}

const PURE: Effects = Effects::PURE;

/// PTX 8.0: smalt's floor. Of machines, sm_80 is.
const fn base() -> Requirement {
    isa(80)
}
const fn isa(isa: u16) -> Requirement {
    Requirement {
        isa,
        features: Features::empty(),
    }
}
/// What these parts need, all of which came by PTX 8.0.
const fn on(features: Features) -> Requirement {
    base().on(features)
}
/// Tensor memory came with PTX 8.6.
const fn tcgen05() -> Requirement {
    isa(86).on(Features::TENSOR_MEMORY)
}
const fn tcgen05_mma(kind: Tcgen05Kind) -> Requirement {
    tcgen05().on_if(matches!(kind, Tcgen05Kind::I8), Features::TENSOR_INTEGERS)
}
/// Sums, differences and products.
const fn bf16_arithmetic(ty: FloatType) -> Requirement {
    base().on_if(matches!(ty, FloatType::BF16 | FloatType::BF16x2), Features::BF16)
}
/// bf16 is converted from and to f32 everywhere; to f32 subnormals and all.
const fn cvt_requires(ftz: Ftz, to: CvtType, from: CvtType) -> Requirement {
    let is_bf16 = matches!(to, CvtType::BF16) || matches!(from, CvtType::BF16);
    let is_f32 = match (to, from) {
        (CvtType::BF16, CvtType::F32) => true,
        (CvtType::F32, CvtType::BF16) => matches!(ftz, Ftz::No),
        _ => false,
    };
    base().on_if(is_bf16 && !is_f32, Features::BF16)
}
const fn mufu16_requires(op: Unary16) -> Requirement {
    base().on_if(
        matches!(
            op,
            Unary16::Ex2BF16 | Unary16::Ex2BF16x2 | Unary16::TanhBF16 | Unary16::TanhBF16x2
        ),
        Features::BF16,
    )
}
const fn compares(ty: CompareType) -> Requirement {
    base().on_if(matches!(ty, CompareType::BF16), Features::BF16)
}
const fn atomic(ty: AtomType) -> Requirement {
    base().on_if(matches!(ty, AtomType::BF16 | AtomType::BF16x2), Features::BF16_ATOMICS)
}
/// One-directional fences came with PTX 8.6.
const fn fence_requires(sem: FenceSem) -> Requirement {
    match sem {
        FenceSem::AcqRel | FenceSem::Sc => base(),
        FenceSem::Acquire | FenceSem::Release => isa(86),
    }
}
/// Products of signed and unsigned bytes came with PTX 8.4.
const fn wgmma_int_requires(ty: WgmmaTypes) -> Requirement {
    match ty {
        WgmmaTypes::S8U8 | WgmmaTypes::U8S8 => isa(84),
        WgmmaTypes::F16
        | WgmmaTypes::BF16
        | WgmmaTypes::TF32
        | WgmmaTypes::E4M3E4M3
        | WgmmaTypes::E4M3E5M2
        | WgmmaTypes::E5M2E4M3
        | WgmmaTypes::E5M2E5M2
        | WgmmaTypes::S8S8
        | WgmmaTypes::U8U8 => base(),
    }
}
/// Sparse products of bytes came with PTX 8.2, of signed and unsigned ones with 8.4.
const fn wgmma_sparse_int_requires(ty: WgmmaTypes) -> Requirement {
    let dense = wgmma_int_requires(ty);
    if dense.isa > 82 { dense } else { isa(82) }
}
/// fp8 operands of `mma.sync` came with PTX 8.4, their f16 accumulators and the shorter shape with 8.7.
const fn mma_requires(shape: MmaShape, ty: MmaTypes) -> Requirement {
    if !ty.is_fp8() {
        base()
    } else if shape.depth() == 32 && ty.accumulator_bits() == 32 {
        isa(84).on(Features::FP8)
    } else {
        isa(87).on(Features::FP8)
    }
}
/// Ordered metadata came with PTX 8.5.
const fn mma_sparse_requires(order: MetadataOrder, ty: MmaTypes) -> Requirement {
    match order {
        MetadataOrder::Ordered => isa(85).on_if(ty.is_fp8(), Features::FP8),
        MetadataOrder::Any if ty.is_fp8() => isa(84).on(Features::FP8),
        MetadataOrder::Any => base(),
    }
}
const fn proxy_fence_requires(proxy: ProxyFence) -> Requirement {
    match proxy {
        ProxyFence::Async | ProxyFence::AsyncGlobal | ProxyFence::AsyncSharedCta | ProxyFence::AsyncSharedCluster => {
            on(Features::BULK_COPIES)
        }
        ProxyFence::Alias => base(),
        ProxyFence::AsyncGenericAcquireCluster | ProxyFence::AsyncGenericReleaseCluster => {
            isa(86).on(Features::BULK_COPIES)
        }
    }
}
/// Arrivals and waits that order nothing came with PTX 8.6.
const fn arrive_requires(sem: ArriveSem) -> Requirement {
    match sem {
        ArriveSem::Default | ArriveSem::ReleaseCta | ArriveSem::ReleaseCluster => base(),
        ArriveSem::RelaxedCta | ArriveSem::RelaxedCluster => isa(86).on(Features::TRANSACTIONS),
    }
}
const fn ask_requires(sem: AskSem) -> Requirement {
    match sem {
        AskSem::Default | AskSem::AcquireCta | AskSem::AcquireCluster => base(),
        AskSem::RelaxedCta | AskSem::RelaxedCluster => isa(86).on(Features::TRANSACTIONS),
    }
}
/// `test_wait` does not sleep, and is everywhere.
const fn asking(ask: MbarrierAsk) -> Features {
    match ask {
        MbarrierAsk::Test => Features::empty(),
        MbarrierAsk::Try => Features::TRANSACTIONS,
    }
}
const fn special32(reg: SpecialReg32) -> Effects {
    match reg.reader() {
        Reader::Clock => Effects::VOLATILE,
        Reader::Lane | Reader::Block => Effects::PURE,
    }
}
const fn wait_requires(acquire: Acquire) -> Requirement {
    match acquire {
        Acquire::Cta | Acquire::Cluster => base(),
        Acquire::RelaxedCta | Acquire::RelaxedCluster => isa(86).on(Features::TRANSACTIONS),
    }
}
pub const fn wide_slot(ty: WideType) -> Slot {
    match ty {
        WideType::U16 | WideType::S16 => Slot::B32,
        WideType::U32 | WideType::S32 => Slot::B64,
    }
}
const fn unary16_slot(op: Unary16) -> Slot {
    match op {
        Unary16::Ex2F16 | Unary16::Ex2BF16 | Unary16::TanhF16 | Unary16::TanhBF16 => Slot::H16,
        Unary16::Ex2F16x2 | Unary16::Ex2BF16x2 | Unary16::TanhF16x2 | Unary16::TanhBF16x2 => Slot::H16X2,
    }
}
/// Addresses are 32-bit in the shared spaces and 64-bit elsewhere.
pub const fn space_slot(space: Space) -> Slot {
    match space {
        Space::Shared | Space::SharedCluster => Slot::B32,
        Space::Global | Space::Generic => Slot::B64,
    }
}
fn load_effects(space: Space, sem: LoadSem) -> Effects {
    let read = match space {
        Space::Shared | Space::SharedCluster => Effects::READ_SHARED,
        Space::Global => Effects::READ_GLOBAL,
        Space::Generic => Effects::READ_GLOBAL | Effects::READ_SHARED,
    };
    match sem {
        LoadSem::Weak => read,
        _ => read | Effects::SYNC,
    }
}
fn store_effects(space: Space) -> Effects {
    match space {
        Space::Shared | Space::SharedCluster => Effects::WRITE_SHARED,
        Space::Global => Effects::WRITE_GLOBAL,
        Space::Generic => Effects::WRITE_GLOBAL | Effects::WRITE_SHARED,
    }
}
const fn unchecked_effects(lanes: Lanes) -> Effects {
    let anything = Effects::BULK_LOAD
        .union(Effects::BULK_STORE)
        .union(Effects::VOLATILE)
        .union(Effects::CARRY);
    match lanes {
        Lanes::Warp => anything.union(Effects::CONVERGENT),
        Lanes::One => anything,
    }
}
fn atom_effects(space: Space) -> Effects {
    store_effects(space) | load_effects(space, LoadSem::Weak) | Effects::SYNC
}

/// Renames the registers of an instruction. Uses are asked for before definitions.
pub trait RegMap<R, S> {
    /// A register where no immediate may stand.
    fn reg(&mut self, r: R, slot: Slot) -> S;
    fn def(&mut self, r: R, slot: Slot) -> S;
    /// A register where an immediate may stand.
    fn src(&mut self, r: R, slot: Slot) -> Src<S> {
        Src::Reg(self.reg(r, slot))
    }
    /// An immediate.
    fn imm(&mut self, bits: u64, _slot: Slot) -> Src<S> {
        Src::Imm(bits)
    }
    /// An address.
    fn addr(&mut self, addr: Addr<R>, slot: Slot) -> Addr<S> {
        Addr {
            base: self.reg(addr.base, slot),
            offset: addr.offset,
        }
    }
}

/// One row of the table, as data.
#[derive(Clone, Copy, Debug)]
pub struct RowInfo {
    pub name: &'static str,
    pub syntax: &'static str,
    pub doc: &'static str,
    /// `(kind, name)` of every field, in order.
    pub fields: &'static [(&'static str, &'static str)],
    /// The texts of every field that is a modifier; none for the others.
    pub choices: &'static [fn() -> Vec<&'static str>],
}

fn texts<M: Modifier>() -> Vec<&'static str> {
    M::ALL.iter().map(|m| m.text()).collect()
}
fn no_texts() -> Vec<&'static str> {
    vec![]
}
macro_rules! field_choices {
    (modifier $t:tt) => {
        texts::<$t>
    };
    ($kind:ident $t:tt) => {
        no_texts
    };
}

macro_rules! field_type {
    (modifier $t:tt, $R:ty) => { $t };
    (number $t:tt, $R:ty) => { i64 };
    (param $t:tt, $R:ty) => { ParamRef };
    (text $t:tt, $R:ty) => { Arc<str> };
    (def $t:tt, $R:ty) => { $R };
    (reg $t:tt, $R:ty) => { $R };
    (src $t:tt, $R:ty) => { Src<$R> };
    (addr $t:tt, $R:ty) => { Addr<$R> };
    (defs $t:tt, $R:ty) => { Regs<$R> };
    (srcs $t:tt, $R:ty) => { Srcs<$R> };
    (tied $t:tt, $R:ty) => { Tied<$R> };
}
/// What a modifier needs by itself.
macro_rules! field_features {
    (modifier $t:tt, $e:expr) => {
        $e.features()
    };
    ($kind:ident $t:tt, $e:expr) => {
        Features::empty()
    };
}
macro_rules! as_field {
    (modifier $t:tt, $e:expr) => {
        Field::Modifier($e.text())
    };
    (number $t:tt, $e:expr) => {
        Field::Number(*$e)
    };
    (param $t:tt, $e:expr) => {
        Field::Param(*$e)
    };
    (text $t:tt, $e:expr) => {
        Field::Text($e)
    };
    (def [$s:expr], $e:expr) => {
        Field::Def($e, $s)
    };
    (reg [$s:expr], $e:expr) => {
        Field::Reg($e, $s)
    };
    (src [$s:expr], $e:expr) => {
        Field::Src($e, $s)
    };
    (addr [$s:expr], $e:expr) => {
        Field::Addr($e, $s)
    };
    (defs [$s:expr], $e:expr) => {
        Field::Defs($e, $s)
    };
    (srcs [$s:expr], $e:expr) => {
        Field::Srcs($e, $s)
    };
    (tied [$s:expr], $e:expr) => {
        Field::Tied($e, $s)
    };
}

fn map_src<R: Copy, S: Copy, M: RegMap<R, S>>(src: &Src<R>, slot: Slot, m: &mut M) -> Src<S> {
    match src {
        Src::Reg(r) => m.src(*r, slot),
        Src::Imm(bits) => m.imm(*bits, slot),
    }
}

/// A renaming goes over the fields twice, so that uses come before definitions, and shadows each field's name.
macro_rules! rename {
    (uses modifier $t:tt, $e:ident, $m:ident) => {};
    (uses number $t:tt, $e:ident, $m:ident) => {};
    (uses param $t:tt, $e:ident, $m:ident) => {};
    (uses text $t:tt, $e:ident, $m:ident) => {};
    (uses def $s:tt, $e:ident, $m:ident) => {};
    (uses defs $s:tt, $e:ident, $m:ident) => {};
    (uses reg [$s:expr], $e:ident, $m:ident) => {
        let $e = $m.reg(*$e, $s);
    };
    (uses src [$s:expr], $e:ident, $m:ident) => {
        let $e = map_src($e, $s, $m);
    };
    (uses addr [$s:expr], $e:ident, $m:ident) => {
        let $e = $m.addr(*$e, $s);
    };
    (uses srcs [$s:expr], $e:ident, $m:ident) => {
        let slot = $s;
        let $e: Srcs<S> = $e.iter().map(|a| map_src(a, slot, $m)).collect();
    };
    (uses tied [$s:expr], $e:ident, $m:ident) => {
        let slot = $s;
        let $e = (
            $e.input.iter().map(|r| $m.reg(*r, slot)).collect::<Vec<S>>(),
            &$e.output,
            slot,
        );
    };
    (defines def [$s:expr], $e:ident, $m:ident) => {
        let $e = $m.def(*$e, $s);
    };
    (defines defs [$s:expr], $e:ident, $m:ident) => {
        let slot = $s;
        let $e: Regs<S> = $e.iter().map(|r| $m.def(*r, slot)).collect();
    };
    (defines tied $s:tt, $e:ident, $m:ident) => {
        let slot = $e.2;
        let $e = Tied {
            output: $e.1.iter().map(|r| $m.def(*r, slot)).collect(),
            input: $e.0,
        };
    };
    (defines $kind:ident $s:tt, $e:ident, $m:ident) => {};
}
macro_rules! renamed {
    (modifier $e:ident) => {
        *$e
    };
    (number $e:ident) => {
        *$e
    };
    (param $e:ident) => {
        *$e
    };
    (text $e:ident) => {
        $e.clone()
    };
    ($kind:ident $e:ident) => {
        $e
    };
}
/// Calls `$f` with every register that the field reads; the inputs of tied registers only where asked for.
macro_rules! field_uses {
    (reg [$s:expr], $e:ident, $f:ident, $tied:ident) => {
        $f(*$e, $s)
    };
    (src [$s:expr], $e:ident, $f:ident, $tied:ident) => {
        if let Src::Reg(r) = $e {
            $f(*r, $s)
        }
    };
    (addr [$s:expr], $e:ident, $f:ident, $tied:ident) => {
        $f($e.base, $s)
    };
    (srcs [$s:expr], $e:ident, $f:ident, $tied:ident) => {
        let slot = $s;
        $e.iter().filter_map(|a| a.reg()).for_each(|r| $f(r, slot))
    };
    (tied [$s:expr], $e:ident, $f:ident, $tied:ident) => {
        if $tied == TiedInputs::Included {
            let slot = $s;
            $e.input.iter().for_each(|r| $f(*r, slot))
        }
    };
    ($kind:ident $t:tt, $e:ident, $f:ident, $tied:ident) => {};
}
/// Calls `$f` with every operand of the field that may be an immediate.
macro_rules! field_sources {
    (src [$s:expr], $e:ident, $f:ident) => {
        $f(*$e, $s)
    };
    (srcs [$s:expr], $e:ident, $f:ident) => {
        let slot = $s;
        $e.iter().for_each(|a| $f(*a, slot))
    };
    ($kind:ident $t:tt, $e:ident, $f:ident) => {};
}
/// Calls `$f` with every register that the field defines.
macro_rules! field_defs {
    (def [$s:expr], $e:ident, $f:ident) => {
        $f(*$e, $s)
    };
    (defs [$s:expr], $e:ident, $f:ident) => {
        let slot = $s;
        $e.iter().for_each(|r| $f(*r, slot))
    };
    (tied [$s:expr], $e:ident, $f:ident) => {
        let slot = $s;
        $e.output.iter().for_each(|r| $f(*r, slot))
    };
    ($kind:ident $t:tt, $e:ident, $f:ident) => {};
}
/// A list of any length that can be compared: tuples of more than twelve cannot.
macro_rules! pairs {
    () => { () };
    ($first:expr, $($rest:expr,)*) => { ($first, pairs!($($rest,)*)) };
}
/// What of a field distinguishes instructions when the names of what they define do not.
macro_rules! but_for_names {
    (def $e:ident) => {
        ()
    };
    (defs $e:ident) => {
        $e.len()
    };
    (tied $e:ident) => {
        (&$e.input, $e.output.len())
    };
    ($kind:ident $e:ident) => {
        $e
    };
}
/// A field from its printed text.
macro_rules! parse_field {
    (modifier $t:ident, $text:expr, $cx:expr) => {
        parse_modifier::<$t>($text)?
    };
    (number $t:tt, $text:expr, $cx:expr) => {
        parse_number($text)?
    };
    (param $t:tt, $text:expr, $cx:expr) => {
        $cx.param($text)?
    };
    (text $t:tt, $text:expr, $cx:expr) => {
        Arc::<str>::from(*$text)
    };
    (def $t:tt, $text:expr, $cx:expr) => {
        $cx.reg($text)?
    };
    (reg $t:tt, $text:expr, $cx:expr) => {
        $cx.reg($text)?
    };
    (src $t:tt, $text:expr, $cx:expr) => {
        parse_src($text, $cx)?
    };
    (addr $t:tt, $text:expr, $cx:expr) => {
        parse_addr($text, $cx)?
    };
    (defs $t:tt, $text:expr, $cx:expr) => {
        parse_list($text)
            .into_iter()
            .map(|r| $cx.reg(r))
            .collect::<Option<_>>()?
    };
    (srcs $t:tt, $text:expr, $cx:expr) => {
        parse_list($text)
            .into_iter()
            .map(|r| parse_src(r, $cx))
            .collect::<Option<_>>()?
    };
    (tied $t:tt, $text:expr, $cx:expr) => {
        Tied::in_place(
            parse_list($text)
                .into_iter()
                .map(|r| $cx.reg(r))
                .collect::<Option<_>>()?,
        )
    };
}

/// Names of registers and parameters while parsing.
pub trait Names {
    type Reg: Copy;
    fn reg(&mut self, text: &str) -> Option<Self::Reg>;
    fn param(&mut self, text: &str) -> Option<ParamRef>;
}

fn parse_modifier<M: Modifier>(text: &str) -> Option<M> {
    M::ALL.iter().copied().find(|m| m.text() == text)
}
fn parse_number(text: &str) -> Option<i64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok().map(|v| v as i64),
        None => text.parse().ok(),
    }
}
fn parse_src<N: Names>(text: &str, names: &mut N) -> Option<Src<N::Reg>> {
    if text.starts_with('%') {
        return names.reg(text).map(Src::Reg);
    }
    if let Some(hex) = text.strip_prefix("0f").or_else(|| text.strip_prefix("0d")) {
        return u64::from_str_radix(hex, 16).ok().map(Src::Imm);
    }
    // A negative immediate is 32- or 64-bit: its slot cuts it.
    parse_number(text).map(|v| Src::Imm(v as u64))
}
fn parse_addr<N: Names>(text: &str, names: &mut N) -> Option<Addr<N::Reg>> {
    let inner = text.strip_prefix('[')?.strip_suffix(']')?;
    match inner.split_once('+') {
        Some((base, offset)) => Some(Addr {
            base: names.reg(base)?,
            offset: offset.parse().ok()?,
        }),
        None => Some(Addr {
            base: names.reg(inner)?,
            offset: 0,
        }),
    }
}
fn parse_list(text: &str) -> Vec<&str> {
    let inner = text.strip_prefix('{').and_then(|t| t.strip_suffix('}')).unwrap_or(text);
    inner.split(',').map(str::trim).filter(|t| !t.is_empty()).collect()
}

/// Whether the inputs of tied registers count as read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TiedInputs {
    Included,
    LeftOut,
}

/// The tied field among a row's.
macro_rules! tied_field {
    (tied $e:ident) => {
        return Some($e)
    };
    ($kind:ident $e:ident) => {};
}

macro_rules! define_instructions {
    ($(
        $(#[doc = $doc:literal])*
        $method:ident $variant:ident { $( $kind:ident $field:ident : $arg:tt );* $(;)? }
            $syntax:literal, requires [$requires:expr], effects [$effects:expr] $(, legal $legal:tt)? $(, computes $computes:tt)?;
    )*) => {
        /// An instruction; see [`crate::instruction_table`] for the rows.
        // `derive` does not see through macros in type position: Clone, PartialEq, Hash and Debug are written below.
        pub enum Inst<R> {
            $( $(#[doc = $doc])* $variant { $( $field: field_type!($kind $arg, R) ),* } ),*
        }

        /// Every row, in the table's order.
        pub const ROWS: &[RowInfo] = &[$(
            RowInfo {
                name: stringify!($variant),
                syntax: $syntax,
                doc: concat!($($doc),*),
                fields: &[$( (stringify!($kind), stringify!($field)) ),*],
                choices: &[$( field_choices!($kind $arg) ),*],
            }
        ),*];

        /// Instructions as PTX writes them: modifiers, what is defined, operands.
        #[allow(clippy::too_many_arguments)]
        impl<R> Inst<R> {
            $( $(#[doc = $doc])* pub fn $method($( $field: field_type!($kind $arg, R) ),*) -> Inst<R> { Inst::$variant { $( $field ),* } } )*
        }

        impl<R: Clone> Clone for Inst<R> {
            fn clone(&self) -> Inst<R> {
                match self { $( Inst::$variant { $( $field ),* } => Inst::$variant { $( $field: $field.clone() ),* } ),* }
            }
        }

        #[derive(Clone, Copy)]
        #[repr(usize)]
        enum RowIndex { $( $variant ),* }

        #[allow(unused_variables)]
        impl<R: Copy> Inst<R> {
            /// The row's position in [`ROWS`].
            pub fn row(&self) -> usize {
                match self { $( Inst::$variant { .. } => RowIndex::$variant as usize ),* }
            }

            /// The fields in the row's order.
            pub fn fields(&self) -> smallvec::SmallVec<[Field<'_, R>; 10]> {
                match self {
                    $( Inst::$variant { $( $field ),* } => smallvec::smallvec![$( as_field!($kind $arg, $field) ),*] ),*
                }
            }

            fn visit_uses(&self, with: TiedInputs, f: &mut dyn FnMut(R, Slot)) {
                match self {
                    $( Inst::$variant { $( $field ),* } => { $( field_uses!($kind $arg, $field, f, with); )* } ),*
                }
            }

            fn visit_sources(&self, f: &mut dyn FnMut(Src<R>, Slot)) {
                match self {
                    $( Inst::$variant { $( $field ),* } => { $( field_sources!($kind $arg, $field, f); )* } ),*
                }
            }

            fn visit_defs(&self, f: &mut dyn FnMut(R, Slot)) {
                match self {
                    $( Inst::$variant { $( $field ),* } => { $( field_defs!($kind $arg, $field, f); )* } ),*
                }
            }

            /// What it does besides defining registers.
            pub fn effects(&self) -> Effects {
                match self { $( Inst::$variant { $( $field ),* } => $effects ),* }
            }

            /// The PTX ISA and architecture that this form with these modifiers needs.
            pub fn requires(&self) -> Requirement {
                match self {
                    $( Inst::$variant { $( $field ),* } => ($requires)$(.on(field_features!($kind $arg, $field)))* ),*
                }
            }

            /// The same instruction over other registers.
            pub fn map<S: Copy, M: RegMap<R, S>>(&self, m: &mut M) -> Inst<S> {
                match self {
                    $( Inst::$variant { $( $field ),* } => {
                        $( rename!(uses $kind $arg, $field, m); )*
                        $( rename!(defines $kind $arg, $field, m); )*
                        Inst::$variant { $( $field: renamed!($kind $field) ),* }
                    } ),*
                }
            }

            /// Equal but for the names of what they define.
            pub fn equal_but_for_names(&self, other: &Inst<R>) -> bool
            where
                R: PartialEq,
            {
                match self {
                    $( Inst::$variant { $( $field ),* } => {
                        let mine = pairs!($( but_for_names!($kind $field), )*);
                        let Inst::$variant { $( $field ),* } = other else { return false };
                        mine == pairs!($( but_for_names!($kind $field), )*)
                    } ),*
                }
            }

            /// Equal for instructions that are [`Inst::equal_but_for_names`].
            pub fn hash_but_for_names<H: std::hash::Hasher>(&self, state: &mut H)
            where
                R: std::hash::Hash,
            {
                use std::hash::Hash;
                self.row().hash(state);
                match self {
                    $( Inst::$variant { $( $field ),* } => { $( but_for_names!($kind $field).hash(state); )* } ),*
                }
            }

            /// The registers that are updated in place.
            #[allow(unreachable_code)]
            pub fn tied(&self) -> Option<&Tied<R>> {
                match self { $( Inst::$variant { $( $field ),* } => { $( tied_field!($kind $field); )* } ),* }
                None
            }
            #[allow(unreachable_code)]
            pub fn tied_mut(&mut self) -> Option<&mut Tied<R>> {
                match self { $( Inst::$variant { $( $field ),* } => { $( tied_field!($kind $field); )* } ),* }
                None
            }

            /// Row `row` from the texts of its fields, in order; `None` when one does not fit.
            pub fn from_fields<N: Names<Reg = R>>(row: usize, texts: &[&str], names: &mut N) -> Option<Inst<R>> {
                $(
                    if row == RowIndex::$variant as usize {
                        #[allow(unused_mut)]
                        let mut texts = texts.iter();
                        $( let $field = parse_field!($kind $arg, texts.next()?, names); )*
                        return Some(Inst::$variant { $( $field ),* });
                    }
                )*
                None
            }
        }
    };
}

crate::instruction_table!(define_instructions);

impl<R: Copy + PartialEq> PartialEq for Inst<R> {
    fn eq(&self, other: &Inst<R>) -> bool {
        self.row() == other.row() && self.fields() == other.fields()
    }
}
impl<R: Copy + Eq> Eq for Inst<R> {}
impl<R: Copy + std::hash::Hash> std::hash::Hash for Inst<R> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.row().hash(state);
        self.fields().hash(state);
    }
}
impl<R: Copy + std::fmt::Debug> std::fmt::Debug for Inst<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let row = &ROWS[self.row()];
        let mut out = f.debug_struct(row.name);
        for ((_, name), field) in row.fields.iter().zip(self.fields()) {
            out.field(name, &field);
        }
        out.finish()
    }
}

impl<R: Copy> Inst<R> {
    /// Prints as a block or a loop, which a predicate in front cannot guard.
    pub fn is_compound(&self) -> bool {
        ROWS[self.row()].syntax.starts_with("{{")
    }

    /// Whether it is a comment in PTX: nothing for the GPU, so that no choice of code may depend on it.
    pub fn is_comment(&self) -> bool {
        ROWS[self.row()].syntax.starts_with("//")
    }

    /// May be executed where the program would not: pure, and unable to fault.
    pub fn is_speculatable(&self) -> bool {
        self.effects().is_pure() && !matches!(self, Inst::LdNc { .. })
    }

    /// Every register read, tied inputs included.
    pub fn for_each_use(&self, mut f: impl FnMut(R, Slot)) {
        self.visit_uses(TiedInputs::Included, &mut f);
    }

    /// Every register read, tied inputs left out.
    pub fn for_each_untied_use(&self, mut f: impl FnMut(R, Slot)) {
        self.visit_uses(TiedInputs::LeftOut, &mut f);
    }

    /// Every operand where an immediate may stand.
    pub fn for_each_source(&self, mut f: impl FnMut(Src<R>, Slot)) {
        self.visit_sources(&mut f);
    }

    /// Every register written, tied outputs included.
    pub fn for_each_def(&self, mut f: impl FnMut(R, Slot)) {
        self.visit_defs(&mut f);
    }
}
