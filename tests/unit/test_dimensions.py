"""What `dimensions.py` says: a part of a result is what an operation makes of the parts of its operands that it names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from smalt._programs import dimensions

OPERATIONS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], set[int]]] = {
    # an operation, the shapes of its operands, and the dimensions of its result that cannot be divided
    "add": (lambda x, y: x + y, ((4, 6), (4, 6)), set()),
    "select": (lambda x, y: lax.select_n(x < y, x, y), ((4, 6), (4, 6)), set()),
    "clamp": (lambda x: lax.clamp(-0.5, x, 0.5), ((4, 6),), set()),
    "broadcast": (lambda x: lax.broadcast_in_dim(x, (2, 4, 6, 8), (1, 2)), ((4, 1),), set()),
    "sum": (lambda x: lax.reduce(x, np.float32(0), lax.add, (1,)), ((4, 6, 2),), set()),
    "argmax": (lambda x: lax.argmax(x, 0, np.int32), ((4, 6, 2),), set()),
    "cumsum": (lambda x: lax.cumsum(x, 1), ((4, 6),), {1}),
    "transpose": (lambda x: lax.transpose(x, (2, 0, 1)), ((4, 6, 2),), set()),
    "squeeze": (lambda x: lax.squeeze(x, (1,)), ((4, 1, 6),), set()),
    "more dimensions": (lambda x: x.reshape(4, 2, 3, 8), ((4, 6, 8),), {1, 2}),
    "fewer dimensions": (lambda x: x.reshape(24, 8), ((4, 6, 8),), {0}),
    "sort": (lambda x, y: lax.sort((x, y), dimension=0)[0], ((4, 6), (4, 6)), {0}),
    "top_k": (lambda x: lax.top_k(x, 2)[0], ((4, 6),), {1}),
    "product": (lambda x, y: x @ y, ((4, 6), (6, 8)), set()),
    "batched product": (lambda x, y: jnp.einsum("kbm,nkb->bmn", x, y), ((2, 4, 6), (8, 2, 4)), set()),
    "reversed": (lambda x: lax.rev(x, (0,)), ((4, 6),), {0, 1}),
    "concatenated": (lambda x, y: lax.concatenate((x, y), 0), ((4, 6), (4, 6)), {0, 1}),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_parts_of_results_are_made_of_parts(name: str) -> None:
    function, shapes, apart = OPERATIONS[name]
    operands = [np.random.default_rng(i).integers(-9, 9, s).astype(np.float32) for i, s in enumerate(shapes)]  # sums are exact
    closed = jax.make_jaxpr(function)(*operands)
    whole = np.asarray(function(*operands))
    refused = {dim for dim, n in enumerate(whole.shape) if n > 1 and not _check(closed, operands, whole, dim)}
    assert refused == {d for d in apart if whole.shape[d] > 1}


def _check(closed: Any, operands: Any, whole: Any, dim: int) -> bool:
    """Backwards through the equations what each needs; then both halves forwards."""
    eqns = closed.jaxpr.eqns
    wanted = {closed.jaxpr.outvars[0]: dim}
    splits: dict[Any, Any] = {}
    for eqn in reversed(eqns):
        if not any(v in wanted for v in eqn.outvars):
            continue
        (split,) = {wanted[v] for v in eqn.outvars if v in wanted}
        try:
            found = [None] * len(eqn.invars) if split is None else dimensions.operand_splits(
                eqn.primitive.name, eqn.params, [a.aval.shape for a in eqn.invars], eqn.outvars[0].aval.shape, split
            )  # fmt: skip
        except dimensions.Mixed:
            return False
        splits[id(eqn)] = split
        wanted.update((a, s) for a, s in zip(eqn.invars, found) if not hasattr(a, "val"))
    for half in range(2):
        env = {v: _half(x, wanted.get(v), half) for v, x in zip(closed.jaxpr.invars, operands)}
        for eqn in eqns:
            if id(eqn) not in splits:
                continue
            shape = [n // 2 if d == splits[id(eqn)] else n for d, n in enumerate(eqn.outvars[0].aval.shape)]
            values = [a.val if hasattr(a, "val") else env[a] for a in eqn.invars]
            made = eqn.primitive.bind(*values, **dimensions.params_of_part(eqn.params, shape))
            env.update(zip(eqn.outvars, made if eqn.primitive.multiple_results else [made]))
        np.testing.assert_array_equal(env[closed.jaxpr.outvars[0]], _half(whole, dim, half))
    return True


def _half(x: Any, dim: int | None, half: int) -> Any:
    return x if dim is None else np.split(x, 2, axis=dim)[half]
