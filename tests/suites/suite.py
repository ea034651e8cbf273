"""The tests of kernels, for the machine that there is: the emulator, or a GPU."""

from __future__ import annotations

import collections
import gc
import os
import pathlib
import re
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest

import smalt
from smalt import _native
from examples.matmul import matmul
from tests.corpus import load_all
from tests.corpus.case import EXACT, kernel, like
from tests.fuzz.seeds import VERSION, seeds
from tests.machine import ON_GPU, enabled
from tests.programs import conversions
from tests.programs.scalars import SCALARS_OF_WARPGROUPS, SCALARS_OF_WARPS, Program
from tests.suites import hard

PROGRAMS = 200
PROGRAMS_OF_WARPS = 40
BATCH = 10

# ------------------------------------------------------------------------------------------ random programs


@seeds(SCALARS_OF_WARPGROUPS, PROGRAMS, BATCH)
def test_random_programs_equal_numpy(programs: list[Program]) -> None: ...


@seeds(SCALARS_OF_WARPS, PROGRAMS_OF_WARPS, BATCH, first=PROGRAMS)
def test_random_programs_of_warps_equal_numpy(programs: list[Program]) -> None: ...


# ------------------------------------------------------------------------------------------ a matmul with everything written down


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("cluster", [1, 2])
def test_annotated_matmul(cluster: int, dtype: Any) -> None:
    """Ring, roles, register counts, multicast: right, and on a GPU with the emulator's bits."""
    rng = np.random.default_rng(cluster)
    a, b = (np.asarray(rng.standard_normal(shape), dtype) for shape in ((512, 640), (640, 256)))
    f = jax.jit(lambda a, b: matmul(a, b, cluster=cluster))
    with enabled():
        out = np.asarray(f(a, b))
        if ON_GPU:
            cpu = jax.devices("cpu")[0]
            assert np.asarray(f(jax.device_put(a, cpu), jax.device_put(b, cpu))).tobytes() == out.tobytes()
    reference = a.astype(np.float64) @ b.astype(np.float64)
    error = np.linalg.norm(out.astype(np.float64) - reference) / np.linalg.norm(reference)
    assert error < float(jnp.finfo(dtype).eps) / 4


