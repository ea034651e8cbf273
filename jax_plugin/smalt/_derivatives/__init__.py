"""Derivatives of kernels, forwards and backwards, as JAX's rules for their primitives.

Imports `_blocks`, `_partition` and what lies below them.
"""

from smalt._derivatives.forwards import rules
