"""Random programs over memory, and programs by name, on the GPU: bit for bit as the interpreter has them.

In batches, each in a process of its own and with a time limit: a program that hangs blocks nothing but its batch.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from tests.programs import failing
from tests.programs.generate import PROGRAMS_ON_GPU
from tests.programs.regressions import REGRESSIONS

ROOT = pathlib.Path(__file__).parent.parent.parent
BATCH = 50
TIMEOUT_S = 300

#: What has a known defect may hang here.
NAMED = [name for name in REGRESSIONS if name not in failing.NAMED]


def run(*arguments: str) -> None:
    """`python -m tests.programs` with them; raises AssertionError with its output where something is wrong."""
    paths = [str(ROOT), str(ROOT / "jax_plugin"), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p)}
    command = [sys.executable, "-m", "tests.programs", "--gpu", *arguments]
    try:
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired as late:
        pytest.fail(f"{TIMEOUT_S} s and no end; the last that it said:\n{(late.stdout or b'')[-3000:].decode()}")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]


@pytest.mark.parametrize("first", range(0, PROGRAMS_ON_GPU, BATCH))
def test_random_programs(first: int) -> None:
    skipped = ",".join(str(seed) for seed in failing.SEEDS)
    run("--seed", str(first), "--count", str(BATCH), *(["--skip", skipped] if skipped else []))


@pytest.mark.parametrize("first", range(0, 200, BATCH))
def test_programs_of_warps_with_arrays(first: int) -> None:
    run("--kinds", "warp_arrays", "--seed", str(first), "--count", str(BATCH))


@pytest.mark.parametrize("first", range(0, len(NAMED), BATCH))
def test_regressions(first: int) -> None:
    run("--named", *NAMED[first : first + BATCH])
