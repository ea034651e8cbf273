//! Relayout plans executed word by word.
use super::testing::*;
use smalt::layout::register_layout::{Group, RegisterLayout};
use smalt::layout::relayout::{self, Op, Program, RelayoutError, RelayoutKind, RelayoutPlan};
use smalt::layout::tiled::TiledLayout;
use smalt::layout::transfer::Direction;

const SCRATCH: u64 = 64 << 10;

/// `[thread][word]` from `[thread][slot]`, densely packed.
fn pack(registers: &Registers, bits: u32) -> Vec<Vec<u32>> {
    let one = |slots: &Vec<u64>| -> Vec<u32> {
        if bits == 64 {
            return slots.iter().flat_map(|v| [*v as u32, (v >> 32) as u32]).collect();
        }
        let per = (32 / bits) as usize;
        slots
            .chunks(per)
            .map(|w| {
                w.iter()
                    .enumerate()
                    .fold(0, |x, (k, v)| x | (*v as u32) << (k as u32 * bits))
            })
            .collect()
    };
    registers.iter().map(one).collect()
}

fn unpack(words: &[Vec<u32>], slots: u32, bits: u32) -> Registers {
    let slot = |w: &Vec<u32>, s: u32| match bits {
        64 => u64::from(w[2 * s as usize]) | u64::from(w[2 * s as usize + 1]) << 32,
        _ => u64::from(w[(s * bits / 32) as usize] >> (s * bits % 32)) & mask(bits),
    };
    words.iter().map(|w| (0..slots).map(|s| slot(w, s)).collect()).collect()
}

/// All threads execute the program in lockstep.
fn run(program: &Program, inputs: Vec<Vec<u32>>) -> Vec<Vec<u32>> {
    let mut words = inputs;
    assert!(words.iter().all(|w| w.len() as u32 == program.inputs));
    for op in &program.ops {
        let results: Vec<u32> = (0..words.len() as u32)
            .map(|t| {
                let own = &words[t as usize];
                let at = |w: u32| own[w as usize];
                match *op {
                    Op::Permute { a, b, selector } => {
                        let both = u64::from(at(a)) | u64::from(at(b)) << 32;
                        (0..4).fold(0, |x, k| {
                            let byte = selector >> (4 * k) & 0xf;
                            assert!(byte < 8, "sign replication is not used");
                            x | ((both >> (8 * byte)) as u32 & 0xff) << (8 * k)
                        })
                    }
                    Op::Select { bit, zero, one } => {
                        if t >> bit & 1 != 0 {
                            at(one)
                        } else {
                            at(zero)
                        }
                    }
                    Op::Shuffle { a, lanes } => {
                        let from = lanes.source(t % 32);
                        if let Some(mask) = lanes.butterfly() {
                            assert_eq!(from, (t % 32) ^ u32::from(mask));
                        }
                        words[(t / 32 * 32 + from) as usize][a as usize]
                    }
                    Op::Extract { a, lo, bits } => at(a) >> lo & mask(bits.into()) as u32,
                    Op::Insert { a, b, lo, bits } => {
                        let m = (mask(bits.into()) as u32) << lo;
                        at(a) & !m | at(b) << lo & m
                    }
                }
            })
            .collect();
        words.iter_mut().zip(results).for_each(|(w, r)| w.push(r));
    }
    words
        .iter()
        .map(|w| program.outputs.iter().map(|&o| w[o as usize]).collect())
        .collect()
}

/// Executes the plan on an array of known values and compares every element.
fn check(src: &RegisterLayout, dst: &RegisterLayout, bits: u32, scratch: u64) -> RelayoutPlan {
    let plan = relayout::plan(src, dst, bits, scratch).unwrap_or_else(|e| panic!("{src} -> {dst}: {e}"));
    let constant = |l: &RegisterLayout, d| {
        use smalt::layout::register_layout::Place;
        l.axis_of(d).chain.iter().any(|c| c.place == Place::Constant)
    };
    // Where the source is constant, its value must not depend on the index.
    let value = |index: &[u64]| {
        let i: Vec<u64> = index
            .iter()
            .enumerate()
            .map(|(d, &x)| if constant(src, d) { 0 } else { x })
            .collect();
        element_value(flat(src.shape(), &i), bits)
    };
    let fill = |l: &RegisterLayout| -> Registers {
        let one = |t, s| l.element(t, s).map_or(0x5a & mask(bits), |i| value(&i));
        (0..l.group().threads())
            .map(|t| (0..l.slots()).map(|s| one(t, s)).collect())
            .collect()
    };
    let threads = src.group().threads();
    let got: Registers = match &plan.kind {
        RelayoutKind::Registers(p) => {
            assert_eq!(p.outputs.len() as u32, dst.words(bits));
            unpack(&run(p, pack(&fill(src), bits)), dst.slots(), bits)
        }
        RelayoutKind::Scratch(p) => {
            assert!(p.bytes <= scratch);
            assert!(src.rename_to(&p.source).is_some());
            let mut from = fill(&p.source);
            let mut to = vec![vec![0x33 & mask(bits); dst.slots() as usize]; threads as usize];
            let buffer = 48;
            for trip in &p.trips {
                assert_eq!(
                    (trip.store.direction, trip.load.direction),
                    (Direction::Store, Direction::Load)
                );
                // Whatever an earlier trip left must not be needed: poison.
                let mut memory = Bytes::new(buffer + p.bytes);
                let none = |_| unreachable!();
                execute(&trip.store, &p.view, buffer, &none, &mut from, &mut memory);
                execute(&trip.load, &p.view, buffer, &none, &mut to, &mut memory);
            }
            to
        }
    };
    for (t, s) in (0..threads).flat_map(|t| (0..dst.slots()).map(move |s| (t, s))) {
        if let Some(i) = dst.element(t, s) {
            assert_eq!(
                got[t as usize][s as usize],
                value(&i),
                "{bits} bits: {src} -> {dst} thread {t} slot {s} {i:?}\n{plan:?}"
            );
        }
    }
    plan
}

