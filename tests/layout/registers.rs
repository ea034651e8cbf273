//! Register layouts against enumeration and against Mosaic's own index arithmetic.
use super::testing::{Rng, arbitrary_layout, flat, indices};
use sha2::{Digest, Sha256};
use smalt::layout::register_layout::{Group, Place, RegisterLayout};
use smalt::layout::tiled::TiledLayout;
use std::collections::BTreeMap;

/// The layout of one line of the oracle file.
fn oracle_layout(name: &str, args: &str, shape: &[u64]) -> RegisterLayout {
    let numbers: Vec<u64> = args.split(' ').filter_map(|a| a.parse().ok()).collect();
    let tiled = match (name, &numbers[..]) {
        ("strided", &[vec]) => return RegisterLayout::strided(shape, vec, Group::Warpgroup),
        ("tmem_native", &[vec]) => TiledLayout::tmem_native(vec),
        ("mma_lhs", &[bits, warps]) => TiledLayout::mma_lhs(bits as u32, warps),
        ("mma_rhs", &[bits, warps]) => TiledLayout::mma_rhs(bits as u32, warps),
        ("mma_acc", &[_, warps]) => TiledLayout::mma_acc(warps),
        ("smem_gmem_copy", &[bits, swizzle]) => {
            TiledLayout::smem_gmem_copy(shape, bits as u32, swizzle as u32).expect("Mosaic has this layout")
        }
        (name, &[dim]) => TiledLayout::by_name(name).unwrap().reduce(dim as usize),
        (name, _) => TiledLayout::by_name(name).unwrap(),
    };
    tiled.instantiate(shape).unwrap()
}

#[test]
fn mosaic_places_every_element_where_we_do() {
    let mut cases = 0;
    for line in include_str!("mosaic_layouts.txt")
        .lines()
        .filter(|l| !l.starts_with('#'))
    {
        let f: Vec<&str> = line.split(" | ").map(str::trim).collect();
        let shape: Vec<u64> = f[2].split('x').map(|d| d.parse().unwrap()).collect();
        let layout = oracle_layout(f[0], f[1], &shape);
        assert_eq!(layout.slots().to_string(), f[3], "{line}");
        let mut hash = Sha256::new();
        for (thread, slot) in (0..128).flat_map(|t| (0..layout.slots()).map(move |s| (t, s))) {
            let index = layout.element(thread, slot).expect("no padding in Mosaic");
            hash.update((flat(&shape, &index) as u32).to_le_bytes());
        }
        let hash: String = hash.finalize()[..8].iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hash, f[4], "{line}: {layout}");
        cases += 1;
    }
    assert!(cases > 500, "the oracle file has only {cases} cases");
}

#[test]
fn elements_and_owners_are_inverse() {
    let mut rng = Rng::new(1);
    for _ in 0..400 {
        let layout = arbitrary_layout(&mut rng, None);
        let threads = layout.group().threads();
        let mut seen: BTreeMap<Vec<u64>, Vec<(u32, u32)>> = BTreeMap::new();
        for (t, s) in (0..threads).flat_map(|t| (0..layout.slots()).map(move |s| (t, s))) {
            let element = layout.element(t, s);
            assert_eq!(element.is_some(), layout.valid(t, s));
            if let Some(i) = element {
                seen.entry(i.to_vec()).or_default().push((t, s));
            }
        }
        let mut numbered: Vec<(u32, u64)> = vec![];
        layout.for_each_element(|t, at| numbered.push((t, at)));
        let held = |(i, owners): (&Vec<u64>, &Vec<(u32, u32)>)| {
            let at = flat(layout.shape(), i);
            owners.iter().map(move |&(t, _)| (t, at)).collect::<Vec<_>>()
        };
        let mut expected: Vec<_> = seen.iter().flat_map(held).collect();
        numbered.sort_unstable();
        expected.sort_unstable();
        assert_eq!(numbered, expected, "{layout}");
        let constant = layout
            .axes()
            .iter()
            .flat_map(|a| &a.chain)
            .any(|d| d.place == Place::Constant);
        for index in indices(layout.shape()) {
            let owners: Vec<_> = layout.owners(&index).collect();
            assert_eq!(owners.len() as u32, layout.replication());
            if !constant {
                assert_eq!(seen[&index], owners, "{layout} {index:?}");
            }
        }
        assert!(constant || seen.len() as u64 == layout.shape().iter().product::<u64>());
        // The affine export agrees with the element map.
        for (dim, thread, slot) in
            (0..layout.rank()).flat_map(|d| [(d, 0, 0), (d, threads - 1, 0), (d, 37 % threads, 1)])
        {
            let Some(terms) = layout.index_terms(dim) else { continue };
            let slot = slot % layout.slots();
            let axis = layout.axes().iter().position(|a| a.first == dim).unwrap();
            let sum = terms.iter().map(|t| t.value(thread)).sum::<i64>() as u64 + layout.slot_offset(slot)[axis];
            assert_eq!(sum, layout.axis_indices(thread, slot)[axis]);
        }
    }
}

