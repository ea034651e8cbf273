//! What the tests of this room share: a deterministic generator, random layouts.
use super::digits::{Chain, Digit};
use super::register_layout::{Axis, Group, Place, RegisterLayout};
use super::tiled::TiledLayout;

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

pub const NAMES: [&str; 12] = [
    "WGMMA",
    "WGMMA_ROW",
    "WGMMA_COL",
    "WGMMA_8BIT",
    "WGMMA_UPCAST_2X",
    "WGMMA_UPCAST_4X",
    "WGMMA_TRANSPOSED",
    "TCGEN05",
    "TCGEN05_TRANSPOSED",
    "TCGEN05_ROW",
    "TCGEN05_TMEM_NATIVE",
    "TMA_INDICES",
];

/// A random layout of a warpgroup: one of Mosaic's, strided, replicated, a splat, or random digits.
pub fn arbitrary_layout(rng: &mut Rng, shape: Option<&[u64]>) -> RegisterLayout {
    let shape = shape.map_or_else(|| arbitrary_shape(rng), <[u64]>::to_vec);
    let n: u64 = shape.iter().product();
    loop {
        let layout = match rng.below(8) {
            0..=2 => {
                let tiled = TiledLayout::by_name(rng.pick(&NAMES)).unwrap();
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
