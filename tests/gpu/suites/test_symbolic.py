"""Symbolic shapes in `jax.export`, on the GPU."""

from tests.suites.suite_symbolic import *  # noqa: F403