#[test]
fn ten_thousand_random_conversions() {
    let mut rng = Rng::new(21);
    let (mut free, mut shuffled, mut scratch, mut conflicts, mut passes) = (0, 0, 0, 0, 0);
    let mut done = 0;
    while done < 10_000 {
        let src = arbitrary_layout(&mut rng, None);
        if src.shape().iter().product::<u64>() > 1100 {
            continue;
        }
        let dst = match rng.below(4) {
            0 => shuffle_slots(&src, &mut rng),
            1 => shuffle_lanes(&src, &mut rng),
            _ => arbitrary_layout(&mut rng, Some(src.shape())),
        };
        let bits = rng.pick(&[4, 8, 8, 16, 16, 32, 32, 64]);
        if dst.is_splat() && !src.is_splat() && src.shape().iter().product::<u64>() > 1 {
            assert!(matches!(
                relayout::plan(&src, &dst, bits, SCRATCH),
                Err(RelayoutError::ToConstant(_))
            ));
            continue;
        }
        let budget = if rng.below(3) == 0 { 4 << 10 } else { SCRATCH };
        if let Err(RelayoutError::Scratch { needed, .. }) = relayout::plan(&src, &dst, bits, budget) {
            assert!(needed > budget);
            continue;
        }
        let plan = check(&src, &dst, bits, budget);
        match plan.kind {
            RelayoutKind::Registers(p) if p.shuffles() == 0 => free += 1,
            RelayoutKind::Registers(_) => shuffled += 1,
            RelayoutKind::Scratch(p) => {
                scratch += 1;
                passes += u32::from(p.trips.len() > 1);
                let all = p.trips.iter().flat_map(|t| [t.store.conflicts, t.load.conflicts]);
                let odd = |l: &RegisterLayout| {
                    l.is_padded()
                        || l.shape().iter().any(|n| !n.is_power_of_two())
                        || l.axes().iter().any(|a| a.rank > 1)
                };
                // Conflicts remain only where digits are odd, straddle or are padded.
                let conflict = all.max() > Some(1);
                assert!(!conflict || odd(&src) || odd(&dst), "{bits} {src} -> {dst}: {p:?}");
                conflicts += u32::from(conflict);
            }
        }
        done += 1;
    }
    eprintln!(
        "{free} free, {shuffled} with shuffles, {scratch} through memory ({conflicts} with conflicts, {passes} in passes)"
    );
    assert!(free > 1000 && shuffled > 1000 && scratch > 1000 && passes > 20);
}

fn named(name: &str, shape: &[u64]) -> RegisterLayout {
    TiledLayout::by_name(name).unwrap().instantiate(shape).unwrap()
}

fn program(plan: &RelayoutPlan) -> &Program {
    match &plan.kind {
        RelayoutKind::Registers(p) => p,
        RelayoutKind::Scratch(_) => panic!("through memory: {plan:?}"),
    }
}

