"""What distinguishes one version from another, where nothing in an equation shows it."""

from __future__ import annotations

import importlib
from typing import Any

from jax._src import core as jax_core
from jax._src.interpreters import ad
from jax._src.pallas.mosaic_gpu import primitives as gpu_primitives
from jax._src.state import discharge

from smalt._versions.contract import words_of

try:
    TRITON: Any = importlib.import_module("jax._src.pallas.triton.core")
except ImportError:  # JAX is about to remove it: then its parameters do not exist
    TRITON = None
IS_011 = hasattr(jax_core.Jaxpr, "with_consts")  # one class is a jaxpr, with or without the values of its constvars
#: Values of constvars may be given to a jaxpr whose first inputs they are (0.11.1).
CONSTS_ARE_FIRST_INPUTS = IS_011 and "_num_consts" not in jax_core.Jaxpr.with_consts.__code__.co_names
#: What discharges references takes a context, and can forget where memory is; residuals of what is linearized have a structure. Both came with 0.11.1.
DISCHARGES_WITH_CONTEXT = "ctx" in words_of(discharge._get_discharge_rule)
LINEARIZES_WITH_STRUCTURE = "structured_res" in words_of(ad.LinearizeTrace.process_primitive)

#: What nothing in an equation shows (`Semantics` in the schema): what JAX's own lowering of a copy does.
_COPIES = words_of(gpu_primitives._copy_gmem_to_smem_lowering)
FALSE_PREDICATE_SUPPRESSES_ARRIVAL = "arrive_predicate" in _COPIES
TENSOR_CORE_BARRIER_TRACKS_COPIES = "orders_tensor_core" in _COPIES
LEADER_TRACKED_LAST_AXIS_ONLY = "expected_axis" in _COPIES
