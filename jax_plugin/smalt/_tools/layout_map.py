"""`smalt.draw_layout`: which warp, lane and register holds which element of an array."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from smalt import _messages, _native, _versions
from smalt._errors import InvalidArgument
from smalt._messages import message
from smalt._tools.drawing import Cell, drawing, dtype_name, extent, flat, in_notebook, invalid, middle_out, shown_cells

#: What a text or a drawing shows of the repeating unit: more rows, columns or tables than that are left out in the middle.
_ROWS, _COLUMNS, _TABLES = 64, 16, 4
_DRAWN_ROWS, _DRAWN_COLUMNS = 128, 64


class Owner(NamedTuple):
    """Where an element is. Warps are counted in their warpgroup; registers among those of the thread that hold the array."""

    warp: int
    lane: int
    register: int


class LayoutMap:
    """Where each element of an array is. `print` shows a table, notebooks a drawing.

    Elements of fewer than 32 bits share a register, the first in its low bits. A register of a 64-bit type has 64 bits; a bool is a
    predicate.

    Attributes:
        name: The layout's name among `plgpu.Layout`, if it has one there.
        text: Its digits: each dimension as a number with digits in lanes, warps and registers (slots), major digit first.
        shape: The array's.
        warps: Of the group that holds the array: 4 of a warpgroup.
        registers: Of each thread.
        elements_per_register: 2 for 16-bit types.
        copies: How many threads hold each element.
        unit: The extents of the part of the array that repeats: behind it, only registers change.
    """

    def __init__(self, found: dict[str, Any]) -> None:
        self.name: str | None = found["name"]
        self.text: str = found["text"]
        self.shape: tuple[int, ...] = tuple(found["shape"])
        self.warps: int = found["warps"]
        self.elements_per_register: int = found["per_register"]
        self.registers: int = -(-found["slots"] // self.elements_per_register)
        self.unit: tuple[int, ...] = tuple(found["unit"])
        self._slots: int = found["slots"]
        self._owners: list[int] = found["owners"]
        self._copies: list[int] = found["copies"]
        self._repeats: list[list[tuple[int, int]]] = [[(n, step) for n, step in dim] for dim in found["repeats"]]
        self._padded: bool = found["padded"]

    @property
    def copies(self) -> int:
        return len(self._copies)

    def owner(self, *index: int) -> list[Owner]:
        """The places of one element, in the order of threads: several, if several threads hold it."""
        return self._places(flat(index, self.shape))

    def _places(self, at: int) -> list[Owner]:
        thread, slot = divmod(self._owners[at], self._slots)
        register = slot // self.elements_per_register
        return [Owner((thread | copy) // 32, (thread | copy) % 32, register) for copy in self._copies]

    def elements(self, warp: int, lane: int, register: int | None = None) -> list[tuple[int, ...]]:
        """The indices of what a thread holds, or one of its registers: in the order of registers, low bits first.

        Where one register stands for many elements that are equal (of a splat), all of them.
        """
        if not (0 <= warp < self.warps and 0 <= lane < 32):
            raise IndexError(f"warp {warp}, lane {lane} of {self.warps} warps of 32 lanes")
        first, last = 0, self._slots
        if register is not None:
            if not 0 <= register < self.registers:
                raise IndexError(f"register {register} of {self.registers}")
            first = register * self.elements_per_register
            last = first + self.elements_per_register
        held = self._held.get((32 * warp + lane) & ~self._copies[-1], [])
        return [self._index(at) for slot, at in held if first <= slot < last]

    @functools.cached_property
    def _held(self) -> dict[int, list[tuple[int, int]]]:
        held: dict[int, list[tuple[int, int]]] = {}
        for at, owner in enumerate(self._owners):
            thread, slot = divmod(owner, self._slots)
            held.setdefault(thread, []).append((slot, at))
        for places in held.values():
            places.sort()
        return held

    def _index(self, at: int) -> tuple[int, ...]:
        index = []
        for n in reversed(self.shape):
            at, i = divmod(at, n)
            index.append(i)
        return tuple(reversed(index))

    # ------------------------------------------------------------------------------------------ in words

    def _summary(self) -> list[str]:
        name = f"{self.name}: " if self.name else ""
        shape = ", ".join(map(str, self.shape))
        lines = [f"{name}[{shape}] in {self.warps} warp{'s' * (self.warps != 1)}, {_count(self.registers, 'register')} a thread"]
        if self.elements_per_register > 1:
            lines[0] += f" of {self.elements_per_register} elements each"
        if self.copies > 1:
            lines.append(f"each element is in {self.copies} threads")
        if self._padded:
            lines.append("padded: some registers of some threads hold no element")
        for dim, (unit, repeats) in enumerate(zip(self.unit, self._repeats)):
            extent = unit
            for count, step in repeats:
                if extent < self.shape[dim] and count > 1:
                    change = f"register + {step // self.elements_per_register}" if step else "the same registers"
                    lines.append(f"every {extent} along dimension {dim}: {change}")
                extent *= count
        return lines

    def _tables(self, most: int) -> Iterator[tuple[str, list[int], list[int], int]]:
        """Parts of the unit, as matrices: title, rows, columns, the flat position of its first element."""
        unit = (1, 1, *self.unit)
        strides = [math.prod(self.shape[d + 1 :]) for d in range(len(self.shape))]
        leading = [range(n) for n in unit[2:-2]] if len(self.unit) > 2 else []
        for index in itertools.islice(itertools.product(*leading), most):
            title = f"[{', '.join(map(str, index))}, …]" if index else ""
            yield title, list(range(unit[-2])), list(range(unit[-1])), sum(i * s for i, s in zip(index, strides))

    def _label(self, at: int) -> tuple[str, str]:
        """Warps, and `lane:register`, of an element."""
        places = self._places(at)
        warps = _ranges(sorted({p.warp for p in places}), self.warps)
        lanes = _ranges(sorted({p.lane for p in places}), 32)
        return warps, f"{lanes}:{places[0].register}"

    def __str__(self) -> str:
        lines = self._summary()
        if not self._owners:
            return "\n".join([*lines, "no elements"])
        lines.append("lane:register of each element" + (" of the part that repeats" if self.unit != self.shape else ""))
        tables = list(self._tables(_TABLES))
        for title, rows, columns, start in tables:
            lines += ["", *([title] if title else []), *self._table(rows, columns, start)]
        more = math.prod(self.unit[:-2]) - len(tables)
        if more > 0:
            lines += ["", f"… {more} more"]
        return "\n".join(lines)

    __repr__ = __str__

    def _table(self, rows: Sequence[int], columns: Sequence[int], start: int) -> list[str]:
        width = self.shape[-1] if self.shape else 1
        shown_rows, shown = middle_out(rows, _ROWS), middle_out(columns, _COLUMNS)
        of = {(r, c): self._label(start + r * width + c) for r, c in shown_cells(shown_rows, shown)}
        # The warp stands before its row, if it is one for each row.
        by_row = all(len({of[r, c][0] for c in shown if c is not None}) == 1 for r in shown_rows if r is not None)
        head = ["", ""] + ["…" if c is None else str(c) for c in shown]
        body = []
        for r in shown_rows:
            if r is None:
                body.append(["", "…"] + ["" for _ in shown])
                continue
            first = of[r, columns[0]][0]
            cells = ["…" if c is None else of[r, c][1] if by_row else "/".join(of[r, c]) for c in shown]
            body.append([f"warp {first}" if by_row else "warp/lane:register", str(r), *cells])
        widths = [max(len(row[i]) for row in (head, *body)) for i in range(len(head))]
        lines, last = [], None
        for row in (head, *body):
            cells = [row[0].ljust(widths[0]) if row[0] != last else " " * widths[0]]
            last = row[0] or last
            cells += [cell.rjust(w) for cell, w in zip(row[1:], widths[1:])]
            lines.append("  ".join(cells).rstrip())
        return lines

    # ------------------------------------------------------------------------------------------ as a drawing

    def svg(self, color: str = "warp") -> str:
        """A drawing of the part that repeats, `lane:register` in each cell; coloured by "warp" or "lane"."""
        if color not in ("warp", "lane"):
            raise InvalidArgument(f"smalt: `color` of a drawing\n  expected: 'warp' or 'lane'\n  got: {color!r}\n  remedy: leave it out")
        width = self.shape[-1] if self.shape else 1
        tables = []
        for title, rows, columns, start in self._tables(_TABLES if self._owners else 0):
            shown = middle_out(rows, _DRAWN_ROWS), middle_out(columns, _DRAWN_COLUMNS)
            cells = {(r, c): self._cell(start + r * width + c, color) for r, c in shown_cells(*shown)}
            tables.append((title, *shown, cells))
        return drawing(self._summary(), tables)

    def _cell(self, at: int, color: str) -> Cell:
        place = self._places(at)[0]
        warps, label = self._label(at)
        hue = 360 * place.warp // self.warps if color == "warp" else 360 * place.lane // 32
        light = 78 + (place.lane % 8 if color == "warp" else 4 * (place.warp % 4))
        return Cell(label, hue, light, f"[{', '.join(map(str, self._index(at)))}]: warp {warps}, lane:register {label}")

    def _repr_html_(self) -> str:
        return in_notebook(self.svg())


def draw_layout(layout: Any, shape: Sequence[int] | int | None = None, dtype: Any = None) -> LayoutMap:
    """Which warp, lane and register holds which element of an array.

        print(smalt.draw_layout(plgpu.Layout.WGMMA, (64, 16)))
        smalt.draw_layout(plgpu.Layout.WGMMA.reduce(1)).owner(17)
        smalt.draw_layout(smalt.inspect(f, x)[0].layouts[0])

    Args:
        layout: What `plgpu.layout_cast` takes: a member of `plgpu.Layout`, one called with its arguments, or one that is reduced; a
            layout of Mosaic GPU; a name such as "WGMMA_ROW"; or a layout that a report of `smalt.inspect` names, which has shape and
            type.
        shape: The array's. Without it the layout's own, or its tile.
        dtype: The array's. Types of fewer than 32 bits share registers; without it, an element has a register for itself.

    Raises:
        InvalidKernel: If there is no such layout, or none for arrays of this shape.
    """
    name = None if dtype is None else dtype_name(dtype)
    shape = (shape,) if isinstance(shape, int) else shape
    if hasattr(layout, "from_digits"):
        digits = layout.digits
        if digits is None:
            raise invalid("the layout of a report", "one of registers", f"{layout.what}: {layout.choice}", "draw another row")
        if shape is not None and tuple(shape) != tuple(digits["shape"]):
            raise invalid("the layout of a report", f"its shape, {digits['shape']}", f"{list(shape)}", "leave out the shape")
        return LayoutMap(_native.layout_map({"digits": digits}, None, name or layout.dtype))
    if isinstance(layout, str):
        encoded = message("Layout", name=layout, named=layout)
    elif _versions.layout_kind(layout) == "unknown":
        expected = "a member of plgpu.Layout, called or reduced or as it is, its name, or a layout that a report of smalt.inspect names"
        raise invalid("a layout to draw", expected, repr(layout), "smalt.draw_layout(plgpu.Layout.WGMMA, (64, 64))")
    else:
        encoded = _messages.layout(layout)
    dims = None if shape is None else [extent(n) for n in shape]
    return LayoutMap(_native.layout_map({"message": list(encoded)}, dims, name))


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def _ranges(numbers: Sequence[int], all_of: int) -> str:
    """`0-3,8`; `0,4..28`; `*` for all."""
    if len(numbers) == all_of and all_of > 1:
        return "*"
    steps = {b - a for a, b in itertools.pairwise(numbers)}
    if len(numbers) > 3 and len(steps) == 1 and steps != {1}:
        return f"{numbers[0]},{numbers[1]}..{numbers[-1]}"
    parts: list[list[int]] = []
    for n in numbers:
        if parts and parts[-1][-1] == n - 1:
            parts[-1].append(n)
        else:
            parts.append([n])
    return ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)
