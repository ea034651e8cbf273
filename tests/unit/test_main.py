"""`python -m smalt`, on a kernel of the library's tests."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import textwrap
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import numpy as np
import pytest

import smalt
from smalt import __main__ as cli
from smalt import _native

from tests import ROOT


@pytest.fixture
def kernel(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "kernel.smalt"
    descriptor = b"smalt-test:add_one"
    path.write_bytes(cli.MAGIC + len(descriptor).to_bytes(8, "little") + descriptor + b"")
    return path


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    status = cli.main(["doctor", "--json"])
    lines = {line["what"]: line for line in json.loads(capsys.readouterr().out)}
    assert status == 0, lines
    assert lines["library"]["ok"] and lines["XLA FFI"]["ok"]
    assert cli.main(["doctor"]) == 0
    assert "library" in capsys.readouterr().out


@pytest.mark.parametrize(
    "capability, ok, says",
    [
        ((8, 0), True, ": sm_80, its code was run on a Hopper; 163 KiB of shared memory a block; parts beyond sm_80's: none"),
        ((8, 9), True, ": sm_89, its code was run on a Hopper; 99 KiB of shared memory a block; parts beyond sm_80's: xorsign, fp8"),
        ((9, 0), True, ": sm_90a, measured; 227 KiB of shared memory a block; parts beyond sm_80's: xorsign, fp8, bf16, "),
        ((12, 1), True, ": sm_120, assembled and emulated, not run on hardware; 99 KiB "),
        ((7, 5), None, ": smalt compiles for sm_80, sm_86, "),
    ],
)
def test_doctor_names_the_machine_of_each_gpu(capability: tuple[int, int], ok: bool | None, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the rows that kernels are compiled by."""
    device = {"name": "NVIDIA Something", "capability": list(capability), "multiprocessors": 58}
    facts = _native.doctor() | {"devices": [device]}
    monkeypatch.setattr(_native, "doctor", lambda: facts)
    (line,) = (line for line in cli._examine() if line[1] == "GPU 0")
    assert line[0] is ok and line[2].startswith("NVIDIA Something, capability {}.{}, 58 multiprocessors".format(*capability) + says), line


def test_doctor_says_where_cubins_are_kept(tmp_path: pathlib.Path) -> None:
    def says(folder: pathlib.Path | str) -> str:
        env = dict(os.environ, SMALT_CACHE_DIR=str(folder), SMALT_CACHE_LIMIT="3M", JAX_PLATFORMS="cpu")
        env |= {"SMALT_LIBRARY": str(_native.library_path()), "PYTHONPATH": str(pathlib.Path(smalt.__file__).parents[1])}
        done = subprocess.run([sys.executable, "-m", "smalt", "doctor"], env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        (line,) = (line for line in done.stdout.splitlines() if "cubin cache" in line)
        return line

    folder, file = tmp_path / "cache", tmp_path / "file"
    folder.mkdir()
    (folder / ("0" * 64 + ".cubin")).write_bytes(bytes(1 << 20))
    file.touch()
    for place, mark, text in (
        (folder, "ok", f"1 cubins, 1.0 of at most 3 MiB in {folder}"),
        (file, "-", "cannot be written"),
        ("", "-", "off (SMALT_CACHE_DIR is empty)"),
    ):
        line = says(place)
        assert line.startswith(mark) and text in line


def test_doctor_names_mistyped_variables(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMALT_SHEDULE", "earliest")
    monkeypatch.setenv("SMALT_ENABLE", "0")
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "SMALT_SHEDULE is set, and nothing reads it: did you mean SMALT_SCHEDULE?" in out
    assert "SMALT_ENABLE=0" in out


def test_the_documented_variables_are_those_that_are_read() -> None:
    import re

    known = _native.doctor()["variables"]
    for source in (*(ROOT / "jax_plugin").rglob("*.py"), *(ROOT / "src" / "runtime").glob("*.rs")):
        for name in re.findall(r"\bSMALT_[A-Z_]*[A-Z]\b", source.read_text()):
            assert name in known, f"{source}: {name} is not in docs/environment.md"


def test_a_missing_file_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "missing.pb"]) == 1
    error = capsys.readouterr().err
    assert error == "missing.pb: No such file or directory\n"


def test_version() -> None:
    """The crate's; the package's metadata say the same."""
    import tomllib

    crate = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]["version"]
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert smalt.__version__ == crate == package
    assert not hasattr(smalt, "__verson__")


