"""Loads and stores under masks, in the emulator, and what is wrong with them."""

from __future__ import annotations

from typing import Any

import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import pytest
import smalt
from jax.experimental.pallas import triton as plt

from tests.corpus.case import like
from tests.suites.suite_masks import *  # noqa: F403


def reported(body: Any, *arrays: Any) -> str:
    with pytest.raises(smalt.Error) as e, smalt.enabled(True):
        plgpu.kernel(body, out_type=like((64,)))(*arrays)
    return str(e.value)


def test_a_mask_that_is_true_outside_is_told_of() -> None:
    def body(x: Any, at: Any, o: Any) -> None:
        o[...] = plt.load(x.at[pl.ds(at[0], 64)], mask=jnp.arange(64) < 60, other=0.0)

    text = reported(body, jnp.zeros(100), jnp.asarray([41]))
    assert "an index outside of its dimension" in text and "got: 100 in dimension 0 of" in text
    assert "test_masks.py" in text


def test_an_index_that_a_mask_has_outside_is_told_of() -> None:
    def body(x: Any, o: Any) -> None:
        i = jnp.arange(64) * 2
        o[...] = plt.load(x.at[i], mask=i < 102, other=0.0)

    assert "got: 100 in dimension 0 of" in reported(body, jnp.zeros(100))


def test_masks_that_are_none() -> None:
    def numbers(x: Any, o: Any) -> None:
        o[...] = plt.load(x, mask=jnp.arange(64), other=0.0)

    def shape(x: Any, o: Any) -> None:
        o[...] = plt.load(x, mask=jnp.ones((2, 64), bool), other=0.0)

    text = reported(numbers, jnp.zeros(64))
    assert "booleans" in text and "got: i32[64]" in text and "remedy: compare" in text
    text = reported(shape, jnp.zeros(64))
    assert "the mask does not fit" in text and "got: [2, 64]" in text


def test_narrow_elements_are_refused() -> None:
    def body(x: Any, o: Any) -> None:
        o[...] = plt.load(x, mask=jnp.arange(64) < 3, other=0).astype(jnp.float32)

    assert "i4" in reported(body, jnp.zeros(64, jnp.int4))
