"""What is done to rows apart from one another: RMS norm and the loss, forward and backward.

A block's 128 threads take one row after the other, in shared memory, while the copy engine moves the next few. It is the grid of a
`pl.pallas_call` written out: since JAX 0.11 stock Mosaic GPU takes `plgpu.kernel` only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

EPSILON = 1e-6
#: Rows that are copied at a time, by width: 12 KiB of bf16, or a whole line of labels.
NORM_ROWS, LOSS_ROWS = 8, 32
#: Of these, so many for each block.
STEPS = 4


def _by_rows(step: Any, n: int, rows: Sequence[jax.Array], outs: Sequence[Any], whole: Sequence[jax.Array] = (), total: Any = None) -> Any:
    """Pipelines `step(index, *rows, *outs, *whole[, carry])` over `n` rows at a time of `rows` and `outs`.

    `step` sees shared memory, but all of `whole`. `total`: where the carries of all blocks go, one row each; they start at 0.
    """
    count = rows[0].shape[0]
    if count % (n * STEPS):
        raise ValueError(f"expected a multiple of {n * STEPS} rows, got {count}")
    blocks = count // (n * STEPS)

    def rows_kernel(*refs: Any) -> None:
        block = lax.axis_index("block")
        moved, whole_refs = refs[: len(rows)], refs[len(rows) : len(rows) + len(whole)]
        out_refs = refs[len(rows) + len(whole) :]

        def spec(x: Any) -> plgpu.BlockSpec:
            return plgpu.BlockSpec((n, *x.shape[1:]), lambda i: (block * STEPS + i, *(0 for _ in x.shape[1:])))

        carry = plgpu.emit_pipeline(
            lambda index, *smem: step(*smem[: len(rows) + len(outs)], *whole_refs, *smem[len(rows) + len(outs) :]),
            grid=(STEPS,),
            in_specs=[spec(x) for x in rows],
            out_specs=[spec(x) for x in outs],
            max_concurrent_steps=2,
            init_carry=None if total is None else jnp.zeros(total.shape, total.dtype),
        )(*moved, *out_refs[: len(outs)])
        if total is not None:
            out_refs[-1][block] = carry

    totals = [] if total is None else [jax.ShapeDtypeStruct((blocks, *total.shape), total.dtype)]
    return plgpu.kernel(
        rows_kernel,
        out_type=[*outs, *totals],
        grid=(blocks,),
        grid_names=("block",),
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup, approx_math=True),
    )(*rows, *whole)


def _lines(x: jax.Array) -> jax.Array:
    """Rows as lines of 128: stock Mosaic GPU copies no more than 256 elements along a dimension."""
    return x.reshape(*x.shape[:-1], -1, 128)


def _like(x: jax.Array, dtype: Any = None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, dtype or x.dtype)


# ------------------------------------------------------------------------------------------------- RMS norm


@jax.custom_vjp
def rms_norm(x: jax.Array, gain: jax.Array) -> jax.Array:
    """`x / rms(x) * gain` of each row of (rows, width)."""
    width = x.shape[1]

    def step(x_ref: Any, o_ref: Any, gain_ref: Any) -> None:
        gain = gain_ref[...]

        def row(i: Any, _: None) -> None:
            x = x_ref[i].astype(jnp.float32)
            o_ref[i] = (x * lax.rsqrt(jnp.sum(x * x) / width + EPSILON) * gain).astype(o_ref.dtype)

        lax.fori_loop(0, NORM_ROWS, row, None)

    lines = _lines(x)
    return _by_rows(step, NORM_ROWS, [lines], [_like(lines)], [_lines(gain)])[0].reshape(x.shape)


def _norm_forward(x: jax.Array, gain: jax.Array) -> Any:
    return rms_norm(x, gain), (x, gain)


def _norm_backward(saved: Any, do: jax.Array) -> Any:
    x, gain = saved
    width = x.shape[1]

    def step(x_ref: Any, do_ref: Any, dx_ref: Any, gain_ref: Any, dgain: jax.Array) -> jax.Array:
        gain = gain_ref[...]

        def row(i: Any, dgain: jax.Array) -> jax.Array:
            x, do = x_ref[i].astype(jnp.float32), do_ref[i].astype(jnp.float32)
            scale = lax.rsqrt(jnp.sum(x * x) / width + EPSILON)
            along = jnp.sum(x * do * gain) * scale * scale / width
            dx_ref[i] = ((do * gain - x * along) * scale).astype(dx_ref.dtype)
            return dgain + do * x * scale

        return lax.fori_loop(0, NORM_ROWS, row, dgain)

    x, do, gain = _lines(x), _lines(do), _lines(gain)
    dx, dgain = _by_rows(step, NORM_ROWS, [x, do], [_like(x)], [gain], total=_like(gain))
    return dx.reshape(-1, width), dgain.sum(axis=0).reshape(width)


rms_norm.defvjp(_norm_forward, _norm_backward)


# ----------------------------------------------------------------------------------------------------- loss


def _is(label: jax.Array, row: jax.Array) -> jax.Array:
    line, column = (lax.broadcasted_iota(jnp.int32, row.shape, i) for i in range(2))
    return line * 128 + column == label


@jax.custom_vjp
def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean of `-log(softmax(logits)[label])` over the rows of (rows, classes) in f32."""
    return _loss_forward(logits, labels)[0]


def _loss_forward(logits: jax.Array, labels: jax.Array) -> Any:
    def step(logits_ref: Any, labels_ref: Any, loss_ref: Any) -> None:
        def row(i: Any, _: None) -> None:
            x = logits_ref[i]
            high = jnp.max(x)
            picked = jnp.sum(jnp.where(_is(labels_ref[i], x), x, 0.0))
            loss_ref[i] = high + jnp.log(jnp.sum(jnp.exp(x - high))) - picked

        lax.fori_loop(0, LOSS_ROWS, row, None)

    (losses,) = _by_rows(step, LOSS_ROWS, [_lines(logits), labels], [_like(labels, jnp.float32)])
    return jnp.mean(losses), (logits, labels)


def _loss_backward(saved: Any, do: jax.Array) -> Any:
    logits, labels = saved

    def step(logits_ref: Any, labels_ref: Any, d_ref: Any) -> None:
        def row(i: Any, _: None) -> None:
            x = logits_ref[i]
            e = jnp.exp(x - jnp.max(x))
            p = e / jnp.sum(e)
            d_ref[i] = jnp.where(_is(labels_ref[i], x), p - 1.0, p)

        lax.fori_loop(0, LOSS_ROWS, row, None)

    lines = _lines(logits)
    (d,) = _by_rows(step, LOSS_ROWS, [lines, labels], [_like(lines)])
    return d.reshape(logits.shape) * (do / labels.size), None


cross_entropy.defvjp(_loss_forward, _loss_backward)
