"""Barriers in every form that PTX has, on the GPU."""


from tests.suites.suite_barrier_forms import *  # noqa: F403

