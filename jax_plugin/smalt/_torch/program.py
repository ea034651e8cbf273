"""A function of JAX that calls kernels, as steps on PyTorch's tensors.

JAX's values do not change; a kernel that writes to an operand gives a new value in the operand's memory. The plan decides where that memory may be
taken: an argument's, because the caller of such a function requests it, or that of a value that is not read any more. A step that still reads the old
value has a copy, made before the step.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from smalt import _config, _lowering, _native, _versions
from smalt._errors import InvalidKernel, Unsupported
from smalt._torch import elementary, pytorch
from smalt._torch.pytorch import torch


@dataclasses.dataclass
class Step:
    """What is done to values, by their numbers."""

    run: Callable[..., list[Any]]
    operands: list[int]
    results: list[int]
    key: str  # the same for steps that do the same
    in_place: tuple[tuple[int, int], ...] = ()  # (operand, result): the result is in the operand's memory
    requested: int = 0  # of so many results by the user, also where the operand is an argument
    overwrites: frozenset[int] = frozenset()  # operands of which nothing is read
    is_view: bool = False
    is_kernel: bool = False
    dead: tuple[int, ...] = ()  # values that are dead behind it


class Program:
    """The steps for tensors of one type, planned.

    Attributes:
        types: Types of the arguments: (shape, dtype).
        written: The arguments whose tensors are written to.
        fresh: Types of the tensors that a run gives: (shape, dtype).
        places: Of each result whether it is an argument, and its number among arguments, or among what a run gives.
        key: A text that is the same for programs that do the same.
    """

    def __init__(self, name: str, closed: Any, arguments: Sequence[str], stores: Mapping[int, int], copies: bool) -> None:
        """`arguments`: what errors call them. `stores`: of which argument's tensor which of the results is what it is left with. `copies`: whether
        arguments that do not begin where kernels want them are copied; else they are an error."""
        self.name, self.names, self.copies = name, arguments, copies
        self._count = len(arguments)
        self.types = [(tuple(v.aval.shape), v.aval.dtype) for v in _versions.open_jaxpr(closed)[0].invars]
        self._types = list(self.types)
        self._constants: dict[int, np.ndarray[Any, Any]] = {}
        self._of_device: dict[Any, dict[int, Any]] = {}
        self._steps: list[Step] = []
        self._calls: list[Any] = []  # equations around the one that is looked at
        outputs = self._walk(closed, list(range(self._count)))
        self._outputs = [x for i, x in enumerate(outputs) if i not in set(stores.values())]
        for argument, result in stores.items():
            given = [argument, outputs[result]]
            self._add(elementary.store, given, [self._types[argument]], "store", in_place=((0, 0),), requested=1, overwrites=frozenset([0]))
        self._plan()

    # -------------------------------------------------------------------------------- reading the jaxpr

    def _walk(self, closed: Any, args: Sequence[Any]) -> list[int]:
        """Constants are computed; everything else is a step. It gives the numbers of the results."""
        jaxpr, consts = _versions.open_jaxpr(_versions.without_new_references(closed))
        env: dict[Any, Any] = dict(zip(jaxpr.constvars, map(np.asarray, consts))) | dict(zip(jaxpr.invars, args))

        def read(atom: Any) -> Any:
            return np.asarray(atom.val, atom.aval.dtype) if _versions.is_literal(atom) else env[atom]

        for eqn in jaxpr.eqns:
            env.update(zip(eqn.outvars, self._equation(eqn, [read(atom) for atom in eqn.invars])))
        return [self._number(read(atom)) for atom in jaxpr.outvars]

    def _equation(self, eqn: Any, values: list[Any]) -> list[Any]:
        name, types = str(eqn.primitive.name), [(tuple(v.aval.shape), v.aval.dtype) for v in eqn.outvars]
        if callee := _versions.CALLS.get(name):
            self._calls.append(eqn)
            made = self._walk(eqn.params[callee], values)
            self._calls.pop()
            return made
        if eqn.primitive in (_versions.mpmd_map_p, _versions.pallas_call_p):
            kernel = _Kernel(eqn, self._line(eqn))
            results = [(tuple(a.shape), a.dtype) for a in kernel.results]
            # Results of the kernel alone are operands that a `pl.pallas_call` stores to: not requested.
            made = self._add(kernel.run, values, results, kernel.key, in_place=tuple(kernel.aliases), requested=len(types), is_kernel=True)
            return made[: len(types)]
        if all(isinstance(v, np.ndarray) for v in values):
            out = eqn.primitive.bind(*values, **eqn.params)
            return [np.asarray(x) for x in (out if eqn.primitive.multiple_results else [out])]
        if name in elementary.VIEWS and isinstance(values[0], int):
            return self._add(elementary.view(types[0][0]), values[:1], types, f"view{types[0][0]}", is_view=True)
        if run := elementary.function(name, eqn.params, [v.aval for v in eqn.invars]):
            return self._add(run, values, types, f"{name}{sorted((k, str(v)) for k, v in eqn.params.items())}")
        if definition := _versions.defined_by_jax(eqn):  # by other operations
            self._calls.append(eqn)
            made = self._walk(jax.make_jaxpr(definition)(*(jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars)), values)
            self._calls.pop()
            return made
        raise Unsupported(
            f"smalt: not supported yet: `{name}` of tensors, beside kernels"
            f"\n  expected: kernels, and elementary operations: {', '.join(sorted(elementary.OPS))}"
            f"\n  got: {eqn.primitive}\n  remedy: compute that with PyTorch, before or behind the kernel{self._line(eqn)}"
        )

    def _line(self, eqn: Any) -> str:
        return next(filter(None, map(_versions.line_of, (eqn, *reversed(self._calls)))), "")

    def _add(self, run: Any, values: Sequence[Any], types: Sequence[Any], key: str, at: int | None = None, **more: Any) -> list[int]:
        operands = [self._number(v) for v in values]
        results = list(range(len(self._types), len(self._types) + len(types)))
        self._types += types
        step = Step(run, operands, results, f"{key}{operands}{results}", **more)
        self._steps.insert(len(self._steps) if at is None else at, step)
        return results

    def _number(self, x: Any) -> int:
        if not isinstance(x, np.ndarray):
            return int(x)
        self._types.append((x.shape, x.dtype))
        self._constants[len(self._types) - 1] = x
        return len(self._types) - 1

    # -------------------------------------------------------------------------------- the plan

    def _plan(self) -> None:
        self._root: dict[int, int] = {}  # whose memory a value has, if not its own
        self._argument: dict[int, int] = {a: a for a in range(self._count)}  # values that have an argument's whole memory
        self._leave_out()
        at = 0
        while at < len(self._steps):
            step = self._steps[at]
            if step.overwrites and self._argument.get(step.operands[1]) == step.operands[0]:
                del self._steps[at]  # it is there
                continue
            if step.is_view:
                self._root[step.results[0]] = self._root_of(step.operands[0])
            for operand, result in step.in_place:
                at += self._place(at, step, operand, result)
            at += 1
        self._give_back()
        self.written = sorted({a for value, a in self._argument.items() if value != a})
        self._let_go()
        self.fresh = [self._types[x] for x in self._made]
        self.places = [(True, self._argument[x]) if x in self._argument else (False, self._made.index(x)) for x in self._outputs]
        text = [self._count, self._types, [step.key for step in self._steps], self._outputs]
        whole = hashlib.sha256(repr(text).encode())
        for number, x in self._constants.items():
            whole.update(f"{number}{x.dtype}".encode() + x.tobytes())
        self.key = whole.hexdigest()

    def _root_of(self, value: int) -> int:
        return self._root.get(value, value)

    def _place(self, at: int, step: Step, operand: int, result_at: int) -> int:
        """Decides where a result is that is to be in an operand's memory; returns how many copies were put in front of the step."""
        value, result = step.operands[operand], step.results[result_at]
        root = self._root_of(value)
        group = {v for v in (*self._root, *self._argument, root, value) if self._root_of(v) == root}
        before = len(self._steps)
        read = {v for later in self._steps[at + 1 :] for i, v in enumerate(later.operands) if i not in later.overwrites} | set(self._outputs)
        read |= {v for i, v in enumerate(step.operands) if i != operand}
        argument = self._argument.get(root)
        if argument is None and root not in self._constants or value in self._argument and result_at < step.requested:
            for v in sorted(group & read):  # they keep what they are
                (kept,) = self._copy(at, v)
                at += 1
                for later in self._steps[at:]:
                    later.operands = [
                        kept if x == v and i not in later.overwrites and not (later is step and i == operand) else x
                        for i, x in enumerate(later.operands)
                    ]
                self._outputs = [kept if x == v else x for x in self._outputs]
            self._root[result] = root
            if argument is not None:
                self._argument[result] = argument
        else:
            (copy,) = self._copy(at, value)
            step.operands[operand] = copy
            self._root[result] = copy
        return len(self._steps) - before

    def _copy(self, at: int, value: int) -> list[int]:
        return self._add(elementary.copy, [value], [self._types[value]], "copy", at=at)

    def _leave_out(self) -> None:
        """Steps with unused results; kernels may have effects."""
        needed, steps = set(self._outputs), self._steps
        self._steps = []
        for step in reversed(steps):
            if step.is_kernel or step.in_place or needed & set(step.results):
                self._steps.insert(0, step)
                needed |= set(step.operands)

    def _give_back(self) -> None:
        """What is given is an argument, as it came or written, or a tensor of its own."""
        taken: dict[int, int] = {}
        for i, x in enumerate(self._outputs):
            root = self._root_of(x)
            if x in self._argument:
                continue
            if root in self._argument or root in self._constants or taken.setdefault(root, x) != x:
                (self._outputs[i],) = self._copy(len(self._steps), x)
        self._made = list(dict.fromkeys(x for x in self._outputs if x not in self._argument))

    def _let_go(self) -> None:
        needed = set(self._outputs) | set(range(self._count)) | set(self._constants)
        for step in reversed(self._steps):
            step.dead = tuple(dict.fromkeys(x for x in (*step.operands, *step.results) if x not in needed))
            needed.update(step.operands)

    # -------------------------------------------------------------------------------- running

    def run(self, tensors: Sequence[Any], device: Any) -> list[Any]:
        """The tensors of `fresh`."""
        if self.copies:
            tensors = [t.clone() if t.data_ptr() % ALIGNMENT else t for t in tensors]
        self._check_memory(tensors)
        if device not in self._of_device:
            self._of_device[device] = {number: pytorch.tensor(x, device) for number, x in self._constants.items()}
        values = dict(enumerate(tensors)) | self._of_device[device]
        for step in self._steps:
            operands = [values[x] for x in step.operands]
            values.update(zip(step.results, step.run(operands, device) if step.is_kernel else step.run(*operands)))
            for x in step.dead:
                del values[x]
        return [values[x] for x in self._made]

    def assemble(self, tensors: Sequence[Any], fresh: Sequence[Any]) -> list[Any]:
        """The function's results, from its arguments and what a run gave."""
        return [(tensors if is_argument else fresh)[at] for is_argument, at in self.places]

    def _check_memory(self, tensors: Sequence[Any]) -> None:
        for i, t in enumerate(tensors):
            if t.data_ptr() % ALIGNMENT:
                raise InvalidKernel(
                    f"smalt: {self.names[i]} of a kernel for PyTorch\n  expected: memory at a multiple of {ALIGNMENT} bytes"
                    f"\n  got: a view that begins {t.data_ptr() % ALIGNMENT} bytes behind one\n  remedy: t.clone()"
                )
        for i in self.written:
            first, last = _extent(tensors[i])
            for k, t in enumerate(tensors):
                begin, end = _extent(t)
                if k != i and begin < last and first < end:
                    raise InvalidKernel(
                        f"smalt: {self.names[i]} of a kernel for PyTorch, which writes to it\n  expected: memory that no other argument has"
                        f"\n  got: memory of {self.names[k]}, too\n  remedy: t.clone()"
                    )


