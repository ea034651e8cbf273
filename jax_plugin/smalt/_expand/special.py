"""Special functions, as arithmetic on f64.

Where an element type is narrower, a function is computed in f64 and rounded: then it is nearly correctly rounded. Elementary
functions of f32 and narrower types are the library's own (`src/lower/math.rs`); only those of f64 are here. Series are Taylor's
unless a comment has a source; Chebyshev coefficients were fitted for smalt in 60 digits.
"""

from __future__ import annotations

import fractions
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax

from smalt import _versions

Array = Any
F64, I64, U64 = np.dtype(np.float64), np.dtype(np.int64), np.dtype(np.uint64)

PI_TEXT = (
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798214808651"
)
LN2_TEXT = "0.69314718055994530941723212145817656807550013436025525412068000949339362196969471560586332699641868754200148"
EULER = 0.5772156649015329
BERNOULLI = [fractions.Fraction(*f) for f in ((1, 6), (-1, 30), (1, 42), (-1, 30), (5, 66), (-691, 2730), (7, 6), (-3617, 510),
                                              (43867, 798), (-174611, 330), (854513, 138), (-236364091, 2730))]  # fmt: skip


def _split(text: str, scale: int, *bits: int) -> list[float]:
    """A decimal number over `scale` as a sum of doubles, all but the last cut to so many bits."""
    rest = fractions.Fraction(text) / scale
    parts = []
    for n in bits:
        unit = fractions.Fraction(2) ** (math.floor(math.log2(rest)) + 1 - n)
        part = rest // unit * unit
        parts.append(float(part))
        rest -= part
    return [*parts, float(rest)]


LN2_HI, LN2_LO = _split(LN2_TEXT, 1, 32)
HALF_PI = _split(PI_TEXT, 2, 32, 32, 32)
LN2 = math.log(2)


def number(x: float, like: Array) -> Array:
    return lax.full_like(like, x)


def polynomial(x: Array, coefficients: Sequence[float]) -> Array:
    """Lowest coefficient first."""
    out = number(coefficients[-1], x)
    for c in reversed(coefficients[:-1]):
        out = out * x + c
    return out


def chebyshev(x: Array, coefficients: Sequence[float]) -> Array:
    """Clenshaw's sum of a series in T_k(x)."""
    b1 = b2 = number(0, x)
    for c in reversed(coefficients[1:]):
        b1, b2 = 2 * x * b1 - b2 + c, b1
    return x * b1 - b2 + coefficients[0]


def where(p: Array, x: Array | float, y: Array | float) -> Array:
    like = x if hasattr(x, "dtype") else y
    x, y = (v if hasattr(v, "dtype") else number(v, like) for v in (x, y))
    return lax.select(p, x, y)


def bits(x: Array) -> Array:
    return lax.bitcast_convert_type(x, I64)


def from_bits(x: Array) -> Array:
    return lax.bitcast_convert_type(x, F64)


def is_nan(x: Array) -> Array:
    return x != x


def power_of_two(n: Array) -> Array:
    """2^n for integers (as i64) within the normal range."""
    return from_bits((n + 1023) << 52)


def scaled(x: Array, n: Array) -> Array:
    """x·2^n, in two steps."""
    half = n >> 1
    return x * power_of_two(half) * power_of_two(n - half)


def high(x: Array) -> Array:
    """The upper 26 bits of a number: products of two such are exact."""
    return from_bits(bits(x) & -(1 << 27))


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b and what its rounding lost (Knuth)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """a·b and what its rounding lost (Dekker; parts by masking, so that fused operations change nothing)."""
    p = a * b
    ah, bh = high(a), high(b)
    al, bl = a - ah, b - bh
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


# ------------------------------------------------------------------------------------------ exponentials, logarithms

_EXP = [1 / math.factorial(k + 2) for k in range(13)]


def _reduced_exponent(x: Array) -> tuple[Array, Array, Array]:
    """x = n·ln 2 + r + c: n as i64; c is what r's rounding lost."""
    n = lax.round(x * (1 / LN2), lax.RoundingMethod.TO_NEAREST_EVEN)
    high_part = x - n * LN2_HI
    r = high_part - n * LN2_LO
    c = (high_part - r) - n * LN2_LO
    return lax.convert_element_type(n, I64), r, c


