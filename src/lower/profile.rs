//! Profiles: one lane of each warpgroup, or warp, writes when ranges begin and end into a track of its own ([`Profile`]).
//!
//! Where the lane is in its track is in registers of its own; it is one instruction to read the clock, one to store, and three for its place.
use super::cx::LowerCx;
use super::debug_print::block;
use super::emit::S;
use crate::error::Result;
use crate::kernel_ir::profile::{self, Tracks};
use crate::kernel_ir::{Group, Kernel, ProfileEdge, ProfileScope};
use crate::plan::FeedingPart;
use crate::ptx::inst::Inst;
use crate::ptx::launch::{EntryParam, Profile};
use crate::ptx::modifier::*;
use crate::ptx::operand::{Class, ParamRef, Src};

/// What the tracks of a kernel need to be read.
#[derive(Clone, Debug)]
pub struct Ranges {
    /// By number.
    pub names: Vec<String>,
    /// Extents of the grid's, then the cluster's axes.
    pub blocks: Vec<u64>,
    pub warpgroups: u32,
    pub tracks: Tracks,
    /// What the first warp of a warpgroup records is the warpgroup's.
    pub scope: ProfileScope,
    /// `CompilerParams.profile_space`.
    pub space: u64,
}

impl Ranges {
    pub fn of(kernel: &Kernel, names: Vec<String>) -> Option<Ranges> {
        let profile = profile::of(kernel)?;
        let axes = kernel.grid.iter().chain(&kernel.cluster);
        Some(Ranges {
            names,
            blocks: axes.map(|axis| kernel.axes[*axis].size).collect(),
            warpgroups: kernel.num_warpgroups,
            tracks: profile.tracks,
            scope: kernel.compiler_params.profile_scope,
            space: kernel.compiler_params.profile_space,
        })
    }
}

/// The range of what a kernel does before its body, by JAX's name for it.
const PROLOGUE: &str = "Init";

/// The launch's profile, if the kernel has one.
pub fn of(cx: &LowerCx) -> Option<Profile> {
    let profile = cx.profile?;
    Some(Profile {
        buffer: cx.profile_buffer(),
        tracks: profile.per_block,
        marks: profile.marks,
    })
}

/// In front of everything else.
pub fn begin(cx: &mut LowerCx) -> Result<()> {
    let (Some(launch), Some(profile)) = (of(cx), cx.profile) else {
        return Ok(());
    };
    let p = ParamRef(cx.entry.params.len() as u32);
    cx.entry.params.push(EntryParam::Pointer { buffer: launch.buffer });
    let start = cx.b.param(p);
    let block = block(cx)?;
    let tid: S = cx.b.tid().into();
    let (track, threads) = match profile.tracks {
        Tracks::Warps => (cx.b.warp().into(), 32),
        Tracks::Warpgroups => (cx.warpgroup(), 128),
    };
    let track = cx.b.mad(IntType::U32, block, Src::u32(launch.tracks), track);
    let track = cx.b.widen(track, false);
    let at =
        cx.b.mad(IntType::U64, track, Src::Imm(launch.track_bytes()), S::from(start));
    let at = cx.b.value(at, Class::B64);
    let lane = cx.b.and32(tid, threads - 1);
    let first = cx.b.setp(Compare::Eq, CompareType::U32, lane, Src::u32(0));
    let n = cx.b.pick(Class::B32, first, Src::u32(0), Src::u32(Profile::NEVER));
    cx.b.inst(Inst::ProfileStart { at, n });
    lower_mark(cx, PROLOGUE, ProfileEdge::Begins)
}

/// Behind what comes before the body.
pub fn begin_body(cx: &mut LowerCx) -> Result<()> {
    match cx.profile {
        None => Ok(()),
        Some(_) => lower_mark(cx, PROLOGUE, ProfileEdge::Ends),
    }
}

/// Behind everything else.
pub fn end(cx: &mut LowerCx) {
    if cx.profile.is_some() {
        cx.b.inst(Inst::ProfileEnd {});
    }
}

pub fn lower_mark(cx: &mut LowerCx, name: &str, edge: ProfileEdge) -> Result<()> {
    // Of a feeding loop, what the other warps count takes no time.
    if cx.feeding == Some(FeedingPart::Counts) {
        return Ok(());
    }
    let warps = cx.profile.is_some_and(|profile| profile.tracks == Tracks::Warps);
    let of_all = cx.kernel.compiler_params.profile_scope == ProfileScope::Warpgroup && cx.group != Group::Warp;
    if warps && of_all {
        let is_leader = cx.is_leading_warp();
        return cx.if_then(is_leader, |cx| {
            mark(cx, name, edge);
            Ok(())
        });
    }
    mark(cx, name, edge);
    Ok(())
}

fn mark(cx: &mut LowerCx, name: &str, edge: ProfileEdge) {
    let Some(launch) = of(cx) else { return };
    let ranges = &mut cx.entry.ranges;
    let known = ranges.iter().position(|range| range == name);
    let number = known.unwrap_or_else(|| {
        ranges.push(name.into());
        ranges.len() - 1
    });
    let edge = match edge {
        ProfileEdge::Begins => 0,
        ProfileEdge::Ends => Profile::ENDS,
    };
    cx.b.inst(Inst::profile_mark(
        i64::from(number as u32 | edge),
        i64::from(launch.marks),
    ));
}