def test_compile_prints_a_report(kernel: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compile", str(kernel)]) == 0
    out = capsys.readouterr().out
    assert "add_one for sm_90a" in out and "input f32[1024], output f32[1024]" in out
    assert cli.main(["compile", str(kernel), "--ptx"]) == 0
    assert ".entry add_one" in capsys.readouterr().out


def test_compile_assembles(kernel: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    if _native.doctor()["assembler"].get("path") is None:
        pytest.skip("no assembler on this machine")
    cubin = kernel.with_suffix(".cubin")
    assert cli.main(["compile", str(kernel), "--cubin", str(cubin)]) == 0
    assert cubin.read_bytes().startswith(b"\x7fELF")
    assert "10 registers, 0 + 0 bytes spilled" in capsys.readouterr().out


def test_run(kernel: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", str(kernel)]) == 0
    first = capsys.readouterr().out
    assert "ran on the emulator" in first and "buffer 1 f32[1024]" in first
    assert cli.main(["run", str(kernel), "--seed", "1"]) == 0
    assert capsys.readouterr().out.split("sha256")[1] != first.split("sha256")[1]


def test_run_says_what_was_not_written(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    def body(x: Any, o: Any, unused: Any) -> None:
        o[1] = x[...]

    vector = jax.ShapeDtypeStruct((128,), np.float32)
    outs = [jax.ShapeDtypeStruct((3, 128), np.float32), vector]
    with smalt.emulated("H100"):
        ((_, descriptor, debug),) = smalt.descriptor(plgpu.kernel(body, out_type=outs), vector)
    path = tmp_path / "kernel.smalt"
    path.write_bytes(cli.MAGIC + len(descriptor).to_bytes(8, "little") + descriptor + debug)
    assert cli.main(["run", str(path)]) == 0
    out = capsys.readouterr().out
    assert "256 of 384 elements still have all bits set" in out and "128 of 128 elements still have all bits set" in out


def test_errors_are_one_message(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    for data, text in [
        (b"smalt-test:nothing", "the test kernel `nothing`"),
        (cli.MAGIC + (99).to_bytes(8, "little") + b"x", "cut off"),
    ]:
        path = tmp_path / "kernel.pb"
        path.write_bytes(data)
        assert cli.main(["compile", str(path)]) == 1
        captured = capsys.readouterr()
        assert text in captured.err and captured.out == ""


# ------------------------------------------------------------------------------------------ without JAX


@pytest.fixture
def no_jax(tmp_path: pathlib.Path) -> dict[str, str]:
    """The environment of a Python in which neither JAX nor what comes with it can be imported."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nfor name in ('jax', 'jaxlib', 'ml_dtypes'):\n    sys.modules[name] = None\n")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SMALT_")}
    path = os.pathsep.join([str(tmp_path), str(pathlib.Path(smalt.__file__).parents[1])])
    return environment | {"SMALT_LIBRARY": str(_native.library_path()), "PYTHONPATH": path}


def without_jax(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=300)


def test_dumped_kernels_are_replayed_without_jax(no_jax: dict[str, str], kernel: pathlib.Path) -> None:
    assert without_jax(no_jax, "-c", "import jax").returncode == 1
    for arguments, text in ((["compile", "--ptx"], ".entry add_one"), (["compile"], "add_one for sm_90a"), (["run"], "buffer 1 f32[1024]")):
        done = without_jax(no_jax, "-m", "smalt", *arguments, str(kernel))
        assert done.returncode == 0 and text in done.stdout, done.stderr
    missing = without_jax(no_jax, "-m", "smalt", "run", "missing.pb")
    assert (missing.returncode, missing.stderr) == (1, "missing.pb: No such file or directory\n")


def test_doctor_without_jax(no_jax: dict[str, str]) -> None:
    done = without_jax(no_jax, "-m", "smalt", "doctor", "--json")
    lines = {line["what"]: line for line in json.loads(done.stdout)}
    assert done.returncode == 1 and not done.stderr
    assert lines["JAX"]["ok"] is False and "pip install" in lines["JAX"]["says"]
    assert lines["library"]["ok"] and lines["environment"]["ok"]


def test_names_that_need_jax_say_so(no_jax: dict[str, str]) -> None:
    script = """
        import smalt
        assert smalt.__version__ and issubclass(smalt.Unsupported, smalt.Error)
        for name in smalt.__all__:
            try:
                getattr(smalt, name)
            except ImportError as e:
                assert isinstance(e, smalt.CompileError) and e.what == "JAX is not installed" and "pip install" in e.remedy, e
            else:
                assert name in ("Error", "Frame") or issubclass(getattr(smalt, name), smalt.Error), name
        assert not hasattr(smalt, "no_such_name")
        from smalt import enable
    """
    done = without_jax(no_jax, "-c", textwrap.dedent(script))
    assert done.returncode == 1 and "NotInstalled: smalt: JAX is not installed" in done.stderr, done.stderr
