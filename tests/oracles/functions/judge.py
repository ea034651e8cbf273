"""Runs a case and says whether it is right.

Integers, bools and whatever is compared as "bits" must be XLA's on the CPU. Floats must be within a few ulp of the same call
evaluated in f64; where XLA's own result on the same data is further away than that (sums, norms: roundings on the way), ours may be
twice as far as XLA's worst element. Modes of `Case.compare`:

* auto: as above;
* bits: XLA's bits, floats too;
* xla: within `ulps` of XLA's result in the same type (where f64 would draw other random bits, or takes another path);
* norm: errors relative to the largest element (linear algebra).
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import numpy as np

from tests.oracles.functions.case import Case

Array = Any


@dataclasses.dataclass(frozen=True)
class Outcome:
    status: str  # "right", "wrong", "refused" (one of smalt's errors that says so), "invalid" (JAX refuses it in a kernel), "error"
    says: str = ""
    seconds: float = 0.0


def x64(on: bool) -> Any:
    """JAX with or without 64-bit types."""
    if not on:
        return contextlib.nullcontext()
    return jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64()


def kernel_of(case: Case, arrays: list[Array]) -> Callable[..., Any]:
    """The call inside of a kernel, whole arrays loaded from refs."""
    out = jax.tree.leaves(jax.eval_shape(case.call, *arrays))

    def body(*refs: Any) -> None:
        values = case.call(*[ref[...] for ref in refs[: len(arrays)]])
        for ref, value in zip(refs[len(arrays) :], jax.tree.leaves(values), strict=True):
            ref[...] = value

    return plgpu.kernel(body, out_type=[jax.ShapeDtypeStruct(o.shape, o.dtype) for o in out])  # type: ignore[no-any-return]


def in_kernel(case: Case, arrays: list[Array]) -> list[Array]:
    """The results of that."""
    import smalt

    kernel = kernel_of(case, arrays)
    smalt.enable()
    try:
        results = kernel(*arrays)
        return [np.asarray(r) for r in results]
    finally:
        smalt.disable()


def outside(case: Case, arrays: list[Array]) -> list[Array]:
    with jax.default_device(jax.devices("cpu")[0]):
        return [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(case.call)(*arrays))]


def is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "fc" or dtype.name.startswith(("bfloat", "float"))


def judge(case: Case, keep: Callable[[Array], Array] = lambda x: x) -> Outcome:
    """`keep` is given the kernel's results."""
    import smalt

    start = time.perf_counter()
    # Products of f32 are TF32 by default, as XLA's on a GPU; the ones that are compared are f32's.
    with x64(case.x64), jax.default_matmul_precision("highest"):
        arrays = case.arrays()
        try:
            got = [keep(x) for x in in_kernel(case, arrays)]
        except smalt.Error as e:
            status = "refused" if e.fault in ("Unsupported", "InvalidKernel") else "error"
            return Outcome(status, _first_line(e), time.perf_counter() - start)
        except Exception as e:
            return Outcome("invalid" if not isinstance(e, RuntimeError) else "error", _first_line(e), time.perf_counter() - start)
        xla = outside(case, arrays)
    problem = ""
    true: list[Array] = xla
    if case.compare in ("auto", "norm") and any(is_float(x.dtype) for x in xla):
        with x64(True):
            try:
                true = outside(case, [_wide(a) for a in arrays])
            except Exception:  # it has no evaluation in f64
                true = xla
    for i, (ours, theirs) in enumerate(zip(got, xla, strict=True)):
        best = true[i] if len(true) == len(xla) and true[i].shape == theirs.shape else theirs
        problem = problem or difference(case, ours, theirs, best)
    seconds = time.perf_counter() - start
    return Outcome("wrong" if problem else "right", problem, seconds)


