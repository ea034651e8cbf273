"""Fences, and accesses to memory whose order the author gives, as primitives: each is a text of PTX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from smalt import _primitives, _versions
from smalt._errors import InvalidKernel, Unsupported
from smalt._primitives import inline_ptx, run_ptx

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

    `plgpu.commit_smem` is one for shared memory behind which the warpgroup meets.

    Args:
        space: "shared::cta", "shared::cluster", "global"; None: all of them.
    """
    _choose("fence_proxy_async", "space", space, (None, "shared::cta", "shared::cluster", "global"))
    inline_ptx(f"fence.proxy.async{'' if space is None else '.' + space};")


# ------------------------------------------------------------------------------------------ accesses


def load(ref: Any, *, order: str = "relaxed", scope: str = "gpu") -> Any:
    """Loads from a reference that others change meanwhile.

    Of one element (SMEM or GMEM) one thread of the warpgroup (of the warp in a warp region) loads for all, behind a meeting of them. Of an
    array in GMEM every thread loads its elements.

    Args:
        ref: A reference, or a part of one (`ref.at[i]`).
        order: "relaxed", "acquire" (what whoever stored the value had stored before it is seen behind it), or "volatile".
        scope: "cta", "cluster", "gpu" or "sys": how far away those are who store there.
    """
    _choose("load", "order", order, ("relaxed", "acquire", "volatile"))
    place = _Place("load", ref, scope)
    suffix = "volatile" if order == "volatile" else f"{order}.{scope}"
    return place.run(f"ld.{suffix}.{place.space}.{place.type}", gives=True)


def store(ref: Any, value: Any, *, order: str = "relaxed", scope: str = "gpu") -> None:
    """Stores into a reference that others look at meanwhile; of one element, one thread does, behind a meeting.

    Args:
        ref: A reference, or a part of one (`ref.at[i]`).
        value: A scalar, or an array of the reference's shape.
        order: "relaxed", "release" (who acquires there sees what was stored before), or "volatile".
        scope: "cta", "cluster", "gpu" or "sys": how far away those are who look.
    """
    _choose("store", "order", order, ("relaxed", "release", "volatile"))
    place = _Place("store", ref, scope)
    suffix = "volatile" if order == "volatile" else f"{order}.{scope}"
    place.run(f"st.{suffix}.{place.space}.{place.type}", [place.value(value)])


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


def _atomic(name: str, op: str, ref: Any, values: Sequence[Any], order: str, scope: str) -> Any:
    _choose(name, "order", order, ("relaxed", "acquire", "release", "acq_rel"))
    place = _Place(name, ref, scope)
    types = _ATOMICS[op]
    if str(place.dtype) not in types:
        raise InvalidKernel(f"smalt.{name} of {place.dtype}\n  expected: one of {', '.join(types)}\n  got: a reference to {place.dtype}")
    opcode = f"atom.{order}.{scope}.{place.space}.{op}.{types[str(place.dtype)]}"
    return place.run(opcode, [place.value(v) for v in values], gives=True)


_DOCUMENTATION = """{does}, and gives what was there before.

    Of one element one thread of the warpgroup (of the warp in a warp region) does it, behind a meeting of them; of an array in GMEM every
    thread does it for its elements.

    Args:
        ref: A reference, or a part of one (`ref.at[i]`).
        {args}
        order: "relaxed", "acquire", "release" or "acq_rel".
        scope: "cta", "cluster", "gpu" or "sys": among which threads it is one.
    """


def _named(name: str, op: str, does: str) -> Any:
    def atomic(ref: Any, value: Any, *, order: str = "relaxed", scope: str = "gpu") -> Any:
        return _atomic(name, op, ref, [value], order, scope)

    atomic.__name__ = atomic.__qualname__ = name
    atomic.__doc__ = _DOCUMENTATION.format(does=does, args="value: A scalar, or an array of the reference's shape.")
    return atomic


atomic_add = _named("atomic_add", "add", "Adds to memory")
atomic_min = _named("atomic_min", "min", "Puts the smaller one into memory")
atomic_max = _named("atomic_max", "max", "Puts the larger one into memory")
atomic_and = _named("atomic_and", "and", "Puts the bitwise and into memory")
atomic_or = _named("atomic_or", "or", "Puts the bitwise or into memory")
atomic_xor = _named("atomic_xor", "xor", "Puts the bitwise exclusive or into memory")
atomic_exchange = _named("atomic_exchange", "exch", "Puts a value into memory")


def atomic_cas(ref: Any, expected: Any, value: Any, *, order: str = "relaxed", scope: str = "gpu") -> Any:
    return _atomic("atomic_cas", "cas", ref, [expected, value], order, scope)


atomic_cas.__doc__ = _DOCUMENTATION.format(
    does="Puts `value` into memory where `expected` is there (bit for bit)",
    args="expected: A scalar, or an array of the reference's shape.\n        value: The same.",
)


