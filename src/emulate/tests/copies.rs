//! Bulk copies: tensor maps with every swizzle, out-of-bounds boxes, multicast, groups, fences.
use super::build::*;
use crate::ptx::flat::Reg;
use crate::ptx::inst::Inst;
use crate::ptx::launch::{TensorMapElement, TensorMapSpec, TensorMapSwizzle};
use crate::ptx::modifier::*;
use crate::ptx::operand::{Addr, Src};
use smallvec::smallvec;

pub fn map(
    buffer: u32,
    element: TensorMapElement,
    dims: &[u64],
    box_dims: &[u32],
    swizzle: TensorMapSwizzle,
) -> TensorMapSpec {
    let mut strides = vec![];
    let mut stride = dims[0] * u64::from(element.bytes());
    for d in &dims[1..] {
        strides.push(stride);
        stride *= d;
    }
    TensorMapSpec {
        buffer,
        byte_offset: 0,
        element,
        dims: dims.iter().copied().collect(),
        strides: strides.into_iter().collect(),
        box_dims: box_dims.iter().copied().collect(),
        swizzle,
    }
}

/// Thread 0 of one warp does `f` between the initialisation of a barrier at `barrier` and `g`; data at 0 of shared memory.
fn one_thread(smem: u32, barrier: i32, f: impl FnOnce(&mut Kernel, Reg)) -> Kernel {
    let mut k = Kernel::new(32).smem(smem);
    let base = k.smem_base();
    let first = k.first_thread();
    k.when(first, false, |k| {
        k.init_barrier(base, barrier, 1);
        k.push(Inst::FenceMbarrierInit {});
    });
    k.push(Inst::BarWarp { mask: 0xffff_ffff });
    f(&mut k, base);
    k
}

/// Copies shared memory `0..bytes` to buffer `buffer`, word by word.
pub fn dump(k: &mut Kernel, base: Reg, buffer: u32, bytes: u32) {
    let out = k.pointer(buffer);
    let lane = k.special(SpecialReg32::Laneid);
    for start in (0..bytes).step_by(128) {
        let at = k.r();
        k.push(Inst::MadLo {
            ty: IntType::U32,
            d: at,
            a: lane.into(),
            b: imm(4),
            c: base.into(),
        });
        let v = k.load_shared(at, start as i32);
        let to = k.element(out, lane, 4);
        k.push(Inst::St {
            sem: StoreSem::Weak,
            space: Space::Global,
            ty: MemType::B32,
            addr: Addr::at(to, start as i32),
            a: smallvec![v.into()],
        });
    }
}

const SWIZZLES: [TensorMapSwizzle; 4] = [
    TensorMapSwizzle::None,
    TensorMapSwizzle::B32,
    TensorMapSwizzle::B64,
    TensorMapSwizzle::B128,
];

fn xor(offset: usize, swizzle: TensorMapSwizzle) -> usize {
    let mask = match swizzle {
        TensorMapSwizzle::None => 0,
        TensorMapSwizzle::B32 => 1,
        TensorMapSwizzle::B64 => 3,
        TensorMapSwizzle::B128 => 7,
    };
    offset ^ (offset >> 7 & mask) << 4
}

