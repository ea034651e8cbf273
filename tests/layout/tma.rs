//! Copy plans executed element by element, as the copy engine does it, against direct indexing.
use super::testing::{Rng, indices};
use smalt::layout::facts::{DynId, Fact, Start};
use smalt::layout::smem_layout::{Index, SmemView};
use smalt::layout::tma::*;
use std::collections::BTreeMap;

/// Where SMEM bytes come from: bit offset in GMEM, or nothing (out of bounds).
fn execute(plan: &CopyPlan, smem: &SmemView, values: &[u64]) -> BTreeMap<u64, Option<i64>> {
    let value = |id: DynId| values[id.0 as usize];
    let eval = |a: &Affine| a.constant + a.terms.iter().map(|t| t.eval(value(t.value))).sum::<i64>();
    let mut seen = BTreeMap::new();
    let origin = smem.linear_bits(&vec![0; smem.rank()], &|id| value(id)) / 8;
    let plan = match plan {
        CopyPlan::Bulk(bulk) => {
            assert_eq!((bulk.bytes % 16, origin % 16, eval(&bulk.gmem) % 16), (0, 0, 0));
            for k in 0..u64::from(bulk.bytes) {
                assert!(seen.insert(origin + k, Some(eval(&bulk.gmem) + k as i64)).is_none());
            }
            return seen;
        }
        CopyPlan::Tensor(plan) => plan,
    };
    // PTX ISA and cuTensorMapEncodeTiled: what a map and its boxes must be.
    let rank = plan.dims.len();
    assert!((1..=5).contains(&rank) && plan.box_dims.len() == rank && plan.strides.len() == rank - 1);
    assert!(plan.box_dims.iter().all(|b| (1..=256).contains(b)));
    assert!(plan.strides.iter().all(|s| s % 16 == 0) && plan.base % 16 == 0);
    let inner = u64::from(plan.box_dims[0]) * u64::from(plan.element_bytes);
    assert!(inner % 16 == 0 && (plan.swizzle == 0 || inner == u64::from(plan.swizzle)));
    let bytes: u64 = plan.box_dims.iter().map(|b| u64::from(*b)).product::<u64>() * u64::from(plan.element_bytes);
    assert_eq!(bytes, u64::from(plan.piece_bytes));
    for piece in &plan.pieces {
        let n: u64 = plan.box_dims.iter().map(|b| u64::from(*b)).product();
        let target = origin + u64::from(piece.smem);
        assert_eq!(target % 128, 0);
        for linear in 0..n {
            let (mut rest, mut from, mut inside) = (linear, plan.base as i64, true);
            for i in 0..rank {
                let at = rest % u64::from(plan.box_dims[i]);
                rest /= u64::from(plan.box_dims[i]);
                let c = eval(&plan.coords[i]) + i64::from(piece.coords[i]) + at as i64;
                inside &= c >= 0 && (c as u64) < plan.dims[i];
                let stride = if i == 0 {
                    u64::from(plan.element_bytes)
                } else {
                    plan.strides[i - 1]
                };
                from += c * stride as i64;
            }
            for b in 0..u64::from(plan.element_bytes) {
                let to = smem.swizzle.apply(target + linear * u64::from(plan.element_bytes) + b);
                assert!(
                    seen.insert(to, inside.then_some(from + b as i64)).is_none(),
                    "written twice"
                );
            }
        }
    }
    seen
}

/// Whether everything lands where direct indexing says, and zeros where the array ends.
fn check(gmem: &[GmemDim], smem: &SmemView, bits: u32, values: &[u64], plan: &CopyPlan) {
    let value = |id: DynId| values[id.0 as usize];
    if let CopyPlan::Tensor(map) = plan {
        let steps = map.dims[1..]
            .iter()
            .zip(&map.strides)
            .map(|(n, stride)| (n - 1) * stride);
        let end = map.base + steps.sum::<u64>() + map.dims[0] * u64::from(map.element_bytes);
        let array = gmem.iter().map(|d| d.extent * d.stride / 8).max().unwrap_or(0);
        assert!(
            end <= array,
            "a map that ends at byte {end} of {array}\n{gmem:?}\n{map:?}"
        );
    }
    let seen = execute(plan, smem, values);
    let at = |d: &GmemDim| d.start + d.dynamic.iter().map(|(v, _)| value(*v)).sum::<u64>();
    let shape = smem.shape();
    let total: u64 = shape.iter().product();
    assert_eq!(seen.len() as u64, total * u64::from(bits) / 8);
    for index in indices(&shape) {
        let (mut bit, mut inside) = (0, true);
        let mut kept = index.iter();
        for d in gmem {
            let i = at(d) + if d.dropped { 0 } else { *kept.next().unwrap() };
            inside &= i < d.extent;
            bit += i * d.stride;
        }
        let (byte, low) = smem.address(&index, &|id| value(id));
        for b in 0..u64::from(bits.div_ceil(8)) {
            let got = seen[&(byte + b)];
            let want = inside.then_some((bit / 8 + b) as i64);
            assert_eq!(got, want, "element {index:?} byte {b}\n{gmem:?}\n{plan:?}");
        }
        assert!(!inside || bit % 8 == u64::from(low));
    }
}

