"""`jax.export` with symbolic shapes: one exported program for arrays of all sizes, against NumPy."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.experimental.pallas.tpu as pltpu
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import smalt
from tests.corpus.case import kernel
from tests.machine import ON_GPU
from tests.suites.blocked import carried, copied, like, matmul, normal, numbered_within_a_rule, random_call, rows

F32 = np.dtype(np.float32)


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    with smalt.enabled():
        yield


def specs(*shapes: str, dtypes: Sequence[Any] = ()) -> list[jax.ShapeDtypeStruct]:
    scope = jax.export.SymbolicScope()
    types = dtypes or [F32] * len(shapes)
    return [jax.ShapeDtypeStruct(jax.export.symbolic_shape(s, scope=scope), t) for s, t in zip(shapes, types)]


def exported(f: Callable[..., Any], *arguments: Any) -> Any:
    """The program, as a process that loads it has it."""
    program = jax.export.export(jax.jit(f), platforms=[{"gpu": "cuda"}.get(jax.default_backend(), "cpu")])(*arguments)
    return jax.jit(jax.export.deserialize(program.serialize()).call)


def doubled(x: Any) -> Any:
    def body(x: Any, o: Any) -> None:
        o[...] = x[...] * 2

    return pl.pallas_call(body, out_shape=like(x), grid=(x.shape[0] // 8,), in_specs=[rows(128)], out_specs=rows(128))(x)


def test_all_sizes() -> None:
    """Fewer blocks than any call takes, as many, and more that do not divide."""
    f = exported(doubled, *specs("8*b, 128"))
    for blocks in (1, 2, 7, 8, 9, 63, 65, 600):
        x = normal(8 * blocks, 128, seed=blocks)
        np.testing.assert_array_equal(f(x), x * 2, err_msg=str(blocks))


def test_within_a_program() -> None:
    """What JAX computes around it has symbolic shapes, too."""
    f = exported(lambda x: (doubled(jnp.sin(x)) + x).sum(1), *specs("8*b, 128"))
    for blocks in (1, 3, 20):
        x = normal(8 * blocks, 128)
        np.testing.assert_allclose(f(x), (np.sin(x) * 2 + x).sum(1), rtol=1e-4, atol=1e-4)


def test_two_axes_several_results_and_what_is_whole() -> None:
    def f(x: Any, w: Any, t: Any) -> Any:
        def body(x: Any, w: Any, t: Any, o: Any, s: Any) -> None:
            o[...] = x[...] * w[...] + t[...]
            s[...] = x[...].sum(1, keepdims=True)

        wide = pl.BlockSpec((8, None, 64), lambda i, j: (i, j, 0))
        return pl.pallas_call(
            body,
            out_shape=[like(x), like(x, *x.shape[:2], 1)],
            grid=(x.shape[0] // 8, x.shape[1]),
            in_specs=[wide, pl.BlockSpec((None, 64), lambda i, j: (j, 0)), pl.BlockSpec((1, 64), lambda i, j: (0, 0))],
            out_specs=[wide, pl.BlockSpec((8, None, 1), lambda i, j: (i, j, 0))],
        )(x, w, t)

    g = exported(f, *specs("8*b, c, 64", "c, 64", "1, 64"))
    for b, c in ((1, 1), (2, 9), (10, 3)):
        x, w, t = normal(8 * b, c, 64), normal(c, 64, seed=1), normal(1, 64, seed=2)
        for got, want in zip(g(x, w, t), (x * w + t, x.sum(2, keepdims=True))):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_a_matmul_of_any_batch_and_rows() -> None:
    """Axes of the grid that carry are of known sizes, with scratch along them."""
    g = exported(matmul, *specs("32*m, 96", "96, 64"))
    for m in (1, 5):
        x, y = normal(32 * m, 96), normal(96, 64, seed=1)
        np.testing.assert_allclose(g(x, y), x @ y, rtol=1e-4, atol=1e-4)


def test_a_table_that_is_looked_up() -> None:
    """Of an axis of known size, beside a symbolic one."""

    def f(table: Any, x: Any) -> Any:
        def body(table: Any, x: Any, o: Any) -> None:
            o[...] = x[...]

        spec = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(x.shape[0] // 8, 4),
            in_specs=[pl.BlockSpec((8, 32), lambda i, j, t: (i, t[j]))],
            out_specs=pl.BlockSpec((8, 32), lambda i, j, t: (i, j)),
        )
        return pl.pallas_call(body, out_shape=like(x), grid_spec=spec)(table, x)

    g = exported(f, *specs("4", "8*b, 128", dtypes=[np.dtype(np.int32), F32]))
    table = np.array([2, 0, 3, 1], np.int32)
    for b in (1, 9):
        x = normal(8 * b, 128)
        np.testing.assert_array_equal(g(table, x), x.reshape(-1, 4, 32)[:, table].reshape(-1, 128))


def test_under_vmap() -> None:
    """The batch is an axis of the grid, symbolic or not."""
    xs = normal(3, 24, 128)
    np.testing.assert_array_equal(exported(jax.vmap(doubled), *specs("3, 8*b, 128"))(xs), xs * 2)


def test_in_another_process(tmp_path: pathlib.Path) -> None:
    """It needs no more than the import."""
    platform = {"gpu": "cuda"}.get(jax.default_backend(), "cpu")
    (tmp_path / "program").write_bytes(jax.export.export(jax.jit(doubled), platforms=[platform])(*specs("8*b, 128")).serialize())
    script = f"""
        import pathlib, jax, jax.export, numpy as np, smalt
        program = jax.export.deserialize(bytearray(pathlib.Path({str(tmp_path / "program")!r}).read_bytes()))
        for n in (8, 80):
            x = np.arange(n * 128, dtype=np.float32).reshape(n, 128)
            np.testing.assert_array_equal(jax.jit(program.call)(x), x * 2)
        print("right")
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.strip() == "right", done.stderr


