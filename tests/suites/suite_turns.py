"""Grids that run in turn as loops of several warpgroups, and products with narrow weights."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.pallas import tpu as pltpu

import smalt
from benchmarks import narrow
from tests.fuzz.seeds import seeds
from tests.machine import enabled
from tests.programs.blocks.turns import COMPUTED_WEIGHTS, TURNS, Turned

with warnings.catch_warnings():  # JAX is about to remove it
    warnings.simplefilter("ignore", DeprecationWarning)
    import jax.experimental.pallas.triton as plt

PRODUCTS = {p.name: p for p in narrow.products(256, 256, 512)}


@seeds(TURNS, 96, 8)
def test_random_grids_that_run_in_turn(programs: list[Turned]) -> None: ...


@seeds(COMPUTED_WEIGHTS, 72, 8)
def test_random_weights_that_are_computed(programs: list[Turned]) -> None:
    for t in programs:
        with enabled():
            (report,) = smalt.inspect(t.run(False), *t.data())
        assert report.registers is not None, (t, report.warnings)  # the emulator does not assemble
        assert "left operand of wgmma" in str(report), t


@pytest.mark.parametrize("form", narrow.FORMS)
@pytest.mark.parametrize("name", PRODUCTS)
def test_narrow_products(name: str, form: str) -> None:
    p = PRODUCTS[name]
    args = [o.array for o in (*p.operands, *p.last)]
    f = narrow.FORMS[form](p, narrow.block_sizes(p)[0])
    with enabled():
        (report,) = smalt.inspect(f, *args)
        got = np.asarray(jax.jit(f)(*args), np.float64)
    want = np.asarray(jax.jit(p.plain)(*args), np.float64)
    assert np.abs(got - want).max() <= 0.01 * np.abs(want).max()
    assert "2 warpgroups compute" in str(report) and "one copies ahead" in str(report)
    assert "wgmma.mma_async" in report.ptx and "mma.sync.aligned.m" not in report.ptx
    # Sums that are the loop's alone run while the next step's operands are made.
    assert ("wgmma.wait_group.sync.aligned 1" in report.ptx) == ("scales" not in name)


@pytest.mark.parametrize("name", [n for n in PRODUCTS if n != "bf16"])
def test_few_rows(name: str) -> None:
    """Decoding: tensor cores of single warps."""
    p = next(p for p in narrow.products(16, 256, 512) if p.name == name)
    args = [o.array for o in (*p.operands, *p.last)]
    f = narrow.grid_form(p, narrow.block_sizes(p)[0])
    with enabled():
        got = np.asarray(jax.jit(f)(*args), np.float64)
    want = np.asarray(jax.jit(p.plain)(*args), np.float64)
    assert np.abs(got - want).max() <= 0.01 * np.abs(want).max()


def matmul(k: int, **options: Any) -> Callable[..., Any]:
    def body(x: Any, y: Any, o: Any, acc: Any) -> None:
        @pl.when(pl.program_id(2) == 0)
        def _() -> None:
            acc[...] = jnp.full_like(acc, options.get("start", 0))

        acc[...] += lax.dot_general(
            x[...], y[...], (((1,), (0,)), ((), ())), precision=options.get("precision"), preferred_element_type=jnp.float32
        )

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _() -> None:
            o[...] = acc[...]

    def call(x: Any, y: Any) -> Any:
        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct((x.shape[0], y.shape[1]), jnp.float32),
            grid=(x.shape[0] // 64, y.shape[1] // 64, x.shape[1] // k),
            in_specs=[pl.BlockSpec((64, k), lambda i, j, l: (i, l)), pl.BlockSpec((k, 64), lambda i, j, l: (l, j))],
            out_specs=pl.BlockSpec((64, 64), lambda i, j, l: (i, j)),
            scratch_shapes=[pltpu.VMEM((64, 64), jnp.float32)],
            compiler_params=options.get("params"),
        )(x, y)

    return call


def test_sums_start_from_what_they_are_added_to() -> None:
    """Sixteen times 1/32 beside 2^24 is nothing for a tensor core, but 128 times is something."""
    x, y, c = jnp.full((64, 128), 1 / 32, jnp.float16), jnp.ones((128, 64), jnp.float16), jnp.full((64, 64), 2.0**24, jnp.float32)

    def body(x: Any, y: Any, c: Any, o: Any) -> None:
        o[...] = c[...] + jnp.dot(x[...], y[...], preferred_element_type=jnp.float32)

    found = []
    for params in (smalt.CompilerParams(), smalt.CompilerParams(accumulate_products=True), pltpu.CompilerParams()):
        with enabled():
            found.append(np.asarray(jax.jit(pl.pallas_call(body, out_shape=c, compiler_params=params))(x, y, c)))
    assert [float(f.min()) - 2.0**24 for f in found] == [4, 0, 0]


def test_fp8_is_multiplied_as_it_is_unless_more_is_asked_for() -> None:
    r = np.random.default_rng(0)
    x, y = (jnp.asarray(r.standard_normal(s), jnp.float8_e4m3fn) for s in ((64, 256), (256, 64)))
    want = np.asarray(x, np.float64) @ np.asarray(y, np.float64)
    errors = []
    for precision in (None, lax.Precision.HIGHEST):
        with enabled():
            got = jax.jit(matmul(128, precision=precision))(x, y)
        errors.append(np.abs(np.asarray(got, np.float64) - want).max() / np.abs(want).max())
    assert errors[0] < 2e-3 and errors[1] < 1e-5 and errors[1] < errors[0]


@pytest.mark.parametrize("start", [0.0, 2.5])
@pytest.mark.parametrize("turns", ["static", "dynamic", "none", "branch", "while"])
def test_sums_in_loops_of_any_kind(turns: str, start: float) -> None:
    n, rows, columns, depth = 4, 128, 64, 64

    def body(x: Any, w: Any, count: Any, o: Any) -> None:
        def turn(i: Any, acc: Any) -> Any:
            at = pl.ds(i * depth, depth)
            return acc + jnp.dot(x[:, at], w[at, :].astype(x.dtype), preferred_element_type=jnp.float32)

        begin = jnp.full((rows, columns), start, jnp.float32)
        if turns == "static":
            acc = lax.fori_loop(0, n, turn, begin)
        elif turns in ("dynamic", "none"):
            acc = lax.fori_loop(0, count[0], turn, begin)
        elif turns == "branch":
            acc = lax.cond(pl.program_id(0) == 0, lambda: lax.fori_loop(0, n, turn, begin), lambda: begin)
        else:
            acc = lax.while_loop(lambda c: c[0] < count[0], lambda c: (c[0] + 1, turn(c[0], c[1])), (jnp.int32(0), begin))[1]
        o[...] = acc

    r = np.random.default_rng(0)
    x, w = jnp.asarray(r.standard_normal((2 * rows, n * depth)), jnp.bfloat16), jnp.asarray(r.integers(-8, 8, (n * depth, columns)), jnp.int8)
    done = {"none": 0, "dynamic": 3, "while": 3}.get(turns, n)
    call = pl.pallas_call(
        body,
        grid=(2,),
        in_specs=[pl.BlockSpec((rows, n * depth), lambda i: (i, 0)), pl.BlockSpec(w.shape, lambda i: (0, 0)), pl.BlockSpec((1,), lambda i: (0,))],
        out_specs=pl.BlockSpec((rows, columns), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((2 * rows, columns), jnp.float32),
        compiler_params=plt.CompilerParams(num_stages=3),
    )
    with enabled():
        got = np.asarray(jax.jit(call)(x, w, jnp.array([done], jnp.int32)))
        (report,) = smalt.inspect(call, x, w, jnp.array([done], jnp.int32))
    want = start + np.asarray(x, np.float64)[:, : done * depth] @ np.asarray(w, np.float64)[: done * depth]
    if turns == "branch":
        want[rows:] = start
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=0.5)
    assert "wgmma.wait_group.sync.aligned 1" in report.ptx


def test_floats_stay_in_the_authors_order() -> None:
    """With Mosaic GPU's parameters a step's product is summed first."""
    x, y = jnp.full((64, 128), 1 / 32, jnp.float16), jnp.ones((128, 64), jnp.float16)
    found = []
    for params in (smalt.CompilerParams(), smalt.CompilerParams(accumulate_products=True), None):
        with enabled():
            f = matmul(64, start=2.0**24, params=params)
            found.append(float(np.asarray(jax.jit(f)(x, y)).min()) - 2.0**24)
            (report,) = smalt.inspect(f, x, y)
        assert ("wgmma.wait_group.sync.aligned 1" in report.ptx) == (len(found) > 1)
    assert found[0] == 4  # twice 2, which are two units in the last place


@pytest.mark.parametrize("skips", [False, True])
def test_sums_in_an_outputs_block(skips: bool) -> None:
    """Without scratch; steps that are skipped leave what there is."""

    def body(x: Any, y: Any, o: Any) -> None:
        @pl.when(pl.program_id(2) == 0)
        def _() -> None:
            o[...] = jnp.zeros_like(o)

        def add() -> None:
            o[...] += jnp.dot(x[...], y[...], preferred_element_type=jnp.float32)

        if skips:
            pl.when(pl.program_id(2) != 1)(add)
        else:
            add()

    r = np.random.default_rng(2)
    x, y = jnp.asarray(r.standard_normal((256, 192)), jnp.bfloat16), jnp.asarray(r.standard_normal((192, 128)), jnp.bfloat16)
    f = pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((256, 128), jnp.float32),
        grid=(2, 2, 3),
        in_specs=[pl.BlockSpec((128, 64), lambda i, j, k: (i, k)), pl.BlockSpec((64, 64), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((128, 64), lambda i, j, k: (i, j)),
    )
    with enabled():
        got = jax.jit(f)(x, y)
        (report,) = smalt.inspect(f, x, y)
    kept = [k for k in range(192) if not (skips and k // 64 == 1)]
    np.testing.assert_allclose(got, np.asarray(x, np.float64)[:, kept] @ np.asarray(y, np.float64)[kept], rtol=1e-3, atol=1e-2)
    assert "2 warpgroups compute" in str(report) and "one copies ahead" in str(report)


def test_one_call_has_one_descriptor() -> None:
    """Whatever addresses the objects have that stand for its values."""
    t = next(t for t in map(Turned.of, range(1000)) if t.kind == "attention" and t.skip == "even" and t.beside and t.steps > 2)
    found, kept = set(), []
    for i in range(12):
        kept.append([object() for _ in range(997 * i)])
        with enabled():
            ((_, descriptor, _),) = smalt.descriptor(t.run(False), *t.data())
        found.add(bytes(descriptor))
    assert len(found) == 1


@pytest.mark.parametrize("steps, slots", [(None, 4), (1, 4), (2, 2), (3, 3), (100, 4)])
def test_as_many_slots_as_steps_are_asked_for(steps: int | None, slots: int) -> None:
    """`max_concurrent_steps`: of the axis that becomes a loop, which has 4 steps here."""

    def body(x: Any, y: Any, o: Any) -> None:
        @pl.when(pl.program_id(1) == 0)
        def _() -> None:
            o[...] = jnp.zeros_like(o)

        o[...] += jnp.dot(x[...], y[...], preferred_element_type=jnp.float32)

    asked = {} if steps is None else {"max_concurrent_steps": steps}
    call = pl.pallas_call(
        body, grid=(2, 4), out_shape=jax.ShapeDtypeStruct((128, 64), jnp.float32), out_specs=pl.BlockSpec((64, 64), lambda i, k: (i, 0)),
        in_specs=[pl.BlockSpec((64, 64), lambda i, k: (i, k)), pl.BlockSpec((64, 64), lambda i, k: (k, 0))],
        compiler_params=smalt.CompilerParams(dimension_semantics=["parallel", "sequential"], accumulate_products=True, **asked),
    )  # fmt: skip
    rng = np.random.default_rng(3)
    x, y = (rng.integers(-4, 5, shape).astype(np.float16) for shape in ((128, 256), (256, 64)))
    with enabled():
        np.testing.assert_array_equal(call(x, y), x.astype(np.float32) @ y.astype(np.float32))
        assert f"in {slots} slots" in str(smalt.inspect(call, x, y))


def test_what_only_the_last_step_leaves_goes_as_it_was() -> None:
    """Something behind the last step's store that steps hand on: no loop, and right."""

    def body(x: Any, o: Any, acc: Any) -> None:
        @pl.when(pl.program_id(1) == 0)
        def _() -> None:
            acc[...] = jnp.zeros_like(acc)

        acc[...] += jnp.dot(x[...], x[...], preferred_element_type=jnp.float32)

        @pl.when(pl.program_id(1) == pl.num_programs(1) - 1)
        def _() -> None:
            o[...] = acc[...]

        acc[...] = acc[...] * 0.5

    x = jnp.asarray(np.random.default_rng(1).standard_normal((4 * 64, 64)), jnp.float16)
    call: Any = lambda interpret: pl.pallas_call(  # noqa: E731
        body,
        out_shape=jax.ShapeDtypeStruct((64, 64), jnp.float32),
        grid=(1, 4),
        in_specs=[pl.BlockSpec((64, 64), lambda i, k: (k, 0))],
        out_specs=pl.BlockSpec((64, 64), lambda i, k: (0, 0)),
        scratch_shapes=[pltpu.VMEM((64, 64), jnp.float32)],
        interpret=interpret,
    )
    with enabled():
        got = jax.jit(call(False))(x)
        (report,) = smalt.inspect(call(False), x)
    np.testing.assert_allclose(got, call(True)(x), rtol=1e-3, atol=1e-2)
    assert not re.search("copies ahead", str(report))
