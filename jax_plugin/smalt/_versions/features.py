"""What tells one version from another, where nothing in an equation shows it."""

from __future__ import annotations

import importlib
from typing import Any

from jax._src import core as jax_core
from jax._src.pallas.mosaic_gpu import primitives as gpu_primitives

try:
    TRITON: Any = importlib.import_module("jax._src.pallas.triton.core")
except ImportError:  # JAX is about to remove it: then nobody has its parameters
    TRITON = None
IS_011 = hasattr(jax_core.Jaxpr, "with_consts")  # one class is a jaxpr, with or without the values of its constvars
IS_012 = hasattr(gpu_primitives, "barrier_arrive_and_wait_p")  # came with 0.12: `contract.py`

#: What nothing in an equation shows (`Semantics` in the schema).
FALSE_PREDICATE_SUPPRESSES_ARRIVAL = IS_012
TENSOR_CORE_BARRIER_TRACKS_COPIES = IS_012
LEADER_TRACKED_LAST_AXIS_ONLY = IS_012
