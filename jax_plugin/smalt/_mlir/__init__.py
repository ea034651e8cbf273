"""`plgpu.inline_mgpu`: MLIR that a user's function builds, as inline PTX.

All that depends on MLIR's operations is here. Imports `_versions` and `_messages`.
"""

from smalt._mlir.inline_mgpu import Array, Barrier, Reference, array, arrays, attributes, chosen, reference, translate
