"""Meshes over several hosts: a kernel reaches the devices of its own host, along the axes of the mesh that lie within one.

Each axis is an outer part, along which hosts differ, and an inner one. What a kernel that communicates has for a mesh are the inner parts; devices with equal outer
parts are a group, with a rendezvous of its own. Emulated devices reach those of their process only: there each process is a host.
"""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from smalt import _versions
from smalt._errors import Unsupported

#: Milliseconds that a process waits for another's host.
PATIENCE = 600_000


@dataclasses.dataclass(frozen=True)
class Within:
    """What a host has of a mesh."""

    #: By axis, outermost first: the name, the size, and how much of it is on one host.
    axes: tuple[tuple[Any, int, int], ...]
    number: int  # as `_versions.mesh_number`: of meshes whose hosts have several processes each
    is_emulated: bool

    @property
    def far(self) -> list[Any]:
        """Axes along which hosts differ."""
        return [name for name, size, inner in self.axes if inner != size]

    @property
    def mesh(self) -> list[tuple[Any, int]]:
        """The axes that a kernel talks along; the part of one that is a host's has no name."""
        return [(name if inner == size else ("of a host", name), inner) for name, size, inner in self.axes if inner == size or inner > 1]

    @property
    def others(self) -> tuple[str, str, str]:
        """The devices that are not reached, what those lie within that are, and what to do about it."""
        if self.is_emulated:
            remedy = "give one process all devices that talk to each other (XLA_FLAGS=--xla_force_host_platform_device_count=N)"
            return "emulated devices of other processes", "a process", remedy
        return "devices of other hosts", "a host", "let the axis that the kernel talks along lie within a host"

    def index(self, name: Any, whole: Any, divide: Callable[[Any, int], Any], remainder: Callable[[Any, int], Any]) -> Any:
        """The device's index along an axis of the whole mesh, from its position there."""
        at = [name for name, _, _ in self.axes].index(name)
        return remainder(divide(whole, math.prod(size for _, size, _ in self.axes[at + 1 :])), self.axes[at][1])

    def position(self, whole: Any, divide: Callable[[Any, int], Any], remainder: Callable[[Any, int], Any], sum_of: Callable[..., Any]) -> Any:
        """The device's position there, from that in the whole mesh."""
        terms = []
        outer = math.prod(size for _, size, _ in self.axes)
        within = math.prod(inner for _, _, inner in self.axes)
        for _, size, inner in self.axes:
            outer, within = outer // size, within // inner
            terms.append((remainder(divide(whole, outer), inner), within))
        return sum_of(terms)


#: Which group of a mesh, by its number, this process is part of: `directory.py` separates groups.
GROUPS: dict[int, str] = {}


def within(axis_context: Any, platforms: Sequence[str], where: Callable[[], str]) -> Within | None:
    """None where a mesh lies within one host, or is none of devices that are known. `where`: the line of the call."""
    mesh = _versions.concrete_mesh(axis_context)
    if mesh is None:
        return None
    processes = np.vectorize(lambda d: d.process_index, otypes=[int])(mesh.devices)
    if len(np.unique(processes)) <= 1:
        return None
    names = {p: str(p) for p in np.unique(processes).tolist()} if "cpu" in platforms else _host_names(np.unique(processes).tolist())
    hosts = np.vectorize(names.__getitem__, otypes=[object])(processes)
    if len(set(hosts.flat)) <= 1:
        return None
    inner = [_inner(hosts, k) for k in range(hosts.ndim)]
    cells = hosts
    for k, n in enumerate(inner):
        cells = np.take(cells, range(0, cells.shape[k], n), axis=k)
    if cells.size != len(set(cells.flat)):
        raise Unsupported(
            "smalt: not supported yet: a kernel that talks to other devices in a mesh that has a host in several places"
            f"\n  expected: devices of a host side by side: {len(set(cells.flat))} parts\n  got: {cells.size}"
            "\n  remedy: jax.make_mesh, or an order of devices with those of a host together"
            f"{where()}"
        )
    number = 0
    own = _versions.process_index(mesh)
    if len(set(zip(hosts.flat, processes.flat))) > len(set(hosts.flat)):
        number = 1 + zlib.crc32(repr([[d.id for d in mesh.devices.flat], inner]).encode())
        GROUPS[number] = names[own]
    return Within(tuple(zip(mesh.axis_names, hosts.shape, inner)), number, "cpu" in platforms)


def _inner(hosts: np.ndarray[Any, Any], axis: int) -> int:
    """How many neighbours along an axis are on one host, everywhere."""
    size = hosts.shape[axis]
    along = np.moveaxis(hosts, axis, 0)
    for n in sorted((n for n in range(1, size + 1) if size % n == 0), reverse=True):
        parts = along.reshape(size // n, n, -1)
        if (parts == parts[:, :1]).all():
            return n
    return 1


def own_name() -> str:
    """What all processes of this host have in common, and no others; as the library has it."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def _host_names(processes: Sequence[int]) -> dict[int, str]:
    """Each process publishes its own in the job's coordination service."""
    store, own = _versions.coordination_service(), _versions.process_index(None)
    if store is None:
        return {p: own_name() for p in processes}
    store.key_value_set(f"smalt/host/{own}", own_name(), allow_overwrite=True)
    return {p: own_name() if p == own else str(store.blocking_key_value_get(f"smalt/host/{p}", PATIENCE)) for p in processes}
