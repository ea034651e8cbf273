"""Kernels that print, and what they must print: `python -m tests.suites.prints` runs them on JAX's default device and shows it."""
