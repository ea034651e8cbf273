"""`pl.pallas_call`: what its steps mean together, indices of every kind, and what is said of those that are wrong."""

from __future__ import annotations

import functools
import inspect
import os
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.experimental.pallas.tpu as pltpu
import jax.numpy as jnp
import numpy as np
import pytest

import smalt
from smalt._blocks import blocks as _blocks, finer_rows, flow, pallas_call
from smalt._lowering import lower
from tests.fuzz.seeds import seeds
from tests.programs.blocks.run import DEPENDENT

COUNT = int(os.environ.get("SMALT_TEST_BLOCKS", "50"))
HERE = os.path.basename(__file__)


@pytest.fixture(autouse=True)
def enabled():
    with smalt.enabled(True):
        yield


def numbers(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(3).integers(0, 9, shape).astype(dtype)


def like(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def rows(n: int, width: int, index_map: Any = lambda i: (i, 0)) -> pl.BlockSpec:
    return pl.BlockSpec((n, width), index_map)


def check(make: Callable[..., Any], *arrays: Any) -> None:
    """A call, as a function of its keywords, has the interpreter's bits."""
    want, got = make(interpret=True)(*arrays), make()(*arrays)
    np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


def decided(call: Callable[..., Any], *arrays: Any) -> pallas_call.Call:
    (eqn,) = (e for e in jax.make_jaxpr(call)(*arrays).jaxpr.eqns if e.primitive.name == "pallas_call")
    return pallas_call.Call(eqn.params)


def line_of(mark: str) -> str:
    with open(__file__) as file:
        return f"{HERE}:{next(i for i, line in enumerate(file, 1) if line.rstrip().endswith('# ' + mark))}"


@seeds(DEPENDENT, COUNT, 10)
def test_steps_that_depend_on_each_other(programs: list[Any]) -> None: ...


# ------------------------------------------------------------------------------------------ indices


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.int8, jnp.bfloat16])
def test_strided_slices_of_blocks_that_are_taken_in_parts(dtype: Any) -> None:
    def load(x: Any, o: Any) -> None:
        o[...] = x[:, ::2] + x[:, 1::2]

    def store(x: Any, o: Any) -> None:
        o[:, ::2] = x[...]
        o[:, 1::2] = x[...] + x[...]

    x, half = numbers(32, 256, dtype=dtype), numbers(32, 128, dtype=dtype)
    assert decided(pl.pallas_call(load, out_shape=like(32, 128, dtype=dtype)), x).parts > 1 or dtype == jnp.int8
    check(lambda **how: pl.pallas_call(load, out_shape=like(32, 128, dtype=dtype), **how), x)
    check(lambda **how: pl.pallas_call(store, out_shape=like(32, 256, dtype=dtype), **how), half)


#: What a load gives of an array of NumPy's; JAX's interpreter has no strides of 0.
REPEATED: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "rows": (lambda r: r[pl.ds(2, 4, 0), :], lambda x: np.repeat(x[2:3], 4, 0)),
    "columns": (lambda r: r[:, pl.ds(3, 5, 0)], lambda x: np.repeat(x[:, 3:4], 5, 1)),
    "both": (lambda r: r[pl.ds(1, 4, 0), pl.ds(2, 3, 0)], lambda x: np.full((4, 3), x[1, 2])),
    "with a stride": (lambda r: r[pl.ds(1, 4, 0), ::3], lambda x: np.repeat(x[1:2, ::3], 4, 0)),
    "at run time": (lambda r: r[pl.ds(pl.program_id(0) + 5, 2, 0)], lambda x: np.repeat(x[5:6], 2, 0)),
    "with an index": (lambda r: r[3, pl.ds(1, 4, 0)], lambda x: np.full(4, x[3, 1])),
    "a part of it": (lambda r: r.at[pl.ds(1, 4, 0)][1:3], lambda x: np.repeat(x[1:2], 2, 0)),
    "one of it": (lambda r: r.at[pl.ds(1, 4, 0)][2], lambda x: x[1]),
    "no times": (lambda r: r[pl.ds(1, 0, 0)], lambda x: x[1:1]),
    "with an array": (
        lambda r: r[jax.lax.broadcasted_iota(jnp.int32, (3,), 0) * 2, pl.ds(1, 4, 0)], lambda x: np.repeat(x[0:6:2, 1:2], 4, 1)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REPEATED)
@pytest.mark.parametrize("in_kernel", [False, True])
def test_a_stride_of_0_repeats_what_is_loaded(name: str, in_kernel: bool) -> None:
    load, of = REPEATED[name]
    x = numbers(8, 9)
    want = of(x)

    def body(x: Any, o: Any) -> None:
        o[...] = load(x) if not in_kernel or name != "at run time" else jnp.repeat(x[5:6], 2, 0)

    shape = like(*want.shape)
    call = plgpu.kernel(body, out_type=shape) if in_kernel else pl.pallas_call(body, grid=(1,), out_shape=shape)
    np.testing.assert_array_equal(call(x), want)


def test_a_store_with_a_stride_of_0_is_refused() -> None:
    def body(x: Any, o: Any) -> None:
        o[...] = x[...]
        o[pl.ds(2, 4, 0)] = x[0:4]  # STRIDE 0

    with pytest.raises(smalt.Unsupported, match="stride 0") as caught:
        pl.pallas_call(body, out_shape=like(8, 8))(numbers(8, 8))
    assert line_of("STRIDE 0") in str(caught.value.where)


@pytest.mark.parametrize("index", [lambda x: x[0, 0], lambda x: x[0, 0] > 1])
def test_an_index_that_is_no_integer_is_named(index: Any) -> None:
    def body(x: Any, o: Any) -> None:
        o[...] = x[index(x)]  # NO INTEGER

    with pytest.raises(smalt.InvalidKernel, match="of type (float32|bool) in a reference's index") as caught:
        pl.pallas_call(body, out_shape=like(8))(numbers(8, 8))
    assert line_of("NO INTEGER") in str(caught.value.where) and caught.value.remedy


def test_indices_from_the_end_and_sizes_of_numpy() -> None:
    def body(x: Any, o: Any) -> None:
        o[0] = x[-1]
        o[1] = x[-3:][0]
        o[np.int64(2)] = x[pl.ds(np.int64(1), np.int64(2))][1]
        o[-1] = x[-8]

    check(lambda **how: pl.pallas_call(body, out_shape=like(4, 8), **how), numbers(8, 8))