#[test]
fn loads_with_every_swizzle_and_outside_of_the_tensor() {
    let elements = [
        TensorMapElement::U8,
        TensorMapElement::BF16,
        TensorMapElement::F32,
        TensorMapElement::I64,
    ];
    for swizzle in SWIZZLES {
        for element in elements {
            let size = element.bytes();
            let inner = if swizzle == TensorMapSwizzle::None {
                48 / size
            } else {
                swizzle.bytes() / size
            };
            // 3-D, with coordinates before, inside and beyond.
            let dims = [u64::from(64 / size) * 2, 7, 3];
            let spec = map(0, element, &dims, &[inner, 8, 2], swizzle);
            let bytes = inner * size * 16;
            // 16 bytes along the minor dimension.
            let unit = (16 / size) as i32;
            for coords in [
                [0i32, 0, 0],
                [-unit, -2, -1],
                [unit, 3, 2],
                [1024, 0, 0],
                [0, 0, 3],
                [i32::MAX & !15, i32::MIN, 0],
            ] {
                let mut k = one_thread(4096, 4032, |k, base| {
                    let t = k.tensor_map(spec.clone());
                    let first = k.first_thread();
                    k.when(first, false, |k| {
                        k.expect(base, 4032, bytes);
                        k.push(Inst::TensorLoad {
                            dst: Addr::new(base),
                            map: t,
                            coords: coords.iter().map(|c| Src::imm32(*c)).collect(),
                            bar: Addr::at(base, 4032),
                        });
                    });
                    k.wait(base, 4032, imm(0));
                    dump(k, base, 1, bytes.next_multiple_of(128));
                });
                let data = random_bytes((dims.iter().product::<u64>() * u64::from(size)) as usize, 11);
                // Rows of 48 bytes leave no gap; what lies beyond the box nobody wrote.
                let dumped = bytes.next_multiple_of(128) as usize;
                assert_eq!(dumped, bytes as usize);
                let mut buffers = [data.clone(), vec![0; dumped]];
                k.flat.launch.block = 32;
                k.run(&mut buffers);
                for z in 0..2usize {
                    for y in 0..8usize {
                        for x in 0..(inner * size) as usize {
                            let [gx, gy, gz] = [
                                i64::from(coords[0]) * i64::from(size) + x as i64,
                                i64::from(coords[1]) + y as i64,
                                i64::from(coords[2]) + z as i64,
                            ];
                            let inside = gx >= 0
                                && gx < dims[0] as i64 * i64::from(size)
                                && (0..7).contains(&gy)
                                && (0..3).contains(&gz);
                            let want = if inside {
                                data[((gz * 7 + gy) * dims[0] as i64 * i64::from(size) + gx) as usize]
                            } else {
                                0
                            };
                            let at = xor((z * 8 + y) * (inner * size) as usize + x, swizzle);
                            assert_eq!(buffers[1][at], want, "{swizzle:?} {element:?} {coords:?} {x} {y} {z}");
                        }
                    }
                }
            }
        }
    }
}

/// Fills shared memory with the bytes of buffer 0 and stores a box of it, whole or reduced.
fn store_box(
    spec: &TensorMapSpec,
    bytes: u32,
    coords: [i32; 2],
    reduce: Option<TensorRed>,
    fence: bool,
    wait: Option<BulkWait>,
) -> Kernel {
    let mut k = Kernel::new(32).smem(bytes);
    let (base, lane) = (k.smem_base(), k.special(SpecialReg32::Laneid));
    let input = k.pointer(0);
    let from = k.element(input, lane, 4);
    let at = k.r();
    k.push(Inst::MadLo {
        ty: IntType::U32,
        d: at,
        a: lane.into(),
        b: imm(4),
        c: base.into(),
    });
    for start in (0..bytes as i32).step_by(128) {
        let v = k.r();
        k.push(Inst::Ld {
            sem: LoadSem::Weak,
            space: Space::Global,
            ty: MemType::B32,
            d: smallvec![v],
            addr: Addr::at(from, start),
        });
        k.store_shared(at, start, v.into());
    }
    if fence {
        k.fence_async();
    }
    k.push(Inst::BarWarp { mask: 0xffff_ffff });
    let t = k.tensor_map(spec.clone());
    let first = k.first_thread();
    k.when(first, false, |k| {
        let coords = coords.iter().map(|c| Src::imm32(*c)).collect();
        match reduce {
            None => k.push(Inst::TensorStore {
                map: t,
                coords,
                src: Addr::new(base),
            }),
            Some(op) => k.push(Inst::TensorReduce {
                op,
                map: t,
                coords,
                src: Addr::new(base),
            }),
        };
        k.push(Inst::BulkCommit {});
        if let Some(what) = wait {
            k.push(Inst::BulkWait { what, n: 0 });
        }
    });
    k
}

