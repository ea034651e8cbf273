"""compute-sanitizer has nothing to say about the right kernels of tests/asynchrony."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

SANITIZER = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
ROOT = pathlib.Path(__file__).parent.parent.parent


@pytest.mark.skipif(SANITIZER is None, reason="needs compute-sanitizer")
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck", "initcheck"])
def test_right_kernels_are_clean(tool: str) -> None:
    assert SANITIZER is not None
    command = [SANITIZER, "--tool", tool, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu/test_asynchrony.py"]
    if tool == "racecheck":
        # Which "might have exited": racecheck does not see that a block whose arrival somebody waits for is still there.
        command += ["-k", "not cluster_exchange"]
    # Nor does it follow a lane that arrives on an mbarrier for its warp.
    environment = os.environ | {"SMALT_RACECHECK": str(int(tool == "racecheck")), "SMALT_LINEINFO": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert re.search(r"\b\d+ passed", done.stdout) and "skipped" not in done.stdout, done.stdout[-2000:]
    summaries = re.findall(r"=+ (?:ERROR|RACECHECK) SUMMARY: (.*)", done.stdout)
    assert summaries, done.stdout[-2000:]
    for summary in summaries:
        assert re.fullmatch(r"0 errors|0 hazards displayed \(0 errors, 0 warnings\)", summary), done.stdout[-6000:]
