"""Every generator of random kernels, with fresh seeds, on all cores: `python -m tests.fuzz --minutes 10`.

Kernels run in the emulator and are held against NumPy, JAX or an interpreter, as in the tests. Prints what is not right with the command
that repeats it, and at the end how many of each generator ran and what became of them. `--generator NAME --seed N` repeats one.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import multiprocessing.connection
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false --xla_force_host_platform_device_count=4")
os.environ.setdefault("PJRT_NPROC", "8")
os.environ.setdefault("SMALT_CACHE_DIR", "")

#: What becomes of a seed: "right"; "refused", with what smalt lacks; "no program"; or "wrong", with what is wrong.
Outcome = tuple[str, str]
RIGHT: Outcome = ("right", "")

#: Seconds for one seed; then it hangs.
LIMIT = 300.0
#: Seeds that one process serves: JAX's caches grow.
LIFE = 100


def _array_programs(seed: int, how: str | None = None) -> Outcome:
    from tests.arrays.run import run

    result = run(seed, how=how)
    kind = {"right": "right", "refused": "refused", "invalid": "no program", "passed over": "no program"}.get(result.kind, "wrong")
    return kind, f"{result.kind}: {result.text}"


def _memory_programs(seed: int, kind: str | None = None) -> Outcome:
    from tests.programs.generate import generate
    from tests.programs.run import check

    failure = check(generate(seed, kind))
    if failure is None:
        return RIGHT
    return ("refused" if failure.kind == "refused" else "wrong"), f"{failure.signature}: {failure.text}"


def _pallas_calls(seed: int, kind: str = "blocks") -> Outcome:
    from tests.blocks.run import KINDS

    result = KINDS[kind](seed)
    return (result.kind if result.kind in ("right", "refused") else "wrong"), f"{result.kind}: {result.text}"


def _checked(module: str, name: str) -> Callable[[int], Outcome]:
    """Of a class with `of(seed)`, or made of a seed, that has a check of its own."""

    def run(seed: int) -> Outcome:
        cls = getattr(__import__(module, fromlist=[name]), name)
        program = cls.of(seed) if hasattr(cls, "of") else cls(seed)
        (program.check_emulated if hasattr(program, "check_emulated") else program.check)()
        return RIGHT

    return run


def _scalar_programs(seed: int) -> Outcome:
    from tests.kernels.random_programs import Program
    from tests.kernels.suite import equal_numpy

    equal_numpy([Program.of(seed, by_warps=seed % 5 == 0)])
    return RIGHT


def _conversions(seed: int) -> Outcome:
    from tests.kernels import conversions

    walks = conversions.Walks.of(seed)
    walks.check(walks.compile(), None)
    return RIGHT


def _given(module: str, name: str) -> Callable[[int], Outcome]:
    """Of a class whose `data`, `run` and `check` go together."""

    def run(seed: int) -> Outcome:
        from tests.corpus.case import x64

        program = getattr(__import__(module, fromlist=[name]), name).of(seed)
        inputs = program.data()
        with x64(getattr(program, "x64", False)):
            program.check(program.run(inputs), inputs)
        return RIGHT

    return run


def _indexing(seed: int) -> Outcome:
    from tests.corpus.case import x64
    from tests.kernels.indexing import Trial

    trial = Trial.of(seed)
    with x64(trial.wide):
        try:
            results = trial.call()
        except ValueError as e:
            if "captures non-scalar array constants" in str(e):  # JAX's rule: an empty slice makes an empty constant
                return "no program", str(e)
            raise
        trial.check(results)
    return RIGHT


def _views(seed: int) -> Outcome:
    from tests.kernels import views

    views.run(list(views.KINDS)[seed % len(views.KINDS)], seed)
    return RIGHT


def _counted_rings(seed: int) -> Outcome:
    from tests.kernels import counted

    counted.check(seed)
    return RIGHT


def _litmus(seed: int) -> Outcome:
    from tests.corpus.case import REFS_AS_ARGUMENTS
    from tests.kernels import litmus

    if litmus.draw(seed).in_global and not REFS_AS_ARGUMENTS:
        return "no program", ""
    litmus.check(seed)
    return RIGHT


def _inline_ptx(seed: int) -> Outcome:
    from tests.kernels import inline_programs

    wrong = inline_programs.check(range(seed, seed + 5), slots=1 + seed % 3, carries=seed % 2 == 1)
    return ("wrong", "\n".join(wrong)) if wrong else RIGHT


def _several_devices(seed: int) -> Outcome:
    from tests.multi_gpu.random_programs import random_program

    n = 2 + seed % 3
    fault = (program := random_program(n, seed)).fault(program.run())
    return ("wrong", fault) if fault else RIGHT


def _cargo(test: str, name: str, count: str, first: str, many: int) -> Callable[[int], Outcome]:
    """A generator in Rust, `many` seeds at a time."""

    def run(seed: int) -> Outcome:
        command = ["cargo", "test", "--quiet", "--features", "test-handlers", "--test", test, name]
        done = subprocess.run(command, env={**os.environ, count: str(many), first: str(seed)}, capture_output=True, text=True)
        return RIGHT if done.returncode == 0 else ("wrong", (done.stdout + done.stderr)[-3000:])

    return run


GENERATORS: dict[str, Callable[[int], Outcome]] = {
    "scalar programs": _scalar_programs,
    "array programs": _array_programs,
    "array programs of warpgroups": lambda seed: _array_programs(seed, "handed"),
    "array programs of warps": lambda seed: _array_programs(seed, "by_warps"),
    "memory programs": _memory_programs,
    "memory programs of warps": lambda seed: _memory_programs(seed, "warp_arrays"),
    "pallas calls": _pallas_calls,
    "pallas calls, spelled": lambda seed: _pallas_calls(seed, "values"),
    "pallas calls, forwards": lambda seed: _pallas_calls(seed, "jvp"),
    "pallas calls, backwards": lambda seed: _pallas_calls(seed, "vjp"),
    "pallas calls, bounded": _checked("tests.blocks.bounded", "Bounded"),
    "pallas calls, long rows": _checked("tests.blocks.long", "Long"),
    "conversions": _conversions,
    "products": _given("tests.kernels.products", "Product"),
    "products of memory": _given("tests.kernels.memory_products", "MemoryProduct"),
    "convolutions": _given("tests.kernels.convolutions", "Convolution"),
    "indexing": _indexing,
    "references at indices": _checked("tests.kernels.indexing", "RefTrial"),
    "views": _views,
    "rings": _checked("tests.kernels.rings", "Ring"),
    "late epilogues": _checked("tests.kernels.rings", "Late"),
    "rings that drain": _checked("tests.kernels.drains", "Drained"),
    "running sums": _checked("tests.kernels.running_sums", "Sums"),
    "running products": _checked("tests.kernels.running_products", "Running"),
    "parked accumulators": _checked("tests.kernels.parked", "Parked"),
    "staged operands": _checked("tests.kernels.staged", "Staged"),
    "tile loops": _checked("tests.kernels.tile_loops", "Tiles"),
    "turned loops": _checked("tests.kernels.turned_loops", "Turned"),
    "counted barriers": _counted_rings,
    "litmus": _litmus,
    "inline PTX": _inline_ptx,
    "several devices": _several_devices,
}
if shutil.which("cargo"):
    GENERATORS["descriptors (20,000)"] = _cargo("fuzzing", "damaged::", "SMALT_FUZZ_N", "SMALT_FUZZ_SEED", 20_000)


def judge(name: str, seed: int) -> Outcome:
    import smalt

    try:
        with smalt.emulated("H100"):
            return GENERATORS[name](seed)
    except smalt.Unsupported as e:
        return "refused", str(e)
    except Exception as e:  # noqa: BLE001  (it is told)
        return "wrong", f"{type(e).__name__}: {e}"


def _serve(pipe: Any) -> None:
    while (task := pipe.recv()) is not None:
        pipe.send(judge(*task))


class _Worker:
    def __init__(self, context: Any) -> None:
        self.here, there = context.Pipe()
        self.process = context.Process(target=_serve, args=(there,), daemon=True)
        self.process.start()
        there.close()
        self.task: tuple[str, int] | None = None
        self.since = 0.0
        self.served = 0

    def give(self, task: tuple[str, int]) -> None:
        self.task, self.since, self.served = task, time.monotonic(), self.served + 1
        self.here.send(task)

    def outcome(self) -> Outcome | None:
        """Of its task, if it has come to an end."""
        if self.here.poll():
            try:
                return self.here.recv()  # type: ignore[no-any-return]
            except EOFError:
                self.process.join()
                return "wrong", f"its process ended with {self.process.exitcode}"
        return ("wrong", f"hangs: no result within {LIMIT:g} s") if time.monotonic() - self.since > LIMIT else None


def hunt(names: list[str], minutes: float, jobs: int, first: int) -> int:
    """The generator that has had the least time is next."""
    context = multiprocessing.get_context("spawn")
    spent = dict.fromkeys(names, 0.0)
    counts = {name: collections.Counter[str]() for name in names}
    seeds = dict.fromkeys(names, first)
    workers = [_Worker(context) for _ in range(jobs)]
    end = time.monotonic() + 60 * minutes
    refusals: dict[str, str] = {}

    def next_task() -> tuple[str, int]:
        name = min(names, key=lambda n: spent[n])
        spent[name] += 0.01
        seeds[name] += 20_000 if name.endswith("(20,000)") else 5 if name == "inline PTX" else 1
        return name, seeds[name]

    while any(w.task for w in workers) or time.monotonic() < end:
        for i, w in enumerate(workers):
            if w.task is not None and (outcome := w.outcome()) is not None:
                (name, seed), (kind, text) = w.task, outcome
                w.task = None
                counts[name][kind] += 1
                spent[name] += time.monotonic() - w.since
                if kind == "wrong":
                    print(f"{text[:3000]}\n`python -m tests.fuzz --generator {name!r} --seed {seed}` repeats it\n", flush=True)
                elif kind == "refused":
                    refusals.setdefault(name, f"{seed}: {' / '.join(text.split(chr(10)))[:200]}")
                if w.served >= LIFE or kind == "wrong":
                    w.process.kill()
                    workers[i] = w = _Worker(context)
            if w.task is None and time.monotonic() < end:
                w.give(next_task())
        multiprocessing.connection.wait([w.here for w in workers if w.task], timeout=1)
    for w in workers:
        w.process.kill()
    for name, found in counts.items():
        example = f"   refused, for one: {refusals[name]}" if name in refusals else ""
        print(f"{name:30} {found.total():7}: " + ", ".join(f"{n} {kind}" for kind, n in sorted(found.items())) + example)
    every = sum(counts.values(), collections.Counter[str]())
    idle = [name for name in names if counts[name].total() >= 10 and not counts[name]["right"]]
    print(f"{every.total()} of {len(names)} generators in {minutes:g} minutes on {jobs} cores, seeds from {first}: " + ", ".join(f"{n} {k}" for k, n in sorted(every.items())))
    if idle:
        print(f"nothing right of: {', '.join(idle)}")
    return int(every["wrong"] > 0 or bool(idle))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--generator", action="append", metavar="NAME", help=f"only this one: {', '.join(GENERATORS)}")
    parser.add_argument("--seed", type=int, help="only this seed of the generators that are named")
    args = parser.parse_args()
    if unknown := set(args.generator or ()) - set(GENERATORS):
        parser.error(f"--generator: there is no {', '.join(sorted(unknown))}")
    names = args.generator or list(GENERATORS)
    if args.seed is not None:
        for name in names:
            kind, text = judge(name, args.seed)
            print(f"{name}, {args.seed}: {kind}" + (f"\n{text}" if text and kind != "right" else ""))
        return 0
    return hunt(names, args.minutes, args.jobs, secrets.randbelow(1_000_000_000))


if __name__ == "__main__":
    sys.exit(main())
