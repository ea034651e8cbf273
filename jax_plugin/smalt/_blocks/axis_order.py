"""Which grid axes of a `pl.pallas_call` run one step after the other.

A call means what its steps do in the grid's order, the last axis fastest, with scratch that lasts over all of them (JAX's interpreter,
TPUs). Steps along an axis may run at once if no two of them that differ there depend on each other. An axis *carries*, and runs in
order, where
* two steps write elements in common of an output;
* a step writes elements of an output that another one reads, through an operand that shares the output's buffer;
* two steps have elements in common of an input that a step stores to, and that one may load before it stores all of it;
* a step may load scratch before it has stored all of it, and another one may have stored what it loads: the one before, or any since
  the last one that stores all of it whatever happens. `@pl.when(pl.program_id(2) == 0)` around such a store keeps the outer axes independent;
* its size is traced.
Index maps are looked at point by point up to 65536 points, and beyond as far as they are affine; what is not known carries. An
axis that `vmap` added never does. Outputs and operands that stay in device memory as a whole (no block) are the kernel's own business, and
so are arrays that have nothing but atomics and other accesses whose order the author gives.

`dimension_semantics` "sequential" makes an axis run in order, "parallel" at once: a promise, which is an error where the opposite is
proved, and believed where the analysis only lacks a proof (indices from prefetched tables, conditions on data): with a warning where
scratch, or an input that is stored to, may be what a step loads of another one. A TPU's "parallel" is a hint: steps may be shared out
among cores, each of which runs its own in order. Where the opposite is proved the axis runs in order, with a warning.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from smalt import _messages, _versions
from smalt._blocks import flow
from smalt._blocks.blocks import Block, points
from smalt._errors import InvalidKernel, Unsupported

Points = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class Reason:
    """Why an axis carries."""

    what: str
    proved: bool


@dataclasses.dataclass(frozen=True)
class Axes:
    parallel: tuple[bool, ...]
    reasons: dict[int, Reason]  # of those that carry
    #: Promises that are believed, though a step may load what another one stored: of each axis where.
    doubts: dict[int, str]
    #: Hints that are not followed: of each axis why.
    broken: dict[int, str]
    #: Inputs that a step stores to and a later one finds so.
    kept: frozenset[int]
    #: Of each of these, and each output, what of its array its block touches at the grid's points (equal rows: elements in common), where that is known.
    touched: dict[int, Points | None]


def decide(
    blocks: Sequence[Block],
    mapping: Any,
    jaxpr: Any,
    uses: Mapping[int, flow.Use],
    semantics: Sequence[str] | None,
    hints: bool = False,
) -> Axes:
    """`uses`: of the body's references. `hints`: `semantics` is a TPU's."""
    grid = tuple(mapping.grid)
    rank = len(grid)
    own = [i for i in range(rank) if i not in mapping.vmapped_dims]
    semantics_of = _semantics_of_axes(semantics, own)
    reasons: dict[int, Reason] = {}

    def carry(axes: Iterable[int], what: str, proved: bool) -> None:
        for axis in axes:
            if grid[axis] != 1 and axis not in mapping.vmapped_dims and (axis not in reasons or proved and not reasons[axis].proved):
                reasons[axis] = Reason(what, proved)

    doubts: dict[int, str] = {}

    def carry_memory(axes: Iterable[int], name: str, proved: bool) -> None:
        axes = list(axes)
        carry(axes, f"a step {'loads' if proved else 'may load'} what another one stored in {name}", proved)
        doubts.update((axis, name) for axis in axes if axis in reasons and semantics_of.get(axis) == "parallel" and isinstance(grid[axis], int))

    touched: dict[int, Points | None] = {}
    again: dict[int, set[int]] = {}  # inputs that are stored to: the axes that revisit what is stored
    first = len(jaxpr.invars) - len(mapping.scratch_avals) - len(blocks)
    for block in blocks:
        if not block.is_output:
            use = uses[first + block.number]
            if block.alias is None and block.is_written and _is_unordered(uses, first, block):
                touched[block.number], again[block.number] = None, set(mapping.vmapped_dims) - block.axes
                continue
            if block.alias is None and block.is_written and (block.in_gmem or use.is_written and use.exposed.any()):
                touched[block.number], axes = _revisited(grid, block)
                again[block.number] = set(axes)
                for axis, exact in axes.items():
                    proved = exact and bool(use.carries.all() and use.stored.all())
                    carry_memory([axis], f"input {block.name}", proved)
            continue
        alias = None if block.alias is None else blocks[block.alias]
        if alias is not None and not alias.is_read:
            alias = None
        if _is_unordered(uses, first, block):
            continue
        if block.is_left_alone:
            if alias is not None and not alias.is_left_alone:
                carry(own, f"{alias.name} is read where {block.name}, which has no block, may be written", False)
            # The author chooses parts of it, so that steps have different ones. The whole of it all steps share.
            use = uses[first + block.number]
            if use.is_written and use.kinds == {flow.Kind.WHOLE}:
                carry(own, f"steps write all of {block.name}", False)
            if flow.Kind.WHOLE in use.kinds:
                found = _carried(use, [grid[a] if isinstance(grid[a], int) else flow.TRACED for a in own], True)
                carry_memory((own[a] for a in found), block.name, True)
                if alias is not None and flow.Kind.WHOLE in uses[first + alias.number].kinds:
                    carry_memory(own, f"{block.name}, whose buffer is {alias.name}'s", True)
            continue
        touched[block.number], axes = _shared(grid, block, [])
        for axis, proved in axes.items():
            carry([axis], f"steps write the same block of {block.name}", proved)
        if alias is not None:
            for axis, proved in _shared(grid, block, [alias])[1].items():
                carry([axis], f"{alias.name} is read where other steps write {block.name}, in the same buffer", proved)
    for at in sorted(set(range(first)) & uses.keys()):  # prefetched, of which the call has its own
        use = uses[at]
        if not use.is_written:
            continue
        name = _versions.argument_name(jaxpr, at, f"{at}")
        if mapping.vmapped_dims:
            raise Unsupported(
                f"not supported yet: pallas_call: a store to {name}, which is prefetched, under jax.vmap"
                f"\n  expected: prefetched arrays that are only read\n  got: a store to one that all elements have in common"
                "\n  remedy: copy it to scratch (pltpu.SMEM) in the first step and store there"
            )
        for proved in (True, False):
            found = _carried(use, [grid[a] if isinstance(grid[a], int) else flow.TRACED for a in own], proved)
            carry_memory((own[a] for a in found), f"prefetched {name}", proved)
    for at, aval in enumerate(mapping.scratch_avals, len(jaxpr.invars) - len(mapping.scratch_avals)):
        if at not in uses or not _lasts(aval):
            if _versions.is_semaphore_of_tpu(aval) and not _messages.is_semaphore_of_copies(aval):
                carry(own, "a step may wait for what another one signals", False)
            continue
        name = _versions.argument_name(jaxpr, at, f"{at - len(jaxpr.invars) + len(mapping.scratch_avals)}")
        for proved in (True, False):
            found = _carried(uses[at], [grid[a] if isinstance(grid[a], int) else flow.TRACED for a in own], proved)
            carry_memory((own[a] for a in found), f"scratch {name}", proved)
    parallel, broken = [], {}
    for axis, n in enumerate(grid):
        declared, reason = semantics_of.get(axis), reasons.get(axis)
        if hints and declared == "parallel" and reason is not None and reason.proved:
            broken[own.index(axis)], declared = reason.what, None
        if declared == "parallel" and reason is not None and reason.proved:
            raise InvalidKernel(
                f"steps of a parallel grid axis that depend on each other: {reason.what}"
                f"\n  expected: axis {own.index(axis)} to run sequentially, or steps along it that have nothing to do with each other"
                f'\n  got: dimension_semantics "parallel" for an axis of {f"{n} steps" if isinstance(n, int) else "a traced size"}'
                f'\n  remedy: dimension_semantics "sequential" for axis {own.index(axis)} (or none: it is chosen then)'
            )
        if not isinstance(n, int):
            reasons.setdefault(axis, Reason("its size is traced", True))
        elif declared == "sequential":
            reasons.setdefault(axis, Reason("dimension_semantics says so", True))
        elif declared == "parallel":
            reasons.pop(axis, None)
        parallel.append(axis not in reasons)
    kept = frozenset(n for n, axes in again.items() if blocks[n].in_gmem or any(not parallel[a] for a in axes))
    for number in kept:
        if shared := again[number] & set(mapping.vmapped_dims):
            raise Unsupported(
                f"not supported yet: pallas_call: a store to {blocks[number].name}, an input that the elements of a jax.vmap have in common"
                "\n  expected: an input with an element for each"
                f"\n  got: one for all {math.prod(grid[a] for a in shared)}, which steps find as others left it"
                "\n  remedy: map it too (in_axes=0, of jnp.broadcast_to), or copy it to scratch and store there"
            )
    believed = {own.index(axis): name for axis, name in doubts.items() if own.index(axis) not in broken}
    return Axes(tuple(parallel), reasons, believed, broken, kept, touched)


def _is_unordered(uses: Mapping[int, flow.Use], first: int, block: Block) -> bool:
    """Whether all accesses to a block's memory are atomics, and others whose order the author gives."""
    kinds = [uses[first + n].kinds for n in (block.number, block.alias) if n is not None]
    return set().union(*kinds) == {flow.Kind.UNORDERED}


