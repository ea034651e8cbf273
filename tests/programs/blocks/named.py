"""Calls by name: what people write first, and what random ones do not reach. Each against JAX's interpreter."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.experimental.pallas.tpu as pltpu
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True)
class Named:
    make: Callable[[dict[str, Any]], Callable[..., Any]]  # of the call's keywords: interpret, compiler_params
    arrays: Sequence[Any]
    since: tuple[int, int]  # the JAX whose interpreter is right about it


CALLS: dict[str, Named] = {}


def call(*arrays: Any, since: tuple[int, int] = (0, 10)) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(make: Callable[..., Any]) -> Callable[..., Any]:
        CALLS[make.__name__] = Named(make, arrays, since)
        return make

    return register


def numbers(*shape: int, dtype: str = "float32") -> Any:
    return np.random.default_rng(7).integers(-8, 8, shape).astype(dtype)


def like(x: Any, *shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape or x.shape, x.dtype)


def _sum_over_last(x: Any, o: Any) -> None:
    @pl.when(pl.program_id(2) == 0)
    def _() -> None:
        o[...] = jnp.zeros_like(o)

    o[...] += x[...]


def _reduce_sum(x: Any, how: dict[str, Any], block: tuple[int, int] = (256, 256)) -> Any:
    n, *shape = x.shape
    return pl.pallas_call(
        _sum_over_last,
        out_shape=like(x, *shape),
        grid=(*[s // b for s, b in zip(shape, block)], n),
        in_specs=[pl.BlockSpec((None, *block), lambda i, j, k: (k, i, j))],
        out_specs=pl.BlockSpec(block, lambda i, j, k: (i, j)),
        **how,
    )(x)


@call(numbers(4, 512, 256))
def reduction(how):
    return lambda x: _reduce_sum(x, how)


@call(numbers(5, 64, 128))
def reduction_in_three_slots(how):
    if not how.get("interpret"):
        how = {**how, "compiler_params": plgpu.CompilerParams(max_concurrent_steps=3)}
    return lambda x: _reduce_sum(x, how, (32, 64))


@call(numbers(5, 64, 128))
def reduction_in_three_slots_sequential(how):
    if not how.get("interpret"):
        how = {**how, "compiler_params": plgpu.CompilerParams(max_concurrent_steps=3, dimension_semantics=["sequential"] * 3)}
    return lambda x: _reduce_sum(x, how, (32, 64))


@call(numbers(70, 33), numbers(3, 3), np.float32(2))
def odd_blocks_weights_and_a_scalar(how):
    def body(x, w, s, o):
        o[...] = x[...] * s[...] + w[1, 2] * w[0, 0]

    return lambda x, w, s: pl.pallas_call(
        body,
        out_shape=like(x),
        grid=(7,),
        in_specs=[pl.BlockSpec((10, 33), lambda i: (i, 0)), pl.BlockSpec((3, 3), lambda i: (0, 0)), pl.BlockSpec((), lambda i: ())],
        out_specs=pl.BlockSpec((10, 33), lambda i: (i, 0)),
        **how,
    )(x, w, s)


@call(numbers(3, 20, 7))
def vmapped_with_indices(how):
    def body(x, o):
        o[...] = x[...] + (10 * pl.program_id(0) + pl.num_programs(0)).astype(jnp.float32)

    spec = pl.BlockSpec((4, 7), lambda i: (i, 0))
    return jax.vmap(lambda x: pl.pallas_call(body, out_shape=like(x), grid=(5,), in_specs=[spec], out_specs=spec, **how)(x))


@call(np.int32(5), numbers(10, 48))
def a_grid_of_traced_size(how):
    def body(x, o):
        o[...] = x[...] * 2 + pl.program_id(0).astype(jnp.float32)

    spec = pl.BlockSpec((2, 16), lambda i, j: (i, j))
    return lambda n, x: pl.pallas_call(body, out_shape=like(x), grid=(n, 3), in_specs=[spec], out_specs=spec, **how)(x)


@call(numbers(10, 7))
def part_of_an_aliased_output(how):
    def body(x, o):
        o[0:1] = x[1:2]

    spec = pl.BlockSpec((3, 7), lambda i: (i, 0))
    return lambda x: pl.pallas_call(
        body, out_shape=like(x), grid=(3,), in_specs=[spec], out_specs=spec, input_output_aliases={0: 0}, **how
    )(x)


@call(numbers(12, 7), since=(0, 11))
def an_aliased_input_of_other_blocks(how):
    """Blocks are read before, and after, others write them: in the grid's order. (0.10's interpreter reads the old ones.)"""

    def body(x, o):
        o[...] = x[...] + 1

    return lambda x: pl.pallas_call(
        body,
        out_shape=like(x),
        grid=(4,),
        in_specs=[pl.BlockSpec((3, 7), lambda i: (3 - i, 0))],
        out_specs=pl.BlockSpec((3, 7), lambda i: (i, 0)),
        input_output_aliases={0: 0},
        **how,
    )(x)


@call(numbers(12, 7), numbers(4, 7))
def the_same_block_twice_then_another(how):
    """Two steps write a block, the next two another: index maps that divide."""

    def body(x, y, o):
        @pl.when(pl.program_id(0) % 2 == 0)
        def _():
            o[...] = x[...]

        o[...] += y[...]

    return lambda x, y: pl.pallas_call(
        body,
        out_shape=like(x, 6, 7),
        grid=(4,),
        in_specs=[pl.BlockSpec((3, 7), lambda i: (i, 0)), pl.BlockSpec((1, 7), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((3, 7), lambda i: (jax.lax.div(i, jnp.int32(2)), 0)),
        **how,
    )(x, y)


@call(np.array([2, 0, 2, 1], np.int32), numbers(12, 7))
def a_table_that_scatters(how):
    """Blocks that are written again after others: what was there is read back."""

    def body(table, x, o):
        first = jnp.bool_(True)
        for k in range(3):
            first &= (k >= pl.program_id(0)) | (table[k] != table[pl.program_id(0)])

        @pl.when(first)
        def _():
            o[...] = jnp.zeros_like(o)

        o[...] += x[...]

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(4,),
        in_specs=[pl.BlockSpec((3, 7), lambda i, table: (i, 0))],
        out_specs=pl.BlockSpec((3, 7), lambda i, table: (table[i], 0)),
    )
    return lambda table, x: pl.pallas_call(body, out_shape=like(x, 9, 7), grid_spec=spec, **how)(table, x)


@call(np.array([2, 0, 3, 1], np.int32), numbers(30, 32))
def a_table_of_blocks_that_do_not_divide(how):
    """By the copy engine; what the last block has outside of the array is nobody's."""

    def body(table, x, o):
        o[...] = x[...] * 2

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(4,),
        in_specs=[pl.BlockSpec((8, 32), lambda i, table: (table[i], 0))],
        out_specs=pl.BlockSpec((8, 32), lambda i, table: (table[i], 0)),
    )
    if not how.get("interpret"):
        how = {**how, "compiler_params": plgpu.CompilerParams(dimension_semantics=["parallel"])}
    return lambda table, x: pl.pallas_call(body, out_shape=like(x), grid_spec=spec, **how)(table, x)


