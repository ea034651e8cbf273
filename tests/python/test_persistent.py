"""JAX's own matmul where each block computes several tiles: the producer runs into the next one."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental.pallas.ops.gpu import hopper_matmul_mgpu as hm

import smalt

ROWS, COLUMNS = hm.MatmulDimension.M, hm.MatmulDimension.N


@pytest.mark.parametrize("cluster", [None, ROWS, COLUMNS])
def test_matmul_with_four_multiprocessors(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hm, "get_num_sms", lambda: 4)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((1024, 1024))[:, :k] for k in (320, 1024))
    a, b = a.astype(np.float16), b[:320].astype(np.float16)
    config = hm.TuningConfig(
        tile_m=128, tile_n=128, tile_k=64, max_concurrent_steps=4, epi_tile_n=64, epi_tile_m=64,
        grid_minor_dim=COLUMNS, grid_tile_width=4, wg_dimension=ROWS, cluster_dimension=cluster,
    )
    with smalt.emulated("H100"):
        matmul = jax.jit(lambda x, y: hm.matmul(x, y, None, config))
        out = np.asarray(matmul(a, b)).astype(np.float32)
    reference = a.astype(np.float32) @ b.astype(np.float32)
    assert np.linalg.norm(out - reference) < 5e-4 * np.linalg.norm(reference)