def numbered(x: Any, o: Any) -> None:
    o[...] = x[...] * pl.program_id(0) + pl.num_programs(0)


def test_bodies_that_ask_which_step_it_is_and_of_how_many() -> None:
    """Of symbolic axes, and of others beside them."""
    f = exported(lambda x: call(numbered, x), *specs("8*b, 128"))
    for b in (1, 3, 9, 65):
        x = normal(8 * b, 128)
        np.testing.assert_allclose(f(x), x * np.repeat(np.arange(b), 8)[:, None] + b, rtol=1e-6, atol=1e-6)

    def sized(x: Any) -> Any:
        return call(lambda x_ref, o: o.__setitem__(..., x_ref[...] + x.shape[0]), x)

    h = exported(sized, *specs("8*b, 128"))
    for b in (1, 20):
        x = normal(8 * b, 128)
        np.testing.assert_allclose(h(x), x + 8 * b, rtol=1e-6)

    def body(x: Any, o: Any) -> None:
        @pl.when(pl.program_id(0) == pl.num_programs(0) - 1)
        def _() -> None:
            o[...] = -x[...]

        @pl.when(pl.program_id(0) != pl.num_programs(0) - 1)
        def _() -> None:
            o[...] = x[...] + 10 * pl.program_id(0) + pl.program_id(1) + 100 * pl.program_id(2)

    def three(x: Any) -> Any:
        spec = pl.BlockSpec((8, 32, None), lambda i, j, k: (i, j, k))
        return pl.pallas_call(body, out_shape=like(x), grid=(x.shape[0] // 8, 2, x.shape[2]), in_specs=[spec], out_specs=spec)(x)

    g = exported(three, *specs("8*b, 64, c"))
    for b, c in ((1, 2), (3, 1), (2, 9)):
        x = normal(8 * b, 64, c)
        i, j, k = np.arange(b).repeat(8)[:, None, None], np.arange(2).repeat(32)[:, None], np.arange(c)
        np.testing.assert_allclose(g(x), np.where(i == b - 1, -x, x + 10 * i + j + 100 * k), rtol=1e-6, atol=1e-6)


def test_operands_that_share_buffers() -> None:
    """What a body does not store is the operand's; blocks that two calls compute are computed of what was there before."""

    def f(x: Any, y: Any) -> Any:
        def body(x: Any, y: Any, o: Any, s: Any) -> None:
            o[:4] = o[:4] * 2 + y[:4]
            s[...] = y[...] - x[...]

        both = [rows(128)] * 2
        how = dict(grid=(x.shape[0] // 8,), in_specs=both, out_specs=both, input_output_aliases={0: 0})
        return pl.pallas_call(body, out_shape=[like(x), like(x)], **how)(x, y)

    g = exported(f, *specs("8*b, 128", "8*b, 128"))
    for b in (1, 3, 9, 65):
        x, y = normal(8 * b, 128), normal(8 * b, 128, seed=1)
        is_stored = np.arange(8 * b)[:, None] % 8 < 4
        got = g(x, y)
        np.testing.assert_allclose(got[0], np.where(is_stored, 2 * x + y, x), rtol=1e-6)
        np.testing.assert_allclose(got[1], y - x, rtol=1e-6)


@pytest.mark.parametrize("seed", range(24))
def test_random_calls(seed: int) -> None:
    """Each axis that can be split is symbolic; others have the size that they have."""
    make, arrays, grid, splits = random_call(seed)
    splits = [can and n > 1 for can, n in zip(splits, grid)]  # of one step, whatever moves
    if not any(splits):
        return
    names = [name if can else str(n) for name, can, n in zip("abc", splits, grid)]
    shapes = [", ".join(str(n) if a is None else f"{max(n, 1)}*{names[a]}" for a, n, _ in x.dims) for x in arrays[:-1]]
    structs = specs(*shapes, dtypes=[np.dtype(np.int32)] * len(shapes))
    sizes = {a: structs[i].shape[k] // max(n, 1) for i, x in enumerate(arrays[:-1]) for k, (a, n, _) in enumerate(x.dims) if a is not None}
    symbolic = [sizes.get(a, n) if can else n for a, (n, can) in enumerate(zip(grid, splits))]
    if any(can and a not in sizes for a, can in enumerate(splits)):
        return  # an axis that results alone have, whose size no argument says
    f = exported(make(symbolic), *structs)
    rng = np.random.default_rng(seed)
    for _ in range(2):
        now = [int(rng.integers(1, 10)) if can else n for n, can in zip(grid, splits)]
        inputs = [rng.integers(-9, 9, x.shape(now)).astype(np.int32) for x in arrays[:-1]]
        np.testing.assert_array_equal(f(*inputs), jax.jit(make(now))(*inputs), err_msg=str(now))


# ------------------------------------------------------------------------------------------ derivatives


def weighted(x: Any, w: Any) -> Any:
    """All steps along the second axis share what they scale by; all of the first, weights."""

    def body(x: Any, w: Any, o: Any) -> None:
        o[...] = jnp.sin(x[...]) * w[...] + (pl.program_id(0) + 1) * x[...]

    wide = pl.BlockSpec((8, None, 128), lambda i, j: (i, j, 0))
    one = pl.BlockSpec((None, 128), lambda i, j: (j, 0))
    return pl.pallas_call(body, out_shape=like(x), grid=(x.shape[0] // 8, x.shape[1]), in_specs=[wide, one], out_specs=wide)(x, w)


def weighted_reference(x: Any, w: Any) -> Any:
    return jnp.sin(x) * w + (jnp.arange(x.shape[0]) // 8 + 1)[:, None, None] * x


SIZES = [(1, 1), (3, 2), (20, 1), (9, 9)]


def loss(f: Any) -> Callable[..., Any]:
    return lambda x, w: (f(x, w).astype(jnp.float32) ** 2).sum()


def check_gradients(got: Callable[..., Any], sizes: Sequence[tuple[int, int]], dtype: Any = F32) -> None:
    for b, c in sizes:
        x, w = normal(8 * b, c, 128).astype(dtype), normal(c, 128, seed=1).astype(dtype)
        want = jax.grad(loss(weighted_reference), (0, 1))(x.astype(F32), w.astype(F32))
        for g, e in zip(got(x, w), want):
            assert g.dtype == dtype
            tolerance = 1e-4 if dtype == F32 else 3e-2
            np.testing.assert_allclose(np.asarray(g, F32), e, rtol=tolerance, atol=tolerance * np.abs(e).max())


@pytest.mark.parametrize("shapes", [("8*b, c, 128", "c, 128"), ("8*b, 2, 128", "2, 128")])
def test_gradients_of_all_sizes(shapes: tuple[str, ...]) -> None:
    """Each block once, whatever calls take of them: what they share is added up."""
    sizes = SIZES if "c" in shapes[0] else [(b, 2) for b in (1, 8, 9, 75)]
    check_gradients(exported(jax.grad(loss(weighted), (0, 1)), *specs(*shapes)), sizes)


def test_gradients_of_narrow_floats_are_added_up_in_wide_ones() -> None:
    bf16 = np.dtype(jnp.bfloat16)
    check_gradients(exported(jax.grad(loss(weighted), (0, 1)), *specs("8*b, 1, 128", "1, 128", dtypes=[bf16] * 2)), [(1, 1), (70, 1)], bf16)


def test_gradients_of_an_exported_program() -> None:
    """They are exported with it (`vjp_order=1`)."""
    program = jax.export.export(jax.jit(loss(weighted)), platforms=[{"gpu": "cuda"}.get(jax.default_backend(), "cpu")])(*specs("8*b, 2, 128", "2, 128"))
    loaded = jax.export.deserialize(program.serialize(vjp_order=1))
    check_gradients(jax.jit(jax.grad(loaded.call, (0, 1))), [(1, 2), (9, 2)])


def test_tangents_and_gradients_of_a_batch() -> None:
    def both(x: Any, w: Any) -> Any:
        return jax.jvp(lambda x: weighted(x, w), (x,), (jnp.cos(x),)), jax.vmap(jax.grad(loss(weighted)), (0, None))(jnp.stack([x, x + 1]), w)

    f = exported(both, *specs("8*b, 2, 128", "2, 128"))
    for b in (1, 9):
        x, w = normal(8 * b, 2, 128), normal(2, 128, seed=1)
        (out, tangent), grads = f(x, w)
        want = jax.jvp(lambda x: weighted_reference(x, w), (x,), (jnp.cos(x),))
        np.testing.assert_allclose(out, want[0], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(tangent, want[1], rtol=1e-4, atol=1e-4)
        for g, shifted in zip(grads, (x, x + 1)):
            np.testing.assert_allclose(g, jax.grad(loss(weighted_reference))(shifted, w), rtol=1e-3, atol=1e-3)


# ------------------------------------------------------------------------------------------ by a rule


def kernel_of_rows(x: Any, w: Any) -> Any:
    def body(x: Any, w: Any, o: Any) -> None:
        at = pl.ds(jax.lax.axis_index("rows") * 8, 8)
        o[at] = x[at] * w[...]

    return kernel(body, like(x), grid=(x.shape[0] // 8,), grid_names=("rows",))(x, w)


def test_kernels_whose_rule_the_user_gives() -> None:
    """And what JAX computes around them; results that no part of an argument changes."""
    f = smalt.partition(lambda d: {"y": kernel_of_rows(jnp.sin(d["x"]), d["w"]) + 1, "w": d["w"] * 2}, "_ _, rows _ -> _ _, rows _")
    g = exported(lambda x, w: f({"x": x, "w": w}), *specs("8*b, 128", "1, 128"))
    for b in (1, 2, 9, 70):
        x, w = normal(8 * b, 128), normal(1, 128, seed=1)
        got = g(x, w)
        np.testing.assert_allclose(got["y"], np.sin(x) * w + 1, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(got["w"], 2 * w)


def test_a_rule_of_two_factors_with_a_derivative() -> None:
    """Two symbolic dimensions, with gradients of the kernel's author: weights' parts are added up."""

    @jax.custom_vjp
    def scale(x: Any, w: Any) -> Any:
        def body(x: Any, w: Any, o: Any) -> None:
            o[...] = x[...] * w[...]

        return kernel(body, like(x))(x, w)

    scale.defvjp(lambda x, w: (scale(x, w), (x, w)), lambda kept, ct: (scale(ct, kept[1]), scale(ct, kept[0]).sum(0, keepdims=True)))
    scale_rows = jax.vmap(lambda x, w: scale(x[None], w[None])[0], (0, None))
    f = smalt.partition(lambda x, w: jax.vmap(lambda x: scale_rows(x, w))(x), "b r _, _ -> b r _")
    g = exported(jax.grad(lambda x, w: (f(x, w) ** 2).sum(), (0, 1)), *specs("b, 2*r, 128", "128"))
    for b, r in ((1, 1), (3, 2), (2, 9)):
        x, w = normal(b, 2 * r, 128), normal(128, seed=1)
        dx, dw = g(x, w)
        np.testing.assert_allclose(dx, 2 * x * w * w, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(dw, (2 * x * x * w).sum((0, 1)), rtol=1e-4, atol=1e-3)


def test_a_call_of_blocks_needs_no_rule() -> None:
    f = exported(smalt.partition(doubled), *specs("8*b, 128"))
    x = normal(24, 128)
    np.testing.assert_array_equal(f(x), x * 2)


RULES: dict[str, tuple[str, tuple[str, ...], str]] = {
    "whole": ("_ a, _ a -> _ a", ("8*b, 128", "1, 128"), r"dimension 0 of operand 0, 8\*b(?s:.*)a factor(?s:.*)got: _(?s:.*)name a factor"),
    "others": ("a _, a _ -> a _", ("2*b, 128", "2*c, 128"), r"dimension 0 of operand 1, 2\*c(?s:.*)2\*b, as others of a(?s:.*)got: 2\*c"),
}


@pytest.mark.parametrize("name", RULES)
def test_wrong_rules(name: str) -> None:
    rule, shapes, says = RULES[name]
    f = smalt.partition(lambda x, w: x * w, rule)
    with pytest.raises(smalt.InvalidArgument, match=rf"smalt.partition(?s:.*){says}(?s:.*)suite_symbolic"):
        exported(f, *specs(*shapes))


# ------------------------------------------------------------------------------------------ misuse


def call(body: Any, x: Any, spec: Any = None, out: Any = None, **params: Any) -> Any:
    spec = spec or rows(128)
    return pl.pallas_call(body, out_shape=like(x), grid=(x.shape[0] // 8,), in_specs=[spec], out_specs=out or spec, **params)(x)


def pair(x: Any, y: Any) -> Any:
    def body(x: Any, y: Any, o: Any) -> None:
        o[...] = x[...] + y[:8]

    return pl.pallas_call(body, out_shape=like(x), grid=(x.shape[0] // 8,), in_specs=[rows(128), rows(128, 16)], out_specs=rows(128))(x, y)


def turned(x: Any) -> Any:
    """The symbolic dimension is whole."""
    spec = pl.BlockSpec((8, 128), lambda i: (0, i))
    return pl.pallas_call(copied, out_shape=like(x), grid=(2,), in_specs=[spec], out_specs=spec)(x)


MISUSE: dict[str, tuple[Any, tuple[str, ...], str]] = {
    "blocks that do not divide": (doubled, ("b, 128",), r"dimension 0 of args\[0\], b(?s:.*)multiple of the block's 8(?s:.*)\"8\*b\""),
    "a whole dimension": (turned, ("8*b, 256",), "blocks that follow one another(?s:.*)give it blocks"),
    "its index": (lambda x: call(numbered_within_a_rule, x), ("8*b, 128",), "an axis that can be split(?s:.*)step's index along it within custom_jvp_call"),
    "scratch": (lambda x: call(carried, x, scratch_shapes=[plgpu.SMEM((8, 128), jnp.float32)]), ("8*b, 128",), "depend on each other"),
    "revisited": (lambda x: call(copied, x, out=pl.BlockSpec((8, 128), lambda i: (0, 0))), ("8*b, 128",), "blocks that follow one another"),
    "gradient of an alias": (
        jax.grad(lambda x: call(copied, x, input_output_aliases={0: 0}).sum()), ("8*b, 128",), "jax.grad(?s:.*)no input_output_aliases(?s:.*)custom_vjp"
    ),
    "gradient of blocks that overlap": (jax.grad(lambda x: doubled(x).sum()), ("b, 128",), "multiple of the block's 8(?s:.*)\"8\\*b\""),
    "other sizes": (pair, ("8*b, 128", "16*b + 16, 128"), r"args\[1\](?s:.*)b blocks(?s:.*)got: b \+ 1"),
    "a kernel": (lambda x: kernel(copied, like(x))(x), ("8*b, 128",), r"a dimension of 8\*b(?s:.*)known size(?s:.*)smalt.partition(?s:.*)pl.pallas_call"),
    "a kernel's grid": (lambda x: kernel_of_rows(x, x[:1]), ("8*b, 128",), r"b steps along an axis of its grid(?s:.*)smalt.partition"),
}


@pytest.mark.skipif(ON_GPU, reason="what smalt lacks goes to JAX's Triton there, with a warning")
@pytest.mark.parametrize("name", MISUSE)
def test_misuse(name: str) -> None:
    fn, shapes, says = MISUSE[name]
    with pytest.raises(smalt.Unsupported, match=rf"^smalt: not supported yet(?s:.*)(?:{says})(?s:.*)suite_symbolic") as found:
        exported(fn, *specs(*shapes))
    assert found.value.remedy


def test_a_kernel_over_a_grid_of_traced_size() -> None:
    """JAX only asserts that it is known. The remedy is one."""

    def f(n: Any, x: Any) -> Any:
        return kernel(copied, like(x), grid=(n,), grid_names=("a",))(x)

    def g(n: Any, x: Any) -> Any:
        return pl.pallas_call(copied, out_shape=like(x), grid=(n,), in_specs=[rows(128)], out_specs=rows(128))(x)

    x = normal(16, 128)
    with pytest.raises(smalt.Unsupported, match=r"a plgpu.kernel whose grid has a traced size(?s:.*)remedy: a pl.pallas_call(?s:.*)suite_symbolic"):
        jax.jit(f)(2, x)
    np.testing.assert_array_equal(jax.jit(g)(2, x), x)