@call(numbers(32, 32))
def an_input_that_is_stored_to(how):
    """By two steps each, one after the other."""

    def body(x, o):
        x[...] = x[...] + 1
        o[...] = x[...] * 2

    return lambda x: pl.pallas_call(
        body,
        out_shape=like(x, 64, 32),
        grid=(2, 4),
        in_specs=[pl.BlockSpec((8, 32), lambda i, j: (j, 0))],
        out_specs=pl.BlockSpec((8, 32), lambda i, j: (4 * i + j, 0)),
        **how,
    )(x)


@call(numbers(256, 64, dtype="float16"))
def an_output_in_a_layout_of_one_s_own_that_comes_back(how):
    """Its slot begins with what the array has."""

    def body(x, o):
        @pl.when(pl.program_id(0) < 2)
        def _():
            o[...] = jnp.zeros_like(o)

        o[...] += x[...]

    layout = {} if how.get("interpret") else {"transforms": (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))}
    return lambda x: pl.pallas_call(
        body,
        out_shape=like(x, 128, 64),
        grid=(4,),
        in_specs=[plgpu.BlockSpec((64, 64), lambda i: (i, 0), **layout)],
        out_specs=plgpu.BlockSpec((64, 64), lambda i: (jax.lax.rem(i, jnp.int32(2)), 0), **layout),
        **how,
    )(x)


