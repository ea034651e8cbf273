//! Layouts made of shapes and of other layouts.
//!
//! [`Derivation`]: how the layout of a shape op's result follows from its operand's, and back. The functions make the layouts that
//! some op needs whatever its neighbours have: whole runs along a dimension, digits of its own for each dimension.
use super::digits::{Chain, Digit};
use super::register_layout::{Axis, Group, LANE_BITS, Place, RegisterLayout};
use super::tiled::TiledLayout;
use smallvec::{SmallVec, smallvec};

/// How the result of an op follows from its operand.
#[derive(Clone, Debug)]
pub enum Derivation {
    /// The same, but for what is constant along this dimension: its running sums are not.
    Running {
        axis: usize,
    },
    Reduce {
        axes: SmallVec<[usize; 4]>,
    },
    Broadcast {
        dims: SmallVec<[usize; 4]>,
    },
    Transpose {
        permutation: SmallVec<[usize; 4]>,
    },
    Reshape,
    Slice {
        starts: SmallVec<[u64; 4]>,
    },
    /// Arrays of one shape, one behind the other along some dimension; the operand is one of them.
    Concat,
    /// Each element becomes `n` narrower ones along a new minor dimension.
    Split {
        n: u32,
    },
    /// The opposite.
    Join {
        n: u32,
    },
}

impl Derivation {
    /// The result's layout.
    pub fn forward(&self, from: &RegisterLayout, to_shape: &[u64]) -> Option<RegisterLayout> {
        self.forward_map(from, to_shape).map(|(layout, _)| layout)
    }

    /// The result's layout, and for each of its slots the operand's slot where they are not the same.
    pub fn forward_map(&self, from: &RegisterLayout, to_shape: &[u64]) -> Option<(RegisterLayout, Option<Vec<u32>>)> {
        let layout = match self {
            Derivation::Running { axis } => Some(match is_constant_along(from, *axis) && from.shape()[*axis] > 1 {
                true => with_dim_in_slots(from.shape(), None, from.group()),
                false => from.clone(),
            }),
            Derivation::Reduce { axes } => from.reduce(axes),
            Derivation::Broadcast { dims } => from.broadcast_in_dim(to_shape, dims),
            Derivation::Transpose { permutation } => from.transpose(permutation),
            Derivation::Reshape => from.reshape(to_shape),
            Derivation::Slice { starts } => {
                return from.slice(starts, to_shape).map(|(layout, map)| (layout, Some(map)));
            }
            Derivation::Concat => repeated(from, to_shape),
            Derivation::Split { n } => Some(with_minor_slots(from, *n)),
            Derivation::Join { n } => {
                let wide = from.rank().checked_sub(1).and_then(|minor| from.reduce(&[minor]));
                wide.filter(|wide| with_minor_slots(wide, *n) == *from)
            }
        };
        layout.map(|layout| (layout, None))
    }

    /// A layout of the operand from which the result's follows.
    pub fn backward(&self, to: &RegisterLayout, from_shape: &[u64]) -> Option<RegisterLayout> {
        match self {
            Derivation::Running { .. } => Some(to.clone()),
            Derivation::Reduce { axes } => {
                // Candidates: the named layouts whose reduction this is.
                [TiledLayout::wgmma(), TiledLayout::wgmma_transposed()]
                    .iter()
                    .filter_map(|t| t.instantiate(from_shape).ok())
                    .find(|l| l.reduce(axes).as_ref() == Some(to))
            }
            Derivation::Broadcast { dims } => {
                if dims.len() != from_shape.len() {
                    return None;
                }
                // A dimension expanded from 1 keeps no digits of the result.
                let is_kept = |i: &usize| to.shape()[dims[*i]] == from_shape[*i];
                let kept: SmallVec<[usize; 4]> = (0..dims.len()).filter(is_kept).collect();
                let is_dropped = |d: &usize| !kept.iter().any(|i| dims[*i] == *d);
                let dropped: SmallVec<[usize; 4]> = (0..to.rank()).filter(is_dropped).collect();
                let reduced = to.reduce(&dropped)?;
                if kept.len() == dims.len() {
                    return Some(reduced);
                }
                reduced.broadcast_in_dim(from_shape, &kept)
            }
            Derivation::Transpose { permutation } => {
                let mut inverse: SmallVec<[usize; 4]> = SmallVec::from_elem(0, permutation.len());
                for (i, p) in permutation.iter().enumerate() {
                    inverse[*p] = i;
                }
                to.transpose(&inverse)
            }
            Derivation::Reshape => to.reshape(from_shape),
            Derivation::Slice { starts } => {
                let aligned = || starts.iter().zip(to.shape()).all(|(s, n)| *n > 0 && s % n == 0);
                named_for_shape(to, from_shape).or_else(|| repeated(to, from_shape).filter(|_| aligned()))
            }
            Derivation::Concat => to
                .slice(&SmallVec::<[u64; 4]>::from_elem(0, to.rank()), from_shape)
                .map(|(part, _)| part),
            Derivation::Split { n } => Derivation::Join { n: *n }.forward(to, from_shape),
            Derivation::Join { n } => Some(with_minor_slots(to, *n)),
        }
    }
}

