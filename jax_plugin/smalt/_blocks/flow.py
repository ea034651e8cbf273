"""What a kernel's body does to its references, at each point of the grid.

The body is walked once, with numbers for all points side by side: `program_id` of an axis is an array along that axis, and so is what
is computed of it; a branch is taken at the points where its condition holds, or may hold where that is not known. Masks are as small as
what they depend on: arrays of the grid's rank, with extent 1 along other axes. A loop of a known number of turns is walked turn by
turn where it counts what indexes references. Scalars that are not known have names: equal names are equal numbers.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from smalt import _versions
from smalt._blocks import coverage

Mask = Any  # np.ndarray of bool
_Spans = Sequence[coverage.Span] | None

#: Points up to which axes are looked at point by point.
MAX_POINTS = 1 << 16
#: Equations up to which loops are walked turn by turn.
MAX_TURNS = 5_000


class Kind(enum.Enum):
    """Of an access."""

    IN_PART = "in part"
    WHOLE = "whole"
    UNKNOWN = "unknown"  # in an unknown way
    UNORDERED = "unordered"  # an atomic, or another one whose order the author gives, of whatever part


@dataclasses.dataclass
class Use:
    """What becomes of one reference, at each point."""

    exposed: Mask  # it may be loaded before all of it is stored
    written: Mask  # it may be stored to
    stored: Mask  # all of it is stored, whatever happens
    carries: Mask  # it is loaded for sure, nothing of it was stored before, and what was loaded is stored or computed with
    read: bool = False
    kinds: set[Kind] = dataclasses.field(default_factory=set)  # of its accesses
    is_sliced: bool = True  # those that are known are loads and stores of what slices take
    parts: tuple[coverage.Part, ...] = ()  # what is stored, where that is not all of it

    @property
    def is_written(self) -> bool:
        return bool(self.written.any())


@dataclasses.dataclass(frozen=True)
class _Number:
    """A scalar at each point, where it is known."""

    value: Any
    known: Mask


@dataclasses.dataclass(frozen=True)
class _Symbol:
    """A scalar of which only the name is known."""

    name: int


def uses(jaxpr: Any, grid: Sequence[int | None] = ()) -> dict[int, Use]:
    """Of each invar of an open jaxpr that is a reference. `grid`: its extents; None: a traced size."""
    walk = _Walk(grid)
    env: dict[Any, Any] = {}
    refs = {i: v for i, v in enumerate(jaxpr.invars) if _versions.is_ref_aval(v.aval)}
    for var in refs.values():
        env[var] = walk.reference()
    everywhere = walk.constant(True)
    walk.region(jaxpr, env, everywhere, everywhere)
    return {i: walk.uses[env[var]] for i, var in refs.items()}


def warn_of_outputs_never_stored(jaxpr: Any, outputs: Mapping[int, str], found: Mapping[int, Use]) -> None:
    """A warning at a kernel's line for each of these invars, with a name, that has elements, none of which it stores to. `found`: its
    uses."""
    for at, otherwise in outputs.items():
        if found[at].is_written or 0 in jaxpr.invars[at].aval.shape:
            continue
        name = _versions.argument_name(jaxpr, at, otherwise)
        ref = name if name.isidentifier() else "ref"
        text = (
            f"smalt: an output that the kernel never stores to: {name}\n  expected: a store to all of it\n  got: elements that were never written"
            f"\n  remedy: {ref}[...] = value ({ref} = value only gives the name to something else), or leave the output out"
        )
        warn_at(jaxpr, text)


def warn_at(jaxpr: Any, text: str) -> None:
    """A warning at the line of a kernel's function."""
    _, file, line = _versions.function_place(jaxpr) or ("", "<unknown>", 0)
    warnings.warn_explicit(text + _versions.function_line(jaxpr), UserWarning, file, line)


