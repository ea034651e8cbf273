"""What drawings of arrays and buffers share: tables as SVG, and what is checked of their arguments."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from smalt import _messages
from smalt._errors import InvalidKernel

#: Pixels: a cell, a line of text, the numbers of rows.
_CELL, _LINE, _LEFT = (66, 22), 18, 44
_TEXT = 'font-family="monospace" font-size="11" fill="#222"'


class Cell(NamedTuple):
    """A cell's text, its colour (degrees, percent), and its tooltip."""

    label: str
    hue: int
    light: int
    tip: str = ""


#: Title, numbers of rows and columns (None: some are left out), and the cells.
Table = tuple[str, list[int | None], list[int | None], dict[tuple[int, int], Cell]]


def drawing(summary: Sequence[str], tables: Sequence[Table]) -> str:
    """Lines of text, and tables under them, as SVG."""
    parts: list[str] = []
    y = 0
    right = _LEFT + 8 * max(map(len, summary))
    for words in summary:
        y += _LINE
        parts.append(f'<text x="4" y="{y}" {_TEXT}>{html.escape(words)}</text>')
    for title, rows, columns, cells in tables:
        y += _LINE
        parts.append(f'<text x="4" y="{y}" {_TEXT}>{html.escape(title)}</text>')
        for k, c in enumerate(columns):
            x = _LEFT + k * _CELL[0] + _CELL[0] // 2
            parts.append(f'<text x="{x}" y="{y}" text-anchor="middle" {_TEXT}>{"…" if c is None else c}</text>')
        for r in rows:
            parts.append(f'<text x="{_LEFT - 6}" y="{y + 19}" text-anchor="end" {_TEXT}>{"…" if r is None else r}</text>')
            for k, c in enumerate(columns):
                if r is not None and c is not None:
                    parts += _drawn(cells[r, c], _LEFT + k * _CELL[0], y + 4)
            y += _CELL[1]
        right = max(right, _LEFT + len(columns) * _CELL[0] + 4)
    size = f'width="{right}" height="{y + 12}" viewBox="0 0 {right} {y + 12}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n' + "\n".join(parts) + "\n</svg>"


def _drawn(cell: Cell, x: int, y: int) -> list[str]:
    tip = f"<title>{html.escape(cell.tip)}</title>" if cell.tip else ""
    return [
        f'<rect x="{x}" y="{y}" width="{_CELL[0]}" height="{_CELL[1]}" fill="hsl({cell.hue},70%,{cell.light}%)" stroke="#fff">{tip}</rect>',
        f'<text x="{x + _CELL[0] // 2}" y="{y + 15}" text-anchor="middle" pointer-events="none" {_TEXT}>{cell.label}</text>',
    ]


def in_notebook(svg: str) -> str:
    return f'<div style="overflow:auto;max-height:40em">{svg}</div>'


def shown_cells(rows: Sequence[int | None], columns: Sequence[int | None]) -> Iterator[tuple[int, int]]:
    return ((r, c) for r in rows for c in columns if r is not None and c is not None)


def flat(index: Sequence[int], shape: Sequence[int]) -> int:
    """The position of an element in row-major order; negative indices count from the end."""
    if len(index) != len(shape) or not all(-n <= i < n for i, n in zip(index, shape)):
        raise IndexError(f"index {tuple(index)} of shape {tuple(shape)}")
    at = 0
    for i, n in zip(index, shape):
        at = at * n + i % n
    return at


def middle_out(values: Sequence[int], most: int) -> list[int | None]:
    """All of them, or `most` from both ends with None between."""
    if len(values) <= most:
        return list(values)
    first = most - most // 4
    return [*values[:first], None, *values[len(values) - (most - first) :]]


def extent(n: Any) -> int:
    if not hasattr(n, "__index__") or n.__index__() < 0:
        raise invalid("the shape of an array to draw", "numbers that are not negative", repr(n), "draw_layout(layout, (64, 64))")
    return int(n)


def dtype_name(dtype: Any) -> str:
    try:
        _messages.dtype(dtype)
        return str(np.dtype(dtype).name)
    except (TypeError, NotImplementedError):
        raise invalid("the type of an array to draw", "an element type, e.g. jnp.float16", repr(dtype), "leave it out") from None


def invalid(what: str, expected: str, got: str, remedy: str) -> InvalidKernel:
    return InvalidKernel(f"{what}\n  expected: {expected}\n  got: {got}\n  remedy: {remedy}")
