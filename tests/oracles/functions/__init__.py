"""Public functions of `jax.numpy`, `jax.lax`, `jax.nn`, `jax.scipy.special`, `jax.random` and `jax.numpy.linalg` inside of kernels.

`table.py` and its neighbours list calls, `judge.py` compares each with the same call outside of the kernel, `support.py` writes
`docs/SUPPORT.md` from what was found. `python -m tests.oracles.functions --help`.
"""
