"""What may stand between kernels of a function for PyTorch: JAX's elementary operations, as PyTorch's.

Every function here gives tensors of its own, contiguous; what only looks at an operand in another shape is in `VIEWS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from smalt._torch import pytorch
from smalt._torch.pytorch import torch

Op = Callable[..., Any]


def _own(x: Any) -> Any:
    return x.clone(memory_format=torch.contiguous_format)


def _named(name: str) -> Op:
    function = getattr(torch, name)
    return lambda p, *xs: function(*xs)


def _divide(p: Any, x: Any, y: Any) -> Any:
    return torch.div(x, y) if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc")


def _power(p: Any, x: Any) -> Any:
    n, result, square = abs(p["y"]), None, x
    while n:
        if n & 1:
            result = square if result is None else result * square
        n >>= 1
        square = square * square if n else square
    result = torch.ones_like(x) if result is None else _own(result)
    return torch.reciprocal(result) if p["y"] < 0 else result


def _convert(p: Any, x: Any) -> Any:
    to = pytorch.dtype(p["new_dtype"])
    if x.is_floating_point() and not to.is_floating_point and to != torch.bool:
        info, wide = torch.iinfo(to), torch.nan_to_num(x.to(torch.float64), nan=0.0)  # XLA: towards 0, the nearest at the ends, NaN is 0
        made = wide.clamp(float(info.min), float(info.max)).to(to)
        return torch.where(wide >= float(info.max), torch.full_like(made, info.max), made)
    return x.to(to, copy=True)


def _broadcast(p: Any, x: Any) -> Any:
    shape = [1] * len(p["shape"])
    for size, d in zip(x.shape, p["broadcast_dimensions"]):
        shape[d] = size
    return _own(x.reshape(shape).expand(p["shape"]))


def _sum(p: Any, x: Any) -> Any:
    return torch.sum(x, dim=tuple(p["axes"]), dtype=x.dtype) if p["axes"] else _own(x)


def _extreme(name: str) -> Op:
    function = getattr(torch, name)
    return lambda p, x: function(x, dim=tuple(p["axes"])) if p["axes"] else _own(x)


def _axis_by_axis(function: Op) -> Op:
    def reduce(p: Any, x: Any) -> Any:
        for axis in sorted(p["axes"], reverse=True):
            x = function(x, axis)
        return x if p["axes"] else _own(x)

    return reduce


def _select(p: Any, which: Any, *cases: Any) -> Any:
    if which.dtype == torch.bool:
        return torch.where(which, cases[-1], cases[0])
    made = cases[0]
    for i, case in enumerate(cases[1:], 1):
        made = torch.where(which >= i, case, made)
    return made if len(cases) > 1 else _own(made)


def _slice(p: Any, x: Any) -> Any:
    strides = p["strides"] or [1] * x.dim()
    return _own(x[tuple(slice(*part) for part in zip(p["start_indices"], p["limit_indices"], strides))])


def _split(p: Any, x: Any) -> list[Any]:
    return [_own(part) for part in torch.split(x, list(p["sizes"]), dim=p["axis"])]


def _pad(p: Any, x: Any, value: Any) -> Any:
    config = p["padding_config"]
    # First the gaps, then what is cut off, then what is added.
    for d, (_, _, gap) in enumerate(config):
        if gap and x.shape[d] > 1:
            shape = list(x.shape)
            shape[d] += (shape[d] - 1) * gap
            wide = _own(value.expand(shape))
            wide[(slice(None),) * d + (slice(None, None, gap + 1),)] = x
            x = wide
    x = x[tuple(slice(max(-low, 0), n - max(-high, 0)) for n, (low, high, _) in zip(x.shape, config))]
    made = _own(value.expand([n + max(low, 0) + max(high, 0) for n, (low, high, _) in zip(x.shape, config)]))
    made[tuple(slice(max(low, 0), max(low, 0) + n) for n, (low, _, _) in zip(x.shape, config))] = x
    return made


def _cumulate(p: Any, x: Any) -> Any:
    if p["reverse"]:
        return torch.flip(torch.cumsum(torch.flip(x, [p["axis"]]), p["axis"], dtype=x.dtype), [p["axis"]])
    return torch.cumsum(x, p["axis"], dtype=x.dtype)


def _product(p: Any, x: Any, y: Any) -> Any:
    (contracted, batch), letters = p["dimension_numbers"], "abcdefghijklmnopqrstuvwxyz"
    ours = list(letters[: x.dim()])
    theirs = list(letters[x.dim() : x.dim() + y.dim()])
    for pairs in (contracted, batch):
        for i, k in zip(*pairs):
            theirs[k] = ours[i]
    left = [ours[i] for i in batch[0]]
    left += [c for i, c in enumerate(ours) if i not in batch[0] and i not in contracted[0]]
    left += [c for k, c in enumerate(theirs) if k not in batch[1] and k not in contracted[1]]
    wide = x.dtype if p["preferred_element_type"] is None else pytorch.dtype(p["preferred_element_type"])
    return torch.einsum(f"{''.join(ours)},{''.join(theirs)}->{''.join(left)}", x.to(wide), y.to(wide)).contiguous()


def store(to: Any, x: Any) -> list[Any]:
    """What a reference is left with, in its tensor."""
    to.copy_(x)
    return [to]


#: By the primitive's name: a function of its parameters and operands.
OPS: dict[str, Op] = {
    **{name: _named(name) for name in ("sign", "exp", "exp2", "log", "log1p", "expm1", "sin", "cos", "tan", "tanh", "sqrt", "rsqrt", "floor", "ceil", "abs")},
    **{name: _named(name) for name in ("eq", "ne", "lt", "le", "gt", "ge", "square", "erf", "atan2", "pow")},
    **{name: _named(other) for name, other in {"neg": "negative", "logistic": "sigmoid", "is_finite": "isfinite", "rem": "fmod"}.items()},
    **{name: _named(other) for name, other in {"add": "add", "add_any": "add", "sub": "sub", "mul": "mul", "max": "maximum", "min": "minimum"}.items()},
    **{name: _named(f"bitwise_{name}") for name in ("and", "or", "xor", "not")},
    "div": _divide,
    "integer_pow": _power,
    "convert_element_type": _convert,
    "broadcast_in_dim": _broadcast,
    "reduce_sum": _sum,
    "reduce_max": _extreme("amax"),
    "reduce_min": _extreme("amin"),
    "reduce_prod": _axis_by_axis(lambda x, axis: torch.prod(x, dim=axis, dtype=x.dtype)),
    "reduce_and": _axis_by_axis(lambda x, axis: torch.all(x, dim=axis)),
    "reduce_or": _axis_by_axis(lambda x, axis: torch.any(x, dim=axis)),
    "select_n": _select,
    "clamp": lambda p, low, x, high: torch.minimum(torch.maximum(x, low), high),
    "slice": _slice,
    "split": _split,
    "concatenate": lambda p, *xs: torch.cat(xs, dim=p["dimension"]),
    "stack": lambda p, *xs: torch.stack(xs, dim=p["axis"]),
    "tile": lambda p, x: torch.tile(x, tuple(p["reps"])),
    "rev": lambda p, x: torch.flip(x, list(p["dimensions"])),
    "transpose": lambda p, x: _own(x.permute(*p["permutation"])),
    "pad": _pad,
    "cumsum": _cumulate,
    "dot_general": _product,
    "copy": lambda p, x: _own(x),
    "copy_p": lambda p, x: _own(x),
}

#: What looks at its first operand in the result's shape.
VIEWS = frozenset({"reshape", "squeeze", "expand_dims"})


def view(shape: Sequence[int]) -> Callable[..., list[Any]]:
    return lambda x: [x.reshape(shape)]


def copy(x: Any) -> list[Any]:
    return [_own(x)]


#: Of whole numbers PyTorch has not: what goes bit by bit, and products, on a GPU.
_TYPES: dict[str, Any] = {"reduce_and": np.bool_, "reduce_or": np.bool_, "dot_general": jnp.floating}


def function(name: str, params: dict[str, Any], operands: Sequence[Any]) -> Callable[..., list[Any]] | None:
    """The step for an equation, by its primitive's name, its parameters and its operands' types; None for what is not here."""
    op = OPS.get(name)
    if op is None or name in _TYPES and not all(jnp.issubdtype(aval.dtype, _TYPES[name]) for aval in operands):
        return None

    def run(*xs: Any) -> list[Any]:
        made = op(params, *xs)
        return made if isinstance(made, list) else [made]

    return run
