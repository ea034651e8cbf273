"""Every generator of random programs, with fresh seeds, on all cores: `python -m tests.fuzz --minutes 10`.

Programs run in the emulator and are held against NumPy, JAX or an interpreter, as in the tests. Prints what is not right with the command
that repeats it, and at the end how many of each generator ran and what became of them.

    --generator NAME --seed N [--count N]                   these seeds of generators that are named
    --generator NAME --seed N --shrink                      makes those that fail small, and prints them
    --generator NAME --named [NAME …]                       its programs by name
    --target sm_80                                          compiled for another machine, which is emulated

To hold a GPU to the emulator's bits, of programs by name and of fresh seeds, compiled for a machine that the GPU runs:

    python -m tests.fuzz --bits --target sm_80 --minutes 5 --limit 60

Or on a machine without one, then on the GPU's:

    python -m tests.fuzz --generator 'array programs' --count 1000 --write arrays.npz
    python -m tests.fuzz --generator 'array programs' --count 1000 --compare arrays.npz --gpu
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import difflib
import itertools
import os
import re
import secrets
import sys
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from tests.fuzz import runner
from tests.fuzz.outcome import Outcome
from tests.fuzz.runner import Result, Task

T = TypeVar("T")

#: How a program is refused for what a machine lacks.
LACKS = re.compile(r"not supported yet: (.*) on sm_\d+a?$|smalt: (shared memory)$", re.MULTILINE)


class Hunt:
    """Fresh seeds until the time is over: of the generator that has had the least of it next, but for those whose programs are all refused."""

    #: Programs of a generator after which it is clear that all are.
    REFUSED = 16

    def __init__(self, names: list[str], minutes: float, first: int, on_gpu: bool) -> None:
        self.end = time.monotonic() + 60 * minutes
        self.spent = dict.fromkeys(names, 0.0)
        self.seeds = dict.fromkeys(names, first)
        self.on_gpu = on_gpu
        self.refused = collections.Counter[str]()
        self.other = collections.Counter[str]()

    def tasks(self) -> Iterator[Task]:
        from tests.fuzz.registry import GRAMMARS

        while time.monotonic() < self.end:
            left = [n for n in self.spent if self.other[n] or self.refused[n] < self.REFUSED] or list(self.spent)
            name = min(left, key=lambda n: self.spent[n])
            self.spent[name] += 0.01
            self.seeds[name] += GRAMMARS[name].takes
            yield Task(name, self.seeds[name], self.on_gpu)

    def count(self, results: Iterable[Result]) -> Iterator[Result]:
        for result in results:
            name, kind = result.task.grammar, result.outcome.kind
            self.spent[name] += result.seconds
            (self.refused if kind == "refused" else self.other)[name] += kind != "no program"
            yield result


class Summary:
    """What became of how many."""

    def __init__(self, names: list[str]) -> None:
        self.counts = {name: collections.Counter[str]() for name in names}
        self.refused: dict[str, str] = {}
        self.failures: list[str] = []
        #: What a machine lacks, for how many.
        self.lacks = {name: collections.Counter[str]() for name in names}
        self.begun = time.monotonic()

    def add(self, task: Task, outcome: Outcome) -> None:
        self.counts[task.grammar][outcome.kind] += 1
        if outcome.is_failure:
            of_both = outcome.kind == "other bits"
            command = f"{dataclasses.replace(task, on_gpu=False).command} --bits" if of_both else task.command
            print(f"{outcome.kind}: {outcome.text[:3000]}\n`{command}` repeats it\n", flush=True)
            self.failures.append(f"  {outcome.kind} of {task.grammar!r} {task.seed!r}: {' / '.join(outcome.text.splitlines())[:160]}")
        elif outcome.kind == "refused":
            if lacks := LACKS.search(outcome.text):
                self.lacks[task.grammar][lacks[1] or lacks[2]] += 1
            else:
                self.refused.setdefault(task.grammar, f"{task.seed}: {' / '.join(outcome.text.splitlines())[:200]}")

    def idle(self) -> list[str]:
        """Generators that show nothing, though the machine has what their programs need."""
        return [name for name, found in self.counts.items() if found.total() - self.lacks[name].total() >= 10 and not found["right"] + found["no bits"]]

    def __str__(self) -> str:
        lines = ["", *self.failures]
        for name, found in self.counts.items():
            example = f"   refused, for one: {self.refused[name]}" if name in self.refused else ""
            lacks = f"   lacks {_said(self.lacks[name])}" if self.lacks[name] else ""
            lines.append(f"{name:30} {found.total():7}: {_said(found)}{lacks}{example}")
        every = sum(self.counts.values(), collections.Counter[str]())
        lines.append(f"{every.total()} of {len(self.counts)} generators in {(time.monotonic() - self.begun) / 60:.1f} minutes: {_said(every)}")
        return "\n".join([*lines, *([f"nothing right of: {', '.join(self.idle())}"] if self.idle() else [])])


def _said(counts: collections.Counter[str]) -> str:
    return ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items()))


def show(task: Task, failure: Outcome | None = None) -> None:
    """The program of a seed; made small, if it has failed."""
    from tests.fuzz.registry import GRAMMARS
    from tests.fuzz.shrink import shrink

    grammar = GRAMMARS[task.grammar]
    program = grammar.draw(task.seed)
    if program is None:
        return
    if failure is not None:
        program, failure = shrink(grammar, program, failure, task.on_gpu)
        print(f"{failure.kind}: {failure.text[:1500]}")
    print(grammar.show(program), flush=True)


def emulated_for_bits() -> str | None:
    """The GPU to be emulated: as the first of this machine's, so that programs are the same. Processes find it in their environment."""
    from smalt import _native
    from tests import machine

    if name := os.environ.get("SMALT_TESTS_DEVICE"):
        return name
    devices = _native.doctor()["devices"]
    if not isinstance(devices, list) or not devices:
        return None
    name = machine.GPUS.get(_native.target_of(tuple(devices[0]["capability"])))
    return os.environ.setdefault("SMALT_TESTS_DEVICE", name) if name else None


