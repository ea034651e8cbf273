"""`smalt.inspect`: what became of each kernel of a function, and why."""

from __future__ import annotations

import base64
import collections
import dataclasses
import functools
import html
import itertools
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import jax

from smalt import _lowering, _native
from smalt._errors import Error
from smalt._tools.layout_map import LayoutMap, draw_layout


_Row = Sequence[str]
#: Title, names of columns, rows, and how many columns are numbers.
_Table = tuple[str, Sequence[str], Sequence[_Row], int]


@dataclasses.dataclass(frozen=True)
class Layout:
    """One choice of layout inference: a register layout of a value, or the transforms of a shared-memory buffer."""

    what: str  # the operation that makes the value, or "SMEM"
    type: str
    choice: str
    why: str
    at: str | None  # the user's file:line
    digits: dict[str, Any] | None = dataclasses.field(default=None, repr=False)  # of a register layout, for `draw`
    from_digits: dict[str, Any] | None = dataclasses.field(default=None, repr=False)  # of a relayout: what it comes from
    dtype: str | None = dataclasses.field(default=None, repr=False)  # of what is in registers

    def draw(self) -> LayoutMap:
        """Which warp, lane and register holds which element; of a relayout, afterwards."""
        return draw_layout(self)


@dataclasses.dataclass(frozen=True)
class Block:
    """What was decided for an operand of a `pl.pallas_call`."""

    of: str
    block: tuple[int, ...]  # in the kernel: finer than the block spec where rows are split
    way: str
    runs: str  # the grid's axes; "in turn": one step after the other


@dataclasses.dataclass(frozen=True)
class SharedMemory:
    """One allocation in a block's shared memory."""

    offset: int
    bytes: int
    what: str
    at: str | None


@dataclasses.dataclass(frozen=True)
class Note:
    """A pass's note on something that it did at some cost, or on a loop that looks like its candidate and that it leaves as it is."""

    by: str  # the pass
    what: str
    why: str
    at: str | None


@dataclasses.dataclass(frozen=True)
class Relayout:
    """A change of layout that the compiler inserted, and what it takes of each thread."""

    type: str
    change: str
    why: str
    instructions: int
    shuffles: int
    trips: int  # through shared memory
    scratch_bytes: int  # of shared memory, for a trip
    at: str | None


@dataclasses.dataclass(frozen=True)
class Move:
    """What an operation moves each time that it runs."""

    what: str
    of: str  # the part of a buffer
    source: str
    target: str
    bytes: int
    instructions: int  # of each thread; of a copy, bulk instructions; of a wgmma 0
    conflicts: int | None  # shared memory: wavefronts of the worst access over the fewest possible; 1: no bank conflicts
    sector_percent: int | None  # global memory: sectors of the worst access over the fewest possible; 100: coalesced
    at: str | None


@dataclasses.dataclass(frozen=True)
class Phase:
    """A step of compilation."""

    name: str
    ms: float


