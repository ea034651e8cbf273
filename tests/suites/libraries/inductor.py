"""Kernels that PyTorch's compiler generates for Pallas, as they are, by smalt in the emulator: `python -m tests.suites.libraries.inductor [NAME ...]`.

`torch.compile` writes a `pl.pallas_call` for each group of operations on a CPU (`cpu_backend = "pallas"`), meant for JAX's interpreter: smalt
takes it (`interpret=True` is not handed on), and results are held against PyTorch's own. `--code gpu`: what it writes for a GPU, `plgpu.kernel`s that
copy by TMA; some of them do not compute what they were asked for, so they are held against the same kernels executed by NumPy, one thread, copies at
once. They ask for JAX 0.10 (`out_shape`). PyTorch is installed into `build/torch`, or taken from `--torch FOLDER` (its site-packages).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from typing import Any

from tests import ROOT

VERSION = "2.15.0"

#: What PyTorch's generator does not get right. For a CPU: JAX cannot trace the kernel. For a GPU: it leaves elements unwritten; what it
#: cannot be traced for, or what its wrapper cannot do, is found by running it without smalt.
THEIRS = {"cpu": {"gather", "group norm", "gradient of cross entropy"}, "gpu": {"scatter"}}


def install() -> str:
    folder = ROOT / "build" / "torch"
    if not (folder / "torch").exists():
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), f"torch=={VERSION}"], check=True)
    return str(folder)


# ------------------------------------------------------------------------------------------ kernels by NumPy


class _At:
    def __init__(self, ref: _Ref) -> None:
        self.ref = ref

    def __getitem__(self, index: Any) -> tuple[_Ref, int, int]:
        start = int(index.start)
        return self.ref, start, max(0, min(start + index.size, len(self.ref.array)) - start)


class _Ref:
    """A reference that is a NumPy array."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.shape, self.dtype, self.ndim, self.size = array.shape, array.dtype, array.ndim, array.size

    @property
    def at(self) -> _At:
        return _At(self)

    def __getitem__(self, index: Any) -> Any:
        import jax.numpy as jnp

        return jnp.asarray(self.array[index])

    def __setitem__(self, index: Any, value: Any) -> None:
        self.array[index] = value


def kernel(body: Callable[..., None], out_shape: Any, scratch_shapes: Any = None) -> Callable[..., Any]:
    import jax
    import numpy as np

    def call(*args: Any) -> Any:
        outs, tree = jax.tree.flatten(out_shape)
        refs = [_Ref(np.array(a)) for a in args] + [_Ref(np.zeros(o.shape, o.dtype)) for o in outs]
        body(*refs, **{k: v and _Ref(np.zeros(v.shape, v.dtype)) for k, v in (scratch_shapes or {}).items()})
        return jax.tree.unflatten(tree, [ref[...] for ref in refs[len(args) :]])

    return call


def copy_in(source: tuple[_Ref, int, int], target: _Ref, barrier: None) -> None:
    ref, start, size = source
    target.array[:] = 0
    target.array[:size] = ref.array[start : start + size]


def copy_out(source: _Ref, target: tuple[_Ref, int, int]) -> None:
    ref, start, size = target
    ref.array[start : start + size] = source.array[:size]


def loop(lower: int, upper: int, body: Callable[[int, Any], Any], carry: Any) -> Any:
    for i in range(lower, upper):
        carry = body(i, carry)
    return carry


def by_numpy(patch: Any) -> None:
    """Kernels are executed here; `patch` is given what is changed for it."""
    import jax
    import jax.experimental.pallas.mosaic_gpu as plgpu

    for name, f in {"kernel": kernel, "copy_gmem_to_smem": copy_in, "copy_smem_to_gmem": copy_out, "SMEM": jax.ShapeDtypeStruct}.items():
        patch(plgpu, name, f)
    for name in ("barrier_wait", "commit_smem", "wait_smem_to_gmem", "Barrier"):
        patch(plgpu, name, lambda *_, **__: None)
    patch(jax.lax, "fori_loop", loop)
    patch(jax, "jit", lambda f, **_: f)


# ------------------------------------------------------------------------------------------ what is compiled


