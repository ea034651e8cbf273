"""`gather` and the scatters: dimension numbers as attributes, the value of what is outside as an operand."""

from __future__ import annotations

from typing import Any

import numpy as np

from smalt import _attrs, _windows
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
    """What JAX fills with when nobody says: NaN, the least signed integer, the greatest unsigned one, True."""
    dtype = np.dtype(dtype)
    if value is not None:
        return np.asarray(value).astype(dtype)
    if dtype == np.bool_:
        return np.asarray(True)
    if dtype.kind in "iu" or dtype.name.startswith(("int", "uint")):
        import jax.numpy as jnp

        info = jnp.iinfo(dtype)
        return np.asarray(info.max if info.min == 0 else info.min).astype(dtype)
    return np.asarray(np.nan).astype(dtype)


def gather(w: Walker, eqn: Any) -> OpParts:
    x, _ = eqn.invars
    attrs = {
        **_dimensions(eqn, _GATHER),
        "slice_sizes": tuple(int(n) for n in eqn.params["slice_sizes"]),
        "mode": eqn.params["mode"],
    }
    fill = w.constant(_fill(x.aval.dtype, eqn.params.get("fill_value"))).operand
    return OpParts([*w.operands(eqn.invars), fill], _attrs.encode(attrs))


def scatter(w: Walker, eqn: Any) -> OpParts:
    if _windows.is_applied(eqn):
        return _windows.expanded(w, eqn, _windows.scatter_apply(eqn.params))
    attrs = {
        **_dimensions(eqn, _SCATTER),
        "mode": eqn.params["mode"],
        "unique_indices": True if eqn.params["unique_indices"] else None,
    }
    return OpParts(w.operands(eqn.invars), _attrs.encode(attrs))


RULES = {"gather": gather} | {f"scatter{kind}": scatter for kind in ("", "_add", "_sub", "_mul", "_min", "_max")}
