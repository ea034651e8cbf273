"""`pl.pallas_call` as a kernel: what a body does to its blocks, in which order the grid runs, how blocks move.

Here: everything about one call of static shape. What makes several calls of one is above, in `_partition`. Imports `_rules` and what lies below
it, and `_programs`.
"""

from smalt._blocks.queries import Query, QueryingBody, bind_answers
from smalt._blocks.axis_order import shared_axes
from smalt._blocks.blocks import BESIDE, Block, Form, forms_of
from smalt._blocks.flow import uses, warn_of_outputs_never_stored
from smalt._blocks.pallas_call import Call, is_wanted, kernel
from smalt._blocks.pipelines import heeding_stays
from smalt._programs import Means
