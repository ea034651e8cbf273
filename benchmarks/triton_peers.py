"""The functions of `functions.py` as kernels for Triton, each with the configurations that its user would try.

JAX's Pallas:Triton where it has the operations; sorting needs Triton itself (`triton_kernels.py`), with tensors of PyTorch that share
the arrays' memory. A kernel of each is written as for speed: a row (or a few) a program, rows whole in registers.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.triton as plt
import jax.numpy as jnp
from jax import lax

Array = Any


@dataclasses.dataclass(frozen=True)
class Variant:
    """One configuration of a peer's kernel: a function of the case's arguments."""

    name: str
    call: Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Peer:
    """How a function is done in Triton. `prepare`: what turns a variant into a candidate to measure."""

    how: str
    variants: Sequence[Variant]
    prepare: Callable[[Callable[..., Any], Sequence[Any]], Any]


def _jitted(call: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    return jax.jit(call).lower(*arguments).compile()


def _pallas(variants: Sequence[Variant]) -> Peer:
    return Peer("Pallas:Triton", variants, _jitted)


def _call(kernel: Callable[..., None], grid: int, ins: Sequence[Any], outs: Any, shape: Any, warps: int, stages: int = 2) -> Any:
    return pl.pallas_call(
        kernel,
        grid=(grid,),
        in_specs=ins,
        out_specs=outs,
        out_shape=shape,
        compiler_params=plt.CompilerParams(num_warps=warps, num_stages=stages),
    )


def _row(width: int) -> pl.BlockSpec:
    return pl.BlockSpec((None, width), lambda i: (i, 0))


def _number() -> pl.BlockSpec:
    return pl.BlockSpec((None,), lambda i: (i,))


# ------------------------------------------------------------------------------------------ rows


def _of_rows(f: Callable[[Array], Array], x: Array) -> Peer:
    """A function of one row, a program each."""

    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = f(x_ref[...])

    row = _row(x.shape[1])
    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return _pallas([Variant(f"{w} warps", _call(kernel, x.shape[0], [row], row, out, w)) for w in (4, 8, 16)])


def softmax(x: Array) -> Peer:
    def f(x: Array) -> Array:
        e = jnp.exp(x - jnp.max(x))
        return e / jnp.sum(e)

    return _of_rows(f, x)


def layernorm(x: Array) -> Peer:
    def f(x: Array) -> Array:
        centred = x - jnp.sum(x) / x.shape[0]
        return centred * lax.rsqrt(jnp.sum(centred * centred) / x.shape[0] + 1e-5)

    return _of_rows(f, x)


def cumsum_rows(x: Array) -> Peer:
    return _of_rows(lambda x: jnp.cumsum(x), x)


def rope(x: Array, angle: Array) -> Peer:
    half = angle.shape[1]

    def kernel(x_ref: Any, angle_ref: Any, o_ref: Any) -> None:
        a, b, angle = x_ref[:, :half], x_ref[:, half:], angle_ref[...]
        c, s = jnp.cos(angle), jnp.sin(angle)
        o_ref[:, :half] = a * c - b * s
        o_ref[:, half:] = a * s + b * c

    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    variants = []
    for rows, warps in ((4, 4), (8, 4), (8, 8), (16, 8)):
        wide, narrow = (pl.BlockSpec((rows, n), lambda i: (i, 0)) for n in (2 * half, half))
        call = _call(kernel, x.shape[0] // rows, [wide, narrow], wide, out, warps)
        variants.append(Variant(f"{rows} rows, {warps} warps", call))
    return _pallas(variants)


def gather(ids: Array, table: Array) -> Peer:
    def kernel(ids_ref: Any, table_ref: Any, o_ref: Any) -> None:
        o_ref[...] = table_ref[ids_ref[...], :]

    out = jax.ShapeDtypeStruct((ids.shape[0], table.shape[1]), table.dtype)
    whole = pl.BlockSpec(table.shape, lambda i: (0, 0))
    return _pallas(
        [
            Variant(f"{w} warps", _call(kernel, ids.shape[0], [_number(), whole], _row(table.shape[1]), out, w))
            for w in (1, 2, 4, 8)
        ]
    )


# ------------------------------------------------------------------------------------------ long arrays


def prefix_sum(x: Array) -> Peer:
    """Sums of parts, a scan of the sums in one program, and scans of the parts: three kernels, three passes over memory."""
    parts = 4096
    width = x.shape[0] // parts

    def sums(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.sum(x_ref[...])

    def before(s_ref: Any, o_ref: Any) -> None:
        s = s_ref[...]
        o_ref[...] = jnp.cumsum(s) - s

    def scans(x_ref: Any, before_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.cumsum(x_ref[...]) + before_ref[...]

    def variant(warps: int) -> Variant:
        one = jax.ShapeDtypeStruct((parts,), x.dtype)
        all_of_it = pl.BlockSpec((parts,), lambda i: (0,))
        of_parts = _call(sums, parts, [_row(width)], _number(), one, warps)
        of_sums = _call(before, 1, [all_of_it], all_of_it, one, 4)
        out = jax.ShapeDtypeStruct((parts, width), x.dtype)
        scan = _call(scans, parts, [_row(width), _number()], _row(width), out, warps)

        def call(x: Array) -> Array:
            x = x.reshape(parts, width)
            return scan(x, of_sums(of_parts(x))).reshape(-1)

        return Variant(f"{warps} warps", call)

    return _pallas([variant(w) for w in (4, 8)])


_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def _threefry(key: tuple[Array, Array], x0: Array, x1: Array) -> tuple[Array, Array]:
    """Threefry-2x32 with 20 rounds."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(0x1BD11BDA))
    x0, x1 = x0 + keys[0], x1 + keys[1]
    for turn in range(5):
        for r in _ROTATIONS[turn % 2]:
            x0 = x0 + x1
            x1 = (x1 << jnp.uint32(r)) | (x1 >> jnp.uint32(32 - r))
            x1 = x0 ^ x1
        x0, x1 = x0 + keys[(turn + 1) % 3], x1 + keys[(turn + 2) % 3] + jnp.uint32(turn + 1)
    return x0, x1


