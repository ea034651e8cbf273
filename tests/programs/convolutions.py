"""Random convolutions (`lax.conv_general_dilated`: strides, padding, both dilations, groups, any order of dimensions) against XLA's in f64."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.corpus.case import x64
from tests.fuzz.bits import keep
from tests.fuzz.grammar import Grammar
from tests.programs.products import BF16, F16, F32, I8, I32, Array, is_float, to_tf32

FORMS: list[tuple[np.dtype[Any], np.dtype[Any] | None, str | None]] = [
    (F32, None, None), (F32, None, "highest"), (F16, None, None), (BF16, F32, None), (I8, I32, None), (I32, None, None),
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Convolution:
    seed: int
    lhs: tuple[int, ...]
    rhs: tuple[int, ...]
    params: dict[str, Any]
    types: tuple[np.dtype[Any], np.dtype[Any] | None, str | None]

    @staticmethod
    def of(seed: int) -> Convolution:
        rng = np.random.default_rng(seed)
        draw = lambda *of: int(rng.choice(of))  # noqa: E731
        while True:
            rank = draw(1, 1, 2, 2, 2, 3)
            groups, kind = draw(1, 1, 2, 3), draw(0, 1)
            batch, inner, outer = draw(1, 2, 3), draw(1, 2, 3, 8, 16), draw(1, 2, 5, 16)
            batch, features, outer = (batch * (groups if kind else 1), inner * (1 if kind else groups), outer * groups)
            space = [draw(1, 4, 7, 8, 16, 17) for _ in range(rank)]
            window = [draw(1, 2, 3, 3) for _ in range(rank)]
            params = {
                "window_strides": [draw(1, 1, 2, 3) for _ in range(rank)],
                "padding": [(draw(0, 1, 2, -1), draw(0, 1, 2)) for _ in range(rank)],
                "lhs_dilation": [draw(1, 1, 1, 2) for _ in range(rank)],
                "rhs_dilation": [draw(1, 1, 2) for _ in range(rank)],
                "feature_group_count": 1 if kind else groups,
                "batch_group_count": groups if kind else 1,
            }
            lhs_spec, rhs_spec, out_spec = (tuple(int(i) for i in rng.permutation(rank + 2)) for _ in range(3))
            params["dimension_numbers"] = lax.ConvDimensionNumbers(lhs_spec, rhs_spec, out_spec)
            lhs, rhs = [0] * (rank + 2), [0] * (rank + 2)
            for d, n in zip(lhs_spec, (batch, features, *space)):
                lhs[d] = n
            for d, n in zip(rhs_spec, (outer, inner, *window)):
                rhs[d] = n
            c = Convolution(seed, tuple(lhs), tuple(rhs), params, FORMS[seed % len(FORMS)])
            out = jax.eval_shape(c.convolve, *(jax.ShapeDtypeStruct(s, jnp.float32) for s in (c.lhs, c.rhs)))
            if max(np.prod(lhs), np.prod(rhs), out.size) <= 4096:
                return c

    def convolve(self, x: Any, y: Any, precision: Any = None, to: Any = None) -> Any:
        return lax.conv_general_dilated(x, y, **self.params, precision=precision, preferred_element_type=to)

    def data(self) -> list[Array]:
        rng = np.random.default_rng(self.seed + 1)
        dtype = self.types[0]
        if is_float(dtype):
            return [rng.standard_normal(s).astype(dtype) for s in (self.lhs, self.rhs)]
        return [rng.integers(-100, 100, s).astype(dtype) for s in (self.lhs, self.rhs)]

    def run(self, inputs: list[Array]) -> Array:
        _, to, precision = self.types

        def body(x: Any, y: Any, out: Any) -> None:
            out[...] = self.convolve(x[...], y[...], precision, to)

        result = jax.eval_shape(lambda x, y: self.convolve(x, y, precision, to), *inputs)
        return np.asarray(jax.jit(plgpu.kernel(body, out_type=jax.ShapeDtypeStruct(result.shape, result.dtype)))(*inputs))

    def check(self) -> None:
        dtype, _, precision = self.types
        inputs = self.data()
        got = keep(self.run(inputs))
        rounded = [to_tf32(x) if dtype == F32 and precision is None else x for x in inputs]
        with x64(True):
            cpu, reference = jax.devices("cpu")[0], jax.jit(self.convolve)

            def of(xs: list[Array]) -> Array:
                return np.asarray(reference(*(jax.device_put(x.astype(np.float64), cpu) for x in xs)))

            expected, whole, size = of(rounded), of(inputs), of([abs(x) for x in rounded])
        lost = np.zeros(got.shape)
        if is_float(dtype):
            terms = np.prod(self.rhs)
            lost = (terms + 8) * 2.0**-22 * size + abs(whole - expected) + abs(expected) * float(jnp.finfo(got.dtype).eps) * 0.51 + 1e-7
        off = abs(got.astype(np.float64) - expected)
        assert got.shape == expected.shape and (off <= lost).all(), f"{self}: off by {off.max()} of {lost.max()}"


CONVOLUTIONS = Grammar("convolutions", Convolution.of, Convolution.check)
