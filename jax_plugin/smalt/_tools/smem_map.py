"""`smalt.draw_smem`: at which offset and in which bank each element of a buffer in shared memory lies."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from smalt import _native
from smalt._tools.drawing import Cell, drawing, dtype_name, extent, flat, in_notebook, invalid, middle_out, shown_cells

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
        return self._offsets[flat(index, self.shape)] // 8

    def bit(self, *index: int) -> int:
        """The bit of that byte in which it begins: 0 but for elements of less than a byte."""
        return self._offsets[flat(index, self.shape)] % 8

    def bank(self, *index: int) -> int:
        """The first bank that has a part of it: of 32, each of 4 bytes."""
        return self.offset(*index) // _BANK_BYTES % _BANKS

    def _chunk(self) -> int:
        """Elements of 16 bytes, which no swizzle splits."""
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
            for r, c in shown_cells(rows, columns):
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
        tables = []
        for title, rows, columns, places in self._tables() if self._offsets else []:
            cells = {at: Cell(f"{byte}:{bank}", 360 * bank // _BANKS, 80) for at, (byte, bank) in places.items()}
            tables.append((title, rows, columns, cells))
        return drawing(self._summary(), tables)

    def _repr_html_(self) -> str:
        return in_notebook(self.svg())


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
