"""`smalt.draw_smem`: at which offset and in which bank each element of a buffer in shared memory lies."""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Sequence
from typing import Any

from smalt import _native
from smalt._draw_layout import dtype_name, extent, invalid, middle_out

#: What is shown at most: more rows, chunks or tables are left out in the middle.
_ROWS, _CHUNKS, _TABLES = 64, 16, 4
_BANKS, _BANK_BYTES = 32, 4


class SmemMap:
    """Where each element of a buffer in shared memory lies. `print` shows a table, notebooks a drawing.

    Offsets are from the buffer's start, which smalt aligns to 1024 bytes where it is swizzled; banks are those of a buffer at offset 0.

    Attributes:
        type: Element type and shape.
        shape: The buffer's, before it is tiled.
        bytes: Its extent.
        unit: The extents of the part that repeats: behind it, offsets grow by a constant.
    """

    def __init__(self, shape: Sequence[int], found: dict[str, Any]) -> None:
        self.type: str = found["type"]
        self.shape: tuple[int, ...] = tuple(shape)
        self.unit: tuple[int, ...] = tuple(found["unit"])
        self._bits: int = found["bits"]
        self._steps: list[int] = found["steps"]
        self._offsets: list[int] = found["offsets"]
        self.bytes: int = -(-len(self._offsets) * self._bits // 8)

    def offset(self, *index: int) -> int:
        """The byte in which an element begins."""
        return self._offsets[self._at(index)] // 8

    def bit(self, *index: int) -> int:
        """The bit of that byte in which it begins: 0 but for elements of less than a byte."""
        return self._offsets[self._at(index)] % 8

    def bank(self, *index: int) -> int:
        """The first bank that has a part of it: of 32, each of 4 bytes."""
        return self.offset(*index) // _BANK_BYTES % _BANKS

    def _at(self, index: Sequence[int]) -> int:
        if len(index) != len(self.shape) or not all(-n <= i < n for i, n in zip(index, self.shape)):
            raise IndexError(f"index {tuple(index)} of a buffer of shape {self.shape}")
        at = 0
        for i, n in zip(index, self.shape):
            at = at * n + i % n
        return at

    def _chunk(self) -> int:
        """Elements of 16 bytes, which no swizzle takes apart."""
        chunk = max(1, 128 // self._bits)
        return chunk if self.unit and self.unit[-1] % chunk == 0 else 1

    def _summary(self) -> list[str]:
        lines = [f"{self.type}: {self.bytes:,} bytes"]
        for dim, (unit, step) in enumerate(zip(self.unit, self._steps)):
            if step:
                lines.append(f"every {unit} along dimension {dim}: + {step:,} bytes")
        chunk = self._chunk()
        each = "each element" if chunk == 1 else f"the first of {chunk} elements, 16 bytes in a row"
        return [*lines, f"byte:bank of {each}" + (", of the part that repeats" if self.unit != self.shape else "")]

    def _tables(self) -> list[tuple[str, list[int | None], list[int | None], dict[tuple[int, int], tuple[int, int]]]]:
        """Parts of the unit: title, rows, columns, and byte and bank of each."""
        unit = (1, 1, *self.unit)
        width = self.shape[-1] if self.shape else 1
        tables = []
        for leading in itertools.islice(itertools.product(*map(range, unit[2:-2])), _TABLES):
            start = sum(i * math.prod(self.shape[d + 1 :]) for d, i in enumerate(leading))
            rows = middle_out(range(unit[-2]), _ROWS)
            columns = middle_out(range(0, unit[-1], self._chunk()), _CHUNKS)
            cells = {}
            for r, c in itertools.product(rows, columns):
                if r is not None and c is not None:
                    byte = self._offsets[start + r * width + c] // 8
                    cells[r, c] = byte, byte // _BANK_BYTES % _BANKS
            tables.append((f"[{', '.join(map(str, leading))}, …]" if leading else "", rows, columns, cells))
        return tables

    def __str__(self) -> str:
        lines = self._summary()
        if not self._offsets:
            return "\n".join([*lines[:1], "no elements"])
        for title, rows, columns, cells in self._tables():
            lines += ["", *([title] if title else [])]
            table = [["", *("…" if c is None else str(c) for c in columns)]]
            for r in rows:
                row = ["…"] + [""] * len(columns) if r is None else [str(r)]
                if r is not None:
                    row += ["…" if c is None else f"{cells[r, c][0]}:{cells[r, c][1]}" for c in columns]
                table.append(row)
            widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
            lines += ["  ".join(cell.rjust(w) for cell, w in zip(row, widths)).rstrip() for row in table]
        more = math.prod(self.unit[:-2]) - _TABLES
        return "\n".join([*lines, "", f"… {more} more"] if more > 0 else lines)

    __repr__ = __str__

    def svg(self) -> str:
        """A drawing of the part that repeats, `byte:bank` in each cell, coloured by bank."""
        wide, high, left, y, parts = 66, 22, 44, 0, []
        text = 'font-family="monospace" font-size="11" fill="#222"'
        for words in self._summary():
            y += 18
            parts.append(f'<text x="4" y="{y}" {text}>{html.escape(words)}</text>')
        right = left + 8 * max(map(len, self._summary()))
        for title, rows, columns, cells in self._tables() if self._offsets else []:
            y += 20
            parts.append(f'<text x="4" y="{y}" {text}>{html.escape(title)}</text>')
            for k, c in enumerate(columns):
                x = left + k * wide + wide // 2
                parts.append(f'<text x="{x}" y="{y}" text-anchor="middle" {text}>{"…" if c is None else c}</text>')
            for r in rows:
                label = "…" if r is None else r
                parts.append(f'<text x="{left - 6}" y="{y + 19}" text-anchor="end" {text}>{label}</text>')
                for k, c in enumerate(columns):
                    if r is None or c is None:
                        continue
                    byte, bank = cells[r, c]
                    x, hue = left + k * wide, 360 * bank // _BANKS
                    parts.append(f'<rect x="{x}" y="{y + 4}" width="{wide}" height="{high}" fill="hsl({hue},70%,80%)" stroke="#fff"/>')
                    parts.append(f'<text x="{x + wide // 2}" y="{y + 19}" text-anchor="middle" {text}>{byte}:{bank}</text>')
                y += high
            right = max(right, left + len(columns) * wide + 4)
        size = f'width="{right}" height="{y + 12}" viewBox="0 0 {right} {y + 12}"'
        return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n' + "\n".join(parts) + "\n</svg>"

    def _repr_html_(self) -> str:
        return f'<div style="overflow:auto;max-height:40em">{self.svg()}</div>'


def draw_smem(shape: Sequence[int], dtype: Any, transforms: Sequence[Any] = ()) -> SmemMap:
    """At which offset and in which bank each element of a buffer in shared memory lies.

        print(smalt.draw_smem((64, 128), jnp.float16, (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))))

    Takes what `plgpu.SMEM` takes: the shape before it is tiled, the type, and transforms: a tiling, a swizzle, both or none.

    Raises:
        InvalidKernel: If there is no such buffer.
    """
    tiling: list[int] = []
    swizzle = 0
    for transform in transforms:
        match type(transform).__name__:
            case "TilingTransform" if not tiling and not swizzle:
                tiling = [int(n) for n in transform.tiling]
            case "SwizzleTransform" if not swizzle:
                swizzle = int(transform.swizzle)
            case _:
                expected = "a plgpu.TilingTransform, and behind it a plgpu.SwizzleTransform, or one of them"
                raise invalid("the transforms of a buffer to draw", expected, repr(transform), "the transforms of plgpu.SMEM")
    dims = [extent(n) for n in shape]
    return SmemMap(dims, _native.smem_map(dims, dtype_name(dtype), tiling, swizzle))
