"""Timelines of runs in the emulator: `smalt.trace` and `SMALT_TRACE`."""

from __future__ import annotations

import collections
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest
import smalt
from examples import matmul as example
from tests import ROOT
from tests.corpus.case import kernel
from tests.fresh import run_script

pytestmark = pytest.mark.shared

STEPS, DEPTH = 5, 2


class Timeline:
    """A file, checked as far as every one must hold."""

    def __init__(self, path: Any) -> None:
        text = pathlib.Path(path).read_text()
        assert "%ref" not in text, "a reference that has not got its name"
        self.document = json.loads(text)
        self.events = self.document["traceEvents"]
        named: dict[Any, str] = {}
        for e in self.events:
            if e["ph"] == "M" and e["name"] in ("process_name", "thread_name"):
                key = (e["pid"], e["tid"]) if e["name"] == "thread_name" else e["pid"]
                assert key not in named
                named[key] = e["args"]["name"]
        self.named = named
        rows = collections.defaultdict(list)
        for e in self.events:
            assert e["ph"] in ("M", "X", "i"), e
            if e["ph"] == "M" or e.get("cat") == "error":
                continue
            assert e["ts"] >= 0 and e["pid"] in named and (e["pid"], e["tid"]) in named
            if e["ph"] == "X":
                assert e["dur"] >= 0
                rows[e["pid"], e["tid"]].append(e)
        # Spans of one row stand one behind another: no begin without its end, none across another.
        for spans in rows.values():
            end = 0
            for e in spans:
                assert e["ts"] >= end, e
                end = e["ts"] + e["dur"]

    def of(self, category: str) -> list[dict[str, Any]]:
        return [e for e in self.events if e.get("cat") == category]

    def track(self, event: dict[str, Any]) -> str:
        return self.named[event["pid"], event["tid"]]


def operands(m: int = 256, n: int = 128) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = (m, 64 * STEPS), (64 * STEPS, n)
    return tuple(rng.standard_normal(shape).astype(np.float16) for shape in shapes)  # type: ignore[return-value]


def traced(path: Any, f: Any, *args: Any) -> tuple[Timeline, Any]:
    with smalt.enabled(True):
        with smalt.trace(path):
            out = jax.jit(f)(*args)
        return Timeline(path), np.asarray(out)


def line_of(text: str, file: str) -> int:
    (found,) = [i for i, line in enumerate(pathlib.Path(file).read_text().split("\n"), 1) if text in line]
    return found


