"""Communicating kernels on emulated devices: right on 2, 4 and 8, the same bits under other schedules; mistakes are found."""

from __future__ import annotations

import functools

import pytest

from tests.multi_gpu.supervise import Result, line, supervise

GOOD = {"right", "skipped"}


@functools.cache
def results(devices: int, schedule: str = "") -> dict[str, Result]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_PLATFORMS", "cpu")
        patch.delenv("SMALT_SCHEDULE", raising=False)
        patch.delenv("SMALT_SEED", raising=False)
        if schedule:
            patch.setenv(*(("SMALT_SEED", schedule) if schedule.isdigit() else ("SMALT_SCHEDULE", schedule)))
        return {r["name"]: r for r in supervise("tests.multi_gpu", devices, limit=200)}


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_right_on(devices: int) -> None:
    found = results(devices)
    assert len(found) >= 200
    assert sum(r["status"] == "skipped" for r in found.values()) < 10
    wrong = [line(r) for r in found.values() if r["status"] not in GOOD]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("schedule", ["earliest", "1"])
def test_schedules_change_nothing(schedule: str) -> None:
    first, again = results(4), results(4, schedule)
    differ = [line(r) for name, r in again.items() if (r["status"], r.get("digest")) != (first[name]["status"], first[name].get("digest"))]
    assert not differ, "\n".join(differ)


@functools.cache
def twins() -> list[Result]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_PLATFORMS", "cpu")
        return supervise("tests.multi_gpu.broken", 4, limit=120)


def test_mistakes_are_found() -> None:
    """Each of them, at a line that has to do with it; and nothing is found in the right twins."""
    assert sum(r["status"] != "right" for r in twins()) >= 20
    missed = [line(r) for r in twins() if r["status"] not in ("found", "right")]
    assert not missed, "\n".join(missed)
