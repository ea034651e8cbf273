"""References, and what equations do to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
from jax._src import core as jax_core
from jax._src import effects as jax_effects
from jax._src.pallas import primitives as pallas_primitives
from jax._src.pallas.mosaic_gpu import core as gpu_core
from jax._src.state import types as state_types

from smalt._versions.jaxprs import inner_jaxprs, is_literal, open_jaxpr


def is_accumulator_aval(aval: Any) -> bool:
    return isinstance(aval, gpu_core.WGMMAAbstractAccumulatorRef)


def view_shape(aval: Any, transforms: Sequence[Any]) -> tuple[int, ...]:
    """The shape of a ref seen through index transforms, on whatever device it lies."""
    shape = tuple(aval.shape)
    for t in transforms:
        if type(t).__name__ != "PeerMemRef":
            shape = tuple(t.get_indexer_shape())
    return shape


def is_ref_aval(aval: Any) -> bool:
    return isinstance(aval, state_types.AbstractRef)


def ref_effects(operands: Iterable[int]) -> set[Any]:
    """Effects of an equation that reads and writes the refs at these operands."""
    operands = list(operands)
    return {state_types.ReadEffect(i) for i in operands} | {state_types.WriteEffect(i) for i in operands}


def only_read(eqn: Any) -> set[Any]:
    """References among an equation's operands that it reads, by its effects, and does not write."""
    found: dict[Any, bool] = {}
    for effect in eqn.effects:
        if isinstance(effect, jax_effects.JaxprInputEffect):
            found[effect.input] = found.get(effect.input, True) and isinstance(effect, state_types.ReadEffect)
    return {var for var, reads in found.items() if reads}


def plain_effects(jaxpr: Any) -> set[Any]:
    """Effects of a jaxpr that are not about its refs."""
    return {e for e in jaxpr.effects if not isinstance(e, jax_effects.JaxprInputEffect)}


def ref_and_transforms(ref: Any) -> tuple[Any, tuple[Any, ...]]:
    if isinstance(ref, state_types.TransformedRef):
        return ref.ref, tuple(ref.transforms)
    return ref, ()


def transposed_ref(ref: Any, permutation: Sequence[int]) -> Any:
    """A view of a reference with its dimensions in another order."""
    return ref.transpose(tuple(permutation))


def is_plain_scratch(aval: Any) -> bool:
    """Whether a scratch reference is an array, with no transforms, that a TPU has in its memory of vectors and a GPU in shared memory."""
    space = str(getattr(aval, "memory_space", "")).lower()
    return is_ref_aval(aval) and type(aval.inner_aval) is jax_core.ShapedArray and ("smem" in space or "vmem" in space or space == "any")


def written_refs(jaxpr: Any) -> set[int]:
    """Which invars of a jaxpr are refs that it writes."""
    written = set()
    at = {var: i for i, var in enumerate(jaxpr.invars)}
    for effect in jaxpr.effects:
        if not isinstance(effect, jax_effects.JaxprInputEffect):
            continue
        index = effect.input_index if hasattr(effect, "input_index") else at.get(effect.input)
        if isinstance(index, int) and not isinstance(effect, state_types.ReadEffect):
            written.add(index)
    return written


@dataclasses.dataclass(frozen=True)
class Access:
    """What an equation does to a reference, its first operand."""

    transforms: tuple[Any, ...]
    value: Any = None  # what it stores; None: nothing
    loads: bool = False  # whether or not its result is used
    mask: Any = None
    other: Any = None  # what it loads where the mask does not hold
    is_unordered: bool = False  # an atomic, or another one whose order the author gives

    @property
    def is_whole(self) -> bool:
        return all(is_whole_index(t) for t in self.transforms)

    @property
    def is_sliced(self) -> bool:
        """Whether it is a load, or a store without a mask, of what one index of slices and numbers takes."""
        if self.is_unordered or self.value is not None and (self.loads or self.mask is not None) or len(self.transforms) > 1:
            return False
        is_index = not self.transforms or type(self.transforms[-1]).__name__ == "NDIndexer"
        return is_index and all(i.stride == 1 if is_slice(i) else not is_gather(i) for i in indices_of(self.transforms))


_BY_TREE = {"get": True, "load": True, "swap": False, "store": False, "addupdate": True}


@dataclasses.dataclass(frozen=True)
class Dma:
    """A TPU's copy: from its first operand to the one at `target_at`; `operands`: how many there are of both references and their transforms."""

    source: tuple[Any, ...]
    target: tuple[Any, ...]
    target_at: int
    operands: int
    device_id: Any


