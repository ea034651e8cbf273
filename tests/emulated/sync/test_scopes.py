"""Which scope synchronisation has, where only the printed instructions show it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import smalt
from smalt import _native
from tests.corpus.case import EXACT, f32, kernel, like
from tests.suites.asynchrony.subject import describe

SMEM, Barrier, ClusterBarrier = plgpu.SMEM, plgpu.Barrier, plgpu.ClusterBarrier


def _exchange(look: Callable[..., Any], params: Any) -> Callable[..., Any]:
    """Each block stores to device memory and looks at what its peer stored."""

    def body(x, o, board, buf, bar, copied):
        i = lax.axis_index("c")
        board[i] = x[i] * 2
        plgpu.barrier_arrive(bar)
        plgpu.barrier_wait(bar)
        look(o.at[i], board.at[1 - i], buf, copied)

    scratch = (SMEM((128,), jnp.float32), ClusterBarrier(collective_axes=("c",)), Barrier())
    outs = (like((2, 128)), like((2, 128)))
    return lambda x: kernel(body, outs, *scratch, params=params, cluster=(2,), cluster_names=("c",))(x)


def _loads(o: Any, board: Any, buf: Any, copied: Any) -> None:
    o[...] = board[...]


def _copies(o: Any, board: Any, buf: Any, copied: Any) -> None:
    plgpu.copy_gmem_to_smem(board, buf, copied)
    plgpu.barrier_wait(copied)
    o[...] = buf[...]


def _does_not_look(o: Any, board: Any, buf: Any, copied: Any) -> None:
    o[...] = jnp.zeros((128,), jnp.float32)


@pytest.mark.parametrize("timeout", [0, 1_000_000])
@pytest.mark.parametrize("look", [_loads, _copies, _does_not_look])
def test_who_reads_its_peers_writes_acquires_them(look: Callable[..., Any], timeout: int) -> None:
    """Also through a bulk load, and with waits that time out; nobody else pays for the scope."""
    params = dataclasses.replace(EXACT, wait_timeout_ns=timeout)
    ptx = _native.compile(*describe(_exchange(look, params), (f32(2, 128),)), "sm_90a").ptx
    wide = look is not _does_not_look
    assert len(re.findall(r"mbarrier\.try_wait\.parity\.acquire\.cluster\.", ptx)) == wide
    assert len(re.findall(r"mbarrier\.arrive\.release\.cluster\.shared::cluster", ptx)) == 2 * wide
    assert ("%globaltimer" in ptx) == (timeout > 0)


def test_a_choice_that_reaches_a_scope_through_two_loops_diverges() -> None:
    """The warpgroup's index comes to the choice by way of two carries: its arms run at once, and cannot share memory."""

    def body(x, o):
        def fills(value: float) -> Callable[[], None]:
            def scope(buf):
                buf[...] = jnp.full((150, 256), value, jnp.float32)
                o[lax.axis_index("wg")] = buf[0]

            return lambda: pl.run_scoped(scope, SMEM((150, 256), jnp.float32), collective_axes="wg")

        def outer(_, p):
            def inner(_, choice):
                lax.cond(choice == 1, fills(1), fills(2))
                return p

            lax.fori_loop(0, 2, inner, 0)
            return lax.axis_index("wg")

        lax.fori_loop(0, 3, outer, 0)

    k = kernel(body, like((2, 256)), num_threads=2, thread_name="wg")
    with smalt.emulated("H100"), pytest.raises(smalt.Error, match="at most 232448 bytes"):
        k(np.zeros(4, np.float32))


#: How two warpgroups come by a number that they need not agree on; and a word of shared memory.
DIFFER: dict[str, Callable[[Any, Any], Any]] = {
    "the warpgroup's index": lambda x, count: lax.axis_index("wg"),
    "what lies at it": lambda x, count: x[lax.axis_index("wg")],
    "what may have changed": lambda x, count: x[0],
    "who comes first": lambda x, count: smalt.atomic_add(count.at[0], 1, order="relaxed"),
    "a branch": lambda x, count: lax.cond(x[0] > 1, lambda: 0, lambda: 1),
    "a text that looks at lanes": lambda x, count: jnp.max(smalt.inline_ptx("mov.u32 {0}, %tid.x;", like((128,), jnp.int32))) >> 7,
    "a count of turns": lambda x, count: lax.while_loop(lambda n: n < x[0], lambda n: n + 1, 0),
}


def _fills(choose: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Each warpgroup fills one of two arrays that do not fit beside each other."""

    def body(x, o, count):
        def fills(value: int) -> Callable[[], None]:
            def scope(buf):
                buf[...] = jnp.full((150, 256), value, jnp.int32)
                o[lax.axis_index("wg")] = buf[0]

            return lambda: pl.run_scoped(scope, SMEM((150, 256), jnp.int32), collective_axes="wg")

        lax.cond(choose(x, count) == 1, fills(1), fills(2))

    return kernel(body, like((2, 256), jnp.int32), SMEM((1,), jnp.int32), num_threads=2, thread_name="wg", grid=(2,), grid_names=("i",))


@pytest.mark.parametrize("how", DIFFER)
def test_arms_of_a_choice_that_warpgroups_need_not_agree_on_share_no_memory(how: str) -> None:
    with smalt.emulated("H100"), pytest.raises(smalt.Error, match="at most 232448 bytes"):
        smalt.inspect(_fills(DIFFER[how]), np.zeros(4, np.int32))


def test_arms_of_a_choice_of_the_block_share_memory() -> None:
    with smalt.emulated("H100"):
        (report,) = smalt.inspect(_fills(lambda x, count: lax.axis_index("i")), np.zeros(4, np.int32))
    assert report.smem_bytes < 200_000