@dataclasses.dataclass(frozen=True, repr=False)
class KernelReport:
    """One kernel. `print` shows it; the fields hold everything.

    Attributes:
        descriptor: The kernel as the compiler received it; `python -m smalt compile` takes it, written to a file.
        debug: The locations of its operations.
        ptx: The generated PTX.
        cubin: The assembled code; None without an assembler, or if none was requested.
        registers: Of one thread; None if nothing was assembled. So `spill_bytes`.
        occupancy: Blocks that a multiprocessor holds at once, and `limited_by` what.
        phases: Serialising, the compiler's passes, assembling; with their times. A pass that runs again is `name_2`.
        blocks: Of a `pl.pallas_call`: how each operand's block gets in and out.
        relayouts: Changes of layout, with what they take.
        moves: What operations move between memories and registers: arrays, not single elements, nor those that arrays of indices choose.
        notes: What a pass did at some cost (accumulators parked in memory), and why loops that look like a pass's candidates stay as they are.
        raw: The library's whole report.
    """

    name: str
    target: str
    hash: str
    descriptor: bytes
    debug: bytes
    ptx: str
    cubin: bytes | None
    grid: tuple[int, ...]
    cluster: tuple[int, ...]
    threads: int
    smem_bytes: int
    occupancy: int
    limited_by: str
    registers: int | None
    spill_bytes: int | None
    assembler: str | None
    warnings: tuple[str, ...]
    layouts: tuple[Layout, ...]
    shared_memory: tuple[SharedMemory, ...]
    phases: tuple[Phase, ...]
    blocks: tuple[Block, ...]
    relayouts: tuple[Relayout, ...]
    moves: tuple[Move, ...]
    notes: tuple[Note, ...]
    raw: dict[str, Any]

    @functools.cached_property
    def passes(self) -> dict[str, str]:
        """The kernel's text after each pass, by the names of `phases`: kernel IR, from "lower" on PTX in SSA form, at the
        end PTX. Made when first read."""
        return dict(_native.show(self.descriptor, self.debug, self.target))

    @functools.cached_property
    def instructions(self) -> dict[str, int]:
        """How many instructions of each kind the PTX has, most first: as they are written, not as often as they run."""
        counts = collections.Counter(_opcode(found[1]) for found in _INSTRUCTION.finditer(self.ptx))
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    @property
    def moved(self) -> dict[str, int]:
        """Bytes by way, e.g. "GMEM → SMEM", if each operation of `moves` runs once."""
        total: collections.Counter[str] = collections.Counter()
        for move in self.moves:
            total[f"{move.source} → {move.target}"] += move.bytes
        return dict(total)

    def diff(self, other: KernelReport) -> str:
        """What is different in another report: of the same kernel with other parameters, or by another version. No times."""
        if not isinstance(other, KernelReport):
            raise TypeError(f"expected a kernel's report, smalt.inspect(f, ...)[i]; got {type(other).__name__}")
        return "\n".join(_difference(self, other)) or "no difference"

    def _repr_html_(self) -> str:
        head, tables = self._parts()
        parts = [f"<pre>{html.escape(chr(10).join(head))}</pre>"]
        for title, names, rows, right in tables:
            parts.append(f"<b>{html.escape(title)}</b>" + _html_table(names, rows, right))
        return "\n".join(parts)

    @property
    def ir(self) -> str:
        """The normalised kernel IR."""
        return self.passes["normalize"]

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON; bytes in base64."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        for name in ("layouts", "shared_memory", "phases", "blocks", "relayouts", "moves", "notes"):
            fields[name] = [dataclasses.asdict(row) for row in fields[name]]
        fields["instructions"] = self.instructions
        fields["ir"] = self.passes
        return {k: base64.b64encode(v).decode() if isinstance(v, bytes) else v for k, v in fields.items()}

    def __str__(self) -> str:
        head, tables = self._parts()
        return "\n".join([*head, *(line for table in tables for line in _table(*table))])

    def _parts(self) -> tuple[list[str], list[_Table]]:
        """Lines, and tables behind them."""
        shape = f"grid {_numbers(self.grid)}"
        if self.cluster != (1,) * len(self.cluster):
            shape += f", clusters of {_numbers(self.cluster)}"
        lines = [
            f"kernel {self.name} for {self.target}, descriptor {self.hash[:12]}",
            f"  launch      {shape}, {self.threads} threads a block, {self.smem_bytes:,} bytes of shared memory",
            f"  occupancy   {self.occupancy} block{'s' * (self.occupancy != 1)} a multiprocessor, by {self.limited_by}",
        ]
        if self.registers is None:
            lines.append("  registers   not assembled")
        else:
            spills = f"{self.spill_bytes:,} bytes spilled" if self.spill_bytes else "no spills"
            lines.append(f"  registers   {self.registers} a thread, {spills} ({self.assembler})")
        for i, warning in enumerate(self.warnings):
            lines.append(f"  {'warnings' if i == 0 else '':<10}  {warning}")
        buffers = [f"{b['role']} {b['text']}" for b in self.raw["buffers"]]
        lines.append(f"  buffers     {', '.join(buffers)}")
        total = sum(p.ms for p in self.phases)
        long = [p for p in self.phases if p.ms >= 0.02 * total]
        rest = total - sum(p.ms for p in long)
        times = [f"{p.name} {p.ms:.2f}" for p in long] + [f"{len(self.phases) - len(long)} others {rest:.2f}"]
        lines.append(f"  time        {total:.2f} ms: {', '.join(times)}")
        most = list(self.instructions.items())[:8]
        others = sum(self.instructions.values()) - sum(n for _, n in most)
        mix = ", ".join([f"{name} {n}" for name, n in most] + [f"{others} others"] * (others > 0))
        lines.append(f"  PTX         {sum(self.instructions.values()):,} instructions: {mix}")
        if self.relayouts:
            through = sum(r.trips > 0 for r in self.relayouts)
            lines.append(
                f"  relayouts   {len(self.relayouts)}: {sum(r.instructions for r in self.relayouts)} instructions a thread,"
                f" {sum(r.shuffles for r in self.relayouts)} of them shuffles; {through} through shared memory"
            )
        blocks = [(b.of, str(list(b.block)), b.way, b.runs) for b in self.blocks]
        smem = [(f"{r.offset:,}", f"{r.bytes:,}", r.what, _short(r.at)) for r in self.shared_memory]
        layouts = [(r.what, r.type, r.choice, r.why, _short(r.at)) for r in self.layouts]
        moves = [(f"{m.bytes:,}", str(m.instructions or ""), *_move(m), _short(m.at)) for m in self.moves]
        notes = [(n.by, n.what, n.why, _short(n.at)) for n in self.notes]
        return lines, [
            ("blocks", ("of", "block", "way", "grid"), blocks, 0),
            ("shared memory", ("offset", "bytes", "what", "at"), smem, 2),
            ("layouts", ("of", "type", "choice", "why", "at"), layouts, 0),
            ("moves", ("bytes", "instructions", "what", "of", "from → to", "banks, sectors", "at"), _counted(moves), 2),
            ("notes", ("by", "what", "why", "at"), notes, 0),
        ]

    __repr__ = __str__


