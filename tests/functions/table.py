"""All calls: importing the lists fills `CASES`."""

from tests.functions import algebra, elementwise, indexing, neural, random_numbers, reductions, shapes  # noqa: F401
from tests.functions.case import CASES

__all__ = ["CASES"]
