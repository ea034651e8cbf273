"""Kernels whose waits have a limit: each waits for an arrival that comes where `go` is 1, and gives up where it is 0.

`python -m tests.suites.timeouts CASE [rounds]` runs one on the machine that there is, in turns with what gives up.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import smalt

from tests.corpus.case import kernel, like
from tests.machine import ON_GPU, enabled

I32, F32, F16 = jnp.int32, jnp.float32, jnp.float16
#: A wait of a block that comes takes microseconds; in the emulator an instruction counts as a nanosecond.
LIMIT_NS = 20_000_000
PARAMS = smalt.CompilerParams(fp_contract=False, wait_timeout_ns=LIMIT_NS)
SWIZZLED = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
TWO = {"num_threads": 2, "thread_name": "wg"}
PAIR = {"cluster": (2,), "cluster_names": ("c",)}


@dataclasses.dataclass(frozen=True)
class Case:
    body: Callable[..., None]
    x: Any
    expected: Any
    scratch: tuple[Any, ...]
    launch: dict[str, Any]

    def call(self, params: Any = PARAMS) -> Any:
        """Of `go` and x."""
        return kernel(self.body, like(self.expected.shape, self.expected.dtype), *self.scratch, params=params, **self.launch)

    def places(self) -> list[str]:
        """Of the waits that may give up."""
        lines, first = inspect.getsourcelines(self.body)
        return [f"{__file__}:{i}" for i, line in enumerate(lines, first) if "# LATE" in line]


CASES: dict[str, Case] = {}


def case(x: Any, expected: Any, *scratch: Any, **launch: Any) -> Callable[[Any], Any]:
    def register(body: Any) -> Any:
        CASES[body.__name__] = Case(body, x, expected, scratch, launch)
        return body

    return register


def integers(*shape: int) -> Any:
    return np.random.default_rng(0).integers(-1000, 1000, shape).astype(np.int32)


def halves(*shape: int) -> Any:
    return np.random.default_rng(0).integers(-4, 5, shape).astype(np.float16)


WORDS, ROWS, TILE = integers(128), integers(2, 128), integers(128, 128)
SQUARE = halves(64, 64)
MANY = 2000


@case(WORDS, 2 * WORDS, plgpu.Barrier())
def barrier(go: Any, x: Any, o: Any, bar: Any) -> None:
    pl.when(go[0] > 0)(lambda: plgpu.barrier_arrive(bar))
    plgpu.barrier_wait(bar)  # LATE
    o[...] = 2 * x[...]


@case(ROWS, ROWS[::-1], plgpu.SMEM((2, 128), I32), plgpu.Barrier(num_barriers=2), **TWO)
def warpgroups(go: Any, x: Any, o: Any, rows: Any, bars: Any) -> None:
    """One gives up, and the other one waits for it."""
    wg = jax.lax.axis_index("wg")
    rows[wg] = x[wg]

    @pl.when((wg == 0) | (go[0] > 0))
    def _() -> None:
        plgpu.barrier_arrive(bars.at[wg])

    plgpu.barrier_wait(bars.at[1 - wg])  # LATE
    o[wg] = rows[1 - wg]


@case(WORDS, 3 * WORDS, plgpu.SMEM((128,), I32), plgpu.Barrier())
def warp(go: Any, x: Any, o: Any, kept: Any, bar: Any) -> None:
    """One warp gives up, and the other three stand at the warpgroup's barrier behind the region."""

    def each() -> None:
        w = jax.lax.axis_index("warp")

        @pl.when(w == 1)
        def _() -> None:
            pl.when(go[0] > 0)(lambda: plgpu.barrier_arrive(bar))
            plgpu.barrier_wait(bar)  # LATE
            kept[...] = x[...]

    pl.core_map(plgpu.WarpMesh(axis_name="warp"))(each)
    o[...] = 3 * kept[...]


@case(ROWS, ROWS + 1, grid=(2,), grid_names=("i",))
def semaphore(go: Any, x: Any, o: Any) -> None:
    """A block waits for another one's signal; three warps stand at the warpgroup's barrier meanwhile."""
    i = jax.lax.axis_index("i")
    done = pl.get_global(plgpu.SemaphoreType.REGULAR)

    @pl.when((i == 1) & (go[0] > 0))
    def _() -> None:
        pl.semaphore_signal(done)

    @pl.when(i == 0)
    def _() -> None:
        pl.semaphore_wait(done)  # LATE

    o[i] = x[i] + 1


