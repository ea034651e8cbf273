"""A call of a public function inside of a kernel: its arguments, and how its results are judged."""

from __future__ import annotations

import dataclasses
import re
import zlib
from collections.abc import Callable
from typing import Any

import jax
import ml_dtypes
import numpy as np

from tests.oracles import special

DTYPES = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "i4": np.dtype(ml_dtypes.int4),
    "u4": np.dtype(ml_dtypes.uint4),
    "bool": np.dtype(np.bool_),
    "c64": np.dtype(np.complex64),
    "c128": np.dtype(np.complex128),
    **{f"{k}{n}": np.dtype(f"{'u' if k == 'u' else ''}int{n}") for k in "iu" for n in (8, 16, 32, 64)},
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_ARG = re.compile(r"(\w+)\[([\d,]*)\](?::(.+))?$")


@dataclasses.dataclass(frozen=True)
class Case:
    """One call. `args` are texts `f32[8,128]`, perhaps with a domain (`f32[10]:pos`)."""

    function: str
    call: Callable[..., Any]
    args: tuple[str, ...]
    compare: str  # "auto", "bits", "xla" or "norm": see judge.py
    ulps: float

    @property
    def name(self) -> str:
        return " ".join((self.function, *self.args))

    @property
    def x64(self) -> bool:
        return any(arg.split("[")[0] in ("i64", "u64", "f64", "c128") for arg in self.args)

    def arrays(self) -> list[Any]:
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        return [array(rng, arg) for arg in self.args]


CASES: dict[str, Case] = {}


def case(
    function: str, call: Callable[..., Any] | None, *variants: str, compare: str = "auto", ulps: float = 4, wide: float = 64
) -> None:
    """A function with several lists of arguments, each a text with spaces; None calls the function as it is.

    `wide` are the ulps for f64, for which there is no better reference than XLA's own f64.
    """
    for variant in variants:
        call_ = call or find(function)
        if call_ is None:  # this JAX does not have it
            continue
        is_wide = any(word in variant for word in ("f64[", "c128["))
        new = Case(function, call_, tuple(variant.split()), compare, max(ulps, wide) if is_wide else ulps)
        name = new.name
        if name in CASES:  # another way of calling it with like arguments
            n = sum(key.split(" #")[0] == name for key in CASES) + 1
            CASES[f"{name} #{n}"] = new
        else:
            CASES[name] = new


_MODULES = {"jnp": "numpy", "special": "scipy.special", "linalg": "numpy.linalg"}


def find(function: str) -> Any:
    """`jnp.sin`, `lax.add`, `special.gamma`, …; None if this JAX has no such function."""
    module, *path = function.split(".")
    out: Any = jax
    for part in (*_MODULES.get(module, module).split("."), *path):
        out = getattr(out, part, None)
    return out


def array(rng: np.random.Generator, text: str) -> Any:
    match = _ARG.match(text)
    assert match, text
    dtype = DTYPES[match[1]]
    shape = tuple(int(n) for n in match[2].split(",") if n)
    return values(rng, shape, dtype, match[3])


def values(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any], domain: str | None) -> Any:
    if dtype.kind == "c":
        parts = [values(rng, shape, np.dtype(f"f{dtype.itemsize // 2}"), domain) for _ in range(2)]
        return (parts[0] + 1j * parts[1]).astype(dtype)
    is_float = dtype.kind == "f" or dtype.name.startswith(("bfloat", "float"))
    if domain == "any" and dtype.itemsize == 1 and dtype.kind == "V" or dtype.name.startswith("float8"):
        domain = None
    match domain:
        case None if is_float:
            return (3 * rng.standard_normal(shape)).astype(dtype)
        case None if dtype == np.bool_:
            return rng.integers(0, 2, shape).astype(dtype)
        case None:
            low, high = (-8, 8) if dtype.name == "int4" else (0, 16) if dtype.name == "uint4" else (-9 if dtype.kind == "i" else 0, 20)
            return rng.integers(low, high, shape).astype(dtype)
        case "any" if is_float:  # zeros, infinities, NaN, extremes; XLA's subnormals on a CPU are zeros
            x = special.data(rng, shape, dtype)
            return np.where(np.abs(x) < ml_dtypes.finfo(dtype).smallest_normal, np.copysign(dtype.type(0), x), x).astype(dtype)
        case "any":
            return special.data(rng, shape, dtype)
        case "pos":
            return (rng.exponential(3, shape) + 0.05).astype(dtype) if is_float else rng.integers(1, 20, shape).astype(dtype)
        case "unit":
            return rng.uniform(-0.999, 0.999, shape).astype(dtype)
        case "prob":
            return rng.uniform(0.01, 0.99, shape).astype(dtype)
        case "ge1":
            return (1 + rng.exponential(3, shape)).astype(dtype)
        case "gaps":  # some NaN
            return np.where(rng.integers(0, 4, shape) == 0, np.nan, rng.standard_normal(shape)).astype(dtype)
        case "perm":
            return rng.permutation(shape[0]).astype(dtype)
        case "sorted":
            return np.sort(values(rng, shape, dtype, None), axis=-1)
        case "zeros":
            return np.zeros(shape, dtype)
        case "key":
            return rng.integers(0, 1 << 32, shape, np.uint64).astype(dtype)
        case "spd":  # symmetric and positive definite
            x = rng.standard_normal(shape)
            return (x @ np.swapaxes(x, -1, -2) + shape[-1] * np.eye(shape[-1])).astype(dtype)
        case "wide":  # well conditioned
            return (rng.standard_normal(shape) + 2 * np.eye(shape[-2], shape[-1])).astype(dtype)
        case "tri":
            return (np.tril(rng.standard_normal(shape)) + 3 * np.eye(shape[-1])).astype(dtype)
        case _ if domain and domain[0] == "<":  # indices
            return rng.integers(0, int(domain[1:]), shape).astype(dtype)
        case _:
            raise ValueError(f"{domain!r} is not a domain")
