//! What the tests of layouts share: a deterministic generator, random layouts.
use smalt::layout::digits::{Chain, Digit};
use smalt::layout::facts::{DynId, Start};
use smalt::layout::register_layout::{Axis, Group, Place, RegisterLayout};
use smalt::layout::smem_layout::SmemView;
use smalt::layout::tiled::TiledLayout;
use smalt::layout::transfer::{AccessKind, Addressing, Direction, TransferPlan};

pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    /// 0..n
    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n.max(1)
    }
    pub fn pick<T: Clone>(&mut self, xs: &[T]) -> T {
        xs[self.below(xs.len() as u64) as usize].clone()
    }
    pub fn shuffle<T>(&mut self, xs: &mut [T]) {
        for i in (1..xs.len()).rev() {
            xs.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

pub fn arbitrary_shape(rng: &mut Rng) -> Vec<u64> {
    let rank = 1 + rng.below(3) as usize;
    let sizes: &[u64] = match rank {
        1 => &[1, 7, 10, 33, 64, 100, 128, 256, 384, 512, 1024],
        2 => &[1, 3, 8, 10, 16, 24, 32, 48, 64, 96, 128],
        _ => &[1, 2, 3, 4, 5, 8, 16, 32],
    };
    (0..rank).map(|_| rng.pick(sizes)).collect()
}

/// A random layout of a warpgroup: one of Mosaic's, strided, replicated, a splat, or random digits.
pub fn arbitrary_layout(rng: &mut Rng, shape: Option<&[u64]>) -> RegisterLayout {
    let shape = shape.map_or_else(|| arbitrary_shape(rng), <[u64]>::to_vec);
    let n: u64 = shape.iter().product();
    loop {
        let layout = match rng.below(8) {
            0..=2 => {
                let tiled = TiledLayout::by_name(rng.pick(&TiledLayout::NAMES)).unwrap();
                match tiled.instantiate(&shape) {
                    // Padding a lot is legal but makes tests slow.
                    Ok(l) if u64::from(l.slots()) <= 64.max(2 * n / 32) => l,
                    _ => continue,
                }
            }
            3 => RegisterLayout::strided(&shape, rng.pick(&[1, 2, 4, 8]), Group::Warpgroup),
            4 if n <= 64 => RegisterLayout::replicated(&shape, Group::Warpgroup),
            5 if rng.below(8) == 0 => RegisterLayout::splat(&shape, Group::Warpgroup),
            _ => random_digits(rng, &shape),
        };
        return layout;
    }
}

/// Cuts every dimension into random digits and deals them to lanes, warps and slots at random.
fn random_digits(rng: &mut Rng, shape: &[u64]) -> RegisterLayout {
    struct Part {
        dim: usize,
        size: u64,
        place: Option<Place>,
    }
    let mut parts = Vec::new();
    for (dim, &n) in shape.iter().enumerate() {
        let mut rest = n;
        while rest > 1 {
            let divisors: Vec<u64> = (2..=rest.min(64)).filter(|d| rest % d == 0).collect();
            let size = if divisors.is_empty() { rest } else { rng.pick(&divisors) };
            // Bits singly, or whole digits.
            if size.is_power_of_two() && rng.below(2) == 0 {
                parts.extend((0..size.trailing_zeros()).map(|_| Part {
                    dim,
                    size: 2,
                    place: None,
                }));
            } else {
                parts.push(Part { dim, size, place: None });
            }
            rest /= size;
        }
    }
    let mut order: Vec<usize> = (0..parts.len()).collect();
    rng.shuffle(&mut order);
    let mut free: Vec<u8> = (0..7).collect();
    for &k in &order {
        let bits = parts[k].size.trailing_zeros() as u8;
        if !parts[k].size.is_power_of_two() || rng.below(5) == 0 {
            continue;
        }
        // A run of free bits that doesn't leave the lane or the warp.
        let runs: Vec<u8> = (0..=7 - bits.min(7))
            .filter(|&b| (b..b + bits).all(|x| free.contains(&x)) && (b >= 5) == (b + bits > 5))
            .collect();
        if bits <= 5 && !runs.is_empty() {
            let bit = rng.pick(&runs);
            free.retain(|x| !(bit..bit + bits).contains(x));
            parts[k].place = Some(Place::Thread(bit));
        }
    }
    rng.shuffle(&mut order);
    let mut stride = 1;
    for &k in &order {
        if parts[k].place.is_none() {
            parts[k].place = Some(Place::Slot(stride));
            stride *= parts[k].size as u32;
        }
    }
    let axes = shape.iter().enumerate().map(|(dim, &size)| {
        let chain: Chain<Place> = parts
            .iter()
            .filter(|p| p.dim == dim)
            .map(|p| Digit::new(p.size, p.place.unwrap()))
            .collect();
        Axis {
            first: dim,
            rank: 1,
            size,
            chain,
        }
    });
    RegisterLayout::from_axes(shape, Group::Warpgroup, axes.collect::<Vec<_>>())
}

/// The same placement with slots numbered otherwise.
pub fn shuffle_slots(layout: &RegisterLayout, rng: &mut Rng) -> RegisterLayout {
    let mut axes: Vec<Axis> = layout.axes().to_vec();
    let mut slots: Vec<(usize, usize, u64)> = Vec::new();
    for (a, axis) in axes.iter().enumerate() {
        for (k, d) in axis.chain.iter().enumerate() {
            if matches!(d.place, Place::Slot(_)) {
                slots.push((a, k, d.size));
            }
        }
    }
    rng.shuffle(&mut slots);
    let mut stride = 1;
    for (a, k, size) in slots {
        axes[a].chain[k].place = Place::Slot(stride);
        stride *= size as u32;
    }
    RegisterLayout::from_axes(layout.shape(), layout.group(), axes)
}

/// Bit-addressed memory in which unwritten bytes are known.
#[derive(Clone)]
pub struct Bytes {
    pub bytes: Vec<u8>,
    pub written: Vec<bool>,
}

impl Bytes {
    pub fn new(bytes: u64) -> Bytes {
        Bytes {
            bytes: vec![0xcc; bytes as usize],
            written: vec![false; bytes as usize],
        }
    }
    pub fn get(&self, byte: u64, bit: u32, bits: u32) -> u64 {
        let bytes = (bit + bits).div_ceil(8) as usize;
        let raw = (0..bytes).fold(0u64, |v, k| v | u64::from(self.bytes[byte as usize + k]) << (8 * k));
        raw >> bit & mask(bits)
    }
    pub fn put(&mut self, byte: u64, bit: u32, bits: u32, value: u64) {
        for k in 0..bits {
            let at = byte as usize + ((bit + k) / 8) as usize;
            let b = (bit + k) % 8;
            self.bytes[at] = self.bytes[at] & !(1 << b) | (((value >> k & 1) as u8) << b);
            self.written[at] = true;
        }
    }
}

pub fn mask(bits: u32) -> u64 {
    if bits == 64 { u64::MAX } else { (1 << bits) - 1 }
}

/// A value for each element that tells it apart from its neighbours in as many bits as there are.
pub fn element_value(flat: u64, bits: u32) -> u64 {
    (flat.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 7 ^ flat) & mask(bits)
}

/// `[thread][slot]` element values.
pub type Registers = Vec<Vec<u64>>;

/// Executes a transfer plan exactly as hardware would, memory on one side, registers on the other.
pub fn execute(
    plan: &TransferPlan,
    view: &SmemView,
    buffer: u64,
    value: &dyn Fn(DynId) -> u64,
    registers: &mut Registers,
    memory: &mut Bytes,
) {
    let bits = view.bits;
    let threads = plan.layout.group().threads();
    let load = plan.direction == Direction::Load;
    for access in &plan.accesses {
        let active = |t: u32| {
            plan.acts(t)
                && access.guards.iter().all(|g| {
                    let terms = RegisterLayout::axis_terms(&plan.layout.axes()[g.axis]);
                    let i = terms.iter().map(|x| x.value(t)).sum::<i64>() as u64 + g.constant;
                    i < g.limit
                })
        };
        let affine = |t: u32| {
            let Addressing::Affine(address) = &plan.addressing else {
                panic!("not affine")
            };
            let dynamic: i64 = address.dynamic.iter().map(|d| d.eval(value(d.value))).sum();
            address.address(buffer + dynamic as u64, t, access.base, access.offset)
        };
        match access.kind {
            AccessKind::Vector { bytes } => {
                for t in (0..threads).filter(|&t| active(t)) {
                    let at = affine(t);
                    assert_eq!(at % u64::from(bytes), 0, "misaligned");
                    let slots = access.slots_of(plan.variant(t));
                    assert_eq!(slots.len() as u32 * bits, bytes * 8);
                    for (k, &slot) in slots.iter().enumerate() {
                        let bit = k as u32 * bits;
                        let r = &mut registers[t as usize][slot as usize];
                        if load {
                            *r = memory.get(at + u64::from(bit / 8), bit % 8, bits);
                        } else {
                            memory.put(at + u64::from(bit / 8), bit % 8, bits, *r);
                        }
                    }
                }
            }
            AccessKind::Matrix { count, trans } => {
                let per_word = (32 / bits) as usize;
                for warp in (0..threads / 32).filter(|w| active(w * 32)) {
                    assert!(
                        (0..32).all(|l| active(warp * 32 + l)),
                        "matrix accesses are for whole warps"
                    );
                    for m in 0..count {
                        for lane in 0..32u32 {
                            let t = (warp * 32 + lane) as usize;
                            // A lane stores, or finds, its own variant's words; the address is the row's lane's.
                            let slots = access.slots_of(plan.variant(t as u32));
                            let slots = &slots[m as usize * per_word..(m as usize + 1) * per_word];
                            // 16-bit halves of the word, as PTX defines the fragment.
                            for half in 0..2u32 {
                                let (row, column) = if trans {
                                    (2 * (lane % 4) + half, lane / 4)
                                } else {
                                    (lane / 4, 2 * (lane % 4) + half)
                                };
                                let at = affine(warp * 32 + 8 * m + row);
                                assert_eq!(at % 16, 0);
                                let at = at + u64::from(column) * 2;
                                let in_half = (per_word / 2).max(1);
                                if per_word == 1 {
                                    // Half of a 32-bit element.
                                    let r = &mut registers[t][slots[0] as usize];
                                    if load {
                                        let v = memory.get(at, 0, 16);
                                        *r = *r & !(0xffff << (16 * half)) | v << (16 * half);
                                    } else {
                                        memory.put(at, 0, 16, *r >> (16 * half) & 0xffff);
                                    }
                                    continue;
                                }
                                for e in 0..in_half {
                                    let slot = slots[half as usize * in_half + e];
                                    let bit = e as u32 * bits;
                                    let r = &mut registers[t][slot as usize];
                                    if load {
                                        *r = memory.get(at + u64::from(bit / 8), bit % 8, bits);
                                    } else {
                                        memory.put(at + u64::from(bit / 8), bit % 8, bits, *r);
                                    }
                                }
                            }
                        }
                    }
                }
            }
            AccessKind::Element => {
                let Addressing::Elements {
                    constant_bits,
                    dynamic_bits,
                    terms,
                } = &plan.addressing
                else {
                    panic!()
                };
                for t in (0..threads).filter(|&t| active(t)) {
                    let slot = access.slots[0];
                    let index = plan.layout.axis_indices(t, slot);
                    let start = |s: &Start| match *s {
                        Start::Static(v) => v,
                        Start::Dynamic(id, _) => value(id),
                    };
                    let mut at = *constant_bits as i64;
                    at += dynamic_bits.iter().map(|d| d.eval(value(d.value))).sum::<i64>();
                    for term in terms {
                        let i = term.axis.map_or(0, |a| index[a]);
                        at += term.eval(i, term.starts.iter().map(start).sum()) as i64;
                    }
                    let byte = view.swizzle.apply(buffer + at as u64 / 8);
                    let r = &mut registers[t as usize][slot as usize];
                    if load {
                        *r = memory.get(byte, (at % 8) as u32, bits);
                    } else {
                        memory.put(byte, (at % 8) as u32, bits, *r);
                    }
                }
            }
        }
    }
}

pub fn indices(shape: &[u64]) -> Vec<Vec<u64>> {
    let n: u64 = shape.iter().product();
    (0..n)
        .map(|mut f| {
            let mut out = vec![0; shape.len()];
            for (o, d) in out.iter_mut().zip(shape).rev() {
                (*o, f) = (f % d, f / d);
            }
            out
        })
        .collect()
}

pub fn flat(shape: &[u64], index: &[u64]) -> u64 {
    shape.iter().zip(index).fold(0, |f, (n, i)| f * n + i)
}

/// Registers that hold an array of [`element_value`]s, junk in the padding.
pub fn filled(layout: &RegisterLayout, bits: u32) -> Registers {
    let one = |t, s| match layout.element(t, s) {
        Some(i) => element_value(flat(layout.shape(), &i), bits),
        None => 0x5a5a_5a5a_5a5a_5a5a & mask(bits),
    };
    (0..layout.group().threads())
        .map(|t| (0..layout.slots()).map(|s| one(t, s)).collect())
        .collect()
}

/// The same array with its lanes permuted, or its warps.
pub fn shuffle_lanes(layout: &RegisterLayout, rng: &mut Rng) -> RegisterLayout {
    let mut to: Vec<u8> = (0..7).collect();
    if rng.below(4) == 0 {
        to.swap(5, 6);
    }
    rng.shuffle(&mut to[..5]);
    let axes = layout.axes().iter().map(|axis| {
        let mut chain = Chain::new();
        for d in &axis.chain {
            match d.place {
                Place::Thread(bit) => {
                    let bits = d.size.trailing_zeros() as u8;
                    chain.extend((bit..bit + bits).map(|b| Digit::new(2, Place::Thread(to[usize::from(b)]))));
                }
                Place::Slot(_) | Place::Constant => chain.push(*d),
            }
        }
        Axis { chain, ..axis.clone() }
    });
    RegisterLayout::from_axes(layout.shape(), layout.group(), axes.collect::<Vec<_>>())
}
