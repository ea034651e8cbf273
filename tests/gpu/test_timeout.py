"""Waits that take too long on the GPU: the call's error, at its line, and the process goes on.

Each case in a process of its own and with a time limit: one that hangs blocks nothing but itself.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests import ROOT
from tests.suites import timeouts

ROUNDS = 100
TIMEOUT_S = 120


@pytest.mark.parametrize("name", timeouts.CASES)
def test_a_wait_that_takes_too_long(name: str) -> None:
    paths = [str(ROOT), str(ROOT / "jax_plugin"), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p)}
    command = [sys.executable, "-m", "tests.suites.timeouts", name, str(ROUNDS)]
    try:
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired as late:
        pytest.fail(f"{TIMEOUT_S} s and no end:\n{(late.stderr or b'')[-3000:].decode()}")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    assert "waited longer than wait_timeout_ns" in done.stdout