def scalars(closed: Any, grid: Sequence[int]) -> list[Any] | None:
    """What a jaxpr over the grid's indices computes at each point, as arrays that broadcast; None: something that is not known here."""
    walk = _Walk(grid)
    jaxpr, _ = _versions.open_jaxpr(closed)
    if jaxpr.constvars:
        return None
    everywhere = walk.constant(True)
    found = walk.region(jaxpr, {v: walk.index(a) for a, v in enumerate(jaxpr.invars)}, everywhere, everywhere)
    return [r.value for r in found] if all(isinstance(r, _Number) and r.known.all() for r in found) else None


#: Points that stand for an axis of a traced size: the first one, and others.
TRACED = 3


class _Walk:
    def __init__(self, grid: Sequence[int | None]) -> None:
        self.rank = len(grid)
        self.grid = tuple(grid)
        self.uses: list[Use] = []
        self.names: dict[Any, int] = {}  # of what is computed of what
        self.turns_left = MAX_TURNS if any(n != 1 for n in grid) else 0  # nothing depends on other steps where there is one
        # Of jaxprs: the next two, and how many equations a walk takes.
        self.facts: dict[int, tuple[frozenset[Any], set[Any]]] = {}
        self.sizes: dict[int, int] = {}
        # Variables of this jaxpr: that are used, that something stored is made of.
        self.used: frozenset[Any] = frozenset()
        self.stored: set[Any] = set()

    def constant(self, value: Any) -> Any:
        return np.full((1,) * self.rank, value)

    def reference(self) -> int:
        no = self.constant(False)
        self.uses.append(Use(no, no, no, no))
        return len(self.uses) - 1

    # ------------------------------------------------------------------------------ equations

    def region(self, jaxpr: Any, env: dict[Any, Any], reach: Mask, certain: Mask) -> list[Any]:
        """`env`: its references' numbers, and scalars that are known; `reach`: where it may run, `certain`: where it does for sure."""

        def read(atom: Any) -> Any:
            if not _versions.is_literal(atom):
                return env.get(atom)
            value = _versions.literal_value(atom)
            if np.ndim(value) or not _is_scalar(atom.aval):
                return None
            return _Number(self.constant(np.asarray(value, atom.aval.dtype)), self.constant(True))

        outer = self.used, self.stored
        if id(jaxpr) not in self.facts:
            self.facts[id(jaxpr)] = _versions.used_variables(jaxpr), _parts_of_stores(jaxpr)
        self.used, self.stored = self.facts[id(jaxpr)]
        env.update((v, self.symbol()) for v in jaxpr.invars if v not in env and _is_scalar(v.aval))
        for eqn in jaxpr.eqns:
            results = self.equation(eqn, [read(a) for a in eqn.invars], reach, certain)
            for v, r in zip(eqn.outvars, results):
                if r is not None or _is_scalar(v.aval):
                    env[v] = self.symbol() if r is None else r
        self.used, self.stored = outer
        return [read(a) for a in jaxpr.outvars]

    def equation(self, eqn: Any, values: list[Any], reach: Mask, certain: Mask) -> list[Any]:
        name, params = eqn.primitive.name, eqn.params
        nothing: list[Any] = [None] * len(eqn.outvars)
        if name == "program_id":
            return [self.index(params["axis"])]
        if name in _MEMORY:
            _MEMORY[name](self, eqn, values, reach, certain)
            return nothing
        if name == "cond":
            return self.cond(eqn, values, reach, certain)
        if name == "scan":
            self.scan(eqn, values, reach, certain)
            return nothing
        if name == "while":
            self.loop(eqn, values, reach, certain)
            return nothing
        if name == "run_scoped":
            jaxpr, _ = _versions.open_jaxpr(params["jaxpr"])
            self.region(jaxpr, self.bound(jaxpr.constvars, values), reach, certain)
            return nothing
        if (callee := params.get(_versions.CALLS.get(name, ""))) is not None:
            jaxpr, _ = _versions.open_jaxpr(callee)
            if len(jaxpr.invars) == len(values):
                return self.region(jaxpr, self.bound(jaxpr.invars, values), reach, certain)
        read = _versions.only_read(eqn)
        only_read = {v for a, v in zip(eqn.invars, values) if isinstance(v, int) and a in read}
        for ref in {v for v in values if isinstance(v, int)}:  # it may do anything to them
            self.load(ref, reach, self.constant(False))
            if ref not in only_read:
                self.store(ref, reach)
        return [self.compute(eqn, values)] if len(nothing) == 1 else nothing

    @staticmethod
    def bound(variables: Sequence[Any], values: Sequence[Any]) -> dict[Any, Any]:
        return {var: value for var, value in zip(variables, values) if value is not None}

    def index(self, axis: int) -> _Number | None:
        if axis >= self.rank:
            return None
        shape = [1] * self.rank
        n = self.grid[axis]
        shape[axis] = TRACED if n is None else n
        value = np.arange(shape[axis], dtype=np.int32).reshape(shape)
        known = np.ones(shape, bool) if n is not None else value == 0
        return _Number(value, known) if value.size <= MAX_POINTS else None

    def symbol(self, made: Any = None) -> _Symbol:
        """A name of its own, or for what is made of other names."""
        return _Symbol(self.names.setdefault(object() if made is None else made, len(self.names)))

    def name(self, value: _Number | _Symbol) -> int:
        if isinstance(value, _Symbol):
            return value.name
        return self.symbol((value.value.shape, str(value.value.dtype), value.value.tobytes(), value.known.tobytes())).name

    def compute(self, eqn: Any, values: list[Any]) -> _Number | _Symbol | None:
        """Integers and truths."""
        function, aval = _FUNCTIONS.get(eqn.primitive.name), eqn.outvars[0].aval
        if function is None or not values or not all(isinstance(v, (_Number, _Symbol)) for v in values) or not _is_scalar(aval):
            return None
        if any(isinstance(v, _Symbol) for v in values):
            return self.symbol((eqn.primitive.name, str(aval.dtype), *(self.name(v) for v in values)))
        if math.prod(np.broadcast_shapes(*(v.value.shape for v in values))) > MAX_POINTS:
            return None
        with np.errstate(all="ignore"):
            value = np.asarray(function(eqn, *(v.value for v in values)))
        known = values[0].known
        for v in values[1:]:
            known = known & v.known
        return _Number(value.astype(aval.dtype), known)

    def cond(self, eqn: Any, values: list[Any], reach: Mask, certain: Mask) -> list[Any]:
        index, *captured = values
        branches = eqn.params["branches"]
        if not isinstance(index, _Number) or math.prod(np.broadcast_shapes(index.value.shape, reach.shape)) > MAX_POINTS:
            index = None
        ways = []
        for n in range(len(branches)):
            taken, surely = reach, self.constant(False)
            if index is not None:
                here = np.clip(index.value.astype(np.int64), 0, len(branches) - 1) == n
                taken, surely = reach & (here | ~index.known), certain & here & index.known
            ways.append((taken, surely))
        before = [(use.stored, use.parts) for use in self.uses]
        after = [(self.constant(True), parts) for _, parts in before]
        for n, (branch, (taken, surely)) in enumerate(zip(branches, ways)):
            jaxpr, _ = _versions.open_jaxpr(branch)
            for use, (stored, parts) in zip(self.uses, before):
                use.stored, use.parts = stored, parts
            self.region(jaxpr, self.bound(jaxpr.invars, captured), taken, surely)
            if not taken.any():  # of which only the kinds of its accesses count: it is compiled
                continue
            others = functools.reduce(np.logical_or, (t for m, (t, _) in enumerate(ways) if m != n), self.constant(False))
            for k, (use, (stored, parts)) in enumerate(zip(self.uses, after)):
                for part in use.parts:
                    if part not in before[k][1] and (where := _fit(part.where & ~others, np.all)).any():
                        parts = coverage.add(parts, coverage.Part(where, part.spans))
                after[k] = _fit(stored & (use.stored | ~taken), np.all), parts
        for use, (stored, parts) in zip(self.uses, after):
            use.stored, use.parts = stored, parts
        return [None] * len(eqn.outvars)

    def scan(self, eqn: Any, values: list[Any], reach: Mask, certain: Mask) -> None:
        jaxpr, _ = _versions.open_jaxpr(eqn.params["jaxpr"])
        consts, carries = _versions.scan_counts(eqn.params)
        turns, counters = eqn.params["length"], _counters(jaxpr, consts, carries, values)
        cost = turns * self.size(jaxpr)
        if counters and any(isinstance(v, int) for v in values) and cost <= self.turns_left and reach.any():
            self.turns_left -= cost
        else:
            turns, counters = min(turns, 1), []
        for turn in range(turns):
            env = self.bound(jaxpr.invars[:consts], values)
            for var, start, step in counters:
                env[var] = _Number((start.value + turn * step).astype(start.value.dtype), start.known)
            self.region(jaxpr, env, reach, certain)

    def size(self, jaxpr: Any) -> int:
        """Equations that a walk takes."""
        if id(jaxpr) not in self.sizes:
            total = len(jaxpr.eqns)
            for eqn in jaxpr.eqns:
                turns = eqn.params["length"] if eqn.primitive.name == "scan" else 1
                total += turns * sum(self.size(inner) for inner in _versions.inner_jaxprs(eqn))
            self.sizes[id(jaxpr)] = total
        return self.sizes[id(jaxpr)]

    def loop(self, eqn: Any, values: list[Any], reach: Mask, certain: Mask) -> None:
        params = eqn.params
        cond, _ = _versions.open_jaxpr(params["cond_jaxpr"])
        body, _ = _versions.open_jaxpr(params["body_jaxpr"])
        c, b = params["cond_nconsts"], params["body_nconsts"]
        self.region(cond, self.bound(cond.invars[:c], values[:c]), reach, certain)
        before = [(use.stored, use.parts) for use in self.uses]
        self.region(body, self.bound(body.invars[:b], values[c : c + b]), reach, self.constant(False))
        for use, (stored, parts) in zip(self.uses, before):  # perhaps it runs not at all
            use.stored, use.parts = stored, parts

    # ------------------------------------------------------------------------------ memory

    def load(self, ref: int, reach: Mask, certain: Mask, part: _Spans = None, kind: Kind = Kind.UNKNOWN) -> None:
        """`part`: the positions; None: not known, or all."""
        use = self.uses[ref]
        use.kinds.add(kind)
        if not reach.any():
            return
        use.read = True
        use.exposed = _fit(use.exposed | reach & ~use.stored & ~coverage.covered(use.parts, part), np.any)
        use.carries = _fit(use.carries | certain & ~use.written, np.all)

    def store(self, ref: int, reach: Mask, part: _Spans = None, whole: bool = False, kind: Kind = Kind.UNKNOWN) -> None:
        """Where it may run. What is stored in part before it is loaded keeps what it had elsewhere. `part`: None: not known."""
        use = self.uses[ref]
        use.kinds.add(kind)
        if not reach.any():
            return
        use.written = _fit(use.written | reach, np.any)
        # Control is here, or `stored` has nothing of the point.
        if whole:
            use.stored = _fit(use.stored | reach, np.all)
        elif part is not None and not use.stored.all():
            use.parts = coverage.add(use.parts, coverage.Part(reach, tuple(part)))
            use.stored = _fit(use.stored | coverage.covered(use.parts[-1:], None), np.all)

    def part(self, eqn: Any, values: Sequence[Any], transforms: Sequence[Any]) -> _Spans:
        """The positions along each dimension that an index takes; None: not known. The transforms are of the equation's operands."""
        if len(transforms) != 1 or type(transforms[0]).__name__ != "NDIndexer":
            return None
        known = {id(a): v for a, v in zip(eqn.invars, values)}
        spans = []
        for index, extent in zip(transforms[0].indices, transforms[0].shape):
            start, size, stride = (index.start, index.size, index.stride) if hasattr(index, "stride") else (index, 1, 1)
            value = start if isinstance(start, (int, np.integer)) else known.get(id(start))
            if not isinstance(size, int) or not isinstance(stride, int):
                return None
            if isinstance(value, _Number) and value.known.all():
                value = value.value
            elif isinstance(value, (_Number, _Symbol)):
                spans.append(coverage.Unknown(self.name(value), size, stride))
                continue
            elif value is None:
                return None
            found = coverage.span(np.asarray(value).reshape(np.shape(value) or (1,) * self.rank), size, stride, extent)
            if found is None:
                return None
            spans.append(found)
        return spans