def exp(x: Array, tail: Array | None = None) -> Array:
    """e^(x + tail)."""
    inside = lax.clamp(np.float64(-746), x, np.float64(710.5))
    n, r, c = _reduced_exponent(inside)
    if tail is not None:
        c = c + where(inside == x, tail, 0.0)
    t = r + r * r * polynomial(r, _EXP)
    return scaled(1 + (t + (c + c * t)), n)


def exp2(x: Array) -> Array:
    inside = lax.clamp(np.float64(-1100), x, np.float64(1100))
    n = lax.round(inside, lax.RoundingMethod.TO_NEAREST_EVEN)
    t, tail = two_product(inside - n, number(LN2, x))
    return scaled(1 + (t + (tail + t * t * polynomial(t, _EXP))), lax.convert_element_type(n, I64))


def expm1(x: Array) -> Array:
    inside = lax.clamp(np.float64(-50), x, np.float64(710.5))
    n, r, c = _reduced_exponent(inside)
    small = r + (c + r * r * polynomial(r, _EXP))
    scale = power_of_two(lax.min(n, np.int64(1000)))
    out = scale * small + (scale - 1)
    out = where(inside > 40, exp(x), out)
    return where(x == 0, x, out)


_LOG = [2 / (2 * k + 3) for k in range(12)]
_ROOT_HALF = 0x3FE6A09E667F3BCD


def _parts(x: Array) -> tuple[Array, Array]:
    """x = 2^k·m with m in [√½, √2), for positive finite x; k as f64."""
    tiny = x < 2.0**-1000
    code = bits(where(tiny, x * 2.0**100, x))
    k = (code - _ROOT_HALF) >> 52
    m = from_bits(code - (k << 52))
    return lax.convert_element_type(k, F64) - where(tiny, number(100.0, x), 0.0), m


def _log_sum(k: Array, f: Array, c: Array | float) -> Array:
    """k·ln 2 + log(1 + f) + c (the arrangement of fdlibm)."""
    s = f / (2 + f)
    z = s * s
    rest = z * polynomial(z, _LOG)
    half = 0.5 * f * f
    return k * LN2_HI - ((half - (s * (half + rest) + (k * LN2_LO + c))) - f)


def _log_edges(x: Array, out: Array) -> Array:
    out = where(x == 0, -math.inf, out)
    out = where((x < 0) | is_nan(x), math.nan, out)
    return where(x == math.inf, x, out)


def log(x: Array) -> Array:
    k, m = _parts(x)
    return _log_edges(x, _log_sum(k, m - 1, 0.0))


def log2(x: Array) -> Array:
    k, m = _parts(x)
    return _log_edges(x, k + _log_sum(number(0, x), m - 1, 0.0) * (1 / LN2))


def log1p(x: Array) -> Array:
    u = 1 + x
    k, m = _parts(u)
    near = lax.abs(x) < 0.29
    lost = where(x > 1, 1 - (u - x), x - (u - 1)) / u
    out = _log_sum(where(near, 0.0, k), where(near, x, m - 1), where(near, 0.0, lost))
    return where(x == 0, x, _log_edges(u, out))


def _log_pair(x: Array) -> tuple[Array, Array]:
    """log x as a sum of two numbers, within about 2^-64 of it."""
    k, m = _parts(x)
    f = m - 1
    d, d_low = two_sum(number(2, f), f)
    s = f / d
    p, p_low = two_product(s, d)
    s_low = ((f - p) - p_low - s * d_low) / d
    z = s * s
    tail = s * z * polynomial(z, _LOG) + 2 * s_low
    out, lost = two_sum(k * LN2_HI, 2 * s)
    return two_sum(out, lost + (tail + k * LN2_LO))


def power(x: Array, y: Array) -> Array:
    """x^y: 2^-64 in the logarithm leaves an ulp of the result."""
    magnitude = lax.abs(x)
    hi, lo = _log_pair(magnitude)
    p, low = two_product(y, hi)
    low = low + y * lo
    p_ = lax.clamp(np.float64(-800), p, np.float64(800))
    out = exp(p_, where(p == p_, low, 0.0))
    # Bases and exponents that the arithmetic above cannot take.
    infinite, huge = lax.abs(y) == math.inf, magnitude == math.inf
    grows = (y > 0) == (magnitude > 1)
    out = where(infinite, where(grows, number(math.inf, x), 0.0), out)
    out = where((magnitude == 0) | huge, where((y > 0) == huge, number(math.inf, x), 0.0), out)
    whole = lax.floor(y) == y
    odd = whole & (lax.abs(y) < 2.0**53) & (2 * lax.floor(y / 2) != y)
    negative = bits(x) < 0
    out = where(negative & odd, -out, out)
    out = where((x < 0) & ~whole & ~huge, math.nan, out)
    out = where(is_nan(x) | is_nan(y), math.nan, out)
    return where((y == 0) | (x == 1) | ((x == -1) & infinite), 1.0, out)


