"""Random programs of inline PTX, and what they compute by NumPy.

A program is a text over a few registers of each kind: integer, float and predicate instructions, shuffles and votes where all lanes are,
branches that lanes take apart, loops of which each lane leaves at its own time. `Program.expected` takes statement after statement over
arrays of lanes, with a mask of those that are there; it knows nothing of how smalt reads or emits texts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.fuzz.bits import keep
from tests.fuzz.grammar import Grammar

U32 = np.uint32
LANES = 32
NUM_WORDS, NUM_FLOATS, NUM_PREDICATES = 5, 3, 3

State = dict[str, Any]
Step = Callable[[State, Any], None]


@dataclasses.dataclass(frozen=True)
class Program:
    """`{0}`, `{1}`: a word and a float; `{2}` to `{4}`: two words and a float."""

    text: str
    run: Step

    def expected(self, a: Any, b: Any, x: Any) -> tuple[Any, Any]:
        """The results for arrays of words and floats of shape (…, 32): the last dimension is the warp's lanes."""
        state: State = {f"w{i}": np.zeros(a.shape, U32) for i in range(NUM_WORDS)}
        state |= {f"f{i}": np.zeros(a.shape, np.float32) for i in range(NUM_FLOATS)}
        state |= {f"p{i}": np.zeros(a.shape, bool) for i in range(NUM_PREDICATES)}
        state |= {"w0": a.copy(), "w1": b.copy(), "f0": x.copy()}
        with np.errstate(all="ignore"):
            self.run(state, np.ones(a.shape, bool))
        return state["w0"], state["f0"]


def _popc(x: Any) -> Any:
    return np.array([bin(int(v)).count("1") for v in x.reshape(-1)], U32).reshape(x.shape)


def _clz(x: Any) -> Any:
    return np.array([32 - int(v).bit_length() for v in x.reshape(-1)], U32).reshape(x.shape)


def _brev(x: Any) -> Any:
    return np.array([int(f"{int(v):032b}"[::-1], 2) for v in x.reshape(-1)], U32).reshape(x.shape)


def _signed(x: Any) -> Any:
    return x.view(np.int32)


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add.u32": lambda a, b: a + b,
    "sub.s32": lambda a, b: a - b,
    "mul.lo.u32": lambda a, b: a * b,
    "mul.hi.u32": lambda a, b: ((a.astype(np.uint64) * b.astype(np.uint64)) >> np.uint64(32)).astype(U32),
    "and.b32": lambda a, b: a & b,
    "or.b32": lambda a, b: a | b,
    "xor.b32": lambda a, b: a ^ b,
    "min.u32": np.minimum,
    "max.s32": lambda a, b: np.maximum(_signed(a), _signed(b)).view(U32),
}
_UNARY: dict[str, Callable[[Any], Any]] = {
    "not.b32": lambda a: ~a,
    "popc.b32": _popc,
    "clz.b32": _clz,
    "brev.b32": _brev,
    "abs.s32": lambda a: np.abs(_signed(a)).view(U32),
}
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "lt.u32": lambda a, b: a < b,
    "ge.s32": lambda a, b: _signed(a) >= _signed(b),
    "ne.u32": lambda a, b: a != b,
}
_FLOAT: dict[str, Callable[[Any, Any], Any]] = {
    "add.rn.f32": lambda a, b: a + b,
    "sub.rn.f32": lambda a, b: a - b,
    "mul.rn.f32": lambda a, b: a * b,
}


def _product(a: Any, b: Any, is_high: bool, is_signed: bool) -> Any:
    """A half of the products, in 64 bits."""
    if is_signed:
        whole = (_signed(a).astype(np.int64) * _signed(b).astype(np.int64)).view(np.uint64)
    else:
        whole = a.astype(np.uint64) * b.astype(np.uint64)
    return (whole >> np.uint64(32) if is_high else whole) & np.uint64(0xFFFFFFFF)


