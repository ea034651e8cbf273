//! Products of matrices: which warp or thread computes which part of the result, and how the operands lie in scratch.
//!
//! The result is `[M, N]`, or `[batch, M, N]`; the operands are `[…, M, K]` and `[…, N, K]`. Both are stored to scratch, a *slice* of
//! the batches and of K at a time, and each thread reads the parts that it needs.
//! * Tensor cores ([`tensor_core`]): tiles of 16 × 8, dealt to the warps; along M first, so that where M is a multiple of 64 the result
//!   lies as wgmma's accumulators do (PTX ISA, "Matrix Fragments for mma.m16n8k16": the same rows and columns in a warp).
//! * Multiply-adds ([`multiply_add`]): each thread has rows and columns at a stride of the number of threads along them.
//!
//! In scratch a row of 16-byte chunks is an odd number of them: eight rows that are read together (`ldmatrix`, vector loads) touch
//! all banks once. Tensor cores' 16-bit operands may lie either way (`ldmatrix.trans`): as their registers are stored with less work.
use super::digits::{Chain, Digit};
use super::in_place::InPlace;
use super::register_layout::{Axis, Group, Place, RegisterLayout};
use super::smem_layout::SmemView;
use super::transfer::{self, Direction, Memory, Options, TransferError, TransferPlan};
use crate::kernel_ir::{Dealing, DotArithmetic};
use smallvec::smallvec;

/// Rows and columns of a tile of tensor cores.
const TILE: [u64; 3] = [1, 16, 8];
/// What `ldmatrix`, and a vector load, takes of one row.
const CHUNK: u64 = 16;

/// How a result is dealt out. All per dimension: batch, M, N.
#[derive(Clone, Debug, PartialEq)]
pub struct Tiling {
    /// Warps along it.
    pub warps: [u64; 3],
    /// Tiles of each warp; multiply-adds: elements of each thread.
    pub tiles: [u64; 3],
    /// The size with what pads it.
    pub padded: [u64; 3],
    pub result: RegisterLayout,
}

fn sizes(shape: &[u64]) -> [u64; 3] {
    match *shape {
        [batch, m, n] => [batch, m, n],
        [m, n] => [1, m, n],
        _ => unreachable!("a product of rank 2 or 3"),
    }
}

/// The tiling of a product.
pub fn tiling(arithmetic: DotArithmetic, shape: &[u64], group: Group, dealing: Dealing) -> Tiling {
    match arithmetic {
        DotArithmetic::TensorCore => tensor_core(shape, group, dealing),
        DotArithmetic::MultiplyAdd => multiply_add(shape, group),
    }
}

/// Numbers slots from the minor end.
struct Slots(u32);

impl Slots {
    fn take(&mut self, n: u64) -> Digit<Place> {
        let digit = Digit::new(n, Place::Slot(self.0));
        self.0 *= n as u32;
        digit
    }
}

fn layout(shape: &[u64], group: Group, chains: [Chain<Place>; 3]) -> RegisterLayout {
    let skipped = 3 - shape.len();
    let axes = chains.into_iter().skip(skipped).zip(shape).enumerate();
    let axes = axes.map(|(first, (chain, &size))| Axis {
        first,
        rank: 1,
        size,
        chain,
    });
    RegisterLayout::from_axes(shape, group, axes)
}

fn tensor_core(shape: &[u64], group: Group, dealing: Dealing) -> Tiling {
    let size = sizes(shape);
    let all = u64::from(group.threads() / 32);
    let tiles_with = |warps: [u64; 3]| [0, 1, 2].map(|d| size[d].div_ceil(TILE[d]).div_ceil(warps[d]));
    // The least work of a warp, then the fewest warps that repeat nothing, then the least that it reads, if that is asked for, then along M.
    let mut best: Option<([u64; 5], [u64; 3])> = None;
    for m in [4, 2, 1] {
        for batch in [4, 2, 1] {
            for n in [4, 2, 1] {
                let warps = [batch, m, n];
                let used: u64 = warps.iter().product();
                if used > all {
                    continue;
                }
                let tiles = tiles_with(warps);
                let work: u64 = tiles.iter().product();
                let read = match dealing {
                    Dealing::Rows => 0,
                    Dealing::Squares => tiles[0] * (TILE[1] * tiles[1] + TILE[2] * tiles[2]),
                };
                let rank = [work, used, read, 4 - m, 4 - batch];
                if best.is_none_or(|(than, _)| rank < than) {
                    best = Some((rank, warps));
                }
            }
        }
    }
    dealt(shape, group, best.map_or([1; 3], |(_, warps)| warps))
}

