"""compute-sanitizer has nothing to say about the right kernels of tests/suites/asynchrony, and about random loops with accumulators in memory."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests import ROOT
from tests.programs.loops.parked import PARKED
from tests.programs.loops.staged import STAGED

SANITIZER = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")


TOOLS = ["memcheck", "racecheck", "synccheck", "initcheck"]


def watched(tool: str, command: list[str]) -> str:
    """What a program that a tool has nothing to say about prints."""
    assert SANITIZER is not None
    # racecheck does not follow a lane that arrives on an mbarrier for its warp.
    environment = os.environ | {"SMALT_RACECHECK": str(int(tool == "racecheck")), "SMALT_LINEINFO": "1"}
    command = [SANITIZER, "--tool", tool, sys.executable, *command]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    summaries = re.findall(r"=+ (?:ERROR|RACECHECK) SUMMARY: (.*)", done.stdout)
    assert summaries, done.stdout[-2000:]
    for summary in summaries:
        assert re.fullmatch(r"0 errors|0 hazards displayed \(0 errors, 0 warnings\)", summary), done.stdout[-6000:]
    return done.stdout


@pytest.mark.skipif(SANITIZER is None, reason="needs compute-sanitizer")
@pytest.mark.parametrize("tool", TOOLS)
def test_right_kernels_are_clean(tool: str) -> None:
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu/test_asynchrony.py"]
    if tool == "racecheck":
        # Which "might have exited": racecheck does not see that a block whose arrival is waited for is still there.
        command += ["-k", "not cluster_exchange"]
    printed = watched(tool, command)
    assert re.search(r"\b\d+ passed", printed) and "skipped" not in printed, printed[-2000:]


@pytest.mark.skipif(SANITIZER is None, reason="needs compute-sanitizer")
@pytest.mark.parametrize(
    ("tool", "grammar"),
    # initcheck takes what bulk copies of staged operands stored for never written.
    [(tool, name) for tool in TOOLS for name in (PARKED.name, STAGED.name) if (tool, name) != ("initcheck", STAGED.name)],
)
def test_random_loops_are_clean(tool: str, grammar: str) -> None:
    # Some further ones do not write all of their results, which initcheck sees in their copies to the host.
    assert "5 right" in watched(tool, ["-m", "tests.fuzz", "--gpu", "--jobs", "0", "--generator", grammar, "--seed", "0", "--count", "5"])


# initcheck takes what bulk copies stored for never written, and says so where results are copied to the host.
@pytest.mark.skipif(SANITIZER is None, reason="needs compute-sanitizer")
@pytest.mark.parametrize("tool", [tool for tool in TOOLS if tool != "initcheck"])
def test_inline_ptx_is_clean(tool: str) -> None:
    """Operands, lanes, memory, control and named barriers; of the random programs those of one kernel. What a GPU may leave anything in is not asked for."""
    chosen = "not nobody_finds_what_was_discarded and (not random_programs or random_programs and [0])"
    printed = watched(tool, ["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu/suites/test_inline_ptx.py", "-k", chosen])
    assert re.search(r"\b\d+ passed", printed) and "skipped" not in printed, printed[-2000:]


@pytest.mark.skipif(SANITIZER is None, reason="needs compute-sanitizer")
# racecheck does not follow a lane that arrives for others: where the author lets one do so, it reports what the arrival releases.
@pytest.mark.parametrize(
    ("name", "tool"), [("barriers", "memcheck"), ("barriers", "synccheck"), *((name, t) for name in ("inline_mgpu", "inline_wgmma") for t in TOOLS if t != "initcheck")]
)
def test_barriers_and_functions_and_products_are_clean(name: str, tool: str) -> None:
    """What asks the emulator's checker is skipped there."""
    printed = watched(tool, ["-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/gpu/suites/test_{name}.py", "-k", "not random_rings or random_rings and [0"])
    assert re.search(r"\b\d+ passed", printed), printed[-2000:]


# initcheck takes what bulk copies stored for never written.
@pytest.mark.skipif(SANITIZER is None, reason="needs compute-sanitizer")
@pytest.mark.parametrize("tool", [tool for tool in TOOLS if tool != "initcheck"])
@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("turns", "few_rows and w4a16]"),
        ("scans", "kernels_in_loops and -scan"),
        ("registers", "are_set and all"),
    ],
    ids=["turns", "scans", "registers"],
)
def test_grids_in_turn_and_loops_and_registers_are_clean(name: str, chosen: str, tool: str) -> None:
    printed = watched(tool, ["-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/gpu/suites/test_{name}.py", "-k", chosen])
    assert re.search(r"\b\d+ passed", printed), printed[-2000:]


@pytest.mark.skipif(SANITIZER is None, reason="needs compute-sanitizer")
@pytest.mark.parametrize("tool", [tool for tool in TOOLS if tool != "initcheck"])
def test_prints_are_clean(tool: str) -> None:
    watched(tool, ["-m", "tests.suites.prints", "--json"])
