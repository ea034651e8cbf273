"""The assemblers from PyPI, on PTX text: found, run, their logs read. Each in a process of its own: the choice is made once."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from smalt import _native

PTX = pathlib.Path(__file__).parent.parent / "data" / "add_one.ptx"

# The package's folder, not the package: that would import JAX, which takes seconds.
SCRIPT = """
import json, sys, types
package = types.ModuleType("smalt")
package.__path__ = [sys.argv.pop(1)]
sys.modules["smalt"] = package
from smalt import _native
ptx, change = sys.argv[1:]
text = open(ptx).read()
old, new = change.split(">") if change else ("", "")
launch = dict(entry="add_one", grid=[8, 1, 1], cluster=[1, 1, 1], block=128, smem_bytes=0, scratch=[],
              params=[{"Pointer": {"buffer": 0}}, {"Pointer": {"buffer": 1}}], uses_programmatic_launch=False)
buffers = [dict(role="input", bytes=4096, text="f32[1024]"), dict(role="output", bytes=4096, text="f32[1024]")]
artifact = _native.from_ptx("add_one", text.replace(old, new) if change else text, launch, buffers, "sm_90a")
try:
    cubin = artifact.assemble()
    assembled = artifact.report()["assembled"]
    print(json.dumps({"bytes": cubin and len(cubin), "elf": cubin and cubin[:4].hex(), "assembled": assembled}))
except Exception as error:
    print(json.dumps({"error": str(error), "report": error.report}))
"""


def assemble(assembler: str, change: str = "", **environment: str) -> dict[str, Any]:
    env = {**os.environ, "SMALT_ASSEMBLER": assembler}
    command = [sys.executable, "-c", SCRIPT, str(pathlib.Path(_native.__file__).parent), str(PTX), change]
    done = subprocess.run(command, env=env | environment, capture_output=True, text=True, timeout=300, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.fixture(params=["nvjitlink", "ptxas"])
def assembler(request: pytest.FixtureRequest) -> str:
    result = assemble(request.param)
    if "is not there" in result.get("error", ""):
        pytest.skip(f"no {request.param} on this machine")
    return str(request.param)


def test_cubin_and_log(assembler: str) -> None:
    result = assemble(assembler)
    assert result["elf"] == "7f454c46"
    log = result["assembled"]["log"]
    assert (log["registers"], log["spill_store_bytes"], log["spill_load_bytes"], log["warnings"]) == (10, 0, 0, [])
    name = result["assembled"]["assembler"].lower()
    assert name.startswith(assembler)


def test_a_refusal_names_line_and_op(assembler: str) -> None:
    result = assemble(assembler, "ld.global.f32>ld.global.f31")
    assert result["report"]["fault"] == "Internal"
    assert result["report"]["op"] == 8, result
    assert "ld.global.f31" in result["error"]


def test_disk_cache(assembler: str, tmp_path: pathlib.Path) -> None:
    first = assemble(assembler, SMALT_CACHE_DIR=str(tmp_path))
    (file,) = tmp_path.iterdir()
    second = assemble(assembler, SMALT_CACHE_DIR=str(tmp_path))
    assert second["assembled"]["assembler"] == "disk cache"
    assert second["assembled"]["log"] == first["assembled"]["log"] and second["bytes"] == first["bytes"]
    file.write_bytes(file.read_bytes()[:-1])
    third = assemble(assembler, SMALT_CACHE_DIR=str(tmp_path))
    assert third["assembled"]["assembler"] == first["assembled"]["assembler"], "a damaged entry is no entry"


def test_the_driver_assembles_at_load() -> None:
    assert assemble("driver") == {"bytes": None, "elf": None, "assembled": None}


def test_a_wrong_choice_is_said() -> None:
    assert "SMALT_ASSEMBLER" in assemble("gas")["error"]
    missing = assemble("auto", SMALT_PTXAS="/nowhere/ptxas")
    assert "ptxas was asked for and is not there" in missing["error"]


AFTERWARDS = """
import os, pathlib
pathlib.Path(os.environ["WORKS_NOW"]).touch()
print(json.dumps(artifact.assemble()[:4].hex()))
"""


def test_a_failure_of_the_moment_is_not_remembered(tmp_path: pathlib.Path) -> None:
    """An assembler that is killed once (for want of memory) assembles the same kernel the next time."""
    real = assemble("ptxas")
    if "error" in real:
        pytest.skip("no ptxas on this machine")
    path = _native.doctor()["assembler"]["path"]
    flag, fake = tmp_path / "works", tmp_path / "ptxas"
    fake.write_text(f'#!/bin/sh\n[ "$1" = --version ] || [ -e {flag} ] || kill -9 $$\nexec {path} "$@"\n')
    fake.chmod(0o755)
    env = dict(os.environ, SMALT_ASSEMBLER="ptxas", SMALT_PTXAS=str(fake), WORKS_NOW=str(flag))
    command = [sys.executable, "-c", SCRIPT + AFTERWARDS, str(pathlib.Path(_native.__file__).parent), str(PTX), ""]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    first, second = done.stdout.splitlines() if done.returncode == 0 else (done.stderr, "")
    assert "error" in json.loads(first), first
    assert json.loads(second) == "7f454c46"
