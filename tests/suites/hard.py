"""Kernels that a toy would fail, each with its reference.

| what | test |
|---|---|
| a kernel that closes over a traced scalar, under vmap and scan | `closed_over_scalar_under_vmap_and_scan`, corpus `closes_over_scalar`, `closes_over_scalar_in_scan` |
| vmap of vmap over a 3-D grid, one operand unbatched | `vmap_of_vmap_over_3d_grid` |
| grids (70000, 2) and (2, 70000) | corpus `grid_wide_y`, `grid_wide_x` |
| 40 tensor maps | `forty_tensor_maps`, `test_forty_tensor_maps_are_that_many` |
| equal kernels at two lines, each reported right | `test_equal_kernels_report_their_own_lines` |
| a barrier scoped in a loop of 5 | corpus `barrier_scoped_in_loop` |
| a barrier array waited at a dynamic slot in one arm | corpus `barrier_array_in_one_arm`, `dynamic_slots_in_one_arm` (a slot may go unused, and twice in a row) |
| three buffers, no wgmma_wait | corpus `three_buffers_no_wait` |
| a sibling scope that takes the memory that a wgmma in flight reads | `sibling_scope_over_wgmma_operands_stores`, `…_copies` |
| a while whose condition loads and reduces | `while_that_loads_and_reduces` |
| two accumulators swapped every iteration | `accumulators_swapped` |
| an accumulator through a data-dependent while | `accumulator_through_data_dependent_while`, corpus `accumulator_through_while` |
| accumulators whose rows lie in the same banks: stored, at any row, transposed, and read back | `accumulator_in_plain_memory_…` |
| two warpgroups reading one buffer in different layouts | `one_buffer_two_layouts` |
| shapes (10,), (33,), (64, 24) | corpus `odd_shapes`; a quarter of the random programs |
| x*y+z like NumPy | corpus `multiply_add_exact` |
| ±0, NaN, inf through max, min, sign, round | `float_specials_f16`, `…_bf16`, `…_f32`, `…_f64`, corpus `max_min_special` |
| casts of every pair of types | `casts_from_…` |
| // and % by 0, -1, INT_MIN; shifts by the width, beyond it, by -1 | `int_specials_i8` … `u64`, corpus `binary_int`, `python_division`, `shifts` |
| // and % by constants, which are products | `divided_by_constants_i8` … `u64`, `counters_divided_in_loops` |
| x64 mode | corpus `loops_in_x64`, `wide_types`; a quarter of the random programs |
| bool and int4 through SMEM | corpus `narrow_types_through_smem`, `narrow_types_stored_to_smem` |
| 8 warpgroups, 9 refused | corpus `eight_warpgroups`, `eight_warpgroups_work`, `test_nine_warpgroups_are_refused` |
| 10,000 kernels in bounded memory | `test_many_kernels_take_bounded_memory` |
| buffers that move between calls (on a GPU under a CUDA graph) | `test_buffers_move_between_calls`, `tests/gpu/test_wire.py` |

The tests are in `suite.py`, which both `tests/emulated/arrays/test_kernels.py` (emulator) and `tests/gpu/suites/test_kernels.py` run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from tests.corpus.case import NUMPY, Arg, Case, f16, f32, i32, kernel, like, load
from tests.corpus.tensorcore import tiled
from tests.oracles import semantics
from tests.oracles.semantics import BF16, BOOL, F16, F32, F64, FP8, INT4, INTS, SIGNED, UINT4
from tests.oracles.special import data, specials
from tests.programs.backends import Jax, Numpy

SMEM, Barrier, ACC = plgpu.SMEM, plgpu.Barrier, plgpu.ACC

#: Of the corpus, those that the table names.
FROM_CORPUS = (
    "accumulator_through_while", "barrier_array_in_one_arm", "barrier_scoped_in_loop", "binary_int", "closes_over_scalar",
    "closes_over_scalar_in_scan", "eight_warpgroups", "grid_wide_x", "grid_wide_y", "loops_in_x64", "max_min_special",
    "multiply_add_exact", "narrow_types_through_smem", "odd_shapes", "python_division", "shifts", "three_buffers_no_wait",
    "wide_types",
)  # fmt: skip

CASES: dict[str, Case] = {}


def hard(*args: Arg, name: str | None = None, **kwargs: Any) -> Callable[[Any], Any]:
    def register(fn: Any) -> Any:
        key = name or fn.__name__
        assert key not in CASES, key
        CASES[key] = Case(name=key, fn=fn, args=args, **kwargs)
        return fn

    return register


def _mul(a: Any, b: Any) -> Any:
    return np.asarray(a, np.float32) @ np.asarray(b, np.float32)


# ------------------------------------------------------------------------------------------ programs around kernels


@hard(f32(4, 3, 64), f32(4), reference=lambda x, s: np.stack([x[i] * (s[: i + 1].sum(dtype=np.float32) + 1) for i in range(4)]))
def closed_over_scalar_under_vmap_and_scan(x, s):
    """The scalar is the scan's carry plus one; the rows are a batch."""

    def step(total, xs):
        rows, more = xs
        total = total + more

        def body(x, o):
            o[...] = x[...] * (total + 1)

        return total, jax.vmap(kernel(body, like((64,))))(rows)

    return lax.scan(step, jnp.float32(0), (x, s))[1]


