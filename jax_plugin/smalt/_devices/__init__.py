"""What JAX's devices are to a kernel: emulated ones, and what a host has of a mesh.

Imports `_versions` and `_config`.
"""

from smalt._devices.directory import answer
from smalt._devices.emulation import KINDS, emulated, emulated_device, emulation_flags
from smalt._devices.hosts import Within, within
