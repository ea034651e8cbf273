"""Kernels in the emulator: a folder for each theme. What a GPU can run as well is a suite (`tests/suites`) that a file here and one in `tests/gpu` import."""
