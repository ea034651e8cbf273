"""Runs programs, in the emulator or on a GPU, and says how they fail."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

import smalt
from smalt import _errors, _native
from tests.corpus.case import REFS_AS_ARGUMENTS
from tests.programs.emit import function
from tests.programs.interpret import interpret
from tests.programs.tree import DTYPES, Array, Program

#: (schedule, seed) of the emulator.
Schedule = tuple[str, int]
SCHEDULES: tuple[Schedule, ...] = (("latest", 0), ("earliest", 0), ("seeded", 1), ("seeded", 2))


@dataclasses.dataclass(frozen=True)
class Failure:
    """What is wrong with what smalt made of a program.

    Attributes:
        kind: "wrong number", "deadlock", "race" (diagnosed by the emulator), "refused" (what smalt says it lacks), "passed over" (what this JAX lacks),
            "rejected" (called the author's mistake), "internal error", "not traced" (JAX's front end refuses).
        where: The schedule; None: compiling fails.
        text: The diagnosis, or the first wrong elements.
    """

    kind: str
    where: Schedule | None
    text: str

    @property
    def signature(self) -> str:
        """What a smaller program must share to fail alike: the kind, and the first words of the diagnosis."""
        return self.kind if self.kind in ("wrong number", "deadlock") else f"{self.kind}: {' '.join(self.text.split('(')[0].split()[:8])}"


def described(program: Program) -> tuple[bytes, bytes]:
    """Traced by JAX: the descriptor, and its table of locations."""
    run, _ = function(program)
    structs = [jax.ShapeDtypeStruct(b.shape, DTYPES[b.dtype]) for b in program.of("in", "mut")]
    with smalt.emulated("H100"):
        [(_, descriptor, debug)] = smalt.descriptor(run, *structs)
    return descriptor, debug


@functools.lru_cache(maxsize=32)
def compiled(program: Program) -> _native.Artifact:
    """Traced by JAX, compiled by smalt."""
    return _native.compile(*described(program), "sm_90a")


def results(program: Program, artifact: _native.Artifact, launch: Any) -> list[Array]:
    """The `out` and `mut` buffers behind a launch."""
    given = dict(zip((b.name for b in program.of("in", "mut")), program.inputs(), strict=True))
    operands = [(b, given[b.name].astype(DTYPES[b.dtype])) for b in (*program.of("mut"), *program.of("in"))]
    arrays = {b.name: x for b, x in operands}  # a mutable ref is written in place
    left, outs = iter(operands), iter(program.of("out"))
    buffers: list[Array] = []
    for spec in artifact.report()["buffers"]:
        if spec["role"] == "scratch" or spec["alias_of"] is not None:
            buffers.append(np.zeros(spec["bytes"], np.uint8))
        elif spec["role"] == "output":
            decl = next(outs)
            # What nobody mistakes for a result.
            arrays[decl.name] = np.full(decl.nbytes, 0xFF, np.uint8).view(DTYPES[decl.dtype]).reshape(decl.shape)
            buffers.append(arrays[decl.name])
        else:
            buffers.append(next(left)[1])
    launch(buffers)
    return [arrays[b.name] for b in program.of("out", "mut")]


def compare(program: Program, got: list[Array]) -> str | None:
    """The first difference from the interpreter's results, bit for bit; nothing where nobody wrote."""
    expected = interpret(program)
    for decl, a, value, known in zip(program.of("out", "mut"), got, expected.values, expected.known, strict=True):
        b = value.astype(DTYPES[decl.dtype])
        bits = f"u{b.dtype.itemsize}"
        wrong = (np.ascontiguousarray(a).view(bits) != np.ascontiguousarray(b).view(bits)) & known
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            return f"{decl.name}: {wrong.sum()} of {wrong.size} are wrong, the first at {at}: {a[at]}, expected {b[at]}"
    return None


def prepare(program: Program) -> Failure | None:
    """Compiles; what of that fails."""
    if program.of("mut") and not REFS_AS_ARGUMENTS:
        return Failure("passed over", None, "JAX 0.10 takes no mutable refs as arguments of kernels")
    try:
        compiled(program)
    except _errors.Error as error:
        kind = {_errors.Unsupported: "refused", _errors.InvalidKernel: "rejected", _errors.Internal: "internal error"}
        return Failure(kind.get(type(error), "rejected"), None, str(error))
    except Exception as error:  # noqa: BLE001: JAX's front end raises whatever it likes
        return Failure("not traced", None, f"{type(error).__name__}: {error}")
    return None


def check(program: Program, schedules: Iterable[Schedule] = SCHEDULES) -> Failure | None:
    """The first failure in the emulator."""
    if failure := prepare(program):
        return failure
    artifact = compiled(program)
    for schedule, seed in schedules:
        try:
            got = results(program, artifact, lambda buffers: artifact.emulate(buffers, schedule, seed))
        except _errors.Error as error:
            return Failure(kind_of(str(error)), (schedule, seed), str(error))
        if wrong := compare(program, got):
            return Failure("wrong number", (schedule, seed), wrong)
    return None


def check_on_gpu(program: Program, device: int = 0, times: int = 3) -> Failure | None:
    """The first failure on a GPU."""
    if failure := prepare(program):
        return failure
    artifact = compiled(program)
    for _ in range(times):
        got = results(program, artifact, lambda buffers: artifact.run(buffers, device))
        if wrong := compare(program, got):
            return Failure("wrong number", None, wrong)
    return None


def kind_of(text: str) -> str:
    if "deadlock" in text:
        return "deadlock"
    if "internal error" in text:
        return "internal error"
    return "race"
