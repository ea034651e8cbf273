"""What errors call the references of a kernel: as the function's source names them, or nothing, and never by another's name.

Kernels of random signatures are written to files; each touches one of its references outside of it.
"""

from __future__ import annotations

import pathlib
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest
import smalt

from tests.corpus.case import EXACT, NAMES_ARGUMENTS, like

pytestmark = [pytest.mark.shared, pytest.mark.filterwarnings("ignore:smalt. an output that the kernel never stores to")]

X = np.ones(128, np.float32)
SCRATCH = plgpu.SMEM((128,), jnp.float32)
ROW = like((128,), jnp.float32)


@dataclass
class Tree:
    """An argument: its value, and by the path behind its name each reference in it."""

    value: Any
    paths: list[str]


def tree(rng: random.Random, leaf: Any) -> Tree:
    match rng.randrange(6):
        case 0:
            return Tree({"a": leaf, "b": leaf}, ["['a']", "['b']"])
        case 1:
            return Tree((leaf, leaf), ["[0]", "[1]"])
        case 2:
            return Tree({"k": [leaf, leaf]}, ["['k'][0]", "['k'][1]"])
        case _:
            return Tree(leaf, [""])


#: How the user's function comes to be what JAX calls.
FORMS = {
    "plain": "{name} = body",
    "a method": "class K:\n    def body(self, {args}):\n        body({call})\n{name} = K().body",
    "passed on": "def passes(f):\n    @functools.wraps(f)\n    def g(*args, **kwargs):\n        return f(*args, **kwargs)\n    return g\n{name} = passes(body)",
    "turned": (
        "def turns(f):\n    @functools.wraps(f)\n    def g(n, *args, **kwargs):\n"
        "        return f(n, *args[::-1], **kwargs)\n    return g\n{name} = turns(turned)"
    ),
    "a number bound in front": "def bound(cfg, {args}):\n    body({call})\n{name} = functools.partial(bound, 3)",
    "a number bound by name": "def bound({args}, cfg):\n    body({call})\n{name} = functools.partial(bound, cfg=3)",
    "collected": "def collected(*refs):\n    body(*refs)\n{name} = collected",
    "a default": "def default({args}, more=None):\n    body({call})\n{name} = default",
    "only by name": "def only({args}{star}, more=1):\n    body({call})\n{name} = only",
    "a function in a function": "def outer():\n    def inner({args}):\n        body({call})\n    return inner\n{name} = outer()",
    "lambda": "{name} = lambda {args}: body({call})",
}


#: Those that say for certain which argument is which: no default, nothing that is bound before, no decorator that may turn them.
CERTAIN = ("plain", "a method", "collected", "only by name", "a function in a function", "lambda")


@dataclass
class Case:
    #: A `pl.pallas_call`, or a `plgpu.kernel`.
    blocks: bool
    form: str
    inputs: list[Tree]
    outputs: list[Tree]
    scratch: list[Tree]
    #: Scratch in a dictionary, which is passed by name, or in a list.
    by_name: bool
    names: list[str]
    #: The last so many arguments are `*rest`.
    rest: int = 0
    touched: int = 0

    @property
    def trees(self) -> list[Tree]:
        return [*self.inputs, *self.outputs, *self.scratch]

    def expressions(self) -> list[str]:
        """Of all references, in the body."""
        return [name + path for name, it in zip(self.names, self.trees) for path in it.paths]

    def expected(self) -> str:
        """What the kernel's function calls the one that is touched."""
        if self.form != "collected":
            return self.expressions()[self.touched]
        return [f"refs[{i}]{path}" for i, it in enumerate(self.trees, 1) for path in it.paths][self.touched]

    def source(self) -> str:
        named = self.names[: len(self.names) - self.rest]
        args = ", ".join([*named, "*rest"] if self.rest else named)
        expressions = self.expressions()
        x, target = expressions[0], expressions[self.touched]
        inputs = sum(len(it.paths) for it in self.inputs)
        body = [] if self.touched < inputs else [f"{target}[...] = jnp.zeros(128)"]
        first_output = expressions[inputs]
        body += [f"v = {target}[pl.ds(n[0], 128)] + {x}[...]", f"{first_output}[...] = v"]
        lines = [f"def body(n, {args}):", *(f"    {line}" for line in body)]
        if self.form == "turned":
            # What it calls them is what they are, not what the decorator's signature says.
            count = len(self.inputs) + len(self.outputs)
            turned = [*named[:count][::-1], *named[count:]]
            lines += [f"def turned(n, {', '.join(turned)}):", *(f"    {line}" for line in body)]
        form = FORMS[self.form].format(name="kernel", args=f"n, {args}", call=f"n, {args}", star="" if self.rest else ", *")
        return "import functools\nimport jax.numpy as jnp\nimport jax.experimental.pallas as pl\n" + "\n".join(lines) + "\n" + form + "\n"


