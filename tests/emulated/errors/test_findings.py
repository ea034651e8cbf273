"""What the emulator finds in kernels that others write: that it is reported, what the words say, and that right twins are not.

Races older than a warp's last release, bulk stores in flight, stores to what another block reads, memory that nobody wrote, and blocks that
wait for blocks which have not begun.
"""

from __future__ import annotations

import itertools
import re
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest
import smalt
from jax import lax

from tests.corpus.case import REFS_AS_ARGUMENTS, called, kernel, like
from tests.suites.asynchrony.subject import load_all

pytestmark = pytest.mark.shared

I32, F32 = jnp.int32, jnp.float32
SMEM, Barrier = plgpu.SMEM, plgpu.Barrier
#: The author answers for every barrier and fence.
MANUAL = smalt.CompilerParams(unsafe_no_auto_barriers=True)


def run(call: Callable[..., Any], *args: Any, check: str = "error") -> Any:
    with smalt.emulated("H100", check=check):
        return jax.tree.map(np.asarray, jax.jit(call)(*args))


def reported(call: Callable[..., Any], *args: Any, check: str = "error") -> str:
    with pytest.raises(smalt.Error) as info:
        run(call, *args, check=check)
    assert not isinstance(info.value, smalt.Internal), info.value
    return str(info.value)


# ------------------------------------------------------------------------------------------ histories of a line

ONES = np.ones(128, np.int32)


def two_warpgroups(first: list[str], second: str, waits: bool) -> Any:
    """Warpgroup 0 does `first` ("read 0", "write 3", "release"), then 1 does `second`; `waits`: having waited for all of that."""

    def act(what: str, s: Any, o: Any, bar: Any, k: int) -> None:
        verb, _, place = what.partition(" ")
        if verb == "release":
            plgpu.barrier_arrive(bar)
        elif verb == "read":
            o[k] = s[int(place)]
        else:
            s[int(place)] = 7 + k

    def body(x: Any, o: Any, s: Any, full: Any, unheard: Any, done: Any) -> None:
        wg = lax.axis_index("wg")

        @pl.when(wg == 0)
        def _() -> None:
            plgpu.copy_gmem_to_smem(x, s, full)

        plgpu.barrier_wait(full)

        @pl.when(wg == 0)
        def _() -> None:
            for k, what in enumerate(first):
                act(what, s, o, unheard, k)
            plgpu.barrier_arrive(done)

        @pl.when(wg == 1)
        def _() -> None:
            if waits:
                plgpu.barrier_wait(done)
            act(second, s, o, done, 100)

    launch = {"num_threads": 2, "thread_name": "wg", "params": MANUAL}
    # As many phases as there are releases: nobody waits for one.
    scratch = (SMEM((128,), I32), Barrier(), Barrier(num_arrivals=8), Barrier())
    return kernel(body, like((128,), I32), *scratch, **launch)


HISTORIES = [
    (["read 0", "release", "read 1"], "write 0"),
    (["read 0", "release", "read 1", "release", "read 2"], "write 0"),
    (["read 0", "release", "read 1", "release", "read 2"], "write 1"),
    (["write 0", "release", "write 1"], "read 0"),
    (["write 0", "release", "write 1"], "write 0"),
    (["write 5", "release", "read 6", "release", "write 7"], "read 5"),
    (["read 0", "read 9", "release", "read 0"], "write 9"),
]


@pytest.mark.parametrize("first, second", HISTORIES, ids=str)
def test_a_race_with_what_is_older_than_a_release(first: list[str], second: str) -> None:
    text = reported(two_warpgroups(first, second, waits=False), ONES)
    assert "shared memory that another warp" in text and "nothing orders the two" in text, text
    run(two_warpgroups(first, second, waits=True), ONES)


def test_all_short_histories_of_a_line() -> None:
    """Of two words of a line: whichever conflicts is reported, whatever comes behind it; what does not, is not."""
    rng = np.random.default_rng(3)
    acts = ["read 0", "read 1", "write 0", "write 1", "release"]
    programs = [list(p) for n in (1, 2, 3, 4) for p in itertools.product(acts, repeat=n)]
    wrong = []
    for i in rng.choice(len(programs), 40, replace=False):
        first, second = programs[i], acts[int(rng.integers(4))]
        verb, place = second.split()
        races = any(a != "release" and a.split()[1] == place and "write" in (verb, a.split()[0]) for a in first)
        try:
            run(two_warpgroups(first, second, waits=False), ONES)
            got = False
        except smalt.ExecutionError as e:
            got = "nothing orders the two" in str(e)
        if got != races:
            wrong.append((first, second, races))
    assert not wrong, wrong


