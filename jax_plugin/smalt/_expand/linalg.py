"""Small dense linear algebra as loops over whole matrices in registers.

Textbook algorithms, a column a step (Golub and Van Loan, Matrix Computations), with rows and columns distinguished by iotas; batches by
`vmap`. What iterates until it converges (eigenvalues, singular values) is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from smalt._errors import Unsupported

Array = Any

#: The largest extent of a matrix: it lives in registers.
LIMIT = 128


def function(name: str, avals: Sequence[Any], params: dict[str, Any]) -> Callable[..., Any]:
    if name in _REFUSED:
        raise Unsupported(
            f"not supported yet: `{name}`, which iterates until it converges"
            "\n  remedy: compute it outside of the kernel, and pass the result"
        )
    extent = max(avals[0].shape[-2:], default=0)
    if extent > LIMIT:
        raise Unsupported(
            f"not supported yet: `{name}` of a large matrix"
            f"\n  expected: at most {LIMIT} rows and columns, which one warpgroup's registers hold\n  got: {extent}"
            "\n  remedy: write it in blocks, or compute it outside of the kernel"
        )
    single, ranks = _SINGLE[name](params)
    f = single
    for _ in range(avals[0].ndim - ranks):
        f = jax.vmap(f)
    return f


def _iota(n: int) -> Array:
    return lax.iota(np.int32, n)


def _column(a: Array, j: Array) -> Array:
    """By a mask and a sum with zeros: what `vmap` takes as it is, where a dynamic slice would become a gather."""
    return jnp.sum(jnp.where(_iota(a.shape[1])[None, :] == j, a, 0), axis=1)


def _row(a: Array, i: Array) -> Array:
    return jnp.sum(jnp.where(_iota(a.shape[0])[:, None] == i, a, 0), axis=0)


def _element(v: Array, i: Array) -> Array:
    return jnp.sum(jnp.where(_iota(v.shape[0]) == i, v, 0)).astype(v.dtype)


def _cholesky(a: Array) -> Array:
    """Lower triangular; all NaN where the matrix is not positive definite."""
    n = a.shape[0]
    rows, columns = _iota(n)[:, None], _iota(n)[None, :]

    def step(j: Array, a: Array) -> Array:
        column = _column(a, j)
        root = jnp.sqrt(_element(column, j))
        column = jnp.where(_iota(n) > j, column / root, jnp.where(_iota(n) == j, root, 0))
        rest = a - column[:, None] * column[None, :]
        return jnp.where(columns == j, column[:, None], jnp.where(columns > j, rest, a))

    out = lax.fori_loop(0, n, step, a)
    out = jnp.where(rows >= columns, out, 0)
    broken = jnp.any((rows == columns) & ~(out > 0))
    return jnp.where(broken, jnp.nan, out).astype(a.dtype)


def _lu(a: Array) -> tuple[Array, Array, Array]:
    """Factors in one matrix, pivots, and the permutation of rows."""
    m, n = a.shape
    rows, columns = _iota(m)[:, None], _iota(n)[None, :]
    count = min(m, n)

    def step(k: Array, state: Any) -> Any:
        a, pivots, permutation = state
        candidates = jnp.where(_iota(m) >= k, jnp.abs(_column(a, k)), -1)
        p = jnp.argmax(candidates).astype(np.int32)
        upper, lower = _row(a, k), _row(a, p)
        a = jnp.where(rows == k, lower[None, :], jnp.where(rows == p, upper[None, :], a))
        first, second = _element(permutation, k), _element(permutation, p)
        permutation = jnp.where(_iota(m) == k, second, jnp.where(_iota(m) == p, first, permutation))
        pivot = _element(lower, k)
        column = _column(a, k)
        factors = jnp.where(_iota(m) > k, jnp.where(pivot != 0, column / pivot, column), 0)
        rest = a - factors[:, None] * jnp.where(_iota(n) > k, lower, 0)[None, :]
        a = jnp.where((columns == k) & (rows > k), factors[:, None], jnp.where(columns > k, rest, a))
        return a, jnp.where(_iota(count) == k, p, pivots), permutation

    return lax.fori_loop(0, count, step, (a, jnp.zeros(count, np.int32), _iota(m)))  # type: ignore[no-any-return]


def _permutation(pivots: Array, size: int) -> Array:
    def step(i: Array, permutation: Array) -> Array:
        p = _element(pivots, i)
        first, second = _element(permutation, i), _element(permutation, p)
        return jnp.where(_iota(size) == i, second, jnp.where(_iota(size) == p, first, permutation))

    return lax.fori_loop(0, pivots.shape[0], step, _iota(size))


def _geqrf(a: Array) -> tuple[Array, Array]:
    """Householder's vectors below R, and their factors, as LAPACK has them."""
    m, n = a.shape
    count = min(m, n)
    columns = _iota(n)[None, :]

    def step(k: Array, state: Any) -> Any:
        a, taus = state
        column = _column(a, k)
        alpha = _element(column, k)
        below = jnp.where(_iota(m) > k, column, 0)
        largest = jnp.maximum(jnp.max(jnp.abs(below)), jnp.abs(alpha))
        scale = jnp.where(largest > 0, largest, 1)
        norm = scale * jnp.sqrt(jnp.sum(jnp.square(below / scale)) + jnp.square(alpha / scale))
        beta = jnp.where(alpha >= 0, -norm, norm)
        needed = jnp.any(below != 0)
        tau = jnp.where(needed, (beta - alpha) / jnp.where(needed, beta, 1), 0)
        v = jnp.where(_iota(m) == k, 1, below / jnp.where(needed, alpha - beta, 1))
        beta = jnp.where(needed, beta, alpha)
        products = jnp.sum(v[:, None] * a, axis=0)
        rest = a - tau * v[:, None] * products[None, :]
        own = jnp.where(_iota(m) == k, beta, jnp.where(_iota(m) > k, v, column))
        a = jnp.where(columns == k, own[:, None], jnp.where(columns > k, rest, a))
        return a, jnp.where(_iota(count) == k, tau, taus)

    return lax.fori_loop(0, count, step, (a, jnp.zeros(count, a.dtype)))  # type: ignore[no-any-return]


