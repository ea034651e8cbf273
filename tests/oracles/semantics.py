"""lax's element-wise operations in NumPy, bit for bit.

Where JAX documents nothing, XLA's decisions hold: integers wrap; x / 0 is -1 and x rem 0 is x; INT_MIN / -1 is INT_MIN; shifts
take their amount as unsigned, beyond the width they give 0 (or the sign); floats become integers towards zero, saturating, NaN
as 0; max and min propagate NaN and order -0 below +0; sign keeps zeros and NaN. Conversions round once. Types of at most 16 bits
are computed in f32 and rounded: 24 bits are enough for that to be the correctly rounded result of + - * / and sqrt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

Array = Any

F64, F32, F16, BF16 = (np.dtype(t) for t in (np.float64, np.float32, np.float16, ml_dtypes.bfloat16))
FP8 = tuple(np.dtype(t) for t in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2))
FLOATS = (F32, F16, BF16)
SIGNED = tuple(np.dtype(t) for t in (np.int8, np.int16, np.int32, np.int64))
UNSIGNED = tuple(np.dtype(t) for t in (np.uint8, np.uint16, np.uint32, np.uint64))
INTS = SIGNED + UNSIGNED
INT4, UINT4 = np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.uint4)
BOOL = np.dtype(np.bool_)


def is_float(dtype: np.dtype[Any]) -> bool:
    return dtype not in (*INTS, INT4, UINT4, BOOL)


def unsigned(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"u{dtype.itemsize}")


def bits(x: Array) -> Array:
    """The bits as unsigned integers."""
    x = np.asarray(x)
    return x.astype(np.uint8) if x.dtype in (BOOL, INT4, UINT4) else np.ascontiguousarray(x).view(unsigned(x.dtype)).reshape(x.shape)


def is_nan(x: Array) -> Array:
    return np.isnan(x.astype(np.float64)) if is_float(x.dtype) else np.zeros(np.shape(x), bool)


# ------------------------------------------------------------------------------------------ conversions


def convert(x: Array, to: np.dtype[Any]) -> Array:
    """lax.convert_element_type."""
    x = np.asarray(x)
    if x.dtype == to:
        return x
    if x.dtype in (INT4, UINT4):
        x = x.astype(np.int32)
    if to == BOOL:
        return x != x.dtype.type(0)
    if not is_float(to):
        return _float_to_int(x, to) if is_float(x.dtype) else x.astype(to)
    if x.dtype in (F64, *INTS):
        return x.astype(to) if to in (F64, F32, F16) and x.dtype == F64 or to in (F64, F32) else _to_odd(x).astype(to)
    return x.astype(np.float32).astype(to)


def _to_odd(x: Array) -> Array:
    """Wide numbers as f32, cut off towards zero with the last bit set where something was lost: rounding again is rounding once."""
    if x.dtype == F64:
        near = x.astype(np.float32)
        cut = np.where(np.abs(near.astype(np.float64)) > np.abs(x), np.nextafter(near, np.float32(0)), near)
        lost = (cut.astype(np.float64) != x) & ~np.isnan(x)
        return (np.ascontiguousarray(cut, np.float32).view(np.uint32) | lost.astype(np.uint32)).view(np.float32)
    out = []
    for v in x.reshape(-1).tolist():
        magnitude, drop = abs(int(v)), max(abs(int(v)).bit_length() - 24, 0)
        kept = magnitude >> drop
        if kept << drop != magnitude:
            kept |= 1
        out.append(np.float32(kept * 2.0**drop) * (-1 if v < 0 else 1))
    return np.array(out, np.float32).reshape(x.shape)


def _float_to_int(x: Array, to: np.dtype[Any]) -> Array:
    wide = x.astype(np.float64)
    info = ml_dtypes.iinfo(to) if to in (INT4, UINT4) else np.iinfo(to)
    low, high = int(info.min), int(info.max)
    via = np.dtype(np.int32) if to in (INT4, UINT4) else to
    inside = (wide > low - 1) & (wide < high)
    out = np.trunc(np.where(inside, wide, 0)).astype(via)
    out = np.where(wide >= float(high), via.type(high), out)
    out = np.where(wide <= float(low), via.type(low), out)
    return out.astype(to)


# ------------------------------------------------------------------------------------------ floats


def _wide(f: Callable[..., Array]) -> Callable[..., Array]:
    """Computed in f32, or in f64 for f64."""

    def g(*xs: Array) -> Array:
        dtype = xs[0].dtype
        wide = dtype if dtype == F64 else F32
        return np.asarray(f(*(np.asarray(x).astype(wide) for x in xs))).astype(dtype)

    return g


def _sign_bits(f: Callable[..., Array]) -> Callable[..., Array]:
    """A function of the bits of floats: f(dtype's sign bit, bits…)."""

    def g(*xs: Array) -> Array:
        dtype = xs[0].dtype
        u = unsigned(dtype).type
        return np.asarray(f(u(1 << (8 * dtype.itemsize - 1)), *(bits(x) for x in xs)), unsigned(dtype)).view(dtype)

    return g


def _maximum(x: Array, y: Array) -> Array:
    return np.where((x == 0) & (y == 0), x + y, np.maximum(x, y))


def _round_away(x: Array) -> Array:
    whole = np.trunc(x)
    return np.where(np.abs(x - whole) >= 0.5, whole + np.copysign(x.dtype.type(1), x), np.copysign(whole, x))


FLOAT_UNARY: dict[str, Callable[[Array], Array]] = {
    "neg": _sign_bits(lambda s, x: x ^ s),
    "abs": _sign_bits(lambda s, x: x & ~s),
    "sign": _wide(lambda x: np.where((x == 0) | np.isnan(x), x, np.copysign(x.dtype.type(1), x))),
    "floor": _wide(np.floor),
    "ceil": _wide(np.ceil),
    "round_to_even": _wide(np.rint),
    "round_away": _wide(_round_away),
    "square": _wide(lambda x: x * x),
    "sqrt": _wide(np.sqrt),
}
FLOAT_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": _wide(np.add),
    "sub": _wide(np.subtract),
    "mul": _wide(np.multiply),
    "div": _wide(np.divide),
    "rem": _wide(np.fmod),
    "max": _wide(_maximum),
    "min": _wide(lambda x, y: -_maximum(-x, -y)),
}