fn slice(dim: &mut GmemDim, start: u64, dynamic: Option<(u32, u64)>, size: u64) {
    dim.start = start;
    dim.size = size;
    if let Some((id, divisor)) = dynamic {
        dim.dynamic
            .push((DynId(id), Fact::multiple_of(divisor).in_range(0, 1 << 20)));
    }
}

fn tensor(plan: CopyPlan) -> TensorPlan {
    match plan {
        CopyPlan::Tensor(plan) => plan,
        CopyPlan::Bulk(_) => panic!("a tensor map was expected"),
    }
}

#[test]
fn random_copies() {
    let mut rng = Rng::new(31);
    let (mut tensors, mut bulks, mut pieces, mut shared, mut turns, mut outside) = (0, 0, 0, 0, 0, 0);
    let mut errors: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..8000 {
        let bits = rng.pick(&[4u32, 8, 16, 16, 32, 64]);
        let rank = 1 + rng.below(4) as usize;
        let mut values = Vec::new();
        let (mut shape, mut smem_shape) = (Vec::new(), Vec::new());
        let mut dims = Vec::new();
        for d in 0..rank {
            let minor = d + 1 == rank;
            let size = if minor {
                rng.pick(&[16, 32, 64, 128, 320])
            } else {
                rng.pick(&[1, 2, 3, 8, 16, 24, 64])
            };
            let extent = size * (1 + rng.below(4)) + rng.pick(&[0, 0, 8, 32]);
            shape.push(if minor {
                extent
            } else {
                extent + rng.pick(&[0, 0, 0, 1])
            });
            let dropped = !minor && rng.below(4) == 0;
            dims.push((if dropped { 1 } else { size }, dropped));
        }
        if dims.iter().map(|d| d.0).product::<u64>() > 3000 {
            continue;
        }
        let mut gmem = whole(&shape, bits);
        let promise = rng.below(3) == 0;
        for (d, &(size, dropped)) in dims.iter().enumerate() {
            let dim = &mut gmem[d];
            (dim.size, dim.dropped) = (size, dropped);
            let unit = rng.pick(&[1, 4, 8, 8, 16, 64, 128, size]);
            let most = if promise || dropped {
                dim.extent - size
            } else {
                dim.extent
            };
            let start = rng.below(most / unit + 1) * unit;
            if rng.below(2) == 0 {
                dim.start = start;
            } else {
                values.push(start);
                let fact = Fact::multiple_of(unit);
                let fact = if promise {
                    fact.in_range(0, most as i64)
                } else {
                    fact.in_range(0, 1 << 30)
                };
                dim.dynamic.push((DynId(values.len() as u32 - 1), fact));
            }
            if !dropped {
                smem_shape.push(size);
            }
        }
        // The buffer: tiled or not, of the shape itself or of its transpose, a slot of a ring.
        let transposed = smem_shape.len() > 1 && rng.below(4) == 0;
        let mut perm: Vec<usize> = (0..smem_shape.len()).collect();
        if transposed {
            let n = perm.len();
            perm.swap(n - 1, n - 2);
        }
        let physical: Vec<u64> = perm.iter().map(|&p| smem_shape[p]).collect();
        let ring = rng.below(3) == 0;
        let allocated: Vec<u64> = if ring {
            [&[3], &physical[..]].concat()
        } else {
            physical.clone()
        };
        let swizzle = rng.pick(&[0u32, 16, 32, 64, 128]);
        let tile = u64::from(swizzle.max(16)) * 8 / u64::from(bits);
        let tiling = match rng.below(3) {
            _ if swizzle == 0 => vec![],
            0 => vec![tile],
            _ => vec![8, tile],
        };
        let Ok(buffer) = SmemView::new(&allocated, bits, &tiling, swizzle) else {
            continue;
        };
        let smem = if ring {
            let mut index = vec![Index::At(Start::Static(rng.below(3)))];
            index.extend(physical.iter().map(|&n| Index::Slice(Start::Static(0), n)));
            buffer.index(&index).unwrap()
        } else {
            buffer
        };
        let smem = smem.transpose(&perm);
        let oob = if promise && rng.below(2) == 0 {
            OutOfBounds::Ignored
        } else {
            OutOfBounds::Zeros
        };
        let parts = rng.pick(&[1, 1, 2, 3, 4]);
        match plan(&gmem, &smem, bits, oob, parts, rng.below(2) == 0) {
            Ok(plan) => {
                check(&gmem, &smem, bits, &values, &plan);
                match &plan {
                    CopyPlan::Bulk(_) => bulks += 1,
                    CopyPlan::Tensor(t) => {
                        tensors += 1;
                        let n = t.pieces.len() / parts as usize;
                        let equal = parts > 1 && t.sharing == Sharing::Equal;
                        assert!(!equal || t.pieces.len() == n * parts as usize);
                        turns += u32::from(parts > 1 && !equal);
                        // A part is part 0, moved.
                        for (k, p) in t.pieces.iter().enumerate().filter(|_| equal) {
                            let (part, like, step) = ((k / n) as u32, &t.pieces[k % n], &t.pieces[n % t.pieces.len()]);
                            assert_eq!(p.smem, like.smem + part * step.smem);
                            let moved = |i: usize| like.coords[i] + part * step.coords[i];
                            assert!((0..p.coords.len()).all(|i| p.coords[i] == moved(i)), "{t:?}");
                        }
                        pieces += u32::from(t.pieces.len() as u64 > parts);
                        shared += u32::from(parts > 1);
                    }
                }
                outside += u32::from(gmem.iter().any(|d| {
                    let at = d.start + d.dynamic.iter().map(|v| values[v.0.0 as usize]).sum::<u64>();
                    at + d.size > d.extent
                }));
            }
            Err(e) => {
                let name = format!("{e:?}");
                *errors
                    .entry(name[..name.find([' ', '{']).unwrap_or(name.len())].to_string())
                    .or_default() += 1;
            }
        }
    }
    eprintln!(
        "{tensors} tensor ({pieces} in pieces, {shared} shared, {turns} in turns, {outside} over an end), {bulks} bulk; {errors:?}"
    );
    assert!(tensors > 800 && bulks > 30 && pieces > 100 && shared > 200 && turns > 50 && outside > 200);
}