@case(ROWS, ROWS[::-1], plgpu.SMEM((128,), I32), plgpu.Barrier(), plgpu.ClusterBarrier(collective_axes=(("c",),)), **PAIR)
def cluster(go: Any, x: Any, o: Any, row: Any, loaded: Any, bar: Any) -> None:
    """A block of a cluster waits for the other one, which gives up for another reason."""
    c = jax.lax.axis_index("c")

    @pl.when((c == 0) | (go[0] > 0))
    def _() -> None:
        plgpu.copy_gmem_to_smem(x.at[1 - c], row, loaded)

    plgpu.barrier_wait(loaded)  # LATE
    plgpu.barrier_arrive(bar)
    plgpu.barrier_wait(bar)  # LATE
    o[c] = row[...]


@case(TILE, TILE, plgpu.SMEM((128, 128), I32), plgpu.Barrier(), plgpu.Barrier())
def loads_in_flight(go: Any, x: Any, o: Any, tile: Any, loaded: Any, bar: Any) -> None:
    """Nobody ever waits for the loads of who gives up."""
    plgpu.copy_gmem_to_smem(x, tile, loaded)
    pl.when(go[0] > 0)(lambda: plgpu.barrier_arrive(bar))
    plgpu.barrier_wait(bar)  # LATE
    plgpu.barrier_wait(loaded)
    plgpu.copy_smem_to_gmem(tile, o)
    plgpu.wait_smem_to_gmem(0)


@case(np.tile(ROWS[:, None], (1, 64, 1)), np.tile(ROWS[:, None], (1, 64, 1)), plgpu.SMEM((64, 128), I32), plgpu.Barrier(), plgpu.Barrier(), **PAIR)
def multicast_in_flight(go: Any, x: Any, o: Any, tile: Any, loaded: Any, bar: Any) -> None:
    """As before, into both blocks of a cluster."""
    c = jax.lax.axis_index("c")
    plgpu.copy_gmem_to_smem(x.at[0], tile, loaded, collective_axes="c")
    pl.when((c == 1) | (go[0] > 0))(lambda: plgpu.barrier_arrive(bar))
    plgpu.barrier_wait(bar)  # LATE
    plgpu.barrier_wait(loaded)

    @pl.when(c == 0)
    def _() -> None:
        plgpu.copy_smem_to_gmem(tile, o.at[0])
        plgpu.wait_smem_to_gmem(0)

    plgpu.copy_gmem_to_smem(x.at[1], tile, loaded)
    plgpu.barrier_wait(loaded)

    @pl.when(c == 1)
    def _() -> None:
        plgpu.copy_smem_to_gmem(tile, o.at[1])
        plgpu.wait_smem_to_gmem(0)


@case(WORDS, WORDS, plgpu.SMEM((128,), I32), plgpu.Barrier())
def stores_in_flight(go: Any, x: Any, o: Any, row: Any, bar: Any) -> None:
    row[...] = x[...]
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(row, o)
    pl.when(go[0] > 0)(lambda: plgpu.barrier_arrive(bar))
    plgpu.barrier_wait(bar)  # LATE
    plgpu.wait_smem_to_gmem(0)


@case(
    SQUARE,
    (SQUARE.astype(np.float32) @ SQUARE.astype(np.float32)),
    plgpu.SMEM((64, 64), F16, transforms=SWIZZLED),
    plgpu.ACC((64, 64), F32),
    plgpu.Barrier(),
    plgpu.Barrier(),
)
def products_in_flight(go: Any, x: Any, o: Any, tile: Any, acc: Any, loaded: Any, bar: Any) -> None:
    plgpu.copy_gmem_to_smem(x, tile, loaded)
    plgpu.barrier_wait(loaded)
    plgpu.wgmma(acc, tile, tile)
    pl.when(go[0] > 0)(lambda: plgpu.barrier_arrive(bar))
    plgpu.barrier_wait(bar)  # LATE
    plgpu.wgmma_wait(0)
    o[...] = acc[...]