/// What the threads hold, as flat indices of some operand.
fn contents(layout: &RegisterLayout, f: impl Fn(&[u64]) -> u64) -> Vec<Vec<Option<u64>>> {
    (0..layout.group().threads())
        .map(|t| {
            (0..layout.slots())
                .map(|s| layout.element(t, s).map(|i| f(&i)))
                .collect()
        })
        .collect()
}

#[test]
fn views_move_nothing() {
    let mut rng = Rng::new(2);
    let (mut transposed, mut reshaped, mut straddling) = (0, 0, 0);
    for _ in 0..600 {
        let layout = arbitrary_layout(&mut rng, None);
        let shape = layout.shape().to_vec();
        let here = contents(&layout, |i| flat(&shape, i));
        let mut perm: Vec<usize> = (0..shape.len()).collect();
        rng.shuffle(&mut perm);
        match layout.transpose(&perm) {
            Some(t) => {
                transposed += 1;
                let there = contents(&t, |i| {
                    let mut old = vec![0; shape.len()];
                    perm.iter().zip(i).for_each(|(&p, &x)| old[p] = x);
                    flat(&shape, &old)
                });
                assert_eq!(here, there, "{layout} {perm:?} {t}");
                let mut back = vec![0; perm.len()];
                perm.iter().enumerate().for_each(|(k, &p)| back[p] = k);
                assert_eq!(t.transpose(&back).as_ref(), Some(&layout));
            }
            None => straddling += 1,
        }
        let n: u64 = shape.iter().product();
        let a = (1..=n)
            .filter(|a| n.is_multiple_of(*a))
            .nth(rng.below(3) as usize)
            .unwrap_or(1);
        for new in [vec![n], vec![a, n / a], vec![n / a, 1, a], vec![1, n, 1]] {
            if let Some(r) = layout.reshape(&new) {
                reshaped += 1;
                assert_eq!(here, contents(&r, |i| flat(&new, i)), "{layout} -> {r}");
                assert_eq!(r.reshape(&shape).as_ref(), Some(&layout), "{layout} -> {r}");
            } else {
                assert!(layout.is_padded());
            }
        }
    }
    assert!(
        transposed > 400 && reshaped > 1500 && straddling > 5,
        "{transposed} {reshaped} {straddling}"
    );
}

#[test]
fn reductions_name_every_contribution_once() {
    let mut rng = Rng::new(3);
    let mut planned = 0;
    for _ in 0..800 {
        let layout = arbitrary_layout(&mut rng, None);
        let shape = layout.shape().to_vec();
        if shape.iter().product::<u64>() > 4096 {
            continue;
        }
        let dims: Vec<usize> = (0..shape.len()).filter(|_| rng.below(2) == 0).collect();
        let Some(plan) = layout.reduce_plan(&dims) else {
            assert!(dims.iter().any(|&d| layout.straddles(d)));
            continue;
        };
        planned += 1;
        let kept: Vec<usize> = (0..shape.len()).filter(|d| !dims.contains(d)).collect();
        assert_eq!(
            plan.result.shape().to_vec(),
            kept.iter().map(|&d| shape[d]).collect::<Vec<_>>()
        );
        let mask = u32::from(plan.lane_bits) | u32::from(plan.warp_bits) << 5;
        assert_eq!(
            u32::from(plan.result.replicated_bits()),
            u32::from(layout.replicated_bits()) | mask
        );
        let threads = layout.group().threads();
        for (t, slot) in [0, 1, threads - 1]
            .into_iter()
            .flat_map(|t| (0..plan.result.slots().min(8)).map(move |s| (t, s)))
        {
            let Some(out) = plan.result.element(t, slot) else {
                continue;
            };
            // All threads of the butterfly, all slots of the plan: each operand element exactly once.
            let mut got = Vec::new();
            for other in (0..threads).filter(|o| o & !mask == t & !mask) {
                for &s in &plan.slots[slot as usize] {
                    match layout.element(other, s) {
                        Some(i) => got.push(i.to_vec()),
                        None => assert!(plan.padded || plan.result.is_padded()),
                    }
                }
            }
            got.sort();
            let mut want: Vec<_> = indices(&shape);
            want.retain(|i| {
                kept.iter()
                    .zip(&out)
                    .all(|(&d, &x)| i[d] == x || layout_constant(&layout, d))
            });
            if plan.repeats == 1 && !(0..shape.len()).any(|d| layout_constant(&layout, d)) {
                assert_eq!(got, want, "{layout} over {dims:?}");
            }
        }
    }
    assert!(planned > 200, "{planned}");
}

