"""`smalt.draw_layout` against Mosaic GPU's own index arithmetic, and against what kernels do."""

from __future__ import annotations

import math
import random
import types
import xml.dom.minidom
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import smalt
from jax.experimental.mosaic.gpu import fragmented_array as fa
from jax.experimental.pallas import mosaic_gpu as plgpu
from tests.corpus.case import kernel

pytestmark = pytest.mark.shared

L = plgpu.Layout
THREADS = np.arange(128)


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Mosaic's layouts emit index arithmetic; here it is evaluated for all threads instead."""

    class Everything:
        def __eq__(self, other: Any) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    class Threads(np.ndarray):
        type = Everything()

    threads = THREADS.view(Threads)
    arith = types.SimpleNamespace(
        addi=lambda a, b: a + b,
        muli=lambda a, b: a * b,
        divui=lambda a, b: a // b,
        remui=lambda a, b: a % b,
        index_castui=lambda _, x: x,
        constant=lambda _, x: x,
    )
    integer = types.SimpleNamespace(get_signless=lambda _: Threads.type)
    ir = types.SimpleNamespace(IntegerType=integer, IndexType=types.SimpleNamespace(get=lambda: Threads.type), Value=object)
    utils = {k: getattr(fa.utils, k) for k in dir(fa.utils) if not k.startswith("__")}
    utils["thread_idx"] = lambda: threads
    utils["dyn_dot"] = lambda xs, ys: sum((x * y for x, y in zip(xs, ys, strict=True)), np.zeros(128, np.int64))
    gpu = types.SimpleNamespace(thread_id=lambda _: threads, Dimension=types.SimpleNamespace(x=None))
    for name, value in dict(arith=arith, ir=ir, gpu=gpu, c=lambda x, _: x, utils=types.SimpleNamespace(**utils)).items():
        monkeypatch.setattr(fa, name, value)
    yield


def mosaics(layout: Any, shape: tuple[int, ...]) -> np.ndarray:
    """[thread, slot] -> flat index, by Mosaic."""
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    columns = []
    if isinstance(layout, fa.TiledLayout):
        step = layout.tiling.tile_strides(tuple(strides))[layout.vector_dim]
        for index in layout.thread_idxs(shape):
            first = sum((np.asarray(i) * s for i, s in zip(index, strides, strict=True)), np.zeros(128, np.int64))
            columns += [first + v * step for v in range(layout.vector_length)]
    else:
        for first in layout.linear_thread_idxs():
            columns += [np.asarray(first) + v for v in range(layout.vec_size)]
    return np.stack([np.broadcast_to(c, (128,)) for c in columns], axis=1)