def logistic(x: Array) -> Array:
    return 1 / (1 + exp(-x))


def tanh(x: Array) -> Array:
    t = expm1(2 * lax.min(lax.abs(x), np.float64(22)))
    return with_sign(t / (t + 2), x)


def sinh(x: Array) -> Array:
    a = lax.abs(x)
    e = expm1(lax.min(a, np.float64(30)))
    half = exp(0.5 * a)
    return with_sign(where(a > 22, 0.5 * half * half, 0.5 * (e + e / (e + 1))), x)


def cosh(x: Array) -> Array:
    a = lax.abs(x)
    e = exp(lax.min(a, np.float64(30)))
    half = exp(0.5 * a)
    return where(a > 22, 0.5 * half * half, 0.5 * e + 0.5 / e)


def with_sign(magnitude: Array, sign: Array) -> Array:
    """A non-negative number (or NaN) with the sign of another."""
    return from_bits(bits(magnitude) | (bits(sign) & np.int64(-(1 << 63))))


def asinh(x: Array) -> Array:
    a = lax.abs(x)
    b = lax.min(a, np.float64(1e8))
    near = log1p(b + b * b / (1 + lax.sqrt(b * b + 1)))
    return with_sign(where(a > 1e8, log(a) + LN2, near), x)


def acosh(x: Array) -> Array:
    t = lax.min(x, np.float64(1e8)) - 1
    return where(x > 1e8, log(x) + LN2, log1p(t + lax.sqrt(2 * t + t * t)))


def atanh(x: Array) -> Array:
    a = lax.abs(x)
    return with_sign(0.5 * log1p(2 * a / (1 - a)), x)


def cbrt(x: Array) -> Array:
    a = lax.abs(x)
    ordinary = (a > 0) & (a < math.inf)
    safe = where(ordinary, a, 1.0)
    tiny = safe < 1e-200  # so that nothing below is subnormal
    safe = where(tiny, safe * 2.0**300, safe)
    y = exp(log(safe) / 3)
    yy, lost = two_product(y, y)
    p, low = two_product(yy, y)
    y = y - ((p - safe) + (low + lost * y)) / (3 * yy)
    y = where(tiny, y * 2.0**-100, y)
    return where(ordinary, with_sign(y, x), x)


def remainder(x: Array, y: Array) -> Array:
    """C's fmod: shifted divisors are subtracted, each exactly, until none fits."""
    a, b = lax.abs(x), lax.abs(y)
    valid = (a < math.inf) & (b > 0) & ~is_nan(y)
    a, b = where(valid, a, 0.0), where(valid & (b < math.inf), b, math.inf)
    b_ = where(b == math.inf, 2.0**1023, b)

    def exponent(v: Array) -> Array:
        tiny = v < 2.0**-1000
        return ((bits(where(tiny, v * 2.0**100, v)) >> 52) & 2047) - where(tiny, lax.full_like(bits(v), 100), lax.full_like(bits(v), 0))

    def step(v: Array) -> Array:
        n = lax.max(exponent(v) - exponent(b_), np.int64(0))
        shifted = scaled(b_, lax.min(n, np.int64(2000)))
        shifted = where(shifted > v, scaled(b_, lax.max(n - 1, np.int64(0))), shifted)
        return where(v >= b_, v - shifted, v)

    out = lax.while_loop(lambda v: lax.reduce_or(v >= b_, range(v.ndim)), step, where(b == math.inf, 0.0, a))
    out = where(b == math.inf, a, out)
    out = where(valid, with_sign(out, x), math.nan)
    return where(is_nan(x), math.nan, out)


# ------------------------------------------------------------------------------------------ trigonometry

_SIN = [(-1) ** (k + 1) / math.factorial(2 * k + 3) for k in range(8)]
_COS = [(-1) ** k / math.factorial(2 * k + 4) for k in range(8)]


