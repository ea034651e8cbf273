//! Transfer plans executed access by access against the layouts' definitions.
use super::testing::*;
use smalt::layout::address::{Fold, possible_bits};
use smalt::layout::derivation::blocked;
use smalt::layout::digits::Digit;
use smalt::layout::facts::{DynId, Fact, Start};
use smalt::layout::gf2::BitMatrix;
use smalt::layout::register_layout::{Axis, Group, Place, RegisterLayout, Term};
use smalt::layout::smem_layout::{Index, SmemView};
use smalt::layout::tiled::TiledLayout;
use smalt::layout::transfer::*;

/// A random view of `shape`: tiled and swizzled, transposed, sliced out of something larger, loose.
fn arbitrary_view(rng: &mut Rng, shape: &[u64], bits: u32, values: &mut Vec<u64>) -> SmemView {
    let rank = shape.len();
    // Draw an allocation that contains the view: per dimension, where it starts.
    let mut indices = Vec::new();
    let mut outer = Vec::new();
    for &n in shape {
        match rng.below(4) {
            0 => {
                let unit = rng.pick(&[1, 4, 8, n]);
                let start = unit * rng.below(3);
                let total = (start + n).div_ceil(8) * 8;
                outer.push(total);
                if rng.below(2) == 0 {
                    indices.push(Index::Slice(Start::Static(start), n));
                } else {
                    values.push(start);
                    let id = DynId(values.len() as u32 - 1);
                    indices.push(Index::Slice(Start::Dynamic(id, Fact::multiple_of(unit)), n));
                }
            }
            _ => {
                outer.push(n);
                indices.push(Index::Slice(Start::Static(0), n));
            }
        }
    }
    if rng.below(3) == 0 {
        let at = rng.below(rank as u64 + 1) as usize;
        outer.insert(at, 3);
        let start = rng.below(3);
        if rng.below(2) == 0 {
            indices.insert(at, Index::At(Start::Static(start)));
        } else {
            values.push(start);
            indices.insert(
                at,
                Index::At(Start::Dynamic(DynId(values.len() as u32 - 1), Fact::UNKNOWN)),
            );
        }
    }
    let minor = outer[outer.len() - 1];
    let choices = [16u32, 32, 64, 128].map(|s| (s, u64::from(s) * 8 / u64::from(bits)));
    let fitting: Vec<_> = choices.into_iter().filter(|&(_, t)| t > 0 && minor % t == 0).collect();
    let made = match (fitting.is_empty(), rng.below(4)) {
        (false, 0..=2) => {
            let (swizzle, t) = rng.pick(&fitting);
            let second = outer.len().checked_sub(2).map(|k| outer[k]);
            match second {
                Some(r) if r % 8 == 0 => SmemView::new(&outer, bits, &[8, t], swizzle),
                _ => SmemView::new(&outer, bits, &[t], swizzle),
            }
        }
        _ => SmemView::new(&outer, bits, &[], 16),
    };
    made.unwrap().index_loosely(&indices).unwrap()
}

