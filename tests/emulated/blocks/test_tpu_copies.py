"""A TPU's copies in the emulator, and what is refused of them."""

from __future__ import annotations

from typing import Any

import jax.experimental.pallas as pl
import jax.experimental.pallas.tpu as pltpu
import jax.numpy as jnp
import numpy as np
import pytest

import smalt
from tests.corpus.case import like
from tests.suites.suite_tpu_copies import *  # noqa: F403
from tests.suites.suite_tpu_copies import ANY, X, run


def refused(kind: type[smalt.Error], body: Any, *words: str, **how: Any) -> None:
    given = {"in_specs": [ANY], "out_specs": ANY, "scratch_shapes": [pltpu.VMEM((8, 128), jnp.float32), pltpu.SemaphoreType.DMA]}
    with pytest.raises(kind) as e:
        run(body, like((32, 128)), X, **given | how)
    assert e.value.remedy, str(e.value)
    for word in (*words, "test_tpu_copies.py"):
        assert word in str(e.value), str(e.value)


def test_copies_to_other_devices() -> None:
    def body(x: Any, o: Any, s: Any, sem: Any) -> None:
        pltpu.make_async_remote_copy(x, o, sem, sem, device_id=0, device_id_type=pl.DeviceIdType.LOGICAL).start()

    refused(smalt.Unsupported, body, "to another device", "plgpu.remote_ref")


def test_semaphores_of_copies_count_nothing() -> None:
    def reads(x: Any, o: Any, s: Any, sem: Any) -> None:
        o[...] = x[...] + pl.semaphore_read(sem).astype(jnp.float32)

    refused(smalt.Unsupported, reads, "a semaphore of a TPU's copies", "pltpu.SMEM")


def test_copies_between_different_shapes_and_types() -> None:
    def shapes(x: Any, o: Any, s: Any, sem: Any) -> None:
        pltpu.make_async_copy(x, s, sem).start()

    refused(smalt.InvalidKernel, shapes, "expected: a target of float32[32, 128]", "got: float32[8, 128]")

    def types(x: Any, o: Any, s: Any, sem: Any) -> None:
        pltpu.make_async_copy(x.at[:8], s, sem).start()

    scratch = [pltpu.VMEM((8, 128), jnp.int32), pltpu.SemaphoreType.DMA]
    refused(smalt.InvalidKernel, types, "expected: a target of float32[8, 128]", "got: int32[8, 128]", scratch_shapes=scratch)


def test_what_is_not_waited_for_is_told_of(capfd: pytest.CaptureFixture[str]) -> None:
    def runs(body: Any) -> None:
        with smalt.emulated(check="error"):
            run(body, like((8, 128)), X, in_specs=[ANY], scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32), pltpu.SemaphoreType.DMA((2,))])

    def too_early(x: Any, o: Any, buffer: Any, sems: Any) -> None:
        copy = pltpu.make_async_copy(x.at[:8], buffer, sems.at[0])
        copy.start()
        o[...] = buffer[...]
        copy.wait()

    def another(x: Any, o: Any, buffer: Any, sems: Any) -> None:
        pltpu.make_async_copy(x.at[:8], buffer, sems.at[0]).start()
        pltpu.make_async_copy(x.at[:8], buffer, sems.at[1]).wait()
        o[...] = buffer[...]

    def never(x: Any, o: Any, buffer: Any, sems: Any) -> None:
        o[...] = x[:8]
        pltpu.make_async_copy(x.at[:8], buffer, sems.at[0]).start()

    unread = "what a bulk load", "is read, and nothing has waited for the load", "remedy: wait for the load first"
    lands = "a load of shared memory that a bulk load in flight writes", "`sems`, number 0 of 2"
    ends = "ends while a bulk load into its shared memory is in flight", "its own `.wait()`"
    for body, words in ((too_early, unread), (another, lands), (never, ends)):
        with pytest.raises(Exception) as e:
            runs(body)
        text = str(e.value) + capfd.readouterr().err
        for word in (*words, "test_tpu_copies.py", body.__name__):
            assert word in text, text


def test_a_chip_is_described() -> None:
    """Kernels ask for its memory: it is a GPU's."""
    from jax._src.pallas.mosaic import tpu_info

    before = set(tpu_info.registry)
    with smalt.emulated():
        assert pltpu.get_tpu_info().vmem_capacity_bytes == 227 << 10
    assert set(tpu_info.registry) == before


def test_prefetched_scalars_that_are_stored_to_under_vmap() -> None:
    import jax

    def body(state: Any, x: Any, o: Any) -> None:
        state[0] = state[0] + 1
        o[...] = x[...] * 2

    rows = pl.BlockSpec((8, 128), lambda i, _: (i, 0))
    grid = pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=1, grid=(4,), in_specs=[rows], out_specs=rows)
    call = pl.pallas_call(body, out_shape=like((32, 128)), grid_spec=grid)
    with smalt.emulated(), pytest.raises(smalt.Unsupported, match="a store to state, which is prefetched, under jax.vmap") as e:
        jax.vmap(call, in_axes=(None, 0))(np.zeros(1, np.int32), np.stack([X, X]))
    assert e.value.remedy
