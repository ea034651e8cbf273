"""What smalt reads of JAX's private parts without JAX failing loudly when they change: looked at once, at the first enabling.

A module or a function that is gone fails where it is imported or called. What stands here would change what smalt does and say nothing:
a class that is known by its name, a variable of a frame or of a closure, one feature that stands for a version.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax._src import core as jax_core
from jax._src import indexing, pjit
from jax._src.export import _export
from jax._src.interpreters import mlir, pxla
from jax._src.lib import xla_client
from jax._src.pallas import core as pallas_core
from jax._src.pallas import primitives as pallas_primitives
from jax._src.pallas.mosaic_gpu import core as gpu_core
from jax._src.pallas.mosaic_gpu import primitives as gpu_primitives
from jax._src.state import indexing as state_indexing
from jax._src.state import types as state_types
from jax.experimental.mosaic.gpu import fragmented_array

from smalt import _requirements
from smalt._errors import NotInstalled
from smalt._versions import definitions, features, fragments, kernels

#: Classes that are told by their names: the module, and the names in it.
CLASSES: dict[Any, tuple[str, ...]] = {
    state_indexing: ("NDIndexer",),
    indexing: ("Slice",),
    state_types: ("BitcastTransform", "ReshapeTransform", "TransposeTransform"),
    gpu_core: (
        "BarrierType",
        "ClusterBarrierType",
        "ClusterRefTransform",
        "CollapseLeadingBatchDimensionsTransform",
        "ExpandLeadingBatchDimensionsTransform",
        "ExtractAliasedRef",
        "IdentityTransform",
        "MulticastRef",
        "PeerMemRef",
        "SwizzleTransform",
        "TilingTransform",
        "UnswizzleRef",
        "UntilingTransform",
    ),
    pallas_core: ("BarrierSemaphore", "Blocked", "BoundedSlice", "Element", "Indirect", "Semaphore", "Squeezed"),
    fragmented_array: ("Replicated",),
}


def _class_row(module: Any, name: str) -> bool:
    found = getattr(module, name, None)
    return isinstance(found, type) and found.__name__ == name


def _probe(x: Any) -> Any:
    return x


#: What is read -> whether it is as it was.
ROWS: dict[str, Callable[[], bool]] = {
    "mlir.lower_fun is a closure over `fun`": lambda: definitions.lowered_function(mlir.lower_fun(_probe, multiple_results=False)) is _probe,
    "mlir.jaxpr_subcomp has the equation in `eqn`": lambda: "eqn" in mlir.jaxpr_subcomp.__code__.co_varnames,
    "mlir's tables of rules have entries with `rule`": lambda: (
        callable(mlir._lowerings[kernels.mpmd_map_p].rule) and isinstance(mlir._platform_specific_lowerings["cuda"], dict)
    ),
    "mosaic_gpu.primitives.barrier_arrive_and_wait_p came with JAX 0.12": lambda: (
        hasattr(gpu_primitives, "barrier_arrive_and_wait_p") == (jax.__version_info__[:2] >= (0, 12))
    ),
    "core.Jaxpr.with_consts came with JAX 0.11": lambda: hasattr(jax_core.Jaxpr, "with_consts") == (jax.__version_info__[:2] >= (0, 11)),
    "pallas.primitives.run_scoped_p is called run_scoped": lambda: pallas_primitives.run_scoped_p.name == "run_scoped",
    "mosaic_gpu.helpers.inline_ptx has a function with `asm`": lambda: fragments.inline_ptx_code() is not None,
    "mosaic.gpu.LaunchContext makes tensor maps in `_get_tma_desc` alone": lambda: (
        list(inspect.signature(fragments.StockLaunchContext._get_tma_desc).parameters)[1:7]
        == ["gmem_ref", "gmem_transform", "gmem_peer_id", "transformed_slice_shape", "swizzle", "reduction_op"]
    ),
    "pallas.triton.core.CompilerParams has num_warps, num_stages, or is gone": lambda: (
        features.TRITON is None
        or {f.name for f in dataclasses.fields(features.TRITON.CompilerParams)} == {"num_warps", "num_stages"}
    ),
    "mlir.ModuleContext.add_keepalive": lambda: callable(getattr(mlir.ModuleContext, "add_keepalive", None)),
    "mlir.LoweringParameters.for_export": lambda: "for_export" in {f.name for f in dataclasses.fields(mlir.LoweringParameters)},
    "pxla.ExecuteReplicated.keepalive": lambda: "keepalive" in pxla.ExecuteReplicated.__slots__,
    "pxla.MeshExecutable.unsafe_call": lambda: hasattr(pxla.MeshExecutable, "unsafe_call"),
    "pjit._get_fastpath_data begins with the executable": lambda: next(iter(inspect.signature(pjit._get_fastpath_data).parameters)) == "executable",
    "export's set of stable custom calls": lambda: isinstance(getattr(_export, "_CUSTOM_CALL_TARGETS_GUARANTEED_STABLE", None), set),
    "core.DebugInfo.func_src_info, arg_names": lambda: {"func_src_info", "arg_names"} <= {f for f in jax_core.DebugInfo._fields},
    "Traceback.raw_frames, code_addr2location": lambda: all(
        hasattr(xla_client.Traceback, name) for name in ("raw_frames", "code_addr2location")
    ),
    "Device.platform, device_kind": lambda: all(name in vars(xla_client.Device) for name in ("platform", "device_kind")),
} | {
    f"{module.__name__.removeprefix('jax._src.')}.{name}": functools.partial(_class_row, module, name)
    for module, names in CLASSES.items()
    for name in names
}  # fmt: skip


def _broken() -> Iterator[str]:
    for what, is_kept in ROWS.items():
        try:
            kept = is_kept()
        except Exception:  # it is so different that it cannot even be asked
            kept = False
        if not kept:
            yield what


def check() -> None:
    """Raises NotInstalled if JAX has changed where smalt would not notice."""
    if broken := list(_broken()):
        raise NotInstalled(
            "smalt: this version of JAX is not supported: it has changed where smalt reads its private parts"
            f"\n  expected: jax {', '.join(_requirements.TESTED_JAX)}, with {'; '.join(broken)}"
            f"\n  got: jax {jax.__version__}, where that is otherwise\n  {_requirements.REMEDY}"
        )