def _two_over_pi(words: int) -> list[int]:
    """The first words of 32 bits of 2/π, from Machin's formula in integers."""
    precision = 32 * words + 64

    def arctan_of_inverse(n: int) -> int:
        total = term = (1 << precision) // n
        k, sign = 1, -1
        while term:
            term //= n * n
            k += 2
            total += sign * (term // k)
            sign = -sign
        return total

    pi = 4 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239))
    value = (2 << (2 * precision)) // pi >> (precision - 32 * words)
    return [value >> (32 * (words - 1 - i)) & 0xFFFFFFFF for i in range(words)]


def _reduce_near(x: Array) -> tuple[Array, Array, Array]:
    """For |x| < 2^20: quadrant, and what is left, in two parts (Cody and Waite)."""
    n = lax.round(x * (2 / math.pi), lax.RoundingMethod.TO_NEAREST_EVEN)
    r = x - n * HALF_PI[0]
    r, lost = two_sum(r, -n * HALF_PI[1])
    r, lost2 = two_sum(r, -n * HALF_PI[2])
    r, low = two_sum(r, (lost + lost2) - n * HALF_PI[3])
    return lax.convert_element_type(n, I64), r, low


def u64(x: Array) -> Array:
    return lax.convert_element_type(x, U64)


def f64(x: Array) -> Array:
    return lax.convert_element_type(x, F64)


def _reduce_far(x: Array) -> tuple[Array, Array, Array]:
    """Payne and Hanek: the bits of 2/π that matter, times the significand, modulo 4."""
    mask = np.uint64(0xFFFFFFFF)
    code = bits(x)
    e = ((code >> 52) & 2047) - 1075 - 2  # of the unit in the last place, over a full turn of four quadrants
    place = lax.clamp(np.int64(0), (e >> 5) + 2, np.int64(32))  # leading words, after two of zero
    shift = u64(e & 31)
    significand = u64((code & ((1 << 52) - 1)) | (1 << 52))
    low, top = significand & mask, significand >> np.uint64(32)
    low = low << shift
    middle = (top << shift) + (low >> np.uint64(32))
    m = [low & mask, middle & mask, middle >> np.uint64(32)]
    table = [0, 0, *_two_over_pi(38)]
    at = [place == i for i in range(33)]
    words = []
    for j in range(7):
        word = number(0, significand)
        for i in range(33):
            word = lax.select(at[i], number(table[i + j], significand), word)
        words.append(word)
    # Limbs of the product from the least: word 6 is the lowest of 2/π.
    limbs = [number(0, significand) for _ in range(8)]
    for i, a in enumerate(m):
        carry = number(0, significand)
        for j in range(7):
            if i + j > 6:
                break
            total = a * words[6 - j] + limbs[i + j] + carry
            limbs[i + j] = total & mask
            carry = total >> np.uint64(32)
    quadrant = lax.convert_element_type(limbs[6] >> np.uint64(30), I64)
    whole = lax.convert_element_type(((limbs[6] & np.uint64(0x3FFFFFFF)) << np.uint64(32)) | limbs[5], I64)  # of 2^62
    up = whole >= (1 << 61)
    quadrant = quadrant + lax.convert_element_type(up, I64)
    whole = whole - lax.convert_element_type(up, I64) * np.int64(1 << 62)
    first = lax.convert_element_type(whole, F64)
    first = first - where(lax.abs(first) >= 2.0**53, first - high(first), 0.0)  # exact as an integer
    rest = lax.convert_element_type(whole - lax.convert_element_type(first, I64), F64)
    tail = f64(limbs[4]) * 2.0**-94 + (f64(limbs[3]) * 2.0**-126 + f64(limbs[2]) * 2.0**-158)
    a, lost = two_sum(first * 2.0**-62, rest * 2.0**-62)
    a, lost2 = two_sum(a, lost + tail)
    p, p_low = two_product(a, number(math.pi / 2, x))
    r, r_low = two_sum(p, p_low + lost2 * (math.pi / 2) + a * (HALF_PI_LOW))
    sign = code < 0
    return lax.select(sign, -quadrant, quadrant), where(sign, -r, r), where(sign, -r_low, r_low)


HALF_PI_LOW = _split(PI_TEXT, 2, 53)[1]


def _reduced(x: Array) -> tuple[Array, Array, Array]:
    far = lax.abs(x) >= 2.0**20
    finite = lax.abs(x) < math.inf
    near = _reduce_near(where(far, 0.0, x))
    safe = where(far & finite, x, 2.0**20)

    def both(_: Any) -> tuple[Array, ...]:
        return tuple(lax.select(far, a, b) for a, b in zip(_reduce_far(safe), near))

    n, r, low = lax.cond(lax.reduce_or(far & finite, range(x.ndim)), both, lambda _: near, 0)
    return n, where(finite, r, math.nan), low


