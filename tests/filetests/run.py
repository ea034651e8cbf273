"""File tests of kind `run`: PTX that is executed, in the emulator and on a GPU. No JAX is involved.

The header of a file says what is launched and what comes out:

    // launch: grid 2 4, smem 4096                   (one block, no shared memory; threads and cluster stand in the PTX)
    // buffer x: input f32[64, 64] = normal()        (`input`, `output` or `mutable`; = how it is filled, else with 0xA5)
    // buffer y: output f32[64, 64]
    // map m: x, box 16 32, swizzle 128              (a tensor map of the buffer, sizes as NumPy counts them; no swizzle)
    // params: m, y                                  (the buffers' addresses, in order)
    // expect y: x * 2                               (of all but inputs)
    // expect y within 1e-6: np.sin(x)               (of max(1, |expected|))
    // expect y: as emulated                         (no more than that all schedules and machines agree)

A line that starts with more than one space continues the line before. A body that starts with `// smalt.launch` says launch,
maps and parameters itself. What is expected, and how buffers are filled, are NumPy expressions of the buffers' first contents
and of the functions and types of `Scope`. Any NaN equals any other; the GPU's bits must be the emulator's.
"""

from __future__ import annotations

import dataclasses
import fractions
import functools
import json
import pathlib
import re
import zlib
from typing import Any

import ml_dtypes
import numpy as np

from smalt import _native

Array = np.ndarray[Any, Any]

DIRECTORY = pathlib.Path(__file__).parent / "ptx"

TYPES: dict[str, Any] = {
    **{f"{kind}{bits}": np.dtype(f"{kind}{bits // 8}").type for kind in "iuf" for bits in (8, 16, 32, 64) if kind + str(bits) != "f8"},
    "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}
_MAP_ELEMENTS = {"i8": "U8", "e4m3": "U8", "e5m2": "U8", "i16": "U16"}


@dataclasses.dataclass(frozen=True)
class Buffer:
    name: str
    role: str
    type: str
    shape: tuple[int, ...]
    fill: str

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = np.dtype(TYPES[self.type])
        return dtype

    @property
    def bytes(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.itemsize

    def spec(self) -> dict[str, Any]:
        return {"role": self.role, "bytes": self.bytes, "text": f"{self.type}[{','.join(map(str, self.shape))}]"}


@dataclasses.dataclass(frozen=True)
class Expectation:
    """`expression` is None: no more than agreement."""

    buffer: str
    expression: str | None
    tolerance: float


@dataclasses.dataclass(frozen=True)
class FileTest:
    name: str
    ptx: str
    launch: dict[str, Any]
    buffers: tuple[Buffer, ...]
    expectations: tuple[Expectation, ...]

    @functools.cached_property
    def artifact(self) -> _native.Artifact:
        specs = [b.spec() for b in self.buffers]
        return _native.from_ptx(self.launch["entry"], self.ptx, self.launch, specs, self.target)

    @property
    def target(self) -> str:
        """The machine that it is for."""
        found = re.search(r"^\.target (\w+)", self.ptx, re.MULTILINE)
        assert found, f"{self.name} has no target"
        return found[1]

    @functools.cached_property
    def initial(self) -> dict[str, Array]:
        """The buffers before the launch; later ones may be made of earlier ones."""
        made: dict[str, Array] = {}
        for b in self.buffers:
            if not b.fill:
                made[b.name] = np.full(b.bytes, 0xA5, np.uint8).view(b.dtype).reshape(b.shape)
                continue
            value = evaluate(b.fill, made, Scope(f"{self.name} {b.name}", b.shape, b.dtype), f"buffer {b.name}")
            made[b.name] = np.ascontiguousarray(np.broadcast_to(value, b.shape).astype(b.dtype))
        return made

    def emulate(self, schedule: str = "latest", seed: int = 0) -> dict[str, Array]:
        """What all buffers but inputs hold after a run."""
        return self._after(lambda buffers: self.artifact.emulate(buffers, schedule, seed))

    def on_gpu(self, device: int = 0) -> dict[str, Array]:
        return self._after(lambda buffers: self.artifact.run(buffers, device))

    def _after(self, run: Any) -> dict[str, Array]:
        buffers = {name: value.copy() for name, value in self.initial.items()}
        run(list(buffers.values()))
        return {b.name: buffers[b.name] for b in self.buffers if b.role != "input"}

    def check(self, got: dict[str, Array]) -> None:
        """Raises AssertionError where something else is expected."""
        for e in self.expectations:
            if e.expression is None:
                continue
            a = got[e.buffer]
            wanted = evaluate(e.expression, self.initial, Scope(self.name, a.shape, a.dtype), f"expect {e.buffer}")
            b = np.broadcast_to(np.asarray(wanted), a.shape)
            nan = np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64))
            if e.tolerance:
                with np.errstate(all="ignore"):
                    x, y = a.astype(np.float64), b.astype(np.float64)
                    right = (np.abs(x - y) <= e.tolerance * np.maximum(1, np.abs(y))) | (x == y) | nan
            else:
                b = b.astype(a.dtype) if b.dtype != a.dtype else b
                unsigned = f"u{a.dtype.itemsize}"
                right = (np.ascontiguousarray(a).view(unsigned) == np.ascontiguousarray(b).view(unsigned)) | nan
            if not right.all():
                at = tuple(int(i) for i in np.argwhere(~right)[0])
                raise AssertionError(f"{self.name}: {e.buffer}: {(~right).sum()} of {a.size} differ; at {at} {a[at]!r}, expected {b[at]!r}")


