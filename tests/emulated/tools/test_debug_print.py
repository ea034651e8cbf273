"""Prints of kernels in the emulator, on Python's standard output; `tests/gpu/test_debug_print.py` holds a GPU to the same."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import smalt
from tests import ROOT
from tests.corpus.case import kernel, like
from tests.fresh import run_script
from tests.suites.prints.cases import CASES, printed


@pytest.mark.parametrize("name", CASES)
def test_what_is_printed(name: str) -> None:
    assert printed(CASES[name]) == CASES[name].expected


_MANY = """
    import jax, numpy as np, smalt
    import jax.experimental.pallas as pl
    from jax import lax
    from tests.corpus.case import kernel, like
    smalt.enable()
    def body(n, o):
        def step(i, _):
            pl.debug_print("line {}", i)
        lax.fori_loop(0, lax.min(n[0], 10), step, None)
        pl.debug_print("array {}", n[...])
        o[...] = n[...]
    f = jax.jit(kernel(body, like((128,), np.int32)))
    for count in COUNTS:
        print(f"of {count}", flush=True)
        np.asarray(f(np.full(128, count, np.int32)))
"""


def test_what_does_not_fit_is_counted() -> None:
    """Records of 32 bytes, of which 8 fit; then the array's four, of which none does."""
    done = run_script(_MANY.replace("COUNTS", "[10, 2, 8]"), SMALT_PRINT_BYTES="256")
    assert done.returncode == 0, done.stderr
    dropped = "smalt: {} of `body` {} dropped: a launch's buffer has 256 bytes (set SMALT_PRINT_BYTES to more)"
    lines = ["of 10", *(f"line {i}" for i in range(8)), dropped.format("3 prints", "were")]
    lines += ["of 2", "line 0", "line 1", dropped.format("1 print", "was")]
    lines += ["of 8", *(f"line {i}" for i in range(8)), dropped.format("1 print", "was")]
    assert done.stdout.splitlines() == lines


def test_a_larger_buffer_holds_more() -> None:
    done = run_script(_MANY.replace("COUNTS", "[10]"), SMALT_PRINT_BYTES="4K")
    expected = ["of 10", *(f"line {i}" for i in range(10)), *(f"array [{i}]: 10" for i in range(128))]
    assert done.stdout.splitlines() == expected, done.stderr


def test_a_wrong_size_of_the_buffer() -> None:
    done = run_script(_MANY.replace("COUNTS", "[1]"), SMALT_PRINT_BYTES="much")
    assert done.returncode != 0
    assert "SMALT_PRINT_BYTES" in done.stderr and "expected: a size from 256 bytes to 1G" in done.stderr


def test_without_pythons_output_it_is_file_descriptor_1() -> None:
    done = run_script(_MANY.replace("    for count", "    import sys; sys.stdout = None\n    for count").replace('print(f"of {count}", flush=True)', "pass").replace("COUNTS", "[2]"))
    assert done.stdout.splitlines()[:3] == ["line 0", "line 1", "array [0]: 2"], done.stderr


def test_what_was_printed_before_an_error(capsys: Any) -> None:
    def body(n: Any, o: Any) -> None:
        pl.debug_print("before {}", n[0])
        o[pl.ds(n[0], 64)] = n[pl.ds(0, 64)]

    with smalt.enabled(True), pytest.raises(smalt.Error, match="an index outside of its dimension"):
        jax.block_until_ready(jax.jit(kernel(body, like((128,), jnp.int32)))(np.full(128, 100, np.int32)))
    assert capsys.readouterr().out == "before 100\n"


def test_a_print_changes_no_number() -> None:
    def compute(x: Any, o: Any, prints: bool) -> None:
        v = jnp.exp(x[...]) / (1 + jnp.abs(x[...]))
        w = lax.fori_loop(0, 4, lambda i, w: w * 0.5 + v, v)
        if prints:
            pl.debug_print("v {}", v)
            pl.debug_print("sum {}", w.sum())
        o[...] = w + w.sum()

    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    outs = []
    for prints in (False, True):
        with smalt.enabled(True):
            outs.append(np.asarray(jax.jit(kernel(lambda x, o: compute(x, o, prints), like((64, 64))))(x)))
    assert outs[0].tobytes() == outs[1].tobytes()


def test_kernels_that_print_are_never_recorded() -> None:
    def call(prints: bool) -> str:
        def body(n: Any, o: Any) -> None:
            if prints:
                pl.debug_print("{}", n[0])
            o[...] = n[...]

        with smalt.enabled(True):
            lowered = jax.jit(kernel(body, like((128,)))).trace(jnp.zeros(128)).lower(lowering_platforms=("cuda",))
        return str(lowered.as_text())

    assert "@smalt_kernel_uncaptured(" in call(True)
    assert "@smalt_kernel(" in call(False) and "uncaptured" not in call(False)


def test_ordered_prints_of_several_kernels(capsys: Any) -> None:
    def one(text: str) -> Any:
        def body(n: Any, o: Any) -> None:
            jax.debug.print(text + " {}", n[0], ordered=True)
            o[...] = n[...]

        return kernel(body, like((128,), jnp.int32))

    def program(n: Any) -> Any:
        return one("first")(n), one("second")(n), one("third")(n)

    with smalt.enabled(True):
        jax.block_until_ready(jax.jit(program)(np.zeros(128, np.int32)))
        jax.effects_barrier()
    assert capsys.readouterr().out == "first 0\nsecond 0\nthird 0\n"