def _sin_cos(r: Array, low: Array) -> tuple[Array, Array]:
    """On [-π/4, π/4]."""
    z = r * r
    sin = r + (low + (r * z * polynomial(z, _SIN) - 0.5 * z * low))
    half = 0.5 * z
    w = 1 - half
    cos = w + (((1 - w) - half) + (z * z * polynomial(z, _COS) - r * low))
    return sin, cos


def sin(x: Array) -> Array:
    n, r, low = _reduced(x)
    s, c = _sin_cos(r, low)
    out = where((n & 1) == 1, c, s)
    return where(x == 0, x, where((n & 2) == 2, -out, out))


def cos(x: Array) -> Array:
    n, r, low = _reduced(x)
    s, c = _sin_cos(r, low)
    out = where((n & 1) == 1, s, c)
    return where(((n + 1) & 2) == 2, -out, out)


def tan(x: Array) -> Array:
    n, r, low = _reduced(x)
    s, c = _sin_cos(r, low)
    odd = (n & 1) == 1
    return where(x == 0, x, where(odd, -c, s) / where(odd, s, c))


_ATAN = [(-1) ** (k + 1) / (2 * k + 3) for k in range(12)]
_EIGHTH = math.tan(math.pi / 8)


def _atan_unit(x: Array) -> tuple[Array, Array]:
    """atan on [0, 1] as a sum of two numbers; moved by 0, π/8 or π/4 so that Taylor's series is short."""
    middle, upper = x > 0.199, x > 0.668
    center = where(upper, number(1, x), where(middle, _EIGHTH, number(0, x)))
    t = (x - center) / (1 + x * center)
    t = where(middle, t, x)
    z = t * t
    tail = t * z * polynomial(z, _ATAN)
    base = where(upper, number(math.pi / 4, x), where(middle, math.atan(_EIGHTH), number(0, x)))
    s, lost = two_sum(base, t)
    return s, lost + tail


def atan(x: Array) -> Array:
    a = lax.abs(x)
    over = a > 1
    s, low = _atan_unit(where(over, 1 / a, a))
    out = where(over, (math.pi / 2 - s) + (HALF_PI_LOW - low), s + low)
    return with_sign(out, x)


def atan2(y: Array, x: Array) -> Array:
    a, b = lax.abs(y), lax.abs(x)
    top, bottom = lax.min(a, b), lax.max(a, b)
    ratio = where(top == bottom, number(1, x), top / where(bottom == 0, number(1, x), bottom))
    ratio = where(bottom == 0, 0.0, ratio)
    s, low = _atan_unit(ratio)
    steep = a > b
    s, low = where(steep, math.pi / 2 - s, s), where(steep, HALF_PI_LOW - low, low)
    back = bits(x) < 0
    out = where(back, (math.pi - s) + (2 * HALF_PI_LOW - low), s + low)
    return where(is_nan(x) | is_nan(y), math.nan, with_sign(out, y))


def asin(x: Array) -> Array:
    out = atan2(x, lax.sqrt((1 - x) * (1 + x)))
    return where(x == 0, x, out)


def acos(x: Array) -> Array:
    return 2 * atan2(lax.sqrt(1 - x), lax.sqrt(1 + x))


# ------------------------------------------------------------------------------------------ error functions

# (1 + 2x)·exp(x²)·erfc(x) in Chebyshev polynomials of (x − 3.75)/(x + 3.75), the form of Shepherd and Laframboise
# (Math. Comp. 36, 1981).
_ERFCX = [
    1.1775789345674017, -0.004590054580646478, -0.08424913336651792, 0.05920993999819189, -0.026658668435305753, 0.009074997670705265,
    -0.002413163540417608, 0.0004907758365258086, -6.916973302501207e-05, 4.13902798607301e-06, 7.74038306619849e-07,
    -2.1886401049234397e-07, 1.076499946567091e-08, 4.521959811218287e-09, -7.754400208831351e-10, -6.318088340886684e-11,
    2.86879501093067e-11, 1.9455868545777347e-13, -9.65469674843344e-13, 3.25254814814874e-14, 3.3478119482868056e-14,
    -1.864562880419313e-15, -1.2507950530688648e-15, 7.418235256624044e-17, 5.068148904796111e-17, -2.2370566594359995e-18,
    -2.187342944303018e-18, 2.6766327399258762e-20,
]
_ERF = [2 / math.sqrt(math.pi) * (-1) ** k / (math.factorial(k) * (2 * k + 1)) for k in range(21)]


