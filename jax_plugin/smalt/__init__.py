"""smalt: a Pallas:Mosaic-GPU backend written in Rust.

`smalt.enable()` takes over JAX's Pallas:MGPU kernels; `smalt.disable()` gives them back.
"""

from smalt import _requirements

with _requirements.explained():
    from smalt import _register
    from smalt._config import disable, enable, enabled
    from smalt._emulate import emulated
    from smalt._errors import CompileError, Error, Internal, InvalidKernel, Unsupported
    from smalt._inspect import inspect
    from smalt._params import CompilerParams
    from smalt._register import descriptor

    _register.register()

__all__ = [
    "CompileError",
    "CompilerParams",
    "Error",
    "Internal",
    "InvalidKernel",
    "Unsupported",
    "descriptor",
    "disable",
    "emulated",
    "enable",
    "enabled",
    "inspect",
]