fn check(
    layout: &RegisterLayout,
    view: &SmemView,
    values: &[u64],
    memory: Memory,
    options: Options,
) -> [Option<TransferPlan>; 2] {
    let value = |id: DynId| values[id.0 as usize];
    let shape = view.shape();
    let buffer = 3072;
    let mut plans = [None, None];
    for (k, direction) in [Direction::Store, Direction::Load].into_iter().enumerate() {
        let p = match plan(layout, view, memory, direction, options) {
            Ok(p) => p,
            Err(TransferError::SubByteStore { bits }) => {
                assert!(bits < 8 && direction == Direction::Store);
                continue;
            }
            Err(e) => panic!("{e}"),
        };
        let at = |index: &[u64]| {
            let (byte, bit) = view.address(index, &value);
            (buffer + byte, bit)
        };
        let bits = view.bits;
        let end = indices(&shape).iter().map(|i| at(i).0).max().unwrap_or(0);
        let mut mem = Bytes::new(end + 2048);
        if direction == Direction::Store {
            let mut regs = filled(&p.layout, bits);
            execute(&p, view, buffer, &value, &mut regs, &mut mem);
            let mut touched = std::collections::BTreeSet::new();
            for i in indices(&shape) {
                let (byte, bit) = at(&i);
                assert_eq!(
                    mem.get(byte, bit, bits),
                    element_value(flat(&shape, &i), bits),
                    "{layout} {view:?} {i:?}\n{p:?}"
                );
                touched.extend((0..(bit + bits).div_ceil(8)).map(|b| byte + u64::from(b)));
            }
            let written = mem.written.iter().filter(|w| **w).count();
            assert_eq!(written, touched.len(), "{layout} {view:?} wrote outside of the view");
        } else {
            for i in indices(&shape) {
                let (byte, bit) = at(&i);
                mem.put(byte, bit, bits, element_value(flat(&shape, &i), bits));
            }
            let mut regs =
                vec![vec![0x77 & mask(bits); p.layout.slots() as usize]; p.layout.group().threads() as usize];
            execute(&p, view, buffer, &value, &mut regs, &mut mem);
            for (t, s) in (0..p.layout.group().threads()).flat_map(|t| (0..p.layout.slots()).map(move |s| (t, s))) {
                if let Some(i) = p.layout.element(t, s) {
                    let want = element_value(flat(&shape, &i), bits);
                    assert_eq!(regs[t as usize][s as usize], want, "{layout} {view:?} t{t} s{s}\n{p:?}");
                }
            }
        }
        plans[k] = Some(p);
    }
    plans
}

#[test]
fn random_transfers_move_every_element() {
    let mut rng = Rng::new(11);
    let (mut elements, mut matrices, mut vectors, mut staggered, mut absolute, mut guarded) = (0, 0, 0, 0, 0, 0);
    for case in 0..1500 {
        let layout = arbitrary_layout(&mut rng, None);
        if layout.shape().iter().product::<u64>() > 8192 {
            continue;
        }
        let bits = rng.pick(&[4, 8, 16, 16, 32, 32, 64]);
        let mut values = Vec::new();
        let view = arbitrary_view(&mut rng, layout.shape(), bits, &mut values);
        let memory = if case % 4 == 0 && view.swizzle.is_none() {
            Memory::Global { align: 16 }
        } else {
            Memory::Shared
        };
        for p in check(&layout, &view, &values, memory, Options::default())
            .into_iter()
            .flatten()
        {
            match (&p.addressing, p.accesses.first().map(|a| a.kind)) {
                (Addressing::Elements { .. }, _) => elements += 1,
                (Addressing::Affine(a), kind) => {
                    absolute += u32::from(a.fold == Fold::Absolute);
                    staggered += u32::from(!p.stagger.is_empty());
                    match kind {
                        Some(AccessKind::Matrix { .. }) => matrices += 1,
                        _ => vectors += 1,
                    }
                }
            }
            guarded += u32::from(p.accesses.iter().any(|a| !a.guards.is_empty()));
        }
    }
    let counts = [elements, matrices, vectors, staggered, absolute, guarded];
    assert!(counts.iter().all(|&c| c > 20), "{counts:?}");
}

fn wgmma(m: u64, n: u64) -> RegisterLayout {
    TiledLayout::wgmma().instantiate(&[m, n]).unwrap()
}

