"""JAX's own matmul where each block computes several tiles: the producer runs into the next one."""

from __future__ import annotations

import re
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental.pallas.ops.gpu import hopper_matmul_mgpu as hm

import smalt
from examples.matmul import matmul as annotated_matmul

pytestmark = pytest.mark.shared

ROWS, COLUMNS = hm.MatmulDimension.M, hm.MatmulDimension.N


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("cluster", [None, ROWS, COLUMNS])
def test_matmul_with_four_multiprocessors(cluster: Any, added: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hm, "get_num_sms", lambda: 4)
    rng = np.random.default_rng(0)
    c = rng.standard_normal((1024, 1024)).astype(np.float16) if added else None
    a, b = (rng.standard_normal((1024, 1024))[:, :k] for k in (320, 1024))
    a, b = a.astype(np.float16), b[:320].astype(np.float16)
    config = hm.TuningConfig(
        tile_m=128, tile_n=128, tile_k=64, max_concurrent_steps=4, epi_tile_n=64, epi_tile_m=64,
        grid_minor_dim=COLUMNS, grid_tile_width=4, wg_dimension=ROWS, cluster_dimension=cluster,
    )
    with smalt.emulated("H100"):
        (report,) = smalt.inspect(lambda *args: hm.matmul(*args, config), a, b, c, assemble=False)
        out = np.asarray(jax.jit(lambda *args: hm.matmul(*args, config))(a, b, c)).astype(np.float32)
    reference = a.astype(np.float32) @ b.astype(np.float32) + (0 if c is None else c.astype(np.float32))
    assert np.linalg.norm(out - reference) < 5e-4 * np.linalg.norm(reference)
    assert not [note for note in report.notes if note.by == "defer_epilogue"], "a tile is stored, and added to, beside the next one"


# K and the configuration, and what the passes say of the kernel's two loops over tiles.
NOTES: dict[str, tuple[int, dict[str, Any], set[tuple[str, str]]]] = {
    "large tiles": (1024, {}, set()),
    "small tiles": (
        1024,
        {"tile_m": 64, "tile_n": 64},
        {
            ("defer_drains", "loads limit the kernel, not the tensor cores"),
            ("defer_epilogue", "loads limit the kernel"),
            ("arrivals", "loads limit this kernel"),
        },
    ),
    "one round": (256, {"epi_tile_n": 16}, {("defer_epilogue", "the epilogue has more copies than a tile has steps")}),
    "two rounds": (320, {}, set()),
}


@pytest.mark.parametrize("name", NOTES)
def test_what_is_not_deferred_says_why(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    k, changed, wanted = NOTES[name]
    monkeypatch.setattr(hm, "get_num_sms", lambda: 4)
    shape = dict(tile_m=128, tile_n=128, tile_k=64, max_concurrent_steps=4, epi_tile_n=64, epi_tile_m=64, grid_minor_dim=COLUMNS, grid_tile_width=4)
    config = hm.TuningConfig(**shape | {"wg_dimension": ROWS, "cluster_dimension": None} | changed)
    a, b = jax.ShapeDtypeStruct((1024, k), np.float16), jax.ShapeDtypeStruct((k, 1024), np.float16)
    with smalt.emulated("H100"):
        (report,) = smalt.inspect(lambda x, y: hm.matmul(x, y, None, config), a, b, assemble=False)
    said = {(note.by, text) for note in report.notes for by, text in wanted if by == note.by and note.why.startswith(text)}
    assert said == wanted, report.notes
    assert {note.by for note in report.notes} == {by for by, _ in wanted}
    assert all(note.at and ".py:" in note.at for note in report.notes)
    assert all(note.why in str(report) for note in report.notes)


@pytest.mark.parametrize(("tile_n", "cluster"), [(64, None), (64, ROWS), (64, COLUMNS), (128, None)])
def test_where_loads_limit_there_are_fewer_arrivals(tile_n: int, cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hm, "get_num_sms", lambda: 4)
    config = hm.TuningConfig(
        tile_m=128, tile_n=tile_n, tile_k=64, max_concurrent_steps=4, epi_tile_n=64, epi_tile_m=64,
        grid_minor_dim=COLUMNS, grid_tile_width=4, wg_dimension=ROWS, cluster_dimension=cluster,
    )
    rng = np.random.default_rng(tile_n)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((1024, 320), (320, 512)))
    with smalt.emulated("H100"):
        matmul = lambda x, y: hm.matmul(x, y, None, config)  # noqa: E731
        (report,) = smalt.inspect(matmul, a, b, assemble=False)
        out = np.asarray(jax.jit(matmul)(a, b)).astype(np.float32)
    reference = a.astype(np.float32) @ b.astype(np.float32)
    assert np.linalg.norm(out - reference) < 5e-4 * np.linalg.norm(reference)

    limited = tile_n == 64 and cluster != COLUMNS
    counts = {int(n) for n in re.findall(r"mbarrier\.init[^;]*, (\d+);", report.ptx)}
    blocks = 1 if cluster is None else 2
    assert counts == ({1, 2 * blocks} if limited else {2, 8 * blocks})
    left, right = 2 * 2 * 128 * 64, 2 * 64 * tile_n
    expected = {int(n) for n in re.findall(r"expect_tx[^;]*, (\d+);", report.ptx)}
    assert expected == ({left + right} if limited else {left, right})
    said = {note.what for note in report.notes if note.by == "arrivals"}
    assert said == ({"one arrival for a warpgroup", "one arrival for all loads of a step"} if limited else set())


def test_ordinary_loops_are_not_spoken_of() -> None:
    with smalt.emulated("H100"):
        (report,) = smalt.inspect(annotated_matmul, *[jax.ShapeDtypeStruct((256, 256), np.float16)] * 2, assemble=False)
    assert report.notes == () and "notes" not in str(report)