class _Writer:
    def __init__(self, rng: np.random.Generator, carries: bool = False) -> None:
        self.rng = rng
        self.carries = carries
        self.lines: list[str] = []
        self.labels = 0

    def pick(self, options: Any) -> Any:
        options = list(options)
        return options[int(self.rng.integers(len(options)))]

    def word(self) -> str:
        return f"w{self.rng.integers(NUM_WORDS)}"

    def source(self) -> tuple[str, Callable[[State], Any]]:
        """A register or a number."""
        if self.rng.random() < 0.25:
            n = int(self.pick([0, 1, 7, 31, 255, 0x80000000, 0xFFFFFFFF, int(self.rng.integers(1 << 32))]))
            return self.pick([str(n), hex(n)]), lambda s: np.full(s["w0"].shape, n, U32)
        name = self.word()
        return name, lambda s: s[name]

    def label(self) -> str:
        self.labels += 1
        return f"L{self.labels}"

    def emit(self, text: str) -> None:
        self.lines.append(text)

    def assign(self, text: str, dest: str, value: Callable[[State], Any]) -> Step:
        """An instruction, under a guard now and then."""
        guard, negated = None, False
        if self.rng.random() < 0.2:
            guard, negated = f"p{self.rng.integers(NUM_PREDICATES)}", self.rng.random() < 0.5
            text = f"@{'!' if negated else ''}{guard} {text}"
        self.emit(text)

        def step(s: State, mask: Any) -> None:
            here = mask if guard is None else mask & (s[guard] != negated)
            s[dest] = np.where(here, value(s), s[dest])

        return step

    def instruction(self) -> Step:
        kind = self.pick(["binary"] * 4 + ["unary", "compare", "compare", "select", "shift", "float", "float", "convert", "mad", "bfe", "logic"])
        d, w = self.word(), self.word()
        if kind == "binary":
            op = self.pick(_BINARY)
            b, of_b = self.source()
            return self.assign(f"{op} {d}, {w}, {b};", d, lambda s: _BINARY[op](s[w], of_b(s)))
        if kind == "unary":
            op = self.pick(_UNARY)
            return self.assign(f"{op} {d}, {w};", d, lambda s: _UNARY[op](s[w]))
        if kind == "compare":
            op, p = self.pick(_COMPARE), f"p{self.rng.integers(NUM_PREDICATES)}"
            b, of_b = self.source()
            return self.assign(f"setp.{op} {p}, {w}, {b};", p, lambda s: _COMPARE[op](s[w], of_b(s)))
        if kind == "logic":
            p, q, r = (f"p{i}" for i in self.rng.integers(NUM_PREDICATES, size=3))
            op, f = self.pick([("and", np.logical_and), ("or", np.logical_or), ("xor", np.logical_xor)])
            return self.assign(f"{op}.pred {p}, {q}, {r};", p, lambda s: f(s[q], s[r]))
        if kind == "select":
            p, (b, of_b) = f"p{self.rng.integers(NUM_PREDICATES)}", self.source()
            return self.assign(f"selp.b32 {d}, {w}, {b}, {p};", d, lambda s: np.where(s[p], s[w], of_b(s)))
        if kind == "shift":
            n = int(self.rng.integers(0, 40))
            if self.rng.random() < 0.5:
                return self.assign(f"shl.b32 {d}, {w}, {n};", d, lambda s: s[w] << U32(n) if n < 32 else s[w] * U32(0))
            return self.assign(f"shr.s32 {d}, {w}, {n};", d, lambda s: (_signed(s[w]) >> np.int32(min(n, 31))).view(U32))
        if kind == "mad":
            a, c = self.word(), self.word()
            return self.assign(f"mad.lo.u32 {d}, {w}, {a}, {c};", d, lambda s: s[w] * s[a] + s[c])
        if kind == "bfe":
            pos, n = int(self.rng.integers(32)), int(self.rng.integers(1, 32))
            return self.assign(
                f"bfe.u32 {d}, {w}, {pos}, {n};", d, lambda s: (s[w] >> U32(pos)) & U32((1 << n) - 1)
            )
        f, g, h = (f"f{i}" for i in self.rng.integers(NUM_FLOATS, size=3))
        if kind == "float":
            op = self.pick(_FLOAT)
            return self.assign(f"{op} {f}, {g}, {h};", f, lambda s: _FLOAT[op](s[g], s[h]))
        # Numbers of a few bits, exact in f32.
        self.emit(f"and.b32 {d}, {w}, 1023;")
        convert = self.assign(f"cvt.rn.f32.u32 {f}, {d};", f, lambda s: s[d].astype(np.float32))

        def step(s: State, mask: Any) -> None:
            s[d] = np.where(mask, s[w] & U32(1023), s[d])
            convert(s, mask)

        return step

    def chain(self) -> Step:
        """Numbers of several words: sums, products and differences that hand on their carries, with other instructions in between."""
        length, borrows = int(self.rng.integers(2, 5)), self.rng.random() < 0.4
        steps: list[Step] = []
        for i in range(length):
            steps.append(self.link(i > 0, i < length - 1, borrows))
            if self.rng.random() < 0.3:
                steps.append(self.instruction())

        def run(s: State, mask: Any) -> None:
            for step in steps:
                step(s, mask)

        return run

    def link(self, takes: bool, leaves: bool, borrows: bool) -> Step:
        d, a, (b, of_b) = self.word(), self.word(), self.source()
        ty, c = self.pick(["u32", "s32"]), ("c" if takes else "")
        leave = ".cc" if leaves else ""
        half = None if borrows else self.pick([None, None, "lo", "hi"])
        factor = self.word()
        if half is not None:
            self.emit(f"mad{c}.{half}{leave}.{ty} {d}, {factor}, {a}, {b};")
        else:
            self.emit(f"{'sub' if borrows else 'add'}{c}{leave}.{ty} {d}, {a}, {b};")

        def step(s: State, mask: Any) -> None:
            x, y = s[a].astype(np.uint64), of_b(s).astype(np.uint64)
            if half is not None:
                x = _product(s[factor], s[a], half == "hi", ty == "s32")
            taken = s["carry"].astype(np.uint64) if takes else np.uint64(0)
            whole = x - y - taken if borrows else x + y + taken
            if leaves:
                s["carry"] = whole >> np.uint64(32) & np.uint64(1)
            s[d] = np.where(mask, whole.astype(U32), s[d])

        return step

    def together(self) -> Step:
        """What the warp does together, in all of its lanes."""
        d, w = self.word(), self.word()
        kind = self.pick(["bfly", "up", "down", "idx", "ballot", "any", "all", "redux"])
        p, q = (f"p{i}" for i in self.rng.integers(NUM_PREDICATES, size=2))
        lane = np.arange(LANES)
        if kind in ("bfly", "up", "down", "idx"):
            n = int(self.rng.integers(LANES))
            source = {"bfly": lane ^ n, "up": lane - n, "down": lane + n, "idx": np.full(LANES, n)}[kind]
            source = np.where((source < 0) | (source >= LANES), lane, source)
            clamp = 0 if kind == "up" else 31
            self.emit(f"shfl.sync.{kind}.b32 {d}, {w}, {n}, {clamp}, 0xffffffff;")
            return lambda s, mask: s.update({d: s[w][..., source]})
        if kind == "ballot":
            self.emit(f"vote.sync.ballot.b32 {d}, {p}, 0xffffffff;")
            weights = (U32(1) << lane.astype(U32)).astype(np.uint64)

            def ballot(s: State, mask: Any) -> None:
                bits = (s[p] * weights).sum(-1, keepdims=True).astype(U32)
                s[d] = np.broadcast_to(bits, s[d].shape).copy()

            return ballot
        if kind == "redux":
            self.emit(f"redux.sync.add.u32 {d}, {w}, 0xffffffff;")
            return lambda s, mask: s.update({d: np.broadcast_to(s[w].sum(-1, keepdims=True, dtype=U32), s[d].shape).copy()})
        f = np.any if kind == "any" else np.all
        self.emit(f"vote.sync.{kind}.pred {q}, {p}, 0xffffffff;")
        return lambda s, mask: s.update({q: np.broadcast_to(f(s[p], axis=-1, keepdims=True), s[q].shape).copy()})

    def block(self, size: int, depth: int, together: bool) -> Step:
        steps = []
        for _ in range(size):
            r = self.rng.random()
            if depth < 3 and r < 0.1:
                steps.append(self.branch(depth))
            elif depth < 3 and r < 0.17:
                steps.append(self.loop(depth))
            elif self.carries and r > 0.8:
                steps.append(self.chain())
            elif together and r < 0.4:
                steps.append(self.together())
            else:
                steps.append(self.instruction())

        def run(s: State, mask: Any) -> None:
            for step in steps:
                step(s, mask)

        return run

    def branch(self, depth: int) -> Step:
        p, negated = f"p{self.rng.integers(NUM_PREDICATES)}", self.rng.random() < 0.5
        end, has_else = self.label(), self.rng.random() < 0.5
        other = self.label() if has_else else end
        # Lanes in which the guard holds go to `other`.
        self.emit(f"@{'!' if negated else ''}{p} bra {other};")
        then = self.block(int(self.rng.integers(1, 4)), depth + 1, False)
        otherwise: Step | None = None
        if has_else:
            self.emit(f"{self.pick(['bra', 'bra.uni'])} {end};")
            self.emit(f"{other}:")
            otherwise = self.block(int(self.rng.integers(1, 4)), depth + 1, False)
        self.emit(f"{end}:")

        def run(s: State, mask: Any) -> None:
            leaves = s[p] != negated
            then(s, mask & ~leaves)
            if otherwise is not None:
                otherwise(s, mask & leaves)

        return run

    def loop(self, depth: int) -> Step:
        """Up to eight rounds, as many as each lane's number says; some leave in the middle."""
        head, out = self.label(), self.label()
        counter, w = f"n{head}", self.word()
        p, leaves = f"q{head}", self.rng.random() < 0.5
        leave_at = f"p{self.rng.integers(NUM_PREDICATES)}"
        self.emit(f".reg .b32 {counter}; .reg .pred {p};")
        self.emit(f"and.b32 {counter}, {w}, 7;")
        self.emit(f"{head}:")
        first = self.block(int(self.rng.integers(1, 4)), depth + 1, False)
        second: Step = lambda s, mask: None  # noqa: E731
        if leaves:
            self.emit(f"@{leave_at} bra {out};")
            second = self.block(int(self.rng.integers(1, 3)), depth + 1, False)
        self.emit(f"add.u32 {counter}, {counter}, -1;")
        self.emit(f"setp.gt.s32 {p}, {counter}, 0;")
        self.emit(f"@{p} bra {head};")
        self.emit(f"{out}:")

        def run(s: State, mask: Any) -> None:
            count = (s[w] & U32(7)).astype(np.int64)
            while mask.any():
                first(s, mask)
                if leaves:
                    mask = mask & ~s[leave_at]
                    second(s, mask)
                count -= 1
                mask = mask & (count > 0)

        return run