#[test]
fn stores_with_every_swizzle_drop_what_is_outside() {
    for swizzle in SWIZZLES {
        let inner = if swizzle == TensorMapSwizzle::None {
            32
        } else {
            swizzle.bytes() / 2
        };
        let spec = map(1, TensorMapElement::F16, &[96, 20], &[inner, 8], swizzle);
        let bytes = inner * 2 * 8;
        let in_front = store_box(&spec, bytes, [-8, 3], None, true, Some(BulkWait::Complete));
        let error = in_front.error(&mut [vec![0; bytes as usize], vec![0; 96 * 20 * 2]]);
        assert!(error.what.contains("begins in front of its array"), "{error}");
        let within = store_box(&spec, bytes, [5, 3], None, true, Some(BulkWait::Complete));
        let error = within.error(&mut [vec![0; bytes as usize], vec![0; 96 * 20 * 2]]);
        assert!(error.what.contains("no multiple of 16 bytes"), "{error}");
        for coords in [[0, 0], [8, 3], [88, 15]] {
            let k = store_box(&spec, bytes, coords, None, true, Some(BulkWait::Complete));
            let data = random_bytes(bytes as usize, 4);
            let before = random_bytes(96 * 20 * 2, 6);
            for options in every_order() {
                let mut buffers = [data.clone(), before.clone()];
                k.try_run(&mut buffers, &options).unwrap_or_else(|e| panic!("{e}"));
                for (y, x) in (0..20i32).flat_map(|y| (0..96i32).map(move |x| (y, x))) {
                    let (bx, by) = (x - coords[0], y - coords[1]);
                    let at = (y * 96 + x) as usize * 2;
                    let want = if (0..inner as i32).contains(&bx) && (0..8).contains(&by) {
                        let from = xor((by * inner as i32 + bx) as usize * 2, swizzle);
                        &data[from..from + 2]
                    } else {
                        &before[at..at + 2]
                    };
                    assert_eq!(&buffers[1][at..at + 2], want, "{swizzle:?} {coords:?} {x} {y}");
                }
            }
        }
    }
}

#[test]
fn reductions_combine_with_memory() {
    use crate::emulate::arith::float;
    let cases: [(TensorRed, TensorMapElement, fn(u32, u32) -> u32); 7] = [
        (TensorRed::Add, TensorMapElement::U32, |a, b| a.wrapping_add(b)),
        (TensorRed::Add, TensorMapElement::F32, float::add_ftz_f32),
        (TensorRed::Min, TensorMapElement::I32, |a, b| {
            (a as i32).min(b as i32) as u32
        }),
        (TensorRed::Max, TensorMapElement::U32, |a, b| a.max(b)),
        (TensorRed::Xor, TensorMapElement::U32, |a, b| a ^ b),
        (TensorRed::Add, TensorMapElement::F16, |a, b| {
            float::halves_2(a, b, float::add_f16)
        }),
        (TensorRed::Max, TensorMapElement::BF16, |a, b| {
            float::halves_2(a, b, float::max_bf16)
        }),
    ];
    for (op, element, f) in cases {
        let inner = 32 / element.bytes();
        let spec = map(
            1,
            element,
            &[u64::from(inner), 16],
            &[inner, 16],
            TensorMapSwizzle::None,
        );
        let k = store_box(&spec, 512, [0, 0], Some(op), true, Some(BulkWait::Complete));
        let (data, before) = (random_bytes(512, 4), random_bytes(512, 6));
        let mut buffers = [data.clone(), before.clone()];
        k.run(&mut buffers);
        let want: Vec<u32> = words_of(&before)
            .into_iter()
            .zip(words_of(&data))
            .map(|(a, b)| f(a, b))
            .collect();
        assert_eq!(words_of(&buffers[1]), want, "{op:?} {element:?}");
    }
}

#[test]
fn a_store_without_a_proxy_fence_is_an_error() {
    let spec = map(1, TensorMapElement::F32, &[32, 4], &[32, 4], TensorMapSwizzle::B128);
    let k = store_box(&spec, 512, [0, 0], None, false, Some(BulkWait::Complete));
    for options in every_order() {
        let error = k
            .try_run(&mut [vec![0; 512], vec![0; 512]], &options)
            .expect_err("no fence");
        assert!(error.what.contains("generic proxy wrote"), "{error}");
        assert!(error.what.contains("TensorStore"), "{error}");
    }
}

