"""Complex numbers in a kernel: every value is two real ones, and an operation on them is real arithmetic.

Quotients are scaled so that nothing overflows on the way, magnitudes are hypot's; roots, logarithms and powers go through both.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from smalt import _messages
from smalt._errors import Unsupported

Array = Any


@dataclasses.dataclass(frozen=True)
class C:
    """A complex value."""

    re: Array
    im: Array

    def __add__(self, other: C) -> C:
        return C(self.re + other.re, self.im + other.im)

    def __sub__(self, other: C) -> C:
        return C(self.re - other.re, self.im - other.im)

    def __neg__(self) -> C:
        return C(-self.re, -self.im)

    def __mul__(self, other: C) -> C:
        return C(self.re * other.re - self.im * other.im, self.re * other.im + self.im * other.re)

    def __truediv__(self, other: C) -> C:
        """Smith's: over the larger of the divisor's parts."""
        swap = lax.abs(other.re) < lax.abs(other.im)
        big, small = lax.select(swap, other.im, other.re), lax.select(swap, other.re, other.im)
        ratio = small / big
        below = big + small * ratio
        a, b = lax.select(swap, self.im, self.re), lax.select(swap, self.re, self.im)
        re = (a + b * ratio) / below
        im = (b - a * ratio) / below
        return C(re, lax.select(swap, -im, im))

    def times(self, x: Array) -> C:
        return C(self.re * x, self.im * x)


def where(p: Array, x: C, y: C) -> C:
    return C(lax.select(p, x.re, y.re), lax.select(p, x.im, y.im))


def one(like: C) -> C:
    return C(lax.full_like(like.re, 1), lax.full_like(like.re, 0))


def i_times(z: C) -> C:
    return C(-z.im, z.re)


def magnitude(z: C) -> Array:
    a, b = lax.abs(z.re), lax.abs(z.im)
    big, small = lax.max(a, b), lax.min(a, b)
    ratio = small / lax.select(big == 0, lax.full_like(big, 1), big)
    out = big * lax.sqrt(1 + ratio * ratio)
    infinite = (a == math.inf) | (b == math.inf)
    return lax.select(infinite, lax.full_like(out, math.inf), out)


def exp(z: C) -> C:
    e = lax.exp(z.re)
    return C(e * lax.cos(z.im), lax.select(z.im == 0, z.im, e * lax.sin(z.im)))


def log(z: C) -> C:
    """Near the unit circle from |z|² − 1, without its cancellation."""
    r = magnitude(z)
    a, b = lax.abs(z.re), lax.abs(z.im)
    big, small = lax.max(a, b), lax.min(a, b)
    near = 0.5 * lax.log1p((big - 1) * (big + 1) + small * small)
    close = (r > 0.5) & (r < 2)
    return C(lax.select(close, near, lax.log(r)), lax.atan2(z.im, z.re))


def log1p(z: C) -> C:
    square = z.re * (2 + z.re) + z.im * z.im
    near = (lax.abs(z.re) < 0.5) & (lax.abs(z.im) < 0.5)
    far = log(C(1 + z.re, z.im))
    return C(lax.select(near, 0.5 * lax.log1p(square), far.re), far.im)


def expm1(z: C) -> C:
    half = lax.sin(0.5 * z.im)
    e = lax.expm1(z.re)
    return C(e * lax.cos(z.im) - 2 * half * half, lax.exp(z.re) * lax.sin(z.im))


def sqrt(z: C) -> C:
    r = magnitude(z)
    t = lax.sqrt(0.5 * (r + lax.abs(z.re)))
    safe = lax.select(t == 0, lax.full_like(t, 1), t)
    u = 0.5 * lax.abs(z.im) / safe
    positive = z.re >= 0
    re, im = lax.select(positive, t, u), lax.select(positive, u, t)
    return C(re, lax.select(_negative(z.im), -im, im))


def _negative(x: Array) -> Array:
    signed = np.dtype(f"i{np.dtype(x.dtype).itemsize}")
    return lax.bitcast_convert_type(x, signed) < 0


def sinh(z: C) -> C:
    return C(lax.sinh(z.re) * lax.cos(z.im), lax.cosh(z.re) * lax.sin(z.im))


def cosh(z: C) -> C:
    return C(lax.cosh(z.re) * lax.cos(z.im), lax.sinh(z.re) * lax.sin(z.im))


def tanh(z: C) -> C:
    """With the hyperbolic functions of the real part bounded, where the result is ±1 anyway."""
    x = lax.clamp(np.asarray(-20, z.re.dtype), z.re, np.asarray(20, z.re.dtype))
    s, c = lax.sinh(x), lax.cosh(x)
    sin, cos = lax.sin(z.im), lax.cos(z.im)
    below = s * s + cos * cos
    return C(s * c / below, sin * cos / below)


def _through_i(f: Callable[[C], C]) -> Callable[[C], C]:
    """g(z) = −i·f(i·z)."""
    return lambda z: -i_times(f(i_times(z)))


def power(x: C, y: C) -> C:
    out = exp(y * log(x))
    zero = (x.re == 0) & (x.im == 0)
    nothing = (y.re == 0) & (y.im == 0)
    o = one(x)
    out = where(zero, C(lax.full_like(x.re, 0), lax.full_like(x.re, 0)), out)
    return where(nothing, o, out)


def integer_power(z: C, n: int) -> C:
    if n < 0:
        return one(z) / integer_power(z, -n)
    out = one(z)
    base = z
    while n:
        if n & 1:
            out = out * base
        n >>= 1
        if n:
            base = base * base
    return out


def sign(z: C) -> C:
    r = magnitude(z)
    zero = r == 0
    safe = lax.select(zero, lax.full_like(r, 1), r)
    return C(z.re / safe, z.im / safe)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "neg": lambda z: -z,
    "add": lambda x, y: x + y,
    "add_any": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "square": lambda z: z * z,
    "reciprocal": lambda z: one(z) / z,
    "abs": magnitude,
    "sign": sign,
    "exp": exp,
    "exp2": lambda z: exp(z.times(math.log(2))),
    "log": log,
    "log2": lambda z: log(z).times(1 / math.log(2)),
    "log1p": log1p,
    "expm1": expm1,
    "sqrt": sqrt,
    "rsqrt": lambda z: one(z) / sqrt(z),
    "logistic": lambda z: one(z) / (one(z) + exp(-z)),
    "sinh": sinh,
    "cosh": cosh,
    "tanh": tanh,
    "sin": _through_i(sinh),
    "cos": lambda z: cosh(i_times(z)),
    "tan": _through_i(tanh),
    "pow": power,
    "real": lambda z: z.re,
    "imag": lambda z: z.im,
    "eq": lambda x, y: (x.re == y.re) & (x.im == y.im),
    "ne": lambda x, y: (x.re != y.re) | (x.im != y.im),
    "is_finite": lambda z: lax.is_finite(z.re) & lax.is_finite(z.im),
    "one_minus_square": lambda z: (one(z) - z) * (one(z) + z),
}

#: The same on both parts.
_BY_PARTS = frozenset({
    "broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose", "rev", "slice", "concatenate", "copy", "stop_gradient",
    "optimization_barrier", "stack", "tile", "reduce_sum", "cumsum", "copy_p", "name", "split", "unstack", "broadcast_to", "scatter",
    "scatter_add", "scatter_sub",
})  # fmt: skip


def expansion(name: str, eqn: Any) -> Callable[..., Any]:
    """A function of the equation's physical operands."""
    avals = [a.aval for a in eqn.invars]

    def bind(*xs: Array) -> Any:
        return eqn.primitive.bind(*xs, **eqn.params)

    def compute(*physical: Array) -> Any:
        values = _gather(avals, physical)
        return _leaves(_apply(name, eqn, values, bind))

    return compute


