"""Kernels of packages on PyPI, as they are, by smalt in the emulator, each against what its package or NumPy says:
`python -m tests.suites.libraries.hopper [NAME ...]`.

Packages are installed without what they depend on into `build/packages` (Python 3.12 or newer). A line for each kernel, and what it compiled.
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import Any

from tests import ROOT

FOLDER = ROOT / "build" / "packages"
PACKAGES = ["jax-linear-attention==0.1.0", "pallas-forge==0.1.2", "fermix==0.1.0", "pyyaml"]

KERNELS: dict[str, Callable[[], None]] = {}


def kernel(f: Callable[[], None]) -> Callable[[], None]:
    KERNELS[f.__name__] = f
    return f


def normal(shape: tuple[int, ...], dtype: str = "bfloat16", seed: int = 0, scale: float = 1.0) -> Any:
    import jax

    return (jax.random.normal(jax.random.key(seed), shape) * scale).astype(dtype)


def close(got: Any, want: Any, rtol: float, atol: float) -> None:
    import jax
    import numpy as np

    leaves = [jax.tree.leaves(x) for x in (got, want)]
    for a, b in zip(*leaves, strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float32), np.asarray(b, np.float32), rtol=rtol, atol=atol)


def gradients(f: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    import jax

    return jax.grad(lambda *a: f(*a).astype("float32").sum(), tuple(range(len(args))))(*args)


def linear(name: str) -> Any:
    importlib.import_module("jla.ops.mosaic_gpu")
    return importlib.import_module(f"jla.ops.mosaic_gpu.{name}")


def qkv() -> tuple[Any, ...]:
    return normal((1, 128, 2, 64)), normal((1, 128, 2, 64), seed=1, scale=0.3), normal((1, 128, 2, 64), seed=2)


def decays(*shape: int) -> Any:
    return -abs(normal(shape, "float32", seed=3, scale=0.1))


@kernel
def gated_linear_attention() -> None:
    from jla.ops import reference

    args = (*qkv(), decays(1, 128, 2, 64))
    f, r = (lambda *a, g=g: g(*a, output_final_state=True) for g in (linear("gla").gla, reference.gla))
    close(f(*args), r(*args), 0.04, 0.04)
    close(gradients(lambda *a: f(*a)[0], args)[:3], gradients(lambda *a: r(*a)[0], args)[:3], 0.05, 0.1)


@kernel
def simple_gated_linear_attention() -> None:
    from jla.ops import reference

    args = (*qkv(), decays(1, 128, 2))
    f, r = (lambda *a, g=g: g(*a, output_final_state=True) for g in (linear("scalar_gate").simple_gla, reference.simple_gla))
    close(f(*args), r(*args), 0.04, 0.04)
    close(gradients(lambda *a: f(*a)[0], args)[:3], gradients(lambda *a: r(*a)[0], args)[:3], 0.05, 0.1)


@kernel
def short_convolution() -> None:
    import jax
    import jax.numpy as jnp

    m, n = linear("short_conv"), 96
    args = (normal((1, n, 256)), normal((256, 4), "float32", 1), normal((256,), "float32", 2))

    def reference(x: Any, w: Any, b: Any) -> Any:
        padded = jnp.pad(x.astype(jnp.float32), ((0, 0), (3, 0), (0, 0)))
        return jax.nn.silu(sum(padded[:, i : i + n] * w[:, i] for i in range(4)) + b)

    close(m.short_conv(*args), reference(*args), 0.02, 0.02)
    close(gradients(m.short_conv, args), gradients(reference, args), 0.05, 0.2)


@kernel
def selective_scan() -> None:
    import jax.numpy as jnp
    from jla.ops import reference

    a = -jnp.exp(normal((128, 16), "float32", 4, 0.3))
    args = (normal((1, 64, 16)), normal((1, 64, 16), seed=1), normal((1, 64, 128), seed=2), normal((1, 64, 128), seed=3, scale=0.3), a)
    f, r = (lambda *t, g=g: g(*t, dt_softplus=True)[0] for g in (linear("mamba1").mamba1, reference.mamba1))
    close(f(*args), r(*args), 0.04, 0.04)
    close(gradients(f, args)[:3], gradients(r, args)[:3], 0.05, 0.2)


@kernel
def ragged_dot() -> None:
    import jax
    import jax.numpy as jnp

    m, sizes = linear("ragged_dot"), jnp.array([100, 56, 100], jnp.int32)
    args = (normal((256, 128)), normal((3, 128, 128), seed=1))

    def reference(x: Any, w: Any) -> Any:
        return jax.lax.ragged_dot(x.astype(jnp.float32), w.astype(jnp.float32), sizes)

    close(m.ragged_dot(*args, sizes), reference(*args), 0.02, 0.2)
    close(gradients(lambda *a: m.ragged_dot(*a, sizes), args), gradients(reference, args), 0.05, 0.3)


@kernel
def top_k() -> None:
    import jax
    import jax.numpy as jnp

    scores = normal((1, 64, 512), "float32")
    indices, values = linear("dsa_topk").radix_top_k(scores, 32)
    want, at = jax.lax.top_k(scores, 32)
    close((jnp.sort(indices), jnp.sort(values)), (jnp.sort(at), jnp.sort(want)), 0, 0)


@kernel
def forge() -> None:
    import jax
    from pallas_forge.kernels import matmul, rmsnorm, swiglu  # noqa: F401

    modules = [sys.modules[f"pallas_forge.kernels.{name}"] for name in ("matmul", "rmsnorm", "swiglu")]
    x, w = normal((100, 96), "float32"), normal((96, 72), "float32", 1)
    close(modules[0].tiled_matmul(x, w, block_m=64, block_k=32, block_n=32), x @ w, 0.02, 0.05)
    y, scale = normal((100, 96), "float32", 2), normal((96,), "float32", 3)
    close(modules[1].fused_rmsnorm_residual(x, y, scale), (modules[1].rmsnorm_reference(x + y, scale), x + y), 1e-5, 1e-5)
    a, b = normal((96, 64), "float32", 4), normal((96, 64), "float32", 5)
    x = x[:64] * 0.2
    close(modules[2].fused_swiglu(x, a, b, block_m=32, block_n=16), jax.nn.silu(x @ a) * (x @ b), 0.02, 0.05)


@kernel
def pfaffians() -> None:
    import numpy as np
    from fermix import _diff, api

    _diff._on_cuda = lambda x, kernels, generic: kernels(x)  # it looks where it is lowered for
    x = normal((2, 24, 24), "float32")
    a = x - x.swapaxes(1, 2)
    _, logs = _diff._slogpf_diff(24, a.dtype, api.Field(a.dtype).check_prec(None), None, True)(a)
    close(logs, np.linalg.slogdet(np.asarray(a, np.float64))[1] / 2, 1e-3, 1e-3)


def install() -> None:
    done = FOLDER / "packages.txt"
    if not done.exists() or done.read_text().split() != PACKAGES:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", str(FOLDER), *PACKAGES]
        subprocess.run(command, check=True)
        done.write_text(" ".join(PACKAGES))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(KERNELS)}")
    wanted = parser.parse_args().names or list(KERNELS)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    install()
    sys.path.insert(0, str(FOLDER))

    import jax
    import jax._src.pallas.pallas_call as pallas
    import jax.experimental.pallas as pl
    import smalt
    from smalt import _native

    own, compiled = pallas.pallas_call, [0]

    def pallas_call(*args: Any, **how: Any) -> Any:
        """Packages that have seen a CPU ask for JAX's interpreter."""
        return own(*args, **how | {"interpret": False})

    def compile(*args: Any, **how: Any) -> Any:
        compiled[0] += 1
        return compile_own(*args, **how)

    pl.pallas_call = pallas_call
    compile_own, _native.compile = _native.compile, compile
    failed = []
    for name in wanted:
        compiled[0] = 0
        try:
            with smalt.emulated("H100"):
                KERNELS[name]()
            if not compiled[0]:
                raise AssertionError("nothing was compiled by smalt")
        except Exception:
            failed.append(name)
            traceback.print_exc()
        print(f"{name}: {'failed' if name in failed else 'right'}, {compiled[0]} kernels", flush=True)
        jax.clear_caches()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