class Report(Sequence[KernelReport]):
    """The kernels of a function, in the order in which they are lowered."""

    def __init__(self, kernels: Sequence[KernelReport], lowering_ms: float) -> None:
        self._kernels = tuple(kernels)
        #: Tracing and lowering of the whole function by JAX, serialising included.
        self.lowering_ms = lowering_ms

    @overload
    def __getitem__(self, index: int) -> KernelReport: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[KernelReport, ...]: ...
    def __getitem__(self, index: int | slice) -> KernelReport | tuple[KernelReport, ...]:
        return self._kernels[index]

    def __len__(self) -> int:
        return len(self._kernels)

    def __iter__(self) -> Iterator[KernelReport]:
        return iter(self._kernels)

    def json(self, indent: int | None = None) -> str:
        kernels = [k.to_dict() for k in self._kernels]
        return json.dumps({"lowering_ms": self.lowering_ms, "kernels": kernels}, indent=indent)

    def diff(self, other: Report) -> str:
        """What is different in another report: kernels one by one, in their order."""
        lines = []
        for number, (a, b) in enumerate(zip(self, other)):
            lines += [f"kernel {number}, {a.name}", a.diff(b), ""]
        for sign, some in (("-", self[len(other) :]), ("+", other[len(self) :])):
            lines += [f"{sign} kernel {k.name}" for k in some]
        return "\n".join(lines).rstrip() or "no difference"

    def _repr_html_(self) -> str:
        return "<hr>".join(k._repr_html_() for k in self._kernels) or html.escape(str(self))

    def __str__(self) -> str:
        if not self._kernels:
            return "no Pallas:MGPU kernels"
        head = f"{len(self)} kernel{'s' * (len(self) != 1)}; traced and lowered by JAX in {self.lowering_ms:.1f} ms"
        return "\n\n".join([head, *map(str, self._kernels)])

    __repr__ = __str__


def inspect(f: Callable[..., Any], *args: Any, assemble: bool = True, **kwargs: Any) -> Report:
    """One report per kernel in `f(*args)`: descriptor, IR, PTX, registers, shared memory, layouts and why, times.

    Arguments may be arrays or `jax.ShapeDtypeStruct`s; nothing is run, and no GPU is needed. Kernels are compiled by smalt
    whether it is enabled or not, except where their parameters override that. With `assemble`, registers and spills are
    found by assembling, if there is an assembler (`python -m smalt doctor`). Kernels that query a device at trace time need
    `with smalt.emulated("H100"):` on a machine without a GPU.
    """
    platform = "cuda" if jax.default_backend() in ("gpu", "cuda") else "cpu"
    start = time.perf_counter()
    kernels = _lowering.captured(f, *args, platform=platform, compiles=True, **kwargs)
    lowering_ms = (time.perf_counter() - start) * 1e3
    return Report([_report(kernel, assemble) for kernel in kernels], lowering_ms)