def warn_of_doubts(jaxpr: Any, axes: Axes) -> None:
    for axis, what in axes.broken.items():
        flow.warn_at(
            jaxpr,
            f"smalt: a parallel grid axis whose steps depend on each other, which runs in order: {what}"
            f"\n  expected: steps along axis {axis} that have nothing to do with each other, which run at once"
            f'\n  got: dimension_semantics "parallel" for axis {axis}, as on a TPU, whose cores run their steps in order'
            f'\n  remedy: if it is too slow so, scratch in place of what steps have in common; "arbitrary" for axis {axis} says that it is meant',
        )
    for axis, name in axes.doubts.items():
        flow.warn_at(
            jaxpr,
            f"smalt: a parallel grid axis whose steps may depend on each other: a step may load what another one stored in {name}"
            f"\n  expected: all of it to be stored before it is loaded, in each step along axis {axis}"
            f'\n  got: dimension_semantics "parallel" for axis {axis}, which is believed: steps that run at once find nothing of what others stored'
            f'\n  remedy: dimension_semantics "sequential" for axis {axis} (or none: it is chosen then), or store to all of it first',
        )


def _lasts(aval: Any) -> bool:
    """Whether scratch holds numbers of one step for another one: barriers do not, and an accumulator begins at 0 in each block of the grid."""
    return not _versions.is_accumulator_aval(aval) and _messages.is_dtype(aval.inner_aval.dtype)


