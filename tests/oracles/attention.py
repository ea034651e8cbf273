"""How far JAX's shipped attention is from what it computes, forward and backward; `python -m tests.oracles.attention` says so of the emulator's.

Exact attention in f64, and the same with nothing but the roundings that the kernel's author wrote: weights, gradients of logits and
results are of 16 bits. Whoever rounds nowhere else is as far from the exact result as that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental.pallas.ops.gpu import attention_mgpu

import smalt

Array = np.ndarray[Any, Any]

LENGTH = 256
HEADS, KV_HEADS = 4, 2


@dataclasses.dataclass(frozen=True)
class Attention:
    """A call of the shipped kernel.

    Attributes:
        kind: "plain", "causal", "emitter" (the one by the pipeline emitter), or "backward": gradients, of the inputs.
        scaled: The logits are divided by the root of the dimension, as attention is used; if not, weights are near 0 and 1.
        warpgroups: That compute, in the backward pass.
    """

    kind: str
    dim: int
    block_kv: int = 64
    scaled: bool = True
    warpgroups: int = 1

    def __str__(self) -> str:
        more = f" wgs {self.warpgroups}" if self.kind == "backward" else ""
        return f"{self.kind} D{self.dim} kv {self.block_kv}{more}{'' if self.scaled else ' not scaled'}"

    @property
    def names(self) -> tuple[str, ...]:
        """Of the results."""
        return ("dq", "dk", "dv") if self.kind == "backward" else ("o",)

    def inputs(self) -> list[Array]:
        """Queries, keys, values, and the gradient of the output: (1, length, heads, dim)."""
        rng = np.random.default_rng([self.dim, self.block_kv, self.warpgroups])
        q, k, v, do = (rng.standard_normal((1, LENGTH, heads, self.dim)) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS))
        return [x.astype(np.float16) for x in (q / np.sqrt(self.dim) if self.scaled else q, k, v, do)]

    def function(self) -> Callable[..., Any]:
        blocks = ("block_q_dkv", "block_kv_dkv", "block_q_dq", "block_kv_dq")
        options: dict[str, Any] = dict.fromkeys(blocks, 64) if self.kind == "backward" else {}
        if self.warpgroups > 1:
            options["compute_wgs_bwd"] = self.warpgroups
        config = attention_mgpu.TuningConfig(
            block_q=64, block_kv=self.block_kv, max_concurrent_steps=2, causal=self.kind == "causal", **options
        )
        forward = attention_mgpu.attention_with_pipeline_emitter if self.kind == "emitter" else attention_mgpu.attention

        def run(q: Any, k: Any, v: Any, do: Any) -> Any:
            if self.kind == "backward":
                return jax.vjp(lambda *qkv: forward(*qkv, config), q, k, v)[1](do)
            return (forward(q, k, v, config),)

        return run

    def emulate(self, **options: Any) -> list[Any]:
        with smalt.emulated("H100", **options):
            return [np.asarray(x) for x in jax.jit(self.function())(*self.inputs())]

    def results(self, round16: bool) -> list[Array]:
        """In f64, with the author's roundings or without."""
        r = _round16 if round16 else np.asarray
        q, k, v, do = (x.astype(np.float64).transpose(0, 2, 1, 3) for x in self.inputs())
        shared = HEADS // KV_HEADS
        k, v = np.repeat(k, shared, 1), np.repeat(v, shared, 1)
        logits = q @ k.swapaxes(2, 3)
        if self.kind == "causal":
            logits = np.where(np.tril(np.ones((LENGTH, LENGTH), np.bool_)), logits, -np.inf)
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        total = weights.sum(-1, keepdims=True)
        out = r(r(weights) @ v / total)
        if self.kind != "backward":
            return [out.transpose(0, 2, 1, 3)]
        p = weights / total
        ds = p * (do @ v.swapaxes(2, 3) - (out * do).sum(-1, keepdims=True))
        dq, dk, dv = r(ds) @ k, r(ds).swapaxes(2, 3) @ q, r(p).swapaxes(2, 3) @ do
        # The kernel rounds each head's, and adds them.
        of_kv = lambda x: r(r(x).reshape(1, KV_HEADS, shared, LENGTH, self.dim).sum(2))  # noqa: E731
        return [x.transpose(0, 2, 1, 3) for x in (r(dq), of_kv(dk), of_kv(dv))]

    def judge(self, got: list[Any]) -> dict[str, Errors]:
        """What is wrong with results, by their names."""
        pairs = zip(self.names, got, self.results(False), self.results(True), strict=True)
        return {name: Errors.of(np.asarray(x).astype(np.float64), exact, rounded) for name, x, exact, rounded in pairs}

    def check(self, got: list[Any]) -> None:
        """No further from the exact result than the author's roundings leave it."""
        for name, errors in self.judge(got).items():
            assert errors.ratio < 1.02 and errors.worst < 1.3 * errors.worst_rounded, f"{name}: {errors}"
            if self.kind != "backward":
                assert errors.worst < 1.25, f"{name}: {errors}"
            elif self.scaled:
                assert errors.worst < 2, f"{name}: {errors}"


@dataclasses.dataclass(frozen=True)
class Errors:
    """Against f64, in units in the last place of f16 at the largest number of each row.

    Attributes:
        worst: The largest of a result, and of what has the author's roundings only.
        ratio: Of the root of the mean square to what has the author's roundings only.
    """

    worst: float
    worst_rounded: float
    ratio: float

    @classmethod
    def of(cls, got: Array, exact: Array, rounded: Array) -> Errors:
        largest = np.maximum(np.abs(exact).max(-1, keepdims=True), np.finfo(np.float16).smallest_normal)
        ulp = 2.0 ** (np.floor(np.log2(largest)) - np.finfo(np.float16).nmant)
        ours, theirs = (np.abs(x - exact) / ulp for x in (got, rounded))
        mean_square = lambda x: float(np.sqrt((x**2).mean()))  # noqa: E731
        return cls(float(ours.max()), float(theirs.max()), mean_square(got - exact) / mean_square(rounded - exact))


def _round16(x: Array) -> Array:
    return x.astype(np.float16).astype(np.float64)


CASES = [
    *(Attention("plain", dim, kv, scaled) for dim, kv in ((64, 64), (64, 128), (128, 64), (128, 128), (256, 64)) for scaled in (True, False)),
    *(Attention("causal", dim, 64, scaled) for dim in (64, 128, 256) for scaled in (True, False)),
    Attention("emitter", 128, 64),
    Attention("emitter", 128, 128),
    *(Attention("backward", dim, 64, scaled, wgs) for dim, wgs in ((64, 1), (64, 2), (128, 1), (128, 2), (256, 1)) for scaled in (True, False)),
]


def main() -> None:
    print(f"{'in units of the last place at the largest of a row':50} {'worst':>9} {'rounded':>9} {'rms / rounded':>14}")
    for case in CASES:
        for name, errors in case.judge(case.emulate()).items():
            print(f"{case!s:44} {name:5} {errors.worst:9.2f} {errors.worst_rounded:9.2f} {errors.ratio:14.4f}")


if __name__ == "__main__":
    main()
