"""All calls: importing the lists fills `CASES`."""

from tests.oracles.functions import algebra, elementwise, indexing, neural, random_numbers, reductions, shapes  # noqa: F401
from tests.oracles.functions.case import CASES

__all__ = ["CASES"]
