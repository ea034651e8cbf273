"""Runs calls on this machine's backend and in JAX's interpreter; the grammars of these calls."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

import smalt
from smalt._blocks import finer_rows, pallas_call
from tests import machine
from tests.fuzz.bits import keep
from tests.fuzz.grammar import Grammar
from tests.fuzz.outcome import Outcome
from tests.programs.blocks import dependent, named
from tests.programs.blocks.generate import Call, arguments, build, generate
from tests.programs.blocks.named import Named


def check_named(named: Named) -> Outcome | None:
    """A call by name has the interpreter's bits."""
    if jax.__version_info__ < named.since:
        return Outcome("no program", "the interpreter of this JAX means something else")
    with jax.default_device(jax.devices("cpu")[0]):
        want = np.asarray(jax.jit(named.make({"interpret": True}))(*named.arrays))
    got = keep(jax.jit(named.make({}))(*named.arrays))
    assert got.tobytes() == want.tobytes()
    return None


@contextlib.contextmanager
def _rows_split(seed: int) -> Iterator[None]:
    """Blocks of these sizes are hardly worth splitting: those of odd seeds are, all the same."""
    target, minor = finer_rows.TARGET, finer_rows.MINOR
    try:
        if seed % 2:
            finer_rows.TARGET, finer_rows.MINOR = 24, 8
        yield
    finally:
        finer_rows.TARGET, finer_rows.MINOR = target, minor


def _compare(call: Any, compute: Callable[[], tuple[Sequence[Any], Sequence[Any]]]) -> Outcome | None:
    """`compute`: what this machine's backend gives, and what the interpreter. NaNs of the interpreter's are what nobody wrote."""
    warnings.simplefilter("ignore")
    outcome = None
    with _rows_split(call.seed):
        try:
            got, want = compute()
        except smalt.ExecutionError as e:
            if "memory that nothing wrote" not in e.what:
                raise
            # A program that computes with such memory is reported. What else it computes is to be right.
            with machine.emulated(check="off"):
                got, want = compute()
            outcome = Outcome("no bits", "it computes with memory that nothing wrote, which is other memory on a GPU")
    for g, w in zip(got, want, strict=True):
        known = w == w
        keep(g[known])
        same = g.dtype == w.dtype and g.shape == w.shape and g[known].tobytes() == w[known].tobytes()
        assert same, f"{int((g != w)[known].sum())} of {g.size} elements\n{call}"
    return outcome


def check(call: Call) -> Outcome | None:
    make, arrays = build(call), arguments(call)
    cpu = jax.devices("cpu")[0]

    def compute() -> tuple[Sequence[Any], Sequence[Any]]:
        with jax.default_device(cpu):
            want = np.asarray(jax.jit(make(True))(*jax.device_put(arrays, cpu)))
        return [np.asarray(jax.jit(make(False))(*arrays))], [want]

    return _compare(call, compute)


def check_dependent(call: dependent.Dependent) -> Outcome | None:
    if jax.__version_info__ < (0, 11):  # whose interpreter reads what was there before the call
        call = dataclasses.replace(call, alias=False)
    make, arrays = dependent.build(call), dependent.arguments(call)
    cpu = jax.devices("cpu")[0]

    def compute() -> tuple[Sequence[Any], Sequence[Any]]:
        with jax.default_device(cpu):
            want = _interpreted(call, jax.device_put(arrays, cpu))
        parallel: Sequence[bool] = ()
        if call.semantics == "decided":
            (eqn,) = _calls(jax.make_jaxpr(make())(*arrays).jaxpr)
            decided = pallas_call.Call(eqn.params)
            parallel = [decided.parallel[a] for a in decided.own]
        got = jax.jit(make(compiler_params=dependent.parameters(call, parallel)))(*arrays)
        return [np.asarray(x) for x in got], [np.asarray(x) for x in want]

    return _compare(call, compute)


def _interpreted(call: dependent.Dependent, arrays: Sequence[Any]) -> list[Any]:
    """Of a batch element by element: under `vmap` the interpreter's scratch lasts from one to the next."""
    alone = jax.jit(dependent.build(dataclasses.replace(call, batch=0))(interpret=True))
    if not call.batch:
        return list(alone(*arrays))
    return [np.stack(x) for x in zip(*(alone(*(a[i] for a in arrays)) for i in range(call.batch)))]


def _calls(jaxpr: Any) -> list[Any]:
    return [e for e in jaxpr.eqns if e.primitive.name == "pallas_call"]


PALLAS_CALLS = Grammar("pallas calls", generate, check, named={name: functools.partial(check_named, call) for name, call in named.CALLS.items()})
DEPENDENT = Grammar("pallas calls, dependent", dependent.generate, check_dependent)
