"""Array kernels at the memory's limit: device time of smalt and of XLA's own fusion of the same function, in one process.

    PYTHONPATH=jax_plugin:. python benchmarks/arrays.py [--rows 1,2,4,8] [--types float32,bfloat16] [--json out.json]

(8192, 4096), N(0,1), CUPTI medians of interleaved runs. `blocks`: `pl.pallas_call` with BlockSpecs of so many rows; `direct`: a kernel
that loads from and stores to device memory itself. Results are compared with XLA's; `regs` and `spill` are ptxas' (bytes of spill
stores and loads). The table is last.
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import smalt
from benchmarks.common import describe_machine, interleaved, median

SHAPE = (8192, 4096)


def add_one(x: Any) -> Any:
    return x + 1


def gelu(x: Any) -> Any:
    return jax.nn.gelu(x, approximate=True)


def softmax(x: Any) -> Any:
    e = jnp.exp(x - jnp.max(x, axis=-1, keepdims=True))
    return e / jnp.sum(e, axis=-1, keepdims=True)


def layernorm(x: Any) -> Any:
    mean = jnp.mean(x, axis=-1, keepdims=True)
    centred = x - mean
    return centred * jax.lax.rsqrt(jnp.mean(centred * centred, axis=-1, keepdims=True) + 1e-5)


def rmsnorm(x: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5)


FUNCTIONS: tuple[Callable[[Any], Any], ...] = (add_one, gelu, softmax, layernorm, rmsnorm)


def in_float32(f: Callable[[Any], Any], x: Any) -> Any:
    """`f` as people write it for narrow types: computed in float32, rounded once."""
    return f(x.astype(jnp.float32)).astype(x.dtype)


def blocks(f: Callable[[Any], Any], rows: int, dtype: Any) -> Callable[[Any], Any]:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = in_float32(f, x_ref[...])

    spec = pl.BlockSpec((rows, SHAPE[1]), lambda i: (i, 0))
    return pl.pallas_call(
        kernel,
        grid=(SHAPE[0] // rows,),
        in_specs=[spec],
        out_specs=spec,
        out_shape=jax.ShapeDtypeStruct(SHAPE, dtype),
        compiler_params=plgpu.CompilerParams(),
    )


def direct(f: Callable[[Any], Any], rows: int, dtype: Any) -> Callable[[Any], Any]:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        part = pl.ds(jax.lax.axis_index("i") * rows, rows)
        o_ref[part] = in_float32(f, x_ref[part])

    out = jax.ShapeDtypeStruct(SHAPE, dtype)
    return plgpu.kernel(kernel, out_type=out, grid=(SHAPE[0] // rows,), grid_names=("i",))


FORMS: tuple[Callable[[Callable[[Any], Any], int, Any], Callable[[Any], Any]], ...] = (blocks, direct)


def largest_error(a: Any, b: Any) -> float:
    """Over the largest number."""
    a, b = (np.asarray(x, np.float64) for x in (a, b))
    return float(np.max(np.abs(a - b)) / np.max(np.abs(b)))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", default="1,2,4,8")
    parser.add_argument("--types", default="float32,bfloat16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    print(describe_machine())
    lines, records = [], []
    for dtype in options.types.split(","):
        x = jax.random.normal(jax.random.key(0), SHAPE, dtype)
        for f in FUNCTIONS:
            theirs = jax.jit(functools.partial(in_float32, f)).lower(x).compile()
            expected = theirs(x)
            for form in FORMS:
                for rows in map(int, options.rows.split(",")):
                    record: dict[str, Any] = {"function": f.__name__, "type": dtype, "form": form.__name__, "rows": rows}
                    try:
                        with smalt.enabled(True):
                            kernel = form(f, rows, dtype)
                            (report,) = smalt.inspect(kernel, x)
                            mine = jax.jit(kernel).lower(x).compile()
                            error = largest_error(mine(x), expected)
                        times = interleaved((theirs, mine), (x,), options.rounds, options.iterations)
                    except smalt.Error as e:
                        lines.append(f"{f.__name__:10} {dtype:9} {form.__name__:7} {rows:4}  refused: {str(e).splitlines()[0]}")
                        records.append(record | {"refused": str(e)})
                        continue
                    xla, ours = (median(t) for t in times)
                    used = {"registers": report.registers, "spill_bytes": report.spill_bytes}
                    records.append(record | used | {"xla_us": xla, "smalt_us": ours, "error": error})
                    lines.append(
                        f"{f.__name__:10} {dtype:9} {form.__name__:7} {rows:4} {xla:9.1f} {ours:9.1f} {ours / xla:7.3f} "
                        f"{error:9.1e} {report.registers:5} {report.spill_bytes:6}"
                    )
                    print(lines[-1], flush=True)
    print(f"\n{'function':10} {'type':9} {'form':7} {'rows':>4} {'XLA us':>9} {'smalt us':>9} {'ratio':>7} {'error':>9} {'regs':>5} {'spill':>6}")
    print("\n".join(lines))
    if options.json:
        options.json.write_text(json.dumps(records))
    tolerance = {"float32": 1e-5, "bfloat16": 1e-2}
    wrong = [r for r in records if not r.get("error", 0) <= tolerance.get(r["type"], 1e-2)]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
