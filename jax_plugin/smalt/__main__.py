"""`python -m smalt doctor | compile | run`: what works here, and dumped kernels replayed with no JAX."""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import os
import pathlib
import platform
import sys
from collections.abc import Callable, Iterator
from typing import Any

from smalt import _errors, _native, _requirements

# First bytes of a dumped descriptor: src/runtime/dump.rs.
MAGIC = b"SMALT\0\x01\n"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m smalt", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    doctor_parser = commands.add_parser("doctor", help="report what works on this machine and what is missing")
    doctor_parser.add_argument("--json", action="store_true", help="the facts as JSON")

    compile_parser = commands.add_parser("compile", help="compile a dumped kernel and show its report")
    run_parser = commands.add_parser("run", help="run a dumped kernel on random data")
    for sub in (compile_parser, run_parser):
        sub.add_argument("kernel", type=pathlib.Path, help="a dumped descriptor (.smalt), or a bare one (.pb)")
        sub.add_argument("--target", default="sm_90a")
        sub.add_argument("--json", action="store_true", help="the report as JSON")
    compile_parser.add_argument("--ptx", action="store_true", help="print the PTX instead of the report")
    compile_parser.add_argument("--cubin", type=pathlib.Path, metavar="FILE", help="assemble, and write the cubin")
    run_parser.add_argument("--device", default="emulator", help="emulator (default), the number of a GPU, or both:"
                            " run on the emulator and GPU 0 and compare bit for bit")
    run_parser.add_argument("--seed", type=int, default=0, help="of the random data")

    arguments = parser.parse_args(argv)
    command: Callable[[argparse.Namespace], int] = {"doctor": doctor, "compile": compile_, "run": run}[arguments.command]
    try:
        return command(arguments)
    except _errors.Error as error:
        print(error, file=sys.stderr)
        return 1


# ---------------------------------------------------------------------------------------------------- doctor


def doctor(arguments: argparse.Namespace) -> int:
    lines = list(_examine())
    if arguments.json:
        print(json.dumps([{"ok": ok, "what": what, "says": says} for ok, what, says in lines], indent=2))
    else:
        for ok, what, says in lines:
            mark = {True: "ok     ", False: "MISSING", None: "-      "}[ok]
            print(f"{mark} {what:<14} {says}")
    return int(any(ok is False for ok, _, _ in lines))


def _examine() -> Iterator[tuple[bool | None, str, str]]:
    """(works, what, in words); None: not there, and not needed."""
    yield sys.version_info >= (3, 11), "Python", f"{platform.python_version()} ({sys.executable})"
    jax_version = _requirements.jax_version()
    if jax_version is not None and _requirements.has_jax():
        tested = ", ".join(_requirements.TESTED_JAX)
        tested = "tested with this version" if jax_version in _requirements.TESTED_JAX else f"tested with {tested}"
        yield True, "JAX", f"{jax_version}; smalt was {tested}"
    else:
        yield False, "JAX", "not installed: pip install -c constraints/jax.txt jax (compile and run of dumped kernels need none)"
    try:
        facts = _native.doctor()
        yield True, "library", f"{_native.version()} at {_native.library_path()}"
    except ImportError as error:
        yield False, "library", str(error)
        return
    driver = facts["driver"]
    yield ("cuda" in driver or None), "driver", f"CUDA {driver['cuda']}" if "cuda" in driver else driver["error"].split("\n")[0]
    devices = facts["devices"]
    for number, device in enumerate(devices if isinstance(devices, list) else []):
        yield _examine_gpu(number, device)
    assembler = facts["assembler"]
    if "error" in assembler:
        yield False, "assembler", assembler["error"]
    elif assembler["path"] is None:
        says = "the driver's own (pip install nvidia-cuda-nvcc to assemble ahead and without a GPU)"
        yield ("cuda" in driver or None), "assembler", says
    else:
        yield True, "assembler", f"{assembler['name']} at {assembler['path']}"
    if "error" not in facts["environment"]:
        yield _examine_cache(facts["cache"])
    yield from _examine_xla()
    environment = facts["environment"]
    if "error" in environment:
        yield False, "environment", environment["error"]
    else:
        yield from _examine_environment(facts["variables"])