#[test]
fn tiled_and_swizzled_boxes_are_one_copy() {
    for (bits, swizzle) in [(16u32, 128u32), (16, 64), (8, 128), (32, 32), (16, 0)] {
        let e = if swizzle == 0 {
            64
        } else {
            u64::from(swizzle * 8 / bits)
        };
        let smem = SmemView::new(&[64, 2 * e], bits, &[8, e], swizzle).unwrap();
        let mut g = whole(&[256, 8 * e], bits);
        slice(&mut g[0], 64, Some((0, 8)), 64);
        slice(&mut g[1], 0, Some((1, e)), 2 * e);
        let one = plan(&g, &smem, bits, OutOfBounds::Zeros, 1, false).unwrap();
        check(&g, &smem, bits, &[16, 3 * e], &one);
        // Over the end: zeros.
        check(&g, &smem, bits, &[160, 7 * e], &one);
        assert_eq!(tensor(one).pieces.len(), 1);
        // Shared by two CTAs: one piece each.
        let two = plan(&g, &smem, bits, OutOfBounds::Zeros, 2, false).unwrap();
        check(&g, &smem, bits, &[0, 0], &two);
        assert_eq!(tensor(two).pieces.len(), 2);
    }
    // A single column of tiles: rows are one dimension.
    let smem = SmemView::new(&[64, 64], 16, &[8, 64], 128).unwrap();
    let mut g = whole(&[4096, 4096], 16);
    slice(&mut g[0], 0, Some((0, 64)), 64);
    slice(&mut g[1], 0, Some((1, 64)), 64);
    let p = tensor(plan(&g, &smem, 16, OutOfBounds::Zeros, 1, true).unwrap());
    assert_eq!((&p.box_dims[..], p.pieces.len()), (&[64, 64][..], 1));
}

