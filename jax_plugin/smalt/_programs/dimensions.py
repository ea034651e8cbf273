"""Which dimension of each operand of an operation is divided where a dimension of its result is, so that a part of the result follows from parts of
the operands.

`_blocks/finer_rows.py` reads it forwards (blocks are divided, and it follows what becomes of them), `division.py` backwards (stores are, and it finds what they need).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

ELEMENTWISE = frozenset(
    "neg not abs sign exp exp2 log log2 log1p expm1 sin cos tan tanh sinh cosh asin acos atan asinh acosh atanh erf erfc erf_inv lgamma "
    "digamma rsqrt sqrt cbrt logistic floor ceil is_finite square clz population_count copy copy_p stop_gradient round integer_pow add sub "
    "mul div rem max min and or xor shift_left shift_right_logical shift_right_arithmetic pow atan2 nextafter add_any eq ne lt le gt ge "
    "select_n clamp convert_element_type bitcast_convert_type reduce_precision optimization_barrier".split()
)
REDUCTIONS = frozenset("reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor argmax argmin".split())
ALONG_AXIS = frozenset("cumsum cumprod cummax cummin cumlogsumexp".split())
#: And the parameter with that dimension; without: the last.
_ORDERS = {"sort": "dimension", "top_k": "axis"}

#: The dimension that is divided; None: none is.
Split = int | None
Shape = Sequence[int]


class Mixed(Exception):
    """An operation without a rule for a part of its result."""


def operand_splits(name: str, params: Mapping[str, Any], operands: Sequence[Shape], result: Shape, split: int) -> list[Split]:
    """Of each operand the dimension that is divided where that of the results is `split`; all shapes are whole."""
    if name in ELEMENTWISE:
        return [aligned(shape, result, split) for shape in operands]
    if name == "dot_general":
        return _product_splits(params, operands, split)
    if name in _ORDERS:
        if params.get(_ORDERS[name], -1) % len(result) != split:
            return [split] * len(operands)
        raise Mixed(name)
    if len(operands) != 1:
        raise Mixed(name)
    (own,) = operands
    if name == "broadcast_in_dim":
        where = list(params["broadcast_dimensions"])
        return [where.index(split) if split in where and own[where.index(split)] != 1 else None]
    if name in REDUCTIONS:
        return [[d for d in range(len(own)) if d not in params["axes"]][split]]
    if name in ALONG_AXIS and params["axis"] != split:
        return [split]
    if name == "transpose":
        return [params["permutation"][split]]
    if name == "squeeze" or name == "reshape" and params.get("dimensions") is None:
        before = math.prod(result[:split])
        for d, n in enumerate(own):
            if n == result[split] and math.prod(own[:d]) == before:
                return [d]
    raise Mixed(name)


def aligned(shape: Shape, whole: Shape, split: Split) -> Split:
    """The dimension of an array that is broadcast to `whole`."""
    if split is None:
        return None
    at = split - (len(whole) - len(shape))
    return at if at >= 0 and shape[at] != 1 else None


def _product_splits(params: Mapping[str, Any], operands: Sequence[Shape], split: int) -> list[Split]:
    contracted, batch = params["dimension_numbers"]
    if split < len(batch[0]):
        return [batch[0][split], batch[1][split]]
    split -= len(batch[0])
    free = [[d for d in range(len(shape)) if d not in (*contracted[i], *batch[i])] for i, shape in enumerate(operands)]
    if split < len(free[0]):
        return [free[0][split], None]
    return [None, free[1][split - len(free[0])]]


def part_of(shape: Shape, split: Split, parts: int) -> tuple[int, ...]:
    """The shape of one of so many parts."""
    return tuple(n // parts if d == split else n for d, n in enumerate(shape))


def params_of_part(params: Mapping[str, Any], shape: Shape) -> dict[str, Any]:
    """The parameters of an equation whose result has the shape of a part."""
    sized = next((key for key in ("shape", "new_sizes") if key in params), None)  # of `broadcast_in_dim`, `iota`; `reshape`
    return {**params, **({sized: tuple(shape)} if sized else {})}
