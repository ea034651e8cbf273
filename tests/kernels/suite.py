"""The tests of kernels, for the machine that there is: the emulator, or a GPU."""

from __future__ import annotations

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
from tests.corpus.case import EXACT, kernel, like, x64
from tests.kernels import hard
from tests.kernels.random_programs import Program, batch

PROGRAMS = 200
BATCH = 10

ON_GPU = jax.default_backend() == "gpu"


def enabled() -> Any:
    return smalt.enabled(True) if ON_GPU else smalt.emulated("H100")


# ------------------------------------------------------------------------------------------ random programs


@pytest.mark.parametrize("first", range(0, PROGRAMS, BATCH))
def test_random_programs_equal_numpy(first: int) -> None:
    """Bit for bit; a batch is one jitted function per setting of x64."""
    programs = [Program.of(seed) for seed in range(first, first + BATCH)]
    for wide in (False, True):
        chosen = [p for p in programs if p.x64 == wide]
        with x64(wide), enabled():
            inputs = [p.data() for p in chosen]
            results = jax.block_until_ready(batch(chosen)(inputs))
        for p, got, given in zip(chosen, results, inputs):
            p.check(got, given)


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
        o[...] = jax.lax.digamma(x[i[0]])

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

    def run(number: int) -> None:
        artifact = _native.compile(descriptor.replace(needle, number.to_bytes(4, "little")), debug, "sm_90a")
        out = np.zeros(1, np.int32)
        artifact.run([out], 0 if ON_GPU else None)
        assert out[0] == number

    before = _native.cache_stats()["compiled"]
    for number in range(1000, 3000):
        run(number)
    gc.collect()
    full = resident_mib()
    # On a GPU each is assembled, which takes its time.
    for number in range(3000, 1000 + (4000 if ON_GPU else MANY)):
        run(number)
    gc.collect()
    stats = _native.cache_stats()
    assert stats["compiled"] - before >= (4000 if ON_GPU else MANY)
    assert stats["kept"] <= 512 and stats["known"] <= 4 * 512
    assert resident_mib() - full < 48, f"{resident_mib() - full:.0f} MiB more after {MANY} kernels"
