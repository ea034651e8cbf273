"""`smalt.draw_smem` against the addresses that kernels use."""

from __future__ import annotations

import random
import xml.dom.minidom
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import smalt
from jax.experimental.pallas import mosaic_gpu as plgpu
from tests.corpus.case import kernel

CASES: dict[str, Any] = {
    "128": ((2, 64, 128), jnp.float16, (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))),
    "64": ((32, 64), jnp.float32, (plgpu.TilingTransform((8, 16)), plgpu.SwizzleTransform(64))),
    "32": ((16, 64), jnp.float16, (plgpu.TilingTransform((8, 16)), plgpu.SwizzleTransform(32))),
    "tiled": ((32, 64), jnp.float16, (plgpu.TilingTransform((8, 32)),)),
    "plain": ((24, 40), jnp.float32, ()),
}


@pytest.mark.parametrize("name", CASES)
def test_kernels_have_elements_where_they_are_drawn(name: str) -> None:
    """Differences of the addresses of single elements; the first one is at 0."""
    shape, dtype, transforms = CASES[name]
    rng = random.Random(0)
    indices = [tuple(rng.randrange(n) for n in shape) for _ in range(24)]
    first = (0,) * len(shape)

    def body(o: Any, buf: Any) -> None:
        for i, index in enumerate(indices):
            text = "sub.u32 {0}, {1}, {2};"
            o[i] = smalt.inline_ptx(text, jnp.uint32, buf.at[index], buf.at[first])

    out = jax.ShapeDtypeStruct((len(indices),), jnp.uint32)
    with smalt.enabled(True):
        offsets = np.asarray(jax.jit(kernel(body, out, plgpu.SMEM(shape, dtype, transforms=transforms)))())
    drawn = smalt.draw_smem(shape, dtype, transforms)
    assert drawn.offset(*first) == 0
    assert [drawn.offset(*index) for index in indices] == offsets.tolist()
    assert all(drawn.bank(*index) == offset // 4 % 32 for index, offset in zip(indices, offsets.tolist()))


@pytest.mark.parametrize("name", CASES)
def test_every_byte_is_taken_once(name: str) -> None:
    shape, dtype, transforms = CASES[name]
    drawn = smalt.draw_smem(shape, dtype, transforms)
    offsets = sorted(drawn.offset(*index) for index in np.ndindex(*shape))
    assert offsets == list(range(0, drawn.bytes, np.dtype(dtype).itemsize))


def test_a_swizzle_spreads_columns_over_banks() -> None:
    shape, dtype, transforms = CASES["128"]
    drawn = smalt.draw_smem(shape, dtype, transforms)
    assert sorted(drawn.bank(0, r, 0) for r in range(8)) == list(range(0, 32, 4))
    plain = smalt.draw_smem((64, 64), dtype)
    assert {plain.bank(r, 0) for r in range(8)} == {0}


def test_narrow_types() -> None:
    drawn = smalt.draw_smem((4, 64), jnp.int4)
    assert (drawn.bytes, drawn.offset(0, 3), drawn.bit(0, 3), drawn.offset(1, 0)) == (128, 1, 4, 32)


def test_the_text() -> None:
    shape, dtype, transforms = CASES["128"]
    lines = str(smalt.draw_smem(shape, dtype, transforms)).split("\n")
    assert lines[:5] == [
        "f16[2, 64, 128]: 32,768 bytes",
        "every 1 along dimension 0: + 16,384 bytes",
        "every 8 along dimension 1: + 2,048 bytes",
        "every 64 along dimension 2: + 1,024 bytes",
        "byte:bank of the first of 8 elements, 16 bytes in a row, of the part that repeats",
    ]
    assert lines[6] == "[0, …]" and lines[7].split() == [str(c) for c in range(0, 64, 8)]
    assert lines[9].split()[:3] == ["1", "144:4", "128:0"] and len(lines) == 16
    assert "no elements" in str(smalt.draw_smem((0, 4), jnp.float32))
    assert "of each element" in str(smalt.draw_smem((4, 3), jnp.float32)) and "…" in str(smalt.draw_smem((100, 512), jnp.float32))


def test_the_drawing() -> None:
    for shape, dtype, transforms in CASES.values():
        drawn = smalt.draw_smem(shape, dtype, transforms)
        svg = xml.dom.minidom.parseString(drawn.svg())
        assert svg.getElementsByTagName("rect") and drawn.svg() in drawn._repr_html_()


@pytest.mark.parametrize(
    "shape, dtype, transforms, what",
    [
        ((64, 60), jnp.float16, CASES["128"][2], "a buffer"),
        ((64, 64), jnp.float32, CASES["128"][2], "a buffer"),
        ((64,), jnp.float16, CASES["128"][2], "a buffer"),
        ((64, 64), jnp.float16, (plgpu.SwizzleTransform(128), plgpu.TilingTransform((8, 64))), "the transforms"),
        ((64, 64), jnp.float16, ("tiled",), "the transforms"),
        ((64, -64), jnp.float16, (), "the shape"),
        ((1 << 20, 1 << 20), jnp.float16, (), "a buffer"),
        ((64, 64), "strange", (), "the type"),
    ],
)
def test_mistakes(shape: Any, dtype: Any, transforms: Any, what: str) -> None:
    with pytest.raises(smalt.InvalidKernel) as e:
        smalt.draw_smem(shape, dtype, transforms)
    assert what in e.value.what and e.value.expected and e.value.got
    drawn = smalt.draw_smem((4, 4), jnp.float32)
    with pytest.raises(IndexError):
        drawn.offset(4, 0)
