"""What steps compute: `STEPS[kind](*arrays, **params)`, as one would write it with `jax.numpy` and `jax.lax`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = Any
STEPS: dict[str, Callable[..., Any]] = {}


def step(function: Callable[..., Any]) -> Callable[..., Any]:
    STEPS[function.__name__.rstrip("_")] = function
    return function


# ------------------------------------------------------------------------------------------ to fit


@step
def const(*, shape: Any, dtype: str) -> Array:
    """What stands for a value that a shrunk program does without."""
    n = int(np.prod(shape))
    x = (lax.iota(jnp.int32, n) % 3 if n != 1 else jnp.ones(1, jnp.int32)).reshape(shape)
    return x.astype(dtype)


@step
def fit(x: Array, *, shape: Any) -> Array:
    """Any number of elements made to be another."""
    return jnp.resize(x.reshape(-1), shape)


@step
def wrap(x: Array) -> Array:
    """Whole floats into [0, 8)."""
    return x - 8 * jnp.floor(x * 0.125)


@step
def low(x: Array, *, mask: int) -> Array:
    return x & x.dtype.type(mask)


@step
def convert(x: Array, *, dtype: str) -> Array:
    return x != 0 if dtype == "bool" else x.astype(dtype)


@step
def nonzero_of(x: Array) -> Array:
    return x | x.dtype.type(1)


@step
def index_of(x: Array, *, n: int) -> Array:
    """An index in [0, n) out of any integers."""
    return (x.astype(jnp.int32) & 0x7FFF) % n


@step
def around(x: Array, *, n: int) -> Array:
    """Indices in [-n, 2 n): negative ones, and some outside."""
    return (x.astype(jnp.int32) & 0x7FFF) % (3 * n) - n


@step
def to_scalar(x: Array) -> Array:
    return jnp.sum(x.astype(jnp.int32))


# ------------------------------------------------------------------------------------------ element-wise


@step
def unary(x: Array, *, op: str) -> Array:
    return getattr(jnp, op)(x) if hasattr(jnp, op) else getattr(lax, op)(x)


@step
def relu(x: Array) -> Array:
    return jax.nn.relu(x)


@step
def binary(x: Array, y: Array, *, op: str) -> Array:
    return getattr(jnp, op)(x, y) if hasattr(jnp, op) else getattr(lax, op)(x, y)


@step
def scalar_op(x: Array, *, op: str, k: Any, left: bool) -> Array:
    """With a number of Python's."""
    return getattr(jnp, op)(k, x) if left else getattr(jnp, op)(x, k)


@step
def shift(x: Array, y: Array, *, left: bool) -> Array:
    return x << (y & 7) if left else x >> (y & 7)


@step
def power(x: Array, *, k: int) -> Array:
    return x**k


@step
def where(c: Array, x: Array, y: Array) -> Array:
    return jnp.where(c, x, y)


@step
def where_scalar(c: Array, x: Array, *, k: Any) -> Array:
    return jnp.where(c, x, k)


@step
def clip(x: Array, *, lo: Any, hi: Any) -> Array:
    return jnp.clip(x, lo, hi)


@step
def complex_(x: Array, y: Array) -> Array:
    return lax.complex(x, y)


@step
def near_unary(x: Array, *, op: str) -> Array:
    f = {
        "sin": jnp.sin,
        "cos": jnp.cos,
        "tanh": jnp.tanh,
        "exp": lambda x: jnp.exp(x * 0.25),
        "log": lambda x: jnp.log(jnp.abs(x) + 2),
        "log1p": lambda x: jnp.log1p(jnp.abs(x)),
        "sqrt": lambda x: jnp.sqrt(jnp.abs(x) + 1),
        "rsqrt": lambda x: lax.rsqrt(jnp.abs(x) + 1),
        "sigmoid": jax.nn.sigmoid,
        "silu": jax.nn.silu,
        "third": lambda x: x / 3,
        "reciprocal": lambda x: 1 / (jnp.abs(x) + 1),
        "cbrt": jnp.cbrt,
        "erf": lax.erf,
        "atan": jnp.arctan,
    }[op]
    return f(x)


