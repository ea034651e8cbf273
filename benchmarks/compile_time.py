"""How long kernels take to compile: smalt, stock Mosaic GPU, and JAX's floor, in one process on one GPU.

    PYTHONPATH=jax_plugin:. python benchmarks/compile_time.py [--configs 8] [--json out.json]

`lower` + `compile` of a jitted kernel, cold, and its first call: smalt's assembler runs beside XLA's compiler and may still run when
`compile` returns, so that only the time to the first result is fair. Every sample is a kernel that nobody has compiled before, the
three take turns, and JAX's caches are cleared between samples. The floor is the same program with an empty lowering rule: what JAX and XLA need without
any backend. smalt's own share is the time of its passes from descriptor to PTX, as its report says it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax.experimental.pallas.ops.gpu import attention_mgpu, hopper_matmul_mgpu as hm
from jax.interpreters import mlir

import smalt
from benchmarks.common import describe_machine
from benchmarks.hopper_matmul import configs
from smalt import _native, _versions

def matmuls(count: int) -> list[Callable[[], tuple[Callable[..., Any], list[Any]]]]:
    def make(i: int) -> tuple[Callable[..., Any], list[Any]]:
        chosen = configs(quick=True)
        a = jax.ShapeDtypeStruct((2048 + 1024 * (i // len(chosen)),) * 2, jnp.bfloat16)
        return (lambda x, y: hm.matmul(x, y, None, chosen[i % len(chosen)])), [a, a]

    return [lambda i=i: make(i) for i in range(3 * count)]


def attentions(count: int) -> list[Callable[[], tuple[Callable[..., Any], list[Any]]]]:
    def make(i: int) -> tuple[Callable[..., Any], list[Any]]:
        config = attention_mgpu.TuningConfig(block_q=64, block_kv=64, max_concurrent_steps=2)
        qkv = jax.ShapeDtypeStruct((2, 1024 + 128 * i, 4, 128), jnp.float16)
        return (lambda q, k, v: attention_mgpu.attention(q, k, v, config)), [qkv] * 3

    return [lambda i=i: make(i) for i in range(3 * count)]


def add_ones(count: int) -> list[Callable[[], tuple[Callable[..., Any], list[Any]]]]:
    def make(i: int) -> tuple[Callable[..., Any], list[Any]]:
        def body(x: Any, o: Any) -> None:
            o[...] = x[...] + (1.0 + i)

        x = jax.ShapeDtypeStruct((128,), jnp.float32)
        return plgpu.kernel(body, out_type=x), [x]

    return [lambda i=i: make(i) for i in range(3 * count)]


def _empty_rule(ctx: Any, *args: Any, **_: Any) -> Any:
    results = [(a.shape, a.dtype) for a in ctx.avals_out]
    return mlir.lower_fun(lambda *_: [jnp.zeros(*r) for r in results], multiple_results=True)(ctx, *args)


@contextlib.contextmanager
def floor() -> Iterator[None]:
    stock = _versions.stock_rule
    _versions.stock_rule = lambda: _empty_rule
    try:
        with smalt.enabled(False):
            yield
    finally:
        _versions.stock_rule = stock


SCOPES: dict[str, Callable[[], Any]] = {
    "floor": floor,
    "mosaic": lambda: smalt.enabled(False),
    "smalt": lambda: smalt.enabled(True),
}


def sample(who: str, make: Callable[[], tuple[Callable[..., Any], list[Any]]]) -> dict[str, float]:
    jax.clear_caches()
    f, args = make()
    inputs = [jnp.zeros(a.shape, a.dtype) for a in args]
    jax.block_until_ready(inputs)
    with SCOPES[who]():
        start = time.perf_counter()
        traced = jax.jit(f).trace(*args)
        middle = time.perf_counter()
        lowered = traced.lower()
        lowered_at = time.perf_counter()
        compiled = lowered.compile()
        compiled_at = time.perf_counter()
        jax.block_until_ready(compiled(*inputs))
        end = time.perf_counter()
    return {
        "trace": middle - start,
        "lower": lowered_at - middle,
        "compile": compiled_at - lowered_at,
        "first call": end - compiled_at,
        "all": end - middle,
    }


def own_share(make: Callable[[], tuple[Callable[..., Any], list[Any]]]) -> float:
    """Seconds from descriptor to PTX, of the kernel as it was compiled in this process."""
    f, args = make()
    total = 0
    for _, descriptor, debug in smalt.descriptor(f, *args):
        report = _native.compile(descriptor, debug, "sm_90a").report()
        total += sum(phase["micros"] for phase in report["phases"] if phase["name"] != "assemble")
    return total * 1e-6


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--configs", type=int, default=8, help="samples of each")
    parser.add_argument("--json")
    options = parser.parse_args()
    print(describe_machine(), flush=True)
    rows: list[dict[str, Any]] = []
    for name, variants in (("add-one", add_ones), ("hopper_matmul", matmuls), ("attention", attentions)):
        kernels = variants(options.configs + 1)
        times: dict[str, list[dict[str, float]]] = {who: [] for who in SCOPES}
        shares: list[float] = []
        for i, who in enumerate(list(SCOPES) * (options.configs + 1)):
            if i >= len(kernels):
                break
            got = sample(who, kernels[i])
            if i >= len(SCOPES):  # the first of each warms up what is made once per process
                times[who].append(got)
            if who == "smalt":
                shares.append(own_share(kernels[i]))
        medians = {who: {k: statistics.median(s[k] for s in samples) for k in samples[0]} for who, samples in times.items()}
        row = {"kernel": name, "samples": {w: len(s) for w, s in times.items()}, "own": statistics.median(shares), **medians}
        row["ratio"] = medians["smalt"]["all"] / medians["mosaic"]["all"]
        rows.append(row)
    print(f"\n{'kernel':14} {'who':7} {'lower':>8} {'compile':>8} {'first call':>10} {'all':>8}   (ms, medians)")
    for row in rows:
        for who in SCOPES:
            t = row[who]
            print(f"{row['kernel']:14} {who:7} {t['lower'] * 1e3:8.1f} {t['compile'] * 1e3:8.1f} {t['first call'] * 1e3:10.1f} {t['all'] * 1e3:8.1f}")
        print(f"{row['kernel']:14} smalt/mosaic {row['ratio']:.3f}; descriptor to PTX {row['own'] * 1e3:.2f} ms")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
