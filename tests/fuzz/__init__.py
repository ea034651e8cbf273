"""Random programs: what is the same for all that draw them.

A `Grammar` (`grammar.py`) draws a program of a seed and checks it; it stands with its programs, wherever these are. Here are the outcome of
a check, the shrinker, the runner of many seeds in processes, the table of all grammars (`registry.py`), the command line
(`python -m tests.fuzz --help`) and what tests of seeds are made with (`seeds.py`). Only the table imports grammars. Outcome, runner and
command line are imported without JAX, for which they prepare the environment.

A new generator is a function of a seed that gives a program, a check that raises AssertionError or returns nothing, and a row of the table.
"""