class Scope:
    """What expressions know besides NumPy (`np`), the buffers and the element types (`f32`, `bf16`, …)."""

    #: Of each kind of type: what every operation must get right.
    FLOATS = (0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, 3e-39, 3.4e38, -7.0, 2.5)
    #: And the highest and the lowest one.
    INTEGERS = (0, 1, 2, -1, -7, 31, 32, 100, 0x1234)

    def __init__(self, seed: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.shape = shape
        self.dtype = dtype
        self._rng = np.random.default_rng(zlib.crc32(seed.encode()))

    def normal(self) -> Array:
        return self._rng.standard_normal(self.shape)

    def integers(self, low: int, high: int) -> Array:
        """From low up to high, without it."""
        return self._rng.integers(low, high, self.shape)

    def uniform(self, low: float, high: float) -> Array:
        return self._rng.uniform(low, high, self.shape)

    def bits(self) -> Array:
        """Any bits."""
        count = int(np.prod(self.shape)) * self.dtype.itemsize
        return self._rng.integers(0, 256, count, np.uint8).view(self.dtype).reshape(self.shape)

    def cycle(self, *values: Any) -> Array:
        return np.resize(np.array(values).astype(self.dtype), self.shape)

    def left(self) -> Array:
        """With `right`: all pairs of 11 corner values, then any bits."""
        return self._pairs(np.repeat)

    def right(self) -> Array:
        return self._pairs(np.tile)

    def _pairs(self, spread: Any) -> Array:
        out = self.bits().reshape(-1)
        with np.errstate(all="ignore"):
            if self.dtype.kind in "iu":
                info = np.iinfo(self.dtype)
                numbers = [v % (1 << info.bits) for v in (*self.INTEGERS, int(info.min), int(info.max))]
                corners = np.array(numbers, f"u{self.dtype.itemsize}").view(self.dtype)
            else:
                corners = np.array(self.FLOATS).astype(self.dtype)
        pairs = spread(corners, len(corners))
        out[: len(pairs)] = pairs[: len(out)]
        return out.reshape(self.shape)

    @staticmethod
    def rounded(x: Array, to: Any, how: str) -> Array:
        """Exact doubles, rounded to a narrower float as `.rz`, `.rm` or `.rp` says."""
        near = x.astype(to)
        back = near.astype(np.float64)
        below, above = np.nextafter(near, to(-np.inf)), np.nextafter(near, to(np.inf))
        down, up = np.where(back > x, below, near), np.where(back < x, above, near)
        return {"rm": down, "rp": up, "rz": np.where(x < 0, up, down)}[how]

    @staticmethod
    def fused(a: Array, b: Array, c: Array, how: str) -> Array:
        """a·b + c of f32, rounded once; the numbers are finite."""

        def one(x: float, y: float, z: float) -> np.float32:
            exact = fractions.Fraction(x) * fractions.Fraction(y) + fractions.Fraction(z)
            near = np.float32(float(exact))
            around = [near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))]
            wanted = {
                "rn": around,
                "rz": [v for v in around if abs(fractions.Fraction(float(v))) <= abs(exact)],
                "rp": [v for v in around if fractions.Fraction(float(v)) >= exact],
            }[how]
            # Of two that are as near, the even one.
            return min(wanted, key=lambda v: (abs(fractions.Fraction(float(v)) - exact), int(v.view(np.uint32)) & 1))

        finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
        fused = np.frompyfunc(lambda x, y, z, f: one(float(x), float(y), float(z)) if f else x * y + z, 4, 1)
        return np.asarray(fused(a, b, c, finite)).astype(np.float32)

    @staticmethod
    def flushed(x: Array) -> Array:
        """Subnormal numbers as zeros of their sign."""
        return np.where(np.abs(x) < np.finfo(x.dtype).tiny, np.copysign(x.dtype.type(0), x), x)

    @staticmethod
    def least(x: Array, y: Array) -> Array:
        """The lesser; -0 is below +0."""
        return np.where((x < y) | (x == y) & np.signbit(x), x, y)

    @staticmethod
    def tf32(x: Array) -> Array:
        """Nearest number of ten bits, ties away from zero."""
        return (x.view(np.uint32) + np.uint32(0x1000) & np.uint32(0xFFFFE000)).view(np.float32)

    @staticmethod
    def mma_a(x: Array) -> Array:
        """A of `mma`, `[warps, rows, columns]`, as threads have it: `[threads, registers, elements of one]`."""
        threads, registers, each = x.shape
        halves = min(registers, 2)
        lanes = x.reshape(-1, 8, 4, registers // halves, halves, each)
        return lanes.transpose(0, 4, 1, 3, 2, 5).reshape(threads // 32, 8 * halves, -1)

    @staticmethod
    def mma_b(x: Array) -> Array:
        """The same of B, transposed."""
        threads, registers, each = x.shape
        return x.reshape(-1, 8, 4, registers, each).transpose(0, 1, 3, 2, 4).reshape(threads // 32, 8, -1)

    @staticmethod
    def mma_d(x: Array) -> Array:
        """What threads have of D: `[threads, registers]`."""
        warps, rows, _ = x.shape
        return x.reshape(warps, -1, 8, 4, 2).transpose(0, 2, 3, 1, 4).reshape(32 * warps, rows // 4)

    @classmethod
    def integer_products(cls, a: Array, b: Array, c: Array, bits: int) -> Array:
        """`mma` of threads' bytes of A and B: all mixtures of signs, each wrapped and then clamped."""

        def numbers(m: Array, signed: bool) -> Array:
            parts = [m] if bits == 8 else [m & 15, m >> 4]
            x = np.stack(parts, -1).reshape(*m.shape[:2], -1).astype(np.int64)
            sign = signed << bits - 1
            return (x ^ sign) - sign

        a, b = cls.mma_a(a), cls.mma_b(b)
        signs = [True, False]
        products = [numbers(a, x) @ numbers(b, y).transpose(0, 2, 1) for x in signs for y in signs]
        sums = [c.astype(np.int64) + cls.mma_d(p) for p in products]
        return np.hstack([v for s in sums for v in (s, np.clip(s, -(2**31), 2**31 - 1))])

    @staticmethod
    def pair(high: Array, low: Array) -> Array:
        """Two halves as words."""
        return high.view(np.uint16).astype(np.uint32) << 16 | low.view(np.uint16)

    @staticmethod
    def permuted(a: Array, b: Array, selector: Array) -> list[Array]:
        """`prmt` in all its modes, from its tables in the PTX ISA."""
        both = np.stack([a, b], 1).view(np.uint8).astype(np.uint32)  # little end first
        low = selector[:, None] & 3
        i = np.arange(4, dtype=np.uint32)
        nibbles = selector[:, None] >> 4 * i & 15
        picked = np.take_along_axis(both, nibbles & 7, 1)
        picks = [
            (low + i) % 8,
            (low - i) % 8,
            low + 0 * i,
            np.maximum(low, i),
            np.minimum(low, i),
            (low & 1) * 2 + i % 2,
        ]
        plain = np.where(nibbles & 8, (picked >> 7) * 255, picked)
        parts = [plain, *(np.take_along_axis(both, p.astype(np.int64), 1) for p in picks)]
        return [(part << 8 * i).sum(1).astype(np.uint32) for part in parts]

    @staticmethod
    def collatz(n: int) -> tuple[int, int]:
        """Steps of 3n + 1 until 1, and the highest number on the way."""
        steps, highest = 0, n
        while n > 1:
            n = 3 * n + 1 if n % 2 else n // 2
            steps, highest = steps + 1, max(highest, n)
        return steps, highest

    @staticmethod
    def swizzled(tile: Array, span: int) -> Array:
        """The bytes of a tile in shared memory, each row `span` bytes (16: no swizzle): 16-byte chunks change places."""
        flat = np.ascontiguousarray(tile).view(np.uint8).reshape(-1)
        at = np.arange(flat.size)
        to = at ^ ((at >> 7 & (span // 16 - 1)) << 4)
        out = np.empty_like(flat)
        out[to] = flat
        return out.view(tile.dtype)


def evaluate(expression: str, buffers: dict[str, Array], scope: Scope, where: str) -> Any:
    functions = {name: getattr(scope, name) for name in dir(scope) if not name.startswith("_")}
    try:
        with np.errstate(all="ignore"):
            return eval(expression, {"np": np, **TYPES, **functions, **buffers})
    except Exception as e:
        raise ValueError(f"{where}: {expression}: {e}") from e


# ------------------------------------------------------------------------------------------ reading


def load_all() -> dict[str, FileTest]:
    """The files of kind `run`."""
    found = (read(path) for path in sorted(DIRECTORY.glob("*.ptx")))
    return {test.name: test for test in found if test is not None}


def read(path: pathlib.Path) -> FileTest | None:
    head, ptx = path.read_text().split("\n\n", 1)
    joined = re.sub(r"\n//  +", " ", head)
    lines = [line.removeprefix("// ") for line in joined.splitlines()]
    keys = [(m[1], m[2] or "", m[3]) for line in lines if (m := re.fullmatch(r"(\w+)(?: ([^:. ]+(?: within [^: ]+)?))?: (.*)", line))]
    values = {key: text for key, _, text in keys}
    if "run" not in re.split(r",\s*", values["test"]):
        return None
    if unknown := [key for key, _, _ in keys if key not in ("test", "launch", "buffer", "map", "params", "expect")]:
        raise ValueError(f"{path.name}: the header's `{unknown[0]}` is not understood")
    buffers = tuple(_buffer(name, text) for key, name, text in keys if key == "buffer")
    maps = {name: text for key, name, text in keys if key == "map"}
    if found := re.match(r"// smalt\.launch (\{.*\})\n", ptx):
        launch = json.loads(found[1])
    else:
        launch = _launch(values.get("launch", ""), values.get("params"), ptx, buffers, maps)
    test = FileTest(path.stem, ptx, launch, buffers, tuple(_expectation(name, text) for key, name, text in keys if key == "expect"))
    expected, written = {e.buffer for e in test.expectations}, {b.name for b in buffers if b.role != "input"}
    if expected != written:
        raise ValueError(f"{path.name}: expected: a line `expect` for each of {sorted(written)}; got: for {sorted(expected)}")
    return test


def _buffer(name: str, text: str) -> Buffer:
    found = re.fullmatch(r"(input|output|mutable) (\w+)\[([\d, ]*)\](?: = (.*))?", text)
    if not found or found[2] not in TYPES:
        raise ValueError(f"buffer {name}: expected: `input f32[4, 8] = normal()` or the like; got: {text}")
    if found[1] == "output" and found[4]:
        raise ValueError(f"buffer {name}: what is in an output before the launch is not passed on; make it mutable")
    return Buffer(name, found[1], found[2], tuple(int(n) for n in found[3].split(",") if n.strip()), found[4] or "")


def _expectation(name: str, text: str) -> Expectation:
    buffer, _, tolerance = name.partition(" within ")
    return Expectation(buffer, None if text == "as emulated" else text, float(tolerance or 0))


def _numbers(text: str, key: str) -> list[int]:
    found = re.search(rf"{re.escape(key)}((?:[ ,]+\d+)+)", text)
    return [int(n) for n in re.findall(r"\d+", found[1])] if found else []


def _launch(text: str, params: str | None, ptx: str, buffers: tuple[Buffer, ...], maps: dict[str, str]) -> dict[str, Any]:
    names = [b.name for b in buffers]
    entry = re.search(r"\.visible \.entry (\w+)\(", ptx)
    assert entry, "no entry"
    passed = [name.strip() for name in params.split(",")] if params is not None else names
    return {
        "entry": entry[1],
        "grid": [*_numbers(text, "grid"), 1, 1, 1][:3],
        "cluster": _numbers(ptx, ".reqnctapercluster") or [1, 1, 1],
        "block": _numbers(ptx, ".maxntid")[0],
        "smem_bytes": (_numbers(text, "smem") or [0])[0],
        "params": [_map(maps[p], buffers) if p in maps else {"Pointer": {"buffer": names.index(p)}} for p in passed],
        "scratch": [],
        "uses_programmatic_launch": False,
    }


def _map(text: str, buffers: tuple[Buffer, ...]) -> dict[str, Any]:
    name = text.split(",")[0]
    number, buffer = next((i, b) for i, b in enumerate(buffers) if b.name == name)
    strides = [int(np.prod(buffer.shape[d:])) * buffer.dtype.itemsize for d in range(1, len(buffer.shape))]
    span = _numbers(text, "swizzle")
    return {
        "TensorMap": {
            "buffer": number,
            "byte_offset": 0,
            "element": _MAP_ELEMENTS.get(buffer.type, buffer.type.upper()),
            "dims": list(buffer.shape[::-1]),
            "strides": strides[::-1],
            "box_dims": _numbers(text, "box")[::-1],
            "swizzle": f"B{span[0]}" if span else "None",
        }
    }