/// Overwrites the source of a store after its wait: `.read` suffices.
#[test]
fn a_read_wait_frees_the_source_and_a_missing_one_shows() {
    let spec = map(1, TensorMapElement::F32, &[32, 4], &[32, 4], TensorMapSwizzle::None);
    let data = random_bytes(512, 4);
    let overwrite = |k: &mut Kernel| {
        let base = k.smem_base();
        let lane = k.special(SpecialReg32::Laneid);
        k.push(Inst::BarWarp { mask: 0xffff_ffff });
        let at = k.r();
        k.push(Inst::MadLo {
            ty: IntType::U32,
            d: at,
            a: lane.into(),
            b: imm(4),
            c: base.into(),
        });
        k.store_shared(at, 0, imm(0));
        k.fence_async();
    };
    let mut right = store_box(&spec, 512, [0, 0], None, true, Some(BulkWait::Read));
    overwrite(&mut right);
    for options in every_order() {
        let mut buffers = [data.clone(), vec![0; 512]];
        right.try_run(&mut buffers, &options).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(buffers[1], data);
    }
    let mut wrong = store_box(&spec, 512, [0, 0], None, true, None);
    overwrite(&mut wrong);
    let error = wrong.error(&mut [data.clone(), vec![0; 512]]);
    assert!(
        error.what.contains("a CTA ends while a bulk store has yet to read"),
        "{error}"
    );
    assert!(error.what.contains("TensorStore"), "{error}");
}

/// Lane i writes word i of shared memory; `fence` says which CTA of two fences; both store 128 bytes of theirs.
fn fenced_by(fence: u32) -> Kernel {
    let mut k = Kernel::new(32).smem(128).grid([2, 1, 1], [2, 1, 1]);
    let (base, rank, lane) = (
        k.smem_base(),
        k.special(SpecialReg32::ClusterCtarank),
        k.special(SpecialReg32::Laneid),
    );
    let out = k.pointer(0);
    let at = k.r();
    k.push(Inst::MadLo {
        ty: IntType::U32,
        d: at,
        a: lane.into(),
        b: imm(4),
        c: base.into(),
    });
    k.store_shared(at, 0, lane.into());
    let fences = k.compare(Compare::Le, rank.into(), imm(fence));
    k.branch(fences, false, 1, 2, None);
    k.push(Inst::FenceProxy {
        proxy: ProxyFence::AsyncSharedCluster,
    });
    k.jump();
    let to = k.element(out, rank, 128);
    let first = k.first_thread();
    k.when(first, false, |k| {
        k.push(Inst::BulkStore {
            dst: Addr::new(to),
            src: Addr::new(base),
            bytes: imm(128),
        });
        k.push(Inst::BulkCommit {});
        k.push(Inst::BulkWait {
            what: BulkWait::Complete,
            n: 0,
        });
    });
    k
}

#[test]
fn a_fence_covers_only_what_its_thread_has_seen() {
    let words: Vec<u32> = (0..64).map(|i| i % 32).collect();
    for options in every_order() {
        let mut buffers = [vec![0; 256]];
        fenced_by(1)
            .try_run(&mut buffers, &options)
            .unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(words_of(&buffers[0]), words);
        let error = fenced_by(0)
            .try_run(&mut [vec![0; 256]], &options)
            .expect_err("CTA 1 does not fence");
        assert!(error.what.contains("generic proxy wrote"), "{error}");
        assert!(error.what.contains("CTA (1, 0, 0)"), "{error}");
    }
}

/// A load whose consumer does not wait reads what nothing wrote.
#[test]
fn a_missing_wait_shows() {
    for waits in [true, false] {
        let spec = map(0, TensorMapElement::F32, &[32, 4], &[32, 4], TensorMapSwizzle::None);
        let k = one_thread(1024, 512, |k, base| {
            let t = k.tensor_map(spec.clone());
            let first = k.first_thread();
            k.when(first, false, |k| {
                k.expect(base, 512, 512);
                k.push(Inst::TensorLoad {
                    dst: Addr::new(base),
                    map: t,
                    coords: smallvec![imm(0), imm(0)],
                    bar: Addr::at(base, 512),
                });
            });
            if waits {
                k.wait(base, 512, imm(0));
            }
            dump(k, base, 1, 512);
        });
        let data = random_bytes(512, 4);
        let mut buffers = [data.clone(), vec![0; 512]];
        match k.try_run(&mut buffers, &options()) {
            Ok(_) => assert!(waits && buffers[1] == data),
            Err(error) => assert!(
                !waits
                    && error
                        .what
                        .contains("load of shared memory that a bulk load in flight writes"),
                "{error}"
            ),
        }
    }
}