#[test]
fn unit_slices_keep_their_start() {
    let smem = SmemView::new(&[1, 64], 16, &[], 0).unwrap();
    let mut g = whole(&[16, 64], 16);
    for dynamic in [None, Some((0, 1))] {
        g[0].dynamic.clear();
        slice(&mut g[0], 3, dynamic, 1);
        let p = plan(&g, &smem, 16, OutOfBounds::Zeros, 1, false).unwrap();
        check(&g, &smem, 16, &[5], &p);
        check(&g, &smem, 16, &[12], &p);
    }
}

#[test]
fn batches_share_a_dimension_where_there_is_no_room() {
    let smem = SmemView::new(&[64, 128], 16, &[8, 64], 128).unwrap();
    let mut g = whole(&[3, 5, 128, 256], 16);
    for (i, id) in [(0, 0), (1, 1)] {
        slice(&mut g[i], 0, Some((id, 1)), 1);
        g[i].dropped = true;
    }
    slice(&mut g[2], 64, None, 64);
    slice(&mut g[3], 128, None, 128);
    let p = plan(&g, &smem, 16, OutOfBounds::Zeros, 1, true).unwrap();
    check(&g, &smem, 16, &[2, 4], &p);
    assert_eq!(tensor(p).dims.len(), 5);
}

#[test]
fn long_dimensions_are_cut_into_dense_pieces() {
    for (rows, columns) in [(512, 64), (4, 512), (3, 272), (2, 1024)] {
        for bits in [8, 16] {
            let smem = SmemView::new(&[rows, columns], bits, &[], 0).unwrap();
            let mut g = whole(&[1024, 2048], bits);
            slice(&mut g[0], 512, None, rows);
            slice(&mut g[1], 256, None, columns);
            if let Ok(p) = plan(&g, &smem, bits, OutOfBounds::Zeros, 1, false) {
                check(&g, &smem, bits, &[], &p);
            } else {
                // Pieces of 272 elements cannot start at multiples of 128 bytes.
                assert_eq!(columns, 272);
            }
        }
    }
}

#[test]
fn an_unproved_start_costs_pieces_and_is_named_when_there_are_too_many() {
    let smem = SmemView::new(&[64, 128], 16, &[8, 64], 128).unwrap();
    let mut g = whole(&[250, 256], 16);
    slice(&mut g[0], 0, Some((0, 4)), 64);
    slice(&mut g[1], 0, None, 128);
    let p = plan(&g, &smem, 16, OutOfBounds::Zeros, 1, true).unwrap();
    for start in [0, 4, 100, 188, 220, 248] {
        check(&g, &smem, 16, &[start], &p);
    }
    assert_eq!(tensor(p).pieces.len(), 8);
    // In bounds, the start goes to the minor digit.
    g[0].dynamic[0].1 = Fact::multiple_of(4).in_range(0, 186);
    let p = plan(&g, &smem, 16, OutOfBounds::Zeros, 1, true).unwrap();
    check(&g, &smem, 16, &[100], &p);
    assert_eq!(tensor(p).pieces.len(), 1);
    // Small tiles, unproved starts along both dimensions: too many.
    let smem = SmemView::new(&[128, 128], 16, &[8, 8], 16).unwrap();
    let mut g = whole(&[250, 256], 16);
    slice(&mut g[0], 0, Some((0, 1)), 128);
    slice(&mut g[1], 0, Some((1, 4)), 128);
    let error = plan(&g, &smem, 16, OutOfBounds::Zeros, 1, true).unwrap_err();
    assert_eq!(
        error,
        CopyError::Start {
            dim: 0,
            proven: 1,
            needed: 8
        }
    );
}

#[test]
fn contiguous_copies_need_no_tensor_map() {
    let smem = SmemView::row_major(&[4, 64], 32);
    let mut g = whole(&[16, 64], 32);
    slice(&mut g[0], 0, Some((0, 1)), 4);
    g[0].dynamic[0].1 = Fact {
        divisor: 1,
        min: 0,
        max: 12,
    };
    let p = plan(&g, &smem, 32, OutOfBounds::Zeros, 1, true).unwrap();
    check(&g, &smem, 32, &[7], &p);
    match &p {
        CopyPlan::Bulk(bulk) => assert_eq!((bulk.bytes, bulk.gmem.terms[0].stride), (1024, 256)),
        CopyPlan::Tensor(_) => panic!("expected a bulk copy"),
    }
}

