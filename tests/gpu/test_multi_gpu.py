"""Communicating kernels on two GPUs: right, and the bits of two emulated devices."""

from __future__ import annotations

import subprocess
import sys

import pytest

from smalt import _native
from tests.suites.multi_gpu.supervise import as_it_must_be, environment, line, supervise


@pytest.fixture(autouse=True)
def two_gpus() -> None:
    devices = _native.doctor()["devices"]
    assert isinstance(devices, list)
    if len(devices) < 2:
        pytest.skip(f"needs two GPUs; here: {len(devices)}")


def test_gpus_and_emulated_devices_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    real = {r["name"]: r for r in supervise("tests.suites.multi_gpu", 2)}
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    emulated = {r["name"]: r for r in supervise("tests.suites.multi_gpu", 2)}
    wrong = [line(r) for r in real.values() if not as_it_must_be(r)]
    assert not wrong, "\n".join(wrong)
    differ = [line(r) for name, r in real.items() if r.get("digest") != emulated[name].get("digest")]
    assert not differ, "\n".join(differ)


def several_processes(*more: str) -> None:
    single = {r["name"]: r for r in supervise("tests.suites.multi_gpu", 2)}
    several = {r["name"]: r for r in supervise("tests.suites.multi_gpu", 2, more=more, processes=2)}
    wrong = [line(r) for r in several.values() if not as_it_must_be(r)]
    assert not wrong, "\n".join(wrong)
    differ = [line(r) for name, r in several.items() if r["status"] == "right" and r["digest"] != single[name]["digest"]]
    assert not differ, "\n".join(differ)
    assert sum(r["status"] == "right" for r in several.values()) > 290


def test_two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    several_processes()


def test_two_processes_on_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    several_processes("--share-gpus")


def test_two_processes_with_two_devices_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four devices, two on each GPU; some kernels."""
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    only = ["ring", "device_ids", "random[1", "tma_to", "mesh_of", "barrier", "atomics[add"]
    found = supervise("tests.suites.multi_gpu", 4, only, more=["--share-gpus"], processes=2)
    assert len(found) > 20
    wrong = [line(r) for r in found if not as_it_must_be(r)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("part", ["many", "replays", "late", "absent", "unsignalled"])
def test_long_run_of_two_processes(part: str) -> None:
    command = [sys.executable, "-m", "tests.suites.multi_gpu.endurance", "--processes", "2", "--rounds", "20000" if part == "many" else "200"]
    env = environment(2)
    env.pop("JAX_PLATFORMS", None)
    done = subprocess.run([*command, "--part", part], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["halo_exchange", "all_to_all_moe", "ring_all_gather_matmul"])
def test_example(name: str) -> None:
    env = environment(2)
    env.pop("JAX_PLATFORMS", None)
    done = subprocess.run([sys.executable, "-m", f"examples.{name}"], env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
