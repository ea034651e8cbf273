"""Which changes for the worse the tests find: `python -m tests.mutants` (`make mutants`).

The compiler is built once, from a copy of its sources in which an environment variable chooses one of the changes of `table.py`; a change of
the plugin is made in a copy of it. For each change the tests run until one fails: those in Python that are likeliest to first, then Rust's
(unless `--no-rust`), then all in Python. A change that no test finds is a missing test. `--jobs` processes share a suite.

    python -m tests.mutants --only relayout,divide     changes of these files alone
    python -m tests.mutants --build FOLDER             builds what `--built FOLDER` takes, on a machine without Rust, too
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from tests import ROOT
from tests.mutants.table import MUTANTS, ROOMS, Mutant, file_named

#: Seconds for a suite under a change, which may make kernels endless.
LIMIT = 1800
SWITCH = '''

/// Which change for the worse this process runs with: `tests/mutants`.
pub(crate) fn mutant(number: u32) -> bool {
    static CHOSEN: std::sync::OnceLock<Option<u32>> = std::sync::OnceLock::new();
    *CHOSEN.get_or_init(|| std::env::var("SMALT_MUTANT").ok()?.parse().ok()) == Some(number)
}
'''


def sources(folder: pathlib.Path) -> None:
    """The tree with all changes of the compiler in it, each behind its number."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True)
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    for number, mutant in enumerate(MUTANTS):
        if not mutant.is_python:
            file = folder / "src" / mutant.file
            file.write_text(mutant.applied(file.read_text(), f"crate::mutant({number})"))
    library = folder / "src/lib.rs"
    library.write_text("#![allow(unused_parens)]\n" + library.read_text() + SWITCH)


def cargo(folder: pathlib.Path, *arguments: str, **environment: str) -> list[pathlib.Path]:
    """Builds tests, and says where they are."""
    target = os.environ.get("CARGO_TARGET_DIR", str(ROOT / "target/mutants"))
    env = {**os.environ, "CARGO_TARGET_DIR": target, "SMALT_XLA_FFI_INCLUDE_DIR": headers(), **environment}
    command = ["cargo", "test", "--quiet", "--features", "test-handlers", "--no-run", "--message-format", "json-render-diagnostics", *arguments]
    done = subprocess.run(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(done.returncode)
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    return [pathlib.Path(m["executable"]) for m in messages if m.get("executable")]


def headers() -> str:
    script = ROOT / "scripts/xla_headers.py"
    return os.environ.get("SMALT_XLA_FFI_INCLUDE_DIR") or subprocess.run([sys.executable, script], check=True, capture_output=True, text=True).stdout.strip()


def build(folder: pathlib.Path) -> None:
    """The library and the compiler's tests, into `folder`, where the tests find what they read."""
    sources(folder)
    tests = folder / "compiled"
    shutil.rmtree(tests, ignore_errors=True)
    tests.mkdir()
    for binary in [*cargo(folder, "--test", "*"), *cargo(folder, "--lib", CARGO_PROFILE_TEST_OPT_LEVEL="0")]:
        # The borders between rooms are read from sources, which the changes have altered.
        if (name := binary.name.rpartition("-")[0]) != "structure":
            shutil.copy2(binary, tests / name)
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target/mutants"))
    shutil.copy2(target / "debug/deps/libsmalt.so", folder / "libsmalt.so")


def plugin(mutant: Mutant, folder: pathlib.Path) -> pathlib.Path:
    """A copy of the plugin with the change in it."""
    copy = folder / "plugin"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(ROOT / "jax_plugin", copy)
    file = copy / "smalt" / mutant.file
    file.write_text(mutant.applied(file.read_text(), ""))
    return copy


def pytest(number: int, mutant: Mutant, built: pathlib.Path, jobs: int, files: list[str], python: str) -> str:
    """The first test that fails; nothing if all pass."""
    env = {**os.environ, "SMALT_LIBRARY": str(built / "libsmalt.so"), "SMALT_MUTANT": str(number), "OPENBLAS_NUM_THREADS": "1"}
    paths = [str(ROOT)]
    with tempfile.TemporaryDirectory() as folder:
        if mutant.is_python:
            paths.insert(0, str(plugin(mutant, pathlib.Path(folder))))
        else:
            paths.insert(0, str(ROOT / "jax_plugin"))
        env["PYTHONPATH"] = os.pathsep.join([*paths, env.get("PYTHONPATH", "")])
        command = [python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-W", "ignore", "-o", f"pythonpath={paths[0]} {ROOT}"]
        command += ["-n", str(jobs), "--dist", "loadgroup"] if jobs > 1 else []
        try:
            done = subprocess.run([*command, *files], cwd=ROOT, env=env, capture_output=True, text=True, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return "a test that does not end"
    if done.returncode == 0:
        return ""
    failed = [line.split(" ", 1)[1].split(" - ")[0] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return failed[0] if failed else f"pytest ended with {done.returncode}: {done.stdout[-300:]}{done.stderr[-300:]}"


def rust(number: int, built: pathlib.Path, jobs: int) -> str:
    """The first of the compiler's own tests that fails."""

    # As cargo would: texts that are expected are found by it.
    env = {**os.environ, "SMALT_MUTANT": str(number), "CARGO_MANIFEST_DIR": str(built)}

    def run(binary: pathlib.Path) -> str:
        try:
            done = subprocess.run([binary, "-q"], cwd=built, env=env, capture_output=True, text=True, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return f"{binary.name}: it does not end"
        failed = [line.strip() for line in done.stdout.rpartition("failures:")[2].splitlines() if line.startswith("    ")]
        return "" if done.returncode == 0 else f"{binary.name}: {failed[0] if failed else done.returncode}"

    with concurrent.futures.ThreadPoolExecutor(max(1, jobs // 2)) as pool:
        return next(filter(None, pool.map(run, sorted((built / "compiled").iterdir()))), "")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="parts of the names of files whose changes are tried, by commas")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--build", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("--built", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("--no-rust", action="store_true")
    parser.add_argument("--first-only", action="store_true", help="the likeliest tests alone")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the tests, which has JAX and pytest")
    args = parser.parse_args()
    if args.build:
        args.build.mkdir(parents=True, exist_ok=True)
        build(args.build)
        return 0
    built = args.built or ROOT / "target/mutants/tree"
    if not args.built:
        built.mkdir(parents=True, exist_ok=True)
        build(built)
    chosen = [(i, m) for i, m in enumerate(MUTANTS) if any(part in m.file for part in args.only.split(","))]
    missed = []
    for number, mutant in chosen:
        start = time.monotonic()
        first = [str(file_named(name)) for name in mutant.first]
        found = pytest(number, mutant, built, args.jobs, first, args.python)
        if not found and not args.first_only:
            if not mutant.is_python and not args.no_rust:
                found = rust(number, built, args.jobs)
            found = found or pytest(number, mutant, built, args.jobs, ROOMS, args.python)
        missed += [] if found else [mutant]
        print(f"{number:3} {'found' if found else 'MISSED'}, {time.monotonic() - start:4.0f} s, {mutant.file}: {mutant.wrong}" + (f": {found}" if found else ""), flush=True)
    print(f"{len(chosen) - len(missed)} of {len(chosen)} found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