@hard(f32(2, 3, 2, 3, 2, 8), f32(3, 8), reference=lambda x, y: x * 2 + y[:, None])
def vmap_of_vmap_over_3d_grid(x, y):
    """The unbatched operand is indexed by a grid axis; each grid axis has a size of its own neighbours do not have."""

    def body(x, y, o):
        at = tuple(lax.axis_index(n) for n in "abc")
        o[at] = x[at] * 2 + y[at[1]]

    k = kernel(body, like((2, 3, 2, 8)), grid=(2, 3, 2), grid_names=("a", "b", "c"))
    return jax.vmap(jax.vmap(k, (0, None)), (0, None))(x, y)


@hard(f32(40, 16, 64), reference=lambda x: x + np.arange(40, dtype=np.float32)[:, None, None])
def forty_tensor_maps(x):
    """Swizzled copies, each from an array of its own."""

    def body(*refs):
        ins, (o, buf, bar) = refs[:40], refs[40:]
        for i, r in enumerate(ins):
            plgpu.copy_gmem_to_smem(r, buf, bar)
            plgpu.barrier_wait(bar)
            o[i] = buf[...] + i

    scratch = (SMEM((16, 64), jnp.float32, transforms=tiled(jnp.float32)), Barrier())
    return kernel(body, like((40, 16, 64)), *scratch)(*[x[i] for i in range(40)])


# ------------------------------------------------------------------------------------------ barriers and phases


@hard(f32(9, 64), Arg((9,), jnp.int32, values=(0, 1, 1, 2, 0, 1, 2, 2, 2)), reference=lambda x, which: x * np.array([1, 3, 3, 2, 1, 3, 2, 2, 2], np.float32)[:, None])
def dynamic_slots_in_one_arm(x, which):
    """Slots 0 to 2 are waited for in any order and any number of times, in one arm of a switch; one barrier is never used."""

    def body(x, which, o, buf, bars):
        @pl.loop(0, 9)
        def _(i):
            def copied():
                slot = lax.rem(i * i + 1, 3)
                plgpu.copy_gmem_to_smem(x.at[i], buf.at[slot], bars.at[slot])
                plgpu.barrier_wait(bars.at[slot])
                o[i] = buf[slot] * 2

            def plain():
                o[i] = x[i]

            def threefold():
                o[i] = x[i] * 3

            lax.switch(which[i], [plain, threefold, copied])

    return kernel(body, like((9, 64)), SMEM((4, 64), jnp.float32), Barrier(num_barriers=4))(x, which)


def _shrink(x):
    values, n = np.abs(x), 0
    while values.max() > 0.1:
        values, n = values * np.float32(0.5), n + 1
    return values, np.int32(n)


@hard(f32(64, 24), reference=_shrink)
def while_that_loads_and_reduces(x):
    def body(x, o, count, scratch):
        scratch[...] = jnp.abs(x[...])

        def step(i):
            scratch[...] = scratch[...] * 0.5
            return i + 1

        count[...] = lax.while_loop(lambda i: scratch[...].max() > 0.1, step, jnp.int32(0))
        o[...] = scratch[...]

    return kernel(body, [like((64, 24)), like((), jnp.int32)], SMEM((64, 24), jnp.float32))(x)


# ------------------------------------------------------------------------------------------ accumulators