#[test]
fn the_conversions_that_mosaic_has_are_as_cheap() {
    let shape = [64, 64];
    for bits in [8, 16, 32] {
        // Accumulators are free.
        let p = check(&named("WGMMA", &shape), &named("WGMMA_ACC_32BIT", &shape), bits, 0);
        assert!(program(&p).ops.is_empty());
        let p = check(
            &RegisterLayout::splat(&shape, Group::Warpgroup),
            &named("WGMMA", &shape),
            bits,
            0,
        );
        assert_eq!(program(&p).shuffles(), 0);
        assert!(program(&p).ops.len() <= 1);
    }
    // Transposed fragments: half a shuffle per word (stock: one).
    for (a, b, shape) in [
        ("WGMMA", "WGMMA_TRANSPOSED", [64, 64]),
        ("TCGEN05", "TCGEN05_TRANSPOSED", [128, 64]),
    ] {
        for bits in [16, 32] {
            for (a, b) in [(a, b), (b, a)] {
                let p = check(&named(a, &shape), &named(b, &shape), bits, 0);
                let words = named(a, &shape).words(bits) as usize;
                assert_eq!(program(&p).shuffles(), words / 2, "{a} -> {b} {bits}");
            }
        }
    }
    for (a, b) in [
        ("WGMMA_UPCAST_2X", "WGMMA"),
        ("WGMMA", "WGMMA_UPCAST_2X"),
        ("WGMMA_UPCAST_4X", "WGMMA_UPCAST_2X"),
        ("WGMMA_UPCAST_4X", "WGMMA"),
        ("WGMMA_8BIT", "WGMMA"),
    ] {
        for bits in [4, 8, 16] {
            let p = check(&named(a, &shape), &named(b, &shape), bits, 0);
            let words = named(a, &shape).words(bits) as usize;
            let shuffles = program(&p).shuffles();
            assert!(
                shuffles <= words * if bits == 4 { 8 } else { 1 },
                "{a} -> {b} {bits}: {shuffles} for {words} words"
            );
        }
    }
    for (v, w) in [(2, 4), (4, 16), (16, 2)] {
        let (a, b) = (TiledLayout::tmem_native(v), TiledLayout::tmem_native(w));
        let p = check(
            &a.instantiate(&[128, 32]).unwrap(),
            &b.instantiate(&[128, 32]).unwrap(),
            32,
            0,
        );
        assert!(
            program(&p).ops.is_empty(),
            "native layouts only differ in register order"
        );
    }
}

#[test]
fn trips_through_memory_are_vectorised_and_free_of_conflicts() {
    for (src, dst, bits, bytes) in [
        (
            named("WGMMA", &[64, 64]),
            RegisterLayout::strided(&[64, 64], 4, Group::Warpgroup),
            32,
            8,
        ),
        (
            named("WGMMA", &[64, 64]),
            RegisterLayout::strided(&[64, 64], 8, Group::Warpgroup),
            16,
            4,
        ),
        (named("WGMMA", &[128, 64]), named("TCGEN05", &[128, 64]), 32, 16),
        (named("WGMMA", &[128, 64]), named("TCGEN05", &[128, 64]), 16, 16),
    ] {
        let plan = check(&src, &dst, bits, SCRATCH);
        let RelayoutKind::Scratch(p) = &plan.kind else {
            panic!("{src} -> {dst} moves between warps")
        };
        for t in &p.trips {
            assert_eq!((t.store.conflicts, t.load.conflicts), (1, 1), "{src} -> {dst}");
            for a in t.store.accesses.iter().chain(&t.load.accesses) {
                assert!(
                    matches!(a.kind, smalt::layout::transfer::AccessKind::Vector { bytes: b } if b >= bytes),
                    "{a:?}"
                );
            }
        }
    }
    // Half of the memory: twice the passes.
    let (src, dst) = (
        named("WGMMA", &[64, 64]),
        RegisterLayout::strided(&[64, 64], 4, Group::Warpgroup),
    );
    let plan = check(&src, &dst, 32, 8192);
    assert!(matches!(&plan.kind, RelayoutKind::Scratch(p) if p.trips.len() == 2 && p.bytes == 8192));
    // A transposition of registers: all of a (128, 128) array changes warps.
    let a = named("WGMMA", &[128, 128]);
    let b = a.transpose(&[1, 0]).unwrap();
    for bits in [16, 32] {
        let plan = check(&a, &b, bits, SCRATCH);
        let RelayoutKind::Scratch(p) = &plan.kind else { panic!() };
        assert!(p.trips.iter().all(|t| t.store.conflicts == 1 && t.load.conflicts == 1));
    }
    let needs = relayout::plan(&a, &b, 32, 1024).unwrap_err();
    assert!(
        matches!(needs, RelayoutError::Scratch { needed, available: 1024 } if needed > 1024),
        "{needs}"
    );
}

#[test]
fn small_padded_and_replicated_arrays_convert() {
    for shape in [&[10][..], &[33], &[64, 24], &[5, 7, 3], &[1], &[]] {
        let g = Group::Warpgroup;
        let layouts = [
            RegisterLayout::strided(shape, 1, g),
            RegisterLayout::strided(shape, 4, g),
            RegisterLayout::replicated(shape, g),
            RegisterLayout::splat(shape, g),
        ];
        for (a, b) in layouts.iter().flat_map(|a| layouts[..3].iter().map(move |b| (a, b))) {
            for bits in [4, 8, 16, 32, 64] {
                check(a, b, bits, SCRATCH);
            }
        }
    }
}

#[test]
fn planning_is_deterministic_and_cheap() {
    let (a, b) = (named("WGMMA", &[128, 128]), named("WGMMA_TRANSPOSED", &[128, 128]));
    let first = relayout::plan(&a, &b, 16, SCRATCH).unwrap();
    let start = std::time::Instant::now();
    for _ in 0..20 {
        assert_eq!(relayout::plan(&a, &b, 16, SCRATCH).unwrap(), first);
    }
    assert!(start.elapsed() / 20 < std::time::Duration::from_millis(20));
}
