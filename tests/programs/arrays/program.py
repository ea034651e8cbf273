"""A program: where it runs, its references, and its steps, which are data: they can be printed, dropped and replaced.

A value is a number; a step names the values that it takes and those that it gives. Loops and branches are steps with blocks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Val:
    """A value's type and what is known of its numbers.

    Attributes:
        bound: What no element exceeds in magnitude; None: anything that the type has.
        state: "whole" (integers of any type, exact under + and * while they are small), "bits" (any bits, which may only be moved,
            compared and ordered: roundings and NaN), "near" (right up to a tolerance; may only be moved).
    """

    id: int
    shape: Shape
    dtype: str
    bound: float | None = None
    state: str = "whole"

    def __str__(self) -> str:
        mark = {"whole": "", "bits": "~", "near": "≈", "end": "≈"}[self.state]
        return f"v{self.id}{mark}: {self.dtype}{list(self.shape)}"


@dataclasses.dataclass(frozen=True)
class Block:
    """What a loop or an arm of a branch runs. Values of the blocks around it are seen from within."""

    params: tuple[Val, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Step:
    """`kind` is a function of `steps.py`, a loop or branch, or an access to a reference (`emit.py`)."""

    kind: str
    args: tuple[int, ...]
    params: tuple[tuple[str, Any], ...] = ()
    outs: tuple[Val, ...] = ()
    blocks: tuple[Block, ...] = ()

    @property
    def named(self) -> dict[str, Any]:
        return dict(self.params)

    def but(self, **changes: Any) -> Step:
        return dataclasses.replace(self, **changes)

    def __str__(self) -> str:
        params = [f"{k}={v}" for k, v in self.params]
        left = ", ".join(map(str, self.outs))
        return f"{left}{' = ' if left else ''}{self.kind}({', '.join([*(f'v{a}' for a in self.args), *params])})"


@dataclasses.dataclass(frozen=True)
class Ref:
    """A reference as the body sees it: of a `pl.pallas_call` a block, of a `plgpu.kernel` one warpgroup's part of an array.

    Attributes:
        domain: What numbers an input has (`run.py`).
        places: For `call`: of the array's dimensions in order (dimension of the block or -1, where it is squeezed; grid axis or -1).
        short: For `call`: by how much dimensions of the array are shorter than their blocks together (in the array's order).
        space: "", "smem" or "gmem"; of an input or output of a `call`: "gmem" has no copies.
    """

    name: str
    shape: Shape
    dtype: str
    domain: str = ""
    places: tuple[tuple[int, int], ...] = ()
    short: Shape = ()
    space: str = ""

    def array(self, grid: Shape) -> Shape:
        """The array's shape, for `call`."""
        sizes = []
        for k, (dim, axis) in enumerate(self.places):
            n = 1 if dim < 0 else self.shape[dim]
            sizes.append(n * (1 if axis < 0 else grid[axis]) - (self.short[k] if self.short else 0))
        return tuple(sizes)


@dataclasses.dataclass(frozen=True)
class Form:
    """`kernel`: a `plgpu.kernel` of `grid` blocks and warpgroups; `call`: a `pl.pallas_call` over `grid`.

    `handed`: a warpgroup's results are stored by the next one (`apart.py`). `by_warps`: each warp runs the steps for itself, in a warp region.
    """

    kind: str
    grid: Shape = ()
    warpgroups: int = 1
    semantics: tuple[str, ...] | None = None
    slots: int = 1
    handed: bool = False
    by_warps: bool = False

    @property
    def lead(self) -> Shape:
        """The leading dimensions of a kernel's arrays."""
        return (*self.grid, *self.own)

    @property
    def own(self) -> Shape:
        """The leading dimensions of what a block's warpgroups and warps have each for themselves."""
        return (*((self.warpgroups,) if self.warpgroups > 1 else ()), *((4,) if self.by_warps else ()))


@dataclasses.dataclass(frozen=True)
class Program:
    seed: int
    form: Form
    inputs: tuple[Ref, ...]
    scratch: tuple[Ref, ...]
    outputs: tuple[Ref, ...]
    steps: tuple[Step, ...]
    x64: bool = False
    tolerances: tuple[tuple[str, str, float], ...] = ()  # of outputs that are near: name, "each", or "norm" and the least norm, ulps

    def but(self, **changes: Any) -> Program:
        return dataclasses.replace(self, **changes)

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {self.form}{' x64' if self.x64 else ''}"]
        for what, refs in (("input", self.inputs), ("scratch", self.scratch), ("output", self.outputs)):
            for r in refs:
                more = f" {r.domain}{f' places {r.places}' if r.places else ''}{f' short {r.short}' if any(r.short) else ''} {r.space}"
                lines.append(f"  {what} {r.name}: {r.dtype}{list(r.shape)}{more}".rstrip())
        lines += _listed(self.steps, 1)
        return "\n".join(lines)


def _listed(steps: tuple[Step, ...], depth: int) -> Iterator[str]:
    indent = "  " * depth
    for s in steps:
        yield f"{indent}{s}"
        for b in s.blocks:
            yield f"{indent}  [{', '.join(map(str, b.params))}] ->"
            yield from _listed(b.steps, depth + 2)
            yield f"{indent}    yield {', '.join(f'v{r}' for r in b.results)}"


def walk(steps: tuple[Step, ...]) -> Iterator[Step]:
    for s in steps:
        yield s
        for b in s.blocks:
            yield from walk(b.steps)


def used(steps: tuple[Step, ...]) -> set[int]:
    """The values that anything takes."""
    return {a for s in walk(steps) for a in s.args} | {r for s in walk(steps) for b in s.blocks for r in b.results}


#: Steps that change memory: they stay though nobody takes what they give.
STORES = frozenset({"store", "accumulate"})


def live(steps: tuple[Step, ...], wanted: frozenset[int] | set[int] = frozenset()) -> tuple[Step, ...]:
    """Without what nothing depends on."""
    kept: list[Step] = []
    needed = set(wanted)
    for s in reversed(steps):
        has_effect = any(t.kind in STORES for t in walk((s,)))
        if not has_effect and not any(o.id in needed for o in s.outs):
            continue
        if s.blocks:
            blocks = tuple(dataclasses.replace(b, steps=live(b.steps, set(b.results))) for b in s.blocks)
            s = s.but(blocks=blocks)
        needed |= used((s,))
        kept.append(s)
    return tuple(reversed(kept))
