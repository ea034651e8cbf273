//! Transforms of SMEM allocations: the user's, else those that the tensor core or the register side prefers, else none.
use crate::dtype::DType;
use crate::error::{Error, Loc, Result};
use crate::kernel_ir::{Alloc, AllocKind, DimIndex, Kernel, OpKind, RefUse, SmemTransforms, Step, words};
use crate::layout::assignment::{Choice, Reason, Subject};
use crate::layout::views::{self, Transforms};
use crate::layout::wgmma::{Operand, Unit};
use cranelift_entity::SecondaryMap;

pub(super) struct Smem {
    pub transforms: SecondaryMap<Alloc, Option<SmemTransforms>>,
    pub reasons: Vec<Reason>,
}

/// How an op uses an allocation, as far as its transforms are concerned.
#[derive(Clone)]
pub(super) struct MatrixUse {
    /// The two matrix dimensions of the use, as dimensions of the allocation, minor one last in memory.
    minor: usize,
    second_minor: usize,
    /// The op, and which operand of it the allocation is.
    loc: Loc,
    which: &'static str,
}

/// `wanted`: preferences of others, where wgmma has none.
pub(super) fn choose_transforms(kernel: &Kernel, wanted: &Transforms) -> Result<Smem> {
    let mut smem = Smem {
        transforms: SecondaryMap::new(),
        reasons: vec![],
    };
    let mut uses: SecondaryMap<Alloc, Option<MatrixUse>> = SecondaryMap::new();
    let mut operands_of: SecondaryMap<Alloc, Vec<(RefUse, Side)>> = SecondaryMap::new();
    let mut failure = None;
    kernel.for_each_op(&mut |op| {
        let product = if let OpKind::Wgmma { acc, a, b } = &kernel.ops[op].kind {
            let is_integer = acc.value().is_some_and(|v| kernel.ty(v).dtype().is_int());
            Some((is_integer, a.reference(), b))
        } else if let OpKind::Tcgen05Mma {
            acc, a, b, a_in_tmem, ..
        } = &kernel.ops[op].kind
        {
            let is_integer = acc.dtype().is_some_and(DType::is_int);
            Some((is_integer, (!a_in_tmem).then_some(a), b))
        } else {
            None
        };
        if let Some((is_integer, a, b)) = product {
            let operands: Vec<&RefUse> = a.into_iter().chain([b]).collect();
            for (r, which) in operands.into_iter().rev().zip(["right", "left"]) {
                let is_annotated = matches!(
                    kernel.allocs[r.alloc].kind,
                    AllocKind::Smem { transforms: Some(_), .. }
                );
                let side = match which {
                    "left" => Side::Left,
                    _ => Side::Right { is_integer },
                };
                operands_of[r.alloc].push((r.clone(), side));
                match matrix_dims(kernel, r, kernel.ops[op].loc, which) {
                    Some(used) => {
                        uses[r.alloc].get_or_insert(used);
                    }
                    None if is_annotated => {}
                    None => {
                        failure.get_or_insert_with(|| {
                            Error::unsupported(format!("wgmma {which} operand in SMEM"))
                                .at(kernel.ops[op].loc)
                                .expected("a 2-D view whose rows and columns are those of the allocation's last two dimensions")
                                .got(words::of_use(kernel, r))
                                .remedy("give the buffer the matrix's dimensions as its last two, or give its transforms explicitly")
                        });
                    }
                }
            }
        }
    });
    if let Some(error) = failure {
        return Err(error);
    }
    for (alloc, data) in kernel.allocs.iter() {
        let AllocKind::Smem { dtype, transforms } = &data.kind else {
            continue;
        };
        let chosen = match (transforms, &uses[alloc]) {
            (Some(t), _) => {
                smem.reason(alloc, t, "annotated by the user");
                t.clone()
            }
            (None, Some(used)) => {
                match common(kernel, alloc, &swizzles(&data.shape, *dtype, used), &operands_of[alloc]) {
                    Some(t) => {
                        let why = "the widest swizzle that wgmma's operands in it can have";
                        smem.reason(alloc, &t, why);
                        t
                    }
                    None => {
                        return Err(Error::invalid(format!("wgmma {} operand in SMEM", used.which))
                            .at(used.loc)
                            .expected("minor dimensions that are multiples of 8 rows × 32, 64 or 128 bytes")
                            .got(words::of_alloc(kernel, alloc))
                            .remedy("pad the buffer, or give its transforms explicitly"));
                    }
                }
            }
            (None, None) => match &wanted[alloc] {
                Some(t) => {
                    smem.reason(alloc, t, "fragments of a product are read from it");
                    t.clone()
                }
                None => {
                    let t = SmemTransforms::default();
                    smem.reason(alloc, &t, "no user needs a tiling");
                    t
                }
            },
        };
        smem.transforms[alloc] = Some(chosen);
    }
    Ok(smem)
}

/// Tiles of 8 rows of swizzles that divide an allocation of this shape, the widest first.
fn swizzles(shape: &[u64], dtype: DType, used: &MatrixUse) -> Vec<SmemTransforms> {
    let elements = |bytes: u64| bytes * 8 / u64::from(dtype.bits());
    let is_in_place = used.minor + 1 == shape.len() && used.second_minor + 2 == shape.len();
    let fits =
        |bytes: &u64| shape[used.minor].is_multiple_of(elements(*bytes)) && shape[used.second_minor].is_multiple_of(8);
    let all = [128u64, 64, 32].into_iter().filter(|b| is_in_place && fits(b));
    all.map(|bytes| SmemTransforms {
        tiling: [8, elements(bytes)].as_slice().into(),
        swizzle_bytes: bytes as u32,
    })
    .collect()
}

