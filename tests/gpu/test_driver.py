"""The driver layer with no JAX around it: loading, launching, tensor maps, clusters, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from smalt import _native
from tests import ROOT
from tests.fresh import start_script

DATA = ROOT / "tests" / "data"


def artifact(name: str, grid: list[int], params: list[dict[str, Any]], buffers: list[dict[str, Any]], **changed: Any) -> _native.Artifact:
    launch = {"entry": name, "grid": grid, "cluster": [1, 1, 1], "block": 128, "smem_bytes": 0, "params": params,
              "scratch": [], "uses_programmatic_launch": False} | changed
    return _native.from_ptx(name, (DATA / f"{name}.ptx").read_text(), launch, buffers, "sm_90a")


def pointer(buffer: int) -> dict[str, Any]:
    return {"Pointer": {"buffer": buffer}}


def array(role: str, count: int, dtype: str = "f32") -> dict[str, Any]:
    return {"role": role, "bytes": 4 * count, "text": f"{dtype}[{count}]"}


def add_one(**changed: Any) -> _native.Artifact:
    return artifact("add_one", [8, 1, 1], [pointer(0), pointer(1)], [array("input", 1024), array("output", 1024)], **changed)


def test_add_one() -> None:
    x, y = np.arange(1024, dtype=np.float32), np.zeros(1024, np.float32)
    outcome = add_one().run([x, y], device=0)
    np.testing.assert_array_equal(y, x + 1)
    assert outcome["resources"]["registers"] <= 16 and outcome["resources"]["local_bytes"] == 0


def test_every_assembler_makes_a_kernel_that_runs() -> None:
    script = """
        import sys; sys.path.insert(0, "tests/gpu")
        import numpy as np, test_driver
        x, y = np.arange(1024, dtype=np.float32), np.zeros(1024, np.float32)
        outcome = test_driver.add_one().run([x, y], device=0)
        assert (y == x + 1).all()
        print(outcome["log"])
    """
    for name in ("driver", "ptxas", "nvjitlink"):
        done = start_script(script, SMALT_ASSEMBLER=name)
        if "is not there" in done.stderr:
            continue
        assert done.returncode == 0, (name, done.stderr)


def test_programmatic_launch_attribute_is_taken() -> None:
    x, y = np.arange(1024, dtype=np.float32), np.zeros(1024, np.float32)
    add_one(uses_programmatic_launch=True).run([x, y], device=0)
    np.testing.assert_array_equal(y, x + 1)


TENSOR_MAP = {"TensorMap": {"buffer": 0, "byte_offset": 0, "element": "F32", "dims": [64, 64], "strides": [256],
                            "box_dims": [32, 16], "swizzle": "B128"}}  # fmt: skip


def tma_copy(**changed: Any) -> _native.Artifact:
    tensor_map = {"TensorMap": TENSOR_MAP["TensorMap"] | changed}
    buffers = [array("input", 4096), array("output", 4096)]
    return artifact("tma_copy", [2, 4, 1], [tensor_map, pointer(1)], buffers, smem_bytes=2064)


def test_tensor_maps_by_value() -> None:
    kernel = tma_copy()
    for seed in range(4):  # at other addresses, perhaps
        x = np.random.default_rng(seed).standard_normal(4096).astype(np.float32)
        y = np.zeros(4096, np.float32)
        kernel.run([x, y], device=0)
        np.testing.assert_array_equal(y, x)


def test_a_tensor_map_may_start_inside_its_buffer() -> None:
    x, y = np.arange(4096, dtype=np.float32), np.zeros(4096, np.float32)
    tma_copy(byte_offset=256, dims=[64, 63]).run([x, y], device=0)
    np.testing.assert_array_equal(y[:4032], x[64:])
    np.testing.assert_array_equal(y[4032:], 0)  # out of bounds: zeros


def test_a_misaligned_tensor_map_is_said_in_words() -> None:
    buffers = [np.zeros(4096, np.float32), np.zeros(4096, np.float32)]
    with pytest.raises(Exception, match="(?s)buffer 0 of a TMA transfer is misaligned.*multiple of 16"):
        tma_copy(byte_offset=8).run(buffers, device=0)


def test_an_impossible_tensor_map_is_said_at_load() -> None:
    buffers = [np.zeros(4096, np.float32), np.zeros(4096, np.float32)]
    with pytest.raises(Exception, match="cuTensorMapEncodeTiled failed: CUDA_ERROR_INVALID_VALUE.*box_dims"):
        tma_copy(box_dims=[512, 16]).run(buffers, device=0)


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_clusters(size: int) -> None:
    out = np.zeros(32, np.int32)
    kernel = artifact("cluster_ranks", [32, 1, 1], [pointer(0)], [array("output", 32, "i32")], cluster=[size, 1, 1], block=32)
    kernel.run([out], device=0)
    np.testing.assert_array_equal(out, 256 * size + np.arange(32) % size)


def test_errors_are_said_in_words() -> None:
    x, y = np.zeros(1024, np.float32), np.zeros(1024, np.float32)
    with pytest.raises(Exception, match="(?s)shared memory does not fit.*at most 232448 bytes.*got: 300000 bytes"):
        add_one(smem_bytes=300_000).run([x, y], device=0)
    with pytest.raises(Exception, match="(?s)wrong size.*4096 bytes.*4000 bytes"):
        add_one().run([x[:1000].copy(), y], device=0)
    with pytest.raises(Exception, match="cuDeviceGet failed: CUDA_ERROR_INVALID_DEVICE"):
        add_one().run([x, y], device=99)
    add_one().run([x, y], device=0)
    np.testing.assert_array_equal(y, 1)


def test_a_crashing_kernel_is_an_error() -> None:
    script = """
        import sys; sys.path.insert(0, "tests/gpu")
        import numpy as np, test_driver
        kernel = test_driver.artifact("add_one", [40_000_000, 1, 1], [test_driver.pointer(0), test_driver.pointer(1)],
                                      [test_driver.array("input", 1024), test_driver.array("output", 1024)])
        try:
            kernel.run([np.zeros(1024, np.float32), np.zeros(1024, np.float32)], device=0)
        except Exception as error:
            print(error)
    """
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in start_script(script).stdout


def test_many_modules_are_unloaded() -> None:
    script = """
        import sys; sys.path.insert(0, "tests/gpu")
        import ctypes, numpy as np, test_driver
        cuda = ctypes.CDLL("libcuda.so.1")
        def free():
            test_driver.add_one().run([np.zeros(1024, np.float32), np.zeros(1024, np.float32)], device=0)
            cuda.cuInit(0)
            context, a, b = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
            cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0); cuda.cuCtxPushCurrent_v2(context)
            cuda.cuMemGetInfo_v2(ctypes.byref(a), ctypes.byref(b))
            return a.value
        for _ in range(600):
            test_driver.add_one().run([np.zeros(1024, np.float32), np.zeros(1024, np.float32)], device=0)
        first = free()
        for _ in range(1500):
            test_driver.add_one().run([np.zeros(1024, np.float32), np.zeros(1024, np.float32)], device=0)
        print((first - free()) >> 20)
    """
    grown = int(start_script(script).stdout)
    assert grown <= 16, f"{grown} MiB lost over 1500 modules"


def test_launch_costs_little_host_time() -> None:
    x, y = np.zeros(4096, np.float32), np.zeros(4096, np.float32)
    plain = add_one().measure([x[:1024].copy(), y[:1024].copy()])
    maps = tma_copy().measure([x, y])
    print(f"host time of one launch: {plain['host_us']:.2f} us plain, {maps['host_us']:.2f} us with a tensor map")
    assert plain["host_us"] < 5 and maps["host_us"] < 5