def dma_of(eqn: Any) -> Dma:
    """What a `dma_start` does."""
    source, target, _, _, device_id = eqn.params["tree"].unflatten(eqn.invars)
    transforms = [ref_and_transforms(x)[1] for x in (source, target)]
    operands = set(map(id, eqn.invars))
    first, second = (1 + sum(id(x) in operands for x in jax.tree.leaves(t)) for t in transforms)
    return Dma(transforms[0], transforms[1], first, first + second, device_id)


def dma_views(eqn: Any, operands: Sequence[Any]) -> tuple[Any, Any]:
    """The two references of a `dma_start`, of values of its operands as far as they are those of both."""
    rest = [None] * (len(eqn.invars) - len(operands))
    source, target, *_ = eqn.params["tree"].unflatten([*operands, *rest])
    return source, target


def dma_refs(eqn: Any, operands: Sequence[Any]) -> tuple[Any, Any, Any]:
    """The references of a `dma_start` or a `dma_wait`, and the semaphore, of values of all its operands."""
    source, target, semaphore, *_ = eqn.params["tree"].unflatten(operands)
    return source, target, semaphore


def as_barrier(aval: Any) -> Any:
    """Semaphores as barriers of one arrival: a reference of their shape, where one has none of one element."""
    own = plgpu.Barrier(num_arrivals=1).get_ref_aval()
    return own.update(inner_aval=own.inner_aval.update(shape=tuple(aval.shape) or (1,)))


def access_of(eqn: Any, operands: Sequence[Any] | None = None) -> Access | None:
    """The access that an equation is to a reference; None where it is another one. `operands`: what stands for its variables."""
    name, params = eqn.primitive.name, eqn.params
    operands = eqn.invars if operands is None else operands
    if name in _BY_TREE:
        is_load = name in ("get", "load")
        value, leaves = (None, operands[1:]) if is_load else (operands[1], operands[2:])
        tree = params["tree"]
        return Access(() if tree is None else tuple(tree.unflatten(leaves)), value, _BY_TREE[name])
    if name in ("masked_load", "masked_swap", "atomic_rmw"):
        _, transforms, *rest = params["args_tree"].unflatten(operands)
        if name == "masked_load":
            return Access(tuple(transforms), loads=True, mask=rest[0], other=rest[1], is_unordered=bool(params["is_volatile"]))
        is_atomic = name == "atomic_rmw"
        return Access(tuple(transforms), rest[0], is_atomic, rest[1], is_unordered=is_atomic)
    if name == "atomic_cas":
        return Access((), operands[2], True, is_unordered=True)
    if name == "smalt_access":
        leaves, given = operands[1 : 1 + params["tree"].num_leaves], operands[1 + params["tree"].num_leaves :]
        access = params["access"]
        value = given[access.offsets] if access.values else None
        loads = access.instruction != "st"
        mask = given[-1] if access.is_masked else None
        return Access(tuple(params["tree"].unflatten(leaves)), value, loads, mask, is_unordered=True)
    return None


def count_loads(jaxpr: Any) -> list[int]:
    """Of each reference among a jaxpr's invars how many equations load from it, those of inner jaxprs included."""
    count = [0] * len(jaxpr.invars)

    def look(inner: Any, at: dict[Any, int]) -> None:
        for eqn in inner.eqns:
            access = access_of(eqn)
            if access is not None and access.loads and eqn.invars[0] in at:
                count[at[eqn.invars[0]]] += 1
            for opened in inner_jaxprs(eqn):
                operands = eqn.invars[len(eqn.invars) - len(opened.invars) :]
                if eqn.primitive.name == "while":  # both sets of constants are in front of what is carried
                    ours, others = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
                    is_cond = opened is open_jaxpr(eqn.params["cond_jaxpr"])[0]
                    constants = eqn.invars[:ours] if is_cond else eqn.invars[ours : ours + others]
                    operands = [*constants, *eqn.invars[ours + others :]]
                look(opened, {v: at[a] for v, a in zip(opened.invars, operands) if not is_literal(a) and a in at})

    look(jaxpr, {v: i for i, v in enumerate(jaxpr.invars)})
    return count


