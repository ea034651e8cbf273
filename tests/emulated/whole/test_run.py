"""The corpus runs: in the emulator on a machine without a GPU, each case against its reference, bit for bit where it says so."""

from __future__ import annotations

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import smalt

from tests.corpus import load_all
from tests.corpus.case import kernel, like
from tests.corpus.run import run_all

#: JAX's own matmul, at the sizes of the corpus: one of each kind of configuration.
SHIPPED = [
    "hopper_matmul_bfloat16_basic",
    "hopper_matmul_bfloat16_wg_m",
    "hopper_matmul_bfloat16_cluster_n",
    "hopper_matmul_float16_cluster_m",
    "hopper_matmul_with_c",
]


def small_cases() -> list[str]:
    cases = load_all()
    return [name for name, case in cases.items() if case.reference is not None and case.target == "hopper" and not case.large]


def test_small_cases_are_right() -> None:
    results = run_all(small_cases(), workers=2, timeout=240)
    assert len(results) > 100
    bad = {r["name"]: f"{r['outcome']}: {r['detail'][:400]}" for r in results if r["outcome"] != "ok"}
    assert not bad


def test_jax_own_matmul_is_right() -> None:
    names = [name for name in SHIPPED if name in load_all()]
    assert names
    results = run_all(names, workers=2, timeout=600)
    bad = {r["name"]: f"{r['outcome']}: {r['detail'][:400]}" for r in results if r["outcome"] != "ok"}
    assert not bad


def test_waits_that_leave_more_groups_than_instructions_count() -> None:
    """A pipeline of many steps waits with a large count: of bulk stores 63 can be left pending, of wgmmas 7."""
    steps = 80

    def body(x, o, buf, acc_buf):
        @pl.loop(0, steps)
        def _(i):
            buf[i] = x[i]
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(buf.at[i], o.at[i])
            plgpu.wait_smem_to_gmem(steps - 1, wait_read_only=True)

        def compute(acc):
            plgpu.wgmma(acc, acc_buf, acc_buf)
            plgpu.wgmma_wait(9)
            return acc[...]

        acc_buf[...] = jnp.ones((64, 64), jnp.float16)
        plgpu.commit_smem()
        product = pl.run_scoped(compute, plgpu.ACC((64, 64), jnp.float32))
        plgpu.wait_smem_to_gmem(0)
        o[0] = product[0]

    x = np.arange(steps * 64, dtype=np.float32).reshape(steps, 64)
    f = kernel(body, like((steps, 64)), plgpu.SMEM((steps, 64), jnp.float32), plgpu.SMEM((64, 64), jnp.float16))
    with smalt.emulated("H100"):
        got = np.asarray(jax.jit(f)(x))
    np.testing.assert_array_equal(got[1:], x[1:])
    np.testing.assert_array_equal(got[0], np.full(64, 64, np.float32))
