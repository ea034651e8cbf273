"""Every machine that smalt compiles for, emulated: random programs are right, GPUs have their limits, and what one lacks is refused by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.export
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from jaxlib.mlir import ir

import smalt
from smalt import _native
from smalt._devices import emulation
from tests import ROOT
from tests.corpus.case import kernel
from tests.corpus.ptx import descriptors
from tests.fuzz.registry import GRAMMARS
from tests.fuzz.seeds import right
from tests.machine import GPUS, HOPPER
from tests.oracles.functions.judge import x64

#: One of each kind: Ampere, Ada, Hopper with and without what is its own, Blackwell with tensor memory and without.
TARGETS = ("sm_80", "sm_89", "sm_90", "sm_100a", "sm_120a")
PROGRAMS = ("array programs", "array programs of warps", "pallas calls", "products", "products of what a loop loads", "conversions", "memory programs",
            "running sums", "masked indices", "weights that are computed", "grids that run in turn", "scalar programs of warpgroups")  # fmt: skip


@pytest.mark.shared
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("target", TARGETS)
def test_random_programs(target: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a machine lacks is refused, and nothing else."""
    monkeypatch.setenv("SMALT_TARGET", target)
    programs = GRAMMARS[name]
    features = _native.machines()[target].features
    for seed in range(0, 6 * programs.takes, programs.takes):
        outcome = programs.outcome_of(seed)
        lacks = re.match(r"(?:Unsupported: )?smalt: not supported yet: (.*) on " + target, outcome.text)
        too_large = outcome.kind == "refused" and outcome.text.startswith("smalt: shared memory\n")
        if lacks is not None:
            assert {"wgmma": "wgmma", "clusters": "clusters"}[lacks[1]] not in features
        else:
            assert outcome.kind in ("right", "no bits", "no program") or too_large, f"{seed}: {outcome}"


@pytest.mark.shared
@pytest.mark.parametrize("first", range(0, 120, 20))
@pytest.mark.parametrize("target", ("sm_80", "sm_89", "sm_90a", "sm_120a"))
def test_block_copies(target: str, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMALT_TARGET", target)
    right(GRAMMARS["block copies"], range(first, first + 20))


# ------------------------------------------------------------------------------------------ kernels on each GPU


def called(f: Callable[..., Any], out: Any, *arrays: Any) -> Any:
    def body(*refs: Any) -> None:
        refs[-1][...] = f(*(r[...] for r in refs[:-1]))

    return jax.jit(lambda *arrays: pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(*out))(*arrays))(*arrays)


def normal(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def _bf16() -> None:
    a, b = normal((64, 64), ml_dtypes.bfloat16), normal((64, 64), ml_dtypes.bfloat16, 1)
    for f in (jnp.add, jnp.subtract, jnp.multiply, jnp.maximum):
        np.testing.assert_array_equal(np.asarray(called(f, (a.shape, a.dtype), a, b)), np.asarray(f(a, b)))
    zeros = np.array([0.0, -0.0] * 64, ml_dtypes.bfloat16)
    for f in (jnp.add, jnp.subtract, jnp.multiply):
        got, want = (np.asarray(x).view(np.uint16) for x in (called(f, (zeros.shape, zeros.dtype), zeros, zeros[::-1].copy()), f(zeros, zeros[::-1])))
        np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.asarray(called(lambda a, b: a < b, (a.shape, jnp.bool_), a, b)), a < b)


def _fp8() -> None:
    codes = np.arange(256, dtype=np.uint8)
    for dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        x = codes.view(dtype)
        np.testing.assert_array_equal(np.asarray(called(lambda x: x.astype(jnp.float32), (x.shape, jnp.float32), x)), x.astype(np.float32))
        y = np.concatenate([normal((2048,), np.float32) * s for s in (1e-3, 1, 300)] + [np.float32([464, 465, 61440, np.inf, -np.inf, np.nan, 0, -0.0])])
        y = np.resize(y, 6272)
        got = np.asarray(called(lambda y: y.astype(dtype), (y.shape, dtype), y)).astype(np.float32)
        np.testing.assert_array_equal(got, y.astype(dtype).astype(np.float32))


