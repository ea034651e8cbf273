"""The debug table: op id -> chain of frames, beside what is hashed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smalt import _errors, _versions
from smalt._messages.wire import Message, message

Position = tuple[str, str, int, int]


class DebugTable:
    """Interns strings, frames and chains as ops are written.

    JAX cuts the tracebacks of a nested jaxpr at the equation that holds it, so an op's chain is its own frames and then
    its parent's chain. The chain of op 0 is the call site's.

    In a backward pass JAX gives all that is traced the traceback of the call in the forward pass. Such an op lies in the function
    that was traced, at whatever line.
    """

    def __init__(self, call_site: Sequence[Any]) -> None:
        self._strings: dict[str, int] = {"": 0}
        self._frames: dict[Position, int] = {("", "", 0, 0): 0}
        self._chains: list[tuple[int, ...]] = []
        self._known: dict[tuple[int, tuple[int, ...], Position | None], tuple[int, ...]] = {}
        self._alive: list[Any] = []  # ids in _known are of these
        self._names: dict[int, str] = {}  # by value id: what the user calls references
        chain: tuple[int, ...] = ()
        for traceback in reversed(call_site):
            chain = self._chain(traceback, chain)
        files = [position[0] for position in self._frames]
        # What runs the user's program (a test runner, say) is of no interest.
        while len(chain) > 1 and _errors.is_installed(files[chain[-1]]):
            chain = chain[:-1]
        self._chains.append(chain)
        self._call_site = frozenset(chain)

    def add(self, traceback: Any, parent: tuple[int, ...] = (), function: Position | None = None) -> tuple[int, ...]:
        """Appends the chain of the next op, and returns it; `function`: the user's, that was traced."""
        key = (id(traceback), parent, function)
        chain = self._known.get(key)
        if chain is None:
            chain = self._known[key] = self._chain(traceback, parent, function)
            self._alive.append(traceback)
        self._chains.append(chain)
        return chain

    def _chain(self, traceback: Any, parent: tuple[int, ...], function: Position | None = None) -> tuple[int, ...]:
        own = tuple(self._frame(position) for position in _versions.frames(traceback))
        if function is not None and traceback is not None and (own[0] in self._call_site if own else not parent):
            own = (self._frame(function),)
            parent = () if self._call_site.issuperset(parent[:1]) else parent
            return parent if parent[:1] == own else own + parent
        if own and parent and own[-1] == parent[-1]:  # a traceback that was not cut
            return own
        return own + parent

    def _frame(self, position: Position) -> int:
        found = self._frames.setdefault(position, len(self._frames))
        if found == len(self._frames) - 1:
            for text in position[:2]:
                self._strings.setdefault(text, len(self._strings))
        return found

    def name(self, value: int, name: str) -> None:
        """What the user calls a reference."""
        self._names[value] = name
        self._strings.setdefault(name, len(self._strings))

    def where(self) -> str:
        """The frames of the newest op and of the call site, as the library's errors end with them."""
        frames = list(self._frames)
        own = self._chains[-1] if len(self._chains) > 1 else ()
        lines = []
        for first, chain in (("at", own), ("called from", self._chains[0])):
            for i, frame in enumerate(chain):
                file, function, line, _ = frames[frame]
                lines.append(f"\n  {'in' if i else first} {file}:{line} ({function})")
        return "".join(lines)

    def encode(self, profile_dir: str = "") -> Message:
        frames = [
            message("Frame", file=self._strings[f], function=self._strings[fn], line=line, column=column)
            for f, fn, line, column in self._frames
        ]
        chains = [message("FrameChain", frames=chain) for chain in self._chains]
        names = [message("RefName", value=value, name=self._strings[name]) for value, name in self._names.items()]
        strings = list(self._strings)
        return message("DebugTable", strings=strings, frames=frames, op_frames=chains, profile_dir=profile_dir, ref_names=names)
