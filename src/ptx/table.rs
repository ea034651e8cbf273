//! The instruction table: every PTX instruction that smalt can emit, print, parse, verify and execute.
//!
//! # Grammar
//! ```text
//! /// what it does, with its source
//! method Variant { kind field: argument; … }
//!     "syntax", requires [Requirement], effects [Effects], computes [expression];
//! ```
//! `Variant` is the CamelCase of `<op>_<space>_<type>`, shortened to what distinguishes the row. Kinds of fields:
//!
//! | kind | argument | Rust type | is |
//! |---|---|---|---|
//! | `modifier` | a type of [`super::modifier`] | that type | part of the opcode |
//! | `number` | `_` | `i64` | a number in the opcode or an immediate operand |
//! | `def` | `[slot]` | `R` | a register written |
//! | `reg` | `[slot]` | `R` | a register read; no immediate possible |
//! | `src` | `[slot]` | `Src<R>` | a register or an immediate |
//! | `addr` | `[slot]` of the base | `Addr<R>` | `[base+offset]` |
//! | `defs`, `srcs` | `[slot]` | `Regs<R>`, `Srcs<R>` | a list, printed `{a, b}` |
//! | `tied` | `[slot]` | `Tied<R>` | registers updated in place |
//! | `param` | `_` | `ParamRef` | a parameter of the entry |
//! | `text` | `_` | `Arc<str>` | a text of the user's |
//!
//! In the syntax `{f}` stands for field `f`, `{#f}` for `.v2`/`.v4`/`.v8` by the length of list `f` (nothing for 1),
//! `{$f}` for that length itself, `{{` and `}}` for braces. `;` is added unless the syntax has one. A wait is one row: its syntax is a loop.
//!
//! `legal` says which of the combinations that the types allow PTX has, or what it expects: an expression of `ptx/legal.rs`. A row without takes all.
//!
//! `computes` is for what is a function of each thread's operands: `lanes!(|a: i32, b: i32| -> i32 { … })`, whose parameters are fields, or an
//! expression that picks one by modifiers. The emulator expands it: its names are those of `emulate/decode/rows.rs`, where its forms are
//! described. [`evaluate`](super::evaluate) expands some rows of integers, whose names are those of [`integer`](super::integer). A row
//! without it is executed by a method of its name in `emulate/decode/`.
//!
//! Adding an instruction: one row here, one file test, and what does not fit `computes` (`docs/adding-an-instruction.md`).

