"""`examples/as_first_written.py` on the GPU."""

from tests.unit.test_examples import test_as_first_written  # noqa: F401
