"""smalt: a Pallas:Mosaic-GPU backend written in Rust.

`smalt.enable()` takes over JAX's Pallas:MGPU kernels; `smalt.disable()` gives them back.
"""

from smalt import _requirements
from smalt._errors import CompileError, Error, ExecutionError, Frame, Internal, Interrupted, InvalidArgument, InvalidKernel, Timeout, Unsupported

# Without JAX there are the errors, and `python -m smalt` for dumped kernels.
if _requirements.has_jax():
    with _requirements.explained():
        from smalt import _config, _lowering, _torch
        from smalt._config import CompilerParams, disable, enable, enabled
        from smalt._devices import emulated
        from smalt._lowering import descriptor
        from smalt._partition import partition
        from smalt._primitives import (
            atomic_add,
            atomic_and,
            atomic_cas,
            atomic_exchange,
            atomic_max,
            atomic_min,
            atomic_or,
            atomic_xor,
            expect_bytes,
            fence,
            fence_proxy_async,
            inline_ptx,
            load,
            mbarrier_arrive,
            mbarrier_wait,
            named_barrier_arrive,
            named_barrier_sync,
            store,
        )
        from smalt._tools import LayoutMap, SmemMap, draw_layout, draw_smem, inspect, trace
        from smalt._torch import as_torch_kernel

        _lowering.begin()
        _torch.begin()
        _config.begin()


def __getattr__(name: str) -> str:
    """`smalt.__version__`: the native library's, which is loaded for it. Names that need JAX say so where there is none."""
    if name == "__version__":
        from smalt import _native

        return _native.version()
    if name in __all__:
        raise _requirements.no_jax()
    raise AttributeError(f"module 'smalt' has no attribute {name!r}")


__all__ = [
    "CompileError",
    "CompilerParams",
    "Error",
    "ExecutionError",
    "Frame",
    "Internal",
    "Interrupted",
    "InvalidArgument",
    "InvalidKernel",
    "LayoutMap",
    "SmemMap",
    "Timeout",
    "Unsupported",
    "as_torch_kernel",
    "atomic_add",
    "atomic_and",
    "atomic_cas",
    "atomic_exchange",
    "atomic_max",
    "atomic_min",
    "atomic_or",
    "atomic_xor",
    "descriptor",
    "disable",
    "draw_layout",
    "draw_smem",
    "emulated",
    "enable",
    "enabled",
    "expect_bytes",
    "fence",
    "fence_proxy_async",
    "inline_ptx",
    "inspect",
    "load",
    "mbarrier_arrive",
    "mbarrier_wait",
    "named_barrier_arrive",
    "named_barrier_sync",
    "partition",
    "store",
    "trace",
]
