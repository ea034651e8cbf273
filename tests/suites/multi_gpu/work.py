"""Running a kernel in this process, which has the devices."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any
from unittest import mock

import jax

import smalt
from tests.suites.multi_gpu import processes
from tests.suites.multi_gpu.suite import SUBJECTS, Subject, digest, load_all


load_all()


def names(devices: int, only: Sequence[str]) -> list[str]:
    """The kernels that are for this number of devices."""
    return [s.name for s in SUBJECTS.values() if s.devices(devices) and (not only or any(o in s.name for o in only))]


def one(subject: Subject, devices: int, trace: bool = False, schedules: Sequence[str] = ()) -> dict[str, Any]:
    """What becomes of one kernel: right, wrong, refused (smalt does not have it), error, or skipped (JAX does not have it).

    It runs once more under each of these schedules of the emulator (`earliest`, or a seed), for the same bits.
    """
    start = time.perf_counter()

    def result(status: str, text: str = "", **more: Any) -> dict[str, Any]:
        return {"name": subject.name, "status": status, "text": text, "seconds": round(time.perf_counter() - start, 3), **more}

    if subject.lacks:
        return result("skipped", f"this version of JAX lacks {subject.lacks}")
    if subject.leaves_out and jax.process_count() > 1:
        return result("skipped", "JAX wants every process to have devices in each program")
    if subject.collectives and processes.share_gpus():
        return result("skipped", "NCCL takes no GPU twice, and XLA's collectives are NCCL's")
    try:
        with subject.scope():
            program = subject.make(devices)
            if trace:
                if not program.jit:
                    return result("skipped", "it compiles and runs by itself")
                kernels = smalt.descriptor(program.fn, *program.inputs)
                return result("right", digest="", kernels=len(kernels))
            got = program.run()
            fault = program.fault(got)
            for schedule in schedules if fault is None else ():
                with mock.patch.dict(os.environ, {"SMALT_SEED" if schedule.isdigit() else "SMALT_SCHEDULE": schedule}):
                    if digest(again := program.run()) != digest(got):
                        fault = f"under the schedule {schedule}: {program.fault(again) or 'other bits'}"
        return result("wrong" if fault else "right", fault or "", digest=digest(got))
    except Exception as e:  # noqa: BLE001  (it is reported)
        kind = getattr(e, "fault", type(e).__name__)
        return result("refused" if kind == "Unsupported" else "error", f"{type(e).__name__}: {e}"[:4000])
