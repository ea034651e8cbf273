"""Integers in kernels are XLA's: what is folded, what is known of ranges, what loops count, what is checked where it stands."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest
import smalt
from jax import lax

from tests.corpus.case import kernel, like, x64

pytestmark = pytest.mark.shared

Array = np.ndarray[Any, Any]

BITS = (8, 16, 32, 64)
TYPES = [f"{kind}{bits}" for bits in BITS for kind in ("int", "uint")]

BINARY: dict[str, Callable[..., Any]] = {
    "add": lax.add,
    "sub": lax.sub,
    "mul": lax.mul,
    "div": lax.div,
    "rem": lax.rem,
    "max": lax.max,
    "min": lax.min,
    "and": lax.bitwise_and,
    "or": lax.bitwise_or,
    "xor": lax.bitwise_xor,
    "shift_left": lax.shift_left,
    "shift_right_logical": lax.shift_right_logical,
    "shift_right_arithmetic": lax.shift_right_arithmetic,
    "floor_divide": jnp.floor_divide,
    "mod": jnp.mod,
    "lt": lambda x, y: (x < y).astype(x.dtype),
    "le": lambda x, y: (x <= y).astype(x.dtype),
    "eq": lambda x, y: (x == y).astype(x.dtype),
    "clamp": lambda x, y: lax.clamp(x.dtype.type(3), x, y),
    "where": lambda x, y: jnp.where(x < y, x, y - x),
}
UNARY: dict[str, Callable[..., Any]] = {
    "not": lax.bitwise_not,
    "sign": lax.sign,
    "clz": lax.clz,
    "population_count": lax.population_count,
    "cube": lambda x: lax.integer_pow(x, 3),
    "abs": jnp.abs,
    "neg": lax.neg,
}


def numbers(dtype: str) -> Array:
    """The ends of a type, those around 0 and some between."""
    info = np.iinfo(dtype)
    wanted = [info.min, info.min + 1, -9, -1, 0, 1, 2, 7, 8, info.bits - 1, info.bits, 100, info.max // 2, info.max // 2 + 1, info.max - 1, info.max]
    return np.array(sorted({n for n in wanted if info.min <= n <= info.max}), dtype)


def run(f: Callable[..., Any], *arrays: Any) -> Any:
    with smalt.emulated("H100"):
        return jax.tree.map(np.asarray, jax.jit(f)(*arrays))


def all_of(x: Any, y: Any) -> list[Any]:
    return [*(f(x, y) for f in BINARY.values()), *(f(x) for f in UNARY.values())]


NAMES = [*BINARY, *UNARY]


def equal(got: Any, want: Any, *operands: Any) -> None:
    for name, g, w in zip(NAMES, got, want, strict=True):
        g, w = np.asarray(g), np.asarray(w)
        wrong = np.argwhere(g != w)
        shown = [([x.flat[i[-1]] for x in operands], g[tuple(i)], w[tuple(i)]) for i in wrong[:3]]
        assert not len(wrong), f"{name}: {len(wrong)} wrong: {shown}"


def check_one_by_one(x: Array, y: Array) -> None:
    """A kernel takes the arrays' elements, scalars or rows, one after the other."""

    def body(x: Any, y: Any, *out: Any) -> None:
        @pl.loop(0, x.shape[0])
        def _(i: Any) -> None:
            for o, value in zip(out, all_of(x[i], y[i]), strict=True):
                o[i] = value

    outs = [like(x.shape, x.dtype)] * len(NAMES)
    equal(run(kernel(body, outs), x, y), jax.jit(all_of)(x, y), x, y)


@pytest.mark.parametrize("dtype", TYPES)
def test_arrays(dtype: str) -> None:
    """Of 8 bits all pairs."""
    with x64(dtype.endswith("64")):
        all_numbers = np.arange(256).astype(dtype) if dtype.endswith("8") else numbers(dtype)
        x, y = (a.reshape(-1) for a in np.meshgrid(all_numbers, all_numbers))
        padded = -len(x) % 128
        x, y = (np.concatenate([a, np.ones(padded, dtype)]) for a in (x, y))
        steps = min(len(x), 1024)
        x, y = (a.reshape(-1, steps) if len(a) % steps == 0 else a.reshape(1, -1) for a in (x, y))

        check_one_by_one(x, y)


@pytest.mark.parametrize("dtype", TYPES)
def test_scalars_of_which_nothing_is_known(dtype: str) -> None:
    with x64(dtype.endswith("64")):
        some = numbers(dtype)
        x, y = (a.reshape(-1) for a in np.meshgrid(some, some))

        check_one_by_one(x, y)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("width", [1, 3])
