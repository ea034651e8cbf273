"""Primitives of smalt's own, which authors of kernels call: inline PTX, barriers, and accesses whose order they give.

How they are written into a descriptor is in `_rules`. Imports `_versions`.
"""

from smalt._primitives.barriers import expect_bytes, mbarrier_arrive, mbarrier_wait, named_barrier_arrive, named_barrier_sync
from smalt._primitives.copies import await_copies, copy_by_threads
from smalt._primitives.ordered import (
    atomic,
    atomic_add,
    atomic_and,
    atomic_cas,
    atomic_exchange,
    atomic_max,
    atomic_min,
    atomic_or,
    atomic_xor,
    check_array,
    fence,
    fence_proxy_async,
    load,
    positions,
    store,
    volatile_load,
)
from smalt._primitives.texts import inline_ptx, run_ptx
