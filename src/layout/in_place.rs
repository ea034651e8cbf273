//! Operands of `mma.sync` that `ldmatrix` reads where they lie in shared memory.
//!
//! A matrix is eight rows of 16 bytes, one row a lane names; an instruction reads four of them, of a tile of the product's and a step of K
//! ([`super::dot`]). That is possible where 16 bytes along K lie together, or, of 16-bit elements, along M or N (`ldmatrix.trans`), and where
//! the offset of an element is the sum of what its lane, its warp, its tile and its step give. It is worth it where eight rows are spread over all
//! banks: in swizzled memory.
use super::address::AddressPlan;
use super::dot::{Minor, Tiling};
use super::facts::DynTerm;
use super::register_layout::{RegisterLayout, Source, Term};
use super::smem_layout::SmemView;
use smallvec::SmallVec;

/// What a lane names, in bytes.
const CHUNK: u64 = 16;
const ROWS: u64 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// [M, K]
    Left,
    /// [N, K]
    Right,
}

/// How lanes address the matrices of an operand.
#[derive(Clone, Debug, PartialEq)]
pub struct InPlace {
    pub minor: Minor,
    pub address: AddressPlan,
    /// The base and the immediate of each instruction: of a tile (of N: of two), all steps of K.
    places: Vec<(usize, i64)>,
    steps: u64,
}

impl InPlace {
    /// Of the instruction for a tile (a pair of tiles of N) and a step of K.
    pub fn place(&self, tile: u64, step: u64) -> (usize, i64) {
        self.places[(tile * self.steps + step) as usize]
    }

    /// `view`: the operand, rows by K; `step`: elements of K that one instruction multiplies.
    pub fn of(view: &SmemView, side: Side, tiling: &Tiling, step: u64) -> Option<InPlace> {
        let [free, along_k] = view.dims.as_slice() else {
            return None;
        };
        let regular = view.dims.iter().all(|d| d.loose.is_empty()) && view.dropped.is_empty();
        let element = u64::from(view.bits / 8);
        let dim = match side {
            Side::Left => 1,
            Side::Right => 2,
        };
        let (size, k) = (free.size, along_k.size);
        let whole = tiling.padded[dim] == size && k.is_multiple_of(step);
        let bytes = view.offset % 8 == 0 && view.dynamic.iter().all(|t| t.stride % 8 == 0 && t.multiple % 8 == 0);
        if !regular || !whole || !bytes || element == 0 || view.bits % 8 != 0 {
            return None;
        }
        let row_at = |i: u64| free.offset(i) / 8;
        let k_at = |i: u64| along_k.offset(i) / 8;
        // Runs of 16 bytes.
        let chunk = CHUNK / element;
        let together = |at: &dyn Fn(u64) -> u64, size: u64| {
            size.is_multiple_of(chunk)
                && (0..size).all(|i| at(i) == at(i - i % chunk) + i % chunk * element && at(i - i % chunk) % CHUNK == 0)
        };
        let others = |at: &dyn Fn(u64) -> u64, size: u64| (0..size).all(|i| at(i) % CHUNK == 0);
        let minor = if together(&k_at, k) && others(&row_at, size) {
            Minor::K
        } else if element == 2 && together(&row_at, size) && others(&k_at, k) {
            Minor::Free
        } else {
            return None;
        };
        // Tiles: how many instructions, their stride, and the offset of the second matrices.
        let warps = tiling.warps[dim];
        let (count, stride, next) = match side {
            Side::Left => (tiling.tiles[1], 16 * warps, ROWS),
            Side::Right => (tiling.tiles[2].div_ceil(2), 16 * warps, 8 * warps),
        };
        let is_single = |tile: u64| side == Side::Right && 2 * tile + 1 == tiling.tiles[2];
        let own = RegisterLayout::axis_terms(tiling.result.axis_of(dim - 1));
        let own: SmallVec<[Term; 2]> = own.into_iter().filter(|t| t.source == Source::Warp).collect();
        let half = step / 2;
        let (row, last) = match minor {
            Minor::K => (row_at(1), ROWS - 1),
            Minor::Free => (k_at(1), 0),
        };
        let (next_bytes, half_bytes) = (row_at(next % size.max(1)), k_at(half));
        // Of M or N: what tile, warp, the second matrices and, where K is contiguous, the lane's row add up to.
        let warp_index = |warp: u64| -> (u64, u64) {
            let of = |t: &Term| (warp >> t.lo_bit & ((1 << t.bits) - 1)) * t.stride as u64;
            (
                own.iter().map(of).sum(),
                own.iter()
                    .map(|t| (warp >> t.lo_bit & ((1 << t.bits) - 1)) * row_at(t.stride as u64))
                    .sum(),
            )
        };
        for tile in 0..count {
            for warp in 0..4 {
                let (index, bytes) = warp_index(warp);
                for (second, r) in [0, 1].into_iter().flat_map(|s| (0..=last).map(move |r| (s, r))) {
                    if second == 1 && is_single(tile) {
                        continue;
                    }
                    let at = tile * stride + index + second * next + r;
                    if at >= size || row_at(at) != row_at(tile * stride) + bytes + second * next_bytes + r * row {
                        return None;
                    }
                }
            }
        }
        // Of K: step, half, and the lane's row where it is along K.
        let rows_of_k = match minor {
            Minor::K => 1,
            Minor::Free => ROWS,
        };
        for s in 0..k / step {
            for (second, r) in [0, 1].into_iter().flat_map(|s| (0..rows_of_k).map(move |r| (s, r))) {
                if k_at(s * step + second * half + r) != k_at(s * step) + second * half_bytes + r * row {
                    return None;
                }
            }
        }
        let (bit3, bit4) = match side {
            Side::Left => (next_bytes, half_bytes),
            Side::Right => (half_bytes, next_bytes),
        };
        let mut terms = vec![
            Term::of_thread(0, ROWS, row as i64),
            Term::of_thread(3, 2, bit3 as i64),
            Term::of_thread(4, 2, bit4 as i64),
        ];
        terms.extend(own.iter().map(|t| Term {
            stride: row_at(t.stride as u64) as i64,
            ..*t
        }));
        let steps = k / step;
        let constants: Vec<u64> = (0..count)
            .flat_map(|tile| (0..steps).map(move |s| (tile, s)))
            .map(|(tile, s)| view.offset / 8 + row_at(tile * stride) + k_at(s * step))
            .collect();
        let dynamic: SmallVec<[DynTerm; 2]> = view.dynamic.iter().map(|t| t.in_bytes()).collect();
        let (address, places) = AddressPlan::new(dynamic, terms, view.swizzle, 0, &constants)?;
        // Eight rows in eight times four banks.
        let &(base, immediate) = places.first()?;
        let mut banks = 0u32;
        for lane in 0..ROWS as u32 {
            banks |= 1 << (address.address(0, lane, base, immediate) / CHUNK % ROWS);
        }
        (banks == 0xff).then_some(InPlace {
            minor,
            address,
            places,
            steps,
        })
    }
}
