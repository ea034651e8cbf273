"""The tests of kernels that are written for Pallas:Triton, for the machine that there is: the emulator, or a GPU."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import smalt
from smalt import _versions
from tests.corpus.case import like, x64
from tests.fuzz.seeds import seeds
from tests.machine import ON_GPU, enabled, has, has_memory, has_producers
from tests.programs.blocks.pipelined import PIPELINED, Pipelined

with warnings.catch_warnings():  # JAX is about to remove it
    warnings.simplefilter("ignore", DeprecationWarning)
    import jax.experimental.pallas.triton as plt

PROGRAMS = 120
BATCH = 10


def call(body: Callable[..., None], out: Any, **how: Any) -> Callable[..., Any]:
    """A call with Triton's parameters."""
    how.setdefault("compiler_params", plt.CompilerParams())
    return jax.jit(pl.pallas_call(body, out_shape=out, **how))


def at_once(f: Callable[..., Any], *args: Any) -> bool:
    """Whether the steps of a call run at once."""
    with enabled():
        (report,) = smalt.inspect(f, *args)
    return "in turn" not in str(report)


# ------------------------------------------------------------------------------------------ parameters


@pytest.mark.parametrize("warps, stages", [(None, None), (1, 1), (4, 2), (8, 3), (np.int32(2), np.int64(4)), (32, 7)])
def test_parameters(warps: Any, stages: Any) -> None:
    """An axis in order has its blocks loaded ahead, `num_stages` of them."""
    x = np.random.default_rng(0).standard_normal((8, 64, 64)).astype(np.float32)

    def body(x: Any, o: Any) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            o[...] = jnp.zeros((64, 64))

        o[...] += x[...]

    block = pl.BlockSpec((64, 64), lambda i: (0, 0))
    params = plt.CompilerParams(num_warps=warps, num_stages=stages)
    run = call(body, like((64, 64)), grid=(8,), in_specs=[pl.BlockSpec((None, 64, 64), lambda i: (i, 0, 0))], out_specs=block, compiler_params=params)
    with enabled():
        np.testing.assert_allclose(run(x), x.sum(0), rtol=1e-5, atol=1e-5)


# ------------------------------------------------------------------------------------------ atomics

INTEGERS = {
    "add": lambda x, y: x + y,
    "max": np.maximum,
    "min": np.minimum,
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "xchg": lambda x, y: y,
}
FLOATS = {name: INTEGERS[name] for name in ("add", "max", "min", "xchg")}
ONES = {"float16": ("add",), "int32": tuple(INTEGERS), "uint32": tuple(INTEGERS), "float32": tuple(FLOATS)}
WIDE = {"int64": tuple(INTEGERS), "uint64": tuple(INTEGERS), "float64": tuple(FLOATS)}


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """Of which sums are exact, in every order."""
    low = 0 if np.dtype(dtype).kind == "u" else -9
    return rng.integers(low, 10, shape).astype(dtype)


