"""Barriers in every form that PTX has, by inline PTX, for the machine that there is: the emulator, or a GPU."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import numpy as np
import pytest
import smalt
from jax.experimental.pallas import mosaic_gpu as plgpu

from tests.suites.suite_barriers import F32, I32, is_refused, out, random, run

# ------------------------------------------------------------------------------------------ mbarriers

SEMANTICS = ["", ".acquire.cta", ".acquire.cluster", ".relaxed.cta", ".relaxed.cluster"]


@pytest.mark.parametrize("ask, by, space", list(itertools.product(["test_wait", "try_wait"], ["state", "parity"], [".shared", ".shared::cta", ""])))
@pytest.mark.parametrize("sem", SEMANTICS)
def test_waits_for_a_phase(sem: str, ask: str, by: str, space: str) -> None:
    """Each thread stores, arrives, waits, and reads what another one has stored; relaxed waits with a fence behind them. With a hint, too.
    By a shared address, or a generic one."""
    parity = ".parity" if by == "parity" else ""
    asked = "0" if parity else "s"

    def body(x: Any, o: Any, buffer: Any, *bars: Any) -> None:
        for bar, hint in zip(bars, ["", ", 1000", ", h"] if ask == "try_wait" else [""]):
            buffer[...] = x[...]
            fence = "fence.acquire.cluster;" if "relaxed" in sem else ""
            smalt.inline_ptx(
                f"""{{ .reg .b64 s, g; .reg .pred p; .reg .b32 h; mov.b32 h, 20; cvt.u64.u32 g, {{0}}; cvta.shared.u64 g, g; sub.s64 g, g, 8;
                mbarrier.arrive.release.cta{space}.b64 s, [{"{0}" if space else "g + 8"}];
                again: mbarrier.{ask}{parity}{sem}{space}.b64 p, [{"{0}" if space else "g+8"}], {asked}{hint};
                @!p bra again; {fence} }}""",
                (),
                bar,
            )
            o[...] = buffer[...][::-1]

    x = random((128,))
    scratch = [plgpu.SMEM((128,), I32), *(plgpu.Barrier(num_arrivals=128) for _ in range(3))]
    np.testing.assert_array_equal(run(body, out(128, I32), x, scratch=scratch), x[::-1])


# ------------------------------------------------------------------------------------------ the cluster's barrier

BLOCKS = 2


def exchanged(arrive: str, wait: str) -> tuple[Any, Any]:
    """What each block has of the other's after a rendezvous, and what it should."""

    def body(x: Any, o: Any, buffer: Any) -> None:
        block = jax.lax.axis_index("c")
        plgpu.cluster_ref(buffer, {"c": 1 - block})[...] = plgpu.layout_cast(x[block], plgpu.Layout.WG_STRIDED((128,), 1))
        smalt.inline_ptx(f"{arrive} {wait}")
        o[block] = buffer[...]
        smalt.inline_ptx("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;")

    x = random((BLOCKS, 128), F32)
    got = run(body, out(BLOCKS, 128, F32), x, scratch=[plgpu.SMEM((128,), F32)], cluster=(BLOCKS,), cluster_names=("c",))
    return got, x[::-1]


ARRIVALS = ["barrier.cluster.arrive", "barrier.cluster.arrive.release", "fence.acq_rel.cluster; barrier.cluster.arrive.relaxed"]
WAITS = ["barrier.cluster.wait", "barrier.cluster.wait.acquire"]


@pytest.mark.parametrize("arrive, wait, aligned", list(itertools.product(ARRIVALS, WAITS, ["", ".aligned"])))
def test_rendezvous_of_a_cluster(arrive: str, wait: str, aligned: str) -> None:
    got, expected = exchanged(f"{arrive}{aligned};", f"{wait}{aligned};")
    np.testing.assert_array_equal(got, expected)


LANES = ".reg .b32 l; .reg .pred p; mov.u32 l, %laneid; and.b32 l, l, 1; setp.eq.u32 p, l, 0;"


@pytest.mark.parametrize("wait", ["", "@p barrier.cluster.wait; @!p "], ids=["together", "apart"])
def test_lanes_arrive_by_themselves(wait: str) -> None:
    """Even lanes in one form, odd ones in another."""
    arrive = f"{LANES} @p barrier.cluster.arrive; @!p bra odd; bra done; odd: fence.acq_rel.cluster; barrier.cluster.arrive.relaxed; done:"
    got, expected = exchanged(arrive, f"{wait}barrier.cluster.wait.acquire;")
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("aligned", ["", ".aligned"])
def test_a_relaxed_arrival_orders_nothing(aligned: str) -> None:
    """The emulator says so; a GPU, where nobody looks, is not asked."""
    is_refused(lambda: exchanged(f"barrier.cluster.arrive.relaxed{aligned};", f"barrier.cluster.wait{aligned};"), "shared memory")


MISUSES = {
    "no arrival": ("", "barrier.cluster.wait;", "barrier.cluster.wait with no arrive before it"),
    "two arrivals": ("barrier.cluster.arrive; barrier.cluster.arrive;", "", "barrier.cluster.arrive twice"),
    "a wait before the others": (f"{LANES} @p barrier.cluster.arrive; @p barrier.cluster.wait;", "", "before all lanes of the warp have arrived"),
}


@pytest.mark.parametrize("name", MISUSES)
def test_misuses_of_a_clusters_barrier(name: str) -> None:
    arrive, wait, expected = MISUSES[name]
    is_refused(lambda: exchanged(arrive, wait), expected)




def test_an_aligned_arrival_of_some_lanes() -> None:
    with pytest.raises(smalt.InvalidKernel, match="lanes that have parted execute what the warp does together"):
        exchanged(f"{LANES} @p barrier.cluster.arrive.aligned;", "")
