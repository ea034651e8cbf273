"""Random litmus tests: what the emulator's checker says of words in shared and global memory against what the memory model says.

Threads of one or two clusters take turns, one access or fence a turn, in an order that the program fixes by relaxed polls. So it is known
which store each load sees, and PTX's base causality order is a graph (`is_race`), which shares nothing with the checker's clocks: program order,
and an edge from each release pattern to each acquire pattern that observes it, where each one's scope includes the other's thread. The
program has a race if two accesses to a word of data, one of them a store, are not ordered; and if two stores (or atomics) to a word are not, of which
one's scope leaves out the other's thread.

Where the checker is known to be lenient, so is the graph: in global memory the scope of a block is that of its cluster, polls race with nothing, a
cluster that has polled a word knows of the store, and who has learnt of a fence knows of the relaxed stores to words behind it; in shared memory only
patterns have scopes.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np

import smalt
from tests.corpus.case import REFS_AS_ARGUMENTS, kernel
from tests.fuzz.bits import keep
from tests.fuzz.grammar import Grammar
from tests.fuzz.outcome import Outcome

BLOCKS, WARPGROUPS = 2, 2
#: Words of each block, and of global memory: data, then words by which threads signal each other; block 0's and global memory's then have the turn.
DATA, WORDS = 2, 2
SCOPES = ("cta", "cluster", "gpu")

#: Words from one to the next: each has a line of 128 bytes, for all of which a warp may have one entry, or they share one.
DISTANCES = (1, 32)

#: A warpgroup's, by cluster, block and warpgroup.
Thread = tuple[int, int, int]
#: A word, and whose: that of a block of the thread's own cluster, or global memory's.
Place = tuple[int, int]
GLOBAL = -1


@dataclasses.dataclass(frozen=True)
class Turn:
    """What a thread does when it is its turn."""

    thread: Thread
    op: str  # "read" or "write" of data, "load", "store", "add" of words, "fence"
    place: Place = (0, 0)
    sem: str = "relaxed"
    scope: str = "cta"


@dataclasses.dataclass(frozen=True)
class Program:
    clusters: int
    turns: tuple[Turn, ...]
    #: The turn is a word of global memory, or one of block 0's shared memory; and the scope of the polls of it and the stores to it.
    in_global: bool
    scope: str
    #: Words from one to the next.
    distance: int = 1


def draw(seed: int) -> Program:
    rng = np.random.default_rng(seed)

    def one_of(*choices: Any) -> Any:
        return choices[rng.integers(len(choices))]

    kind = one_of("shared", "shared", "shared", "global turn", "both", "both", "clusters", "clusters", "clusters")
    clusters = 2 if kind == "clusters" else 1
    owners = range(GLOBAL if kind in ("both", "clusters") else 0, BLOCKS)
    in_global = kind != "shared"
    # Few threads and words, so that they have to do with each other.
    threads = list(itertools.product(range(clusters), range(BLOCKS), range(WARPGROUPS)))
    some = rng.permutation(len(threads))[: one_of(2, 2, 3, len(threads))]
    data, words = one_of(1, 1, DATA), one_of(1, WORDS)
    turns = []
    for _ in range(int(rng.integers(4, 15))):
        thread = threads[one_of(*some)]
        op = one_of("read", "read", "write", "load", "load", "store", "store", "add", "fence")
        owner = one_of(*owners) if kind != "clusters" else one_of(GLOBAL, GLOBAL, *owners)
        if op in ("read", "write"):
            turns.append(Turn(thread, op, (owner, int(rng.integers(data)))))
            continue
        word = DATA + int(rng.integers(words))
        sem = {
            "load": ("relaxed", "acquire", "acquire"),
            "store": ("relaxed", "release", "release"),
            "add": ("relaxed", "acquire", "release", "acq_rel"),
            "fence": ("acquire", "release", "acq_rel"),
        }[op]
        turns.append(Turn(thread, op, (owner, word), one_of(*sem), one_of("cta", "cta", "cluster", "gpu")))
    scopes = ("gpu",) if kind == "clusters" else ("cluster", "gpu") if in_global else ("cta", "cluster")
    return Program(clusters, tuple(turns), in_global, one_of(*scopes), one_of(*DISTANCES))


# ------------------------------------------------------------------------------------------ the memory model


@dataclasses.dataclass(frozen=True)
class Event:
    at: int
    thread: Thread
    op: str
    place: Any
    sem: str = "relaxed"
    scope: str = "cta"


def events_of(program: Program) -> list[Event]:
    """What is executed, in the order of time; of the polls of the turn those that end."""
    events: list[Event] = []

    def note(thread: Thread, op: str, place: Any, sem: str = "relaxed", scope: str = "cta") -> None:
        if place[0] != GLOBAL:
            place = (thread[0], *place)
        events.append(Event(len(events), thread, op, place, sem, scope))

    of_turn = (GLOBAL if program.in_global else 0, DATA + WORDS)
    for turn in program.turns:
        note(turn.thread, "load", of_turn, "relaxed", program.scope)
        note(turn.thread, turn.op, turn.place, turn.sem, turn.scope)
        note(turn.thread, "store", of_turn, "relaxed", program.scope)
    return events


def is_global(e: Event) -> bool:
    return e.place[0] == GLOBAL


def includes(scope: str, a: Thread, b: Thread) -> bool:
    same = {"cta": 2, "cluster": 1, "gpu": 0}[scope]
    return a[:same] == b[:same]


def narrower(a: str, b: str) -> str:
    return min(a, b, key=SCOPES.index)


def wider(a: str, b: str) -> str:
    return max(a, b, key=SCOPES.index)


def patterns(events: list[Event], of: Event, kind: str) -> list[tuple[int, str]]:
    """Where the release (acquire) patterns of a strong write (read) begin (end), and their scopes."""
    least = "cluster" if is_global(of) else "cta"
    found = [(of.at, wider(of.scope, least))] if of.sem in (kind, "acq_rel") else []
    for fence in events:
        beyond = fence.at < of.at if kind == "release" else fence.at > of.at
        if fence.op == "fence" and fence.thread == of.thread and beyond and fence.sem in (kind, "acq_rel"):
            found.append((fence.at, wider(narrower(fence.scope, of.scope), least)))
    return found


def is_race(program: Program) -> bool:
    events = events_of(program)
    n = len(events)
    before = np.zeros((n, n), bool)
    for a, b in itertools.combinations(events, 2):
        before[a.at, b.at] = a.thread == b.thread
    strong = [e for e in events if e.op in ("load", "store", "add")]
    for reader in strong:
        if reader.op == "store":
            continue
        # What it observes: the last write before it, and while those are atomics, what they have observed.
        writes = [e for e in strong if e.at < reader.at and e.place == reader.place and e.op != "load"]
        for write in reversed(writes):
            for begin, told in patterns(events, write, "release"):
                for end, heard in patterns(events, reader, "acquire"):
                    if includes(told, write.thread, reader.thread) and includes(heard, reader.thread, write.thread):
                        before[begin, end] = True
            if write.op == "store":
                break
    for k in range(n):
        before |= before[:, k : k + 1] & before[k : k + 1, :]
    pairs = ((a, b) for a, b in itertools.combinations(events, 2) if conflict(a, b))
    return any(not before[told_from(events, a), b.at] and not is_polled(events, a, b) for a, b in pairs)


def is_polled(events: list[Event], a: Event, b: Event) -> bool:
    """Whether a thread of `b`'s cluster has looked at the word since `a`, which is no atomic, stored to it."""
    return a.op == "store" and any(e.op == "load" and e.place == a.place and e.thread[0] == b.thread[0] for e in events[a.at : b.at])


