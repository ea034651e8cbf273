"""The walk through a jaxpr that writes regions of a descriptor, and the analyses of indices that it needs.

Rules of primitives are given to it: none stands here. Imports `_versions` and `_messages`.
"""

from smalt._walk.signs import natural_counters
from smalt._walk.strides import repeating_load, strided_load
from smalt._walk.walk import ABSENT, Emit, OpParts, Walker
