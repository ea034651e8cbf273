"""What smalt raises. All of them at lowering time, with the user's line in the text."""

from __future__ import annotations


class Error(Exception):
    """Base of smalt's errors."""


class Unsupported(Error, NotImplementedError):
    """The kernel asks for something that smalt lacks."""


class InvalidKernel(Error, ValueError):
    """The kernel is wrong whoever compiles it."""


class Internal(Error, RuntimeError):
    """A defect of smalt. Please report it, with the dumped descriptor."""


class CompileError(Error):
    """The compiler's report: what, where, expected, got, and what to do."""
