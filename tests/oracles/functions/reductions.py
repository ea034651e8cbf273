"""Reductions, running results, statistics, control flow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.oracles.functions.case import case

SHAPES = ("8,128", "10", "257", "5,7", "2,3,5")


def reduced(function: str, call: Callable[..., Any] | None, dtypes: str, domain: str = "", **keep: Any) -> None:
    """A reduction of everything, and along each end, in all types."""
    from tests.oracles.functions.case import find

    base = call or find(function)
    if base is None:
        return
    suffix = f":{domain}" if domain else ""
    for i, dtype in enumerate(dtypes.split()):
        for j, shape in enumerate(SHAPES if i == 0 else (SHAPES[i % 5], SHAPES[(i + 3) % 5])):
            if (i + j) % 3 == 0:
                case(function, base, f"{dtype}[{shape}]{suffix}", **keep)
            elif (i + j) % 3 == 1:
                case(function, lambda x: base(x, axis=0), f"{dtype}[{shape}]{suffix}", **keep)
            else:
                case(function, lambda x: base(x, axis=-1), f"{dtype}[{shape}]{suffix}", **keep)


NUMBERS = "f32 i32 bf16 f16 f64 i8 u8 u32 i64"
reduced("jnp.sum", None, NUMBERS, compare="norm")
reduced("jnp.prod", None, "f32 i32 f64 u8", "pos", compare="norm", ulps=64)
reduced("jnp.max", None, NUMBERS + " bool")
reduced("jnp.min", None, NUMBERS + " bool")
reduced("jnp.amax", None, "f32 i32")
reduced("jnp.amin", None, "f32 i32")
reduced("jnp.ptp", None, "f32 i32")
reduced("jnp.minmax", None, "f32 i32")
reduced("jnp.mean", None, "f32 bf16 f16 f64 i32", compare="norm", ulps=16)
reduced("jnp.average", None, "f32 f64 i32", compare="norm")
reduced("jnp.var", None, "f32 f64 bf16", compare="norm", ulps=16)
reduced("jnp.std", None, "f32 f64 bf16", compare="norm", ulps=16)
reduced("jnp.median", None, "f32 i32", compare="norm")
reduced("jnp.all", None, "bool i32 f32")
reduced("jnp.any", None, "bool i32 f32")
reduced("jnp.argmax", None, NUMBERS)
reduced("jnp.argmin", None, NUMBERS)
reduced("jnp.count_nonzero", None, "f32 i32 bool u8")
reduced("jnp.nansum", None, "f32 f64", "gaps", compare="norm")
reduced("jnp.nanprod", None, "f32", "gaps", compare="norm")
reduced("jnp.nanmax", None, "f32 bf16", "gaps")
reduced("jnp.nanmin", None, "f32 bf16", "gaps")
reduced("jnp.nanmean", None, "f32", "gaps", compare="norm")
reduced("jnp.nanvar", None, "f32", "gaps", compare="norm", ulps=16)
reduced("jnp.nanstd", None, "f32", "gaps", compare="norm", ulps=16)
reduced("jnp.nanmedian", None, "f32", "gaps", compare="norm")
reduced("jnp.nanargmax", None, "f32", "")
reduced("jnp.nanargmin", None, "f32", "")
reduced("jnp.cumsum", None, "f32 i32 bf16 i8 u32 f64 i64", compare="norm", ulps=16)
reduced("jnp.cumprod", None, "f32 i32", "prob", compare="norm")
reduced("jnp.cumulative_sum", lambda x, axis=-1: jnp.cumulative_sum(x, axis=axis), "f32 i32", compare="norm", ulps=16)
reduced("jnp.cumulative_prod", lambda x, axis=-1: jnp.cumulative_prod(x, axis=axis), "f32", "prob", compare="norm")
reduced("jnp.nancumsum", None, "f32", "gaps", compare="norm", ulps=16)
reduced("jnp.nancumprod", None, "f32", "gaps", compare="norm")
reduced("jnp.trapezoid", None, "f32", compare="norm")
case("jnp.quantile", lambda x: jnp.quantile(x, 0.3), "f32[33]", "f32[5,7]", compare="norm")
case("jnp.percentile", lambda x: jnp.percentile(x, 30), "f32[33]", compare="norm")
case("jnp.nanquantile", lambda x: jnp.nanquantile(x, 0.3), "f32[33]:gaps", compare="norm")
case("jnp.nanpercentile", lambda x: jnp.nanpercentile(x, 30), "f32[33]:gaps", compare="norm")
case("jnp.cov", None, "f32[5,33]", compare="norm", ulps=32)
case("jnp.corrcoef", None, "f32[5,33]", compare="norm", ulps=32)
case("jnp.allclose", None, "f32[10] f32[10]")
case("jnp.trace", None, "f32[5,7]", "i32[8,8]", "f32[2,5,5]", compare="norm")

# ------------------------------------------------------------------------------------------ jax.lax

for _name, _types in (("sum", NUMBERS), ("max", NUMBERS), ("min", NUMBERS), ("prod", "f32 i32 u8"), ("and", "i32 bool u8"), ("or", "i32 bool u8"), ("xor", "i32 u8 i64")):
    reduced(f"lax.reduce_{_name}", lambda x, axis=None, f=f"reduce_{_name}": getattr(lax, f)(x, range(x.ndim) if axis is None else (axis % x.ndim,)), _types, "pos" if _name == "prod" else "", compare="norm")
reduced("lax.argmax", lambda x, axis=0: lax.argmax(x, axis % x.ndim, np.int32), "f32 i32 bf16")
reduced("lax.argmin", lambda x, axis=0: lax.argmin(x, axis % x.ndim, np.int32), "f32 i32 bf16")
for _name, _domain in (("cumsum", ""), ("cumprod", "prob"), ("cummax", ""), ("cummin", ""), ("cumlogsumexp", "")):
    reduced(f"lax.{_name}", lambda x, axis=0, f=_name: getattr(lax, f)(x, axis % x.ndim), "f32 f64 bf16" if _name == "cumlogsumexp" else "f32 i32 bf16 f64", _domain, compare="norm", ulps=16)
case("lax.cumsum", lambda x: lax.cumsum(x, 0, reverse=True), "i32[33]", "i32[5,7]")
case("lax.reduce", lambda x: lax.reduce(x, 0.0, lax.add, (0,)), "f32[33]", "f32[5,7]", compare="norm")
case("lax.reduce", lambda x: lax.reduce(x, np.int32(0), lambda a, b: a ^ b, (0,)), "i32[1]")  # (where 0 is no identity XLA leaves it out)
case("lax.reduce", lambda x, y: lax.reduce((x, y), (np.float32(-np.inf), np.int32(0)), lambda a, b: (jnp.maximum(a[0], b[0]), a[1] + b[1]), (0,)), "f32[33] i32[33]", "f32[5,7] i32[5,7]")
case("lax.reduce_window", lambda x: lax.reduce_window(x, -np.inf, lax.max, (2, 2), (1, 1), "VALID"), "f32[8,16]", "f32[5,7]")
case("lax.reduce_window", lambda x: lax.reduce_window(x, 0.0, lax.add, (3,), (2,), "SAME"), "f32[33]", compare="norm")
case("lax.associative_scan", lambda x: lax.associative_scan(jnp.add, x), "i32[10]", "i32[33]", "f32[5,7]", compare="norm", ulps=16)
case("lax.associative_scan", lambda x: lax.associative_scan(jnp.maximum, x), "f32[10]")
case("lax.scan", lambda x: lax.scan(lambda c, v: (c + v, c * 2), jnp.zeros(x.shape[1:], x.dtype), x), "i32[10,3]", "i32[5,7]")
case("lax.map", lambda x: lax.map(lambda v: v * 2 + 1, x), "f32[5,7]", "i32[10,4]")
case("lax.fori_loop", lambda x: lax.fori_loop(0, 7, lambda i, v: v * 3 + i.astype(v.dtype), x), "i32[33]", "u8[5,7]", "i64[10]")
case("lax.while_loop", lambda x: lax.while_loop(lambda v: jnp.max(v) < 1000, lambda v: v * 2, x), "f32[33]:pos", "i32[5,7]:pos")
case("lax.cond", lambda p, x: lax.cond(p > 0, lambda v: v + 1, lambda v: v * 2, x), "i32[] f32[33]", "i32[] i32[5,7]")
case("lax.switch", lambda i, x: lax.switch(i, [lambda v: v + 1, lambda v: v * 2, lambda v: -v], x), "i32[]:<3 f32[33]", "i32[]:<3 i32[5,7]")
case("lax.platform_dependent", lambda x: lax.platform_dependent(x, cpu=lambda v: v + 1, default=lambda v: v + 1), "f32[33]")
case("lax.custom_linear_solve", lambda a, b: lax.custom_linear_solve(lambda v: a * v, b, lambda _, w: w / a, symmetric=True), "f32[33]:pos f32[33]")
case("lax.custom_root", lambda x: lax.custom_root(lambda v: v * v - x, x, lambda f, v: lax.fori_loop(0, 30, lambda _, w: 0.5 * (w + x / w), v), lambda g, y: y / g(1.0)), "f32[]:pos")