def draw(rng: random.Random) -> Case:
    blocks = rng.random() < 0.3
    form = rng.choice(list(FORMS))

    def trees(count: int, leaf: Any) -> list[Tree]:
        return [Tree(leaf, [""]) if blocks else tree(rng, leaf) for _ in range(count)]

    inputs, outputs = trees(rng.randint(1, 3), X), trees(rng.randint(1, 2), ROW)
    scratch = trees(rng.choice([0, 0, 1, 2]), SCRATCH)
    if form == "turned":
        outputs, scratch = [Tree(ROW, [""])], []
    count = len(inputs) + len(outputs) + len(scratch)
    names = rng.sample(["x", "y", "x_ref", "w", "out", "o_ref", "acc", "ring", "p0", "buf"], count)
    case = Case(blocks, form, inputs, outputs, scratch, not blocks and form != "collected" and rng.random() < 0.5, names)
    if form in ("plain", "passed on", "only by name") and not (case.by_name and scratch) and rng.random() < 0.3:
        case.rest = rng.randint(1, count)
        names[count - case.rest :] = [f"rest[{i}]" for i in range(case.rest)]
    case.touched = rng.randrange(len(case.expressions()))
    return case


def call_of(case: Case, function: Callable[..., Any]) -> Any:
    outputs = tuple(it.value for it in case.outputs)
    values = [it.value for it in case.scratch]
    if case.blocks:
        return pl.pallas_call(function, out_shape=outputs, scratch_shapes=values, compiler_params=EXACT)
    kwargs: dict[str, Any] = {}
    if values:
        kwargs["scratch_types"] = dict(zip(case.names[-len(values) :], values)) if case.by_name else values
    return plgpu.kernel(function, out_type=outputs, compiler_params=EXACT, **kwargs)


def name_in_error(case: Case, folder: pathlib.Path, number: int) -> str | None:
    file = folder / f"kernel{number}.py"
    file.write_text(case.source())
    scope: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), scope)
    call = call_of(case, scope["kernel"])
    with smalt.emulated("H100"), pytest.raises(smalt.ExecutionError) as info:
        jax.block_until_ready(jax.jit(call)(np.array([8], np.int32), *[it.value for it in case.inputs]))
    assert info.value.what.startswith("an index outside of its dimension") and info.value.got, str(info.value)
    # Of a buffer, or in shared memory.
    found = re.search(r"in dimension \d of (?:shared memory .*? \()?(?:`(.*?)`, )?", info.value.got)
    assert found, info.value.got
    return found[1]


def must_have_a_name(case: Case) -> bool:
    if case.form not in CERTAIN or case.rest:
        return False
    is_scratch = case.touched >= sum(len(it.paths) for it in [*case.inputs, *case.outputs])
    # A block that is copied ahead is in a ring, which is JAX's own.
    return NAMES_ARGUMENTS and not case.blocks or is_scratch and case.form != "collected"


def test_references_have_their_own_names_or_none(tmp_path: pathlib.Path) -> None:
    wrong = []
    for seed in range(80):
        case = draw(random.Random(seed))
        found = name_in_error(case, tmp_path, seed)
        if found != case.expected() and (found is not None or must_have_a_name(case)):
            wrong.append((seed, case.form, found, case.expected()))
    assert not wrong, wrong


def got(call: Callable[..., Any], x: Any) -> str:
    with smalt.emulated("H100"), pytest.raises(smalt.ExecutionError) as info:
        jax.block_until_ready(jax.jit(call)(np.array([8], np.int32), x))
    assert info.value.got and info.value.got in str(info.value)
    return info.value.got


def test_scratch_of_a_block_has_its_name() -> None:
    def body(n_ref: Any, x_ref: Any, o_ref: Any, acc_ref: Any) -> None:
        acc_ref[...] = x_ref[...]
        o_ref[...] = acc_ref[pl.ds(n_ref[0], 100)]

    call = pl.pallas_call(body, out_shape=like((100,), jnp.float32), scratch_shapes=[plgpu.SMEM((100,), jnp.float32)])
    assert "(`acc_ref`, " in got(call, X[:100])


@pytest.mark.parametrize("touched", ["tmp", "pair[1]"])
def test_scratch_of_a_scope_in_a_loop_has_its_name(touched: str) -> None:
    def body(n: Any, x: Any, o: Any) -> None:
        @pl.loop(0, 2)
        def _(i: Any) -> None:
            def scope(tmp: Any, pair: Any) -> None:
                ref = tmp if touched == "tmp" else pair[1]
                ref[...] = x[...]
                o[...] = ref[pl.ds(n[0], 128)]

            pl.run_scoped(scope, SCRATCH, [SCRATCH, SCRATCH])

    assert f"(`{touched}`, " in got(plgpu.kernel(body, out_type=ROW, compiler_params=EXACT), X)
