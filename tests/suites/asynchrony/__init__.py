"""Kernels that stand on their synchronisation, each with a twin in which one piece of it is missing or in the wrong place.

`kernels.py` has kernels written in Pallas whose author forgot something; `ptx.py` takes what smalt compiles from right ones and
removes what the compiler put there. `subject.py` runs them; `tests/gpu/test_sanitizer.py` runs the right ones under compute-sanitizer.
"""