fn layout_constant(layout: &RegisterLayout, dim: usize) -> bool {
    layout.axis_of(dim).chain.iter().any(|d| d.place == Place::Constant)
}

#[test]
fn slices_rename_slots() {
    let mut rng = Rng::new(4);
    let mut sliced = 0;
    for _ in 0..600 {
        let layout = arbitrary_layout(&mut rng, None);
        let shape = layout.shape().to_vec();
        let (mut start, mut size) = (vec![0; shape.len()], shape.clone());
        for d in 0..shape.len() {
            let unit = [1, 2, 8, 16, 64][rng.below(5) as usize];
            start[d] = rng.below(shape[d] / unit + 1) * unit % shape[d].max(1);
            size[d] = (1 + rng.below((shape[d] - start[d]).div_ceil(unit))) * unit;
            size[d] = size[d].min(shape[d] - start[d]);
        }
        let Some((cut, map)) = layout.slice(&start, &size) else {
            continue;
        };
        sliced += 1;
        assert_eq!(map.len() as u32, cut.slots());
        for (t, s) in (0..layout.group().threads()).flat_map(|t| (0..cut.slots()).map(move |s| (t, s))) {
            let Some(i) = cut.element(t, s) else { continue };
            let old: Vec<u64> = i.iter().zip(&start).map(|(a, b)| a + b).collect();
            let held = layout
                .element(t, map[s as usize])
                .expect("slices of elements are elements");
            let same = (0..shape.len()).all(|d| held[d] == old[d] || layout_constant(&layout, d));
            assert!(same, "{layout} [{start:?} +{size:?}] = {cut}: {held:?} {old:?}");
        }
    }
    assert!(sliced > 100, "{sliced}");
    // wgmma's A operand from registers: 16-wide slices of a (64, 64) array.
    let a = TiledLayout::wgmma().instantiate(&[64, 64]).unwrap();
    let (part, map) = a.slice(&[0, 16], &[64, 16]).unwrap();
    assert_eq!(part, TiledLayout::wgmma().instantiate(&[64, 16]).unwrap());
    assert_eq!(map.len(), 8);
    assert!(a.slice(&[0, 4], &[64, 8]).is_none() && a.slice(&[8, 0], &[8, 64]).is_none());
}

#[test]
fn renaming_is_found_exactly_when_no_element_leaves_its_thread() {
    let mut rng = Rng::new(5);
    let (mut renamed, mut not) = (0, 0);
    for case in 0..1500 {
        let a = arbitrary_layout(&mut rng, None);
        let b = match case % 3 {
            0 => arbitrary_layout(&mut rng, Some(a.shape())),
            1 => super::testing::shuffle_slots(&a, &mut rng),
            _ => RegisterLayout::splat(a.shape(), a.group()),
        };
        let Some(map) = a.rename_to(&b) else {
            not += 1;
            continue;
        };
        renamed += 1;
        for (t, s) in (0..b.group().threads()).flat_map(|t| (0..b.slots()).map(move |s| (t, s))) {
            if let Some(i) = b.element(t, s) {
                assert!(a.owners(&i).any(|o| o == (t, map[s as usize])), "{a} -> {b}");
            }
        }
    }
    assert!(renamed > 300 && not > 300, "{renamed} {not}");
    let (acc, wgmma) = (TiledLayout::wgmma_acc_32bit(), TiledLayout::wgmma());
    assert_eq!(
        acc.instantiate(&[64, 32]).unwrap(),
        wgmma.instantiate(&[64, 32]).unwrap()
    );
}