@call(numbers(11, 9))
def a_stencil_by_elements(how):
    """Overlapping windows that begin anywhere; the first begins in front of the array and is not used there."""

    def body(x, o):
        i = pl.program_id(0)
        rows = jax.lax.broadcasted_iota(jnp.int32, (4, 9), 0) + 2 * i - 1
        x = jnp.where((rows >= 0) & (rows < 11), x[...], 0)
        o[...] = x[0:2] + x[1:3] + x[2:4]

    return lambda x: pl.pallas_call(
        body,
        out_shape=like(x, 12, 9),
        grid=(6,),
        in_specs=[pl.BlockSpec((pl.Element(4, (1, 3)), pl.Element(9)), lambda i: (2 * i, 0))],
        out_specs=pl.BlockSpec((2, 9), lambda i: (i, 0)),
        **how,
    )(x)


@call(numbers(1024, 1024), numbers(1024, 1024))
def arrays_that_exceed_shared_memory(how):
    def body(x, y, o):
        def row(i, _):
            o[pl.ds(i * 8, 8)] = jax.nn.relu(x[pl.ds(i * 8, 8)] + y[pl.ds(i * 8, 8)])

        jax.lax.fori_loop(0, 128, row, None)

    return lambda x, y: pl.pallas_call(body, out_shape=like(x), **how)(x, y)


@call(numbers(2, 3, 20, 30))
def an_array_in_gmem_with_a_block(how):
    """A view of the block, not the whole array."""

    def body(x, o):
        o[...] = x[...].T * pl.program_id(1).astype(jnp.float32)

    return lambda x: pl.pallas_call(
        body,
        out_shape=like(x, 2, 3, 30, 20),
        grid=(2, 3),
        in_specs=[plgpu.BlockSpec((None, None, 20, 30), lambda i, j: (i, j, 0, 0), memory_space=plgpu.GMEM)],
        out_specs=pl.BlockSpec((None, None, 30, 20), lambda i, j: (i, j, 0, 0)),
        **how,
    )(x)


@call(numbers(48, 8))
def a_constant_map_to_the_block_at_the_end(how):
    """It reaches outside of the array in each step."""

    def body(x, o):
        o[...] = x[...]

    return lambda x: pl.pallas_call(
        body,
        out_shape=like(x, 48, 10),
        grid=(5,),
        in_specs=[pl.BlockSpec((8, 8), lambda i: (i + 1, 0))],
        out_specs=pl.BlockSpec((8, 8), lambda i: (i + 1, 1)),
        **how,
    )(x)[8:, 8:]


@call(numbers(10, 48))
def a_constant_map_to_the_block_at_the_end_of_an_input(how):
    def body(x, o):
        o[...] = x[0:2]

    return lambda x: pl.pallas_call(
        body,
        out_shape=like(x, 2, 48),
        grid=(6,),
        in_specs=[pl.BlockSpec((8, 8), lambda i: (1, i))],
        out_specs=pl.BlockSpec((2, 8), lambda i: (0, i)),
        **how,
    )(x)


@call(numbers(16, 30, dtype="int8"))
def four_bits(how):
    def body(x, o):
        o[...] = x[...].astype(jnp.int4)

    return lambda x: pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, jnp.int4),
        grid=(4,),
        in_specs=[pl.BlockSpec((4, 30), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((4, 30), lambda i: (i, 0)),
        **how,
    )(x)