def _fit(mask: Mask, how: Callable[..., Any]) -> Mask:
    return mask if mask.size <= MAX_POINTS else np.full((1,) * mask.ndim, how(mask))


def _is_scalar(aval: Any) -> bool:
    return getattr(aval, "shape", None) == () and getattr(aval.dtype, "kind", "") in "iub"


# ------------------------------------------------------------------------------------------ primitives


def _counters(jaxpr: Any, consts: int, carries: int, values: Sequence[Any]) -> list[tuple[Any, _Number, int]]:
    """Carries of a scan that begin at a number and grow by a constant in each turn: the variable, the number, the constant."""
    made = {v: e for e in jaxpr.eqns for v in e.outvars}
    found = []
    for k in range(carries):
        var, start, eqn = jaxpr.invars[consts + k], values[consts + k], made.get(_variable(jaxpr.outvars[k]))
        if not isinstance(start, _Number) or eqn is None or eqn.primitive.name != "add":
            continue
        steps = [_versions.literal_value(a) for a in eqn.invars if _versions.is_literal(a)]
        if len(steps) == 1 and any(a is var for a in eqn.invars):
            found.append((var, start, int(steps[0])))
    return found


def _variable(atom: Any) -> Any:
    return None if _versions.is_literal(atom) else atom


def _others(walk: _Walk, values: Sequence[Any], reach: Mask, certain: Mask) -> None:
    """References among indices and values are loaded."""
    for ref in values:
        if isinstance(ref, int):
            walk.load(ref, reach, certain)


