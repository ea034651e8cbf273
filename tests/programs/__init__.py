"""Generators of random programs: each has a `Grammar` (`tests/fuzz`), and a row in `tests/fuzz/registry.py`.

`memory/`, `arrays/` and `blocks/` have programs that are data; `loops/` has kernels with loops, their rings and products; a file here has one small generator.
"""
