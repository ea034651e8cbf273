"""What only shows in the long run: `python -m tests.suites.multi_gpu.endurance [--rounds N] [--part NAME]`, on GPUs or emulated devices; with
`--processes N` on the GPUs of N processes.

`many`: exchanges in a loop, a million if asked for, whose sum is known. `replays`: graphs that are replayed with other buffers. `late`: a
device that starts a second after its peers. `absent` and `unsignalled`: a device that never launches the kernel, or never signals; the error
names it, and where the devices are of one process, they go on.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

import smalt
from tests.suites.multi_gpu import processes
from tests.suites.multi_gpu.processes import fetch, place
from tests.suites.multi_gpu.suite import kernel

SHAPE = (128,)
#: Whose kernels are queued and recorded.
FREE = smalt.CompilerParams(fp_contract=False)


def mesh() -> Any:
    return jax.sharding.Mesh(np.array(jax.devices()), ("x",))


def sharded(f: Any) -> Any:
    return jax.shard_map(f, mesh=mesh(), in_specs=P("x"), out_specs=P("x"), check_vma=False)


def rows() -> Any:
    n = len(jax.devices())
    return place(np.arange(n * SHAPE[0], dtype=np.int32), mesh(), P("x"))


def next_one(x: Any, **params: Any) -> Any:
    """The neighbour's row, plus one."""

    def body(x: Any, o: Any, done: Any) -> None:
        there = lax.rem(lax.axis_index("x") + 1, lax.axis_size("x"))
        plgpu.remote_ref(o, there)[...] = x[...] + 1
        pl.semaphore_signal(done, 1, device_id=there)
        pl.semaphore_wait(done)

    out = jax.ShapeDtypeStruct(SHAPE, jnp.int32)
    return kernel(body, out, plgpu.SemaphoreType.REGULAR, **params)(x)


