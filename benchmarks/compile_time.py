"""How long kernels take to compile: smalt, stock Mosaic GPU, and JAX's floor, in one process on one GPU; and in fresh processes.

    PYTHONPATH=jax_plugin:. python benchmarks/compile_time.py [--configs 8] [--fresh 3] [--json out.json]

`lower` + `compile` of a jitted kernel, cold, and its first call: smalt's assembler runs beside XLA's compiler and may still run when
`compile` returns, so that only the time to the first result is fair. Every sample is a kernel that nobody has compiled before, the
three take turns, and JAX's caches are cleared between samples. The floor is the same program with an empty lowering rule: what JAX and XLA need without
any backend. smalt's own share is the time of its passes from descriptor to PTX, as its report says it.

smalt's cache of cubins on disk is off: every kernel is assembled.

`--fresh`: so many processes each of smalt, Mosaic GPU and Pallas:Triton, with every cache off, compile one kernel of 100 element-wise
operations (blocks of 2048) and run it; and of smalt and Mosaic GPU, attention's forward and backward pass in one program (heads of 128 and
of 256). JAX, its devices and a trivial program are warm; what a backend loads for its first kernel counts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

os.environ["SMALT_CACHE_DIR"] = ""  # Before smalt is loaded: it reads its variables once.

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.experimental.pallas.triton as plt
import jax.numpy as jnp
from jax.experimental.pallas.ops.gpu import attention_mgpu, hopper_matmul_mgpu as hm
from jax.interpreters import mlir

import smalt
from benchmarks import shipped
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


def _empty_rule(_before: Any, ctx: Any, *args: Any, **_: Any) -> Any:
    results = [(a.shape, a.dtype) for a in ctx.avals_out]
    return mlir.lower_fun(lambda *_: [jnp.zeros(*r) for r in results], multiple_results=True)(ctx, *args)


@contextlib.contextmanager
def floor() -> Iterator[None]:
    with smalt.enabled(False):
        undo = _versions.chain_rule(_versions.mpmd_map_p, _empty_rule, ("cpu", "cuda"))
        try:
            yield
        finally:
            for step in reversed(undo):
                step()


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


# ------------------------------------------------------------------------------------------ fresh processes

HUNDRED = "100 operations"
#: Kernels, and whose compilers take them.
FRESH = {
    HUNDRED: ("smalt", "mosaic", "triton"),
    "attention backward S4096 D128 kv 64": ("smalt", "mosaic"),
    "attention backward S4096 D256 kv 64": ("smalt", "mosaic"),
}
#: Whatever keeps something compiled between processes.
NO_CACHES = {"JAX_ENABLE_COMPILATION_CACHE": "0", "CUDA_CACHE_DISABLE": "1", "SMALT_CACHE_DIR": ""}


def hundred_operations(x: Any) -> Any:
    y = x
    for i in range(10):
        y = y * 0.5 + (0.25 + i)
        y = jnp.maximum(y, -3.0) - x
        y = jnp.minimum(y, 4.0) * y
        y = jnp.tanh(y) + 1.5
        y = jax.lax.rsqrt(y) * y
    return y


def hundred(who: str) -> tuple[Callable[..., Any], list[Any], Any]:
    def body(x: Any, o: Any) -> None:
        o[...] = hundred_operations(x[...])

    x = jnp.linspace(-3.0, 3.0, 1 << 14, dtype=jnp.float32)
    spec = pl.BlockSpec((2048,), lambda i: (i,))
    params = plt.CompilerParams() if who == "triton" else plgpu.CompilerParams()
    f = pl.pallas_call(body, grid=(8,), in_specs=[spec], out_specs=spec, out_shape=x, compiler_params=params)
    return f, [x], jax.jit(hundred_operations)(x)


def first_result(who: str, name: str) -> dict[str, float]:
    """In a process of its own: the first kernel that a backend compiles and runs."""
    if name == HUNDRED:
        f, args, expected = hundred(who)
    else:
        (kernel,) = [kernel for kernel in shipped.kernels(full=True) if kernel.name == name]
        f, args, expected = kernel.fn, list(kernel.args()), None
    jax.block_until_ready((args, expected, jax.jit(lambda x: x + 1)(jnp.ones(4))))
    with smalt.enabled(who == "smalt"):
        traced = jax.jit(f).trace(*args)
        start = time.perf_counter()
        lowered = traced.lower()
        lowered_at = time.perf_counter()
        compiled = lowered.compile()
        compiled_at = time.perf_counter()
        got = jax.block_until_ready(compiled(*args))
        end = time.perf_counter()
    if expected is not None and not jnp.allclose(got, expected, rtol=1e-3, atol=1e-3):
        raise RuntimeError(f"{who}: a wrong result")
    return {"lower": lowered_at - start, "compile": compiled_at - lowered_at, "first call": end - compiled_at, "all": end - start}


def fresh(samples: int) -> list[dict[str, Any]]:
    """Medians of each backend's samples; a backend that fails says why."""
    environment = os.environ | NO_CACHES
    rows: list[dict[str, Any]] = []
    for name, backends in FRESH.items():
        times: dict[str, list[dict[str, float]]] = {who: [] for who in backends}
        failed: dict[str, str] = {}
        for _ in range(samples):
            for who in backends:
                command = [sys.executable, __file__, "--first-result", who, "--kernel", name]
                ran = subprocess.run(command, env=environment, capture_output=True, text=True)
                if ran.returncode:
                    failed[who] = next((line for line in reversed(ran.stderr.splitlines()) if line.strip()), "no text")[:160]
                else:
                    times[who].append(json.loads(ran.stdout.splitlines()[-1]))
        for who in backends:
            row: dict[str, Any] = {"kernel": f"{name}, fresh process", "who": who, "samples": len(times[who])}
            if times[who]:
                row |= {k: statistics.median(s[k] for s in times[who]) for k in times[who][0]}
            else:
                row["failed"] = failed.get(who, "no samples")
            rows.append(row)
    return rows


