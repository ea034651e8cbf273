"""Reductions, shape operations and the array programs of ordinary jnp code."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
import jax.experimental.pallas.mosaic_gpu as plgpu

from tests.corpus.case import Arg, case, f32, i32, kernel, like


@case(
    f32(64, 128),
    reference=lambda x: (x.sum(1), x.max(0), x.min(1), x.sum(), x.sum((0, 1))),
    tolerance=1e-5,
)
def reduce_axes(x):
    def body(x, a, b, c, d, e):
        v = x[...]
        a[...] = v.sum(axis=1)
        b[...] = v.max(axis=0)
        c[...] = v.min(axis=1)
        d[...] = v.sum()
        e[...] = v.sum(axis=(0, 1))

    return kernel(body, [like((64,)), like((128,)), like((64,)), like(()), like(())])(x)


@case(f32(64, 32, low=0.9, high=1.1), reference=lambda x: (x.prod(1), x.max()), tolerance=1e-5)
def reduce_prod(x):
    def body(x, a, b):
        a[...] = x[...].prod(axis=1)
        b[...] = x[...].max()

    return kernel(body, [like((64,)), like(())])(x)


@case(
    i32(64, 64, low=-9, high=9),
    reference=lambda x: (
        (x > 8).any(1),
        (x < 8).all(0),
        x.argmax(1).astype(np.int32),
        x.argmin(0).astype(np.int32),
        np.bitwise_xor.reduce(x, 1),
    ),
)
def reduce_logic(x):
    def body(x, a, b, c, d, e):
        v = x[...]
        a[...] = (v > 8).any(axis=1)
        b[...] = (v < 8).all(axis=0)
        c[...] = lax.argmax(v, 1, jnp.int32)
        d[...] = lax.argmin(v, 0, jnp.int32)
        e[...] = lax.reduce_xor(v, (1,)) if hasattr(lax, "reduce_xor") else jnp.bitwise_xor.reduce(v, axis=1)

    outs = [like((64,), jnp.bool_)] * 2 + [like((64,), jnp.int32)] * 3
    return kernel(body, outs)(x)


@case(
    f32(64, 128),
    when=hasattr(plgpu, "sum"),
    reference=lambda x: (x.sum(1), x.max(1), x.min(0), x.sum()),
    tolerance=1e-5,
)
def reduce_with_ilp(x):
    def body(x, a, b, c, d):
        v = x[...]
        a[...] = plgpu.sum(v, axis=1, accumulator_ilp=4)
        b[...] = plgpu.max(v, axis=1)
        c[...] = plgpu.min(v, axis=0, accumulator_ilp=2)
        d[...] = plgpu.sum(v)

    return kernel(body, [like((64,)), like((64,)), like((128,)), like(())])(x)


@case(
    f32(64, 128),
    reference=lambda x: (
        x.reshape(128, 64),
        x[0:1, 8:72].reshape(64),
        np.broadcast_to(x[3][None], (64, 128)),
        x[:, :, None].repeat(2, 2),
    ),
)
def reshape_broadcast(x):
    def body(x, a, b, c, d):
        v = x[...]
        a[...] = v.reshape(128, 64)
        b[...] = v[0:1, 8:72].reshape(64)
        c[...] = jnp.broadcast_to(v[3], (64, 128))
        d[...] = lax.broadcast_in_dim(v, (64, 128, 2), (0, 1))

    return kernel(body, [like((128, 64)), like((64,)), like((64, 128)), like((64, 128, 2))])(x)


@case(
    f32(64, 32),
    reference=lambda x: (x.T, x[::-1], x[::2, ::4], np.concatenate([x, x[:8]]), np.pad(x, ((1, 2), (3, 0))), np.roll(x, 5, 0)),
)
def shape_ops(x):
    def body(x, a, b, c, d, e, f):
        v = x[...]
        a[...] = v.T
        b[...] = v[::-1]
        c[...] = v[::2, ::4]
        d[...] = jnp.concatenate([v, v[:8]])
        e[...] = jnp.pad(v, ((1, 2), (3, 0)))
        f[...] = jnp.roll(v, 5, axis=0)

    outs = [like(s) for s in ((32, 64), (64, 32), (32, 8), (72, 32), (67, 35), (64, 32))]
    return kernel(body, outs)(x)


@case(f32(64, 64), reference=lambda x: (x[:, :16], x[:, 16:], np.stack([x, x + 1])))
def split_and_stack(x):
    def body(x, a, b, c):
        left, right = lax.split(x[...], (16, 48), axis=1)
        a[...] = left
        b[...] = right
        c[...] = jnp.stack([x[...], x[...] + 1])

    return kernel(body, [like((64, 16)), like((64, 48)), like((2, 64, 64))])(x)


@case(
    reference=lambda: (
        np.arange(128, dtype=np.int32),
        np.tril(np.ones((16, 16), np.float32)),
        np.eye(8, dtype=np.float32)[np.arange(8) % 8],
    )
)
def iota_and_masks():
    def body(a, b, c):
        a[...] = jnp.arange(128, dtype=jnp.int32)
        b[...] = jnp.tril(jnp.ones((16, 16), jnp.float32))
        c[...] = jax.nn.one_hot(jnp.arange(8), 8, dtype=jnp.float32)

    return kernel(body, [like((128,), jnp.int32), like((16, 16)), like((8, 8))])()


@case(
    f32(64, 32),
    i32(1, low=0, high=60),
    reference=lambda x, i: (x[i[0]], x[i[0] : i[0] + 4], np.where(np.arange(64)[:, None] == i[0], x, np.float32(0))),
)
def dynamic_values(x, i):
    def body(x, i, a, b, c):
        v, at = x[...], i[0]
        a[...] = v[at]
        b[...] = lax.dynamic_slice(v, (at, 0), (4, 32))
        c[...] = lax.dynamic_update_slice(jnp.zeros_like(v), v[at][None], (at, 0))

    return kernel(body, [like((32,)), like((4, 32)), like((64, 32))])(x, i)


def _scatter(x, i):
    out = np.zeros_like(x)
    out[i] = x[: len(i)]
    return out


@case(
    f32(64, 32),
    Arg((8,), jnp.int32, values=(3, 1, 60, 7, 22, 5, 41, 63)),
    reference=lambda x, i: (x[i], _scatter(x, i)),
)
def gather_scatter_values(x, i):
    def body(x, i, a, b):
        v, at = x[...], i[...]
        a[...] = jnp.take(v, at, axis=0)
        b[...] = jnp.zeros_like(v).at[at].set(v[:8])

    return kernel(body, [like((8, 32)), like((64, 32))])(x, i)


def _updated(x, i):
    results = []
    for function, value in ((np.add, 1), (np.subtract, 2), (np.multiply, 2), (np.minimum, 0), (np.maximum, 0)):
        out = x.copy()
        function.at(out, i, np.float32(value))
        results.append(out)
    return tuple(results)


@case(f32(64), Arg((8,), jnp.int32, values=(3, 1, 60, 7, 22, 5, 3, 63)), reference=_updated)
def scattered_updates(x, i):
    def body(x, i, *out):
        v, at = x[...], i[...]
        for o, (kind, value) in zip(out, (("add", 1), ("subtract", 2), ("multiply", 2), ("min", 0), ("max", 0))):
            o[...] = getattr(v.at[at], kind)(value)

    return kernel(body, [like((64,))] * 5)(x, i)


@case(
    f32(8, 32),
    reference=lambda x: (np.sort(x, 1), np.cumsum(x, 1), np.maximum.accumulate(x, 0), np.cumprod(x * 0 + 1, 1)),
    tolerance=1e-5,
)
def sort_and_scan(x):
    def body(x, a, b, c, d):
        v = x[...]
        a[...] = jnp.sort(v, axis=1)
        b[...] = jnp.cumsum(v, axis=1)
        c[...] = lax.cummax(v, axis=0)
        d[...] = jnp.cumprod(v * 0 + 1, axis=1)

    return kernel(body, [like((8, 32))] * 4)(x)


@case(f32(64, 32), f32(32, 16), reference=lambda a, b: (a @ b, np.einsum("ij,kj->ik", a, a)), tolerance=1e-4)
def dot_general(a, b):
    def body(a, b, o, p):
        o[...] = jnp.dot(a[...], b[...], precision=lax.Precision.HIGHEST)
        p[...] = jnp.einsum("ij,kj->ik", a[...], a[...], precision=lax.Precision.HIGHEST)

    return kernel(body, [like((64, 16)), like((64, 64))])(a, b)


_ACTIVATIONS = [
    jax.nn.relu,
    jax.nn.relu6,
    jax.nn.sigmoid,
    jax.nn.silu,
    jax.nn.gelu,
    lambda x: jax.nn.gelu(x, approximate=False),
    jax.nn.softplus,
    jax.nn.log_sigmoid,
    jax.nn.elu,
    jax.nn.selu,
    jax.nn.leaky_relu,
    jax.nn.hard_tanh,
    jax.nn.mish,
]


@case(f32(256), reference=lambda x: np.stack([np.asarray(f(x)) for f in _ACTIVATIONS]), tolerance=1e-5)
def activations(x):
    def body(x, o):
        for i, f in enumerate(_ACTIVATIONS):
            o[i] = f(x[...])

    return kernel(body, like((len(_ACTIVATIONS), 256)))(x)


@case(
    f32(64, 128),
    reference=lambda x: [np.asarray(f(x)) for f in (jax.nn.softmax, jax.nn.log_softmax, jax.nn.logsumexp)]
    + [(x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + np.float32(1e-5))],
    tolerance=1e-5,
)
def softmax_and_norm(x):
    def body(x, a, b, c, d):
        v = x[...]
        a[...] = jax.nn.softmax(v)
        b[...] = jax.nn.log_softmax(v)
        c[...] = jax.nn.logsumexp(v)
        d[...] = jax.nn.standardize(v, axis=1, epsilon=1e-5)

    return kernel(body, [like((64, 128)), like((64, 128)), like(()), like((64, 128))])(x)


@case(f32(64, 32), reference=lambda x: np.cos(x) * 2, tolerance=1e-5)
def grad_and_vmap_in_body(x):
    def body(x, o):
        o[...] = jax.vmap(jax.grad(lambda v: (jnp.sin(v) * 2).sum()))(x[...])

    return kernel(body, like((64, 32)))(x)


@case(f32(64), reference=lambda x: np.sin(x * x), tolerance=1e-5)
def remat_and_custom_calls(x):
    @jax.custom_vjp
    def f(v):
        return jnp.sin(v)

    f.defvjp(lambda v: (f(v), v), lambda v, g: (g * jnp.cos(v),))

    def body(x, o):
        o[...] = jax.checkpoint(lambda v: f(lax.stop_gradient(v * v)))(x[...])

    return kernel(body, like((64,)))(x)


@case(
    Arg((2,), jnp.uint32),
    reference=lambda k: np.asarray(jax.random.bits(jax.random.wrap_key_data(k, impl="threefry2x32"), (128,))),
)
def random_bits(k):
    def body(k, o):
        key = jax.random.wrap_key_data(k[...], impl="threefry2x32")
        o[...] = jax.random.bits(key, (128,))

    return kernel(body, like((128,), jnp.uint32))(k)


def _split_keys(k):
    key = jax.random.fold_in(jax.random.wrap_key_data(jnp.asarray(k), impl="threefry2x32"), 7)
    seeded = jax.random.split(jax.random.key(jnp.asarray(k)[0].astype(jnp.int32), impl="threefry2x32"), 2)
    return np.asarray(jax.random.key_data(key)), np.asarray(jax.random.key_data(seeded))


@case(Arg((2,), jnp.uint32), reference=_split_keys)
def random_keys(k):
    def body(k, a, b):
        key = jax.random.wrap_key_data(k[...], impl="threefry2x32")
        a[...] = jax.random.key_data(jax.random.fold_in(key, 7))
        seeded = jax.random.key(k[0].astype(jnp.int32), impl="threefry2x32")
        b[...] = jax.random.key_data(jax.random.split(seeded, 2))

    return kernel(body, [like((2,), jnp.uint32), like((2, 2), jnp.uint32)])(k)