def _over_operands(how: str) -> Any:
    def fn(a, b, x):
        """The second scope gets the first one's memory (both do not fit), while the first one's wgmma has not been waited for."""

        def body(a, b, x, o, p):
            def compute(acc):
                def first(a_buf, b_buf, bars):
                    for i in range(4):
                        at = pl.ds(i * 128, 128)
                        plgpu.copy_gmem_to_smem(a.at[:, at], a_buf.at[:, at], bars.at[0])
                        plgpu.barrier_wait(bars.at[0])
                        plgpu.copy_gmem_to_smem(b.at[at], b_buf.at[at], bars.at[1])
                        plgpu.barrier_wait(bars.at[1])
                    plgpu.wgmma(acc, a_buf, b_buf)

                def second(buf, bar):
                    if how == "stores":
                        buf[...] = x[...] * 2
                    else:
                        plgpu.copy_gmem_to_smem(x, buf, bar)
                        plgpu.barrier_wait(bar)
                    p[...] = buf[...]

                operands = (SMEM((64, 512), jnp.float16, transforms=tiled(jnp.float16)), SMEM((512, 64), jnp.float16, transforms=tiled(jnp.float16)))
                pl.run_scoped(first, *operands, Barrier(num_barriers=2))
                pl.run_scoped(second, SMEM((128, 256), jnp.float32), Barrier())
                return acc[...]

            o[...] = pl.run_scoped(compute, ACC((64, 64), jnp.float32))

        return kernel(body, [like((64, 64)), like((128, 256))])(a, b, x)

    return fn


for _how in ("stores", "copies"):
    hard(
        f16(64, 512), f16(512, 64), f32(128, 256),
        name=f"sibling_scope_over_wgmma_operands_{_how}",
        reference=lambda a, b, x, twice=2 if _how == "stores" else 1: (_mul(a, b), x * twice),
        tolerance=2e-3,
    )(_over_operands(_how))  # fmt: skip


def _swapped(a, b):
    c, d = np.zeros((64, 64), np.float32), np.zeros((64, 64), np.float32)
    for i in range(5):
        at = slice(64 * i, 64 * i + 64)
        c, d = d, c + _mul(a[:, at], b[at]) * (i + 1)
    return c, d


@hard(f16(64, 320), f16(320, 64), reference=_swapped, tolerance=4e-3)
def accumulators_swapped(a, b):
    """An odd number of swaps; each iteration adds to one of the two, i + 1 times."""

    def body(a, b, o, p, a_buf, b_buf, bars):
        def compute(one, other):
            @pl.loop(0, 5)
            def _(i):
                at = pl.ds(i * 64, 64)
                plgpu.copy_gmem_to_smem(a.at[:, at], a_buf, bars.at[0])
                plgpu.copy_gmem_to_smem(b.at[at], b_buf, bars.at[1])
                plgpu.barrier_wait(bars.at[0])
                plgpu.barrier_wait(bars.at[1])

                @pl.loop(0, i + 1)
                def _(_):
                    plgpu.wgmma(one, a_buf, b_buf)

                before = one[...]
                one[...] = other[...]
                other[...] = before

            return one[...], other[...]

        o[...], p[...] = pl.run_scoped(compute, ACC((64, 64), jnp.float32), ACC((64, 64), jnp.float32))

    buf = SMEM((64, 64), jnp.float16, transforms=tiled(jnp.float16))
    return kernel(body, [like((64, 64))] * 2, buf, buf, Barrier(num_barriers=2))(a, b)


def _chained(a, b, nexts):
    total, i = np.zeros((64, 64), np.float32), 0
    while i >= 0:
        at = slice(64 * i, 64 * i + 64)
        total, i = total + _mul(a[:, at], b[at]), int(nexts[i])
    return total


@hard(f16(64, 320), f16(320, 64), Arg((5,), jnp.int32, values=(3, 4, -1, 1, 2)), reference=_chained, tolerance=4e-3)
def accumulator_through_data_dependent_while(a, b, nexts):
    """A chain through memory says which step is next, and whether there is one."""

    def body(a, b, nexts, o, a_buf, b_buf, bars):
        def compute(acc):
            def step(i):
                at = pl.ds(pl.multiple_of(i * 64, 64), 64)
                plgpu.copy_gmem_to_smem(a.at[:, at], a_buf, bars.at[0])
                plgpu.copy_gmem_to_smem(b.at[at], b_buf, bars.at[1])
                plgpu.barrier_wait(bars.at[0])
                plgpu.barrier_wait(bars.at[1])
                plgpu.wgmma(acc, a_buf, b_buf)
                plgpu.wgmma_wait(0)
                return nexts[i]

            lax.while_loop(lambda i: i >= 0, step, jnp.int32(0))
            return acc[...]

        o[...] = pl.run_scoped(compute, ACC((64, 64), jnp.float32))

    buf = SMEM((64, 64), jnp.float16, transforms=tiled(jnp.float16))
    return kernel(body, like((64, 64)), buf, buf, Barrier(num_barriers=2))(a, b, nexts)


