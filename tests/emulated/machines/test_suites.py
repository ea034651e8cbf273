"""Kernels as people write them, on machines of each kind: as first written, and the layers of a GPT."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import smalt
from examples import as_first_written
from smalt import _native
from tests.emulated.machines.fixture import on
from tests.emulated.whole import test_train_gpt as gpt
from tests.machine import has_memory, target

pytestmark = pytest.mark.shared

machine = on("sm_80", "sm_86", "sm_89", "sm_100a", "sm_120a")


@pytest.mark.parametrize("name", as_first_written.EXAMPLES)
def test_as_first_written(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        as_first_written.check(name)


@pytest.mark.parametrize("case", gpt.CASES)
def test_layers_of_a_gpt(case: str) -> None:
    """What is written with `plgpu.wgmma` is refused by name; tiles that are a Hopper's may be too large. The rest is right, with its gradient."""
    name, arguments = case.split(",")[0], gpt.CASES[case]

    def of(operations: Any) -> Any:
        f = getattr(operations, name)
        return (lambda x: f(x, gpt.labels(x))) if name == "cross_entropy" else f

    refused = None
    try:
        got = gpt.values_and_gradients(of(gpt.KERNELS), *arguments)
    except smalt.Error as error:
        refused = str(error)
    too_large = not has_memory() and refused is not None and refused.startswith("smalt: shared memory\n")
    if name not in ("rms_norm", "cross_entropy"):
        assert too_large or refused is not None and f"wgmma on {target()}\n" in refused, refused
    elif name == "cross_entropy" and not has_memory():
        assert too_large, refused
    else:
        assert refused is None, refused
        exact = gpt.values_and_gradients(of(gpt.PLAIN), *(x.astype(jnp.float32) for x in arguments))
        assert max(gpt.error(a, b) for a, b in zip(got, exact, strict=True)) < 4e-3


def test_it_is_this_machine() -> None:
    assert jax.devices()[0].compute_capability == ".".join(map(str, _native.machines()[target()].capability))