def _report(kernel: Any, assemble: bool) -> KernelReport:
    artifact = _native.compile(kernel.descriptor, kernel.debug, kernel.target)
    cubin, refusal = None, []
    if assemble:
        try:
            cubin = artifact.assemble()
        except Error as e:
            refusal = [str(e)]
    raw = artifact.report()
    launch, assembled = raw["launch"], raw["assembled"]
    log = assembled["log"] if assembled else {}
    phases = [Phase("serialise", kernel.seconds * 1e3)]
    phases += [Phase(p["name"], p["micros"] / 1e3) for p in raw["phases"]]
    if assembled:
        phases.append(Phase("assemble", assembled["micros"] / 1e3))
    warnings = [w["text"] + (f" (at {w['at']})" if w["at"] else "") for w in raw["warnings"] or []]
    return KernelReport(
        name=raw["name"],
        target=raw["target"],
        hash=raw["hash"],
        descriptor=kernel.descriptor,
        debug=kernel.debug,
        ptx=artifact.ptx,
        cubin=cubin,
        grid=tuple(launch["grid"]),
        cluster=tuple(launch["cluster"]),
        threads=launch["block"],
        smem_bytes=launch["smem_bytes"],
        occupancy=raw["occupancy"]["blocks_per_multiprocessor"],
        limited_by=raw["occupancy"]["limited_by"],
        registers=log.get("registers"),
        spill_bytes=log["spill_store_bytes"] + log["spill_load_bytes"] if log else None,
        assembler=assembled["assembler"] if assembled else None,
        warnings=(*warnings, *refusal),
        layouts=tuple(_layout(r) for r in raw["notes"]["layouts"]),
        shared_memory=tuple(SharedMemory(r["offset"], r["bytes"], r["what"], r["at"]) for r in raw["shared_memory"]),
        phases=tuple(phases),
        blocks=tuple(Block(b.of, b.block, b.way, b.runs) for b in kernel.blocks),
        relayouts=tuple(_relayout(r) for r in raw["notes"]["layouts"] if r["cost"] is not None),
        moves=tuple(_moves(r) for r in raw["traffic"]),
        notes=tuple(Note(r["pass"], r["what"], r["why"], r["at"]) for r in raw["notes"]["passes"]),
        raw=raw,
    )


def _layout(r: dict[str, Any]) -> Layout:
    return Layout(r["what"], r["type"], r["choice"], r["why"], r["at"], r["digits"], r["from"], r["dtype"])


def _relayout(r: dict[str, Any]) -> Relayout:
    cost = r["cost"]
    numbers = (cost["instructions"], cost["shuffles"], cost["trips"], cost["scratch_bytes"])
    return Relayout(r["type"], r["choice"].rsplit(": ", 1)[0], r["why"], *numbers, r["at"])


def _moves(r: dict[str, Any]) -> Move:
    return Move(r["what"], r["type"], r["from"], r["to"], r["bytes"], r["instructions"], r["conflicts"], r["sector_percent"], r["at"])


def _move(m: Move) -> tuple[str, str, str, str]:
    worst = "" if m.conflicts is None else "no conflicts" if m.conflicts == 1 else f"{m.conflicts}-way conflicts"
    if m.sector_percent is not None:
        worst = "coalesced" if m.sector_percent == 100 else f"{m.sector_percent / 100:g}× the sectors"
    return m.what, m.of, f"{m.source} → {m.target}", worst


def _counted(rows: Sequence[_Row]) -> list[_Row]:
    """Equal rows as one, with their number behind what they are."""
    counts = collections.Counter(tuple(row) for row in rows)
    return [(*row[:2], row[2] + (f" ×{n}" if n > 1 else ""), *row[3:]) for row, n in counts.items()]


