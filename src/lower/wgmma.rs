//! Tensor cores: accumulators and wgmma.
//!
//! An accumulator is the 32-bit registers of its fragments, in the slots of the WGMMA layout: 64 rows after 64 rows, eight columns
//! after eight columns, so that a 64×n instruction's fragment is a run of `n / 2` registers. One kernel op is one fence, the instructions
//! for all blocks and steps of K, and one commit.
use super::cx::LowerCx;
use super::emit::{S, V};
use super::parked;
use super::value::{AccRegs, ArrayRegs};
use super::view;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_ir::*;
use crate::layout::signature;
use crate::layout::smem_layout::SmemView;
use crate::layout::wgmma::{Major, Operand};
use crate::plan::parked::{AT_ONCE, Home, adds_to};
use crate::ptx::inst::Inst;
use crate::ptx::legal::MAX_PENDING_WGMMA_GROUPS;
use crate::ptx::modifier::*;
use crate::ptx::operand::{Class, Src, Srcs, Tied};
use crate::ptx::ssa::Value as PtxValue;

pub fn lower_acc_init(cx: &mut LowerCx, op: Op, init: Option<Value>) -> Result<()> {
    let result = cx.result(op);
    let layout = cx.layout_of(result)?;
    let dtype = cx.ty(result).dtype();
    let words = layout.words(dtype.bits());
    let regs: Vec<V> = match init {
        None => (0..words).map(|_| cx.b.constant(Class::B32, 0)).collect(),
        Some(v) => {
            let array = cx.array_in(v, &layout)?;
            // The array may live on, and splats share registers: an accumulator's are its own.
            array.regs.iter().map(|r| cx.b.copy(*r, Class::B32)).collect()
        }
    };
    let home = cx.home(result);
    let mut acc = AccRegs {
        dtype,
        layout,
        regs,
        home,
    };
    if let Some(home) = home {
        let (all, kept) = (acc.words(acc.columns()), acc.words(acc.kept()));
        let blocks: Vec<Vec<V>> = acc.regs.chunks(all).map(<[V]>::to_vec).collect();
        acc.regs.clear();
        for (i, block) in blocks.iter().enumerate() {
            acc.regs.extend(&block[..kept]);
            parked::store(cx, home, i * acc.parked(), &parked::operands(&block[kept..]))?;
        }
    }
    cx.bind(result, super::value::Lowered::Acc(acc));
    Ok(())
}

fn types(a: DType, b: DType) -> Option<WgmmaTypes> {
    use DType::*;
    Some(match (a, b) {
        (F16, F16) => WgmmaTypes::F16,
        (BF16, BF16) => WgmmaTypes::BF16,
        (F32, F32) => WgmmaTypes::TF32,
        (F8E4M3FN, F8E4M3FN) => WgmmaTypes::E4M3E4M3,
        (F8E4M3FN, F8E5M2) => WgmmaTypes::E4M3E5M2,
        (F8E5M2, F8E4M3FN) => WgmmaTypes::E5M2E4M3,
        (F8E5M2, F8E5M2) => WgmmaTypes::E5M2E5M2,
        (I8, I8) => WgmmaTypes::S8S8,
        (I8, U8) => WgmmaTypes::S8U8,
        (U8, I8) => WgmmaTypes::U8S8,
        (U8, U8) => WgmmaTypes::U8U8,
        _ => return None,
    })
}

/// The descriptor of a view's start: constants, and the address of the start.
fn descriptor(cx: &mut LowerCx, r: &RefUse, (view, operand): &(SmemView, Operand)) -> Result<S> {
    let start = view::smem_start(cx, r, view)?;
    Ok(matrix_descriptor(cx, start, operand.descriptor()))
}

/// The descriptor of a matrix in shared memory: constants, and where it starts.
pub fn matrix_descriptor(cx: &mut LowerCx, start: S, constant: u64) -> S {
    // The address field counts 16-byte units of an 18-bit address.
    let field = cx.b.shr(ShiftType::U32, start, Src::u32(4));
    let field = cx.b.and(LogicType::B32, field, Src::u32(0x3fff));
    let (low, high) = (constant as u32, (constant >> 32) as u32);
    let low = cx.b.or(LogicType::B32, field, Src::u32(low));
    let low = cx.b.r32(low);
    let high = cx.b.constant(Class::B32, u64::from(high));
    let a: Srcs<V> = [Src::Reg(low), Src::Reg(high)].into_iter().collect();
    cx.b.emit(Inst::PackB64 { d: PtxValue::NEW, a })
}