# ------------------------------------------------------------------------------------------ bulk stores in flight


def store_in_flight(act: str, wait: str | None) -> Any:
    """A bulk store to `o`, then `act` on it, with `wait` before."""

    def body(o: Any, p: Any, s: Any) -> None:
        s[...] = jnp.full((128,), 5, I32)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(s, o)
        if wait is not None:
            plgpu.wait_smem_to_gmem(0, wait_read_only=wait == "reads")
        p[...] = jnp.zeros((128,), I32)
        if act == "store":
            o[...] = jnp.full((128,), 3, I32)
        elif act == "load":
            p[...] = o[...] + 1
        elif act == "bulk store":
            s[...] = jnp.full((128,), 4, I32) if wait else s[...]
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(s, o)
        plgpu.wait_smem_to_gmem(0)

    return kernel(body, (like((128,), I32), like((128,), I32)), SMEM((128,), I32))


@pytest.mark.parametrize("act, wait", [("store", None), ("store", "reads"), ("load", None), ("load", "reads"), ("bulk store", "reads")])
@pytest.mark.parametrize("schedule", ["latest", "earliest", "seeded"])
def test_memory_that_the_warps_own_bulk_store_writes(act: str, wait: str | None, schedule: str) -> None:
    with smalt.emulated("H100"):
        descriptor = smalt.descriptor(store_in_flight(act, wait))[0]
        right = smalt.descriptor(store_in_flight(act, "all"))[0]
    buffers = lambda: [np.zeros(128, np.int32) for _ in range(2)]  # noqa: E731
    smalt._native.compile(*right[1:], "sm_90a").emulate(buffers(), schedule=schedule, seed=1, check="error")
    with pytest.raises(smalt.ExecutionError) as info:
        smalt._native.compile(*descriptor[1:], "sm_90a").emulate(buffers(), schedule=schedule, seed=1, check="error")
    text = str(info.value)
    assert "global memory that" in text and "wait_smem_to_gmem(0)" in text, text


# ------------------------------------------------------------------------------------------ blocks that read what others store


def halo(shift: int, blocks: int = 6) -> Any:
    """`r[i] = r[i + shift] * 2` in place, one block each."""

    def body(r: Any) -> None:
        i = lax.axis_index("i")
        r[i] = r[lax.rem(i + shift, blocks)] * 2

    def call(x: Any) -> Any:
        ref = jax.new_ref(x)
        kernel(body, (), grid=(blocks,), grid_names=("i",))(ref)
        return ref[...]

    return call


def aliased(shift: int, blocks: int = 6) -> Any:
    """The same of a `pallas_call` whose output is its input."""

    def body(x: Any, o: Any) -> None:
        o[...] = x[...] * 2

    spec = lambda by: pl.BlockSpec((1, 128), lambda i: (lax.rem(i + by, blocks), 0))  # noqa: E731
    return pl.pallas_call(
        body,
        grid=(blocks,),
        in_specs=[spec(shift)],
        out_specs=spec(0),
        out_shape=like((blocks, 128), I32),
        input_output_aliases={0: 0},
    )


def test_steps_that_share_a_buffer_run_in_order() -> None:
    """A `pallas_call` in place whose steps read what others write: as JAX's interpreter has it."""
    x = np.arange(6 * 128, dtype=np.int32).reshape(6, 128) + 1
    want = x.copy()
    for i in range(6):
        want[i] = want[(i + 1) % 6] * 2
    np.testing.assert_array_equal(run(aliased(1), x), want)


@pytest.mark.parametrize("make", [halo])
def test_a_store_to_what_another_block_reads_is_told_in_every_run(make: Any) -> None:
    if make is halo and not REFS_AS_ARGUMENTS:
        pytest.skip("mutable references are arguments of kernels since JAX 0.11")
    x = np.arange(6 * 128, dtype=np.int32).reshape(6, 128) + 1
    for _ in range(8):
        text = reported(make(1), x)
        assert re.search(r"a (bulk )?(store of another value to|load of) global memory that CTA \(\d, 0, 0\) (reads|wrote)", text), text
    np.testing.assert_array_equal(run(make(0), x), 2 * x)


# ------------------------------------------------------------------------------------------ memory that nobody wrote