#: An instruction of PTX text, behind its guard.
_INSTRUCTION = re.compile(r"^[ \t{]*(?:@!?[\w%]+\s+)?([a-z][\w.:]*)[^;\n]*;", re.M)
#: Instructions that several words identify.
_FAMILIES = ("ld", "st", "cp", "red", "atom", "wgmma", "mbarrier", "fence", "multimem")


def _opcode(text: str) -> str:
    """`ld.shared` of `ld.shared::cta.v4.b32`, `cp.async.bulk.tensor` of a tensor copy, `add` of `add.f32`."""
    words = text.split(".")
    if words[0] not in _FAMILIES:
        return words[0]
    if words[0] in ("ld", "st", "red", "atom", "multimem"):
        space = next((w.split("::")[0] for w in words if w.split("::")[0] in ("shared", "global", "local", "param")), None)
        return f"{words[0]}.{space}" if space else words[0]
    kept = itertools.takewhile(lambda w: w.isidentifier() and not any(c.isdigit() for c in w) and w not in ("shared", "global"), words[1:])
    return ".".join([words[0], *itertools.islice(kept, 3 if words[0] == "cp" else 1)])


def _difference(a: KernelReport, b: KernelReport) -> list[str]:
    lines = []

    def fact(name: str, of: Callable[[KernelReport], Any]) -> None:
        old, new = of(a), of(b)
        if old != new:
            numbers = isinstance(old, int) and isinstance(new, int)
            lines.append(f"{name}: {old} → {new}" + (f" ({new - old:+})" if numbers else ""))

    fact("name", lambda k: k.name)
    fact("target", lambda k: k.target)
    fact("grid", lambda k: _numbers(k.grid))
    fact("cluster", lambda k: _numbers(k.cluster))
    fact("threads", lambda k: k.threads)
    fact("bytes of shared memory", lambda k: k.smem_bytes)
    fact("blocks a multiprocessor", lambda k: k.occupancy)
    fact("limited by", lambda k: k.limited_by)
    fact("registers", lambda k: k.registers)
    fact("spilled bytes", lambda k: k.spill_bytes)
    fact("instructions of PTX", lambda k: sum(k.instructions.values()))
    for name in sorted({*a.instructions, *b.instructions}):
        fact(f"  {name}", lambda k: k.instructions.get(name, 0))
    for way in sorted({*a.moved, *b.moved}):
        fact(f"bytes {way}", lambda k: k.moved.get(way, 0))
    fact("relayouts", lambda k: len(k.relayouts))
    fact("  instructions a thread", lambda k: sum(r.instructions for r in k.relayouts))
    fact("  shuffles", lambda k: sum(r.shuffles for r in k.relayouts))
    fact("  most bytes of scratch", lambda k: max((r.scratch_bytes for r in k.relayouts), default=0))
    fact("warnings", lambda k: "; ".join(k.warnings) or "none")
    for (title, _, old, _), (_, _, new, _) in zip(a._parts()[1], b._parts()[1]):
        gone, come = collections.Counter(map(tuple, old)), collections.Counter(map(tuple, new))
        rows = [f"  - {'  '.join(filter(None, row))}" for row in (gone - come).elements()]
        rows += [f"  + {'  '.join(filter(None, row))}" for row in (come - gone).elements()]
        lines += [f"{title}:", *rows] if rows else []
    return lines


def _html_table(head: Sequence[str], rows: Sequence[_Row], right: int) -> str:
    if not rows:
        return "<p>none</p>"

    def line(tag: str, cells: Sequence[str]) -> str:
        sides = ["right" if i < right else "left" for i in range(len(cells))]
        return "<tr>" + "".join(f'<{tag} style="text-align:{s}">{html.escape(c)}</{tag}>' for s, c in zip(sides, cells)) + "</tr>"

    return "<table>" + line("th", head) + "".join(line("td", row) for row in rows) + "</table>"


def _numbers(values: Sequence[int]) -> str:
    return "×".join(str(n) for n in values)


def _short(at: str | None) -> str:
    """The file without its folder."""
    return "" if at is None else at.rsplit("/", 1)[-1]


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], right: int = 0) -> list[str]:
    """Lines of a table; the first `right` columns are numbers."""
    if not rows:
        return []
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = [c.rjust(w) if i < right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths))]
        return ("    " + "  ".join(cells)).rstrip()

    return [f"  {title}", line(head), *map(line, rows)]