def _householder_product(a: Array, taus: Array) -> Array:
    m, n = a.shape
    count = taus.shape[0]

    def step(i: Array, q: Array) -> Array:
        k = count - 1 - i
        v = jnp.where(_iota(m) == k, 1, jnp.where(_iota(m) > k, _column(a, k), 0))
        return q - _element(taus, k) * v[:, None] * jnp.sum(v[:, None] * q, axis=0)[None, :]

    start = (_iota(m)[:, None] == _iota(n)[None, :]).astype(a.dtype)
    return lax.fori_loop(0, count, step, start)


def _triangular_solve(params: dict[str, Any]) -> Callable[[Array, Array], Array]:
    def solve(a: Array, b: Array) -> Array:
        lower = params["lower"]
        if params["transpose_a"]:
            a, lower = a.T, not lower
        if not params["left_side"]:  # x·a = b
            a, lower, b = a.T, not lower, b.T
        n = a.shape[0]

        def step(i: Array, b: Array) -> Array:
            j = i if lower else n - 1 - i
            column = _column(a, j)
            x = _row(b, j)
            if not params["unit_diagonal"]:
                x = x / _element(column, j)
            after = _iota(n) > j if lower else _iota(n) < j
            rest = b - jnp.where(after, column, 0)[:, None] * x[None, :]
            return jnp.where(_iota(n)[:, None] == j, x[None, :], rest)

        out = lax.fori_loop(0, n, step, b)
        return out if params["left_side"] else out.T

    return solve


_REFUSED = ("eig", "eigh", "svd", "schur", "hessenberg", "tridiagonal")
#: Of a primitive's parameters: the function of one matrix, and the rank of its first operand.
_SINGLE: dict[str, Callable[[dict[str, Any]], tuple[Callable[..., Any], int]]] = {
    "cholesky": lambda _: (_cholesky, 2),
    "lu": lambda _: (_lu, 2),
    "lu_pivots_to_permutation": lambda p: (lambda pivots: _permutation(pivots, p["permutation_size"]), 1),
    "geqrf": lambda _: (_geqrf, 2),
    "householder_product": lambda _: (_householder_product, 2),
    "triangular_solve": lambda p: (_triangular_solve(p), 2),
}

FUNCTIONS = (*_SINGLE, *_REFUSED)