def undefined(how: str) -> Any:
    def body(x: Any, o: Any, s: Any) -> None:
        if how == "the scratch is never stored":
            o[...] = s[...] + x[...]  # READ
        elif how == "the output is added to":
            o[...] += x[...]  # READ
        elif how == "a part of the scratch is stored":
            s[0:64] = jnp.zeros((64,), F32)
            o[...] = s[...] * 2  # READ
        elif how == "a part of the scratch is stored and all of it copied":
            s[0:64] = jnp.zeros((64,), F32)
            o[...] = s[...]
        elif how == "a branch":
            v = s[0]  # READ
            o[...] = x[...]

            @pl.when(v > 3.0)
            def _() -> None:
                o[...] = x[...] + 1

            @pl.when(v == 0.0)
            def _() -> None:
                o[...] = x[...] + 2

        elif how == "nan times zero":
            o[...] = s[...] * 0.0 + x[...]  # READ
        elif how == "read and thrown away":
            v = s[...]
            o[...] = jnp.where(x[...] > 1e30, v, x[...])
        elif how == "the rest is not used":
            s[0:64] = jnp.ones((64,), F32)
            o[...] = jnp.where(jnp.arange(128) < 64, s[...], x[...])
        elif how == "stored first":
            s[...] = x[...]
            o[...] = s[...]
        else:
            raise AssertionError(how)

    return kernel(body, like((128,), F32), SMEM((128,), F32))


X = np.linspace(0, 1, 128, dtype=np.float32)
READ = [
    "the scratch is never stored",
    "the output is added to",
    "a part of the scratch is stored",
    "a branch",
    "nan times zero",
]


@pytest.mark.parametrize("how", READ)
def test_a_value_of_memory_that_nobody_wrote_reaches_an_output(how: str, capfd: pytest.CaptureFixture[str]) -> None:
    """A warning, with both lines: nobody may look at those elements."""
    run(undefined(how), X)
    text = capfd.readouterr().err
    assert "warning: a value of memory that nothing wrote reaches an output" in text, text
    assert f"of {called('o')}output f32[128], stored at" in text and "memory that nothing wrote is read at" in text and "remedy: store to it first" in text, text
    assert text.count("test_findings.py:") >= 2, text
    run(undefined(how), X, check="off")
    assert "nothing wrote" not in capfd.readouterr().err


@pytest.mark.parametrize("how", ["read and thrown away", "the rest is not used", "stored first"])
def test_memory_that_nobody_wrote_may_be_read(how: str) -> None:
    got = run(undefined(how), X)
    assert not np.isnan(got).any()


def test_memory_that_nobody_wrote_is_copied(capfd: pytest.CaptureFixture[str]) -> None:
    """Blocks of which a part is stored are copied whole, and nobody may look at the rest."""
    run(undefined("a part of the scratch is stored and all of it copied"), X)
    text = capfd.readouterr().err
    assert "warning: memory that nothing wrote is copied to an output" in text and f"element (64) of {called('o')}output f32[128]" in text, text


def test_a_value_of_memory_that_nobody_wrote_decides() -> None:
    """With zeros there the kernel waits for ever."""

    def body(o: Any, s: Any, bar: Any) -> None:
        pl.when(s[0] == 0)(lambda: plgpu.barrier_wait(bar))
        o[...] = jnp.ones((128,), jnp.int32)

    text = reported(kernel(body, like((128,), I32), SMEM((128,), I32), Barrier()))
    assert "memory that nothing wrote decides" in text and "with other contents of that memory: " in text and "test_findings.py" in text, text


def test_an_output_of_which_a_part_is_never_stored(capfd: pytest.CaptureFixture[str]) -> None:
    def body(x: Any, o: Any) -> None:
        i = lax.axis_index("i")
        o[pl.ds(i * 32, 32)] = x[pl.ds(i * 32, 32)]

    run(kernel(body, like((128,), F32), grid=(3,), grid_names=("i",)), X)
    text = capfd.readouterr().err
    assert "a part of an output is never stored" in text and f"32 elements not stored, the first is element (96) of {called('o')}output f32[128]" in text, text
    run(kernel(body, like((128,), F32), grid=(4,), grid_names=("i",)), X)
    assert "never stored" not in capfd.readouterr().err


# ------------------------------------------------------------------------------------------ words


@pytest.mark.parametrize("schedule", ["latest", "earliest", "seeded"])
def test_an_operand_that_is_refilled_while_a_wgmma_reads_it(schedule: str) -> None:
    twin = load_all()[1]["wgmma_refill: refills before wgmma_wait"]
    with pytest.raises(smalt.ExecutionError) as info:
        twin.emulate(schedule=schedule, seed=2, check="error")
    text = str(info.value)
    assert "a bulk load overwrites shared memory that is still read" in text and "wgmma_wait" in text, text
    assert "delay_release=1" in text or "barrier_arrive" in text, text