def told_from(events: list[Event], of: Event) -> int:
    """Who knows of this event knows of a word's store: of a relaxed one in global memory the fence before it, the widest."""
    if not is_global(of) or of.op not in ("store", "add") or of.sem not in ("relaxed", "acquire"):
        return of.at
    fences = [e for e in events[: of.at] if e.op == "fence" and e.thread == of.thread and e.sem != "acquire"]
    return max(fences, key=lambda e: (SCOPES.index(wider(e.scope, "cluster")), e.at), default=of).at


def conflict(a: Event, b: Event) -> bool:
    """Whether two accesses race unless they are ordered: of words, if the scope of one leaves out the other's thread."""
    if "fence" in (a.op, b.op) or a.place != b.place or {a.op, b.op} <= {"read", "load"}:
        return False
    if a.op in ("read", "write"):
        return True
    includes_both = all(includes(wider(e.scope, "cluster"), a.thread, b.thread) for e in (a, b))
    return is_global(a) and "load" not in (a.op, b.op) and not includes_both


# ------------------------------------------------------------------------------------------ the kernel


def build(program: Program) -> Any:
    """A kernel whose threads (one of each warpgroup) take those turns."""
    turns, distance = program.turns, program.distance
    space = "global" if program.in_global else "shared::cluster"
    count = DATA + WORDS + 1

    def body(*refs: Any) -> None:
        *common, o, words, sinks = refs
        cluster, block, wg = jax.lax.axis_index("g"), jax.lax.axis_index("c"), jax.lax.axis_index("wg")

        @pl.when(wg == 0)
        def clear() -> None:
            for i in range(count):
                words[distance * i] = 0

        smalt.inline_ptx("barrier.cluster.arrive.aligned; barrier.cluster.wait.acquire.aligned;")
        the_turn = common[0].at[distance * (count - 1)] if program.in_global else plgpu.cluster_ref(words.at[distance * (count - 1)], {"c": jnp.int32(0)})
        for k, now in enumerate(turns):

            @pl.when(jnp.logical_and(cluster == now.thread[0], jnp.logical_and(block == now.thread[1], wg == now.thread[2])))
            def take(k: int = k, now: Turn = now) -> None:
                poll = f"AGAIN: ld.relaxed.{program.scope}.{space}.b32 t, [{{0}}]; setp.ne.s32 p, t, {k}; @p bra AGAIN;"
                smalt.inline_ptx(f"{{ .reg .b32 t; .reg .pred p; {poll} }}", (), the_turn, once=True)
                where = "global" if now.place[0] == GLOBAL else "shared::cluster"
                how = f"{now.sem}.{now.scope}.{where}"
                text = {
                    "read": "{ .reg .b32 t; ld.WHERE.b32 t, [{0}]; st.shared.b32 [{1}], t; }".replace("WHERE", where),
                    "write": f"st.{where}.b32 [{{0}}], {k + 1};",
                    "load": f"{{ .reg .b32 t; ld.{how}.b32 t, [{{0}}]; st.shared.b32 [{{1}}], t; }}",
                    "store": f"st.{how}.b32 [{{0}}], {k + 1};",
                    "add": f"{{ .reg .b32 t; atom.{how}.add.u32 t, [{{0}}], 1; st.shared.b32 [{{1}}], t; }}",
                    "fence": f"fence.{now.sem}.{now.scope};",
                }[now.op]
                owner, word = now.place
                place = common[0].at[distance * word] if owner == GLOBAL else plgpu.cluster_ref(words.at[distance * word], {"c": jnp.int32(owner)})
                operands = () if now.op == "fence" else (place, sinks.at[wg]) if "{1}" in text else (place,)
                smalt.inline_ptx(text, (), *operands, once=True)
                smalt.inline_ptx(f"st.relaxed.{program.scope}.{space}.b32 [{{0}}], {k + 1};", (), the_turn, once=True)

        smalt.inline_ptx("barrier.cluster.arrive.aligned; barrier.cluster.wait.acquire.aligned;")
        pl.when(wg == 0)(lambda: [o.__setitem__((cluster, block, i), words[distance * i]) for i in range(DATA + WORDS)] and None)

    i32 = jnp.int32
    out = jax.ShapeDtypeStruct((program.clusters, BLOCKS, DATA + WORDS), i32)
    scratch = [plgpu.SMEM((distance * count,), i32), plgpu.SMEM((WARPGROUPS,), i32)]
    launch = {"grid": (program.clusters,), "grid_names": ("g",), "cluster": (BLOCKS,), "cluster_names": ("c",)}
    launch |= {"num_threads": WARPGROUPS, "thread_name": "wg"}
    call = kernel(body, out, *scratch, **launch)
    # A mutable reference, which JAX has since 0.11.
    return jax.jit(lambda: call(jax.new_ref(jnp.zeros((distance * count,), i32))) if program.in_global else call())