def _in_plain_memory(columns: int, dtype: Any) -> tuple[Any, Any]:
    first, rows = 8, 96

    def fn(a, b, start):
        """Rows that are in the same banks: at a static row, at a dynamic one, read back, transposed."""

        def body(a, b, start, o, p, q, r, a_buf, b_buf, tile, turned, bars):
            plgpu.copy_gmem_to_smem(a, a_buf, bars.at[0])
            plgpu.copy_gmem_to_smem(b, b_buf, bars.at[1])
            plgpu.barrier_wait(bars.at[0])
            plgpu.barrier_wait(bars.at[1])

            def compute(acc):
                plgpu.wgmma(acc, a_buf, b_buf)
                return acc[...]

            values = pl.run_scoped(compute, ACC((64, columns), jnp.float32)).astype(dtype)
            tile[...] = jnp.ones((rows, columns), dtype)
            tile[pl.ds(first, 64)] = values
            turned[...] = values.T
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(tile, o)
            plgpu.copy_smem_to_gmem(turned, r)
            plgpu.wait_smem_to_gmem(0)
            at = start[0]
            tile[pl.ds(at, 64)] = values * 2
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(tile, p)
            plgpu.wait_smem_to_gmem(0)
            q[...] = load(tile.at[pl.ds(at + 1, 64)], layout=plgpu.Layout.WGMMA) * 2

        outs = [like((rows, columns), dtype), like((rows, columns), dtype), like((64, columns), dtype), like((columns, 64), dtype)]
        scratch = (
            SMEM((64, 64), jnp.float16, transforms=tiled(jnp.float16)),
            SMEM((64, columns), jnp.float16, transforms=tiled(jnp.float16)),
            SMEM((rows, columns), dtype),
            SMEM((columns, 64), dtype),
            Barrier(num_barriers=2),
        )
        return kernel(body, outs, *scratch)(a, b, start)

    def reference(a, b, start):
        values = _mul(a, b).astype(dtype)
        o = np.ones((rows, columns), dtype)
        o[first : first + 64] = values
        p, at = o.copy(), int(start[0])
        p[at : at + 64] = values * dtype(2)
        return o, p, p[at + 1 : at + 65] * dtype(2), values.T

    return fn, reference


for _columns in (64, 128, 192, 256):
    for _type, _tolerance in ((np.float16, 4e-3), (ml_dtypes.bfloat16, 3e-2), (np.float32, 4e-3)):
        if _columns == 256 and _type == np.float32:
            continue  # More shared memory than there is.
        _fn, _reference = _in_plain_memory(_columns, _type)
        hard(
            f16(64, 64), f16(64, _columns), Arg((1,), jnp.int32, values=(19,)),
            name=f"accumulator_in_plain_memory_{np.dtype(_type).name}_{_columns}", reference=_reference, tolerance=_tolerance,
        )(_fn)  # fmt: skip


# ------------------------------------------------------------------------------------------ warpgroups


@hard(f32(64, 64), reference=lambda x: (x + 1, x.T * 2, x.sum(1)), tolerance=1e-5)
def one_buffer_two_layouts(x):
    """A swizzled buffer read as fragments by one warpgroup, by rows by another, transposed by a third."""

    def body(x, o, p, rows, buf, bar):
        wg = lax.axis_index("wg")

        @pl.when(wg == 0)
        def _():
            plgpu.copy_gmem_to_smem(x, buf, bar)

        plgpu.barrier_wait(bar)

        @pl.when(wg == 0)
        def _():
            o[...] = load(buf, layout=plgpu.Layout.WGMMA) + 1

        @pl.when(wg == 1)
        def _():
            p[...] = load(buf, layout=plgpu.Layout.WG_STRIDED((64, 64), vec_size=2), optimized=False).T * 2

        @pl.when(wg == 2)
        def _():
            rows[...] = buf[...].sum(axis=1)

    scratch = (SMEM((64, 64), jnp.float32, transforms=tiled(jnp.float32)), Barrier())
    outs = [like((64, 64)), like((64, 64)), like((64,))]
    return kernel(body, outs, *scratch, num_threads=3, thread_name="wg")(x)