def expected(what: str, read: Callable[[str], T], is_valid: Callable[[T], bool]) -> Callable[[str], T]:
    """The reader of an argument."""

    def argument(text: str) -> T:
        try:
            if is_valid(value := read(text)):
                return value
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"expected {what}, got {text!r}")

    return argument


def misuse(names: list[str], args: argparse.Namespace) -> str | None:
    """What is asked of generators that these do not have."""
    from tests.fuzz.registry import GRAMMARS

    if unknown := [name for name in names if name not in GRAMMARS]:
        return f"--generator: there is no {', '.join(unknown)}"
    by_name = [key for name in names for key in GRAMMARS[name].named]
    if args.named is not None and not by_name:
        return f"--named: expected a generator that has programs by name, got {', '.join(names)}"
    for name in args.named or ():
        if name not in by_name:
            near = difflib.get_close_matches(name, by_name, cutoff=0)
            return f"--named: expected some of {len(by_name)} programs ({', '.join(map(repr, near))}, …), got {name!r}"
    if args.named is not None and (args.show or args.shrink):
        return "--show, --shrink: expected seeds, got --named"
    if args.bits and (args.gpu or args.write or args.compare or args.shrink or args.jobs == 0):
        return "--bits: expected processes for the emulator and for a GPU, without --gpu, --write, --compare, --shrink or --jobs 0"
    if args.show and args.seed is None and args.count is None:
        return "--show: expected --seed or --count"
    if args.shrink and (fixed := [name for name in args.generator or () if not GRAMMARS[name].smaller]):
        able = [name for name, grammar in GRAMMARS.items() if grammar.smaller]
        return f"--shrink: expected generators that make programs smaller ({', '.join(able)}), got {', '.join(fixed)}"
    return None


