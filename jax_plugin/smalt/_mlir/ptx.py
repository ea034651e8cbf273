"""MLIR that a user's function built, as one text of inline PTX.

Here: what controls the rest, lanes, and assembly. Arithmetic is in `arith.py`, memory in `memory.py`.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

from smalt import _registry, _versions
from smalt._errors import InvalidKernel
from smalt._mlir.arith import ELEMENTWISE, VECTORS
from smalt._mlir.copies import COPIES
from smalt._mlir.memory import MEMORY, Fields, undefined
from smalt._mlir.text import I1, I32, I64, Kind, Text, kind_of, unsupported

_OPS: dict[str, Callable[[Translator, Op], Any]] = {}


_op = _registry.into(_OPS)


class Op:
    """An op of MLIR's, and queries of one."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw.operation
        self.name = str(self.raw.name)
        self.operands = list(self.raw.operands)
        self.results = list(self.raw.results)

    def attr(self, name: str) -> Any:
        return _versions.mlir_attribute(self.raw, name)

    def ints(self, name: str) -> list[int]:
        return _versions.mlir_ints(self.attr(name))

    def operand_type(self, i: int) -> Any:
        return self.operands[i].type

    def result_type(self) -> Any:
        return self.results[0].type

    def kind_of(self, i: int) -> Kind:
        return kind_of(_versions.mlir_element(self.operands[i].type))

    def kind_of_result(self) -> Kind:
        return kind_of(_versions.mlir_element(self.result_type()))

    def shape_of(self, i: int) -> list[int]:
        return _versions.mlir_shape(self.operands[i].type)

    def shape_of_result(self) -> list[int]:
        return _versions.mlir_shape(self.result_type())


class Translator:
    """The text, and what MLIR's values are in it: registers (a tuple, one of a scalar), a `Buffer`, or `Fields`."""

    def __init__(self, text: Text) -> None:
        self.text = text
        self._values: dict[Any, Any] = {}

    def get(self, value: Any) -> Any:
        try:
            return self._values[value]
        except KeyError:
            raise InvalidKernel(
                "a value of MLIR that comes from outside of the function"
                "\n  expected: arguments of the function, and what it makes of them\n  got: a value of another module"
                "\n  remedy: pass it as an argument, with its layout or RefType in arg_types"
            ) from None

    def set(self, value: Any, registers: Any) -> None:
        self._values[value] = registers

    def scalar(self, value: Any) -> str:
        (reg,) = self.get(value)
        return str(reg)

    def memref(self, value: Any) -> Any:
        return _versions.mlir_memref(value.type)

    def memref_type(self, value_type: Any) -> Any:
        return _versions.mlir_memref(value_type)

    def is_memref(self, value: Any) -> bool:
        return str(value.type).startswith("memref<")

    def shape(self, value_type: Any) -> list[int]:
        return _versions.mlir_shape(value_type)

    def element(self, value_type: Any) -> Any:
        return _versions.mlir_element(value_type)

    def block(self, block: Any) -> Op | None:
        """All ops of a block; gives the one that ends it."""
        last = None
        for raw in block.operations:
            last = Op(raw)
            if last.name in ("scf.yield", "scf.condition", "func.return"):
                return last
            self._translate(last)
        return last

    def _translate(self, op: Op) -> None:
        for table in (_OPS, VECTORS, MEMORY, COPIES):
            if op.name in table:
                made = table[op.name](self, op)
                if len(op.results) == 1:
                    self.set(op.results[0], made)
                elif op.results:
                    for value, registers in zip(op.results, made, strict=True):
                        self.set(value, registers)
                return
        if op.name not in ELEMENTWISE:
            known = "operations of arith, math, vector, memref, scf, and some of gpu, nvvm and llvm"
            raise unsupported(f"the MLIR operation `{op.name}`", known, str(op.raw)[:200])
        function = ELEMENTWISE[op.name]
        (result,) = op.results
        shape = _versions.mlir_shape(result.type)
        rows = [self.get(v) for v in op.operands]
        n = max(len(row) for row in rows)
        if any(len(row) not in (1, n) for row in rows):
            raise unsupported(f"`{op.name}`", "operands of one shape", str(shape))
        # A scalar condition selects whole vectors.
        rows = [row if len(row) == n else row * n for row in rows]
        kind, to = op.kind_of(0), op.kind_of_result()
        self.set(result, tuple(function(self.text, kind, to, op, *each) for each in zip(*rows)))

    # ---------------------------------------------------------------- values that go through control flow

    def places(self, values: Sequence[Any]) -> list[Any]:
        """Registers of their own for values that come by several ways."""
        out = []
        for v in values:
            if str(v.type).startswith(("memref<", "!llvm.struct", "!llvm.array")):
                raise unsupported("control flow that hands on memory", "scalars and vectors as results of loops and conditionals", str(v.type))
            cls = kind_of(self.element(v.type)).cls
            n = 1
            for extent in self.shape(v.type):
                n *= extent
            out.append(tuple(self.text.fresh(cls) for _ in range(n)))
            self.text.places.update(out[-1])
        return out

    def move(self, places: Sequence[Any], values: Sequence[Any]) -> None:
        """All at once."""
        pairs = [
            (to, x, kind_of(self.element(v.type)).cls)
            for place, v in zip(places, values, strict=True)
            for to, x in zip(place, self.get(v), strict=True)
        ]
        targets = {to for to, _, _ in pairs}
        read = [self.text.op(f"mov.{cls}", cls, x) if x in targets else x for _, x, cls in pairs]
        for (to, _, cls), x in zip(pairs, read):
            self.text.emit(f"mov.{cls} {to}, {x};")