def program(seed: int, carries: bool = False) -> Program:
    writer = _Writer(np.random.default_rng(seed), carries)
    names = ["w", "f", "p"]
    counts = [NUM_WORDS, NUM_FLOATS, NUM_PREDICATES]
    types = [".b32", ".f32", ".pred"]
    writer.emit("{")
    for name, count, ty in zip(names, counts, types):
        writer.emit(f".reg {ty} {name}<{count}>;")
    writer.emit("mov.b32 w0, {2}; mov.b32 w1, {3}; mov.b32 f0, {4};")
    run = writer.block(int(writer.rng.integers(4, 24)), 0, True)
    writer.emit("mov.b32 {0}, w0; mov.b32 {1}, f0;")
    writer.emit("}")
    return Program("\n".join(writer.lines), run)


def inputs(seed: int, slots: int) -> tuple[Any, Any, Any]:
    """Words and floats for so many slots of a warpgroup: of shape (slots, 4 warps, 32 lanes)."""
    rng = np.random.default_rng([seed, 1])
    shape = (slots, 4, LANES)
    a = rng.integers(0, 1 << 32, shape, dtype=np.uint64).astype(U32)
    b = rng.integers(0, 64, shape, dtype=np.uint64).astype(U32)
    return a, b, rng.standard_normal(shape).astype(np.float32)