/// The widest of them.
pub(super) fn widest(shape: &[u64], dtype: DType, used: &MatrixUse) -> Option<SmemTransforms> {
    swizzles(shape, dtype, used).into_iter().next()
}

/// The first that all operands can be read by; else the first, for the error that it gives.
fn common(
    kernel: &Kernel,
    alloc: Alloc,
    candidates: &[SmemTransforms],
    operands: &[(RefUse, Side)],
) -> Option<SmemTransforms> {
    let all = |t: &&SmemTransforms| {
        let mut transforms = Transforms::new();
        transforms[alloc] = Some((*t).clone());
        operands
            .iter()
            .all(|(r, side)| is_operand(kernel, &transforms, r, *side))
    };
    candidates.iter().find(all).or(candidates.first()).cloned()
}

/// Which operand of a wgmma.
#[derive(Clone, Copy)]
pub(super) enum Side {
    Left,
    Right { is_integer: bool },
}

/// Whether memory that is laid out so can be an operand.
pub(super) fn is_operand(kernel: &Kernel, transforms: &Transforms, r: &RefUse, side: Side) -> bool {
    let Ok(view) = views::smem(kernel, transforms, r, false) else {
        return false;
    };
    match side {
        Side::Left => Operand::of(Unit::Wgmma, &view, 0, 1, 64).is_ok(),
        Side::Right { is_integer } => Operand::widest(&view, 1, 0, is_integer).is_ok(),
    }
}

impl Smem {
    fn reason(&mut self, alloc: Alloc, t: &SmemTransforms, why: &'static str) {
        self.reasons.push(Reason {
            subject: Subject::Alloc(alloc),
            choice: Choice::Smem(t.clone()),
            why,
        });
    }
}

/// Which dimensions of the allocation the two dimensions of a matrix view go along, in memory order.
pub(super) fn matrix_dims(kernel: &Kernel, r: &RefUse, loc: Loc, which: &'static str) -> Option<MatrixUse> {
    let mut shape = kernel.allocs[r.alloc].shape.clone();
    // Of each dimension of the view, the allocation's dimension of which neighbours in it are neighbours.
    let mut dims: Vec<Option<usize>> = (0..shape.len()).map(Some).collect();
    for step in &r.steps {
        match step {
            Step::Index(indices) => {
                let mut kept = indices.iter().map(|i| !matches!(i, DimIndex::At(_)));
                dims.retain(|_| kept.next().unwrap_or(true));
                shape = indices.iter().filter_map(extent).collect();
            }
            Step::Transpose(perm) => {
                dims = perm.iter().map(|p| dims[*p as usize]).collect();
                shape = perm.iter().map(|p| shape[*p as usize]).collect();
            }
            Step::Reshape(to) => {
                dims = reshaped(&dims, &shape, to);
                shape = to.clone();
            }
            Step::Bitcast { .. }
            | Step::Im2Col { .. }
            | Step::ExpandLeadingBatch(_)
            | Step::ExtractAlias { .. }
            | Step::Unswizzle(_)
            | Step::Untile(_) => return None,
        }
    }
    let &[Some(a), Some(b)] = dims.as_slice() else {
        return None;
    };
    Some(MatrixUse {
        minor: a.max(b),
        second_minor: a.min(b),
        loc,
        which,
    })
}

/// How many positions an index takes; none: it drops the dimension.
fn extent(index: &DimIndex) -> Option<u64> {
    match index {
        DimIndex::At(_) => None,
        DimIndex::Slice { size, .. } | DimIndex::Window { size, .. } => Some(*size),
        DimIndex::Gather(_) => Some(1),
    }
}

/// The dimensions after a reshape: one that begins where one of them began goes along it.
fn reshaped(dims: &[Option<usize>], from: &[u64], to: &[u64]) -> Vec<Option<usize>> {
    // Elements from one index to the next, row-major.
    let strides = |shape: &[u64]| -> Vec<u64> {
        let mut strides: Vec<u64> = (shape.iter().rev())
            .scan(1, |stride: &mut u64, n| Some(std::mem::replace(stride, *stride * n)))
            .collect();
        strides.reverse();
        strides
    };
    let (old, new) = (strides(from), strides(to));
    let same = |d: usize| (0..from.len()).find(|&o| from[o] > 1 && old[o] == new[d]);
    (0..to.len())
        .map(|d| same(d).filter(|_| to[d] > 1).and_then(|o| dims[o]))
        .collect()
}

/// The transforms and the last step's orientation that a register transfer sees: `Some(transposed)` where the last two
/// dimensions of the view are the allocation's tiled ones.
pub(super) fn tiled_orientation(kernel: &Kernel, smem: &Smem, r: &RefUse) -> Option<bool> {
    let transforms = smem.transforms[r.alloc].as_ref()?;
    if transforms.tiling.len() != 2 || transforms.swizzle_bytes == 0 {
        return None;
    }
    let rank = kernel.allocs[r.alloc].shape.len();
    let (dims, true) = r.kept_dims(rank)? else { return None };
    match dims.as_slice() {
        [.., a, b] if *a + 2 == rank && *b + 1 == rank => Some(false),
        [.., a, b] if *a + 1 == rank && *b + 2 == rank => Some(true),
        _ => None,
    }
}
