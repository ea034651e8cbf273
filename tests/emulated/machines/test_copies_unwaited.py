"""Copies by threads (`cp.async`) that are not waited for, or by too few: reported, whatever the schedule; twins that wait are not.

A program is a line of steps of two warps, whose halves of a slot (of shared memory) and of a block (of global memory) are 512 bytes each:

| step | what it is |
|---|---|
| `cSB`, `CSB` | copies the own half of block B to the own half of slot S; to the other warp's |
| `g`, `wN`, `a` | `cp.async.commit_group`, `cp.async.wait_group N`, `cp.async.wait_all` |
| `mK`, `vK` | `cp.async.mbarrier.arrive.noinc` on barrier K, a wait for its phase |
| `s` | `bar.sync` |
| `rS`, `tS` | loads from, stores to the own half of slot S; `RS`, `TS`: the other warp's |
| `xB` | stores to the own half of block B; `XB`: the other warp's |

`0:` or `1:` before a step: of that warp alone. What [`races`] says of a program follows from the PTX ISA alone (asynchronous operations: a copy is a
load and a store at any time from its issue until its thread has waited for its group, or for the phase on which it arrived).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import numpy as np
import pytest

from smalt import _errors, _native

pytestmark = pytest.mark.shared

SLOTS, BLOCKS, BARRIERS = 3, 3, 3
HALF, BARS = 512, SLOTS * 1024
SCHEDULES = [{"schedule": "latest"}, {"schedule": "earliest"}] + [{"schedule": "seeded", "seed": seed} for seed in range(3)]

HEAD = f"""
.version 8.0
.target sm_80
.address_size 64

.extern .shared .align 1024 .b8 smalt_smem[];

