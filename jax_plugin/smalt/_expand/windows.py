"""Primitives that are functions of others: traced as such, and walked as calls."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from smalt import _versions
from smalt._errors import Unsupported
from smalt._expand import expand
from smalt._walk import OpParts, Walker

Function = Callable[..., Any]


# ------------------------------------------------------------------------------------------ scatters


def is_applied(eqn: Any) -> bool:
    """Whether a `scatter` is a `scatter_apply`: its region computes something of the old element."""
    jaxpr = eqn.params.get("update_jaxpr")
    if eqn.primitive.name != "scatter" or jaxpr is None:
        return False
    jaxpr, _ = _versions.open_jaxpr(jaxpr)
    return not (not jaxpr.eqns and jaxpr.outvars[0] is jaxpr.invars[1])


def scatter_apply(params: dict[str, Any]) -> Function:
    """Each element is what the function makes of it as often as an index names it."""

    def update(x: Any) -> Any:
        return _versions.eval_jaxpr(params["update_jaxpr"], [x, jnp.zeros((), x.dtype)], params.get("update_consts", ()))[0]

    def function(x: Any, indices: Any, updates: Any) -> Any:
        ones = jnp.ones(updates.shape, jnp.int32)
        numbers = {key: params[key] for key in ("dimension_numbers", "indices_are_sorted", "unique_indices", "mode")}
        counts = lax.scatter_add(jnp.zeros(x.shape, jnp.int32), indices, ones, **numbers)
        applied = jax.vmap(update)

        def step(carry: Any) -> Any:
            i, x = carry
            return i + 1, jnp.where(counts > i, applied(x.reshape(-1)).reshape(x.shape), x)

        return lax.while_loop(lambda carry: carry[0] < jnp.max(counts), step, (jnp.int32(0), x))[1]

    return function


# ------------------------------------------------------------------------------------------ the most and the least


def approx_top_k(params: dict[str, Any], shape: tuple[int, ...]) -> Function:
    """Exactly the extremes: as approximate as on every machine without a unit for it."""
    axis = params["reduction_dimension"] % len(shape)
    k = shape[axis]

    def function(x: Any) -> Any:
        if params["is_max_k"]:
            values, indices = lax.top_k(jnp.moveaxis(x, axis, -1), k)
            return jnp.moveaxis(values, -1, axis), jnp.moveaxis(indices, -1, axis)
        indices = lax.broadcasted_iota(jnp.int32, x.shape, axis)
        values, indices = lax.sort((x, indices), dimension=axis, num_keys=1)
        return lax.slice_in_dim(values, 0, k, axis=axis), lax.slice_in_dim(indices, 0, k, axis=axis)

    return function


# ------------------------------------------------------------------------------------------ reductions


def reduce(params: dict[str, Any]) -> Function:
    """Any function of two, over some dimensions: halves are combined until one position is left."""
    dimensions = tuple(params["dimensions"])

    def computation(*xs: Any) -> tuple[Any, ...]:
        return tuple(_versions.eval_jaxpr(params["jaxpr"], xs))

    def function(*operands: Any) -> Any:
        arrays, inits = operands[: len(operands) // 2], operands[len(operands) // 2 :]
        kept = tuple(d for d in range(arrays[0].ndim) if d not in dimensions)
        rest = tuple(arrays[0].shape[d] for d in kept)
        flat = [x.transpose(*dimensions, *kept).reshape(-1, math.prod(rest)) for x in arrays]
        combined = jax.vmap(jax.vmap(computation))
        over = flat[0].shape[0]
        if over == 0:
            return [jnp.broadcast_to(init, rest) for init in inits]
        while over > 1:
            half = over // 2
            # An odd one out waits at the end.
            lower = combined(*(x[:half] for x in flat), *(x[half : 2 * half] for x in flat))
            flat = [jnp.concatenate([low, x[2 * half :]]) if over % 2 else low for low, x in zip(lower, flat)]
            over = flat[0].shape[0]
        starts = [jnp.broadcast_to(init, (1, *x.shape[1:])) for init, x in zip(inits, flat)]
        return [x.reshape(rest) for x in combined(*starts, *flat)]

    return function


def _window_steps(x: Any, combine: Function, dim: int, size: int, dilation: int) -> Any:
    """Every window of `size` elements along a dimension, by windows of powers of two side by side."""
    starts = x.shape[dim] - (size - 1) * dilation

    def at(power: Any, offset: int) -> Any:
        return lax.slice_in_dim(power, offset * dilation, offset * dilation + starts, axis=dim)

    power, width, covered, out = x, 1, 0, None
    while True:
        if size & width:
            part = at(power, covered)
            out = part if out is None else combine(out, part)
            covered += width
        if covered == size:
            return out
        length = power.shape[dim] - width * dilation
        low = lax.slice_in_dim(power, 0, length, axis=dim)
        high = lax.slice_in_dim(power, width * dilation, width * dilation + length, axis=dim)
        power, width = combine(low, high), 2 * width


def _windows(params: dict[str, Any], x: Any, init: Any, combine: Function) -> Any:
    rank = x.ndim
    padding = [(lo, hi, base - 1) for (lo, hi), base in zip(params["padding"], params["base_dilation"])]
    x = lax.pad(x, init, padding)
    for dim in range(rank):
        size, dilation = params["window_dimensions"][dim], params["window_dilation"][dim]
        if x.shape[dim] < (size - 1) * dilation + 1:
            shape = list(x.shape)
            shape[dim] = 0
            x = jnp.zeros(shape, x.dtype)
        elif size > 1:
            x = _window_steps(x, combine, dim, size, dilation)
    return lax.slice(x, (0,) * rank, x.shape, params["window_strides"])


def least(dtype: Any) -> Any:
    """What nothing of the type is less than."""
    if dtype == jnp.bool_:
        return False
    return -jnp.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min


def greatest(dtype: Any) -> Any:
    """What nothing of the type is greater than."""
    if dtype == jnp.bool_:
        return True
    return jnp.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).max


def reduce_window_of(params: dict[str, Any], combine: Function, neutral: Function) -> Function:
    return lambda x: _windows(params, x, jnp.asarray(neutral(x.dtype), x.dtype), combine)


def reduce_window(params: dict[str, Any]) -> Function:
    """Windows of any function of two, one operand."""

    def computation(a: Any, b: Any) -> Any:
        return _versions.eval_jaxpr(params["jaxpr"], [a, b], params.get("consts", ()))[0]

    def function(*operands: Any) -> Any:
        if len(operands) != 2:
            raise Unsupported("reduce_window of several operands\n  remedy: reduce them one by one, or lax.reduce slices of them")
        x, init = operands

        def combine(a: Any, b: Any) -> Any:
            flat = jax.vmap(computation)(a.reshape(-1), b.reshape(-1))
            return flat.reshape(a.shape)

        out = _windows(params, x, init, combine)
        return combine(jnp.broadcast_to(init, out.shape), out)

    return function


def select_and_scatter_add(params: dict[str, Any]) -> Function:
    """Each window's source is added where the window has its extreme, the first of several."""
    comparison = params["select_prim"].name

    def function(source: Any, operand: Any) -> Any:
        low = comparison in ("ge", "gt")
        edge = jnp.asarray(least(operand.dtype) if low else greatest(operand.dtype), operand.dtype)
        padded = lax.pad(operand, edge, [(lo, hi, 0) for lo, hi in params["padding"]])
        number = lax.iota(jnp.int32, math.prod(padded.shape)).reshape(padded.shape)
        windows = itertools.product(*(range(n) for n in params["window_dimensions"]))

        def at(window: Any, x: Any) -> Any:
            limits = [w + (n - 1) * s + 1 for w, n, s in zip(window, source.shape, params["window_strides"])]
            return lax.slice(x, window, limits, params["window_strides"])

        first = next(windows)
        best, place = at(first, padded), at(first, number)
        for window in windows:
            value = at(window, padded)
            better = value > best if low else value < best
            best, place = jnp.where(better, value, best), jnp.where(better, at(window, number), place)
        flat = jnp.zeros(math.prod(padded.shape), source.dtype).at[place.reshape(-1)].add(source.reshape(-1))
        return lax.pad(flat.reshape(padded.shape), jnp.zeros((), source.dtype), [(-lo, -hi, 0) for lo, hi in params["padding"]])

    return function


def _rule(make: Callable[[Any], Function]) -> Callable[[Walker, Any], OpParts]:
    return lambda w, eqn: expand.call_logically(w, eqn, make(eqn))


RULES: dict[str, Callable[[Walker, Any], OpParts]] = {
    "approx_top_k": _rule(lambda eqn: approx_top_k(eqn.params, eqn.outvars[0].aval.shape)),
    "reduce": _rule(lambda eqn: reduce(eqn.params)),
    "reduce_window": _rule(lambda eqn: reduce_window(eqn.params)),
    "reduce_window_sum": _rule(lambda eqn: reduce_window_of(eqn.params, lax.add, lambda dtype: 0)),
    "reduce_window_max": _rule(lambda eqn: reduce_window_of(eqn.params, lax.max, least)),
    "reduce_window_min": _rule(lambda eqn: reduce_window_of(eqn.params, lax.min, greatest)),
    "select_and_scatter_add": _rule(lambda eqn: select_and_scatter_add(eqn.params)),
}