/// A descriptor `bytes` further on.
pub fn advance(cx: &mut LowerCx, descriptor: S, bytes: u32) -> V {
    // The field does not overflow: shared memory ends below 2^18.
    let at = cx.b.add(IntType::S64, descriptor, Src::Imm(u64::from(bytes >> 4)));
    cx.b.r64(at)
}

enum Left<'a> {
    Smem { operand: &'a Operand, descriptor: S },
    Registers(ArrayRegs),
}

impl Left<'_> {
    /// The different constants among the registers, each in one of its own.
    fn constants(&self, cx: &mut LowerCx) -> Vec<(u64, V)> {
        let mut out: Vec<(u64, V)> = vec![];
        if let Left::Registers(array) = self {
            for bits in array
                .regs
                .iter()
                .filter_map(|r| cx.b.as_constant(*r))
                .collect::<Vec<u64>>()
            {
                if out.iter().all(|(known, _)| *known != bits) {
                    out.push((bits, cx.b.constant(Class::B32, bits)));
                }
            }
        }
        out
    }

    /// The constants are in these registers now.
    fn rename(&mut self, cx: &LowerCx, constants: &[(u64, V)], fenced: &[V]) {
        let Left::Registers(array) = self else { return };
        for r in &mut array.regs {
            let bits = cx.b.as_constant(*r);
            if let Some(k) = constants.iter().position(|(known, _)| bits == Some(*known)) {
                *r = Src::Reg(fenced[k]);
            }
        }
    }
}

pub fn lower_wgmma(cx: &mut LowerCx, op: Op, acc: &AccUse, a: &MmaOperand, b: &RefUse) -> Result<()> {
    if cx.joined.remove(&op) {
        return Ok(());
    }
    let Some(acc_value) = acc.value() else {
        return Err(Error::internal("wgmma on an accumulator that is still a reference"));
    };
    let mut result = cx.result(op);
    let acc_ty = cx.ty(acc_value).clone();
    let &[rows, columns] = acc_ty.shape() else {
        return Err(Error::internal("an accumulator that is no matrix"));
    };
    let of = cx.acc(acc_value)?;
    let inst_n = cx.operands(op)?.n;
    let first = product(cx, op, of.dtype, a, b)?;
    let regs = match of.home {
        None => {
            // What of it the product is added to.
            let (at, size) = match acc {
                AccUse::Part { at, shape, .. } => (*at, *shape),
                AccUse::Ref(_) | AccUse::Value(_) => ([0, 0], [rows, columns]),
            };
            whole(cx, first, &of, [at[0] / 64, at[1]], [size[0] / 64, size[1]], inst_n)?
        }
        Some(home) => {
            let mut products = vec![first];
            let kernel = cx.kernel;
            for &next in cx.following {
                let OpKind::Wgmma { a, b, .. } = &kernel.ops[next].kind else {
                    break;
                };
                if !adds_to(kernel, next, result) || cx.operands(next)?.n != inst_n {
                    break;
                }
                products.push(product(cx, next, of.dtype, a, b)?);
                cx.joined.insert(next);
                result = cx.result(next);
            }
            in_pieces(cx, products, &of, home, inst_n)?
        }
    };
    cx.bind(result, super::value::Lowered::Acc(AccRegs { regs, ..of }));
    Ok(())
}