def kernel(programs: list[Program], slots: int) -> Any:
    """A kernel that runs programs, each on elements of its own, a slot's elements being those of 128 threads in order."""
    import jax
    import jax.numpy as jnp
    from jax.experimental.pallas import mosaic_gpu as plgpu

    import smalt

    n = 128 * slots
    out = (jax.ShapeDtypeStruct((len(programs), n), jnp.uint32), jax.ShapeDtypeStruct((len(programs), n), jnp.float32))

    def body(a: Any, b: Any, x: Any, words: Any, floats: Any) -> None:
        layout = plgpu.Layout.WG_STRIDED((n,), vec_size=1)
        args = [plgpu.layout_cast(ref[...], layout) for ref in (a, b, x)]
        for i, program in enumerate(programs):
            y, z = smalt.inline_ptx(
                program.text, (jax.ShapeDtypeStruct((n,), jnp.uint32), jax.ShapeDtypeStruct((n,), jnp.float32)), *args
            )
            words[i] = y
            floats[i] = z

    return plgpu.kernel(body, out_type=out)


@dataclasses.dataclass(frozen=True)
class Together:
    """Programs of so many seeds in one kernel."""

    first: int
    count: int
    slots: int
    carries: bool

    def programs(self) -> list[Program]:
        return [program(seed, self.carries) for seed in range(self.first, self.first + self.count)]

    def __str__(self) -> str:
        return "\n".join(f"seed {seed}:\n{p.text}" for seed, p in enumerate(self.programs(), self.first))

    def check(self) -> None:
        """Runs them on whatever there is; says which are wrong."""
        programs = self.programs()
        a, b, x = inputs(self.first, self.slots)
        words, floats = kernel(programs, self.slots)(a.reshape(-1), b.reshape(-1), x.reshape(-1))
        wrong = []
        words, floats = [keep(x) for x in words], [keep(x) for x in floats]
        for i, p in enumerate(programs):
            y, z = p.expected(a, b, x)
            same_floats = (floats[i].view(U32) == z.reshape(-1).view(U32)) | (np.isnan(floats[i]) & np.isnan(z.reshape(-1)))
            if not np.array_equal(words[i], y.reshape(-1)) or not same_floats.all():
                wrong.append(f"seed {self.first + i}:\n{p.text}")
        assert not wrong, "\n".join(wrong)


#: Programs in one kernel.
TOGETHER = 10


def together(name: str, carries: bool) -> Grammar[Together]:
    return Grammar(name, lambda seed: Together(seed, TOGETHER, 1 + seed // TOGETHER % 3, carries), Together.check, takes=TOGETHER)


INLINE_PTX = Grammar("inline PTX", lambda seed: Together(seed, 5, slots=1 + seed % 3, carries=seed % 2 == 1), Together.check, takes=5)
INLINE_PTX_WITHOUT_CARRIES = together("inline PTX without carries", carries=False)
INLINE_PTX_WITH_CARRIES = together("inline PTX with carries", carries=True)
