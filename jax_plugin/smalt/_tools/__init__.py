"""What shows kernels to their authors: reports, timelines, drawings.

Here: nothing that compiling or running needs. Imports `_lowering`, `_native` and `_messages`.
"""

from smalt._tools.inspection import inspect
from smalt._tools.layout_map import LayoutMap, draw_layout
from smalt._tools.smem_map import SmemMap, draw_smem
from smalt._tools.timeline import trace
