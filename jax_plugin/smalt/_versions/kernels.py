"""Kernels of Mosaic GPU (`plgpu.kernel`): parameters, layouts, pipelines."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.experimental.pallas.mosaic_gpu as plgpu
from jax._src import core as jax_core
from jax._src import custom_batching as _custom_batching
from jax._src import effects as jax_effects
from jax._src.pallas import mpmd
from jax._src.pallas import core as pallas_core
from jax._src.pallas.mosaic_gpu import core as gpu_core
from jax._src.pallas.mosaic_gpu import pipeline as gpu_pipeline
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.mosaic.gpu import utils as mgpu_utils


def lowering_semantics(params: Any) -> str:
    """"LANE" or "WARPGROUP": what the kernel asked for, else this version's default."""
    if params is None or not hasattr(params, "lowering_semantics"):
        params = plgpu.CompilerParams()
    return str(params.lowering_semantics.name).upper()


mpmd_map_p = mpmd.mpmd_map_p

#: A function with a rule for `jax.vmap`: what `plgpu.kernel` makes.
custom_vmap_p = _custom_batching.custom_vmap_p


@dataclasses.dataclass(frozen=True)
class KernelCall:
    """One `plgpu.kernel` as the lowering rule receives it."""

    name: str
    mesh: Any  # plgpu.Mesh
    jaxpr: Any  # open, without constvars
    num_inputs: int
    aliases: tuple[tuple[int, int], ...]  # (input, output)
    compiler_params: Any


def is_gpu_kernel(params: dict[str, Any]) -> bool:
    """Whether an `mpmd_map` equation is a Mosaic GPU kernel to be compiled (not interpreted)."""
    meshes = params["meshes"]
    return not params["interpret"] and len(meshes) == 1 and isinstance(meshes[0], gpu_core.Mesh)


def kernel_call(num_inputs: int, params: dict[str, Any]) -> KernelCall:
    (jaxpr,) = params["jaxprs"]
    (mesh,) = params["meshes"]
    return KernelCall(
        name=mesh.kernel_name or params["name"] or jaxpr.debug_info.func_name,
        mesh=mesh,
        jaxpr=jaxpr,
        num_inputs=num_inputs,
        aliases=tuple(sorted(params["input_output_aliases"].items())),
        compiler_params=params["compiler_params"],
    )


def promise_in_bounds() -> dict[str, Any]:
    """What a `plgpu.BlockSpec` takes whose blocks are all inside of their array; nothing where it has no such field (0.10)."""
    mode = getattr(gpu_core, "OOBFillMode", None)
    fields = {f.name for f in dataclasses.fields(plgpu.BlockSpec)}
    return {"oob_fill_mode": mode.PROMISE_IN_BOUNDS} if mode is not None and "oob_fill_mode" in fields else {}


def copy_in_bounds() -> dict[str, Any]:
    """The same of a `plgpu.copy_gmem_to_smem`."""
    mode = getattr(gpu_core, "OOBFillMode", None)
    known = "oob_mode" in inspect.signature(plgpu.copy_gmem_to_smem).parameters
    return {"oob_mode": mode.PROMISE_IN_BOUNDS} if mode is not None and known else {}


def layout_kind(x: Any) -> str:
    """What a layout object is: "parameterized", "reduced", "named" (users' own), "strided", "splat", "tiled" (Mosaic's)."""
    match x:
        case gpu_core.ParameterizedLayout():
            return "parameterized"
        case gpu_core.ReducedLayout():
            return "reduced"
        case mgpu.WGStridedFragLayout():
            return "strided"
        case mgpu.WGSplatFragLayout():
            return "splat"
        case mgpu.TiledLayout():
            return "tiled"
        case _:
            return "named" if hasattr(x, "to_mgpu") else "unknown"


def debug_checks_are_enabled() -> bool:
    """Whether `pl.debug_check` checks anything."""
    return bool(pallas_core.enable_debug_checks.value)


def has_effects(call: KernelCall) -> bool:
    """Whether a kernel does something that XLA must keep although its results are not used."""
    local = (jax_effects.JaxprInputEffect, jax_core.NamedAxisEffect)
    return any(
        not isinstance(e, local) and not call.mesh.discharges_effect(e) and not _is_kernel_local(e)
        for e in call.jaxpr.effects
    )