@hard(f32(8, 64), reference=lambda x: np.stack([np.roll(x, -1, 0)[i] + i for i in range(8)]))
def eight_warpgroups_work(x):
    """Each stores a row, all meet, each reads its neighbour's."""

    def body(x, o, buf, bar):
        wg = lax.axis_index("wg")
        buf[wg] = x[wg]
        plgpu.barrier_arrive(bar)
        plgpu.barrier_wait(bar)
        o[wg] = buf[lax.rem(wg + 1, 8)] + wg.astype(jnp.float32)

    scratch = (SMEM((8, 64), jnp.float32), Barrier(num_arrivals=8))
    return kernel(body, like((8, 64)), *scratch, num_threads=8, thread_name="wg")(x)


# ------------------------------------------------------------------------------------------ narrow types


@hard(
    i32(256, low=-8, high=8),
    Arg((64, 8), jnp.bool_),
    reference=lambda x, b: ((-x).astype(np.int32).astype(ml_dtypes.int4).astype(np.int32), ~b.T, (x & 15).astype(np.int32)),
)
def narrow_types_stored_to_smem(x, b):
    """int4, uint4 and bool arrays computed, stored to SMEM, loaded again."""

    def body(x, b, o, p, q, s4, u4, flags):
        s4[...] = (-x[...]).astype(jnp.int4)
        u4[...] = x[...].astype(jnp.uint4)
        flags[...] = ~b[...]
        o[...] = s4[...].astype(jnp.int32)
        p[...] = flags.T[...]
        q[...] = u4[...].astype(jnp.int32)

    outs = [like((256,), jnp.int32), like((8, 64), jnp.bool_), like((256,), jnp.int32)]
    scratch = (SMEM((256,), jnp.int4), SMEM((256,), jnp.uint4), SMEM((64, 8), jnp.bool_))
    return kernel(body, outs, *scratch)(x, b)


# ------------------------------------------------------------------------------------------ special values


def _short(dtype: np.dtype[Any]) -> str:
    if dtype == BOOL:
        return "bool"
    names = {F16: "f16", F32: "f32", F64: "f64", BF16: "bf16", INT4: "i4", UINT4: "u4", FP8[0]: "e4m3", FP8[1]: "e5m2"}
    return names.get(dtype) or f"{dtype.kind}{8 * dtype.itemsize}"


def _pairs(dtype: np.dtype[Any]) -> tuple[Arg, Arg]:
    """All pairs of special values."""
    values = specials(dtype)
    x, y = np.meshgrid(values, values)
    shape = (len(values) ** 2,)
    return Arg(shape, dtype, values=tuple(x.reshape(-1))), Arg(shape, dtype, values=tuple(y.reshape(-1)))


def _all_of(dtype: np.dtype[Any], unary: list[str], binary: list[str], more: tuple[Any, ...] = ()) -> Any:
    """One row for each operation; `more` are pairs of a function of lax arrays and one of NumPy arrays."""

    def rows(ops: Any, x: Any, y: Any, which: int) -> list[Any]:
        out = [ops.apply(name, x) for name in unary] + [ops.apply(name, x, y) for name in binary]
        return out + [pair[which](x, y) for pair in more]

    def fn(x, y):
        def body(x, y, o):
            for i, row in enumerate(rows(Jax(), x[...], y[...], 0)):
                o[i] = row

        return kernel(body, like((len(unary) + len(binary) + len(more), *x.shape), dtype), params=NUMPY)(x, y)

    def reference(x, y):
        with np.errstate(all="ignore"):
            return np.stack([np.asarray(r).astype(dtype) for r in rows(Numpy(), x, y, 1)])

    return fn, reference


for _dtype in (F16, BF16, F32, F64):
    _unary = [n for n in semantics.FLOAT_UNARY]
    # There is no remainder of f64 yet.
    _binary = [n for n in semantics.FLOAT_BINARY if not (_dtype == F64 and n == "rem")]
    _fn, _reference = _all_of(_dtype, _unary, _binary)
    hard(*_pairs(_dtype), name=f"float_specials_{_short(_dtype)}", reference=_reference, x64=_dtype == F64)(_fn)


def _floor_divide(x, y):
    """What jnp's // does."""
    quotient, rest = semantics.apply("div", x, y), semantics.apply("rem", x, y)
    if x.dtype not in SIGNED:
        return quotient
    return np.where((np.sign(x) != np.sign(y)) & (rest != 0), quotient - 1, quotient)


def _remainder(x, y):
    """What jnp's % does; by 0 it takes 1."""
    y = np.where(y == 0, y.dtype.type(1), y)
    rest = semantics.apply("rem", x, y)
    return np.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


