"""Random products whose left operand is loaded from shared memory and converted for them: they may begin with a half of it.

In some kernels something stands against it: the operand is stored over, given back, or wanted by another thread before the product, or has
too few columns. Each has a NumPy reference; numbers are small and whole, so sums are exact.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from tests.corpus.case import kernel, like
from tests.programs.loops.loops import Loops, grammar, picker

Array = np.ndarray[Any, Any]

#: With types.
_loop: Callable[[Any, Any], Callable[[Callable[[Any], None]], Any]] = pl.loop

#: What is loaded, and what it becomes.
TYPES: list[tuple[Any, Any]] = [
    (np.int8, ml_dtypes.bfloat16),
    (np.int8, np.float16),
    (np.uint8, ml_dtypes.bfloat16),
    (ml_dtypes.float8_e4m3fn, np.float16),
    (np.float16, ml_dtypes.bfloat16),
    (np.int16, np.float16),
    (np.float32, ml_dtypes.bfloat16),
    (np.float32, np.float16),
]


@dataclasses.dataclass(frozen=True)
class Staged(Loops):
    """A kernel.

    Attributes:
        shape: Rows, columns, and the length of the sums.
        types: What is loaded, and what it becomes.
        transposed: The right operand lies as columns.
        steps: Products into one accumulator.
        between: What happens between the load and the product: nothing; the operand is stored over ("over"), stored elsewhere ("shared"), or
            another thread is signalled ("arrive").
        products: Products of one converted operand.
    """

    seed: int
    shape: tuple[int, int, int]
    types: tuple[Any, Any]
    transposed: bool
    steps: int
    between: str
    products: int

    @classmethod
    def of(cls, seed: int) -> Staged:
        pick = picker(seed, 9)
        rows, types = pick(64, 64, 128), pick(*TYPES)
        # All of it fits into shared memory, and into registers.
        most = 64 if (rows, types[0]) == (128, np.float32) else 192 * 64 // rows
        return cls(
            seed=seed,
            shape=(rows, pick(32, 64, 128), min(pick(32, 64, 64, 96, 128, 192), most)),
            types=types,
            transposed=bool(pick(0, 1)),
            steps=pick(1, 2, 3),
            between=pick(*["nothing"] * 4, "over", "shared", "arrive"),
            products=pick(1, 1, 1, 2),
        )

    @property
    def halves(self) -> bool:
        """Whether products begin with a part: two instructions of 16 along the sums, or more, in each."""
        return self.shape[2] >= 64 and self.between == "nothing" and self.products == 1

    def inputs(self) -> list[Array]:
        rng = np.random.default_rng(self.seed)
        m, n, k = self.shape
        low = 0 if self.types[0] == np.uint8 else -4
        a = rng.integers(low, 5, (self.steps, m, k)).astype(self.types[0])
        right = (self.steps, n, k) if self.transposed else (self.steps, k, n)
        return [a, rng.integers(-3, 4, right).astype(self.types[1])]

    def reference(self) -> list[Array]:
        a, b = (x.astype(np.float32) for x in self.inputs())
        if self.transposed:
            b = b.transpose(0, 2, 1)
        total = (a @ b).sum(0) * self.products
        first = a[-1] if self.between == "shared" else np.zeros_like(a[0])
        return [total, first]

    def function(self) -> Any:
        m, n, k = self.shape
        left, right = self.types
        right_shape = (n, k) if self.transposed else (k, n)
        minor = right_shape[1] * 2
        swizzle = next(s for s in (128, 64, 32) if minor % s == 0)
        transforms = (plgpu.TilingTransform((8, swizzle // 2)), plgpu.SwizzleTransform(swizzle))

        def body(a: Any, b: Any, o: Any, kept: Any, a_buf: Any, b_buf: Any, out: Any, copy: Any, loaded: Any, told: Any) -> None:
            copy[...] = jnp.zeros((m, k), jnp.float32)

            def compute(acc: Any) -> Any:
                @_loop(0, self.steps)
                def _(i: Any) -> None:
                    plgpu.copy_gmem_to_smem(a.at[i], a_buf, loaded)
                    plgpu.copy_gmem_to_smem(b.at[i], b_buf, loaded)
                    plgpu.barrier_wait(loaded)
                    x = a_buf[...]
                    if self.between == "over":
                        a_buf[...] = jnp.zeros((m, k), left)
                    if self.between == "arrive":
                        plgpu.barrier_arrive(told)
                        plgpu.barrier_wait(told)
                    y = x.astype(right)
                    if self.between == "shared":
                        copy[...] = y.astype(jnp.float32)
                    for _ in range(self.products):
                        plgpu.wgmma(acc, y, plgpu.transpose_ref(b_buf, (1, 0)) if self.transposed else b_buf)
                    plgpu.wgmma_wait(0)

                return acc[...]

            out[...] = pl.run_scoped(compute, plgpu.ACC((m, n), jnp.float32))
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(out, o)
            plgpu.copy_smem_to_gmem(copy, kept)
            plgpu.wait_smem_to_gmem(0)

        return kernel(
            body,
            [like((m, n), jnp.float32), like((m, k), jnp.float32)],
            plgpu.SMEM((m, k), left),
            plgpu.SMEM(right_shape, right, transforms=transforms),
            plgpu.SMEM((m, n), jnp.float32),
            plgpu.SMEM((m, k), jnp.float32),
            plgpu.Barrier(num_arrivals=2),
            plgpu.Barrier(),
        )


STAGED = grammar("staged operands", Staged.of)