/// Tiles of 16 × 8, dealt to so many warps along each dimension.
fn dealt(shape: &[u64], group: Group, warps: [u64; 3]) -> Tiling {
    let size = sizes(shape);
    let tiles = [0, 1, 2].map(|d| size[d].div_ceil(TILE[d]).div_ceil(warps[d]));
    let warp_bit = |d: usize| {
        // Along M the lowest bits, then N, then batches.
        let below = [&[1, 2][..], &[], &[1]][d];
        below.iter().map(|&o| warps[o].trailing_zeros() as u8).sum::<u8>()
    };
    let warp = |d: usize| match warps[d] {
        1 => None,
        n => Some(Digit::new(n, Place::warp(warp_bit(d)))),
    };
    let mut slots = Slots(1);
    let (pair, low) = (slots.take(2), slots.take(2));
    let mut n: Chain<Place> = smallvec![pair, Digit::new(4, Place::lane(0))];
    n.extend(warp(2));
    n.push(slots.take(tiles[2]));
    let mut m: Chain<Place> = smallvec![Digit::new(8, Place::lane(2)), low];
    m.extend(warp(1));
    m.push(slots.take(tiles[1]));
    let mut batch: Chain<Place> = warp(0).into_iter().collect();
    batch.push(slots.take(tiles[0]));
    Tiling {
        warps,
        tiles,
        padded: [0, 1, 2].map(|d| TILE[d] * warps[d] * tiles[d]),
        result: layout(shape, group, [batch, m, n]),
    }
}

fn multiply_add(shape: &[u64], group: Group) -> Tiling {
    let size = sizes(shape);
    let mut threads = [1u64; 3];
    let mut chains: [Chain<Place>; 3] = Default::default();
    for bit in 0..group.thread_bits() {
        let left = [0, 1, 2].map(|d| size[d].div_ceil(threads[d]));
        // Eight columns side by side read eight rows of the right operand at once; then where most is left to do.
        let d = match bit {
            0..3 if left[2] > 1 => 2,
            _ => [1, 2, 0].into_iter().max_by_key(|&d| (left[d], d == 1)).unwrap_or(1),
        };
        if left[d] > 1 {
            chains[d].push(Digit::new(2, Place::Thread(bit)));
            threads[d] *= 2;
        }
    }
    let tiles = [0, 1, 2].map(|d| size[d].div_ceil(threads[d]));
    let mut slots = Slots(1);
    for d in [2, 1, 0] {
        chains[d].push(slots.take(tiles[d]));
    }
    Tiling {
        warps: [1; 3],
        tiles,
        padded: [0, 1, 2].map(|d| threads[d] * tiles[d]),
        result: layout(shape, group, chains),
    }
}

/// Whether a left operand of 16-bit elements lies in the registers that `mma` takes it from: as the result of another product of as many rows does,
/// whose columns are what is summed here (PTX ISA, "Matrix Fragments for mma.m16n8k16": two tiles of the result are one of the operand).
pub fn is_fragments(arithmetic: DotArithmetic, tiling: &Tiling, layout: &RegisterLayout, bits: u32) -> bool {
    let &[m, k] = layout.shape() else { return false };
    let is_dealt_by_rows = tiling.warps[0] == 1 && tiling.warps[2] == 1 && tiling.padded[1] == m;
    arithmetic == DotArithmetic::TensorCore
        && bits == 16
        && is_dealt_by_rows
        && k % (2 * TILE[2]) == 0
        && *layout == dealt(layout.shape(), layout.group(), tiling.warps).result
}

/// Which dimension of a staged operand is contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Minor {
    K,
    /// M, or N.
    Free,
}

/// An operand in scratch. All in bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Staged {
    /// From the start of scratch.
    pub start: u64,
    pub minor: Minor,
    /// From one row to the next: of M or N where K is contiguous, else of K.
    pub row: u64,
    /// From one batch to the next.
    pub batch: u64,
    /// As if all slices were there.
    pub view: SmemView,
}