# ------------------------------------------------------------------------------------------ constants


@_op("arith.constant", "llvm.mlir.constant", "index.constant")
def _constant(cx: Translator, op: Op) -> Any:
    kind = op.kind_of_result()
    numbers = _versions.mlir_numbers(op.attr("value"))
    n = 1
    for extent in op.shape_of_result():
        n *= extent
    regs = [cx.text.constant(kind, kind.encode(x) if kind.is_float else int(x)) for x in numbers]
    return tuple(regs * n if len(regs) == 1 else regs)


@_op("llvm.mlir.undef", "llvm.mlir.poison", "llvm.mlir.zero", "ub.poison")
def _undefined(cx: Translator, op: Op) -> Any:
    return undefined(cx, op.result_type())


# ------------------------------------------------------------------------------------------ control


@_op("scf.if")
def _if(cx: Translator, op: Op) -> Any:
    t = cx.text
    places = cx.places(op.results)
    then, other = op.raw.regions
    has_other = len(other.blocks) > 0 and len(list(other.blocks[0].operations)) > 0
    otherwise, end = t.label(), t.label()
    t.emit(f"@!{cx.scalar(op.operands[0])} bra {otherwise if has_other else end};")
    _arm(cx, then, places)
    if has_other:
        t.emit(f"bra {end};")
        t.emit(f"{otherwise}:")
        _arm(cx, other, places)
    t.emit(f"{end}:")
    return places[0] if len(places) == 1 else places


def _arm(cx: Translator, region: Any, places: Sequence[Any]) -> None:
    last = cx.block(region.blocks[0])
    cx.move(places, last.operands if last is not None and last.name == "scf.yield" else [])


@_op("scf.for")
def _for(cx: Translator, op: Op) -> Any:
    t = cx.text
    low, high, step = (cx.scalar(v) for v in op.operands[:3])
    kind = op.kind_of(0)
    body = op.raw.regions[0].blocks[0]
    index, *carried = body.arguments
    places = cx.places([index, *carried])
    (counter,) = places[0]
    head, end = t.label(), t.label()
    ty = kind.of_sign(True)
    t.emit(f"mov.{kind.cls} {counter}, {low};")
    cx.move(places[1:], op.operands[3:])
    first, last = t.number(low, kind.bits), t.number(high, kind.bits)
    if first is None or last is None or first >= last:
        t.emit(f"@{t.op(f'setp.ge.{ty}', 'pred', low, high)} bra {end};")
    t.emit(f"{head}:")
    for value, place in zip([index, *carried], places):
        cx.set(value, place)
    yielded = cx.block(body)
    cx.move(places[1:], yielded.operands if yielded is not None else [])
    t.emit(f"add.{ty} {counter}, {counter}, {step};")
    t.emit(f"@{t.op(f'setp.lt.{ty}', 'pred', counter, high)} bra {head};")
    t.emit(f"{end}:")
    return places[1] if len(places) == 2 else places[1:]