#[test]
fn too_few_expected_bytes_leave_the_phase_open() {
    let spec = map(0, TensorMapElement::F32, &[32, 4], &[32, 4], TensorMapSwizzle::None);
    let k = one_thread(1024, 512, |k, base| {
        let t = k.tensor_map(spec.clone());
        let first = k.first_thread();
        k.when(first, false, |k| {
            k.expect(base, 512, 528);
            k.push(Inst::TensorLoad {
                dst: Addr::new(base),
                map: t,
                coords: smallvec![imm(0), imm(0)],
                bar: Addr::at(base, 512),
            });
        });
        k.wait(base, 512, imm(0));
    });
    let error = k.error(&mut [vec![0; 512]]);
    assert!(error.what.contains("deadlock"), "{error}");
    assert!(
        error
            .got
            .as_deref()
            .unwrap_or("")
            .contains("0 of 1 arrivals to come, 16 bytes to come"),
        "{error}"
    );
}

/// Linear copies in, between CTAs of a cluster, and out; the peer's bytes arrive before its own expect.
#[test]
fn linear_copies_and_multicast() {
    let mut k = Kernel::new(32).smem(2048).grid([4, 1, 1], [4, 1, 1]);
    let (base, rank) = (k.smem_base(), k.special(SpecialReg32::ClusterCtarank));
    let input = k.pointer(0);
    let first = k.first_thread();
    k.when(first, false, |k| {
        k.init_barrier(base, 1024, 1);
        k.init_barrier(base, 1032, 1);
        k.push(Inst::FenceMbarrierInit {});
    });
    k.push(Inst::ClusterArrive {
        sem: ClusterArriveSem::Release,
    });
    k.push(Inst::ClusterWait {});
    // Every CTA multicasts 64 bytes of its own to CTAs 0, 1 and 3; these expect 4 of them.
    let mask = k.h();
    k.push(Inst::Mov {
        ty: BitType::B16,
        d: mask,
        a: Src::Imm(0b1011),
    });
    let from = k.element(input, rank, 64);
    let (at, four) = (k.r(), imm(64));
    k.push(Inst::MadLo {
        ty: IntType::U32,
        d: at,
        a: rank.into(),
        b: four,
        c: base.into(),
    });
    k.when(first, false, |k| {
        k.push(Inst::BulkLoadMulticast {
            dst: Addr::new(at),
            src: Addr::new(from),
            bytes: imm(64),
            bar: Addr::at(base, 1024),
            mask,
        });
    });
    let takes = k.compare(Compare::Ne, rank.into(), imm(2));
    let p = k.p();
    k.push(Inst::Logic {
        op: Logic::And,
        ty: LogicType::Pred,
        d: p,
        a: takes.into(),
        b: first.into(),
    });
    k.when(p, false, |k| {
        k.expect(base, 1024, 256);
    });
    k.when(takes, false, |k| {
        k.wait(base, 1024, imm(0));
    });
    // CTA 0 copies all to CTA 2.
    let is0 = k.compare(Compare::Eq, rank.into(), imm(0));
    let is2 = k.compare(Compare::Eq, rank.into(), imm(2));
    let (p0, p2) = (k.p(), k.p());
    k.push(Inst::Logic {
        op: Logic::And,
        ty: LogicType::Pred,
        d: p0,
        a: is0.into(),
        b: first.into(),
    });
    k.push(Inst::Logic {
        op: Logic::And,
        ty: LogicType::Pred,
        d: p2,
        a: is2.into(),
        b: first.into(),
    });
    let remote = k.r();
    k.push(Inst::Mapa {
        d: remote,
        a: base,
        rank: imm(2),
    });
    k.when(p0, false, |k| {
        k.push(Inst::BulkCopyCluster {
            dst: Addr::new(remote),
            src: Addr::new(base),
            bytes: imm(256),
            bar: Addr::at(remote, 1032),
        });
    });
    k.when(p2, false, |k| {
        k.expect(base, 1032, 256);
    });
    k.when(is2, false, |k| {
        k.wait(base, 1032, imm(0));
    });
    let output = k.pointer(1);
    let to = k.element(output, rank, 256);
    k.when(first, false, |k| {
        k.push(Inst::BulkStore {
            dst: Addr::new(to),
            src: Addr::new(base),
            bytes: imm(256),
        });
        k.push(Inst::BulkCommit {});
        k.push(Inst::BulkWait {
            what: BulkWait::Complete,
            n: 0,
        });
    });
    k.push(Inst::ClusterArrive {
        sem: ClusterArriveSem::Release,
    });
    k.push(Inst::ClusterWait {});
    let data = random_bytes(256, 8);
    for options in every_order() {
        let mut buffers = [data.clone(), vec![0; 1024]];
        k.try_run(&mut buffers, &options).unwrap_or_else(|e| panic!("{e}"));
        for cta in 0..4 {
            assert_eq!(
                buffers[1][256 * cta..256 * (cta + 1)],
                data,
                "CTA {cta}, {:?}",
                options.agents
            );
        }
    }
}