def test_devices_say_who_they_are(capsys: Any) -> None:
    def body(n: Any, o: Any) -> None:
        pl.debug_print("{}", n[0])
        o[...] = n[...]

    f = jax.jit(kernel(body, like((128,), jnp.int32)))
    with smalt.enabled(True):
        for device in jax.devices()[:2]:
            np.asarray(f(jax.device_put(np.full(128, device.id, np.int32), device)))
    assert capsys.readouterr().out == "0\n[device 1] 1\n"


@pytest.mark.parametrize("talks", [False, True])
def test_devices_of_a_mesh_print_each_for_itself(talks: bool, capsys: Any) -> None:
    devices = 4
    mesh = jax.make_mesh((devices,), ("x",), devices=jax.devices()[:devices], axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("x")

    def gather(x: Any) -> Any:
        def body(x: Any, o: Any, done: Any) -> None:
            me = lax.axis_index("x")
            pl.debug_print("at {} is {}", me, x[0, 0])
            if not talks:
                o[0] = x[0]
                return
            for i in range(devices):
                to = lax.rem(me + i, jnp.int32(devices))
                plgpu.remote_ref(o, to)[me] = x[0]
                pl.semaphore_signal(done, device_id=to)
            pl.semaphore_wait(done, devices)
            pl.debug_print("{} has {}", me, o[devices - 1, 0])

        call = plgpu.kernel(body, out_type=like((devices, 128)), scratch_types=[plgpu.SemaphoreType.REGULAR])
        return call(x)

    x = np.arange(devices * 128, dtype=np.float32).reshape(devices, 128)
    with smalt.enabled(True):
        jax.block_until_ready(jax.jit(jax.shard_map(gather, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))(x))
    expected = [f"[device {d}] at {d} is {128.0 * d}" for d in range(devices)]
    if talks:
        expected += [f"[device {d}] {d} has 384.0" for d in range(devices)]
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(expected)


def test_a_dumped_kernel_prints(tmp_path: pathlib.Path) -> None:
    done = run_script(_MANY.replace("COUNTS", "[2]"), SMALT_DUMP="descriptor", SMALT_DUMP_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    (dumped,) = tmp_path.glob("*.smalt")
    again = subprocess.run(
        [sys.executable, "-m", "smalt", "run", str(dumped)],
        cwd=ROOT,
        env=dict(os.environ, PYTHONPATH=f"{ROOT}/jax_plugin:{ROOT}"),
        capture_output=True,
        text=True,
    )
    assert "array [127]: " in again.stdout, again.stderr


# ------------------------------------------------------------------------------------------ checks


def checked(n: Any, o: Any) -> None:
    pl.debug_print("before")
    pl.debug_check(n[0] < 5, "n[0] is too large")
    o[...] = n[...] + 1


@pytest.mark.parametrize("enabled", [False, True])
def test_debug_checks_check_where_they_are_enabled(enabled: bool, capsys: Any) -> None:
    with smalt.enabled(True), pl.enable_debug_checks(enabled):
        f = jax.jit(kernel(checked, like((128,), jnp.int32)))
        assert (np.asarray(f(np.full(128, 4, np.int32))) == 5).all()
        if not enabled:
            assert (np.asarray(f(np.full(128, 5, np.int32))) == 6).all()
        else:
            with pytest.raises(smalt.ExecutionError, match=r"a check failed: n\[0\] is too large") as caught:
                jax.block_until_ready(f(np.full(128, 5, np.int32)))
            assert isinstance(caught.value, smalt.Error) and "test_debug_print.py" in str(caught.value.where)
        assert (np.asarray(f(np.full(128, 3, np.int32))) == 4).all()
    assert capsys.readouterr().out == "before\n" * 3


def test_a_check_in_a_warp_region_says_which_warp() -> None:
    from jax.experimental import checkify
    from jax._src.pallas.mosaic_gpu import helpers

    def body(n: Any, o: Any) -> None:
        @helpers.warp_map
        def _(warp: Any) -> None:
            checkify.check(warp != n[0], "warp {} of {}", warp, n[1])

        o[...] = n[...]

    call = kernel(body, like((128,), jnp.int32))
    with smalt.enabled(True):
        assert np.asarray(jax.jit(call)(np.full(128, 7, np.int32)))[0] == 7
        with pytest.raises(smalt.ExecutionError, match="a check failed: warp 2 of 2\n  got: in warp 2"):
            jax.block_until_ready(jax.jit(lambda n: call(n))(np.full(128, 2, np.int32)))


def test_what_a_check_says_of_an_array_is_whole() -> None:
    """Each warp has a part of it: none ends the kernel before all are there."""
    from jax.experimental import checkify

    def body(x: Any, o: Any) -> None:
        v = x[...]
        checkify.check(v.sum() < 0, "{}", v)
        o[...] = v

    x = np.arange(256, dtype=np.float32).reshape(2, 128)
    with smalt.enabled(True), pytest.raises(smalt.ExecutionError) as caught:
        jax.block_until_ready(jax.jit(kernel(body, like((2, 128))))(x))
    assert isinstance(caught.value, smalt.Error)
    assert caught.value.what == f"a check failed: {x.tolist()}"
