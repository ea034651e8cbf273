"""Runs one call on this machine's backend and in JAX's interpreter."""

from __future__ import annotations

import dataclasses
import warnings

import jax
import numpy as np
import pytest

import smalt
from smalt import _rows
from tests.blocks.generate import arguments, build, generate
from tests.blocks.named import CALLS


@dataclasses.dataclass(frozen=True)
class Result:
    seed: int
    kind: str  # right, wrong, refused, error
    text: str = ""


def check_named(name: str) -> None:
    """A call by name has the interpreter's bits; skips the test where this JAX's interpreter means something else."""
    named = CALLS[name]
    if jax.__version_info__ < named.since:
        pytest.skip("the interpreter of this JAX means something else")
    with jax.default_device(jax.devices("cpu")[0]):
        want = np.asarray(jax.jit(named.make({"interpret": True}))(*named.arrays))
    got = np.asarray(jax.jit(named.make({}))(*named.arrays))
    assert got.tobytes() == want.tobytes()


def run(seed: int) -> Result:
    call = generate(seed)
    make, arrays = build(call), arguments(call)
    warnings.simplefilter("ignore")
    cpu = jax.devices("cpu")[0]
    with jax.default_device(cpu):
        want = np.asarray(jax.jit(make(True))(*jax.device_put(arrays, cpu)))
    target, minor = _rows.TARGET, _rows.MINOR
    try:
        if seed % 2:  # blocks of these sizes are hardly worth splitting
            _rows.TARGET, _rows.MINOR = 24, 8
        got = np.asarray(jax.jit(make(False))(*arrays))
    except smalt.Unsupported as e:
        return Result(seed, "refused", str(e))
    except Exception as e:
        return Result(seed, "error", f"{type(e).__name__}: {e}\n{call.describe()}")
    finally:
        _rows.TARGET, _rows.MINOR = target, minor
    if got.dtype == want.dtype and got.shape == want.shape and got.tobytes() == want.tobytes():
        return Result(seed, "right")
    return Result(seed, "wrong", f"{int((got != want).sum())} of {got.size} elements\n{call.describe()}")