def _is_kernel_local(effect: Any) -> bool:
    known = getattr(pallas_core, "kernel_local_effects", None)
    return known is not None and known.contains(effect)


def kernel_trace(params: dict[str, Any]) -> contextlib.AbstractContextManager[None]:
    """Within the scope, what is traced is in a kernel of these parameters of `mpmd_map`."""
    (mesh,) = params["meshes"]
    return mpmd.mpmd_map_tracing_context(mesh, (mesh, *params["external_meshes"]))  # type: ignore[no-any-return]


def run_kernel(
    body: Callable[..., None],
    arrays: Sequence[Any],
    *,
    out_types: Sequence[Any],
    mesh: Any,
    compiler_params: Any,
    aliases: dict[int, int],
    name: str,
) -> list[Any]:
    """Binds a kernel; `aliases`: operand -> result. The body gets refs of operands, then of results."""
    run = mpmd._mpmd_map(
        [(mesh, body)], list(out_types), input_output_aliases=aliases, compiler_params=compiler_params, name=name
    )
    return list(run(*arrays))


#: JAX's own, whatever stands in its place.
_EMIT_PIPELINE = plgpu.emit_pipeline


def emit_pipeline(*args: Any, **how: Any) -> Callable[..., Any]:
    with as_hopper():
        return _EMIT_PIPELINE(*args, **how)  # type: ignore[no-any-return]


_SCOPE = threading.local()


@contextlib.contextmanager
def as_hopper() -> Iterator[None]:
    """Pipelines that are made in the scope are those for a GPU with bulk copies and barriers: smalt compiles them for others, too, for which JAX has
    pipelines without results alone."""
    outer = getattr(_SCOPE, "hopper", False)
    _SCOPE.hopper = True
    try:
        yield
    finally:
        _SCOPE.hopper = outer


def _answer_for_pipelines() -> list[Callable[[], None]]:
    """JAX's question which architecture a pipeline is for, in the scope; returns the step that undoes it."""
    own = getattr(mgpu_utils, "_infer_arch", None)
    if own is None:  # it does not ask
        return []

    @functools.wraps(own)
    def answer() -> tuple[int, int]:
        return (9, 0) if getattr(_SCOPE, "hopper", False) else own()

    def give_back() -> None:
        if mgpu_utils._infer_arch is answer:
            mgpu_utils._infer_arch = own

    mgpu_utils._infer_arch = answer
    return [give_back]


def is_block_spec(x: Any) -> bool:
    return isinstance(x, pallas_core.BlockSpec)


def is_stored_in_turn(spec: Any, grid: Sequence[Any]) -> bool:
    """Whether a pipeline stores an output's block step by step, and not once at its end, or never."""
    return bool(gpu_pipeline._in_smem(spec)) and not gpu_pipeline._is_index_invariant(spec, grid)


def chain_pipelines(heeding: Callable[[Callable[..., Any]], Callable[..., Any]]) -> list[Callable[[], None]]:
    """Wraps JAX's functions that make pipelines; returns the steps that undo it."""
    undo: list[Callable[[], None]] = []
    for name in ("emit_pipeline", "emit_pipeline_warp_specialized"):
        there = getattr(plgpu, name)
        if not hasattr(there, "_smalt"):
            made = heeding(there)
            made._smalt = True  # type: ignore[attr-defined]
            setattr(plgpu, name, made)
            undo.append(functools.partial(_give_back, name, made, there))
    return undo + _answer_for_pipelines()


def _give_back(name: str, ours: Any, there: Any) -> None:
    if getattr(plgpu, name) is ours:
        setattr(plgpu, name, there)


def replace_as_torch_kernel(dispatch: Callable[[Any], Any]) -> None:
    """`plgpu.as_torch_kernel` becomes what `dispatch` makes of it."""
    plgpu.as_torch_kernel = dispatch(plgpu.as_torch_kernel)


def register_layout(x: Any) -> Any:
    """The layout of a `plgpu.ShapeDtypeStruct`; None of others (arrays have a `layout` that is another thing)."""
    return x.layout if isinstance(x, plgpu.ShapeDtypeStruct) else None


def layout_cast(x: Any, layout: Any) -> Any:
    return plgpu.layout_cast(x, layout)