@_op("scf.while")
def _while(cx: Translator, op: Op) -> Any:
    t = cx.text
    before, after = (region.blocks[0] for region in op.raw.regions)
    entering = cx.places(list(before.arguments))
    handed = cx.places(op.results)
    head, end = t.label(), t.label()
    cx.move(entering, op.operands)
    t.emit(f"{head}:")
    for value, place in zip(before.arguments, entering):
        cx.set(value, place)
    condition = cx.block(before)
    if condition is None or condition.name != "scf.condition":
        raise unsupported("`scf.while`", "a condition at the end of its first region", "none")
    cx.move(handed, condition.operands[1:])
    t.emit(f"@!{cx.scalar(condition.operands[0])} bra {end};")
    for value, place in zip(after.arguments, handed):
        cx.set(value, place)
    yielded = cx.block(after)
    cx.move(entering, yielded.operands if yielded is not None else [])
    t.emit(f"bra {head};")
    t.emit(f"{end}:")
    return handed[0] if len(handed) == 1 else handed


# ------------------------------------------------------------------------------------------ lanes


def _special(cx: Translator, name: str, kind: Kind) -> Any:
    reg = cx.text.op("mov.u32", "b32", name)
    return (cx.text.wide(reg, False) if kind.bits == 64 else reg,)


@_op("gpu.thread_id", "gpu.block_dim")
def _thread(cx: Translator, op: Op) -> Any:
    """Threads of a block stand in one line."""
    kind = op.kind_of_result()
    if _versions.mlir_dimension(op.attr("dimension")) == "x":
        return _special(cx, "%tid.x" if op.name == "gpu.thread_id" else "%ntid.x", kind)
    return (cx.text.constant(kind, 0 if op.name == "gpu.thread_id" else 1),)


@_op("gpu.lane_id", "nvvm.read.ptx.sreg.laneid")
def _lane(cx: Translator, op: Op) -> Any:
    return _special(cx, "%laneid", op.kind_of_result())


@_op("nvvm.read.ptx.sreg.tid.x")
def _tid(cx: Translator, op: Op) -> Any:
    return _special(cx, "%tid.x", op.kind_of_result())


#: Of a block's place in the launch: the special registers.
_PLACES = {
    "gpu.block_id": "ctaid", "gpu.grid_dim": "nctaid", "gpu.cluster_id": "clusterid", "gpu.cluster_dim": "nclusterid",
    "gpu.cluster_block_id": "cluster_ctaid", "gpu.cluster_dim_blocks": "cluster_nctaid",
}  # fmt: skip


@_op(*_PLACES)
def _of_grid(cx: Translator, op: Op) -> Any:
    """As CUDA counts: the last axis of the kernel is x, the one before y, the others together z; each times the cluster's."""
    dimension = _versions.mlir_dimension(op.attr("dimension"))
    return _special(cx, f"%{_PLACES[op.name]}.{dimension}", op.kind_of_result())


@_op("gpu.barrier", "nvvm.barrier0")
def _block_barrier(cx: Translator, op: Op) -> None:
    expected = "mgpu.utils.warpgroup_barrier, or a named barrier by llvm.inline_asm"
    raise unsupported(f"`{op.name}`", expected, "the barrier of the whole block, which is the compiler's")


@_op("nvvm.shfl.sync")
def _shuffle(cx: Translator, op: Op) -> Any:
    t = cx.text
    members, x, by, clamp = (cx.scalar(v) for v in op.operands[:4])
    mode = _versions.mlir_dimension(op.attr("kind"))
    out, rest = t.fresh("b32"), f"{t.immediate(by)}, {t.immediate(clamp)}, {t.immediate(members)}"
    if op.attr("return_value_and_is_valid") is None:
        t.emit(f"shfl.sync.{mode}.b32 {out}, {x}, {rest};")
        return (out,)
    there = t.fresh("pred")
    t.emit(f"shfl.sync.{mode}.b32 {out}|{there}, {x}, {rest};")
    return Fields({(0,): (out,), (1,): (there,)})


@_op("nvvm.vote.sync", "nvvm.vote.ballot.sync")
def _vote(cx: Translator, op: Op) -> Any:
    t = cx.text
    members, p = (cx.scalar(v) for v in op.operands)
    kind = op.attr("kind")
    mode = "ballot" if kind is None else _versions.mlir_dimension(kind)
    cls = "b32" if mode == "ballot" else "pred"
    return (t.op(f"vote.sync.{mode}.{cls}", cls, p, t.immediate(members)),)


_REDUX = {
    "add": "add.s32", "and": "and.b32", "or": "or.b32", "xor": "xor.b32", "umin": "min.u32", "umax": "max.u32", "min": "min.s32", "max": "max.s32",
}  # fmt: skip


