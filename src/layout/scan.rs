//! Running reductions of arrays that stay in registers: from digit to digit of the axis, minor ones first.
//!
//! A thread goes through the elements of its own that follow each other; lanes exchange their totals by shuffles, warps
//! do so through scratch, and slots behind those carry on what came before them. An element moves nowhere, so that the result lies as
//! the operand does. Where the axis shares digits with another one, is padded, or has the same elements in several places that matter, there is
//! no such plan, and the array goes through scratch ([`exchange::RunningPlan`](super::exchange::RunningPlan)).
use super::register_layout::{Group, LANE_BITS, Place, RegisterLayout};
use crate::dtype::DType;

/// A digit of the axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Digit {
    pub size: u64,
    pub place: Level,
}

/// Where a digit lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// Slots at this distance.
    Slot(u32),
    /// From this bit of the lane on.
    Lane(u8),
    /// From this bit of the warp on.
    Warp(u8),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScanPlan {
    /// Minor first.
    pub digits: Vec<Digit>,
    pub slots: u32,
    /// Bits of the lane that are not the axis's.
    pub other_lanes: Vec<u8>,
    /// Of scratch, through which warps exchange: one element a place, see [`ScanPlan::place_strides`].
    pub bytes: u64,
}

/// Shuffles and elements that a thread may take; more is long code.
const MOST_SLOTS: u32 = 128;

impl ScanPlan {
    /// `element`: what the elements are meanwhile.
    pub fn of(layout: &RegisterLayout, axis: usize, element: DType) -> Option<ScanPlan> {
        let whole = layout.axis_of(axis);
        let slots = layout.slots();
        if layout.group() != Group::Warpgroup || layout.straddles(axis) || whole.is_padded() || slots > MOST_SLOTS {
            return None;
        }
        let mut digits = vec![];
        let mut lanes = 0u8;
        for d in whole.chain.iter().filter(|d| d.size > 1) {
            let place = match d.place {
                Place::Constant => return None,
                Place::Slot(stride) => Level::Slot(stride),
                Place::Thread(bit) if bit < LANE_BITS => {
                    lanes |= ((d.size - 1) as u8) << bit;
                    Level::Lane(bit)
                }
                Place::Thread(bit) => Level::Warp(bit - LANE_BITS),
            };
            digits.push(Digit { size: d.size, place });
        }
        let is_warp = |d: &&Digit| matches!(d.place, Level::Warp(_));
        if digits.iter().filter(is_warp).count() > 1 {
            return None;
        }
        let other_lanes: Vec<u8> = (0..LANE_BITS).filter(|bit| lanes >> bit & 1 == 0).collect();
        // One element of each block of slots below the warps.
        let below: u64 = digits.iter().take_while(|d| !is_warp(d)).filter_map(in_slots).product();
        let bytes = match digits.iter().any(|d| is_warp(&d)) {
            true => u64::from(slots) / below * Self::places(&other_lanes) * u64::from(element.bits() / 8),
            false => 0,
        };
        Some(ScanPlan {
            digits,
            slots,
            other_lanes,
            bytes,
        })
    }

    /// Places of one slot in scratch: of each warp, and of lanes along other axes.
    fn places(other_lanes: &[u8]) -> u64 {
        4 << other_lanes.len()
    }

    /// Elements from one slot to the next in scratch, and from one warp to the next.
    pub fn place_strides(&self) -> (u64, u64) {
        (Self::places(&self.other_lanes), 1 << self.other_lanes.len())
    }
}

fn in_slots(d: &Digit) -> Option<u64> {
    matches!(d.place, Level::Slot(_)).then_some(d.size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_of_a_row() {
        let layout = RegisterLayout::strided(&[4096], 2, Group::Warpgroup);
        let plan = ScanPlan::of(&layout, 0, DType::I32).unwrap();
        let expected = [
            (2, Level::Slot(1)),
            (32, Level::Lane(0)),
            (4, Level::Warp(0)),
            (16, Level::Slot(2)),
        ];
        assert!(plan.digits.iter().map(|d| (d.size, d.place)).eq(expected), "{plan:?}");
        // Sixteen pairs of each warp.
        assert_eq!((plan.bytes, plan.place_strides()), (16 * 4 * 4, (4, 1)));
    }

    #[test]
    fn what_has_no_digits_of_its_own() {
        let flat = RegisterLayout::strided(&[3, 1000], 1, Group::Warpgroup);
        assert_eq!(ScanPlan::of(&flat, 1, DType::F32), None);
        let padded = RegisterLayout::strided(&[1000], 1, Group::Warpgroup);
        assert_eq!(ScanPlan::of(&padded, 0, DType::F32), None);
        let splat = RegisterLayout::splat(&[64], Group::Warpgroup);
        assert_eq!(ScanPlan::of(&splat, 0, DType::F32), None);
    }
}
