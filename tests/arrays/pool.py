"""Runs programs in processes of their own, each with a time limit: one that hangs, or takes its process along, costs itself only."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import time
from collections.abc import Iterator, Sequence
from typing import Any

from tests.arrays.run import Result

#: A process is replaced after so many programs: caches of thousands are not kept.
LIFE = 150


class _Worker:
    def __init__(self, context: Any, given: tuple[bool, str | None]) -> None:
        self.here, there = context.Pipe()
        self.process = context.Process(target=_serve, args=(there, *given), daemon=True)
        self.process.start()
        there.close()
        self.seed: int | None = None
        self.since = 0.0
        self.served = 0
        self.is_ready = False

    def give(self, seed: int) -> None:
        self.seed, self.since = seed, time.monotonic()
        self.here.send(seed)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.here.close()


def results(seeds: Sequence[int], jobs: int, limit: float, judged: bool = True, how: str | None = None) -> Iterator[Result]:
    """A result for each seed, in no particular order; `judged` and `how` as in `run`."""
    context = multiprocessing.get_context("spawn")
    left = list(reversed(seeds))
    workers: list[_Worker] = []
    try:
        while left or any(w.seed is not None for w in workers):
            while len(workers) < min(jobs, len(left) + sum(w.seed is not None for w in workers)):
                workers.append(_Worker(context, (judged, how)))
                if left:
                    workers[-1].give(left.pop())
            ready = multiprocessing.connection.wait([w.here for w in workers], timeout=1)
            for w in list(workers):
                if w.here in ready:
                    seed = w.seed
                    try:
                        result = w.here.recv()
                    except EOFError:
                        result = None
                    if result is None:
                        w.process.join()
                        workers.remove(w)
                        if seed is not None:
                            yield Result(seed, "error", f"the process ended with {w.process.exitcode}")
                        continue
                    yield result
                    w.seed = None
                    w.served += 1
                    # A GPU that has failed once fails from then on.
                    if w.served >= LIFE or result.kind == "error":
                        w.end()
                        workers.remove(w)
                    elif left:
                        w.give(left.pop())
                elif w.seed is not None and time.monotonic() - w.since > limit + (30 if w.served == 0 else 0):
                    seed = w.seed
                    w.end()
                    workers.remove(w)
                    yield Result(seed, "hangs", f"no result within {limit:.0f} s", limit)
    finally:
        for w in workers:
            w.end()


def _serve(pipe: Any, judged: bool, how: str | None) -> None:
    import smalt
    from tests.arrays.run import run

    smalt.enable()
    while True:
        seed = pipe.recv()
        try:
            result = run(seed, judged, how)
        except Exception as e:  # noqa: BLE001: of the generator itself
            import traceback

            result = Result(seed, "error", f"generator: {type(e).__name__}: {e}\n{traceback.format_exc()[-1500:]}")
        pipe.send(result)
