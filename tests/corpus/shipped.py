"""The kernels that JAX ships (`jax/experimental/pallas/ops/gpu/*_mgpu.py`), unmodified, in several configurations."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.gpu import (
    all_gather_mgpu,
    attention_mgpu,
    blackwell_matmul_mgpu,
    blackwell_ragged_dot_mgpu,
    collective_matmul_mgpu,
    hopper_matmul_mgpu,
    hopper_mixed_type_matmul_mgpu,
    ragged_dot_mgpu,
    reduce_scatter_mgpu,
    transposed_ragged_dot_mgpu,
)

from tests.corpus.case import Arg, case
from tests.corpus.devices import over_devices

M, N = hopper_matmul_mgpu.MatmulDimension.M, hopper_matmul_mgpu.MatmulDimension.N


def _dot(a, b, out=None):
    out = out or a.dtype
    return (np.asarray(a, np.float32) @ np.asarray(b, np.float32)).astype(out)


# ------------------------------------------------------------------------------------------ hopper_matmul

HOPPER: dict[str, dict[str, Any]] = {
    "basic": {},
    "tile_256": dict(tile_m=64, tile_n=256 // 2, wg_dimension=M),
    "wg_m": dict(wg_dimension=M),
    "cluster_m": dict(cluster_dimension=M),
    "cluster_n": dict(cluster_dimension=N),
    "cluster_m_wg_m": dict(cluster_dimension=M, wg_dimension=M),
    "minor_m": dict(grid_minor_dim=M, grid_tile_width=4),
    "snake_8": dict(grid_tile_width=8),
    "no_epilogue_tiles": dict(epi_tile_m=None, epi_tile_n=None),
    "epilogue_32": dict(epi_tile_n=32, epi_tile_m=64),
    "deep_ring": dict(max_concurrent_steps=6, tile_m=64, tile_n=64),
    "k_128": dict(tile_k=128, max_concurrent_steps=2),
}


def hopper_config(**overrides: Any) -> Any:
    base = dict(tile_m=128, tile_n=128, tile_k=64, max_concurrent_steps=4, epi_tile_n=64, epi_tile_m=64)
    return hopper_matmul_mgpu.TuningConfig(**{**base, **overrides})


for _dtype, _size in ((jnp.float16, 512), (jnp.bfloat16, 512)):
    for _name, _overrides in HOPPER.items():

        @case(
            Arg((_size, _size), _dtype),
            Arg((_size, _size), _dtype),
            reference=_dot,
            tolerance=2e-2,
            name=f"hopper_matmul_{jnp.dtype(_dtype).name}_{_name}",
        )
        def _hopper(a, b, config=hopper_config(**_overrides)):
            return hopper_matmul_mgpu.matmul(a, b, None, config)


@case(
    *[Arg((512, 512), jnp.float16)] * 3,
    reference=lambda a, b, c: _dot(a, b) + c,
    tolerance=2e-2,
)
def hopper_matmul_with_c(a, b, c):
    return hopper_matmul_mgpu.matmul(a, b, c, hopper_config())


@case(Arg((4096, 4096), jnp.float16), Arg((4096, 8192), jnp.float16), why="too large to run in tests")
def hopper_matmul_large(a, b):
    return hopper_matmul_mgpu.matmul(a, b, None, hopper_config(grid_tile_width=16))


# ------------------------------------------------------------------------------------------ mixed types

for _name, _overrides in {
    "basic": {},
    "wg_m": dict(wg_dimension=hopper_mixed_type_matmul_mgpu.MatmulDimension.M),
    "cluster": dict(cluster_dimension=hopper_mixed_type_matmul_mgpu.MatmulDimension.M),
}.items():

    @case(
        Arg((512, 512), jnp.int8),
        Arg((512, 512), jnp.bfloat16),
        reference=functools.partial(_dot, out=jnp.bfloat16),
        tolerance=2e-2,
        name=f"hopper_mixed_type_matmul_{_name}",
    )
    def _mixed(a, b, overrides=_overrides):
        base = dict(tile_m=64, tile_n=64, tile_k=64, max_concurrent_steps=2)
        config = hopper_mixed_type_matmul_mgpu.TuningConfig(**{**base, **overrides})
        return hopper_mixed_type_matmul_mgpu.mixed_matmul_kernel(a, b, out_dtype=jnp.bfloat16, config=config)


# ------------------------------------------------------------------------------------------ attention

ATTENTION: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": dict(causal=True),
    "no_schedule_barrier": dict(use_schedule_barrier=False),
    "kv_128": dict(block_kv=128),
}
_QKV = tuple(Arg((1, 256, heads, 64), jnp.float16) for heads in (4, 2, 2))


def attention_config(**overrides: Any) -> Any:
    base = dict(block_q=64, block_kv=64, max_concurrent_steps=2)
    return attention_mgpu.TuningConfig(**{**base, **overrides})


def _attention_reference(q, k, v, causal=False):
    """Grouped-query attention in f32."""
    q, k, v = (np.asarray(x, np.float32) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    logits = np.einsum("bqhd,bkhd->bhqk", q, k)
    if causal:
        mask = np.arange(q.shape[1])[:, None] >= np.arange(k.shape[1])[None]
        logits = np.where(mask, logits, -np.inf)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("bhqk,bkhd->bqhd", weights, v).astype(np.float16)


for _name, _overrides in ATTENTION.items():

    @case(
        *_QKV,
        reference=functools.partial(_attention_reference, causal=_overrides.get("causal", False)),
        tolerance=5e-3,
        name=f"attention_{_name}",
    )
    def _attention(q, k, v, config=attention_config(**_overrides)):
        return attention_mgpu.attention(q, k, v, config)


@case(*_QKV, reference=_attention_reference, tolerance=5e-3)
def attention_with_pipeline_emitter(q, k, v):
    return attention_mgpu.attention_with_pipeline_emitter(q, k, v, attention_config())


@case(*_QKV, why="the residuals come in an own convention")
def attention_with_residuals(q, k, v):
    return attention_mgpu.attention(q, k, v, attention_config(), save_residuals=True)


@case(*_QKV, why="held against the forward pass's gradient later")
def attention_backward(q, k, v):
    config = attention_config(block_q_dkv=64, block_kv_dkv=64, block_q_dq=64, block_kv_dq=64)
    loss = lambda q, k, v: attention_mgpu.attention(q, k, v, config).astype(jnp.float32).sum()
    return jax.grad(loss, argnums=(0, 1, 2))(q, k, v)


# ------------------------------------------------------------------------------------------ ragged dots

_SIZES = (100, 28, 0, 128)


def _ragged_reference(a, b, sizes, transpose=False):
    out, at = [], 0
    for group, n in enumerate(sizes):
        right = b[group].T if transpose else b[group]
        out.append(np.asarray(a[at : at + n], np.float32) @ np.asarray(right, np.float32))
        at += n
    return np.concatenate(out).astype(a.dtype)


for _transpose in (False, True):
    for _registers in (False, True):

        @case(
            Arg((256, 256), jnp.float16),
            Arg((4, 256, 256), jnp.float16),
            Arg((4,), jnp.int32, values=_SIZES),
            reference=functools.partial(_ragged_reference, transpose=_transpose),
            tolerance=2e-2,
            name=f"ragged_dot{'_transposed' if _transpose else ''}{'_registers' if _registers else ''}",
        )
        def _ragged(a, b, sizes, transpose=_transpose, registers=_registers):
            return ragged_dot_mgpu.ragged_dot(
                a,
                b,
                group_sizes=sizes,
                block_m=64,
                block_n=64,
                block_k=64,
                max_concurrent_steps=2,
                grid_block_n=2,
                transpose_rhs=transpose,
                load_group_sizes_to_register=registers,
            )


def _transposed_ragged_reference(a, b, sizes):
    out, at = [], 0
    for n in sizes:
        out.append(np.asarray(a[at : at + n], np.float32).T @ np.asarray(b[at : at + n], np.float32))
        at += n
    return np.stack(out).astype(a.dtype)


@case(
    Arg((256, 128), jnp.float16),
    Arg((256, 128), jnp.float16),
    Arg((4,), jnp.int32, values=_SIZES),
    reference=_transposed_ragged_reference,
    tolerance=2e-2,
)
def transposed_ragged_dot(a, b, sizes):
    return transposed_ragged_dot_mgpu.transposed_ragged_dot(
        a, b, group_sizes=sizes, block_m=64, block_n=64, block_k=64, max_concurrent_steps=2, grid_block_n=2
    )


# ------------------------------------------------------------------------------------------ Blackwell

for _collective in (False, True):
    for _minor in blackwell_matmul_mgpu.MatmulDimension:

        @case(
            Arg((512, 512), jnp.float16),
            Arg((512, 512), jnp.float16),
            reference=_dot,
            tolerance=2e-2,
            target="blackwell",
            device="B200",
            name=f"blackwell_matmul_{'collective_' if _collective else ''}{_minor.name.lower()}",
        )
        def _blackwell(a, b, collective=_collective, minor=_minor):
            config = blackwell_matmul_mgpu.TuningConfig(
                tile_m=128,
                tile_n=128,
                tile_k=64,
                max_concurrent_steps=4,
                collective=collective,
                epilogue_tile_n=64,
                grid_minor_dim=minor,
                grid_tile_width=4,
            )
            return blackwell_matmul_mgpu.matmul_kernel(a, b, config)


@case(
    Arg((1024, 512), jnp.float16),
    Arg((4, 512, 1024), jnp.float16),
    Arg((4,), jnp.int32, values=(400, 112, 0, 512)),
    reference=_ragged_reference,
    tolerance=2e-2,
    target="blackwell",
    device="B200",
)
def blackwell_ragged_dot(a, b, sizes):
    """Collective, as shipped: without `collective` the shipped kernel names a cluster axis that is not there."""
    config = blackwell_ragged_dot_mgpu.TuningConfig(
        tile_m=128,
        tile_n=128,
        tile_k=64,
        max_concurrent_steps=4,
        collective=True,
        grid_tile_width=1,
        grid_minor_dim=blackwell_matmul_mgpu.MatmulDimension.N,
    )
    return blackwell_ragged_dot_mgpu.ragged_dot_kernel(a, b, sizes, config)


# ------------------------------------------------------------------------------------------ several devices


@case(Arg((1024, 256), jnp.float16), Arg((256, 1024), jnp.float16), target="devices", why="several devices")
def collective_matmul(a, b):
    config = hopper_config(tile_m=64, tile_n=64, max_concurrent_steps=2)
    f = functools.partial(collective_matmul_mgpu.all_gather_lhs_matmul, axis_name="x", config=config)
    return over_devices(f, ("x", None), (None, "x"), out=(None, "x"), n=len(jax.devices()))(a, b)


for _dimension in (0, 1):

    @case(Arg((512, 512), jnp.bfloat16), target="devices", why="several devices", name=f"all_gather_{_dimension}")
    def _all_gather(x, dimension=_dimension):
        f = functools.partial(all_gather_mgpu.all_gather, axis_name="x", gather_dimension=dimension, num_blocks=4)
        spec = ("x", None) if dimension == 0 else (None, "x")
        return over_devices(f, spec, out=(None, None), n=4)(x)


for _dimension, _reduction in ((0, "add"), (1, "max"), (None, "add")):

    @case(
        Arg((512, 512), jnp.bfloat16),
        target="devices",
        why="several devices",
        name=f"reduce_scatter_{_dimension}_{_reduction}".lower(),
    )
    def _reduce_scatter(x, dimension=_dimension, reduction=_reduction):
        f = functools.partial(
            reduce_scatter_mgpu.reduce_scatter,
            axis_name="x",
            scatter_dimension=dimension,
            reduction=reduction,
            num_blocks=4,
        )
        return over_devices(f, (None, None), out=(None, None), n=4)(x)
