"""Programs of one warpgroup by several, or by the warps of warpgroups.

`handed`: every warpgroup runs the steps on its own block of each array, and stores its results to shared memory; the next one waits for them, and
stores them to the outputs. Everything that can race does: results, scratch, what the compiler places in shared memory itself.

`by_warps`: every warp runs the steps on its own block of each array, in a warp region; no two are ever at the same place for long.
"""

from __future__ import annotations

import dataclasses

from tests.programs.arrays.program import Program


def handed(p: Program) -> Program | None:
    """The program by 2 or 3 warpgroups that hand on results; None: it is no kernel, or steps know how many warpgroups there are."""
    if p.form.kind != "kernel" or not p.outputs or any(0 in r.shape for r in p.outputs):
        return None
    # A program of several warpgroups may use its index: it keeps their number.
    warpgroups = p.form.warpgroups if p.form.warpgroups > 1 else 2 + p.seed % 2
    return p.but(form=dataclasses.replace(p.form, warpgroups=warpgroups, handed=True))


def by_warps(p: Program) -> Program | None:
    """The program by each warp; None: it is no kernel."""
    return p.but(form=dataclasses.replace(p.form, by_warps=True)) if p.form.kind == "kernel" else None
