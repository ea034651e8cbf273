"""Barriers in every form that PTX has, on the GPU."""


from tests.kernels.suite_barrier_forms import *  # noqa: F403