def is_kept(path: str) -> bool:
    """Without NumPy, whose environment is not prepared when arguments are read."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as file:
        return {"programs.npy", "digests.npy"} <= {*file.namelist()}


def may_be_kept(path: str) -> bool:
    return os.path.isdir(os.path.dirname(path) or ".") and not os.path.isdir(path)


ABOVE_ZERO = expected("a number above 0", float, lambda x: x > 0)
FROM_ZERO = expected("a whole number of 0 or more", int, lambda n: n >= 0)
FROM_ONE = expected("a whole number of 1 or more", int, lambda n: n >= 1)
KEPT = expected("a file that --write has made", str, is_kept)
TO_KEEP = expected("a file in a folder that exists", str, may_be_kept)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="the generators")
    parser.add_argument("--generator", action="append", metavar="NAME", help="only this one; may be repeated")
    parser.add_argument("--minutes", type=ABOVE_ZERO, default=10)
    parser.add_argument("--jobs", type=FROM_ZERO, default=os.cpu_count() or 1, help="processes; 0: in this one, for tools that watch it, and without limit")
    parser.add_argument("--limit", type=ABOVE_ZERO, default=runner.LIMIT, help="seconds for one program, after which it hangs")
    parser.add_argument("--seed", type=FROM_ZERO, help="this seed, instead of fresh ones")
    parser.add_argument("--count", type=FROM_ONE, help="so many seeds, from that one or from 0")
    parser.add_argument("--named", nargs="*", metavar="NAME", help="programs by name, or all that there are")
    parser.add_argument("--show", action="store_true", help="print the programs, instead of running them")
    parser.add_argument("--shrink", action="store_true", help="make those that fail small, and print them")
    parser.add_argument("--gpu", action="store_true", help="on a GPU")
    parser.add_argument("--bits", action="store_true", help="in the emulator and on a GPU, which is held to the emulator's bits")
    parser.add_argument("--target", help="compile for this machine, e.g. sm_80: a row of docs/MACHINES.md")
    parser.add_argument("--write", type=TO_KEEP, metavar="FILE", help="keep the digests of all results")
    parser.add_argument("--compare", type=KEPT, metavar="FILE", help="hold results to kept digests, bit for bit")
    args = parser.parse_args()
    runner.prepare_environment(args.gpu or args.bits, args.target)
    from tests.fuzz import bits
    from tests.fuzz.registry import GRAMMARS

    if args.list:
        print("\n".join(GRAMMARS))
        return 0
    names = args.generator or [name for name, grammar in GRAMMARS.items() if grammar.makes_kernels or not (args.bits or args.target)]
    if says := misuse(names, args):
        parser.error(says)
    summary, found, tasks = Summary(names), [], list[Task]()
    by_name = [Task(name, key, args.gpu) for name in names for key in GRAMMARS[name].named if not args.named or key in args.named]
    if args.bits and not emulated_for_bits():
        parser.error("--bits: expected a GPU")
    for name in names:
        if args.named is not None:
            tasks += [task for task in by_name if task.grammar == name]
        elif args.seed is not None or args.count is not None:
            first, takes = args.seed or 0, GRAMMARS[name].takes
            tasks += [Task(name, seed, args.gpu) for seed in range(first, first + (args.count or 1) * takes, takes)]
    if args.show:
        for task in tasks:
            show(task)
        return 0
    if args.bits:
        hunt = Hunt(names, args.minutes, secrets.randbelow(1_000_000_000), False)
        beside = bits.Beside(tasks or itertools.chain(by_name, hunt.tasks()))
        found_now = hunt.count(beside.count(runner.results(beside, args.jobs, args.limit)))
    elif tasks:
        found_now = runner.results(tasks, 0 if len(tasks) == 1 else args.jobs, args.limit)
    else:
        hunt = Hunt(names, args.minutes, secrets.randbelow(1_000_000_000), args.gpu)
        found_now = hunt.count(runner.results(hunt.tasks(), args.jobs, args.limit))
    known = bits.read(args.compare) if args.compare else None
    for result in found_now:
        if known is not None:
            result = bits.held(result, known)
        summary.add(result.task, result.outcome)
        found.append(result)
    print(summary)
    if args.write:
        bits.write(args.write, found)
    failures = [r for r in found if r.outcome.is_failure]
    for result in failures if args.shrink else ():
        show(result.task, result.outcome)
    return int(bool(failures or summary.idle()))


if __name__ == "__main__":
    sys.exit(main())