def _gather(avals: Sequence[Any], physical: Sequence[Array]) -> list[Any]:
    rest = iter(physical)
    return [C(next(rest), next(rest)) if _messages.is_complex(a) else next(rest) for a in avals]


def _leaves(out: Any) -> list[Array]:
    if isinstance(out, C):
        return [out.re, out.im]
    if isinstance(out, (list, tuple)):
        return [leaf for part in out for leaf in _leaves(part)]
    return [out]


def _broadcast(values: list[Any]) -> list[Any]:
    """Scalars beside arrays, as JAX lets them stand."""
    shape = np.broadcast_shapes(*((v.re if isinstance(v, C) else v).shape for v in values))

    def wide(x: Array) -> Array:
        return x if x.shape == shape else jnp.broadcast_to(x, shape)

    return [C(wide(v.re), wide(v.im)) if isinstance(v, C) else wide(v) for v in values]


def _apply(name: str, eqn: Any, values: list[Any], bind: Callable[..., Any]) -> Any:
    params = eqn.params
    if name == "conj":
        z = values[0]
        return C(z.re, -z.im) if isinstance(z, C) else C(z, lax.full_like(z, 0))
    if name in _FUNCTIONS:
        return _FUNCTIONS[name](*_broadcast(values))
    if name in _BY_PARTS:
        parts = [[v.re if isinstance(v, C) else v for v in values], [v.im if isinstance(v, C) else v for v in values]]
        re, im = (bind(*xs) for xs in parts)
        if isinstance(re, (list, tuple)):
            return [C(r, i) for r, i in zip(re, im)]
        return C(re, im)
    match name:
        case "complex":
            return C(*_broadcast(values))
        case "convert_element_type":
            return _convert(values[0], eqn.outvars[0].aval)
        case "integer_pow":
            return integer_power(values[0], params["y"])
        case "select_n":
            which, *cases = values
            return C(lax.select_n(which, *(c.re for c in cases)), lax.select_n(which, *(c.im for c in cases)))
        case "reduce_prod":
            return _product(values[0], params["axes"])
        case "pad":
            z, fill = values
            return C(lax.pad(z.re, fill.re, params["padding_config"]), lax.pad(z.im, fill.im, params["padding_config"]))
        case "dynamic_slice":
            z, *starts = values
            return C(*(lax.dynamic_slice(x, starts, params["slice_sizes"]) for x in (z.re, z.im)))
        case "dynamic_update_slice":
            z, u, *starts = values
            return C(lax.dynamic_update_slice(z.re, u.re, starts), lax.dynamic_update_slice(z.im, u.im, starts))
        case "gather":
            z, indices = values
            fill = complex(math.nan if params["fill_value"] is None else params["fill_value"])
            filled = ((z.re, fill.real), (z.im, fill.imag))
            return C(*(eqn.primitive.bind(x, indices, **{**params, "fill_value": f}) for x, f in filled))
        case "dot_general":
            return _dot(values, params)
        case "empty" | "empty2":
            part = _messages.physical(eqn.outvars[0].aval)[0]
            return C(jnp.zeros(part.shape, part.dtype), jnp.zeros(part.shape, part.dtype))
        case "asin" | "acos" | "atan" | "asinh" | "acosh" | "atanh":
            return _inverse(name, values[0])
        case "fft":
            raise Unsupported(
                "not supported yet: Fourier transforms"
                "\n  remedy: compute it outside of the kernel, in the jitted function around it (jnp.fft)"
            )
        case _:
            raise Unsupported(
                f"not supported yet: `{name}` of complex numbers"
                "\n  remedy: compute it from the real and imaginary parts (jnp.real, jnp.imag)"
            )


