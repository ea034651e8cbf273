"""How each block of a `pl.pallas_call` gets into the kernel and out of it.

An index map is evaluated once, as far as it is affine in the grid's indices, and point by point otherwise. From that follow
* which grid axes run one after the other (`axis_order.py`);
* whether a block can reach outside of its array (then its elements are moved one by one, those that are there);
* the way of each block: `TMA` (the copy engine, into a slot in shared memory), `COPY` (loads and stores, into a slot), `VIEW` (the
  block is a view of the array in device memory), `WINDOW` (the same of a block that may reach outside, for which there is no room).
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from smalt import _messages, _versions
from smalt._blocks import finer_rows, flow
from smalt._errors import InvalidKernel, Unsupported

#: Shared memory that barriers, the compiler's scratch and users' own scratch may need beside blocks.
BESIDE = 27 << 10
#: Shared memory for blocks, where a block of the grid may have 227 KiB.
BUDGET = (227 << 10) - BESIDE
#: Shared memory of a multiprocessor, and what each block of the grid takes of it for the system.
MULTIPROCESSOR = 228 << 10
RESERVED = 1 << 10
#: Steps of a traced grid axis: what an i32 counts.
MAX_TRACED = 1 << 31
#: Ways to read dimensions as rows that are tried: blocks may have several of one size.
MAX_CHOICES = 16
#: Elements that the copy engine takes along one dimension, and how many copies one block may be.
MAX_SIDE, MAX_COPIES = 256, 128


class Way(enum.Enum):
    TMA = "tma"
    COPY = "copy"
    VIEW = "view"
    WINDOW = "window"


# ------------------------------------------------------------------------------------------ index maps


@dataclasses.dataclass(frozen=True)
class Form:
    """A number as a function of the grid's indices: `constant + Σ factors · indices`, or something of the axes in `unknown`."""

    constant: int = 0
    factors: tuple[tuple[int, int], ...] = ()  # (axis, factor), factors not 0
    unknown: frozenset[int] | None = None
    reads: bool = False  # it reads memory

    @property
    def axes(self) -> frozenset[int]:
        return frozenset(a for a, _ in self.factors) | (self.unknown or frozenset())

    @property
    def is_affine(self) -> bool:
        return self.unknown is None and not self.reads

    def plus(self, other: Form, sign: int = 1) -> Form:
        factors = dict(self.factors)
        for axis, factor in other.factors:
            factors[axis] = factors.get(axis, 0) + sign * factor
        kept = tuple(sorted((a, f) for a, f in factors.items() if f))
        return Form(self.constant + sign * other.constant, kept)

    def times(self, n: int) -> Form:
        return Form(self.constant * n, tuple((a, f * n) for a, f in self.factors if n))

    def bounds(self, grid: Sequence[Any]) -> tuple[int, int] | None:
        """The least and the greatest value; None: not known."""
        if not self.is_affine or any(not isinstance(grid[a], int) for a, _ in self.factors):
            return None
        ends = [sorted((0, f * max(grid[a] - 1, 0))) for a, f in self.factors]
        return self.constant + sum(e[0] for e in ends), self.constant + sum(e[1] for e in ends)


def _opaque(forms: Sequence[Form], reads: bool = False) -> Form:
    axes: frozenset[int] = frozenset().union(*(f.axes for f in forms)) if forms else frozenset()
    return Form(unknown=axes, reads=reads or any(f.reads for f in forms))


def _fits(form: Form, dtype: Any, grid: Sequence[Any]) -> bool:
    """Whether a type has each of an affine form's values: arithmetic that wraps, or rounds, is another function of the indices."""
    dtype = np.dtype(dtype)
    low, high = form.bounds([n if isinstance(n, int) else MAX_TRACED for n in grid]) or (0, 0)
    if dtype.kind == "b":
        return 0 <= low and high <= 1
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return bool(limits.min <= low and high <= limits.max)
    return dtype.kind == "f" and max(-low, high) <= 1 << np.finfo(dtype).nmant


