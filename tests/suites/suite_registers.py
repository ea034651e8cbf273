"""`set_max_registers` wherever a program may have it, on the machine that there is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest
import smalt

from tests.corpus.case import kernel
from tests.suites.suite_barriers import F32, I32, out, random, run

Where = Callable[[Any, Callable[[], None]], None]


def in_arm(n: Any, f: Callable[[], None]) -> None:
    jax.lax.switch(n, [lambda: None, lambda: None, f])


def in_loop(n: Any, f: Callable[[], None]) -> None:
    jax.lax.fori_loop(0, n, lambda i, _: pl.when(i == 0)(f), None)


#: Where the roles are, with an n that memory says: 2.
WHERE: dict[str, Where] = {
    "always": lambda _, f: f(),
    "if data say so": lambda n, f: pl.when(n > 0)(f),
    "if twice": lambda n, f: pl.when(n > 0)(lambda: pl.when(n < 100)(f)),
    "in an arm": in_arm,
    "in a loop": in_loop,
}


def roles(where: Where, sets: tuple[bool, bool, bool]) -> Any:
    """Three warpgroups take a third of the rows each; those of `sets` say how many registers they want."""

    def body(n: Any, x: Any, o: Any) -> None:
        wg = jax.lax.axis_index("wg")

        def all_roles() -> None:
            for role, (count, action) in enumerate([(40, "decrease"), (208, "increase"), (208, "increase")]):

                @pl.when(wg == role)
                def _(role: int = role, count: int = count, action: Any = action) -> None:
                    if sets[role]:
                        plgpu.set_max_registers(count, action=action)
                    rows = pl.ds(64 * role, 64)
                    o[rows] = x[rows] * (role + 1)

        where(n[0], all_roles)

    return body


LAUNCH: dict[str, Any] = {"num_threads": 3, "thread_name": "wg"}
TYPE = out(192, 128, F32)


@pytest.mark.parametrize("sets", [(True, True, True), (True, False, False)], ids=["all", "one"])
@pytest.mark.parametrize("where", WHERE)
def test_registers_are_set(where: str, sets: tuple[bool, bool, bool]) -> None:
    x, n = random((192, 128), F32), np.array([2], I32)
    got = run(roles(WHERE[where], sets), TYPE, n, x, **LAUNCH)
    np.testing.assert_array_equal(got, x * np.repeat([1, 2, 3], 64)[:, None].astype(F32))


@pytest.mark.parametrize("where", WHERE)
def test_the_assembler_takes_them(where: str) -> None:
    """`setmaxnreg` is ignored, with a note, where the blocks of a multiprocessor are not given."""
    body = roles(WHERE[where], (True, True, True))
    arguments = jax.ShapeDtypeStruct((1,), jnp.int32), jax.ShapeDtypeStruct((192, 128), jnp.float32)
    (report,) = smalt.inspect(kernel(body, TYPE, **LAUNCH), *arguments)
    assert ".minnctapersm" in report.ptx
    assert report.ptx.count("setmaxnreg") >= 3
    assert not report.warnings, report.warnings
