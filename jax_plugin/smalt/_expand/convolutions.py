"""`conv_general_dilated` as slices of the padded input and one `dot_general` for each tap of the window, added up."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from jax import lax

from smalt._errors import Unsupported

#: Taps of a window: each is a slice and a product of its own.
MAX_TAPS = 256


def convolution(params: Mapping[str, Any], result: Any) -> Callable[[Any, Any], Any]:
    """The convolution of an equation as a traceable function of input and kernel; `result`: the type of what it gives."""
    spec = params["dimension_numbers"]
    strides, input_dilation, dilation = params["window_strides"], params["lhs_dilation"], params["rhs_dilation"]
    feature_groups, batch_groups = int(params["feature_group_count"]), int(params["batch_group_count"])

    def convolve(x: Any, kernel: Any) -> Any:
        # [batch, features, space…] and [window…, features of a group, output features]
        x = lax.transpose(x, spec.lhs_spec)
        kernel = lax.transpose(kernel, (*spec.rhs_spec[2:], spec.rhs_spec[1], spec.rhs_spec[0]))
        window = kernel.shape[:-2]
        taps = math.prod(window)
        if taps > MAX_TAPS:
            raise Unsupported(
                f"a convolution with a window of {window}\n  expected: at most {MAX_TAPS} taps"
                "\n  remedy: multiply patches by the kernel as one matrix (jnp.dot), or go over the window in a loop"
            )
        padding = [(0, 0, 0), (0, 0, 0), *((lo, hi, n - 1) for (lo, hi), n in zip(params["padding"], input_dilation))]
        x = lax.pad(x, jnp.zeros((), x.dtype), padding)
        space = tuple(result.shape[d] for d in spec.out_spec[2:])
        sums = _sum_type(x.dtype, kernel.dtype, result.dtype)
        total = None
        for tap in itertools.product(*map(range, window)):
            starts = [i * n for i, n in zip(tap, dilation)]
            limits = [start + (n - 1) * step + 1 if n else start for start, n, step in zip(starts, space, strides)]
            if 0 in space:
                continue
            part = lax.slice(x, (0, 0, *starts), (*x.shape[:2], *limits), (1, 1, *strides))
            product = _tap(part, kernel[tap], feature_groups, batch_groups, params["precision"], sums)
            total = product if total is None else total + product
        if total is None:
            return jnp.zeros(result.shape, result.dtype)
        total = lax.convert_element_type(total, result.dtype)
        # From [batch, space…, output features].
        order = [0, total.ndim - 1, *range(1, total.ndim - 1)]
        return lax.transpose(total, [order[spec.out_spec.index(d)] for d in range(total.ndim)])

    return convolve


def _sum_type(x: Any, kernel: Any, result: Any) -> Any:
    """What taps are added in: products are rounded once, at the end."""
    if any(jnp.issubdtype(d, jnp.floating) for d in (x, kernel, result)):
        return jnp.float64 if jnp.dtype(jnp.float64) in (x, kernel, result) else jnp.float32
    return result if jnp.dtype(result).itemsize >= 4 else jnp.uint32 if jnp.issubdtype(result, jnp.unsignedinteger) else jnp.int32


def _tap(x: Any, kernel: Any, feature_groups: int, batch_groups: int, precision: Any, dtype: Any) -> Any:
    """`[batch, features, space…]` by `[features of a group, output features]`: `[batch, space…, output features]`."""
    groups = feature_groups * batch_groups
    batch, features, *space = x.shape
    inner, outer = kernel.shape
    if groups == 1:
        return lax.dot_general(x, kernel, (((1,), (0,)), ((), ())), precision=precision, preferred_element_type=dtype)
    if feature_groups > 1:
        x = lax.reshape(x, (batch, groups, features // groups, *space))
        x = lax.transpose(x, (1, 0, 2, *range(3, x.ndim)))
    else:
        x = lax.reshape(x, (groups, batch // groups, features, *space))
    kernel = lax.transpose(lax.reshape(kernel, (inner, groups, outer // groups)), (1, 0, 2))
    # [group, batch, space…, output features of the group]
    out = lax.dot_general(x, kernel, (((2,), (1,)), ((0,), (0,))), precision=precision, preferred_element_type=dtype)
    out = lax.transpose(out, (*range(1, out.ndim - 1), 0, out.ndim - 1))
    return lax.reshape(out, (*out.shape[:-2], outer))
