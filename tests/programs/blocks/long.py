"""Blocks of long rows within longer ones, against NumPy.

A box of the copy engine has 256 elements along a dimension: longer ones are pieces, or dimensions more, or what is copied otherwise.
"""

from __future__ import annotations

import random
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np

from tests.fuzz.bits import keep
from tests.fuzz.grammar import Grammar

DTYPES = ("float32", "bfloat16", "float16", "int32", "uint8", "int16")
#: Of the body on whole blocks, and of NumPy on each block.
BODIES: dict[str, Any] = {
    "plus one": lambda v: v + 1,
    "twice": lambda v: v * 2,
    "rows turned": lambda v: v[::-1],
    "columns turned": lambda v: v[..., ::-1],
}


class Long:
    """A call with blocks of which one dimension, mostly the last one, is long."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.dtype = rng.choice(DTYPES)
        rank = rng.choice([2, 2, 2, 3])
        unit = rng.choice([1, 4, 8, 16, 16])
        long = rng.choice([rng.randint(257, 1100), 8 * rng.randint(33, 140), 100 * rng.randint(3, 11), 64 * rng.randint(5, 17), 257 * 8])
        block = [rng.choice([1, 2, 3, 4, 8]) for _ in range(rank - 1)] + [-(-long // unit) * unit]
        if rng.random() < 0.2:
            block[-2:] = [block[-1] // 2, rng.choice([8, 16, 24, 40])]
        # Two operands of it, in as many slots as there may be, are to fit.
        while np.prod(block) * 3 > 40 << 10:
            k = max(range(rank - 1), key=lambda k: block[k])
            block[k] = max(1, block[k] // 2)
            if block[k] == 1:
                block[-1] = min(block[-1], 2048)
        self.block = tuple(block)
        self.grid = tuple(rng.randint(1, 3) for _ in block)
        self.short = tuple(rng.choice([0, 0, 0, rng.randint(0, b - 1)]) for b in block)
        self.shape = tuple(b * n - s for b, n, s in zip(self.block, self.grid, self.short))
        is_whole = not any(self.short)
        self.body = rng.choice(list(BODIES)) if is_whole else rng.choice(["plus one", "twice"])
        self.steps = rng.randint(1, 3)
        self.squeezed = rank == 3 and self.block[0] == 1 and rng.random() < 0.7

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)} in {list(self.block)}, {self.body}, {self.steps} steps"

    def check(self) -> None:
        f = BODIES[self.body]

        def body(x: Any, o: Any) -> None:
            o[...] = f(x[...])

        block: Any = (None, *self.block[1:]) if self.squeezed else self.block
        spec = pl.BlockSpec(block, lambda *i: i)
        x = np.random.default_rng(0).integers(0, 100, self.shape).astype(jnp.dtype(self.dtype))
        call = pl.pallas_call(
            body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), grid=self.grid, in_specs=[spec], out_specs=spec,
            compiler_params=plgpu.CompilerParams(max_concurrent_steps=self.steps),
        )  # fmt: skip
        expected = np.empty_like(x)
        for index in np.ndindex(*self.grid):
            here = tuple(slice(i * b, (i + 1) * b) for i, b in zip(index, self.block))
            part = x[here][0] if self.squeezed else x[here]
            expected[here] = f(part)
        np.testing.assert_array_equal(keep(jax.jit(call)(x)), expected, err_msg=str(self))


LONG_ROWS = Grammar("pallas calls, long rows", Long, Long.check)
