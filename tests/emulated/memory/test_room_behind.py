"""Bulk stores to arrays that end where coordinates do: compiled, not run."""

from __future__ import annotations

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import pytest

import smalt
from tests.corpus.case import kernel


def _stores(rows: int, extent: int) -> str:
    """The PTX of a store of so many rows, which may begin anywhere, to an array of so many."""

    def body(start, out, buffer):  # type: ignore[no-untyped-def]
        plgpu.copy_smem_to_gmem(buffer, out.at[pl.ds(start[0], rows)])
        plgpu.wait_smem_to_gmem(0)

    call = kernel(body, jax.ShapeDtypeStruct((extent, 16), jnp.uint8), plgpu.SMEM((rows, 16), jnp.uint8))
    with smalt.emulated("H100"):
        (report,) = smalt.inspect(call, jax.ShapeDtypeStruct((1,), jnp.int32), assemble=False)
    return report.ptx


@pytest.mark.parametrize("rows, extent", [(512, 2**31 - 257), (256, 2**31 - 1)])
def test_the_last_box_may_begin_behind_the_array(rows: int, extent: int) -> None:
    assert "cp.async.bulk.tensor" in _stores(rows, extent)


@pytest.mark.parametrize("rows, extent, last", [(512, 2**31 - 256, 256), (768, 2**31 - 512, 512), (256, 2**31, 0)])
def test_no_room_is_an_error(rows: int, extent: int, last: int) -> None:
    text = f"(?s)copy_smem_to_gmem.*{extent} elements: the last box .* is {last} elements further.*remedy: .*\n  at .*test_room_behind.py"
    with pytest.raises(smalt.Error, match=text):
        _stores(rows, extent)