def by_name(name: str) -> dict[str, Any]:
    """Judges a case of the table; in a worker."""
    from tests.oracles.functions.table import CASES

    global _judged
    _judged += 1
    if _judged % 200 == 0:
        jax.clear_caches()  # programs of thousands of cases are not kept
    try:
        return dataclasses.asdict(judge(CASES[name]))
    except Exception as e:  # of the table itself, or of the call outside of the kernel
        return dataclasses.asdict(Outcome("error", f"outside: {_first_line(e)}"))


_judged = 0


def _wide(x: Array) -> Array:
    if not is_float(x.dtype):
        return x
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def _first_line(e: Exception) -> str:
    lines = [line.strip() for line in (str(e) or type(e).__name__).splitlines() if line.strip()]
    return f"{type(e).__name__}: {lines[0] if lines else ''}"[:300]


# ------------------------------------------------------------------------------------------ numbers


def difference(case: Case, ours: Array, xla: Array, true: Array) -> str:
    """What is wrong with a result; an empty text if nothing is."""
    if ours.shape != xla.shape or ours.dtype != xla.dtype:
        return f"expected {xla.dtype}{list(xla.shape)}, got {ours.dtype}{list(ours.shape)}"
    if xla.dtype.kind == "c":
        half = np.dtype(f"f{xla.dtype.itemsize // 2}")
        ours, xla, true = (_pairs(x, half if x.dtype == ours.dtype else np.dtype(np.float64)) for x in (ours, xla, true))
    same = _bits(ours) == _bits(xla)
    if is_float(xla.dtype):
        same |= np.isnan(_f64(ours)) & np.isnan(_f64(xla))
        if case.compare != "bits":
            same |= _close(case, ours, xla, true)
    if np.all(same):
        return ""
    at = tuple(int(i[0]) for i in np.nonzero(~same)) if same.ndim else ()
    return f"{int(np.sum(~same))} of {same.size} elements differ; at {list(at)} expected {true[at]!r} (XLA {xla[at]!r}), got {ours[at]!r}"


def _pairs(x: Array, dtype: np.dtype[Any]) -> Array:
    return np.stack([x.real, x.imag], -1).astype(dtype)


def _f64(x: Array) -> Array:
    return np.asarray(x).astype(np.float64)


def _bits(x: Array) -> Array:
    if x.dtype.name in ("bool", "int4", "uint4", "int2", "uint2"):
        return x.astype(np.int8)
    return np.ascontiguousarray(x).reshape(x.shape).view(f"u{x.dtype.itemsize}")


def _close(case: Case, ours: Array, xla: Array, true: Array) -> Array:
    import ml_dtypes

    info = ml_dtypes.finfo(xla.dtype)
    eps, tiny, largest = float(info.eps), float(info.smallest_normal), float(info.max)
    with np.errstate(all="ignore"):
        best = _f64(xla) if case.compare == "xla" else _f64(true)
        rounded = _f64(best.astype(xla.dtype))  # infinite where the type cannot have it
        scale = np.abs(best)
        if case.compare == "norm" and scale.size:
            scale = np.full_like(scale, np.max(np.where(np.isfinite(scale), scale, 0)))
        unit = eps * 2.0 ** np.floor(np.log2(np.clip(scale, tiny, largest)))

        def error(x: Array) -> Array:
            x = np.where(np.isinf(x), np.sign(x) * largest * (1 + eps), x)
            off = np.abs(x - np.clip(best, -largest * (1 + eps), largest * (1 + eps))) / unit
            off = np.where(np.isnan(best) & np.isnan(x) | (x == rounded), 0, off)
            return np.where(np.isnan(off), np.inf, off)

        theirs = error(_f64(xla))
        finite = theirs[np.isfinite(theirs)]
        allowed = max(case.ulps, 2 * float(np.max(finite, initial=0)))
        flushed = (np.abs(_f64(ours)) <= tiny) & (np.abs(best) <= tiny)  # XLA's subnormals on a CPU are zeros
        return flushed | (error(_f64(ours)) <= allowed)
