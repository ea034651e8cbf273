"""`examples/train_gpt.py` on the GPU: its kernels by smalt, against XLA alone and against stock Mosaic GPU."""

from __future__ import annotations

import dataclasses

import numpy as np

from examples import train_gpt
from tests.emulated.whole.test_train_gpt import test_gradients_of_the_model, test_operations_and_their_gradients  # noqa: F401


def test_training_by_all_backends() -> None:
    config = dataclasses.replace(train_gpt.Config(), layers=2, batch=4, steps=20)
    runs = {backend: train_gpt.train(config, backend).losses for backend in train_gpt.BACKENDS}
    assert runs["smalt"][-1] < runs["smalt"][0] - 1
    np.testing.assert_allclose(runs["smalt"], runs["stock"], atol=0.02)
    np.testing.assert_allclose(runs["smalt"], runs["xla"], atol=0.02)