fn broken(f: impl FnOnce(&mut Kernel, Reg, Reg)) -> crate::error::Error {
    let k = one_thread(1024, 512, |k, base| {
        let input = k.pointer(0);
        let first = k.first_thread();
        k.when(first, false, |k| f(k, base, input));
    });
    k.error(&mut [vec![0; 512]])
}

#[test]
fn illegal_copies() {
    let load = |k: &mut Kernel, base: Reg, input: Reg, to: i32, from: i32, bytes: u32| {
        k.push(Inst::BulkLoad {
            dst: Addr::at(base, to),
            src: Addr::at(input, from),
            bytes: imm(bytes),
            bar: Addr::at(base, 512),
        });
    };
    let error = broken(|k, base, input| load(k, base, input, 8, 0, 16));
    assert!(error.what.contains("misaligned shared"), "{error}");
    let error = broken(|k, base, input| load(k, base, input, 0, 8, 16));
    assert!(error.what.contains("misaligned global"), "{error}");
    let error = broken(|k, base, input| load(k, base, input, 0, 0, 24));
    assert_eq!(error.got.as_deref(), Some("24"), "{error}");
    let error = broken(|k, base, input| load(k, base, input, 0, 496, 32));
    assert!(error.what.contains("outside of its buffer"), "{error}");
    let error = broken(|k, base, input| load(k, base, input, 1008, 0, 32));
    assert!(error.what.contains("outside of shared memory"), "{error}");
    let error = broken(|k, base, input| {
        k.push(Inst::TensorLoad {
            dst: Addr::new(base),
            map: input,
            coords: smallvec![imm(0)],
            bar: Addr::at(base, 512),
        });
    });
    assert!(error.what.contains("global memory that holds no tensor map"), "{error}");
    let error = broken(|k, base, _| {
        let nowhere = k.mov64(1 << 60);
        k.push(Inst::TensorLoad {
            dst: Addr::new(base),
            map: nowhere,
            coords: smallvec![imm(0)],
            bar: Addr::at(base, 512),
        });
    });
    assert_eq!(
        error.expected.as_deref(),
        Some("the address of a tensor map"),
        "{error}"
    );
}

#[test]
fn tensor_maps_are_checked() {
    let good = map(0, TensorMapElement::F32, &[32, 4], &[32, 4], TensorMapSwizzle::B128);
    let run = |spec: TensorMapSpec| {
        let mut k = Kernel::new(32);
        k.tensor_map(spec);
        k.try_run(&mut [vec![0; 512]], &options())
            .map(|_| ())
            .map_err(|e| e.expected.unwrap_or_default())
    };
    assert_eq!(run(good.clone()), Ok(()));
    let wide = map(0, TensorMapElement::F32, &[64, 2], &[64, 2], TensorMapSwizzle::B128);
    assert_eq!(run(wide), Err("an inner box no wider than the swizzle".into()));
    let mut odd = good.clone();
    odd.box_dims[0] = 3;
    assert_eq!(run(odd), Err("an inner box of a multiple of 16 bytes".into()));
    let mut large = good.clone();
    large.dims[1] = 5;
    assert_eq!(run(large), Err("a tensor inside of its buffer".into()));
    let mut shifted = good;
    shifted.byte_offset = 4;
    assert_eq!(run(shifted), Err("an address aligned to 16 bytes".into()));
}
