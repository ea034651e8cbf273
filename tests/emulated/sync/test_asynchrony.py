"""Synchronisation: what is missing shows, what is there suffices, under every schedule of the emulator."""

from __future__ import annotations

import linecache
import re

import pytest

from smalt import _errors, _native
from tests.suites.asynchrony.subject import SPARED, Broken, Subject, load_all

pytestmark = pytest.mark.shared

SUBJECTS, BROKEN = load_all()
SEEDS = 100


@pytest.mark.parametrize("twin", BROKEN.values(), ids=lambda twin: twin.name)
def test_what_is_missing_shows(twin: Broken) -> None:
    """Under the default schedule: a diagnosis with the decisive words, at the user's line; or a wrong number.

    On one host thread: of CTAs that race with each other, several threads decide which one is reported.
    """
    if twin.shows is None:
        assert not twin.subject.is_right(twin.emulate(threads=1)), "the result is right all the same"
        return
    with pytest.raises(_errors.Error) as caught:
        right = twin.subject.is_right(twin.emulate(threads=1))
        pytest.fail(f"no diagnosis; the result is {'right' if right else 'wrong'}")
    text = str(caught.value)
    for words in twin.shows:
        assert words in text, text
    if twin.line:
        at = re.search(r"^  at (.*):(\d+) ", text, re.MULTILINE)
        assert at, text
        assert twin.line in linecache.getline(at[1], int(at[2])), text
    if "deadlock" not in text:
        assert "expected:" in text, text


@pytest.mark.parametrize("subject", SUBJECTS.values(), ids=lambda subject: subject.name)
def test_what_is_there_suffices(subject: Subject) -> None:
    """The same bits under the latest, the earliest and 100 random schedules."""
    first = subject.emulate(schedule="latest")
    assert subject.is_right(first)
    for how in [{"schedule": "earliest"}] + [{"schedule": "seeded", "seed": seed} for seed in range(SEEDS)]:
        got = subject.emulate(**how)
        assert [a.tobytes() for a in got] == [b.tobytes() for b in first], how


@pytest.mark.parametrize("twin", SPARED.values(), ids=lambda twin: twin.name)
def test_what_nobody_needs_is_not_asked_for(twin: Broken) -> None:
    for how in [{"schedule": "latest"}, {"schedule": "earliest"}] + [{"schedule": "seeded", "seed": seed} for seed in range(SEEDS)]:
        assert twin.subject.is_right(twin.emulate(**how)), how


@pytest.mark.parametrize("subject", SUBJECTS.values(), ids=lambda subject: subject.name)
def test_every_lane_may_arrive_for_itself(subject: Subject) -> None:
    """What `SMALT_RACECHECK` compiles: the same results, and no lane that arrives for others."""
    artifact = _native.compile(*subject.descriptor, "sm_90a", {"racecheck": True})
    assert artifact.report()["racecheck"] and not subject.artifact.report()["racecheck"]
    assert not re.search(r"@%p\d+ mbarrier\.arrive(\.release\.cluster)?\.shared", artifact.ptx)
    for how in [{"schedule": "latest"}] + [{"schedule": "seeded", "seed": seed} for seed in range(10)]:
        assert subject.is_right(subject.emulate(artifact, **how)), how


@pytest.mark.parametrize("name", ["matmul", "multicast_ring", "cluster_exchange", "specialised_ring", "semaphore_chain", "copy_in"])
def test_the_number_of_host_threads_changes_nothing(name: str) -> None:
    subject = SUBJECTS[name]
    runs = [
        subject.emulate(schedule=schedule, seed=seed, threads=threads)
        for threads in (1, 2, 5)
        for schedule, seed in (("latest", 0), ("seeded", 3), ("seeded", 4))
    ]
    assert subject.is_right(runs[0])
    assert all([a.tobytes() for a in run] == [b.tobytes() for b in runs[0]] for run in runs)


def test_there_are_enough() -> None:
    """At least 30 of each kind of author: people, and the compiler."""
    by_edit = [twin for twin in BROKEN.values() if isinstance(twin.change, tuple)]
    assert len(by_edit) >= 20 and len(BROKEN) - len(by_edit) >= 20
    diagnosed = [twin for twin in BROKEN.values() if twin.shows is not None]
    assert len(diagnosed) >= 0.9 * len(BROKEN)


def test_a_seed_is_a_schedule() -> None:
    """The same seed gives the same run, another seed another one."""
    subject = SUBJECTS["specialised_ring"]

    def steps(seed: int) -> int:
        specs = subject.artifact.report()["buffers"]
        assert [s["role"] for s in specs] == ["input", "output"]
        buffers = [subject.inputs[0].copy(), subject.expected[0].copy()]
        return int(subject.artifact.emulate(buffers, "seeded", seed)["warp_instructions"])

    assert steps(1) == steps(1)
    assert len({steps(seed) for seed in range(20)}) > 1