def _examine_gpu(number: int, device: dict[str, Any]) -> tuple[bool | None, str, str]:
    """The GPU, and the machine that kernels are compiled for there."""
    major, minor = device["capability"]
    says = f"{device['name']}, capability {major}.{minor}, {device['multiprocessors']} multiprocessors"
    try:
        machine = _native.machines()[_native.target_of((major, minor))]
    except _errors.Unsupported:
        return None, f"GPU {number}", f"{says}: smalt compiles for {', '.join(_native.machines())}"
    parts = ", ".join(machine.features) or "none"
    memory = f"{machine.shared_memory >> 10} KiB of shared memory a block"
    return True, f"GPU {number}", f"{says}: {machine.name}, {machine.status}; {memory}; parts beyond sm_80's: {parts}"


def _examine_cache(cache: dict[str, Any] | None) -> tuple[bool | None, str, str]:
    if cache is None:
        why = "SMALT_CACHE_DIR is empty" if "SMALT_CACHE_DIR" in os.environ else "no home folder"
        return None, "cubin cache", f"off ({why}): every process assembles its kernels"
    mib, limit = cache["bytes"] / 2**20, cache["limit_bytes"] / 2**20
    says = f"{cache['entries']} cubins, {mib:.1f} of at most {limit:.0f} MiB in {cache['folder']}"
    if cache["unwritable"]:
        return None, "cubin cache", f"{says}, which cannot be written: {cache['unwritable']}"
    return True, "cubin cache", says


def _examine_environment(known: list[str]) -> Iterator[tuple[bool | None, str, str]]:
    """The SMALT_ variables that are set, and those that are not read."""
    names = sorted(name for name in os.environ if name.startswith("SMALT_"))
    values = [f"{name}={os.environ[name]}" for name in names if name in known]
    yield True, "environment", ", ".join(values) if values else "no SMALT_ variable is set"
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            remedy = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            yield None, "environment", f"{name} is set, and nothing reads it: {remedy}"


def _examine_xla() -> Iterator[tuple[bool | None, str, str]]:
    if not _requirements.has_jax():
        return
    try:
        import jax

        from smalt import _lowering

        backend = jax.default_backend()
        where = "cuda" if backend in ("gpu", "cuda") else backend
        _lowering.register([where])
        says = f"custom call registered for {where}; kernels run {'on the GPU' if where == 'cuda' else 'in the emulator'}"
        yield True, "XLA FFI", says
    except Exception as error:  # the user is to see XLA's own error
        yield False, "XLA FFI", f"{type(error).__name__}: {error}"


# --------------------------------------------------------------------------------------------------- compile


def read_kernel(path: pathlib.Path) -> tuple[bytes, bytes]:
    """(descriptor, debug table) of a dumped or bare descriptor."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _errors.CompileError(f"{path}: {error.strerror or error}") from error
    if not data.startswith(MAGIC):
        return data, b""
    start = len(MAGIC) + 8
    end = start + int.from_bytes(data[len(MAGIC) : start], "little")
    if end > len(data):
        raise _errors.CompileError(f"{path}: the file is cut off")
    return data[start:end], data[end:]


def compile_(arguments: argparse.Namespace) -> int:
    artifact = _native.compile(*read_kernel(arguments.kernel), arguments.target)
    if arguments.ptx:
        print(artifact.ptx, end="")
        return 0
    cubin = artifact.assemble()
    if arguments.cubin is not None:
        if cubin is None:
            raise _errors.CompileError("there is no assembler here; `python -m smalt doctor` says what to install")
        arguments.cubin.write_bytes(cubin)
    report = artifact.report()
    print(json.dumps(report, indent=2) if arguments.json else describe(report))
    return 0


def describe(report: dict[str, Any]) -> str:
    """An artifact's report, in lines."""
    launch = report["launch"]
    roles = ", ".join(f"{b['role']} {b['text']}" for b in report["buffers"])
    shape = f"grid {launch['grid']}, cluster {launch['cluster']}, {launch['block']} threads"
    lines = [
        f"{report['name']} for {report['target']}, descriptor {report['hash'][:12]}",
        f"  launch     {shape}, {launch['smem_bytes']} bytes of shared memory",
        f"  buffers    {roles}",
    ]
    phases = report["phases"]
    if phases:
        times = ", ".join(f"{p['name']} {p['micros'] / 1e3:.2f}" for p in phases)
        lines.append(f"  compile    {sum(p['micros'] for p in phases) / 1e3:.2f} ms ({times})")
    if assembled := report["assembled"]:
        log = assembled["log"]
        spills = f"{log['spill_store_bytes']} + {log['spill_load_bytes']} bytes spilled"
        by = f"{assembled['assembler']} in {assembled['micros'] / 1e3:.1f} ms"
        lines.append(f"  assembled  {log['registers']} registers, {spills}, by {by}")
    for warning in report["warnings"] or []:
        lines.append(f"  warning    {warning['text']}" + (f" (at {warning['at']})" if warning["at"] else ""))
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------------- run