/// Expands `$callback! { rows }`.
#[macro_export]
macro_rules! instruction_table {
    ($callback:ident) => { $callback! {
// ---------------------------------------------------------------- moves
/// Copy of a register or an immediate.
mov Mov { modifier ty: BitType; def d: [ty.slot()]; src a: [ty.slot()] }
    "mov.{ty} {d}, {a}", requires [base()], effects [PURE],
    computes [lanes!(row ty, |a| { a })];
/// A predicate from an immediate or another predicate. PTX has no `mov` of an immediate to a predicate in `.b` form.
mov_pred MovPred { def d: [Slot::PRED]; src a: [Slot::PRED] }
    "mov.pred {d}, {a}", requires [base()], effects [PURE];
/// A 32-bit special register.
mov_special32 MovSpecial32 { modifier reg: SpecialReg32; def d: [Slot::B32] }
    "mov.u32 {d}, {reg}", requires [base()], effects [special32(*reg)];
/// A 64-bit special register.
mov_special64 MovSpecial64 { modifier reg: SpecialReg64; def d: [Slot::B64] }
    "mov.u64 {d}, {reg}", requires [base()], effects [Effects::VOLATILE];
/// Whether the kernel is launched in clusters.
mov_special_pred MovSpecialPred { modifier reg: SpecialPred; def d: [Slot::PRED] }
    "mov.pred {d}, {reg}", requires [on(Features::CLUSTERS)], effects [PURE];
/// The shared-window address of the kernel's dynamic shared memory.
mov_smem_base MovSmemBase { def d: [Slot::B32] }
    "mov.u32 {d}, smalt_smem", requires [base()], effects [PURE];
/// Two halves into one register: `a` is the low half.
pack_b32 PackB32 { def d: [Slot::B32]; srcs a: [Slot::H16] }
    "mov.b32 {d}, {a}", requires [base()], effects [PURE],
    legal [length(a, 2, "two halves")];
/// One register into two halves: `d[0]` is the low half.
unpack_b32 UnpackB32 { defs d: [Slot::H16]; reg a: [Slot::B32] }
    "mov.b32 {d}, {a}", requires [base()], effects [PURE],
    legal [length(d, 2, "two halves")];
/// Two words into one register: `a[0]` is the low word.
pack_b64 PackB64 { def d: [Slot::B64]; srcs a: [Slot::B32] }
    "mov.b64 {d}, {a}", requires [base()], effects [PURE],
    legal [length(a, 2, "two halves")];
/// One register into two words: `d[0]` is the low word.
unpack_b64 UnpackB64 { defs d: [Slot::B32]; reg a: [Slot::B64] }
    "mov.b64 {d}, {a}", requires [base()], effects [PURE],
    legal [length(d, 2, "two halves")];
/// Four halves into one register, and back: `a[0]` and `d[0]` are the lowest.
pack_quarters PackQuarters { def d: [Slot::B64]; srcs a: [Slot::H16] }
    "mov.b64 {d}, {a}", requires [base()], effects [PURE],
    legal [length(a, 4, "four halves")];
unpack_quarters UnpackQuarters { defs d: [Slot::H16]; reg a: [Slot::B64] }
    "mov.b64 {d}, {a}", requires [base()], effects [PURE],
    legal [length(d, 4, "four halves")];
/// A value of the entry's parameter.
ld_param LdParam { modifier ty: WordType; def d: [ty.slot()]; param p: _ }
    "ld.param.{ty} {d}, [{p}]", requires [base()], effects [PURE];
/// Eight bytes of a tensor map that is a parameter, from byte `offset` on: for a copy of it in memory.
ld_param_map LdParamMap { def d: [Slot::B64]; param p: _; number offset: _ }
    "ld.param.b64 {d}, [{p}+{offset}]", requires [base()], effects [PURE],
    legal [ensure((0..128).contains(offset) && offset % 8 == 0, "a multiple of 8 below the 128 bytes of a tensor map")];
/// The generic address of a parameter, for tensor maps passed by value.
param_addr ParamAddr { def d: [Slot::B64]; param p: _ }
    "{{ .reg .b64 T; mov.b64 T, {p}; cvta.param.u64 {d}, T; }}", requires [base()], effects [PURE];
/// The global address that a generic address stands for, and back (the same number on every machine we run on).
cvta_to_global CvtaToGlobal { def d: [Slot::B64]; reg a: [Slot::B64] }
    "cvta.to.global.u64 {d}, {a}", requires [base()], effects [PURE],
    computes [lanes!(|a: u64| -> u64 { a })];
cvta_global CvtaGlobal { def d: [Slot::B64]; reg a: [Slot::B64] }
    "cvta.global.u64 {d}, {a}", requires [base()], effects [PURE],
    computes [lanes!(|a: u64| -> u64 { a })];
/// The generic address that a `shared::cta` one stands for, and back: both in 64 bits.
cvta_shared CvtaShared { def d: [Slot::B64]; reg a: [Slot::B64] }
    "cvta.shared.u64 {d}, {a}", requires [base()], effects [PURE],
    computes [lanes!(|a: u64| -> u64 { a.wrapping_add(SHARED_WINDOW) })];
cvta_to_shared CvtaToShared { def d: [Slot::B64]; reg a: [Slot::B64] }
    "cvta.to.shared.u64 {d}, {a}", requires [base()], effects [PURE],
    computes [lanes!(|a: u64| -> u64 { a.wrapping_sub(SHARED_WINDOW) })];
/// The `shared::cluster` address of `a` (a `shared::cta` address) in the CTA of rank `rank`.
mapa Mapa { def d: [Slot::B32]; reg a: [Slot::B32]; src rank: [Slot::B32] }
    "mapa.shared::cluster.u32 {d}, {a}, {rank}", requires [on(Features::CLUSTERS)], effects [PURE];
/// The rank of the CTA whose shared memory an address is in.
getctarank Getctarank { def d: [Slot::B32]; reg a: [Slot::B32] }
    "getctarank.shared::cluster.u32 {d}, {a}", requires [on(Features::CLUSTERS)], effects [PURE];

// ---------------------------------------------------------------- integers
add_int AddInt { modifier ty: IntType; def d: [ty.slot()]; src a: [ty.slot()]; src b: [ty.slot()] }
    "add.{ty} {d}, {a}, {b}", requires [base()], effects [PURE],
    computes [lanes!(width ty, |a, b| { a.wrapping_add(b) })];
sub_int SubInt { modifier ty: IntType; def d: [ty.slot()]; src a: [ty.slot()]; src b: [ty.slot()] }
    "sub.{ty} {d}, {a}, {b}", requires [base()], effects [PURE],
    computes [lanes!(width ty, |a, b| { a.wrapping_sub(b) })];
/// The low half of the product.
mul_lo MulLo { modifier ty: IntType; def d: [ty.slot()]; src a: [ty.slot()]; src b: [ty.slot()] }
    "mul.lo.{ty} {d}, {a}, {b}", requires [base()], effects [PURE],
    computes [lanes!(width ty, |a, b| { a.wrapping_mul(b) })];
/// The high half of the product.
mul_hi MulHi { modifier ty: IntType; def d: [ty.slot()]; src a: [ty.slot()]; src b: [ty.slot()] }
    "mul.hi.{ty} {d}, {a}, {b}", requires [base()], effects [PURE],
    computes [lanes!(IntType ty, |a, b| { a.mul_hi(b) })];
/// The whole product, twice as wide.
mul_wide MulWide { modifier ty: WideType; def d: [wide_slot(*ty)]; src a: [ty.slot()]; src b: [ty.slot()] }
    "mul.wide.{ty} {d}, {a}, {b}", requires [base()], effects [PURE],
    computes [lanes!(WideType ty, |a, b| -> <T as Int>::Wide { a.mul_wide(b) })];
/// `a·b + c`, low half.
mad_lo MadLo { modifier ty: IntType; def d: [ty.slot()]; src a: [ty.slot()]; src b: [ty.slot()]; src c: [ty.slot()] }
    "mad.lo.{ty} {d}, {a}, {b}, {c}", requires [base()], effects [PURE],
    computes [lanes!(width ty, |a, b, c| { a.wrapping_mul(b).wrapping_add(c) })];
/// `a·b + c`, twice as wide.
mad_wide MadWide { modifier ty: WideType; def d: [wide_slot(*ty)]; src a: [ty.slot()]; src b: [ty.slot()]; src c: [wide_slot(*ty)] }
    "mad.wide.{ty} {d}, {a}, {b}, {c}", requires [base()], effects [PURE],
    computes [lanes!(WideType ty, |a, b, c: <T as Int>::Wide| -> <T as Int>::Wide { a.mul_wide(b).wrapping_add(c) })];
/// Quotient, truncated. Division by zero gives an unspecified value (PTX ISA 9.7.1.8): lowering guards it.
div_int DivInt { modifier ty: IntType; def d: [ty.slot()]; src a: [ty.slot()]; src b: [ty.slot()] }
    "div.{ty} {d}, {a}, {b}", requires [base()], effects [PURE],
    computes [lanes!(IntType ty, scalar |a, b| { a.div(b) })];
/// Remainder with the dividend's sign.
rem_int RemInt { modifier ty: IntType; def d: [ty.slot()]; src a: [ty.slot()]; src b: [ty.slot()] }
    "rem.{ty} {d}, {a}, {b}", requires [base()], effects [PURE],
    computes [lanes!(IntType ty, scalar |a, b| { a.rem(b) })];
neg_int NegInt { modifier ty: IntType; def d: [ty.slot()]; src a: [ty.slot()] }
    "neg.{ty} {d}, {a}", requires [base()], effects [PURE],
    legal [ensure(ty.is_signed(), "a signed type")],
    computes [lanes!(width ty, |a| { a.wrapping_neg() })];
abs_int AbsInt { modifier ty: IntType; def d: [ty.slot()]; src a: [ty.slot()] }
    "abs.{ty} {d}, {a}", requires [base()], effects [PURE],
    legal [ensure(ty.is_signed(), "a signed type")],
    computes [lanes!(IntType ty, |a| { a.magnitude() })];
min_max_int MinMaxInt { modifier op: MinMax; modifier ty: IntType; def d: [ty.slot()]; src a: [ty.slot()]; src b: [ty.slot()] }
    "{op}.{ty} {d}, {a}, {b}", requires [base()], effects [PURE],
    computes [match op {
        MinMax::Min => lanes!(IntType ty, |a, b| { a.min(b) }),
        MinMax::Max => lanes!(IntType ty, |a, b| { a.max(b) }),
    }];
logic Logic { modifier op: Logic; modifier ty: LogicType; def d: [ty.slot()]; src a: [ty.slot()]; src b: [ty.slot()] }
    "{op}.{ty} {d}, {a}, {b}", requires [base()], effects [PURE];
not Not { modifier ty: LogicType; def d: [ty.slot()]; src a: [ty.slot()] }
    "not.{ty} {d}, {a}", requires [base()], effects [PURE];
/// Any function of three words: `lut` = the function of 0xF0, 0xCC, 0xAA.
lop3 Lop3 { def d: [Slot::B32]; src a: [Slot::B32]; src b: [Slot::B32]; src c: [Slot::B32]; number lut: _ }
    "lop3.b32 {d}, {a}, {b}, {c}, {lut}", requires [base()], effects [PURE],
    computes [lanes!(|a: u32, b: u32, c: u32| -> u32 { integer::lop3(a, b, c, table as u8) }, table = lut)];
/// Shift left; amounts beyond the width give 0.
shl Shl { modifier ty: BitType; def d: [ty.slot()]; src a: [ty.slot()]; src b: [Slot::B32] }
    "shl.{ty} {d}, {a}, {b}", requires [base()], effects [PURE],
    computes [lanes!(BitType ty, |a, b: u32| { a.shl(b) })];
/// Shift right; amounts beyond the width give 0, or the sign.
shr Shr { modifier ty: ShiftType; def d: [ty.slot()]; src a: [ty.slot()]; src b: [Slot::B32] }
    "shr.{ty} {d}, {a}, {b}", requires [base()], effects [PURE],
    computes [lanes!(ShiftType ty, |a, b: u32| { a.shr(b) })];
/// Funnel shift of `b:a`.
shf Shf { modifier dir: ShiftDirection; modifier amount: ShiftAmount; def d: [Slot::B32]; src a: [Slot::B32]; src b: [Slot::B32]; src c: [Slot::B32] }
    "shf.{dir}{amount}.b32 {d}, {a}, {b}, {c}", requires [base()], effects [PURE],
    computes [match (dir, amount) {
        (ShiftDirection::Left, ShiftAmount::Wrap) => lanes!(|a: u32, b: u32, c: u32| -> u32 { integer::shf_l(a, b, c, integer::FunnelShift::Wrap) }),
        (ShiftDirection::Left, ShiftAmount::Clamp) => lanes!(|a: u32, b: u32, c: u32| -> u32 { integer::shf_l(a, b, c, integer::FunnelShift::Clamp) }),
        (ShiftDirection::Right, ShiftAmount::Wrap) => lanes!(|a: u32, b: u32, c: u32| -> u32 { integer::shf_r(a, b, c, integer::FunnelShift::Wrap) }),
        (ShiftDirection::Right, ShiftAmount::Clamp) => lanes!(|a: u32, b: u32, c: u32| -> u32 { integer::shf_r(a, b, c, integer::FunnelShift::Clamp) }),
    }];
/// Bytes of `b:a` picked by the nibbles of `c`.
prmt Prmt { modifier mode: PrmtMode; def d: [Slot::B32]; src a: [Slot::B32]; src b: [Slot::B32]; src c: [Slot::B32] }
    "prmt.b32{mode} {d}, {a}, {b}, {c}", requires [base()], effects [PURE],
    computes [match mode {
        PrmtMode::Bytes => lanes!(|a: u32, b: u32, c: u32| -> u32 { integer::prmt(a, b, c, integer::Permute::Generic) }),
        _ => lanes!(scalar |a: u32, b: u32, c: u32| -> u32 { integer::prmt(a, b, c, permutation(how)) }, how = mode),
    }];
/// The field of `len` bits at `pos`, zero- or sign-extended.
bfe Bfe { modifier ty: IntType; def d: [ty.slot()]; src a: [ty.slot()]; src pos: [Slot::B32]; src len: [Slot::B32] }
    "bfe.{ty} {d}, {a}, {pos}, {len}", requires [base()], effects [PURE],
    legal [no_halves(ty.bits()).and(field(pos, len))],
    computes [match ty {
        IntType::U16 | IntType::S16 => return no("bfe of 16 bits"),
        IntType::U32 => lanes!(|a: u32, pos: u32, len: u32| -> u32 { integer::bfe_u32(a, pos, len) }),
        IntType::S32 => lanes!(|a: i32, pos: u32, len: u32| -> i32 { integer::bfe_s32(a, pos, len) }),
        IntType::U64 => lanes!(|a: u64, pos: u32, len: u32| -> u64 { integer::bfe_u64(a, pos, len) }),
        IntType::S64 => lanes!(|a: i64, pos: u32, len: u32| -> i64 { integer::bfe_s64(a, pos, len) }),
    }];
/// `b` with its field of `len` bits at `pos` replaced by the low bits of `a`.
bfi Bfi { modifier ty: WordType; def d: [ty.slot()]; src a: [ty.slot()]; src b: [ty.slot()]; src pos: [Slot::B32]; src len: [Slot::B32] }
    "bfi.{ty} {d}, {a}, {b}, {pos}, {len}", requires [base()], effects [PURE],
    legal [field(pos, len)];
clz Clz { modifier ty: WordType; def d: [Slot::B32]; src a: [ty.slot()] }
    "clz.{ty} {d}, {a}", requires [base()], effects [PURE],
    computes [lanes!(WordType ty, |a| -> u32 { a.leading_zeros() })];
popc Popc { modifier ty: WordType; def d: [Slot::B32]; src a: [ty.slot()] }
    "popc.{ty} {d}, {a}", requires [base()], effects [PURE],
    computes [lanes!(WordType ty, |a| -> u32 { a.count_ones() })];
brev Brev { modifier ty: WordType; def d: [ty.slot()]; src a: [ty.slot()] }
    "brev.{ty} {d}, {a}", requires [base()], effects [PURE],
    computes [lanes!(WordType ty, |a| { a.reverse_bits() })];
/// The position of the highest one (of the highest zero, when the number is negative); all ones when there is none.
bfind Bfind { modifier ty: IntType; def d: [Slot::B32]; src a: [ty.slot()] }
    "bfind.{ty} {d}, {a}", requires [base()], effects [PURE],
    legal [no_halves(ty.bits())],
    computes [lanes!(IntType ty, |a| -> u32 { (T::BITS - 1).wrapping_sub(a.significant().leading_zeros()) })];

/// The same as the amount by which the number is to be shifted to the left, for that bit to be the highest.
bfind_shift BfindShift { modifier ty: IntType; def d: [Slot::B32]; src a: [ty.slot()] }
    "bfind.shiftamt.{ty} {d}, {a}", requires [base()], effects [PURE],
    legal [no_halves(ty.bits())],
    computes [lanes!(IntType ty, |a| -> u32 { if a.significant() == 0 { u32::MAX } else { a.significant().leading_zeros() } })];
/// Sums and differences clamped to the range of the type.
sat_int SatInt { modifier op: AddSub; def d: [Slot::B32]; src a: [Slot::B32]; src b: [Slot::B32] }
    "{op}.sat.s32 {d}, {a}, {b}", requires [base()], effects [PURE],
    computes [match op {
        AddSub::Add => lanes!(|a: i32, b: i32| -> i32 { a.saturating_add(b) }),
        AddSub::Sub => lanes!(|a: i32, b: i32| -> i32 { a.saturating_sub(b) }),
    }];
/// `a·b + c`, high half.
mad_hi MadHi { modifier ty: IntType; def d: [ty.slot()]; src a: [ty.slot()]; src b: [ty.slot()]; src c: [ty.slot()] }
    "mad.hi.{ty} {d}, {a}, {b}, {c}", requires [base()], effects [PURE],
    computes [lanes!(IntType ty, |a, b, c| { a.mul_hi(b).wrapping_add(c) })];
mad_hi_sat MadHiSat { def d: [Slot::B32]; src a: [Slot::B32]; src b: [Slot::B32]; src c: [Slot::B32] }
    "mad.hi.sat.s32 {d}, {a}, {b}, {c}", requires [base()], effects [PURE],
    computes [lanes!(|a: i32, b: i32, c: i32| -> i32 { a.mul_hi(b).saturating_add(c) })];
/// Sums and differences over several words: the condition code of each lane holds a carry, or a borrow.
carry_op CarryOp { modifier op: CarryOp; modifier ty: IntType; def d: [ty.slot()]; src a: [ty.slot()]; src b: [ty.slot()] }
    "{op}.{ty} {d}, {a}, {b}", requires [base()], effects [Effects::CARRY],
    legal [no_halves(ty.bits())];
/// `a·b + c` of such words, low or high half of the product.
carry_mad CarryMad { modifier op: CarryMad; modifier ty: IntType; def d: [ty.slot()]; src a: [ty.slot()]; src b: [ty.slot()]; src c: [ty.slot()] }
    "{op}.{ty} {d}, {a}, {b}, {c}", requires [base()], effects [Effects::CARRY],
    legal [no_halves(ty.bits())];
/// The product of the low 24 bits: its low 32, or its high 32 of 48.
mul24 Mul24 { modifier half: Half; modifier ty: Int32Type; def d: [Slot::B32]; src a: [Slot::B32]; src b: [Slot::B32] }
    "mul24.{half}.{ty} {d}, {a}, {b}", requires [base()], effects [PURE],
    computes [lanes!(|a: u32, b: u32| -> u32 { mul24(a, b, how) }, how = product24(half, ty))];
mad24 Mad24 { modifier half: Half; modifier ty: Int32Type; def d: [Slot::B32]; src a: [Slot::B32]; src b: [Slot::B32]; src c: [Slot::B32] }
    "mad24.{half}.{ty} {d}, {a}, {b}, {c}", requires [base()], effects [PURE],
    computes [lanes!(|a: u32, b: u32, c: u32| -> u32 { mul24(a, b, how).wrapping_add(c) }, how = product24(half, ty))];
mad24_hi_sat Mad24HiSat { def d: [Slot::B32]; src a: [Slot::B32]; src b: [Slot::B32]; src c: [Slot::B32] }
    "mad24.hi.sat.s32 {d}, {a}, {b}, {c}", requires [base()], effects [PURE],
    computes [lanes!(|a: u32, b: u32, c: i32| -> i32 { (mul24(a, b, how) as i32).saturating_add(c) }, how = product24(Half::Hi, Int32Type::S32))];
/// `|a − b| + c`.
sad Sad { modifier ty: IntType; def d: [ty.slot()]; src a: [ty.slot()]; src b: [ty.slot()]; src c: [ty.slot()] }
    "sad.{ty} {d}, {a}, {b}, {c}", requires [base()], effects [PURE],
    computes [lanes!(IntType ty, |a, b, c| { a.max(b).wrapping_sub(a.min(b)).wrapping_add(c) })];
/// `c` plus the products of four bytes each.
dp4a Dp4a { modifier a_ty: Int32Type; modifier b_ty: Int32Type; def d: [Slot::B32]; src a: [Slot::B32]; src b: [Slot::B32]; src c: [Slot::B32] }
    "dp4a.{a_ty}.{b_ty} {d}, {a}, {b}, {c}", requires [base()], effects [PURE],
    computes [lanes!(|a: u32, b: u32, c: u32| -> u32 { dot4(a, b, c, how) }, how = dot_signs(a_ty, b_ty))];
/// `c` plus the products of the halves of `a` with two bytes of `b`.
dp2a Dp2a { modifier half: Half; modifier a_ty: Int32Type; modifier b_ty: Int32Type; def d: [Slot::B32]; src a: [Slot::B32]; src b: [Slot::B32]; src c: [Slot::B32] }
    "dp2a.{half}.{a_ty}.{b_ty} {d}, {a}, {b}, {c}", requires [base()], effects [PURE],
    computes [lanes!(|a: u32, b: u32, c: u32| -> u32 { dot2(a, b, c, how) }, how = dot_half(half, a_ty, b_ty))];
/// Sums of both halves, each wrapping by itself.
add_pair AddPair { modifier ty: PairIntType; def d: [Slot::H16X2]; reg a: [Slot::H16X2]; reg b: [Slot::H16X2] }
    "add.{ty} {d}, {a}, {b}", requires [on(Features::PACKED_INTEGERS)], effects [PURE],
    computes [lanes!(in Both |a: u16, b: u16| -> u16 { a.wrapping_add(b) })];
min_max_pair MinMaxPair { modifier op: MinMax; modifier ty: PairIntType; def d: [Slot::H16X2]; reg a: [Slot::H16X2]; reg b: [Slot::H16X2] }
    "{op}.{ty} {d}, {a}, {b}", requires [on(Features::PACKED_INTEGERS)], effects [PURE],
    computes [match (op, ty) {
        (MinMax::Min, PairIntType::U16x2) => lanes!(in Both |a: u16, b: u16| -> u16 { a.min(b) }),
        (MinMax::Min, PairIntType::S16x2) => lanes!(in Both |a: i16, b: i16| -> i16 { a.min(b) }),
        (MinMax::Max, PairIntType::U16x2) => lanes!(in Both |a: u16, b: u16| -> u16 { a.max(b) }),
        (MinMax::Max, PairIntType::S16x2) => lanes!(in Both |a: i16, b: i16| -> i16 { a.max(b) }),
    }];
/// The minimum or maximum, or zero where that is negative.
min_max_relu MinMaxRelu { modifier op: MinMax; modifier ty: ReluIntType; def d: [ty.slot()]; src a: [ty.slot()]; src b: [ty.slot()] }
    "{op}.relu.{ty} {d}, {a}, {b}", requires [on(Features::PACKED_INTEGERS)], effects [PURE],
    computes [match (op, ty) {
        (MinMax::Min, ReluIntType::S16x2) => lanes!(in Both |a: i16, b: i16| -> i16 { a.min(b).max(0) }),
        (MinMax::Min, ReluIntType::S32) => lanes!(|a: i32, b: i32| -> i32 { a.min(b).max(0) }),
        (MinMax::Max, ReluIntType::S16x2) => lanes!(in Both |a: i16, b: i16| -> i16 { a.max(b).max(0) }),
        (MinMax::Max, ReluIntType::S32) => lanes!(|a: i32, b: i32| -> i32 { a.max(b).max(0) }),
    }];
/// A mask of `b` ones from bit `a` on.
bmsk Bmsk { modifier amount: ShiftAmount; def d: [Slot::B32]; src a: [Slot::B32]; src b: [Slot::B32] }
    "bmsk{amount}.b32 {d}, {a}, {b}", requires [base()], effects [PURE],
    computes [lanes!(|a: u32, b: u32| -> u32 { bit_mask(a, b, clamps != 0) }, clamps = amount)];
/// The low `b` bits of `a`, zero- or sign-extended.
szext Szext { modifier amount: ShiftAmount; modifier ty: Int32Type; def d: [Slot::B32]; src a: [Slot::B32]; src b: [Slot::B32] }
    "szext{amount}.{ty} {d}, {a}, {b}", requires [base()], effects [PURE],
    computes [lanes!(|a: u32, b: u32| -> u32 { extended(a, b, how & 1 != 0, how & 2 != 0) }, how = amount as u32 | (ty as u32) << 1)];
/// The position of the `nth` one of `mask` from bit `from` on, downwards if negative; all ones when there is none. A `from`
/// above 31 is undefined (here: none).
fns Fns { def d: [Slot::B32]; src mask: [Slot::B32]; src from: [Slot::B32]; src nth: [Slot::B32] }
    "fns.b32 {d}, {mask}, {from}, {nth}", requires [base()], effects [PURE],
    computes [lanes!(|mask: u32, from: u32, nth: i32| -> u32 { nth_one(mask, from, nth) })];
/// 1 for zero, else 0.
cnot Cnot { modifier ty: BitType; def d: [ty.slot()]; src a: [ty.slot()] }
    "cnot.{ty} {d}, {a}", requires [base()], effects [PURE],
    computes [lanes!(BitType ty, |a| { T::from(a == 0) })];
/// Both numbers clamped to 16 bits; `a` becomes the *high* half.
cvt_pack CvtPack { modifier to: PackType; def d: [Slot::B32]; src a: [Slot::B32]; src b: [Slot::B32] }
    "cvt.pack.sat.{to}.s32 {d}, {a}, {b}", requires [base()], effects [PURE],
    computes [lanes!(|a: i32, b: i32| -> u32 { saturated(a, 16, signed != 0) << 16 | saturated(b, 16, signed != 0) }, signed = to)];
/// Both clamped to a few bits, `b` the low ones, in front of the low bits of `c`.
cvt_pack_into CvtPackInto { modifier to: NarrowPackType; def d: [Slot::B32]; src a: [Slot::B32]; src b: [Slot::B32]; src c: [Slot::B32] }
    "cvt.pack.sat.{to}.s32.b32 {d}, {a}, {b}, {c}", requires [base()], effects [PURE],
    computes [lanes!(|a: i32, b: i32, c: u32| -> u32 { pack_into(a, b, c, how) }, how = packed(to))];
/// [`Inst::Lop3`], and whether its result is not zero, combined with another predicate.
lop3_pred Lop3Pred { modifier op: OrAnd; def d: [Slot::B32]; def p: [Slot::PRED]; src a: [Slot::B32]; src b: [Slot::B32]; src c: [Slot::B32]; number lut: _; modifier negated: Inverted; reg q: [Slot::PRED] }
    "lop3.{op}.b32 {d}|{p}, {a}, {b}, {c}, {lut}, {negated}{q}", requires [isa(82)], effects [PURE];

// ---------------------------------------------------------------- floats
add_float AddFloat { modifier rnd: Round; modifier ftz: Ftz; modifier ty: FloatType; def d: [ty.slot()]; src a: [ty.slot()]; src b: [ty.slot()] }
    "add{rnd}{ftz}.{ty} {d}, {a}, {b}", requires [bf16_arithmetic(*ty)], effects [PURE],
    legal [rounds(*rnd, *ftz, *ty)];
sub_float SubFloat { modifier rnd: Round; modifier ftz: Ftz; modifier ty: FloatType; def d: [ty.slot()]; src a: [ty.slot()]; src b: [ty.slot()] }
    "sub{rnd}{ftz}.{ty} {d}, {a}, {b}", requires [bf16_arithmetic(*ty)], effects [PURE],
    legal [rounds(*rnd, *ftz, *ty)];
mul_float MulFloat { modifier rnd: Round; modifier ftz: Ftz; modifier ty: FloatType; def d: [ty.slot()]; src a: [ty.slot()]; src b: [ty.slot()] }
    "mul{rnd}{ftz}.{ty} {d}, {a}, {b}", requires [bf16_arithmetic(*ty)], effects [PURE],
    legal [rounds(*rnd, *ftz, *ty)];
/// `a·b + c`, rounded once.
fma Fma { modifier rnd: Round; modifier ftz: Ftz; modifier ty: FloatType; def d: [ty.slot()]; src a: [ty.slot()]; src b: [ty.slot()]; src c: [ty.slot()] }
    "fma{rnd}{ftz}.{ty} {d}, {a}, {b}, {c}", requires [base()], effects [PURE],
    legal [rounds(*rnd, *ftz, *ty)];
neg_float NegFloat { modifier ftz: Ftz; modifier ty: FloatType; def d: [ty.slot()]; src a: [ty.slot()] }
    "neg{ftz}.{ty} {d}, {a}", requires [base()], effects [PURE],
    legal [flushes(*ftz, *ty)];
abs_float AbsFloat { modifier ftz: Ftz; modifier ty: FloatType; def d: [ty.slot()]; src a: [ty.slot()] }
    "abs{ftz}.{ty} {d}, {a}", requires [base()], effects [PURE],
    legal [flushes(*ftz, *ty)];
/// Minimum or maximum; −0 is below +0. Without `.NaN` a single NaN operand is ignored.
min_max_float MinMaxFloat { modifier op: MinMax; modifier ftz: Ftz; modifier nan: NanMode; modifier ty: FloatType; def d: [ty.slot()]; src a: [ty.slot()]; src b: [ty.slot()] }
    "{op}{ftz}{nan}.{ty} {d}, {a}, {b}", requires [base()], effects [PURE],
    legal [ensure(*nan == NanMode::Number || *ty != FloatType::F64, "no .NaN for f64").and(flushes(*ftz, *ty))];
/// `b` with the sign of `a`.
copysign Copysign { modifier ty: WideFloatType; def d: [ty.slot()]; src a: [ty.slot()]; src b: [ty.slot()] }
    "copysign.{ty} {d}, {a}, {b}", requires [base()], effects [PURE],
    computes [match ty {
        WideFloatType::F32 => lanes!(|a: u32, b: u32| -> u32 { float::copysign_f32(a, b) }),
        WideFloatType::F64 => lanes!(|a: u64, b: u64| -> u64 { float::copysign_f64(a, b) }),
    }];
/// Correctly rounded division.
div_float DivFloat { modifier ftz: Ftz; modifier ty: WideFloatType; def d: [ty.slot()]; src a: [ty.slot()]; src b: [ty.slot()] }
    "div.rn{ftz}.{ty} {d}, {a}, {b}", requires [base()], effects [PURE],
    legal [flushed(*ftz, *ty == WideFloatType::F32, "subnormals flushed for f32 only")],
    computes [match (ty, ftz) {
        (WideFloatType::F32, Ftz::No) => lanes!(|a: u32, b: u32| -> u32 { float::div_f32(a, b) }),
        (WideFloatType::F32, Ftz::Yes) => lanes!(scalar |a: u32, b: u32| -> u32 { flush_f32(float::div_f32(flush_f32(a), flush_f32(b))) }),
        (WideFloatType::F64, _) => lanes!(|a: u64, b: u64| -> u64 { float::div_f64(a, b) }),
    }];
/// f32 division within 2 ulp: `full` has the full range, `approx` does not.
div_approx DivApprox { modifier mode: DivMode; modifier ftz: Ftz; def d: [Slot::F32]; src a: [Slot::F32]; src b: [Slot::F32] }
    "div{mode}{ftz}.f32 {d}, {a}, {b}", requires [base()], effects [PURE];
/// Correctly rounded reciprocal or square root.
exact Exact { modifier op: Exact; modifier ftz: Ftz; modifier ty: WideFloatType; def d: [ty.slot()]; src a: [ty.slot()] }
    "{op}.rn{ftz}.{ty} {d}, {a}", requires [base()], effects [PURE],
    legal [flushed(*ftz, *ty == WideFloatType::F32, "subnormals flushed for f32 only")],
    computes [match (op, ty, ftz) {
        (Exact::Rcp, WideFloatType::F32, Ftz::No) => lanes!(|a: u32| -> u32 { float::rcp_f32(a) }),
        (Exact::Rcp, WideFloatType::F32, Ftz::Yes) => lanes!(|a: u32| -> u32 { flush_f32(float::rcp_f32(flush_f32(a))) }),
        (Exact::Rcp, WideFloatType::F64, _) => lanes!(|a: u64| -> u64 { float::rcp_f64(a) }),
        (Exact::Sqrt, WideFloatType::F32, Ftz::No) => lanes!(|a: u32| -> u32 { float::sqrt_f32(a) }),
        (Exact::Sqrt, WideFloatType::F32, Ftz::Yes) => lanes!(|a: u32| -> u32 { flush_f32(float::sqrt_f32(flush_f32(a))) }),
        (Exact::Sqrt, WideFloatType::F64, _) => lanes!(|a: u64| -> u64 { float::sqrt_f64(a) }),
    }];
/// An approximate function of the special-function unit, f32.
mufu Mufu { modifier op: Mufu; modifier ftz: Ftz; def d: [Slot::F32]; src a: [Slot::F32] }
    "{op}.approx{ftz}.f32 {d}, {a}", requires [base()], effects [PURE];
tanh_approx TanhApprox { def d: [Slot::F32]; src a: [Slot::F32] }
    "tanh.approx.f32 {d}, {a}", requires [base()], effects [PURE];
/// ex2 and tanh of 16-bit floats, alone or in pairs.
mufu16 Mufu16 { modifier op: Unary16; def d: [unary16_slot(*op)]; reg a: [unary16_slot(*op)] }
    "{op} {d}, {a}", requires [mufu16_requires(*op)], effects [PURE];
/// A 20-bit seed of the reciprocal or reciprocal square root, f64.
mufu64 Mufu64 { modifier op: Mufu64; def d: [Slot::F64]; reg a: [Slot::F64] }
    "{op}.approx.ftz.f64 {d}, {a}", requires [base()], effects [PURE],
    computes [match op {
        Mufu64::Rcp => lanes!(scalar |a: u64| -> u64 { special::rcp_approx_ftz_f64(a) }),
        Mufu64::Rsqrt => lanes!(scalar |a: u64| -> u64 { special::rsqrt_approx_ftz_f64(a) }),
    }];

/// Sums, differences and products clamped to [0, 1]; NaN becomes +0.
float_sat FloatSat { modifier op: FloatOp; modifier rnd: Round; modifier ftz: Ftz; modifier ty: SatFloatType; def d: [ty.slot()]; src a: [ty.slot()]; src b: [ty.slot()] }
    "{op}{rnd}{ftz}.sat.{ty} {d}, {a}, {b}", requires [base()], effects [PURE],
    legal [rounds(*rnd, *ftz, ty.as_float())];
fma_sat FmaSat { modifier rnd: Round; modifier ftz: Ftz; modifier ty: SatFloatType; def d: [ty.slot()]; src a: [ty.slot()]; src b: [ty.slot()]; src c: [ty.slot()] }
    "fma{rnd}{ftz}.sat.{ty} {d}, {a}, {b}, {c}", requires [base()], effects [PURE],
    legal [rounds(*rnd, *ftz, ty.as_float())];
/// `a·b + c`, or +0 where that is negative.
fma_relu FmaRelu { modifier ftz: Ftz; modifier ty: HalfType; def d: [ty.slot()]; src a: [ty.slot()]; src b: [ty.slot()]; src c: [ty.slot()] }
    "fma.rn{ftz}.relu.{ty} {d}, {a}, {b}, {c}", requires [base()], effects [PURE],
    legal [flushed(*ftz, matches!(ty, HalfType::F16 | HalfType::F16x2), "subnormals flushed for f16 only")];
/// The lesser or greater magnitude, with the exclusive or of the signs.
min_max_xorsign MinMaxXorsign { modifier op: MinMax; modifier ftz: Ftz; modifier nan: NanMode; modifier ty: SignedMinType; def d: [ty.slot()]; src a: [ty.slot()]; src b: [ty.slot()] }
    "{op}{ftz}{nan}.xorsign.abs.{ty} {d}, {a}, {b}", requires [on(Features::XORSIGN)], effects [PURE],
    legal [flushed(*ftz, !matches!(ty, SignedMinType::BF16 | SignedMinType::BF16x2), "subnormals flushed for f16 and f32 only")];
/// Division, rounded otherwise than to nearest.
div_directed DivDirected { modifier rnd: DirectedRound; modifier ftz: Ftz; modifier ty: WideFloatType; def d: [ty.slot()]; src a: [ty.slot()]; src b: [ty.slot()] }
    "div{rnd}{ftz}.{ty} {d}, {a}, {b}", requires [base()], effects [PURE],
    legal [flushed(*ftz, *ty == WideFloatType::F32, "subnormals flushed for f32 only")];
/// Reciprocal or square root, rounded otherwise than to nearest.
exact_directed ExactDirected { modifier op: Exact; modifier rnd: DirectedRound; modifier ftz: Ftz; modifier ty: WideFloatType; def d: [ty.slot()]; src a: [ty.slot()] }
    "{op}{rnd}{ftz}.{ty} {d}, {a}", requires [base()], effects [PURE],
    legal [flushed(*ftz, *ty == WideFloatType::F32, "subnormals flushed for f32 only")];
/// What kind of number it is; zero is no normal one.
testp Testp { modifier test: FloatTest; modifier ty: WideFloatType; def d: [Slot::PRED]; src a: [ty.slot()] }
    "testp.{test}.{ty} {d}, {a}", requires [base()], effects [PURE];

// ---------------------------------------------------------------- conversions
/// Conversion between scalars; `rnd` is `None` exactly where PTX forbids one (widening, integer to integer).
cvt Cvt { modifier rnd: CvtRound; modifier ftz: Ftz; modifier sat: Sat; modifier to: CvtType; modifier from: CvtType; def d: [to.slot()]; reg a: [from.slot()] }
    "cvt{rnd}{ftz}{sat}.{to}.{from} {d}, {a}", requires [cvt_requires(*ftz, *to, *from)], effects [PURE],
    legal [cvt(*rnd, *ftz, *sat, *to, *from)];
/// Two f32 into a packed pair: `a` becomes the *high* half.
cvt_pair CvtPair { modifier rnd: Round; modifier relu: Relu; modifier to: Pair16; def d: [Slot::B32]; src a: [Slot::F32]; src b: [Slot::F32] }
    "cvt{rnd}{relu}.{to}.f32 {d}, {a}, {b}", requires [base()], effects [PURE],
    legal [ensure(matches!(rnd, Round::Rn | Round::Rz), "rounding to nearest or to zero")];
/// Two f32 into an fp8 pair, nearest even, saturating to the largest finite: `a` becomes the *high* byte.
cvt_pair8_f32 CvtPair8F32 { modifier relu: Relu; modifier to: Pair8; def d: [Slot::H16]; src a: [Slot::F32]; src b: [Slot::F32] }
    "cvt.rn.satfinite{relu}.{to}.f32 {d}, {a}, {b}", requires [on(Features::FP8)], effects [PURE],
    computes [lanes!(scalar |a: u32, b: u32| -> u16 { convert::pack_fp8(fp8_of_f32(how, a), fp8_of_f32(how, b)) }, how = relu as u32 | (to as u32) << 1)];
/// An f16 pair into an fp8 pair.
cvt_pair8_f16x2 CvtPair8F16x2 { modifier relu: Relu; modifier to: Pair8; def d: [Slot::H16]; reg a: [Slot::H16X2] }
    "cvt.rn.satfinite{relu}.{to}.f16x2 {d}, {a}", requires [on(Features::FP8)], effects [PURE],
    computes [lanes!(scalar |a: u32| -> u16 { convert::pack_fp8(fp8_of_f16(how, (a >> 16) as u16), fp8_of_f16(how, a as u16)) }, how = relu as u32 | (to as u32) << 1)];
/// An fp8 pair into an f16 pair, exact.
cvt_f16x2_pair8 CvtF16x2Pair8 { modifier relu: Relu; modifier from: Pair8; def d: [Slot::H16X2]; reg a: [Slot::H16] }
    "cvt.rn{relu}.f16x2.{from} {d}, {a}", requires [on(Features::FP8)], effects [PURE],
    computes [lanes!(scalar |a: u16| -> u32 { f16_of_fp8(how, (a >> 8) as u8) << 16 | f16_of_fp8(how, a as u8) }, how = relu as u32 | (from as u32) << 1)];
/// f32 to tf32, nearest with ties away from zero.
cvt_tf32 CvtTf32 { def d: [Slot::B32]; reg a: [Slot::F32] }
    "cvt.rna.tf32.f32 {d}, {a}", requires [base()], effects [PURE],
    computes [lanes!(|a: u32| -> u32 { convert::f32_to_tf32_rna(a) })];
/// f32 to tf32, clamped at zero from below with `.relu`.
cvt_tf32_rounded CvtTf32Rounded { modifier rnd: Round; modifier relu: Relu; def d: [Slot::B32]; reg a: [Slot::F32] }
    "cvt{rnd}{relu}.tf32.f32 {d}, {a}", requires [on(Features::TF32_ROUNDED)], effects [PURE],
    legal [ensure(matches!(rnd, Round::Rn | Round::Rz), "rounding to nearest or to zero")];
/// f32 to a 16-bit float; a negative number becomes +0.
cvt_relu CvtRelu { modifier rnd: Round; modifier to: Scalar16Type; def d: [Slot::H16]; reg a: [Slot::F32] }
    "cvt{rnd}.relu.{to}.f32 {d}, {a}", requires [base()], effects [PURE],
    legal [ensure(matches!(rnd, Round::Rn | Round::Rz), "rounding to nearest or to zero")];

// ---------------------------------------------------------------- predicates
setp Setp { modifier cmp: Compare; modifier ftz: Ftz; modifier ty: CompareType; def d: [Slot::PRED]; src a: [ty.slot()]; src b: [ty.slot()] }
    "setp.{cmp}{ftz}.{ty} {d}, {a}, {b}", requires [compares(*ty)], effects [PURE],
    legal [setp(*cmp, *ftz, *ty)];
/// A comparison combined with a predicate.
setp_bool SetpBool { modifier cmp: Compare; modifier op: BoolOp; modifier ftz: Ftz; modifier ty: CompareType; def d: [Slot::PRED]; src a: [ty.slot()]; src b: [ty.slot()]; modifier negated: Inverted; reg c: [Slot::PRED] }
    "setp.{cmp}{op}{ftz}.{ty} {d}, {a}, {b}, {negated}{c}", requires [compares(*ty)], effects [PURE],
    legal [setp(*cmp, *ftz, *ty)];
/// A comparison and its negation.
setp_pair SetpPair { modifier cmp: Compare; modifier ftz: Ftz; modifier ty: CompareType; def d: [Slot::PRED]; def e: [Slot::PRED]; src a: [ty.slot()]; src b: [ty.slot()] }
    "setp.{cmp}{ftz}.{ty} {d}|{e}, {a}, {b}", requires [base()], effects [PURE],
    legal [no_half_floats(*ty, "one result of 16-bit floats").and(setp(*cmp, *ftz, *ty))];
/// A comparison and its negation, each combined with a predicate.
setp_bool_pair SetpBoolPair { modifier cmp: Compare; modifier op: BoolOp; modifier ftz: Ftz; modifier ty: CompareType; def d: [Slot::PRED]; def e: [Slot::PRED]; src a: [ty.slot()]; src b: [ty.slot()]; modifier negated: Inverted; reg c: [Slot::PRED] }
    "setp.{cmp}{op}{ftz}.{ty} {d}|{e}, {a}, {b}, {negated}{c}", requires [base()], effects [PURE],
    legal [no_half_floats(*ty, "one result of 16-bit floats").and(setp(*cmp, *ftz, *ty))];
/// Comparisons of both halves of pairs.
setp_halves SetpHalves { modifier cmp: Compare; modifier ftz: Ftz; modifier ty: Pair16; def d: [Slot::PRED]; def e: [Slot::PRED]; reg a: [Slot::H16X2]; reg b: [Slot::H16X2] }
    "setp.{cmp}{ftz}.{ty} {d}|{e}, {a}, {b}", requires [compares(ty.as_half())], effects [PURE],
    legal [setp(*cmp, *ftz, ty.as_half())];
/// A comparison as a number: all ones or 1.0, else zero.
set Set { modifier cmp: Compare; modifier ftz: Ftz; modifier to: SetType; modifier ty: CompareType; def d: [to.slot()]; src a: [ty.slot()]; src b: [ty.slot()] }
    "set.{cmp}{ftz}.{to}.{ty} {d}, {a}, {b}", requires [base()], effects [PURE],
    legal [no_half_floats(*ty, "no 16-bit floats").and(setp(*cmp, *ftz, *ty))];
set_bool SetBool { modifier cmp: Compare; modifier op: BoolOp; modifier ftz: Ftz; modifier to: SetType; modifier ty: CompareType; def d: [to.slot()]; src a: [ty.slot()]; src b: [ty.slot()]; modifier negated: Inverted; reg c: [Slot::PRED] }
    "set.{cmp}{op}{ftz}.{to}.{ty} {d}, {a}, {b}, {negated}{c}", requires [base()], effects [PURE],
    legal [no_half_floats(*ty, "no 16-bit floats").and(setp(*cmp, *ftz, *ty))];
/// `c ≥ 0 ? a : b`
slct Slct { modifier ty: BitType; def d: [ty.slot()]; src a: [ty.slot()]; src b: [ty.slot()]; src c: [Slot::B32] }
    "slct.{ty}.s32 {d}, {a}, {b}, {c}", requires [base()], effects [PURE],
    computes [lanes!(BitType ty, |a, b, c: i32| { if c >= 0 { a } else { b } })];
/// The same of a float: −0 is 0, and a NaN picks `b`.
slct_float SlctFloat { modifier ftz: Ftz; modifier ty: BitType; def d: [ty.slot()]; src a: [ty.slot()]; src b: [ty.slot()]; src c: [Slot::F32] }
    "slct{ftz}.{ty}.f32 {d}, {a}, {b}, {c}", requires [base()], effects [PURE],
    computes [lanes!(BitType ty, |a, b, c: u32| { if f32::from_bits(if flushes != 0 { flush_f32(c) } else { c }) >= 0.0 { a } else { b } }, flushes = ftz)];
/// `p ? a : b`
selp Selp { modifier ty: BitType; def d: [ty.slot()]; src a: [ty.slot()]; src b: [ty.slot()]; reg p: [Slot::PRED] }
    "selp.{ty} {d}, {a}, {b}, {p}", requires [base()], effects [PURE];

// ---------------------------------------------------------------- memory
/// Load of 1, 2, 4 (or 8 bytes-wide) elements; the address is aligned to the whole access.
ld Ld { modifier sem: LoadSem; modifier space: Space; modifier ty: MemType; defs d: [ty.slot()]; addr addr: [space_slot(*space)] }
    "ld{sem}{space}{#d}.{ty} {d}, {addr}", requires [base()], effects [load_effects(*space, *sem)],
    legal [vector(d.len(), *ty)];
/// Load of memory that nothing writes during the kernel, through the read-only path.
ld_nc LdNc { modifier ty: MemType; defs d: [ty.slot()]; addr addr: [Slot::B64] }
    "ld.global.nc{#d}.{ty} {d}, {addr}", requires [base()], effects [PURE],
    legal [vector(d.len(), *ty)];
st St { modifier sem: StoreSem; modifier space: Space; modifier ty: MemType; addr addr: [space_slot(*space)]; srcs a: [ty.slot()] }
    "st{sem}{space}{#a}.{ty} {addr}, {a}", requires [base()], effects [store_effects(*space)],
    legal [vector(a.len(), *ty)];
/// Loads and stores with hints for the caches.
ld_cached LdCached { modifier space: Space; modifier cache: LoadCache; modifier ty: MemType; defs d: [ty.slot()]; addr addr: [space_slot(*space)] }
    "ld{space}{cache}{#d}.{ty} {d}, {addr}", requires [base()], effects [load_effects(*space, LoadSem::Weak)],
    legal [global(*space).and(vector(d.len(), *ty))];
ld_nc_cached LdNcCached { modifier cache: ReadCache; modifier ty: MemType; defs d: [ty.slot()]; addr addr: [Slot::B64] }
    "ld.global{cache}{#d}.{ty} {d}, {addr}", requires [base()], effects [Effects::READ_GLOBAL],
    legal [vector(d.len(), *ty)];
st_cached StCached { modifier space: Space; modifier cache: StoreCache; modifier ty: MemType; addr addr: [space_slot(*space)]; srcs a: [ty.slot()] }
    "st{space}{cache}{#a}.{ty} {addr}, {a}", requires [base()], effects [store_effects(*space)],
    legal [global(*space).and(vector(a.len(), *ty))];
/// Brings the line of an address into a cache.
prefetch Prefetch { modifier level: PrefetchLevel; addr addr: [Slot::B64] }
    "prefetch{level} {addr}", requires [base()], effects [Effects::SYNC];
prefetch_uniform PrefetchUniform { addr addr: [Slot::B64] }
    "prefetchu.L1 {addr}", requires [base()], effects [Effects::SYNC];
/// Takes back the priority that 128 bytes have in the L2 cache.
apply_priority ApplyPriority { addr addr: [Slot::B64] }
    "applypriority.global.L2::evict_normal {addr}, 128", requires [base()], effects [Effects::SYNC];
/// Ends the contents of 128 bytes: whoever loads them finds anything. The emulator leaves a pattern there.
discard Discard { addr addr: [Slot::B64] }
    "discard.global.L2 {addr}, 128", requires [base()], effects [Effects::WRITE_GLOBAL];
/// A cache policy for a fraction of accesses, more than 0 and at most 1, and another one for the rest; or for all of them.
create_policy_fraction CreatePolicyFraction { modifier priority: PolicyPriority; modifier others: PolicyOthers; def d: [Slot::B64]; src fraction: [Slot::F32] }
    "createpolicy.fractional{priority}{others}.b64 {d}, {fraction}", requires [base()], effects [PURE],
    legal [ensure(imm(fraction).is_none_or(|x| (0.0..=1.0).contains(&f32::from_bits(x as u32)) && x != 0), "a fraction of more than 0 and at most 1")];
create_policy CreatePolicy { modifier priority: PolicyPriority; modifier others: PolicyOthers; def d: [Slot::B64] }
    "createpolicy.fractional{priority}{others}.b64 {d}", requires [base()], effects [PURE];
/// The same for the first `primary` of `total` bytes from an address of global memory on.
create_policy_range CreatePolicyRange { modifier priority: PolicyPriority; modifier others: PolicyOthers; def d: [Slot::B64]; addr addr: [Slot::B64]; src primary: [Slot::B32]; src total: [Slot::B32] }
    "createpolicy.range.global{priority}{others}.b64 {d}, {addr}, {primary}, {total}", requires [base()], effects [PURE],
    legal [ensure(imm(primary).zip(imm(total)).is_none_or(|(primary, total)| primary <= total), "no more bytes in the first part than in all")];
/// The policy that an access property of CUDA stands for.
create_policy_cvt CreatePolicyCvt { def d: [Slot::B64]; src a: [Slot::B64] }
    "createpolicy.cvt.L2.b64 {d}, {a}", requires [base()], effects [PURE],
    computes [lanes!(|a: u64| -> u64 { a })];
/// Weak loads and stores with a cache policy.
ld_policy LdPolicy { modifier space: Space; modifier l1: L1Priority; modifier size: PrefetchSize; modifier ty: MemType; defs d: [ty.slot()]; addr addr: [space_slot(*space)]; src policy: [Slot::B64] }
    "ld{space}{l1}.L2::cache_hint{size}{#d}.{ty} {d}, {addr}, {policy}", requires [base()], effects [load_effects(*space, LoadSem::Weak)],
    legal [global(*space).and(vector(d.len(), *ty))];
ld_nc_policy LdNcPolicy { modifier l1: L1Priority; modifier size: PrefetchSize; modifier ty: MemType; defs d: [ty.slot()]; addr addr: [Slot::B64]; src policy: [Slot::B64] }
    "ld.global.nc{l1}.L2::cache_hint{size}{#d}.{ty} {d}, {addr}, {policy}", requires [base()], effects [Effects::READ_GLOBAL],
    legal [vector(d.len(), *ty)];
st_policy StPolicy { modifier space: Space; modifier l1: L1Priority; modifier ty: MemType; addr addr: [space_slot(*space)]; srcs a: [ty.slot()]; src policy: [Slot::B64] }
    "st{space}{l1}.L2::cache_hint{#a}.{ty} {addr}, {a}, {policy}", requires [base()], effects [store_effects(*space)],
    legal [global(*space).and(vector(a.len(), *ty))];
/// Words of the thread's own memory, at a known place: `at` bytes from the start of the entry's `smalt_local`, aligned to the whole access.
ld_local LdLocal { defs d: [Slot::B32]; number at: _ }
    "ld.local{#d}.b32 {d}, [smalt_local+{at}]", requires [base()], effects [Effects::VOLATILE],
    legal [local(d.len(), *at)];
st_local StLocal { number at: _; srcs a: [Slot::B32] }
    "st.local{#a}.b32 [smalt_local+{at}], {a}", requires [base()], effects [Effects::VOLATILE],
    legal [local(a.len(), *at)];
/// Atomic read-modify-write; `d` is the old value.
atom Atom { modifier sem: AtomSem; modifier scope: Scope; modifier space: Space; modifier op: AtomOp; modifier ty: AtomType; def d: [ty.slot()]; addr addr: [space_slot(*space)]; src a: [ty.slot()] }
    "atom{sem}{scope}{space}.{op}.{ty} {d}, {addr}, {a}", requires [atomic(*ty)], effects [atom_effects(*space)],
    legal [ensure(atom(*op, *ty), "a type that the operation has")];
/// Compare and swap.
atom_cas AtomCas { modifier sem: AtomSem; modifier scope: Scope; modifier space: Space; modifier ty: BitType; def d: [ty.slot()]; addr addr: [space_slot(*space)]; src a: [ty.slot()]; src b: [ty.slot()] }
    "atom{sem}{scope}{space}.cas.{ty} {d}, {addr}, {a}, {b}", requires [base()], effects [atom_effects(*space)];
/// Reduction in memory: an atomic with no result.
red Red { modifier sem: AtomSem; modifier scope: Scope; modifier space: Space; modifier op: RedOp; modifier ty: AtomType; addr addr: [space_slot(*space)]; src a: [ty.slot()] }
    "red{sem}{scope}{space}.{op}.{ty} {addr}, {a}", requires [atomic(*ty)], effects [atom_effects(*space)],
    legal [reads_nothing(*sem).and(ensure(atom(op.as_atom(), *ty), "a type that the operation has"))];
/// Reduction of adjacent 16-bit floats in global memory, each atomic by itself; the address is aligned to all of them. Minima and
/// maxima of 16-bit floats have this form only.
red_vector RedVector { modifier sem: AtomSem; modifier scope: Scope; modifier op: HalfRedOp; modifier ty: HalfType; addr addr: [Slot::B64]; srcs a: [ty.slot()] }
    "red{sem}{scope}.global.{op}.noftz{#a}.{ty} {addr}, {a}", requires [isa(81).on(Features::VECTOR_ATOMICS)], effects [atom_effects(Space::Global)],
    legal [reads_nothing(*sem).and(ensure(matches!(a.len(), 2 | 4), "2 or 4 registers"))];
/// The same with the old values.
atom_vector AtomVector { modifier sem: AtomSem; modifier scope: Scope; modifier op: HalfRedOp; modifier ty: HalfType; defs d: [ty.slot()]; addr addr: [Slot::B64]; srcs a: [ty.slot()] }
    "atom{sem}{scope}.global.{op}.noftz{#a}.{ty} {d}, {addr}, {a}", requires [isa(81).on(Features::VECTOR_ATOMICS)], effects [atom_effects(Space::Global)],
    legal [ensure(matches!(a.len(), 2 | 4) && d.len() == a.len(), "2 or 4 registers, and as many")];
/// Sums of adjacent f32 in global memory, each atomic by itself.
red_vector_f32 RedVectorF32 { modifier sem: AtomSem; modifier scope: Scope; addr addr: [Slot::B64]; srcs a: [Slot::FRAGMENT] }
    "red{sem}{scope}.global.add{#a}.f32 {addr}, {a}", requires [isa(81).on(Features::VECTOR_ATOMICS)], effects [atom_effects(Space::Global)],
    legal [reads_nothing(*sem).and(ensure(matches!(a.len(), 2 | 4), "2 or 4 registers"))];
atom_vector_f32 AtomVectorF32 { modifier sem: AtomSem; modifier scope: Scope; defs d: [Slot::FRAGMENT]; addr addr: [Slot::B64]; srcs a: [Slot::FRAGMENT] }
    "atom{sem}{scope}.global.add{#a}.f32 {d}, {addr}, {a}", requires [isa(81).on(Features::VECTOR_ATOMICS)], effects [atom_effects(Space::Global)],
    legal [ensure(matches!(a.len(), 2 | 4) && d.len() == a.len(), "2 or 4 registers, and as many")];
/// A copy of 4, 8 or 16 bytes from global to shared memory that goes on by itself, in the thread's next group.
copy_async CopyAsync { modifier cache: CopyCache; modifier hint: PrefetchSize; addr dst: [Slot::B32]; addr src: [Slot::B64]; number bytes: _ }
    "cp.async{cache}.shared.global{hint} {dst}, {src}, {bytes}", requires [base()], effects [Effects::READ_GLOBAL | Effects::WRITE_SHARED | Effects::SYNC],
    legal [copied(*cache, *bytes)];
/// Only the first `taken` bytes are read: the others are zeros.
copy_async_partly CopyAsyncPartly { modifier cache: CopyCache; modifier hint: PrefetchSize; addr dst: [Slot::B32]; addr src: [Slot::B64]; number bytes: _; src taken: [Slot::B32] }
    "cp.async{cache}.shared.global{hint} {dst}, {src}, {bytes}, {taken}", requires [base()], effects [Effects::READ_GLOBAL | Effects::WRITE_SHARED | Effects::SYNC],
    legal [copied(*cache, *bytes).and(ensure(imm(taken).is_none_or(|n| n <= bytes.unsigned_abs()), "no more bytes than there are"))];
copy_commit CopyCommit { }
    "cp.async.commit_group", requires [base()], effects [Effects::SYNC];
/// Waits until at most `n` groups of the executing thread's copies are pending.
copy_wait CopyWait { number n: _ }
    "cp.async.wait_group {n}", requires [base()], effects [Effects::SYNC],
    legal [ensure(*n >= 0, "a number of groups")];
copy_wait_all CopyWaitAll { }
    "cp.async.wait_all", requires [base()], effects [Effects::SYNC];
/// An arrival when the copies of the executing thread so far are done.
copy_arrive CopyArrive { modifier counted: Counted; addr addr: [Slot::B32] }
    "cp.async.mbarrier.arrive{counted}.shared::cta.b64 {addr}", requires [base()], effects [Effects::SYNC];
/// Four 8×8 matrices of 16-bit elements from shared memory (1, 2 or 4 by the length of `d`).
ldmatrix Ldmatrix { modifier trans: MatrixTrans; defs d: [Slot::B32]; addr addr: [Slot::B32] }
    "ldmatrix.sync.aligned.m8n8.x{$d}{trans}.shared.b16 {d}, {addr}", requires [base()], effects [Effects::READ_SHARED | Effects::CONVERGENT],
    legal [matrices(d.len())];
stmatrix Stmatrix { modifier trans: MatrixTrans; addr addr: [Slot::B32]; srcs a: [Slot::FRAGMENT] }
    "stmatrix.sync.aligned.m8n8.x{$a}{trans}.shared.b16 {addr}, {a}", requires [on(Features::STMATRIX)], effects [Effects::WRITE_SHARED | Effects::CONVERGENT],
    legal [matrices(a.len())];
/// Store to a peer's shared memory that completes on a barrier there.
st_async StAsync { modifier ty: MemType; addr addr: [Slot::B32]; srcs a: [ty.slot()]; addr bar: [Slot::B32] }
    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes{#a}.{ty} {addr}, {a}, {bar}", requires [isa(81).on(Features::TRANSACTIONS.union(Features::CLUSTERS))], effects [Effects::WRITE_SHARED | Effects::SYNC],
    legal [ensure(matches!(ty, MemType::B32 | MemType::B64), "32- or 64-bit elements").and(vector(a.len(), *ty))];
/// Reduction in a peer's shared memory that completes on a barrier there.
red_async RedAsync { modifier op: RedOp; modifier ty: AtomType; addr addr: [Slot::B32]; src a: [ty.slot()]; addr bar: [Slot::B32] }
    "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{op}.{ty} {addr}, {a}, {bar}", requires [isa(81).on(Features::TRANSACTIONS.union(Features::CLUSTERS))], effects [Effects::READ_SHARED | Effects::WRITE_SHARED | Effects::SYNC],
    legal [ensure(async_reduction(*op, *ty), "a type that the operation has")];

// ---------------------------------------------------------------- warps
/// Exchange of registers within a warp. `c` holds the clamp and the segment mask.
shfl Shfl { modifier mode: ShuffleMode; def d: [Slot::B32]; reg a: [Slot::B32]; src b: [Slot::B32]; src c: [Slot::B32]; number mask: _ }
    "shfl.sync.{mode}.b32 {d}, {a}, {b}, {c}, {mask}", requires [base()], effects [Effects::CONVERGENT];
vote Vote { modifier mode: VoteMode; def d: [Slot::PRED]; reg a: [Slot::PRED]; number mask: _ }
    "vote.sync.{mode}.pred {d}, {a}, {mask}", requires [base()], effects [Effects::CONVERGENT];
ballot Ballot { def d: [Slot::B32]; reg a: [Slot::PRED]; number mask: _ }
    "vote.sync.ballot.b32 {d}, {a}, {mask}", requires [base()], effects [Effects::CONVERGENT];
redux Redux { modifier op: ReduxOp; def d: [Slot::B32]; reg a: [Slot::B32]; number mask: _ }
    "redux.sync.{op} {d}, {a}, {mask}", requires [base()], effects [Effects::CONVERGENT];
/// True in exactly one lane of the mask: the lowest one, on every machine we run on.
elect Elect { def d: [Slot::PRED]; number mask: _ }
    "elect.sync _|{d}, {mask}", requires [on(Features::ELECT)], effects [Effects::CONVERGENT];
bar_warp BarWarp { number mask: _ }
    "bar.warp.sync {mask}", requires [base()], effects [Effects::SYNC | Effects::CONVERGENT];
/// The same with a mask that is a register: lanes that name each other in theirs take part together.
shfl_masked ShflMasked { modifier mode: ShuffleMode; def d: [Slot::B32]; reg a: [Slot::B32]; src b: [Slot::B32]; src c: [Slot::B32]; reg members: [Slot::B32] }
    "shfl.sync.{mode}.b32 {d}, {a}, {b}, {c}, {members}", requires [base()], effects [Effects::CONVERGENT];
/// An exchange, and whether the other lane is within the segment.
shfl_pred ShflPred { modifier mode: ShuffleMode; def d: [Slot::B32]; def p: [Slot::PRED]; reg a: [Slot::B32]; src b: [Slot::B32]; src c: [Slot::B32]; src members: [Slot::B32] }
    "shfl.sync.{mode}.b32 {d}|{p}, {a}, {b}, {c}, {members}", requires [base()], effects [Effects::CONVERGENT];
vote_masked VoteMasked { modifier mode: VoteMode; def d: [Slot::PRED]; reg a: [Slot::PRED]; reg members: [Slot::B32] }
    "vote.sync.{mode}.pred {d}, {a}, {members}", requires [base()], effects [Effects::CONVERGENT];
ballot_masked BallotMasked { def d: [Slot::B32]; reg a: [Slot::PRED]; reg members: [Slot::B32] }
    "vote.sync.ballot.b32 {d}, {a}, {members}", requires [base()], effects [Effects::CONVERGENT];
redux_masked ReduxMasked { modifier op: ReduxOp; def d: [Slot::B32]; reg a: [Slot::B32]; reg members: [Slot::B32] }
    "redux.sync.{op} {d}, {a}, {members}", requires [base()], effects [Effects::CONVERGENT];
elect_masked ElectMasked { def d: [Slot::PRED]; reg members: [Slot::B32] }
    "elect.sync _|{d}, {members}", requires [on(Features::ELECT)], effects [Effects::CONVERGENT];
/// Which lane it is, too.
elect_leader ElectLeader { def d: [Slot::B32]; def p: [Slot::PRED]; src members: [Slot::B32] }
    "elect.sync {d}|{p}, {members}", requires [on(Features::ELECT)], effects [Effects::CONVERGENT];
/// The lanes that have the same value.
match_any MatchAny { modifier ty: WordType; def d: [Slot::B32]; reg a: [ty.slot()]; src members: [Slot::B32] }
    "match.any.sync.{ty} {d}, {a}, {members}", requires [base()], effects [Effects::CONVERGENT];
/// The lanes, if all have the same value, else 0; and whether they have.
match_all MatchAll { modifier ty: WordType; def d: [Slot::B32]; reg a: [ty.slot()]; src members: [Slot::B32] }
    "match.all.sync.{ty} {d}, {a}, {members}", requires [base()], effects [Effects::CONVERGENT];
match_all_pred MatchAllPred { modifier ty: WordType; def d: [Slot::B32]; def p: [Slot::PRED]; reg a: [ty.slot()]; src members: [Slot::B32] }
    "match.all.sync.{ty} {d}|{p}, {a}, {members}", requires [base()], effects [Effects::CONVERGENT];
/// The lanes that execute it together.
activemask Activemask { def d: [Slot::B32] }
    "activemask.b32 {d}", requires [base()], effects [Effects::VOLATILE];
/// The transpose of an 8×8 matrix of 16-bit elements, of which lane l holds two of row l / 4.
movmatrix Movmatrix { def d: [Slot::B32]; reg a: [Slot::B32] }
    "movmatrix.sync.aligned.m8n8.trans.b16 {d}, {a}", requires [base()], effects [Effects::CONVERGENT];
bar_warp_masked BarWarpMasked { reg members: [Slot::B32] }
    "bar.warp.sync {members}", requires [base()], effects [Effects::SYNC | Effects::CONVERGENT];
set_max_reg SetMaxReg { modifier action: RegCount; number n: _ }
    "setmaxnreg{action}.sync.aligned.u32 {n}", requires [on(Features::SET_MAX_REG)], effects [Effects::SYNC | Effects::CONVERGENT],
    legal [ensure((24..=256).contains(n) && n % 8 == 0, "a multiple of 8 from 24 to 256 registers")];
nanosleep Nanosleep { src ns: [Slot::B32] }
    "nanosleep.u32 {ns}", requires [base()], effects [Effects::VOLATILE];
/// Nothing for the GPU: a comment. The emulator checks that `size` positions from index `i` on lie in a dimension of `extent`; the other
/// fields say what it is of.
check_index CheckIndex { modifier ty: IntType; modifier of: Indexed; src i: [ty.slot()]; number size: _; number extent: _; number dim: _; number place: _ }
    "// index {ty} {i}: {size} of {extent} in dimension {dim} of {of} {place};", requires [base()], effects [Effects::VOLATILE],
    legal [no_halves(ty.bits()).and(ensure(*of != Indexed::Hint || *size > 0, "a positive number"))];
/// An unchecked text, handed to the assembler as it is: it may do anything. `code` names `d` and `a` `smalt_d0`, … and `smalt_a0`, …;
/// `unknown` is the first of its instructions that is not in this table, `version` the PTX ISA that it asks for.
unchecked Unchecked { modifier lanes: Lanes; number version: _; text unknown: _; text code: _; defs d: [Slot::B64]; srcs a: [Slot::WIDE] }
    "{{ // unchecked {lanes} {version} {unknown} {code} {d} {a};}}", requires [isa(*version as u16)], effects [unchecked_effects(*lanes)];
trap Trap { }
    "trap", requires [base()], effects [Effects::VOLATILE];

// ---------------------------------------------------------------- CTA and cluster synchronisation
/// Named barrier: waits until `threads` threads arrived.
bar_sync BarSync { src id: [Slot::B32]; src threads: [Slot::B32] }
    "bar.sync {id}, {threads}", requires [base()], effects [Effects::SYNC | Effects::CONVERGENT],
    legal [named_barrier(id).and(whole_warps(threads))];
bar_arrive BarArrive { src id: [Slot::B32]; src threads: [Slot::B32] }
    "bar.arrive {id}, {threads}", requires [base()], effects [Effects::SYNC | Effects::CONVERGENT],
    legal [named_barrier(id).and(whole_warps(threads))];
/// The same of all threads of the block.
bar_sync_all BarSyncAll { src id: [Slot::B32] }
    "bar.sync {id}", requires [base()], effects [Effects::SYNC | Effects::CONVERGENT],
    legal [named_barrier(id)];
/// The same without the promise that all lanes of the warp execute it (which they must do all the same in the emulator).
barrier_sync BarrierSync { src id: [Slot::B32]; src threads: [Slot::B32] }
    "barrier.sync {id}, {threads}", requires [base()], effects [Effects::SYNC | Effects::CONVERGENT],
    legal [named_barrier(id).and(whole_warps(threads))];
barrier_sync_all BarrierSyncAll { src id: [Slot::B32] }
    "barrier.sync {id}", requires [base()], effects [Effects::SYNC | Effects::CONVERGENT],
    legal [named_barrier(id)];
barrier_arrive BarrierArrive { src id: [Slot::B32]; src threads: [Slot::B32] }
    "barrier.arrive {id}, {threads}", requires [base()], effects [Effects::SYNC | Effects::CONVERGENT],
    legal [named_barrier(id).and(whole_warps(threads))];
/// In how many of the threads that synchronise the predicate holds.
bar_red_popc BarRedPopc { def d: [Slot::B32]; src id: [Slot::B32]; src threads: [Slot::B32]; modifier negated: Inverted; reg p: [Slot::PRED] }
    "bar.red.popc.u32 {d}, {id}, {threads}, {negated}{p}", requires [base()], effects [Effects::SYNC | Effects::CONVERGENT],
    legal [named_barrier(id).and(whole_warps(threads))];
bar_red_popc_all BarRedPopcAll { def d: [Slot::B32]; src id: [Slot::B32]; modifier negated: Inverted; reg p: [Slot::PRED] }
    "bar.red.popc.u32 {d}, {id}, {negated}{p}", requires [base()], effects [Effects::SYNC | Effects::CONVERGENT],
    legal [named_barrier(id)];
/// Whether it holds in all of them, or in any.
bar_red BarRed { modifier op: BarRedOp; def d: [Slot::PRED]; src id: [Slot::B32]; src threads: [Slot::B32]; modifier negated: Inverted; reg p: [Slot::PRED] }
    "bar.red.{op}.pred {d}, {id}, {threads}, {negated}{p}", requires [base()], effects [Effects::SYNC | Effects::CONVERGENT],
    legal [named_barrier(id).and(whole_warps(threads))];
bar_red_all BarRedAll { modifier op: BarRedOp; def d: [Slot::PRED]; src id: [Slot::B32]; modifier negated: Inverted; reg p: [Slot::PRED] }
    "bar.red.{op}.pred {d}, {id}, {negated}{p}", requires [base()], effects [Effects::SYNC | Effects::CONVERGENT],
    legal [named_barrier(id)];
cluster_arrive ClusterArrive { modifier sem: ClusterArriveSem }
    "barrier.cluster.arrive{sem}.aligned", requires [on(Features::CLUSTERS)], effects [Effects::SYNC | Effects::CONVERGENT];
cluster_wait ClusterWait { }
    "barrier.cluster.wait.acquire.aligned", requires [on(Features::CLUSTERS)], effects [Effects::SYNC | Effects::CONVERGENT];
/// The same of each thread for itself: lanes of a warp may come at different times.
cluster_arrive_apart ClusterArriveApart { modifier sem: ClusterArriveSem }
    "barrier.cluster.arrive{sem}", requires [on(Features::CLUSTERS)], effects [Effects::SYNC];
cluster_wait_apart ClusterWaitApart { }
    "barrier.cluster.wait.acquire", requires [on(Features::CLUSTERS)], effects [Effects::SYNC];
fence Fence { modifier sem: FenceSem; modifier scope: Scope }
    "fence{sem}{scope}", requires [fence_requires(*sem)], effects [Effects::SYNC];
/// A fence between the threads of a cluster, of their accesses to shared memory alone.
fence_shared FenceShared { modifier sem: SharedFence }
    "fence.{sem}.cluster", requires [isa(86).on(Features::CLUSTERS)], effects [Effects::SYNC];
fence_proxy FenceProxy { modifier proxy: ProxyFence }
    "fence.proxy.{proxy}", requires [proxy_fence_requires(*proxy)], effects [Effects::SYNC];
/// What the generic proxy wrote of tensor maps may be acquired.
fence_map_release FenceMapRelease { modifier scope: Scope }
    "fence.proxy.tensormap::generic.release{scope}", requires [isa(83).on(Features::BULK_COPIES)], effects [Effects::SYNC];
/// The copies that follow read the tensor map at `addr` as it was released.
fence_map_acquire FenceMapAcquire { modifier scope: Scope; addr addr: [Slot::B64] }
    "fence.proxy.tensormap::generic.acquire{scope} {addr}, 128", requires [isa(83).on(Features::BULK_COPIES)], effects [Effects::SYNC];
fence_mbarrier_init FenceMbarrierInit { }
    "fence.mbarrier_init.release.cluster", requires [on(Features::CLUSTERS)], effects [Effects::SYNC];
grid_dep GridDep { modifier action: GridDep }
    "griddepcontrol.{action}", requires [on(Features::DEPENDENT_LAUNCH)], effects [Effects::SYNC | Effects::VOLATILE];

// ---------------------------------------------------------------- mbarriers
mbarrier_init MbarrierInit { addr addr: [Slot::B32]; src count: [Slot::B32] }
    "mbarrier.init.shared::cta.b64 {addr}, {count}", requires [base()], effects [Effects::SYNC];
mbarrier_inval MbarrierInval { addr addr: [Slot::B32] }
    "mbarrier.inval.shared::cta.b64 {addr}", requires [base()], effects [Effects::SYNC];
/// `count` arrivals of the executing thread (release, CTA scope).
mbarrier_arrive MbarrierArrive { addr addr: [Slot::B32]; src count: [Slot::B32] }
    "mbarrier.arrive.shared::cta.b64 _, {addr}, {count}", requires [on(Features::TRANSACTIONS)], effects [Effects::SYNC];
/// An arrival on a barrier of any CTA of the cluster, in default form.
mbarrier_arrive_cluster MbarrierArriveCluster { modifier release: Release; addr addr: [Slot::B32]; src count: [Slot::B32] }
    "mbarrier.arrive{release}.shared::cluster.b64 _, {addr}, {count}", requires [on(Features::CLUSTERS)], effects [Effects::SYNC];
/// One arrival that also raises the pending transaction count by `bytes`.
mbarrier_arrive_expect_tx MbarrierArriveExpectTx { addr addr: [Slot::B32]; src bytes: [Slot::B32] }
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, {addr}, {bytes}", requires [on(Features::TRANSACTIONS)], effects [Effects::SYNC];
mbarrier_arrive_expect_tx_cluster MbarrierArriveExpectTxCluster { addr addr: [Slot::B32]; src bytes: [Slot::B32] }
    "mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, {addr}, {bytes}", requires [on(Features::TRANSACTIONS.union(Features::CLUSTERS))], effects [Effects::SYNC];
/// Raises the pending transaction count with no arrival.
mbarrier_expect_tx MbarrierExpectTx { addr addr: [Slot::B32]; src bytes: [Slot::B32] }
    "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 {addr}, {bytes}", requires [on(Features::TRANSACTIONS)], effects [Effects::SYNC];
/// True when the phase of parity `parity` has completed (acquire, CTA scope).
mbarrier_test MbarrierTest { def d: [Slot::PRED]; addr addr: [Slot::B32]; src parity: [Slot::B32] }
    "mbarrier.test_wait.parity.shared::cta.b64 {d}, {addr}, {parity}", requires [base()], effects [Effects::SYNC],
    legal [is_parity(parity)];
/// Waits for the completion of the phase of parity `parity`. Behind the first try of a long one ptxas puts a sleep, from which a warp
/// wakes up late.
mbarrier_wait MbarrierWait { modifier ask: MbarrierAsk; modifier acquire: Acquire; modifier suspend: Suspend; addr addr: [Slot::B32]; src parity: [Slot::B32] }
    "{{\n\t.reg .pred P;\nW:\n\tmbarrier.{ask}.parity{acquire}.shared::cta.b64 P, {addr}, {parity}{suspend};\n\t@P bra.uni D;\n\tbra.uni W;\nD:\n\t}}", requires [wait_requires(*acquire).on(asking(*ask))], effects [Effects::SYNC],
    legal [is_parity(parity).and(ensure(*ask == MbarrierAsk::Try || *suspend == Suspend::Short, "a wait that does not sleep"))];
/// The same, giving up after `ns` nanoseconds: `ok` is false then. It is over, too, when the block has given up, of which `flag` in shared
/// memory tells: what follows is [`leave_if_block_gave_up`](Inst::LeaveIfBlockGaveUp).
mbarrier_wait_for MbarrierWaitFor { modifier ask: MbarrierAsk; modifier acquire: Acquire; def ok: [Slot::PRED]; addr addr: [Slot::B32]; src parity: [Slot::B32]; number flag: _; number ns: _ }
    "{{\n\t.reg .pred P;\n\t.reg .b32 V;\n\t.reg .b64 T, U;\n\tmov.u64 T, %globaltimer;\nW:\n\tmbarrier.{ask}.parity{acquire}.shared::cta.b64 {ok}, {addr}, {parity};\n\t@{ok} bra D;\n\tld.volatile.shared.b32 V, [smalt_smem+{flag}];\n\tsetp.ne.u32 {ok}, V, 0;\n\t@{ok} bra D;\n\tmov.u64 U, %globaltimer;\n\tsub.u64 U, U, T;\n\tsetp.lt.u64 P, U, {ns};\n\t@P bra W;\nD:\n\t}}", requires [wait_requires(*acquire).on(asking(*ask))], effects [Effects::SYNC],
    legal [is_parity(parity)];
/// The same, giving up after `ns` nanoseconds: whether it was there in time.
wait_tagged_for WaitTaggedFor { modifier scope: Scope; def ok: [Slot::PRED]; def d: [Slot::B64]; addr addr: [Slot::B64]; src tag: [Slot::B32]; number ns: _ }
    "{{\n\t.reg .pred P;\n\t.reg .b32 V;\n\t.reg .b64 T, U;\n\tmov.u64 T, %globaltimer;\nW:\n\tld.acquire{scope}.global.b64 {d}, {addr};\n\tcvt.u32.u64 V, {d};\n\tand.b32 V, V, 65535;\n\tsetp.eq.u32 {ok}, V, {tag};\n\t@{ok} bra D;\n\tmov.u64 U, %globaltimer;\n\tsub.u64 U, U, T;\n\tsetp.lt.u64 P, U, {ns};\n\t@P bra W;\nD:\n\t}}", requires [base()], effects [Effects::SYNC | Effects::READ_GLOBAL];
/// Waits until the word at `addr` is at least `value` (unsigned): polls that acquire. A fence behind relaxed ones takes longer: it waits
/// for the thread's own stores, too.
wait_at_least WaitAtLeast { modifier scope: Scope; addr addr: [Slot::B64]; src value: [Slot::B32] }
    "{{\n\t.reg .pred P;\n\t.reg .b32 V;\nW:\n\tld.acquire{scope}.global.b32 V, {addr};\n\tsetp.lt.u32 P, V, {value};\n\t@P bra W;\n\t}}", requires [base()], effects [Effects::SYNC | Effects::READ_GLOBAL];
/// Waits until the low 16 bits of the 64-bit word at `addr` are `tag`: polls that acquire. `d` is the word.
wait_tagged WaitTagged { modifier scope: Scope; def d: [Slot::B64]; addr addr: [Slot::B64]; src tag: [Slot::B32] }
    "{{\n\t.reg .pred P;\n\t.reg .b32 V;\nW:\n\tld.acquire{scope}.global.b64 {d}, {addr};\n\tcvt.u32.u64 V, {d};\n\tand.b32 V, V, 65535;\n\tsetp.ne.u32 P, V, {tag};\n\t@P bra W;\n\t}}", requires [base()], effects [Effects::SYNC | Effects::READ_GLOBAL];
/// Waits until the word at `addr` is at least `value` and subtracts it, atomically: relaxed polls, then an exchange that acquires.
wait_and_subtract WaitAndSubtract { modifier scope: Scope; addr addr: [Slot::B64]; src value: [Slot::B32] }
    "{{\n\t.reg .pred P;\n\t.reg .b32 V, N, O;\n\tld.relaxed{scope}.global.b32 V, {addr};\nW:\n\tsetp.ge.u32 P, V, {value};\n\t@P bra C;\n\tld.relaxed{scope}.global.b32 V, {addr};\n\tbra W;\nC:\n\tsub.u32 N, V, {value};\n\tmov.b32 O, V;\n\tatom.acquire{scope}.global.cas.b32 V, {addr}, O, N;\n\tsetp.ne.u32 P, V, O;\n\t@P bra W;\n\t}}", requires [base()], effects [Effects::SYNC | Effects::READ_GLOBAL | Effects::WRITE_GLOBAL];
/// The same, giving up after `ns` nanoseconds: whether it was so in time.
wait_at_least_for WaitAtLeastFor { modifier scope: Scope; def ok: [Slot::PRED]; addr addr: [Slot::B64]; src value: [Slot::B32]; number ns: _ }
    "{{\n\t.reg .pred P;\n\t.reg .b32 V;\n\t.reg .b64 T, U;\n\tmov.u64 T, %globaltimer;\nW:\n\tld.acquire{scope}.global.b32 V, {addr};\n\tsetp.ge.u32 {ok}, V, {value};\n\t@{ok} bra D;\n\tmov.u64 U, %globaltimer;\n\tsub.u64 U, U, T;\n\tsetp.lt.u64 P, U, {ns};\n\t@P bra W;\nD:\n\t}}", requires [base()], effects [Effects::SYNC | Effects::READ_GLOBAL];
wait_and_subtract_for WaitAndSubtractFor { modifier scope: Scope; def ok: [Slot::PRED]; addr addr: [Slot::B64]; src value: [Slot::B32]; number ns: _ }
    "{{\n\t.reg .pred P;\n\t.reg .b32 V, N, O;\n\t.reg .b64 T, U;\n\tmov.u64 T, %globaltimer;\nW:\n\tld.relaxed{scope}.global.b32 V, {addr};\nC:\n\tsetp.ge.u32 {ok}, V, {value};\n\t@{ok} bra S;\n\tmov.u64 U, %globaltimer;\n\tsub.u64 U, U, T;\n\tsetp.lt.u64 P, U, {ns};\n\t@P bra W;\n\tbra D;\nS:\n\tsub.u32 N, V, {value};\n\tmov.b32 O, V;\n\tatom.acquire{scope}.global.cas.b32 V, {addr}, O, N;\n\tsetp.ne.u32 P, V, O;\n\t@P bra C;\nD:\n\t}}", requires [base()], effects [Effects::SYNC | Effects::READ_GLOBAL | Effects::WRITE_GLOBAL];
/// `count` arrivals in forms that the rows above do not have.
mbarrier_count MbarrierCount { modifier op: MbarrierOp; modifier sem: ArriveSem; modifier space: BarrierSpace; addr addr: [Slot::B32]; src count: [Slot::B32] }
    "mbarrier.{op}{sem}.{space}.b64 _, {addr}, {count}", requires [arrive_requires(*sem).on(Features::TRANSACTIONS)], effects [Effects::SYNC],
    legal [arrival_of_own(*op, match space { BarrierSpace::Cta => *sem != ArriveSem::Default, BarrierSpace::Cluster => !matches!(sem, ArriveSem::Default | ArriveSem::ReleaseCluster) })];
/// One arrival.
mbarrier_one MbarrierOne { modifier op: MbarrierOp; modifier sem: ArriveSem; modifier space: BarrierSpace; addr addr: [Slot::B32] }
    "mbarrier.{op}{sem}.{space}.b64 _, {addr}", requires [arrive_requires(*sem)], effects [Effects::SYNC];
/// One arrival, and bytes to come, in forms that the rows above do not have.
mbarrier_one_expect_tx MbarrierOneExpectTx { modifier op: MbarrierOp; modifier sem: ArriveSem; modifier space: BarrierSpace; addr addr: [Slot::B32]; src bytes: [Slot::B32] }
    "mbarrier.{op}.expect_tx{sem}.{space}.b64 _, {addr}, {bytes}", requires [arrive_requires(*sem).on(Features::TRANSACTIONS)], effects [Effects::SYNC],
    legal [arrival_of_own(*op, match space { BarrierSpace::Cta => *sem != ArriveSem::Default, BarrierSpace::Cluster => *sem != ArriveSem::ReleaseCluster })];
/// `state` is the phase that the arrival was in, and how many arrivals it still took before: opaque but for [`Inst::MbarrierPendingCount`].
mbarrier_count_state MbarrierCountState { modifier op: MbarrierOp; modifier sem: ArriveSem; def state: [Slot::B64]; addr addr: [Slot::B32]; src count: [Slot::B32] }
    "mbarrier.{op}{sem}.shared::cta.b64 {state}, {addr}, {count}", requires [arrive_requires(*sem).on(Features::TRANSACTIONS)], effects [Effects::SYNC];
mbarrier_one_state MbarrierOneState { modifier op: MbarrierOp; modifier sem: ArriveSem; def state: [Slot::B64]; addr addr: [Slot::B32] }
    "mbarrier.{op}{sem}.shared::cta.b64 {state}, {addr}", requires [arrive_requires(*sem)], effects [Effects::SYNC];
mbarrier_expect_tx_state MbarrierExpectTxState { modifier op: MbarrierOp; modifier sem: ArriveSem; def state: [Slot::B64]; addr addr: [Slot::B32]; src bytes: [Slot::B32] }
    "mbarrier.{op}.expect_tx{sem}.shared::cta.b64 {state}, {addr}, {bytes}", requires [arrive_requires(*sem).on(Features::TRANSACTIONS)], effects [Effects::SYNC];
/// Arrivals that must not be the phase's last.
mbarrier_no_complete MbarrierNoComplete { modifier op: MbarrierOp; modifier sem: ArriveSem; def state: [Slot::B64]; addr addr: [Slot::B32]; src count: [Slot::B32] }
    "mbarrier.{op}.noComplete{sem}.shared::cta.b64 {state}, {addr}, {count}", requires [base()], effects [Effects::SYNC],
    legal [ensure(matches!(sem, ArriveSem::Default | ArriveSem::ReleaseCta), "release semantics in the block")];
/// Raises or lowers the pending transaction count with no arrival.
mbarrier_tx MbarrierTx { modifier op: TxOp; modifier scope: TxScope; modifier space: BarrierSpace; addr addr: [Slot::B32]; src bytes: [Slot::B32] }
    "mbarrier.{op}.relaxed{scope}.{space}.b64 {addr}, {bytes}", requires [on(Features::TRANSACTIONS)], effects [Effects::SYNC],
    legal [ensure((*op, *scope, *space) != (TxOp::Expect, TxScope::Cta, BarrierSpace::Cta), "a count of another form")];
/// Whether the phase of `state` has completed.
mbarrier_ask MbarrierAsk { modifier ask: MbarrierAsk; modifier sem: AskSem; def d: [Slot::PRED]; addr addr: [Slot::B32]; reg state: [Slot::B64] }
    "mbarrier.{ask}{sem}.shared::cta.b64 {d}, {addr}, {state}", requires [ask_requires(*sem).on(asking(*ask))], effects [Effects::SYNC];
mbarrier_ask_parity MbarrierAskParity { modifier ask: MbarrierAsk; modifier sem: AskSem; def d: [Slot::PRED]; addr addr: [Slot::B32]; src parity: [Slot::B32] }
    "mbarrier.{ask}.parity{sem}.shared::cta.b64 {d}, {addr}, {parity}", requires [ask_requires(*sem).on(asking(*ask))], effects [Effects::SYNC],
    legal [ensure(*ask == MbarrierAsk::Try || *sem != AskSem::Default, "a test of another form").and(is_parity(parity))];
/// The same, sleeping no longer than about `ns` nanoseconds.
mbarrier_try_for MbarrierTryFor { modifier sem: AskSem; def d: [Slot::PRED]; addr addr: [Slot::B32]; reg state: [Slot::B64]; src hint: [Slot::B32] }
    "mbarrier.try_wait{sem}.shared::cta.b64 {d}, {addr}, {state}, {hint}", requires [ask_requires(*sem).on(Features::TRANSACTIONS)], effects [Effects::SYNC];
mbarrier_try_parity_for MbarrierTryParityFor { modifier sem: AskSem; def d: [Slot::PRED]; addr addr: [Slot::B32]; src parity: [Slot::B32]; src hint: [Slot::B32] }
    "mbarrier.try_wait.parity{sem}.shared::cta.b64 {d}, {addr}, {parity}, {hint}", requires [ask_requires(*sem).on(Features::TRANSACTIONS)], effects [Effects::SYNC],
    legal [is_parity(parity)];
/// How many arrivals the phase of `state` took before that one.
mbarrier_pending_count MbarrierPendingCount { def d: [Slot::B32]; reg state: [Slot::B64] }
    "mbarrier.pending_count.b64 {d}, {state}", requires [base()], effects [PURE],
    computes [lanes!(|state: u64| -> u32 { (state >> 32) as u32 })];

/// Room for a record of `bytes` bytes in the memory that `printer` is the start of ([`super::launch::Printer`]): its address for all lanes of the
/// warp, or 0 where it is full; then `weight` is added to what was left out. No work depends on it: it orders nothing, and signals no other CTA.
print_reserve PrintReserve { def d: [Slot::B64]; reg printer: [Slot::B64]; src weight: [Slot::B32]; number bytes: _ }
    "{{\n\t.reg .pred P, Q;\n\t.reg .b32 L, H;\n\t.reg .b64 E, C;\n\tmov.u32 L, %laneid;\n\tsetp.eq.u32 P, L, 0;\n\tmov.u64 E, 0;\n\t@P atom.relaxed.gpu.global.add.u64 E, [{printer}], {bytes};\n\tmov.b64 {{L, H}}, E;\n\tshfl.sync.idx.b32 L, L, 0, 31, 0xffffffff;\n\tshfl.sync.idx.b32 H, H, 0, 31, 0xffffffff;\n\tmov.b64 E, {{L, H}};\n\tld.global.u64 C, [{printer}+16];\n\tsub.u64 C, C, {bytes};\n\tsetp.gt.s64 Q, E, C;\n\tand.pred P, P, Q;\n\t@P red.relaxed.gpu.global.add.u32 [{printer}+8], {weight};\n\tadd.u64 E, E, {printer};\n\tadd.u64 E, E, 64;\n\tselp.b64 {d}, 0, E, Q;\n\t}}", requires [base()], effects [Effects::SYNC | Effects::CONVERGENT | Effects::READ_GLOBAL | Effects::WRITE_GLOBAL];

/// From here on the thread makes marks in a track of a profile ([`super::launch::Profile`]): the track's address, and 0, or
/// [`NEVER`](super::launch::Profile::NEVER) for a thread that makes none. The two live in registers of their own, `%profile_at` and `%profile_n`.
profile_start ProfileStart { reg at: [Slot::B64]; src n: [Slot::B32] }
    "{{\n\t.reg .pred P;\n\t.reg .b32 S;\n\t.reg .b64 T, C;\n\tmov.b64 %profile_at, {at};\n\tmov.b32 %profile_n, {n};\n\tsetp.eq.u32 P, %profile_n, 0;\n\tmov.u32 S, %smid;\n\tmov.u64 T, %globaltimer;\n\tmov.u64 C, %clock64;\n\t@P st.global.b32 [%profile_at], S;\n\t@P st.global.b64 [%profile_at+8], T;\n\t@P st.global.b64 [%profile_at+16], C;\n\t}}", requires [base()], effects [Effects::SYNC | Effects::CONVERGENT | Effects::VOLATILE | Effects::WRITE_GLOBAL];
/// A mark, if it is one of the first `marks`.
profile_mark ProfileMark { number tag: _; number marks: _ }
    "{{\n\t.reg .pred P;\n\t.reg .b32 C;\n\t.reg .b64 A;\n\tmov.u32 C, %clock;\n\tsetp.lt.u32 P, %profile_n, {marks};\n\tmad.wide.u32 A, %profile_n, 8, %profile_at;\n\t@P st.global.v2.b32 [A+40], {{{tag}, C}};\n\tadd.u32 %profile_n, %profile_n, 1;\n\t}}", requires [base()], effects [Effects::SYNC | Effects::CONVERGENT | Effects::VOLATILE | Effects::WRITE_GLOBAL];
/// The end of the thread's marks.
profile_end ProfileEnd { }
    "{{\n\t.reg .pred P;\n\t.reg .b64 T, C;\n\tmov.u64 T, %globaltimer;\n\tmov.u64 C, %clock64;\n\tsetp.ge.s32 P, %profile_n, 0;\n\t@P st.global.b32 [%profile_at+4], %profile_n;\n\t@P st.global.b64 [%profile_at+24], T;\n\t@P st.global.b64 [%profile_at+32], C;\n\t}}", requires [base()], effects [Effects::SYNC | Effects::CONVERGENT | Effects::VOLATILE | Effects::WRITE_GLOBAL];

// ---------------------------------------------------------------- giving up
// A kernel whose waits have a limit ends when one takes longer, and none of its warps is left at a barrier: `lower/give_up.rs` says how.
// `flag` is where the block's word is in shared memory that says so, `word` where the launch's is. In the emulator a wait that takes longer is
// the run's error: no warp gives up there.
/// The block has not given up, and none of its threads is at its end.
give_up_begin GiveUpBegin { number flag: _ }
    "{{\n\t.reg .pred P;\n\t.reg .b32 V;\n\tmov.u32 V, %tid.x;\n\tsetp.eq.u32 P, V, 0;\n\t@P st.volatile.shared.b32 [smalt_smem+{flag}], 0;\n\tmov.u32 V, %ntid.x;\n\t@P mbarrier.init.shared::cta.b64 [smalt_smem+{flag}+8], V;\n\t}}", requires [base()], effects [Effects::SYNC | Effects::VOLATILE];
/// The block gives up. Whoever is first in the launch leaves `words`, and at which `place` it was.
give_up GiveUp { reg word: [Slot::B64]; reg words: [Slot::B64]; reg place: [Slot::B64]; number flag: _ }
    "{{\n\t.reg .pred P;\n\t.reg .b64 T;\n\tatom.relaxed.gpu.global.cas.b64 T, [{word}], 0, {words};\n\tsetp.eq.u64 P, T, 0;\n\t@P st.global.b64 [{word}+8], {place};\n\tst.volatile.shared.b32 [smalt_smem+{flag}], 1;\n\t}}", requires [base()], effects [Effects::SYNC | Effects::VOLATILE | Effects::READ_GLOBAL | Effects::WRITE_GLOBAL];
/// The warp ends if its block has given up. It waits for its products here: where ptxas sees several in flight come together, it makes each wait
/// for the one before, in all of the kernel.
leave_if_block_gave_up LeaveIfBlockGaveUp { modifier drain: Drain; number flag: _ }
    "{{\n\t.reg .pred P;\n\t.reg .b32 V;\n\tld.volatile.shared.b32 V, [smalt_smem+{flag}];\n\tsetp.ne.u32 P, V, 0;\n\tvote.sync.any.pred P, P, 0xffffffff;\n\t@!P bra N;{drain}\n\tbra smalt_leaves;\nN:\n\t}}", requires [base()], effects [Effects::SYNC | Effects::CONVERGENT | Effects::VOLATILE];
/// The warp ends, and its block gives up, if any block of the launch has.
leave_if_any_gave_up LeaveIfAnyGaveUp { modifier drain: Drain; reg word: [Slot::B64]; number flag: _ }
    "{{\n\t.reg .pred P;\n\t.reg .b64 T;\n\tld.relaxed.gpu.global.b64 T, [{word}];\n\tsetp.ne.u64 P, T, 0;\n\t@P st.volatile.shared.b32 [smalt_smem+{flag}], 1;\n\tvote.sync.any.pred P, P, 0xffffffff;\n\t@!P bra N;{drain}\n\tbra smalt_leaves;\nN:\n\t}}", requires [base()], effects [Effects::SYNC | Effects::CONVERGENT | Effects::VOLATILE | Effects::READ_GLOBAL];
/// The end of the kernel, where warps that leave come, too, and all wait for all. (`barrier.cluster` alone does not do for that: in a launch
/// without clusters it is barrier 0, where those who leave have arrived.) `ns`: how long a block that has given up waits for loads in flight.
give_up_end GiveUpEnd { number threads: _; modifier registers: LeftRegisters; modifier copies: LeftCopies; modifier ask: MbarrierAsk; modifier peers: EndsWith; number flag: _; number ns: _ }
    ".reg .pred %gave_up;\n\t.reg .b32 %gave_up_word;\n\t.reg .b64 %gave_up_at, %gave_up_now;\n\tbra.uni smalt_ends;\nsmalt_leaves:\n\tbar.warp.sync 0xffffffff;\n\tfence.acq_rel.cta;\n\tbarrier.arrive 0, {threads};\n\tmov.u32 %gave_up_word, %tid.x;\n\tshr.u32 %gave_up_word, %gave_up_word, 7;\n\tadd.u32 %gave_up_word, %gave_up_word, 1;\n\tbarrier.arrive %gave_up_word, 128;\n\tcp.async.wait_all;{registers}\nsmalt_ends:{copies}\n\tmbarrier.arrive.shared::cta.b64 _, [smalt_smem+{flag}+8];\nsmalt_meets:\n\tmbarrier.{ask}.parity.shared::cta.b64 %gave_up, [smalt_smem+{flag}+8], 0;\n\t@!%gave_up bra smalt_meets;{peers}\n\tld.volatile.shared.b32 %gave_up_word, [smalt_smem+{flag}];\n\tsetp.eq.u32 %gave_up, %gave_up_word, 0;\n\t@%gave_up bra smalt_ended;\n\tmov.u64 %gave_up_at, %globaltimer;\nsmalt_lingers:\n\tnanosleep.u32 10000;\n\tmov.u64 %gave_up_now, %globaltimer;\n\tsub.u64 %gave_up_now, %gave_up_now, %gave_up_at;\n\tsetp.lt.u64 %gave_up, %gave_up_now, {ns};\n\t@%gave_up bra smalt_lingers;\nsmalt_ended:", requires [on(asking(*ask))], effects [Effects::SYNC | Effects::CONVERGENT | Effects::VOLATILE];

// ---------------------------------------------------------------- bulk copies
/// GMEM → SMEM, `bytes` contiguous bytes, completing on an mbarrier.
bulk_load BulkLoad { addr dst: [Slot::B32]; addr src: [Slot::B64]; src bytes: [Slot::B32]; addr bar: [Slot::B32] }
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes {dst}, {src}, {bytes}, {bar}", requires [on(Features::BULK_COPIES)], effects [Effects::BULK_LOAD],
    legal [bulk(bytes)];
/// The same to the CTAs of `mask`, at the same offsets.
bulk_load_multicast BulkLoadMulticast { addr dst: [Slot::B32]; addr src: [Slot::B64]; src bytes: [Slot::B32]; addr bar: [Slot::B32]; reg mask: [Slot::B16] }
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster {dst}, {src}, {bytes}, {bar}, {mask}", requires [on(Features::BULK_COPIES.union(Features::CLUSTERS))], effects [Effects::BULK_LOAD],
    legal [bulk(bytes)];
/// SMEM → GMEM in a bulk group.
bulk_store BulkStore { addr dst: [Slot::B64]; addr src: [Slot::B32]; src bytes: [Slot::B32] }
    "cp.async.bulk.global.shared::cta.bulk_group {dst}, {src}, {bytes}", requires [on(Features::BULK_COPIES)], effects [Effects::BULK_STORE],
    legal [bulk(bytes)];
/// The same, combined with what is there, element by element.
bulk_reduce BulkReduce { modifier op: BulkRed; addr dst: [Slot::B64]; addr src: [Slot::B32]; src bytes: [Slot::B32] }
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.{op} {dst}, {src}, {bytes}", requires [on(Features::BULK_COPIES)], effects [Effects::BULK_STORE],
    legal [bulk(bytes)];
/// SMEM → SMEM of a CTA of the cluster.
bulk_copy_cluster BulkCopyCluster { addr dst: [Slot::B32]; addr src: [Slot::B32]; src bytes: [Slot::B32]; addr bar: [Slot::B32] }
    "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes {dst}, {src}, {bytes}, {bar}", requires [on(Features::BULK_COPIES.union(Features::CLUSTERS))], effects [Effects::BULK_LOAD],
    legal [bulk(bytes)];
bulk_prefetch BulkPrefetch { addr src: [Slot::B64]; src bytes: [Slot::B32] }
    "cp.async.bulk.prefetch.L2.global {src}, {bytes}", requires [on(Features::BULK_COPIES)], effects [Effects::SYNC],
    legal [bulk(bytes)];
/// A box of a tensor map, GMEM → SMEM. `map` is the tensor map's generic address, a parameter's or one in global memory;
/// coordinates are elements, minor first.
tensor_load TensorLoad { addr dst: [Slot::B32]; reg map: [Slot::B64]; srcs coords: [Slot::B32]; addr bar: [Slot::B32] }
    "cp.async.bulk.tensor.{$coords}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes {dst}, [{map}, {coords}], {bar}", requires [on(Features::BULK_COPIES)], effects [Effects::BULK_LOAD],
    legal [ensure((1..=5).contains(&coords.len()), "1 to 5 coordinates")];
tensor_load_multicast TensorLoadMulticast { addr dst: [Slot::B32]; reg map: [Slot::B64]; srcs coords: [Slot::B32]; addr bar: [Slot::B32]; reg mask: [Slot::B16] }
    "cp.async.bulk.tensor.{$coords}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster {dst}, [{map}, {coords}], {bar}, {mask}", requires [on(Features::BULK_COPIES.union(Features::CLUSTERS))], effects [Effects::BULK_LOAD],
    legal [ensure((1..=5).contains(&coords.len()), "1 to 5 coordinates")];
tensor_store TensorStore { reg map: [Slot::B64]; srcs coords: [Slot::B32]; addr src: [Slot::B32] }
    "cp.async.bulk.tensor.{$coords}d.global.shared::cta.tile.bulk_group [{map}, {coords}], {src}", requires [on(Features::BULK_COPIES)], effects [Effects::BULK_STORE],
    legal [ensure((1..=5).contains(&coords.len()), "1 to 5 coordinates")];
tensor_reduce TensorReduce { modifier op: TensorRed; reg map: [Slot::B64]; srcs coords: [Slot::B32]; addr src: [Slot::B32] }
    "cp.reduce.async.bulk.tensor.{$coords}d.global.shared::cta{op}.tile.bulk_group [{map}, {coords}], {src}", requires [on(Features::BULK_COPIES)], effects [Effects::BULK_STORE],
    legal [ensure((1..=5).contains(&coords.len()), "1 to 5 coordinates")];
tensor_prefetch TensorPrefetch { reg map: [Slot::B64]; srcs coords: [Slot::B32] }
    "cp.async.bulk.prefetch.tensor.{$coords}d.L2.global.tile [{map}, {coords}]", requires [on(Features::BULK_COPIES)], effects [Effects::SYNC],
    legal [ensure((1..=5).contains(&coords.len()), "1 to 5 coordinates")];
/// Brings a tensor map into the descriptor cache.
prefetch_tensormap PrefetchTensormap { reg map: [Slot::B64] }
    "prefetch.tensormap [{map}]", requires [on(Features::BULK_COPIES)], effects [Effects::SYNC];
/// Sets the address of the tensor that a tensor map in global memory is over. A weak access to all of the map's 128 bytes.
replace_map_address ReplaceMapAddress { addr addr: [Slot::B64]; src new: [Slot::B64] }
    "tensormap.replace.tile.global_address.global.b1024.b64 {addr}, {new}", requires [isa(83).on(Features::REPLACE_MAPS)], effects [Effects::READ_GLOBAL | Effects::WRITE_GLOBAL];
bulk_commit BulkCommit { }
    "cp.async.bulk.commit_group", requires [on(Features::BULK_COPIES)], effects [Effects::SYNC];
/// Waits until at most `n` bulk groups of the executing thread are pending.
bulk_wait BulkWait { modifier what: BulkWait; number n: _ }
    "cp.async.bulk.wait_group{what} {n}", requires [on(Features::BULK_COPIES)], effects [Effects::SYNC],
    legal [ensure((0..=MAX_PENDING_BULK_GROUPS).contains(n), "at most 63 pending groups")];

// ---------------------------------------------------------------- tensor cores
wgmma_fence WgmmaFence { tied acc: [Slot::B32] }
    "wgmma.fence.sync.aligned; // orders {acc}", requires [on(Features::WGMMA)], effects [Effects::SYNC | Effects::CONVERGENT];
wgmma_commit WgmmaCommit { }
    "wgmma.commit_group.sync.aligned", requires [on(Features::WGMMA)], effects [Effects::SYNC | Effects::CONVERGENT];
/// Waits until at most `n` wgmma groups are pending; `acc` lists every accumulator that it may settle.
wgmma_wait WgmmaWait { number n: _; tied acc: [Slot::B32] }
    "wgmma.wait_group.sync.aligned {n}; // settles {acc}", requires [on(Features::WGMMA)], effects [Effects::SYNC | Effects::CONVERGENT],
    legal [ensure((0..=MAX_PENDING_WGMMA_GROUPS).contains(n), "at most 7 pending groups")];
/// D += A·B of m64nNk16, 16-bit operands, both from shared memory. `scale_d` false: D is not read.
wgmma_half_ss WgmmaHalfSs { modifier ty: WgmmaTypes; modifier acc_ty: AccType; number n: _; tied acc: [acc_ty.slot()]; reg a: [Slot::B64]; reg b: [Slot::B64]; reg scale_d: [Slot::PRED]; number neg_a: _; number neg_b: _; number trans_a: _; number trans_b: _ }
    "wgmma.mma_async.sync.aligned.m64n{n}k16.{acc_ty}.{ty} {acc}, {a}, {b}, {scale_d}, {neg_a}, {neg_b}, {trans_a}, {trans_b}", requires [on(Features::WGMMA)], effects [Effects::WGMMA],
    legal [half_acc(*ty, *acc_ty).and(wgmma(*n, *acc_ty, acc, 4)).and(signs(*neg_a, *neg_b))];
/// The same with A from registers.
wgmma_half_rs WgmmaHalfRs { modifier ty: WgmmaTypes; modifier acc_ty: AccType; number n: _; tied acc: [acc_ty.slot()]; srcs a: [Slot::H16X2]; reg b: [Slot::B64]; reg scale_d: [Slot::PRED]; number neg_a: _; number neg_b: _; number trans_b: _ }
    "wgmma.mma_async.sync.aligned.m64n{n}k16.{acc_ty}.{ty} {acc}, {a}, {b}, {scale_d}, {neg_a}, {neg_b}, {trans_b}", requires [on(Features::WGMMA)], effects [Effects::WGMMA],
    legal [half_acc(*ty, *acc_ty).and(wgmma(*n, *acc_ty, acc, a.len())).and(signs(*neg_a, *neg_b))];
/// tf32 (k8) and fp8 (k32).
wgmma_float_ss WgmmaFloatSs { modifier ty: WgmmaTypes; modifier acc_ty: AccType; number n: _; number k: _; tied acc: [acc_ty.slot()]; reg a: [Slot::B64]; reg b: [Slot::B64]; reg scale_d: [Slot::PRED]; number neg_a: _; number neg_b: _ }
    "wgmma.mma_async.sync.aligned.m64n{n}k{k}.{acc_ty}.{ty} {acc}, {a}, {b}, {scale_d}, {neg_a}, {neg_b}", requires [on(Features::WGMMA)], effects [Effects::WGMMA],
    legal [float_acc(*ty, *acc_ty, *k, false).and(wgmma(*n, *acc_ty, acc, 4)).and(signs(*neg_a, *neg_b))];
wgmma_float_rs WgmmaFloatRs { modifier ty: WgmmaTypes; modifier acc_ty: AccType; number n: _; number k: _; tied acc: [acc_ty.slot()]; srcs a: [Slot::FRAGMENT]; reg b: [Slot::B64]; reg scale_d: [Slot::PRED]; number neg_a: _; number neg_b: _ }
    "wgmma.mma_async.sync.aligned.m64n{n}k{k}.{acc_ty}.{ty} {acc}, {a}, {b}, {scale_d}, {neg_a}, {neg_b}", requires [on(Features::WGMMA)], effects [Effects::WGMMA],
    legal [float_acc(*ty, *acc_ty, *k, false).and(wgmma(*n, *acc_ty, acc, a.len())).and(signs(*neg_a, *neg_b))];
/// int8 (k32).
wgmma_int_ss WgmmaIntSs { modifier ty: WgmmaTypes; modifier sat: SatFinite; number n: _; tied acc: [Slot::B32]; reg a: [Slot::B64]; reg b: [Slot::B64]; reg scale_d: [Slot::PRED] }
    "wgmma.mma_async.sync.aligned.m64n{n}k32.s32.{ty}{sat} {acc}, {a}, {b}, {scale_d}", requires [wgmma_int_requires(*ty).on(Features::WGMMA)], effects [Effects::WGMMA],
    legal [bytes_acc(*ty).and(wgmma(*n, AccType::S32, acc, 4))];
wgmma_int_rs WgmmaIntRs { modifier ty: WgmmaTypes; modifier sat: SatFinite; number n: _; tied acc: [Slot::B32]; srcs a: [Slot::FRAGMENT]; reg b: [Slot::B64]; reg scale_d: [Slot::PRED] }
    "wgmma.mma_async.sync.aligned.m64n{n}k32.s32.{ty}{sat} {acc}, {a}, {b}, {scale_d}", requires [wgmma_int_requires(*ty).on(Features::WGMMA)], effects [Effects::WGMMA],
    legal [bytes_acc(*ty).and(wgmma(*n, AccType::S32, acc, a.len()))];
/// Sparse products: of every four neighbouring elements of A's rows along K two are there, of tf32 one of two; which, nibbles of `meta` say in the
/// lanes that `sel` names (docs/inline-ptx.md). k32 of 16 bits.
wgmma_sparse_half_ss WgmmaSparseHalfSs { modifier ty: WgmmaTypes; modifier acc_ty: AccType; number n: _; tied acc: [acc_ty.slot()]; reg a: [Slot::B64]; reg b: [Slot::B64]; reg meta: [Slot::B32]; number sel: _; reg scale_d: [Slot::PRED]; number neg_a: _; number neg_b: _; number trans_a: _; number trans_b: _ }
    "wgmma.mma_async.sp.sync.aligned.m64n{n}k32.{acc_ty}.{ty} {acc}, {a}, {b}, {meta}, {sel}, {scale_d}, {neg_a}, {neg_b}, {trans_a}, {trans_b}", requires [isa(82).on(Features::WGMMA)], effects [Effects::WGMMA],
    legal [half_acc(*ty, *acc_ty).and(wgmma(*n, *acc_ty, acc, 4)).and(signs(*neg_a, *neg_b)).and(selector(*ty, *sel))];
wgmma_sparse_half_rs WgmmaSparseHalfRs { modifier ty: WgmmaTypes; modifier acc_ty: AccType; number n: _; tied acc: [acc_ty.slot()]; srcs a: [Slot::H16X2]; reg b: [Slot::B64]; reg meta: [Slot::B32]; number sel: _; reg scale_d: [Slot::PRED]; number neg_a: _; number neg_b: _; number trans_b: _ }
    "wgmma.mma_async.sp.sync.aligned.m64n{n}k32.{acc_ty}.{ty} {acc}, {a}, {b}, {meta}, {sel}, {scale_d}, {neg_a}, {neg_b}, {trans_b}", requires [isa(82).on(Features::WGMMA)], effects [Effects::WGMMA],
    legal [half_acc(*ty, *acc_ty).and(wgmma(*n, *acc_ty, acc, a.len())).and(signs(*neg_a, *neg_b)).and(selector(*ty, *sel))];
/// tf32 (k16) and fp8 (k64).
wgmma_sparse_float_ss WgmmaSparseFloatSs { modifier ty: WgmmaTypes; modifier acc_ty: AccType; number n: _; number k: _; tied acc: [acc_ty.slot()]; reg a: [Slot::B64]; reg b: [Slot::B64]; reg meta: [Slot::B32]; number sel: _; reg scale_d: [Slot::PRED]; number neg_a: _; number neg_b: _ }
    "wgmma.mma_async.sp.sync.aligned.m64n{n}k{k}.{acc_ty}.{ty} {acc}, {a}, {b}, {meta}, {sel}, {scale_d}, {neg_a}, {neg_b}", requires [isa(82).on(Features::WGMMA)], effects [Effects::WGMMA],
    legal [float_acc(*ty, *acc_ty, *k, true).and(wgmma(*n, *acc_ty, acc, 4)).and(signs(*neg_a, *neg_b)).and(selector(*ty, *sel))];
wgmma_sparse_float_rs WgmmaSparseFloatRs { modifier ty: WgmmaTypes; modifier acc_ty: AccType; number n: _; number k: _; tied acc: [acc_ty.slot()]; srcs a: [Slot::FRAGMENT]; reg b: [Slot::B64]; reg meta: [Slot::B32]; number sel: _; reg scale_d: [Slot::PRED]; number neg_a: _; number neg_b: _ }
    "wgmma.mma_async.sp.sync.aligned.m64n{n}k{k}.{acc_ty}.{ty} {acc}, {a}, {b}, {meta}, {sel}, {scale_d}, {neg_a}, {neg_b}", requires [isa(82).on(Features::WGMMA)], effects [Effects::WGMMA],
    legal [float_acc(*ty, *acc_ty, *k, true).and(wgmma(*n, *acc_ty, acc, a.len())).and(signs(*neg_a, *neg_b)).and(selector(*ty, *sel))];
/// int8 (k64).
wgmma_sparse_int_ss WgmmaSparseIntSs { modifier ty: WgmmaTypes; modifier sat: SatFinite; number n: _; tied acc: [Slot::B32]; reg a: [Slot::B64]; reg b: [Slot::B64]; reg meta: [Slot::B32]; number sel: _; reg scale_d: [Slot::PRED] }
    "wgmma.mma_async.sp.sync.aligned.m64n{n}k64.s32.{ty}{sat} {acc}, {a}, {b}, {meta}, {sel}, {scale_d}", requires [wgmma_sparse_int_requires(*ty).on(Features::WGMMA)], effects [Effects::WGMMA],
    legal [bytes_acc(*ty).and(wgmma(*n, AccType::S32, acc, 4)).and(selector(*ty, *sel))];
wgmma_sparse_int_rs WgmmaSparseIntRs { modifier ty: WgmmaTypes; modifier sat: SatFinite; number n: _; tied acc: [Slot::B32]; srcs a: [Slot::FRAGMENT]; reg b: [Slot::B64]; reg meta: [Slot::B32]; number sel: _; reg scale_d: [Slot::PRED] }
    "wgmma.mma_async.sp.sync.aligned.m64n{n}k64.s32.{ty}{sat} {acc}, {a}, {b}, {meta}, {sel}, {scale_d}", requires [wgmma_sparse_int_requires(*ty).on(Features::WGMMA)], effects [Effects::WGMMA],
    legal [bytes_acc(*ty).and(wgmma(*n, AccType::S32, acc, a.len())).and(selector(*ty, *sel))];
// ---------------------------------------------------------------- tensor memory
/// Columns of tensor memory, of both CTAs of a pair at the same place; the address is written to shared memory. Blocks until there is room.
tmem_alloc TmemAlloc { modifier group: CtaGroup; addr dst: [Slot::B32]; src columns: [Slot::B32] }
    "tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 {dst}, {columns}", requires [tcgen05()], effects [Effects::WRITE_SHARED | Effects::SYNC | Effects::CONVERGENT],
    legal [tmem_columns(columns)];
tmem_dealloc TmemDealloc { modifier group: CtaGroup; reg addr: [Slot::B32]; src columns: [Slot::B32] }
    "tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 {addr}, {columns}", requires [tcgen05()], effects [Effects::SYNC | Effects::CONVERGENT],
    legal [tmem_columns(columns)];
/// The CTA allocates no more.
tmem_relinquish TmemRelinquish { modifier group: CtaGroup }
    "tcgen05.relinquish_alloc_permit.cta_group::{group}.sync.aligned", requires [tcgen05()], effects [Effects::SYNC | Effects::CONVERGENT];
/// Words of the 32 lanes of tensor memory that belong to the warp (of its number in the warpgroup), into registers. `times` as wide as the shape.
tmem_load TmemLoad { modifier shape: TmemShape; number times: _; modifier pack: TmemPack; defs d: [Slot::B32]; addr src: [Slot::B32] }
    "tcgen05.ld.sync.aligned.{shape}.x{times}{pack}.b32 {d}, {src}", requires [tcgen05()], effects [Effects::SYNC | Effects::CONVERGENT],
    legal [tmem_words(*shape, *times, d.len())];
tmem_store TmemStore { modifier shape: TmemShape; number times: _; modifier unpack: TmemUnpack; addr dst: [Slot::B32]; srcs a: [Slot::FRAGMENT] }
    "tcgen05.st.sync.aligned.{shape}.x{times}{unpack}.b32 {dst}, {a}", requires [tcgen05()], effects [Effects::SYNC | Effects::CONVERGENT],
    legal [tmem_words(*shape, *times, a.len())];
/// Waits for the loads, or the stores, of tensor memory by the executing thread.
tmem_wait TmemWait { modifier what: TmemAccess }
    "tcgen05.wait::{what}.sync.aligned", requires [tcgen05()], effects [Effects::SYNC | Effects::CONVERGENT];
/// Orders `tcgen05` with what synchronises threads, before it or behind it.
tcgen05_fence Tcgen05Fence { modifier side: ThreadSync }
    "tcgen05.fence::{side}_thread_sync", requires [tcgen05()], effects [Effects::SYNC];
/// Shared memory, by a matrix descriptor, to tensor memory. Asynchronous, as products are.
tmem_copy TmemCopy { modifier group: CtaGroup; modifier shape: TmemCopyShape; addr dst: [Slot::B32]; reg src: [Slot::B64] }
    "tcgen05.cp.cta_group::{group}.{shape} {dst}, {src}", requires [tcgen05()], effects [Effects::READ_SHARED | Effects::ASYNC_PROXY | Effects::SYNC];
/// Arrives once at a barrier when what the executing thread has issued so far (products, copies) is complete.
tcgen05_commit Tcgen05Commit { modifier group: CtaGroup; addr bar: [Slot::B32] }
    "tcgen05.commit.cta_group::{group}.mbarrier::arrive::one.shared::cluster.b64 {bar}", requires [tcgen05()], effects [Effects::SYNC];
/// The same, at this place in each CTA of the mask.
tcgen05_commit_multicast Tcgen05CommitMulticast { modifier group: CtaGroup; addr bar: [Slot::B32]; reg mask: [Slot::B16] }
    "tcgen05.commit.cta_group::{group}.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 {bar}, {mask}", requires [tcgen05()], effects [Effects::SYNC];
/// D = A·B, or D += A·B if `accumulate`. D is in tensor memory, B in shared memory, A in shared memory or (`_ts`) in tensor memory. `idesc`: the
/// instruction descriptor: types, M, N, which operands are transposed. Issued by one thread.
tcgen05_mma_ss Tcgen05MmaSs { modifier group: CtaGroup; modifier kind: Tcgen05Kind; addr d: [Slot::B32]; reg a: [Slot::B64]; reg b: [Slot::B64]; src idesc: [Slot::B32]; reg accumulate: [Slot::PRED] }
    "tcgen05.mma.cta_group::{group}.kind::{kind} {d}, {a}, {b}, {idesc}, {accumulate}", requires [tcgen05_mma(*kind)], effects [Effects::TCGEN05];
tcgen05_mma_ts Tcgen05MmaTs { modifier group: CtaGroup; modifier kind: Tcgen05Kind; addr d: [Slot::B32]; addr a: [Slot::B32]; reg b: [Slot::B64]; src idesc: [Slot::B32]; reg accumulate: [Slot::PRED] }
    "tcgen05.mma.cta_group::{group}.kind::{kind} {d}, {a}, {b}, {idesc}, {accumulate}", requires [tcgen05_mma(*kind)], effects [Effects::TCGEN05];

// ---------------------------------------------------------------- tensor cores, by warps
/// The warp's matrix multiply-add, `d = a·b + c`. A row of A has 16 or 32 bytes; of eight rows, of integers, 16.
mma_sync MmaSync { modifier shape: MmaShape; modifier sat: SatFinite; modifier ty: MmaTypes; defs d: [Slot::FRAGMENT]; srcs a: [Slot::FRAGMENT]; srcs b: [Slot::FRAGMENT]; srcs c: [Slot::FRAGMENT] }
    "mma.sync.aligned.{shape}.row.col{sat}.{ty} {d}, {a}, {b}, {c}", requires [mma_requires(*shape, *ty)], effects [Effects::CONVERGENT],
    legal [ensure(dense(*shape, *ty), "a depth of 16 or 32 bytes; eight rows of integers of 16 bytes").and(saturates(*sat, *ty)).and(fragments(shape.fragments(*ty), [a.len(), b.len(), c.len(), d.len()]))];
/// The same of single bits: `op` joins those of A and B, and what is added is how many are ones.
mma_bits MmaBits { modifier shape: MmaBitShape; modifier op: BitProduct; defs d: [Slot::FRAGMENT]; srcs a: [Slot::FRAGMENT]; srcs b: [Slot::FRAGMENT]; srcs c: [Slot::FRAGMENT] }
    "mma.sync.aligned.{shape}.row.col.s32.b1.b1.s32{op}.popc {d}, {a}, {b}, {c}", requires [base()], effects [Effects::CONVERGENT],
    legal [fragments(shape.fragments(), [a.len(), b.len(), c.len(), d.len()])];
/// The same of doubles.
mma_f64 MmaF64 { modifier shape: MmaF64Shape; modifier rnd: MmaF64Round; defs d: [Slot::WIDE]; srcs a: [Slot::WIDE]; srcs b: [Slot::WIDE]; srcs c: [Slot::WIDE] }
    "mma.sync.aligned.{shape}.row.col.f64.f64.f64.f64{rnd} {d}, {a}, {b}, {c}", requires [base().on_if(!matches!(shape, MmaF64Shape::M8N8K4), Features::F64_PRODUCTS)], effects [Effects::CONVERGENT],
    legal [fragments(shape.fragments(), [a.len(), b.len(), c.len(), d.len()])];
/// Four products of f16, one of each group of eight lanes: four neighbours, and the four that are 16 lanes behind them.
mma_quads MmaQuads { modifier a_major: MmaMajor; modifier b_major: MmaMajor; modifier ty: MmaQuadTypes; defs d: [Slot::FRAGMENT]; srcs a: [Slot::FRAGMENT]; srcs b: [Slot::FRAGMENT]; srcs c: [Slot::FRAGMENT] }
    "mma.sync.aligned.m8n8k4.{a_major}.{b_major}.{ty} {d}, {a}, {b}, {c}", requires [base()], effects [Effects::CONVERGENT],
    legal [ensure([a.len(), b.len(), c.len(), d.len()] == [2, 2, ty.accumulators().0, ty.accumulators().1], "two registers of A and of B; 8 of C or D of f32, 4 of f16")];
/// `d = a·b + c` where A has two of each four elements (4-bit ones: two of four pairs; tf32: one of two), and `meta` says which; `selector`
/// says which lanes of each four have it. A row of A with what is left out has 32 or 64 bytes (fp8: 64, and accumulators are f32).
mma_sparse MmaSparse { modifier order: MetadataOrder; modifier shape: MmaShape; modifier sat: SatFinite; modifier ty: MmaTypes; defs d: [Slot::FRAGMENT]; srcs a: [Slot::FRAGMENT]; srcs b: [Slot::FRAGMENT]; srcs c: [Slot::FRAGMENT]; reg meta: [Slot::B32]; number selector: _ }
    "mma.{order}.sync.aligned.{shape}.row.col{sat}.{ty} {d}, {a}, {b}, {c}, {meta}, {selector}", requires [mma_sparse_requires(*order, *ty)], effects [Effects::CONVERGENT],
    legal [ensure(sparse(*shape, *ty), "16 rows, and a depth of 32 or 64 bytes (fp8: 64, and f32 accumulators)").and(saturates(*sat, *ty)).and(fragments(shape.sparse_fragments(*ty), [a.len(), b.len(), c.len(), d.len()])).and(place(*selector, shape.selectors(*ty)))];
    } };
}