/// What a wgmma multiplies, as its instructions find it.
fn product<'a>(cx: &mut LowerCx<'a>, op: Op, acc: DType, a: &MmaOperand, b: &RefUse) -> Result<Product<'a>> {
    let b_dtype = b
        .dtype()
        .ok_or_else(|| Error::internal("wgmma on something that is no data"))?;
    let (a_dtype, a_shape): (DType, Vec<u64>) = match a {
        MmaOperand::Smem(r) => (r.dtype().unwrap_or(b_dtype), r.shape.to_vec()),
        MmaOperand::Registers(v) => (cx.ty(*v).dtype(), cx.ty(*v).shape().to_vec()),
    };
    let &[_, k] = a_shape.as_slice() else {
        return Err(Error::internal("a left operand that is no matrix"));
    };
    let illegal = || Error::internal("a wgmma of types that are not legal");
    let ty = types(a_dtype, b_dtype).ok_or_else(illegal)?;
    let acc_kind = match acc {
        DType::I32 => AccType::S32,
        DType::F16 => AccType::F16,
        DType::F32 => AccType::F32,
        _ => return Err(illegal()),
    };
    let k_step = legality::tensor_core::wgmma_k(b_dtype);
    view::check_indices(cx, b, Src::Imm(1))?;
    let planned = cx.operands(op)?;
    let right = &planned.right.1;
    let right_start = descriptor(cx, b, &planned.right)?;
    let left = match a {
        MmaOperand::Smem(r) => {
            view::check_indices(cx, r, Src::Imm(1))?;
            let left = planned.left.as_ref().ok_or_else(|| cx.unexpected(op))?;
            let descriptor = descriptor(cx, r, left)?;
            Left::Smem {
                operand: &left.1,
                descriptor,
            }
        }
        MmaOperand::Registers(v) => {
            let layout = signature::wgmma_left(cx.kernel, *v)?;
            Left::Registers(cx.array_in(*v, &layout)?)
        }
    };
    Ok(Product {
        left,
        right,
        right_start,
        ty,
        acc_kind,
        k,
        k_step,
        scale_d: cx.b.value(Src::Imm(1), Class::Pred),
    })
}

/// All instructions behind one fence, for blocks of 64 rows and columns `at` of the accumulator; its registers then.
fn whole(
    cx: &mut LowerCx,
    product: Product,
    acc: &AccRegs,
    at: [u64; 2],
    size: [u64; 2],
    inst_n: u64,
) -> Result<Vec<V>> {
    let per_block = acc.words(inst_n);
    let mut products = [product];
    let mut regs = fence(cx, &mut products, &acc.regs);
    for mb in 0..size[0] {
        for nb in 0..size[1] / inst_n {
            let first = (at[0] + mb) as usize * acc.words(acc.columns()) + acc.words(at[1]) + nb as usize * per_block;
            let out = products[0].add(cx, mb, [nb * inst_n, inst_n], &regs[first..first + per_block])?;
            regs[first..first + per_block].copy_from_slice(&out);
        }
    }
    cx.b.inst(Inst::WgmmaCommit {});
    Ok(regs)
}

/// Products that are complete when it returns: what is in registers with the first parked piece, and then one piece after the other.
fn in_pieces(cx: &mut LowerCx, mut products: Vec<Product>, acc: &AccRegs, home: Home, inst_n: u64) -> Result<Vec<V>> {
    let add = |cx: &mut LowerCx, products: &[Product], mb, piece, fragment: &[V]| {
        let mut fragment = fragment.to_vec();
        for product in products {
            fragment = product.add(cx, mb, piece, &fragment)?;
        }
        Ok::<_, Error>(fragment)
    };
    let blocks = acc.rows() / 64;
    let of_blocks = |columns: std::ops::Range<u64>, most: u64| {
        let pieces = pieces(columns, most, inst_n);
        (0..blocks).flat_map(move |mb| pieces.clone().into_iter().map(move |piece| (mb, piece)))
    };
    let kept = acc.words(acc.kept());
    let mut regs = acc.regs.clone();
    let mut is_first = true;
    for (mb, piece) in of_blocks(acc.kept()..acc.columns(), AT_ONCE) {
        let at = mb as usize * acc.parked() + acc.words(piece[0]) - kept;
        let mut words = parked::load(cx, home, at, acc.words(piece[1]))?;
        let in_registers = if std::mem::take(&mut is_first) {
            let n = words.len();
            words.extend(&regs);
            words = fence(cx, &mut products, &words);
            regs = words.split_off(n);
            for (mb, piece) in of_blocks(0..acc.kept(), inst_n) {
                let first = mb as usize * kept + acc.words(piece[0]);
                let fragment = first..first + acc.words(piece[1]);
                let out = add(cx, &products, mb, piece, &regs[fragment.clone()])?;
                regs[fragment].copy_from_slice(&out);
            }
            regs.len()
        } else {
            words = fence(cx, &mut products, &words);
            0
        };
        words = add(cx, &products, mb, piece, &words)?;
        cx.b.inst(Inst::WgmmaCommit {});
        let n = words.len();
        words.extend(&regs[..in_registers]);
        let output = vec![PtxValue::NEW; words.len()];
        let acc = Tied { input: words, output };
        words = cx.b.inst(Inst::WgmmaWait { n: 0, acc }).to_vec();
        regs.splice(..in_registers, words.split_off(n));
        parked::store(cx, home, at, &parked::operands(&words))?;
    }
    Ok(regs)
}