def run(arguments: argparse.Namespace) -> int:
    artifact = _native.compile(*read_kernel(arguments.kernel), arguments.target)
    report = artifact.report()
    results: list[list[Any]] = []
    for place in _places(arguments.device):
        buffers = [random_buffer(b, arguments.seed + i) for i, b in enumerate(report["buffers"])]
        outcome = artifact.run(buffers, place)
        results.append(buffers)
        if arguments.json:
            print(json.dumps(outcome, indent=2))
        elif place is None:
            print(f"ran on the emulator in {outcome['wall_us'] / 1e3:.1f} ms")
        else:
            print(f"ran on GPU {place} in {outcome['device_us']:.1f} us")
    for index, spec in enumerate(report["buffers"]):
        if spec["role"] in ("output", "mutable"):
            digests = [hashlib.sha256(buffers[index].tobytes()).hexdigest()[:16] for buffers in results]
            values = preview(results[0][index])
            print(f"  buffer {index} {spec['text']:<24} sha256 {' '.join(digests)}  {values}")
            if len(set(digests)) > 1:
                print(f"  buffer {index}: the emulator and the GPU DIFFER")
            if spec["role"] == "output" and (left := unwritten(results[0][index])):
                print(f"  buffer {index}: {left} of {results[0][index].size} elements still have all bits set: perhaps never written")
    return int(any(a.tobytes() != b.tobytes() for a, b in zip(results[0], results[-1])))


def _places(device: str) -> list[int | None]:
    """None: the emulator."""
    if device == "emulator":
        return [None]
    if device == "both":
        return [None, 0]
    if device.isdigit():
        return [int(device)]
    raise _errors.CompileError(f"--device: expected emulator, both, or a number, got {device!r}")


_DTYPES = {
    "bool": "bool", "f16": "float16", "f32": "float32", "f64": "float64", "bf16": "bfloat16",
    **{f"{k}{n}": f"{'u' if k == 'u' else ''}int{n}" for k in "iu" for n in (8, 16, 32, 64)},
    "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2",
}  # fmt: skip


def _dtype(text: str) -> Any:
    import numpy as np

    name = _DTYPES.get(text.split("[")[0], "uint8")
    if name == "bfloat16" or name.startswith("float8"):
        try:
            import ml_dtypes
        except ImportError as e:  # JAX brings it
            raise _errors.NotInstalled(
                f"smalt: arrays of {name} need ml_dtypes\n  expected: ml_dtypes, which comes with JAX\n  got: {e}\n  remedy: pip install ml_dtypes"
            ) from e
        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(name)


#: The bytes of outputs before a run: what the emulator fills them with, so that elements that no machine writes are equal.
UNWRITTEN = 0xFF


def unwritten(buffer: Any) -> int:
    """Elements that look as before the run."""
    import numpy as np

    return int((buffer.view(np.uint8).reshape(buffer.size, -1) == UNWRITTEN).all(axis=1).sum()) if buffer.size else 0


def random_buffer(spec: dict[str, Any], seed: int) -> Any:
    """Normal floats, small integers; zeros for scratch; outputs are UNWRITTEN."""
    import numpy as np

    rng = np.random.default_rng(seed)
    dtype = _dtype(spec["text"])
    count = spec["bytes"] // dtype.itemsize
    if spec["role"] == "scratch":
        return np.zeros(spec["bytes"], np.uint8)
    if spec["role"] == "output":
        return np.full(spec["bytes"], UNWRITTEN, np.uint8).view(dtype)
    if dtype.kind in "iu":
        return rng.integers(0, 8, count).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, count).astype(dtype)
    return rng.standard_normal(count).astype(dtype)


def preview(buffer: Any) -> str:
    values = buffer[:4].tolist()
    return f"{values}…" if len(buffer) > 4 else str(values)


if __name__ == "__main__":
    sys.exit(main())
