"""Barriers as primitives: named ones, and mbarriers whose phases, arrivals and bytes the author counts."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from smalt import _versions
from smalt._errors import InvalidKernel
from smalt._primitives import texts
from smalt._primitives.texts import inline_ptx, run_ptx


def named_barrier_sync(barrier_id: Any, num_threads: int, *, among: range | None = None) -> None:
    """Arrives at one of the block's 16 named barriers, and waits until `num_threads` threads have (`bar.sync`).

    All threads of the executing warpgroup (of the warp in a warp region) arrive. What any of those who arrived had stored before is
    seen by those who waited. The barrier is then free for another round.

    Args:
        barrier_id: A number, or an integer scalar that the kernel computes. 0 is the compiler's, and so are as many behind it as there
            are warpgroups; up to 15 the others are yours.
        num_threads: How many threads arrive in a round, those that wait and those that do not: a multiple of 32.
        among: Of a number that is computed, all that it may be: `range(4, 8)`. The emulator reports others.
    """
    _named_barrier("named_barrier_sync", "bar.sync", barrier_id, num_threads, among)


def named_barrier_arrive(barrier_id: Any, num_threads: int, *, among: range | None = None) -> None:
    """Arrives at a named barrier without waiting (`bar.arrive`); the arguments are those of `named_barrier_sync`."""
    _named_barrier("named_barrier_arrive", "bar.arrive", barrier_id, num_threads, among)


def _named_barrier(name: str, instruction: str, barrier_id: Any, num_threads: Any, among: Any) -> None:
    if not _is_known(num_threads):
        raise InvalidKernel(
            f"smalt.{name}: `num_threads`\n  expected: a number that is known when the kernel is compiled\n  got: {type(num_threads).__name__}"
            "\n  remedy: branch on what it depends on (pl.when, jax.lax.cond), with a call in each arm"
        )
    if num_threads < 32 or num_threads % 32 or num_threads > 1024:
        raise InvalidKernel(
            f"smalt.{name}: `num_threads`\n  expected: a multiple of 32, at most 1024: warps arrive whole\n  got: {num_threads}"
            "\n  remedy: 128 for each warpgroup that takes part"
        )
    _check_among(name, among)
    if _is_known(barrier_id):
        if not 0 <= barrier_id < 16:
            raise InvalidKernel(f"smalt.{name}: `barrier_id`\n  expected: 0 to 15, beside the compiler's\n  got: {barrier_id}")
        if among is not None and barrier_id not in among:
            raise InvalidKernel(f"smalt.{name}: `barrier_id`\n  expected: one among {among}\n  got: {barrier_id}")
        inline_ptx(f"{instruction} {int(barrier_id)}, {int(num_threads)};")
        return
    if isinstance(barrier_id, (bool, float, str)) or barrier_id is None:
        raise InvalidKernel(f"smalt.{name}: `barrier_id`\n  expected: an integer\n  got: {barrier_id!r}")
    number = texts.operand(barrier_id)
    if number.ndim or not jax.numpy.issubdtype(number.dtype, jax.numpy.integer):
        raise InvalidKernel(
            f"smalt.{name}: `barrier_id`\n  expected: an integer scalar, which all threads of the warpgroup (or warp) agree on"
            f"\n  got: {number.dtype}[{','.join(map(str, number.shape))}]"
        )
    if among is None:
        raise InvalidKernel(
            f"smalt.{name}: a `barrier_id` that the kernel computes\n  expected: `among`, all numbers that it may be: the compiler has"
            " barriers of its own\n  got: no `among`\n  remedy: among=range(first, last + 1), or branch on the number (pl.when), with a call in each arm"
        )
    run_ptx(f"{instruction} {{0}}, {int(num_threads)};", (), number.astype(np.int32), barriers=(among.start, among.stop - 1), called=f"smalt.{name}")


def _is_known(n: Any) -> bool:
    return isinstance(n, (int, np.integer)) and not isinstance(n, bool)


def _check_among(name: str, among: Any) -> None:
    if among is not None and not (isinstance(among, range) and among.step == 1 and len(among) and 0 < among.start and among.stop <= 16):
        raise InvalidKernel(
            f"smalt.{name}: `among`\n  expected: a range of barriers without gaps, between 1 and 15\n  got: {among!r}"
            "\n  remedy: range(first, last + 1)"
        )


# ------------------------------------------------------------------------------------------ mbarriers

#: PTX's names of the scope of a barrier's users, and the descriptor's.
_SCOPES = {None: None, "cta": "block", "cluster": "cluster"}

#: Most pending arrivals of an mbarrier, and most bytes of its transaction count (PTX ISA).
_MAX_COUNT = (1 << 20) - 1


def _of_barrier(name: str, called: str | None = None) -> Any:
    primitive = texts.new(name, called)

    def abstract_eval(barrier: Any, *_: Any, **__: Any) -> Any:
        return (), _versions.effects_of_memory([barrier])

    primitive.def_effectful_abstract_eval(abstract_eval)
    return primitive


mbarrier_arrive_p = _of_barrier("mbarrier_arrive")
mbarrier_expect_p = _of_barrier("mbarrier_expect", "expect_bytes")
mbarrier_wait_p = _of_barrier("mbarrier_wait")


def mbarrier_wait(barrier: Any, phase: Any, *, order: str = "acquire", scope: str | None = None) -> None:
    """Waits until the phase of parity `phase` of a `plgpu.Barrier` is over.

    Phases are counted from 0. Who waits for the first one passes 0, for the second 1, for the third 0 again; 1 before any phase is over
    goes on at once. `plgpu.barrier_wait` counts by itself, of its own waits only: the two may be used on one barrier.

    All threads of the executing warpgroup wait (in a warp region, those of the warp).

    Args:
        barrier: One barrier: `barriers.at[i]` of several.
        phase: An integer; its lowest bit counts.
        order: "acquire": what threads stored before they arrived is visible behind it. "relaxed": nothing is, until a fence (`smalt.fence`).
        scope: "cta", "cluster": their scope. By default the block, and for a `plgpu.ClusterBarrier` the cluster where
            blocks read what others of it stored.
    """
    ordered = _order("mbarrier_wait", order, "acquire", scope)
    _bind("mbarrier_wait", mbarrier_wait_p, barrier, "phase", phase, (None, None), **ordered)


def mbarrier_arrive(barrier: Any, count: Any = 1, *, threads: str = "one", order: str = "release", scope: str | None = None) -> None:
    """Arrives `count` times on a `plgpu.Barrier` whose arrivals the author counts.

    The barrier's `num_arrivals` is how many arrivals end a phase, from any thread: each call of this adds `count` (for every thread
    with `threads="all"`, for every warp with `threads="warps"`), each `plgpu.barrier_arrive` and each copy that completes on it 1.

    Args:
        barrier: One barrier, or another block's (`plgpu.cluster_ref`).
        count: How many arrivals.
        threads: "one": the threads of the executing warpgroup (of the warp in a warp region) pass a barrier, and one of them arrives. "warps": one
            thread of each warp arrives, `count` times, so that a warpgroup arrives four times that. "all": each of its 128 threads does.
        order: "release": what was done before is seen by those who wait. "relaxed": nothing is, but what a fence (`smalt.fence`)
            before it releases.
        scope: "cta", "cluster": the scope of the barrier's users.
    """
    ordered = _order("mbarrier_arrive", order, "release", scope)
    if threads not in ("one", "warps", "all"):
        raise InvalidKernel(f"smalt.mbarrier_arrive: `threads`\n  expected: 'one', 'warps' or 'all'\n  got: {threads!r}")
    by = None if threads == "one" else threads
    _bind("mbarrier_arrive", mbarrier_arrive_p, barrier, "count", count, (1, _MAX_COUNT), by=by, **ordered)


def expect_bytes(barrier: Any, nbytes: Any, *, arrive: bool = True) -> None:
    """Makes a `plgpu.Barrier` expect `nbytes` bytes of copies before its phase is over, and arrives.

    Copies that complete on a barrier of which the kernel calls this announce nothing themselves, and do not arrive: all of their bytes
    are the author's to announce.

    Args:
        barrier: One barrier, or another block's (`plgpu.cluster_ref`).
        nbytes: The bytes of all copies of the phase, or of some: calls add up.
        arrive: Whether it is one of the arrivals that the phase counts, too.
    """
    arrives = None if arrive else False
    _bind("expect_bytes", mbarrier_expect_p, barrier, "nbytes", nbytes, (0, _MAX_COUNT), arrives=arrives)


def _order(name: str, order: str, default: str, scope: str | None) -> dict[str, Any]:
    if order not in (default, "relaxed"):
        raise InvalidKernel(f"smalt.{name}: `order`\n  expected: {default!r} or 'relaxed'\n  got: {order!r}")
    if scope not in _SCOPES:
        raise InvalidKernel(f"smalt.{name}: `scope`\n  expected: 'cta', 'cluster' or None\n  got: {scope!r}")
    return {"relaxed": True if order == "relaxed" else None, "scope": _SCOPES[scope]}


def _bind(name: str, primitive: Any, barrier: Any, what: str, number: Any, bounds: tuple[Any, Any], **attrs: Any) -> None:
    ref, chain = _versions.split_ref(barrier)
    if chain is None:
        raise InvalidKernel(
            f"smalt.{name} of something that is no barrier\n  expected: a plgpu.Barrier of the kernel's scratch\n  got: {type(barrier).__name__}"
        )
    low, high = bounds
    is_known = isinstance(number, (int, np.integer)) and not isinstance(number, bool)
    if is_known and low is not None and not low <= number <= high:
        raise InvalidKernel(f"smalt.{name}: `{what}`\n  expected: {low} to {high}\n  got: {number}")
    number = texts.operand(np.int32(number & 1 if low is None else number) if is_known else number)
    if number.ndim or not jax.numpy.issubdtype(number.dtype, jax.numpy.integer):
        raise InvalidKernel(f"smalt.{name}: `{what}`\n  expected: an integer\n  got: {number.dtype}[{','.join(map(str, number.shape))}]")
    leaves, tree = jax.tree.flatten(chain)
    primitive.bind(ref, number, *leaves, transforms_tree=tree, **attrs)