/// Runs of columns, start and number, that are multiples of their number; none lies across instructions of `inst_n` columns.
fn pieces(columns: std::ops::Range<u64>, most: u64, inst_n: u64) -> Vec<[u64; 2]> {
    let (mut at, mut out) = (columns.start, vec![]);
    while at < columns.end {
        let room = most.min(columns.end - at).min(inst_n - at % inst_n);
        let mut n = 1 << room.ilog2();
        while at % n != 0 {
            n /= 2;
        }
        out.push([at, n]);
        at += n;
    }
    out
}

/// What is multiplied.
struct Product<'a> {
    left: Left<'a>,
    right: &'a Operand,
    right_start: S,
    ty: WgmmaTypes,
    acc_kind: AccType,
    k: u64,
    k_step: u64,
    scale_d: V,
}

/// Accumulators as the products that follow find them. Everything that fills registers comes before the fence: the left operands'
/// constants, which are made anew where they are read, too.
fn fence(cx: &mut LowerCx, products: &mut [Product], accs: &[V]) -> Vec<V> {
    let constants: Vec<Vec<(u64, V)>> = products.iter().map(|product| product.left.constants(cx)).collect();
    let mut input = accs.to_vec();
    input.extend(constants.iter().flatten().map(|(_, r)| *r));
    let output = vec![PtxValue::NEW; input.len()];
    let acc = Tied { input, output };
    let mut regs = cx.b.inst(Inst::WgmmaFence { acc }).to_vec();
    let mut fenced = regs.split_off(accs.len());
    for (product, constants) in products.iter_mut().zip(constants) {
        let others = fenced.split_off(constants.len());
        product.left.rename(cx, &constants, &fenced);
        fenced = others;
    }
    regs
}

impl Product<'_> {
    /// The instructions for a fragment: 64 rows, `columns` of the right operand, and all of K.
    fn add(&self, cx: &mut LowerCx, mb: u64, [column, columns]: [u64; 2], fragment: &[V]) -> Result<Vec<V>> {
        let &Product {
            ref left,
            right,
            right_start,
            ty,
            acc_kind,
            k,
            k_step,
            scale_d,
        } = self;
        let mut fragment = fragment.to_vec();
        for ks in 0..k / k_step {
            let output = vec![PtxValue::NEW; fragment.len()];
            let acc = Tied {
                input: fragment,
                output,
            };
            let b = advance(cx, right_start, right.offset(column, ks * k_step));
            let trans_b = i64::from(right.major == Major::Mn);
            let n = columns as i64;
            let inst = match left {
                Left::Smem { operand, descriptor } => {
                    let a = advance(cx, *descriptor, operand.offset(mb * 64, ks * k_step));
                    let trans_a = i64::from(operand.major == Major::Mn);
                    match ty {
                        WgmmaTypes::F16 | WgmmaTypes::BF16 => {
                            Inst::wgmma_half_ss(ty, acc_kind, n, acc, a, b, scale_d, 1, 1, trans_a, trans_b)
                        }
                        WgmmaTypes::TF32
                        | WgmmaTypes::E4M3E4M3
                        | WgmmaTypes::E4M3E5M2
                        | WgmmaTypes::E5M2E4M3
                        | WgmmaTypes::E5M2E5M2 => {
                            Inst::wgmma_float_ss(ty, acc_kind, n, k_step as i64, acc, a, b, scale_d, 1, 1)
                        }
                        WgmmaTypes::S8S8 | WgmmaTypes::S8U8 | WgmmaTypes::U8S8 | WgmmaTypes::U8U8 => {
                            Inst::wgmma_int_ss(ty, SatFinite::No, n, acc, a, b, scale_d)
                        }
                    }
                }
                Left::Registers(array) => {
                    let a = left_fragment(cx, array, mb as usize, (k / k_step) as usize, ks as usize)?;
                    match ty {
                        WgmmaTypes::F16 | WgmmaTypes::BF16 => {
                            Inst::wgmma_half_rs(ty, acc_kind, n, acc, a, b, scale_d, 1, 1, trans_b)
                        }
                        WgmmaTypes::TF32
                        | WgmmaTypes::E4M3E4M3
                        | WgmmaTypes::E4M3E5M2
                        | WgmmaTypes::E5M2E4M3
                        | WgmmaTypes::E5M2E5M2 => {
                            Inst::wgmma_float_rs(ty, acc_kind, n, k_step as i64, acc, a, b, scale_d, 1, 1)
                        }
                        WgmmaTypes::S8S8 | WgmmaTypes::S8U8 | WgmmaTypes::U8S8 | WgmmaTypes::U8U8 => {
                            Inst::wgmma_int_rs(ty, SatFinite::No, n, acc, a, b, scale_d)
                        }
                    }
                }
            };
            fragment = cx.b.inst(inst).to_vec();
        }
        Ok(fragment)
    }
}