impl Staged {
    /// From an index of K to the next.
    pub fn along_k(&self, element: u64) -> u64 {
        match self.minor {
            Minor::K => element,
            Minor::Free => self.row,
        }
    }
    /// From an index of M or N to the next.
    pub fn along_free(&self, element: u64) -> u64 {
        match self.minor {
            Minor::K => self.row,
            Minor::Free => element,
        }
    }
}

/// What a product does.
#[derive(Clone, Debug, PartialEq)]
pub struct DotPlan {
    pub tiling: Tiling,
    pub k: u64,
    /// Elements of K that an instruction takes, or a vector load.
    pub step: u64,
    /// K, a multiple of `step`.
    pub padded_k: u64,
    /// Of one slice.
    pub batches: u64,
    pub depth: u64,
    pub a: Staged,
    pub b: Staged,
    /// What is read where it is in shared memory; its [`Staged`] takes no scratch.
    pub in_place: [Option<InPlace>; 2],
    /// The left operand is in the registers that instructions take it from; its [`Staged`] takes no scratch.
    pub fragments: bool,
    pub bytes: u64,
}

impl DotPlan {
    /// First batch and first index of K of each slice; the batches one after the other.
    pub fn slices(&self) -> impl Iterator<Item = (u64, u64)> + use<> {
        let (batches, depth, padded_k) = (self.batches, self.depth, self.padded_k);
        (0..self.tiling.padded[0])
            .step_by(batches as usize)
            .flat_map(move |batch| (0..padded_k).step_by(depth as usize).map(move |k| (batch, k)))
    }
    /// Whether everything is staged at once.
    pub fn is_whole(&self) -> bool {
        self.slices().count() == 1
    }
}