def left(program: Program) -> np.ndarray:
    """What the words of blocks hold in the end."""
    words = np.zeros((program.clusters, BLOCKS, DATA + WORDS), np.int32)
    for k, turn in enumerate(program.turns):
        if turn.place[0] == GLOBAL:
            continue
        place = (turn.thread[0], *turn.place)
        if turn.op in ("write", "store"):
            words[place] = k + 1
        elif turn.op == "add":
            words[place] += 1
    return words


def verdict(program: Program) -> bool:
    """Whether the emulator's checker reports a race."""
    try:
        got = keep(build(program)())
    except smalt.ExecutionError as error:
        if "nothing orders the two" not in str(error):
            raise
        return True
    np.testing.assert_array_equal(got, left(program))
    return False


def check(program: Program) -> Outcome | None:
    if program.in_global and not REFS_AS_ARGUMENTS:
        return Outcome("no program", "a mutable reference")
    expected, got = is_race(program), verdict(program)
    assert expected == got, f"a race {expected}, reported {got}; {shown(program)}"
    return None


def check_on_gpu(program: Program) -> Outcome | None:
    """A GPU reports no race: it runs those that have none."""
    return Outcome("no program", "it has a race") if is_race(program) else check(program)


def shown(program: Program) -> str:
    return "\n  ".join([f"{program.clusters=} {program.in_global=} {program.scope=} {program.distance=}", *map(str, program.turns)])


LITMUS = Grammar("litmus", draw, check, on_gpu=check_on_gpu, show=shown)
