"""`examples/train_gpt.py` in the emulator: its kernels' gradients, its losses, and that stock Mosaic GPU takes the same program."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import smalt
from examples import train_gpt
from examples.gpt import matmul

pytestmark = pytest.mark.shared

PLAIN, KERNELS = train_gpt.BACKENDS["xla"], train_gpt.KERNELS
TINY = train_gpt.TINY


def random(*shape: int, dtype: Any = jnp.bfloat16, scale: float = 1.0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(sum(shape)).normal(size=shape) * scale, dtype)


def weights(*shape: int) -> jax.Array:
    return random(*shape, dtype=jnp.float32, scale=0.1)


def labels(logits: jax.Array) -> jax.Array:
    return jnp.arange(logits.shape[0], dtype=jnp.int32) * 7 % logits.shape[1]


def error(got: jax.Array, expected: jax.Array) -> float:
    difference = got.astype(jnp.float32) - expected.astype(jnp.float32)
    return float(jnp.linalg.norm(difference) / (jnp.linalg.norm(expected.astype(jnp.float32)) + 1e-30))


def values_and_gradients(f: Callable[..., jax.Array], *arguments: jax.Array) -> list[jax.Array]:
    @jax.jit
    def run(*arguments: jax.Array) -> Any:
        out, vjp = jax.vjp(f, *arguments)
        # Nothing that is symmetric, repeats with the tiles, or cancels out in sums.
        cotangent = jnp.cos(jnp.arange(out.size, dtype=jnp.float32)) + 0.5
        return out, vjp(cotangent.reshape(out.shape).astype(out.dtype))

    return jax.tree.leaves(run(*arguments))


# operation -> arguments, of sizes that `--tiny` does not have
CASES: dict[str, list[jax.Array]] = {
    "linear": [random(256, 128), weights(128, 320)],
    "linear_onto": [random(128, 256), weights(256, 192), random(128, 192)],
    "mlp_onto": [random(256, 128), weights(128, 256), weights(256), weights(256, 128), weights(128), random(256, 128)],
    "attention": [random(2, 384, 3, 2, 64)],
    "attention, D 128": [random(1, 256, 3, 1, 128)],
    "rms_norm": [random(64, 384), weights(384)],
    "logits": [random(128, 128), weights(256, 128)],
    "cross_entropy": [random(256, 384, dtype=jnp.float32, scale=3.0)],
}


#: On one multiprocessor they take the largest blocks there are.
MATMULS = ("linear", "linear_onto", "mlp_onto", "logits")


@pytest.mark.parametrize("case, multiprocessors", [(c, 132) for c in CASES] + [(c, 1) for c in MATMULS])
def test_operations_and_their_gradients(case: str, multiprocessors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As near to f32 as two roundings to bf16 allow; the loss is f32 throughout."""
    monkeypatch.setattr(matmul, "MULTIPROCESSORS", multiprocessors)
    name, arguments = case.split(",")[0], CASES[case]

    def of(operations: train_gpt.Operations) -> Callable[..., jax.Array]:
        f: Callable[..., jax.Array] = getattr(operations, name)
        return (lambda x: f(x, labels(x))) if name == "cross_entropy" else f

    with smalt.enabled(True):
        got = values_and_gradients(of(KERNELS), *arguments)
    exact = values_and_gradients(of(PLAIN), *(x.astype(jnp.float32) for x in arguments))
    limit = 1e-6 if name == "cross_entropy" else 4e-3
    assert [x.shape for x in got] == [x.shape for x in exact]
    assert [x.dtype for x in got[1:]] == [x.dtype for x in arguments]
    errors = [error(a, b) for a, b in zip(got, exact)]
    assert max(errors) < limit, errors


def test_blocks() -> None:
    assert matmul.block_shape(8192, 3072) == (128, 256)
    assert matmul.block_shape(8192, 128) == (128, 64)
    assert matmul.block_shape(768, 768) == (128, 64)
    assert matmul.block_shape(65536, 128) == (256, 128)
    with pytest.raises(ValueError, match="got 100 and 64"):
        matmul.block_shape(100, 64)


def test_gradients_of_the_model() -> None:
    params = train_gpt.init(TINY, jax.random.key(0))
    text = jnp.asarray(train_gpt.batches(TINY)(0))

    def gradients(operations: train_gpt.Operations, dtype: Any) -> Any:
        f = jax.jit(jax.value_and_grad(lambda p: train_gpt.loss(p, text, TINY, operations, dtype)))
        return jax.tree.leaves_with_path(f(params))

    with smalt.enabled(True):
        got = gradients(KERNELS, jnp.bfloat16)
    rounded, exact = (gradients(PLAIN, dtype) for dtype in (jnp.bfloat16, jnp.float32))
    for (path, a), (_, b), (_, c) in zip(got, rounded, exact, strict=True):
        assert error(a, c) <= 1.25 * error(b, c) + 1e-3, (path, error(a, c), error(b, c))
        assert error(a, c) < 0.03, (path, error(a, c))


def test_training(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train_gpt", "--tiny", "--compare", "--steps", "4"])
    runs: dict[str, train_gpt.Run] = {}
    compare = train_gpt.compare
    monkeypatch.setattr(train_gpt, "compare", lambda *arguments: runs.update(compare(*arguments)))
    assert train_gpt.main() == 0
    losses, expected = runs["smalt"].losses, runs["xla"].losses
    np.testing.assert_allclose(losses, expected, atol=5e-3)
    assert losses[0] > 5.4 and losses[-1] < losses[0] - 0.4, "a uniform guess has log(256) = 5.55"
    out = capsys.readouterr().out
    assert "tokens/s" in out and "loss, smalt" in out and f"{losses[-1]:.4f}" in out


@pytest.mark.parametrize("backend", ["smalt", "stock"])
def test_one_program(backend: str) -> None:
    """The whole step lowers for a GPU, by either compiler: attention, norms, products, forward and backward, and nothing of the other's."""
    config = dataclasses.replace(train_gpt.Config(), layers=1)
    params = jax.eval_shape(lambda: train_gpt.init(config, jax.random.key(0)))
    state = {"first": params, "second": params, "count": jax.ShapeDtypeStruct((), jnp.float32)}
    text = jax.ShapeDtypeStruct((config.batch, config.seq + 1), jnp.int32)
    with train_gpt.compiled_by(backend):
        traced = train_gpt.train_step.trace(params, state, text, config, backend)
        module = traced.lower(lowering_platforms=("cuda",)).as_text()
    calls = {"smalt": module.count("@smalt"), "stock": module.count("@mosaic_gpu_v2")}
    other = "stock" if backend == "smalt" else "smalt"
    assert calls[backend] >= 20 and calls[other] == 0, calls