def _pairs() -> None:
    rng = np.random.default_rng(0)
    for dtype in (np.int16, np.uint16):
        a, b = (rng.integers(0, 2**16, 4096).astype(dtype) for _ in range(2))
        for f in (jnp.add, jnp.minimum, jnp.maximum):
            np.testing.assert_array_equal(np.asarray(called(f, (a.shape, dtype), a, b)), np.asarray(f(a, b)))


def _products() -> None:
    for dtype in (np.float16, ml_dtypes.bfloat16, np.float32, np.int8):
        a, b = normal((64, 64), np.float32) * 4, normal((64, 96), np.float32, 1) * 4
        a, b = a.astype(dtype), b.astype(dtype)
        out = jnp.int32 if dtype == np.int8 else jnp.float32
        got = called(lambda a, b: jnp.dot(a, b, preferred_element_type=out), ((64, 96), out), a, b)
        np.testing.assert_allclose(np.asarray(got, np.float64), a.astype(np.float64) @ b.astype(np.float64), rtol=2e-3, atol=0.2)


def _doubles() -> None:
    with x64(True):
        a, b = normal((32, 32), np.float64), normal((32, 32), np.float64, 1)
        np.testing.assert_allclose(np.asarray(called(jnp.dot, (a.shape, a.dtype), a, b)), a @ b, rtol=1e-12, atol=1e-12)


def _rows() -> None:
    x = normal((16, 1000), np.float32)
    got = called(lambda x: jax.nn.softmax(x, axis=1), (x.shape, x.dtype), x)
    np.testing.assert_allclose(np.asarray(got), np.asarray(jax.nn.softmax(x, axis=1)), rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(np.asarray(called(lambda x: jnp.sort(x, axis=1), (x.shape, x.dtype), x)), np.sort(x, axis=1))
    np.testing.assert_allclose(np.asarray(called(lambda x: jnp.cumsum(x, axis=1), (x.shape, x.dtype), x)), np.cumsum(x, axis=1), rtol=1e-4, atol=1e-4)


def _pipelined() -> None:
    """Blocks go through rings of shared memory; results too."""
    x, y = normal((512, 256), np.float32), normal((512, 256), np.float32, 1)
    spec = pl.BlockSpec((64, 128), lambda i, j: (i, j))

    def body(x: Any, y: Any, o: Any) -> None:
        o[...] = x[...] + y[...]

    call = pl.pallas_call(body, grid=(8, 2), in_specs=[spec, spec], out_specs=spec, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))
    np.testing.assert_array_equal(np.asarray(jax.jit(call)(x, y)), x + y)