def copysign(x: Array, y: Array) -> Array:
    return _sign_bits(lambda s, x, y: (x & ~s) | (y & s))(x, y)


def nextafter(x: Array, y: Array) -> Array:
    return np.where(x == y, y, np.nextafter(x, y)).astype(np.float32)


# ------------------------------------------------------------------------------------------ integers


def _div(x: Array, y: Array) -> Array:
    one = x.dtype.type(1)
    minus_one = (y == ~x.dtype.type(0)) & (x.dtype in SIGNED)
    safe = np.where((y == 0) | minus_one, one, y)
    quotient = x // safe  # rounds down
    rest = x - quotient * safe
    quotient = quotient + ((rest != 0) & ((x < 0) != (safe < 0))).astype(x.dtype)
    quotient = np.where(minus_one, np.negative(x), quotient)
    return np.where(y == 0, ~x.dtype.type(0), quotient).astype(x.dtype)


def _rem(x: Array, y: Array) -> Array:
    minus_one = (y == ~x.dtype.type(0)) & (x.dtype in SIGNED)
    rest = np.fmod(x, np.where((y == 0) | minus_one, x.dtype.type(1), y))
    return np.where(y == 0, x, rest).astype(x.dtype)


def _shift(f: Callable[[Array, Array], Array], view: Callable[[np.dtype[Any]], Any], beyond: Callable[[Array], Array]) -> Any:
    def g(x: Array, amount: Array) -> Array:
        width = 8 * x.dtype.itemsize
        amount = bits(amount)
        inside = amount < width
        as_type = np.dtype(view(x.dtype))
        x = np.asarray(x).view(as_type)
        shifted = f(x, np.where(inside, amount, 0).astype(as_type))
        return np.asarray(np.where(inside, shifted, beyond(x)), as_type).view(amount.dtype)

    def same_type(x: Array, amount: Array) -> Array:
        return g(x, amount).view(x.dtype)

    return same_type


def _clz(x: Array) -> Array:
    u, width = bits(x), 8 * x.dtype.itemsize
    out = np.full(np.shape(x), width, x.dtype)
    for i in range(width):
        out = np.where(u >> u.dtype.type(i) != 0, x.dtype.type(width - 1 - i), out)
    return out.astype(x.dtype)


INT_UNARY: dict[str, Callable[[Array], Array]] = {
    "neg": lambda x: np.negative(x),
    "abs": lambda x: np.where(x < 0, np.negative(x), x).astype(x.dtype),
    "sign": lambda x: np.sign(x).astype(x.dtype),
    "not": np.invert,
    "clz": _clz,
    "population_count": lambda x: np.bitwise_count(bits(x)).astype(x.dtype),
    "square": lambda x: x * x,
    "cube": lambda x: x * x * x,
}
INT_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _div,
    "rem": _rem,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shift_left": _shift(np.left_shift, unsigned, np.zeros_like),
    "shift_right_logical": _shift(np.right_shift, unsigned, np.zeros_like),
    "shift_right_arithmetic": _shift(np.right_shift, lambda d: f"i{d.itemsize}", lambda x: np.where(x < 0, -1, 0)),
}

BOOL_UNARY: dict[str, Callable[[Array], Array]] = {"not": np.logical_not}
BOOL_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
    "max": np.logical_or,
    "min": np.logical_and,
}

COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def table(dtype: np.dtype[Any], arity: int) -> dict[str, Callable[..., Array]]:
    """The operations of one type by name."""
    if dtype == BOOL:
        return (BOOL_UNARY, BOOL_BINARY)[arity - 1]
    if is_float(dtype):
        return (FLOAT_UNARY, FLOAT_BINARY)[arity - 1]
    if arity == 1 and dtype in UNSIGNED:
        return {name: f for name, f in INT_UNARY.items() if name != "abs"}
    return (INT_UNARY, INT_BINARY)[arity - 1]


def apply(name: str, *xs: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(table(xs[0].dtype, len(xs))[name](*xs)).astype(xs[0].dtype)


def compare(name: str, x: Array, y: Array) -> Array:
    return np.asarray(COMPARISONS[name](x, y))


def reduce(name: str, x: Array, axes: tuple[int, ...]) -> Array:
    """Reductions whose order does not matter: max, min, and for integers add, and, or, xor."""
    for axis in sorted(axes, reverse=True):
        parts = list(np.moveaxis(x, axis, 0))
        while len(parts) > 1:
            odd = parts[len(parts) & ~1 :]
            half = len(parts) // 2
            low, high = np.stack(parts[:half]), np.stack(parts[half : 2 * half])
            parts = list(apply(name, low, high)) + odd
        x = np.asarray(parts[0], x.dtype)
    return x
