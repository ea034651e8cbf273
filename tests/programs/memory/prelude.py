"""What the text of programs imports, besides JAX."""

from __future__ import annotations

from typing import Any

import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax._src.pallas.mosaic_gpu.helpers import warp_map

__all__ = ["tiled", "warp_map"]


def tiled(dtype: Any) -> tuple[Any, ...]:
    """The tiles that wgmma reads, with a swizzle of 128 bytes."""
    return (plgpu.TilingTransform((8, 128 // jnp.dtype(dtype).itemsize)), plgpu.SwizzleTransform(128))