def test_a_forgotten_wait_names_the_read() -> None:
    def body(x: Any, o: Any, s: Any, bar: Any) -> None:
        plgpu.copy_gmem_to_smem(x, s, bar)
        o[...] = s[...]  # READ

    text = reported(kernel(body, like((128,), F32), SMEM((128,), F32), Barrier()), X)
    line = body.__code__.co_firstlineno + 2
    assert f"test_findings.py:{line}" in text and "barrier_wait" in text, text


def test_too_many_arrivals_have_a_remedy() -> None:
    def body(o: Any, bar: Any) -> None:
        smalt.mbarrier_arrive(bar, 3)
        o[...] = jnp.zeros((128,), F32)

    call = lambda n: kernel(body, like((128,), F32), Barrier(num_arrivals=n))  # noqa: E731
    text = reported(call(2))
    assert "at most 2 more arrivals" in text and "remedy: let `num_arrivals` be the number of arrivals of a phase" in text, text
    run(call(3))


def test_blocks_that_wait_for_blocks_which_have_not_begun() -> None:
    blocks, fit = 200, 132

    def body(o: Any, s: Any, count: int = blocks) -> None:
        s[0] = 0  # only one block fits on an SM
        sem = pl.get_global(plgpu.SemaphoreType.REGULAR)
        pl.semaphore_signal(sem, 1)
        pl.semaphore_wait(sem, count, decrement=False)
        o[lax.axis_index("i")] = s[0]

    def call(count: int) -> Any:
        scratch = SMEM((50_000,), I32)
        return kernel(lambda *refs: body(*refs, count=count), like((count,), I32), scratch, grid=(count,), grid_names=("i",))

    text = reported(call(blocks))
    assert f"{blocks - fit} of {blocks} blocks have not begun: {fit} fit at once" in text and "core_count" in text, text
    run(call(fit))


def test_an_index_outside_of_its_dimension_is_softened(capfd: pytest.CaptureFixture[str]) -> None:
    def body(n: Any, x: Any, o: Any) -> None:
        o[...] = x[0, pl.ds(n[0], 128)]

    call, x = kernel(body, like((128,), F32)), np.arange(512, dtype=np.float32).reshape(2, 256)
    n = np.array([200], np.int32)
    assert "outside of its dimension" in reported(call, n, x)
    np.testing.assert_array_equal(run(call, n, x, check="warn"), x.reshape(-1)[200:328])
    assert "outside of its dimension" in capfd.readouterr().err
    np.testing.assert_array_equal(run(call, n, x, check="off"), x.reshape(-1)[200:328])
    assert "outside" not in capfd.readouterr().err


def test_loads_outside_of_an_array_give_zeros(capfd: pytest.CaptureFixture[str]) -> None:
    def body(n: Any, x: Any, o: Any) -> None:
        o[...] = x[pl.ds(n[0], 128)]

    call, x = kernel(body, like((128,), F32)), np.arange(256, dtype=np.float32) + 1
    n = np.array([192], np.int32)
    assert "outside" in reported(call, n, x)
    expected = np.concatenate([x[192:], np.zeros(64, np.float32)])
    for check in ("warn", "off"):
        np.testing.assert_array_equal(run(call, n, x, check=check), expected)
    assert "outside of its dimension" in capfd.readouterr().err


# ------------------------------------------------------------------------------------------ what to do, in the user's words


def between_warpgroups(commits: bool, arrives: bool) -> Any:
    def body(x: Any, o: Any, s: Any, done: Any) -> None:
        wg = lax.axis_index("wg")

        @pl.when(wg == 0)
        def _() -> None:
            s[...] = x[...]
            if commits:
                plgpu.commit_smem()
            if arrives:
                plgpu.barrier_arrive(done)

        @pl.when(wg == 1)
        def _() -> None:
            if arrives:
                plgpu.barrier_wait(done)
            plgpu.copy_smem_to_gmem(s, o)
            plgpu.wait_smem_to_gmem(0)

    return kernel(body, like((128,), F32), SMEM((128,), F32), Barrier(), num_threads=2, thread_name="wg")


@pytest.mark.parametrize("commits, arrives", [(False, True), (True, False), (False, False)])
def test_what_another_warpgroup_copies(commits: bool, arrives: bool) -> None:
    text = reported(between_warpgroups(commits, arrives), X)
    assert "commit the writes (`commit_smem`)" in text and "in the warpgroup that makes them" in text, text
    assert ("arrive at a barrier (`barrier_arrive`)" in text) != arrives, text
    np.testing.assert_array_equal(run(between_warpgroups(True, True), X), X)