def forms_of(closed: Any, arguments: Sequence[Form], grid: Sequence[Any]) -> list[Form]:
    """What a jaxpr over scalars computes at the points of a grid; operands beyond `arguments` are references."""
    jaxpr, consts = _versions.open_jaxpr(closed)
    memory = Form(unknown=frozenset(), reads=True)
    env: dict[Any, Form] = {}
    given = [*arguments, *[memory] * (len(jaxpr.invars) - len(arguments))]
    env.update(zip(jaxpr.invars, given))
    for var, value in zip(jaxpr.constvars, consts):
        env[var] = Form(int(value)) if np.ndim(value) == 0 and np.issubdtype(np.asarray(value).dtype, np.integer) else memory

    def read(atom: Any) -> Form:
        if not _versions.is_literal(atom):
            return env.get(atom, memory)
        value = _versions.literal_value(atom)
        return Form(int(value)) if np.ndim(value) == 0 and float(value).is_integer() else Form(unknown=frozenset())

    for eqn in jaxpr.eqns:
        operands = [read(a) for a in eqn.invars]
        name = eqn.primitive.name
        inner = eqn.params.get(_versions.CALLS.get(name, ""))
        match name, operands:
            case ("add" | "sub", [a, b]) if a.is_affine and b.is_affine:
                results = [a.plus(b, 1 if name == "add" else -1)]
            case "mul", [a, b] if a.is_affine and b.is_affine and not (a.factors and b.factors):
                results = [a.times(b.constant) if not b.factors else b.times(a.constant)]
            case ("convert_element_type" | "copy" | "copy_p" | "multiple_of"), [a]:
                results = [a]
            case _ if inner is not None:
                results = forms_of(inner, operands, grid)
            case _:
                results = [_opaque(operands)] * len(eqn.outvars)
        if inner is None:
            results = [f if not f.is_affine or _fits(f, v.aval.dtype, grid) else _opaque(operands) for f, v in zip(results, eqn.outvars)]
        env.update(zip(eqn.outvars, results))
    return [read(a) for a in jaxpr.outvars]


def points(
    closed: Any, forms: Sequence[Form], grid: Sequence[int], order: Callable[[Sequence[Any]], list[Any]] = list
) -> np.ndarray[Any, Any] | None:
    """What a map gives at every point of the grid, (points, forms); None where that is too much, or in memory.

    `order`: the jaxpr's results in the order of `forms`.
    """
    total = math.prod(grid)
    if total > flow.MAX_POINTS or any(f.reads for f in forms):
        return None
    at = np.indices(tuple(grid), dtype=np.int64).reshape(len(grid), total)
    if all(f.is_affine for f in forms):
        rows = [f.constant + sum((factor * at[a] for a, factor in f.factors), np.zeros(total, np.int64)) for f in forms]
        return np.stack(rows, 1) if rows else np.zeros((total, 0), np.int64)
    found = flow.scalars(closed, grid)
    if found is not None:
        return np.stack([np.broadcast_to(np.asarray(x, np.int64), grid).reshape(total) for x in order(found)], 1)
    with jax.ensure_compile_time_eval():

        def one(*indices: Any) -> list[Any]:
            return order(_versions.eval_jaxpr(closed, indices))

        columns = jax.jit(jax.vmap(one))(*[np.asarray(row, np.int32) for row in at])
        return np.stack([np.broadcast_to(np.asarray(c, np.int64), (total,)) for c in columns], 1)


# ------------------------------------------------------------------------------------------ blocks


@dataclasses.dataclass
class Dim:
    """One dimension of an operand's array, and the part of it that a block takes."""

    extent: int
    size: int
    squeezed: bool
    scale: int  # of the index map's number
    shift: int  # added to it
    form: Form
    is_element: bool
    length: Form | None = None  # pl.BoundedSlice: how many positions, `size` at most, are the block's
    outside: bool = False  # a block may reach outside of the array
    is_checked: bool = False  # what the index map gives is known when the kernel runs
    high: int = 0  # positions behind the array's end that are padding; in front of it `-shift`
    parts: int = 1  # the rows of the block spec are taken in so many parts of `size`

    def start(self, index: Any, part: Any) -> Any:
        scaled = index * self.scale if self.scale != 1 else index
        scaled = scaled + self.shift if self.shift else scaled
        return scaled + part * self.size if self.parts != 1 else scaled


