"""Changes of the compiler for the worse, and which of them the tests find: `python -m tests.mutants`."""
