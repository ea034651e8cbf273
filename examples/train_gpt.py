"""Trains a small GPT whose every layer is a Pallas kernel, forward and backward, in one jitted step; by smalt, by stock, by XLA alone.

    PYTHONPATH=jax_plugin:. python -m examples.train_gpt [--backend smalt|stock|xla] [--steps 300] [--layers 8 ...]
    PYTHONPATH=jax_plugin:. python -m examples.train_gpt --compare     # all of them on the same data: losses and tokens/s
    PYTHONPATH=jax_plugin:. python -m examples.train_gpt --tiny --compare     # seconds in the emulator, without a GPU

`examples/gpt/` has the kernels: matmuls with epilogues, flash attention, RMS norm, cross entropy, each with its gradient. Around them is
plain JAX: `lax.scan` over stacked layers, each rematerialised, AdamW on f32 parameters, donated buffers. Activations are bf16. The model
reads bytes; it learns the project's own documentation.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import math
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import smalt
from examples.gpt import attention, matmul, rows

Params = dict[str, Any]
VOCABULARY = 256


@dataclasses.dataclass(frozen=True)
class Config:
    layers: int = 8
    width: int = 768
    heads: int = 12
    seq: int = 1024
    batch: int = 8
    steps: int = 300
    rate: float = 6e-4


TINY = Config(layers=2, width=128, heads=2, seq=128, batch=2, steps=4)

# ------------------------------------------------------------------------------------ what layers are made of


@dataclasses.dataclass(frozen=True)
class Operations:
    """What the model is made of. Activations are (tokens, width) in bf16; weights come in f32."""

    #: x, w
    linear: Callable[..., jax.Array]
    #: x, w, residual: residual + x @ w
    linear_onto: Callable[..., jax.Array]
    #: x, w1, b1, w2, b2, residual: residual + gelu(x @ w1 + b1) @ w2 + b2
    mlp_onto: Callable[..., jax.Array]
    #: (batch, seq, 3, heads, D) to (batch, seq, heads, D), causal
    attention: Callable[..., jax.Array]
    #: x, gain
    rms_norm: Callable[..., jax.Array]
    #: x, embedding: f32
    logits: Callable[..., jax.Array]
    #: logits, labels: the mean
    cross_entropy: Callable[..., jax.Array]


KERNELS = Operations(
    matmul.linear, matmul.linear_onto, matmul.mlp_onto, attention.attention, rows.rms_norm, matmul.logits, rows.cross_entropy
)


def plain() -> Operations:
    """The same in `jax.numpy`, differentiated by JAX."""

    def linear(x: jax.Array, w: jax.Array) -> jax.Array:
        return x @ w.astype(x.dtype)

    def mlp_onto(x: jax.Array, w1: jax.Array, b1: jax.Array, w2: jax.Array, b2: jax.Array, residual: jax.Array) -> jax.Array:
        h = jax.nn.gelu(linear(x, w1) + b1.astype(x.dtype))
        return residual + linear(h, w2) + b2.astype(x.dtype)

    def attention(qkv: jax.Array) -> jax.Array:
        return jax.nn.dot_product_attention(*(qkv[:, :, i] for i in range(3)), is_causal=True)

    def rms_norm(x: jax.Array, gain: jax.Array) -> jax.Array:
        f = x.astype(jnp.float32)
        return (f * lax.rsqrt(jnp.mean(f * f, axis=-1, keepdims=True) + rows.EPSILON) * gain).astype(x.dtype)

    def logits(x: jax.Array, embedding: jax.Array) -> jax.Array:
        return jnp.dot(x, embedding.astype(x.dtype).T, preferred_element_type=jnp.float32)

    def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1))

    return Operations(linear, lambda x, w, r: r + linear(x, w), mlp_onto, attention, rms_norm, logits, cross_entropy)


BACKENDS: dict[str, Operations] = {"smalt": KERNELS, "stock": KERNELS, "xla": plain()}


def compiled_by(backend: str) -> contextlib.AbstractContextManager[Any]:
    """Who compiles the kernels. It is part of the key of JAX's caches."""
    return smalt.enabled(backend == "smalt")


# ------------------------------------------------------------------------------------------------------ model


