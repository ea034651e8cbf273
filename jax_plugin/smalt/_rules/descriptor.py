"""Writes a kernel's descriptor and debug table."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from smalt import _config, _devices, _messages, _native, _versions
from smalt._errors import InvalidKernel
from smalt._messages import Message, message
from smalt._rules import dma, rules
from smalt._walk import Walker

VERSION = 1


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A serialised kernel, and what the lowering rule needs of it."""

    name: str
    descriptor: bytes
    debug: bytes
    target: str = ""  # set by the lowering rule
    seconds: float = 0.0  # that serialising took
    blocks: tuple[Any, ...] = ()  # of a pallas_call: `_blocks.BlockReport`s
    results: tuple[Any, ...] = ()  # the avals of what the call gives, the kernel's own included
    aliases: tuple[tuple[int, int], ...] = ()  # (operand, result)
    talks: bool = False  # to other devices
    far_indices: tuple[Any, ...] = ()  # axes of the mesh along which it queries its index: operands behind the call's

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.descriptor).hexdigest()


def serialize(
    call: _versions.KernelCall, device_mesh: Sequence[tuple[Any, int]] = (), call_site: Sequence[Any] = (), within: _devices.Within | None = None
) -> Kernel:
    """Serialises one kernel; raises Unsupported or InvalidKernel with the user's line.

    `device_mesh` are the axes of the JAX device mesh, `within` what a host has of it, if the kernel is for that; `call_site` the tracebacks of the
    equations around the kernel, innermost first.
    """
    w = Walker(rules.apply, call_site, _config.profile_space(call.compiler_params) > 0)
    if within is not None:
        device_mesh, w.far_axes, w.far_devices = within.mesh, within.far, within.others
    w.chooses_transforms = _versions.lowering_semantics(call.compiler_params) == "WARPGROUP"
    profile_dir = _config.profile_folder(call.compiler_params, w.debug.where)
    mesh = call.mesh
    grid = _axes(w, mesh.grid_names, mesh.grid)
    cluster = _axes(w, mesh.cluster_names, mesh.cluster)
    w.cluster = tuple(int(n) for n in mesh.cluster)
    thread_axis = 0 if mesh.thread_name is None else w.intern_axis(mesh.thread_name)
    devices = [
        message("MeshAxis", id=w.intern_mesh_axis(name), name=_axis_text(name), size=size) for name, size in device_mesh
    ]
    if (mesh.num_threads or 1) < 0:
        raise InvalidKernel(
            f"smalt: num_threads of a kernel\n  expected: 1 to 8\n  got: {mesh.num_threads}"
            f"\n  remedy: leave it out for one thread (warpgroup){w.debug.where()}"
        )
    w.bulk_copies = frozenset(map(id, dma.bulk_copies(call.jaxpr)))
    far, own = w.far_queries(call.jaxpr), call.jaxpr.invars
    params = _params(w, call, len(far))
    w.argument_names = _versions.names_of_references(call.jaxpr)
    body = w.region(call.jaxpr, params=[*own[: call.num_inputs], *far, *own[call.num_inputs :]])
    descriptor = message(
        "KernelDescriptor",
        version=VERSION,
        name=call.name,
        semantics=_semantics(call.compiler_params),
        grid=grid,
        cluster=cluster,
        num_threads=mesh.num_threads or 1,
        thread_axis=thread_axis,
        device_mesh=devices,
        params=params,
        body=body,
        compiler_params=_compiler_params(call.compiler_params),
    )
    kernel = Kernel(call.name, bytes(descriptor), bytes(w.debug.encode(profile_dir)), talks=w.talks, far_indices=tuple(index.axis for index in far))
    if profile_dir:
        _native.lowered_profile(kernel.hash, profile_dir)
    return kernel


def _axis_text(name: Any) -> str:
    return name if isinstance(name, str) else ""


def _axes(w: Walker, names: Any, sizes: Any) -> list[Message]:
    return [message("Axis", id=w.intern_axis(n), name=_axis_text(n), size=int(s)) for n, s in zip(names, sizes)]


def _params(w: Walker, call: _versions.KernelCall, far: int) -> list[Message]:
    """Behind the inputs come as many numbers that the user did not write."""
    aliases = dict(call.aliases)
    numbers = [message("Param", role="SCALAR", type=_messages.type_of(_versions.array_aval((), np.dtype(np.int32)), w.axis_id)) for _ in range(far)]
    out: list[Message] = []
    for i, var in enumerate(call.jaxpr.invars):
        kind = _messages.type_of(var.aval, w.axis_id)
        if i >= call.num_inputs:
            out.append(message("Param", role="OUTPUT", type=kind))
        elif not _versions.is_ref_aval(var.aval):
            if var.aval.shape != ():
                raise InvalidKernel(
                    f"smalt: the kernel closes over an array of shape {var.aval.shape}"
                    "\n  expected: scalars, or references\n  remedy: pass it as an argument of the kernel" + w.debug.where()
                )
            out.append(message("Param", role="SCALAR", type=kind))
        elif i in aliases:
            target = call.num_inputs + far + aliases[i]
            out.append(message("Param", role="MUTABLE", type=kind, aliased_output=target + 1))
        elif "semaphore" in str(var.aval.inner_aval.dtype):
            out.append(message("Param", role="MUTABLE", type=kind))
        else:
            out.append(message("Param", role="INPUT", type=kind))
    return out[: call.num_inputs] + numbers + out[call.num_inputs :]


def _semantics(params: Any) -> Message:
    return message(
        "Semantics",
        false_predicate_suppresses_arrival=_versions.FALSE_PREDICATE_SUPPRESSES_ARRIVAL,
        tensor_core_barrier_tracks_copies=_versions.TENSOR_CORE_BARRIER_TRACKS_COPIES,
        leader_tracked_last_axis_only=_versions.LEADER_TRACKED_LAST_AXIS_ONLY,
        lowering=_versions.lowering_semantics(params),
    )


def _compiler_params(params: Any) -> Message:
    def get(name: str, default: Any) -> Any:
        value = getattr(params, name, None)
        return default if value is None else value

    contract = getattr(params, "fp_contract", None)
    return message(
        "CompilerParams",
        approx_math=bool(get("approx_math", False)),
        unsafe_no_auto_barriers=bool(get("unsafe_no_auto_barriers", False)),
        reduction_scratch_bytes=int(get("reduction_scratch_bytes", 2048)),
        skip_device_barrier=bool(get("skip_device_barrier", False)),
        is_multi_process=bool(get("is_multi_process", False)),
        fp_contract="FP_CONTRACT_UNSPECIFIED" if contract is None else f"FP_CONTRACT_{'ON' if contract else 'OFF'}",
        target=_config.target_of(params) or "",
        wait_timeout_ns=int(get("wait_timeout_ns", 0)),
        profile_space=_config.profile_space(params),
        profile_bounds_check=bool(get("profile_bounds_check", False)),
        precise_division=bool(get("precise_division", False)),
        profile_warps=_config.profiles_by_warps(params),
        accumulate_products=bool(get("accumulate_products", False)),
    )
