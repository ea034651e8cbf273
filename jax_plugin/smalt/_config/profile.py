"""`CompilerParams.profile_space` and what belongs to it: when named scopes begin and end, a file for each launch."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

from smalt._errors import InvalidKernel


def profile_space(params: Any) -> int:
    """Ranges that a warpgroup (or warp) can record; 0: there is no profile."""
    return int(getattr(params, "profile_space", 0) or 0)


def profiles_by_warps(params: Any) -> bool:
    scope = getattr(params, "profile_trace_scope", None)
    return profile_space(params) > 0 and getattr(scope, "name", "") == "WARP"


def profile_folder(params: Any, where: Callable[[], str]) -> str:
    """Where files go, as an absolute path; empty: there is no profile. Refuses what no launch could do."""
    ranges, path = profile_space(params), str(getattr(params, "profile_dir", "") or "")
    if ranges < 0:
        raise InvalidKernel(
            f"smalt: profile_space of a kernel\n  expected: how many ranges of each warpgroup there is room for\n  got: {ranges}"
            f"\n  remedy: leave it at 0 for no profile{where()}"
        )
    if not ranges:
        return ""
    if path == "sponge":  # JAX's name for its tests' outputs
        path = os.getenv("TEST_UNDECLARED_OUTPUTS_DIR", tempfile.gettempdir())
    path = os.path.abspath(path)
    if not os.path.isdir(path):
        fault = "a file" if os.path.exists(path) else "no such folder"
    elif not os.access(path, os.W_OK | os.X_OK):
        fault = "a folder that cannot be written"
    else:
        return path
    raise InvalidKernel(
        f"smalt: profile_dir of a kernel\n  expected: a folder that can be written\n  got: {path}: {fault}"
        f"\n  remedy: create it, or name another one in CompilerParams(profile_dir=){where()}"
    )
