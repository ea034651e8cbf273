"""Symbolic shapes in `jax.export`, in the emulator."""

from tests.kernels.suite_symbolic import *  # noqa: F403
