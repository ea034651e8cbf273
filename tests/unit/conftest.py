"""Tests of this room are run as those that use the emulator are."""

from tests.emulated.conftest import pytest_collection_modifyitems  # noqa: F401
