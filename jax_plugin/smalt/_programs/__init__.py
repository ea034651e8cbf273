"""A kernel's body as a program of values that is looked at as a whole, and taken by several warpgroups or with its grid's steps in a loop.

Here: analyses and plans of bodies, independent of blocks and calls. Imports `_versions` and `_primitives`.
"""

from smalt._programs.dimensions import ELEMENTWISE, Mixed, Split, operand_splits, params_of_part
from smalt._programs.program import Unreadable, read_program
from smalt._programs.turns import TurnRoles, read_turns
from smalt._programs.roles import WARPGROUP_AXIS, run_by_warpgroups
from smalt._programs.warpgroups import Means, WarpgroupPlan, plan_warpgroups
