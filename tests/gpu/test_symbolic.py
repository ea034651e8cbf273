"""Symbolic shapes in `jax.export`, on the GPU."""

from tests.kernels.suite_symbolic import *  # noqa: F403
