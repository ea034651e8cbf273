"""A TPU's copies (`pltpu.make_async_copy`, `pltpu.sync_copy`, and what `pltpu.emit_pipeline` makes of blocks).

**From device memory to shared memory** a copy is a bulk copy (TMA) where it has the form of one: `start` issues it, and what follows runs
beside it. Its semaphore is an mbarrier of one arrival, which is `wait`'s: `start` announces its bytes and does not arrive, so that any number of
copies may be in flight on one semaphore, and a phase is over when a thread waits and nothing is in flight. A wait is for all of them,
then: more than its own copy, where several share a semaphore.

**Others** are loads and stores where they begin, since a copy may be over as soon as it has begun: a wait finds nothing in flight. Where a kernel
has no other ones, its semaphores count nothing, and waits do nothing. Copies to other devices are refused.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax

from smalt import _expand, _messages, _primitives, _registry, _versions
from smalt._errors import InvalidKernel, Unsupported
from smalt._walk import OpParts, Walker

#: Elements that are in registers at once: 32 a thread.
CHUNK = 4096
#: What a TPU's arrays are padded to, at most: along the last dimension, and others.
MINOR_TILE, TILE = 128, 32
#: Bytes: of what rows of a bulk copy, and places in device memory, are multiples, and of what places in shared memory are.
ROW, PLACE = 16, 128
#: Most dimensions of a tensor map.
RANK = 5

RULES: dict[str, Callable[[Walker, Any], OpParts]] = {}

_rule = _registry.into(RULES)


@_rule("dma_start")
def _dma_start(w: Walker, eqn: Any) -> OpParts:
    copy = _versions.dma_of(eqn)
    if copy.device_id is not None:
        raise Unsupported(
            "not supported yet: a copy to another device by pltpu.make_async_remote_copy\n  expected: a copy on one device"
            "\n  remedy: plgpu.kernel with plgpu.remote_ref(ref, device_id) and plgpu.SemaphoreType.REGULAR"
        )

    # A block may be where its array is.
    if id(eqn) in w.bulk_copies and (w.binding(eqn.invars[0]).space, w.binding(eqn.invars[copy.target_at]).space) == ("GMEM", "SMEM"):
        return _begin(w, eqn)

    def function(*operands: Any) -> tuple[()]:
        _bounded(*_versions.dma_views(eqn, operands), copy_pieces)
        return ()

    def copy_pieces(source: Any, target: Any) -> None:
        if (wanted := _describe(source)) != (given := _describe(target)):
            raise InvalidKernel(
                f"a copy between references that differ\n  expected: a target of {wanted}, as its source\n  got: {given}"
                "\n  remedy: take equal parts of both (ref.at[...]), and convert where arrays are in registers: ref[...] = other[...].astype(dtype)"
            )
        _move(source, target, eqn.params.get("add", False))

    atoms = eqn.invars[: copy.operands]
    return _call(w, eqn, function, atoms, [a.aval for a in atoms])


@_rule("dma_wait")
def _dma_wait(w: Walker, eqn: Any) -> OpParts:
    if not w.bulk_copies:
        return _call(w, eqn, lambda: (), [], [])

    def function(*operands: Any) -> tuple[()]:
        _, _, semaphore = _versions.dma_refs(eqn, operands)
        _primitives.mbarrier_arrive(semaphore)
        plgpu.barrier_wait(semaphore)
        return ()

    return _call(w, eqn, function, eqn.invars, [_seen(a.aval) for a in eqn.invars])


def _call(w: Walker, eqn: Any, function: Callable[..., Any], atoms: Sequence[Any], avals: Sequence[Any]) -> OpParts:
    body = w.expansion(_expand.trace(function, avals, []), atoms)
    return OpParts(attrs=_messages.attributes({"name": _versions.primitive_name(eqn)}), regions=[body], primitive="call")


# ------------------------------------------------------------------------------------------ bulk copies


def bulk_copies(jaxpr: Any, divisors: Mapping[Any, int] | None = None) -> list[Any]:
    """The equations of a kernel that begin copies which run beside what follows. `divisors`: by what its operands can be divided."""
    own = _Divisors(jaxpr, divisors or {})
    found = []
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if name == "dma_start" and _is_bulk(eqn, own):
            found.append(eqn)
        inner = [eqn.params["body"].jaxpr] if name == "pallas_block" else _versions.inner_jaxprs(eqn)
        for body in inner:
            variables = body.constvars if name == "run_scoped" else body.invars if name == "cond" or name in _versions.CALLS else []
            operands = eqn.invars[len(eqn.invars) - len(variables) :]
            found += bulk_copies(body, {v: own.of(a) for v, a in zip(variables, operands)})
    return found


class _Divisors:
    """By what the integers of a jaxpr can be divided, as far as it follows from its own equations and those around it."""

    def __init__(self, jaxpr: Any, known: Mapping[Any, int]) -> None:
        self._known = known
        self._eqns = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}

    def of(self, x: Any) -> int:
        if (known := _known(x)) is not None:
            return abs(known)
        if _versions.is_literal(x) or not _versions.is_integer(getattr(x.aval, "dtype", np.bool_)):
            return 1
        if x not in self._eqns:
            return self._known.get(x, 1)
        eqn = self._eqns[x]
        match _versions.primitive_name(eqn), eqn.invars:
            case "mul", [a, b]:
                return self.of(a) * self.of(b)
            case ("add" | "sub"), [a, b]:
                return math.gcd(self.of(a), self.of(b))
            case "convert_element_type", [a]:
                return self.of(a)
            case "multiple_of", [a]:
                return math.lcm(self.of(a), *eqn.params["values"])
            case _:
                return 1


def _begin(w: Walker, eqn: Any) -> OpParts:
    def function(*operands: Any) -> tuple[()]:
        source, target, semaphore = _versions.dma_refs(eqn, operands)
        _primitives.expect_bytes(semaphore, math.prod(target.shape) * jnp.dtype(target.dtype).itemsize, arrive=False)
        plgpu.copy_gmem_to_smem(source, target, semaphore, **_versions.copy_in_bounds())
        return ()

    return _call(w, eqn, function, eqn.invars, [_seen(a.aval) for a in eqn.invars])


def _seen(aval: Any) -> Any:
    """A reference as a GPU's copies have it: a semaphore is a barrier, and memories have a GPU's names."""
    if not _versions.is_ref_aval(aval):
        return aval
    if _messages.is_semaphore_of_copies(aval):
        return _versions.as_barrier(aval)
    space = {"GMEM": plgpu.GMEM, "SMEM": plgpu.SMEM}.get(_messages.memory_space(aval))
    return aval if space is None else aval.update(memory_space=space)


def _is_bulk(eqn: Any, divisors: _Divisors) -> bool:
    """Whether a copy can be one by TMA. Rows of both are whole multiples of 16 bytes that begin at such; shared memory is one piece."""
    copy = _versions.dma_of(eqn)
    source, target = eqn.invars[0].aval, eqn.invars[copy.target_at].aval
    if copy.device_id is not None or eqn.params.get("add", False):
        return False
    if (_messages.memory_space(source), _messages.memory_space(target)) != ("GMEM", "SMEM"):
        return False
    dtype = source.inner_aval.dtype
    if dtype != target.inner_aval.dtype or not _is_plain(dtype):
        return False
    bytes_ = jnp.dtype(dtype).itemsize
    taken, placed = _Part.of(source.inner_aval.shape, copy.source), _Part.of(target.inner_aval.shape, copy.target)
    if taken is None or placed is None or taken.shape != placed.shape or 0 in taken.shape or len(taken.extents) > RANK:
        return False
    return taken.has_whole_rows(bytes_, divisors) and placed.is_one_piece(bytes_, divisors)


def _is_plain(dtype: Any) -> bool:
    """Numbers of whole bytes."""
    if not _messages.is_dtype(dtype):
        return False
    is_float = jnp.issubdtype(dtype, jnp.floating)
    return is_float and jnp.finfo(dtype).bits >= 8 or jnp.issubdtype(dtype, jnp.integer) and jnp.iinfo(dtype).bits >= 8


def _known(index: Any) -> int | None:
    """A position, if it is known here."""
    if _versions.is_literal(index):
        return int(_versions.literal_value(index)) if _versions.is_integer(index.aval.dtype) else None
    return int(index) if isinstance(index, (int, np.integer)) else None


@dataclasses.dataclass
class _Part:
    """A view by slices and numbers, along each dimension of its array."""

    extents: Sequence[int]
    starts: list[list[Any]]  # numbers and variables, whose sum it is
    sizes: list[int]
    kept: list[int]  # dimensions that the view has

    @staticmethod
    def of(extents: Sequence[int], transforms: Sequence[Any]) -> _Part | None:
        """None of a view that is made otherwise, or whose size is computed."""
        part = _Part(extents, [[] for _ in extents], list(extents), list(range(len(extents))))
        for t in transforms:
            if type(t).__name__ != "NDIndexer":
                return None
            kept = []
            for d, index in zip(part.kept, t.indices, strict=True):
                is_slice = _versions.is_slice(index)
                if _versions.is_gather(index) or is_slice and not (isinstance(index.size, int) and index.stride == 1):
                    return None
                part.starts[d].append(index.start if is_slice else index)
                part.sizes[d] = index.size if is_slice else 1
                if is_slice:
                    kept.append(d)
            part.kept = kept
        return part

    @property
    def shape(self) -> list[int]:
        return [self.sizes[d] for d in self.kept]

    def has_whole_rows(self, bytes_: int, divisors: _Divisors) -> bool:
        if not self.kept or self.kept[-1] != len(self.extents) - 1:
            return False
        numbers = [*map(divisors.of, self.starts[-1]), self.sizes[-1], self.extents[-1]]
        return all(n * bytes_ % ROW == 0 for n in numbers)

    def is_one_piece(self, bytes_: int, divisors: _Divisors) -> bool:
        stride, is_whole = bytes_, True
        for starts, size, extent in zip(reversed(self.starts), reversed(self.sizes), reversed(self.extents)):
            if not is_whole and size != 1:
                return False
            if size != extent:
                is_whole = False
                if any(divisors.of(start) * stride % PLACE for start in starts):
                    return False
            stride *= extent
        return True


# ------------------------------------------------------------------------------------------ loads and stores


def _bounded(source: Any, target: Any, copy: Callable[[Any, Any], None]) -> None:
    """Slices of traced sizes, as those of a pipeline whose blocks do not divide their arrays, go position by position along these dimensions."""
    ends, extents = [], []
    for ref in (source, target):
        base, transforms = _versions.ref_and_transforms(ref)
        indices = _versions.indices_of(transforms)
        ends.append((_versions.seen_through(base, transforms[:-1] if indices else transforms), list(indices)))
        extents.append(tuple(transforms[-1].shape) if indices else ())
    slices = [[d for d, i in enumerate(indices) if _versions.is_slice(i)] for _, indices in ends]
    if len(slices[0]) != len(slices[1]):
        copy(source, target)
        return
    pairs = [at for at in zip(*slices) if not all(isinstance(indices[d].size, int) for d, (_, indices) in zip(at, ends))]

    def go(rest: Sequence[tuple[int, ...]]) -> None:
        if not rest:
            copy(*(base.at[tuple(_as_slice(i) for i in indices)] if indices else base for base, indices in ends))
            return
        own = [indices[d] for d, (_, indices) in zip(rest[0], ends)]

        def one(i: Any) -> None:
            for d, (_, indices), index in zip(rest[0], ends, own):
                indices[d] = index.start + i * index.stride
            go(rest[1:])

        turns = own[0].size
        for d, shape, index in zip(rest[0], extents, own):
            turns = _in_array(turns, index, shape[d], MINOR_TILE if d == len(shape) - 1 else TILE)
        _loop(turns, one)
        for d, (_, indices), index in zip(rest[0], ends, own):
            indices[d] = index

    if pairs:
        go(pairs)
    else:
        copy(source, target)


def _in_array(size: Any, index: Any, extent: int, tile: int) -> Any:
    """How much of a slice is in the array, if what is not is less than a tile: that is padding, on a TPU. More is left, and is an error."""
    room = extent - index.start
    return jnp.where((size > room) & (size - room < tile), room, size) if index.stride == 1 else size


def _as_slice(index: Any) -> Any:
    return pl.ds(index.start, index.size, index.stride) if _versions.is_slice(index) else index


def _describe(ref: Any) -> str:
    return f"{jnp.dtype(ref.dtype).name}{list(ref.shape)}"


def _move(source: Any, target: Any, adds: bool) -> None:
    """In pieces that fit into registers."""

    def piece(index: tuple[Any, ...]) -> None:
        target[index] = target[index] + source[index] if adds else source[index]

    def go(outer: tuple[Any, ...], dims: tuple[int, ...]) -> None:
        whole = (slice(None),) * len(dims)
        if math.prod(dims) <= CHUNK:
            piece((*outer, *whole) or (...,))
            return
        n, inner = dims[0], math.prod(dims[1:])
        if inner > CHUNK:
            _loop(n, lambda i: go((*outer, i), dims[1:]))
            return
        most = CHUNK // inner
        if adds:  # each element once
            most = max(k for k in range(1, most + 1) if n % k == 0)

        def some(i: Any) -> None:
            piece((*outer, pl.ds(jnp.minimum(i * most, n - most), most), *whole[1:]))

        _loop(-(-n // most), some)

    go((), tuple(target.shape))


def _loop(turns: Any, do: Callable[[Any], None]) -> None:
    def turn(i: Any, carry: None) -> None:
        do(i)

    lax.fori_loop(jnp.int32(0), jnp.asarray(turns, jnp.int32), turn, None)
