//! Reports of kernels that give up on a GPU ([`GaveUp`]), as errors.
use crate::error::{Error, Fault, Loc};
use crate::ptx::launch::{Awaited, GaveUp, LaunchSpec};

/// Why a launch of the kernel `name` on a device did not come to its end; none: it did. `words`: what it left.
pub fn error_of(name: &str, launch: &LaunchSpec, device: i32, words: [u64; 2]) -> Option<Error> {
    let report = GaveUp::of(words)?;
    let [x, y, _] = launch.grid;
    let (block, plane) = (report.block, x * y);
    let at = format!(
        "block ({}, {}, {}), warp {} on GPU {device}",
        block % x,
        block % plane / x,
        block / plane,
        report.warp
    );
    let detail = report.detail;
    let (what, expected, got, loc) = match report.awaited {
        Awaited::Barrier => (
            "a barrier",
            "a phase of it to complete: all arrivals, and the bytes of the copies that it counts".to_owned(),
            format!("less, of barrier {detail} of its allocation: {at}"),
            Loc(report.op),
        ),
        Awaited::Semaphore => (
            "a semaphore",
            format!("a count of at least {detail}"),
            format!("less: {at}"),
            Loc(report.op),
        ),
        Awaited::Device => (
            "another device to begin",
            format!(
                "all {} devices of the mesh to launch it",
                launch.mesh.as_ref().map_or(1, |mesh| mesh.devices)
            ),
            format!("device {detail} of the mesh did not come: {at}"),
            Loc::CALL_SITE,
        ),
        Awaited::Maps => (
            "the launch's first block",
            "it to set the addresses of the other devices' arrays".to_owned(),
            format!("it did not: {at}"),
            Loc::CALL_SITE,
        ),
    };
    let error = Error::new(
        Fault::Timeout,
        format!("`{name}` waited longer than wait_timeout_ns for {what}"),
    );
    let remedy = "run it in the emulator (smalt.emulated), which shows who waits for whom; \
                  give it more time if no wait is endless (CompilerParams.wait_timeout_ns)";
    Some(error.expected(expected).got(got).remedy(remedy).at(loc))
}

/// Another device of the mesh has given up in the same execution.
pub fn elsewhere(name: &str) -> Error {
    Error::new(
        Fault::Timeout,
        format!("`{name}` waited longer than wait_timeout_ns on another device of the mesh"),
    )
    .expected("all devices of the mesh to run the program to its end")
    .got("an execution that has failed on one of them: this device launches its part no more")
    .remedy("the other device's error says who waited for whom")
}

/// A device has given up, of which other processes are not informed.
pub fn lost(name: &str) -> Error {
    Error::new(
        Fault::Timeout,
        format!("`{name}` has waited longer than wait_timeout_ns before, in a mesh of several processes"),
    )
    .expected("processes whose launches belong together")
    .got("an earlier launch that gave up here: which of the other processes' launches belongs to this one is not known")
    .remedy("start the job's processes again; devices of one process may go on after a wait that took too long")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_kernel_leaves_is_an_error_at_the_ops_line() {
        let launch = LaunchSpec {
            grid: [4, 3, 2],
            ..LaunchSpec::of_one_block(256)
        };
        let words = |awaited: Awaited, detail: u32| {
            let word = 7 << 32 | u64::from(awaited.code() | detail);
            [word, 5 << 32 | 18]
        };
        assert!(error_of("f", &launch, 1, [0, 0]).is_none());
        for (awaited, detail, loc, what) in [
            (Awaited::Barrier, 0, Loc(7), "barrier 0 of its allocation"),
            (Awaited::Semaphore, 12, Loc(7), "at least 12"),
            (Awaited::Device, 3, Loc::CALL_SITE, "device 3 of the mesh"),
            (Awaited::Maps, 0, Loc::CALL_SITE, "first block"),
        ] {
            let error = error_of("f", &launch, 1, words(awaited, detail)).unwrap();
            let text = error.to_string();
            assert_eq!((error.fault, error.loc), (Fault::Timeout, Some(loc)), "{text}");
            assert!(
                text.contains(what) && text.contains("block (2, 1, 1), warp 5 on GPU 1"),
                "{text}"
            );
        }
    }
}
