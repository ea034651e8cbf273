"""JAX's lowering of a kernel: descriptor, artifact, custom call; the handlers' registration with XLA, and errors of runs.

Here: what interfaces with JAX and XLA when a program is compiled, exported or run. Imports everything below.
"""

from smalt._lowering.ffi import register
from smalt._lowering.lower import begin, captured, descriptor