def _minus_square(a: Array) -> Array:
    """exp(−a²)."""
    p, low = two_product(a, a)
    return exp(-p, -low)


def _erfc_positive(a: Array) -> Array:
    """For a ≥ 0."""
    a = lax.min(a, np.float64(30))
    return _minus_square(a) * chebyshev((a - 3.75) / (a + 3.75), _ERFCX) / (1 + 2 * a)


def erf(x: Array) -> Array:
    a = lax.abs(x)
    near = lax.min(a, np.float64(1))
    return with_sign(where(a < 1, near * polynomial(near * near, _ERF), 1 - _erfc_positive(a)), x)


def erfc(x: Array) -> Array:
    far = _erfc_positive(lax.abs(x))
    return where(lax.abs(x) < 0.47, 1 - erf(x), where(x < 0, 2 - far, far))


def erf_inv(x: Array) -> Array:
    """Winitzki's estimate (2·10^-3), and Halley's step three times; near ±1 on erfc, where 1 − |x| is exact."""
    a = lax.abs(x)
    rest = 1 - a
    safe = where((a < 1) & (rest > 0), a, 0.5)
    left = where((a < 1) & (rest > 0), rest, 0.5)
    l = log(left * (1 + safe))
    c = 0.147
    h = 2 / (math.pi * c) + 0.5 * l
    y = lax.sqrt(lax.max(lax.sqrt(lax.max(h * h - l / c, np.float64(0))) - h, np.float64(0)))
    for _ in range(3):
        gap = where(safe < 0.5, erf(y) - safe, left - _erfc_positive(y))
        step = gap * (math.sqrt(math.pi) / 2) * exp(y * y)
        y = y - step / (1 + y * step)
    y = where(safe < 1e-9, safe * (math.sqrt(math.pi) / 2), y)
    out = where(a == 1, math.inf, where((a > 1) | is_nan(x), math.nan, y))
    return with_sign(out, x)


# ------------------------------------------------------------------------------------------ the gamma function's family


@functools.cache
def _zeta_minus_one(k: int) -> float:
    """ζ(k) − 1 for integers, by Euler and Maclaurin in fractions."""
    n = 12
    total = sum(fractions.Fraction(1, i**k) for i in range(2, n))
    total += fractions.Fraction(1, (k - 1) * n ** (k - 1)) + fractions.Fraction(1, 2 * n**k)
    rising = fractions.Fraction(k)
    for j, b in enumerate(BERNOULLI):
        total += b / math.factorial(2 * j + 2) * rising / n ** (k + 2 * j + 1)
        rising *= (k + 2 * j + 1) * (k + 2 * j + 2)
    return float(total)


# log Γ(2 + z) = z·(1 − γ) + Σ (−1)^k (ζ(k) − 1) z^k / k (Abramowitz and Stegun 6.1.33).
_LGAMMA = [1 - EULER] + [(-1) ** k * _zeta_minus_one(k) / k for k in range(2, 28)]
_STIRLING = [float(b / ((2 * j + 2) * (2 * j + 1))) for j, b in enumerate(BERNOULLI[:10])]
_DIGAMMA = [float(b / (2 * j + 2)) for j, b in enumerate(BERNOULLI[:10])]


def _sin_pi(x: Array) -> Array:
    """|sin πx|."""
    r = lax.abs(x - lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN))
    return lax.abs(_sin_cos_quarter(r))


def _sin_cos_quarter(r: Array) -> Array:
    """sin πr on [0, ½]."""
    inner = where(r > 0.25, 0.5 - r, r) * math.pi
    s, c = _sin_cos(inner, number(0, r))
    return where(r > 0.25, c, s)


def _lgamma_positive(x: Array) -> Array:
    small = x < 0.5
    y = where(small, x + 1, x)  # in [½, ∞)
    inside = lax.min(y, np.float64(10.5))
    product = number(1, x)
    for _ in range(8):
        big = inside >= 2.5
        inside = where(big, inside - 1, inside)
        product = where(big, product * inside, product)
    low = inside < 1.5
    z = where(small, x, where(low, inside - 1, inside - 2))
    out = z * polynomial(z, _LGAMMA) - where(low, log1p(z), 0.0) + log(product)
    out = where(small, out - log(x), out)
    w = 1 / lax.max(y, np.float64(1))
    l = log(y)
    far = (y - 0.5) * (l - 1) + (0.5 * math.log(2 * math.pi) - 0.5) + w * polynomial(w * w, _STIRLING)
    return where(y >= 10, far, out)