@_op("nvvm.redux.sync")
def _redux(cx: Translator, op: Op) -> Any:
    t = cx.text
    x, members = (cx.scalar(v) for v in op.operands)
    kind = _versions.mlir_dimension(op.attr("kind"))
    name = _REDUX.get(kind)
    if name is None:
        raise unsupported("`nvvm.redux.sync`", "integers, as sm_90 has it", kind)
    return (t.op(f"redux.sync.{name}", "b32", x, t.immediate(members)),)


@_op("nvvm.elect.sync")
def _elect(cx: Translator, op: Op) -> Any:
    p = cx.text.fresh("pred")
    cx.text.emit(f"elect.sync _|{p}, 0xffffffff;")
    return (p,)


@_op("nvvm.bar.warp.sync")
def _warp_barrier(cx: Translator, op: Op) -> None:
    cx.text.emit(f"bar.warp.sync {cx.text.immediate(cx.scalar(op.operands[0]))};")


@_op("nvvm.barrier")
def _barrier(cx: Translator, op: Op) -> None:
    if len(op.operands) != 2:
        raise unsupported("`nvvm.barrier`", "the number of a named barrier and of its threads", f"{len(op.operands)} operands")
    number, threads = (cx.text.immediate(cx.scalar(v)) for v in op.operands)
    cx.text.emit(f"bar.sync {number}, {threads};")


@_op("nvvm.fence.proxy")
def _fence_proxy(cx: Translator, op: Op) -> None:
    kind = _versions.mlir_dimension(op.attr("kind"))
    space = op.attr("space")
    names = {"async": "async", "async.global": "async.global", "alias": "alias"}
    where = "" if space is None else _versions.mlir_dimension(space)
    name = f"async.shared::{'cluster' if 'cluster' in where else 'cta'}" if kind == "async.shared" else names.get(kind)
    if name is None:
        raise unsupported("`nvvm.fence.proxy`", "the async proxy's fences", kind)
    cx.text.emit(f"fence.proxy.{name};")


@_op("nvvm.wgmma.fence.aligned")
def _wgmma_fence(cx: Translator, op: Op) -> None:
    cx.text.emit("wgmma.fence.sync.aligned;")


@_op("nvvm.wgmma.commit.group.sync.aligned")
def _wgmma_commit(cx: Translator, op: Op) -> None:
    cx.text.emit("wgmma.commit_group.sync.aligned;")


@_op("nvvm.wgmma.wait.group.sync.aligned")
def _wgmma_wait(cx: Translator, op: Op) -> None:
    cx.text.emit(f"wgmma.wait_group.sync.aligned {int(_versions.mlir_numbers(op.attr('group'))[0])};")


@_op("nvvm.rcp.approx.ftz.f")
def _reciprocal(cx: Translator, op: Op) -> Any:
    return (cx.text.op("rcp.approx.ftz.f32", "b32", cx.scalar(op.operands[0])),)


# ------------------------------------------------------------------------------------------ assembly

_CLASS = {"r": "b32", "f": "b32", "l": "b64", "d": "b64", "h": "b16", "c": "b16", "b": "pred"}
_LABEL = re.compile(r"(?:^|[;{}\n])\s*([A-Za-z_$%][\w$]*)\s*:(?!:)")
#: An operand that is an expression of numbers.
_EXPRESSION = re.compile(r"(?<=,)[\s0-9a-fA-FxX()&|^~+\-*]*[&|^*(][\s0-9a-fA-FxX()&|^~+\-*]*(?=[,;])")
_PLACE = re.compile(r"\$\$|\$\{(\d+)(?::\w+)?\}|\$\{:uid\}|\$(\d+)")