for _dtype in INTS:
    _fn, _reference = _all_of(
        _dtype,
        [n for n in semantics.table(_dtype, 1)],
        [n for n in semantics.INT_BINARY],
        ((lambda x, y: x // y, _floor_divide), (lambda x, y: x % y, _remainder)),
    )
    hard(*_pairs(_dtype), name=f"int_specials_{_short(_dtype)}", reference=_reference, x64=_dtype.itemsize == 8)(_fn)

#: Powers of two and their neighbours, divisors whose reciprocals have a word and a bit, common ones, large ones.
_DIVISORS = (1, 2, 3, 5, 6, 7, 9, 10, 12, 24, 28, 60, 64, 100, 127, 132, 255, 542, 641, 1000, 69376, 1 << 31, (1 << 31) - 1, (1 << 31) + 1, 6_700_417, 10**9 + 7)


def _divided(dtype: np.dtype[Any]) -> tuple[Any, Any, Arg]:
    """Quotients and remainders by constants, of any dividends and of some that are known to be small."""
    info = np.iinfo(dtype)
    divisors = [d for d in (*_DIVISORS, info.max, info.max - 1) if d <= info.max]
    if info.min < 0:
        divisors += [-d for d in divisors] + [info.min, info.min + 1]
    near = [dtype.type(d * k + e) for d in divisors for k in (1, 2, 3) for e in (-1, 0, 1) if info.min <= d * k + e <= info.max]
    rng = np.random.default_rng(dtype.itemsize)
    values = np.concatenate([specials(dtype), near, data(rng, (256,), dtype)]).astype(dtype)
    small = (0, 15, 127)

    def rows(x: Any, divide: Any, rest: Any) -> list[Any]:
        out = []
        for dividends in (x, *(x & dtype.type(mask) for mask in small)):
            for d in divisors:
                out += [divide(dividends, dtype.type(d)), rest(dividends, dtype.type(d))]
        return out

    def fn(x):
        def body(x, o):
            values = x[...]
            full = lambda f: lambda a, d: f(a, jnp.full_like(a, d))
            for i, row in enumerate(rows(values, full(lax.div), full(lax.rem))):
                o[i] = row

        n = 2 * len(divisors) * (1 + len(small))
        return kernel(body, like((n, *x.shape), dtype), params=NUMPY)(x)

    def reference(x):
        apply = lambda name: lambda a, d: semantics.apply(name, a, np.full_like(a, d))
        with np.errstate(all="ignore"):
            return np.stack(rows(x, apply("div"), apply("rem")))

    return fn, reference, Arg(values.shape, dtype, values=tuple(values))


for _dtype in INTS:
    _fn, _reference, _values = _divided(_dtype)
    hard(_values, name=f"divided_by_constants_{_short(_dtype)}", reference=_reference, x64=_dtype.itemsize == 8)(_fn)


def _wrapping(n):
    i = np.arange(n[0], dtype=np.int32)
    tile = (i * 132 + 5) % 69376 % 542 // 2
    parts = (i % 3 + 1, i % 6 * 10, (i + 5) % 6 * 100, i // 7, i % 128, tile, (i - 9) // 4, np.fmod(i - 9, 5))
    return np.array([part.sum(dtype=np.int32) for part in parts], np.int32)


@hard(Arg((1,), jnp.int32, values=(200,)), reference=_wrapping)
def counters_divided_in_loops(n):
    """Slots of rings, tiles of grids: what divides counters whose range is known, or begins below zero."""

    def body(n, o):
        def step(i, totals):
            j = i * 132 + 5
            parts = (
                i % 3 + 1, i % 6 * 10, (i + 5) % 6 * 100, i // 7, i % 128, j % 69376 % 542 // 2, (i - 9) // 4, lax.rem(i - 9, 5),
            )  # fmt: skip
            return tuple(total + part for total, part in zip(totals, parts))

        for at, total in enumerate(lax.fori_loop(0, n[0], step, (jnp.int32(0),) * 8)):
            o[at] = total

    return kernel(body, like((8,), jnp.int32))(n)


_CASTS = (BOOL, INT4, UINT4, *INTS, *FP8, F16, BF16, F32, F64)


def _cast_values(dtype: np.dtype[Any]) -> tuple[Any, ...]:
    """The special values, and others up to 512; every value of a narrow type."""
    if dtype in (INT4, UINT4):
        return tuple(range(-8, 8) if dtype == INT4 else range(16))
    if dtype in FP8:
        return tuple(np.arange(256).astype(np.uint8).view(dtype))
    return tuple(np.concatenate([specials(dtype), data(np.random.default_rng(3), (512,), dtype)])[:512])


def _casts_from(source: np.dtype[Any]) -> None:
    targets = [t for t in _CASTS if t != source]
    values = _cast_values(source)
    shape = (512,)

    def fn(x):
        def body(x, *outs):
            v = x[...]
            for t, o in zip(targets, outs):
                o[...] = lax.convert_element_type(v, t)

        return kernel(body, [like(shape, t) for t in targets])(x)

    def reference(x):
        with np.errstate(all="ignore"):
            return [semantics.convert(x, t) for t in targets]

    hard(Arg(shape, source, values=values), name=f"casts_from_{_short(source)}", reference=reference, x64=True)(fn)


for _dtype in _CASTS:
    _casts_from(_dtype)


# ------------------------------------------------------------------------------------------ found by random programs


@hard(i32(33, low=-9, high=9), f32(33), reference=lambda n, x: (np.where(n > 0, x, -x), np.int32(sum(int(v) for v in n if v > 0))))
def scan_over_scalars_that_branch(n, x):
    """A slice of a vector is one number for all lanes, and branches on it are uniform."""

    def body(n, x, o, total):
        def step(carry, row):
            number, value = row
            carry, value = lax.cond(number > 0, lambda: (carry + number, value), lambda: (carry, -value))
            return lax.fori_loop(0, jnp.maximum(number, 0), lambda _, c: c, carry), value

        total[...], o[...] = lax.scan(step, jnp.int32(0), (n[...], x[...]))

    return kernel(body, [like((33,)), like((), jnp.int32)])(n, x)


@hard(f32(8, 16), reference=lambda x: np.cumsum(np.stack([x.max(0)] * 8), 0))
def reduced_row_through_smem(x):
    """A row that many lanes hold: one lane stores an element, all of them load it."""

    def body(x, o, buf):
        row = x[...].max(axis=0)
        buf[...] = row
        plgpu.commit_smem()

        def step(i, total):
            buf[...] = total
            total = buf[...] + row
            o[i] = buf[...]
            return total

        lax.fori_loop(0, 8, step, row)

    return kernel(body, like((8, 16)), SMEM((16,), jnp.float32))(x)


def _slid(x):
    memory = np.zeros(160, np.float32)
    for i in range(5):
        memory[3 * i : 3 * i + 128] += x
    return memory


@hard(f32(128), reference=_slid)
def window_that_slides(x):
    """The same slice in every iteration, three elements further: other lanes' elements at its edges."""

    def body(x, o, buf):
        buf[...] = jnp.zeros((160,), jnp.float32)
        plgpu.commit_smem()  # all have written

        @pl.loop(0, 5)
        def _(i):
            window = pl.ds(i * 3, 128)
            buf[window] = buf[window] + x[...]

        o[...] = buf[...]

    return kernel(body, like((160,)), SMEM((160,), jnp.float32))(x)


@hard(f32(24), reference=lambda x: (x + (x + np.arange(64, dtype=np.float32)[:, None] * 100), np.broadcast_to(x, (64, 24))))
def broadcast_meets_what_varies(x):
    """What is constant along a dimension takes its partner's layout, not the other way round."""

    def body(x, o, p):
        row = lax.broadcast_in_dim(x[...], (64, 24), (1,))
        o[...] = row + (row + lax.broadcasted_iota(jnp.float32, (64, 24), 0) * 100)
        p[...] = row

    return kernel(body, [like((64, 24))] * 2)(x)


def _unrolled(x):
    out = []
    for n in (7, 8, 2, 0):
        v = x
        for i in range(n):
            v = v * np.float32(0.5) + np.float32(i)
        out.append(v)
    return np.stack(out)


@hard(f32(128), reference=_unrolled)
def unrolled_loops(x):
    """Iterations left over, none left over, all unrolled, none at all."""

    def body(x, o):
        for row, (n, copies) in enumerate(((7, 3), (8, 4), (2, 5), (0, 2))):
            o[row] = lax.fori_loop(0, n, lambda i, v: v * 0.5 + lax.convert_element_type(i, jnp.float32), x[...], unroll=copies)

    return kernel(body, like((4, 128)))(x)


@hard(f32(3, 5), reference=lambda x: (np.tile(x, (2, 3)), np.tile(x, (1, 1))))
def tiled_values(x):
    def body(x, o, p):
        o[...] = jnp.tile(x[...], (2, 3))
        p[...] = jnp.tile(x[...], (1, 1))

    return kernel(body, [like((6, 15)), like((3, 5))])(x)


@hard(Arg((538,), jnp.int32), i32(512), reference=lambda x, y: (x.astype(ml_dtypes.int4), y.astype(np.int8).astype(ml_dtypes.uint4)))
def four_bits_from_wide_values(x, y):
    """Neighbouring values of 4 bits, which share a byte, were computed in different threads."""

    def body(x, y, o, p):
        o[...] = x[...].astype(jnp.int4)
        p[...] = y[...].astype(jnp.int8).astype(jnp.uint4)

    return kernel(body, [like((538,), jnp.int4), like((512,), jnp.uint4)])(x, y)


@hard(Arg((64, 24), jnp.int8), reference=lambda x: (x ^ x.max(0)))
def narrow_array_through_little_scratch(x):
    """An array of bytes that moves between threads where only small scratch was foreseen."""

    def body(x, o):
        v = x[...]
        o[...] = v ^ jnp.broadcast_to(v.max(axis=0), (64, 24))

    return kernel(body, like((64, 24), jnp.int8))(x)


def _looked_up(x):
    out = x.copy()
    out[0] = 1
    return out, np.array([x[x[1] - 2], x[1] - 2, 7, x[x[x[2] & 3]]], np.int32)


@hard(i32(4, low=2, high=4), reference=_looked_up)
def index_that_one_lane_loads(x):
    """Who stores a scalar loads what it stores, and the index for that: the other lanes know neither."""

    def body(x, o, p, s, t):
        s[...] = x[...]
        o[...] = x[...]
        o[0] = jnp.int32(1)
        t[0] = s[o[1] - 2]
        t[o[1] - 1] = s[s[s[2] & 3]]
        t[1] = o[1] - 2
        t[2] = jnp.int32(7)
        t[3] = s[s[s[2] & 3]]
        p[...] = t[...]

    return kernel(body, [like((4,), jnp.int32)] * 2, SMEM((4,), jnp.int32), SMEM((4,), jnp.int32))(x)


def _in_device_scratch(x):
    w = x * 2
    return w.reshape(3, 4, 32).transpose(0, 2, 1).reshape(3, 128) + w


@hard(f32(3, 128), reference=_in_device_scratch)
def scratch_in_device_memory(x):
    """Each block's own, by scratch_types and by run_scoped."""

    def body(x, o, scratch):
        i = lax.axis_index("g")
        scratch[...] = x[i] * 2

        def turned(t):
            t[...] = scratch[...].reshape(4, 32).T
            o[i] = t[...].reshape(128) + scratch[pl.ds(0, 128)]

        pl.run_scoped(turned, plgpu.GMEM((32, 4), jnp.float32))

    return kernel(body, like((3, 128)), plgpu.GMEM((128,), jnp.float32), grid=(3,), grid_names=("g",))(x)


@hard(f32(2, 2, 64), reference=lambda x: (x + 1)[:, ::-1])
def scratch_in_device_memory_of_two_warpgroups(x):
    def body(x, o, shared, bar):
        g, t = lax.axis_index("g"), lax.axis_index("t")
        shared[t] = x[g, t] + 1
        plgpu.barrier_arrive(bar)
        plgpu.barrier_wait(bar)
        o[g, t] = shared[1 - t]

    scratch = plgpu.GMEM((2, 64), jnp.float32), Barrier(num_arrivals=2)
    return kernel(body, like((2, 2, 64)), *scratch, grid=(2,), grid_names=("g",), num_threads=2, thread_name="t")(x)


@hard(f32(3, 16, 64), reference=lambda x: x + 1)
def copies_into_device_scratch(x):
    """By the copy engine there, and read by loads."""

    def body(x, o, scratch, smem, bar):
        i = lax.axis_index("g")
        plgpu.copy_gmem_to_smem(x.at[i], smem, bar)
        plgpu.barrier_wait(bar)
        plgpu.copy_smem_to_gmem(smem, scratch)
        plgpu.wait_smem_to_gmem(0)
        o[i] = scratch[...] + 1

    scratch = plgpu.GMEM((16, 64), jnp.float32), SMEM((16, 64), jnp.float32), Barrier()
    return kernel(body, like((3, 16, 64)), *scratch, grid=(3,), grid_names=("g",))(x)
