"""Devices: meshes, what is queried of GPUs that are not there, the processes of a job."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
from jax._src import distributed as _distributed
from jax._src import mesh as mesh_lib
from jax._src.lib import xla_client


def device_mesh(axis_context: Any) -> list[tuple[Any, int]]:
    """Axes (name, size) of the JAX device mesh that a lowering runs under, outermost first."""
    mesh = getattr(axis_context, "mesh", None)
    if mesh is None or mesh.empty:
        return []
    return list(mesh.shape.items())


def concrete_mesh(axis_context: Any) -> Any | None:
    """The mesh that a lowering runs under, if its devices are known."""
    mesh = getattr(axis_context, "mesh", None)
    return None if mesh is None or isinstance(mesh, mesh_lib.AbstractMesh) or not mesh.devices.size else mesh


def process_index(mesh: Any | None) -> int:
    """This process's number in its job; of the backend whose devices a mesh has."""
    return int(jax.process_index() if mesh is None else mesh.devices.flat[0].client.process_index())


def automatic_axes(axis_context: Any) -> list[Any]:
    """Axes of the device mesh (of more than one device) that a lowering leaves to XLA's partitioner."""
    manual = getattr(axis_context, "manual_axes", None) or frozenset(name for name, _ in device_mesh(axis_context))
    return [name for name, size in device_mesh(axis_context) if size > 1 and name not in manual]


def abstract_device() -> Any | None:
    """The device of the abstract mesh in scope, which stands for a GPU that is not there."""
    mesh = mesh_lib.get_abstract_mesh()
    return getattr(mesh, "abstract_device", None)


@dataclasses.dataclass(frozen=True)
class EmulatedDevice(mesh_lib.AbstractDevice):  # type: ignore[misc]
    """An abstract device that also has its architecture (JAX reads it where there is one)."""

    compute_capability: str = ""


@contextlib.contextmanager
def abstract_device_scope(kind: str, core_count: int, compute_capability: str) -> Iterator[None]:
    """Makes `get_abstract_mesh().abstract_device` a GPU of the given kind."""
    device = EmulatedDevice(kind, core_count, "cuda", compute_capability)
    mesh = mesh_lib.get_abstract_mesh()
    if mesh.empty:
        mesh = jax.sharding.AbstractMesh((), (), abstract_device=device)
    else:
        mesh = jax.sharding.AbstractMesh(
            mesh.axis_sizes, mesh.axis_names, axis_types=mesh.axis_types, abstract_device=device
        )
    with jax.sharding.use_abstract_mesh(mesh):
        yield


class _CudaVersions:
    """What kernels query of `jax._src.lib.cuda_versions`, which is None without the CUDA plugin."""

    def cuda_runtime_get_version(self) -> int:
        return 13000


#: (name, what the class had under it).
_ANSWERED: list[tuple[str, Any]] = []


def answer_for_cpu_devices(**answers: Callable[[], Any]) -> None:
    """Has CPU devices answer like another one, until `stop_answering`: with what a function gives, where it gives something.

    Their own attributes (`platform`, `device_kind`) stay, since JAX compiles for what is there.
    """
    cls = xla_client.Device
    by_name = getattr(cls, "__getattr__", None)  # how devices answer what only some of them have

    def prop(name: str, own: Any, answer: Callable[[], Any]) -> property:
        def get(device: Any) -> Any:
            if own is not None:
                value = own.__get__(device, cls)
                if platform.__get__(device, cls) != "cpu" or _is_jax(sys._getframe(1)):
                    return value
                return answer() or value
            if by_name is not None:
                with contextlib.suppress(AttributeError):
                    return by_name(device, name)
            if (value := answer()) is None:
                raise AttributeError(name)
            return value

        return property(get)

    platform = vars(cls)["platform"]
    for name, answer in answers.items():
        own = vars(cls).get(name)
        _ANSWERED.append((name, own))
        setattr(cls, name, prop(name, own, answer))
    module = _attention_module()
    if module is not None and getattr(module, "cuda_versions", None) is None:
        module.cuda_versions = _CudaVersions()


def _attention_module() -> Any:
    """The shipped attention kernels, which took the CUDA versions into their own namespace; None if they can't be had."""
    try:
        return importlib.import_module("jax.experimental.pallas.ops.gpu.attention_mgpu")
    except ImportError:  # they need absl-py, which JAX does not bring
        return None


def _is_jax(frame: Any) -> bool:
    return str(frame.f_globals.get("__name__", "")).split(".")[0] in ("jax", "jaxlib")


def stop_answering() -> None:
    for name, own in _ANSWERED:
        if own is None:
            delattr(xla_client.Device, name)
        else:
            setattr(xla_client.Device, name, own)
    _ANSWERED.clear()
    module: Any = sys.modules.get("jax.experimental.pallas.ops.gpu.attention_mgpu")
    if isinstance(getattr(module, "cuda_versions", None), _CudaVersions):
        module.cuda_versions = None


def coordination_service() -> Any | None:
    """The client of the job's coordination service; None in a program of one process."""
    return _distributed.global_state.client


def mesh_number(axis_context: Any) -> int:
    """A number for the devices of the mesh that a lowering runs under, if they are of several processes; else, or if they are not known, 0."""
    mesh = concrete_mesh(axis_context)
    devices = [] if mesh is None else [d for d in mesh.devices.flat]
    if len({d.process_index for d in devices}) <= 1:
        return 0
    return 1 + zlib.crc32(repr([d.id for d in devices]).encode())


def describe_as_tpus(shared_memory: Mapping[str, int]) -> list[Callable[[], None]]:
    """What a TPU's kernels, and JAX's pipelines for them, query of the chip is answered for GPUs of these kinds: a core with so much memory.

    Returns what takes it away again.
    """
    try:
        from jax._src.pallas.mosaic import tpu_info
    except ImportError:  # no Pallas for TPUs
        return []

    def about(size: int) -> Any:
        chip = tpu_info.get_tpu_info_for_chip(tpu_info.ChipVersion.TPU_V5E, 1)
        return dataclasses.replace(chip, vmem_capacity_bytes=size)

    mine = [kind for kind in shared_memory if kind not in tpu_info.registry]
    tpu_info.registry.update({kind: functools.partial(about, shared_memory[kind]) for kind in mine})
    return [functools.partial(tpu_info.registry.pop, kind, None) for kind in mine]
