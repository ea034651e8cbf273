"""Random programs over all that arrays have in kernels, mixed; held against JAX's interpreter of `pl.pallas_call`.

`program.py` says what a program is, `steps.py` what its steps compute, `choices.py` and its neighbours choose them, `emit.py` makes a kernel
and the same body for the interpreter, `run.py` runs and judges, `smaller.py` has what failing programs are shrunk by.
"""