#[test]
fn what_has_no_copy_says_why() {
    let zeros = OutOfBounds::Zeros;
    let refuse = |g: &[GmemDim], smem: &SmemView| plan(g, smem, smem.bits, zeros, 1, true).unwrap_err();
    let whole_of = |n| Index::Slice(Start::Static(0), n);
    // Rows of 12 bytes.
    let mut g = whole(&[8, 8], 32);
    slice(&mut g[1], 0, None, 3);
    assert_eq!(
        refuse(&g, &SmemView::row_major(&[8, 3], 32)),
        CopyError::MinorSize { bits: 96 }
    );
    // A transposed destination.
    let t = SmemView::row_major(&[64, 32], 16).transpose(&[1, 0]);
    assert_eq!(refuse(&whole(&[32, 64], 16), &t), CopyError::MinorStride);
    // Rows of GMEM that are no multiple of 16 bytes.
    let mut g = whole(&[64, 100], 16);
    slice(&mut g[1], 0, None, 64);
    assert_eq!(
        refuse(&g, &SmemView::row_major(&[64, 64], 16)),
        CopyError::Stride { bytes: 200 }
    );
    // A slice that begins within 16 bytes, of whole bytes and of halves.
    for (bits, start, unit) in [(16, 3, 8), (32, 6, 4), (4, 48, 32)] {
        let mut g = whole(&[64, 256], bits);
        slice(&mut g[0], 0, None, 8);
        slice(&mut g[1], start, None, 64);
        let row = SmemView::row_major(&[8, 64], bits);
        let start = start as i64;
        assert_eq!(refuse(&g, &row), CopyError::MinorStart { start, unit });
    }
    // A destination in the middle of a swizzled tile, at half of what every copy needs.
    let rows = SmemView::new(&[64, 16], 16, &[8, 16], 32).unwrap();
    let part = rows.index(&[Index::Slice(Start::Static(2), 4), whole_of(16)]);
    let mut g = whole(&[64, 16], 16);
    slice(&mut g[0], 2, None, 4);
    assert_eq!(
        refuse(&g, &part.unwrap()),
        CopyError::SmemAlignment { bytes: 64, needed: 128 }
    );
}

#[test]
fn long_rows_within_longer_ones_are_one_copy() {
    for (n, bits) in [
        (1000, 16),
        (1600, 16),
        (320, 16),
        (520, 16),
        (600, 32),
        (300, 32),
        (1000, 64),
        (4000, 8),
        (1032, 16),
    ] {
        let smem = SmemView::new(&[4, n], bits, &[], 0).unwrap();
        // Twice as long, and half as long again: over the end are zeros.
        for extent in [2 * n, (3 * n / 2).next_multiple_of(128 / u64::from(bits))] {
            let mut g = whole(&[10, extent], bits);
            slice(&mut g[0], 0, Some((0, 4)), 4);
            slice(&mut g[1], 0, Some((1, n)), n);
            let p =
                plan(&g, &smem, bits, OutOfBounds::Zeros, 1, true).unwrap_or_else(|e| panic!("{n} of {extent}: {e}"));
            for values in [[0, 0], [4, n], [8, n]] {
                check(&g, &smem, bits, &values, &p);
            }
            assert_eq!(tensor(p).pieces.len(), 1, "{n} of {extent}");
        }
    }
    // Both dimensions are long; and many rows, of which a box has one where they are two pieces.
    for (shape, bits) in [([300, 528], 8), ([100, 512], 16), ([1000, 24], 16)] {
        let smem = SmemView::new(&shape, bits, &[], 0).unwrap();
        let mut g = whole(&[2 * shape[0], 2 * shape[1]], bits);
        slice(&mut g[0], 0, Some((0, shape[0])), shape[0]);
        slice(&mut g[1], 0, Some((1, shape[1])), shape[1]);
        let p = plan(&g, &smem, bits, OutOfBounds::Zeros, 1, true).unwrap_or_else(|e| panic!("{shape:?}: {e}"));
        check(&g, &smem, bits, &[shape[0], shape[1]], &p);
        assert!(tensor(p).pieces.len() <= 100, "{shape:?}");
    }
}