.visible .entry program(
	.param .b64 smalt_p0
)
.maxntid 64, 1, 1
{{
	.reg .pred %p<4>;
	.reg .b32 %r<8>;
	.reg .b64 %d<8>;
B0:
	mov.u32 %r0, %tid.x;
	mov.u32 %r4, smalt_smem;
	ld.param.b64 %d0, [smalt_p0];
	setp.lo.u32 %p0, %r0, 32;
	setp.eq.u32 %p1, %r0, 0;
{"".join(f"	@%p1 mbarrier.init.shared::cta.b64 [%r4+{BARS + 8 * i}], 64;" + chr(10) for i in range(BARRIERS))}	bar.sync 0, 64;
	xor.b32 %r1, %r0, 32;
	shl.b32 %r2, %r0, 4;
	shl.b32 %r3, %r1, 4;
	cvt.u64.u32 %d1, %r2;
	cvt.u64.u32 %d2, %r3;
	add.u64 %d3, %d0, %d1;
	add.u64 %d4, %d0, %d2;
	add.u32 %r5, %r4, %r2;
	add.u32 %r6, %r4, %r3;
"""
AWAIT = """	{
	.reg .pred P;
W:
	mbarrier.test_wait.parity.shared::cta.b64 P, [%r4+BAR], 0;
	@P bra.uni D;
	bra.uni W;
D:
	}
"""

#: A step, and its warps.
Step = tuple[str, tuple[int, ...]]


def steps(program: str) -> list[Step]:
    return [(text[2:], (int(text[0]),)) if text[1:2] == ":" else (text, (0, 1)) for text in program.split()]


def instructions(number: int, step: str) -> str:
    kind, digits = step[0], [int(d) for d in step[1:]]
    other = kind.isupper()
    shared, source = ("%r6" if other else "%r5"), ("%d4" if other else "%d3")
    match kind.lower():
        case "c":
            return f"cp.async.cg.shared.global [{shared}+{1024 * digits[0]}], [%d3+{1024 * digits[1]}], 16;"
        case "g":
            return "cp.async.commit_group;"
        case "w":
            return f"cp.async.wait_group {digits[0]};"
        case "a":
            return "cp.async.wait_all;"
        case "m":
            return f"cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r4+{BARS + 8 * digits[0]}];"
        case "s":
            return "bar.sync 1, 64;"
        case "r":
            return f"ld.shared.b32 %r7, [{shared}+{1024 * digits[0]}];"
        case "t":
            return f"st.shared.b32 [{shared}+{1024 * digits[0]}], {number + 1};"
        case "x":
            return f"st.global.b32 [{source}+{1024 * digits[0]}], {number + 1};"
    raise AssertionError(step)


def ptx(program: str) -> str:
    text = HEAD
    for i, (step, warps) in enumerate(steps(program)):
        body = AWAIT.replace("BAR", str(BARS + 8 * int(step[1:]))) if step[0] == "v" else f"\t{instructions(i, step)}\n"
        if len(warps) == 1:
            skips = "@!%p0" if warps == (0,) else "@%p0"
            text += f"\t{skips} bra.uni S{i}b;\nS{i}a:\n{body}S{i}b:\n"
        else:
            text += body
    return text + "\tret;\n}\n"


def finding(program: str, **how: object) -> str | None:
    launch = {"entry": "program", "grid": [1, 1, 1], "cluster": [1, 1, 1], "block": 64, "smem_bytes": BARS + 8 * BARRIERS, "scratch": []}
    launch |= {"params": [{"Pointer": {"buffer": 0}}], "uses_programmatic_launch": False}
    data = np.random.default_rng(0).integers(0, 256, 1024 * BLOCKS, np.uint8)
    buffers = [{"role": "input", "bytes": data.nbytes, "text": f"u8[{data.nbytes}]"}]
    try:
        _native.from_ptx("program", ptx(program), launch, buffers, "sm_80").emulate([data], check="error", threads=1, **how)
    except _errors.Error as error:
        return str(error)
    return None


# ------------------------------------------------------------------------------------------ what the PTX ISA says


def races(program: str) -> bool:
    """Whether two accesses to the same bytes, of which one writes, are not ordered."""
    after: dict[object, set[object]] = {}

    def edge(a: object, b: object) -> None:
        after.setdefault(a, set()).add(b)

    accesses: list[tuple[tuple[str, int, int], bool, object, object]] = []
    for warp in (0, 1):
        last: object = None
        copies: list[tuple[object, list[int]]] = []
        groups = syncs = 0
        for i, (step, warps) in enumerate(steps(program)):
            if warp not in warps:
                continue
            kind, digits = step[0].lower(), [int(d) for d in step[1:]]
            half = 1 - warp if step[0].isupper() else warp
            begin, end = (warp, i, "begin"), (warp, i, "end")
            edge(begin, end)
            if last is not None:
                edge(last, begin)
            last = end
            match kind:
                case "c":
                    done = (warp, i, "done")
                    edge(end, done)
                    copies.append((done, []))
                    accesses.append((("shared", digits[0], half), True, begin, done))
                    accesses.append((("global", digits[1], warp), False, begin, done))
                case "g":
                    for _, group in copies:
                        group or group.append(groups)
                    groups += 1
                case "w":
                    for done, group in copies:
                        if group and group[0] < groups - digits[0]:
                            edge(done, end)
                case "a":
                    for done, _ in copies:
                        edge(done, end)
                case "m":
                    edge(begin, ("phase", digits[0]))
                    for done, _ in copies:
                        edge(done, ("phase", digits[0]))
                case "v":
                    edge(("phase", digits[0]), end)
                case "s":
                    edge(begin, ("sync", syncs))
                    edge(("sync", syncs), end)
                    syncs += 1
                case "r" | "t":
                    accesses.append((("shared", digits[0], half), kind == "t", begin, end))
                case "x":
                    accesses.append((("global", digits[0], half), True, begin, end))

    def reach(a: object) -> set[object]:
        seen, todo = {a}, [a]
        while todo:
            for b in after.get(todo.pop(), ()):
                if b not in seen:
                    seen.add(b)
                    todo.append(b)
        return seen

    reached = {a: reach(a) for _, _, _, a in accesses}
    return any(
        a[0] == b[0] and (a[1] or b[1]) and b[2] not in reached[a[3]] and a[2] not in reached[b[3]]
        for a, b in itertools.combinations(accesses, 2)
    )


# ------------------------------------------------------------------------------------------ twins

IN_FLIGHT = "that a copy by threads (cp.async) writes, and its warp has not waited for it"
NOT_WAITED = "that a copy by threads (cp.async) writes, without having waited for its barrier"
READS = "global memory that a copy by threads (cp.async) reads, and its warp has not waited for it"
READS_UNTIL = "global memory that a copy by threads (cp.async) reads, without having waited for its barrier"
UNORDERED = "and nothing orders the two"
OVERWRITES = "a copy by threads (cp.async) overwrites shared memory that"

#: What is wrong: a right program, a broken one, words of the finding.
TWINS = {
    "no wait": ("c00 g w0 r0", "c00 g r0", ("a load of shared memory " + IN_FLIGHT, "a wait of this warp for the copy", "wait_gmem_to_smem(n)")),
    "no wait, another warp's": ("c00 g w0 s R0", "c00 g s R0", ("a load of shared memory " + IN_FLIGHT, "other warps learn of that by a barrier")),
    "no wait for all": ("c00 a r0", "c00 r0", (IN_FLIGHT,)),
    "a wait that leaves one too many": ("c00 g c11 g w1 s R0", "c00 g c11 g w2 s R0", (IN_FLIGHT,)),
    "a wait that leaves the last": ("c00 g c11 g w0 s R1", "c00 g c11 g w1 s R1", (IN_FLIGHT,)),
    "a wait before the commit": ("c00 g w0 s R0", "c00 w0 g s R0", (IN_FLIGHT,)),
    "a wait before the last commit": ("c00 g c11 g w0 s R1", "c00 g c11 w0 g s R1", (IN_FLIGHT,)),
    "a wait before the copy": ("c00 a s R0", "a c00 s R0", (IN_FLIGHT,)),
    "no commit": ("c00 g w0 s R0", "c00 w0 s R0", (IN_FLIGHT,)),
    "an empty group is waited for": ("c00 g g w1 r0", "c00 g g w2 r0", (IN_FLIGHT,)),
    "a wait of one warp only": ("c00 g w0 s R0", "c00 g 0:w0 s R0", (IN_FLIGHT,)),
    "a wait of the reader, not of who copies": ("1:c00 g 1:w0 s 0:R0", "1:c00 g 0:w0 s 0:R0", (IN_FLIGHT, "a wait of warp 1")),
    "a barrier before the wait": ("c00 g w0 s R0", "c00 g s w0 R0", ("shared memory that", )),
    "a wait and no barrier": ("c00 g w0 s R0", "c00 g w0 R0", ("shared memory that",)),
    "a store to the destination": ("c00 g w0 t0", "c00 g t0 w0", ("a store to shared memory " + IN_FLIGHT,)),
    "another warp's store to the destination": ("c00 g w0 s T0", "c00 g s T0 w0", (IN_FLIGHT,)),
    "a ring one slot too short": ("c00 g c11 g w1 s R0 s c22 g w1 s R1 s w0 s R2", "c00 g c11 g w1 s R0 s c12 g w1 s R0 s w0 s R1", (OVERWRITES,)),
    "a slot that is still read": ("c00 g w0 s R0 s c01 g w0 s R0", "c00 g w0 s R0 c01 g w0 s R0", ("shared memory that another warp", UNORDERED)),
    "a slot that is still read, and a barrier behind": ("t0 s R0 s c00 g w0 s", "t0 s R0 c00 g s w0 s", ("shared memory that",)),
    "a slot that is still written": ("T0 s c00 g w0", "T0 c00 g w0 s", ("shared memory that another warp wrote", UNORDERED)),
    "the next copy to the same place": ("c00 g w0 c01 g w0", "c00 g c01 g w0", (OVERWRITES, IN_FLIGHT)),
    "another warp's copy to the same place": ("0:c00 g w0 s 1:C01 g w0", "0:c00 g s 1:C01 g w0", (OVERWRITES,)),
    "the source is written": ("c00 g w0 x0", "c00 g x0 w0", ("a store to " + READS, "before its source is written")),
    "another warp writes the source": ("c00 g w0 s X0 s", "c00 g s X0 s w0", (READS,)),
    "the source is still written": ("X0 s c00 g w0", "X0 c00 g w0 s", ("global memory that", UNORDERED)),
    "the source of the last copy is written": ("c00 g c11 g w0 x1", "c00 g c11 g w1 x1", (READS,)),
    "no wait for the mbarrier": ("c00 m0 v0 R0", "c00 m0 R0", ("shared memory", "cp.async")),
    "no wait for the mbarrier, its own": ("c00 m0 v0 r0", "c00 m0 r0", (NOT_WAITED, "a wait on the", "barrier_wait")),
    "a barrier instead of the mbarrier's wait": ("c00 m0 v0 s R0", "c00 m0 s R0", (NOT_WAITED,)),
    "a wait for another mbarrier": ("c00 m0 c11 m1 v1 R1", "c00 m0 c11 m1 v0 R1", (NOT_WAITED,)),
    "an arrival before the copy": ("c00 m0 v0 R0", "m0 c00 v0 R0", (IN_FLIGHT,)),
    "one warp waits for the mbarrier and tells nobody": ("c00 m0 0:v0 s 1:r0", "c00 m0 s 0:v0 1:r0", (NOT_WAITED,)),
    "a store before the mbarrier's wait": ("c00 m0 v0 t0", "c00 m0 t0 v0", (NOT_WAITED,)),
    "the next copy before the mbarrier's wait": ("c00 m0 v0 c01 m1 v1 r0", "c00 m0 c01 m1 v1 r0", (OVERWRITES, NOT_WAITED)),
    "the source is written before the mbarrier's wait": ("c00 m0 v0 x0", "c00 m0 x0 v0", (READS_UNTIL, "a wait on the")),
    "the last arrival is not waited for": ("c00 m0 c11 m1 c22 m2 v2 R0 R1 R2", "c00 m0 c11 m1 c22 m2 v1 R0 R1 R2", (NOT_WAITED,)),
}
#: Right as they are.
SILENT = {
    "copies that nobody waits for": "c00 g c11",
    "copies that nobody waits for, on a barrier": "c00 m0",
    "a ring": "c00 g c11 g w1 s R0 s c02 g w1 s R1 s w0 s R0",
    "one source twice": "c00 g c10 g w0 s R0 R1",
    "a wait for copies that arrived on a barrier": "c00 g m0 w0 s R0",
    "what was stored is copied over": "t0 c00 g w0 r0",
    "the source was written": "x0 c00 g w0 r0",
    "the source is loaded from by another copy": "0:c00 g s 1:c10 g w0 r1",
    "another slot is used meanwhile": "c00 g t1 s R1 w0 s R0",
    "the wait of one who waited on the barrier": "c00 m0 0:v0 s R0",
}


@pytest.mark.parametrize("name", TWINS)
def test_what_is_not_waited_for_is_reported(name: str) -> None:
    right, broken, words = TWINS[name]
    assert races(broken) and not races(right)
    for how in SCHEDULES:
        text = finding(broken, **how)
        assert text is not None, (how, broken)
        assert all(it in text for it in words), text
        assert "expected:" in text and "remedy:" in text, text
        assert finding(right, **how) is None, (how, right, finding(right, **how))


@pytest.mark.parametrize("name", SILENT)
def test_what_is_waited_for_is_not(name: str) -> None:
    assert not races(SILENT[name])
    for how in SCHEDULES:
        assert finding(SILENT[name], **how) is None, (how, finding(SILENT[name], **how))


# ------------------------------------------------------------------------------------------ random programs


def candidates(rng: random.Random) -> Iterator[str]:
    """Programs that wait for groups, or on barriers."""
    by_groups = rng.random() < 0.6
    while True:
        program, arrived = [], 0
        for _ in range(rng.randint(6, 14)):
            slot, block = rng.randrange(SLOTS), rng.randrange(BLOCKS)
            one = rng.choice(("", "", "", "0:", "1:"))
            pick = rng.random()
            if pick < 0.25:
                program.append(f"{one}{rng.choice('cccC')}{slot}{block}" + (" g" if by_groups and rng.random() < 0.9 else ""))
            elif pick < 0.45 and by_groups:
                program.append(one + rng.choice(("w0", "w0", "w1", "w2", "a")))
            elif pick < 0.35 and arrived < BARRIERS:
                program.append(f"m{arrived}")
                arrived += 1
            elif pick < 0.45 and arrived:
                program.append(f"{one}v{rng.randrange(arrived)}")
            elif pick < 0.7:
                program.append("s")
            elif pick < 0.9:
                program.append(f"{one}{rng.choice('rRRtT')}{slot}")
            else:
                program.append(f"{one}{rng.choice('xX')}{block}")
        yield " ".join(program)


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_are_reported_if_they_race(seed: int) -> None:
    """As many that race as that do not: the last have copies."""
    rng = random.Random(seed)
    for wanted in (True, False) * 4:
        program = next(it for it in candidates(rng) if races(it) == wanted and ("c" in it.lower()))
        for how in SCHEDULES[:3]:
            text = finding(program, **how)
            assert (text is not None) == wanted, (how, program, text)


def test_random_programs_are_what_they_are_for() -> None:
    """Of those that do not race many have what another warp copied."""
    rng = random.Random(0)
    some = [next(it for it in candidates(rng) if not races(it) and "c" in it.lower()) for _ in range(200)]
    assert sum(any(kind in it for kind in "R") for it in some) > 40
    assert sum("v" in it for it in some) > 10 and sum("w" in it for it in some) > 40
