"""What a communicating kernel is, the list of them, and what they are written with."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import unittest.mock
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax

import smalt
from smalt._devices import emulation
from tests.corpus.case import _bits, _first, _nan, like, x64
from tests.suites.multi_gpu.processes import fetch, place

P = jax.sharding.PartitionSpec
Array = np.ndarray[Any, Any]

#: Arithmetic as NumPy does it. A wait that takes too long ends a kernel with a report instead of a hang.
PARAMS = smalt.CompilerParams(fp_contract=False, wait_timeout_ns=10_000_000_000)


#: Machines that the emulator has beside its own while a subject runs.
MACHINES: dict[str, emulation.Device] = {}


@dataclasses.dataclass(frozen=True)
class Program:
    """A function of global arrays around communicating kernels, made for a number of devices.

    Attributes:
        fn: The function; it is called as it is, so `jax.jit` is its own affair where `jit` is False.
        inputs: Its arguments.
        expected: What it returns, leaf by leaf.
        tolerance: Largest error relative to max(1, |expected|); None: bit for bit (NaN equals NaN).
    """

    fn: Callable[..., Any]
    inputs: Sequence[Any]
    expected: Sequence[Array]
    tolerance: float | None = None
    jit: bool = True

    def run(self) -> list[Array]:
        return [fetch(leaf) for leaf in jax.tree.leaves(jax.block_until_ready(self._callable(*self.inputs)))]

    @functools.cached_property
    def _callable(self) -> Callable[..., Any]:
        return jax.jit(self.fn) if self.jit else self.fn

    def fault(self, got: Sequence[Array]) -> str | None:
        """What is wrong about results; None if nothing is."""
        if len(got) != len(self.expected):
            return f"{len(got)} outputs, expected {len(self.expected)}"
        for i, (a, b) in enumerate(zip(got, self.expected)):
            b = np.asarray(b)
            if a.shape != b.shape or a.dtype != b.dtype:
                return f"output {i}: {a.dtype}{list(a.shape)}, expected {b.dtype}{list(b.shape)}"
            if self.tolerance is None:
                same = (_bits(a) == _bits(b)) | (_nan(a) & _nan(b))
                if not same.all():
                    at = _first(~same)
                    return f"output {i}: {int((~same).sum())} of {a.size} differ, first at {at}: {a[at]}, expected {b[at]}"
            else:
                x, y = a.astype(np.float64), b.astype(np.float64)
                worst = float((np.abs(x - y) / np.maximum(1, np.abs(y))).max(initial=0))
                if not worst <= self.tolerance:
                    return f"output {i}: error {worst:.3g}, allowed {self.tolerance:.3g}"
        return None


def digest(arrays: Sequence[Array]) -> str:
    """A hash of all bits of results."""
    h = hashlib.sha256()
    for a in arrays:
        h.update(f"{a.dtype}{a.shape}".encode() + np.ascontiguousarray(a).tobytes())
    return h.hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class Subject:
    """One kernel of the suite.

    Attributes:
        make: The program for a number of devices.
        devices: The numbers of devices it is for.
        x64: Runs with 64-bit types enabled.
        lacks: What this version of JAX lacks for it; empty: nothing.
        machine: The GPU that CPU devices stand for, where the kernel asks JAX for one (`smalt.emulated`).
        check: What becomes of the emulator's findings, where that is not an error (`smalt.emulated`).
        leaves_out: Some mesh leaves devices out: JAX wants every process to have devices in each of its programs.
        collectives: XLA's own collectives are in the program, or make its expected results: processes with the same GPUs have none.
    """

    name: str
    make: Callable[[int], Program]
    devices: Callable[[int], bool]
    x64: bool = False
    lacks: str = ""
    machine: str = ""
    check: str | None = None
    leaves_out: bool = False
    collectives: bool = False

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        emulated = self.machine and jax.default_backend() == "cpu"
        with unittest.mock.patch.dict(emulation.DEVICES, MACHINES), contextlib.ExitStack() as stack:
            stack.enter_context(x64(self.x64))
            stack.enter_context(smalt.emulated(self.machine, check=self.check) if emulated else smalt.enabled(True, pallas_call=True))
            stack.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*(device_id_type|DeviceIdType).*")
            yield


SUBJECTS: dict[str, Subject] = {}


def subject(
    *variants: Any,
    devices: Callable[[int], bool] = lambda n: n > 1,
    x64: bool = False,
    lacks: str = "",
    machine: str = "",
    check: str | None = None,
    leaves_out: bool = False,
    collectives: bool = False,
) -> Callable[[Callable[..., Program]], Callable[..., Program]]:
    """Registers a function of the number of devices, or one for each variant, which it takes besides (dtypes, names, numbers)."""

    def register(make: Callable[..., Program]) -> Callable[..., Program]:
        for variant in variants or (None,):
            wide = x64
            if variant is None:
                name, of = make.__name__, make
            else:
                label = variant if isinstance(variant, (str, int)) else jnp.dtype(variant).name
                wide = wide or not {"float64", "int64", "uint64"}.isdisjoint(str(label).split())
                name, of = f"{make.__name__}[{label}]", _with(make, variant)
            assert name not in SUBJECTS, name
            SUBJECTS[name] = Subject(name, of, devices, wide, lacks, machine, check, leaves_out, collectives)
        return make

    return register


def _with(make: Callable[..., Program], variant: Any) -> Callable[[int], Program]:
    return lambda n: make(n, variant)


def load_all() -> dict[str, Subject]:
    import tests.suites.multi_gpu.collectives  # noqa: F401
    import tests.suites.multi_gpu.edges  # noqa: F401
    import tests.suites.multi_gpu.multicast  # noqa: F401
    import tests.suites.multi_gpu.programs  # noqa: F401
    import tests.suites.multi_gpu.random_programs  # noqa: F401
    import tests.suites.multi_gpu.remote  # noqa: F401
    import tests.suites.multi_gpu.semaphores  # noqa: F401
    import tests.suites.multi_gpu.shipped  # noqa: F401

    return SUBJECTS


# ------------------------------------------------------------------------------------------ data

FLOATS = (jnp.float32, jnp.bfloat16, jnp.float16)
NARROW = (jnp.int8, jnp.uint8, jnp.int16, jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.bool_)
WIDE = ("int64", "float64")


def data(shape: Sequence[int], dtype: Any = jnp.float32, seed: str = "", low: int | None = None, high: int | None = None) -> Array:
    """Seeded values, the same in every process: normal, or integers in [low, high) of any type."""
    rng = np.random.default_rng(zlib.crc32(f"{seed}{tuple(shape)}{jnp.dtype(dtype)}".encode()))
    shape = tuple(shape)
    kind = np.dtype(dtype)
    if low is not None and high is not None:
        return rng.integers(low, high, shape).astype(kind)
    if kind == np.bool_:
        return rng.integers(0, 2, shape).astype(kind)
    if jnp.issubdtype(kind, jnp.integer):
        info = jnp.iinfo(kind)
        return rng.integers(int(info.min), int(info.max), shape, dtype=np.int64 if info.min < 0 else np.uint64).astype(kind)
    return rng.standard_normal(shape).astype(kind)


# ------------------------------------------------------------------------------------------ programs


def line(n: int, devices: Sequence[Any] | None = None) -> Any:
    """A mesh of one axis "x"."""
    return grid((n,), ("x",), devices)


def grid(shape: Sequence[int], names: Sequence[str], devices: Sequence[Any] | None = None) -> Any:
    """A mesh over the first devices, or those given, in this order."""
    count = int(np.prod(shape))
    chosen = np.array(list(devices) if devices is not None else jax.devices()[:count]).reshape(tuple(shape))
    return jax.sharding.Mesh(chosen, tuple(names), axis_types=(jax.sharding.AxisType.Auto,) * len(names))


def over(f: Callable[..., Any], mesh: Any, in_specs: Any = None, out_specs: Any = None) -> Callable[..., Any]:
    """`shard_map`; by default all arrays are split over all axes of the mesh along their first dimension."""
    whole = P(mesh.axis_names)
    return jax.shard_map(
        f, mesh=mesh, in_specs=whole if in_specs is None else in_specs, out_specs=whole if out_specs is None else out_specs, check_vma=False
    )


def kernel(body: Callable[..., Any], out: Any, *scratch: Any, params: Any = PARAMS, **kwargs: Any) -> Any:
    """`plgpu.kernel` in the spelling that all versions share."""
    if scratch:
        kwargs["scratch_types"] = list(scratch)
    return plgpu.kernel(body, out_type=out, compiler_params=params, **kwargs)


# ------------------------------------------------------------------------------------------ in kernels

REGULAR = plgpu.SemaphoreType.REGULAR
SMEM, Barrier = plgpu.SMEM, plgpu.Barrier


def i32(x: Any) -> Any:
    """A number of 32 bits, whatever `jax_enable_x64` says; a literal where it is known."""
    return x.astype(jnp.int32) if isinstance(x, jax.Array) else np.int32(x)


def me() -> Any:
    return lax.axis_index("x")


def right(n: int, by: int = 1) -> Any:
    """The device `by` places to the right on a ring of n."""
    return lax.rem(me() + i32(by % n), i32(n))


def logical() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {"device_id_type": pl.DeviceIdType.LOGICAL}


def signal_all(sem: Any, n: int, inc: Any = 1) -> None:
    """Signals every device of a mesh with one axis, this one too."""
    for peer in range(n):
        pl.semaphore_signal(sem, inc, device_id=i32(peer))


def everyone(sem: Any, n: int) -> None:
    """No device goes on before all are here. `sem` serves once, or in turn with another: a fast peer may be one round ahead."""
    signal_all(sem, n)
    pl.semaphore_wait(sem, n)


def handshake(sem: Any, to: Any) -> None:
    """Tells `to`, and waits for whoever has us for `to`."""
    pl.semaphore_signal(sem, 1, device_id=to)
    pl.semaphore_wait(sem, 1)


def tiled(dtype: Any, swizzle: int = 128) -> tuple[Any, ...]:
    """Shared memory as TMA and wgmma like it."""
    return (plgpu.TilingTransform((8, swizzle // jnp.dtype(dtype).itemsize)), plgpu.SwizzleTransform(swizzle))


def transpose(ref: Any, permutation: tuple[int, ...]) -> Any:
    return ref.transpose(permutation) if hasattr(ref, "transpose") else plgpu.transpose_ref(ref, permutation)


__all__ = [
    "Barrier", "FLOATS", "NARROW", "P", "PARAMS", "Program", "REGULAR", "SMEM", "SUBJECTS", "Subject", "WIDE", "data", "digest",
    "everyone", "fetch", "grid", "handshake", "i32", "kernel", "like", "line", "load_all", "logical", "me", "over", "place", "right", "signal_all",
    "subject", "tiled", "transpose",
]  # fmt: skip
