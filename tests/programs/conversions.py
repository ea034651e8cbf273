"""Random conversions of register layouts, carried out by instructions.

A walk loads an array, casts it from layout to layout, now and then transposes it, and stores it: the bytes must be those that
came in. A kernel holds several walks. Casts of a walk that follow each other are conversions, and are what is counted.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import random
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.mosaic.gpu import fragmented_array as fa

import smalt
from smalt import _native
from tests import machine
from tests.corpus.case import kernel, like, x64
from tests.fuzz.bits import keep
from tests.fuzz.grammar import Grammar

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

#: Conversions of one kernel, and kernels with 10,000 together.
BATCH = 40
KERNELS = 250
#: Elements of a thread, beyond which a layout is not worth its instructions.
MAX_SLOTS = 64

TYPES = {
    1: (jnp.bool_,),
    4: (jnp.int4, jnp.uint4),
    8: (jnp.int8, jnp.uint8, jnp.float8_e4m3fn, jnp.float8_e5m2),
    16: (jnp.int16, jnp.uint16, jnp.float16, jnp.bfloat16),
    32: (jnp.int32, jnp.uint32, jnp.float32),
    64: (jnp.int64, jnp.uint64, jnp.float64),
}
SIZES: dict[int, Shape] = {
    1: (1, 7, 10, 33, 64, 100, 128, 256, 384, 512, 1024),
    2: (1, 3, 8, 10, 16, 24, 32, 48, 64, 96, 128),
    3: (1, 2, 3, 4, 5, 8, 16, 32),
}
#: What the tensor cores' layouts cover.
TILES: tuple[Shape, ...] = ((64, 8), (64, 16), (64, 32), (128, 8), (128, 16), (2, 64, 16), (192, 16))
#: What goes through scratch in several trips.
LARGE: tuple[Shape, ...] = ((64, 64), (128, 64), (128, 128), (192, 40), (128, 96), (96, 128), (256, 48))

_NAMES = (
    "WGMMA",
    "WGMMA_8BIT",
    "WGMMA_UPCAST_2X",
    "WGMMA_UPCAST_4X",
    "WGMMA_TRANSPOSED",
    "_WGMMA_ACC_32BIT",
    "TCGEN05",
    "TCGEN05_TRANSPOSED",
    "TCGEN05_TMEM_NATIVE",
    "TMA_INDICES",
)


def _family() -> list[Any]:
    """The layouts that have names, their reductions, and those that take arguments."""
    named = [getattr(plgpu.Layout, name) for name in _NAMES]
    out = [*named, *(x.reduce(axis) for x in named if x.name != "TMA_INDICES" for axis in (0, 1))]
    out += [plgpu.Layout.TCGEN05_TMEM_NATIVE(vector) for vector in (1, 4, 8)]
    out += [plgpu.Layout.TCGEN05_M64_COLLECTIVE(columns) for columns in (16, 64)]
    for name in ("MMA_LHS", "MMA_RHS", "MMA_ACC"):
        if hasattr(plgpu.Layout, name):
            out += [getattr(plgpu.Layout, name)(dtype, m_warps=m) for dtype in (jnp.int8, jnp.float16, jnp.float32) for m in (1, 2, 4)]
    return out


FAMILY = _family()


# ------------------------------------------------------------------------------------------ layouts


def tiled_shape(layout: Any, shape: Shape) -> Shape:
    """What the tiling makes of a shape, sizes that a tile does not divide padded."""
    base = layout.tiling.tiles[0]
    lead = len(shape) - len(base)
    padded = (*shape[:lead], *(-(-n // t) * t for n, t in zip(shape[lead:], base)))
    tiled: Shape = layout.tiling.tile_shape(padded)
    return tiled


def slots(layout: Any, shape: Shape) -> int:
    """Elements of a thread."""
    dims = tiled_shape(layout, shape)
    held = [*layout.partitioned_warp_dims, *layout.partitioned_lane_dims]
    count: int = math.prod(dims) // math.prod(dims[d] for d in held)
    return count


def fits(layout: Any, shape: Shape) -> bool:
    return len(layout.tiling.tiles[0]) <= len(shape) and slots(layout, shape) <= max(MAX_SLOTS, math.prod(shape) // 64)


@functools.cache
def explicit(layout: Any) -> Any:
    """Mosaic's layout object, None for the strided one whose vectors smalt chooses."""
    return None if layout is plgpu.Layout.WG_STRIDED else layout.to_mgpu()