#[test]
fn wgmma_stores_are_stmatrix_with_few_bases() {
    // MATMUL.md, rule 8: with a 128-byte swizzle, 4 lane addresses per thread and the rest immediates.
    let view = SmemView::new(&[64, 64], 16, &[8, 64], 128).unwrap();
    let [store, load] = check(&wgmma(64, 64), &view, &[], Memory::Shared, Options::default()).map(Option::unwrap);
    for p in [&store, &load] {
        assert_eq!(p.accesses.len(), 4);
        assert!(
            p.accesses
                .iter()
                .all(|a| a.kind == AccessKind::Matrix { count: 4, trans: false })
        );
        assert_eq!((p.conflicts, p.accesses[0].slots.len()), (1, 8));
        let Addressing::Affine(a) = &p.addressing else { panic!() };
        assert_eq!(a.fold, Fold::Linear);
        assert!(a.bases.len() <= 4, "{a:?}");
    }
    // A ring slot chosen at run time keeps that: its stride is a multiple of the swizzle's period.
    let ring = SmemView::new(&[4, 128, 64], 16, &[8, 64], 128).unwrap();
    let slot = Start::Dynamic(DynId(0), Fact::UNKNOWN);
    let half = Start::Dynamic(DynId(1), Fact::multiple_of(64));
    let view = ring
        .index(&[
            Index::At(slot),
            Index::Slice(half, 64),
            Index::Slice(Start::Static(0), 64),
        ])
        .unwrap();
    let [store, _] = check(&wgmma(64, 64), &view, &[2, 64], Memory::Shared, Options::default()).map(Option::unwrap);
    let Addressing::Affine(a) = &store.addressing else {
        panic!()
    };
    assert_eq!((a.fold, store.accesses.len()), (Fold::Linear, 4));
    // Wide tiles: more accesses, no more bases.
    let view = SmemView::new(&[64, 256], 16, &[8, 64], 128).unwrap();
    let [store, _] = check(&wgmma(64, 256), &view, &[], Memory::Shared, Options::default()).map(Option::unwrap);
    let Addressing::Affine(a) = &store.addressing else {
        panic!()
    };
    assert!(store.accesses.len() == 16 && a.bases.len() <= 4, "{a:?}");
}

#[test]
fn transposed_views_use_trans() {
    let view = SmemView::new(&[64, 64], 16, &[8, 64], 128).unwrap().transpose(&[1, 0]);
    let [store, load] = check(&wgmma(64, 64), &view, &[], Memory::Shared, Options::default()).map(Option::unwrap);
    for p in [store, load] {
        assert!(
            p.accesses
                .iter()
                .all(|a| a.kind == AccessKind::Matrix { count: 4, trans: true }),
            "{p:?}"
        );
        assert_eq!((p.accesses.len(), p.conflicts), (4, 1));
    }
}

#[test]
fn every_width_and_swizzle_of_a_wgmma_tile() {
    for bits in [8, 16, 32] {
        for swizzle in [16u32, 32, 64, 128] {
            let t = u64::from(swizzle) * 8 / u64::from(bits);
            let view = SmemView::new(&[64, 2 * t], bits, &[8, t], swizzle).unwrap();
            for name in ["WGMMA", "WGMMA_8BIT", "WGMMA_UPCAST_2X", "WGMMA_TRANSPOSED"] {
                let Ok(layout) = TiledLayout::by_name(name).unwrap().instantiate(&[64, 2 * t]) else {
                    continue;
                };
                if layout.is_padded() {
                    continue;
                }
                for options in [
                    Options::default(),
                    Options {
                        matrix: false,
                        stagger: true,
                        singly: false,
                    },
                    Options {
                        matrix: false,
                        stagger: false,
                        singly: false,
                    },
                ] {
                    let plans = check(&layout, &view, &[], Memory::Shared, options);
                    check(
                        &layout,
                        &view.transpose(&[1, 0]).transpose(&[1, 0]),
                        &[],
                        Memory::Shared,
                        options,
                    );
                    let p = plans[0].as_ref().unwrap();
                    if options.matrix && name == "WGMMA" && bits == 16 {
                        assert!(
                            matches!(p.accesses[0].kind, AccessKind::Matrix { .. }) && p.conflicts == 1,
                            "{swizzle}"
                        );
                    }
                    // What Mosaic finds a conflict-free order for, so do we.
                    if name == "WGMMA" && bits == 32 && options.stagger {
                        assert_eq!(p.conflicts, 1, "{bits} {swizzle} {p:?}");
                    }
                }
            }
        }
    }
}

