"""What generators of random kernels, each with a check of its own, do from the command line."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any


def report(of: Callable[[int], Any], count: int, first: int, within: Callable[[Any], AbstractContextManager[Any]] = lambda _: nullcontext()) -> None:
    """Runs the cases of `count` seeds, each `within` a context, and prints those that fail."""
    import smalt

    smalt.enable()
    for seed in range(first, first + count):
        case = of(seed)
        with within(case):
            inputs = case.data()
            try:
                case.check(case.run(inputs), inputs)
            except Exception as e:  # noqa: BLE001
                print(f"{case}\n  {type(e).__name__}: {str(e)[:600]}", flush=True)
        if (seed - first) % 50 == 49:
            print(f"{seed - first + 1} done", flush=True)