@pytest.mark.parametrize(
    ("load", "size"), [(lambda r: r[::3], 11), (lambda r: r[pl.ds(pl.program_id(0) + 1, 7, 4)], 7), (lambda r: r[5:26:2], 11)]
)
def test_strided_loads_of_four_bits(load: Any, size: int) -> None:
    x = jnp.asarray(np.arange(32) % 15 - 7).astype(jnp.int4)

    def body(x: Any, o: Any) -> None:
        o[...] = load(x).astype(jnp.int32)

    check(lambda **how: pl.pallas_call(body, grid=(1,), out_shape=like(size, dtype=jnp.int32), **how), x)


# ------------------------------------------------------------------------------------------ what rows share


def chain(n: int) -> tuple[Callable[..., Any], Any]:
    """A call in whose body each of n values is used twice; none is of a row."""

    def body(x: Any, o: Any) -> None:
        a, b = jnp.full(x.shape, 1, jnp.int32), jnp.full(x.shape, 2, jnp.int32)
        for _ in range(n // 2):
            a, b = a + b, a ^ b
        o[...] = x[...] + a

    spec = rows(16, 1024)
    x = numbers(64, 1024, dtype=np.int32)
    return lambda x: pl.pallas_call(body, grid=(4,), in_specs=[spec], out_specs=spec, out_shape=like(64, 1024, dtype=jnp.int32))(x), x


def test_what_rows_share_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations made while rows are looked at and split, and bytes of the descriptor, grow as the body does."""
    made = 0
    own = finer_rows._Eval.bind

    def bind(self: Any, *args: Any) -> Any:
        nonlocal made
        made += 1
        assert made < 40_000, "more than linear"
        return own(self, *args)

    monkeypatch.setattr(finer_rows._Eval, "bind", bind)
    counts, sizes = [], []
    for n in (250, 500, 1000):
        call, x = chain(n)
        made = 0
        ((_, descriptor, _),) = lower.descriptor(call, x, platform="cpu")
        counts.append(made)
        sizes.append(len(descriptor))
    for values in (counts, sizes):
        assert values[2] - values[1] <= 2.1 * (values[1] - values[0]), values
    assert counts[2] < 8 * 1000


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.uint8, jnp.float16])
def test_what_counts_rows_is_split_with_them(dtype: Any) -> None:
    """A part's rows count from its first. Numbers that a sum might round are counted as a whole: columns are rows then."""

    def body(s: Any, o: Any) -> None:
        count = jax.lax.broadcasted_iota(dtype, (64, 1024), 0)
        along = jax.lax.broadcasted_iota(jnp.int32, (64, 1024), 1)
        y = count.astype(jnp.int32) * 1024 + along + s[0, 0].reshape(1, 1) * 3
        for _ in range(30):
            y = (y * 5) ^ (y >> 3)
        o[...] = y

    y = np.arange(64)[:, None] * 1024 + np.arange(1024, dtype=np.int64) + 21
    y = np.concatenate([y, y]).astype(np.int32)
    for _ in range(30):
        y = (y * np.int32(5)) ^ (y >> np.int32(3))
    specs = {"in_specs": [pl.BlockSpec((1, 1), lambda i: (0, 0))], "out_specs": pl.BlockSpec((64, 1024), lambda i: (i, 0))}
    f = pl.pallas_call(body, grid=(2,), out_shape=like(128, 1024, dtype=jnp.int32), **specs)
    s = np.full((1, 1), 7, np.int32)
    np.testing.assert_array_equal(f(s), y)
    (eqn,) = (e for e in jax.make_jaxpr(f)(s).jaxpr.eqns if e.primitive.name == "pallas_call")
    decided = pallas_call.Call(eqn.params)
    assert (decided.parts > 1) and (decided.blocks[1].dims[0].parts > 1) == (dtype != jnp.float16)


def test_what_rows_share_within_an_arm_stays_there() -> None:
    def body(x: Any, o: Any) -> None:
        shared = jnp.full(x.shape, 2.0) * 3

        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            o[...] = x[...] + shared

        @pl.when(pl.program_id(0) != 0)
        def _() -> None:
            o[...] = x[...] - shared

    x, spec = numbers(64, 1024), rows(16, 1024)
    make = lambda **how: pl.pallas_call(body, grid=(4,), in_specs=[spec], out_specs=spec, out_shape=like(64, 1024), **how)  # noqa: E731
    assert decided(make(), x).parts > 1
    check(make, x)


# ------------------------------------------------------------------------------------------ steps in order


def running_sum(**how: Any) -> Callable[..., Any]:
    def body(x: Any, o: Any, carry: Any) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            carry[...] = jnp.zeros_like(carry)

        carry[...] += x[...]
        o[...] = carry[...]

    spec = rows(1, 8)
    return pl.pallas_call(
        body, grid=(4,), in_specs=[spec], out_specs=spec, scratch_shapes=[plgpu.SMEM((1, 8), jnp.float32)], out_shape=like(4, 8), **how
    )


def product(when: Any, grid: tuple[int, int, int] = (2, 2, 3), **how: Any) -> Callable[..., Any]:
    """A matrix product with its sums in scratch; `when`: the condition under which it is begun anew."""

    def body(x: Any, y: Any, o: Any, sums: Any) -> None:
        @pl.when(when())
        def _() -> None:
            sums[...] = jnp.zeros_like(sums)

        sums[...] += x[...] @ y[...]

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _() -> None:
            o[...] = sums[...]

    m, n, k = (8 * g for g in grid)
    return pl.pallas_call(
        body,
        grid=grid,
        in_specs=[pl.BlockSpec((8, 8), lambda i, j, k: (i, k)), pl.BlockSpec((8, 8), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((8, 8), lambda i, j, k: (i, j)),
        scratch_shapes=[plgpu.SMEM((8, 8), jnp.float32)],
        out_shape=like(m, n),
        **how,
    )


def test_scratch_lasts_over_the_steps() -> None:
    check(running_sum, numbers(4, 8))
    np.testing.assert_array_equal(running_sum()(np.ones((4, 8), np.float32))[:, 0], [1, 2, 3, 4])
    (report,) = smalt.inspect(running_sum(), numbers(4, 8), assemble=False)
    assert "axis 0 in turn: a step loads what another one stored in scratch carry" in report.blocks[0].runs


def test_scratch_that_is_begun_anew_keeps_outer_axes_apart() -> None:
    arrays = numbers(16, 24), numbers(24, 16)
    first = lambda: pl.program_id(2) == 0  # noqa: E731
    assert decided(product(first), *arrays).parallel == (True, True, False)
    check(lambda **how: product(first, **how), *arrays)
    # Begun anew once for all columns of blocks: they are one after the other.
    once = lambda: (pl.program_id(1) == 0) & (pl.program_id(2) == 0)  # noqa: E731
    assert decided(product(once), *arrays).parallel == (True, False, False)
    # Who knows.
    odd = lambda: pl.program_id(0) % 2 == 1  # noqa: E731
    assert decided(product(odd), *arrays).parallel == (False, False, False)
    assert decided(product(first, (80, 80, 80)), np.zeros((640, 640)), np.zeros((640, 640))).parallel == (True, True, False)


def test_barriers_and_what_is_copied_before_it_is_loaded_keep_axes_apart() -> None:
    def body(x: Any, o: Any, buffer: Any, barrier: Any) -> None:
        plgpu.copy_gmem_to_smem(x.at[pl.ds(pl.program_id(0) * 8, 8)], buffer, barrier)
        plgpu.barrier_wait(barrier)
        o[...] = buffer[...] + 1

    x = numbers(32, 32)
    call = pl.pallas_call(
        body,
        grid=(4,),
        in_specs=[pl.BlockSpec(memory_space=plgpu.GMEM)],
        out_specs=rows(8, 32),
        out_shape=like(32, 32),
        scratch_shapes=[plgpu.SMEM((8, 32), jnp.float32), plgpu.Barrier()],
    )
    assert decided(call, x).parallel == (True,)
    np.testing.assert_array_equal(call(x), x + 1)


def test_scratch_in_a_batch_is_each_element_s_own() -> None:
    x = np.ones((3, 4, 8), np.float32)
    np.testing.assert_array_equal(jax.vmap(running_sum())(x)[:, :, 0], [[1, 2, 3, 4]] * 3)


def use(body: Any, grid: tuple[int, ...] = (3,)) -> flow.Use:
    """What a body does to its one scratch."""
    x = numbers(4, 8)
    call = pl.pallas_call(body, grid=grid, out_shape=like(4, 8), scratch_shapes=[plgpu.SMEM((4, 8), jnp.float32)])
    (eqn,) = (e for e in jax.make_jaxpr(call)(x).jaxpr.eqns if e.primitive.name == "pallas_call")
    jaxpr = eqn.params["jaxpr"]
    return flow.uses(jaxpr, grid)[len(jaxpr.invars) - 1]


def test_loads_before_stores_are_found_in_loops_arms_and_calls() -> None:
    def fill(s: Any) -> None:
        s[...] = jnp.zeros_like(s)

    def both(x: Any, o: Any, s: Any) -> None:  # each arm stores all of it
        jax.lax.cond(x[0, 0] > 1, lambda: fill(s), lambda: fill(s))
        o[...] = s[...]

    def one(x: Any, o: Any, s: Any) -> None:
        jax.lax.cond(x[0, 0] > 1, lambda: fill(s), lambda: None)
        o[...] = s[...]

    def by_rows(x: Any, o: Any, s: Any) -> None:
        jax.lax.fori_loop(0, 4, lambda i, _: s.__setitem__(pl.ds(i, 1), x[pl.ds(i, 1)]), None)
        o[...] = s[...]

    def in_a_loop(x: Any, o: Any, s: Any) -> None:
        jax.lax.fori_loop(0, 4, lambda i, _: fill(s), None)
        o[...] = s[...]

    def perhaps(x: Any, o: Any, s: Any) -> None:
        jax.lax.fori_loop(0, x[0, 0].astype(jnp.int32), lambda i, _: fill(s), None)
        o[...] = s[...]

    def in_a_call(x: Any, o: Any, s: Any) -> None:
        jax.named_call(lambda: fill(s), name="fill")()
        o[...] = s[...]

    def while_it_asks(x: Any, o: Any, s: Any) -> None:
        turns = jax.lax.while_loop(lambda i: s[0, 0] > i, lambda i: i + 1, 0.0)
        fill(s)
        o[...] = s[...] + turns

    exposed = {f: bool(use(f).exposed.any()) for f in (both, one, by_rows, in_a_loop, perhaps, in_a_call, while_it_asks)}
    assert not use(both, (1,)).exposed.any()
    assert exposed == {
        both: False, one: True, by_rows: False, in_a_loop: False, perhaps: True, in_a_call: False, while_it_asks: True
    }  # fmt: skip


def _rows_of(turns: int, at: Callable[[Any], Any] = lambda i: i, first: int = 0) -> Callable[..., None]:
    def body(x: Any, o: Any, s: Any) -> None:
        jax.lax.fori_loop(first, turns, lambda i, _: s.__setitem__(pl.ds(at(i), 1), x[pl.ds(0, 1)]), None)
        o[...] = s[...]

    return body


def _tiles(columns: int) -> Callable[..., None]:
    def body(x: Any, o: Any, s: Any) -> None:
        def row(i: Any, _: None) -> None:
            tile = lambda j, _: s.__setitem__((pl.ds(2 * i, 2), pl.ds(4 * j, 4)), x[0:2, 0:4])  # noqa: E731
            jax.lax.fori_loop(0, columns, tile, None)

        jax.lax.fori_loop(0, 2, row, None)
        o[...] = s[...]

    return body


def _pieces(*pieces: tuple[Any, Any]) -> Callable[..., None]:
    def body(x: Any, o: Any, s: Any) -> None:
        for piece in pieces:
            s[piece] = x[piece]
        o[...] = s[...]

    return body


def _in_arms(*turns: int) -> Callable[..., None]:
    """Each arm stores so many rows."""

    def body(x: Any, o: Any, s: Any) -> None:
        def fill(n: int) -> Callable[[], None]:
            return lambda: jax.lax.fori_loop(0, n, lambda i, _: s.__setitem__(i, x[i]), None)

        jax.lax.cond(x[0, 0] > 1, *map(fill, turns))
        o[...] = s[...]

    return body


def _slot(of: Callable[[Any], Any], loaded: Callable[[Any], Any]) -> Callable[..., None]:
    """Stores one row, and loads one: functions of a number of the data's."""

    def body(x: Any, o: Any, s: Any) -> None:
        number = x[0, 0].astype(jnp.int32)
        s[of(number)] = x[0]
        o[0] = s[loaded(number)]

    return body


def _in_turn(load_first: bool, turns: int = 4) -> Callable[..., None]:
    """A ring within a step: a turn loads what the one before has stored."""

    def body(x: Any, o: Any, s: Any) -> None:
        if not load_first:
            s[0] = x[0]

        def turn(i: Any, _: None) -> None:
            o[i] = s[i % 2]
            s[(i + 1) % 2] = x[i]

        jax.lax.fori_loop(0, turns, turn, None)

    return body


def _loaded_again(x: Any, o: Any, s: Any) -> None:
    s[x[0, 0].astype(jnp.int32)] = x[0]
    o[0] = s[x[0, 0].astype(jnp.int32)]


FILLED: dict[str, tuple[Callable[..., None], bool]] = {  # and whether what it loads may be of another step
    "all rows": (_rows_of(4), False),
    "all but the last": (_rows_of(3), True),
    "all but the first": (_rows_of(4, first=1), True),
    "rows from the end": (_rows_of(4, lambda i: 3 - i), False),
    "rows out of order": (_rows_of(4, lambda i: (3 * i + 1) % 4), False),
    "rows, of which some twice": (_rows_of(4, lambda i: i // 2), True),
    "each second row": (_rows_of(2, lambda i: 2 * i), True),
    "rows of the data's": (_rows_of(4, lambda i: i + 0 * pl.program_id(0)), False),
    "more turns than are walked": (_rows_of(30_000, lambda i: i % 4), True),
    "all tiles": (_tiles(2), False),
    "half of the tiles": (_tiles(1), True),
    "slices": (_pieces((slice(0, 1), slice(None)), (slice(1, 4), slice(None))), False),
    "slices, with a gap": (_pieces((slice(0, 1), slice(None)), (slice(2, 4), slice(None))), True),
    "columns in strides": (_pieces((slice(None), slice(0, None, 2)), (slice(None), slice(1, None, 2))), False),
    "one of two strides": (_pieces((slice(None), slice(0, None, 2)),), True),
    "quarters": (_pieces(*((slice(r, r + 2), slice(c, c + 4)) for r in (0, 2) for c in (0, 4))), False),
    "three quarters": (_pieces(*((slice(r, r + 2), slice(c, c + 4)) for r, c in ((0, 0), (0, 4), (2, 0)))), True),
    "all in both arms": (_in_arms(4, 4), False),
    "all in one arm": (_in_arms(4, 3), True),
    "the step's own slot": (_slot(lambda _: pl.program_id(0) % 2, lambda _: pl.program_id(0) % 2), False),
    "the slot of the step before": (_slot(lambda _: pl.program_id(0) % 2, lambda _: (pl.program_id(0) + 1) % 2), True),
    "a slot in another one": (_slot(lambda _: 3 - pl.program_id(0), lambda _: pl.program_id(0) + 1), True),
    "a slot of the data's": (_slot(lambda n: (n + 1) % 4, lambda n: (n + 1) % 4), False),
    "another slot of the data's": (_slot(lambda n: (n + 1) % 4, lambda n: (n + 2) % 4), True),
    "a slot that is loaded again": (_loaded_again, True),
    "a ring that begins with a store": (_in_turn(False), False),
    "a ring that begins with a load": (_in_turn(True), True),
}  # fmt: skip


@pytest.mark.parametrize("name", FILLED)
def test_scratch_that_is_filled_piece_by_piece(name: str) -> None:
    body, carries = FILLED[name]
    assert bool(use(body, (3,)).exposed.any()) == carries
    x = numbers(4, 8)
    call = pl.pallas_call(body, grid=(3,), out_shape=like(4, 8), scratch_shapes=[plgpu.SMEM((4, 8), jnp.float32)])
    assert decided(call, x).axes.reasons.keys() == {0}  # the output is one of all steps


@pytest.mark.parametrize("rows_of_it", [4, 3])
def test_a_copy_in_pieces_fills_scratch(rows_of_it: int) -> None:
    def body(x: Any, o: Any, s: Any, barrier: Any) -> None:
        def copy(i: Any, _: None) -> None:
            plgpu.copy_gmem_to_smem(x.at[i], s.at[i], barrier)
            plgpu.barrier_wait(barrier)

        jax.lax.fori_loop(0, rows_of_it, copy, None)
        o[...] = s[...]

    spec = pl.BlockSpec(memory_space=plgpu.GMEM)
    scratch = [plgpu.SMEM((4, 128), jnp.float32), plgpu.Barrier()]
    call = pl.pallas_call(body, grid=(2,), in_specs=[spec], out_specs=rows(4, 128), out_shape=like(8, 128), scratch_shapes=scratch)
    x = numbers(4, 128)
    assert decided(call, x).parallel == (rows_of_it == 4,)
    if rows_of_it == 4:
        np.testing.assert_array_equal(call(x), np.concatenate([x, x]))


def test_a_copy_under_a_condition_fills_nothing() -> None:
    def body(x: Any, o: Any, s: Any, barrier: Any) -> None:
        plgpu.copy_gmem_to_smem(x, s, barrier, predicate=pl.program_id(0) == 0)
        o[...] = s[...]

    if "predicate" not in inspect.signature(plgpu.copy_gmem_to_smem).parameters:
        pytest.skip("copies of this JAX take no condition")
    spec = pl.BlockSpec(memory_space=plgpu.GMEM)
    scratch = [plgpu.SMEM((4, 128), jnp.float32), plgpu.Barrier()]
    call = pl.pallas_call(body, grid=(2,), in_specs=[spec], out_specs=rows(4, 128), out_shape=like(8, 128), scratch_shapes=scratch)
    assert decided(call, numbers(4, 128)).parallel == (False,)


@pytest.mark.parametrize("turns", [4, 3])
def test_steps_whose_scratch_is_filled_by_rows_run_at_once(turns: int) -> None:
    """Where a row is not stored, the last step's is loaded: in order."""

    def body(x: Any, o: Any, s: Any) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            s[3] = x[3]

        jax.lax.fori_loop(0, turns, lambda i, _: s.__setitem__(i, x[i] + 1), None)
        o[...] = s[...] * 2
        s[3] = s[3] + x[3]

    def make(**how: Any) -> Any:
        spec = rows(4, 8)
        scratch = [plgpu.SMEM((4, 8), jnp.float32)]
        return pl.pallas_call(body, grid=(3,), in_specs=[spec], out_specs=spec, out_shape=like(12, 8), scratch_shapes=scratch, **how)

    x = numbers(12, 8)
    assert decided(make(), x).parallel == (turns == 4,)
    check(make, x)


def test_conditions_are_known_at_each_point() -> None:
    def body(x: Any, o: Any, s: Any) -> None:
        @pl.when((pl.program_id(0) * 3 + pl.program_id(1)) // 2 % 2 == 0)
        def _() -> None:
            s[...] = x[...]

        o[...] = s[...]

    found = use(body, (2, 3))
    np.testing.assert_array_equal(found.stored, [[True, True, False], [False, True, True]])
    np.testing.assert_array_equal(found.exposed, [[False, False, True], [True, False, False]])


def shared_buffer(index_map: Any, n: int = 32, extent: int = 8, grid: int = 3, **how: Any) -> Callable[..., Any]:
    def body(x: Any, o: Any) -> None:
        o[...] = x[...] * 2 + 1

    return pl.pallas_call(
        body,
        grid=(grid,),
        in_specs=[rows(extent, n, lambda i: (index_map(i), 0))],
        out_specs=rows(extent, n),
        out_shape=like(extent * (grid + 1), n),
        input_output_aliases={0: 0},
        **how,
    )


@pytest.mark.parametrize("index_map", [lambda i: i + 1, lambda i: jnp.maximum(i - 1, 0), lambda i: 2 - i, lambda i: i, lambda i: 0 * i])
@pytest.mark.parametrize("n", [32, 5])
def test_an_input_in_the_buffer_of_an_output(index_map: Any, n: int) -> None:
    if jax.__version_info__ < (0, 11):
        pytest.skip("this JAX's interpreter reads what was there before the call")
    x = numbers(32, n)
    same = bool(index_map(2) == 2 and index_map(1) == 1)
    assert decided(shared_buffer(index_map, n), x).parallel == (same,)
    check(lambda **how: shared_buffer(index_map, n, **how), x)


def test_a_store_to_an_input_in_the_buffer_of_an_output_is_refused() -> None:
    def body(x: Any, o: Any) -> None:
        x[...] = x[...] + 1

    with pytest.raises(smalt.Unsupported, match="store to args.0., an input that shares the buffer"):
        pl.pallas_call(body, out_shape=like(8, 8), input_output_aliases={0: 0})(numbers(8, 8))


# ------------------------------------------------------------------------------------------ inputs that are stored to


def adds_to_its_input(x: Any, o: Any) -> None:
    x[...] = x[...] + 1
    o[...] = x[...] * 2


def stored_input(body: Any, index_map: Any, width: int, spec: Any = pl.BlockSpec, **how: Any) -> Callable[..., Any]:
    """Four steps, each with a block of an output of its own."""
    own = pl.BlockSpec((8, width), lambda i: (i, 0))
    return pl.pallas_call(
        body, grid=(4,), in_specs=[spec((8, width), lambda i: (index_map(i), 0))], out_specs=own, out_shape=like(32, width), **how
    )


REVISITS = {
    "twice in a row": lambda i: jax.lax.div(i, jnp.int32(2)),
    "in turn": lambda i: jax.lax.rem(i, jnp.int32(2)),
    "in all steps": lambda i: 0 * i,
    "narrowed": lambda i: (i * 128).astype(jnp.uint8).astype(jnp.int32) // 128,
    "never": lambda i: 3 - i,
}


@pytest.mark.parametrize("name", REVISITS)
@pytest.mark.parametrize("width", [32, 5])  # which the copy engine could move, and could not
def test_an_input_that_is_stored_to(name: str, width: int) -> None:
    x = numbers(32, width)
    make = functools.partial(stored_input, adds_to_its_input, REVISITS[name], width)
    assert decided(make(), x).parallel == (name == "never",)
    check(make, x)
    y = jnp.asarray(x)
    jax.block_until_ready(make()(y))
    np.testing.assert_array_equal(y, x)  # the call's own array is stored to
    check(lambda **how: jax.jit(make(**how)), x)


def test_an_input_that_is_stored_to_before_it_is_loaded_keeps_axes_apart() -> None:
    def body(x: Any, o: Any) -> None:
        x[...] = jnp.full(x.shape, 3.0) + pl.program_id(0).astype(jnp.float32)
        o[...] = x[...] * 2

    x = numbers(32, 32)
    make = functools.partial(stored_input, body, REVISITS["in all steps"], 32)
    call = decided(make(), x)
    assert call.parallel == (True,) and not call.kept
    check(make, x)


def test_inputs_that_operations_only_read_are_not_kept() -> None:
    def body(x: Any, y: Any, o: Any) -> None:
        def product(acc: Any) -> Any:
            plgpu.wgmma(acc, x, y)
            return acc[...]

        o[...] = pl.run_scoped(product, plgpu.ACC((64, 64), jnp.float32))

    transforms = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
    same, own = (plgpu.BlockSpec((64, 64), lambda i, m=m: (m * i, 0), transforms=transforms) for m in (0, 1))
    call = pl.pallas_call(body, grid=(2,), in_specs=[own, same], out_specs=rows(64, 64), out_shape=like(128, 64))
    x, y = numbers(128, 64, dtype=np.float16), numbers(64, 64, dtype=np.float16)
    assert decided(call, x, y).parallel == (True,) and not decided(call, x, y).kept
    np.testing.assert_array_equal(call(x, y), x.astype(np.float32) @ y.astype(np.float32))


@pytest.mark.parametrize("width", [32, 5])
@pytest.mark.parametrize("in_gmem", [False, True])
def test_a_store_that_no_step_comes_to(width: int, in_gmem: bool) -> None:
    def body(x: Any, o: Any) -> None:
        square = pl.program_id(0) * pl.program_id(0)
        pl.when(square % 4 == 3)(lambda: x.__setitem__(..., x[...] + 1))
        o[...] = x[...]

    def make(interpret: bool = False) -> Any:
        spec = functools.partial(plgpu.BlockSpec, **({"memory_space": plgpu.GMEM} if in_gmem and not interpret else {}))
        return stored_input(body, REVISITS["never"], width, spec, interpret=interpret)

    check(make, numbers(32, width))


def test_one_array_that_is_two_inputs() -> None:
    """Each of them is its own."""

    def body(x: Any, y: Any, o: Any) -> None:
        x[...] += 1
        y[...] += x[...]
        o[...] = x[...] * 10 + y[...]

    first, last = (rows(8, 8, m) for m in (lambda i: (i // 2, 0), lambda i: (1 - i // 2, 0)))
    make = lambda **how: pl.pallas_call(  # noqa: E731
        body, grid=(4,), in_specs=[first, last], out_specs=rows(8, 8), out_shape=like(32, 8), **how
    )
    x = numbers(16, 8)
    check(lambda **how: lambda x: make(**how)(x, x), x)
    check(lambda **how: jax.jit(lambda x: make(**how)(x, x)), x)


@pytest.mark.parametrize("whole", [True, False])
def test_an_input_in_device_memory_that_is_stored_to(whole: bool) -> None:
    def body(x: Any, o: Any) -> None:
        at = pl.ds(pl.program_id(0) // 2 * 8, 8) if whole else slice(None)
        x[at] = x[at] + 1
        o[...] = x[at]

    def make(interpret: bool = False) -> Any:
        space = {} if interpret else {"memory_space": plgpu.GMEM}
        spec = plgpu.BlockSpec(**space) if whole else plgpu.BlockSpec((8, 8), lambda i: (i // 2, 0), **space)
        return pl.pallas_call(body, grid=(4,), in_specs=[spec], out_specs=rows(8, 8), out_shape=like(32, 8), interpret=interpret)

    check(make, numbers(16, 8))


def test_a_batch_of_inputs_that_are_stored_to() -> None:
    call = stored_input(adds_to_its_input, REVISITS["in turn"], 8)
    x = numbers(3, 32, 8)
    np.testing.assert_array_equal(jax.vmap(call)(x), np.stack([call(a) for a in x]))

    def two(x: Any, y: Any, o: Any) -> None:
        adds_to_its_input(x, o)
        o[...] += y[...]

    spec = rows(8, 8, lambda i: (i // 2, 0))
    call = pl.pallas_call(two, grid=(4,), in_specs=[spec, rows(8, 8)], out_specs=rows(8, 8), out_shape=like(32, 8))
    np.testing.assert_array_equal(jax.vmap(call)(x, x), np.stack([call(a, a) for a in x]))
    with pytest.raises(smalt.Unsupported, match="a store to args.0., an input that the elements of a jax.vmap have in common") as caught:
        jax.vmap(call, in_axes=(None, 0))(x[0], x)
    assert "in_axes=0" in str(caught.value.remedy)


def test_a_promise_about_an_input_that_is_stored_to() -> None:
    params = plgpu.CompilerParams(dimension_semantics=["parallel"])
    x = numbers(32, 8)
    with pytest.raises(smalt.InvalidKernel, match="that depend on each other: a step loads what another one stored in input args.0."):
        stored_input(adds_to_its_input, REVISITS["in turn"], 8, compiler_params=params)(x)

    def perhaps(x: Any, o: Any) -> None:
        pl.when(x[0, 0] > 100)(lambda: x.__setitem__(..., x[...] + 1))
        o[...] = x[...]

    call = stored_input(perhaps, REVISITS["in turn"], 8, compiler_params=params)
    with pytest.warns(UserWarning, match="a step may load what another one stored in input args.0."):
        np.testing.assert_array_equal(call(x), x.reshape(4, 8, 8)[[0, 1, 0, 1]].reshape(32, 8))


TILED = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))


def _sums(x: Any, o: Any) -> None:
    pl.when(pl.program_id(0) < 2)(lambda: o.__setitem__(..., jnp.zeros_like(o)))
    o[...] += x[...]


def _one_row(x: Any, o: Any) -> None:
    o[0:8] = x[8:16] + 1


def _next(x: Any, o: Any) -> None:
    o[...] = x[...] + 1


#: The body, the maps of the input and of the output, the output's rows, whether it is the input's buffer.
IN_LAYOUTS: dict[str, tuple[Any, Any, Any, int, bool]] = {
    "an output that comes back": (_sums, lambda i: i, lambda i: i % 2, 128, False),
    "part of an aliased output": (_one_row, lambda i: i, lambda i: i, 256, True),
    "an aliased input of other blocks": (_next, lambda i: i, lambda i: (i + 1) % 4, 256, True),
    "an input that is stored to": (adds_to_its_input, lambda i: i // 2, lambda i: i, 256, False),
    "an input that is stored to and comes back": (adds_to_its_input, lambda i: i % 2, lambda i: i, 256, False),
}


@pytest.mark.parametrize("name", IN_LAYOUTS)
def test_blocks_in_layouts_of_one_s_own_begin_with_what_the_array_has(name: str) -> None:
    body, of_input, of_output, n, shared = IN_LAYOUTS[name]
    if shared and jax.__version_info__ < (0, 11):
        pytest.skip("this JAX's interpreter reads what was there before the call")

    def make(interpret: bool = False) -> Any:
        layout = {} if interpret else {"transforms": TILED}
        specs = [plgpu.BlockSpec((64, 64), lambda i, m=m: (m(i), 0), **layout) for m in (of_input, of_output)]
        return pl.pallas_call(
            body, grid=(4,), in_specs=specs[:1], out_specs=specs[1], out_shape=like(n, 64, dtype=jnp.float16),
            input_output_aliases={0: 0} if shared else {}, interpret=interpret,
        )  # fmt: skip

    check(make, numbers(256, 64, dtype=np.float16))


# ------------------------------------------------------------------------------------------ index maps


@pytest.mark.parametrize(
    "index_map",
    [
        lambda i: (i * 128).astype(jnp.uint8).astype(jnp.int32),
        lambda i: jax.lax.rem((i * 0x40000001) & 0x7FFFFFFF, jnp.int32(2)),
        lambda i: (i * 0x40000000 * 4) + 0 * i,
        lambda i: ((i - 2).astype(jnp.uint8) // 128).astype(jnp.int32),
    ],
)
def test_index_maps_that_narrow_or_wrap(index_map: Any) -> None:
    # Which block is visited first is the map's; a step that begins one says so.
    places = [int(index_map(jnp.int32(i))) for i in range(4)]
    first = [i for i in range(4) if places[i] not in places[:i]]

    def body(x: Any, o: Any) -> None:
        @pl.when(functools.reduce(jnp.logical_or, [pl.program_id(0) == i for i in first]))
        def _() -> None:
            o[...] = jnp.zeros_like(o)

        o[...] += x[...]

    make = lambda **how: pl.pallas_call(  # noqa: E731
        body, grid=(4,), in_specs=[rows(1, 8)], out_specs=rows(1, 8, lambda i: (index_map(i), 0)), out_shape=like(129, 8), **how
    )
    x = numbers(4, 8)
    assert decided(make(), x).parallel == (False,)
    visited = sorted(set(places))
    np.testing.assert_array_equal(np.asarray(make()(x))[visited], np.asarray(make(interpret=True)(x))[visited])


def test_forms_are_affine_only_where_nothing_wraps() -> None:
    def index_map(i: Any) -> tuple[Any, ...]:
        return i.astype(jnp.uint8), (i * 64).astype(jnp.uint8), i * (1 << 30), i - 1, (i - 1).astype(jnp.uint16), i.astype(jnp.float16)

    closed = jax.make_jaxpr(index_map)(jnp.int32(0))
    forms = _blocks.forms_of(closed, [_blocks.Form(factors=((0, 1),))], (5,))
    assert [f.is_affine for f in forms] == [True, False, False, True, False, True]


def test_blocks_that_overlap_run_in_order() -> None:
    """By elements: three rows at each second one."""

    def body(x: Any, o: Any) -> None:
        o[...] = x[...] + pl.program_id(0).astype(jnp.float32)

    for step, parallel in (2, False), (3, True), (4, True):
        spec = pl.BlockSpec((pl.Element(3), pl.Element(8)), lambda i, step=step: (step * i, 0))
        make = lambda spec=spec, **how: pl.pallas_call(body, grid=(4,), in_specs=[spec], out_specs=spec, out_shape=like(15, 8), **how)  # noqa: E731
        x = numbers(15, 8)
        assert decided(make(), x).parallel == (parallel,)
        got, want = np.asarray(make()(x)), np.asarray(make(interpret=True)(x))
        np.testing.assert_array_equal(got[~np.isnan(want)], want[~np.isnan(want)])


@pytest.mark.parametrize("semantics", [["sequental"], [7], "parallel", ["parallel", "sequential"], [None]])
def test_dimension_semantics_are_looked_at(semantics: Any) -> None:
    with pytest.raises(smalt.InvalidKernel, match='(?s)dimension_semantics.*expected: .*got: .*remedy: name each axis "parallel"'):
        running_sum(compiler_params=plgpu.CompilerParams(dimension_semantics=semantics))(numbers(4, 8))


def test_a_promise_that_is_not_true_is_an_error() -> None:
    x = numbers(4, 8)
    with pytest.raises(smalt.InvalidKernel, match="parallel grid axis that depend on each other: a step loads what another one stored in scratch"):
        running_sum(compiler_params=plgpu.CompilerParams(dimension_semantics=["parallel"]))(x)
    with pytest.raises(smalt.InvalidKernel, match="args.0. is read where other steps write outputs, in the same buffer"):
        shared_buffer(lambda i: i + 1, compiler_params=plgpu.CompilerParams(dimension_semantics=["parallel"]))(numbers(32, 32))

    # What is loaded and not used is no proof, though it is not known to be apart.
    def body(x: Any, o: Any, carry: Any) -> None:
        carry[...] = jnp.where(pl.program_id(0) >= 0, x[...], carry[...] + x[...])
        o[...] = carry[...]

    spec = rows(1, 8)
    make = lambda **how: pl.pallas_call(  # noqa: E731
        body, grid=(4,), in_specs=[spec], out_specs=spec, scratch_shapes=[plgpu.SMEM((1, 8), jnp.float32)], out_shape=like(4, 8), **how
    )
    assert decided(make(), x).parallel == (False,)
    promised = make(compiler_params=plgpu.CompilerParams(dimension_semantics=["parallel"]))
    assert decided(promised, x).parallel == (True,)
    what = '(?s)a step may load what another one stored in scratch carry.*expected: .*got: dimension_semantics "parallel".*remedy: .*"sequential"'
    with pytest.warns(UserWarning, match=what) as found:
        np.testing.assert_array_equal(promised(x), x)
    assert len(found) == 1 and os.path.basename(found[0].filename) == HERE


# ------------------------------------------------------------------------------------------ block indices


MAPS = [lambda i: (i * 8, 0), lambda i: (i - 1, 0), lambda i: (i + 1, 0), lambda i: (i // 2 * 4, 0)]  # MAPS


@pytest.mark.parametrize(("index_map", "hint"), list(zip(MAPS, ["factor 8", "in range", "in range", "in range"])))
@pytest.mark.parametrize("is_output", [False, True])
def test_blocks_outside_of_their_array_are_errors(index_map: Any, hint: str, is_output: bool) -> None:
    spec, plain = rows(8, 4, index_map), rows(8, 4)
    specs = (plain, spec) if is_output else (spec, plain)
    with pytest.raises(smalt.InvalidKernel, match="(?s)outside of its array: dimension 0.*gives 0 to 3 there") as caught:
        pl.pallas_call(lambda x, o: None, grid=(4,), in_specs=[specs[0]], out_specs=specs[1], out_shape=like(32, 4))(numbers(32, 4))
    assert hint in str(caught.value.remedy) and line_of("MAPS") in str(caught.value.where)


@pytest.mark.parametrize("shape", [(32, 32), (30, 32), (32, 3), (30, 3)])  # the copy engine twice, a view, loads and stores
@pytest.mark.parametrize("is_output", [False, True])
@pytest.mark.parametrize("index", [4, -1, 1 << 20])
@pytest.mark.parametrize("semantics", [None, "parallel", "sequential"])
def test_indices_from_a_table_are_looked_at_by_the_emulator(
    shape: tuple[int, int], is_output: bool, index: int, semantics: str | None
) -> None:
    params = plgpu.CompilerParams(dimension_semantics=None if semantics is None else [semantics])
    spec, plain = rows(8, shape[1], lambda i, t: (t[i], 0)), rows(8, shape[1], lambda i, t: (i, 0))
    specs = (plain, spec) if is_output else (spec, plain)

    def call(table: Any) -> Any:
        grid = pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=1, grid=(4,), in_specs=[specs[0]], out_specs=specs[1])
        body = lambda t, x, o: o.__setitem__(..., x[...] + 1)  # noqa: E731
        return np.asarray(pl.pallas_call(body, grid_spec=grid, out_shape=like(*shape), compiler_params=params)(np.int32(table), x))

    x = numbers(*shape)
    order = [2, 0, 3, 1]
    padded = np.zeros((32, shape[1]), np.float32)
    padded[: shape[0]] = x
    blocks = (padded + 1).reshape(4, 8, -1)
    want = blocks[np.argsort(order)] if is_output else blocks[order]
    np.testing.assert_array_equal(call(order), want.reshape(32, -1)[: shape[0]])
    with pytest.raises(smalt.ExecutionError, match="an index outside of its dimension"):
        call([0, index, 1, 2])


# ------------------------------------------------------------------------------------------ what a call is made of


def test_the_number_of_programs_is_the_call_s_own() -> None:
    @jax.jit
    def inner(x: Any) -> Any:
        return x + pl.num_programs(0)

    def body(x: Any, o: Any) -> None:
        o[...] = inner(x[...]) + 100 * pl.num_programs(0)

    def call(n: int) -> Any:
        spec = pl.BlockSpec((8,), lambda i: (pl.num_programs(0) - 1 - i,))
        out = pl.pallas_call(body, grid=(n,), in_specs=[spec], out_specs=pl.BlockSpec((8,), lambda i: (i,)), out_shape=like(8 * n, dtype=jnp.int32))
        return np.asarray(out(np.arange(8 * n, dtype=np.int32) // 8))[::8]

    for n in (2, 5, 8, 2):
        np.testing.assert_array_equal(call(n), 101 * n + np.arange(n)[::-1])


@pytest.mark.parametrize("width", [8, 4096])
def test_the_number_of_programs_of_a_traced_axis(width: int) -> None:
    """It is an operand, of a body whose rows are split, too."""

    def body(x: Any, o: Any) -> None:
        is_last = pl.program_id(1) == pl.num_programs(1) - 1
        o[...] = x[...] + jnp.where(is_last, 100, 0) * pl.num_programs(1) + 1000 * pl.num_programs(0)

    def call(n: Any, x: Any) -> Any:
        spec = pl.BlockSpec((8, width), lambda i, j: (j, i))
        return pl.pallas_call(body, grid=(2, n), in_specs=[spec], out_specs=spec, out_shape=like(24, 2 * width))(x)

    x = numbers(24, 2 * width)
    want = x + 2000
    want[16:] += 300
    np.testing.assert_array_equal(jax.jit(call)(3, x), want)


def test_keys_are_operands() -> None:
    def body(key: Any, o: Any) -> None:
        o[...] = jax.random.bits(key[...], (8,))

    key = jax.random.key(7)
    np.testing.assert_array_equal(pl.pallas_call(body, out_shape=like(8, dtype=jnp.uint32))(key), jax.random.bits(key, (8,)))


@pytest.mark.parametrize("steps", [0, -1, True, 1.5])
def test_max_concurrent_steps_is_looked_at(steps: Any) -> None:
    with pytest.raises(smalt.InvalidKernel, match="max_concurrent_steps"):
        pl.pallas_call(lambda x, o: None, out_shape=like(8), compiler_params=plgpu.CompilerParams(max_concurrent_steps=steps))(numbers(8))


def test_a_block_of_a_negative_extent() -> None:
    spec = pl.BlockSpec((-8,), lambda i: (i,))
    body = lambda x, o: o.__setitem__(..., x[...])  # noqa: E731
    with pytest.raises(smalt.InvalidKernel, match="a block of args.0. of -8 positions"):
        pl.pallas_call(body, grid=(1,), in_specs=[spec], out_specs=spec, out_shape=like(8))(numbers(8))


def test_an_output_that_is_never_stored_is_a_warning() -> None:
    def body(x_ref: Any, o_ref: Any, p_ref: Any) -> None:  # NEVER STORED
        o_ref = x_ref[...] + 1
        p_ref[...] = o_ref

    def in_part(x_ref: Any, o_ref: Any) -> None:
        pl.when(x_ref[0] > 100)(lambda: o_ref.__setitem__(0, 1.0))

    def copied(x_ref: Any, o_ref: Any) -> None:
        def scoped(s: Any) -> None:
            s[...] = x_ref[...]
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(s, o_ref)
            plgpu.wait_smem_to_gmem(0)

        pl.run_scoped(scoped, plgpu.SMEM((8,), jnp.float32))

    x, shape = numbers(8), like(8)
    calls = pl.pallas_call(body, out_shape=[shape] * 2), plgpu.kernel(body, out_type=[shape] * 2)
    for call in calls:
        with pytest.warns(UserWarning, match="an output that the kernel never stores to: (o_ref|output 0)") as found:
            np.testing.assert_array_equal(call(x)[1], x + 1)
        assert len(found) == 1 and f"{os.path.basename(found[0].filename)}:{found[0].lineno}" == line_of("NEVER STORED")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pl.pallas_call(in_part, out_shape=shape)(x)
        plgpu.kernel(in_part, out_type=shape)(x)
        np.testing.assert_array_equal(plgpu.kernel(copied, out_type=shape)(x), x)
        pl.pallas_call(lambda x, o: None, out_shape=shape, input_output_aliases={0: 0})(x)