/// What a plan's accesses are, all alike: (kind, lane bits, bases, conflicts).
fn form(p: &TransferPlan) -> (AccessKind, &[u8], usize, u32) {
    let Addressing::Affine(a) = &p.addressing else {
        panic!("{p:?}")
    };
    assert!(p.accesses.iter().all(|x| x.kind == p.accesses[0].kind));
    assert!(p.accesses.iter().all(|x| x.staggered.len() + 1 == 1 << p.stagger.len()));
    (p.accesses[0].kind, &p.stagger, a.bases.len(), p.conflicts)
}

fn matrix(count: u32, trans: bool) -> AccessKind {
    AccessKind::Matrix { count, trans }
}

fn both(layout: &RegisterLayout, view: &SmemView, values: &[u64]) -> [TransferPlan; 2] {
    check(layout, view, values, Memory::Shared, Options::default()).map(Option::unwrap)
}

#[test]
fn rows_in_the_same_banks_are_staggered_matrices() {
    // Row-major tiles: (rows, columns), matrices of an instruction, lane bits, addresses.
    for (m, n, count, lanes, bases) in [
        (64, 64, 2, &[2, 3, 4][..], 8),
        (128, 64, 4, &[2, 3, 4], 8),
        (64, 128, 4, &[2, 3, 4], 8),
        (128, 128, 4, &[2, 3, 4], 8),
        (64, 192, 2, &[2, 3, 4], 8),
        (64, 256, 4, &[2, 3, 4], 8),
        // Rows of 64 bytes: two are in different banks; of 192: the same; of 32: four.
        (64, 32, 2, &[3, 4], 4),
        (64, 96, 2, &[3, 4], 4),
        (64, 16, 2, &[4], 2),
        // Rows of 272 bytes: all are in different banks.
        (64, 136, 2, &[], 1),
    ] {
        let view = SmemView::new(&[m, n], 16, &[], 16).unwrap();
        for p in both(&wgmma(m, n), &view, &[]) {
            assert_eq!(form(&p), (matrix(count, false), lanes, bases, 1), "{m} x {n}");
        }
    }
    // Bytes: matrices of 16 columns.
    for (n, lanes) in [(64, &[3, 4][..]), (128, &[2, 3, 4]), (256, &[2, 3, 4])] {
        let layout = TiledLayout::by_name("WGMMA_8BIT")
            .unwrap()
            .instantiate(&[64, n])
            .unwrap();
        let view = SmemView::new(&[64, n], 8, &[], 16).unwrap();
        for p in both(&layout, &view, &[]) {
            let (kind, stagger, _, conflicts) = form(&p);
            assert!(matches!(kind, AccessKind::Matrix { trans: false, .. }), "{p:?}");
            assert_eq!((stagger, conflicts), (lanes, 1));
        }
    }
}

#[test]
fn parts_of_larger_buffers_are_staggered_wherever_they_begin() {
    let outer = SmemView::new(&[3, 192, 256], 16, &[], 16).unwrap();
    let slot = Start::Dynamic(DynId(0), Fact::UNKNOWN);
    let row = Start::Dynamic(DynId(1), Fact::UNKNOWN);
    for (start, n) in [(0, 128), (64, 64), (128, 128), (192, 64)] {
        for rows in [Start::Static(0), Start::Static(5), row] {
            let columns = Index::Slice(Start::Static(start), n);
            let view = outer
                .index(&[Index::At(slot), Index::Slice(rows, 64), columns])
                .unwrap();
            for p in both(&wgmma(64, n), &view, &[2, 77]) {
                let (kind, stagger, _, conflicts) = form(&p);
                assert!(matches!(kind, AccessKind::Matrix { trans: false, .. }), "{p:?}");
                assert_eq!((stagger, conflicts), (&[2, 3, 4][..], 1));
            }
        }
    }
    // A start that has the bits of some chunks: the others are exchanged, as far as there are any.
    for (start, worst) in [(8, 2), (16, 2), (32, 2), (24, 4), (56, 8)] {
        let columns = Index::Slice(Start::Static(start), 128);
        let view = outer.index(&[Index::At(slot), Index::Slice(row, 64), columns]).unwrap();
        for p in both(&wgmma(64, 128), &view, &[1, 100]) {
            assert!(p.conflicts <= worst, "{start} {p:?}");
        }
    }
}

