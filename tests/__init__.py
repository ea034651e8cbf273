"""The tests that are written in Python; docs/ARCHITECTURE.md has their rooms.

`machine.py`, `contexts.py` and `fresh.py` are shared by all rooms and import none of them.
"""

import pathlib

#: The source tree.
ROOT = pathlib.Path(__file__).resolve().parents[1]
