"""Which integers are never negative, as far as each equation by itself shows.

Numbers that may be negative count from the end where they index a reference, as NumPy has it. Where they cannot be, nothing is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from smalt import _versions

if TYPE_CHECKING:
    from smalt._walk.walk import Binding, Walker

#: Whatever the operands are.
_ALWAYS = frozenset("iota program_id num_programs axis_index argmax argmin population_count clz abs square".split())
#: If all operands are: sums and products that leave their type's range are no indices anyway.
_OF_ALL = frozenset(
    "add mul div min or reduce_sum reduce_prod reduce_max reduce_min cumsum cumprod cummax cummin reshape broadcast_in_dim transpose squeeze"
    " expand_dims slice rev concatenate copy copy_p stop_gradient reduce_precision integer_pow sign broadcast".split()
)
#: If the first operand is.
_OF_FIRST = frozenset("rem shift_right_arithmetic shift_right_logical dynamic_slice layout_cast multiple_of max_contiguous".split())
#: If any is.
_OF_ANY = frozenset("max and".split())


def of_value(value: Any) -> bool:
    """Of a constant."""
    array = np.asarray(value)
    return array.dtype.kind in "bu" or array.dtype.kind == "i" and bool((array >= 0).all())


def of_type(aval: Any) -> bool:
    """Of what has no sign."""
    dtype = getattr(aval, "dtype", None)
    return isinstance(dtype, np.dtype) and dtype.kind in "bu"


def of_result(name: str, eqn: Any, operands: Sequence[bool]) -> bool:
    """Of an equation's result, by what is known of the operands."""
    if len(eqn.outvars) != 1 or not operands and name not in _ALWAYS:
        return False
    if of_type(eqn.outvars[0].aval) or name in _ALWAYS:
        return True
    match name:
        case "select_n":
            return all(operands[1:])
        case "clamp":
            low, x, high = operands
            return high and (low or x)
        case "convert_element_type":
            return operands[0] and _holds(eqn.outvars[0].aval.dtype, eqn.invars[0].aval.dtype)
    return (
        name in _OF_ALL and all(operands) or name in _OF_FIRST and operands[0] or name in _OF_ANY and any(operands)
    )


def _holds(wide: Any, dtype: Any) -> bool:
    """Whether integers of `dtype` that are not negative are themselves in the signed type `wide`."""
    if not all(isinstance(t, np.dtype) and t.kind in "biu" for t in (wide, dtype)):
        return False
    return bool(dtype.kind == "b" or wide.itemsize - (dtype.kind == "u") >= dtype.itemsize)


def natural_counters(w: Walker, body: Any, bound: Mapping[Any, Binding], carried: Sequence[Any], starts: Sequence[Any]) -> list[Any]:
    """Those of a loop's carried variables that begin at a number that is not negative, to which each turn adds such a number, or nothing.

    `body`: an open jaxpr, whose first results are carried into `carried`; `bound`: its variables that stand for what is outside.
    """
    made = {eqn.outvars[0]: eqn for eqn in body.eqns if len(eqn.outvars) == 1}

    def is_natural(atom: Any) -> bool:
        return w.is_natural(atom) if _versions.is_literal(atom) else atom in bound and bound[atom].is_natural

    def only_grows(var: Any, out: Any) -> bool:
        if out is var:
            return True
        eqn = None if _versions.is_literal(out) else made.get(out)
        if eqn is None or _versions.primitive_name(eqn) != "add":
            return False
        others = [atom for atom in eqn.invars if atom is not var]
        return len(others) == 1 and is_natural(others[0])

    return [var for var, start, out in zip(carried, starts, body.outvars) if w.is_natural(start) and only_grows(var, out)]
