"""Kernels that talk within a host, in a job of two: two processes with four emulated devices each, which reach those of their own process only.

    python -m tests.suites.multi_gpu.hosts --process 0 --port 12345        # and --process 1

One line of JSON for each program: its name, and "right", or the error.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from typing import Any

PROCESSES, DEVICES = 2, 4

if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"
    os.environ["PJRT_NPROC"] = str(2 * DEVICES)

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax

import smalt
from tests.corpus.case import kernel

P = jax.sharding.PartitionSpec
X = np.arange(PROCESSES * DEVICES * 128, dtype=np.float32).reshape(-1, 1, 128)


def gather(
    x: Any, axis: str, device_id: Callable[[Any], Any] | None = None, more: Callable[[], Any] = lambda: 0.0, grid_names: tuple[str, ...] = ()
) -> Any:
    """All rows along an axis, on each device of it."""
    n = lax.axis_size(axis)
    at = device_id or (lambda i: {axis: i})

    def body(x: Any, o: Any, done: Any) -> None:
        me = lax.axis_index(axis)
        for i in range(n):
            to = lax.rem(me + i, jnp.int32(n))
            plgpu.remote_ref(o, at(to))[me] = x[0] + more()
            pl.semaphore_signal(done, device_id=at(to))
        pl.semaphore_wait(done, n)

    out = jax.ShapeDtypeStruct((n, *x.shape[1:]), x.dtype)
    return kernel(body, out, scratch_types=[plgpu.SemaphoreType.REGULAR], grid=(1,) * len(grid_names), grid_names=grid_names)(x)


def _in_a_branch() -> Any:
    """3 on the second host."""
    return lax.fori_loop(0, 3, lambda i, n: n + lax.cond(i >= 0, lambda: lax.axis_index("host"), lambda: jnp.int32(7)), jnp.int32(0))


def _own_host() -> Any:
    """The index along the grid's axis, of one step."""
    return lax.axis_index("host")


def run(shape: tuple[int, int], names: tuple[str, str], axis: str, f: Callable[[Any], Any], order: Any = None, more: Any = 0) -> Any:
    """(what this process has of the results, what they are to be): the sum, over the other axis, of rows along `axis`, and so much more."""
    devices = np.array(jax.devices()) if order is None else np.array(jax.devices())[order]
    mesh = jax.sharding.Mesh(devices.reshape(shape), names, axis_types=(jax.sharding.AxisType.Auto,) * 2)
    (other,) = set(names) - {axis}
    sharding = jax.sharding.NamedSharding(mesh, P(names))
    x = jax.make_array_from_callback(X.shape, sharding, lambda at: X[at])
    y = jax.jit(jax.shard_map(lambda x: lax.psum(f(x), other), mesh=mesh, in_specs=P(names), out_specs=P(names), check_vma=False))(x)
    want = X.reshape(*shape, 1, 128).sum(names.index(other)) + more
    return [np.asarray(s.data) for s in y.addressable_shards], want


def asks_only(x: Any) -> Any:
    """A kernel that talks to nobody may ask for its place in all of the mesh."""

    def body(x: Any, o: Any) -> None:
        o[...] = x[...] + lax.axis_index("host") * 1000 + lax.axis_index("x")

    return kernel(body, jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def _asks() -> Any:
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 4), ("host", "x"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    sharding = jax.sharding.NamedSharding(mesh, P(("host", "x")))
    x = jax.make_array_from_callback(X.shape, sharding, lambda at: X[at])
    y = jax.jit(jax.shard_map(asks_only, mesh=mesh, in_specs=P(("host", "x")), out_specs=P(("host", "x")), check_vma=False))(x)
    place = np.arange(8).reshape(8, 1, 1)
    want = X + place // 4 * 1000 + place % 4
    return [np.asarray(s.data)[0] for s in y.addressable_shards], want[4 * jax.process_index() :][:4]


PROGRAMS: dict[str, Callable[[], Any]] = {
    "along an axis of each host": lambda: run((2, 4), ("host", "x"), "x", lambda x: gather(x, "x")),
    "twice, and XLA's collectives between": lambda: run((2, 4), ("host", "x"), "x", lambda x: gather(gather(x, "x")[lax.axis_index("x")][None], "x")),
    "the axis first": lambda: run((4, 2), ("x", "host"), "x", lambda x: gather(x, "x"), [0, 4, 1, 5, 2, 6, 3, 7]),
    "an axis that is in part a host's": lambda: run((4, 2), ("rows", "x"), "x", lambda x: gather(x, "x")),
    "devices in another order": lambda: run((2, 4), ("host", "x"), "x", lambda x: gather(x, "x"), [2, 0, 3, 1, 7, 5, 6, 4]),
    "asks only": _asks,
    "asks for its host": lambda: run((2, 4), ("host", "x"), "x", lambda x: gather(x, "x", None, lambda: 2 * lax.axis_index("host")), more=2),
    "asks for its host, the axis first": lambda: run(
        (4, 2), ("x", "host"), "x", lambda x: gather(x, "x", None, lambda: lax.axis_index("host")), [0, 4, 1, 5, 2, 6, 3, 7], more=1
    ),
    "asks along an axis that is in part a host's": lambda: run(
        (4, 2), ("rows", "x"), "x", lambda x: gather(x, "x", None, lambda: lax.axis_index("rows") + 10 * lax.axis_index(("rows", "x"))),
        more=6 + 10 * (12 + 4 * np.arange(2.0)[:, None, None]),
    ),
    "asks in a branch of a loop": lambda: run((2, 4), ("host", "x"), "x", lambda x: gather(x, "x", None, _in_a_branch), more=3),
    "an axis of the grid of the same name": lambda: run((2, 4), ("host", "x"), "x", lambda x: gather(x, "x", grid_names=("host",), more=_own_host)),
    "refused: across hosts": lambda: run((2, 4), ("host", "x"), "host", lambda x: gather(x, "host")),
    "refused: all coordinates": lambda: run((2, 4), ("host", "x"), "x", lambda x: gather(x, "x", lambda i: (lax.axis_index("host"), i))),
    "refused: a position": lambda: run((2, 4), ("host", "x"), "x", lambda x: gather(x, "x", lambda i: (0, i))),
    "refused: an axis that is in part a host's": lambda: run((4, 2), ("rows", "x"), "rows", lambda x: gather(x, "rows")),
    "refused: a host in several places": lambda: run((4, 2), ("rows", "x"), "x", lambda x: gather(x, "x"), [0, 1, 4, 5, 2, 3, 6, 7]),
}


def judge(program: Callable[[], Any]) -> str:
    try:
        shards, want = program()
    except smalt.Error as e:
        return str(e)
    for i, shard in enumerate(shards):
        expected = want[i] if len(want) == len(shards) and shard.shape == want[i].shape else want
        if not np.array_equal(shard, expected):
            return f"wrong on device {i}: {shard.ravel()[::128]}, not {expected.ravel()[::128]}"
    return "right"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--process", type=int, required=True)
    parser.add_argument("--port", type=int, required=True)
    args = parser.parse_args()
    jax.distributed.initialize(f"localhost:{args.port}", PROCESSES, args.process)
    smalt.enable()
    for name, program in PROGRAMS.items():
        print(json.dumps([name, judge(program)]), flush=True)


if __name__ == "__main__":
    main()
