"""Everything that can be checked without a GPU.

    .ci/run             formats, lints, types and tests, on each of Python 3.11, 3.12 and 3.13 that there is
    .ci/run --tests     the tests alone, on the Python that runs this: `make test`; every third batch of random programs

The Pythons have JAX 0.10.2, 0.11.2 and 0.12.0.1. Where there are several, each runs all that depends on the version of JAX, and
a share of the tests that do not (`tests/emulated/conftest.py`).

The compiler is built; then two lanes run side by side: its tests in Python, and Rust's lints and tests. The table at the end
says how long each step took, by the clock and in seconds of processors.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence

ROOT = pathlib.Path(__file__).resolve().parents[1]
JAX = {"3.11": "0.10.2", "3.12": "0.11.2", "3.13": "0.12.0.1"}
PACKAGES = ["numpy", "ml_dtypes", "absl-py", "flatbuffers", "protobuf", "nvidia-cuda-nvcc==13.0.88", "nvidia-nvjitlink==13.0.88"]
# pytest-xdist 3.8 does not tell pytest 9.2 which tests are a group: each worker would make a group's fixtures again.
TOOLS = ["pip", "pytest<9.2", "pytest-xdist", "mypy"]

START = time.monotonic()
PRINTING = threading.Lock()


def say(text: str) -> None:
    with PRINTING:
        print(text, flush=True)


@dataclasses.dataclass(frozen=True)
class Step:
    name: str
    command: Sequence[str | os.PathLike[str]]
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Done:
    name: str
    begun: float
    wall: float
    processors: float
    code: int


class Failed(Exception):
    pass


class Steps:
    """Runs steps and keeps what they took. `live`: their output appears as it comes, else whole at their end."""

    def __init__(self) -> None:
        self.done: list[Done] = []

    def run(self, step: Step, live: bool = True) -> None:
        begun = time.monotonic()
        say(f"\n==> [{begun - START:4.0f} s] {step.name}")
        pipe = None if live else subprocess.PIPE
        process = subprocess.Popen(
            step.command, cwd=ROOT, env={**os.environ, **step.environment}, stdin=subprocess.DEVNULL, stdout=pipe, stderr=None if live else subprocess.STDOUT
        )
        output = b"" if process.stdout is None else process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = code = os.waitstatus_to_exitcode(status)
        wall = time.monotonic() - begun
        self.done.append(Done(step.name, begun - START, wall, used.ru_utime + used.ru_stime, code))
        ended = "" if code == 0 else f"FAILED ({code}): "
        text = output.decode(errors="replace").strip()
        if not live or code:
            say(f"\n==> [{time.monotonic() - START:4.0f} s] {ended}{step.name}: {wall:.0f} s" + (f"\n{text}" if text else ""))
        if code:
            raise Failed(step.name)

    def table(self) -> str:
        rows = [f"{'begun':>7} {'wall s':>7} {'CPU s':>7}  step"]
        rows += [f"{d.begun:7.0f} {d.wall:7.0f} {d.processors:7.0f}  {'FAILED ' if d.code else ''}{d.name}" for d in sorted(self.done, key=lambda d: d.begun)]
        rows.append(f"{0:7.0f} {time.monotonic() - START:7.0f} {sum(d.processors for d in self.done):7.0f}  all, on {os.cpu_count()} processors")
        return "\n".join(rows)


def version_of(python: str | os.PathLike[str]) -> str:
    command = [python, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def find_python(version: str) -> str | None:
    """The interpreter of this version, if there is one."""
    pyenv = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv"))
    candidates = [f"python{version}", *map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python"))), sys.executable]
    return next((found for c in candidates if (found := shutil.which(c)) and version_of(found) == version), None)


def pythons(alone: bool) -> list[tuple[str, list[str]]]:
    """Interpreters, and the JAX that each is tested with."""
    newest = ["-c", "constraints/jax.txt", "jax"]
    if named := os.environ.get("SMALT_CI_PYTHONS"):
        return [(python, newest) for python in named.split()]
    if alone:
        return [(sys.executable, newest)]
    found = []
    for version, jax in JAX.items():
        if python := find_python(version):
            found.append((python, [f"jax=={jax}"]))
        else:
            say(f"no Python {version} here: JAX {jax} is not tested")
    return found or [(sys.executable, newest)]


def output(*command: str | os.PathLike[str], **environment: str) -> str:
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(prog=".ci/run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", action="store_true", help="the tests alone, on one Python")
    args = parser.parse_args()
    steps = Steps()
    lint = not args.tests

    venvs: list[pathlib.Path] = []
    try:
        for python, jax in pythons(args.tests):
            venv = ROOT / f".venv-ci-{version_of(python)}"
            steps.run(Step(f"virtual environment {venv.name}", ["scripts/venv.sh", venv, python, *jax, *PACKAGES, *TOOLS]))
            venvs.append(venv)
    except Failed:
        say(steps.table())
        return 1
    first = venvs[0] / "bin"
    os.environ.setdefault("SMALT_XLA_FFI_INCLUDE_DIR", output(first / "python", "scripts/xla_headers.py"))
    # ptxas for the tests of the compiler.
    os.environ["PATH"] = f"{first}{os.pathsep}{os.environ['PATH']}"
    # Python files are compiled once, not in each of hundreds of processes: importing JAX takes four times as long without.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # Nobody builds here twice; what an editor's build needs costs a tenth of the time.
    os.environ.setdefault("CARGO_INCREMENTAL", "0")
    os.environ.setdefault("CARGO_PROFILE_DEV_DEBUG", "0")
    # An eighth of the optimiser's time goes into inlining more than this, and nothing here is faster for it.
    os.environ.setdefault("RUSTFLAGS", "-C llvm-args=-inline-threshold=50")

    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    cargo_test = ["cargo", "test", "--quiet", "--features", "test-handlers"]
    built = threading.Event()
    failures: list[str] = []

    def attempt(step: Step, live: bool = False) -> None:
        """One that fails does not keep the others from running."""
        try:
            steps.run(step, live)
        except Failed as failed:
            failures.append(str(failed))

    def rust() -> None:
        # Most of the unit tests' time would be the optimiser's: they go without.
        bare = {"CARGO_PROFILE_TEST_OPT_LEVEL": "0"}
        clippy = ["cargo", "clippy", "--quiet", "--all-targets", "--features", "test-handlers", "--", "-D", "warnings"]
        if lint:
            attempt(Step("cargo fmt", ["cargo", "fmt", "--check"]))
            attempt(Step("mypy", [first / "python", "-m", "mypy"]))
        built.wait()  # from here on only one lane uses cargo, which would wait for itself
        if lint:
            attempt(Step("cargo clippy", clippy))
        attempt(Step("cargo test, units", [*cargo_test, "--lib"], bare))
        attempt(Step("cargo test, the others", [*cargo_test, "--test", "*"]))

    def python() -> None:
        try:
            attempt(Step("build", [*cargo_test, "--test", "*", "--no-run"]), live=True)
        finally:
            built.set()
        # The one that those tests are linked with: `cargo build` would compile it again, for dependencies without the features of tests.
        library = {"SMALT_LIBRARY": str(target / "debug/deps/libsmalt.so")}
        for i, venv in enumerate([] if "build" in failures else venvs):
            versions = output(venv / "bin/python", "-c", "import sys, jax; print('Python', sys.version.split()[0], 'JAX', jax.__version__)")
            share = {"SMALT_TEST_SHARE": f"{i}/{len(venvs)}", "SMALT_TEST_BATCHES": os.environ.get("SMALT_TEST_BATCHES", "3" if args.tests else "1")}
            pytest = [venv / "bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "auto", "--dist", "loadgroup"]
            attempt(Step(f"pytest, {versions}", pytest, {**library, **share}), live=True)

    beside = threading.Thread(target=rust)
    beside.start()
    python()
    beside.join()
    say("\n" + steps.table())
    say("\nfailed: " + ", ".join(failures) if failures else "\npassed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
