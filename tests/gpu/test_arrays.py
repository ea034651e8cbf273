"""Random programs over arrays on the GPU, against JAX; `SMALT_TEST_ARRAYS` says how many (300).

In processes of their own and with a time limit each: one that hangs costs itself only.
"""

from __future__ import annotations

import os

import pytest

from tests.arrays.pool import results
from tests.arrays.suite import *  # noqa: F403
from tests.arrays.suite import judge

COUNT = int(os.environ.get("SMALT_TEST_ARRAYS", "300"))
JOBS = min(12, os.cpu_count() or 1)


@pytest.fixture(autouse=True)
def modest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several processes share the device."""
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


@pytest.mark.parametrize("how", [None, "by_warps"])
def test_random_programs(how: str | None) -> None:
    judge(list(results(range(COUNT), JOBS, limit=60, how=how)))