@step
def near_reduce(x: Array, *, op: str, axis: int, keepdims: bool) -> Array:
    f: Any = {"mean": jnp.mean, "var": jnp.var, "std": jnp.std, "logsumexp": jax.nn.logsumexp}[op]
    return f(x, axis=axis, keepdims=keepdims)


@step
def near_along(x: Array, *, op: str, axis: int) -> Array:
    if op == "softmax":
        return jax.nn.softmax(x, axis=axis)
    if op == "log_softmax":
        return jax.nn.log_softmax(x, axis=axis)
    if op == "cumlogsumexp":
        return lax.cumlogsumexp(x, axis=axis)
    mean = jnp.mean(x, axis=axis, keepdims=True)
    return (x - mean) * lax.rsqrt(jnp.mean(jnp.square(x - mean), axis=axis, keepdims=True) + 1)


@step
def table(*arrays: Array, name: str) -> Any:
    """A call of the table of functions."""
    from tests.oracles.functions.table import CASES

    return tuple(jax.tree.leaves(CASES[name].call(*arrays)))


# ------------------------------------------------------------------------------------------ reductions and runs


@step
def reduce(x: Array, *, op: str, axis: Any, keepdims: bool) -> Array:
    return getattr(jnp, op)(x, axis=axis, keepdims=keepdims)


@step
def arg_reduce(x: Array, *, op: str, axis: Any, keepdims: bool) -> Array:
    return getattr(jnp, op)(x, axis=axis, keepdims=keepdims)


@step
def running(x: Array, *, op: str, axis: int, reverse: bool) -> Array:
    return getattr(lax, op)(x, axis=axis, reverse=reverse)


@step
def window(x: Array, *, op: str, size: Any, strides: Any, padding: Any) -> Array:
    if op == "add":
        return lax.reduce_window(x, np.zeros((), x.dtype)[()], lax.add, size, strides, padding)
    if jnp.issubdtype(x.dtype, jnp.floating):
        start: Any = -np.inf if op == "max" else np.inf
    else:
        info = jnp.iinfo(x.dtype)
        start = info.min if op == "max" else info.max
    return lax.reduce_window(x, np.asarray(start, x.dtype)[()], lax.max if op == "max" else lax.min, size, strides, padding)


@step
def associative(x: Array, *, axis: int, reverse: bool) -> Array:
    return lax.associative_scan(jnp.maximum, x, axis=axis, reverse=reverse)


# ------------------------------------------------------------------------------------------ shapes


@step
def reshape(x: Array, *, shape: Any) -> Array:
    return x.reshape(shape)


@step
def transpose(x: Array, *, perm: Any) -> Array:
    return jnp.transpose(x, perm)


@step
def expand(x: Array, *, axis: Any) -> Array:
    return jnp.expand_dims(x, axis)


@step
def squeeze(x: Array) -> Array:
    return jnp.squeeze(x)


@step
def broadcast_to(x: Array, *, shape: Any) -> Array:
    return jnp.broadcast_to(x, shape)


@step
def broadcast_in_dim(x: Array, *, shape: Any, dims: Any) -> Array:
    return lax.broadcast_in_dim(x, shape, dims)


@step
def concatenate(*xs: Array, axis: int) -> Array:
    return jnp.concatenate(xs, axis=axis)


@step
def stack(*xs: Array, axis: int) -> Array:
    return jnp.stack(xs, axis=axis)


@step
def pad(x: Array, *, config: Any, k: Any) -> Array:
    return lax.pad(x, jnp.asarray(k, x.dtype), config)


@step
def pad_mode(x: Array, *, widths: Any, mode: str) -> Array:
    return jnp.pad(x, widths, mode=mode)


@step
def slice_(x: Array, *, at: Any) -> Array:
    return x[at_index(at)]