def lgamma(x: Array) -> Array:
    a = lax.abs(x)
    out = _lgamma_positive(a)
    negative = x < 0
    # Γ(x)·Γ(−x) = −π / (x·sin πx).
    reflected = math.log(math.pi) - log(_sin_pi(a)) - log(a) - out
    out = where(negative, reflected, out)
    pole = (x <= 0) & (lax.floor(x) == x)
    return where(is_nan(x), math.nan, where(pole | (a == math.inf), math.inf, out))


def _digamma_positive(x: Array) -> Array:
    total = number(0, x)
    y = x
    for _ in range(10):
        small = y < 10
        total = where(small, total - 1 / y, total)
        y = where(small, y + 1, y)
    w = 1 / y
    return total + ((log(y) - 0.5 * w) - w * w * polynomial(w * w, _DIGAMMA))


def digamma(x: Array) -> Array:
    negative = x <= 0
    out = _digamma_positive(where(negative, 1 - x, x))
    r = x - lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)
    quarter = lax.abs(r)
    s, c = _sin_cos_quarter(quarter), _sin_cos_quarter(0.5 - quarter)
    out = where(negative, out - math.pi * where(r < 0, -c, c) / s, out)
    out = where(x == math.inf, math.inf, out)
    pole = negative & (lax.floor(x) == x)
    out = where(pole | is_nan(x), math.nan, out)
    return where(x == 0, -math.inf, out)


def zeta(x: Array, q: Array) -> Array:
    """Hurwitz's ζ: twelve terms, then Euler and Maclaurin's (Abramowitz and Stegun 23.1.30)."""
    n = 12
    total = number(0, x)
    for k in range(n):
        total = total + power(q + k, -x)
    a = q + n
    p = power(a, -x)
    total = total + p * a / (x - 1) + 0.5 * p
    rising, inverse = x, 1 / a
    scale = p * inverse
    for j, b in enumerate(BERNOULLI):
        total = total + float(b / math.factorial(2 * j + 2)) * rising * scale
        rising = rising * (x + (2 * j + 1)) * (x + (2 * j + 2))
        scale = scale * inverse * inverse
    total = where((q <= 0) & (lax.floor(x) != x), math.nan, total)
    total = where((q <= 0) & (lax.floor(q) == q), math.inf, total)
    total = where(x == 1, math.inf, total)
    return where((x < 1) | is_nan(x) | is_nan(q), math.nan, total)


def polygamma(n: Array, x: Array) -> Array:
    sign = where(2 * lax.floor(n / 2) == n, number(-1, n), 1.0)
    m = n + 1
    out = sign * exp(lgamma(m)) * zeta(m, x)
    out = where(n == 0, digamma(x), out)
    return where((n < 0) | (lax.floor(n) != n), math.nan, out)


_I1E = [  # √x·exp(−x)·I₁(x) in Chebyshev polynomials of 16/x − 1, for x ≥ 8
    0.38928811750914005, -0.009761097491361469, -0.00011058893876262371, -3.882564808877691e-06, -2.512236237870209e-07,
    -2.6314688468895196e-08, -3.835380385964237e-09, -5.589743462196584e-10, -1.8974958123505413e-11, 3.2526035830154884e-11,
    1.4125807436613782e-11, 2.0356285441470896e-12, -7.198551776245908e-13, -4.0835511110921974e-13, -2.1015418427726643e-14,
    4.2724400167119517e-14, 1.0420276984128802e-14, -3.814403072437007e-15, -1.8803547755107805e-15, 3.30820231092085e-16,
    2.9626289976460157e-16, -3.209525921991637e-17, -4.6503053684947827e-17, 4.414348323093937e-18, 7.517296311011398e-18,
    -9.314178870907263e-19, -1.2421932752759928e-18, 2.414276734641215e-19,
]
_I1 = [1 / (math.factorial(k) * math.factorial(k + 1)) for k in range(36)]


