"""The debug table: op id -> chain of frames, beside what is hashed."""

from __future__ import annotations

from typing import Any

from smalt import _versions
from smalt._wire import Message, message

Position = tuple[str, str, int, int]


class DebugTable:
    """Interns strings, frames and chains as ops are written."""

    def __init__(self, call_site: Any) -> None:
        self._strings: dict[str, int] = {"": 0}
        self._frames: dict[Position, int] = {("", "", 0, 0): 0}
        self._chains: list[tuple[int, ...]] = []
        self._by_traceback: dict[int, tuple[int, ...]] = {}
        self._alive: list[Any] = []  # ids in _by_traceback are of these
        self.add(call_site)

    def add(self, traceback: Any) -> None:
        """Appends the chain of the next op (the first one is the call site's)."""
        key = id(traceback)
        chain = self._by_traceback.get(key)
        if chain is None:
            chain = tuple(self._frame(position) for position in _versions.frames(traceback))
            self._by_traceback[key] = chain
            self._alive.append(traceback)
        self._chains.append(chain)

    def _frame(self, position: Position) -> int:
        found = self._frames.setdefault(position, len(self._frames))
        if found == len(self._frames) - 1:
            for text in position[:2]:
                self._strings.setdefault(text, len(self._strings))
        return found

    def encode(self) -> Message:
        frames = [
            message("Frame", file=self._strings[f], function=self._strings[fn], line=line, column=column)
            for f, fn, line, column in self._frames
        ]
        chains = [message("FrameChain", frames=chain) for chain in self._chains]
        return message("DebugTable", strings=list(self._strings), frames=frames, op_frames=chains)


def where(traceback: Any) -> str:
    """The user's line of an equation, for messages: "file:line (function)"."""
    for file, function, line, _ in _versions.frames(traceback):
        return f"{file}:{line} ({function})"
    return "unknown location"