def _access(walk: _Walk, eqn: Any, values: list[Any], reach: Mask, certain: Mask) -> None:
    """A load, a store, both, or an update."""
    access = _versions.access_of(eqn)
    assert access is not None
    if access.value is None and not any(v in walk.stored for v in eqn.outvars):
        certain = walk.constant(False)
    _others(walk, values[1:], reach, certain)
    ref = values[0]
    if not isinstance(ref, int):
        return
    part = walk.part(eqn, values, access.transforms)
    walk.uses[ref].is_sliced &= access.is_sliced
    kind = Kind.UNORDERED if access.is_unordered else Kind.WHOLE if access.is_whole else Kind.IN_PART
    if access.loads or any(v in walk.used for v in eqn.outvars):
        walk.load(ref, reach, certain if access.mask is None else walk.constant(False), part, kind)
    if access.value is None:
        return
    if access.mask is not None or access.is_unordered:  # perhaps nothing
        walk.store(ref, reach, kind=kind)
    else:
        walk.store(ref, reach, part, access.is_whole and not access.loads, kind)


def _parts_of_stores(jaxpr: Any, results: Sequence[bool] = ()) -> set[Any]:
    """Variables that something stored is made of, whatever is chosen (`jnp.where` may do without), or one of these results."""
    parts = {a for a, wanted in zip(jaxpr.outvars, results) if wanted and not _versions.is_literal(a)}
    for eqn in reversed(jaxpr.eqns):
        name, inputs = eqn.primitive.name, eqn.invars
        if name in ("select_n", "cond", "scan", "while"):
            continue
        access = _versions.access_of(eqn)
        if access is not None and access.mask is not None:
            continue
        if access is not None and access.value is not None:
            inputs = [access.value]
        else:
            wanted = [v in parts for v in eqn.outvars]
            callee = eqn.params.get(_versions.CALLS.get(name, ""))
            inner = None if callee is None else _versions.open_jaxpr(callee)[0]
            if inner is not None and len(inner.invars) == len(inputs):
                inside = _parts_of_stores(inner, wanted)
                inputs = [a for a, v in zip(inputs, inner.invars) if v in inside]
            elif not any(wanted):
                continue
        parts.update(a for a in inputs if not _versions.is_literal(a))
    return parts