#: What `dimension_semantics` mean, a TPU's included: "arbitrary" promises nothing.
_MEANING: dict[str, str | None] = {
    "parallel": "parallel", "core_parallel": "parallel", "subcore_parallel": "parallel", "sequential": "sequential", "arbitrary": None,
}


def _semantics_of_axes(semantics: Any, own: Sequence[int]) -> dict[int, str]:
    if semantics is None:
        return {}
    remedy = '\n  remedy: name each axis "parallel" or "sequential", or leave it out: it is chosen then'
    if semantics and all(isinstance(s, str) and len(s) == 1 for s in semantics):  # one word, of which JAX makes letters
        semantics = "".join(semantics)
    if isinstance(semantics, str) or len(semantics) != len(own):
        raise InvalidKernel(
            f"dimension_semantics\n  expected: one for each of {len(own)} grid axes"
            f"\n  got: {repr(semantics) if isinstance(semantics, str) else len(semantics)}{remedy}"
        )
    semantics_of: dict[int, str] = {}
    for axis, declared in enumerate(semantics):
        name = str(getattr(declared, "value", declared))
        if name not in _MEANING:
            raise InvalidKernel(f'dimension_semantics of grid axis {axis}\n  expected: "parallel" or "sequential"\n  got: {declared!r}{remedy}')
        if (meaning := _MEANING[name]) is not None:
            semantics_of[own[axis]] = meaning
    return semantics_of


