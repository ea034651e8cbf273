"""The table of all grammars."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Any

from tests.fuzz.grammar import Grammar
from tests.programs.arrays.run import ARRAYS, ARRAYS_OF_WARPGROUPS, ARRAYS_OF_WARPS
from tests.programs.blocks.bodies import BODIES_BACKWARDS, BODIES_FORWARDS
from tests.programs.blocks.bounded import BOUNDED
from tests.programs.blocks.long import LONG_ROWS
from tests.programs.blocks.masks import MASKED_BLOCKS, MASKED_INDICES
from tests.programs.blocks.pipelined import PIPELINED
from tests.programs.blocks.run import DEPENDENT, PALLAS_CALLS
from tests.programs.blocks.spelled import SPELLED
from tests.programs.blocks.turns import COMPUTED_WEIGHTS, TURNS
from tests.programs.conversions import CONVERSIONS
from tests.programs.convolutions import CONVOLUTIONS
from tests.programs.block_copies import BLOCK_COPIES
from tests.programs.counted import COUNTED
from tests.programs.functions import FUNCTIONS
from tests.programs.indexing import INDEXING, REFERENCES_AT_INDICES
from tests.programs.inline_programs import INLINE_PTX, INLINE_PTX_WITHOUT_CARRIES, INLINE_PTX_WITH_CARRIES
from tests.programs.litmus import LITMUS
from tests.programs.loops.drains import DRAINS
from tests.programs.loops.parked import PARKED
from tests.programs.loops.rings import LATE_EPILOGUES, RINGS
from tests.programs.loops.running_products import RUNNING_PRODUCTS
from tests.programs.loops.running_sums import RUNNING_SUMS
from tests.programs.loops.staged import STAGED
from tests.programs.loops.tile_loops import TILE_LOOPS
from tests.programs.loops.turned_loops import TURNED_LOOPS
from tests.programs.memory.run import MEMORY, MEMORY_OF_RINGS, MEMORY_OF_WARPS
from tests.programs.memory_products import MEMORY_PRODUCTS
from tests.programs.products import PRODUCTS
from tests.programs.scalars import SCALARS, SCALARS_OF_WARPGROUPS, SCALARS_OF_WARPS
from tests.programs.views import VIEWS, VIEWS_OF_KINDS
from tests.suites.multi_gpu.random_programs import SEVERAL_DEVICES

#: Descriptors of one program of Rust's tests.
DESCRIPTORS = 20_000


def _damaged(first: int) -> None:
    """Descriptors with bytes changed: `tests/fuzzing`."""
    environment = {**os.environ, "SMALT_FUZZ_N": str(DESCRIPTORS), "SMALT_FUZZ_SEED": str(first)}
    command = ["cargo", "test", "--quiet", "--features", "test-handlers", "--test", "fuzzing", "damaged::"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


EVERY: tuple[Grammar[Any], ...] = (
    SCALARS,
    SCALARS_OF_WARPGROUPS,
    SCALARS_OF_WARPS,
    ARRAYS,
    ARRAYS_OF_WARPGROUPS,
    ARRAYS_OF_WARPS,
    MEMORY,
    MEMORY_OF_WARPS,
    MEMORY_OF_RINGS,
    PALLAS_CALLS,
    DEPENDENT,
    *SPELLED.values(),
    BODIES_FORWARDS,
    BODIES_BACKWARDS,
    BOUNDED,
    LONG_ROWS,
    CONVERSIONS,
    PRODUCTS,
    MEMORY_PRODUCTS,
    PIPELINED,
    TURNS,
    COMPUTED_WEIGHTS,
    CONVOLUTIONS,
    FUNCTIONS,
    MASKED_BLOCKS,
    MASKED_INDICES,
    INDEXING,
    REFERENCES_AT_INDICES,
    VIEWS,
    *VIEWS_OF_KINDS.values(),
    RINGS,
    LATE_EPILOGUES,
    DRAINS,
    RUNNING_SUMS,
    RUNNING_PRODUCTS,
    PARKED,
    STAGED,
    TILE_LOOPS,
    TURNED_LOOPS,
    COUNTED,
    BLOCK_COPIES,
    LITMUS,
    INLINE_PTX,
    INLINE_PTX_WITHOUT_CARRIES,
    INLINE_PTX_WITH_CARRIES,
    SEVERAL_DEVICES,
    *([Grammar("descriptors (20,000)", int, _damaged, takes=DESCRIPTORS, makes_kernels=False)] if shutil.which("cargo") else []),
)
GRAMMARS = {grammar.name: grammar for grammar in EVERY}
