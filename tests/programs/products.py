"""Random products of arrays (`lax.dot_general` in every form that it takes) against NumPy.

Integers are exact. Floats are compared with the product in f64 of what the operands are rounded to (tf32, where f32 is multiplied on
tensor cores), within what sums of so many terms may lose, and half a unit of the result's type.
"""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from tests.corpus.case import x64
from tests.fuzz.bits import keep
from tests.fuzz.grammar import Grammar

Array = np.ndarray[Any, Any]

F16, BF16, F32, F64 = (np.dtype(d) for d in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64))
E4M3, E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)
I8, I16, I32, I64 = (np.dtype(f"i{n}") for n in (1, 2, 4, 8))
U8, U16, U32, U64 = (np.dtype(f"u{n}") for n in (1, 2, 4, 8))
BOOL = np.dtype(bool)

#: Types of both operands, the preferred type of the result, the precision.
FORMS: list[tuple[np.dtype[Any], np.dtype[Any], np.dtype[Any] | None, str | None]] = [
    (F16, F16, None, None), (F16, F16, F32, None), (BF16, BF16, None, None), (BF16, BF16, F32, None), (BF16, BF16, F32, "highest"),
    (F32, F32, None, None), (F32, F32, None, "default"), (F32, F32, None, "high"), (F32, F32, None, "highest"),
    (F16, BF16, F32, None), (BF16, F32, F32, None), (F16, F32, F32, "highest"), (E4M3, E4M3, F32, None), (E5M2, E5M2, BF16, None),
    (E4M3, E5M2, F32, None), (E4M3, BF16, F32, None), (E4M3, E4M3, None, None),
    (I8, I8, None, None), (I8, I8, I32, None), (U8, U8, U32, None), (I8, I8, F32, None), (I16, I16, None, None), (I16, I16, I32, None),
    (I32, I32, None, None), (U16, U16, U32, None), (U32, U32, None, None), (BOOL, BOOL, None, None),
]  # fmt: skip
WIDE: list[tuple[np.dtype[Any], np.dtype[Any], np.dtype[Any] | None, str | None]] = [
    (F64, F64, None, None), (F32, F32, F64, None), (F16, F16, F64, None),
    (I64, I64, None, None), (U64, U64, None, None), (I8, I8, I64, None),
]  # fmt: skip

SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 40, 48, 63, 64, 65, 96, 100, 127, 128, 129)


def is_float(dtype: np.dtype[Any]) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.floating))


