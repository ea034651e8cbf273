"""Runs a program on this machine's backend and in JAX's interpreter, and says whether they agree; the grammars of these programs."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
import zlib
from typing import Any

import jax
import numpy as np

import smalt
from tests.fuzz.bits import keep
from tests.fuzz.grammar import Grammar
from tests.fuzz.outcome import Outcome
from tests.oracles import special
from tests.oracles.functions import case
from tests.oracles.functions.judge import x64
from tests.programs.arrays.apart import by_warps, handed
from tests.programs.arrays.emit import function, input_shapes
from tests.programs.arrays.generate import generate
from tests.programs.arrays.program import Program, Ref, walk
from tests.programs.arrays.regressions import REGRESSIONS
from tests.programs.arrays.smaller import SMALLER

Array = Any


def settings(p: Program) -> Any:
    stack = contextlib.ExitStack()
    stack.enter_context(x64(p.x64))
    if p.seed % 2 or any(s.kind == "table" for s in walk(p.steps)):
        stack.enter_context(jax.default_matmul_precision("highest"))
    return stack


def arrays(p: Program) -> list[Array]:
    return [_numbers(p, r, shape) for r, shape in zip(p.inputs, input_shapes(p))]


def _numbers(p: Program, r: Ref, shape: tuple[int, ...]) -> Array:
    rng = np.random.default_rng(zlib.crc32(f"{p.seed} {r.name}".encode()))
    dtype = np.dtype(jax.numpy.dtype(r.dtype))
    kind, _, rest = r.domain.partition(" ")
    if kind == "table":  # blocks are the table's arrays
        text, _, domain = rest.partition(":")
        out = np.empty(shape, dtype)
        lead = len(shape) - len(r.shape)
        places = r.places or (*((-1, 0) for _ in range(lead)), *((d, -1) for d in range(len(r.shape))))
        steps = [1 if d < 0 else r.shape[d] for d, _ in places]
        for block in np.ndindex(tuple(n // k for n, k in zip(shape, steps))):
            at = tuple(i if d < 0 else slice(i * k, i * k + k) for i, k, (d, _) in zip(block, steps, places))
            out[at] = case.values(rng, r.shape, dtype, domain or None)
        return out
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(dtype)
    if kind == "whole":
        high = int(float(rest))
        low = 0 if dtype.kind == "u" else -high
        x = rng.integers(low, high + 1, shape)
        if dtype.kind == "c":
            return (x + 1j * rng.integers(low, high + 1, shape)).astype(dtype)
        return x.astype(dtype)
    if kind == "bits":
        x = special.data(rng, shape, dtype)
        tiny = jax.numpy.finfo(dtype).smallest_normal
        with np.errstate(all="ignore"):
            return np.where(np.abs(x) < tiny, np.copysign(dtype.type(0), x), x).astype(dtype)
    if dtype.name == "int4":
        return rng.integers(-8, 8, shape).astype(dtype)
    return special.data(rng, shape, dtype)


def reference(p: Program, given: list[Array], fused: bool = True) -> list[Array]:
    """`fused`: as XLA would have it; else op by op."""
    cpu = jax.devices("cpu")[0]
    options: Any = {"xla_backend_optimization_level": 0}
    if not fused:
        options["xla_disable_hlo_passes"] = "fusion,algsimp,simplification-loop"
    with jax.default_device(cpu), settings(p):
        return [np.asarray(x) for x in jax.jit(function(p, reference=True), compiler_options=options)(*jax.device_put(given, cpu))]


def outcome(p: Program, given: list[Array]) -> list[Array]:
    with settings(p):
        return [keep(x) for x in jax.jit(function(p))(*given)]


def check(p: Program, judged: bool = True) -> Outcome:
    """`judged`: against JAX; otherwise only run."""
    warnings.simplefilter("ignore")
    given = arrays(p)
    wanted: list[Array] = []
    if judged:
        try:
            wanted = reference(p, given)
        except Exception as e:
            return Outcome("no program", f"interpreter: {type(e).__name__}: {e}")
    try:
        got = outcome(p, given)
    except (smalt.Error, jax.errors.JaxRuntimeError):
        raise
    except Exception as e:
        if _of_smalt(e):
            raise
        return Outcome("no program", f"{type(e).__name__}: {e}")
    wrong = compare(p, got, wanted) if judged else ""
    is_second = bool(wrong)
    if wrong:
        # XLA on a CPU gets some slices of slices wrong where it simplifies or fuses them: clamped starts, updates of what is read.
        wrong = compare(p, got, reference(p, given, fused=False))
    if wrong:
        return Outcome("wrong", wrong)
    return Outcome("right", "only as JAX has it without XLA's simplifier" if is_second else "")


def _of_smalt(e: BaseException) -> bool:
    """Whether it was raised by our own Python rather than by JAX."""
    trace, last = e.__traceback__, ""
    while trace is not None:
        last = trace.tb_frame.f_code.co_filename
        trace = trace.tb_next
    return "/smalt/" in last


# ------------------------------------------------------------------------------------------ to compare


def compare(p: Program, got: list[Array], wanted: list[Array]) -> str:
    """What differs; an empty text if nothing does."""
    tolerances = {name: (mode, ulps) for name, mode, ulps in p.tolerances}
    for r, a, b in zip(p.outputs, got, wanted, strict=True):
        mode, ulps = tolerances.get(r.name, ("bits", 0.0))
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{r.name}: {a.dtype}{list(a.shape)}, expected {b.dtype}{list(b.shape)}"
        wrong = ~same(a, b, mode, ulps)
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            return f"{r.name} ({mode}): {int(wrong.sum())} of {wrong.size} are wrong, the first at {list(at)}: {a[at]!r}, expected {b[at]!r}"
    return ""


def same(a: Array, b: Array, mode: str, ulps: float) -> Array:
    """Which elements are right: bit for bit (NaN of any bits, zeros of any sign), or as near as the tolerance."""
    if a.dtype.kind == "c":
        half = np.dtype(f"f{a.dtype.itemsize // 2}")
        return same(a.real.astype(half), b.real.astype(half), mode, ulps) & same(a.imag.astype(half), b.imag.astype(half), mode, ulps)
    if not jax.numpy.issubdtype(a.dtype, jax.numpy.floating):
        return a == b
    with np.errstate(all="ignore"):
        x, y = a.astype(np.float64), b.astype(np.float64)
        equal = (x == y) | (np.isnan(x) & np.isnan(y))
        if mode == "bits" or not a.size:
            return equal
        eps, tiny = float(jax.numpy.finfo(a.dtype).eps), float(jax.numpy.finfo(a.dtype).smallest_normal)
        scale = np.abs(y)
        norm, _, least = mode.partition(":")
        if norm == "norm":
            scale = np.full_like(scale, max(float(least or 0), np.max(np.where(np.isfinite(scale), scale, 0))))
        return equal | (np.abs(x - y) <= ulps * eps * np.maximum(scale, tiny))


# ------------------------------------------------------------------------------------------ the grammars

ARRAYS = Grammar(
    "array programs",
    generate,
    check,
    smaller=SMALLER,
    again=lambda p, like, _: check(p, judged=like.kind == "wrong"),
    show=lambda p: f"{p}\n{p!r}",
    named={name: kernel.check for name, kernel in REGRESSIONS.items()},
)
ARRAYS_OF_WARPGROUPS = dataclasses.replace(ARRAYS, name="array programs of warpgroups", draw=lambda seed: handed(generate(seed)), named={})
#: What passes between threads takes four times the room that the programs were drawn for.
ARRAYS_OF_WARPS = dataclasses.replace(ARRAYS, name="array programs of warps", draw=lambda seed: by_warps(generate(seed)), named={}, counts_memory=False)
