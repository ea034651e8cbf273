"""The right kernels of tests/suites/asynchrony on the GPU: right, and the bits of the emulator."""

from __future__ import annotations

import pytest

from tests.suites.asynchrony.subject import Subject, load_all

SUBJECTS, _ = load_all()


@pytest.mark.parametrize("subject", SUBJECTS.values(), ids=lambda subject: subject.name)
def test_gpu_and_emulator_agree(subject: Subject) -> None:
    emulated = subject.emulate()
    assert subject.is_right(emulated)
    for _ in range(3):
        got = subject.on_gpu()
        assert subject.is_right(got)
        assert [a.tobytes() for a in got] == [b.tobytes() for b in emulated]
