"""A matmul of one warpgroup that loads and two that multiply, by barriers whose phases the kernel counts itself.

    PYTHONPATH=jax_plugin:. python examples/pingpong_matmul.py [--size 4096]

* `warp_specialized`: both multiply one tile, its upper and its lower half. The operands have barriers of their own: each half of A is one
  consumer's, B is both consumers'.
* `ping_pong`: each multiplies tiles of its own, and they take turns: while one has the tensor cores, the other one stores its tile. The turns are
  made of named barriers or of mbarriers. (Without turns a consumer could wait for a phase of a slot that is two ahead, whose parity is that of
  the one before: the emulator tells.)

All waits have the phase that they wait for as an argument. A producer's first wait for an empty slot is for the phase before the first (1), which
is over.
"""

from __future__ import annotations

import argparse
import functools
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np

import smalt

TILE, K, CONSUMERS = 128, 64, 2
PRODUCER = CONSUMERS
#: Named barriers of the two consumers' turns: the numbers from 0 on are the compiler's.
TURN = 8
SWIZZLED = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))


def _store(acc: Any, rows: int, out_smem: Any, out: Any, row: Any, column: Any) -> None:
    """Through shared memory: the copy of the tile before has read it."""
    plgpu.wait_smem_to_gmem(0, wait_read_only=True)
    out_smem[...] = acc.astype(out.dtype)
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(out_smem, out.at[pl.ds(row, rows), pl.ds(column, TILE)])


