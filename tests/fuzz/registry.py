"""The table of all grammars."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Any

from tests.arrays.run import ARRAYS, ARRAYS_OF_WARPGROUPS, ARRAYS_OF_WARPS
from tests.blocks.bodies import BODIES_BACKWARDS, BODIES_FORWARDS
from tests.blocks.bounded import BOUNDED
from tests.blocks.long import LONG_ROWS
from tests.blocks.run import DEPENDENT, PALLAS_CALLS
from tests.blocks.spelled import SPELLED
from tests.fuzz.grammar import Grammar
from tests.kernels.conversions import CONVERSIONS
from tests.kernels.convolutions import CONVOLUTIONS
from tests.kernels.counted import COUNTED
from tests.kernels.drains import DRAINS
from tests.kernels.indexing import INDEXING, REFERENCES_AT_INDICES
from tests.kernels.inline_programs import INLINE_PTX
from tests.kernels.litmus import LITMUS
from tests.kernels.masks import MASKED_BLOCKS, MASKED_INDICES
from tests.kernels.memory_products import MEMORY_PRODUCTS
from tests.kernels.parked import PARKED
from tests.kernels.pipelined import PIPELINED
from tests.kernels.products import PRODUCTS
from tests.kernels.random_programs import SCALARS
from tests.kernels.rings import LATE_EPILOGUES, RINGS
from tests.kernels.running_products import RUNNING_PRODUCTS
from tests.kernels.running_sums import RUNNING_SUMS
from tests.kernels.staged import STAGED
from tests.kernels.tile_loops import TILE_LOOPS
from tests.kernels.turned_loops import TURNED_LOOPS
from tests.kernels.turns import COMPUTED_WEIGHTS, TURNS
from tests.kernels.views import VIEWS
from tests.multi_gpu.random_programs import SEVERAL_DEVICES
from tests.programs.run import MEMORY, MEMORY_OF_RINGS, MEMORY_OF_WARPS

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
    MASKED_BLOCKS,
    MASKED_INDICES,
    INDEXING,
    REFERENCES_AT_INDICES,
    VIEWS,
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
    LITMUS,
    INLINE_PTX,
    SEVERAL_DEVICES,
    *([Grammar("descriptors (20,000)", int, _damaged, takes=DESCRIPTORS)] if shutil.which("cargo") else []),
)
GRAMMARS = {grammar.name: grammar for grammar in EVERY}
