"""The corpus: golden descriptors, determinism, what kernels differ in over versions."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import numpy as np
import pytest
import smalt
from tests import ROOT
from tests.corpus import golden, load_all
from tests.corpus.decode import decode, show

pytestmark = pytest.mark.xdist_group("corpus")

CASES = load_all()


@pytest.fixture(scope="module")
def kernels():
    return golden.serialize_all()


def test_golden(kernels):
    if golden.version() not in golden.versions():
        pytest.skip(f"no golden descriptors of JAX {golden.version()}")
    assert golden.check(kernels) == []


def test_enough_kernels(kernels):
    assert len(CASES) >= 170
    assert len(kernels) >= 220


def test_every_descriptor_decodes_and_prints(kernels):
    for kernel in kernels:
        text = show(kernel.descriptor)
        assert text.startswith("kernel ")
        table = decode("DebugTable", kernel.debug)
        ops = _count_ops(decode("KernelDescriptor", kernel.descriptor)["body"])
        assert len(table["op_frames"]) == ops + 1, kernel.key


def _regions(region):
    yield region
    for op in region.get("ops", []):
        for inner in op.get("regions", []):
            yield from _regions(inner)


def _count_ops(region):
    return sum(len(r.get("ops", [])) for r in _regions(region))


def test_ids_are_dense_and_in_order(kernels):
    for kernel in kernels:
        values, ops = [], []

        def walk(region):
            values.extend(v["id"] for v in region.get("params", []))
            for op in region.get("ops", []):
                ops.append(op["id"])
                for inner in op.get("regions", []):
                    walk(inner)
                values.extend(v["id"] for v in op.get("results", []))

        walk(decode("KernelDescriptor", kernel.descriptor)["body"])
        assert values == list(range(1, len(values) + 1)), kernel.key
        assert ops == list(range(1, len(ops) + 1)), kernel.key


def test_nothing_opaque_but_the_unknown(kernels):
    """A parameter without an encoding is dropped only where it means nothing to a compiler."""
    allowed = {
        "jvp_jaxpr_fun",
        "comparator",
        "mode",
        "update_jaxpr",
    }
    for kernel in kernels:
        for region in _regions(decode("KernelDescriptor", kernel.descriptor)["body"]):
            for op in region.get("ops", []):
                for attr in op.get("attrs", []):
                    if attr["name"] == "opaque":
                        names = {a["text"] for a in attr["attrs"]["attrs"]}
                        assert names <= allowed, (kernel.key, op["primitive"], names)


def test_no_paths_or_addresses_in_what_is_hashed(kernels):
    for kernel in kernels:
        for needle in (b"site-packages", b".py", b" at 0x", b"/usr/", os.getcwd().encode()):
            assert needle not in kernel.descriptor, (kernel.key, needle)


_SOME = [
    "add_one",
    "activations",
    "pipeline_warp_specialized",
    "hopper_matmul_float16_cluster_n",
    "attention_causal",
    "signals_in_two_dimensions",
    "closes_over_scalar_in_scan",
    "mutable_ref_by_core_map",
    "inline_mgpu_values",
]


def test_equal_in_every_process(tmp_path):
    """Two processes with different hash seeds and paths write the same bytes as this one."""
    code = (
        "import sys; from tests.corpus import golden\n"
        "for k in golden.serialize_all(sys.argv[1:]): print(k.key, k.hash)"
    )
    here = [f"{k.key} {k.hash}" for k in golden.serialize_all(_SOME)]
    for seed in ("1", "4242"):
        environment = dict(os.environ, PYTHONHASHSEED=seed, PYTHONPATH=f"{ROOT}/jax_plugin:{ROOT}")
        run = subprocess.run(
            [sys.executable, "-c", code, *_SOME], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        assert run.stdout.split("\n")[:-1] == here


def test_every_primitive_of_the_vocabulary_is_covered():
    """Over all versions, the committed corpus uses every op that docs/descriptor.md defines by a rule."""
    from smalt._expand import windows
    from smalt._rules import dma, rules, triton

    seen = set()
    for which in golden.versions():
        for data in golden.read(which).values():
            for region in _regions(decode("KernelDescriptor", data)["body"]):
                seen.update(op["primitive"] for op in region.get("ops", []))
    # Written as calls, a load, a store, inline PTX.
    others = {"pallas_block", "window_load", "window_store", "conv_general_dilated", "access", *windows.RULES, *triton.RULES, *dma.RULES}
    missing = set(rules._RULES) - seen - {"masked_load", "masked_swap"} - others
    assert missing == set()


def test_inputs_and_references_are_well_formed():
    for name, case in CASES.items():
        if case.reference is None:
            assert case.why, f"{name}: no reference and no reason"
            continue
        if case.target != "hopper" or name.startswith(("attention", "ragged", "hopper")):
            continue
        with case.scope():
            out = jax.eval_shape(case.fn, *[arg.struct() for arg in case.args])
            inputs = case.inputs()
            again = case.inputs()
            expected = case.expected(inputs)
        assert all(np.array_equal(a.view(np.uint8), b.view(np.uint8)) for a, b in zip(inputs, again) if a.ndim), name
        leaves = jax.tree.leaves(out)
        assert [(x.shape, x.dtype) for x in leaves] == [(x.shape, x.dtype) for x in expected], name


def test_equal_kernels_have_equal_bytes():
    a = smalt.descriptor(CASES["add_one"].fn, *[arg.struct() for arg in CASES["add_one"].args])
    b = smalt.descriptor(CASES["add_one"].fn, *[arg.struct() for arg in CASES["add_one"].args])
    assert a[0][1] == b[0][1]