def test_scalars_of_which_a_range_is_known(dtype: str, width: int) -> None:
    """Numbers from a constant on, as many as the grid has blocks: one of them is folded."""
    with x64(dtype.endswith("64")):
        some = numbers(dtype)[::3]
        starts = list(itertools.product(some, some))
        x, y = (np.array([s[k] for s in starts], dtype) for k in (0, 1))

        def body(*out: Any) -> None:
            i = lax.axis_index("i")
            for k, (a, b) in enumerate(starts):
                for o, value in zip(out, all_of(a + i.astype(dtype), b + i.astype(dtype)), strict=True):
                    o[i, k] = value

        outs = [like((width, len(x)), jnp.dtype(dtype))] * len(NAMES)
        f = plgpu.kernel(body, out_type=outs, grid=(width,), grid_names=("i",))
        with np.errstate(over="ignore"):
            steps = np.arange(width).astype(dtype)[:, None]
            x, y = x + steps, y + steps
        equal(run(f), jax.jit(all_of)(x, y))


@pytest.mark.parametrize("source", TYPES)
def test_conversions(source: str) -> None:
    """To every integer type and on from there to the others, of scalars and arrays."""
    with x64(True):
        given = numbers(source)

        def on(x: Any) -> list[Any]:
            there = [x.astype(to) for to in TYPES]
            return [*there, *(a.astype(to) // 7 for a in there for to in TYPES), *((a % 8).astype("int32") for a in there)]

        want = jax.jit(on)(given)

        def scalars(x: Any, *out: Any) -> None:
            @pl.loop(0, x.shape[0])
            def _(i: Any) -> None:
                for o, value in zip(out, on(x[i]), strict=True):
                    o[i] = value

        def arrays(x: Any, *out: Any) -> None:
            for o, value in zip(out, on(x[...]), strict=True):
                o[...] = value

        outs = [like(w.shape, w.dtype) for w in want]
        for body in (scalars, arrays):
            for got, wanted in zip(run(kernel(body, outs), given), want, strict=True):
                np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("h", [2**64 - 3, 2**63, 2**63 - 1, 2**63 + 5, 6, 0], ids=hex)
def test_a_u64_may_be_a_negative_i64(h: int) -> None:
    with x64(True):

        def of(k: Any) -> list[Any]:
            return [k // 7, k % 7, jnp.abs(k), jnp.maximum(k, 0), jnp.minimum(k, 3), jnp.clip(k, -2, 5), jnp.where(k < 0, 1, 2), k >> 3]

        def body(h: Any, x: Any, *out: Any) -> None:
            k = h[0].astype(jnp.int64)
            for o, value in zip(out, [*of(k), x[k % 8]], strict=True):
                o[0] = value

        given, x = np.array([h], np.uint64), np.arange(8, dtype=np.int64) * 10
        k = given.astype(np.int64)[0]
        want = [*of(jnp.asarray(k)), x[k % 8]]
        got = run(kernel(body, [like((1,), jnp.int64)] * len(want)), given, x)
        np.testing.assert_array_equal(np.concatenate(got), np.array([int(w) for w in want]))


@pytest.mark.parametrize("dtype", TYPES)
def test_starts_of_slices_are_clamped(dtype: str) -> None:
    with x64(True):
        starts = numbers(dtype)
        x = np.arange(64, dtype=np.int32)

        def body(starts: Any, x: Any, o: Any) -> None:
            whole = x[...]

            @pl.loop(0, starts.shape[0])
            def _(i: Any) -> None:
                o[i] = lax.dynamic_slice(whole, (starts[i],), (16,))

        want = jax.vmap(lambda s: lax.dynamic_slice(x, (s,), (16,)))(starts)
        np.testing.assert_array_equal(run(kernel(body, like(want.shape, jnp.int32)), starts, x), want)


# ------------------------------------------------------------------------------------------ loops

COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": lambda i, n: i < n,
    "<=": lambda i, n: i <= n,
    ">": lambda i, n: i > n,
    ">=": lambda i, n: i >= n,
    "!=": lambda i, n: i != n,
    "n>i": lambda i, n: n > i,
}
MOST_TRIPS = 300


def trips(dtype: str, first: int, end: int, step: int, goes_on: str) -> int | None:
    goes_on_at = COMPARE[goes_on]
    i = first
    for k in range(MOST_TRIPS):
        if not goes_on_at(i, end):
            return k
        i = wrapped(dtype, i + step)
    return None


def wrapped(dtype: str, x: int) -> int:
    info = np.iinfo(dtype)
    return (x - int(info.min)) % (1 << info.bits) + int(info.min)


@functools.cache
def loops(dtype: str) -> list[tuple[int, int, int, str]]:
    """(first, end, step, comparison) of loops that end, at the ends of the type and across them."""
    info = np.iinfo(dtype)
    places = sorted({info.min, info.min + 8, -120, -3, 0, 5, 120, 200, info.max // 2 + 1, info.max - 7, info.max})
    places = [p for p in places if info.min <= p <= info.max]
    steps = [s for s in (1, 2, 7, -1, -3, 100) if s <= info.max]
    return [loop for loop in itertools.product(places, places, steps, COMPARE) if trips(dtype, *loop) is not None]


def counted(first: Any, end: Any, step: Any, goes_on: str) -> Any:
    """How often it goes round in several types, where it ends, and what it has seen."""

    def turn(s: Any) -> Any:
        i, n, by, five, narrow, seen = s
        return i + by, n, by, five + 5, narrow + jnp.int8(3), seen * 31 + i.astype(jnp.int32)

    carry = first, end, step, jnp.int32(0), jnp.int8(-100), jnp.int32(1)
    i, _, _, five, narrow, seen = lax.while_loop(lambda s: COMPARE[goes_on](s[0], s[1]), turn, carry)
    return i.astype(jnp.int32), five, narrow.astype(jnp.int32), seen


def counted_by_python(dtype: str, first: int, end: int, step: int, goes_on: str) -> list[int]:
    """`counted`, without a compiler."""
    turns = trips(dtype, first, end, step, goes_on)
    assert turns is not None
    i, seen = first, 1
    for _ in range(turns):
        seen = wrapped("int32", seen * 31 + wrapped("int32", i))
        i = wrapped(dtype, i + step)
    return [wrapped("int32", i), 5 * turns, wrapped("int8", 3 * turns - 100), seen]


@pytest.mark.parametrize("known", [False, True], ids=["loaded", "constant"])
@pytest.mark.parametrize("dtype", TYPES)
def test_whiles_count_as_they_do_elsewhere(dtype: str, known: bool) -> None:
    with x64(dtype.endswith("64")):
        chosen = loops(dtype)
        chosen = chosen[:: max(1, len(chosen) // 32)] + [c for c in chosen if c[2:] == (1, "<")]
        bounds = np.array([[c[0], c[1], np.array(c[2]).astype(dtype)] for c in chosen], dtype)

        def body(bounds: Any, o: Any) -> None:
            for k, (*numbers, goes_on) in enumerate(chosen):
                given = [jnp.asarray(np.array(x).astype(dtype)) if known else bounds[k, j] for j, x in enumerate(numbers)]
                for j, value in enumerate(counted(*given, goes_on)):
                    o[k, j] = value

        want = [counted_by_python(dtype, *map(int, row), c[3]) for row, c in zip(bounds, chosen, strict=True)]
        got = run(kernel(body, like((len(chosen), 4), jnp.int32)), bounds)
        for k, row in enumerate(want):
            np.testing.assert_array_equal(got[k], row, err_msg=str(chosen[k]))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32"])
def test_fori_loops_count_as_they_do_elsewhere(dtype: str) -> None:
    info = np.iinfo(dtype)
    bounds = [(info.min, info.min + 250), (info.max - 200, info.max), (0, 100), (5, 5), (7, 3)]
    bounds += [(-120, 120)] if info.min < 0 else []

    def counts(lo: Any, hi: Any) -> Any:
        return lax.fori_loop(lo, hi, lambda i, s: (s[0] + 5, s[1] + i.astype(jnp.int32) * s[0]), (jnp.int32(0), jnp.int32(0)))

    def body(bounds: Any, o: Any) -> None:
        for k, (lo, hi) in enumerate(chosen):
            for j, ends in enumerate([(bounds[k, 0], bounds[k, 1]), (np.dtype(dtype).type(lo), np.dtype(dtype).type(hi))]):
                o[k, 2 * j], o[k, 2 * j + 1] = counts(*ends)

    chosen = [b for b in bounds if info.min <= b[0] and b[1] <= info.max]
    given = np.array(chosen, dtype)
    want = [[int(v) for v in counts(*row) * 2] for row in given]
    np.testing.assert_array_equal(run(kernel(body, like((len(chosen), 4), jnp.int32)), given), want)


@pytest.mark.parametrize("dtype", ["int32", "float32"])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_numbers_that_loops_exchange(order: tuple[int, ...], dtype: str) -> None:
    """What a turn computes of them changes from turn to turn, unless they stay."""
    turns = 5

    def body(x: Any, whiles: Any, fors: Any) -> None:
        def turn(o: Any, i: Any, s: Any) -> Any:
            for k in range(3):
                o[i, k] = s[k] * s[k] + s[k] * 3
            return tuple(s[k] for k in order)

        first = x[0], x[1], x[2]
        lax.while_loop(lambda s: s[0] < turns, lambda s: (s[0] + 1, *turn(whiles, s[0], s[1:])), (jnp.int32(0), *first))
        lax.fori_loop(0, turns, lambda i, s: turn(fors, i, s), first)

    x = np.array([3, 5, 11], dtype)
    got = run(kernel(body, [like((turns, 3), x.dtype)] * 2), x)
    want, s = [], x
    for _ in range(turns):
        want.append(s * s + s * 3)
        s = s[list(order)]
    for result in got:
        np.testing.assert_array_equal(result, np.stack(want))


# ------------------------------------------------------------------------------------------ what is checked where it stands


def in_when(n: Any, x: Any, o: Any) -> None:
    @pl.when(n % 8 == 0)
    def _() -> None:
        o[...] = x[pl.ds(pl.multiple_of(n, 8), 8)]


def in_a_loop_in_when(n: Any, x: Any, o: Any) -> None:
    @pl.loop(0, 3)
    def _(i: Any) -> None:
        @pl.when(n % 8 == 0)
        def _() -> None:
            o[...] = x[pl.ds(pl.multiple_of(n, 8), 8)] + i


def in_a_loop_of_no_trips(n: Any, x: Any, o: Any) -> None:
    @pl.loop(0, jnp.where(n % 8 == 0, 2, 0))
    def _(i: Any) -> None:
        o[...] = x[pl.ds(pl.multiple_of(n, 8), 8)] * i


def in_an_arm(n: Any, x: Any, o: Any) -> None:
    at = lax.cond(n % 8 == 0, lambda: pl.multiple_of(n, 8), lambda: n // 8 * 8)
    o[...] = x[pl.ds(at, 8)]


def in_an_arm_of_a_switch(n: Any, x: Any, o: Any) -> None:
    at = lax.switch(n % 8, [lambda: pl.multiple_of(n, 8), *([lambda: jnp.int32(0)] * 7)])
    o[...] = x[pl.ds(at, 8)]


def of_a_load_in_a_loop(n: Any, x: Any, o: Any) -> None:
    @pl.loop(0, jnp.where(n % 8 == 0, 2, 0))
    def _(i: Any) -> None:
        o[...] = x[pl.ds(pl.multiple_of(x[3] + n, 8), 8)] * i


HINTS = [in_when, in_a_loop_in_when, in_a_loop_of_no_trips, in_an_arm, in_an_arm_of_a_switch, of_a_load_in_a_loop]


@pytest.mark.parametrize("n", [3, 16])
@pytest.mark.parametrize("body", HINTS, ids=lambda f: f.__name__)
def test_a_hint_holds_where_it_stands(body: Callable[..., None], n: int) -> None:
    """Where it is not executed nothing is promised."""

    def kernel_body(n: Any, x: Any, o: Any) -> None:
        o[...] = x[pl.ds(0, 8)]
        body(n[0], x, o)

    x = np.arange(32, dtype=np.int32)
    x[3] = 0
    want = x[:8]
    if body in (in_an_arm, in_an_arm_of_a_switch):
        want = x[16:24] if n == 16 else x[:8]
    elif n == 16:
        want = x[16:24] + (2 if body is in_a_loop_in_when else 0)
    got = run(kernel(kernel_body, like((8,), jnp.int32)), np.array([n], np.int32), x)
    np.testing.assert_array_equal(got, want)


def test_a_hint_that_is_executed_is_checked() -> None:
    """The promise is of a number that the condition does not look at."""

    def body(n: Any, x: Any, o: Any) -> None:
        @pl.when(n[0] % 8 == 0)
        def _() -> None:
            o[...] = x[pl.ds(pl.multiple_of(n[1], 8), 8)]

    with pytest.raises(Exception, match="a hint that is not true"):
        run(kernel(body, like((8,), jnp.int32)), np.array([8, 3], np.int32), np.arange(32, dtype=np.int32))


# ------------------------------------------------------------------------------------------ sums


@pytest.mark.parametrize(("precision", "dtype"), [("highest", "float32"), (None, "float32"), (None, "float16"), (None, "bfloat16")])
def test_what_is_added_to_a_product_is_added_to_its_sum(precision: str | None, dtype: str) -> None:
    """64 ones by themselves are nothing beside 10⁸."""

    def body(acc: Any, x: Any, y: Any, o: Any) -> None:
        o[...] = acc[...] + jnp.dot(x[...], y[...], precision=precision, preferred_element_type=jnp.float32)

    ones = np.ones((64, 64), jnp.dtype(dtype))
    acc = np.full((64, 64), 1e8, np.float32)
    got = run(kernel(body, like((64, 64), jnp.float32)), acc, ones, ones)
    np.testing.assert_array_equal(got, np.full((64, 64), 1e8 + 64, np.float32))


# ------------------------------------------------------------------------------------------ divisors that are known


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_divisors_of_each_sign(dtype: str) -> None:
    """Of dividends of which nothing is known, their sign, or a range: right, and no division is left."""
    info = np.iinfo(dtype)
    divisors = [*(sign * m for m in (1, 2, 7, 64, 100, info.max // 3) for sign in (1, -1)), info.min, info.max]
    known = [-1, info.max, 15]

    def body(x: Any, o: Any) -> None:
        for n, mask in enumerate(known):
            v = x[...] & x.dtype.type(mask)
            for k, c in enumerate(divisors):
                o[n, k, 0] = lax.div(v, x.dtype.type(c))
                o[n, k, 1] = lax.rem(v, x.dtype.type(c))

    with x64(dtype == "int64"):
        x = numbers(dtype)
        f = kernel(body, like((len(known), len(divisors), 2, len(x)), x.dtype))
        with smalt.emulated("H100"):
            (report,) = smalt.inspect(f, x)
        assert not re.search(r"\b(div|rem)\.[su]", report.ptx)
        got = run(f, x)
    for n, mask in enumerate(known):
        for k, c in enumerate(divisors):
            for at, v in enumerate((x & x.dtype.type(mask)).tolist()):
                quotient = abs(v) // abs(c) * (1 if (v < 0) == (c < 0) else -1)
                # The least number by -1 is itself.
                want = quotient if quotient <= info.max else info.min, v - quotient * c
                assert tuple(got[n, k, :, at]) == want, f"{v} by {c}"


# ------------------------------------------------------------------------------------------ reductions

#: NumPy's, JAX's, and what it begins with.
REDUCTIONS: dict[str, tuple[Any, Callable[..., Any], Callable[[Any], int]]] = {
    "sum": (np.add, lax.add, lambda info: 0),
    "prod": (np.multiply, lax.mul, lambda info: 1),
    "max": (np.maximum, lax.max, lambda info: info.min),
    "min": (np.minimum, lax.min, lambda info: info.max),
    "and": (np.bitwise_and, lax.bitwise_and, lambda info: -1 if info.min else info.max),
    "or": (np.bitwise_or, lax.bitwise_or, lambda info: 0),
    "xor": (np.bitwise_xor, lax.bitwise_xor, lambda info: 0),
}


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint64"])
def test_reductions_of_equal_elements(dtype: str) -> None:
    """A scalar in an array's clothes, of an even number of elements and an odd one."""
    shapes = ((1,), (2,), (3,), (4,), (7,), (3, 5), (3, 32))
    with x64(dtype.endswith("64")):
        x = numbers(dtype)

        def body(x: Any, o: Any) -> None:
            @pl.loop(0, x.shape[0])
            def _(i: Any) -> None:
                for k, (_, f, start) in enumerate(REDUCTIONS.values()):
                    for n, shape in enumerate(shapes):
                        o[k, n, i] = lax.reduce(lax.broadcast(x[i], shape), x.dtype.type(start(np.iinfo(dtype))), f, range(len(shape)))

        got = run(kernel(body, like((len(REDUCTIONS), len(shapes), len(x)), x.dtype)), x)
        for k, (name, (f, _, _)) in enumerate(REDUCTIONS.items()):
            for n, shape in enumerate(shapes):
                want = f.reduce(np.broadcast_to(x, (np.prod(shape), len(x))), axis=0, dtype=x.dtype)
                np.testing.assert_array_equal(got[k, n], want, f"{name} of {shape}")
