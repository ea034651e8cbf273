"""The wire on CUDA: jax.jit -> custom call -> FFI handlers -> a launch on XLA's stream."""

from __future__ import annotations

import concurrent.futures
import pathlib
import time
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import smalt
from smalt import _native
from tests.fresh import start_script

smalt.enable()


def add_one(x: Any) -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + 1

    return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def add_one_in_place(x: Any) -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + 1

    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    params = plgpu.CompilerParams()
    return pl.pallas_call(body, out_shape=shape, input_output_aliases={0: 0}, compiler_params=params)(x)


def tma_copy(x: Any) -> Any:
    def body(x_ref: Any, o_ref: Any, smem: Any, barrier: Any) -> None:
        plgpu.copy_gmem_to_smem(x_ref, smem, barrier)
        plgpu.barrier_wait(barrier)
        plgpu.copy_smem_to_gmem(smem, o_ref)
        plgpu.wait_smem_to_gmem(0)

    tiled = (plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(128))
    scratch = [plgpu.SMEM(x.shape, x.dtype, transforms=tiled), plgpu.Barrier()]
    return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct(x.shape, x.dtype), scratch_types=scratch)(x)


def vector(start: float = 0.0) -> Any:
    return jnp.arange(1024, dtype=jnp.float32) + start


def square(seed: int = 0) -> Any:
    return jax.random.normal(jax.random.key(seed), (64, 64), jnp.float32)


def test_inside_jit_with_xla_ops_around() -> None:
    f = jax.jit(lambda v: jnp.sum(add_one(v * 2)))
    assert f(vector()) == np.sum(np.arange(1024, dtype=np.float32) * 2 + 1)


def test_one_program_both_machines_same_bits() -> None:
    f = jax.jit(lambda v: add_one(v * 2) / 3)
    cpu = jax.devices("cpu")[0]
    x = np.random.default_rng(0).standard_normal(1024).astype(np.float32)
    with jax.default_device(cpu):
        on_cpu = np.asarray(f(jax.device_put(x, cpu)))
    assert np.asarray(f(jax.device_put(x, jax.devices()[0]))).tobytes() == on_cpu.tobytes()


def test_tensor_maps_follow_their_buffers() -> None:
    f = jax.jit(lambda v: tma_copy(v + 1) * 2)
    keep = []
    for seed in range(8):
        v = square(seed)
        keep.append((v, f(v)))  # holds the buffers, so that later ones lie elsewhere
    for v, got in keep:
        np.testing.assert_array_equal(got, (v + 1) * 2)


GRAPH = """
    import sys; sys.path.insert(0, "tests/gpu")
    import jax, jax.numpy as jnp, numpy as np, test_wire
    from test_wire import square, tma_copy

    @jax.jit
    def f(v):
        for i in range(8):
            v = jnp.tanh(tma_copy(v))
        return v

    def want(v):
        for i in range(8):
            v = jnp.tanh(v)
        return v

    g, keep = jax.jit(want), []
    for seed in range(30):
        v = square(seed)
        keep.append((v, f(v)))
    for v, got in keep:
        np.testing.assert_array_equal(got, g(v))
    print("right")
"""


@pytest.mark.parametrize("flags", ["", "--xla_gpu_graph_min_graph_size=1"])
def test_a_captured_graph_is_replayed_after_buffers_moved(flags: str) -> None:
    assert python(GRAPH, XLA_FLAGS=flags).strip() == "right"


def test_two_call_sites_and_a_scan() -> None:
    f = jax.jit(lambda v: add_one(add_one(v) * 3))
    np.testing.assert_array_equal(f(vector()), (np.arange(1024, dtype=np.float32) + 1) * 3 + 1)
    g = jax.jit(lambda v: jax.lax.scan(lambda c, _: (add_one(c), None), v, None, length=50)[0])
    np.testing.assert_array_equal(g(vector()), np.arange(1024) + 50)