def warp_specialized(a: jax.Array, b: jax.Array, slots: int = 4) -> jax.Array:
    (m, k), n = a.shape, b.shape[1]
    half, steps = TILE // CONSUMERS, k // K

    def body(a: Any, b: Any, out: Any, a_smem: Any, b_smem: Any, out_smem: Any, full_a: Any, empty_a: Any, full_b: Any, empty_b: Any) -> None:
        wg = jax.lax.axis_index("wg")
        row, column = jax.lax.axis_index("i") * TILE, jax.lax.axis_index("j") * TILE

        @pl.when(wg == PRODUCER)
        def produce() -> None:
            plgpu.set_max_registers(40, action="decrease")

            @pl.loop(0, steps)
            def step(i: Any) -> None:
                slot, phase = i % slots, (i // slots + 1) % 2
                at = pl.ds(i * K, K)
                smalt.mbarrier_wait(empty_b.at[slot], phase)
                smalt.expect_bytes(full_b.at[slot], K * TILE * 2)
                plgpu.copy_gmem_to_smem(b.at[at, pl.ds(column, TILE)], b_smem.at[slot], full_b.at[slot])
                for c in range(CONSUMERS):
                    mine = slot * CONSUMERS + c
                    smalt.mbarrier_wait(empty_a.at[mine], phase)
                    smalt.expect_bytes(full_a.at[mine], half * K * 2)
                    plgpu.copy_gmem_to_smem(a.at[pl.ds(row + c * half, half), at], a_smem.at[slot, c], full_a.at[mine])

        @pl.when(wg < CONSUMERS)
        def consume() -> None:
            plgpu.set_max_registers(232, action="increase")

            def multiply(acc: Any) -> Any:
                def release(i: Any) -> None:
                    smalt.mbarrier_arrive(empty_a.at[i % slots * CONSUMERS + wg], threads="warps")
                    smalt.mbarrier_arrive(empty_b.at[i % slots], threads="warps")

                @pl.loop(0, steps)
                def step(i: Any) -> None:
                    slot, phase = i % slots, i // slots % 2
                    smalt.mbarrier_wait(full_b.at[slot], phase)
                    smalt.mbarrier_wait(full_a.at[slot * CONSUMERS + wg], phase)
                    plgpu.wgmma(acc, a_smem.at[slot, wg], b_smem.at[slot])
                    plgpu.wgmma_wait(1)
                    pl.when(i > 0)(lambda: release(i - 1))

                return acc[...]

            product = pl.run_scoped(multiply, plgpu.ACC((half, TILE), jnp.float32))
            _store(product, half, out_smem.at[wg], out, row + wg * half, column)
            plgpu.wait_smem_to_gmem(0)

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((m, n), a.dtype),
        grid=(m // TILE, n // TILE),
        grid_names=("i", "j"),
        num_threads=CONSUMERS + 1,
        thread_name="wg",
        scratch_types=[
            plgpu.SMEM((slots, CONSUMERS, half, K), a.dtype, transforms=SWIZZLED),
            plgpu.SMEM((slots, K, TILE), b.dtype, transforms=SWIZZLED),
            plgpu.SMEM((CONSUMERS, half, TILE), a.dtype, transforms=SWIZZLED),
            plgpu.Barrier(num_arrivals=1, num_barriers=slots * CONSUMERS),
            plgpu.Barrier(num_arrivals=4, num_barriers=slots * CONSUMERS),
            plgpu.Barrier(num_arrivals=1, num_barriers=slots),
            plgpu.Barrier(num_arrivals=4 * CONSUMERS, num_barriers=slots),
        ],
    )(a, b)


def ping_pong(a: jax.Array, b: jax.Array, turns: str = "named", tiles: int = 4, slots: int = 4) -> jax.Array:
    """`tiles`: how many each consumer of a block multiplies."""
    (m, k), n = a.shape, b.shape[1]
    steps, across = k // K, n // TILE

    def body(a: Any, b: Any, out: Any, a_smem: Any, b_smem: Any, out_smem: Any, full: Any, empty: Any, turn: Any) -> None:
        wg, block = jax.lax.axis_index("wg"), jax.lax.axis_index("block")

        def corner(t: Any) -> tuple[Any, Any]:
            """Of the block's tile `t`; they go to the consumers in turn."""
            tile = block * tiles * CONSUMERS + t
            return tile // across * TILE, tile % across * TILE

        @pl.when(wg == PRODUCER)
        def produce() -> None:
            plgpu.set_max_registers(40, action="decrease")

            @pl.loop(0, tiles * CONSUMERS)
            def tile(t: Any) -> None:
                row, column = corner(t)

                @pl.loop(0, steps)
                def step(i: Any) -> None:
                    at = t * steps + i
                    slot = at % slots
                    smalt.mbarrier_wait(empty.at[slot], (at // slots + 1) % 2)
                    smalt.expect_bytes(full.at[slot], 2 * TILE * K * 2)
                    plgpu.copy_gmem_to_smem(a.at[pl.ds(row, TILE), pl.ds(i * K, K)], a_smem.at[slot], full.at[slot])
                    plgpu.copy_gmem_to_smem(b.at[pl.ds(i * K, K), pl.ds(column, TILE)], b_smem.at[slot], full.at[slot])

        @pl.when(wg < CONSUMERS)
        def consume() -> None:
            plgpu.set_max_registers(232, action="increase")
            # The other one's turn begins when it is told; consumer 0 is told at once, by consumer 1.
            threads = 128 * CONSUMERS

            def wait_for_turn(t: Any) -> None:
                if turns == "named":
                    for c in range(CONSUMERS):
                        pl.when(wg == c)(functools.partial(smalt.named_barrier_sync, TURN + c, threads))
                else:
                    smalt.mbarrier_wait(turn.at[wg], t % 2)

            def tell_the_other() -> None:
                if turns == "named":
                    for c in range(CONSUMERS):
                        pl.when(wg == c)(functools.partial(smalt.named_barrier_arrive, TURN + 1 - c, threads))
                else:
                    smalt.mbarrier_arrive(turn.at[1 - wg], threads="warps")

            pl.when(wg == 1)(tell_the_other)

            @pl.loop(0, tiles)
            def tile(t: Any) -> None:
                first = (t * CONSUMERS + wg) * steps

                def multiply(acc: Any) -> Any:
                    def release(at: Any) -> None:
                        smalt.mbarrier_arrive(empty.at[at % slots], threads="warps")

                    @pl.loop(0, steps)
                    def step(i: Any) -> None:
                        at = first + i
                        slot = at % slots
                        smalt.mbarrier_wait(full.at[slot], at // slots % 2)
                        plgpu.wgmma(acc, a_smem.at[slot], b_smem.at[slot])
                        plgpu.wgmma_wait(1)
                        pl.when(i > 0)(lambda: release(at - 1))

                    # All products are issued: the other one may begin.
                    pl.when((wg == 0) | (t + 1 < tiles))(tell_the_other)
                    plgpu.wgmma_wait(0)
                    release(first + steps - 1)
                    return acc[...]

                wait_for_turn(t)
                product = pl.run_scoped(multiply, plgpu.ACC((TILE, TILE), jnp.float32))
                row, column = corner(t * CONSUMERS + wg)
                _store(product, TILE, out_smem.at[wg], out, row, column)

            plgpu.wait_smem_to_gmem(0)

    blocks = (m // TILE) * across // (tiles * CONSUMERS)
    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((m, n), a.dtype),
        grid=(blocks,),
        grid_names=("block",),
        num_threads=CONSUMERS + 1,
        thread_name="wg",
        scratch_types=[
            plgpu.SMEM((slots, TILE, K), a.dtype, transforms=SWIZZLED),
            plgpu.SMEM((slots, K, TILE), b.dtype, transforms=SWIZZLED),
            plgpu.SMEM((CONSUMERS, TILE, TILE), a.dtype, transforms=SWIZZLED),
            plgpu.Barrier(num_arrivals=1, num_barriers=slots),
            plgpu.Barrier(num_arrivals=4, num_barriers=slots),
            plgpu.Barrier(num_arrivals=4, num_barriers=CONSUMERS),
        ],
    )(a, b)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=512)
    n = parser.parse_args().size
    smalt.enable()
    rng = np.random.default_rng(0)
    a, b = (jnp.asarray(rng.standard_normal((n, n)), jnp.float16) for _ in range(2))
    expected = np.asarray(a, np.float32) @ np.asarray(b, np.float32)
    tiles = next(t for t in (4, 2, 1) if (n // TILE) ** 2 % (t * CONSUMERS) == 0)
    variants = {"warp-specialised": warp_specialized} | {
        f"ping-pong, turns by {turns}": functools.partial(ping_pong, turns=turns, tiles=tiles) for turns in ("named", "mbarriers")
    }
    for name, f in variants.items():
        got = np.asarray(jax.jit(f)(a, b), np.float32)
        error = np.abs(got - expected).max()
        print(f"{name}: largest error {error:.3g} of values up to {np.abs(expected).max():.3g}")
        assert error <= 1e-3 * np.abs(expected).max()


if __name__ == "__main__":
    main()