def test_a_ring_of_slots(tmp_path: pathlib.Path) -> None:
    a, b = operands()
    timeline, out = traced(tmp_path / "t.json", lambda a, b: example.matmul(a, b, tile_m=64, tile_n=64, depth=DEPTH), a, b)
    np.testing.assert_allclose(out, a.astype(np.float32) @ b.astype(np.float32), atol=0.5)
    blocks = {e["pid"] for e in timeline.of("run")}
    assert sorted(timeline.named[pid] for pid in blocks) == [f"body, CTA ({at}, 0)" for at in ("0, 0", "0, 1", "1, 0", "1, 1")]
    copies = timeline.of("copy")
    loads = [e for e in copies if e["name"].startswith("bulk load")]
    stores = [e for e in copies if e["name"].startswith("bulk store")]
    # Both operands' tiles of a step, all of their bytes; each warpgroup's tile of the result.
    assert sum(e["args"]["bytes"] for e in loads) == 4 * STEPS * (128 * 64 + 64 * 64) * 2
    assert sum(e["args"]["bytes"] for e in stores) == 4 * 2 * 64 * 64 * 2
    assert len(loads) == 4 * STEPS * 2 and len(stores) == 4 * 2
    producing = line_of("plgpu.copy_gmem_to_smem(a_gmem.at[rows, ks]", example.__file__)
    of_a = [e for e in loads if e["args"]["line"] == f"{example.__file__}:{producing} {_function(e)}"]
    assert len(of_a) == 4 * STEPS and all("buffer 0" in e["args"]["from"] and "f16[2, 128, 64]" in e["args"]["to"] for e in of_a)
    assert all(e["args"]["warp"] // 4 == 2 and timeline.track(e).startswith("TMA") for e in loads)
    assert all(0 <= e["args"]["source read after"] <= e["dur"] for e in stores)
    # 64 of K are four instructions, of four warps each, of two warpgroups.
    products = timeline.of("wgmma")
    assert len(products) == 4 * STEPS * 4 * 2 * 4
    assert {e["name"] for e in products} == {"wgmma m64n64k16 F16, F16 → F32"}
    assert {timeline.track(e).split(" (")[0] for e in products} == {f"tensor core, warp {w}" for w in range(8)}
    # A slot is filled for every second step: a full and an empty barrier for each.
    phases = timeline.of("phase")
    for pid in blocks:
        done = collections.Counter(e["tid"] for e in phases if e["pid"] == pid and not e["args"].get("unfinished"))
        by_bytes = [e for e in phases if e["pid"] == pid and e["args"]["bytes"]]
        assert len(by_bytes) == STEPS and {e["args"]["bytes"] for e in by_bytes} == {(128 * 64 + 64 * 64) * 2}
        assert sorted(done.values()) == [2, 2, 3, 3], done
        for tid, number in done.items():
            mine = [e for e in phases if (e["pid"], e["tid"]) == (pid, tid) and not e["args"].get("unfinished")]
            assert [e["name"] for e in mine] == [f"phase {n}" for n in range(number)]
            assert all(e["args"]["arrivals"] == e["args"]["expected arrivals"] for e in mine)
    assert all("(`full`, number" in timeline.track(e) or "(`empty`, number" in timeline.track(e) for e in phases)
    waits = timeline.of("wait")
    assert any("mbarrier at shared offset" in e["name"] and "(`full`, number" in e["name"] for e in waits)
    waiting = line_of("plgpu.barrier_wait(full.at[slot])", example.__file__)
    assert any(e["args"]["line"].startswith(f"{example.__file__}:{waiting} ") and e["args"]["for"] == "mbarrier" for e in waits)
    assert all(timeline.track(e).startswith("warp ") for e in waits + timeline.of("run"))
    assert timeline.document["otherData"]["dropped"] == 0


def _function(event: dict[str, Any]) -> str:
    return str(event["args"]["line"]).split(" ", 1)[1]


def test_it_is_the_same_again(tmp_path: pathlib.Path) -> None:
    a, b = operands()
    for name in "ab":
        traced(tmp_path / name, lambda a, b: example.matmul(a, b, tile_m=64, tile_n=64), a, b)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("check", ["error", "off"])
def test_results_are_those_of_a_run_that_nobody_traces(check: str, tmp_path: pathlib.Path) -> None:
    a, b = operands()

    def run() -> np.ndarray:
        with smalt.emulated("H100", check=check):
            return np.asarray(jax.jit(lambda a, b: example.matmul(a, b, tile_m=64, tile_n=64, cluster=2))(a, b))

    without = run()
    with smalt.trace(tmp_path / "t"):
        within = run()
    np.testing.assert_array_equal(without, within)
    timeline = Timeline(tmp_path / "t")
    assert any("of 2 CTAs" in e["args"]["to"] for e in timeline.of("copy"))
    assert any(e["args"]["for"] == "cluster barrier" for e in timeline.of("wait"))


def double(x: Any) -> Any:
    def body(x: Any, o: Any) -> None:
        pl.debug_print("here")
        o[...] = x[...] * 2

    return kernel(body, jax.ShapeDtypeStruct(x.shape, x.dtype), kernel_name="double")(x)


def test_runs_stand_one_behind_another(tmp_path: pathlib.Path, capfd: Any) -> None:
    x = np.ones(256, np.float32)
    path = tmp_path / "t.json"
    f = jax.jit(double)
    with smalt.enabled(True):
        f(x)
        with smalt.trace(path):
            assert json.loads(path.read_text())["traceEvents"] == []
            f(x)
            f(x)
        before = path.read_bytes()
        f(x)
    assert path.read_bytes() == before
    timeline = Timeline(path)
    assert sorted(n for key, n in timeline.named.items() if isinstance(key, int)) == [
        "double, CTA (0, 0, 0)",
        "double, CTA (0, 0, 0), run 2",
    ]
    assert timeline.document["otherData"]["runs"] == 2
    first, second = ([e for e in timeline.of("run") if e["pid"] == pid] for pid in (1, 2))
    assert max(e["ts"] + e["dur"] for e in first) < min(e["ts"] for e in second)
    prints = timeline.of("print")
    assert len(prints) == 2 and all(timeline.track(e) == "warp 0" for e in prints)


def test_a_run_that_fails_is_told_to_its_end(tmp_path: pathlib.Path) -> None:
    def body(x: Any, o: Any, buf: Any, bar: Any) -> None:
        plgpu.copy_gmem_to_smem(x, buf, bar)
        plgpu.barrier_wait(bar)
        plgpu.barrier_wait(bar)
        o[...] = buf[...]

    x = np.ones((64, 64), np.float32)
    f = kernel(body, jax.ShapeDtypeStruct((64, 64), jnp.float32), plgpu.SMEM((64, 64), jnp.float32), plgpu.Barrier())
    with smalt.enabled(True), smalt.trace(tmp_path / "t"):
        with pytest.raises(smalt.Error, match="deadlock"):
            jax.block_until_ready(jax.jit(f)(x))
    timeline = Timeline(tmp_path / "t")
    late = [e for e in timeline.of("wait") if e["args"].get("unfinished")]
    assert len(late) == 4 and {e["args"]["for"] for e in late} == {"mbarrier"}
    (error,) = timeline.of("error")
    assert "deadlock" in error["args"]["error"] and error["ts"] == late[0]["ts"] + late[0]["dur"]


def test_mistakes(tmp_path: pathlib.Path) -> None:
    with pytest.raises(smalt.CompileError) as e, smalt.trace(tmp_path / "nowhere" / "t"):
        pass
    assert e.value.fault == "Environment" and str(tmp_path) in e.value.got
    with smalt.trace(tmp_path / "t"), pytest.raises(RuntimeError, match="within"), smalt.trace(tmp_path / "u"):
        pass
    with smalt.trace(tmp_path / "t"):
        pass
    assert Timeline(tmp_path / "t").events == []


SCRIPT = """
    import jax, numpy as np, smalt
    from tests.emulated.tools.test_trace import double
    smalt.enable()
    for _ in range(3):
        np.asarray(jax.jit(double)(np.ones(256, np.float32)))
"""


def test_the_variable(tmp_path: pathlib.Path) -> None:
    done = run_script(SCRIPT, SMALT_TRACE=str(tmp_path / "t"))
    assert done.returncode == 0, done.stderr
    assert Timeline(tmp_path / "t").document["otherData"]["runs"] == 3
    done = run_script(SCRIPT, SMALT_TRACE=str(tmp_path / "nowhere" / "t"))
    assert done.returncode == 0 and done.stderr.count("SMALT_TRACE: a trace cannot be written") == 1, done.stderr


def test_devices_are_told_apart(tmp_path: pathlib.Path) -> None:
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'jax_plugin'}:{ROOT}", "JAX_PLATFORMS": "cpu", "SMALT_TRACE": str(tmp_path / "t")}
    arguments = [sys.executable, "-m", "tests.suites.multi_gpu", "--devices", "2", "--only", "all_gather_by_loads"]
    done = subprocess.run(arguments, env=env, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    timeline = Timeline(tmp_path / "t")
    names = [n for key, n in timeline.named.items() if isinstance(key, int)]
    assert any("of device 0" in n for n in names) and any("of device 1" in n for n in names)
    assert any(e["args"]["for"] == "memory" for e in timeline.of("wait"))
