"""File tests of kind `run` in the emulator, under many schedules."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest

from tests.filetests.run import DIRECTORY, Expectation, FileTest, load_all, read

pytestmark = pytest.mark.shared

SEEDS = 8


@pytest.mark.parametrize("test", load_all().values(), ids=lambda test: test.name)
def test_file(test: FileTest) -> None:
    """The expected bits, the same under every schedule."""
    first = test.emulate()
    test.check(first)
    for schedule, seed in [("earliest", 0)] + [("seeded", seed) for seed in range(SEEDS)]:
        got = test.emulate(schedule, seed)
        assert {name: a.tobytes() for name, a in got.items()} == {name: a.tobytes() for name, a in first.items()}, (schedule, seed)


def test_something_else_shows() -> None:
    """A wrong number, a missing expectation and an unknown buffer are said."""
    test = load_all()["loop"]
    changed = dataclasses.replace(test, ptx=test.ptx.replace("0f3F800000", "0f3F800001"))
    with pytest.raises(AssertionError, match=r"loop: x: \d+ of 512 differ; at \(0, 0\)"):
        changed.check(changed.emulate())
    wrong = dataclasses.replace(test, expectations=(Expectation("x", "y + 1", 0),))
    with pytest.raises(ValueError, match="expect x: y . 1: name 'y' is not defined"):
        wrong.check(wrong.emulate())


def test_headers_are_checked(tmp_path: pathlib.Path) -> None:
    text = (DIRECTORY / "loop.ptx").read_text()
    for old, new, message in [
        ("// expect x: x + f32(1)\n", "", "a line `expect` for each of"),
        ("mutable f32[4, 128]", "mutable q32[4, 128]", "expected: `input f32"),
        ("mutable f32[4, 128]", "output f32[4, 128]", "make it mutable"),
        ("// buffer x", "// bufer x", "not understood"),
    ]:
        path = tmp_path / "kernel.ptx"
        path.write_text(text.replace(old, new))
        with pytest.raises(ValueError, match=message):
            read(path)