# ------------------------------------------------------------------------------------------ outputs


def shared_axes(grid: Sequence[Any], block: Block) -> dict[int, bool]:
    """The axes along which steps have elements of a block in common: whether they have for sure."""
    return _shared(grid, block, [])[1]


def _shared(grid: Sequence[Any], block: Block, readers: Sequence[Block]) -> tuple[Points | None, dict[int, bool]]:
    """What an output's block touches at each point, and the axes along which steps have elements in common with a step that writes them:
    whether they have for sure. With readers: elements that these touch, too."""
    accesses = [block, *readers]
    rank = len(grid)
    alone = _alone(accesses)
    rest = {a for a in range(rank) if a not in alone and grid[a] != 1}
    if not rest:
        return None, {}
    if any(a.is_left_alone for a in readers):
        return None, dict.fromkeys(rest, False)
    at: list[Points] = []
    if all(isinstance(n, int) for n in grid):
        for access in accesses:
            found = points(access.mapping.index_map_jaxpr, access.forms, grid, access.results)
            if found is None:
                break
            at.append(found)
    if len(at) == len(accesses):
        return _common(grid, accesses, at)
    used = frozenset[int]().union(*(a.axes for a in accesses))
    return None, {axis: axis not in used for axis in rest}


def _revisited(grid: Sequence[Any], block: Block) -> tuple[Points | None, dict[int, bool]]:
    """`_shared` of an input that is stored to."""
    if block.is_left_alone:
        return None, {a: False for a, n in enumerate(grid) if n != 1 and a not in block.alone}
    return _shared(grid, block, [])


def _alone(accesses: Sequence[Block]) -> frozenset[int]:
    """Axes that all of them have by itself in one dimension, the same way, so that steps which differ there touch other elements."""
    first, *others = accesses
    out = set()
    for axis in first.alone:
        for k, d in enumerate(first.dims):
            if [a for a, _ in d.form.factors] != [axis] or not d.form.is_affine:
                continue
            same = [o.dims[k] for o in others if len(o.dims) == len(first.dims)]
            if len(same) == len(others) and all(
                (x.form, x.size, x.scale, x.shift) == (d.form, d.size, d.scale, d.shift) for x in same
            ):
                out.add(axis)
    return frozenset(out)


def _common(grid: Sequence[int], accesses: Sequence[Block], at: Sequence[Points]) -> tuple[Points, dict[int, bool]]:
    """Intervals that overlap, directly or by others between them, are one; so are blocks with the same ones along every dimension."""
    columns: list[list[Points]] = [[] for _ in accesses]
    exact = not any(d.length is not None for a in accesses for d in a.dims)
    for k in range(len(accesses[0].dims)):
        starts = [found[:, k] * a.dims[k].scale + a.dims[k].shift for a, found in zip(accesses, at)]
        ends = [s + a.dims[k].size for s, a in zip(starts, accesses)]
        intervals = np.unique(np.stack([np.concatenate(starts), np.concatenate(ends)], 1), axis=0)
        reached = np.maximum.accumulate(intervals[:, 1])
        begins = np.concatenate([[True], intervals[1:, 0] >= reached[:-1]]) if len(intervals) else np.zeros(0, bool)
        number = np.cumsum(begins)
        exact = exact and len(number) == (number[-1] if len(number) else 0)
        for column, start in zip(columns, starts):
            column.append(number[np.searchsorted(intervals[:, 0], start)])
    total = math.prod(grid)
    touched = [np.stack(c, 1) if c else np.zeros((total, 0), np.int64) for c in columns]
    _, group = np.unique(np.concatenate(touched), axis=0, return_inverse=True)
    group = group.reshape(len(accesses), total)
    coordinates = np.indices(tuple(grid)).reshape(len(grid), -1)
    return touched[0], dict.fromkeys(_differing(group, np.tile(coordinates, (1, len(accesses))), keep=np.unique(group[0])), exact)