/// The four registers of a 64×32-byte step of a left operand in registers: in the WGMMA layout (its forms for bytes and 32 bits) they are the
/// words of two neighbouring column tiles.
fn left_fragment(cx: &mut LowerCx, a: &ArrayRegs, mb: usize, steps: usize, ks: usize) -> Result<Srcs<V>> {
    let words_per_block = a.regs.len() / (cx_rows(a) / 64);
    let per_step = words_per_block / steps;
    if per_step != 4 {
        return Err(Error::internal(format!("a left operand with {per_step} registers a step")).at(cx.b.loc()));
    }
    let at = mb * words_per_block + ks * 4;
    Ok(a.regs[at..at + 4].iter().copied().collect())
}

fn cx_rows(a: &ArrayRegs) -> usize {
    a.layout.shape()[0] as usize
}

pub fn lower_wgmma_wait(cx: &mut LowerCx, op: Op, n: u32, accs: &[Value]) -> Result<()> {
    let kernel = cx.kernel;
    let mut input = vec![];
    let mut parts = vec![];
    for v in accs {
        let acc = cx.acc(*v)?;
        input.extend(acc.regs.iter().copied());
        parts.push(acc);
    }
    let output = vec![PtxValue::NEW; input.len()];
    let out = cx.b.inst(Inst::WgmmaWait {
        // Fewer pending ones are right too.
        n: i64::from(n).min(MAX_PENDING_WGMMA_GROUPS),
        acc: Tied { input, output },
    });
    let mut at = 0;
    for (i, acc) in parts.into_iter().enumerate() {
        let regs = out[at..at + acc.regs.len()].to_vec();
        at += acc.regs.len();
        cx.bind(
            kernel.ops[op].results[i],
            super::value::Lowered::Acc(AccRegs { regs, ..acc }),
        );
    }
    Ok(())
}

pub fn lower_acc_read(cx: &mut LowerCx, op: Op, acc: &AccUse) -> Result<()> {
    let AccUse::Value(v) = acc else {
        return Err(Error::internal("a read of an accumulator that is still a reference"));
    };
    let acc = cx.acc(*v)?;
    let results = cx.kernel.ops[op].results.clone();
    let regs = match acc.home {
        None => parked::operands(&acc.regs),
        Some(home) => {
            let kept = acc.words(acc.kept());
            let mut regs = vec![];
            for i in 0..(acc.rows() / 64) as usize {
                regs.extend(parked::operands(&acc.regs[i * kept..(i + 1) * kept]));
                regs.extend(parked::operands(&parked::load(
                    cx,
                    home,
                    i * acc.parked(),
                    acc.parked(),
                )?));
            }
            regs
        }
    };
    cx.bind_array(
        results[0],
        ArrayRegs {
            dtype: acc.dtype,
            layout: acc.layout.clone(),
            regs,
        },
    );
    if let Some(r) = results.get(1) {
        cx.bind(*r, super::value::Lowered::Acc(acc));
    }
    Ok(())
}