def at_index(at: Any, arrays: Any = ()) -> Any:
    """Data of programs as an index: ("slice", start, stop, step), ("int", i), ("new",), ("all",), ("array",)."""
    rest = iter(arrays)
    parts: list[Any] = []
    for a in at:
        match a[0]:
            case "slice":
                parts.append(slice(*a[1:]))
            case "int":
                parts.append(a[1])
            case "new":
                parts.append(None)
            case "array":
                parts.append(next(rest))
            case _:
                parts.append(slice(None))
    return tuple(parts)


@step
def set_slice(x: Array, y: Array, *, at: Any, op: str) -> Array:
    return getattr(x.at[at_index(at)], op)(y)


@step
def flip(x: Array, *, axis: Any) -> Array:
    return jnp.flip(x, axis)


@step
def roll(x: Array, *, k: int, axis: Any) -> Array:
    return jnp.roll(x, k, axis)


@step
def roll_by(x: Array, k: Array, *, axis: Any) -> Array:
    return jnp.roll(x, k, axis)


@step
def tile(x: Array, *, reps: Any) -> Array:
    return jnp.tile(x, reps)


@step
def repeat(x: Array, *, k: int, axis: int) -> Array:
    return jnp.repeat(x, k, axis=axis)


@step
def split(x: Array, *, k: int, axis: int) -> Any:
    return tuple(jnp.split(x, k, axis=axis))


@step
def tri(x: Array, *, upper: bool, k: int) -> Array:
    return jnp.triu(x, k) if upper else jnp.tril(x, k)


@step
def diagonal(x: Array, *, offset: int) -> Array:
    return jnp.diagonal(x, offset)


@step
def diag(x: Array) -> Array:
    return jnp.diag(x)


@step
def trace(x: Array) -> Array:
    return jnp.trace(x)


@step
def rot90(x: Array, *, k: int) -> Array:
    return jnp.rot90(x, k)


@step
def iota(*, shape: Any, dim: int, dtype: str) -> Array:
    return lax.broadcasted_iota(jnp.dtype(dtype), shape, dim)


@step
def outer(x: Array, y: Array, *, op: str) -> Array:
    return getattr(jnp, op)(x.reshape(-1)[:, None], y.reshape(-1)[None, :])


# ------------------------------------------------------------------------------------------ indices


@step
def dynamic_slice(x: Array, *starts: Array, sizes: Any) -> Array:
    return lax.dynamic_slice(x, starts, sizes)


@step
def dynamic_update(x: Array, y: Array, *starts: Array) -> Array:
    return lax.dynamic_update_slice(x, y, starts)


@step
def dynamic_index(x: Array, i: Array, *, axis: int, keepdims: bool) -> Array:
    return lax.dynamic_index_in_dim(x, i, axis, keepdims)


@step
def take(x: Array, i: Array, *, axis: int, mode: str) -> Array:
    return jnp.take(x, i, axis=axis, mode=mode)


@step
def index(x: Array, *arrays: Array, at: Any) -> Array:
    return x[at_index(at, arrays)]


@step
def take_along(x: Array, i: Array, *, axis: int) -> Array:
    return jnp.take_along_axis(x, i, axis=axis)


@step
def scatter(x: Array, y: Array, *arrays: Array, at: Any, op: str) -> Array:
    return getattr(x.at[at_index(at, arrays)], op)(y)


@step
def one_hot(i: Array, *, n: int, dtype: str) -> Array:
    return jax.nn.one_hot(i, n, dtype=dtype)


@step
def searchsorted(x: Array, y: Array, *, side: str) -> Array:
    return jnp.searchsorted(jnp.sort(x), y, side=side)


@step
def bincount(i: Array, *, n: int) -> Array:
    return jnp.bincount(i.reshape(-1), length=n)


@step
def nonzero(x: Array, *, n: int) -> Any:
    return jnp.nonzero(x, size=n, fill_value=-1)


@step
def segment_sum(x: Array, i: Array, *, n: int) -> Array:
    return jax.ops.segment_sum(x, i, n)


# ------------------------------------------------------------------------------------------ order


