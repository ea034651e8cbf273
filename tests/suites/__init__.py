"""Kernels by name with what they must give, for the machine that there is: files of `tests/emulated` and `tests/gpu` import their tests.

A suite may use grammars (`tests/programs`), oracles and the corpus; none of these imports a suite.
"""
