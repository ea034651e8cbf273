"""Every generator of random programs, with fresh seeds, on all cores: `python -m tests.fuzz --minutes 10`.

Programs run in the emulator and are held against NumPy, JAX or an interpreter, as in the tests. Prints what is not right with the command
that repeats it, and at the end how many of each generator ran and what became of them.

    --generator NAME --seed N [--count N]                   these seeds of generators that are named
    --generator NAME --seed N --shrink                      makes those that fail small, and prints them
    --generator NAME --named [NAME …]                       its programs by name

To hold a GPU to the emulator's bits, on a machine without one, then on the GPU's:

    python -m tests.fuzz --generator 'array programs' --count 1000 --write arrays.npz
    python -m tests.fuzz --generator 'array programs' --count 1000 --compare arrays.npz --gpu
"""

from __future__ import annotations

import argparse
import collections
import os
import secrets
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tests.fuzz import runner
from tests.fuzz.runner import Result, Task

if TYPE_CHECKING:
    from tests.fuzz.grammar import Outcome


class Hunt:
    """Fresh seeds until the time is over: of the generator that has had the least of it next."""

    def __init__(self, names: list[str], minutes: float, first: int, on_gpu: bool) -> None:
        self.end = time.monotonic() + 60 * minutes
        self.spent = dict.fromkeys(names, 0.0)
        self.seeds = dict.fromkeys(names, first)
        self.on_gpu = on_gpu

    def tasks(self) -> Iterator[Task]:
        from tests.fuzz.registry import GRAMMARS

        while time.monotonic() < self.end:
            name = min(self.spent, key=lambda n: self.spent[n])
            self.spent[name] += 0.01
            self.seeds[name] += GRAMMARS[name].takes
            yield Task(name, self.seeds[name], self.on_gpu)

    def count(self, results: Iterable[Result]) -> Iterator[Result]:
        for result in results:
            self.spent[result.task.grammar] += result.seconds
            yield result


class Summary:
    """What became of how many."""

    def __init__(self, names: list[str]) -> None:
        self.counts = {name: collections.Counter[str]() for name in names}
        self.refused: dict[str, str] = {}
        self.begun = time.monotonic()

    def add(self, task: Task, outcome: Outcome) -> None:
        self.counts[task.grammar][outcome.kind] += 1
        if outcome.is_failure:
            which = f"--named {task.seed!r}" if isinstance(task.seed, str) else f"--seed {task.seed}"
            print(f"{outcome.kind}: {outcome.text[:3000]}\n`python -m tests.fuzz --generator {task.grammar!r} {which}` repeats it\n", flush=True)
        elif outcome.kind == "refused":
            self.refused.setdefault(task.grammar, f"{task.seed}: {' / '.join(outcome.text.splitlines())[:200]}")

    def idle(self) -> list[str]:
        return [name for name, found in self.counts.items() if found.total() >= 10 and not found["right"]]

    def __str__(self) -> str:
        lines = []
        for name, found in self.counts.items():
            example = f"   refused, for one: {self.refused[name]}" if name in self.refused else ""
            lines.append(f"{name:30} {found.total():7}: {_said(found)}{example}")
        every = sum(self.counts.values(), collections.Counter[str]())
        lines.append(f"{every.total()} of {len(self.counts)} generators in {(time.monotonic() - self.begun) / 60:.1f} minutes: {_said(every)}")
        return "\n".join([*lines, *([f"nothing right of: {', '.join(self.idle())}"] if self.idle() else [])])


def _said(counts: collections.Counter[str]) -> str:
    return ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items()))


def show(task: Task, shrunk: bool) -> None:
    """The program, with `shrunk` made small if it fails."""
    from tests.fuzz.registry import GRAMMARS
    from tests.fuzz.shrink import shrink

    grammar = GRAMMARS[task.grammar]
    if isinstance(task.seed, str) or (program := grammar.draw(task.seed)) is None:
        return
    if shrunk and (failure := grammar.outcome(program, task.on_gpu)).is_failure:
        program, failure = shrink(grammar, program, failure)
        print(f"{failure.kind}: {failure.text[:1500]}")
    print(grammar.show(program), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="the generators")
    parser.add_argument("--generator", action="append", metavar="NAME", help="only this one; may be repeated")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; 0: in this one, for tools that watch it")
    parser.add_argument("--limit", type=float, default=runner.LIMIT, help="seconds for one program, after which it hangs")
    parser.add_argument("--seed", type=int, help="this seed, instead of fresh ones")
    parser.add_argument("--count", type=int, help="so many seeds, from that one or from 0")
    parser.add_argument("--named", nargs="*", metavar="NAME", help="programs by name, or all that there are")
    parser.add_argument("--show", action="store_true", help="print the programs, instead of running them")
    parser.add_argument("--shrink", action="store_true", help="make those that fail small, and print them")
    parser.add_argument("--gpu", action="store_true", help="on a GPU")
    parser.add_argument("--write", metavar="FILE", help="keep the digests of all results")
    parser.add_argument("--compare", metavar="FILE", help="hold results to kept digests, bit for bit")
    args = parser.parse_args()
    runner.prepare_environment(args.gpu)
    from tests.fuzz import bits
    from tests.fuzz.registry import GRAMMARS

    if args.list:
        print("\n".join(GRAMMARS))
        return 0
    names = args.generator or list(GRAMMARS)
    if unknown := [name for name in names if name not in GRAMMARS]:
        parser.error(f"--generator: there is no {', '.join(unknown)}")
    summary, found, tasks = Summary(names), [], list[Task]()
    for name in names:
        if args.named is not None:
            tasks += [Task(name, key, args.gpu) for key in GRAMMARS[name].named if not args.named or key in args.named]
        elif args.seed is not None or args.count is not None:
            first, takes = args.seed or 0, GRAMMARS[name].takes
            tasks += [Task(name, seed, args.gpu) for seed in range(first, first + (args.count or 1) * takes, takes)]
    if args.show:
        for task in tasks:
            show(task, False)
        return 0
    if not tasks:
        hunt = Hunt(names, args.minutes, secrets.randbelow(1_000_000_000), args.gpu)
        found_now = hunt.count(runner.results(hunt.tasks(), args.jobs, args.limit))
    elif args.jobs == 0 or len(tasks) == 1:
        found_now = (Result(task, task.outcome(), 0.0) for task in tasks)
    else:
        found_now = runner.results(tasks, args.jobs, args.limit)
    known = bits.read(args.compare) if args.compare else None
    for result in found_now:
        if known is not None:
            result = bits.held(result, known)
        summary.add(result.task, result.outcome)
        found.append(result)
    print(summary)
    if args.write:
        bits.write(args.write, found)
    failures = [r.task for r in found if r.outcome.is_failure]
    for task in failures if args.shrink else ():
        show(task, True)
    return int(bool(failures or summary.idle()))


if __name__ == "__main__":
    sys.exit(main())