@_op("llvm.inline_asm")
def _inline_asm(cx: Translator, op: Op) -> Any:
    """`$0`, `$1`, …: the results, then the operands. Names and labels are the text's own, each time that it stands."""
    t = cx.text
    asm = str(op.attr("asm_string").value)
    constraints = [c.strip() for c in str(op.attr("constraints").value).split(",") if c.strip()]
    constraints = [c for c in constraints if not c.startswith("~")]
    outs = [c for c in constraints if c.startswith("=")]
    types = [] if not op.results else _versions.mlir_fields(op.result_type())
    if len(outs) != len(types) or len(constraints) - len(outs) != len(op.operands) or any("+" in c or "*" in c for c in constraints):
        expected = "a constraint of =r, =f, =h, =l, =b for each result, and of r, f, h, l, b, n for each operand"
        raise unsupported("`llvm.inline_asm`", expected, ",".join(constraints))
    regs = [t.fresh(_class(c)) for c in outs]
    operands = list(regs)
    for value, constraint in zip(op.operands, constraints[len(outs) :]):
        if constraint.isdigit():
            tied = int(constraint)
            x = _as_operand(cx, value, outs[tied].lstrip("=&"))
            t.emit(f"mov.{_class(outs[tied])} {regs[tied]}, {x};")
            operands.append(regs[tied])
        else:
            operands.append(_as_operand(cx, value, constraint))
    uid = t.label()

    def place(match: re.Match[str]) -> str:
        number = match.group(1) or match.group(2)
        if number is None:
            return "$" if match.group(0) == "$$" else uid
        if int(number) >= len(operands):
            raise InvalidKernel(f"`llvm.inline_asm`: ${number}\n  expected: $0 to ${len(operands) - 1}\n  got: {asm}")
        return operands[int(number)]

    for name in sorted(set(_LABEL.findall(asm))):
        asm = re.sub(rf"(?<![\w$%.]){re.escape(name)}(?![\w$])", f"{name}_{uid}".replace("$", "$$"), asm)
    body = _EXPRESSION.sub(lambda match: f" {_evaluated(match.group(0))}", _PLACE.sub(place, asm)).strip()
    if body and not body.endswith((";", "}")):
        body += ";"
    t.emit(f"{{ {body}\n}}")  # the body may end with a comment
    made = [_from_result(cx, x, c, ty) for x, c, ty in zip(regs, outs, types)]
    return made[0] if len(made) == 1 else Fields({(i,): x for i, x in enumerate(made)})


_NUMERIC: dict[type, Callable[..., int]] = {
    ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor, ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Invert: operator.invert, ast.USub: operator.neg, ast.UAdd: operator.pos,
}  # fmt: skip


def _evaluated(expression: str) -> str:
    """The number that an expression is; what is none stays as it is."""

    def of(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(n)):
                return n
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _NUMERIC:
                return _NUMERIC[type(op)](of(left), of(right))
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _NUMERIC:
                return _NUMERIC[type(op)](of(operand))
        raise ValueError(expression)

    try:
        return str(of(ast.parse(expression.strip(), mode="eval").body))
    except (ValueError, SyntaxError):
        return expression.strip()


def _class(constraint: str) -> str:
    name = constraint.lstrip("=&")
    if name not in _CLASS:
        raise unsupported("`llvm.inline_asm`", "constraints r, f, l, d, h, c, b and n", constraint)
    return _CLASS[name]


def _width(cls: str) -> Kind:
    return {"b16": Kind("i16", 16), "b32": I32, "b64": I64, "pred": I1}[cls]


def _as_operand(cx: Translator, value: Any, constraint: str) -> str:
    t = cx.text
    regs = cx.get(value)
    kind = kind_of(cx.element(value.type))
    if constraint in ("n", "i"):
        number = t.number(regs[0], kind.bits)
        if number is None:
            raise unsupported("`llvm.inline_asm`", "a constant for the constraint n", "a value that is computed")
        return f"0x{number & 0xFFFFFFFF:x}" if kind.is_float else str(number)
    cls = _class(constraint)
    total = len(regs) * kind.bits
    wide = _width(cls)
    if total == wide.bits:
        return t.rebits(regs, kind, wide)[0]
    if len(regs) > 1 or total > wide.bits:
        raise unsupported("`llvm.inline_asm`", f"an operand of {wide.bits} bits for the constraint {constraint}", str(value.type))
    word = t.word(kind, regs[0]) if cls == "b32" else t.extended(kind, regs[0], False)
    return t.op("cvt.u16.u32", "b16", word) if cls == "b16" else t.wide(t.word(kind, regs[0]), False) if cls == "b64" else word


def _from_result(cx: Translator, x: str, constraint: str, ty: Any) -> Any:
    t = cx.text
    kind, wide = kind_of(cx.element(ty)), _width(_class(constraint))
    n = 1
    for extent in cx.shape(ty):
        n *= extent
    if n * kind.bits == wide.bits:
        return tuple(t.rebits([x], wide, kind))
    if n > 1 or kind.bits > wide.bits:
        raise unsupported("`llvm.inline_asm`", f"a result of {wide.bits} bits for the constraint {constraint}", str(ty))
    word = t.low(x) if wide.bits == 64 else t.word(wide, x)
    return (t.from_word(kind, word),)