/// The layout of the same family for another shape.
fn named_for_shape(layout: &RegisterLayout, shape: &[u64]) -> Option<RegisterLayout> {
    let name = TiledLayout::name_of(layout)?;
    TiledLayout::by_name(name)?.instantiate(shape).ok()
}

/// Elements along the minor dimension, at least, of what is repeated along it: memory is read in whole sectors.
const RUN: u64 = 32;

/// The layout of an array of which that with `layout` is one of equal parts: the parts are one behind the other in slots. None where
/// dimensions would not divide, where threads hold what others hold, and where lanes would be at a large stride in memory.
pub fn repeated(layout: &RegisterLayout, shape: &[u64]) -> Option<RegisterLayout> {
    if layout.rank() != shape.len() || layout.replication() > 1 || layout.is_padded() || layout.is_constant_somewhere()
    {
        return None;
    }
    let mut slots = layout.slots();
    let mut axes: Vec<Axis> = layout.axes().to_vec();
    for (d, (&n, &own)) in shape.iter().zip(layout.shape()).enumerate() {
        if n == own {
            continue;
        }
        let axis = axes.iter_mut().find(|a| a.first == d && a.rank == 1)?;
        if own == 0 || n % own != 0 || d + 1 == shape.len() && own < RUN {
            return None;
        }
        let times = n / own;
        axis.chain.push(Digit::new(times, Place::Slot(slots)));
        axis.size = n;
        slots = slots.checked_mul(u32::try_from(times).ok()?)?;
    }
    Some(RegisterLayout::from_axes(shape, layout.group(), axes))
}

/// Every dimension has its own digits: vectors and lanes along the minor dimension as far as it goes, then along the next.
pub fn blocked(shape: &[u64], bits: u32, group: Group) -> RegisterLayout {
    let total_bits = group.thread_bits();
    let mut bit = 0u8;
    let mut slots = 1u64;
    let mut axes: Vec<Axis> = vec![];
    for (dim, &size) in shape.iter().enumerate().rev() {
        let mut chain = SmallVec::new();
        let mut left = size.max(1);
        if dim + 1 == shape.len() {
            let widest = u64::from(64 / bits.clamp(8, 64));
            let vec = 1u64 << left.trailing_zeros().min(widest.trailing_zeros());
            if vec > 1 {
                chain.push(Digit::new(vec, Place::Slot(slots as u32)));
                slots *= vec;
                left /= vec;
            }
        }
        // Lane digits, then warp digits: a digit never spans both.
        for end in [LANE_BITS.min(total_bits), total_bits] {
            let want = left.next_power_of_two().trailing_zeros() as u8;
            let take = want.min(end.saturating_sub(bit));
            if take > 0 && bit < end {
                chain.push(Digit::new(1 << take, Place::Thread(bit)));
                bit += take;
                left = left.div_ceil(1 << take);
            }
        }
        if left > 1 {
            chain.push(Digit::new(left, Place::Slot(slots as u32)));
            slots *= left;
        }
        if chain.is_empty() {
            chain.push(Digit::new(1, Place::Constant));
        }
        axes.push(Axis {
            first: dim,
            rank: 1,
            size,
            chain,
        });
    }
    RegisterLayout::from_axes(shape, group, axes)
}

