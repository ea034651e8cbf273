"""Runs programs, in the emulator or on a GPU, and says how they fail; the grammars of these programs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

import smalt
from smalt import _errors, _native
from tests import machine
from tests.corpus.case import REFS_AS_ARGUMENTS
from tests.fuzz.bits import keep
from tests.fuzz.grammar import Grammar, of_error
from tests.fuzz.outcome import Outcome
from tests.machine import ON_GPU
from tests.programs.memory.emit import function, source
from tests.programs.memory.generate import find_fault, generate
from tests.programs.memory.interpret import interpret
from tests.programs.memory.regressions import REGRESSIONS
from tests.programs.memory.smaller import SMALLER
from tests.programs.memory.tree import DTYPES, Array, Program

#: (schedule, seed) of the emulator.
Schedule = tuple[str, int]
SCHEDULES: tuple[Schedule, ...] = (("latest", 0), ("earliest", 0), ("seeded", 1), ("seeded", 2))


def described(program: Program) -> tuple[bytes, bytes]:
    """Traced by JAX: the descriptor, and its table of locations."""
    run, _ = function(program)
    structs = [jax.ShapeDtypeStruct(b.shape, DTYPES[b.dtype]) for b in program.of("in", "mut")]
    with machine.emulated():
        [(_, descriptor, debug)] = smalt.descriptor(run, *structs)
    return descriptor, debug


def compiled(program: Program) -> _native.Artifact:
    """Traced by JAX, compiled by smalt."""
    return _compiled(program, machine.target())


@functools.lru_cache(maxsize=32)
def _compiled(program: Program, target: str) -> _native.Artifact:
    return _native.compile(*described(program), machine.host())


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
        keep(np.where(known, np.ascontiguousarray(a).view(bits), 0))
        wrong = (np.ascontiguousarray(a).view(bits) != np.ascontiguousarray(b).view(bits)) & known
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            return f"{decl.name}: {wrong.sum()} of {wrong.size} are wrong, the first at {at}: {a[at]}, expected {b[at]}"
    return None


def lacking(program: Program) -> Outcome | None:
    """Where this JAX has no such programs."""
    if program.of("mut") and not REFS_AS_ARGUMENTS:
        return Outcome("no program", "JAX 0.10 takes no mutable refs as arguments of kernels")
    return None


def check(program: Program, schedules: Iterable[Schedule] = SCHEDULES) -> Outcome | None:
    """The first failure in the emulator."""
    if lacks := lacking(program):
        return lacks
    artifact = compiled(program)
    for schedule, seed in schedules:
        try:
            got = results(program, artifact, lambda buffers: artifact.emulate(buffers, schedule, seed))
        except _errors.Error as error:
            return dataclasses.replace(of_error(error), where=(schedule, seed))
        if wrong := compare(program, got):
            return Outcome("wrong", wrong, (schedule, seed))
    return None


def check_again(program: Program, like: Outcome, on_gpu: bool) -> Outcome | None:
    """A smaller program, which is to be valid and to fail alike, in the emulator under the same schedule."""
    if find_fault(program) is not None:
        return Outcome("no program")
    if on_gpu:
        return check_on_gpu(program)
    return check(program, (like.where,) if like.where else SCHEDULES)


def check_on_gpu(program: Program, device: int = 0, times: int = 3) -> Outcome | None:
    """The first failure on a GPU."""
    if lacks := lacking(program):
        return lacks
    artifact = compiled(program)
    for _ in range(times):
        got = results(program, artifact, lambda buffers: artifact.run(buffers, device))
        if wrong := compare(program, got):
            return Outcome("wrong", wrong)
    return None


def check_named(program: Program) -> Outcome | None:
    return check_on_gpu(program) if ON_GPU else check(program, (*SCHEDULES, ("seeded", 3), ("seeded", 4)))


MEMORY = Grammar(
    "memory programs",
    generate,
    check,
    on_gpu=check_on_gpu,
    smaller=SMALLER,
    again=check_again,
    show=lambda program: source(program).split("\n\n\n", 1)[1],
    named={name: functools.partial(check_named, program) for name, program in REGRESSIONS.items()},
)
MEMORY_OF_WARPS = dataclasses.replace(MEMORY, name="memory programs of warps", draw=lambda seed: generate(seed, "warp_arrays"), named={})
MEMORY_OF_RINGS = dataclasses.replace(MEMORY, name="memory programs of rings", draw=lambda seed: generate(seed, "rings"), named={})
