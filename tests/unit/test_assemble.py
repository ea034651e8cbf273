"""The assemblers from PyPI, on PTX text: found, run, their logs read. Each in a process of its own: the choice is made once."""

from __future__ import annotations

import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from smalt import _native
from tests import ROOT

pytestmark = pytest.mark.shared

#: Root may do everything.
NOBODY = "65534" if os.geteuid() == 0 else ""
Counted = Callable[..., tuple[dict[str, Any], int]]
PTX = ROOT / "tests/data/add_one.ptx"

# The package's folder, not the package: that would import JAX, which takes seconds.
SCRIPT = """
import json, os, resource, sys, types
package = types.ModuleType("smalt")
package.__path__ = [sys.argv.pop(1)]
sys.modules["smalt"] = package
from smalt import _native
ptx, change, uid, largest = sys.argv[1:]
text = open(ptx).read()
old, new = change.split(">") if change else ("", "")
launch = dict(entry="add_one", grid=[8, 1, 1], cluster=[1, 1, 1], block=128, smem_bytes=0, scratch=[],
              params=[{"Pointer": {"buffer": 0}}, {"Pointer": {"buffer": 1}}], uses_programmatic_launch=False)
buffers = [dict(role="input", bytes=4096, text="f32[1024]"), dict(role="output", bytes=4096, text="f32[1024]")]
_native.version()
if uid:
    os.setuid(int(uid))
if largest:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(largest), int(largest)))
artifact = _native.from_ptx("add_one", text.replace(old, new) if change else text, launch, buffers, "sm_90a")
try:
    cubin = artifact.assemble()
    assembled = artifact.report()["assembled"]
    print(json.dumps({"bytes": cubin and len(cubin), "elf": cubin and cubin[:4].hex(), "assembled": assembled}))
except Exception as error:
    print(json.dumps({"error": str(error), "report": error.report}))
"""


def assemble(assembler: str, change: str = "", *, unset: str = "", uid: str = "", largest: str = "", **environment: str) -> dict[str, Any]:
    """In a process without the variable `unset`, as another user, or whose files have so many bytes at most."""
    env = {**os.environ, "SMALT_ASSEMBLER": assembler} | environment
    env.pop(unset, None)
    command = [sys.executable, "-c", SCRIPT, str(pathlib.Path(_native.__file__).parent), str(PTX), change, uid, largest]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=True)
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


@pytest.fixture
def public() -> Iterator[pathlib.Path]:
    """A folder that other users may read: pytest's they may not."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield pathlib.Path(folder)


@pytest.fixture
def counted(public: pathlib.Path) -> Counted:
    """`assemble` by a ptxas that writes down when it is asked for a cubin: the result, and how often it was asked."""
    if "error" in assemble("ptxas"):
        pytest.skip("no ptxas on this machine")
    calls, wrapper = public / "calls", public / "ptxas"
    real = _native.doctor()["assembler"]["path"]
    calls.touch()
    calls.chmod(0o666)
    wrapper.write_text(f'#!/bin/sh\n[ "$1" = --version ] || echo "$@" >>{calls}\nexec {real} "$@"\n')
    wrapper.chmod(0o755)

    def run(change: str = "", **environment: str) -> tuple[dict[str, Any], int]:
        before = len(calls.read_text().splitlines())
        result = assemble("ptxas", change, SMALT_PTXAS=str(wrapper), **environment)
        assert result["elf"] == "7f454c46", result
        return result, len(calls.read_text().splitlines()) - before

    return run


def test_the_second_process_assembles_nothing(counted: Counted, tmp_path: pathlib.Path) -> None:
    """With nothing set but where the user's caches lie: $XDG_CACHE_HOME, else ~/.cache."""
    for folder, where in (
        (tmp_path / "xdg", {"XDG_CACHE_HOME": str(tmp_path / "xdg"), "HOME": "/nowhere"}),
        (tmp_path / "home/.cache", {"XDG_CACHE_HOME": "", "HOME": str(tmp_path / "home")}),
        (tmp_path / "home2/.cache", {"XDG_CACHE_HOME": "relative", "HOME": str(tmp_path / "home2")}),
    ):
        (first, calls), (second, again) = (counted(unset="SMALT_CACHE_DIR", **where) for _ in range(2))
        assert (calls, again) == (1, 0), where
        assert [file.suffix for file in (folder / "smalt").iterdir()] == [".cubin"]
        assert second["assembled"]["assembler"] == "disk cache"
        assert (second["bytes"], second["assembled"]["log"]) == (first["bytes"], first["assembled"]["log"])


def test_other_kernels_and_assemblers_are_other_entries(counted: Counted, public: pathlib.Path, tmp_path: pathlib.Path) -> None:
    cache = {"SMALT_CACHE_DIR": str(tmp_path / "cache")}
    changed = "0f3F800000>0f40000000"
    assert "0f3F800000" in PTX.read_text()
    assert [counted(change, **cache)[1] for change in ("", changed) * 2] == [1, 1, 0, 0]
    # Another build of the same version.
    wrapper = public / "ptxas"
    other = wrapper.read_text().replace("--version ] ||", "--version ] && echo Build 2 ||")
    assert other != wrapper.read_text()
    wrapper.write_text(other)
    assert [counted("", **cache)[1] for _ in range(2)] == [1, 0]


