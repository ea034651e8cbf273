"""The tests of random and named programs, for the machine that there is: the emulator, or a GPU."""

from __future__ import annotations

import pytest

import smalt

from tests import too_many
from tests.arrays.regressions import REGRESSIONS
from tests.arrays.run import Result


@pytest.fixture(autouse=True)
def enabled():
    with smalt.enabled(True, pallas_call=True):
        yield


@pytest.mark.parametrize("name", REGRESSIONS)
def test_regression(name: str) -> None:
    REGRESSIONS[name].check()


def judge(results: list[Result]) -> None:
    """None wrong, at most one in fifty refused."""
    bad = [f"{r.seed}: {r.kind}: {r.text}" for r in results if r.kind in ("wrong", "race", "error", "hangs")]
    assert not bad, "\n".join(bad)
    refused = [f"{r.seed}: {r.text}" for r in results if r.kind == "refused"]
    assert not too_many(len(refused), len(results)), "\n".join(refused)