def to_tf32(x: Array) -> Array:
    """Nearest, ties away from zero."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


@dataclasses.dataclass(frozen=True)
class Product:
    seed: int
    lhs: tuple[int, ...]
    rhs: tuple[int, ...]
    dims: tuple[tuple[tuple[int, ...], tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]]
    types: tuple[np.dtype[Any], np.dtype[Any], np.dtype[Any] | None, str | None]
    warpgroups: int

    @staticmethod
    def of(seed: int) -> Product:
        rng = np.random.default_rng(seed)
        forms = FORMS + WIDE
        types = forms[seed % len(forms)]
        while True:
            chances = ((0.6, 0.3, 0.1), (0.1, 0.75, 0.15), (0.1, 0.75, 0.15), (0.05, 0.8, 0.15))
            counts = [int(rng.choice(3, p=p)) for p in chances]
            batch, m, n, k = ([int(rng.choice(SIZES)) for _ in range(c)] for c in counts)
            if rng.random() < 0.02 and k:
                k[0] = 0
            b, rows, columns, depth = (int(np.prod(x)) for x in (batch, m, n, k))
            if max(rows, columns) * b * max(depth, 1) <= 8192 and b * rows * columns <= 8192:
                break
        lhs_order, rhs_order = rng.permutation(len(batch) + len(m) + len(k)), rng.permutation(len(batch) + len(n) + len(k))

        def place(order: Array, sizes: list[int], roles: list[str]) -> tuple[tuple[int, ...], list[str]]:
            return tuple(sizes[i] for i in order), [roles[i] for i in order]

        batches, terms = ([f"{c}{i}" for i in range(len(x))] for c, x in (("b", batch), ("k", k)))
        lhs, lhs_roles = place(lhs_order, batch + m + k, batches + ["m"] * len(m) + terms)
        rhs, rhs_roles = place(rhs_order, batch + n + k, batches + ["n"] * len(n) + terms)
        dims = tuple((tuple(lhs_roles.index(x) for x in of), tuple(rhs_roles.index(x) for x in of)) for of in (terms, batches))
        warpgroups = 1 if 0 in lhs else int(rng.choice(3, p=(0.7, 0.2, 0.1))) + 1
        return Product(seed, lhs, rhs, dims, types, warpgroups)  # type: ignore[arg-type]

    @property
    def x64(self) -> bool:
        return any(t is not None and np.dtype(t).itemsize == 8 for t in self.types[:3])

    def data(self) -> list[Array]:
        """For each warpgroup its own operands."""
        rng = np.random.default_rng(self.seed + 1)
        return [_data(rng, (self.warpgroups, *shape), dtype) for shape, dtype in ((self.lhs, self.types[0]), (self.rhs, self.types[1]))]

    def product(self, x: Any, y: Any) -> Any:
        _, _, to, precision = self.types
        return lax.dot_general(x, y, self.dims, precision=precision, preferred_element_type=to)

    def kernel(self) -> Callable[..., Any]:
        def body(x: Any, y: Any, out: Any) -> None:
            if self.warpgroups == 1:
                # An index into an array without elements is an error of JAX 0.12's.
                out[0] = self.product(x[...].reshape(self.lhs), y[...].reshape(self.rhs))
            else:
                own = lax.axis_index("wg")
                out[own] = self.product(x[own], y[own])

        one = jax.eval_shape(self.product, *(jax.ShapeDtypeStruct(*x) for x in ((self.lhs, self.types[0]), (self.rhs, self.types[1]))))
        result = jax.ShapeDtypeStruct((self.warpgroups, *one.shape), one.dtype)
        threads = {} if self.warpgroups == 1 else {"num_threads": self.warpgroups, "thread_name": "wg"}
        return plgpu.kernel(body, out_type=result, **threads)  # type: ignore[no-any-return]

    def run(self, inputs: list[Array]) -> Array:
        return np.asarray(jax.jit(self.kernel())(*inputs))

    def expected(self, inputs: list[Array], dtype: np.dtype[Any]) -> tuple[Array, Array]:
        """The result, and what may be lost."""
        a, b, to, precision = self.types
        (lhs_k, rhs_k), (lhs_b, rhs_b) = self.dims
        letters = iter(string.ascii_letters[1:])
        left = ["a", *(next(letters) for _ in self.lhs)]
        right = ["a", *(next(letters) for _ in self.rhs)]
        for i, j in [*zip(lhs_k, rhs_k), *zip(lhs_b, rhs_b)]:
            right[j + 1] = left[i + 1]
        kept = [left[i + 1] for i in lhs_b]
        kept += [x for i, x in enumerate(left[1:]) if i not in (*lhs_k, *lhs_b)]
        kept += [x for i, x in enumerate(right[1:]) if i not in (*rhs_k, *rhs_b)]
        spec = f"{''.join(left)},{''.join(right)}->a{''.join(kept)}"
        terms = int(np.prod([self.lhs[i] for i in lhs_k]))
        if not is_float(a) and not is_float(b):
            wide = np.float64 if is_float(dtype) else np.int64
            with np.errstate(over="ignore"):
                exact = np.einsum(spec, *(x.astype(wide) for x in inputs))
                return exact.astype(dtype), np.zeros(exact.shape)
        tensor_core = dtype != F64 and (precision not in ("high", "highest") or F32 not in (a, b))
        rounded = [to_tf32(x) if tensor_core and x.dtype == F32 else x for x in inputs]
        operands = [x.astype(np.float64) for x in rounded]
        exact = np.einsum(spec, *operands)
        size = np.einsum(spec, *(abs(x) for x in operands))
        unit = 2.0**-52 if dtype == F64 else 2.0**-24
        lost = (terms + 8) * unit * size * (4 if tensor_core else 1)
        if tensor_core and F32 in (a, b):
            # Where M, N or K is 1 nothing is rounded to tf32.
            whole = np.einsum(spec, *(x.astype(np.float64) for x in inputs))
            lost = lost + abs(whole - exact)
        info = jnp.finfo(dtype)
        lost = lost + abs(exact) * float(info.eps) * 0.51 + float(info.smallest_subnormal)
        return exact, lost

    def check(self) -> None:
        inputs = self.data()
        with x64(self.x64):
            got = keep(self.run(inputs))
            expected, lost = self.expected(inputs, got.dtype)
        wide = got.astype(np.float64) if is_float(got.dtype) else got
        difference = abs(wide - expected) if is_float(got.dtype) else (wide != expected)
        assert got.shape == expected.shape and (difference <= lost).all(), f"{self}: off by {difference.max()} of {np.max(lost)}"


def _data(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if dtype == BOOL:
        return rng.integers(0, 4, shape) == 0
    if is_float(dtype):
        return (rng.standard_normal(shape) * (0.3 if dtype.itemsize == 1 else 1)).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)


PRODUCTS = Grammar("products", Product.of, Product.check)