def test_the_cache_is_off_where_it_is_empty(counted: Counted, tmp_path: pathlib.Path) -> None:
    where = {"SMALT_CACHE_DIR": "", "XDG_CACHE_HOME": str(tmp_path / "xdg"), "HOME": str(tmp_path / "home")}
    assert [counted(**where)[1] for _ in range(2)] == [1, 1]
    assert not (tmp_path / "xdg").exists() and not (tmp_path / "home").exists()


def spoilt(folder: pathlib.Path, how: str) -> dict[str, str]:
    """Does something to a folder that has one entry; settings that go with it."""
    (entry,) = folder.iterdir()
    whole = entry.read_bytes()
    match how:
        case "torn":
            entry.write_bytes(whole[: len(whole) // 2])
        case "empty":
            entry.write_bytes(b"")
        case "damaged":
            entry.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        case "of another format":
            entry.write_bytes(b"\x7fELF" + whole)
        case "a link to itself":
            entry.unlink()
            entry.symlink_to(entry)
        case "a pipe":
            entry.unlink()
            os.mkfifo(entry)
        case "an unreadable file":
            entry.chmod(0)
            return {"uid": NOBODY}
        case "a folder":
            entry.unlink()
            entry.mkdir()
        case "in a folder that is a file":
            entry.unlink()
            folder.rmdir()
            folder.touch()
        case "in a folder that is a link to itself":
            entry.unlink()
            folder.rmdir()
            folder.symlink_to(folder)
        case "in a folder that cannot be read":
            folder.chmod(0)
            return {"uid": NOBODY}
        case "in a read-only folder":
            entry.unlink()
            folder.chmod(0o555)
            return {"uid": NOBODY}
        case "on a full disk":
            entry.unlink()
            # Room for the cubin that the assembler writes, but not for a log beside it.
            return {"largest": str(len(whole) - 50)}
        case "nowhere: no home":
            if not NOBODY:
                pytest.skip("only root can be somebody whom nobody knows")
            # An empty HOME is as good as none; then the user's entry in /etc/passwd counts, and this one has none.
            return {"unset": "SMALT_CACHE_DIR", "XDG_CACHE_HOME": "", "HOME": "", "uid": "54321"}
        case _:
            raise ValueError(how)
    return {}


# how -> whether the next process finds what this one stored
SPOILT = {
    "torn": True, "empty": True, "damaged": True, "of another format": True, "a link to itself": True, "a pipe": True,
    "an unreadable file": False, "a folder": False, "in a folder that is a file": False,
    "in a folder that is a link to itself": False, "in a folder that cannot be read": False, "in a read-only folder": False,
    "on a full disk": False, "nowhere: no home": False,
}  # fmt: skip


@pytest.mark.parametrize("how", SPOILT)
def test_a_spoilt_cache_costs_time_only(how: str, counted: Counted, public: pathlib.Path) -> None:
    folder = public / "cache"
    where = {"SMALT_CACHE_DIR": str(folder)}
    good, calls = counted(**where)
    assert calls == 1
    where |= spoilt(folder, how)
    for found in (False, SPOILT[how]):
        result, calls = counted(**where)
        assert calls == (0 if found else 1), result
        same = [(one["bytes"], one["assembled"]["log"]["registers"]) for one in (good, result)]
        assert same[0] == same[1]


def test_the_folder_is_bounded(counted: Counted, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "cache"
    where = {"SMALT_CACHE_DIR": str(folder)}
    counted(**where)
    size = sum(file.stat().st_size for file in folder.iterdir())
    where["SMALT_CACHE_LIMIT"] = str(3 * size)
    for n in range(6):
        counted(f"0f3F800000>0f4000000{n}", **where)
    assert 2 <= len(list(folder.iterdir())) <= 3
    assert counted("0f3F800000>0f40000005", **where)[1] == 0, "the newest stays"
    assert counted(**where)[1] == 1, "the oldest is gone"


def test_processes_at_once(counted: Counted, tmp_path: pathlib.Path) -> None:
    """Writers, readers and eviction in one folder that has room for two of four kernels."""
    where = {"SMALT_CACHE_DIR": str(tmp_path / "cache")}
    counted(**where)
    where["SMALT_CACHE_LIMIT"] = str(5 * next((tmp_path / "cache").iterdir()).stat().st_size // 2)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(counted, f"0f3F800000>0f4000000{n % 4}", **where) for n in range(12)]
    assert len({run.result()[0]["bytes"] for run in runs}) == 1


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
    command = [sys.executable, "-c", SCRIPT + AFTERWARDS, str(pathlib.Path(_native.__file__).parent), str(PTX), "", "", ""]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    first, second = done.stdout.splitlines() if done.returncode == 0 else (done.stderr, "")
    assert "error" in json.loads(first), first
    assert json.loads(second) == "7f454c46"