def _copy(walk: _Walk, eqn: Any, values: list[Any], reach: Mask, certain: Mask) -> None:
    """An asynchronous copy: from the first reference to the second."""
    source, target = values[:2]
    params = eqn.params
    trees = [params[f"{which}_transforms_treedef"] for which in ("src", "dst")]
    counts = [0 if tree is None else tree.num_leaves for tree in trees]
    refs = 3 if eqn.primitive.name == "copy_gmem_to_smem" and params.get("has_barrier", True) else 2
    leaves = [eqn.invars[refs:][: counts[0]], eqn.invars[refs + counts[0] :][: counts[1]]]
    views: list[Any] = [() if tree is None else tree.unflatten(given) for tree, given in zip(trees, leaves)]
    _others(walk, values[2:], reach, certain)
    if isinstance(source, int):
        walk.load(source, reach, certain, walk.part(eqn, values, views[0]))
    if isinstance(target, int):
        if params.get("has_user_predicate", False) or params.get("reduction_op") is not None:  # perhaps nothing, or a sum
            walk.store(target, reach)
        else:
            walk.store(target, reach, walk.part(eqn, values, views[1]), all(_versions.is_whole_index(t) for t in views[1]))


def _dma(walk: _Walk, eqn: Any, values: list[Any], reach: Mask, certain: Mask) -> None:
    """A TPU's copy."""
    copy = _versions.dma_of(eqn)
    _others(walk, [v for i, v in enumerate(values) if i not in (0, copy.target_at)], reach, certain)
    source, target = values[0], values[copy.target_at]
    if isinstance(source, int):
        walk.load(source, reach, certain, walk.part(eqn, values, copy.source))
    if isinstance(target, int):
        if eqn.params.get("add", False):
            walk.load(target, reach, certain, walk.part(eqn, values, copy.target))
        walk.store(target, reach, walk.part(eqn, values, copy.target), all(_versions.is_whole_index(t) for t in copy.target))


