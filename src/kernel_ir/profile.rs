//! Profiles: who records when ranges begin and end, and for how much there is room.
use super::{Group, Kernel, OpKind, ProfileScope};
use crate::error::{Error, Loc, Result};

/// Bytes of all tracks of a launch, at most.
const MAX_BYTES: u64 = 1 << 30;

/// What has a track in each block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tracks {
    Warpgroups,
    Warps,
}

/// The profile of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Profile {
    pub tracks: Tracks,
    /// Tracks of a block.
    pub per_block: u32,
    /// Marks of a track: of so many ranges as were asked for, and the one before the body.
    pub marks: u32,
}

/// None: the kernel has no profile.
pub fn of(kernel: &Kernel) -> Option<Profile> {
    let params = &kernel.compiler_params;
    if params.profile_space == 0 {
        return None;
    }
    let by_warps = params.profile_scope == ProfileScope::Warp || marks_of_warps(kernel);
    let (tracks, of_warpgroup) = match by_warps {
        true => (Tracks::Warps, 4),
        false => (Tracks::Warpgroups, 1),
    };
    let marks = params.profile_space.saturating_add(1).saturating_mul(2);
    Some(Profile {
        tracks,
        per_block: kernel.num_warpgroups * of_warpgroup,
        marks: u32::try_from(marks).unwrap_or(u32::MAX),
    })
}

/// Whether warps of a warp region have ranges of their own.
fn marks_of_warps(kernel: &Kernel) -> bool {
    kernel.live_regions().into_iter().any(|region| {
        let region = &kernel.regions[region];
        let is_mark = |op| matches!(kernel.ops[op].kind, OpKind::ProfileMark { .. });
        region.group == Group::Warp && region.ops.iter().any(|&op| is_mark(op))
    })
}

/// Refuses a profile that is too large.
pub fn check(kernel: &Kernel) -> Result<()> {
    let Some(profile) = of(kernel) else { return Ok(()) };
    let blocks = kernel
        .grid_sizes()
        .iter()
        .product::<u64>()
        .saturating_mul(kernel.cluster_size());
    let tracks = blocks.saturating_mul(profile.per_block.into());
    // Sixteen bytes a range; the rest is at most that of four.
    let each = |space: u64| space.saturating_add(4).saturating_mul(16);
    let space = kernel.compiler_params.profile_space;
    if tracks.saturating_mul(each(space)) <= MAX_BYTES {
        return Ok(());
    }
    let most = (MAX_BYTES / 16 / tracks.max(1)).saturating_sub(4);
    let of = match profile.tracks {
        Tracks::Warpgroups => "warpgroups",
        Tracks::Warps => "warps",
    };
    let (expected, remedy) = match most {
        0 => ("fewer of them".to_string(), "profile fewer blocks"),
        most => (
            format!("profile_space of at most {most}"),
            "set CompilerParams.profile_space to how many ranges one of them goes through",
        ),
    };
    Err(Error::invalid("a profile of more than 1 GiB")
        .at(Loc::CALL_SITE)
        .expected(expected)
        .got(format!("profile_space {space}, for each of {tracks} {of}"))
        .remedy(remedy))
}

#[cfg(test)]
mod tests {
    use super::super::testing::KernelBuilder;
    use super::super::{OpKind, ProfileEdge};
    use super::*;

    fn kernel(space: u64, group: Group) -> Kernel {
        let mut b = KernelBuilder::new().grid(&[1000, 2]).cluster(&[2]).warpgroups(3);
        let body = b.region(group, &[], |b, _| {
            let (name, edge) = ("a".into(), ProfileEdge::Begins);
            b.op(OpKind::ProfileMark { name, edge }, &[]);
            vec![]
        });
        let (allocs, collective) = (vec![], false);
        b.op(
            OpKind::Scope {
                allocs,
                body,
                collective,
            },
            &[],
        );
        let mut kernel = b.finish();
        kernel.compiler_params.profile_space = space;
        kernel
    }

    #[test]
    fn warps_have_tracks_where_they_make_marks() {
        assert_eq!(of(&kernel(0, Group::Warp)), None);
        let found = of(&kernel(7, Group::Warpgroup)).unwrap();
        assert_eq!(
            (found.tracks, found.per_block, found.marks),
            (Tracks::Warpgroups, 3, 16)
        );
        let found = of(&kernel(7, Group::Warp)).unwrap();
        assert_eq!((found.tracks, found.per_block, found.marks), (Tracks::Warps, 12, 16));
        let mut all = kernel(7, Group::Warpgroup);
        all.compiler_params.profile_scope = ProfileScope::Warp;
        assert_eq!(of(&all).unwrap().tracks, Tracks::Warps);
    }

    #[test]
    fn the_largest_profile_is_taken() {
        let most = MAX_BYTES / 16 / 12_000 - 4;
        check(&kernel(most, Group::Warpgroup)).unwrap();
        let error = check(&kernel(most + 1, Group::Warpgroup)).unwrap_err();
        assert_eq!(error.expected.unwrap(), format!("profile_space of at most {most}"));
        assert!(check(&kernel(u64::MAX, Group::Warp)).is_err());
    }
}
