"""The wire with kernels written in Pallas: compiled, and run in the emulator, inside jitted programs."""

from __future__ import annotations

import concurrent.futures
import time

import jax
import jax.export
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest

import smalt
from smalt import _native
from smalt._lowering import ffi
from tests.fresh import run_script

SHAPE = jax.ShapeDtypeStruct((128, 64), jnp.float32)


@pytest.fixture(autouse=True)
def enabled():
    with smalt.enabled(True), smalt.emulated("H100"):
        yield


def add(amount):
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] + amount

    return plgpu.kernel(body, out_type=SHAPE)


def data(seed=0):
    return np.random.default_rng(seed).standard_normal(SHAPE.shape).astype(np.float32)


def test_between_xla_ops():
    f = jax.jit(lambda x: add(1)(x * 2) / 4)
    np.testing.assert_array_equal(f(data()), (data() * 2 + 1) / 4)


def test_toggling_never_returns_a_stale_program():
    f = jax.jit(add(1))
    np.testing.assert_array_equal(f(data()), data() + 1)
    with smalt.enabled(False), pytest.raises(Exception):
        f(data())  # JAX's own rule has no CPU
    np.testing.assert_array_equal(f(data()), data() + 1)


def test_two_call_sites_share_an_artifact():
    before = _native.cache_stats()["compiled"]
    one = add(7)
    f = jax.jit(lambda x: one(one(x) * 3))
    np.testing.assert_array_equal(f(data()), (data() + 7) * 3 + 7)
    assert _native.cache_stats()["compiled"] == before + 1


def test_many_threads():
    f = jax.jit(add(2))

    def work(seed):
        with smalt.enabled(True), smalt.emulated("H100"):  # scopes are a thread's own
            return run(seed)

    def run(seed):
        np.testing.assert_array_equal(f(data(seed)), data(seed) + 2)
        return seed

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(24))) == list(range(24))


def test_exported_program_runs_in_another_process(tmp_path):
    allow = [jax.export.DisabledSafetyCheck.custom_call(ffi.TARGET_NAME)]
    program = jax.export.export(jax.jit(lambda x: add(1)(x) * 2), disabled_checks=allow)(SHAPE)
    (tmp_path / "program").write_bytes(program.serialize())
    script = f"""
        import pathlib, jax.export, numpy as np
        from smalt._lowering import ffi
        ffi.register(["cpu"])
        program = jax.export.deserialize(pathlib.Path({str(tmp_path / "program")!r}).read_bytes())
        print(np.asarray(program.call(np.full((128, 64), 4, np.float32)))[-1, -1])
    """
    done = run_script(script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "10.0"


def test_lowering_for_cuda_starts_the_assembler():
    if _native.doctor()["assembler"].get("path") is None:
        pytest.skip("no assembler on this machine")
    f = add(11)
    ((_, descriptor, debug),) = smalt.descriptor(f, SHAPE)
    jax.jit(f).trace(SHAPE).lower(lowering_platforms=("cuda",))
    artifact = _native.compile(descriptor, debug, "sm_90a")
    deadline = time.monotonic() + 60
    while (assembled := artifact.report()["assembled"]) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert assembled["log"]["spill_store_bytes"] == 0 and assembled["log"]["registers"] > 0
