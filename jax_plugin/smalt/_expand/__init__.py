"""Primitives that are written as other primitives: JAX's own definitions, special functions, linear algebra, gathers, windows.

Here: functions on arrays in terms of `jax.lax`, with no words of the descriptor but their attributes. Imports `_versions`, `_messages` and `_walk`.
"""

from smalt._expand.convolutions import convolution
from smalt._expand.expand import batched_while, call, call_logically, definition, trace
from smalt._expand.gather import RULES
