"""Primitives of ours that call: in a context, or from Python."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax._src import core as jax_core
from jax._src.interpreters import mlir as _mlir

from smalt._versions.jaxprs import eval_jaxpr
from smalt._versions.lowering import platforms, register_lowering
from smalt._versions.runs import call_from_python

lowered_under_p = jax_core.Primitive("smalt_lowered_under")
lowered_under_p.multiple_results = True
lowered_under_p.def_abstract_eval(lambda *avals, closed, scope: list(closed.out_avals))


def lowered_under(scope: Callable[[], contextlib.AbstractContextManager[None]], fn: Callable[..., Any], values: Sequence[Any]) -> list[Any]:
    """Calls a function so that it is traced and lowered in a context, wherever and whenever JAX does that."""
    with scope():
        closed = jax.make_jaxpr(fn)(*values)
    return lowered_under_p.bind(*values, closed=closed, scope=scope)  # type: ignore[no-any-return]


def _lowered_under(ctx: Any, *operands: Any, closed: Any, scope: Any) -> Any:
    with scope():
        return _mlir.lower_fun(lambda *values: eval_jaxpr(closed, values), multiple_results=True)(ctx, *operands)


called_from_python_p = jax_core.Primitive("smalt_called_from_python")
called_from_python_p.def_abstract_eval(lambda aval: aval)


def called_from_python(operands: Sequence[Any]) -> list[Any]:
    """The same values; the program that has them is called by JAX's Python (`call_from_python`)."""
    return [called_from_python_p.bind(operands[0]), *operands[1:]]


def _called_from_python(ctx: Any, operand: Any) -> Any:
    if "cpu" in platforms(ctx):
        call_from_python(ctx)
    return [operand]


register_lowering(lowered_under_p, _lowered_under)
register_lowering(called_from_python_p, _called_from_python)
