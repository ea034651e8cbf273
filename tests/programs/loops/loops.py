"""Random kernels with loops: what those of `parked`, `rings`, `running_products`, `running_sums`, `staged`, `tile_loops` and `turned_loops` have in common."""

from __future__ import annotations

import abc
import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

import smalt
from smalt import _native
from tests import machine
from tests.fuzz.bits import keep
from tests.fuzz.grammar import Grammar
from tests.programs.memory.run import SCHEDULES, Schedule

Array = np.ndarray[Any, Any]


class Loops(abc.ABC):
    """A kernel of a seed."""

    @abc.abstractmethod
    def function(self) -> Any:
        """Of the inputs, by JAX."""

    @abc.abstractmethod
    def inputs(self) -> list[Array]: ...

    @abc.abstractmethod
    def reference(self) -> list[Array]:
        """The results, by NumPy."""

    def written(self) -> list[Array]:
        """Which elements of each result the kernel writes."""
        return [np.ones(x.shape, np.bool_) for x in self.reference()]

    def structs(self) -> list[jax.ShapeDtypeStruct]:
        return [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in self.inputs()]

    def lowered(self) -> tuple[bytes, bytes]:
        """Descriptor and debug information."""
        return _lowered(self, machine.device())

    def check(self, results: Iterable[Any], where: str = "") -> None:
        """What nobody writes is anything."""
        for a, b, written in zip(results, self.reference(), self.written(), strict=True):
            np.testing.assert_array_equal(keep(np.asarray(a)[written]), b[written], err_msg=f"{self}, {where}")

    def check_on_gpu(self) -> None:
        self.check(jax.tree.leaves(jax.jit(self.function())(*self.inputs())))

    def check_emulated(self, schedules: Iterable[Schedule] = SCHEDULES) -> None:
        """The order in which the hardware gets to things changes nothing, and the checker of races finds nothing."""
        wanted, inputs, all_written = self.reference(), self.inputs(), self.written()
        for schedule, number in schedules:
            # As the emulator leaves what nobody writes.
            got = [np.full(x.nbytes, 0xFF, np.uint8).view(x.dtype).reshape(x.shape) for x in wanted]
            before = [x.copy() for x in got]
            compiled(self).emulate([*(x.copy() for x in inputs), *got], schedule, number)
            for a, b, c, written in zip(got, wanted, before, all_written, strict=True):
                np.testing.assert_array_equal(keep(a[written]), b[written], err_msg=f"{self}, {schedule} {number}")
                np.testing.assert_array_equal(a[~written], c[~written], err_msg=f"{self}: what nobody writes")


def grammar(name: str, draw: Callable[[int], Any]) -> Grammar[Any]:
    """Of kernels with loops."""
    return Grammar(name, draw, Loops.check_emulated, on_gpu=Loops.check_on_gpu)


@functools.cache
def _lowered(program: Loops, device: str) -> tuple[bytes, bytes]:
    with smalt.emulated(device):
        [(_, descriptor, debug)] = smalt.descriptor(program.function(), *program.structs())
    return descriptor, debug


@functools.cache
def changed_by(program: Loops) -> frozenset[str]:
    """The passes that change a program."""
    stages = list(dict(_native.show(*program.lowered(), machine.HOPPER)).items())
    return frozenset(name for (_, before), (name, after) in itertools.pairwise(stages) if after != before)


def compiled(program: Loops) -> _native.Artifact:
    return _compiled(program, machine.target())


@functools.cache
def _compiled(program: Loops, target: str) -> _native.Artifact:
    return _native.compile(*program.lowered(), machine.host())


def picker(*seed: int) -> Callable[..., Any]:
    """A function that picks one of its arguments."""
    rng = np.random.default_rng(seed)
    return lambda *of: of[int(rng.integers(len(of)))]