#[test]
fn broadcasts_share_slots_and_reduce_back() {
    let rows = TiledLayout::wgmma_row().instantiate(&[128]).unwrap();
    let wide = rows.broadcast_in_dim(&[128, 64], &[0]).unwrap();
    assert_eq!(wide.slots(), rows.slots());
    let wgmma = TiledLayout::wgmma().instantiate(&[128, 64]).unwrap();
    assert_eq!(wgmma.reduce(&[1]).unwrap(), rows);
    let map = wide
        .rename_to(&wgmma)
        .expect("a row vector spreads over WGMMA without moving");
    for (t, s) in (0..128).flat_map(|t| (0..wgmma.slots()).map(move |s| (t, s))) {
        let row = wgmma.element(t, s).unwrap()[0];
        assert_eq!(rows.element(t, map[s as usize]).unwrap()[0], row);
    }
    let col = TiledLayout::wgmma_col().instantiate(&[64]).unwrap();
    assert_eq!(wgmma.reduce(&[0]).unwrap(), col);
    assert!(
        col.broadcast_in_dim(&[128, 64], &[1])
            .unwrap()
            .rename_to(&wgmma)
            .is_some()
    );
    // A row vector laid out like a column does not spread for free.
    assert!(
        rows.broadcast_in_dim(&[64, 128], &[1])
            .unwrap()
            .rename_to(&wgmma)
            .is_none()
    );
    let unit = RegisterLayout::splat(&[1, 64], Group::Warpgroup);
    assert!(unit.broadcast_in_dim(&[32, 64], &[0, 1]).unwrap().is_splat());
}

#[test]
fn small_and_odd_shapes_are_padded_or_replicated() {
    for (shape, slots, padded) in [
        (&[10][..], 1, true),
        (&[33], 1, true),
        (&[64, 24], 12, false),
        (&[], 1, true),
        (&[129], 2, true),
    ] {
        let l = RegisterLayout::strided_default(shape, 32, Group::Warpgroup);
        assert_eq!((l.slots(), l.is_padded()), (slots, padded), "{l}");
        let n: u64 = shape.iter().product();
        let held = (0..128)
            .flat_map(|t| (0..l.slots()).map(move |s| (t, s)))
            .filter(|&(t, s)| l.valid(t, s))
            .count();
        assert_eq!(held as u64, n);
        let r = RegisterLayout::replicated(shape, Group::Warpgroup);
        assert_eq!((u64::from(r.slots()), r.replication()), (n, 128));
    }
    assert!(RegisterLayout::strided(&[64, 48], 2, Group::Warpgroup).straddles(0));
    assert!(!RegisterLayout::strided(&[64, 64], 2, Group::Warpgroup).straddles(0));
    let warp = RegisterLayout::strided(&[100], 1, Group::Warp);
    assert_eq!((warp.slots(), warp.group().threads()), (4, 32));
    assert_eq!(TiledLayout::wgmma().instantiate(&[60, 12]).unwrap().slots(), 8);
    assert_eq!(
        RegisterLayout::strided_default(&[64, 24], 32, Group::Warpgroup).words(16),
        6
    );
}

#[test]
fn slots_are_found_by_the_elements_of_the_first_thread() {
    let mut rng = Rng::new(11);
    for _ in 0..300 {
        let layout = arbitrary_layout(&mut rng, None);
        let held: Vec<Option<u64>> = (0..layout.slots())
            .map(|slot| layout.element(0, slot).map(|index| flat(layout.shape(), &index)))
            .collect();
        let Some(mut order) = held.iter().copied().collect::<Option<Vec<u64>>>() else {
            assert_eq!(layout.slots_of(&vec![0; held.len()]), None, "padded: {layout}");
            continue;
        };
        order.reverse();
        let distinct: std::collections::BTreeSet<u64> = order.iter().copied().collect();
        if distinct.len() < order.len() {
            assert_eq!(layout.slots_of(&order), None, "an element twice: {layout}");
            continue;
        }
        let slots = layout.slots_of(&order).unwrap();
        let found: Vec<u64> = slots.iter().map(|slot| held[*slot as usize].unwrap()).collect();
        assert_eq!(found, order, "{layout}");
        assert_eq!(layout.slots_of(&order[1..]), None, "{layout}");
        if order.len() > 1 {
            order[0] = order[1];
            assert_eq!(layout.slots_of(&order), None, "{layout}");
        }
    }
}

#[test]
fn one_warp_has_of_a_layout_what_the_first_of_four_has() {
    let mut cases = 0;
    for name in TiledLayout::NAMES {
        let whole = TiledLayout::by_name(name).unwrap();
        let Some(one) = whole.of_one_warp() else { continue };
        let base = whole.base_tile();
        let shape: Vec<u64> = base.iter().enumerate().map(|(i, n)| n * (1 + i as u64)).collect();
        let mut own = shape.clone();
        if !whole.is_alike_in_warps() {
            own[0] /= 4;
        }
        let (of_four, of_one) = (whole.instantiate(&shape).unwrap(), one.instantiate(&own).unwrap());
        assert_eq!(of_one.group(), Group::Warp, "{name}");
        for (lane, slot) in (0..32).flat_map(|t| (0..of_one.slots()).map(move |s| (t, s))) {
            assert_eq!(of_one.element(lane, slot), of_four.element(lane, slot), "{name}");
        }
        cases += 1;
    }
    assert!(cases >= 7, "{cases}");
}
