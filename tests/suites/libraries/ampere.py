"""tokamax's kernels for GPUs before Hopper, as they are, by smalt on emulated ones, at small sizes against NumPy:
`python -m tests.suites.libraries.ampere [NAME ...]`.

tokamax is where `tokamax.py` installs it (`build/tokamax`), or here with `--installed`. A line for each kernel on each GPU.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import Any

from tests import ROOT

GPUS = ("A100", "L4")
DTYPES = ("bfloat16", "float16")
OPS = "tokamax._src.ops"

KERNELS: dict[str, Callable[[str], None]] = {}


def kernel(f: Callable[[str], None]) -> Callable[[str], None]:
    KERNELS[f.__name__] = f
    return f


def module(op: str, name: str) -> Any:
    import importlib

    return importlib.import_module(f"{OPS}.{op}.pallas_mosaic_gpu_{name}")


def normal(shape: tuple[int, ...], dtype: str, seed: int) -> Any:
    import jax.numpy as jnp
    import numpy as np

    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape)).astype(dtype)


def wide(*arrays: Any) -> list[Any]:
    import numpy as np

    return [np.asarray(x, np.float64) for x in arrays]


def close(got: Any, want: Any, tolerance: float) -> None:
    """Relative to the largest."""
    import numpy as np

    np.testing.assert_allclose(wide(got)[0], want, rtol=0, atol=tolerance * float(np.abs(want).max()))


@kernel
def gated_linear_unit(dtype: str) -> None:
    import jax
    import numpy as np

    kernels, common = module("gated_linear_unit", "kernel_sm80"), module("gated_linear_unit", "common")
    x, w = normal((256, 128), dtype, 0), normal((128, 2, 128), dtype, 1)
    a, b = wide(x, w)
    gate, up = a @ b[:, 0], a @ b[:, 1]
    for m, n, k, stages in ((64, 64, 32, 3), (64, 64, 64, 2), (128, 64, 64, 3)):
        config = common.Config(tile_m=m, tile_n=n, tile_k=k, num_stages=stages, grid_minor_dim=common.MatmulDimension.M)
        got = jax.jit(lambda x, w: kernels.gated_linear_unit(x, w, activation=jax.nn.silu, config=config))(x, w)
        close(got, gate / (1 + np.exp(-gate)) * up, 1e-2)


@kernel
def ragged_dot(dtype: str) -> None:
    import jax
    import jax.numpy as jnp
    import numpy as np

    kernels, common = module("ragged_dot", "kernel_sm80"), module("ragged_dot", "common")
    rows = (50, 0, 78, 64)
    x, w = normal((sum(rows), 128), dtype, 0), normal((len(rows), 128, 128), dtype, 1)
    a, b = wide(x, w)
    starts = [0, *itertools.accumulate(rows)]
    want = np.concatenate([a[start : start + n] @ b[i] for i, (start, n) in enumerate(zip(starts, rows))])
    for m, k, stages in ((64, 32, 3), (128, 64, 2)):
        config = common.Config(block_m=m, block_n=128, block_k=k, num_stages=stages, split_k=1, persistent=False, grid_tile_width=8)
        got = jax.jit(lambda x, w, sizes: kernels.ragged_dot_kernel(x, w, sizes, jnp.dtype(dtype), config))(x, w, jnp.array(rows, jnp.int32))
        close(got, want, 1e-2)


def attention(dtype: str, head: int, keys: int, stages: int, split: int, is_causal: bool) -> None:
    import jax
    import jax.numpy as jnp
    import numpy as np

    kernels = module("attention", "kernel_sm80")
    q, k, v = (normal((256, 2, head), dtype, seed) for seed in range(3))
    config = kernels.Config(block_q=64, block_kv=keys, num_stages=stages, v_split0=split, q_smem=False, num_p_slots=3)
    how: dict[str, Any] = {"logits_soft_cap": None, "logits_scale": 0.1, "out_dtype": jnp.dtype(dtype), "normalize_output": True}
    how |= {"return_residuals": False, "use_stable_softmax": True, "rescale_threshold": 1.0}

    def call(q: Any, k: Any, v: Any) -> Any:
        return kernels.flash_attention_kernel(q, k, v, None, None, None, None, is_causal=is_causal, config=config, **how)[0]

    got = jax.jit(call)(q, k, v)
    q, k, v = wide(q, k, v)
    logits = np.einsum("thd,shd->hts", q, k) * 0.1
    logits = np.where(np.tri(256) > 0, logits, -np.inf) if is_causal else logits
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    close(got, np.einsum("hts,shd->thd", weights / weights.sum(-1, keepdims=True), v), 1e-2)


@kernel
def attention_of_one_stage(dtype: str) -> None:
    for head, keys, split in ((64, 64, 0), (128, 64, 0), (256, 32, 128)):
        for is_causal in (False, True):
            attention(dtype, head, keys, 1, split, is_causal)


@kernel
def attention_of_two_stages_is_reported(dtype: str) -> None:
    """As it is, it does not wait for its last copies."""
    for head, keys in ((64, 64), (64, 32)):
        for is_causal in (False, True):
            try:
                attention(dtype, head, keys, 2, 0, is_causal)
            except Exception as error:
                if "that a copy by threads (cp.async) writes, and its warp has not waited for it" not in str(error):
                    raise
            else:
                raise AssertionError("no finding")


@kernel
def attention_of_two_stages_that_waits_for_all(dtype: str) -> None:
    """As it is, it does not wait for the last copies (docs/FOUND.md): each of its waits is for all of them here."""
    from unittest import mock

    import jax.experimental.pallas.mosaic_gpu as plgpu

    wait = plgpu.wait_gmem_to_smem
    with mock.patch.object(plgpu, "wait_gmem_to_smem", lambda _: wait(0)):
        for head, keys in ((64, 64), (64, 32)):
            for is_causal in (False, True):
                attention(dtype, head, keys, 2, 0, is_causal)


def run(names: list[str]) -> int:
    import smalt

    smalt.enable()
    failed = 0
    for name, gpu, dtype in itertools.product(names or list(KERNELS), GPUS, DTYPES):
        try:
            with smalt.emulated(gpu, check="error"):
                KERNELS[name](dtype)
        except Exception:
            failed += 1
            print(f"{name}, {dtype}, {gpu}: failed\n{traceback.format_exc()}", flush=True)
        else:
            print(f"{name}, {dtype}, {gpu}: right", flush=True)
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(KERNELS))
    parser.add_argument("--installed", action="store_true", help="tokamax is there already")
    options = parser.parse_args()
    if options.installed:
        return run(options.names)
    from tests.suites.libraries import tokamax

    paths = [str(ROOT / "jax_plugin"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "JAX_PLATFORMS": "cpu"}
    command = [tokamax.install(), "-m", "tests.suites.libraries.ampere", "--installed", *options.names]
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
