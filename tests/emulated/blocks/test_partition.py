"""`smalt.partition`, on emulated devices."""

from collections.abc import Iterator

import pytest

from tests import contexts
from tests.suites.suite_partition import *  # noqa: F403


@pytest.fixture(autouse=True)
def _contexts_apart() -> Iterator[None]:
    with contexts.apart():
        yield
