"""mbarriers whose phases, arrivals and bytes the author counts, fences, and ordered accesses, on the machine that there is."""

from __future__ import annotations

from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import smalt
from smalt._versions import FALSE_PREDICATE_SUPPRESSES_ARRIVAL

from tests.corpus.case import REFS_AS_ARGUMENTS, kernel
from tests.corpus.memory import HAS_PREDICATES
from tests.fuzz.seeds import right, seeds
from tests.machine import ON_GPU, enabled
from tests.programs import counted, litmus
from tests.programs.memory.prelude import warp_map

U32, I32, F32 = np.uint32, np.int32, np.float32

NEEDS_REFERENCES = pytest.mark.skipif(not REFS_AS_ARGUMENTS, reason="mutable references are arguments of kernels since 0.11")


def out(*shape_and_dtype: Any) -> Any:
    *shape, dtype = shape_and_dtype
    return jax.ShapeDtypeStruct(tuple(shape), dtype)


def run(body: Any, out_type: Any, *args: Any, scratch: Any = (), **launch: Any) -> Any:
    with enabled():
        return jax.tree.map(np.asarray, jax.jit(kernel(body, out_type, *scratch, **launch))(*args))


def random(shape: Any, dtype: Any = I32, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    if np.issubdtype(dtype, np.integer):
        return rng.integers(-1000, 1000, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def is_refused(call: Any, *expected: str) -> None:
    """The emulator finds a kernel wrong, and says why; a GPU would not report it."""
    if ON_GPU:
        pytest.skip("what the emulator reports")
    with pytest.raises(smalt.ExecutionError) as error:
        call()
    for text in expected:
        assert text in str(error.value), str(error.value)


# ------------------------------------------------------------------------------------------ phases, arrivals, bytes


def ring(steps: int, slots: int, *, by_expect: bool = False, mutate: str = "") -> Any:
    """A producer warpgroup copies tiles into a ring of slots, a consumer adds them up; the phases are computed as TLX's kernels do."""

    def body(x: Any, o: Any, tiles: Any, full: Any, empty: Any) -> None:
        wg = jax.lax.axis_index("wg")

        @pl.when(wg == 0)
        def produce() -> None:
            def step(i: Any, _: Any) -> None:
                slot = i % slots
                # The first round over the slots finds them empty.
                phase = (i // slots + (0 if mutate == "producer's phase" else 1)) % 2
                smalt.mbarrier_wait(empty.at[slot], phase)
                if by_expect:
                    smalt.expect_bytes(full.at[slot], 2 * 64 * 32 * 4 if mutate != "bytes" else 2 * 64 * 32 * 4 + 16)
                half = pl.ds(0, 64), pl.ds(64, 64)
                for part in half:
                    plgpu.copy_gmem_to_smem(x.at[i, part], tiles.at[slot, part], full.at[slot])

            jax.lax.fori_loop(0, steps, step, None)

        @pl.when(wg == 1)
        def consume() -> None:
            def step(i: Any, total: Any) -> Any:
                slot = i % slots
                if mutate != "no wait":
                    smalt.mbarrier_wait(full.at[slot], i // slots)
                total += tiles[slot]
                smalt.mbarrier_arrive(empty.at[slot], 1 if mutate == "count" else 3)
                return total

            zero = plgpu.layout_cast(jnp.zeros((128, 32), F32), plgpu.Layout.WG_STRIDED((128, 32), vec_size=2))
            o[...] = jax.lax.fori_loop(0, steps, step, zero)

    scratch = [
        plgpu.SMEM((slots, 128, 32), F32),
        plgpu.Barrier(num_arrivals=1 if by_expect else 2, num_barriers=slots),
        plgpu.Barrier(num_arrivals=3, num_barriers=slots),
    ]
    return kernel(body, out(128, 32, F32), *scratch, num_threads=2, thread_name="wg")


@pytest.mark.parametrize("by_expect", [False, True], ids=["copies announce", "expect_bytes"])
@pytest.mark.parametrize(("steps", "slots"), [(1, 2), (5, 2), (7, 3), (12, 4), (9, 1)])
def test_a_ring_by_computed_phases(steps: int, slots: int, by_expect: bool) -> None:
    x = random((steps, 128, 32), F32)
    with enabled():
        got = np.asarray(jax.jit(ring(steps, slots, by_expect=by_expect))(x))
    expected = np.zeros((128, 32), F32)
    for tile in x:
        expected += tile
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("mutate", "expected"),
    [
        ("producer's phase", "deadlock"),
        ("count", "deadlock"),
        ("bytes", "deadlock"),
        ("no wait", "a bulk load"),
    ],
)
def test_a_ring_with_one_number_wrong_is_told(mutate: str, expected: str) -> None:
    x = random((6, 128, 32), F32)

    def call() -> None:
        with enabled():
            np.asarray(jax.jit(ring(6, 2, by_expect=True, mutate=mutate))(x))

    is_refused(call, expected)


def test_every_thread_arrives() -> None:
    """A barrier of as many arrivals as threads, of which half arrive twice."""

    def body(x: Any, o: Any, buffer: Any, bar: Any) -> None:
        wg = jax.lax.axis_index("wg")

        @pl.when(wg != 2)
        def store() -> None:
            buffer[wg] = x[wg]
            smalt.mbarrier_arrive(bar, 1 + wg, threads="all")

        @pl.when(wg == 2)
        def read() -> None:
            smalt.mbarrier_wait(bar, 0)
            o[...] = buffer[0] + buffer[1]

    x = random((2, 128))
    scratch = [plgpu.SMEM((2, 128), I32), plgpu.Barrier(num_arrivals=128 * 3)]
    got = run(body, out(128, I32), x, scratch=scratch, num_threads=3, thread_name="wg")
    np.testing.assert_array_equal(got, x[0] + x[1])


def test_warps_arrive_and_wait_by_themselves() -> None:
    """Each warp of one warpgroup arrives at a barrier of its own, and each of the other waits for one of them."""
    warps = plgpu.WarpMesh(axis_name="warp")

    def body(x: Any, o: Any, buffer: Any, bars: Any) -> None:
        wg = jax.lax.axis_index("wg")

        @pl.when(wg == 0)
        def produce() -> None:
            buffer[...] = x[...]

            @pl.core_map(warps)
            def each() -> None:
                smalt.mbarrier_arrive(bars.at[jax.lax.axis_index("warp")])

        @pl.when(wg == 1)
        def consume() -> None:
            @pl.core_map(warps)
            def each() -> None:
                smalt.mbarrier_wait(bars.at[3 - jax.lax.axis_index("warp")], 0)

            smalt.named_barrier_sync(12, 128)
            o[...] = buffer[...]

    x = random((128,))
    scratch = [plgpu.SMEM((128,), I32), plgpu.Barrier(num_arrivals=1, num_barriers=4)]
    np.testing.assert_array_equal(run(body, out(128, I32), x, scratch=scratch, num_threads=2, thread_name="wg"), x)


def test_a_phase_that_is_over_is_not_waited_for() -> None:
    def body(x: Any, o: Any, bar: Any) -> None:
        smalt.mbarrier_wait(bar, 1)  # before any phase
        smalt.mbarrier_arrive(bar)
        smalt.mbarrier_wait(bar, 0)
        smalt.mbarrier_arrive(bar)
        smalt.mbarrier_wait(bar, 1)
        smalt.mbarrier_wait(bar, x[0])  # only its lowest bit counts
        o[...] = x[...]

    x = np.full(128, 7, I32)
    np.testing.assert_array_equal(run(body, out(128, I32), x, scratch=[plgpu.Barrier(num_arrivals=1)]), x)


@pytest.mark.skipif(not HAS_PREDICATES, reason="copies have predicates since 0.11")
def test_copies_that_are_not_made_announce_no_bytes() -> None:
    """Two copies a phase, of which each is made or not: the phase ends, and what is not copied stays."""

    def body(x: Any, y: Any, o: Any, p: Any, one: Any, two: Any, bar: Any) -> None:
        one[...], two[...] = jnp.zeros(128, I32), jnp.zeros(256, I32)
        plgpu.commit_smem()

        @pl.loop(0, 8)
        def step(i: Any) -> None:
            for ref, buffer, made in ((x, one, i & 1 == 1), (y, two, i & 2 == 2)):
                plgpu.copy_gmem_to_smem(ref.at[i], buffer, bar, predicate=made)
                if FALSE_PREDICATE_SUPPRESSES_ARRIVAL:
                    plgpu.barrier_arrive(bar, predicate=~made)
            plgpu.barrier_wait(bar)
            o[i], p[i] = one[...], two[...]

    x, y = random((8, 128)), random((8, 256), seed=1)
    scratch = [plgpu.SMEM((128,), I32), plgpu.SMEM((256,), I32), plgpu.Barrier(num_arrivals=2)]
    got = run(body, [out(8, 128, I32), out(8, 256, I32)], x, y, scratch=scratch)
    # The step of the last copy; none before the first.
    for result, given, last in zip(got, (x, y), ([-1, 1, 1, 3, 3, 5, 5, 7], [-1, -1, 2, 3, 3, 3, 6, 7])):
        np.testing.assert_array_equal(result, [given[k] if k >= 0 else given[0] * 0 for k in last])


def test_waits_of_both_kinds() -> None:
    """`plgpu.barrier_wait` counts its own waits, beside those with phases."""

    x = random((4, 128))

    def body(x: Any, o: Any, tile: Any, bar: Any) -> None:
        plgpu.copy_gmem_to_smem(x.at[0], tile, bar)
        smalt.mbarrier_wait(bar, 0)
        first = tile[...]
        plgpu.barrier_wait(bar)  # the same phase again
        plgpu.copy_gmem_to_smem(x.at[1], tile, bar)
        plgpu.barrier_wait(bar)
        o[...] = first + tile[...]

    scratch = [plgpu.SMEM((128,), I32), plgpu.Barrier()]
    np.testing.assert_array_equal(run(body, out(128, I32), x, scratch=scratch), x[0] + x[1])


@pytest.mark.parametrize("by", ["warpgroup", "warp", "two warpgroups"])
@pytest.mark.skipif(not hasattr(plgpu, "wait_gmem_to_smem"), reason="before JAX 0.11 `barrier_test` is for warp regions")
def test_a_look_finds_what_has_arrived(by: str) -> None:
    """`barrier_test` behind an arrival of its own, and of who was met since: whichever warp came first."""

    def body(o: Any, bars: Any, met: Any) -> None:
        wg = jax.lax.axis_index("wg")

        def look(at: int, slot: int) -> None:
            done = plgpu.barrier_test(bars.at[slot]).astype(jnp.int32)
            pl.when(wg == 0)(lambda: o.__setitem__(at, done))

        def looks() -> None:
            look(0, 0)
            look(1, 1)
            for at, slot in ((2, 0), (4, 1)):
                if by == "two warpgroups":  # they look before anybody arrives, and behind all arrivals
                    plgpu.barrier_arrive(met.at[0])
                    plgpu.barrier_wait(met.at[0])
                plgpu.barrier_arrive(bars.at[slot])
                if by == "two warpgroups":
                    plgpu.barrier_arrive(met.at[1])
                    plgpu.barrier_wait(met.at[1])
                look(at, slot)
                look(at + 1, slot)

        if by == "warp":
            warp_map(lambda warp: pl.when(warp == 0)(looks))
        else:
            looks()

    groups = 2 if by == "two warpgroups" else 1
    scratch = [plgpu.Barrier(num_arrivals=groups, num_barriers=2), plgpu.Barrier(num_arrivals=groups, num_barriers=2)]
    got = run(body, out(6, I32), scratch=scratch, num_threads=groups, thread_name="wg")
    np.testing.assert_array_equal(got, [0, 0, 1, 0, 1, 0])


def test_a_barrier_in_inline_ptx() -> None:
    """Its address, for instructions that have no primitive: a state instead of a phase, and a look that does not wait."""

    def body(x: Any, o: Any, buffer: Any, bar: Any) -> None:
        buffer[...] = x[...]
        smalt.inline_ptx(
            """{ .reg .b64 s; .reg .pred p;
            mbarrier.arrive.release.cta.shared::cta.b64 s, [{0}];
            again: mbarrier.try_wait.acquire.cta.shared::cta.b64 p, [{0}], s;
            @!p bra again; }""",
            (),
            bar,
        )
        o[...] = buffer[...][::-1]

    x = random((128,))
    scratch = [plgpu.SMEM((128,), I32), plgpu.Barrier(num_arrivals=128)]
    np.testing.assert_array_equal(run(body, out(128, I32), x, scratch=scratch), x[::-1])


def test_once() -> None:
    """One thread of the warpgroup adds, and all learn what it got; floats and narrow numbers, too."""

    def body(x: Any, o: Any, p: Any, counter: Any) -> None:
        counter[0] = 5
        old = smalt.inline_ptx("atom.relaxed.cta.shared.add.u32 {0}, [{1}], {2};", jnp.uint32, counter.at[0], jnp.uint32(3), once=True)
        lane, half = smalt.inline_ptx(
            "mov.u32 {0}, %tid.x; mov.b16 {1}, 0x3c00;",
            (jnp.uint32, jnp.float16),
            once=True,
        )
        o[...] = x[...] + old + counter[0] + lane
        p[...] = jnp.full((128,), half)

    x = random((128,), U32) + U32(2000)
    got, halves = run(body, (out(128, U32), out(128, np.float16)), x, scratch=[plgpu.SMEM((8,), U32)])
    np.testing.assert_array_equal(got, x + 5 + 8)
    np.testing.assert_array_equal(halves, np.ones(128, np.float16))


# ------------------------------------------------------------------------------------------ fences and ordered accesses


def flags(blocks: int, *, mutate: str = "") -> Any:
    """Every block stores its part and raises a flag; every block waits for all flags and reads all parts (2.1.3 of the guide)."""

    def body(x: Any, count: Any, o: Any, parts: Any) -> None:
        i = jax.lax.axis_index("i")
        parts[i] = x[i] * 2
        smalt.atomic_add(count.at[0], 1, order="relaxed" if mutate == "relaxed" else "release", scope="cta" if mutate == "scope" else "gpu")

        def waits(_: Any) -> Any:
            return smalt.load(count.at[0], order="relaxed", scope="gpu") < blocks

        if mutate != "no wait":
            jax.lax.while_loop(waits, lambda _: _, jnp.int32(0))
        if mutate not in ("acquire", "no wait"):
            # By the thread that looks, for all.
            smalt.load(count.at[0], order="acquire", scope="gpu")
        total = jnp.zeros((128,), I32)
        for j in range(blocks):
            total += parts[j] * (j + 1)
        o[i] = total

    def call(x: Any) -> Any:
        count = jax.new_ref(jnp.zeros((1,), I32))
        total, _ = kernel(body, (out(blocks, 128, I32), out(blocks, 128, I32)), grid=(blocks,), grid_names=("i",))(x, count)
        return total, count[...]

    return call


@pytest.mark.parametrize("what", ["i32", "u32", "f32", "f16", "bf16", "i8", "u16"])
def test_ordered_loads_and_stores_of_each_type(what: str) -> None:
    dtype = {"i32": I32, "u32": U32, "f32": F32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "i8": np.int8, "u16": np.uint16}[what]
    x = (np.arange(3 * 128).reshape(3, 128) % 100).astype(dtype)

    def body(x: Any, o: Any, s: Any, buffer: Any) -> None:
        smalt.store(buffer.at[3], jnp.asarray(7, dtype), order="release", scope="cta")
        seven = smalt.load(buffer.at[3], order="acquire", scope="cta")
        smalt.store(o.at[1], smalt.load(x.at[1], order="relaxed"), order="release", scope="sys")
        smalt.store(o.at[pl.ds(0, 1)], smalt.load(x.at[pl.ds(2, 1)], order="acquire"))
        smalt.store(o.at[2], jnp.full((128,), seven), order="volatile")
        smalt.store(s.at[0], seven)

    got, seven = run(body, (out(3, 128, dtype), out(1, dtype)), x, scratch=[plgpu.SMEM((8,), dtype)])
    np.testing.assert_array_equal(got, np.stack([x[2], x[1], np.full(128, 7, dtype)]))
    assert seven[0] == 7


ATOMICS: dict[str, tuple[Any, Any]] = {
    "atomic_add": (smalt.atomic_add, np.add),
    "atomic_min": (smalt.atomic_min, np.minimum),
    "atomic_max": (smalt.atomic_max, np.maximum),
    "atomic_and": (smalt.atomic_and, np.bitwise_and),
    "atomic_or": (smalt.atomic_or, np.bitwise_or),
    "atomic_xor": (smalt.atomic_xor, np.bitwise_xor),
    "atomic_exchange": (smalt.atomic_exchange, lambda a, b: b),
}


@pytest.mark.parametrize("name", ATOMICS)
@pytest.mark.parametrize("dtype", [I32, U32], ids=["i32", "u32"])
def test_atomics(name: str, dtype: Any) -> None:
    atomic, reference = ATOMICS[name]
    x, y = random((128,), I32).astype(dtype), random((128,), I32, 1).astype(dtype)

    def body(x: Any, y: Any, o: Any, old: Any, word: Any) -> None:
        o[...] = x[...]
        old[...] = atomic(o, y[...], order="acq_rel")
        word[0] = x[5]
        before = atomic(word.at[0], y[9], order="relaxed", scope="cta")
        smalt.store(word.at[1], before)
        o[...] = o[...] + word[0] + word[1]

    scratch = [plgpu.SMEM((8,), dtype)]
    got, old = run(body, (out(128, dtype), out(128, dtype)), x, y, scratch=scratch)
    np.testing.assert_array_equal(old, x)
    np.testing.assert_array_equal(got, reference(x, y) + reference(x[5], y[9]) + x[5])


@pytest.mark.parametrize("dtype", [I32, U32, F32], ids=["i32", "u32", "f32"])
def test_compare_and_swap(dtype: Any) -> None:
    x = random((128,), I32).astype(dtype)
    expected = np.where(np.arange(128) % 3 == 0, x, x + 1).astype(dtype)

    def body(x: Any, e: Any, o: Any, old: Any) -> None:
        o[...] = x[...]
        old[...] = smalt.atomic_cas(o, e[...], jnp.asarray(9, dtype), order="acq_rel")

    got, old = run(body, (out(128, dtype), out(128, dtype)), x, expected)
    np.testing.assert_array_equal(old, x)
    np.testing.assert_array_equal(got, np.where(np.arange(128) % 3 == 0, dtype(9), x))


def test_warps_have_accesses_of_their_own() -> None:
    """In a warp region one lane of the warp does what has an order, for its warp."""

    def body(x: Any, o: Any, count: Any, words: Any) -> None:
        count[0] = 0
        smalt.named_barrier_sync(9, 128)

        @pl.core_map(plgpu.WarpMesh(axis_name="warp"))
        def each() -> None:
            warp = jax.lax.axis_index("warp")
            smalt.atomic_add(count.at[0], warp + 1, scope="cta")
            smalt.store(words.at[warp], 10 * warp, scope="cta")
            smalt.store(words.at[4 + warp], smalt.load(words.at[warp], order="acquire", scope="cta") + 1, scope="cta")

        smalt.named_barrier_sync(9, 128)
        o[0] = count[0]
        for i in range(8):
            o[1 + i] = words[i]

    got = run(body, out(9, I32), random((128,)), scratch=[plgpu.SMEM((8,), I32), plgpu.SMEM((8,), I32)])
    np.testing.assert_array_equal(got, [10, 0, 10, 20, 30, 1, 11, 21, 31])


def test_a_lock_in_shared_memory() -> None:
    """Two warpgroups take turns in no order; each adds to what is there."""

    def body(x: Any, o: Any, total: Any, lock: Any) -> None:
        wg = jax.lax.axis_index("wg")

        @pl.when(wg == 0)
        def first() -> None:
            lock[0] = 0
            total[...] = jnp.zeros((128,), I32)

        smalt.named_barrier_sync(9, 256)
        for turn in range(3):
            take = lambda _: smalt.atomic_cas(lock.at[0], 0, 1, order="acquire", scope="cta")  # noqa: E731
            jax.lax.while_loop(lambda held: held != 0, take, jnp.int32(1))
            total[...] += x[wg] * (turn + 1)
            smalt.atomic_exchange(lock.at[0], 0, order="release", scope="cta")
        smalt.named_barrier_sync(9, 256)
        o[wg] = total[...]

    x = random((2, 128))
    scratch = [plgpu.SMEM((128,), I32), plgpu.SMEM((8,), I32)]
    got = run(body, out(2, 128, I32), x, scratch=scratch, num_threads=2, thread_name="wg")
    np.testing.assert_array_equal(got, np.tile((x[0] + x[1]) * 6, (2, 1)))


def test_a_flag_in_shared_memory_by_an_atomic() -> None:
    def body(x: Any, o: Any, buffer: Any, flag: Any) -> None:
        wg = jax.lax.axis_index("wg")
        pl.when(wg == 0)(lambda: smalt.store(flag.at[0], 0, scope="cta"))
        smalt.named_barrier_sync(9, 256)

        @pl.when(wg == 0)
        def produce() -> None:
            buffer[...] = x[...]
            smalt.atomic_add(flag.at[0], 1, order="release", scope="cta")

        @pl.when(wg == 1)
        def consume() -> None:
            look = lambda _: smalt.load(flag.at[0], order="acquire", scope="cta")  # noqa: E731
            jax.lax.while_loop(lambda v: v != 1, look, jnp.int32(0))
            o[...] = buffer[...]

    x = random((128,))
    scratch = [plgpu.SMEM((128,), I32), plgpu.SMEM((8,), I32)]
    np.testing.assert_array_equal(run(body, out(128, I32), x, scratch=scratch, num_threads=2, thread_name="wg"), x)


def test_floats_are_added_atomically() -> None:
    def body(x: Any, o: Any) -> None:
        o[...] = jnp.zeros((128,), F32)
        smalt.atomic_add(o, x[...])
        smalt.atomic_add(o.at[7], jnp.float32(0.5))

    x = random((128,), F32)
    got = run(body, out(128, F32), x)
    x[7] += F32(0.5)
    np.testing.assert_array_equal(got, x)


# ------------------------------------------------------------------------------------------ patterns of the memory model

CLUSTER = 4
TILE = (128, 8)


def handed_on(how: str, mutate: str = "") -> Any:
    """Warpgroup 0 stores a tile into shared memory, warpgroup 1 reads it in another layout; what orders the two is `how`."""

    def body(x: Any, o: Any, buffer: Any, bar: Any) -> None:
        wg = jax.lax.axis_index("wg")

        @pl.when(wg == 0)
        def produce() -> None:
            buffer[...] = x[...]
            match how:
                case "named barrier":
                    smalt.named_barrier_arrive(9, 256)
                case "mbarrier":
                    smalt.mbarrier_arrive(bar, threads="all")
                case "relaxed mbarrier and fences":
                    if mutate != "release":
                        smalt.fence("acquire" if mutate == "first is an acquire" else "release", "cta")
                    is_one = mutate == "one arrives"
                    smalt.mbarrier_arrive(bar, 128 if is_one else 1, threads="one" if is_one else "all", order="relaxed", scope="cta")

        @pl.when(wg == 1)
        def consume() -> None:
            match how:
                case "named barrier":
                    smalt.named_barrier_sync(9, 256)
                case "mbarrier":
                    smalt.mbarrier_wait(bar, 0)
                case "relaxed mbarrier and fences":
                    smalt.mbarrier_wait(bar, 0, order="relaxed", scope="cta")
                    if mutate != "acquire":
                        smalt.fence("release" if mutate == "second is a release" else "acquire", "cta")
            o[...] = buffer[...].T

    scratch = [plgpu.SMEM(TILE, F32), plgpu.Barrier(num_arrivals=128)]
    return kernel(body, out(*TILE[::-1], F32), *scratch, num_threads=2, thread_name="wg")


@pytest.mark.parametrize("how", ["named barrier", "mbarrier", "relaxed mbarrier and fences"])
def test_within_a_block(how: str) -> None:
    x = random(TILE, F32)
    with enabled():
        got = np.asarray(jax.jit(handed_on(how))(x))
    np.testing.assert_array_equal(got, x.T)


@NEEDS_REFERENCES
@pytest.mark.parametrize("mutate", ["", "release", "acquire"])
def test_fences_in_blocks_that_count_each_other(mutate: str) -> None:
    """The same where blocks signal each other through global memory, too: the checker then keeps fences apart."""

    def body(x: Any, count: Any, o: Any, buffer: Any, bar: Any) -> None:
        i, wg = jax.lax.axis_index("i"), jax.lax.axis_index("wg")

        @pl.when(wg == 0)
        def produce() -> None:
            buffer[...] = x[i]
            if mutate != "release":
                smalt.fence("release", "cta")
            smalt.mbarrier_arrive(bar, threads="all", order="relaxed", scope="cta")
            smalt.atomic_add(count.at[0], 1)

        @pl.when(wg == 1)
        def consume() -> None:
            smalt.mbarrier_wait(bar, 0, order="relaxed", scope="cta")
            if mutate != "acquire":
                smalt.fence("acquire", "cta")
            o[i] = buffer[...].T

    def call() -> None:
        def fn(x: Any) -> Any:
            count = jax.new_ref(jnp.zeros((1,), I32))
            scratch = [plgpu.SMEM(TILE, F32), plgpu.Barrier(num_arrivals=128)]
            launch = {"grid": (3,), "grid_names": ("i",), "num_threads": 2, "thread_name": "wg"}
            return kernel(body, out(3, *TILE[::-1], F32), *scratch, **launch)(x, count), count[...]

        x = random((3, *TILE), F32)
        with enabled():
            got, count = jax.tree.map(np.asarray, jax.jit(fn)(x))
        np.testing.assert_array_equal(got, x.transpose(0, 2, 1))
        assert count[0] == 3

    if mutate:
        is_refused(call, "shared memory that")
    else:
        call()


@pytest.mark.parametrize("mutate", ["release", "acquire", "first is an acquire", "second is a release", "one arrives"])
def test_a_fence_that_is_missing_within_a_block_is_told(mutate: str) -> None:
    x = random(TILE, F32)

    def call() -> None:
        with enabled():
            np.asarray(jax.jit(handed_on("relaxed mbarrier and fences", mutate))(x))

    is_refused(call, "shared memory that")


#: How words of shared memory announce a tile, and whether they do.
TELLS = {
    "an acquire of the release": True,
    "one thread's fences around relaxed accesses": True,
    "a word that others add to": True,
    "a word that another has replaced, who knew": True,
    "no release": False,
    "no acquire": False,
    "a fence of all before the rendezvous": False,
    "a fence of all behind the rendezvous": False,
    "another word's acquire": False,
    "another word's acquire, and a fence before the look": False,
    "a word that another has replaced": False,
}


def told_by_words(how: str) -> Any:
    """Warpgroup 0 stores a tile and then signals by a word, 1 by a word of its own or by that one, 2 waits for both and reads the tile."""

    def body(x: Any, o: Any, buffer: Any, words: Any) -> None:
        wg = jax.lax.axis_index("wg")
        pl.when(wg == 0)(lambda: [smalt.store(words.at[i], 0, scope="cta") for i in range(2)] and None)
        smalt.named_barrier_sync(9, 384)
        is_one_word = "a word that" in how

        def wait(word: int, value: int, order: str) -> None:
            """Polls, then looks once more: what it learns, it learns of the value that it waited for."""
            look = lambda _: smalt.load(words.at[word], scope="cta")  # noqa: E731
            jax.lax.while_loop(lambda v: v != value, look, jnp.int32(-1))
            if order == "acquire":
                smalt.load(words.at[word], order="acquire", scope="cta")
            elif order == "fence":
                smalt.inline_ptx("ld.relaxed.cta.shared.b32 {0}, [{1}]; fence.acquire.cta;", out(I32), words.at[word], once=True)

        @pl.when(wg == 0)
        def first() -> None:
            buffer[...] = x[...]
            if how == "one thread's fences around relaxed accesses":
                smalt.inline_ptx("fence.release.cta; st.relaxed.cta.shared.b32 [{0}], 1;", (), words.at[0], once=True)
                return
            is_fenced = how == "a fence of all before the rendezvous"
            if is_fenced:
                smalt.fence("release", "cta")
            smalt.store(words.at[0], 1, order="relaxed" if is_fenced or how == "no release" else "release", scope="cta")

        @pl.when(wg == 1)
        def second() -> None:
            if not is_one_word:
                smalt.store(words.at[1], 1, order="release", scope="cta")
                return
            knows = how.endswith("who knew")
            wait(0, 1, "acquire" if knows else "relaxed")
            if how == "a word that others add to":
                smalt.atomic_add(words.at[0], 1, scope="cta")
            else:
                smalt.store(words.at[0], 2, order="release" if knows else "relaxed", scope="cta")

        @pl.when(wg == 2)
        def third() -> None:
            if is_one_word:
                wait(0, 2, "acquire")
            elif how.startswith("another word's"):
                if "fence" in how:
                    smalt.fence("acquire", "cta")
                wait(0, 1, "relaxed")
                wait(1, 1, "acquire")
            else:
                is_fenced = how == "a fence of all behind the rendezvous"
                order = "fence" if "one thread's" in how else "relaxed" if is_fenced or how == "no acquire" else "acquire"
                wait(0, 1, order)
                wait(1, 1, "relaxed")
                if is_fenced:
                    smalt.fence("acquire", "cta")
            o[...] = buffer[...].T

    scratch = [plgpu.SMEM(TILE, F32), plgpu.SMEM((8,), I32)]
    return kernel(body, out(*TILE[::-1], F32), *scratch, num_threads=3, thread_name="wg")


@pytest.mark.parametrize("how", TELLS)
def test_words_of_shared_memory(how: str) -> None:
    """A word orders what was released there, to whoever acquires there: not what was released at another, or what a store has replaced."""
    x = random(TILE, F32)

    def call() -> None:
        with enabled():
            got = np.asarray(jax.jit(told_by_words(how))(x))
        np.testing.assert_array_equal(got, x.T)

    if TELLS[how]:
        call()
    else:
        is_refused(call, "shared memory that another warp wrote")


@pytest.mark.parametrize("order", ["release", "acquire", "fence", "acquire fence", "store behind a fence", "load before a fence"])
@pytest.mark.parametrize("scope", ["cluster", "cta"])
def test_scopes_of_words_in_a_peers_shared_memory(order: str, scope: str) -> None:
    """Each block stores its tile into its neighbour's shared memory, then signals by a word there; `scope` is that of one of the two sides."""

    def body(x: Any, o: Any, buffer: Any, words: Any) -> None:
        block = jax.lax.axis_index("c")
        peer = {"c": (block + 1) % CLUSTER}
        smalt.store(words.at[0], 0, scope="cluster")
        smalt.inline_ptx("barrier.cluster.arrive.aligned; barrier.cluster.wait.acquire.aligned;")
        plgpu.cluster_ref(buffer, peer)[...] = x[block]
        word = plgpu.cluster_ref(words.at[0], peer)
        fence, access = (scope, "cluster") if order.endswith("fence") and " a " not in order else ("cluster", scope)
        if order in ("fence", "store behind a fence"):
            smalt.inline_ptx(f"fence.release.{fence}; st.relaxed.{access}.shared::cluster.b32 [{{0}}], 1;", (), word, once=True)
        else:
            smalt.store(word, 1, order="release", scope=scope if order == "release" else "cluster")
        polled = access if order == "load before a fence" else "cluster"
        look = lambda _: smalt.load(words.at[0], scope=polled)  # noqa: E731
        jax.lax.while_loop(lambda v: v != 1, look, jnp.int32(0))
        if order in ("acquire fence", "load before a fence"):
            smalt.inline_ptx(f"ld.relaxed.{access}.shared.b32 {{0}}, [{{1}}]; fence.acquire.{fence};", out(I32), words.at[0], once=True)
        else:
            smalt.load(words.at[0], order="acquire", scope=scope if order == "acquire" else "cluster")
        o[block] = buffer[...]
        smalt.inline_ptx("barrier.cluster.arrive.aligned; barrier.cluster.wait.acquire.aligned;")

    x = random((CLUSTER, *TILE), F32)

    def call() -> None:
        scratch = [plgpu.SMEM(TILE, F32), plgpu.SMEM((8,), I32)]
        got = run(body, out(CLUSTER, *TILE, F32), x, scratch=scratch, cluster=(CLUSTER,), cluster_names=("c",))
        np.testing.assert_array_equal(got, np.roll(x, 1, 0))

    if scope == "cta":
        is_refused(call, "shared memory")
    else:
        call()


@seeds(litmus.LITMUS, 150, 50)
def test_litmus(programs: list[litmus.Program]) -> None:
    """The checker reports a race exactly where the memory model has one. A GPU runs the programs that have none."""
    assert ON_GPU or 0 < sum(map(litmus.is_race, programs)) < len(programs)


def test_a_store_behind_the_release_is_not_told_of() -> None:
    """One thread releases, then stores without any rendezvous in between; who acquires does not know of that store."""

    def body(x: Any, o: Any, words: Any) -> None:
        wg = jax.lax.axis_index("wg")
        pl.when(wg == 0)(lambda: [smalt.store(words.at[i], 0, scope="cta") for i in range(2)] and None)
        smalt.named_barrier_sync(9, 256)

        @pl.when(wg == 0)
        def first() -> None:
            text = "st.release.cta.shared.b32 [{0}], 1; st.shared.b32 [{1}], 7;"
            smalt.inline_ptx(text, (), words.at[0], words.at[1], once=True)

        @pl.when(wg == 1)
        def second() -> None:
            look = lambda _: smalt.load(words.at[0], order="acquire", scope="cta")  # noqa: E731
            jax.lax.while_loop(lambda v: v != 1, look, jnp.int32(0))
            o[...] = x[...] + words[1]

    scratch = [plgpu.SMEM((8,), I32)]
    is_refused(lambda: run(body, out(128, I32), random((128,)), scratch=scratch, num_threads=2, thread_name="wg"), "shared memory that another warp")


PUSHES = [
    "plgpu.ClusterBarrier",
    "plgpu.barrier_arrive at the peer",
    "cluster barrier",
    "mbarriers",
    "relaxed mbarriers and fences",
    "relaxed cluster barrier and a fence",
    "st.async",
    "st.async, a relaxed wait and a fence",
]


def pushed(how: str, mutate: str = "") -> Any:
    """Each block of a cluster stores its tile into its right neighbour's shared memory, which reads it. In the end there is a rendezvous."""

    def body(x: Any, o: Any, buffer: Any, bar: Any, together: Any) -> None:
        block = jax.lax.axis_index("c")
        peer = {"c": (block + 1) % CLUSTER}
        theirs, their_bar = plgpu.cluster_ref(buffer, peer), plgpu.cluster_ref(bar, peer)
        tile = plgpu.layout_cast(x[block], plgpu.Layout.WG_STRIDED(TILE, vec_size=2))

        def rendezvous(sem: str = "") -> None:
            smalt.inline_ptx(f"barrier.cluster.arrive{sem}.aligned; barrier.cluster.wait.acquire.aligned;")

        match how:
            case "plgpu.ClusterBarrier":
                theirs[...] = tile
                plgpu.barrier_arrive(together)
                plgpu.barrier_wait(together)
            case "plgpu.barrier_arrive at the peer":
                theirs[...] = tile
                plgpu.barrier_arrive(their_bar)
                plgpu.barrier_wait(bar)
            case "cluster barrier":
                theirs[...] = tile
                rendezvous()
            case "relaxed cluster barrier and a fence":
                theirs[...] = tile
                if mutate != "release":
                    smalt.fence("release", "cluster")
                rendezvous(".relaxed")
            case "mbarriers":
                theirs[...] = tile
                smalt.mbarrier_arrive(their_bar, threads="all", scope="cta" if mutate == "scope" else "cluster")
                smalt.mbarrier_wait(bar, 0, scope="cluster")
            case "relaxed mbarriers and fences":
                theirs[...] = tile
                if mutate != "release":
                    smalt.fence("release", "cluster")
                smalt.mbarrier_arrive(their_bar, threads="all", order="relaxed", scope="cluster")
                smalt.mbarrier_wait(bar, 0, order="relaxed", scope="cluster")
                if mutate != "acquire":
                    smalt.fence("acquire", "cluster")
            case "st.async" | "st.async, a relaxed wait and a fence":
                smalt.expect_bytes(bar, 128 * 8 * 4)
                pairs = jax.lax.bitcast_convert_type(tile, jnp.int32)
                where = jax.lax.broadcasted_iota(jnp.int32, TILE, 0) * 8 + jax.lax.broadcasted_iota(jnp.int32, TILE, 1)
                text = """{ .reg .b32 at; mad.lo.u32 at, {2}, 4, {0};
                    st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [at], {3}, [{1}]; }"""
                smalt.inline_ptx(text, (), theirs, their_bar, where, pairs)
                if how == "st.async":
                    if mutate != "acquire":
                        smalt.mbarrier_wait(bar, 0, scope="cluster")
                else:
                    smalt.mbarrier_wait(bar, 0, order="relaxed", scope="cluster")
                    if mutate != "acquire":
                        smalt.fence("acquire", "cluster", shared_only=True)
        o[block] = buffer[...]
        rendezvous()

    arrivals = 1 if how.startswith(("st.async", "plgpu")) else 128
    scratch = [plgpu.SMEM(TILE, F32), plgpu.Barrier(num_arrivals=arrivals), plgpu.ClusterBarrier(collective_axes=("c",))]
    return kernel(body, out(CLUSTER, *TILE, F32), *scratch, cluster=(CLUSTER,), cluster_names=("c",))


@pytest.mark.parametrize("how", PUSHES)
def test_pushes_within_a_cluster(how: str) -> None:
    x = random((CLUSTER, *TILE), F32)
    with enabled():
        got = np.asarray(jax.jit(pushed(how))(x))
    np.testing.assert_array_equal(got, np.roll(x, 1, 0))


@pytest.mark.parametrize(
    ("how", "mutate", "told"),
    [
        ("relaxed cluster barrier and a fence", "release", "shared memory"),
        ("mbarriers", "scope", "shared memory"),
        ("relaxed mbarriers and fences", "release", "shared memory"),
        ("relaxed mbarriers and fences", "acquire", "shared memory"),
        ("st.async", "acquire", "a `barrier_wait` is missing"),
    ],
)
def test_what_a_push_lacks_is_told(how: str, mutate: str, told: str) -> None:
    x = random((CLUSTER, *TILE), F32)

    def call() -> None:
        with enabled():
            np.asarray(jax.jit(pushed(how, mutate))(x))

    is_refused(call, told)


@pytest.mark.parametrize("scope", ["cluster", "cta"])
def test_one_thread_fences_for_its_block(scope: str) -> None:
    """Behind a rendezvous its fence covers what all have stored in a peer's memory, if its scope includes the peer. Blocks count each other, too."""

    def body(x: Any, o: Any, count: Any, buffer: Any, bar: Any) -> None:
        block = jax.lax.axis_index("c")
        peer = {"c": (block + 1) % CLUSTER}
        plgpu.cluster_ref(buffer, peer)[...] = x[block]
        smalt.atomic_max(count.at[0], block)
        text = f"fence.release.{scope}; mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [{{0}}];"
        smalt.inline_ptx(text, (), plgpu.cluster_ref(bar, peer), once=True)
        smalt.mbarrier_wait(bar, 0, order="relaxed", scope="cluster")
        smalt.fence("acquire", "cluster")
        o[block] = buffer[...]
        smalt.inline_ptx("barrier.cluster.arrive.aligned; barrier.cluster.wait.acquire.aligned;")

    x = random((CLUSTER, *TILE), F32)

    def call() -> None:
        types = out(CLUSTER, *TILE, F32), out(1, I32)
        scratch = [plgpu.SMEM(TILE, F32), plgpu.Barrier(num_arrivals=1)]
        got, _ = run(body, types, x, scratch=scratch, cluster=(CLUSTER,), cluster_names=("c",))
        np.testing.assert_array_equal(got, np.roll(x, 1, 0))

    if scope == "cta":
        is_refused(call, "shared memory")
    else:
        call()


@pytest.mark.parametrize("restricted", [False, True], ids=["fences", "fences of shared memory"])
def test_pulls_within_a_cluster(restricted: bool) -> None:
    """Each block stores its tile into its own shared memory, and signals its left neighbour, which reads it there."""

    def body(x: Any, o: Any, buffer: Any, bar: Any) -> None:
        block = jax.lax.axis_index("c")
        left, right = {"c": (block + CLUSTER - 1) % CLUSTER}, {"c": (block + 1) % CLUSTER}
        buffer[...] = x[block]
        smalt.fence("release", "cluster", shared_only=restricted)
        smalt.mbarrier_arrive(plgpu.cluster_ref(bar, left), threads="all", order="relaxed", scope="cluster")
        smalt.mbarrier_wait(bar, 0, order="relaxed", scope="cluster")
        smalt.fence("acquire", "cluster", shared_only=restricted)
        o[block] = plgpu.cluster_ref(buffer, right)[...]
        smalt.inline_ptx("barrier.cluster.arrive.aligned; barrier.cluster.wait.acquire.aligned;")

    x = random((CLUSTER, *TILE), F32)
    scratch = [plgpu.SMEM(TILE, F32), plgpu.Barrier(num_arrivals=128)]
    got = run(body, out(CLUSTER, *TILE, F32), x, scratch=scratch, cluster=(CLUSTER,), cluster_names=("c",))
    np.testing.assert_array_equal(got, np.roll(x, -1, 0))


@NEEDS_REFERENCES
@pytest.mark.parametrize("blocks", [1, 3, 8])
def test_blocks_by_a_flag(blocks: int) -> None:
    x = random((blocks, 128))
    with enabled():
        got, count = jax.tree.map(np.asarray, jax.jit(flags(blocks))(x))
    total = sum((x[j] * 2 * (j + 1) for j in range(blocks)), np.zeros(128, I32))
    np.testing.assert_array_equal(got, np.tile(total, (blocks, 1)))
    assert count[0] == blocks


@NEEDS_REFERENCES
@pytest.mark.parametrize("mutate", ["relaxed", "scope", "no wait", "acquire"])
def test_what_a_flag_lacks_is_told(mutate: str) -> None:
    x = random((4, 128))

    def call() -> None:
        with enabled():
            jax.tree.map(np.asarray, jax.jit(flags(4, mutate=mutate))(x))

    is_refused(call, "global memory that")


@pytest.mark.parametrize("mutate", ["", "fence"])
def test_threads_hand_on_to_a_copy(mutate: str) -> None:
    """Warpgroup 0 stores into shared memory, warpgroup 1 copies it to global memory: a fence of the async proxy, then an mbarrier."""

    def body(x: Any, o: Any, buffer: Any, bar: Any) -> None:
        wg = jax.lax.axis_index("wg")

        @pl.when(wg == 0)
        def produce() -> None:
            buffer[...] = x[...]
            if not mutate:
                smalt.fence_proxy_async("shared::cta")
            smalt.mbarrier_arrive(bar, threads="all")

        @pl.when(wg == 1)
        def consume() -> None:
            smalt.mbarrier_wait(bar, 0)
            plgpu.copy_smem_to_gmem(buffer, o)
            plgpu.wait_smem_to_gmem(0)

    x = random(TILE, F32)
    scratch = [plgpu.SMEM(TILE, F32), plgpu.Barrier(num_arrivals=128)]

    def call() -> None:
        np.testing.assert_array_equal(run(body, out(*TILE, F32), x, scratch=scratch, num_threads=2, thread_name="wg"), x)

    if mutate:
        is_refused(call, "shared memory that the generic proxy wrote")
    else:
        call()


def test_copies_and_threads_feed_a_product() -> None:
    """A copy and threads hand operands to `wgmma`, each behind an mbarrier of computed phases."""

    def body(x: Any, y: Any, o: Any, a: Any, b: Any, full: Any, stored: Any) -> None:
        wg = jax.lax.axis_index("wg")

        @pl.when(wg == 0)
        def produce() -> None:
            smalt.expect_bytes(full, 64 * 64 * 2)
            plgpu.copy_gmem_to_smem(y, b, full)
            a[...] = x[...]
            smalt.fence_proxy_async("shared::cta")
            smalt.mbarrier_arrive(stored, threads="all")

        @pl.when(wg == 1)
        def multiply() -> None:
            smalt.mbarrier_wait(stored, 0)
            smalt.mbarrier_wait(full, 0)

            def product(acc: Any) -> Any:
                plgpu.wgmma(acc, a, b)
                plgpu.wgmma_wait(0)
                return acc[...]

            o[...] = pl.run_scoped(product, plgpu.ACC((64, 64), F32))

    transforms = plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128)
    x, y = random((64, 64), F32).astype(np.float16), random((64, 64), F32, 1).astype(np.float16)
    scratch = [
        plgpu.SMEM((64, 64), jnp.float16, transforms=transforms),
        plgpu.SMEM((64, 64), jnp.float16, transforms=transforms),
        plgpu.Barrier(num_arrivals=1),
        plgpu.Barrier(num_arrivals=128),
    ]
    got = run(body, out(64, 64, F32), x, y, scratch=scratch, num_threads=2, thread_name="wg")
    np.testing.assert_allclose(got, x.astype(F32) @ y.astype(F32), rtol=1e-5, atol=1e-4)


# ------------------------------------------------------------------------------------------ named barriers by computed numbers


def numbered(steps: int, slots: int, mutate: str = "") -> Any:
    """A warpgroup stores rows into a ring, another one adds them up; each slot has two named barriers, whose numbers are computed."""
    first = 15 - 2 * slots + 1

    def body(x: Any, o: Any, ring: Any) -> None:
        wg = jax.lax.axis_index("wg")
        among = range(first, 16)

        @pl.when(wg == 0)
        def produce() -> None:
            def step(i: Any, _: Any) -> None:
                slot = i % slots

                @pl.when(i >= slots)
                def wait() -> None:
                    if mutate != "empty":
                        smalt.named_barrier_sync(first + 2 * slot + 1, 256, among=among)

                ring[slot] = x[i]
                smalt.named_barrier_arrive(first + 2 * slot, 256, among=among)

            jax.lax.fori_loop(0, steps, step, None)

        @pl.when(wg == 1)
        def consume() -> None:
            def step(i: Any, total: Any) -> Any:
                slot = i % slots
                arrive = smalt.named_barrier_arrive if mutate == "full" else smalt.named_barrier_sync
                arrive(first + 2 * slot, 256, among=among)
                total += ring[slot]

                @pl.when(i + slots < steps)
                def release() -> None:
                    if mutate != "empty":
                        smalt.named_barrier_arrive(first + 2 * slot + 1, 256, among=among)

                return total

            o[...] = jax.lax.fori_loop(0, steps, step, jnp.zeros((256,), I32))

    return kernel(body, out(256, I32), plgpu.SMEM((slots, 256), I32), num_threads=2, thread_name="wg")


@pytest.mark.parametrize(("steps", "slots"), [(1, 1), (7, 1), (9, 3), (20, 6)])
def test_named_barriers_by_computed_numbers(steps: int, slots: int) -> None:
    x = random((steps, 256))
    with enabled():
        got = np.asarray(jax.jit(numbered(steps, slots))(x))
    np.testing.assert_array_equal(got, x.sum(0, dtype=I32))


@pytest.mark.parametrize(("mutate", "says"), [("empty", "deadlock"), ("full", "shared memory that another warp")])
def test_what_computed_numbers_lack_is_told(mutate: str, says: str) -> None:
    def call() -> None:
        with enabled():
            np.asarray(jax.jit(numbered(9, 3, mutate))(random((9, 256))))

    is_refused(call, says)


def test_each_warp_has_a_named_barrier_of_its_own() -> None:
    """In a warp region the number is the warp's."""

    def body(x: Any, o: Any, buffer: Any) -> None:
        @pl.core_map(plgpu.WarpMesh(axis_name="warp"))
        def warps() -> None:
            warp = jax.lax.axis_index("warp")
            smalt.named_barrier_sync(4 + warp, 32, among=range(4, 8))
            smalt.named_barrier_sync(8 + warp // 2, 64, among=range(8, 10))

        buffer[...] = x[...]
        o[...] = buffer[...]

    x = random((128,))
    np.testing.assert_array_equal(run(body, out(128, I32), x, scratch=[plgpu.SMEM((128,), I32)]), x)


# ------------------------------------------------------------------------------------------ stores into peers, cluster barriers


@pytest.mark.skipif(not hasattr(plgpu, "async_store_smem"), reason="this JAX has none")
@pytest.mark.parametrize("dtype", [F32, np.float16, I32], ids=["f32", "f16", "i32"])
@pytest.mark.parametrize("by_hand", [False, True], ids=["announced", "expect_bytes"])
def test_async_store_smem(dtype: Any, by_hand: bool) -> None:
    """Every block sends its tile to its neighbour, twice; the neighbour waits for its barrier only."""

    def body(x: Any, o: Any, buffer: Any, bar: Any) -> None:
        block = jax.lax.axis_index("c")
        layout = plgpu.Layout.WG_STRIDED(TILE, vec_size=2)
        for turn in range(2):
            if by_hand:
                smalt.expect_bytes(bar, 128 * 8 * np.dtype(dtype).itemsize)
            tile = plgpu.layout_cast(x[block] + turn, layout)
            plgpu.async_store_smem(tile, buffer.at[turn], bar, cluster_idx=(block + 1) % CLUSTER, cluster_dim="c")
            plgpu.barrier_wait(bar)
            o[block, turn] = buffer[turn]
            smalt.inline_ptx("barrier.cluster.arrive.aligned; barrier.cluster.wait.acquire.aligned;")

    x = random((CLUSTER, *TILE)).astype(dtype)
    scratch = [plgpu.SMEM((2, *TILE), dtype), plgpu.Barrier(num_arrivals=1)]
    got = run(body, out(CLUSTER, 2, *TILE, dtype), x, scratch=scratch, cluster=(CLUSTER,), cluster_names=("c",))
    np.testing.assert_array_equal(got, np.stack([np.roll(x, 1, 0), np.roll(x + dtype(1), 1, 0)], 1))


REDUCTIONS: dict[str, Any] = {
    "add": np.add.reduce, "min": np.minimum.reduce, "max": np.maximum.reduce,
    "and": np.bitwise_and.reduce, "or": np.bitwise_or.reduce, "xor": np.bitwise_xor.reduce,
}  # fmt: skip


@pytest.mark.parametrize(
    ("op", "dtype"),
    [*((op, dtype) for op in REDUCTIONS for dtype in (I32, U32)), ("add", np.int64), ("add", np.uint64)],
    ids=lambda x: x if isinstance(x, str) else x.__name__,
)
def test_reductions_into_peers(op: str, dtype: Any) -> None:
    """All blocks reduce their tile into every block's buffer, twice; each waits for its own barrier only."""

    def body(x: Any, o: Any, buffer: Any, bar: Any) -> None:
        block = jax.lax.axis_index("c")
        tile = plgpu.layout_cast(x[block], plgpu.Layout.WG_STRIDED(TILE, vec_size=2))
        buffer[...] = jnp.full(TILE, np.array(start).astype(dtype))
        rendezvous = "barrier.cluster.arrive.aligned; barrier.cluster.wait.acquire.aligned;"
        smalt.inline_ptx(rendezvous)
        for turn in range(2):
            smalt.expect_bytes(bar, CLUSTER * tile.size * np.dtype(dtype).itemsize)
            for peer in range(CLUSTER):
                plgpu.async_store_smem(tile, buffer, bar, cluster_idx=jnp.int32(peer), cluster_dim="c", atomic=op)
            smalt.mbarrier_wait(bar, turn, scope="cluster")
            smalt.inline_ptx(rendezvous)
        o[block] = buffer[...]

    x = np.random.default_rng(0).integers(-(2**31), 2**31, (CLUSTER, *TILE)).astype(dtype)
    start = {"min": np.iinfo(dtype).max, "and": -1}.get(op, 0)
    scratch = [plgpu.SMEM(TILE, dtype), plgpu.Barrier(num_arrivals=1)]
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        got = run(body, out(CLUSTER, *TILE, dtype), x, scratch=scratch, cluster=(CLUSTER,), cluster_names=("c",))
    expected = REDUCTIONS[op](np.concatenate([np.full((1, *TILE), np.array(start).astype(dtype)), x, x]), axis=0).astype(dtype)
    np.testing.assert_array_equal(got, np.broadcast_to(expected, got.shape))


def reduced(mutate: str = "") -> Any:
    """Every block adds to words of its right neighbour, whose threads have set them, and who waits for the bytes."""

    def body(x: Any, o: Any, buffer: Any, bar: Any) -> None:
        block = jax.lax.axis_index("c")
        peer = {"c": (block + 1) % CLUSTER}
        rendezvous = "barrier.cluster.arrive.aligned; barrier.cluster.wait.acquire.aligned;"
        if mutate == "a store behind":
            smalt.inline_ptx(rendezvous)
        if mutate == "order":
            pl.when(block == 0)(lambda: buffer.__setitem__(..., x[block]))
        else:
            buffer[...] = x[block]
        smalt.expect_bytes(bar, 2 * 128 * 4 + (4 if mutate == "bytes" else 0))
        if mutate not in ("order", "a store behind"):
            smalt.inline_ptx(rendezvous)
        where = jax.lax.broadcasted_iota(jnp.int32, (128,), 0)
        red = "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.s32 [at], {3}, [{1}];"
        text = f"{{ .reg .b32 at; mad.lo.u32 at, {{2}}, 4, {{0}}; {red} {red} }}"
        smalt.inline_ptx(text, (), plgpu.cluster_ref(buffer, peer), plgpu.cluster_ref(bar, peer), where, x[block])
        if mutate == "a store":
            smalt.inline_ptx("st.shared.b32 [{0}], 7;", (), buffer, once=True)
        if mutate == "an atomic":
            smalt.atomic_add(buffer.at[3], 1, scope="cluster")
        if mutate == "a relaxed wait":
            smalt.mbarrier_wait(bar, 0, order="relaxed", scope="cluster")
        elif mutate != "no wait":
            smalt.mbarrier_wait(bar, 0, scope="cluster")
        o[block] = buffer[...]
        smalt.inline_ptx(rendezvous)

    return kernel(body, out(CLUSTER, 128, I32), plgpu.SMEM((128,), I32), plgpu.Barrier(num_arrivals=1), cluster=(CLUSTER,), cluster_names=("c",))


@pytest.mark.parametrize("mutate", ["", "an atomic"])
def test_red_async_by_hand(mutate: str) -> None:
    x = random((CLUSTER, 128))
    with enabled():
        got = np.asarray(jax.jit(reduced(mutate))(x))
    expected = x + 2 * np.roll(x, 1, 0)
    if mutate:
        expected[:, 3] += 1
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("mutate", "says"),
    [
        ("no wait", "a load of shared memory that a reduction (red.async) in flight writes"),
        ("a relaxed wait", "a load of shared memory that a reduction (red.async) wrote, without having waited for it"),
        ("a store", "a store to shared memory that a reduction (red.async) in flight writes"),
        ("order", "a reduction (red.async) of shared memory that another warp wrote, and nothing orders the two"),
        ("a store behind", "a store to shared memory that a reduction (red.async) in flight writes"),
        ("bytes", "deadlock"),
    ],
)
def test_what_a_reduction_lacks_is_told(mutate: str, says: str) -> None:
    def call() -> None:
        with enabled():
            np.asarray(jax.jit(reduced(mutate))(random((CLUSTER, 128))))

    is_refused(call, says, "remedy")


@pytest.mark.parametrize("groups", ["both axes as one", "each axis"])
def test_cluster_barriers_over_groups_of_axes(groups: str) -> None:
    """Blocks of a 2 × 4 cluster that all wait for each other, or for those in their row and column."""
    axes = (("r", "c"),) if groups == "both axes as one" else ("r", "c")
    # Not all of a row wait for all of a column: a second arrival could come in the first phase.
    turns = 3 if groups == "both axes as one" else 1

    def body(x: Any, o: Any, buffer: Any, bar: Any) -> None:
        r, c = jax.lax.axis_index("r"), jax.lax.axis_index("c")
        for turn in range(turns):
            buffer[turn] = x[r * 4 + c] + turn
            plgpu.barrier_arrive(bar)
            plgpu.barrier_wait(bar)
            there = (r + 1) % 2, c
            if groups == "both axes as one":
                there = (r + 1) % 2, (c + 1 + turn) % 4
            o[r * 4 + c, turn] = plgpu.cluster_ref(buffer, {"r": there[0], "c": there[1]})[turn]
        smalt.inline_ptx("barrier.cluster.arrive.aligned; barrier.cluster.wait.acquire.aligned;")

    x = random((8, 128))
    scratch = [plgpu.SMEM((3, 128), I32), plgpu.ClusterBarrier(collective_axes=axes, num_arrivals=1)]
    got = run(body, out(8, turns, 128, I32), x, scratch=scratch, cluster=(2, 4), cluster_names=("r", "c"))
    for b in range(8):
        for turn in range(turns):
            r, c = b // 4, b % 4
            there = (r + 1) % 2 * 4 + (c if groups == "each axis" else (c + 1 + turn) % 4)
            np.testing.assert_array_equal(got[b, turn], x[there] + turn)


def led(axes: Any, steps: int = 3, mutate: str = "") -> Any:
    """Blocks of a 2 × 4 cluster store their parts in a leader's memory, who adds them up, and lets them go on by a barrier that all wait for."""

    def body(x: Any, o: Any, parts: Any, came: Any, taken: Any) -> None:
        r, c = jax.lax.axis_index("r"), jax.lax.axis_index("c")
        both = axes == (("r", "c"),)
        mine, leads = (r * 4 + c, (r == 0) & (c == 0)) if both else (c, c == 0)
        leader = plgpu.cluster_ref(parts, {"r": 0 if both else r, "c": 0})
        for step in range(steps):
            leader[mine] = x[step, r * 4 + c]
            plgpu.barrier_arrive(came)

            @pl.when(leads | (mutate == "all wait"))
            def lead() -> None:
                if mutate != "no wait":
                    plgpu.barrier_wait(came)
                o[step, r] = jnp.sum(parts[...], axis=0)

            plgpu.barrier_arrive(taken)
            plgpu.barrier_wait(taken)

    count = 8 if axes == (("r", "c"),) else 4
    scratch = [
        plgpu.SMEM((count, 128), I32),
        plgpu.ClusterBarrier(collective_axes=axes, leader_tracked=True),
        plgpu.ClusterBarrier(collective_axes=(("r", "c"),)),
    ]
    return kernel(body, out(steps, 2, 128, I32), *scratch, cluster=(2, 4), cluster_names=("r", "c"))


@pytest.mark.parametrize("axes", [("c",), (("r", "c"),)], ids=["one axis", "two as one"])
def test_barriers_of_a_leader(axes: Any) -> None:
    x = random((3, 8, 128))
    with enabled():
        got = np.asarray(jax.jit(led(axes))(x))
    rows = x.reshape(3, 2, 4, 128).sum(2, dtype=I32)
    if axes == ("c",):
        np.testing.assert_array_equal(got, rows)
    else:
        np.testing.assert_array_equal(got[:, 0], rows.sum(1, dtype=I32))


def test_who_does_not_lead_waits_for_ever() -> None:
    with smalt.emulated("H100"):
        is_refused(lambda: np.asarray(jax.jit(led(("c",), mutate="all wait"))(random((3, 8, 128)))), "deadlock")


def test_a_leader_that_does_not_wait_is_told() -> None:
    with smalt.emulated("H100"):
        is_refused(lambda: np.asarray(jax.jit(led(("c",), mutate="no wait"))(random((3, 8, 128)))), "nothing orders")


#: Random rings, and how many in one test.
COUNT, TOGETHER = (200, 25) if ON_GPU else (40, 10)


@pytest.mark.parametrize("schedule", ["latest"] if ON_GPU else ["latest", "earliest"])
@pytest.mark.parametrize("first", range(0, COUNT, TOGETHER))
@pytest.mark.shared
def test_random_rings(first: int, schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMALT_SCHEDULE", schedule)
    right(counted.COUNTED, range(first, first + TOGETHER))


# ------------------------------------------------------------------------------------------ matmuls


def matmuls() -> dict[str, Any]:
    from examples.cluster_split_k import WAYS, split_k
    from examples.pingpong_matmul import ping_pong, warp_specialized

    kernels = {"warp-specialised": warp_specialized, "warp-specialised, 2 slots": lambda a, b: warp_specialized(a, b, slots=2)}
    for turns in ("named", "mbarriers"):
        kernels[f"ping-pong by {turns}"] = lambda a, b, turns=turns: ping_pong(a, b, turns=turns, tiles=1)
        kernels[f"ping-pong by {turns}, tiles"] = lambda a, b, turns=turns: ping_pong(a, b, turns=turns, tiles=2, slots=3)
    for how in WAYS:
        kernels[f"split-K by {how}"] = lambda a, b, how=how: split_k(a, b, how=how)
    return kernels


MATMULS = matmuls()


@pytest.mark.parametrize("name", MATMULS)
def test_matmuls(name: str) -> None:
    a, b = random((256, 512), F32).astype(np.float16), random((512, 256), F32, 1).astype(np.float16)
    with enabled():
        got = np.asarray(jax.jit(MATMULS[name])(a, b), F32)
    expected = a.astype(F32) @ b.astype(F32)
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=0.04)