def is_splat(layout: Any) -> bool:
    return isinstance(explicit(layout), fa.WGSplatFragLayout)


def tiled(tiling: Any, warp: Sequence[Any], lane: Sequence[Any], vector: int) -> Any:
    """A user's spelling of a tiled layout, in the form that Mosaic demands."""
    x = fa.TiledLayout(tiling, tuple(warp), tuple(lane), vector, _check_canonical=False).canonicalize()
    return plgpu.Layout.TILED(x.tiling, x.warp_dims, x.lane_dims, x.vector_dim)


def _divisor(rng: random.Random, n: int) -> int:
    return rng.choice([d for d in range(1, n + 1) if n % d == 0])


def random_tiled(rng: random.Random, shape: Shape) -> Any:
    """Tiles within tiles; their dimensions dealt to warps, lanes, the vector and registers at random."""
    rank = rng.randint(1, len(shape))
    # Mostly a tile that divides the array; otherwise what is beyond the array is padding.
    odd = rng.random() < 0.15
    base = [rng.choice((1, 2, 4, 8, 16, 64)) if odd else rng.choice((n, n, _divisor(rng, n))) for n in shape[-rank:]]
    tiles = [tuple(base)]
    for _ in range(rng.randint(1, 4)):
        inner = [_divisor(rng, n) for n in tiles[-1][-rng.randint(1, len(tiles[-1])) :]]
        tiles.append(tuple(inner))
    tiling = fa.Tiling(tuple(tiles)).canonicalize()
    dims = tiling.tile_shape(tiling.tiles[0])
    usable = list(range(-(len(dims) - len(tiling.tiles[0])), 0))
    free = usable[:]
    rng.shuffle(free)
    dealt: dict[int, list[Any]] = {32: [], 4: []}
    for threads, parts in dealt.items():
        left = threads
        for d in free[:]:
            # The vector takes one dimension.
            if len(free) > 1 and 1 < dims[d] <= left and left % dims[d] == 0 and rng.random() < 0.8:
                parts.append(d)
                free.remove(d)
                left //= dims[d]
        while left > 1:
            copies = rng.choice([n for n in (2, 4, 8, 16, 32) if left % n == 0])
            parts.append(fa.Replicated(copies))
            left //= copies
        rng.shuffle(parts)
    return tiled(tiling, dealt[4], dealt[32], rng.choice(free))


def relative(rng: random.Random, layout: Any) -> Any:
    """Lanes in another order, the vector along another dimension: often a matter of one warp, or of names alone."""
    dims = layout.tiling.tile_shape(layout.tiling.tiles[0])
    warp, lane, vector = list(layout.warp_dims), list(layout.lane_dims), layout.vector_dim
    usable = range(-(len(dims) - len(layout.tiling.tiles[0])), 0)
    spare = [d for d in usable if d not in warp and d not in lane and dims[d] > 1]
    # A lane's dimension for one of the same size in registers.
    same = [(i, d) for i, e in enumerate(lane) if isinstance(e, int) for d in (*spare, vector) if dims[d] == dims[e] > 1 and d != e]
    what = rng.choice(("order", "swap", "swap", "vector", "vector", "warps"))
    if what == "swap" and same:
        i, d = rng.choice(same)
        if d == vector:
            vector = lane[i]
        lane[i] = d
    elif what == "vector" and spare:
        vector = rng.choice(spare)
    elif what == "warps":
        rng.shuffle(warp)
    else:
        rng.shuffle(lane)
    return tiled(layout.tiling, warp, lane, vector)


