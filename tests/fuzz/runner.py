"""Runs programs in processes of their own, each with a time limit: one that hangs, or takes its process along, costs itself only.

Imports no JAX: it starts in the environment that is prepared here.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import multiprocessing.connection
import os
import time
from collections.abc import Iterable, Iterator
from typing import Any

from tests.fuzz.outcome import Outcome

#: Seconds for one program, and for a process to import what it needs.
LIMIT, START = 300.0, 300.0
#: Programs of one process: JAX's caches grow.
LIFE = 100

#: Of a process that runs programs, unless the user has said otherwise.
ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false --xla_force_host_platform_device_count=4",
    "PJRT_NPROC": "8",
    "SMALT_CACHE_DIR": "",
}
#: Several processes share a GPU, and JAX's references are computed on a CPU.
ENVIRONMENT_ON_GPU = {"OPENBLAS_NUM_THREADS": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "SMALT_CACHE_DIR": ""}


def prepare_environment(on_gpu: bool, target: str | None = None) -> None:
    """Before JAX is imported, here or in processes. But for a GPU nothing runs on one, whatever the user has said."""
    if target is not None:
        os.environ["SMALT_TARGET"] = target
    if not on_gpu:
        os.environ["JAX_PLATFORMS"] = "cpu"
    for name, value in (ENVIRONMENT_ON_GPU if on_gpu else ENVIRONMENT).items():
        os.environ.setdefault(name, value)


@dataclasses.dataclass(frozen=True)
class Task:
    """A program of a grammar: by its seed, or its name."""

    grammar: str
    seed: int | str
    on_gpu: bool = False

    @property
    def command(self) -> str:
        """What repeats it."""
        which = f"--named {self.seed!r}" if isinstance(self.seed, str) else f"--seed {self.seed}"
        target = f" --target {os.environ['SMALT_TARGET']}" if os.environ.get("SMALT_TARGET") else ""
        return f"python -m tests.fuzz --generator {self.grammar!r} {which}{target}{' --gpu' if self.on_gpu else ''}"

    def prepare(self) -> None:
        """Imports all grammars."""
        import tests.fuzz.registry  # noqa: F401

    def outcome(self) -> Outcome:
        """In this process."""
        from tests.fuzz.registry import GRAMMARS

        grammar = GRAMMARS[self.grammar]
        if isinstance(self.seed, str):
            return grammar.outcome_of_named(self.seed, self.on_gpu)
        return grammar.outcome_of(self.seed, self.on_gpu)


@dataclasses.dataclass(frozen=True)
class Result:
    task: Task
    outcome: Outcome
    seconds: float


def results(tasks: Iterable[Task], jobs: int, limit: float = LIMIT) -> Iterator[Result]:
    """A result for each task, in no particular order. A task is taken when there is a process for it; without processes they run here, without limit.

    `tasks` may have more of them once it is given results. Programs of a GPU have processes of their own, beside those of the emulator.
    """
    if jobs == 0:
        for task in tasks:
            begun = time.monotonic()
            yield Result(task, task.outcome(), time.monotonic() - begun)
        return
    left = iter(tasks)
    workers: list[_Worker] = []
    upcoming = next(left, None)
    try:
        while upcoming is not None or any(w.task for w in workers):
            while upcoming is not None and (free := _free(workers, jobs, upcoming.on_gpu)) is not None:
                free.give(upcoming)
                upcoming = next(left, None)
            multiprocessing.connection.wait([w.here for w in workers if w.task], timeout=1)
            for w in list(workers):
                if (result := w.result(limit)) is None:
                    continue
                if w.served >= LIFE or result.outcome.is_failure:  # a GPU that has failed once fails from then on
                    w.end()
                    workers.remove(w)
                yield result
            upcoming = upcoming or next(left, None)
    finally:
        for w in workers:
            w.end()


class _Worker:
    def __init__(self, on_gpu: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self.on_gpu = on_gpu
        self.here, there = context.Pipe()
        self.process = context.Process(target=_serve, args=(there, on_gpu), daemon=True)
        self.process.start()
        there.close()
        self.task: Task | None = None
        self.since, self.has_begun = 0.0, False
        self.served = 0

    def give(self, task: Task) -> None:
        self.task, self.since, self.has_begun, self.served = task, time.monotonic(), False, self.served + 1
        self.here.send(task)

    def result(self, limit: float) -> Result | None:
        """Of its task, if that has come to an end."""
        if self.task is None or (outcome := self._outcome(limit)) is None:
            return None
        task, self.task = self.task, None
        return Result(task, outcome, time.monotonic() - self.since)

    def _outcome(self, limit: float) -> Outcome | None:
        while self.here.poll():
            try:
                outcome: Outcome | None = self.here.recv()
            except EOFError:
                self.process.join()
                return Outcome("error", f"its process ended with {self.process.exitcode}")
            if outcome is not None:
                return outcome
            self.since, self.has_begun = time.monotonic(), True
        limit = limit if self.has_begun else START
        return Outcome("hangs", f"no result within {limit:g} s") if time.monotonic() - self.since > limit else None

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.here.close()


def _free(workers: list[_Worker], jobs: int, on_gpu: bool) -> _Worker | None:
    if sum(w.task is not None for w in workers) >= jobs:
        return None
    for w in workers:
        if w.task is None and w.on_gpu == on_gpu:
            return w
    workers.append(_Worker(on_gpu))
    return workers[-1]


def _serve(pipe: Any, on_gpu: bool) -> None:
    """For each task: nothing, when it begins, and its outcome."""
    prepare_environment(on_gpu)
    while True:
        task = pipe.recv()
        task.prepare()
        pipe.send(None)
        pipe.send(task.outcome())