@dataclasses.dataclass
class Block:
    """An operand of the call, and what was decided for it."""

    number: int  # among inputs and outputs
    name: str
    is_output: bool
    mapping: Any
    dtype: Any
    bits: int
    dims: list[Dim]
    transforms: tuple[Any, ...]
    in_gmem: bool  # the user wants it there, or it has atomics
    is_whole: bool  # it is all of its array, or all that an element of a `vmap` has of it
    is_left_alone: bool  # it stays in device memory, and the body takes what it wants
    is_written: bool = False  # the body has a store to it, whether or not some step comes there
    is_read: bool = True
    #: An input that later steps find as the body left it, in an array of the call's own.
    is_kept: bool = False
    #: An output: later steps read what it writes through its alias. An input: its alias writes what it reads.
    in_order: bool = False
    overwrites: bool = False  # the body begins with a store to all of it
    is_stored_once: bool = False  # and does nothing else with it
    is_sliced: bool = False  # it has nothing but loads and stores of what slices take
    alias: int | None = None  # the operand that shares its buffer
    way: Way = Way.VIEW
    resident: bool = False  # of those that go back: one slot, which stays while the block does
    reload: bool = False  # of those that go back: the slot starts with what the array has
    settled: int = 0  # so many of the sequential axes (from the left) choose the block

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(d.size for d in self.dims if not d.squeezed)

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.bits // 8

    @property
    def goes_back(self) -> bool:
        """Whether its array gets what the body leaves in the block."""
        return self.is_output or self.is_kept

    def leave_alone(self) -> None:
        self.in_gmem = self.is_left_alone = True

    @property
    def outside(self) -> bool:
        return any(d.outside for d in self.dims)

    @property
    def forms(self) -> list[Form]:
        """What the index map computes: where blocks begin, then how long bounded ones are."""
        return [*(d.form for d in self.dims), *(d.length for d in self.dims if d.length is not None)]

    def results(self, flat: Sequence[Any]) -> list[Any]:
        """The index map's results in the order of `forms`."""
        starts, lengths = _results(self.mapping, flat)
        return [*starts, *(n for n in lengths if n is not None)]

    @property
    def axes(self) -> frozenset[int]:
        """The grid axes that its index map uses."""
        return frozenset[int]().union(*(f.axes for f in self.forms))

    @property
    def alone(self) -> frozenset[int]:
        """Axes alone in one dimension's index, times something: other indices, other blocks."""
        out = set()
        for d in self.dims:
            if d.form.is_affine and len(d.form.factors) == 1:
                ((axis, factor),) = d.form.factors
                # What does not overlap; of slices of a known length.
                size = d.size if d.length is None else d.length.constant
                if abs(factor * d.scale) >= size and (d.length is None or d.length.is_affine and not d.length.factors):
                    out.add(axis)
        return frozenset(out)

    @property
    def begins_anywhere(self) -> bool:
        """Whether it may begin at any element along its last dimension, not at multiples of its extent alone."""
        return bool(self.dims) and (self.dims[-1].is_element or self.dims[-1].squeezed)

    @property
    def is_looked_up(self) -> bool:
        """Whether its index map reads memory."""
        return any(f.reads for f in self.forms)

    def describe_way(self, steps: int) -> str:
        """How it gets in or out, in words."""
        match self.way:
            case Way.VIEW:
                return "a view of the array"
            case Way.WINDOW:
                return "a view of the array, of what is inside"
            case Way.COPY:
                return "loads and stores, to a slot" + (", which begins with the array's" if self.reload else "")
            case Way.TMA:
                return "copy engine, one slot that stays" if self.resident else f"copy engine, {steps} slot{'s' * (steps != 1)}"

    def describe(self) -> str:
        return f"{self.name} {self.way.value}"


