"""Each primitive's rule, from JAX's equation to an op of `docs/descriptor.md`, and the descriptor of a whole kernel.

Tables of rules stand here, those for kernels of a TPU or of Triton included. Imports what lies below: `_walk`, `_expand`, `_mlir`, `_primitives`, `_devices`.
"""

from smalt._rules.descriptor import Kernel, serialize
from smalt._rules.triton import TRITON_STAGES, triton_parameters