class _Place:
    """What an access is made to."""

    def __init__(self, name: str, ref: Any, scope: str) -> None:
        _choose(name, "scope", scope, _SCOPES)
        base, chain = _versions.split_ref(ref)
        if chain is None:
            raise InvalidKernel(
                f"smalt.{name} of something that is no reference\n  expected: a reference to SMEM or GMEM, or ref.at[…]"
                f"\n  got: {type(ref).__name__}\n  remedy: pass the reference itself, not what was loaded from it"
            )
        self.name, self.ref = name, ref
        kind = _versions.kind_of_memory(base)
        is_number = jax.dtypes.issubdtype(ref.dtype, np.integer) or jax.dtypes.issubdtype(ref.dtype, np.floating)
        if kind is None or not is_number:
            raise InvalidKernel(
                f"smalt.{name} of something else\n  got: a reference to {ref.dtype}"
                "\n  expected: numbers of 8 to 64 bits in SMEM or GMEM\n  remedy: keep flags as int32"
            )
        self.shape, self.dtype = tuple(ref.shape), np.dtype(ref.dtype)
        if self.dtype.itemsize > 8 or self.dtype.itemsize * 8 != _versions.bits_of(self.dtype):
            raise InvalidKernel(f"smalt.{name} of {self.dtype}\n  expected: numbers of 8, 16, 32 or 64 bits\n  remedy: keep flags as int32")
        far = _versions.is_cluster_ref(chain)
        self.space = "global" if kind == "gmem" else "shared::cluster" if far else "shared"
        if self.shape and kind != "gmem":
            raise InvalidKernel(
                f"smalt.{name} of an array in shared memory\n  expected: one element of it, or an array in GMEM\n  got: shape {list(self.shape)}"
                "\n  remedy: ref.at[i] for a flag; ordinary loads and stores for data, with fences or barriers around them"
            )
        self.strides = _versions.element_strides(base, chain) if self.shape else ()
        if self.shape and int(np.prod(self.shape)) % 32:
            raise InvalidKernel(
                f"smalt.{name} of an array that some lanes have no elements of\n  expected: a multiple of 128 elements (in a warp region, of 32), or one element"
                f"\n  got: shape {list(self.shape)}\n  remedy: ref.at[i] for each of a few words; as many elements for each thread for more"
            )
        if self.strides is None:
            raise InvalidKernel(
                f"smalt.{name} of a view that is no slice\n  expected: a reference to GMEM, indexed by integers and slices"
                "\n  remedy: index the reference itself"
            )
        reach = sum((n - 1) * stride for n, stride in zip(self.shape, self.strides))
        if reach >= 2**31:
            raise Unsupported(
                f"smalt.{name} of elements that are far apart\n  expected: fewer than 2^31 elements from the first to the last"
                f"\n  got: {reach}\n  remedy: access it in parts (ref.at[…])"
            )
        signed = np.issubdtype(self.dtype, np.signedinteger)
        self.type = {1: "s8" if signed else "u8", 2: "b16", 4: "b32", 8: "b64"}[self.dtype.itemsize]

    def value(self, x: Any) -> Any:
        if isinstance(x, (bool, int, float)):
            x = self._number(x)
        x = _primitives.operand(x)
        if x.dtype != self.dtype and not getattr(x, "weak_type", False):
            raise InvalidKernel(
                f"smalt.{self.name}: a value of another type\n  expected: {self.dtype}, the reference's\n  got: {x.dtype}"
                f"\n  remedy: x.astype(jnp.{self.dtype})"
            )
        x = x.astype(self.dtype)
        if x.shape not in ((), self.shape):
            raise InvalidKernel(
                f"smalt.{self.name}: a value of another shape\n  expected: {list(self.shape)}, the reference's, or a scalar\n  got: {list(x.shape)}"
                + ("\n  remedy: pass the value of one element, x[i]" if not self.shape else "\n  remedy: jnp.broadcast_to or jnp.reshape the value, or take as much of the reference: ref.at[…]")
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
                f"smalt.{self.name}: a value of another type\n  expected: {self.dtype}, the reference's\n  got: {x!r}"
                "\n  remedy: a number that the type has, or convert it: jnp.asarray(x).astype(…)"
            )
        return np.asarray(x).astype(self.dtype)

    def run(self, opcode: str, values: Sequence[Any] = (), *, gives: bool = False) -> Any:
        """One instruction of the address and the values; what it gives, if it does."""
        n = int(gives)
        out = [jax.ShapeDtypeStruct(self.shape, self.dtype)] * n
        if not self.shape:
            results = run_ptx(self._text(opcode, f"{{{n}}}", n + 1, len(values), gives), out, self.ref, *values, once=True, called=f"smalt.{self.name}")
            return results[0] if gives else None
        # The address of each element: its place, in elements.
        offsets = jnp.zeros(self.shape, jnp.int32)
        for dim, stride in enumerate(self.strides or ()):
            offsets += jax.lax.broadcasted_iota(jnp.int32, self.shape, dim) * stride
        access = self._text(opcode, "at", n + 2, len(values), gives)
        text = f"{{ .reg .b64 at; mad.wide.s32 at, {{{n + 1}}}, {self.dtype.itemsize}, {{{n}}}; {access} }}"
        spread = (jnp.broadcast_to(v, self.shape) for v in values)
        results = run_ptx(text, out, self.ref, offsets, *spread, called=f"smalt.{self.name}")
        return results[0] if gives else None

    @staticmethod
    def _text(opcode: str, at: str, first: int, count: int, gives: bool) -> str:
        """`opcode d, [at], a, b;`: values are the text's operands from `first` on."""
        operands = [*["{0}"] * gives, f"[{at}]", *(f"{{{first + i}}}" for i in range(count))]
        return f"{opcode} {', '.join(operands)};"
