"""Kernels that talk to the same kernel on other devices, under `jax.shard_map`, each with a NumPy reference.

The same programs run on N emulated devices (`XLA_FLAGS=--xla_force_host_platform_device_count=N`) and on N GPUs; their inputs are
the same everywhere, so that the bits of all results can be compared (`--json`). `python -m tests.suites.multi_gpu --devices 4` runs them;
`broken.py` has twins with one piece of synchronisation missing or wrong, `shipped.py` the kernels that JAX ships.
"""