@dataclasses.dataclass
class Update:
    """A random atomic: of an array of some shape, at an index of each kind along each dimension."""

    op: str
    dtype: str
    shape: tuple[int, ...]
    index: tuple[Any, ...]  # an int, a slice, or an array of unique positions
    masked: bool
    steps: int  # of the grid
    block: int | None  # rows of a block; None: the array as a whole
    dynamic: bool  # starts come from the grid's index
    seed: int

    @staticmethod
    def of(seed: int, types: dict[str, tuple[str, ...]]) -> Update:
        rng = np.random.default_rng(seed)
        dtype = str(rng.choice(list(types)))
        op = str(rng.choice(types[dtype]))
        shape = tuple(int(n) for n in rng.choice([1, 2, 3, 5, 8, 16, 33], rng.integers(0, 4)))
        block = None
        steps = int(rng.choice([1, 1, 3]))
        if shape and rng.random() < 0.4:  # blocks of rows
            block, shape = shape[0], (shape[0] * int(rng.choice([1, 2, 3])), *shape[1:])
        inner = shape if block is None else (block, *shape[1:])
        kinds = [str(rng.choice(["all", "one", "slice", "array"])) for _ in inner]
        index: list[Any] = []
        width = 0
        for n, kind in zip(inner, kinds):
            start = int(rng.integers(0, n))
            if kind == "all":
                index.append(slice(0, n))
            elif kind == "one":
                index.append(start)
            elif kind == "slice":
                stride = int(rng.choice([1, 1, 2]))
                size = int(rng.integers(1, (n - start + stride - 1) // stride + 1))
                index.append(slice(start, start + (size - 1) * stride + 1, stride))
            else:
                width = width or int(rng.integers(1, n + 1))
                if width > n:  # arrays are of one shape, and each place comes once
                    index.append(start)
                else:
                    index.append(rng.permutation(n)[:width].astype(np.int32))
        return Update(op, dtype, shape, tuple(index), bool(rng.random() < 0.4), steps, block, bool(rng.random() < 0.5), seed)

    def run(self) -> None:
        rng = np.random.default_rng(self.seed)
        inner = self.shape if self.block is None else (self.block, *self.shape[1:])
        shape = np.zeros(inner)[self.index].shape
        blocks = 1 if self.block is None else self.shape[0] // self.block
        there, given = numbers(rng, self.shape, self.dtype), numbers(rng, (self.steps, blocks, *shape), self.dtype)
        chosen = rng.random((self.steps, blocks, *shape)) < 0.6
        at = [i for i in self.index if isinstance(i, np.ndarray)]
        update = getattr(plt, f"atomic_{self.op}")

        def body(given: Any, chosen: Any, zero: Any, *refs: Any) -> None:
            *arrays, _, o, old = refs
            step, block = pl.program_id(0), pl.program_id(1)
            none = zero[0] if self.dynamic else 0  # not known when the kernel is compiled
            index, rest = [], iter(arrays)
            for i in self.index:
                if isinstance(i, slice):
                    start, stop, stride = i.indices(10**6)
                    index.append(pl.ds(start + none, -(-(stop - start) // stride), stride))
                else:
                    index.append(next(rest)[...] if isinstance(i, np.ndarray) else i + none)
            mask = {"mask": chosen[step, block]} if self.masked else {}
            old[step, block] = update(o, tuple(index), given[step, block], **mask)

        all_of_it, rest_of = pl.BlockSpec(), (0,) * (len(self.shape) - 1)
        spec = all_of_it if self.block is None else pl.BlockSpec(inner, lambda _, b: (b, *rest_of))
        run = call(
            body,
            (like(self.shape, self.dtype), like(given.shape, self.dtype)),
            grid=(self.steps, blocks),
            in_specs=[*[all_of_it] * (3 + len(at)), spec],
            out_specs=(spec, all_of_it),
            input_output_aliases={3 + len(at): 0},
        )
        got, old = (np.asarray(a) for a in run(given, chosen, np.zeros(1, np.int32), *at, there))
        expected, was = there.copy(), np.zeros_like(given)
        for s in range(self.steps):
            for b in range(blocks):
                view = expected if self.block is None else expected[b * self.block : (b + 1) * self.block]
                mask = chosen[s, b] if self.masked else np.ones(shape, bool)
                was[s, b] = np.where(mask, view[self.index], 0)
                view[self.index] = np.where(mask, INTEGERS[self.op](view[self.index], given[s, b]), view[self.index])
        if self.steps == 1 or self.op != "xchg":
            np.testing.assert_array_equal(got, expected, err_msg=str(self))
        if self.steps == 1:
            np.testing.assert_array_equal(old, was, err_msg=str(self))


@pytest.mark.parametrize("first", range(0, PROGRAMS, BATCH))
def test_random_atomics(first: int) -> None:
    with enabled():
        for seed in range(first, first + BATCH):
            Update.of(seed, ONES).run()


def test_random_atomics_of_64_bits() -> None:
    with x64(True), enabled():
        for seed in range(1000, 1020):
            Update.of(seed, WIDE).run()


#: NaN, signed zeros, infinities, numbers of both signs, subnormal ones.
SPECIAL = (np.nan, -np.nan, 0.0, -0.0, np.inf, -np.inf, 1.0, -1.0, 1e-40, -1e-40, 3.5, -2.25)


@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("wide", [False, True], ids=["f32", "f64"])
def test_extremes_of_floats(wide: bool, op: str) -> None:
    """Each number with each: negative ones are smaller, the closer to zero the larger; a number wins over NaN, +0 is larger than -0."""
    dtype = np.float64 if wide else np.float32
    there = np.repeat(np.array(SPECIAL, dtype), len(SPECIAL))
    given = np.tile(np.array(SPECIAL, dtype), len(SPECIAL))

    def body(x: Any, _: Any, o: Any, old: Any) -> None:
        old[...] = getattr(plt, f"atomic_{op}")(o, (slice(None),), x[...])

    with x64(wide), enabled():
        got, old = call(body, (like(there.shape, dtype),) * 2, input_output_aliases={1: 0})(given, there)
    equal = there == given  # also of zeros
    larger = np.where(equal, np.where(np.signbit(there), given, there), np.fmax(there, given))
    smaller = np.where(equal, np.where(np.signbit(there), there, given), np.fmin(there, given))
    expected = larger if op == "max" else smaller
    np.testing.assert_array_equal(np.asarray(got), expected)
    numbers_only = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got)[numbers_only], np.signbit(expected)[numbers_only])
    np.testing.assert_array_equal(np.asarray(old), there)


@pytest.mark.parametrize("whole", [False, True], ids=["in part", "whole"])
@pytest.mark.parametrize("steps", [1, 3, 64])
def test_a_lock(steps: int, whole: bool) -> None:
    """What is stored under a lock, by ordinary stores of steps that run at once, is seen by whoever has it next. Where each step has
    the whole array, steps depend on each other for sure, and run in order."""
    shape = (128,) if whole else (2, 128)

    def body(_: Any, __: Any, lock: Any, count: Any) -> None:
        lax.while_loop(lambda _: plt.atomic_cas(lock, 0, 1) == 1, lambda x: x, 0)
        count[... if whole else 1] += jnp.arange(128)
        plt.atomic_xchg(lock, (), 0)

    run = call(body, (like((), jnp.int32), like(shape, jnp.int32)), grid=(steps,), input_output_aliases={0: 0, 1: 1})
    zero = np.zeros(shape, np.int32)
    with enabled():
        lock, count = run(np.int32(0), zero)
    assert int(lock) == 0
    np.testing.assert_array_equal(np.asarray(count).reshape(-1, 128)[-1], steps * np.arange(128))
    assert at_once(run, np.int32(0), zero) == (not whole or steps == 1)


@pytest.mark.parametrize("there, expected, given", [(0, 0, 1), (0, 1, 1), (2, 1, 1), (-1, -1, 7)])
def test_compare_and_swap(there: int, expected: int, given: int) -> None:
    def body(_: Any, word: Any, old: Any) -> None:
        old[...] = plt.atomic_cas(word, expected, given)

    with enabled():
        word, old = call(body, (like((), jnp.int32),) * 2, input_output_aliases={0: 0})(np.int32(there))
    assert (int(word), int(old)) == (given if there == expected else there, there)


def test_tickets() -> None:
    """The old value of a counter is a step's own: where it stores its part of an output, which has no block."""
    x = np.arange(16 * 128, dtype=np.float32).reshape(16, 128)

    def body(x: Any, _: Any, counter: Any, o: Any, who: Any) -> None:
        ticket = plt.atomic_add(counter, (0,), 1)
        o[ticket] = x[pl.program_id(0)]
        who[ticket] = pl.program_id(0)

    run = call(body, (like((1,), jnp.int32), like(x.shape), like((16,), jnp.int32)), grid=(16,), input_output_aliases={1: 0})
    with enabled():
        counter, out, who = run(x, np.zeros(1, np.int32))
    assert int(counter[0]) == 16 and sorted(np.asarray(who)) == list(range(16))
    np.testing.assert_array_equal(np.asarray(out), x[np.asarray(who)])
    assert at_once(run, x, np.zeros(1, np.int32))


def test_a_product_of_which_steps_have_parts() -> None:
    """Split-k: blocks of the output, to which the steps along an axis add."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((128, 256), (256, 128)))

    def body(a: Any, b: Any, _: Any, o: Any) -> None:
        plt.atomic_add(o, (slice(None), slice(None)), plt.dot(a[...], b[...]).astype(jnp.float32))

    block = pl.BlockSpec((64, 64), lambda i, j, k: (i, j))
    run = call(
        body,
        like((128, 128)),
        grid=(2, 2, 4),
        in_specs=[pl.BlockSpec((64, 64), lambda i, j, k: (i, k)), pl.BlockSpec((64, 64), lambda i, j, k: (k, j)), block],
        out_specs=block,
        input_output_aliases={2: 0},
        compiler_params=plt.CompilerParams(num_warps=4, num_stages=2),
    )
    zero = np.zeros((128, 128), np.float32)
    with enabled():
        np.testing.assert_array_equal(np.asarray(run(a, b, zero)), a.astype(np.float32) @ b.astype(np.float32))
    assert at_once(run, a, b, zero)


def test_a_histogram() -> None:
    """Places come several times, in one array of indices and from several steps; others are masked."""
    x = np.random.default_rng(0).integers(0, 20, (6, 300)).astype(np.int32)

    def body(x: Any, _: Any, counts: Any) -> None:
        here = x[pl.program_id(0)]
        plt.atomic_add(counts, (jnp.minimum(here, 15),), jnp.ones(300, jnp.int32), mask=here < 16)

    with enabled():
        got = call(body, like((16,), jnp.int32), grid=(6,), input_output_aliases={1: 0})(x, np.zeros(16, np.int32))
    np.testing.assert_array_equal(np.asarray(got), np.bincount(x.ravel(), minlength=20)[:16])


#: JAX 0.12 refuses longer slices itself.
LONGER = pytest.param(False, marks=pytest.mark.skipif(jax.__version_info__ >= (0, 12), reason="JAX refuses them"))


@pytest.mark.parametrize("dynamic", [LONGER, True])
def test_masks_of_slices_that_reach_beyond(dynamic: bool) -> None:
    """A slice may be longer than the array, or begin late: the mask says what is there."""
    first, n = (25, 100) if dynamic else (0, 128)
    x = np.arange(100, dtype=np.int32)

    def body(x: Any, late: Any, _: Any, o: Any, old: Any, copy: Any) -> None:
        start = late[0] if dynamic else 0
        part, there = pl.ds(start, n), start + jnp.arange(n) < 100
        given = plt.load(x.at[part], mask=there, other=-1)
        old[...] = plt.atomic_add(o, (part,), given, mask=there)
        copy[...] = plt.load(o.at[part], mask=there, other=-2, volatile=True)
        if not dynamic:
            plt.store(copy.at[pl.ds(0, 1000)], jnp.full((1000,), 7), mask=jnp.arange(1000) < 3)

    run = call(body, (like((100,), jnp.int32), like((n,), jnp.int32), like((n,), jnp.int32)), input_output_aliases={2: 0})
    with enabled():
        got, old, copy = (np.asarray(a) for a in run(x, np.full(1, first, np.int32), 1000 * x))
    expected = 1000 * x
    expected[first:] += x[first:]
    rest = np.zeros(n - (100 - first), np.int32)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(old, np.concatenate([1000 * x[first:], rest]))
    loaded = np.concatenate([expected[first:], rest - 2])
    loaded[: 0 if dynamic else 3] = 7
    np.testing.assert_array_equal(copy, loaded)


def test_loads_and_stores_without_masks() -> None:
    """Of whatever `ref[...]` has: strides, complex numbers, what was there before."""
    x = np.arange(8 * 40, dtype=np.float32).reshape(8, 40)
    z = (x + 1j * x.T.reshape(x.shape)).astype(np.complex64)

    def body(x: Any, z: Any, _: Any, o: Any, p: Any, q: Any) -> None:
        p[...] = plt.load(x.at[pl.ds(1, 3, 2), pl.ds(0, 13, 3)], eviction_policy="evict_last")
        plt.store(q, 2 * plt.load(z))
        o[0] = plt.load(o.at[1])
        plt.store(o.at[pl.ds(2, 6)], plt.load(x.at[pl.ds(2, 6), :]) * 3)

    outputs = (like(x.shape), like((3, 13)), like(z.shape, jnp.complex64))
    with enabled():
        o, p, q = (np.asarray(a) for a in call(body, outputs, input_output_aliases={2: 0})(x, z, -x))
    np.testing.assert_array_equal(p, x[1:6:2, :37:3])
    np.testing.assert_array_equal(q, 2 * z)
    np.testing.assert_array_equal(o, np.concatenate([-x[1:2], -x[1:2], 3 * x[2:]]))


def test_numbers_from_the_end() -> None:
    """A constant index that is negative counts from the end, in whatever access."""
    x = np.arange(6 * 40, dtype=np.int32).reshape(6, 40)

    def body(x: Any, _: Any, o: Any, p: Any) -> None:
        plt.atomic_add(o, (-1, -2), 1000)
        plt.atomic_add(o, (-3, pl.ds(0, 40)), jnp.full((40,), 100, jnp.int32), mask=jnp.arange(40) < 5)
        plt.atomic_max(o, (-2, pl.ds(0, 20, 2)), jnp.full((20,), 190, jnp.int32))
        p[0] = plt.load(x.at[-1], volatile=True)
        p[-1] = plt.load(x.at[-2], mask=jnp.arange(40) < 9, other=0, volatile=True)

    with enabled():
        got, p = (np.asarray(a) for a in call(body, (like(x.shape, jnp.int32), like((2, 40), jnp.int32)), input_output_aliases={1: 0})(x, x))
    expected = x.copy()
    expected[-1, -2] += 1000
    expected[-3, :5] += 100
    expected[-2, ::2] = np.maximum(expected[-2, ::2], 190)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(p, [x[-1], np.where(np.arange(40) < 9, x[-2], 0)])


def test_atomics_of_an_input() -> None:
    """One that shares its buffer with an output, by the input's name; and one that does not, of which the caller's array stays."""
    x = np.arange(4, dtype=np.int32)

    def shared(x: Any, o: Any) -> None:
        plt.atomic_add(x, (pl.program_id(0) % 4,), 10)

    def own(x: Any, o: Any) -> None:
        i = pl.program_id(0)
        o[i] = plt.atomic_add(x, (i,), 10) + plt.atomic_add(x, (i,), 1)

    with enabled():
        np.testing.assert_array_equal(call(shared, like((4,), jnp.int32), grid=(8,), input_output_aliases={0: 0})(x), x + 20)
        given = jnp.asarray(x)
        np.testing.assert_array_equal(call(own, like((4,), jnp.int32), grid=(4,))(given), 2 * x + 10)
        np.testing.assert_array_equal(np.asarray(given), x)


# ------------------------------------------------------------------------------------------ arrays without blocks


def test_outputs_without_blocks() -> None:
    """Steps store their parts at indices that they compute; nothing says that they depend on each other."""
    x = np.random.default_rng(0).standard_normal((24, 100)).astype(np.float32)

    def body(x: Any, o: Any) -> None:
        i = pl.program_id(0)
        row = plt.load(x.at[i], eviction_policy="evict_first", cache_modifier=".cg")
        plt.store(o.at[i, pl.ds(0, 100)], jnp.exp(row - jnp.max(row)), eviction_policy="evict_last")

    run = call(body, like(x.shape), grid=(24,))
    with enabled():
        np.testing.assert_allclose(run(x), np.exp(x - x.max(1, keepdims=True)), rtol=1e-5)
    assert at_once(run, x)


@pytest.mark.parametrize("aliased", [False, True])
def test_blocks_of_which_steps_have_parts(aliased: bool) -> None:
    """Steps along an axis have the same block of an output, and store rows of their own."""
    x = np.random.default_rng(0).standard_normal((2, 64, 128)).astype(np.float32)

    def body(*refs: Any) -> None:
        x, o = refs[0], refs[-1]
        rows = pl.ds(pl.program_id(1) * 16, 16)
        o[rows] = x[rows] * 2 + (refs[1][rows] if aliased else 0)

    block = pl.BlockSpec((None, 64, 128), lambda b, i: (b, 0, 0))
    inputs = (x, x + 1) if aliased else (x,)
    how: dict[str, Any] = {"input_output_aliases": {1: 0}} if aliased else {}
    run = call(body, like(x.shape), grid=(2, 4), in_specs=[block] * len(inputs), out_specs=block, **how)
    with enabled():
        np.testing.assert_allclose(run(*inputs), 2 * x + (x + 1 if aliased else 0), rtol=1e-6, atol=1e-6)
    assert at_once(run, *inputs)


@pytest.mark.parametrize("rows", [None, 1, 4], ids=["no block", "one row", "four rows"])
def test_an_input_that_is_stored_to(rows: int | None) -> None:
    """It is the output's buffer, whichever name a step has for it."""
    x = np.arange(8 * 128, dtype=np.float32).reshape(8, 128)

    def body(x: Any, o: Any) -> None:
        i = pl.program_id(0) if rows is None else 0
        x[i] = x[i] * 2
        o[i] = o[i] + 1

    block = pl.BlockSpec() if rows is None else pl.BlockSpec((rows, 128), lambda i: (i, 0))
    run = call(body, like(x.shape), grid=(8 // (rows or 1),), in_specs=[block], out_specs=block, input_output_aliases={0: 0})
    expected = x.copy()
    expected[:: rows or 1] = 2 * x[:: rows or 1] + 1
    with enabled():
        np.testing.assert_array_equal(np.asarray(run(x)), expected)
    assert at_once(run, x)


def test_loads_in_order_leave_their_array() -> None:
    """An input with ordered loads only is not copied."""

    def body(x: Any, o: Any) -> None:
        o[...] = smalt.load(x, order="acquire")

    block = pl.BlockSpec((2, 128), lambda i: (i, 0))
    x = np.arange(8 * 128, dtype=np.int32).reshape(8, 128)
    run = jax.jit(pl.pallas_call(body, out_shape=like(x.shape, jnp.int32), grid=(4,), in_specs=[block], out_specs=block))
    with enabled():
        np.testing.assert_array_equal(np.asarray(run(x)), x)
        assert "operand_index" not in run.lower(x).as_text()


def test_under_vmap() -> None:
    """A batch of calls: the arrays of each are its own."""
    x = np.arange(3 * 4 * 128, dtype=np.int32).reshape(3, 4, 128)

    def body(x: Any, _: Any, o: Any, rows: Any) -> None:
        i = pl.program_id(0)
        plt.atomic_add(o, (slice(None),), x[i])
        rows[i] = x[i] + 1

    run = call(body, (like((128,), jnp.int32), like((4, 128), jnp.int32)), grid=(4,), input_output_aliases={1: 0})
    with enabled():
        total, rows = jax.vmap(run)(x, np.zeros((3, 128), np.int32))
    np.testing.assert_array_equal(np.asarray(total), x.sum(1))
    np.testing.assert_array_equal(np.asarray(rows), x + 1)
    assert at_once(jax.vmap(run), x, np.zeros((3, 128), np.int32))


@pytest.mark.skipif(ON_GPU, reason="left to Triton there")
def test_atomics_of_an_input_that_a_batch_has_in_common() -> None:
    def body(x: Any, n: Any, o: Any) -> None:
        o[pl.program_id(0)] = plt.atomic_add(n, (0,), x[pl.program_id(0)])

    run = call(body, like((4,), jnp.int32), grid=(4,))
    x = np.ones((3, 4), np.int32)
    with enabled():
        with pytest.raises(smalt.Unsupported, match="an input that the elements of a jax.vmap have in common"):
            jax.vmap(run, (0, None))(x, np.zeros(1, np.int32))
        old = jax.vmap(run)(x, np.zeros((3, 1), np.int32))
    np.testing.assert_array_equal(np.sort(old, axis=1), np.tile(np.arange(4), (3, 1)))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.float32])
def test_a_product_by_indices(dtype: Any) -> None:
    """As kernels for Triton are written: arrays of indices, with what the author knows of them."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, shape).astype(dtype) for shape in ((128, 96), (96, 64)))
    bm, bn, bk = 64, 32, 32

    def body(a: Any, b: Any, o: Any) -> None:
        at = lax.div(pl.program_id(0), 2), lax.rem(pl.program_id(0), 2)
        rows = plt.max_contiguous(pl.multiple_of(at[0] * bm + jnp.arange(bm), bm), bm)
        columns = plt.max_contiguous(pl.multiple_of(at[1] * bn + jnp.arange(bn), bn), bn)

        def step(k: Any, acc: Any) -> Any:
            inner = pl.multiple_of(k * bk, bk) + jnp.arange(bk)
            return acc + plt.dot(a[rows[:, None], inner[None]], b[inner[:, None], columns[None]])

        o[rows[:, None], columns[None]] = lax.fori_loop(0, 3, step, jnp.zeros((bm, bn), jnp.float32))

    run = call(body, like((128, 64)), grid=(4,))
    with enabled():
        np.testing.assert_array_equal(np.asarray(run(a, b)), a.astype(np.float32) @ b.astype(np.float32))
    assert at_once(run, a, b)


# ------------------------------------------------------------------------------------------ barriers, polling


def test_a_barrier_of_the_block() -> None:
    """Behind it each thread sees what others stored before it."""
    x = np.arange(512, dtype=np.float32)

    def body(x: Any, o: Any, r: Any) -> None:
        o[...] = x[...]
        plt.debug_barrier()
        r[...] = plt.load(o.at[511 - jnp.arange(512)])
        plt.debug_barrier()

    with enabled():
        copied, reversed_ = call(body, (like((512,)),) * 2)(x)
    np.testing.assert_array_equal(np.asarray(copied), x)
    np.testing.assert_array_equal(np.asarray(reversed_), x[::-1])


def test_volatile_loads_see_what_others_store() -> None:
    """A step polls a word that the one before it sets."""
    steps = 4

    def body(_: Any, flag: Any, o: Any) -> None:
        i = pl.program_id(0)
        lax.while_loop(lambda _: plt.load(flag.at[()], volatile=True) != i, lambda x: x, 0)
        o[i] = i
        plt.atomic_add(flag, (), 1)

    run = call(body, (like((), jnp.int32), like((steps,), jnp.int32)), grid=(steps,), input_output_aliases={0: 0})
    with enabled():
        flag, out = run(np.int32(0))
    assert int(flag) == steps
    np.testing.assert_array_equal(np.asarray(out), np.arange(steps))


def test_volatile_loads_with_masks() -> None:
    x = np.arange(40, dtype=np.int32)

    def body(x: Any, o: Any, p: Any) -> None:
        at = jnp.arange(64)
        o[...] = plt.load(x.at[at], mask=at < 40, other=-1, volatile=True)
        p[...] = plt.load(x.at[pl.ds(4, 8)], volatile=True)

    with enabled():
        got, part = call(body, (like((64,), jnp.int32), like((8,), jnp.int32)))(x)
    np.testing.assert_array_equal(np.asarray(got), np.where(np.arange(64) < 40, np.arange(64), -1))
    np.testing.assert_array_equal(np.asarray(part), x[4:12])


# ------------------------------------------------------------------------------------------ assembly


@pytest.mark.parametrize("shape", [(4,), (), (3, 5), (256,), (2, 64, 3)])
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_approximate_tanh(dtype: Any, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)

    def body(x: Any, o: Any) -> None:
        o[...] = plt.approx_tanh(x[...])

    with enabled():
        got = np.asarray(call(body, like(shape, dtype))(x)).astype(np.float32)
    np.testing.assert_allclose(got, np.tanh(x.astype(np.float32)), atol=5e-3, rtol=5e-3)


#: text, constraints, elements, types of results, types of arguments, what it computes.
Text = tuple[str, str, int, tuple[Any, ...], tuple[Any, ...], Callable[..., Sequence[Any]]]
TEXTS: dict[str, Text] = {
    "one": ("add.f32 $0, $1, $2;", "=f,f,f", 1, ("f4",), ("f4", "f4"), lambda x, y: [x + y]),
    "two results": ("add.s32 $0, $2, $3;\n sub.s32 ${1}, $2, ${3};", "=r,=r,r,r", 1, ("i4", "i4"), ("i4", "i4"), lambda x, y: [x + y, x - y]),
    "no last semicolon": ("neg.s32 $0, $1", "=r,r", 1, ("i4",), ("i4",), lambda x: [-x]),
    "registers of its own": ("{ .reg .b32 t; shl.b32 t, $1, 1; add.u32 $0, t, $1; }", "=r,r", 1, ("i4",), ("i4",), lambda x: [3 * x]),
    "labels": (
        "{ .reg .pred p; setp.lt.s32 p, $1, 0; mov.b32 $0, 7; @p bra skip; mov.b32 $0, $1; skip: }", "=r,r", 1, ("i4",), ("i4",),
        lambda x: [np.where(x < 0, 7, x)],
    ),
    "16 bits": ("add.u16 $0, $1, $1;", "=h,h", 1, ("i2",), ("i2",), lambda x: [2 * x]),
    "16 bits in wider registers": ("add.u32 $0, $1, $1;", "=r,r", 1, ("u2",), ("u2",), lambda x: [2 * x]),
    "8 bits": ("add.u32 $0, $1, $1;", "=r,r", 1, ("i1",), ("i1",), lambda x: [2 * x]),
    "8 bits in narrower registers": ("add.u16 $0, $1, $1;", "=h,h", 1, ("u1",), ("u1",), lambda x: [2 * x]),
    "a tied register": ("add.u32 $0, $1, $2;", "=r,0,r", 1, ("i4",), ("i4", "i4"), lambda x, y: [x + y]),
    "two of 16 bits": ("add.f16x2 $0, $1, $2;", "=r,r,r", 2, ("f2",), ("f2", "f2"), lambda x, y: [x + y]),
    "two of 16 bits, swapped": (
        "{ .reg .b16 a, b; mov.b32 {a, b}, $1; mov.b32 $0, {b, a}; }", "=r,r", 2, ("i2",), ("i2",),
        lambda x: [np.pad(x.ravel(), (0, x.size % 2)).reshape(-1, 2)[:, ::-1].reshape(-1)[: x.size].reshape(x.shape)],
    ),
    "two of 32 bits": ("{ add.f32 $0, $2, $2; mul.f32 $1, $3, $3; }", "=f,=f,f,f", 2, ("f4",), ("f4",), lambda x: [alternate(x, 2 * x, x * x)]),
    "four bytes": ("xor.b32 $0, $1, 0xff00ff00;", "=r,r", 4, ("u1",), ("u1",), lambda x: [alternate(x, x, ~x)]),
    "four bytes to numbers of 16 bits": (
        "{ .reg .b32 t; and.b32 t, $2, 0x000f000f; mov.b32 $0, t; shr.u32 t, $2, 4; and.b32 $1, t, 0x000f000f; }", "=r,=r,r", 4, ("u2",), ("u1",),
        lambda x: [nibbles(x)],
    ),
    "four bytes to floats": (
        "{ .reg .s32 t; "
        + " ".join(f"bfe.s32 t, $4, {8 * i}, 8; cvt.rn.f32.s32 ${i}, t;" for i in range(4))
        + " }",
        "=r,=r,=r,=r,r", 4, ("f4",), ("i1",), lambda x: [x.astype(np.float32)],
    ),
}  # fmt: skip


def alternate(x: Any, even: Any, odd: Any) -> Any:
    return np.where(np.arange(x.size).reshape(x.shape) % 2 == 0, even, odd)


def nibbles(x: Any) -> Any:
    """Of each two bytes the low four bits of each half: a register of four elements is two of 16 bits."""
    whole = np.pad(x.ravel(), (0, -x.size % 4)).view(np.uint16).reshape(-1, 2).astype(np.uint32)
    word = whole[:, 0] | whole[:, 1] << 16
    out = np.stack([word & 0x000F000F, (word >> 4) & 0x000F000F], 1).astype(np.uint32)
    return out.view(np.uint16).reshape(-1)[: x.size].reshape(x.shape)


@pytest.mark.parametrize("shape", [(256,), (10,), (3, 5), (8, 64), (1024,)])
@pytest.mark.parametrize("name", TEXTS)
def test_assembly(name: str, shape: tuple[int, ...]) -> None:
    text, constraints, pack, results, arguments, reference = TEXTS[name]
    rng = np.random.default_rng(0)
    xs = [rng.integers(0 if np.dtype(t).kind == "u" else -60, 60, shape).astype(t) for t in arguments]

    def body(*refs: Any) -> None:
        types = [jax.ShapeDtypeStruct(shape, t) for t in results]
        args = [r[...] for r in refs[: len(xs)]]
        found = plt.elementwise_inline_asm(text, args=args, constraints=constraints, pack=pack, result_shape_dtypes=types)
        for ref, value in zip(refs[len(xs) :], found, strict=True):
            ref[...] = value

    with enabled():
        got = call(body, tuple(like(shape, t) for t in results))(*xs)
    for a, b in zip(got, reference(*xs), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b).astype(a.dtype))


# ------------------------------------------------------------------------------------------ accesses in order, in any call


@pytest.mark.parametrize("in_gmem", [False, True], ids=["block", "gmem"])
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_ordered_accesses_in_a_call(rows: int, in_gmem: bool) -> None:
    """Blocks of an array have its strides. No step depends on another one by atomics."""
    x = np.arange(24 * 256, dtype=np.int32).reshape(24, 256)

    def body(x: Any, _: Any, o: Any, total: Any) -> None:
        smalt.store(o, smalt.load(x, order="acquire") * 2)
        smalt.atomic_max(o.at[0], jnp.full((128,), 77))
        smalt.atomic_add(o.at[rows - 1, pl.ds(0, 64)], 1)
        smalt.atomic_xor(o.at[0, jnp.arange(0, 128, 8)], 3)
        smalt.atomic_add(total.at[0], smalt.load(x.at[0, 0]))

    space = {"memory_space": plgpu.GMEM} if in_gmem else {}
    block = pl.BlockSpec((rows, 128), lambda i, j: (i, j), **space)
    whole = pl.BlockSpec((1,), lambda i, j: (0,))
    run = jax.jit(
        pl.pallas_call(
            body,
            out_shape=(like(x.shape, jnp.int32), like((1,), jnp.int32)),
            grid=(24 // rows, 2),
            in_specs=[block, whole],
            out_specs=(block, whole),
            input_output_aliases={1: 1},
        )
    )
    expected = 2 * x
    expected[::rows] = np.maximum(expected[::rows], 77)
    for first in (0, 128):
        expected[rows - 1 :: rows, first : first + 64] += 1
        expected[::rows, first : first + 128 : 8] ^= 3
    with enabled():
        out, total = run(x, np.zeros(1, np.int32))
    np.testing.assert_array_equal(np.asarray(out), expected)
    assert int(total[0]) == x[::rows, ::128].sum()
    assert at_once(run, x, np.zeros(1, np.int32))


def test_atomics_beside_other_accesses_are_in_order() -> None:
    """An output that a step also loads and stores as the program has it: its steps run one after the other."""
    x = np.arange(4, dtype=np.int32)

    def body(x: Any, o: Any) -> None:
        i = pl.program_id(0)

        @pl.when(i == 0)
        def _() -> None:
            o[...] = jnp.zeros((128,), jnp.int32)

        smalt.atomic_add(o, x[i])

    run = jax.jit(pl.pallas_call(body, out_shape=like((128,), jnp.int32), grid=(4,)))
    with enabled():
        np.testing.assert_array_equal(np.asarray(run(x)), np.full(128, 6))
    assert not at_once(run, x)


def test_ordered_accesses_of_scratch_in_a_call() -> None:
    def body(x: Any, o: Any, word: Any) -> None:
        smalt.store(word.at[0], x[0])
        smalt.atomic_min(word.at[0], -2.5)
        o[...] = jnp.full((128,), smalt.load(word.at[0]))

    with enabled():
        run = pl.pallas_call(body, out_shape=like((128,)), scratch_shapes=[plgpu.SMEM((1,), jnp.float32)])
        np.testing.assert_array_equal(np.asarray(run(np.full(128, -1.5, np.float32))), np.full(128, -2.5))


def test_elements_at_indices_of_a_kernel() -> None:
    """Arrays of indices and slices with strides, of any number, in `plgpu.kernel`."""
    x = np.arange(300, dtype=np.int32)
    at = np.random.default_rng(0).permutation(300)[:37].astype(np.int32)

    def body(x: Any, at: Any, o: Any, old: Any) -> None:
        o[...] = x[...]
        old[...] = smalt.atomic_add(o.at[at[...]], at[...])
        smalt.store(o.at[pl.ds(5, 20, 3)], -1)

    with enabled():
        run = plgpu.kernel(body, out_type=(like((300,), jnp.int32), like((37,), jnp.int32)))
        got, old = jax.jit(run)(x, at)
    expected = x.copy()
    expected[at] += at
    expected[5 : 5 + 58 : 3] = -1
    np.testing.assert_array_equal(np.asarray(got), expected)
    np.testing.assert_array_equal(np.asarray(old), at)


# ------------------------------------------------------------------------------------------ blocks for which there is no room


@pytest.mark.parametrize("width", [72, 100, 128])
@pytest.mark.parametrize("rows", [600, 768])
def test_blocks_that_do_not_fit_into_shared_memory(rows: int, width: int) -> None:
    """They stay where they are; what is outside of the array is not loaded, and not stored."""
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((2, rows, width)).astype(np.float32) for _ in range(2))

    def body(x: Any, y: Any, o: Any, p: Any) -> None:
        inside = jnp.arange(128)[None] < width

        def step(i: Any, total: Any) -> Any:
            part = pl.ds(i * 64, 64)
            there = inside & (i * 64 + jnp.arange(64)[:, None] < rows)
            product = jnp.where(there, x[part, :] * plt.load(y.at[part, :], mask=inside, other=0.0), 0)
            o[part, :] = product
            p[i] = x[i, :] + y[i]  # rows by their numbers
            p[-1] = x[-767, :]
            return total + product.sum()

        total = lax.fori_loop(0, 12, step, jnp.float32(0))
        p[12, pl.ds(0, 128)] = jnp.full((128,), total)

    block = pl.BlockSpec((None, 768, 128), lambda i: (i, 0, 0))
    small = pl.BlockSpec((None, 16, 128), lambda i: (i, 0, 0))
    run = call(body, (like(x.shape), like((2, 16, width))), grid=(2,), in_specs=[block, block], out_specs=(block, small))
    with enabled():
        got, part = (np.asarray(a) for a in run(x, y))
    np.testing.assert_array_equal(got, x * y)
    np.testing.assert_array_equal(part[:, :12], (x + y)[:, :12])
    np.testing.assert_array_equal(part[:, 15], x[:, 1])
    np.testing.assert_allclose(part[:, 12], np.broadcast_to((x * y).sum((1, 2))[:, None], (2, width)), rtol=1e-3, atol=1e-2)
    assert at_once(run, x, y)


# ------------------------------------------------------------------------------------------ several warpgroups

LOOPS = 96


@seeds(PIPELINED, LOOPS, 8)
def test_random_products_of_what_a_loop_loads(programs: list[Pipelined]) -> None: ...


def test_rings_that_leave_no_room() -> None:
    """What products in int8 take for themselves is not known before: without rings it fits."""
    p = Pipelined.of(2190)
    with enabled():
        p.check()
        (report,) = smalt.inspect(p.run(False), *p.data())
    assert "one copies ahead" not in str(report) or not has("wgmma")


def test_a_masked_load_of_all_positions_from_a_later_one() -> None:
    """A slice as long as its array begins where only the run knows: it is not the array."""
    n = 64

    def body(x: Any, k: Any, b: Any, at: Any, o: Any) -> None:
        numbers = plt.load(b.at[pl.ds(at[0], n)], mask=jnp.arange(n) + at[0] < n, other=0)

        def turn(i: Any, total: Any) -> Any:
            return total + jnp.dot(x[...], k[pl.ds(i * n, n), :], preferred_element_type=jnp.float32)

        o[...] = lax.fori_loop(0, 2, turn, jnp.zeros((n, n), jnp.float32)) + numbers[None, :]

    run = call(body, like((n, n)))
    rng = np.random.default_rng(0)
    x, k = ((rng.standard_normal(s) * 0.1).astype(np.float16) for s in [(n, n), (2 * n, n)])
    b = np.arange(n, dtype=np.float32)
    want = x.astype(np.float32) @ (k[:n].astype(np.float32) + k[n:].astype(np.float32)) + np.append(b[5:], np.zeros(5))
    args = [x, k, b, np.array([5], np.int32)]
    with enabled():
        np.testing.assert_allclose(run(*args), want, rtol=1e-2, atol=1e-3)
        (report,) = smalt.inspect(run, *args)
    assert "copies ahead" in str(report)


def attention(rows: int, tile: int, depth: int, change: str = "") -> tuple[Callable[..., Any], list[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    """Attention of 2 x `rows` queries, its operands, and what it is. `change`: one thing that is in the way."""
    n = 4 * tile

    def body(q: Any, k: Any, v: Any, o: Any) -> None:
        own = q[...]

        def turn(i: Any, carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
            total, top, size = carry
            at = pl.ds(i * tile, tile)
            if change == "gather":
                keys = plt.load(k.at[i * tile + jnp.arange(tile), :])
            else:
                keys = plt.load(k.at[at, :])
            s = jnp.dot(own, keys.T, preferred_element_type=jnp.float32)
            if change == "rows":  # what mixes them
                s = s + jnp.flip(s, 0) * 0
            new = jnp.maximum(top, s.max(1))
            p, old = jnp.exp(s - new[:, None]), jnp.exp(top - new)
            return old[:, None] * total + jnp.dot(p.astype(v.dtype), v[at, :], preferred_element_type=jnp.float32), new, old * size + p.sum(1)

        begin = (jnp.zeros((rows, depth), jnp.float32), jnp.full(rows, -1e30, jnp.float32), jnp.zeros(rows, jnp.float32))
        if change == "while":  # until the sums say so
            end = lax.while_loop(lambda c: (c[0] < 4) & (c[1][2].min() < 1e30), lambda c: (c[0] + 1, turn(c[0], c[1])), (0, begin))[1]
        else:
            end = lax.fori_loop(0, 4, turn, begin)
        o[...] = end[0] / end[2][:, None]

    block = pl.BlockSpec((rows, depth), lambda i: (i, 0))
    whole = pl.BlockSpec((n, depth), lambda i: (0, 0))
    run = call(body, like((2 * rows, depth)), grid=(2,), in_specs=[block, whole, whole], out_specs=block, compiler_params=plt.CompilerParams(num_stages=2))
    rng = np.random.default_rng(0)
    q, k, v = ((rng.standard_normal((m, depth)) * 0.3).astype(np.float16) for m in (2 * rows, n, n))
    s = np.exp(q.astype(np.float32) @ k.astype(np.float32).T)
    return run, [q, k, v], s @ v.astype(np.float32) / s.sum(1, keepdims=True)


@pytest.mark.parametrize("rows, warpgroups", [(16, 2), (64, 2), (128, 3), (192, 4), (256, 5), (96, 2)])
def test_products_of_what_a_loop_loads(rows: int, warpgroups: int) -> None:
    """One warpgroup copies ahead, others compute, each 64 rows; or, where it would keep its registers, one does both."""
    run, args, want = attention(rows, 64, 64)
    with enabled():
        np.testing.assert_allclose(run(*args), want, rtol=2e-2, atol=2e-3)
        (report,) = smalt.inspect(run, *args)
    has_producer = has_producers()
    assert report.threads == 128 * (warpgroups if has_producer else 1)
    assert ("one copies ahead" if has_producer else "and copies ahead") in str(report)
    assert ("wgmma" in report.ptx) == (rows % 64 == 0 and has("wgmma"))


@pytest.mark.parametrize("change, warpgroups", [("gather", 3), ("rows", 2), ("while", 1)])
def test_what_is_in_the_way(change: str, warpgroups: int) -> None:
    """Indices that are arrays have no ring, mixed rows one warpgroup, a trip count that arrays give no producer; all are right."""
    run, args, want = attention(128, 64, 64, change)
    with enabled():
        np.testing.assert_allclose(run(*args), want, rtol=2e-2, atol=2e-3)
        (report,) = smalt.inspect(run, *args)
    assert report.threads == 128 * (warpgroups if has_producers() else 1) or not has_memory()


def test_a_loop_that_reads_what_the_kernel_stores() -> None:
    """An output that is an input, too: what a step stores, the next loads. It has no ring."""
    n = 64
    rng = np.random.default_rng(0)
    x, k = (rng.standard_normal((n, n)) * 0.1).astype(np.float16), (rng.standard_normal((3 * n, n)) * 0.1).astype(np.float16)

    def body(x: Any, k: Any, o: Any, k_out: Any) -> None:
        def turn(i: Any, total: Any) -> Any:
            total = total + jnp.dot(x[...], k_out[pl.ds(i * n, n), :], preferred_element_type=jnp.float32)
            k_out[pl.ds((i + 1) * n, n), :] = total.astype(jnp.float16)
            return total

        o[...] = lax.fori_loop(0, 2, turn, jnp.zeros((n, n), jnp.float32))

    run = call(body, [like((n, n)), like((3 * n, n), jnp.float16)], input_output_aliases={1: 1})
    first = x.astype(np.float32) @ k[:n].astype(np.float32)
    want = first + x.astype(np.float32) @ first.astype(np.float16).astype(np.float32)
    with enabled():
        np.testing.assert_allclose(run(x, k)[0], want, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("what", ["read again", "stored twice", "a count"])
def test_what_the_kernel_stores_stays_in_order(what: str) -> None:
    """Warpgroups do not read what others store, nor store where others do; a producer does not count by what the kernel stores."""
    n = 128
    rng = np.random.default_rng(0)
    x, k = (rng.standard_normal((n, n)) * 0.1).astype(np.float16), (rng.standard_normal((3 * n, n)) * 0.1).astype(np.float16)

    def body(x: Any, k: Any, o: Any, more: Any, count: Any) -> None:
        own = x[...]
        count[0] = 2

        def turn(i: Any, total: Any) -> Any:
            return total + jnp.dot(own, k[pl.ds(i * n, n), :], preferred_element_type=jnp.float32)

        if what == "stored twice":
            o[:, :] = jnp.ones((n, n))
            o[pl.ds(0, 64), :] = jnp.zeros((64, n))
        o[...] = lax.fori_loop(0, count[0] if what == "a count" else 2, turn, jnp.zeros((n, n), jnp.float32))
        more[...] = o[...].T if what == "read again" else own.astype(jnp.float32)

    run = call(body, [like((n, n)), like((n, n)), like((1,), jnp.int32)])
    want = x.astype(np.float32) @ (k[:n].astype(np.float32) + k[n : 2 * n].astype(np.float32))
    with enabled():
        got, more, _ = run(x, k)
    np.testing.assert_allclose(got, want, rtol=1e-2, atol=1e-3)
    np.testing.assert_allclose(more, want.T if what == "read again" else x, rtol=1e-2, atol=1e-3)


@pytest.mark.skipif(ON_GPU, reason="a GPU reads zeros there, or what lies behind")
@pytest.mark.skipif(not _versions.copy_in_bounds(), reason="copies of JAX 0.10 do not say that they stay inside (LIMITATIONS)")
def test_a_tile_behind_its_array_is_told() -> None:
    def body(x: Any, k: Any, o: Any) -> None:
        def turn(i: Any, total: Any) -> Any:
            return total + jnp.dot(x[...], k[pl.ds(i * 64, 64), :], preferred_element_type=jnp.float32)

        o[...] = lax.fori_loop(0, pl.program_id(0) + 3, turn, jnp.zeros((64, 64), jnp.float32))

    run = call(body, like((64, 64)), grid=(1,))
    x, k = np.zeros((64, 64), np.float16), np.zeros((128, 64), np.float16)
    with enabled(), pytest.raises(Exception, match="outside of its dimension"):
        jax.block_until_ready(run(x, k))