def begins_with_store(jaxpr: Any, at: int) -> bool:
    """Whether the first thing a jaxpr does with the ref in its invar is a store to all of it."""
    var = jaxpr.invars[at]
    for eqn in jaxpr.eqns:
        if not any(not is_literal(a) and a is var for a in eqn.invars):
            continue
        access = access_of(eqn)
        if access is None or access.value is None or access.loads or eqn.invars[0] is not var or any(a is var for a in eqn.invars[1:]):
            return False
        if eqn.outvars and any(a is eqn.outvars[0] for e in jaxpr.eqns for a in e.invars):
            return False  # what was there is used
        return access.is_whole and access.mask is None
    return False


def is_stored_once(jaxpr: Any, at: int) -> bool:
    """Whether a jaxpr stores to all of the ref in its invar once, and does nothing else with it."""
    var = jaxpr.invars[at]
    uses = sum(any(not is_literal(a) and a is var for a in eqn.invars) for eqn in jaxpr.eqns)
    return uses == 1 and begins_with_store(jaxpr, at)


def is_whole_index(transform: Any) -> bool:
    """Whether a transform is an index of the whole ref."""
    if type(transform).__name__ != "NDIndexer":
        return False
    sizes = [(getattr(i, "start", None), getattr(i, "size", None), getattr(i, "stride", 1)) for i in transform.indices]
    return all(start == 0 and size == n and stride == 1 for (start, size, stride), n in zip(sizes, transform.shape))


def effects_of_memory(avals: Sequence[Any], only_reads: bool = False) -> set[Any]:
    """The effects of an equation that does something to memory, and may do it to these operands."""
    refs = [i for i, aval in enumerate(avals) if is_ref_aval(aval)]
    return {gpu_core._memory_effect} | ({state_types.ReadEffect(i) for i in refs} if only_reads else ref_effects(refs))


def is_ref(x: Any) -> bool:
    return is_ref_aval(jax_core.typeof(x))


def split_ref(x: Any) -> tuple[Any, Any]:
    """A reference and its transforms; what is none, and None."""
    if isinstance(x, state_types.TransformedRef):
        return x.ref, tuple(x.transforms)
    try:
        return x, () if is_ref_aval(jax_core.typeof(x)) else None
    except TypeError:
        return x, None


def kind_of_memory(ref: Any) -> str | None:
    """Whether a reference is to "gmem", "smem", or to a "block" of a `pallas_call`, which is not decided yet; None of others."""
    aval = jax_core.typeof(ref)
    space = str(getattr(aval, "memory_space", None)).lower()
    if isinstance(aval.inner_aval, jax_core.ShapedArray) and "smem" in space:
        return "smem"
    if space == "default":
        return "block"
    return "gmem" if "gmem" in space or space in ("any", "none", "device") else None


def is_cluster_ref(transforms: Sequence[Any]) -> bool:
    return any(type(t).__name__ == "ClusterRefTransform" for t in transforms)


def is_slice(index: Any) -> bool:
    return hasattr(index, "stride") and hasattr(index, "size")


def is_gather(index: Any) -> bool:
    """Whether an index of one dimension is an array."""
    return not is_slice(index) and bool(getattr(getattr(index, "aval", index), "shape", ()))


def indices_of(transforms: Sequence[Any]) -> tuple[Any, ...]:
    """What a view's last transform takes along each dimension; empty where that is no index."""
    return tuple(transforms[-1].indices) if transforms and type(transforms[-1]).__name__ == "NDIndexer" else ()


def masked_load(ref: Any, mask: Any, other: Any) -> Any:
    return pallas_primitives.load(ref, None, mask=mask, other=other)


def masked_swap(ref: Any, value: Any, mask: Any) -> Any:
    return pallas_primitives.swap(ref, None, value, mask=mask)


def seen_through(ref: Any, transforms: Sequence[Any]) -> Any:
    return state_types.TransformedRef(ref, tuple(transforms)) if transforms else ref


def element_strides(strides: Sequence[int], transforms: Sequence[Any]) -> tuple[int, ...] | None:
    """How many elements are between neighbours along each dimension of a view of memory where they are so many; None if it is more than
    slices."""
    for t in transforms:
        name = type(t).__name__
        if name in ("PeerMemRef", "ClusterRefTransform"):
            continue
        if name != "NDIndexer":
            return None
        kept = []
        for index, stride in zip(t.indices, strides):
            if is_slice(index):
                kept.append(stride * index.stride)
            elif is_gather(getattr(index, "atom", index)):
                return None
        strides = kept
    return tuple(strides)