_MEMORY: dict[str, Callable[[_Walk, Any, list[Any], Mask, Mask], None]] = {
    **dict.fromkeys(
        "get load swap store addupdate masked_load masked_swap atomic_rmw atomic_cas smalt_access".split(), _access
    ),
    "dma_start": _dma,
    "dma_wait": lambda *_: None,
    "copy_gmem_to_smem": _copy,
    "copy_smem_to_gmem": _copy,
}


def _divide(eqn: Any, x: Any, y: Any) -> Any:
    """Towards zero, as integers are."""
    x, y = x.astype(np.int64), np.where(y == 0, 1, y).astype(np.int64)
    return np.sign(x) * np.sign(y) * (np.abs(x) // np.abs(y))


def _choose(eqn: Any, which: Any, *cases: Any) -> Any:
    return np.select([which.astype(np.int64) == n for n in range(len(cases))], np.broadcast_arrays(*cases))


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda _, x, y: x + y,
    "sub": lambda _, x, y: x - y,
    "mul": lambda _, x, y: x * y,
    "div": _divide,
    "rem": lambda _, x, y: np.fmod(x, np.where(y == 0, 1, y)),
    "neg": lambda _, x: -x,
    "abs": lambda _, x: np.abs(x),
    "sign": lambda _, x: np.sign(x),
    "max": lambda _, x, y: np.maximum(x, y),
    "min": lambda _, x, y: np.minimum(x, y),
    "eq": lambda _, x, y: x == y,
    "ne": lambda _, x, y: x != y,
    "lt": lambda _, x, y: x < y,
    "le": lambda _, x, y: x <= y,
    "gt": lambda _, x, y: x > y,
    "ge": lambda _, x, y: x >= y,
    "and": lambda _, x, y: x & y,
    "or": lambda _, x, y: x | y,
    "xor": lambda _, x, y: x ^ y,
    "not": lambda _, x: ~x,
    "select_n": _choose,
    "convert_element_type": lambda eqn, x: x.astype(eqn.outvars[0].aval.dtype),
    "stop_gradient": lambda _, x: x,
    "copy": lambda _, x: x,
}