#[test]
fn transposed_rows_in_the_same_banks_are_staggered_matrices() {
    // 16 columns of a warp are neighbours in memory: one digit for the row bits that are lane bits.
    for n in [64, 128, 256] {
        let view = SmemView::new(&[n, 64], 16, &[], 16).unwrap().transpose(&[1, 0]);
        for p in both(&wgmma(64, n), &view, &[]) {
            assert_eq!(form(&p), (matrix(4, true), &[0][..], 2, 4), "{n}");
        }
    }
    // 32: one for each; the third row bit is in the word.
    let digit = |size, place| Digit::new(size, place);
    let axes = [
        vec![
            digit(8, Place::Thread(2)),
            digit(4, Place::Slot(2)),
            digit(4, Place::Thread(5)),
        ],
        vec![
            digit(2, Place::Slot(1)),
            digit(4, Place::Thread(0)),
            digit(2, Place::Slot(8)),
        ],
    ];
    let axes = axes.into_iter().enumerate().map(|(first, chain)| Axis {
        first,
        rank: 1,
        size: [128, 16][first],
        chain: chain.into_iter().collect(),
    });
    let layout = RegisterLayout::from_axes(&[128, 16], Group::Warpgroup, axes.collect::<Vec<_>>());
    let view = SmemView::new(&[16, 128], 16, &[], 16).unwrap().transpose(&[1, 0]);
    for p in both(&layout, &view, &[]) {
        assert_eq!(form(&p), (matrix(2, true), &[0, 1][..], 4, 2));
    }
}

#[test]
fn vectors_whose_lanes_are_in_the_same_banks_are_staggered() {
    for n in [32, 64, 96, 128, 256] {
        let view = SmemView::new(&[64, n], 32, &[], 16).unwrap();
        for p in both(&wgmma(64, n), &view, &[]) {
            assert_eq!(form(&p), (AccessKind::Vector { bytes: 8 }, &[2, 3][..], 4, 1), "{n}");
        }
    }
    // Without matrices, words of eight rows are stored together.
    for (n, lanes, bases) in [(64, &[2, 3, 4][..], 8), (128, &[2, 3, 4], 8), (32, &[3, 4], 4)] {
        let view = SmemView::new(&[64, n], 16, &[], 16).unwrap();
        let options = Options {
            matrix: false,
            ..Options::default()
        };
        for p in check(&wgmma(64, n), &view, &[], Memory::Shared, options) {
            let expected = (AccessKind::Vector { bytes: 4 }, lanes, bases, 1);
            assert_eq!(form(&p.unwrap()), expected, "{n}");
        }
    }
}

/// Every element of tiles of random layouts, in random parts of memory without and with swizzles.
#[test]
fn random_tiles_are_staggered() {
    let mut rng = Rng::new(5);
    // Matrices by number of lane bits, not transposed and transposed; vectors likewise.
    let mut counts = [[0; 4]; 3];
    for _ in 0..400 {
        let name = rng.pick(&["WGMMA", "WGMMA", "WGMMA_8BIT", "WGMMA_UPCAST_2X", "WGMMA_TRANSPOSED"]);
        let (m, n) = (64 * (1 + rng.below(2)), rng.pick(&[16, 32, 64, 96, 128, 192]));
        let Ok(layout) = TiledLayout::by_name(name).unwrap().instantiate(&[m, n]) else {
            continue;
        };
        let layout = match rng.below(3) {
            0 => shuffle_slots(&layout, &mut rng),
            _ => layout,
        };
        let bits = rng.pick(&[8, 16, 16, 16, 32]);
        // In front of the tile, behind it.
        let (unit, mut outer, mut at) = (rng.pick(&[8, 16, 64]), vec![], vec![]);
        let mut values = vec![];
        for n in [m, n] {
            let start = unit * rng.below(3);
            outer.push((start + n).next_multiple_of(64));
            if rng.below(2) == 0 {
                at.push(Index::Slice(Start::Static(start), n));
            } else {
                at.push(Index::Slice(
                    Start::Dynamic(DynId(values.len() as u32), Fact::multiple_of(unit)),
                    n,
                ));
                values.push(start);
            }
        }
        let turned = rng.below(3) == 0;
        if turned {
            outer.reverse();
            at.reverse();
        }
        let (tiling, swizzle) = match rng.below(4) {
            0 => (vec![8, 256 / u64::from(bits)], 32),
            _ => (vec![], 16),
        };
        let view = SmemView::new(&outer, bits, &tiling, swizzle).unwrap();
        let mut view = view.index_loosely(&at).unwrap();
        if turned {
            view = view.transpose(&[1, 0]);
        }
        let options = Options {
            matrix: rng.below(4) != 0,
            ..Options::default()
        };
        for p in check(&layout, &view, &values, Memory::Shared, options)
            .into_iter()
            .flatten()
        {
            let kind = match p.accesses[0].kind {
                AccessKind::Matrix { trans, .. } => usize::from(trans),
                AccessKind::Vector { .. } => 2,
                AccessKind::Element => continue,
            };
            counts[kind][p.stagger.len()] += 1;
        }
    }
    assert!(counts[0].iter().all(|&c| c > 5), "{counts:?}");
    assert!(counts[1][..2].iter().all(|&c| c > 5), "{counts:?}");
    assert!(counts[2].iter().all(|&c| c > 5), "{counts:?}");
}