/// The layout with a new minor dimension of `n` elements in neighbouring slots.
pub fn with_minor_slots(layout: &RegisterLayout, n: u32) -> RegisterLayout {
    let mut shape: Vec<u64> = layout.shape().to_vec();
    let minor = shape.len();
    shape.push(u64::from(n));
    let mut axes: Vec<Axis> = layout.axes().to_vec();
    for d in axes.iter_mut().flat_map(|a| a.chain.iter_mut()) {
        if let Place::Slot(s) = &mut d.place {
            *s *= n;
        }
    }
    axes.push(Axis {
        first: minor,
        rank: 1,
        size: u64::from(n),
        chain: smallvec![Digit::new(u64::from(n), Place::Slot(1))],
    });
    RegisterLayout::from_axes(&shape, layout.group(), axes)
}

/// A layout in which a thread has whole runs along `dim`, and the other dimensions are spread over the threads where they have
/// factors of two.
pub fn with_dim_in_slots(shape: &[u64], dim: Option<usize>, group: Group) -> RegisterLayout {
    let mut bit = 0u8;
    let mut stride = 1u32;
    let mut axes: Vec<Axis> = vec![];
    let mut add_slots = |chain: &mut Chain<Place>, n: u64| {
        chain.push(Digit::new(n, Place::Slot(stride)));
        stride *= n as u32;
    };
    if let Some(d) = dim {
        let mut chain = smallvec![];
        add_slots(&mut chain, shape[d]);
        axes.push(Axis {
            first: d,
            rank: 1,
            size: shape[d],
            chain,
        });
    }
    for (d, &n) in shape.iter().enumerate().rev().filter(|(d, _)| Some(*d) != dim) {
        let mut chain = smallvec![];
        let twos = n.trailing_zeros().min(u32::from(group.thread_bits() - bit)) as u8;
        if twos > 0 {
            chain.push(Digit::new(1 << twos, Place::Thread(bit)));
            bit += twos;
        }
        add_slots(&mut chain, n >> twos);
        axes.push(Axis {
            first: d,
            rank: 1,
            size: n,
            chain,
        });
    }
    RegisterLayout::from_axes(shape, group, axes)
}

/// Whole runs along the leading dimension, and its slices dealt to the threads: padded, where their sizes have too few twos.
pub fn with_slices_dealt(shape: &[u64], group: Group) -> RegisterLayout {
    let whole = with_dim_in_slots(shape, Some(0), group);
    let Some((&n, rest)) = shape.split_first() else {
        return whole;
    };
    let size: u64 = rest.iter().product();
    let rounds = size.div_ceil(u64::from(group.threads()));
    if u64::from(whole.slots()) <= n * rounds {
        return whole;
    }
    let lead = Axis {
        first: 0,
        rank: 1,
        size: n,
        chain: smallvec![Digit::new(n, Place::Slot(1))],
    };
    let slice = Axis {
        first: 1,
        rank: rest.len(),
        size,
        chain: smallvec![
            Digit::new(u64::from(group.threads()), Place::Thread(0)),
            Digit::new(rounds, Place::Slot(n as u32))
        ],
    };
    RegisterLayout::from_axes(shape, group, [lead, slice])
}

/// The same array with constant digits spread over slots.
pub fn materialized(layout: &RegisterLayout) -> RegisterLayout {
    let mut stride = layout.slots();
    let axes = layout.axes().iter().cloned().map(|mut axis: Axis| {
        for d in axis.chain.iter_mut().filter(|d| d.place == Place::Constant) {
            d.place = Place::Slot(stride);
            stride *= d.size as u32;
        }
        axis
    });
    let axes: Vec<Axis> = axes.collect();
    RegisterLayout::from_axes(layout.shape(), layout.group(), axes)
}

/// The same elements in the same threads, in another order: each thread's runs along `dim` are in neighbouring slots. None: it has none.
pub fn with_runs(layout: &RegisterLayout, dim: usize) -> Option<RegisterLayout> {
    let is_slot = |d: &Digit<Place>| matches!(d.place, Place::Slot(_));
    let of_dim = layout.axes().iter().position(|a| a.rank == 1 && a.first == dim)?;
    let run = layout.axes()[of_dim].chain.iter().take_while(|d| is_slot(d)).count();
    if run == 0 {
        return None;
    }
    let mut axes: Vec<Axis> = layout.axes().to_vec();
    let mut order: Vec<(bool, u32, usize, usize)> = vec![];
    for (i, axis) in axes.iter().enumerate() {
        for (j, d) in axis.chain.iter().enumerate() {
            if let Place::Slot(stride) = d.place {
                let is_first = i == of_dim && j < run;
                order.push((!is_first, if is_first { j as u32 } else { stride }, i, j));
            }
        }
    }
    order.sort_unstable();
    let mut stride = 1;
    for (_, _, i, j) in order {
        let digit = &mut axes[i].chain[j];
        digit.place = Place::Slot(stride);
        stride *= digit.size as u32;
    }
    Some(RegisterLayout::from_axes(layout.shape(), layout.group(), axes))
}