@step
def sort(x: Array, *, axis: int, descending: bool) -> Array:
    return jnp.sort(x, axis=axis, descending=descending)


@step
def argsort(x: Array, *, axis: int, descending: bool) -> Array:
    return jnp.argsort(x, axis=axis, stable=True, descending=descending)


@step
def sort_many(*xs: Array, axis: int, keys: int) -> Any:
    return tuple(lax.sort(xs, dimension=axis, num_keys=keys, is_stable=True))


@step
def top_k(x: Array, *, k: int) -> Any:
    return tuple(lax.top_k(x, k))


# ------------------------------------------------------------------------------------------ products


@step
def einsum(x: Array, y: Array, *, spec: str, out: str | None) -> Array:
    return jnp.einsum(spec, x, y, preferred_element_type=out)


@step
def matmul(x: Array, y: Array) -> Array:
    return x @ y


@step
def dot_general(x: Array, y: Array, *, dims: Any, out: str | None) -> Array:
    return lax.dot_general(x, y, dims, preferred_element_type=out)


@step
def conv(x: Array, w: Array, *, strides: Any, padding: Any, lhs: Any, rhs: Any, groups: int) -> Array:
    return lax.conv_general_dilated(x, w, strides, padding, lhs_dilation=lhs, rhs_dilation=rhs, feature_group_count=groups)


@step
def convolve(x: Array, y: Array, *, mode: str) -> Array:
    return jnp.convolve(x, y, mode=mode)


# ------------------------------------------------------------------------------------------ random numbers


@step
def draw(key: Array, *, op: str, shape: Any, dtype: str) -> Array:
    """`key` is an integer scalar."""
    k = jax.random.fold_in(jax.random.key(3), key)
    match op:
        case "bits":
            return jax.random.bits(k, shape, dtype)
        case "uniform":
            return jax.random.uniform(k, shape, dtype)
        case "randint":
            return jax.random.randint(k, shape, -5, 9, dtype)
        case "bernoulli":
            return jax.random.bernoulli(k, 0.3, shape)
        case "permutation":
            return jax.random.permutation(k, shape[0])
        case _:
            return jax.random.normal(k, shape, dtype)


@step
def shuffle(key: Array, x: Array) -> Array:
    return jax.random.permutation(jax.random.fold_in(jax.random.key(5), key), x)


@step
def vmapped(x: Array, y: Array, *, op: str) -> Array:
    """Rows with rows, by vmap."""
    match op:
        case "dot":
            return jax.vmap(jnp.dot)(x, y)
        case "take":
            return jax.vmap(lambda r, i: r[i])(x, y)
        case "set":
            return jax.vmap(lambda r, i: r.at[i].set(r[0]))(x, y)
        case "search":
            return jax.vmap(lambda r, i: jnp.searchsorted(jnp.sort(r), i))(x, y)
        case _:
            return jax.vmap(lambda r, i: lax.dynamic_slice(r, (i[0],), (2,)))(x, y)


# ------------------------------------------------------------------------------------------ functions of functions


@step
def batched(*xs: Array, kind: str, inner: Any, axes: Any, out: int) -> Any:
    """Another step under vmap."""
    return jax.vmap(lambda *ys: STEPS[kind](*ys, **dict(inner)), in_axes=axes, out_axes=out)(*xs)


@step
def jitted(*xs: Array, kind: str, inner: Any, how: str) -> Any:
    """Another step in a function of its own."""

    def f(*ys: Array) -> Any:
        return STEPS[kind](*ys, **dict(inner))

    wrapped: Any = jax.jit(f) if how == "jit" else jax.checkpoint(f)
    return wrapped(*xs)


@step
def grad(x: Array, *others: Array, kind: str, inner: Any) -> Array:
    """The gradient of half the squared norm of what another step makes of x."""

    def f(x: Array) -> Array:
        y = STEPS[kind](x, *others, **dict(inner))
        return jnp.sum(jnp.square(y)) * 0.5

    return jax.grad(f)(x)
