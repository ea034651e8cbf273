"""Random products of operands that lie somewhere: in blocks of `pl.pallas_call`, in shared memory that threads have stored to, in device
memory, in registers; either way round, in one piece or in steps of K, with sums carried on, or a product of a product.

Against the product in f64 of what the operands are rounded to.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from tests.fuzz.bits import keep
from tests.fuzz.grammar import Grammar
from tests.programs.products import is_float, to_tf32

Array = np.ndarray[Any, Any]

TYPES = tuple(np.dtype(d) for d in (np.float16, ml_dtypes.bfloat16, np.float32, np.int8, np.uint8))
ROWS = (64, 64, 64, 128, 128, 192, 16, 40, 100)
COLUMNS = (8, 16, 24, 32, 40, 64, 64, 96, 128, 128, 136, 256)
DEPTHS = (8, 16, 24, 32, 40, 64, 64, 96, 128, 128, 192)
PLACES = ("block", "stored", "device", "registers")
#: Of the operands and the result, for the kernel to fit.
MOST_BYTES = 150 << 10


def product(x: Any, y: Any, turned: tuple[bool, bool], to: Any) -> Any:
    """x @ y, of operands that may lie the other way round."""
    dims = (((0 if turned[0] else 1,), (1 if turned[1] else 0,)), ((), ()))
    return lax.dot_general(x, y, dims, preferred_element_type=to)


@dataclasses.dataclass(frozen=True)
class MemoryProduct:
    seed: int
    dtype: np.dtype[Any]
    m: int
    n: int
    k: int
    turned: tuple[bool, bool]
    places: tuple[str, str]
    #: The body goes through K in so many slices of its operands.
    slices: int
    #: Steps of a sequential grid axis along K, and slots.
    steps: int
    slots: int
    #: Starts from a third operand.
    is_sum: bool
    #: Another factor: the product, rounded to the operands' type, times (n, so many).
    second: int
    warpgroups: int

    @staticmethod
    def of(seed: int) -> MemoryProduct:
        rng = np.random.default_rng(seed)
        dtype = TYPES[seed % len(TYPES)]
        while True:
            m, n, k = (int(rng.choice(sizes)) for sizes in (ROWS, COLUMNS, DEPTHS))
            places: Any = tuple(str(rng.choice(PLACES)) for _ in range(2))
            is_blocks = "block" in places
            p = MemoryProduct(
                seed,
                dtype,
                m,
                n,
                k,
                (bool(rng.random() < 0.3), bool(rng.random() < 0.4)),
                places,
                int(rng.choice((1, 1, 2, 4))) if k % 32 == 0 else 1,
                int(rng.choice((1, 1, 2, 3))) if is_blocks else 1,
                int(rng.choice((1, 2))),
                bool(rng.random() < 0.3),
                int(rng.choice((0, 0, 0, 16, 64))) if is_float(dtype) else 0,
                1 if is_blocks else int(rng.choice((1, 1, 2))),
            )
            size = dtype.itemsize * k * (m + n) * (p.slots if is_blocks else p.warpgroups) + 4 * m * n
            # More sums a thread spill; nothing is learnt from those.
            if size <= MOST_BYTES and m * n <= 128 * 128:
                return p

    @property
    def to(self) -> Any:
        return jnp.float32 if is_float(self.dtype) else jnp.int32

    def data(self) -> list[Array]:
        """The operands of all steps, or of all warpgroups; what the sum starts from; the second factor."""
        rng = np.random.default_rng(self.seed + 1)
        many = self.steps * self.warpgroups
        (m, n, k), (a, b) = (self.m, self.n, self.k), self.turned
        shapes = [(many, k, m) if a else (many, m, k), (many, n, k) if b else (many, k, n)]
        if is_float(self.dtype):
            operands = [rng.standard_normal(s).astype(self.dtype) for s in shapes]
        else:
            info = np.iinfo(self.dtype)
            operands = [rng.integers(info.min, info.max, s, dtype=self.dtype, endpoint=True) for s in shapes]
        start = rng.integers(-99, 99, (self.warpgroups, m, n)).astype(self.to)
        second = (rng.standard_normal((self.warpgroups, n, max(self.second, 1))) / 8).astype(np.float32)
        return [*operands, start, second.astype(self.dtype)]

    def slice(self, ref: Any, turned: bool, k_first: bool, i: int) -> Any:
        """Slice i of K of an operand: of a reference."""
        if self.slices == 1:
            return ref[...]
        size = self.k // self.slices
        ks = slice(i * size, (i + 1) * size)
        return ref[ks, :] if turned != k_first else ref[:, ks]

    def body(self, x: Any, y: Any, start: Any, z: Any) -> Any:
        """Of references to one step of the operands."""
        acc = start
        for i in range(self.slices):
            one, two = self.slice(x, self.turned[0], False, i), self.slice(y, self.turned[1], True, i)
            one, two = (v + v.dtype.type(0) if p == "registers" else v for v, p in zip((one, two), self.places))
            part = product(one, two, self.turned, self.to)
            acc = part if acc is None else acc + part
        if self.second:
            acc = product(acc.astype(self.dtype), z[...], (False, False), self.to)
        return acc

    def run(self, inputs: list[Array]) -> Array:
        return np.asarray(jax.jit(self.of_blocks() if "block" in self.places else self.of_threads())(*inputs))

    def of_blocks(self) -> Any:
        """One block, which goes through the steps in turn."""
        width = self.second or self.n
        is_summed = self.steps > 1

        def kernel(x: Any, y: Any, start: Any, z: Any, out: Any, xs: Any, ys: Any) -> None:
            refs = []
            for ref, stored, place in ((x, xs, self.places[0]), (y, ys, self.places[1])):
                if place == "stored":
                    stored[...] = ref[...]
                refs.append(stored if place == "stored" else ref)
            if not is_summed:
                out[...] = self.body(*refs, start[...] if self.is_sum else None, z)
                return

            @pl.when(pl.program_id(0) == 0)
            def _() -> None:
                out[...] = jnp.zeros_like(out)

            out[...] += self.body(*refs, None, z)

        def spec(shape: tuple[int, ...], place: str, by_step: bool) -> Any:
            space = {} if place == "block" else {"memory_space": plgpu.GMEM}
            return plgpu.BlockSpec((None, *shape), lambda i: (i if by_step else 0, 0, 0), **space)

        (m, n, k), (a, b) = (self.m, self.n, self.k), self.turned
        shapes = ((k, m) if a else (m, k), (n, k) if b else (k, n))
        none = (8, 128)
        return pl.pallas_call(
            kernel,
            grid=(self.steps,),
            in_specs=[
                *(spec(s, p, True) for s, p in zip(shapes, self.places)),
                spec((m, n), "device", False),
                spec((n, max(self.second, 1)), "device", False),
            ],
            out_specs=pl.BlockSpec((m, width), lambda i: (0, 0)),
            out_shape=jax.ShapeDtypeStruct((m, width), self.to),
            scratch_shapes=[plgpu.SMEM(s if p == "stored" else none, self.dtype) for s, p in zip(shapes, self.places)],
            compiler_params=plgpu.CompilerParams(max_concurrent_steps=self.slots),
        )

    def of_threads(self) -> Any:
        """A kernel of one or more warpgroups, each with operands of its own."""
        (m, n, k), (a, b) = (self.m, self.n, self.k), self.turned
        shapes = ((k, m) if a else (m, k), (n, k) if b else (k, n))

        def body(x: Any, y: Any, start: Any, z: Any, out: Any) -> None:
            own = lax.axis_index("wg")

            def scoped(*stored: Any) -> None:
                refs, given = [], (slot.at[own] for slot in stored)
                for ref, place in zip((x.at[own], y.at[own]), self.places):
                    if place == "stored":
                        (slot := next(given))[...] = ref[...]
                        ref = slot
                    refs.append(ref)
                out[own] = self.body(*refs, start[own] if self.is_sum else None, z.at[own])

            many = self.warpgroups
            slots = [plgpu.SMEM((many, *s), self.dtype) for s, p in zip(shapes, self.places) if p == "stored"]
            pl.run_scoped(scoped, *slots, **({"collective_axes": "wg"} if many > 1 and slots else {}))

        result = jax.ShapeDtypeStruct((self.warpgroups, m, self.second or n), self.to)
        return plgpu.kernel(body, out_type=result, num_threads=self.warpgroups, thread_name="wg")

    def expected(self, inputs: list[Array]) -> tuple[Array, Array]:
        """The result, and what may be lost."""
        x, y, start, z = inputs
        x = x.swapaxes(1, 2) if self.turned[0] else x
        y = y.swapaxes(1, 2) if self.turned[1] else y
        if not is_float(self.dtype):
            parts = np.einsum("smk,skn->smn", x.astype(np.int64), y.astype(np.int64))
            if self.steps > 1:
                return parts.sum(0).astype(np.int32), np.zeros(1)
            whole = parts + (start if self.is_sum else 0)
            return whole.astype(np.int32).reshape(-1, *whole.shape[1:]), np.zeros(1)
        x, y, z = ((to_tf32(v) if v.dtype == np.float32 else v).astype(np.float64) for v in (x, y, z))
        unit = 2.0**-22
        parts, sizes = x @ y, abs(x) @ abs(y)
        if self.steps == 1 and self.is_sum:
            parts, sizes = parts + start, sizes + abs(start)
        lost = (self.k + 8) * unit * sizes
        if self.second:
            # Rounded to the operands' type: f32 to tf32.
            lost = lost + abs(parts) * (2.0**-10 if self.dtype == np.float32 else 0.51 * float(jnp.finfo(self.dtype).eps))
            z = np.broadcast_to(z, (self.steps * self.warpgroups, *z.shape[1:]))
            parts, sizes, lost = parts @ z, abs(parts) @ abs(z), lost @ abs(z)
            lost = lost + (self.n + 8) * unit * sizes
        if self.steps > 1:
            parts, lost = parts.sum(0), lost.sum(0) + 8 * unit * sizes.sum(0)
        return parts, lost + 1e-30

    def check(self) -> None:
        inputs = self.data()
        got, (expected, lost) = keep(self.run(inputs)), self.expected(inputs)
        expected = expected.reshape(got.shape)
        lost = np.broadcast_to(lost, got.shape) if lost.size == 1 else lost.reshape(got.shape)
        off = abs(got.astype(np.float64) - expected)
        assert (off <= lost).all(), f"{self}: off by {off.max()}, {np.sum(off > lost)} of {off.size} elements"


MEMORY_PRODUCTS = Grammar("products of memory", MemoryProduct.of, MemoryProduct.check)