#: What the compiler takes for granted of device memory (`target.rs`, `gmem_alignment`), in bytes.
ALIGNMENT = 16


def _extent(t: Any) -> tuple[int, int]:
    begin = t.data_ptr()
    return begin, begin + t.numel() * t.element_size()


class _Kernel:
    """One call of a kernel."""

    def __init__(self, eqn: Any, line: str) -> None:
        structs = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
        with _config.enabled(True):
            kernels = _lowering.captured(lambda *args: eqn.primitive.bind(*args, **eqn.params), *structs, compiles=True)
        if len(kernels) != 1:
            raise Unsupported(
                f"smalt: not supported yet: `{eqn.primitive.name}` of tensors that smalt does not compile\n  expected: a kernel for a GPU, not interpreted"
                f"\n  got: {eqn.params.get('name') or eqn.primitive.name}\n  remedy: leave out interpret=, and the parameters of another compiler"
                f"{line}"
            )
        (kernel,) = kernels
        self._kernel = kernel
        self._artifact = _native.compile(kernel.descriptor, kernel.debug, kernel.target)
        extra = self._artifact.extra_operands
        if extra.position:
            raise Unsupported(
                "smalt: not supported yet: a kernel that talks to other devices, for PyTorch"
                f"\n  expected: a kernel of one GPU\n  remedy: call it in JAX, under jax.shard_map{line}"
            )
        self.results, self.aliases = kernel.results, sorted(kernel.aliases, key=lambda pair: pair[1])
        self.key = f"kernel {kernel.hash} {kernel.target}"
        aliases = {result: operand for operand, result in self.aliases}
        #: Of each result the operand that it is, or its shape and type.
        self._made = [(aliases.get(i), tuple(a.shape), pytorch.dtype(a.dtype)) for i, a in enumerate(self.results)]
        self._scratch = list(extra.scratch)
        own = [int(np.prod(a.shape, dtype=np.int64)) * np.dtype(a.dtype).itemsize for a in (*structs, *self.results)]
        n = len(structs)
        self._sizes = [*own[:n], *self._scratch], [*own[n:], *self._scratch]
        self._site: _native.CallSite | None = None

    def run(self, operands: list[Any], device: Any) -> list[Any]:
        results = [torch.empty(shape, dtype=dtype, device=device) if operand is None else operands[operand] for operand, shape, dtype in self._made]
        scratch = [torch.zeros(size, dtype=torch.uint8, device=device) for size in self._scratch]
        addresses = [t.data_ptr() for t in (*operands, *scratch)], [t.data_ptr() for t in (*results, *scratch)]
        if device.type == "cpu":
            given, made = (list(zip(some, sizes)) for some, sizes in zip(addresses, self._sizes))
            n = len(scratch)
            self._artifact.run_at([*given[: len(given) - n], *made[: len(made) - n], *given[len(given) - n :]])
            return results
        if self._site is None:
            self._site = _native.CallSite(self._kernel.descriptor, self._kernel.debug, self._kernel.target, *self._sizes)
        self._site.launch(device.index, torch.cuda.current_stream(device).cuda_stream, *addresses)
        return results
