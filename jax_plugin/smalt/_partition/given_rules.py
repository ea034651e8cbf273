"""`smalt.partition` of functions of which the user gives the rule, over arrays of symbolic shapes.

The rule states along which dimensions a part of the results is what the function makes of parts of its operands. So the function of symbolic shapes is a
loop of calls over parts (`loops.py`), `plgpu.kernel`s included: each is traced for a number of parts. A part is as long as
the symbolic dimension's factor: `16*b` has parts of 16.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax

from smalt import _versions
from smalt._errors import InvalidArgument
from smalt._partition import loops
from smalt._partition.loops import Axis

#: The longest part that is looked for.
LONGEST = 4096


@dataclasses.dataclass(frozen=True)
class _Function:
    axes: Sequence[Axis]
    inputs: int
    fn: Callable[..., Sequence[Any]]

    def bind(self, taken: dict[int, int], begins: dict[int, Any], arrays: list[Any]) -> list[Any]:
        return list(self.fn(*arrays))

    def others(self, taken: dict[int, int]) -> int:
        return math.prod(taken.values())


def sample(leaves: Sequence[Any]) -> list[jax.ShapeDtypeStruct]:
    """Arguments of known shapes: of two parts along each symbolic dimension."""
    return [jax.ShapeDtypeStruct(tuple(n if isinstance(n, int) else 2 * part_of(n) for n in x.shape), x.dtype) for x in leaves]


def part_of(dim: Any) -> int:
    """The largest number that divides a symbolic dimension, whatever its variables are."""
    return next(n for n in range(LONGEST, 0, -1) if dim % n == 0)


def function(fn: Callable[..., Sequence[Any]], operands: Sequence[Any], results: Sequence[Any], leaves: Sequence[Any], what: str) -> Callable[..., Any]:
    """The function of flat arguments, with a derivative backwards. `operands`, `results`: the factors of their dimensions."""
    dims: dict[str, Any] = {}
    for i, (factors, x) in enumerate(zip(operands, leaves)):
        for k, (factor, n) in enumerate(zip(factors, x.shape)):
            if isinstance(n, int) and factor not in dims:
                continue
            if factor is None or dims.setdefault(factor, n) != n:
                raise InvalidArgument(
                    f"smalt: {what}: dimension {k} of operand {i}, {n}"
                    f"\n  expected: {'a factor, along which parts are calls of their own' if factor is None else f'{dims[factor]}, as others of {factor}'}"
                    f"\n  got: {'_' if factor is None else n}"
                    f"\n  remedy: name a factor for it, the same for dimensions that are equal, or give it a known size{_versions.here()}"
                )
    axes = [
        Axis(
            number,
            n // part_of(n),
            {at: (some.index(factor), part_of(n)) for at, some in enumerate((*operands, *results)) if factor in some},
        )
        for number, (factor, n) in enumerate(dims.items())
    ]
    looped = _Function(axes, len(operands), fn)

    @jax.custom_vjp  # type: ignore[untyped-decorator]
    def call(*arrays: Any) -> Any:
        return loops.forward(looped, arrays)

    def keep(*arrays: Any) -> Any:
        return call(*arrays), arrays

    def backward(arrays: Sequence[Any], cotangents: Sequence[Any]) -> Any:
        wanted = [i for i, x in enumerate(arrays) if _versions.is_float(x)]
        given = {o: ct for o, ct in enumerate(cotangents) if ct.dtype != jax.dtypes.float0}
        found = dict(zip(wanted, loops.backward(looped, arrays, wanted, given)))
        return tuple(found.get(i) for i in range(len(arrays)))

    call.defvjp(keep, backward)
    return call  # type: ignore[no-any-return]
