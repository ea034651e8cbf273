"""The corpus runs: in the emulator on a machine without a GPU, each case against its reference, bit for bit where it says so."""

from __future__ import annotations

from tests.corpus import load_all
from tests.corpus.run import run_all

#: JAX's own matmul, at the sizes of the corpus: one of each kind of configuration.
SHIPPED = [
    "hopper_matmul_bfloat16_basic",
    "hopper_matmul_bfloat16_wg_m",
    "hopper_matmul_bfloat16_cluster_n",
    "hopper_matmul_float16_cluster_m",
    "hopper_matmul_with_c",
]

#: Cases that smalt refuses today, with a clear error. FIXME: they shrink; a case that begins to run must leave this list.
UNSUPPORTED = {
    "async_store_to_peer",
    "barrier_test",
    "dot_general",
    "gather_scatter_values",
    "iota_and_masks",
    "mma_in_registers",
    "random_bits",
    "random_keys",
    "shape_ops",
    "sort_and_scan",
    "unary_transcendental",
}


def small_cases() -> list[str]:
    cases = load_all()
    return [name for name, case in cases.items() if case.reference is not None and case.target == "hopper" and not case.large]


def test_small_cases_are_right() -> None:
    results = run_all(small_cases(), workers=2, timeout=240)
    assert len(results) > 100
    bad = {r["name"]: f"{r['outcome']}: {r['detail'][:400]}" for r in results if r["outcome"] not in ("ok", "unsupported")}
    assert not bad
    refused = {r["name"] for r in results if r["outcome"] == "unsupported"}
    assert refused <= UNSUPPORTED, refused - UNSUPPORTED


def test_jax_own_matmul_is_right() -> None:
    names = [name for name in SHIPPED if name in load_all()]
    assert names
    results = run_all(names, workers=2, timeout=600)
    bad = {r["name"]: f"{r['outcome']}: {r['detail'][:400]}" for r in results if r["outcome"] != "ok"}
    assert not bad