def print_fresh(rows: list[dict[str, Any]]) -> None:
    for name in dict.fromkeys(row["kernel"] for row in rows):
        these = [row for row in rows if row["kernel"] == name]
        print(f"\n{name:46} {'lower':>8} {'compile':>8} {'first call':>10} {'all':>8}   (ms, medians)")
        mine = next((row.get("all") for row in these if row["who"] == "smalt"), None)
        for row in these:
            if "failed" in row:
                print(f"{row['who']:46} {row['failed']}")
                continue
            ratio = f"  smalt/{row['who']} {mine / row['all']:.3f}" if mine and row["who"] != "smalt" else ""
            t = [row[k] * 1e3 for k in ("lower", "compile", "first call", "all")]
            print(f"{row['who']:46} {t[0]:8.1f} {t[1]:8.1f} {t[2]:10.1f} {t[3]:8.1f}{ratio}")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--configs", type=int, default=8, help="samples of each; 0: none in this process")
    parser.add_argument("--fresh", type=int, default=3, help="processes of each; 0: none")
    parser.add_argument("--first-result", choices=FRESH[HUNDRED], help=argparse.SUPPRESS)
    parser.add_argument("--kernel", choices=FRESH, default=HUNDRED, help=argparse.SUPPRESS)
    parser.add_argument("--json")
    options = parser.parse_args()
    if options.first_result:
        print(json.dumps(first_result(options.first_result, options.kernel)))
        return 0
    rows = fresh(options.fresh) if options.fresh else []  # first: a process that holds the GPU's memory leaves none
    print(describe_machine(), flush=True)
    if rows:
        print_fresh(rows)
    if options.configs:
        rows += warm(options.configs)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)
    return 0


def warm(samples: int) -> list[dict[str, Any]]:
    """The kernels that take turns in this process."""
    rows: list[dict[str, Any]] = []
    for name, variants in (("add-one", add_ones), ("hopper_matmul", matmuls), ("attention", attentions)):
        kernels = variants(samples + 1)
        times: dict[str, list[dict[str, float]]] = {who: [] for who in SCOPES}
        shares: list[float] = []
        for i, who in enumerate(list(SCOPES) * (samples + 1)):
            if i >= len(kernels):
                break
            got = sample(who, kernels[i])
            if i >= len(SCOPES):  # the first of each warms up what is made once per process
                times[who].append(got)
            if who == "smalt":
                shares.append(own_share(kernels[i]))
        medians = {who: {k: statistics.median(s[k] for s in samples) for k in samples[0]} for who, samples in times.items()}
        row: dict[str, Any] = {"kernel": name, "samples": {w: len(s) for w, s in times.items()}, "own": statistics.median(shares), **medians}
        row["ratio"] = medians["smalt"]["all"] / medians["mosaic"]["all"]
        rows.append(row)
    print(f"\n{'kernel':14} {'who':7} {'lower':>8} {'compile':>8} {'first call':>10} {'all':>8}   (ms, medians)")
    for row in rows:
        for who in SCOPES:
            t = row[who]
            print(f"{row['kernel']:14} {who:7} {t['lower'] * 1e3:8.1f} {t['compile'] * 1e3:8.1f} {t['first call'] * 1e3:10.1f} {t['all'] * 1e3:8.1f}")
        print(f"{row['kernel']:14} smalt/mosaic {row['ratio']:.3f}; descriptor to PTX {row['own'] * 1e3:.2f} ms")
    return rows


if __name__ == "__main__":
    sys.exit(main())
