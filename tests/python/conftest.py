"""Tests run on the CPU, with several fake devices."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Not the user's: what a test keeps on disk, it keeps in a folder of its own.
os.environ["SMALT_CACHE_DIR"] = ""
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