def _differing(group: Points, coordinates: Points, keep: Points) -> list[int]:
    """The axes along which members of one of the groups `keep` differ."""
    group = group.reshape(-1)
    if not len(group) or not len(keep):
        return []
    count = int(group.max()) + 1
    out = []
    for axis, index in enumerate(coordinates):
        low, high = np.full(count, np.iinfo(np.int64).max), np.full(count, -1)
        np.minimum.at(low, group, index)
        np.maximum.at(high, group, index)
        if (low[keep] < high[keep]).any():
            out.append(axis)
    return out


# ------------------------------------------------------------------------------------------ scratch


def _carried(use: flow.Use, grid: Sequence[int], proved: bool) -> list[int]:
    """The axes along which a step loads what another one stored."""
    reads, writes, resets = (np.asarray(m) for m in (use.carries if proved else use.exposed, use.written, use.stored))
    if not reads.any() or not writes.any():
        return []
    everything = list(range(len(grid)))
    used = [a for a in everything if any(m.shape[a] != 1 for m in (reads, writes, resets))]
    if not used:
        return everything
    # What happens is the same for all indices of the axes in front of these.
    outer = used[0]
    inner = tuple(grid[outer:])
    if math.prod(inner) > flow.MAX_POINTS:
        begins_anew = bool(resets.flat[0]) and not reads.flat[0]
        return [] if proved else everything[outer:] if begins_anew else everything
    r, w, z = (np.broadcast_to(m.reshape(m.shape[outer:]), inner).reshape(-1) for m in (reads, writes, resets))
    until = np.cumsum(z)
    before = until - z  # so many steps have stored all of it before one
    if (r & (before == 0)).any():
        return everything  # what it loads may be from the last steps of other indices
    coordinates = np.indices(inner).reshape(len(inner), -1)
    group = np.concatenate([before[r], until[w]])
    members = np.concatenate([coordinates[:, r], coordinates[:, w]], 1)
    return [outer + a for a in _differing(group, members, keep=np.unique(before[r]))]


# ------------------------------------------------------------------------------------------ visits


def visits(block: Block, touched: Points | None, grid: Sequence[Any], loops: Sequence[int]) -> tuple[int, bool]:
    """How many of the sequential axes choose a block, and whether one that goes back comes back after another one.

    `loops`: the sequential axes, outermost first. All of them choose it: no step has the block of the step before.
    """
    if block.is_looked_up or not block.goes_back and (block.is_written or block.alias is not None):
        return len(loops), block.goes_back and bool(loops)
    settled = max((k + 1 for k, axis in enumerate(loops) if axis in block.axes and grid[axis] != 1), default=0)
    chosen = loops[:settled]
    if not block.goes_back or all(a in block.alone or grid[a] == 1 for a in chosen):
        return settled, False
    if touched is None:
        return settled, True
    _, group = np.unique(touched, axis=0, return_inverse=True)
    again = _differing(group, np.indices(tuple(grid)).reshape(len(grid), -1), keep=np.unique(group))
    return settled, bool(set(again) & set(chosen))