def _matmul() -> None:
    m, n, k = 128, 128, 256
    a, b = normal((m, k), np.float16), normal((k, n), np.float16, 1)

    def body(a: Any, b: Any, o: Any, acc: Any) -> None:
        @pl.when(pl.program_id(2) == 0)
        def first() -> None:
            acc[...] = jnp.zeros_like(acc)

        acc[...] += jnp.dot(a[...], b[...], preferred_element_type=jnp.float32)

        @pl.when(pl.program_id(2) == k // 64 - 1)
        def last() -> None:
            o[...] = acc[...].astype(o.dtype)

    call = pl.pallas_call(
        body,
        grid=(m // 64, n // 64, k // 64),
        in_specs=[pl.BlockSpec((64, 64), lambda i, j, k: (i, k)), pl.BlockSpec((64, 64), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((64, 64), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.float16),
        scratch_shapes=[pltpu.VMEM((64, 64), jnp.float32)],
    )
    got = np.asarray(jax.jit(call)(a, b), np.float64)
    np.testing.assert_allclose(got, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-2, atol=5e-2)


def _tpu_copies() -> None:
    """Two slots, of which one is copied to while the other is read; both operands' copies share a semaphore."""
    x, y = normal((128, 128), np.float32), normal((128, 128), np.float32, 1)

    def body(x: Any, y: Any, o: Any, buffers: Any, semaphores: Any) -> None:
        def copies(i: Any) -> list[Any]:
            slot = i % 2
            return [pltpu.make_async_copy(r.at[pl.ds(i * 32, 32)], buffers.at[k, slot], semaphores.at[slot]) for k, r in enumerate((x, y))]

        def begin(i: Any) -> None:
            for copy in copies(i):
                copy.start()

        def step(i: Any, _: None) -> None:
            pl.when(i < 3)(lambda: begin(i + 1))
            for copy in copies(i):
                copy.wait()
            o[pl.ds(i * 32, 32)] = buffers[0, i % 2] - buffers[1, i % 2]

        begin(0)
        jax.lax.fori_loop(0, 4, step, None)

    call = pl.pallas_call(
        body,
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)] * 2,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=[pltpu.VMEM((2, 2, 32, 128), jnp.float32), pltpu.SemaphoreType.DMA((2,))],
    )
    np.testing.assert_array_equal(np.asarray(jax.jit(call)(x, y)), x - y)


KERNELS = {f.__name__.removeprefix("_"): f for f in (_bf16, _fp8, _pairs, _products, _doubles, _rows, _pipelined, _matmul, _tpu_copies)}


@pytest.mark.parametrize("what", KERNELS)
@pytest.mark.parametrize("device", GPUS.values())
def test_kernels(device: str, what: str) -> None:
    with smalt.emulated(device):
        KERNELS[what]()


@pytest.mark.parametrize("device", emulation.DEVICES)
def test_a_gpu_is_its_machine(device: str) -> None:
    about = emulation.DEVICES[device]
    machine = _native.machines()[about.target]
    assert (about.compute_capability, about.shared_memory) == ("{}.{}".format(*machine.capability), machine.shared_memory)
    assert _native.target_of(machine.capability) == about.target
    with smalt.emulated(device):
        seen = jax.devices()[0]
        assert (seen.core_count, seen.compute_capability) == (about.core_count, about.compute_capability)
        assert seen.shared_memory_per_block_optin == about.shared_memory


def test_the_page_has_every_machine() -> None:
    """Its name, its shared memory, and whether it was measured."""
    rows = [line.split("|")[1:-1] for line in (ROOT / "docs/MACHINES.md").read_text().splitlines() if re.match(r"\| `sm_\d", line)]
    for machine in _native.machines().values():
        (row,) = (row for row in rows if f"`{machine.name}`" in row[0])
        assert row[2].strip() == f"{machine.shared_memory >> 10} KiB"
        assert row[4].strip() in {_native.machines()[name].status for name in re.findall(r"sm_\w+", row[0])}
        assert ("wgmma" in row[3]) == any("wgmma" in _native.machines()[name].features for name in re.findall(r"sm_\w+", row[0]))


# ------------------------------------------------------------------------------------------ what a machine lacks


def scratch_of(bytes: int) -> Any:
    def body(x: Any, o: Any, buffer: Any) -> None:
        buffer[pl.ds(0, 128)] = x[...]
        plgpu.commit_smem()
        o[...] = buffer[pl.ds(0, 128)]

    x = jnp.zeros(128, jnp.float32)
    return kernel(body, jax.ShapeDtypeStruct(x.shape, x.dtype), plgpu.SMEM((bytes // 4,), jnp.float32))(x)


@pytest.mark.parametrize("device", ("A100", "RTX 4090", "H100", "RTX 5090"))
def test_shared_memory_is_the_gpus(device: str) -> None:
    most = emulation.DEVICES[device].shared_memory
    with smalt.emulated(device):
        scratch_of(most - 1024)
        with pytest.raises(smalt.InvalidKernel, match=f"(?s)shared memory.*{most}"):
            scratch_of(most + 1024)


def wgmma() -> Any:
    def body(a: Any, b: Any, o: Any, sa: Any, sb: Any, barrier: Any) -> None:
        plgpu.copy_gmem_to_smem(a, sa, barrier)
        plgpu.copy_gmem_to_smem(b, sb, barrier)
        plgpu.barrier_wait(barrier)

        def products(acc: Any) -> Any:
            plgpu.wgmma(acc, sa, sb)
            return acc[...]

        o[...] = pl.run_scoped(products, plgpu.ACC((64, 64), jnp.float32))

    tiles = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
    scratch = [plgpu.SMEM((64, 64), jnp.float16, transforms=tiles)] * 2 + [plgpu.Barrier(num_arrivals=2)]
    x = jnp.zeros((64, 64), jnp.float16)
    return kernel(body, jax.ShapeDtypeStruct((64, 64), jnp.float32), *scratch)(x, x)


def expected_bytes() -> Any:
    def body(x: Any, o: Any, buffer: Any, barrier: Any) -> None:
        smalt.expect_bytes(barrier, 512)
        plgpu.copy_gmem_to_smem(x, buffer, barrier)
        plgpu.barrier_wait(barrier)
        o[...] = buffer[...]

    x = jnp.zeros(128, jnp.float32)
    return kernel(body, jax.ShapeDtypeStruct(x.shape, x.dtype), plgpu.SMEM((128,), jnp.float32), plgpu.Barrier())(x)


def cluster() -> Any:
    def body(x: Any, o: Any) -> None:
        i = jax.lax.axis_index("c")
        o[i] = x[i]

    x = jnp.zeros((2, 128), jnp.float32)
    return kernel(body, jax.ShapeDtypeStruct(x.shape, x.dtype), cluster=(2,), cluster_names=("c",))(x)


@pytest.mark.parametrize(
    "device, what, names",
    (
        ("A100", wgmma, "wgmma on sm_80\n  expected: a GPU that has this: sm_90a \\(H100, H200\\)\n  remedy: multiply arrays"),
        ("A100", expected_bytes, "transactions of barriers on sm_80\n  expected: a GPU that has this: sm_90a .*\n  remedy: copy with plgpu.copy_gmem_to_smem"),
        ("B200", wgmma, "wgmma on sm_100a\n"),
        ("RTX 5090", wgmma, "wgmma on sm_120a\n"),
        ("L4", cluster, "clusters on sm_89\n  expected: a GPU that has this: sm_90a \\(H100, H200\\), sm_100a"),
    ),
)
def test_what_a_gpu_lacks_is_refused_by_name(device: str, what: Callable[[], Any], names: str) -> None:
    with smalt.emulated(device), pytest.raises(smalt.Unsupported, match=names):
        what()
    with smalt.emulated("H100"):
        what()


def test_registers_that_a_gpu_cannot_move_stay() -> None:
    def roles(x: Any, o: Any) -> None:
        wg = jax.lax.axis_index("wg")

        @pl.when(wg == 0)
        def computes() -> None:
            plgpu.set_max_registers(200, action="increase")
            o[...] = x[...] + 1

        @pl.when(wg == 1)
        def waits() -> None:
            plgpu.set_max_registers(40, action="decrease")

    x = np.arange(128, dtype=np.float32)
    for device, left_out in (("A100", 2), ("L4", 2), ("H100", 0), ("RTX 5090", 0)):
        with smalt.emulated(device):
            call = kernel(roles, jax.ShapeDtypeStruct(x.shape, x.dtype), num_threads=2, thread_name="wg")
            np.testing.assert_array_equal(np.asarray(jax.jit(call)(x)), x + 1)
            (report,) = smalt.inspect(call, x)
        assert report.ptx.count("setmaxnreg") == 2 - left_out
        said = [line for line in str(report).splitlines() if "set_max_registers is left out" in line]
        assert len(said) == left_out and all("no registers that move between warpgroups" in line for line in said), str(report)


@pytest.mark.parametrize(
    "device, target, words",
    (("H100", "sm_100a", "`sm_100a` for sm_90a"), ("B200", "sm_90a", "`sm_90a` for sm_100a"), ("H100", "sm_42", "the target sm_42")),
)
def test_a_target_that_the_device_does_not_run(device: str, target: str, words: str) -> None:
    def body(x: Any, o: Any) -> None:
        o[...] = x[...]

    x = jnp.zeros(128, jnp.float32)
    params = smalt.CompilerParams(target=target)
    with smalt.emulated(device), pytest.raises(smalt.Unsupported, match=words):
        kernel(body, jax.ShapeDtypeStruct(x.shape, x.dtype), params=params)(x)


def test_conversions_of_bf16_that_flush_are_refused_before_hopper() -> None:
    """In inline PTX nothing stands for them: a conversion that does not flush would be another instruction."""

    def widened(x: Any, o: Any) -> None:
        o[...] = smalt.inline_ptx("cvt.ftz.f32.bf16 {0}, {1};", jax.ShapeDtypeStruct(x.shape, jnp.float32), x[...])

    x = np.array([1.5, 2.0**-130, -(2.0**-130), np.inf] * 32, ml_dtypes.bfloat16)
    for device in ("A100", "RTX 3090", "L4"):
        with smalt.emulated(device), pytest.raises(smalt.Unsupported, match=f"bf16 arithmetic on {emulation.DEVICES[device].target}"):
            kernel(widened, jax.ShapeDtypeStruct(x.shape, jnp.float32))(x)
    for device in ("H100", "B200", "RTX 5090"):
        with smalt.emulated(device):
            got = np.asarray(kernel(widened, jax.ShapeDtypeStruct(x.shape, jnp.float32))(x))
        np.testing.assert_array_equal(got.view(np.uint32), np.float32([1.5, 0.0, -0.0, np.inf] * 32).view(np.uint32))


# ------------------------------------------------------------------------------------------ programs that another machine loads


def halves(x: Any, y: Any) -> Any:
    """Copies, a product and sums: what machines have of their own."""

    def body(x: Any, y: Any, o: Any) -> None:
        o[...] = jnp.dot(x[...], y[...], preferred_element_type=jnp.float32) + x[...].astype(jnp.float32).sum(axis=1, keepdims=True)

    spec = pl.BlockSpec((64, 64), lambda i: (i, 0))
    call = pl.pallas_call(
        body, grid=(2,), in_specs=[spec, pl.BlockSpec((64, 64), lambda i: (0, 0))], out_specs=spec, out_shape=jax.ShapeDtypeStruct((128, 64), jnp.float32)
    )
    return call(x, y)


def calls_of(program: Any) -> list[dict[str, bytes]]:
    """The attributes of a module's calls of smalt."""
    found: list[dict[str, bytes]] = []

    def visit(op: Any) -> Any:
        if "mhlo.backend_config" in op.attributes and "descriptor" in (config := op.attributes["mhlo.backend_config"]):
            found.append({name: config[name].value_bytes for name in ("target", "descriptor", "debug")})
        return ir.WalkResult.ADVANCE

    program.operation.walk(visit)
    return found


@pytest.mark.parametrize("written, read", (("H100", "A100"), ("H100", "L4"), ("A100", "H100"), ("L4", "H100"), ("L4", "A100"), ("A100", "B200")))
def test_a_program_that_another_gpu_exported(written: str, read: str) -> None:
    """It runs as it was compiled; its descriptor is also compiled for the other machine, with the same buffers, as a GPU that loads it does."""
    x, y = normal((128, 64), np.float16), normal((64, 64), np.float16, 1)
    want = x.astype(np.float32) @ y.astype(np.float32) + x.astype(np.float32).sum(1, keepdims=True)
    with smalt.emulated(written):
        exported = jax.export.export(jax.jit(halves))(x, y).serialize()
    with smalt.emulated(read):
        program = jax.jit(jax.export.deserialize(exported).call)
        np.testing.assert_allclose(np.asarray(program(x, y)), want, rtol=1e-3, atol=1e-2)
        (call,) = calls_of(program.lower(x, y).compiler_ir())
    own, other = (emulation.DEVICES[device].target for device in (written, read))
    assert call["target"].decode() == own
    first, second = (_native.compile(call["descriptor"], call["debug"], target) for target in (own, other))
    assert f".target {own}\n" in first.ptx and f".target {other}\n" in second.ptx
    assert first.report()["buffers"] == second.report()["buffers"]
    out = np.zeros_like(want)
    second.emulate([x.copy(), y.copy(), out])
    np.testing.assert_allclose(out, want, rtol=1e-3, atol=1e-2)


@pytest.mark.shared
@pytest.mark.parametrize("target", ("sm_80", "sm_89", "sm_90", "sm_100a", "sm_120a"))
def test_buffers_are_the_same_on_every_machine(target: str) -> None:
    """A GPU that compiles a program's kernels again has only the buffers that the program gives them."""
    same = 0
    for key, descriptor in list(descriptors([]))[::5]:
        try:
            here, on_hopper = (_native.compile(descriptor, b"", machine).report()["buffers"] for machine in (target, HOPPER))
        except (smalt.Unsupported, smalt.InvalidKernel):
            continue
        assert here == on_hopper, key
        same += 1
    assert same >= 60