def random_layout(rng: random.Random, shape: Shape, before: Any) -> Any:
    """Any but a splat. `before`: the layout that the array has."""
    while True:
        what = rng.random()
        if what < 0.45 and isinstance(before, fa.TiledLayout):
            layout = relative(rng, before)
        elif what < 0.65:
            layout = rng.choice(FAMILY)
            if len(explicit(layout).tiling.tiles[0]) > len(shape):
                continue
            divided = all(n % t == 0 for n, t in zip(shape[::-1], explicit(layout).tiling.tiles[0][::-1]))
            if not divided and rng.random() < 0.8:
                continue
        elif what < 0.75:
            vectors = [v for v in (1, 2, 4, 8, 16) if math.prod(shape) % (128 * v) == 0]
            return plgpu.Layout.WG_STRIDED(shape, rng.choice(vectors)) if vectors else plgpu.Layout.WG_STRIDED
        else:
            layout = random_tiled(rng, shape)
        if fits(explicit(layout), shape):
            return layout


def placed_by_mosaic(layout: Any, shape: Shape) -> Array:
    """`[thread, slot]`: the flat index of the element that is there, -1 for padding. From the definition of tiled layouts."""
    if isinstance(layout, fa.WGStridedFragLayout):
        n = math.prod(shape)
        return np.arange(n).reshape(-1, 128, layout.vec_size).transpose(1, 0, 2).reshape(128, -1)
    base = layout.tiling.tiles[0]
    lead = len(shape) - len(base)
    padding = [(0, 0)] * lead + [(0, -n % t) for n, t in zip(shape[lead:], base)]
    x = np.pad(np.arange(math.prod(shape)).reshape(shape), padding, constant_values=-1)
    for tile in layout.tiling.tiles:
        at = x.ndim - len(tile)
        split = [m for n, t in zip(x.shape[at:], tile) for m in (n // t, t)]
        x = x.reshape(*x.shape[:at], *split)
        outer, inner = range(at, x.ndim, 2), range(at + 1, x.ndim, 2)
        x = x.transpose(*range(at), *outer, *inner)
    # Copies are dimensions that do not depend on their index.
    threads: list[int] = []
    rank = x.ndim
    for d in (*layout.warp_dims, *layout.lane_dims):
        if isinstance(d, fa.Replicated):
            x = np.broadcast_to(x[..., None], (*x.shape, d.times))
            threads.append(x.ndim - 1)
        else:
            threads.append(rank + d)
    vector = rank + layout.vector_dim
    rest = [d for d in range(rank) if d not in threads and d != vector]
    return x.transpose(*threads, *rest, vector).reshape(128, -1)


def placed_by_smalt(choice: str) -> Array:
    """The same, from what a report says of a layout."""
    found = re.search(r"\[([\d, ]*)\](.*)", choice)
    assert found, choice
    shape = tuple(int(n) for n in found[1].split(", "))
    axes = [(int(d[1]), int(d[2] or d[1]), d[3]) for d in re.finditer(r"d(\d+)(?:\.\.(\d+))?:\(([^)]*)\)", found[2])]
    digits = [[re.fullmatch(r"(lane|warp|slot)(\d+)x(\d+)", text) for text in chain.split(",") if text] for _, _, chain in axes]
    count = max([int(d[2]) * int(d[3]) for chain in digits for d in chain if d and d[1] == "slot"], default=1)
    thread, slot = np.arange(128)[:, None], np.arange(count)[None]
    flat = np.zeros((128, count), np.int64)
    inside = np.ones((128, count), bool)
    for (first, last, _), chain in zip(axes, digits):
        size = math.prod(shape[first : last + 1]) if last > first else shape[first]
        index = np.zeros((128, count), np.int64)
        for d in chain:
            assert d, choice
            unit, n = int(d[2]), int(d[3])
            at = {"lane": thread >> unit, "warp": thread >> (5 + unit), "slot": slot // max(unit, 1)}[d[1]]
            index = index * n + at % n
        inside &= index < size
        flat = flat * size + index
    return np.where(inside, flat, -1)


# ------------------------------------------------------------------------------------------ walks


def random_shape(rng: random.Random) -> Shape:
    what = rng.random()
    if what < 0.35:
        return rng.choice(TILES)
    if what < 0.5:
        return rng.choice(LARGE)
    while True:
        rank = rng.choice((1, 2, 2, 2, 3))
        shape = tuple(rng.choice(SIZES[rank]) for _ in range(rank))
        if math.prod(shape) <= 1100:
            return shape


@dataclasses.dataclass(frozen=True)
class Walk:
    """One array's way. A step is a layout to cast to, or None: a transposition that reverses the dimensions."""

    dtype: Any
    shape: Shape
    splat: bool
    steps: tuple[Any, ...]

    @classmethod
    def of(cls, rng: random.Random, widths: Sequence[int]) -> Walk:
        width = rng.choice(widths)
        shape = random_shape(rng)
        while width == 4 and any(n % 2 for n in (shape[0], shape[-1])):  # rows would not start at bytes
            shape = random_shape(rng)
        if shape in LARGE and rng.random() < 0.5:
            width = widths[-1]
        splat = rng.random() < 0.05 and width != 4  # no scalars of four bits
        steps: list[Any] = [plgpu.Layout.WG_SPLAT(shape)] if splat else []
        here, before = shape, None
        for _ in range(rng.randint(3, 7)):
            if not splat and len(shape) > 1 and steps and steps[-1] is not None and rng.random() < 0.1:
                steps.append(None)
                here, before = here[::-1], None
            layout = random_layout(rng, here, before)
            if not steps or steps[-1] != layout:
                steps.append(layout)
                before = explicit(layout)
        return cls(rng.choice(TYPES[width]), shape, splat, tuple(steps))

    @property
    def bits(self) -> int:
        return next(bits for bits, types in TYPES.items() if self.dtype in types)

    @property
    def conversions(self) -> int:
        return sum(layout is not None for layout in self.steps) - 1

    @property
    def out(self) -> Shape:
        return self.shape[::-1] if self.steps.count(None) % 2 else self.shape

    def apply(self, x: Any) -> Any:
        for layout in self.steps:
            x = lax.transpose(x, range(x.ndim)[::-1]) if layout is None else plgpu.layout_cast(x, layout)
        return x

    def expected(self, x: Array) -> Array:
        """Of unpacked elements."""
        if self.splat:
            return np.broadcast_to(x, self.shape)
        return x.transpose() if self.steps.count(None) % 2 else x


@dataclasses.dataclass(frozen=True)
class Walks:
    """A kernel: `warpgroups` of them go every walk, each with arrays of its own."""

    seed: int
    warpgroups: int
    walks: tuple[Walk, ...]

    @classmethod
    def of(cls, seed: int, conversions: int = BATCH) -> Walks:
        rng = random.Random(seed)
        widths = (16, 32, 64, 64) if seed % 5 == 4 else (1, 4, 8, 8, 16, 16, 32, 32)
        walks: list[Walk] = []
        while sum(w.conversions for w in walks) < conversions:
            walks.append(Walk.of(rng, widths))
        # Each warpgroup has scratch of its own: as much as the largest array, where a transposition cannot be cut.
        small = all(math.prod(w.shape) * w.bits <= 32 * 1024 * 8 for w in walks)
        return cls(seed, rng.choice((1, 1, 2)) if small else 1, tuple(walks))

    @property
    def conversions(self) -> int:
        return sum(w.conversions for w in self.walks)

    @property
    def wide(self) -> bool:
        return any(w.bits == 64 for w in self.walks)

    def run(self, *inputs: Any) -> Any:
        n = len(self.walks)

        def body(*refs: Any) -> None:
            group = lax.axis_index("wg") if self.warpgroups > 1 else 0
            for walk, x, o in zip(self.walks, refs[:n], refs[n:]):
                given = x[group, 0] if walk.splat else x[group]
                o[group] = walk.apply(lax.broadcast(given, walk.shape) if walk.splat else given)

        outs = [like((self.warpgroups, *w.out), w.dtype) for w in self.walks]
        threads = {"num_threads": self.warpgroups, "thread_name": "wg"} if self.warpgroups > 1 else {}
        return kernel(body, outs, **threads)(*inputs)

    def describe(self) -> tuple[bytes, bytes]:
        inputs = [like((self.warpgroups, *((1,) if w.splat else w.shape)), w.dtype) for w in self.walks]
        with x64(self.wide), machine.emulated():
            ((_, descriptor, debug),) = smalt.descriptor(self.run, *inputs)
        return descriptor, debug

    def compile(self) -> _native.Artifact:
        return _native.compile(*self.describe(), machine.host())

    def check(self, artifact: _native.Artifact, device: int | None) -> None:
        """Runs it, in the emulator or on a GPU; every bit of every array must be right."""
        rng = np.random.default_rng(self.seed)
        given = [self._data(rng, w) for w in self.walks]
        wanted = [np.stack([w.expected(part) for part in x]) for w, x in zip(self.walks, given)]
        buffers = [_pack(x, w.bits) for w, x in zip(self.walks, given)]
        got = [np.full_like(_pack(x, w.bits), 0xA5) for w, x in zip(self.walks, wanted)]
        artifact.run([*buffers, *got], device)
        for walk, a, b in zip(self.walks, map(keep, got), wanted):
            b = _pack(b, walk.bits)
            wrong = np.flatnonzero(a != b)
            assert not len(wrong), f"kernel {self.seed}: {len(wrong)} of {len(b)} bytes differ, first {wrong[:4]}: {walk}"

    def _data(self, rng: np.random.Generator, walk: Walk) -> Array:
        shape = (self.warpgroups, *((1,) if walk.splat else walk.shape))
        highest = (1 << walk.bits) - 1
        return rng.integers(0, highest, shape, f"u{max(walk.bits // 8, 1)}", endpoint=True)


def _pack(x: Array, bits: int) -> Array:
    """The bytes of an array in memory: two elements of four bits to a byte."""
    flat: Array = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
    if bits != 4:
        return flat
    packed: Array = flat[0::2] | flat[1::2] << 4
    return packed


CONVERSIONS = Grammar("conversions", Walks.of, lambda walks: walks.check(walks.compile(), None), on_gpu=lambda walks: walks.check(walks.compile(), 0))


# ------------------------------------------------------------------------------------------ what became of them


@dataclasses.dataclass(frozen=True)
class Cast:
    """One `layout_cast` of a compiled kernel.

    Attributes:
        asked: The layout that the walk asks for.
        chosen: What the compiler's report says that the array got.
        kind: "free", "shuffles" or "scratch", by the instructions that stand under the operation's line.
        trips: How often it goes through scratch.
        counts: Whether it is a conversion: a cast of what was cast before.
    """

    walk: Walk
    shape: Shape
    asked: Any
    chosen: str
    kind: str
    trips: int
    counts: bool


def casts(walks: Walks) -> list[Cast]:
    """What became of each, by the instructions that were emitted."""
    descriptor, debug = walks.describe()
    ((_, ir),) = [p for p in _native.show(descriptor, debug, machine.host()) if p[0] == "normalize"]
    numbers = re.findall(r"= layout_cast .*// op(\d+)", ir)
    artifact = _native.compile(descriptor, debug, machine.host())
    words: dict[str, Counter[str]] = {}
    op = ""
    for line in artifact.ptx.splitlines():
        if found := re.match(r"\t\.loc 1 (\d+) ", line):
            op = found[1]
        words.setdefault(op, Counter()).update(w for w in ("shfl.", "st.shared", "stmatrix", "bar.sync") if w in line)
    chosen = [row["choice"] for row in artifact.report()["notes"]["layouts"] if row["what"] == "layout_cast"]
    out = []
    asked = [(walk, i) for walk in walks.walks for i, layout in enumerate(walk.steps) if layout is not None]
    for (walk, i), number, choice in zip(asked, numbers, chosen, strict=True):
        has = words.get(number, Counter())
        kind = "scratch" if has["st.shared"] + has["stmatrix"] else "shuffles" if has["shfl."] else "free"
        shape = walk.shape[::-1] if walk.steps[:i].count(None) % 2 else walk.shape
        out.append(Cast(walk, shape, walk.steps[i], choice, kind, has["bar.sync"] // 2, i > 0))
    return out