def test_donation_and_aliasing() -> None:
    f = jax.jit(lambda v: add_one_in_place(v), donate_argnums=0)
    v = vector()
    address = v.unsafe_buffer_pointer()
    got = f(v)
    np.testing.assert_array_equal(got, np.arange(1024) + 1)
    assert got.unsafe_buffer_pointer() == address
    kept = vector()
    np.testing.assert_array_equal(jax.jit(lambda v: add_one_in_place(v))(kept), np.arange(1024) + 1)
    np.testing.assert_array_equal(kept, np.arange(1024))


def test_many_threads() -> None:
    f = jax.jit(lambda v, k: add_one(v) * k)

    def work(n: int) -> int:
        for i in range(20):
            np.testing.assert_array_equal(f(vector(n), float(i)), (np.arange(1024, dtype=np.float32) + n + 1) * i)
        return n

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert list(pool.map(work, range(16))) == list(range(16))


def test_exported_program_runs_in_another_process(tmp_path: pathlib.Path) -> None:
    allow = [jax.export.DisabledSafetyCheck.custom_call("smalt_kernel")]
    f = jax.jit(lambda v: add_one(v) * 2)
    program = jax.export.export(f, disabled_checks=allow)(jax.ShapeDtypeStruct((1024,), np.float32))
    (tmp_path / "program").write_bytes(program.serialize())
    script = f"""
        import pathlib, jax.export, numpy as np
        from smalt._lowering import ffi
        ffi.register(["cuda"])
        program = jax.export.deserialize(pathlib.Path({str(tmp_path / "program")!r}).read_bytes())
        print(np.asarray(program.call(np.full(1024, 4, np.float32)))[-1])
    """
    assert python(script).strip() == "10.0"


def test_errors_leave_the_device_usable() -> None:
    def too_much(x_ref: Any, o_ref: Any, smem: Any) -> None:
        smem[...] = jnp.zeros(smem.shape, smem.dtype)
        o_ref[...] = x_ref[...]

    scratch = [plgpu.SMEM((1024, 128), jnp.float32)]
    broken = plgpu.kernel(too_much, out_type=jax.ShapeDtypeStruct((1024,), jnp.float32), scratch_types=scratch)
    with pytest.raises(smalt.Error, match="shared memory"):
        jax.jit(broken)(vector())
    np.testing.assert_array_equal(jax.jit(add_one)(vector()), np.arange(1024) + 1)


def test_report_knows_the_device() -> None:
    jax.block_until_ready(jax.jit(add_one)(vector()))
    ((_, descriptor, debug),) = smalt.descriptor(add_one, vector())
    report = _native.compile(descriptor, debug, "sm_90a").report()
    assert report["devices"][0]["resources"]["registers"] <= 32
    assert report["devices"][0]["resources"]["local_bytes"] == 0


def test_the_handler_counts_its_time() -> None:
    f = jax.jit(add_one)
    jax.block_until_ready(f(vector()))
    before = _native.cache_stats()
    for _ in range(100):
        out = f(vector())
    jax.block_until_ready(out)
    after = _native.cache_stats()
    assert after["handler_calls"] - before["handler_calls"] == 100
    assert after["handler_nanos"] - before["handler_nanos"] < 100 * 100_000
    assert 500 < after["handler_median_nanos"] < 20_000


def test_dispatch_costs_what_an_xla_op_costs() -> None:
    ours, stock = jax.jit(add_one), jax.jit(lambda v: v + 1)

    def per_call(f: Any) -> float:
        v, best = vector(), float("inf")
        jax.block_until_ready(f(v))
        for _ in range(20):
            start = time.perf_counter()
            for _ in range(200):
                out = f(v)
            jax.block_until_ready(out)
            best = min(best, (time.perf_counter() - start) / 200)
        return best * 1e6

    mine, xla = per_call(ours), per_call(stock)
    print(f"one jitted call: {mine:.1f} us with the custom call, {xla:.1f} us with XLA's own op")
    assert mine < xla + 15


def python(script: str, **environment: str) -> str:
    done = start_script(script, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout
