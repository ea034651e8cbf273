"""Arrays as indices of a reference: numbers that are negative count from the end, as NumPy and JAX's interpreter have it.

Numbers from -extent to -1 become those from the start. Others stay as they are, so that what is outside of its dimension is still that, and
the emulator names it. Under a mask all stay: what the mask leaves out may be anything, and Triton takes the others as addresses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from smalt import _messages, _versions
from smalt._messages import Message

if TYPE_CHECKING:
    from smalt._walk.walk import Emit, Walker

#: Loads and stores; of those that may have a mask, which of their last leaves it is.
_MASKED = {"masked_load": 0, "masked_swap": 1}
_ACCESSES = frozenset(["load", "store", "swap", "addupdate", *_MASKED])


def indices(w: Walker, name: str, eqn: Any, emit: Emit) -> Mapping[Any, Message]:
    """Of an access: by array of indices and extent of the dimension, what stands for the array. Nothing for arrays that are never negative."""
    if name not in _ACCESSES or not any(_may_be_negative(w, atom) for atom in eqn.invars):
        return {}
    if name in _MASKED:
        _, transforms, *rest = w.leaves(eqn.params["args_tree"], eqn.invars)
        if rest[_MASKED[name]] is not None:
            return {}
    else:
        tree = eqn.params["tree"]
        transforms = () if tree is None else w.leaves(tree, eqn.invars[len(eqn.invars) - tree.num_leaves :])
    found = {}
    for t in transforms:
        if type(t).__name__ == "NDIndexer":
            for atom, extent in ((getattr(index, "atom", None), extent) for index, extent in zip(t.indices, t.shape)):
                if atom is not None and _may_be_negative(w, atom):
                    found[atom, extent] = _from_start(w, atom, extent, emit)
    return found


def _may_be_negative(w: Walker, atom: Any) -> bool:
    dtype = getattr(atom.aval, "dtype", None)
    return isinstance(dtype, np.dtype) and dtype.kind == "i" and bool(atom.aval.shape) and not w.is_natural(atom)


def _from_start(w: Walker, atom: Any, extent: int, emit: Emit) -> Message:
    index, shape, dtype = w.operand(atom), tuple(atom.aval.shape), atom.aval.dtype

    def cast(x: Message, name: str, to: Any, **attrs: Any) -> Message:
        return emit(name, [x], _versions.array_aval(shape, np.dtype(to)), _messages.attributes(attrs))

    def everywhere(number: int, dtype: Any) -> Message:
        constant = w.constant(np.asarray(number, dtype)).operand
        return cast(constant, "broadcast_in_dim", dtype, broadcast_dimensions=(), shape=shape)

    if extent > np.iinfo(dtype).max:
        dtype = np.dtype(np.int32 if extent <= np.iinfo(np.int32).max else np.int64)
        index = cast(index, "convert_element_type", dtype, new_dtype=dtype)
    integers, unsigned = _versions.array_aval(shape, dtype), np.dtype(f"u{dtype}")
    moved = emit("add", [index, everywhere(extent, dtype)], integers)
    # Without a sign, what is still negative and what was not before are `extent` or more.
    inside = [cast(moved, "convert_element_type", unsigned, new_dtype=unsigned), everywhere(extent, unsigned)]
    return emit("select_n", [emit("lt", inside, _versions.array_aval(shape, np.dtype(bool))), index, moved], integers)