@pytest.mark.parametrize(("m", "n", "k", "wrong"), [(300, 128, 64, "m .* 256, got 300"), (256, 100, 64, "n .* 128"), (256, 128, 0, "k .* 64, got 0")])
def test_annotated_matmul_says_what_fits(m: int, n: int, k: int, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        matmul(jnp.ones((m, k), jnp.float16), jnp.ones((k, n), jnp.float16))


# ------------------------------------------------------------------------------------------ conversions of layouts

#: 10,000 conversions; in the emulator, those of one JAX version are a third of them, each version's others.
#: SMALT_CONVERSIONS, of any machine: how many instead.
_CHOSEN = [seed for seed in range(conversions.KERNELS) if ON_GPU or seed % 3 == VERSION]
if "SMALT_CONVERSIONS" in os.environ:
    _CHOSEN = list(range(-(-int(os.environ["SMALT_CONVERSIONS"]) // conversions.BATCH)))
CONVERSIONS = [_CHOSEN[i : i + BATCH] for i in range(0, len(_CHOSEN), BATCH)]


@pytest.mark.parametrize("seeds", CONVERSIONS, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_conversions_of_layouts(seeds: list[int]) -> None:
    """Through instructions: every bit that goes in comes out, wherever it has been."""
    kernels = [conversions.Walks.of(seed) for seed in seeds]
    artifacts = [k.compile() for k in kernels]
    for artifact in artifacts if ON_GPU else ():
        artifact.assemble_in_background()
    for k, artifact in zip(kernels, artifacts):
        assert k.conversions >= conversions.BATCH
        k.check(artifact, 0 if ON_GPU else None)


@pytest.mark.shared
def test_conversions_happen() -> None:
    """Arrays lie as Mosaic would have them lie, and conversions of every kind are emitted, for types of every width."""
    every, kinds, trips, widths, placed = 0, collections.Counter(), 0, collections.Counter(), 0
    for seed in range(0, conversions.KERNELS, 13):
        for cast in conversions.casts(conversions.Walks.of(seed)):
            layout = conversions.explicit(cast.asked)
            if layout is not None and not conversions.is_splat(cast.asked):
                mine, theirs = conversions.placed_by_smalt(cast.chosen), conversions.placed_by_mosaic(layout, cast.shape)
                np.testing.assert_array_equal(mine, theirs, f"{cast}")
                placed += 1
            trips += cast.trips > 1
            if cast.counts:
                every += 1
                kinds[cast.kind] += 1
                widths[cast.walk.bits] += 1
    assert every >= 800 and placed >= 800
    assert all(kinds[kind] >= every // 7 for kind in ("free", "shuffles", "scratch")), kinds
    assert all(widths[bits] >= every // 25 for bits in conversions.TYPES), widths
    assert trips >= 3


@pytest.mark.parametrize(
    ("pattern", "into"),
    [
        (r"(shfl\.sync\.idx\.b32 %r\d+, %r\d+), (%r\d+), 31,", r"\1, 0, 31,"),
        (r"(prmt\.b32 %r\d+), (%r\d+), (%r\d+),", r"\1, \3, \2,"),
        (r"(st\.shared\.v2\.b32 \[\S+\]), \{(%r\d+), (%r\d+)\}", r"\1, {\3, \2}"),
    ],
)
def test_a_wrong_conversion_shows(pattern: str, into: str) -> None:
    """The check of conversions fails where one instruction differs."""
    for walks in map(conversions.Walks.of, range(20)):
        artifact = walks.compile()
        wrong, count = re.subn(pattern, into, artifact.ptx, count=1)
        if count == 0:
            continue
        walks.check(artifact, 0 if ON_GPU else None)
        report = artifact.report()
        changed = _native.from_ptx(report["launch"]["entry"], wrong, report["launch"], report["buffers"], "sm_90a")
        with pytest.raises(AssertionError, match="bytes differ"):
            walks.check(changed, 0 if ON_GPU else None)
        return
    raise AssertionError("no such instruction")


def test_conversions_to_a_splat_are_refused() -> None:
    """What is not the same everywhere cannot become it."""
    for shape, layout in [((64, 64), plgpu.Layout.WGMMA), ((128,), plgpu.Layout.WG_STRIDED), ((64,), plgpu.Layout.WGMMA.reduce(1))]:

        def body(x: Any, o: Any) -> None:
            o[...] = plgpu.layout_cast(plgpu.layout_cast(x[...], layout), plgpu.Layout.WG_SPLAT(shape))

        with enabled(), pytest.raises(smalt.Error, match=r"(?s)a change of layout of f32.*suite\.py"):
            jax.jit(lambda x: kernel(body, like(shape))(x))(jnp.ones(shape))


# ------------------------------------------------------------------------------------------ kernels that a toy would fail


@pytest.mark.parametrize("name", hard.CASES)
def test_hard_kernel(name: str) -> None:
    hard.CASES[name].run()


@pytest.mark.parametrize("name", hard.FROM_CORPUS)
def test_hard_kernel_of_the_corpus(name: str) -> None:
    case = load_all()[name]
    assert case.reference is not None
    case.run()


def _artifact(f: Any, *args: Any) -> _native.Artifact:
    with enabled():
        ((_, descriptor, debug),) = smalt.descriptor(f, *args)
    return _native.compile(descriptor, debug, "sm_90a")


def test_forty_tensor_maps_are_that_many() -> None:
    case = hard.CASES["forty_tensor_maps"]
    params = _artifact(case.fn, *(a.struct() for a in case.args)).report()["launch"]["params"]
    assert sum("TensorMap" in p for p in params) == 40


def test_nine_warpgroups_are_refused() -> None:
    def body(o: Any) -> None:
        o[jax.lax.axis_index("wg")] = 1

    k = kernel(body, like((9,), jnp.int32), num_threads=9, thread_name="wg")
    with enabled(), pytest.raises(smalt.InvalidKernel, match=r"(?s)too many Pallas threads.*num_threads <= 8.*num_threads = 9.*suite\.py"):
        jax.jit(lambda: k())()


def lines_marked(marker: str) -> list[int]:
    """The lines of this file that end with `# LINE marker`."""
    return [i for i, text in enumerate(pathlib.Path(__file__).read_text().splitlines(), 1) if text.endswith(f"# LINE {marker}")]


def test_equal_kernels_report_their_own_lines() -> None:
    """Equal bytes at two lines: each error names its own call."""

    def one(*args: Any) -> Any:
        return k(*args)  # LINE call

    def other(*args: Any) -> Any:
        return k(*args)  # LINE call

    def refused(i: Any, x: Any, o: Any) -> None:
        o[...] = jnp.fft.fft(x[i[0]]).real

    def out_of_bounds(i: Any, x: Any, o: Any) -> None:
        o[...] = x[i[0]]  # LINE load

    indices, x = jnp.full(1, 99, jnp.int32), jnp.ones((4, 128))
    # A GPU does not say what was out of bounds.
    for body, kind in [(refused, smalt.Unsupported)] + ([] if ON_GPU else [(out_of_bounds, jax.errors.JaxRuntimeError)]):
        k = kernel(body, like((128,)))
        seen = []
        for f in (one, other):
            jax.clear_caches()  # JAX lowers two calls of one traced kernel once
            with enabled(), pytest.raises(kind) as error:
                jax.block_until_ready(jax.jit(f)(indices, x))
            seen += [int(n) for n in re.findall(r"called from .*suite\.py:(\d+)", str(error.value))]
            if body is out_of_bounds:
                assert f"suite.py:{lines_marked('load')[0]} " in str(error.value)
        assert seen == lines_marked("call")


def test_buffers_move_between_calls() -> None:
    """Tensor maps follow their buffers, whatever of a call was kept (on a GPU a CUDA graph)."""

    def body(x: Any, o: Any, buf: Any, bar: Any) -> None:
        plgpu.copy_gmem_to_smem(x, buf, bar)
        plgpu.barrier_wait(bar)
        buf[...] = buf[...] + 1
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(buf, o)
        plgpu.wait_smem_to_gmem(0)

    scratch = (plgpu.SMEM((64, 64), jnp.float32, transforms=hard.tiled(jnp.float32)), plgpu.Barrier())
    k = kernel(body, like((64, 64)), *scratch, params=EXACT)
    with enabled():
        f = jax.jit(lambda v: k(k(k(v) * 2) + 1))
        keep = []
        for seed in range(12):
            v = jax.random.normal(jax.random.key(seed), (64, 64), jnp.float32)
            keep.append((v, f(v)))
            if seed % 3 == 0:
                keep.append((jnp.zeros((seed + 1, 999)), None))
        for v, got in keep:
            if got is not None:
                np.testing.assert_array_equal(got, ((np.asarray(v) + 1) * 2 + 1) + 1 + 1)


# ------------------------------------------------------------------------------------------ many kernels

MANY = 10_000


def resident_mib() -> float:
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


@pytest.mark.skipif(not pathlib.Path("/proc/self/statm").exists(), reason="needs /proc")
def test_many_kernels_take_bounded_memory() -> None:
    """Kernels that differ in a constant: each is compiled and run once, and the caches let go of it."""
    marker = 0x5EED1234

    def body(o: Any) -> None:
        o[0] = jnp.int32(marker)

    with enabled():
        ((_, descriptor, debug),) = smalt.descriptor(lambda: kernel(body, like((1,), jnp.int32))())
    needle = marker.to_bytes(4, "little")
    assert descriptor.count(needle) == 1

    def run(numbers: range) -> None:
        some = [descriptor.replace(needle, number.to_bytes(4, "little")) for number in numbers]
        artifacts = [_native.compile(each, debug, "sm_90a") for each in some]
        for artifact in artifacts if ON_GPU else ():
            artifact.assemble_in_background()
        for number, artifact in zip(numbers, artifacts):
            out = np.zeros(1, np.int32)
            artifact.run([out], 0 if ON_GPU else None)
            assert out[0] == number

    before, full = _native.cache_stats()["compiled"], 0.0
    for first in range(1000, 1000 + MANY, 200):
        run(range(first, first + 200))
        if first == 3000:  # The caches are full.
            gc.collect()
            full = resident_mib()
    gc.collect()
    stats = _native.cache_stats()
    assert stats["compiled"] - before >= MANY
    assert stats["kept"] <= 512 and stats["known"] <= 4 * 512
    assert resident_mib() - full < 48, f"{resident_mib() - full:.0f} MiB more after {MANY} kernels"