#[test]
fn conflicts_are_what_the_rank_says() {
    // A plain row-major tile: rows 128 bytes apart, all of a column in one bank.
    let plain = SmemView::new(&[64, 32], 32, &[], 16).unwrap();
    let options = Options {
        matrix: false,
        stagger: false,
        singly: false,
    };
    let p = plan(&wgmma(64, 32), &plain, Memory::Shared, Direction::Store, options).unwrap();
    assert_eq!(
        p.conflicts, 4,
        "four rows per group of 16 lanes, all in the same banks: {p:?}"
    );
    for (view, bytes) in [
        (plain.clone(), 8),
        (SmemView::new(&[64, 32], 32, &[8, 32], 128).unwrap(), 8),
    ] {
        let p = plan(&wgmma(64, 32), &view, Memory::Shared, Direction::Store, options).unwrap();
        let Addressing::Affine(a) = &p.addressing else { panic!() };
        assert_eq!(p.accesses[0].kind, AccessKind::Vector { bytes });
        // Lane bits 0..4 are served together (16 lanes of 8 bytes); a bank is address bits 3..7 for pairs of words.
        let columns = (0..4).map(|k| a.address(0, 1 << k, 0, 0) ^ a.address(0, 0, 0, 0));
        let m = BitMatrix::from_columns(columns).masked(0x78);
        assert_eq!(p.conflicts, 1 << (4 - m.rank()), "{p:?}");
    }
}

#[test]
fn no_sum_has_a_bit_that_is_called_impossible() {
    let mut rng = Rng::new(23);
    for _ in 0..3000 {
        let mut bit = 0;
        let mut terms = vec![];
        while bit < 5 {
            let bits = 1 + rng.below(3).min(4 - u64::from(bit)) as u8;
            terms.push(Term::of_thread(
                bit,
                1 << bits,
                rng.pick(&[0, 1, 2, 3, 4, 8, 12, 16, 24, 64, 80, 384]),
            ));
            bit += bits;
        }
        let possible = possible_bits(&terms);
        for lane in 0..32 {
            let sum = terms.iter().map(|t| t.value(lane)).sum::<i64>() as u64;
            assert_eq!(sum & !possible, 0, "{terms:?}");
        }
    }
    // Sums that are apart do not fill what is between them.
    let apart = [(0, 4, 8), (2, 4, 384), (4, 2, 1536)].map(|(bit, size, stride)| Term::of_thread(bit, size, stride));
    assert_eq!(possible_bits(&apart), 0b1111_1000_0000 | 0b1_1000);
}