def init(config: Config, key: jax.Array) -> Params:
    """Parameters in f32; those of layers are stacked."""
    n, d = config.layers, config.width
    keys = iter(jax.random.split(key, 8))

    def normal(*shape: int, scale: float = 0.02) -> jax.Array:
        return scale * jax.random.normal(next(keys), shape, jnp.float32)

    onto = 0.02 / math.sqrt(2 * n)  # as many additions as there are to the residual
    return {
        "embedding": normal(VOCABULARY, d),
        "positions": normal(config.seq, d),
        "gain": jnp.ones(d),
        "layers": {
            "gain1": jnp.ones((n, d)),
            "qkv": normal(n, d, 3 * d),
            "out": normal(n, d, d, scale=onto),
            "gain2": jnp.ones((n, d)),
            "w1": normal(n, d, 4 * d),
            "b1": jnp.zeros((n, 4 * d)),
            "w2": normal(n, 4 * d, d, scale=onto),
            "b2": jnp.zeros((n, d)),
        },
    }


def loss(params: Params, text: jax.Array, config: Config, ops: Operations, dtype: Any = jnp.bfloat16) -> jax.Array:
    """The mean loss of each byte of `text`, (batch, seq + 1), given those before it."""
    batch, seq = text.shape[0], text.shape[1] - 1
    heads = (batch, seq, 3, config.heads, config.width // config.heads)

    @jax.checkpoint
    def layer(x: jax.Array, p: Params) -> tuple[jax.Array, None]:
        qkv = ops.linear(ops.rms_norm(x, p["gain1"]), p["qkv"])
        x = ops.linear_onto(ops.attention(qkv.reshape(heads)).reshape(x.shape), p["out"], x)
        return ops.mlp_onto(ops.rms_norm(x, p["gain2"]), p["w1"], p["b1"], p["w2"], p["b2"], x), None

    x = (params["embedding"][text[:, :-1]] + params["positions"]).astype(dtype)
    x, _ = lax.scan(layer, x.reshape(batch * seq, config.width), params["layers"])
    logits = ops.logits(ops.rms_norm(x, params["gain"]), params["embedding"])
    return ops.cross_entropy(logits, text[:, 1:].reshape(-1))


# -------------------------------------------------------------------------------------------------- optimizer


def adamw(
    params: Params, grads: Params, state: Params, rate: jax.Array, beta1: float = 0.9, beta2: float = 0.95, decay: float = 0.1
) -> tuple[Params, Params]:
    """AdamW with gradients clipped to a norm of 1; what is stacked from vectors does not decay."""
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads)))
    grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, 1 / (norm + 1e-6)), grads)
    count = state["count"] + 1
    first = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, state["first"], grads)
    second = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * g * g, state["second"], grads)

    def update(path: Any, p: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
        step = m / (1 - beta1**count) / (jnp.sqrt(v / (1 - beta2**count)) + 1e-8)
        return p - rate * (step + (decay * p if path[-1].key in MATRICES else 0.0))

    return jax.tree_util.tree_map_with_path(update, params, first, second), {"first": first, "second": second, "count": count}


MATRICES = {"qkv", "out", "w1", "w2"}


@functools.partial(jax.jit, static_argnames=("config", "backend"), donate_argnames=("params", "state"))
def train_step(params: Params, state: Params, text: jax.Array, config: Config, backend: str) -> tuple[Params, Params, jax.Array]:
    """One step: everything from bytes to new parameters is one program."""
    value, grads = jax.value_and_grad(loss)(params, text, config, BACKENDS[backend])
    done = state["count"] / config.steps
    rate = config.rate * jnp.minimum(20 * (done + 1 / config.steps), 0.55 + 0.45 * jnp.cos(math.pi * done))
    return *adamw(params, grads, state, rate), value


# ----------------------------------------------------------------------------------------------------- running


def corpus() -> np.ndarray[Any, Any]:
    root = pathlib.Path(__file__).resolve().parents[1]
    files = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    return np.frombuffer(b"\n".join(file.read_bytes() for file in files), np.uint8)


def batches(config: Config, seed: int = 0) -> Callable[[int], np.ndarray[Any, Any]]:
    """The text of a step: windows anywhere in the corpus."""
    text = corpus()

    def of_step(step: int) -> np.ndarray[Any, Any]:
        starts = np.random.default_rng((seed, step)).integers(0, len(text) - config.seq, size=config.batch)
        return np.stack([text[start : start + config.seq + 1] for start in starts]).astype(np.int32)

    return of_step


@dataclasses.dataclass(frozen=True)
class Run:
    losses: list[float]
    #: Seconds to the end of the first step, and of each later one.
    first: float
    seconds: list[float]

    def tokens_per_second(self, config: Config) -> float:
        warm = self.seconds[len(self.seconds) // 10 :]
        return config.batch * config.seq / statistics.median(warm)


def train(config: Config, backend: str, every: int = 0) -> Run:
    """`config.steps` steps; `every` so many the loss is printed."""
    with compiled_by(backend):
        params = init(config, jax.random.key(0))
        zeros = functools.partial(jax.tree.map, jnp.zeros_like)
        state = {"first": zeros(params), "second": zeros(params), "count": jnp.float32(0)}
        text, losses, times = batches(config), [], []
        for step in range(config.steps):
            tokens = jax.device_put(text(step))
            start = time.perf_counter()
            params, state, value = train_step(params, state, tokens, config, backend)
            losses.append(float(value))
            times.append(time.perf_counter() - start)
            if every and (step % every == 0 or step == config.steps - 1):
                print(f"{backend:6} step {step:4}   loss {losses[-1]:.4f}   {times[-1] * 1e3:8.1f} ms", flush=True)
    return Run(losses, times[0], times[1:])


def available() -> list[str]:
    """Without a GPU smalt's kernels run in the emulator, and stock's nowhere."""
    return ["smalt", "stock", "xla"] if jax.default_backend() == "gpu" else ["smalt", "xla"]


def compare(config: Config, every: int) -> dict[str, Run]:
    """All backends on the same data, and a table of it."""
    runs = {backend: train(config, backend) for backend in available()}
    print(f"{'step':>6}" + "".join(f"{'loss, ' + backend:>14}" for backend in runs) + f"{'difference':>12}")
    for step in sorted({*range(0, config.steps, every), config.steps - 1}):
        values = [run.losses[step] for run in runs.values()]
        print(f"{step:6}" + "".join(f"{value:14.4f}" for value in values) + f"{max(values) - min(values):12.4f}")
    print(f"\n{'':8}{'last loss':>10}{'max diff. from xla':>20}{'first step':>12}{'step, median':>14}{'tokens/s':>11}")
    for backend, run in runs.items():
        worst = max(abs(a - b) for a, b in zip(run.losses, runs["xla"].losses))
        rate = run.tokens_per_second(config)
        median = config.batch * config.seq / rate
        print(f"{backend:8}{run.losses[-1]:10.4f}{worst:20.4f}{run.first:10.2f} s{median * 1e3:11.1f} ms{rate:11.0f}")
    return runs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=BACKENDS, default="smalt")
    parser.add_argument("--compare", action="store_true", help="all backends there are, one after the other")
    parser.add_argument("--tiny", action="store_true", help="sizes for the emulator")
    parser.add_argument("--every", type=int, default=0, help="steps between the losses that are printed")
    for field in dataclasses.fields(Config):
        sizes = f"default {field.default}, with --tiny {getattr(TINY, field.name)}"
        parser.add_argument(f"--{field.name}", type=type(field.default), help=sizes)
    options = parser.parse_args()
    chosen = {f.name: value for f in dataclasses.fields(Config) if (value := getattr(options, f.name)) is not None}
    config = dataclasses.replace(TINY if options.tiny else Config(), **chosen)
    if options.backend not in available():
        parser.error(f"--backend {options.backend} needs a GPU")
    every = options.every or max(1, config.steps // 20)
    size = sum(p.size for p in jax.tree.leaves(jax.eval_shape(lambda: init(config, jax.random.key(0)))))
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}; {size / 1e6:.1f} M parameters; {config}", flush=True)
    if options.compare:
        compare(config, every)
    else:
        run = train(config, options.backend, every)
        print(f"{run.tokens_per_second(config):.0f} tokens/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
