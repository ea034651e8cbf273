"""`gather` and the scatters: dimension numbers as attributes, the value of what is outside as an operand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from smalt import _messages, _versions
from smalt._expand import expand, windows
from smalt._walk import OpParts, Walker

_GATHER = ("offset_dims", "collapsed_slice_dims", "start_index_map", "operand_batching_dims", "start_indices_batching_dims")
_SCATTER = (
    "update_window_dims",
    "inserted_window_dims",
    "scatter_dims_to_operand_dims",
    "operand_batching_dims",
    "scatter_indices_batching_dims",
)


def _dimensions(eqn: Any, names: tuple[str, ...]) -> dict[str, Any]:
    numbers = eqn.params["dimension_numbers"]
    return {name: tuple(int(d) for d in getattr(numbers, name, ())) for name in names}


def _fill(dtype: Any, value: Any) -> Any:
    """What JAX fills with by default: NaN, the least signed integer, the greatest unsigned one, True."""
    dtype = np.dtype(dtype)
    if value is None:
        unsigned = dtype == np.bool_ or jnp.issubdtype(dtype, jnp.unsignedinteger)
        value = np.nan if jnp.issubdtype(dtype, jnp.floating) else (windows.greatest if unsigned else windows.least)(dtype)
    return np.asarray(value).astype(dtype)


def _of_parts(w: Walker, eqn: Any) -> OpParts | None:
    """Of complex numbers and keys: the same of what stands for them."""
    if not any(_messages.is_complex(a.aval) or _messages.is_key(a.aval) for a in eqn.invars):
        return None
    function = expand.definition(_versions.primitive_name(eqn), eqn)
    return None if function is None else expand.call(w, eqn, function)


def gather(w: Walker, eqn: Any) -> OpParts:
    if (parts := _of_parts(w, eqn)) is not None:
        return parts
    x, _ = eqn.invars
    attrs = {
        **_dimensions(eqn, _GATHER),
        "slice_sizes": tuple(int(n) for n in eqn.params["slice_sizes"]),
        "mode": eqn.params["mode"],
    }
    fill = w.constant(_fill(x.aval.dtype, eqn.params.get("fill_value"))).operand
    return OpParts([*w.operands(eqn.invars), fill], _messages.attributes(attrs))


def scatter(w: Walker, eqn: Any) -> OpParts:
    if windows.is_applied(eqn):
        return expand.call_logically(w, eqn, windows.scatter_apply(eqn.params))
    if (parts := _of_parts(w, eqn)) is not None:
        return parts
    attrs = {
        **_dimensions(eqn, _SCATTER),
        "mode": eqn.params["mode"],
        "unique_indices": True if eqn.params["unique_indices"] else None,
    }
    return OpParts(w.operands(eqn.invars), _messages.attributes(attrs))


RULES: dict[str, Callable[[Walker, Any], OpParts]] = windows.RULES | {"gather": gather} | {f"scatter{kind}": scatter for kind in ("", "_add", "_sub", "_mul", "_min", "_max")}
