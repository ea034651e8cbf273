"""What becomes of a program. Imports no JAX: the command line and the runner prepare the environment that JAX starts in."""

from __future__ import annotations

import dataclasses
import re
from typing import Any


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a program.

    Attributes:
        kind: "right"; "no bits": right, where it has no results that machines may be held to; "refused": smalt says what it lacks; "no program": JAX lacks
            something, or says that it is none. All others are failures: "wrong" (numbers), "other bits" (than another machine's), "race" (the
            emulator's checker reports it), "deadlock", "hangs", "error".
        text: The diagnosis, or the first wrong elements.
        where: Which part of the check failed, for one that runs that part alone.
        digests: Of the results, for another machine to be held to their bits.
    """

    kind: str
    text: str = ""
    where: Any = None
    digests: tuple[str, ...] = dataclasses.field(default=(), compare=False)

    @property
    def is_failure(self) -> bool:
        return self.kind not in ("right", "no bits", "refused", "no program")

    @property
    def signature(self) -> str:
        """What a smaller program must share to fail alike: the kind, and the first words of the diagnosis."""
        if self.kind in ("wrong", "deadlock", "hangs"):
            return self.kind
        words = re.sub(r"[%\d\[\]x]+", "", self.text.split("(")[0]).split()
        return f"{self.kind}: {' '.join(words[:8])}"


RIGHT = Outcome("right")
