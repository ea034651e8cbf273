"""Tests run on the CPU, with several fake devices."""

import gc
import os
import zlib

import pytest

from tests import contexts

# Traces and caches are many objects that live long: with Python's own thresholds 3 to 6 % of the time goes to looking through them.
gc.set_threshold(20_000, 50, 50)

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Products of references are small: threads of theirs would spin for longer than they work. XLA's optimiser takes longer than what it saves.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# Not the user's: what a test keeps on disk, it keeps in a folder of its own.
os.environ["SMALT_CACHE_DIR"] = ""
# Nor does XLA's newer way to compile fusions, which takes two thirds of the compilation of a large one. JAX 0.12 has no other.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters"
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of tests that are marked `shared`, `SMALT_TEST_SHARE=1/3` runs the second third: other versions of JAX run the others.

    Each test is in one share, by its name alone, or by the number that the mark gives. `SMALT_TEST_BATCHES=2`: of the batches of random
    programs that a test has (its parameter is `first`, the first seed) every second one is run, but of those that are marked `whole`.
    """
    contexts.share()  # here: only the processes that run tests come by
    every = int(os.environ.get("SMALT_TEST_BATCHES", "1"))
    share, of = map(int, os.environ.get("SMALT_TEST_SHARE", "0/1").split("/"))
    assert 0 <= share < of, "SMALT_TEST_SHARE: expected a share of several, such as 0/3"

    def is_here(item: pytest.Item) -> bool:
        has_batches = isinstance(item, pytest.Function) and hasattr(item, "callspec") and item.get_closest_marker("whole") is None
        if has_batches and item.callspec.indices.get("first", 0) % every:
            return False
        marker = item.get_closest_marker("shared")
        if marker is None:
            return True
        name = marker.args[0] if marker.args else item.nodeid.split("@")[0]
        number = name if isinstance(name, int) else zlib.crc32(name.encode())
        return number % of == share

    left_out = [item for item in items if not is_here(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = filter(is_here, items)
