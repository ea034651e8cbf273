"""Random programs over memory, each held against an interpreter that takes its statements one after the other.

`tree.py` has the statements; `interpret.py` says what a program computes and whether its author wrote what JAX asks of authors
(waits, commits, arrivals); `generate.py` makes programs, `emit.py` writes them as Pallas kernels, `run.py` runs those,
`smaller.py` has what failing ones are shrunk by. `regressions.py` are programs by name.

The generator makes statements that meet on few bytes, and asks the interpreter what synchronisation is missing: it adds just that.
All other order, between lanes, warps, loads and stores of one warpgroup, is the compiler's to keep.
"""
