"""Calls over parts of arrays: those that XLA splits over devices, and loops over symbolic dimensions.

Here: which parts a call can be taken in, and how results follow from them. Imports `_blocks` and what lies below it.
"""

from smalt._partition.loops import is_symbolic
from smalt._partition.over_devices import partition
from smalt._partition.symbolic import symbolic_backward, symbolic_calls, symbolic_sample
