"""Kernels with loops: rings, drains, sums and products that are carried, parked accumulators. `loops.py` is what they share."""