#[test]
fn strided_global_transfers_are_coalesced() {
    for (shape, bits, vec, bytes) in [
        (&[64, 64][..], 32, 2, 8),
        (&[64, 64], 32, 4, 16),
        (&[64, 48], 32, 2, 8),
        (&[1024], 16, 8, 16),
        (&[256], 8, 2, 2),
    ] {
        let layout = RegisterLayout::strided(shape, vec, Group::Warpgroup);
        let view = SmemView::row_major(shape, bits);
        for p in check(&layout, &view, &[], Memory::Global { align: 16 }, Options::default())
            .into_iter()
            .flatten()
        {
            assert_eq!(p.accesses[0].kind, AccessKind::Vector { bytes });
            assert_eq!(p.sector_percent, 100);
            let Addressing::Affine(a) = &p.addressing else {
                panic!("{p:?}")
            };
            assert_eq!(a.bases, [0]);
        }
    }
    // WGMMA fragments of f32: rows of 32 bytes, whole sectors.
    let p = plan(
        &wgmma(64, 64),
        &SmemView::row_major(&[64, 64], 32),
        Memory::Global { align: 16 },
        Direction::Store,
        Options::default(),
    );
    assert_eq!(p.unwrap().sector_percent, 100);
    // A buffer that is only known to be aligned to 4 bytes takes narrow accesses.
    let layout = RegisterLayout::strided(&[1024], 4, Group::Warpgroup);
    let p = plan(
        &layout,
        &SmemView::row_major(&[1024], 32),
        Memory::Global { align: 4 },
        Direction::Load,
        Options::default(),
    );
    assert_eq!(p.unwrap().accesses[0].kind, AccessKind::Vector { bytes: 4 });
}

#[test]
fn odd_shapes_and_splats() {
    for shape in [&[10][..], &[33], &[64, 24], &[5, 7, 3], &[1], &[]] {
        for bits in [8, 16, 32, 64] {
            let view = SmemView::row_major(shape, bits);
            for layout in [
                RegisterLayout::strided_default(shape, bits, Group::Warpgroup),
                RegisterLayout::strided(shape, 4, Group::Warpgroup),
                RegisterLayout::strided_default(shape, bits, Group::Warp),
                RegisterLayout::replicated(shape, Group::Warpgroup),
                RegisterLayout::splat(shape, Group::Warpgroup),
            ] {
                let plans = check(&layout, &view, &[], Memory::Shared, Options::default());
                assert!(plans.iter().all(Option::is_some));
                check(&layout, &view, &[], Memory::Global { align: 8 }, Options::default());
            }
        }
    }
}

/// Warps that hold copies do not all store them.
#[test]
fn copies_are_stored_once() {
    let layout = TiledLayout::mma_rhs(16, 4).instantiate(&[32, 16]).unwrap();
    for view in [
        SmemView::row_major(&[32, 16], 16),
        SmemView::strided(&[32, 16], &[16, 16 * 40], 16),
    ] {
        let p = plan(&layout, &view, Memory::Shared, Direction::Store, Options::default()).unwrap();
        assert!(p.only_first_replica != 0 && p.accesses.iter().all(|a| !matches!(a.kind, AccessKind::Matrix { .. })));
    }
}

/// The elements that padding guards are of one order only, so lanes must not change it.
#[test]
fn padded_dimensions_are_not_staggered() {
    for (rows, columns) in [(9, 16), (7, 31), (31, 15), (33, 64)] {
        let layout = blocked(&[rows, columns], 8, Group::Warpgroup);
        for row in [8 * 48, 8 * 80] {
            let view = SmemView::strided(&[rows, columns], &[8, row], 8);
            check(&layout, &view, &[], Memory::Shared, Options::default());
        }
    }
}

#[test]
fn planning_is_cheap() {
    let view = SmemView::new(&[128, 256], 16, &[8, 64], 128).unwrap();
    let layout = wgmma(128, 256);
    let start = std::time::Instant::now();
    for _ in 0..100 {
        plan(&layout, &view, Memory::Shared, Direction::Store, Options::default()).unwrap();
    }
    let each = start.elapsed() / 100;
    // Generous: shared machines, unoptimised builds. 36 us in release.
    assert!(each < std::time::Duration::from_millis(20), "{each:?} per plan");
}