def random_bits(key: Array) -> Peer:
    """The bits of `jax.random.bits`: a number's are both words of the counter's image, together."""

    def variant(size: int, warps: int) -> Variant:
        def kernel(k0_ref: Any, k1_ref: Any, o_ref: Any) -> None:
            number = (pl.program_id(0) * size + lax.iota(jnp.int32, size)).astype(jnp.uint32)
            x0, x1 = _threefry((k0_ref[...], k1_ref[...]), jnp.zeros_like(number), number)
            o_ref[...] = x0 ^ x1

        total = 1 << 26
        one = pl.BlockSpec((None,), lambda i: (0,))
        part = pl.BlockSpec((size,), lambda i: (i,))
        bits = _call(kernel, total // size, [one, one], part, jax.ShapeDtypeStruct((total,), jnp.uint32), warps)
        return Variant(f"{size} a program, {warps} warps", lambda key: bits(key[:1], key[1:]))

    return _pallas([variant(s, w) for s, w in ((1024, 4), (2048, 4), (4096, 8))])


# ------------------------------------------------------------------------------------------ products


def product(a: Array, b: Array) -> Peer:
    """A program a tile; f32 as TF32, as the others multiply it."""
    (tiles, m, k), n = a.shape, b.shape[2]
    precision = lax.DotAlgorithmPreset.TF32_TF32_F32 if a.dtype == jnp.float32 else None

    def kernel(a_ref: Any, b_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.dot(a_ref[...], b_ref[...], precision=precision, preferred_element_type=jnp.float32)

    def tile(*shape: int) -> pl.BlockSpec:
        return pl.BlockSpec((None, *shape), lambda i: (i, 0, 0))

    out = jax.ShapeDtypeStruct((tiles, m, n), jnp.float32)
    variants = [
        Variant(f"{w} warps", _call(kernel, tiles, [tile(m, k), tile(k, n)], tile(m, n), out, w)) for w in (4, 8)
    ]
    # Over K in steps, so that loads run ahead of products.
    step = 32 if a.dtype == jnp.float32 else 64

    def in_steps(a_ref: Any, b_ref: Any, o_ref: Any) -> None:
        def add(i: Any, acc: Any) -> Any:
            part = pl.ds(i * step, step)
            return acc + jnp.dot(a_ref[:, part], b_ref[part, :], precision=precision, preferred_element_type=jnp.float32)

        o_ref[...] = lax.fori_loop(0, k // step, add, jnp.zeros((m, n), jnp.float32))

    if k > step:
        variants += [
            Variant(f"{w} warps, {s} stages", _call(in_steps, tiles, [tile(m, k), tile(k, n)], tile(m, n), out, w, s))
            for w in (4, 8)
            for s in (2, 3)
        ]
    return _pallas(variants)


# ------------------------------------------------------------------------------------------ order


def _in_triton(name: str, *arguments: Array) -> Peer:
    kernels = importlib.import_module("benchmarks.triton_kernels")
    of = getattr(kernels, name)
    variants = [Variant(label, functools.partial(of, **config)) for label, config in kernels.CONFIGURATIONS[name].items()]
    return Peer("Triton", variants, kernels.prepare)


def sort(x: Array) -> Peer:
    return _in_triton("sort", x)


def argsort(x: Array) -> Peer:
    return _in_triton("argsort", x)


def top_k(x: Array) -> Peer:
    return _in_triton("top_k", x)


#: By the case's name, of products the first word.
PEERS: dict[str, Callable[..., Peer]] = {
    f.__name__: f for f in (softmax, layernorm, rope, top_k, sort, argsort, gather, cumsum_rows, prefix_sum, random_bits, product)
}