/// Whether every thread has whole runs along `dim`.
pub fn has_runs(layout: &RegisterLayout, dim: usize) -> bool {
    let axis = layout.axis_of(dim);
    axis.rank == 1
        && !axis.is_padded()
        && axis
            .chain
            .iter()
            .all(|d| d.size == 1 || matches!(d.place, Place::Slot(_)))
}

/// Whether elements narrower than a byte can be stored where dimension `along` is contiguous: those that share a byte are
/// neighbours in one thread.
pub fn has_whole_bytes(layout: &RegisterLayout, bits: u32, along: usize) -> bool {
    let together = u64::from(8 / bits.clamp(1, 8));
    if together == 1 {
        return true;
    }
    let axis = layout.axis_of(along);
    let digit = axis.chain.first().filter(|_| axis.first + axis.rank == along + 1);
    digit.is_some_and(|d| d.place == Place::Slot(1) && d.size.is_multiple_of(together))
}

/// The layout as an array has it that is stored where dimension `along` is contiguous: all threads hold something,
/// whole bytes are in one thread.
pub fn storable(layout: &RegisterLayout, bits: u32, along: usize) -> RegisterLayout {
    if has_whole_bytes(layout, bits, along) {
        return materialized(layout);
    }
    if layout.shape().iter().skip(along + 1).any(|n| *n != 1) {
        return with_dim_in_slots(layout.shape(), Some(along), layout.group());
    }
    let n: u64 = layout.shape().iter().product();
    let mut vectors = [8u64, 4, 2]
        .into_iter()
        .filter(|vec| n.is_multiple_of(*vec) && vec * u64::from(bits) >= 8);
    match vectors.next() {
        Some(vec) => RegisterLayout::strided(layout.shape(), vec, layout.group()),
        None => materialized(layout),
    }
}

/// Whether the axis of `dim` has a digit along which the layout is constant.
pub fn is_constant_along(layout: &RegisterLayout, dim: usize) -> bool {
    let mut digits = layout.axis_of(dim).chain.iter();
    digits.any(|d| d.place == Place::Constant && d.size > 1)
}

#[cfg(test)]
mod tests {
    use super::super::register_layout::Dims;
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn runs_are_put_together_and_nothing_changes_hands() {
        let shape = [128, 64];
        let mut changed = 0;
        for tiled in [
            TiledLayout::wgmma(),
            TiledLayout::wgmma_transposed(),
            TiledLayout::wgmma_8bit(),
        ] {
            let natural = tiled.instantiate(&shape).unwrap();
            // As rows of a transposed product come from neighbouring columns.
            let split = natural
                .reshape(&[2, 4, 2, 8, 64])
                .and_then(|l| l.transpose(&[1, 3, 0, 2, 4]));
            let permuted = split.and_then(|l| l.reshape(&[128, 64]));
            for layout in [Some(natural), permuted].into_iter().flatten() {
                for dim in 0..2 {
                    let Some(made) = with_runs(&layout, dim) else { continue };
                    changed += u32::from(made != layout);
                    let run: u64 = (0..made.axis_of(dim).chain.len())
                        .map_while(|i| {
                            let digit = made.axis_of(dim).chain[i];
                            matches!(digit.place, Place::Slot(_)).then_some(digit.size)
                        })
                        .product();
                    assert!(run > 1);
                    for thread in 0..128 {
                        let of = |l: &RegisterLayout| -> Vec<Dims> {
                            (0..l.slots()).filter_map(|slot| l.element(thread, slot)).collect()
                        };
                        let (before, after) = (of(&layout), of(&made));
                        let set = |all: &[Dims]| all.iter().cloned().collect::<BTreeSet<Dims>>();
                        assert_eq!(set(&before), set(&after));
                        for part in after.chunks(run as usize) {
                            for (i, index) in part.iter().enumerate() {
                                let mut want = part[0].clone();
                                want[dim] += i as u64;
                                assert_eq!(*index, want);
                            }
                        }
                    }
                }
            }
        }
        assert!(changed > 2, "{changed}");
    }
}