def ours(layout: Any, shape: tuple[int, ...], dtype: Any = None) -> np.ndarray:
    drawn = smalt.draw_layout(layout, shape, dtype)
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    held = [[sum(i * s for i, s in zip(e, strides)) for e in drawn.elements(t // 32, t % 32)] for t in range(128)]
    return np.array(held)


#: What needs no arguments, or these; layouts that a version of JAX lacks are left out.
ARGUMENTS: dict[str, Any] = {
    "WG_STRIDED": ((64, 24), 2),
    "SMEM_GMEM_COPY": ((64, 64), jnp.float16, 128),
    "TCGEN05_M64_COLLECTIVE": (64,),
    "TCGEN05_M64_COLLECTIVE_NATIVE": (64,),
    "MMA_LHS": (jnp.float16,),
    "MMA_RHS": (jnp.float16,),
    "MMA_ACC": (jnp.float16,),
}


def named() -> list[str]:
    return [m.name for m in L if m.name not in ("TILED", "WG_SPLAT")]


@pytest.mark.parametrize("name", named())
def test_named_layouts_are_mosaics(name: str, evaluated: None) -> None:
    layout = L[name](*ARGUMENTS[name]) if name in ARGUMENTS else L[name]
    theirs = layout.to_mgpu()
    tile = theirs.base_tile_shape if isinstance(theirs, fa.TiledLayout) else theirs.shape
    shapes = [tuple(tile)]
    if isinstance(theirs, fa.TiledLayout):
        shapes += [tuple(k * n for k, n in zip((2, 3), tile)), (2, *tile)]
    for shape in shapes:
        np.testing.assert_array_equal(ours(layout, shape), mosaics(theirs, shape))
    assert smalt.draw_layout(layout).shape == tuple(tile)
    if not isinstance(theirs, fa.TiledLayout) or len(tile) < 2:
        return
    for axis in range(len(tile)):
        reduced = layout.reduce(axis)
        shape = tuple(2 * n for d, n in enumerate(tile) if d != axis)
        np.testing.assert_array_equal(ours(reduced, shape), mosaics(reduced.to_mgpu(), shape))


def random_tiled(rng: random.Random) -> Any:
    """A tile of warps, of lanes, of a vector; digits of both kinds in any order."""
    rank = rng.choice([1, 2, 2, 3])

    def parts(total: int) -> list[int]:
        sizes = [1] * rank
        for _ in range(total):
            sizes[rng.randrange(rank)] *= 2
        return sizes

    vector = [1] * rank
    vector[-1] = rng.choice([1, 2, 4])
    lanes, warps, registers = parts(5), parts(2), [rng.choice([1, 1, 2, 3]) for _ in range(rank)]
    tiles = [tuple(math.prod(x) for x in zip(vector, registers, lanes, warps))]
    tiles += [tuple(math.prod(x) for x in zip(vector, registers, lanes)), tuple(math.prod(x) for x in zip(vector, registers)), tuple(vector)]
    # Tiled dimensions from the right: vector, registers, lanes, warps.
    at = [-rank * (k + 1) for k in range(4)]
    lane_dims, warp_dims = [at[2] + d for d in range(rank)], [at[3] + d for d in range(rank)]
    rng.shuffle(lane_dims)
    rng.shuffle(warp_dims)
    return fa.TiledLayout(fa.Tiling(tuple(tiles)), tuple(warp_dims), tuple(lane_dims), -1, _check_canonical=False)


@pytest.mark.parametrize("seed", range(30))
def test_random_tiled_layouts_are_mosaics(seed: int, evaluated: None) -> None:
    rng = random.Random(seed)
    theirs = random_tiled(rng)
    shape = tuple(rng.choice([1, 2, 3]) * n for n in theirs.base_tile_shape)
    assert math.prod(shape) < 1 << 17
    np.testing.assert_array_equal(ours(theirs, shape), mosaics(theirs, shape))


def test_every_owner_has_the_element() -> None:
    for layout, shape in [(L.WGMMA, (64, 24)), (L.WGMMA.reduce(1), (128,)), (L.WGMMA.reduce(0), (48,)), (L.WG_SPLAT((3, 4)), (3, 4))]:
        drawn = smalt.draw_layout(layout, shape)
        for index in np.ndindex(*shape):
            owners = drawn.owner(*index)
            assert len(owners) == drawn.copies
            for owner in owners:
                assert index in drawn.elements(owner.warp, owner.lane, owner.register)


def test_a_shape_of_one_dimension_may_be_a_number() -> None:
    layout = L.WG_STRIDED((256,), vec_size=2)
    assert str(smalt.draw_layout(layout, 256)) == str(smalt.draw_layout(layout, (256,)))


def test_types_share_registers() -> None:
    wide, half = (smalt.draw_layout(L.WGMMA, (64, 16), t) for t in (jnp.float32, jnp.float16))
    assert (wide.registers, half.registers, half.elements_per_register) == (8, 4, 2)
    assert wide.owner(8, 1) == [(0, 0, 3)] and half.owner(8, 1) == [(0, 0, 1)]
    assert half.elements(0, 0, 1) == [(8, 0), (8, 1)]
    assert smalt.draw_layout(L.WGMMA, (64, 16), jnp.float64).registers == 8
    assert smalt.draw_layout(L.WGMMA, (64, 16), jnp.bool_).registers == 8
    assert smalt.draw_layout("WG_STRIDED", (64, 16), jnp.int8).elements(0, 0) == [(0, c) for c in range(8)]


LAID_OUT = {
    "WGMMA": L.WGMMA,
    "WGMMA_8BIT": L.WGMMA_8BIT,
    "WGMMA_UPCAST_2X": L.WGMMA_UPCAST_2X,
    "WGMMA_UPCAST_4X": L.WGMMA_UPCAST_4X,
    "WGMMA_TRANSPOSED": L.WGMMA_TRANSPOSED,
    "TCGEN05": L.TCGEN05,
    "WG_STRIDED_1": L.WG_STRIDED((128, 64), vec_size=1),
    "WG_STRIDED_4": L.WG_STRIDED((128, 64), vec_size=4),
    "SMEM_GMEM_COPY": L.SMEM_GMEM_COPY((128, 64), jnp.int32, 128),
}
#: Each element's thread; and which of its thread's it is, by a counter for each thread.
THREAD = "mov.u32 {0}, %tid.x;"
COUNTER = """{ .reg .b32 t, n;
mov.u32 t, %tid.x; shl.b32 t, t, 2; add.u32 t, t, {1};
ld.shared.u32 {0}, [t]; add.u32 n, {0}, 1; st.shared.u32 [t], n; }"""


@pytest.mark.parametrize("name", LAID_OUT)
def test_kernels_have_elements_where_they_are_drawn(name: str) -> None:
    layout, shape = LAID_OUT[name], (128, 64)

    def body(thread: Any, number: Any, counters: Any) -> None:
        of = plgpu.ShapeDtypeStruct(shape, jnp.int32, layout=layout)
        counters[...] = jnp.zeros_like(counters)
        thread[...] = smalt.inline_ptx(THREAD, of)
        number[...] = smalt.inline_ptx(COUNTER, of, counters)

    out = jax.ShapeDtypeStruct(shape, jnp.int32)
    with smalt.enabled(True):
        made = jax.jit(kernel(body, [out, out], plgpu.SMEM((128,), jnp.int32)))()
    thread, number = map(np.asarray, made)
    drawn = smalt.draw_layout(layout, shape, jnp.int32)
    for index in np.ndindex(*shape):
        assert drawn.owner(*index) == [(thread[index] // 32, thread[index] % 32, number[index])], index


@pytest.mark.parametrize("axis", [0, 1])
def test_reductions_are_where_they_are_drawn(axis: int) -> None:
    """The lanes of a row all have its sum: the first of them is the smallest thread in the row."""

    def body(o: Any) -> None:
        of = plgpu.ShapeDtypeStruct((128, 64), jnp.int32, layout=L.WGMMA)
        o[...] = jnp.min(smalt.inline_ptx(THREAD, of), axis=axis)

    out = jax.ShapeDtypeStruct(((64, 128)[axis],), jnp.int32)
    with smalt.enabled(True):
        first = np.asarray(jax.jit(kernel(body, out))())
    drawn = smalt.draw_layout(L.WGMMA.reduce(axis), out.shape)
    assert drawn.copies == (32, 4)[axis]
    for i in range(out.shape[0]):
        assert first[i] == 32 * drawn.owner(i)[0].warp + drawn.owner(i)[0].lane


def test_layouts_of_reports_are_drawn() -> None:
    def body(x: Any, o: Any) -> None:
        o[...] = jnp.sum(x[...], axis=1)

    x = jax.ShapeDtypeStruct((96, 40), jnp.float16)
    with smalt.enabled(True):
        report = smalt.inspect(kernel(body, jax.ShapeDtypeStruct((96,), jnp.float16)), x, assemble=False)[0]
    drawn = [row.draw() for row in report.layouts if row.digits is not None]
    assert drawn and {m.shape for m in drawn} >= {(96, 40), (96,)}
    for one in drawn:
        everywhere = {e for t in range(128) for e in one.elements(t // 32, t % 32)}
        assert everywhere == set(np.ndindex(*one.shape))


def test_the_text() -> None:
    text = str(smalt.draw_layout(L.WGMMA, (128, 64)))
    lines = text.split("\n")
    assert lines[:4] == [
        "WGMMA: [128, 64] in 4 warps, 64 registers a thread",
        "every 64 along dimension 0: register + 32",
        "every 8 along dimension 1: register + 4",
        "lane:register of each element of the part that repeats",
    ]
    assert lines[5].split() == list("01234567")
    assert lines[6].split() == ["warp", "0", "0", "0:0", "0:1", "1:0", "1:1", "2:0", "2:1", "3:0", "3:1"]
    assert lines[14].split() == ["8", "0:2", "0:3", "1:2", "1:3", "2:2", "2:3", "3:2", "3:3"]
    assert lines[22].split()[:3] == ["warp", "1", "16"] and len(lines) == 70
    row = str(smalt.draw_layout(L.WGMMA.reduce(1), (64,)))
    assert "each element is in 4 threads" in row and "0-3:0" in row and "warp/" in row
    splat = str(smalt.draw_layout(L.WG_SPLAT((8, 8))))
    assert "*:0" in splat and "the same registers" in splat
    deep = str(smalt.draw_layout(L.WG_STRIDED((6, 8, 16), 1)))
    assert "[0, …]" in deep


def test_the_drawing() -> None:
    for layout, shape in [(L.WGMMA, (64, 8)), (L.WGMMA.reduce(1), (64,)), (L.WG_STRIDED((8, 512), 4), None), (L.WG_SPLAT((2, 2, 2)), None)]:
        drawn = smalt.draw_layout(layout, shape)
        for color in ("warp", "lane"):
            svg = xml.dom.minidom.parseString(drawn.svg(color))
            cells = svg.getElementsByTagName("rect")
            assert cells and all(c.getElementsByTagName("title") for c in cells)
        assert drawn.svg() in drawn._repr_html_()
    assert len(svg.getElementsByTagName("rect")) == math.prod(drawn.unit)
    with pytest.raises(ValueError, match="warp"):
        drawn.svg("register")


@pytest.mark.parametrize(
    "layout, shape, dtype, what, remedy",
    [
        (L.WGMMA, (64,), None, "layout WGMMA", "cast to another layout"),
        (L.WG_STRIDED((64, 64), 2), (64, 32), None, "WG_STRIDED", "leave out the shape"),
        (L.WG_SPLAT((4,)), (5,), None, "WG_SPLAT", "leave out the shape"),
        (L.WG_STRIDED, None, None, "WG_STRIDED", "draw_layout(layout, shape)"),
        (L.TILED, (64, 64), None, "layout TILED", "call it"),
        ("WGMMAA", None, None, "layout WGMMAA", "call it"),
        (None, (4,), None, "a layout to draw", "draw_layout"),
        (L.WGMMA, (64, -8), None, "the shape", "draw_layout"),
        (L.WGMMA, (64, "x"), None, "the shape", "draw_layout"),
        (L.WGMMA, (1 << 20, 1 << 20), None, "layout WGMMA", "smaller"),
        (L.WGMMA, (64, 8), "strange", "the type", "leave it out"),
        (L.WGMMA, (64, 8), jnp.complex64, "a type", None),
    ],
)
def test_mistakes(layout: Any, shape: Any, dtype: Any, what: str, remedy: str | None) -> None:
    with pytest.raises(smalt.InvalidKernel) as e:
        smalt.draw_layout(layout, shape, dtype)
    assert what in e.value.what and e.value.expected and e.value.got
    assert remedy is None or remedy in (e.value.remedy or ""), e.value


def test_indices_are_checked() -> None:
    drawn = smalt.draw_layout(L.WGMMA, (64, 8))
    for wrong in [(64, 0), (0,), (0, -9)]:
        with pytest.raises(IndexError):
            drawn.owner(*wrong)
    for wrong in [(4, 0), (0, 32), (0, 0, 4)]:
        with pytest.raises(IndexError):
            drawn.elements(*wrong)
    assert drawn.owner(-1, -1) == drawn.owner(63, 7)
    assert smalt.draw_layout(L.WG_SPLAT((0, 4))).owner and "no elements" in str(smalt.draw_layout(L.WG_SPLAT((0, 4))))