def bessel_i1e(x: Array) -> Array:
    a = lax.abs(x)
    near = lax.min(a, np.float64(8))
    z = 0.25 * near * near
    small = 0.5 * near * polynomial(z, _I1) * exp(-near)
    far = lax.max(a, np.float64(8))
    large = chebyshev(16 / far - 1, _I1E) / lax.sqrt(far)
    return with_sign(where(a <= 8, small, where(a == math.inf, 0.0, large)), x)


# ------------------------------------------------------------------------------------------ other types


def multiply_high(x: Array, y: Array) -> Array:
    """The upper half of an integer product."""
    dtype = np.dtype(x.dtype)
    width = 8 * dtype.itemsize
    if width < 64:
        wide = np.dtype(f"{dtype.kind}{2 * dtype.itemsize}")
        p = lax.convert_element_type(x, wide) * lax.convert_element_type(y, wide)
        return lax.convert_element_type(lax.shift_right_logical(p, lax.full_like(p, width)), dtype)
    a, b = lax.bitcast_convert_type(x, U64), lax.bitcast_convert_type(y, U64)
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    a0, a1, b0, b1 = a & mask, a >> half, b & mask, b >> half
    middle = a1 * b0 + ((a0 * b0) >> half)
    other = a0 * b1 + (middle & mask)
    out = a1 * b1 + (middle >> half) + (other >> half)
    if dtype.kind == "i":
        zero = lax.full_like(out, 0)
        out = out - lax.select(x < 0, b, zero) - lax.select(y < 0, a, zero)
    return lax.bitcast_convert_type(out, dtype)


def ordered(x: Array) -> Array:
    """Integers in the total order of floats: −NaN < −∞ < … < −0 < +0 < … < NaN."""
    width = 8 * np.dtype(x.dtype).itemsize
    signed = np.dtype(f"i{width // 8}")
    if not np.issubdtype(x.dtype, np.integer) and x.dtype != np.bool_:
        code = lax.bitcast_convert_type(x, signed)
        flip = lax.shift_right_logical(lax.shift_right_arithmetic(code, lax.full_like(code, width - 1)), lax.full_like(code, 1))
        return code ^ flip
    return x


# ------------------------------------------------------------------------------------------ the table

_F64_ONLY: dict[str, Callable[..., Array]] = {
    "exp": exp, "exp2": exp2, "expm1": expm1, "log": log, "log2": log2, "log1p": log1p, "logistic": logistic, "tanh": tanh, "sinh": sinh,
    "cosh": cosh, "asinh": asinh, "acosh": acosh, "atanh": atanh, "cbrt": cbrt, "sin": sin, "cos": cos, "tan": tan, "asin": asin,
    "acos": acos, "atan": atan, "atan2": atan2, "pow": power, "rem": remainder, "erf": erf, "erfc": erfc, "erf_inv": erf_inv,
}  # fmt: skip
_ALWAYS: dict[str, Callable[..., Array]] = {
    "lgamma": lgamma, "digamma": digamma, "zeta": zeta, "polygamma": polygamma, "bessel_i1e": bessel_i1e,
}  # fmt: skip
#: JAX's own definitions, evaluated in f64.
_JAX = ("igamma", "igammac", "igamma_grad_a", "random_gamma_grad", "regularized_incomplete_beta", "bessel_i0e")

FUNCTIONS = (*_F64_ONLY, *_ALWAYS, *_JAX, "cumlogsumexp")


def function(name: str, avals: Sequence[Any], params: dict[str, Any]) -> Callable[..., Array] | None:
    """A function of the operands; None where the library has the function of this type."""
    is_f64 = avals[0].dtype == F64
    if name == "cumlogsumexp":
        return _versions.defined_by_primitive(name, params) if is_f64 else None
    if name in _F64_ONLY:
        return _in_f64(_F64_ONLY[name]) if is_f64 else None
    if name in _ALWAYS:
        return _in_f64(_ALWAYS[name])
    own = _versions.defined_by_primitive(name, params)
    return None if own is None else _in_f64(own)


def _in_f64(f: Callable[..., Array]) -> Callable[..., Array]:
    def wide(*xs: Array) -> Array:
        shape = np.broadcast_shapes(*(x.shape for x in xs))
        dims = [range(len(shape) - x.ndim, len(shape)) for x in xs]
        whole = [x if x.shape == shape else lax.broadcast_in_dim(x, shape, d) for x, d in zip(xs, dims)]
        return f(*(lax.convert_element_type(x, F64) for x in whole))

    return wide