def test_arrivals_are_counted_as_the_kernel_counts_them() -> None:
    def call(arrivals: int) -> Any:
        def body(x: Any, o: Any, done: Any) -> None:
            plgpu.barrier_arrive(done)
            plgpu.barrier_wait(done)
            o[...] = x[...]

        return kernel(body, like((128,), F32), Barrier(num_arrivals=arrivals))

    text = reported(call(2), X)
    assert "1 of 2 arrivals to come" in text and "deadlock" in text, text
    np.testing.assert_array_equal(run(call(1), X), X)


def test_arrivals_of_a_cluster_are_counted_as_the_kernel_counts_them() -> None:
    def call(all_arrive: bool) -> Any:
        def body(x: Any, o: Any, done: Any) -> None:
            c = lax.axis_index("c")

            @pl.when((c == 0) | all_arrive)
            def _() -> None:
                plgpu.barrier_arrive(done)

            plgpu.barrier_wait(done)
            o[c] = x[...]

        barrier = plgpu.ClusterBarrier(collective_axes=("c",))
        return kernel(body, like((2, 128), F32), barrier, cluster=(2,), cluster_names=("c",))

    text = reported(call(False), X)
    assert "deadlock" in text and "1 of 2 arrivals to come" in text, text
    np.testing.assert_array_equal(run(call(True), X), [X, X])


def test_arrivals_beyond_a_phase_are_counted_as_the_kernel_counts_them() -> None:
    """A phase that has its arrivals, but not the bytes of its copy."""

    def call(arrives: bool) -> Any:
        def body(x: Any, o: Any, s: Any, done: Any) -> None:
            wg = lax.axis_index("wg")

            @pl.when(wg == 0)
            def _() -> None:
                plgpu.copy_gmem_to_smem(x, s, done)
                if arrives:
                    plgpu.barrier_arrive(done)
                plgpu.barrier_wait(done)
                o[...] = s[...]

        return kernel(body, like((128,), F32), SMEM((128,), F32), Barrier(num_arrivals=1), num_threads=2, thread_name="wg")

    text = reported(call(True), X)
    assert "expected: no more arrivals in this phase, which has all of its own" in text and "got: 1\n" in text, text
    np.testing.assert_array_equal(run(call(False), X), X)


def refilled_multicast(orders: bool) -> Any:
    def body(x: Any, o: Any, s: Any, full: Any, free: Any) -> None:
        c = lax.axis_index("c")

        @pl.loop(0, 3)
        def _(i: Any) -> None:
            plgpu.copy_gmem_to_smem(x.at[i], s, full, collective_axes="c")
            plgpu.barrier_wait(full)
            o[c, i] = s[...]
            if orders:
                plgpu.barrier_arrive(free)
                plgpu.barrier_wait(free)

    scratch = (SMEM((128,), F32), Barrier(), plgpu.ClusterBarrier(collective_axes=("c",)))
    return kernel(body, like((2, 3, 128), F32), *scratch, cluster=(2,), cluster_names=("c",))


def test_a_multicast_that_a_peer_still_reads() -> None:
    x = np.arange(384, dtype=np.float32).reshape(3, 128)
    assert "plgpu.ClusterBarrier" in reported(refilled_multicast(False), x)
    np.testing.assert_array_equal(run(refilled_multicast(True), x), [x, x])


# ------------------------------------------------------------------------------------------ the compiler's own checkers


@pytest.mark.parametrize("broken", ["order", "layouts", "ssa"])
def test_what_a_verifier_finds_is_one_internal_error(broken: str) -> None:
    """Builds for tests break what a pass has made of a kernel of this name."""

    def body(x_ref: Any, o_ref: Any, s: Any) -> None:
        s[...] = x_ref[...]
        o_ref[...] = jnp.broadcast_to(s[5], (128,))

    def call(name: str) -> Any:
        own = types.FunctionType(body.__code__, body.__globals__, name, None, body.__closure__)
        return kernel(own, like((128,), F32), SMEM((128,), F32))

    with pytest.raises(smalt.Internal) as info:
        run(call(f"smalt_test_broken_{broken}"), X)
    text = str(info.value)
    assert text.count("internal error of smalt (please report it)") == 1, text
    line = body.__code__.co_firstlineno
    assert info.value.where in [f"{__file__}:{line + i}" for i in range(3)], text
    np.testing.assert_array_equal(run(call("right"), X), np.full(128, X[5]))
