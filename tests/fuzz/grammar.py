"""What draws random programs and checks them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

import jax

import smalt
from tests.fuzz import bits
from tests.fuzz.outcome import RIGHT, Outcome
from tests.machine import enabled, has_memory

P = TypeVar("P")

#: What the emulator's checker says of accesses that nothing orders.
RACES = ("nothing orders", "different values for one place", "shared memory that a bulk load")


def of_error(error: Exception, counts_memory: bool = True) -> Outcome:
    """What an exception says of the program whose check raised it; `counts_memory` is the grammar's, which counts on a Hopper's."""
    text = str(error)
    is_too_large = isinstance(error, smalt.InvalidKernel) and text.startswith("smalt: shared memory\n")
    if isinstance(error, smalt.Unsupported) or is_too_large and not (counts_memory and has_memory()):
        return Outcome("refused", text)
    if isinstance(error, AssertionError):
        return Outcome("wrong", text)
    is_ours = isinstance(error, (smalt.Error, jax.errors.JaxRuntimeError))
    kind = "race" if is_ours and any(race in text for race in RACES) else "deadlock" if is_ours and "deadlock" in text else "error"
    return Outcome(kind, f"{type(error).__name__}: {text}")


@dataclasses.dataclass(frozen=True)
class Grammar(Generic[P]):
    """A generator of random programs.

    Attributes:
        draw: The program of a seed, the same in every process; None: this seed has none.
        check: Runs a program in the emulator. Nothing where it is right, or an outcome; it may as well raise: `of_error`.
        on_gpu: The same on a GPU; by default the check, where JAX's backend is a GPU.
        smaller: Each gives programs that are a little smaller than one; without any, programs are not shrunk.
        again: Checks a smaller program for an outcome that it may share, on a GPU or not; by default the check.
        show: The program as a text.
        named: Checks of programs by name: what once went wrong.
        known: Of seeds and names that fail today, the kind of their outcome. One that no longer fails does not belong there: the tests say so.
        counts_memory: Whether programs are drawn so that they fit into a Hopper's shared memory; otherwise those that do not are refused, and no failure.
        takes: How many seeds one program takes.
        makes_kernels: Whether programs are kernels, which another machine may run.
    """

    name: str
    draw: Callable[[int], P | None]
    check: Callable[[P], Outcome | None]
    on_gpu: Callable[[P], Outcome | None] | None = None
    smaller: tuple[Callable[[P], Iterable[P]], ...] = ()
    again: Callable[[P, Outcome, bool], Outcome | None] | None = None
    show: Callable[[P], str] = str
    named: Mapping[str, Callable[[], Outcome | None]] = dataclasses.field(default_factory=dict)
    known: Mapping[int | str, str] = dataclasses.field(default_factory=dict)
    counts_memory: bool = True
    takes: int = 1
    makes_kernels: bool = True

    def outcome(self, program: P | None, on_gpu: bool = False, like: Outcome | None = None) -> Outcome:
        """What becomes of a program; `like`: a failure that it may share."""
        if program is None:
            return Outcome("no program")
        if like is not None and self.again is not None:
            again = self.again
            return self._judged(lambda: again(program, like, on_gpu), on_gpu)
        check = self.on_gpu if on_gpu and self.on_gpu is not None else self.check
        return self._judged(lambda: check(program), on_gpu)

    def outcome_of(self, seed: int, on_gpu: bool = False) -> Outcome:
        return self._judged(lambda: self.outcome(self.draw(seed), on_gpu), on_gpu)

    def outcome_of_named(self, name: str, on_gpu: bool = False) -> Outcome:
        return self._judged(self.named[name], on_gpu)

    def _judged(self, check: Callable[[], Outcome | None], on_gpu: bool) -> Outcome:
        try:
            with enabled(on_gpu), bits.keeping() as kept:
                outcome = check() or RIGHT
                return dataclasses.replace(outcome, digests=outcome.digests or tuple(kept))
        except Exception as error:  # noqa: BLE001: it is reported
            return of_error(error, self.counts_memory)
