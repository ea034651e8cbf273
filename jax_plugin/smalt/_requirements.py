"""What must be installed, reported where it is not."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import re
from collections.abc import Iterator

from smalt._errors import NotInstalled

TESTED_JAX = ("0.10.2", "0.11.2", "0.12.0.1")
REMEDY = "remedy: pip install -c constraints/jax.txt jax (or any version of jax>=0.10.2,<0.13)"


def jax_version() -> str | None:
    """The installed version, without importing JAX."""
    try:
        return importlib.metadata.version("jax")
    except importlib.metadata.PackageNotFoundError:
        return None


def has_jax() -> bool:
    try:
        return importlib.util.find_spec("jax") is not None
    except (ImportError, ValueError):  # a finder or an entry of sys.modules that forbids it
        return False


def no_jax() -> NotInstalled:
    return NotInstalled(f"smalt: JAX is not installed\n  expected: jax {', '.join(TESTED_JAX)}\n  {REMEDY}")


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Within the scope, a failing import of JAX's parts becomes one with what to install."""
    try:
        yield
    except NotInstalled:
        raise
    except (ImportError, AttributeError, TypeError) as e:
        version = jax_version()
        tested = ", ".join(TESTED_JAX)
        if version is None:
            raise no_jax() from e
        if isinstance(e, ModuleNotFoundError) and (e.name or "").split(".")[0] == "absl":
            raise NotInstalled(
                f"smalt: jax {version} needs absl-py for its Mosaic GPU kernels, and does not install it"
                "\n  remedy: pip install absl-py"
            ) from e
        if is_tested(version):
            raise
        raise NotInstalled(
            f"smalt: this version of JAX is not supported\n  expected: jax {tested} (0.10.2 to 0.12)"
            f"\n  got: jax {version} ({type(e).__name__}: {e})\n  {REMEDY}"
        ) from e


def is_tested(version: str) -> bool:
    """Whether the version is of a series that the tests run on."""
    numbers = [int(n) for n in re.findall(r"\d+", version)[:3]]
    return (0, 10, 2) <= tuple(numbers) < (0, 13)
