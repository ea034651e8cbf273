"""Programs of one warpgroup by several, whose results go from one to the next through shared memory and a barrier.

Every warpgroup runs the steps on its own block of each array, and stores its results to shared memory; the next one waits for them, and stores
them to the outputs. Everything that can race does: results, scratch, what the compiler places in shared memory itself.
"""

from __future__ import annotations

import dataclasses

from tests.arrays.program import Program


def handed(p: Program) -> Program | None:
    """The program by 2 or 3 warpgroups that hand on results; None: it is no kernel, or steps know how many warpgroups there are."""
    if p.form.kind != "kernel" or not p.outputs or any(0 in r.shape for r in p.outputs):
        return None
    # A program of several warpgroups may use its index: it keeps their number.
    warpgroups = p.form.warpgroups if p.form.warpgroups > 1 else 2 + p.seed % 2
    return p.but(form=dataclasses.replace(p.form, warpgroups=warpgroups, handed=True))