@case(ROWS, ROWS + 1, plgpu.Barrier(), grid=(2,), grid_names=("i",))
def polls(go: Any, x: Any, o: Any, bar: Any) -> None:
    """A block polls for what another one would do that gives up."""
    i = jax.lax.axis_index("i")
    done = pl.get_global(plgpu.SemaphoreType.REGULAR)

    @pl.when(i == 0)
    def _() -> None:
        pl.when(go[0] > 0)(lambda: plgpu.barrier_arrive(bar))
        plgpu.barrier_wait(bar)  # LATE
        pl.semaphore_signal(done)

    @pl.when(i == 1)
    def _() -> None:
        jax.lax.while_loop(lambda n: n == 0, lambda _: pl.semaphore_read(done), jnp.int32(0))

    o[i] = x[i] + 1


@case(ROWS, ROWS * 2, plgpu.Barrier(), **TWO)
def endless(go: Any, x: Any, o: Any, bar: Any) -> None:
    """A warpgroup gives up, and the other one is in a loop without an end that waits for nobody."""
    wg = jax.lax.axis_index("wg")

    @pl.when(wg == 0)
    def _() -> None:
        pl.when(go[0] > 0)(lambda: plgpu.barrier_arrive(bar))
        plgpu.barrier_wait(bar)  # LATE

    @pl.when(wg == 1)
    def _() -> None:
        jax.lax.while_loop(lambda n: (n < 3) | (go[0] == 0), lambda n: (n + 1) % 1000, jnp.int32(0))

    o[wg] = x[wg] * 2


@case(integers(MANY, 128), integers(MANY, 128) + 5, plgpu.Barrier(), grid=(MANY,), grid_names=("i",))
def many_blocks(go: Any, x: Any, o: Any, bar: Any) -> None:
    """Those that have not begun when one gives up do not wait any more: a limit for each wave would take long."""
    i = jax.lax.axis_index("i")
    pl.when((go[0] > 0))(lambda: plgpu.barrier_arrive(bar))
    plgpu.barrier_wait(bar)  # LATE
    o[i] = x[i] + 5


@case(ROWS, ROWS - 1, plgpu.Barrier(), **TWO)
def register_counts(go: Any, x: Any, o: Any, bar: Any) -> None:
    """A warpgroup waits for registers that another one has yet to give away, which gives up before."""
    wg = jax.lax.axis_index("wg")

    @pl.when(wg == 0)
    def _() -> None:
        pl.when(go[0] > 0)(lambda: plgpu.barrier_arrive(bar))
        plgpu.barrier_wait(bar)  # LATE
        plgpu.set_max_registers(24, action="decrease")
        o[0] = x[0] - 1

    @pl.when(wg == 1)
    def _() -> None:
        plgpu.set_max_registers(240, action="increase")
        o[1] = x[1] - 1


def go(on: bool) -> Any:
    return np.full(128, on, np.int32)


def is_right(case: Case, f: Any) -> None:
    np.testing.assert_array_equal(np.asarray(f(go(True), case.x)), case.expected)


def gives_up(case: Case, f: Any) -> smalt.Timeout:
    """The error of one that does."""
    try:
        jax.block_until_ready(f(go(False), case.x))
    except smalt.Timeout as error:
        # Of a deadlock the emulator names all who wait, and one of them as where it is.
        said = error.where if ON_GPU else str(error)
        if not any(place in (said or "") for place in case.places()):
            raise AssertionError(f"none of {case.places()}: {said}") from error
        return error
    raise AssertionError("no error")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.suites.timeouts", description=__doc__)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("rounds", type=int, nargs="?", default=1)
    args = parser.parse_args()
    case = CASES[args.case]
    other = CASES["products_in_flight" if args.case != "products_in_flight" else "barrier"]
    with enabled():
        f, another = jax.jit(case.call()), jax.jit(other.call(smalt.CompilerParams(fp_contract=False)))
        is_right(case, f)
        for _ in range(args.rounds):
            error = gives_up(case, f)
            is_right(case, f)
            is_right(other, another)
    print(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
