"""Kernels that stand on their synchronisation, each with a twin in which one piece of it is missing or in the wrong place.

`kernels.py` has kernels written in Pallas whose author forgot something; `ptx.py` takes what smalt compiles from right ones and
removes what the compiler put there. `subject.py` runs them; `twins.py` runs the right ones on a GPU, for compute-sanitizer.
"""
