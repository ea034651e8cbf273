"""Fences, and accesses to memory whose order the author gives, as primitives: each is a text of PTX.

Where a reference's memory is, and its strides, are known when the kernel is written (blocks of a `pl.pallas_call` are
views of arrays, or slots): an access is a primitive until then, and `text` is what it becomes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.numpy as jnp
import numpy as np

from smalt import _versions
from smalt._errors import InvalidKernel
from smalt._primitives import batching, texts
from smalt._primitives.texts import inline_ptx

_SCOPES = ("cta", "cluster", "gpu", "sys")


def _choose(name: str, what: str, got: Any, known: Sequence[Any]) -> None:
    if got not in known:
        raise InvalidKernel(f"smalt.{name}: `{what}`\n  expected: one of {', '.join(map(repr, known))}\n  got: {got!r}")


def fence(order: str = "acq_rel", scope: str = "gpu", *, shared_only: bool = False) -> None:
    """A fence of every thread: what it did before, and what others did before theirs, in the order of PTX's memory model.

    Args:
        order: "acq_rel", "acquire", "release", or "sc" (one order of all such fences).
        scope: "cta", "cluster", "gpu" or "sys": the threads among which it orders.
        shared_only: Orders accesses to shared memory alone (`.sync_restrict`): an acquire or release of scope "cluster", cheaper than one of
            all memory. A release orders what was done to the block's own shared memory.
    """
    _choose("fence", "order", order, ("acq_rel", "acquire", "release", "sc"))
    _choose("fence", "scope", scope, _SCOPES)
    if not shared_only:
        inline_ptx(f"fence.{order}.{scope};")
        return
    if scope != "cluster" or order not in ("acquire", "release"):
        raise InvalidKernel(
            "smalt.fence: `shared_only`\n  expected: order 'acquire' or 'release', scope 'cluster'"
            f"\n  got: order {order!r}, scope {scope!r}\n  remedy: leave out shared_only: within a block, fences are cheap"
        )
    inline_ptx(f"fence.{order}.sync_restrict::shared::{'cluster' if order == 'acquire' else 'cta'}.cluster;")


def fence_proxy_async(space: str | None = None) -> None:
    """Orders what the thread has done, and has seen done, before what copies, `wgmma` and other units do behind it (and the other way round).

    `plgpu.commit_smem` is one for shared memory behind which the warpgroup passes a barrier.

    Args:
        space: "shared::cta", "shared::cluster", "global"; None: all of them.
    """
    _choose("fence_proxy_async", "space", space, (None, "shared::cta", "shared::cluster", "global"))
    inline_ptx(f"fence.proxy.async{'' if space is None else '.' + space};")


# ------------------------------------------------------------------------------------------ accesses

#: Bytes from one element to the next that an instruction of 32 bits multiplies by.
NEAR = 1 << 31

access_p = texts.new("access")


@access_p.def_effectful_abstract_eval  # type: ignore[untyped-decorator]
def _access_abstract_eval(ref: Any, *_: Any, access: Access, shape: tuple[int, ...], dtype: Any, **__: Any) -> Any:
    results = (_versions.array_aval(shape, dtype),) if access.gives else ()
    return results, _versions.effects_of_memory([ref], only_reads=access.instruction == "ld")


batching.register_access(access_p)


@dataclasses.dataclass(frozen=True)
class Access:
    """The static part of an access; its operands are the address, offsets in elements, values, and a mask."""

    called: str
    instruction: str  # "ld", "st", "atom"
    order: str  # with the scope: "acquire.gpu"
    operation: str  # of an atomic with its type, "add.u32"; of others the type
    bytes: int  # of an element
    offsets: int = 0
    values: int = 0
    gives: bool = False
    is_masked: bool = False
    #: An instruction: the atomic is a loop of compare-and-swap around it.
    by_swap: str | None = None

    def text(self, space: str, strides: Sequence[int]) -> str:
        """The access as PTX, for elements of these strides along each offset."""
        address = int(self.gives)
        first = address + 1 + self.offsets
        values = [f"{{{first + i}}}" for i in range(self.values)]
        mask = f"{{{first + self.values}}}" if self.is_masked else ""
        declared, steps, at = [], [], f"{{{address}}}"
        for i, stride in enumerate(strides):
            offset, distance = f"{{{address + 1 + i}}}", stride * self.bytes
            if distance < NEAR:
                steps.append(f"mad.wide.s32 at, {offset}, {distance}, {at};")
            else:
                declared.append(".reg .b64 far;")
                steps.append(f"cvt.s64.s32 far, {offset}; mad.lo.s64 at, far, {distance}, {at};")
            at = "at"
        if strides:
            declared.append(".reg .b64 at;")
        if self.by_swap is None:
            operands = ", ".join([*["{0}"] * self.gives, f"[{at}]", *values])
            guard = f"@{mask} " if mask else ""
            steps.append(f"{guard}{self.instruction}.{self.order}.{space}.{self.operation} {operands};")
        else:
            bits = f"b{8 * self.bytes}"
            scope = self.order.split(".")[-1]
            declared.append(f".reg .{bits} old, new; .reg .pred again;")
            steps += [f"@!{mask} bra done;"] * self.is_masked
            steps += [
                f"ld.relaxed.{scope}.{space}.{bits} old, [{at}];",
                f"once: {self.by_swap} new, old, {values[0]};",
                f"atom.{self.order}.{space}.cas.{bits} new, [{at}], old, new;",
                f"setp.ne.u{8 * self.bytes} again, new, old; mov.{bits} old, new; @again bra once;",
                f"mov.{bits} {{0}}, old;",
            ]
            steps += ["done:"] * self.is_masked
        body = " ".join([*dict.fromkeys(declared), *steps])
        return f"{{ {body} }}" if declared else body


def load(ref: Any, *, order: str = "relaxed", scope: str = "gpu") -> Any:
    """Loads from a reference that others change meanwhile.

    Of one element (SMEM or GMEM) one thread of the warpgroup (of the warp in a warp region) loads for all, behind a barrier of them. Of an
    array in GMEM every thread loads its elements.

    Args:
        ref: A reference, or a part of one (`ref.at[i]`).
        order: "relaxed", "acquire" (what the storing thread stored before the value is visible behind it), or "volatile".
        scope: "cta", "cluster", "gpu" or "sys": the scope of the threads that store there.
    """
    _choose("load", "order", order, ("relaxed", "acquire", "volatile"))
    place = _Place("load", ref, scope)
    return place.run("ld", "volatile" if order == "volatile" else f"{order}.{scope}", place.type, gives=True)


def volatile_load(name: str, ref: Any, mask: Any = None) -> Any:
    """`load` with the order "volatile", of what a mask chooses; elsewhere 0. `name`: of the function, as errors have it."""
    place = _Place(name, ref, "gpu")
    return place.run("ld", "volatile", place.type, (), mask, gives=True)


def store(ref: Any, value: Any, *, order: str = "relaxed", scope: str = "gpu") -> None:
    """Stores into a reference that others read meanwhile; of one element, one thread does, behind a barrier.

    Args:
        ref: A reference, or a part of one (`ref.at[i]`).
        value: A scalar, or an array of the reference's shape.
        order: "relaxed", "release" (who acquires there sees what was stored before), or "volatile".
        scope: "cta", "cluster", "gpu" or "sys": how far away those are who look.
    """
    _choose("store", "order", order, ("relaxed", "release", "volatile"))
    place = _Place("store", ref, scope)
    place.run("st", "volatile" if order == "volatile" else f"{order}.{scope}", place.type, [place.value(value)])


#: PTX's atomics: the types that each has.
_ATOMICS = {
    "add": {"uint32": "u32", "int32": "s32", "uint64": "u64", "int64": "u64", "float32": "f32", "float64": "f64", "float16": "noftz.f16", "bfloat16": "noftz.bf16"},
    "min": {"uint32": "u32", "int32": "s32", "uint64": "u64", "int64": "s64"},
    "max": {"uint32": "u32", "int32": "s32", "uint64": "u64", "int64": "s64"},
    **{op: dict.fromkeys(("uint32", "int32"), "b32") | dict.fromkeys(("uint64", "int64"), "b64") for op in ("and", "or", "xor")},
    **{
        op: dict.fromkeys(("uint32", "int32", "float32"), "b32") | dict.fromkeys(("uint64", "int64", "float64"), "b64")
        for op in ("exch", "cas")
    },
}
#: Those that are loops of compare-and-swap.
_BY_SWAP = {op: {"float32": "f32", "float64": "f64"} for op in ("min", "max")}


def atomic(name: str, op: str, ref: Any, values: Sequence[Any], order: str, scope: str, mask: Any = None) -> Any:
    """What is there before an atomic; `mask`: of the reference's shape, or a scalar: where it is false, nothing is done, and 0 is given.

    `name`: of the function, as errors have it.
    """
    _choose(name, "order", order, ("relaxed", "acquire", "release", "acq_rel"))
    place = _Place(name, ref, scope)
    types, swapped = _ATOMICS[op], _BY_SWAP.get(op, {})
    dtype = str(place.dtype)
    if dtype not in types and dtype not in swapped:
        raise InvalidKernel(
            f"{place.called} of {dtype}\n  expected: one of {', '.join((*types, *swapped))}\n  got: a reference to {dtype}"
            "\n  remedy: keep such words in one of these types, and convert what is loaded: x.astype(…)"
        )
    by_swap = f"{op}.{swapped[dtype]}" if dtype in swapped else None
    operation = f"{op}.{types.get(dtype, '')}"
    return place.run("atom", f"{order}.{scope}", operation, [place.value(v) for v in values], mask, gives=True, by_swap=by_swap)


_DOCUMENTATION = """{does}, and gives what was there before.

    Of one element one thread of the warpgroup (of the warp in a warp region) does it, behind a barrier of them; of an array in GMEM every
    thread does it for its elements.{more}

    Args:
        ref: A reference, or a part of one (`ref.at[i]`, `ref.at[indices]`).
        {args}
        order: "relaxed", "acquire", "release" or "acq_rel".
        scope: "cta", "cluster", "gpu" or "sys": among which threads it is one.
    """
_OF_FLOATS = " Of floats it is a loop of compare-and-swap; a number wins\n    over NaN, and -0 is smaller than +0."


def _named(name: str, op: str, does: str) -> Any:
    def function(ref: Any, value: Any, *, order: str = "relaxed", scope: str = "gpu") -> Any:
        return atomic(name, op, ref, [value], order, scope)

    function.__name__ = function.__qualname__ = name
    more = _OF_FLOATS if op in _BY_SWAP else ""
    function.__doc__ = _DOCUMENTATION.format(does=does, more=more, args="value: A scalar, or an array of the reference's shape.")
    return function


atomic_add = _named("atomic_add", "add", "Adds to memory")
atomic_min = _named("atomic_min", "min", "Stores the minimum")
atomic_max = _named("atomic_max", "max", "Stores the maximum")
atomic_and = _named("atomic_and", "and", "Stores the bitwise and")
atomic_or = _named("atomic_or", "or", "Stores the bitwise or")
atomic_xor = _named("atomic_xor", "xor", "Stores the bitwise exclusive or")
atomic_exchange = _named("atomic_exchange", "exch", "Stores a value")


def atomic_cas(ref: Any, expected: Any, value: Any, *, order: str = "relaxed", scope: str = "gpu") -> Any:
    return atomic("atomic_cas", "cas", ref, [expected, value], order, scope)


atomic_cas.__doc__ = _DOCUMENTATION.format(
    does="Stores `value` where `expected` is there (bit for bit)",
    more="",
    args="expected: A scalar, or an array of the reference's shape.\n        value: The same.",
)

#: Threads of a warpgroup: of so many elements, each has as many.
_WARPGROUP = 128


class _Place:
    """What an access is made to."""

    def __init__(self, name: str, ref: Any, scope: str) -> None:
        _choose(name, "scope", scope, _SCOPES)
        self.called = name if "." in name else f"smalt.{name}"
        base, chain = _versions.split_ref(ref)
        if chain is None:
            raise InvalidKernel(
                f"{self.called} of something that is no reference\n  expected: a reference to SMEM or GMEM, or ref.at[…]"
                f"\n  got: {type(ref).__name__}\n  remedy: pass the reference itself, not what was loaded from it"
            )
        self.ref = ref
        self.kind = _versions.kind_of_memory(base)
        is_number = jax.dtypes.issubdtype(ref.dtype, np.integer) or jax.dtypes.issubdtype(ref.dtype, np.floating)
        if self.kind is None or not is_number:
            raise InvalidKernel(
                f"{self.called} of something else\n  got: a reference to {ref.dtype}"
                "\n  expected: numbers of 8 to 64 bits in SMEM or GMEM\n  remedy: keep flags as int32"
            )
        self.shape, self.dtype = tuple(ref.shape), np.dtype(ref.dtype)
        if self.dtype.itemsize > 8 or self.dtype.itemsize * 8 != _versions.bits_of(self.dtype):
            raise InvalidKernel(f"{self.called} of {self.dtype}\n  expected: numbers of 8, 16, 32 or 64 bits\n  remedy: keep flags as int32")
        if self.shape:
            check_array(self.called, self.shape, self.kind)
        signed = np.issubdtype(self.dtype, np.signedinteger)
        self.type = {1: "s8" if signed else "u8", 2: "b16", 4: "b32", 8: "b64"}[self.dtype.itemsize]

    def value(self, x: Any) -> Any:
        if isinstance(x, (bool, int, float)):
            x = self._number(x)
        x = texts.operand(x)
        if x.dtype != self.dtype and not getattr(x, "weak_type", False):
            raise InvalidKernel(
                f"{self.called}: a value of another type\n  expected: {self.dtype}, the reference's\n  got: {x.dtype}"
                f"\n  remedy: x.astype(jnp.{self.dtype})"
            )
        return self._fitting("value", x.astype(self.dtype))

    def _fitting(self, what: str, x: Any) -> Any:
        if x.shape not in ((), self.shape):
            raise InvalidKernel(
                f"{self.called}: a {what} of another shape\n  expected: {list(self.shape)}, the reference's, or a scalar\n  got: {list(x.shape)}"
                + (f"\n  remedy: pass the {what} of one element, x[i]" if not self.shape else f"\n  remedy: jnp.broadcast_to or jnp.reshape the {what}, or take as much of the reference: ref.at[…]")
            )
        return x

    def _number(self, x: bool | int | float) -> Any:
        """A Python number in the reference's type, if it has it."""
        is_float = jax.dtypes.issubdtype(self.dtype, np.floating)
        fits = is_float or not isinstance(x, float)
        if fits and not is_float:
            info = jnp.iinfo(self.dtype)
            fits = int(info.min) <= int(x) <= int(info.max)
        if not fits:
            raise InvalidKernel(
                f"{self.called}: a value of another type\n  expected: {self.dtype}, the reference's\n  got: {x!r}"
                "\n  remedy: a number that the type has, or convert it: jnp.asarray(x).astype(…)"
            )
        return np.asarray(x).astype(self.dtype)

    def run(
        self,
        instruction: str,
        order: str,
        operation: str,
        values: Sequence[Any] = (),
        mask: Any = None,
        *,
        gives: bool = False,
        by_swap: str | None = None,
    ) -> Any:
        """One instruction of the address and the values, for each element; what it gives, if it does."""
        access = Access(
            self.called, instruction, order, operation, self.dtype.itemsize, 0, len(values), gives, mask is not None, by_swap
        )
        masks = [] if mask is None else [self._fitting("mask", texts.operand(mask))]
        if not self.shape:
            return self._bind(access, self.ref, (), [*values, *masks], ())
        count = int(np.prod(self.shape))
        if count == 0:
            return jnp.zeros(self.shape, self.dtype) if gives else None
        view, dims, offsets = self._elements(bool(masks))
        operands = [jnp.broadcast_to(x, self.shape) for x in (*offsets, *values)]
        masks = [jnp.broadcast_to(x, self.shape) for x in masks]
        shape = self.shape
        if count % _WARPGROUP:  # lanes without an element of their own do nothing
            shape = (-(-count // _WARPGROUP) * _WARPGROUP,)
            rest = shape[0] - count
            masks = masks or [jnp.broadcast_to(jnp.bool_(True), self.shape)]
            operands, masks = ([jnp.pad(x.reshape(count), (0, rest)) for x in xs] for xs in (operands, masks))
        access = dataclasses.replace(access, offsets=len(offsets), is_masked=bool(masks))
        result = self._bind(access, view, dims, [*operands, *masks], shape)
        return result if not gives or shape == self.shape else result[:count].reshape(self.shape)

    def _elements(self, masked: bool) -> tuple[Any, tuple[int, ...], list[Any]]:
        """A view, some of its dimensions, and for each element how far it is along these: arrays of indices count from the start."""
        base, chain = _versions.split_ref(self.ref)
        indices = _versions.indices_of(chain)
        if masked and indices:  # where slices reach outside, the mask may exclude that
            whole = _versions.seen_through(base, chain[:-1])
            return whole, tuple(range(len(indices))), list(positions(chain[-1], self.shape))
        slices = [i for i in indices if _versions.is_slice(i)]
        if len(slices) == len(self.shape) and all(i.stride == 1 for i in slices) or not indices:
            dims = tuple(d for d, n in enumerate(self.shape) if n != 1)
            return self.ref, dims, [jax.lax.broadcasted_iota(jnp.int32, self.shape, d) for d in dims]
        at = positions(chain[-1], self.shape, whole=False)
        parts: list[Any] = []
        offsets = []
        for index, position in zip(indices, at):
            if _versions.is_slice(index):
                parts.append(pl.ds(index.start, (index.size - 1) * index.stride + 1))
                offsets.append(position)
            elif _versions.is_gather(index):
                parts.append(slice(None))
                offsets.append(position)
            else:
                parts.append(index)
        return _versions.seen_through(base, chain[:-1]).at[tuple(parts)], tuple(range(len(offsets))), offsets

    def _bind(self, access: Access, view: Any, dims: Sequence[int], operands: Sequence[Any], shape: tuple[int, ...]) -> Any:
        base, chain = _versions.split_ref(view)
        leaves, tree = jax.tree.flatten(chain)
        results = access_p.bind(base, *leaves, *operands, tree=tree, access=access, along=tuple(dims), shape=shape, dtype=self.dtype)
        return results[0] if results else None


def positions(indexer: Any, shape: tuple[int, ...], whole: bool = True) -> tuple[Any, ...]:
    """Along each dimension that is indexed the positions of the elements, arrays of their shape; not `whole`: of slices from their start.

    As NumPy has it: dimensions of arrays of indices are where the first one is, or in front where slices are between them.
    """
    indices = indexer.indices
    slices = [i for i in indices if _versions.is_slice(i)]
    rank = len(shape) - len(slices)
    places = [d for d, i in enumerate(indices) if not _versions.is_slice(i)]
    is_one_run = not places or places[-1] - places[0] == len(places) - 1
    first = places[0] if places and is_one_run else 0
    of_slices = iter(d for d in range(len(shape)) if not first <= d < first + rank)
    found = []
    for index, extent in zip(indices, indexer.shape):
        if _versions.is_slice(index):
            steps = jax.lax.broadcasted_iota(jnp.int32, shape, next(of_slices)) * index.stride
            found.append(steps + jnp.asarray(index.start, jnp.int32) if whole else steps)
        else:
            from_end = extent if isinstance(index, int) and index < 0 else 0
            array = jnp.broadcast_to(jnp.asarray(index).astype(jnp.int32) + from_end, shape[first : first + rank])
            found.append(jax.lax.broadcast_in_dim(array, shape, range(first, first + rank)))
    return tuple(found)


def check_array(called: str, shape: Sequence[int], kind: str) -> None:
    """Elements of an array are in device memory."""
    if kind not in ("gmem", "block"):
        raise InvalidKernel(
            f"{called} of an array in shared memory\n  expected: one element of it, or an array in GMEM\n  got: shape {list(shape)}"
            "\n  remedy: ref.at[i] for a flag; ordinary loads and stores for data, with fences or barriers around them"
        )
