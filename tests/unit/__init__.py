"""Tests of the plugin's modules, of the wire between Python and the library, of the package, the pages and the tests' own tools.

A file is about one module, or about one thing that users do with the package; whole kernels and what they compute are in `tests/emulated`.
"""
