"""Tests run on the CPU, with several fake devices."""

import gc
import os

# Traces and caches are many objects that live long: with Python's own thresholds 3 to 6 % of the time goes to looking through them.
gc.set_threshold(20_000, 50, 50)

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Not the user's: what a test keeps on disk, it keeps in a folder of its own.
os.environ["SMALT_CACHE_DIR"] = ""
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
