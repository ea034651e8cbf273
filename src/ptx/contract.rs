//! `a·b + c` in one rounding: an add or sub whose operand is a product that nothing else uses becomes `fma`.
//!
//! Not in what users wrote as PTX, whose roundings are theirs.
//!
//! What stock's LLVM does with contraction allowed, for every float type. Off with `fp_contract=False`, when f32
//! arithmetic equals NumPy bit for bit.
use super::inst::Inst;
use super::modifier::*;
use super::operand::*;
use super::ssa::*;
use cranelift_entity::SecondaryMap;

pub fn run(ssa: &mut Ssa) {
    let mut uses: SecondaryMap<Value, u32> = SecondaryMap::with_capacity(ssa.values.len());
    let mut products: SecondaryMap<Value, Option<Product>> = SecondaryMap::with_capacity(ssa.values.len());
    for region in ssa.regions.values() {
        for op in &region.ops {
            match &op.kind {
                OpKind::Inst { guard, inst } => {
                    inst.for_each_use(|v, _| uses[v] += 1);
                    if let Some((p, _)) = guard {
                        uses[*p] += 1;
                    }
                    if op.rounding == Rounding::ByTheKernel
                        && let Inst::MulFloat {
                            rnd: Round::Rn,
                            ftz,
                            ty,
                            d,
                            a,
                            b,
                        } = inst
                    {
                        products[*d] = Some(Product {
                            ftz: *ftz,
                            ty: *ty,
                            a: *a,
                            b: *b,
                        });
                    }
                }
                OpKind::If { cond, .. } => uses[*cond] += 1,
                OpKind::Loop { inits, .. } => inits.iter().for_each(|v| uses[*v] += 1),
            }
        }
        region.results.iter().for_each(|v| uses[*v] += 1);
    }
    let regions: Vec<Region> = ssa.regions.keys().collect();
    for r in regions {
        let ops = std::mem::take(&mut ssa.regions[r].ops);
        let mut out = Vec::with_capacity(ops.len());
        for op in ops {
            let (OpKind::Inst { guard: None, inst }, Rounding::ByTheKernel) = (&op.kind, op.rounding) else {
                out.push(op);
                continue;
            };
            let single = |s: &Src<Value>, ty: FloatType, ftz: Ftz| {
                let v = s.reg()?;
                products[v].filter(|p| uses[v] == 1 && p.ty == ty && p.ftz == ftz)
            };
            let fused = match inst {
                Inst::AddFloat {
                    rnd: Round::Rn,
                    ftz,
                    ty,
                    d,
                    a,
                    b,
                } => single(a, *ty, *ftz)
                    .map(|p| (p, *b, *d, Negate::Nothing))
                    .or_else(|| single(b, *ty, *ftz).map(|p| (p, *a, *d, Negate::Nothing))),
                Inst::SubFloat {
                    rnd: Round::Rn,
                    ftz,
                    ty,
                    d,
                    a,
                    b,
                } => single(a, *ty, *ftz)
                    .map(|p| (p, *b, *d, Negate::Addend))
                    .or_else(|| single(b, *ty, *ftz).map(|p| (p, *a, *d, Negate::Factor))),
                _ => None,
            };
            let Some((mut p, mut c, d, negate)) = fused else {
                out.push(op);
                continue;
            };
            let loc = op.loc;
            let mut push = |inst| {
                let kind = OpKind::Inst { guard: None, inst };
                let (memory, rounding) = (MemTag::ANY, Rounding::default());
                out.push(Op {
                    kind,
                    loc,
                    memory,
                    rounding,
                });
            };
            let operand = match negate {
                Negate::Nothing => None,
                Negate::Addend => Some(&mut c),
                Negate::Factor => Some(&mut p.a),
            };
            if let Some(operand) = operand {
                *operand = negate_constant(*operand, p.ty).unwrap_or_else(|| {
                    // Free: ptxas folds it into the fma's operand.
                    let uniform = operand.reg().map_or(Uniform::Cta, |v| ssa.values[v].uniform);
                    let class = p.ty.slot().class;
                    let n = ssa.values.push(ValueData { class, uniform });
                    push(Inst::neg_float(Ftz::No, p.ty, n, *operand));
                    Src::Reg(n)
                });
            }
            push(Inst::fma(Round::Rn, p.ftz, p.ty, d, p.a, p.b, c));
        }
        ssa.regions[r].ops = out;
    }
}

#[derive(Clone, Copy)]
struct Product {
    ftz: Ftz,
    ty: FloatType,
    a: Src<Value>,
    b: Src<Value>,
}

enum Negate {
    Nothing,
    Addend,
    Factor,
}

/// The operand with its sign flipped, if it is an immediate.
fn negate_constant(s: Src<Value>, ty: FloatType) -> Option<Src<Value>> {
    let bits = s.imm()?;
    Some(Src::Imm(match ty {
        FloatType::F32 => bits ^ 1 << 31,
        FloatType::F64 => bits ^ 1 << 63,
        FloatType::F16 | FloatType::BF16 => bits ^ 1 << 15,
        FloatType::F16x2 | FloatType::BF16x2 => bits ^ 0x8000_8000,
    }))
}