def _results(mapping: Any, flat: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Of each dimension where the block begins, and how long it is (None: its own length), from what the index map's jaxpr gives."""
    bounded = [type(d).__name__ == "BoundedSlice" for d in mapping.block_shape]
    if not any(bounded):
        return list(flat), [None] * len(flat)
    tree = mapping.index_map_out_tree
    if tree.num_leaves != len(flat):
        raise Unsupported(
            f"not supported yet: pallas_call: a block dimension pl.BoundedSlice (of {mapping.origin}) under vmap"
            "\n  remedy: make the batch a grid axis, or loop over it"
        )
    found = tree.unflatten(list(flat))
    starts = [i.start if b else i for i, b in zip(found, bounded)]
    return starts, [i.size if b else None for i, b in zip(found, bounded)]


#: Blocks begin at positions of type int32.
MAX_POSITION = 2**31 - 1


def block_of(number: int, mapping: Any, is_output: bool, grid: Sequence[Any], vmapped: Sequence[int] = ()) -> Block:
    name = str(mapping.origin) or (f"output {number}" if is_output else f"input {number}")
    shape = tuple(mapping.array_aval.shape)
    dtype = mapping.array_aval.dtype
    forms, lengths = _results(mapping, forms_of(mapping.index_map_jaxpr, [Form(factors=((a, 1),)) for a in range(len(grid))], grid))
    dims = []
    for extent, dim, form, length in zip(shape, mapping.block_shape, forms, lengths):
        kind = type(dim).__name__
        if kind == "Indirect":
            # JAX's index maps return scalars only: there is no array of indices to take.
            raise Unsupported(
                f"not supported yet: pallas_call: a block dimension pl.{kind} (of {name})"
                "\n  remedy: take the whole dimension (memory_space=plgpu.GMEM) and index it in the kernel: ref[indices]"
            )
        form = Form(form) if isinstance(form, int) else form
        if length is not None:
            length = Form(length) if isinstance(length, int) else length
            if length.is_affine and not length.factors and not 0 <= length.constant <= dim.block_size:
                raise InvalidKernel(
                    f"pallas_call: a block dimension pl.BoundedSlice({dim.block_size}) (of {name})"
                    f"\n  expected: slices of at most {dim.block_size}"
                    f"\n  got: a slice of {length.constant}"
                    "\n  remedy: a larger bound, or shorter slices"
                )
            # Loads and stores move it, those that are there.
            dims.append(Dim(extent, int(dim.block_size), False, 1, 0, form, True, length, outside=True))
            continue
        squeezed = kind == "Squeezed"
        size = 1 if squeezed else int(dim.block_size)
        low, high = (int(n) for n in dim.padding) if kind == "Element" else (0, 0)
        if size < 0:
            raise InvalidKernel(
                f"pallas_call: a block of {name} of {size} positions\n  expected: 0 and more\n  got: {size} in dimension {len(dims)}"
                "\n  remedy: a block has an extent for each dimension; None leaves it out"
            )
        made = Dim(extent, size, squeezed, 1 if kind in ("Element", "Squeezed") else size, -low, form, kind == "Element", high=high)
        made.outside = _reaches_outside(made, grid)
        dims.append(made)
    for d in dims:
        if d.extent > MAX_POSITION and d.size < d.extent:
            raise Unsupported(
                f"not supported yet: pallas_call: blocks of {name} along a dimension that 32 bits do not count"
                f"\n  expected: at most {MAX_POSITION} elements"
                f"\n  got: blocks of {d.size} of {d.extent}"
                "\n  remedy: reshape the array to rows before the call"
            )
    in_gmem = _versions.is_gmem_block(mapping, is_output)
    is_whole = all(d.size == d.extent and not d.squeezed or d.squeezed and bool(d.form.axes) and d.form.axes <= set(vmapped) for d in dims)
    block = Block(
        number=number,
        name=name,
        is_output=is_output,
        mapping=mapping,
        dtype=dtype,
        bits=_versions.bits_of(dtype),
        dims=dims,
        transforms=tuple(mapping.transforms),
        in_gmem=in_gmem,
        is_whole=is_whole,
        is_left_alone=in_gmem and is_whole,
    )
    if is_output:
        check_narrow(block)
    return block


def check_narrow(block: Block) -> None:
    """Elements that share a byte are stored together: none of them may be outside."""
    if block.bits < 8 and block.outside:
        raise Unsupported(
            f"not supported yet: pallas_call: stores to blocks of {block.name} that reach outside of an array of {block.dtype}"
            f"\n  got: blocks of {[d.size for d in block.dims]} of an array of {[d.extent for d in block.dims]}"
            "\n  remedy: let blocks divide the array, or take int8 and convert it outside of the kernel"
        )


def check_atomic(block: Block) -> None:
    """Atomics, and accesses whose order the author gives, are to an array's elements in device memory, where other steps have theirs."""
    if block.outside or block.transforms:
        what = "reaches outside of its array" if block.outside else "has transforms"
        raise Unsupported(
            f"not supported yet: pallas_call: atomics, or accesses in order, on a block of {block.name} that {what}"
            f"\n  expected: blocks that divide the array, as it is\n  got: blocks of {[d.size for d in block.dims]} of an array of {[d.extent for d in block.dims]}"
            "\n  remedy: take the whole array (no BlockSpec), index it by the step's place, and mask what is behind its end"
        )


def check_inside(blocks: Sequence[Block], grid: Sequence[Any]) -> None:
    """Each block has something of its array, or of its padding, at all points of the grid where that is known.
    Elsewhere (`Dim.is_checked`) the emulator looks."""
    if 0 in grid:
        return
    is_static = all(isinstance(n, int) for n in grid)
    for block in blocks:
        for k, dim in enumerate(block.dims):
            if 0 in (dim.extent, dim.size) or dim.length is not None:
                continue
            if (bounds := dim.form.bounds(grid)) is None:
                at = points(block.mapping.index_map_jaxpr, block.forms, grid, block.results) if is_static else None
                bounds = None if at is None else (int(at[:, k].min()), int(at[:, k].max()))
            if bounds is None:
                dim.is_checked = not dim.is_element
                continue
            # The index map's numbers; of elements, where blocks begin, in the padded array.
            most = (dim.extent - dim.shift + dim.high - 1) // dim.scale
            least = 1 - dim.size if dim.is_element else 0
            wrong = next((i for i in bounds if not least <= i <= most), None)
            if wrong is None:
                continue
            counts = "squeezed" if dim.squeezed else "elements" if dim.is_element else f"blocks of {dim.size}"
            hint = "keep it in range (jnp.clip), and let the body skip what is not there (pl.when)"
            if dim.size > 1 and not dim.is_element and bounds[1] == most * dim.size:
                hint = f"an index map gives the number of a block, not of its first element: leave out the factor {dim.size}"
            raise InvalidKernel(
                f"a block of {block.name} outside of its array: dimension {k}, which has {dim.extent} positions"
                f"\n  expected: an index map that gives {least} to {most} there ({counts})\n  got: {wrong}\n  remedy: {hint}"
                + _versions.function_line(block.mapping.index_map_jaxpr)
            )


def _reaches_outside(dim: Dim, grid: Sequence[Any]) -> bool:
    if dim.squeezed or 0 in (dim.extent, dim.size):
        return False
    bounds = dim.form.bounds(grid)
    if bounds is not None:
        low, high = (b * dim.scale + dim.shift for b in bounds)
        if low >= 0 and high + dim.size <= dim.extent:
            return False
        # Blocks that are whole stay inside as long as the map is right; what is outside of the array altogether does not count.
    return dim.is_element or dim.extent % dim.size != 0 or bounds is not None


# ------------------------------------------------------------------------------------------ parts


def split_rows(jaxpr: Any, blocks: Sequence[Block], others: int) -> tuple[int, list[int | None]]:
    """Takes blocks in finer parts where their rows have nothing to do with each other (`finer_rows.py`).

    Returns the number of parts, and of each ref of the body the dimension that is rows. `others`: refs of the body in front.
    """
    none: list[int | None] = [None] * len(jaxpr.invars)
    outputs = [b for b in blocks if b.is_output]
    if not outputs or any(b.transforms for b in blocks):
        return 1, none
    for model in outputs[0].dims:
        if model.squeezed or model.is_element or model.size == 1:
            continue
        choices = [_like(b, model) for b in blocks]
        for found in itertools.islice(itertools.product(*choices), MAX_CHOICES):
            dims = list(none)
            for block, at in zip(blocks, found):
                if at is not None:
                    dims[others + block.number] = sum(not d.squeezed for d in block.dims[:at])
            body = finer_rows.analyse(jaxpr, dims, model.size)
            n = 1 if body is None else finer_rows.parts([(b.shape, dims[others + b.number]) for b in blocks], body)
            if n == 1:
                continue
            for block, at in zip(blocks, found):
                if at is not None:
                    block.dims[at].size //= n
                    block.dims[at].parts = n
            return n, dims
    return 1, none


def _like(block: Block, model: Dim) -> list[int | None]:
    """The dimensions of a block that move as the model does, that it may be rows of; None: an input that has no rows."""
    same: list[int | None] = [
        k
        for k, d in enumerate(block.dims)
        if not d.squeezed and not d.is_element and (d.form, d.size, d.scale, d.shift) == (model.form, model.size, model.scale, model.shift)
    ]
    return same if block.is_output else [*same, None]


# ------------------------------------------------------------------------------------------ ways


def choose_ways(blocks: Sequence[Block], steps: int, streams: bool, windows: bool, budget: int) -> None:
    """Sets the way of every block. `steps`: slots of a pipelined block; `streams`: there is a pipeline of static size; `windows`: the
    body may have windows; `budget`: bytes of shared memory for slots."""
    for block in blocks:
        block.way = _best(block, blocks, steps if not block.resident else 1, streams)
    while sum(_slots(b, steps) for b in blocks) > budget:
        staged = [b for b in blocks if b.way in (Way.TMA, Way.COPY)]
        large = [b for b in staged if may_be_view(b, blocks) or windows and _may_be_window(b)]
        big = max(large, key=lambda b: _slots(b, steps), default=None)
        if big is None:
            return  # the compiler reports what there is and what is needed
        big.way = Way.VIEW if may_be_view(big, blocks) else Way.WINDOW
    if steps == 1:
        _make_room(blocks)


#: Blocks of the grid that a multiprocessor should have room for, where each has one step: while some compute, others load.
RESIDENT = 6


def spread(blocks: Sequence[Block], once: Callable[[Block], bool]) -> None:
    """Leaves blocks of a call of one step in their arrays, as far as a multiprocessor has room for few blocks of the grid: outputs first, then
    inputs that the body loads `once`, which gain nothing in a slot."""

    def resident() -> int:
        return MULTIPROCESSOR // (sum(_slots(b, 1) for b in blocks) + RESERVED)

    staged = [b for b in blocks if b.way is Way.TMA and may_be_view(b, blocks)]
    candidates = [b for b in staged if b.is_output and not b.is_read] + [b for b in staged if not b.is_output and once(b)]
    before = resident()
    moved = []
    for block in candidates:
        if resident() < RESIDENT:
            block.way = Way.VIEW
            moved.append(block)
    if resident() == before:
        for block in moved:
            block.way = Way.TMA


def _make_room(blocks: Sequence[Block]) -> None:
    """Stores outputs from registers to their arrays, where a multiprocessor then has room for two blocks of the grid: while one computes,
    the other one loads."""
    direct = [b for b in blocks if b.is_output and b.way is Way.TMA and b.is_stored_once and may_be_view(b, blocks)]
    all_slots = sum(_slots(b, 1) for b in blocks)
    room = MULTIPROCESSOR // 2 - RESERVED
    if all_slots - sum(_slots(b, 1) for b in direct) <= room < all_slots:
        for block in direct:
            block.way = Way.VIEW


def _best(block: Block, blocks: Sequence[Block], steps: int, streams: bool) -> Way:
    if block.in_gmem:
        return Way.VIEW
    if block.transforms:
        return Way.COPY if block.reload or block.in_order else Way.TMA
    if block.alias is not None and not block.is_output and not block.is_read:
        return Way.VIEW  # none of which is observable
    tma = streams and _is_for_tma(block, steps) and not block.reload and not block.in_order
    if block.goes_back:
        if block.alias is None and _versions.is_in_device_memory_of_tpu(block.mapping) and may_be_view(block, blocks):
            return Way.VIEW
        if block.resident:
            return Way.TMA if tma else Way.COPY
        return Way.TMA if tma else Way.VIEW if may_be_view(block, blocks) else Way.COPY
    if block.in_order:
        return Way.COPY
    return Way.TMA if tma else Way.VIEW if may_be_view(block, blocks) else Way.COPY


def may_be_view(block: Block, blocks: Sequence[Block]) -> bool:
    if block.outside or block.transforms:
        return False
    if block.goes_back:
        return True
    # A view of what the kernel writes would change under the body; one of an input is not written.
    return block.alias is None and not block.is_written


def _may_be_window(block: Block) -> bool:
    if not block.is_sliced or block.transforms or block.alias is not None or block.is_kept:
        return False
    if block.bits < 8 or not _messages.is_dtype(block.dtype) or np.dtype(block.dtype).kind == "c" or any(d.length is not None for d in block.dims):
        return False
    return not (block.is_written and (block.is_read or not block.is_output))


def same_blocks(a: Block, b: Block) -> bool:
    same = [(x.form, x.length, x.size, x.scale, x.shift) == (y.form, y.length, y.size, y.scale, y.shift) for x, y in zip(a.dims, b.dims)]
    return all(same) and all(f.is_affine for f in a.forms)


def _is_for_tma(block: Block, steps: int) -> bool:
    """Whether the copy engine can move it: contiguous rows of 16 bytes, strides of 16 bytes, slots of 128 bytes."""
    dims, bits = block.dims, block.bits
    if _versions.is_key(block.dtype) or bits < 8:
        return False
    if not dims or len(dims) > 5 or 0 in block.shape or any(d.is_element for d in dims) or dims[-1].squeezed:
        return False
    if dims[-1].size * bits % 128 or math.prod(block.shape) * bits >= 1 << 20 << 3:
        return False
    if any(d.size > d.extent for d in dims):
        return False
    stride = dims[-1].extent * bits
    return (len(dims) == 1 or stride % 128 == 0) and (steps == 1 or block.bytes % 128 == 0) and _fits_boxes(block)


def _fits_boxes(block: Block) -> bool:
    """Whether each dimension is made of rows that the copy engine can take, of at most 256 elements, and of 16 bytes along the last
    dimension: rows of which the array is made, too, as of one dimension more, or few that begin at multiples of 128 bytes."""
    dims = block.dims
    first = next((i for i, d in enumerate(dims) if d.size > 1), len(dims) - 1)
    if not block.outside and all(d.size == d.extent for d in dims[first + 1 :]):
        return True  # one piece of memory
    bits, unit, more = block.bits, max(128 // block.bits, 1), 0
    for k, d in reversed(list(enumerate(dims))):
        if d.size > MAX_SIDE:
            rows = [n for n in range(unit, MAX_SIDE + 1, unit) if d.size % n == 0]
            outer = math.prod(d.size for d in dims[:k])
            if not any(n * bits % 1024 == 0 and d.size // n * outer <= MAX_COPIES for n in rows):
                if not any(d.extent % n == 0 and d.size // n <= MAX_SIDE for n in rows):
                    return False
                more += 1
        bits, unit = bits * d.size, 1
    return len(dims) + more <= 5


def _slots(block: Block, steps: int) -> int:
    match block.way:
        case Way.VIEW | Way.WINDOW:
            return 0
        case Way.COPY:
            return -(-block.bytes // 128) * 128
        case Way.TMA:
            return (1 if block.resident else steps) * block.bytes