class Compiled:
    """What PyTorch generated, and smalt compiled."""

    def __init__(self, code: str) -> None:
        import jax.experimental.pallas as pl
        import torch._inductor.async_compile as async_compile
        import torch._inductor.config as config
        from torch._inductor.codegen import pallas

        from smalt import _native

        self.generated = self.compiled = 0
        self.kept: list[tuple[Any, str, Any]] = []
        config.cpu_backend = "pallas"  # type: ignore[assignment]
        config.force_disable_caches = True
        taken, compiles, generates = pl.pallas_call, _native.compile, async_compile.AsyncCompile.pallas

        def pallas_call(*args: Any, interpret: Any = False, **how: Any) -> Any:
            return taken(*args, **how)

        def compile_(*args: Any, **how: Any) -> Any:
            self.compiled += 1
            return compiles(*args, **how)

        def generate(*args: Any, **how: Any) -> Any:
            self.generated += 1
            return generates(*args, **how)

        pl.pallas_call = pallas_call
        _native.compile = compile_
        async_compile.AsyncCompile.pallas = generate
        if code == "gpu":
            begins, imports = pallas.PallasKernel.__init__, pallas.PallasKernel._codegen_imports

            def begin(self: Any, *args: Any, **how: Any) -> None:
                begins(self, *args, **how)
                self.is_gpu = self.use_emit_pipeline = True

            def write_imports(self: Any, context: Any) -> None:
                imports(self, context)
                context.code.splice("from jax.experimental.pallas import mosaic_gpu as plgpu\n")

            pallas.PallasKernel.__init__, pallas.PallasKernel._codegen_imports = begin, write_imports

    def patch(self, place: Any, name: str, value: Any) -> None:
        self.kept.append((place, name, getattr(place, name)))
        setattr(place, name, value)

    def restore(self) -> None:
        while self.kept:
            setattr(*self.kept.pop())


def leaves(x: Any) -> list[Any]:
    return [leaf for y in x for leaf in leaves(y)] if isinstance(x, (tuple, list)) else [x]


def run(name: str, code: str, compiled: Compiled) -> str:
    """What became of a function: right, or why not."""
    import torch

    import smalt
    from tests.suites.libraries.inductor_functions import FUNCTIONS

    f, make, within = FUNCTIONS[name]
    torch.manual_seed(0)
    given = [m() for m in make]

    def call(f: Callable[..., Any]) -> list[Any]:
        args = [x.clone() if x.is_contiguous() else x for x in given]
        return leaves(f(*args)) + args

    def generated() -> list[Any]:
        torch._dynamo.reset()
        return call(torch.compile(f, dynamic=False))

    compiled.generated = compiled.compiled = 0
    want = call(f)
    try:
        if code == "gpu":
            by_numpy(compiled.patch)
            try:
                want = generated()
            finally:
                compiled.restore()
    except Exception as e:
        return f"theirs: {type(e).__name__}: {str(e).splitlines()[0]}"
    compiled.generated = 0
    try:
        with smalt.emulated("H100"):
            got = generated()
    except Exception as e:
        traceback.print_exc()
        return f"{type(e).__name__}: {str(e).splitlines()[0]}"
    if not compiled.generated or not compiled.compiled:
        return "nothing was generated" if not compiled.generated else "nothing was compiled"
    try:
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=within, atol=within, equal_nan=True)
    except AssertionError as e:
        return " ".join(str(e).split())
    return f"right ({compiled.compiled} compiled)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="functions by name; all of them if there is none")
    parser.add_argument("--code", choices=["cpu", "gpu"], default="cpu", help="what PyTorch is to generate")
    parser.add_argument("--torch", help="a folder of packages with PyTorch")
    options = parser.parse_args()
    sys.path.append(options.torch or install())
    warnings.simplefilter("ignore")
    os.environ.update(TORCHINDUCTOR_CACHE_DIR=tempfile.mkdtemp(), TORCHINDUCTOR_COMPILE_THREADS="1")

    import smalt
    from tests.suites.libraries.inductor_functions import FUNCTIONS

    compiled, failed, right, theirs = Compiled(options.code), [], 0, 0
    smalt.enable()
    for name in options.names or FUNCTIONS:
        result = run(name, options.code, compiled)
        print(f"{name}: {result}", flush=True)
        if result.startswith("right"):
            right += 1
        elif result.startswith("theirs") or name in THEIRS[options.code]:
            theirs += 1
        else:
            failed.append(name)
    print(f"{right} right, {theirs} that PyTorch's generator does not get right, {len(failed)} failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
