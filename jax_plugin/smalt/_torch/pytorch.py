"""PyTorch, imported where it is needed: its module, its types, tensors from JAX's values."""

from __future__ import annotations

import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from smalt._errors import InvalidKernel, NotInstalled, Unsupported

try:
    torch: Any = importlib.import_module("torch")
except ImportError:
    raise NotInstalled("smalt: as_torch_kernel without PyTorch\n  expected: a `torch` that can be imported\n  remedy: pip install torch") from None

_BY_NUMPY = frozenset({"bool", *(f"{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64))})


def struct(t: Any) -> jax.ShapeDtypeStruct:
    """A tensor's shape and type, as JAX has them."""
    name = str(t.dtype).removeprefix("torch.")
    try:
        dtype = jnp.dtype(name)
    except TypeError:
        raise Unsupported(
            f"smalt: not supported yet: tensors of type {t.dtype}\n  expected: a type that JAX has\n  remedy: t.view or t.to another type"
        ) from None
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise InvalidKernel(
            f"smalt: a tensor of type {t.dtype}\n  expected: types of up to 32 bits, as JAX is set up"
            "\n  remedy: jax.config.update('jax_enable_x64', True), or t.to(torch.float32)"
        )
    return jax.ShapeDtypeStruct(tuple(int(n) for n in t.shape), dtype)


def dtype(of: Any) -> Any:
    """PyTorch's type for one of JAX's."""
    found = getattr(torch, np.dtype(of).name, None)
    if found is None:
        raise Unsupported(
            f"smalt: not supported yet: {np.dtype(of).name} for PyTorch\n  expected: a type that PyTorch has\n  remedy: convert it to one, within a kernel"
        )
    return found


def tensor(x: np.ndarray[Any, Any], device: Any) -> Any:
    if x.dtype.kind == "V" or x.dtype.name not in _BY_NUMPY:
        whole = torch.from_numpy(x.reshape(-1).view(np.uint8).copy()).to(device)  # a type that NumPy has by JAX
        return whole.view(dtype(x.dtype)).reshape(x.shape)
    return torch.from_numpy(np.array(x)).to(device)