def many(rounds: int) -> str:
    n, x = len(jax.devices()), rows()
    per = min(rounds, 1000)
    program = jax.jit(sharded(lambda x: lax.fori_loop(0, per, lambda _, x: next_one(x, params=FREE), x)))
    start = time.perf_counter()
    for _ in range(rounds // per):
        x = program(x)
    x = fetch(x)
    seconds = time.perf_counter() - start
    done = rounds // per * per
    expected = np.roll(fetch(rows()).reshape(n, -1), done % n, axis=0).reshape(-1) + done
    np.testing.assert_array_equal(x, expected)
    return f"{done} exchanges, {seconds / done * 1e6:.1f} us each"


def replays(rounds: int) -> str:
    """Chains of kernels, which XLA records and replays, on buffers that move: others come and go between."""
    n = len(jax.devices())
    def next_free(x: Any) -> Any:
        return next_one(x, params=FREE)

    program = jax.jit(sharded(lambda x: next_free(next_free(next_free(next_free(x) * 2) - 3))))
    random = np.random.default_rng(0)
    kept: list[Any] = []
    places: set[int] = set()
    for _ in range(rounds):
        x = random.integers(-1000, 1000, (n * SHAPE[0],), dtype=np.int32)
        placed = place(x, mesh(), P("x"))
        y = program(placed)
        kept.append((placed, y, jnp.zeros((int(random.integers(1, 100_000)),))))
        if len(kept) > 20:
            del kept[int(random.integers(len(kept)))]
        places.add(placed.addressable_shards[0].data.unsafe_buffer_pointer())
        expected = np.roll(x.reshape(n, -1), 4, axis=0).reshape(-1)
        np.testing.assert_array_equal(fetch(y), (expected + 1) * 2 + 1 - 3 + 2)
    return f"{rounds} runs of 4 kernels, inputs at {len(places)} addresses"


def late(rounds: int) -> str:
    """Device 1 is busy before its kernel; everybody waits for it."""
    n, x = len(jax.devices()), rows()

    def busy(x: Any) -> Any:
        a = jnp.ones((64, 64), jnp.float32) + x[0].astype(jnp.float32) * 0
        a = lax.fori_loop(0, rounds, lambda _, a: a @ a * (1 / 64), a)
        return x + (a[0, 0] * 0).astype(jnp.int32)

    def program(x: Any) -> Any:
        x = lax.cond(lax.axis_index("x") == 1, busy, lambda x: x, x)
        return next_one(x)

    run = jax.jit(sharded(program))
    jax.block_until_ready(run(x))
    start = time.perf_counter()
    y = jax.block_until_ready(run(x))
    seconds = time.perf_counter() - start
    np.testing.assert_array_equal(fetch(y), np.roll(fetch(x).reshape(n, -1), 1, axis=0).reshape(-1) + 1)
    return f"one device came {seconds:.2f} s late"


def reported(program: Any, right: Any, waits: int, *parts: str) -> str:
    """The error of a program in which device `waits` (or more) does not end where its second argument is 0; `parts`: what it has to say. Where it is
    1 it does what `right` does, before and after the error.
    """
    n, x = len(jax.devices()), rows()
    go = [place(np.full(n, on, np.int32), mesh(), P("x")) for on in (0, 1)]
    run = jax.jit(sharded(program))
    if jax.process_count() == 1:
        for _ in range(10 if jax.default_backend() == "gpu" else 1):
            np.testing.assert_array_equal(fetch(run(x, go[1])), right(fetch(x).reshape(n, -1)).reshape(-1))
            said = error_of(run, (x, go[0]), waits, *parts)
            np.testing.assert_array_equal(fetch(run(x, go[1])), right(fetch(x).reshape(n, -1)).reshape(-1))
        return said
    return error_of(run, (x, go[0]), waits, *parts)


def error_of(run: Any, args: Any, waits: int, *parts: str) -> str:
    if all(d.id != jax.devices()[waits].id for d in jax.local_devices()):
        jax.block_until_ready(run(*args))
        return "another process waits"
    try:
        jax.block_until_ready(run(*args))
    except smalt.Error as e:
        text = str(e)
        missing = [part for part in parts if part not in text]
        if missing:
            raise AssertionError(f"the error lacks {missing}: {text}") from e
        return text.split("\n")[0]
    raise AssertionError("no error")


def absent(_: int) -> str:
    params = smalt.CompilerParams(wait_timeout_ns=500_000_000)

    def program(x: Any, go: Any) -> Any:
        return lax.cond((lax.axis_index("x") != 1) | (go[0] > 0), lambda x: next_one(x, params=params), lambda x: x, x)

    said = "did not come" if jax.default_backend() == "gpu" else "have not come"
    return reported(program, lambda x: np.roll(x, 1, axis=0) + 1, 0, "device 1 of", said)


def unsignalled(_: int) -> str:
    params = smalt.CompilerParams(wait_timeout_ns=500_000_000)

    def body(x: Any, go: Any, o: Any, done: Any) -> None:
        me, n = lax.axis_index("x"), lax.axis_size("x")
        o[...] = x[...]

        @pl.when((me != 0) | (go[0] > 0))
        def _() -> None:
            pl.semaphore_signal(done, 1, device_id=lax.rem(me + 1, n))

        pl.semaphore_wait(done)  # device 1 is signalled by nobody

    out = jax.ShapeDtypeStruct(SHAPE, jnp.int32)
    call = kernel(body, out, plgpu.SemaphoreType.REGULAR, params=params)
    return reported(call, lambda x: x, 1, "endurance.py:", "semaphore" if jax.default_backend() == "gpu" else "deadlock")


PARTS = {"many": many, "replays": replays, "late": late, "absent": absent, "unsignalled": unsignalled}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.suites.multi_gpu.endurance", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--part", action="append", choices=PARTS)
    processes.add_arguments(parser)
    args = parser.parse_args()
    if args.processes > 1 and not args.port:
        own = [sys.executable, "-m", "tests.suites.multi_gpu.endurance", "--rounds", str(args.rounds)]
        outputs = [processes.together([*own, "--part", part], args.processes, args.share_gpus) for part in args.part or PARTS]
        print("\n".join(text for _, text in outputs))
        return sum(code != 0 for code, _ in outputs)
    if args.processes > 1:
        processes.join(args)
    for name in args.part or PARTS:
        with smalt.enabled(True):
            print(f"{name}: {PARTS[name](args.rounds)}", flush=True)
    return 0


if __name__ == "__main__":
    processes.run(main)
