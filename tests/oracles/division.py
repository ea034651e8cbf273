"""`x / y` of f32: a GPU, the emulator and XLA against each other, bit for bit.

    python -m tests.oracles.division [--pairs N] [--emulator]

runs one kernel that divides on the GPU and in the emulator, on the same operands, and XLA's own division on the GPU on them too.
Kinds of operands take turns: any bits; extreme exponents (subnormals, infinities and NaN among them); exponents near each
other; quotients near the smallest normal number; special values against any. `--emulator`: no GPU, the emulator against
NumPy within the 2 ulp that `div.full` promises, and bit for bit with `precise_division`.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from typing import Any

import jax
import jax.experimental.pallas as pl
import numpy as np
from jax import lax

import smalt
from smalt import _native
from tests.corpus.case import EXACT, f32, kernel, like

#: Pairs of one launch, and of one block of its grid.
LAUNCH, BLOCK = 1 << 22, 1 << 13

Words = np.ndarray[Any, np.dtype[np.uint32]]


def _any(rng: np.random.Generator) -> tuple[Words, Words]:
    x, y = rng.integers(0, 1 << 32, (2, LAUNCH), dtype=np.uint32)
    return x, y


def _exponents(rng: np.random.Generator, of_x: Any, of_y: Any) -> tuple[Words, Words]:
    x, y = _any(rng)
    keep = np.uint32(0x807F_FFFF)
    return x & keep | of_x.astype(np.uint32) << 23, y & keep | of_y.astype(np.uint32) << 23


def _extreme(rng: np.random.Generator) -> tuple[Words, Words]:
    ends = np.array([0, 0, 1, 2, 3, 126, 127, 128, 250, 251, 252, 253, 254, 255])
    x, y = rng.choice(ends, (2, LAUNCH))
    return _exponents(rng, x, y)


def _near(rng: np.random.Generator) -> tuple[Words, Words]:
    y = rng.integers(32, 224, LAUNCH)
    return _exponents(rng, y + rng.integers(-30, 31, LAUNCH), y)


def _tiny(rng: np.random.Generator) -> tuple[Words, Words]:
    y = rng.integers(1, 255, LAUNCH)
    return _exponents(rng, np.clip(y - 126 + rng.integers(-26, 4, LAUNCH), 0, 254), y)


def _special(rng: np.random.Generator) -> tuple[Words, Words]:
    values = [0, 1, 2, 0x7FFFFF, 0x800000, 0x800001, 0x3F800000, 0x3F7FFFFF, 0x3F800001, 0x40400000, 0x7E7FFFFF, 0x7E800000,
              0x7E800001, 0x7F7FFFFF, 0x7F800000, 0x7FC00000]  # fmt: skip
    special = rng.choice(np.array(values, np.uint32), LAUNCH) | rng.integers(0, 2, LAUNCH).astype(np.uint32) << 31
    other = rng.integers(0, 1 << 32, LAUNCH, dtype=np.uint32)
    swap = rng.integers(0, 2, LAUNCH).astype(bool)
    return np.where(swap, special, other), np.where(swap, other, special)


KINDS = {"any bits": _any, "extreme exponents": _extreme, "near exponents": _near, "tiny quotients": _tiny, "special": _special}


def _divide(params: Any) -> _native.Artifact:
    def body(x, y, o):
        at = pl.ds(lax.axis_index("i") * BLOCK, BLOCK)
        o[at] = x[at] / y[at]

    def f(x, y):
        return kernel(body, like((LAUNCH,)), params=params, grid=(LAUNCH // BLOCK,), grid_names=("i",))(x, y)

    with smalt.emulated("H100"):
        ((_, descriptor, debug),) = smalt.descriptor(f, f32(LAUNCH).struct(), f32(LAUNCH).struct())
    return _native.compile(descriptor, debug, "sm_90a")


def _same(a: Words, b: Words, what: str, x: Words, y: Words) -> int:
    """How many differ; NaN equals NaN."""
    nan = np.isnan(a.view(np.float32)) & np.isnan(b.view(np.float32))
    wrong = np.flatnonzero((a != b) & ~nan)
    for i in wrong[:5]:
        print(f"  {what}: 0x{x[i]:08x} / 0x{y[i]:08x}: 0x{a[i]:08x}, not 0x{b[i]:08x}")
    return len(wrong)


def _within(a: Words, x: Words, y: Words) -> int:
    """How many normal quotients are more than 2 ulp off (2.012 is the most seen, in ulps of the exact quotient)."""
    with np.errstate(all="ignore"):
        exact = x.view(np.float32).astype(np.float64) / y.view(np.float32).astype(np.float64)
        normal = (np.abs(exact) >= 2.0**-126) & (np.abs(exact) < 2.0**127)
        ulp = 2.0 ** (np.floor(np.log2(np.abs(np.where(normal, exact, 1)))) - 23)
        off = np.abs(a.view(np.float32).astype(np.float64) - exact) / ulp
    return int((normal & ~(off <= 2.02)).sum())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=1 << 28)
    parser.add_argument("--emulator", action="store_true")
    args = parser.parse_args()
    divide = _divide(EXACT)
    precise = _divide(dataclasses.replace(EXACT, precise_division=True))
    assert "div.full.f32" in divide.ptx and "div.rn.f32" in precise.ptx
    xla = jax.jit(lambda x, y: x / y)
    rng = np.random.default_rng(0)
    start, wrong = time.time(), 0
    for launch in range(-(-args.pairs // LAUNCH)):
        kind = list(KINDS)[launch % len(KINDS)]
        x, y = KINDS[kind](rng)

        def run(how: Any, x: Words = x, y: Words = y) -> Words:
            out = np.empty(LAUNCH, np.float32)
            how([x.view(np.float32), y.view(np.float32), out])
            return out.view(np.uint32)

        model = run(lambda buffers: divide.emulate(buffers))
        if args.emulator:
            wrong += _within(model, x, y)
            with np.errstate(all="ignore"):
                numpy = (x.view(np.float32) / y.view(np.float32)).view(np.uint32)
            wrong += _same(run(lambda buffers: precise.emulate(buffers)), numpy, "precise, not NumPy's", x, y)
        else:
            gpu = run(lambda buffers: divide.run(buffers, 0))
            wrong += _same(model, gpu, "the emulator, not the GPU's", x, y)
            other = np.asarray(xla(x.view(np.float32), y.view(np.float32))).view(np.uint32)
            wrong += _same(gpu, other, "the kernel, not XLA's", x, y)
        print(f"{(launch + 1) * LAUNCH} pairs ({kind}): {wrong} wrong, {time.time() - start:.0f} s", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