/// An operand of a product.
#[derive(Clone, Copy, Debug)]
pub enum Operand<'a> {
    Registers(&'a RegisterLayout),
    /// In those that instructions take it from ([`is_fragments`]): the left one.
    Fragments,
    InPlace(&'a InPlace),
}

/// Elements of K that an instruction takes, or a vector load. `element`: its bytes.
pub fn step(arithmetic: DotArithmetic, element: u64) -> u64 {
    match arithmetic {
        DotArithmetic::TensorCore => 2 * CHUNK / element,
        DotArithmetic::MultiplyAdd => CHUNK / element,
    }
}

/// How the accesses that stage an operand are planned.
pub fn store(layout: &RegisterLayout, view: &SmemView, whole: bool) -> Result<TransferPlan, TransferError> {
    let options = Options {
        matrix: whole,
        stagger: whole,
        ..Options::default()
    };
    transfer::plan(layout, view, Memory::Shared, Direction::Store, options)
}

/// The smallest number that is an odd number of chunks.
fn odd_chunks(bytes: u64) -> u64 {
    (bytes.div_ceil(CHUNK) | 1) * CHUNK
}

/// Plans a product over `k` elements of so many `bits` whose slices take at most `budget` bytes, as far as slices can be that small.
pub fn plan(
    arithmetic: DotArithmetic,
    tiling: Tiling,
    (k, bits): (u64, u32),
    operands: [Operand<'_>; 2],
    budget: u64,
) -> Result<DotPlan, TransferError> {
    let element = u64::from(bits / 8);
    let step = step(arithmetic, element);
    let padded_k = k.next_multiple_of(step);
    let [batch, m, n] = tiling.padded;
    let either_way = arithmetic == DotArithmetic::TensorCore && element == 2;
    // Where an operand's rows begin and how long its slice is, for a depth and a number of batches.
    let staged = |operand: &Operand<'_>, free: u64, minor: Minor, depth: u64, start: u64| {
        let Operand::Registers(layout) = operand else {
            return Staged {
                start,
                minor,
                row: 0,
                batch: 0,
                view: SmemView::strided(&[], &[], bits),
            };
        };
        let (row, rows) = match minor {
            Minor::K => (odd_chunks(depth * element), free),
            Minor::Free => (odd_chunks(free * element), depth),
        };
        let (along_free, along_k) = match minor {
            Minor::K => (row, element),
            Minor::Free => (element, row),
        };
        let strides = [rows * row, along_free, along_k].map(|bytes| 8 * bytes);
        let shape = layout.shape();
        Staged {
            start,
            minor,
            row,
            batch: rows * row,
            view: SmemView::strided(shape, &strides[3 - shape.len()..], bits),
        }
    };
    let mut minors = [Minor::K; 2];
    if either_way {
        for ((operand, free), minor) in operands.iter().zip([m, n]).zip(&mut minors) {
            let layout = match operand {
                Operand::Registers(layout) => layout,
                Operand::Fragments => continue,
                Operand::InPlace(own) => {
                    *minor = own.minor;
                    continue;
                }
            };
            let cost = |minor| {
                let view = staged(operand, free, minor, padded_k, 0).view;
                store(layout, &view, true).map(|plan| plan.cost)
            };
            if cost(Minor::Free)? < cost(Minor::K)? {
                *minor = Minor::Free;
            }
        }
    }
    let of = |batches: u64, depth: u64| {
        let a = staged(&operands[0], m, minors[0], depth, 0);
        let b = staged(&operands[1], n, minors[1], depth, batches * a.batch);
        let bytes = b.start + batches * b.batch;
        (a, b, bytes)
    };
    // First fewer batches, then less of K.
    let fits = |batches: u64, depth: u64| of(batches, depth).2 <= budget;
    let fewest = tiling.padded[0] / tiling.tiles[0];
    let mut batches = batch;
    while batches > fewest && !fits(batches, padded_k) {
        batches = (batches / 2).next_multiple_of(fewest);
    }
    let mut depth = padded_k;
    while depth > step && !fits(batches, depth) {
        depth = (depth / 2).next_multiple_of(step);
    }
    let (a, b, bytes) = of(batches, depth);
    Ok(DotPlan {
        tiling,
        k,
        step,
        padded_k,
        batches,
        depth,
        a,
        b,
        in_place: operands.map(|operand| match operand {
            Operand::Registers(_) | Operand::Fragments => None,
            Operand::InPlace(own) => Some(own.clone()),
        }),
        fragments: matches!(operands[0], Operand::Fragments),
        bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::TiledLayout;

    #[test]
    fn a_product_of_64_rows_lies_as_an_accumulator_of_wgmma() {
        for shape in [[64, 8], [64, 64], [128, 256], [192, 40]] {
            let own = tiling(DotArithmetic::TensorCore, &shape, Group::Warpgroup, Dealing::Rows).result;
            assert_eq!(own, TiledLayout::wgmma().instantiate(&shape).unwrap(), "{shape:?}");
        }
    }

    /// Every element of the result is somewhere, and where it is is within what is padded.
    #[test]
    fn tilings_hold_every_element() {
        for arithmetic in [DotArithmetic::TensorCore, DotArithmetic::MultiplyAdd] {
            for shape in [
                &[2, 2][..],
                &[3, 5],
                &[16, 8],
                &[17, 33],
                &[100, 3],
                &[1, 7, 9],
                &[5, 16, 16],
                &[33, 2, 3],
            ] {
                let groups = [Group::Warp, Group::Warpgroup];
                let ways = groups.map(|group| [Dealing::Rows, Dealing::Squares].map(|dealing| (group, dealing)));
                for (group, dealing) in ways.into_iter().flatten() {
                    let tiling = tiling(arithmetic, shape, group, dealing);
                    let n: u64 = shape.iter().product();
                    let mut held = vec![false; n as usize];
                    tiling.result.for_each_element(|_, at| held[at as usize] = true);
                    assert!(held.iter().all(|h| *h), "{arithmetic:?} {shape:?} {group:?}");
                    assert!(tiling.padded.iter().zip(sizes(shape)).all(|(&p, n)| p >= n));
                }
            }
        }
    }

    #[test]
    fn slices_are_as_small_as_they_must() {
        let layout = RegisterLayout::strided(&[128, 64], 4, Group::Warpgroup);
        let tiling = tiling(DotArithmetic::TensorCore, &[128, 128], Group::Warpgroup, Dealing::Rows);
        let operands = [Operand::Registers(&layout); 2];
        let plan = |budget| plan(DotArithmetic::TensorCore, tiling.clone(), (64, 16), operands, budget).unwrap();
        assert!(plan(64 * 1024).is_whole());
        let small = plan(16 * 1024);
        assert!(small.bytes <= 16 * 1024 && small.slices().count() == 4, "{small:?}");
        assert_eq!(plan(0).depth, 16);
    }
}
