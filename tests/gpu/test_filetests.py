"""File tests of kind `run` on the GPU: as expected, and the bits of the emulator."""

from __future__ import annotations

import pytest

from tests.filetests.run import FileTest, load_all


#: Those of other machines run in the emulator alone.
OF_HOPPER = [test for test in load_all().values() if test.target == "sm_90a"]


@pytest.mark.parametrize("test", OF_HOPPER, ids=lambda test: test.name)
def test_file(test: FileTest) -> None:
    emulated = test.emulate()
    for _ in range(2):
        got = test.on_gpu()
        test.check(got)
        for name, a in got.items():
            wrong = (a.reshape(-1).view("u1") != emulated[name].reshape(-1).view("u1")).reshape(a.size, -1).any(-1)
            at = wrong.nonzero()[0]
            assert not len(at), f"{name}: {len(at)} of {a.size} differ; first {at[:8]}: {a.reshape(-1)[at[:8]]}, emulated {emulated[name].reshape(-1)[at[:8]]}"