def _inverse(name: str, z: C) -> C:
    match name:
        case "asinh":
            return _asinh(z)
        case "asin":
            return _through_i(_asinh)(z)
        case "atanh":
            return (log1p(z) - log1p(-z)).times(0.5)
        case "atan":
            return _through_i(lambda w: (log1p(w) - log1p(-w)).times(0.5))(z)
        case "acos":
            s = _through_i(_asinh)(z)
            return C(math.pi / 2 - s.re, -s.im)
        case _:
            o = one(z)
            return log(z + sqrt(z + o) * sqrt(z - o))


def _asinh(z: C) -> C:
    """On the half plane to the right, so that nothing cancels; it is odd."""
    left = _negative(z.re)
    w = where(left, -z, z)
    out = log(w + sqrt(w * w + one(w)))
    return where(left, -out, out)


def _convert(value: Any, to: Any) -> Any:
    part = _messages.physical(to)[0].dtype if _messages.is_complex(to) else to.dtype
    if not isinstance(value, C):
        re = lax.convert_element_type(value, part)
        return C(re, lax.full_like(re, 0))
    if not _messages.is_complex(to):
        return lax.convert_element_type(value.re, part)
    return C(lax.convert_element_type(value.re, part), lax.convert_element_type(value.im, part))


def _product(z: C, axes: Sequence[int]) -> C:
    """Of halves, again and again."""
    kept = [d for d in range(z.re.ndim) if d not in axes]
    shape = tuple(z.re.shape[d] for d in kept)
    flat = [jnp.transpose(x, (*kept, *axes)).reshape(*shape, -1) for x in (z.re, z.im)]
    out = C(*flat)
    while (n := out.re.shape[-1]) > 1:
        half = n // 2
        folded = C(out.re[..., :half], out.im[..., :half]) * C(out.re[..., half : 2 * half], out.im[..., half : 2 * half])
        if n % 2:
            folded = C(*(jnp.concatenate([x, y[..., -1:]], -1) for x, y in ((folded.re, out.re), (folded.im, out.im))))
        out = folded
    return C(out.re[..., 0], out.im[..., 0])


def _dot(values: list[Any], params: dict[str, Any]) -> C:
    preferred = params["preferred_element_type"]
    if preferred is not None and np.issubdtype(preferred, np.complexfloating):
        preferred = np.dtype(f"f{np.dtype(preferred).itemsize // 2}")

    def dot(x: Array, y: Array) -> Array:
        return lax.dot_general(x, y, params["dimension_numbers"], precision=params["precision"], preferred_element_type=preferred)

    a, b = (v if isinstance(v, C) else C(v, lax.full_like(v, 0)) for v in values)
    return C(dot(a.re, b.re) - dot(a.im, b.im), dot(a.re, b.im) + dot(a.im, b.re))
