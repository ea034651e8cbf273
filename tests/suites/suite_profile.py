"""Profiles (`CompilerParams.profile_space`): what the files of launches say, on the machine that there is."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest
import smalt
from jax import lax

from tests.corpus.case import kernel, like
from tests.machine import enabled

F32 = jnp.float32
scope = jax.named_scope
X = np.arange(128, dtype=np.float32)


@dataclasses.dataclass
class Range:
    """One range of a track, and those within it."""

    name: str
    begin: float
    end: float
    inner: list[Range]

    def shape(self) -> Any:
        """Names alone: a name, or (name, what is in it)."""
        return (self.name, [r.shape() for r in self.inner]) if self.inner else self.name


@dataclasses.dataclass
class Profile:
    """One file."""

    tracks: dict[str, list[Range]]
    processes: dict[str, str]  # of each track
    other: dict[str, Any]

    def shapes(self) -> dict[str, Any]:
        """Of each track the names of its ranges, without what comes before the body."""
        out = {}
        for name, (init, *ranges) in self.tracks.items():
            assert init.shape() == "Init", name
            out[name] = [r.shape() for r in ranges]
        return out


def parsed(path: pathlib.Path) -> Profile:
    """Checks what every file keeps to: pairs, nesting, times that do not go back, names of rows."""
    file = json.loads(path.read_text())
    assert file["displayTimeUnit"] == "ns"
    events = file["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    by_track = collections.defaultdict(list)
    for event in events:
        if event["ph"] != "M":
            by_track[event["pid"], event["tid"]].append(event)
    tracks = {}
    for track, own in by_track.items():
        times = [e["ts"] for e in own]
        assert times == sorted(times) and times[0] >= 0, (names[track], times)
        top: list[Range] = []
        stack = [Range("", 0, 0, top)]
        for event in own:
            if event["ph"] == "B":
                opened = Range(event["name"], event["ts"], event["ts"], [])
                stack[-1].inner.append(opened)
                stack.append(opened)
            else:
                assert event["ph"] == "E"
                closed = stack.pop()
                assert closed.name == event["name"], names[track]
                closed.end = event["ts"]
        assert len(stack) == 1, names[track]
        tracks[names[track]] = top
    return Profile(tracks, {names[track]: processes[track[0]] for track in by_track}, file["otherData"])


def files(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(folder.iterdir())


def params(folder: pathlib.Path, space: int = 32, **others: Any) -> Any:
    return smalt.CompilerParams(profile_space=space, profile_dir=str(folder), **others)


def run(f: Callable[..., Any], *args: Any) -> Any:
    with enabled():
        return jax.tree.map(np.asarray, jax.block_until_ready(jax.jit(f)(*args)))


def profile(folder: pathlib.Path, body: Any, *args: Any, out: Any = None, space: int = 32, scratch: Any = (), **launch: Any) -> Profile:
    """The file of one launch of a kernel, whose result is its first argument."""
    got = run(kernel(body, out or like((128,)), *scratch, params=params(folder, space), **launch), *(args or (X,)))
    assert np.array_equal(np.ravel(got)[:128], X)
    (path,) = files(folder)
    assert path.name.endswith("-trace.json")
    return parsed(path)


def test_scopes_nest(tmp_path: pathlib.Path) -> None:
    def body(x: Any, o: Any) -> None:
        with scope("outer"):
            with scope("load"):
                v = x[...]
            with scope("store"):
                o[...] = v
        with scope("again"):
            o[...] = v

    found = profile(tmp_path, body)
    assert found.shapes() == {"block 0, warpgroup 0": [("outer", ["load", "store"]), "again"]}
    (init, outer, again) = found.tracks["block 0, warpgroup 0"]
    assert init.end <= outer.begin < outer.end <= again.begin < again.end
    assert all(outer.begin <= r.begin <= r.end <= outer.end for r in outer.inner)
    assert found.other["dropped"] == 0 and found.other["kernel"] == "body"
    assert list(found.processes.values())[0].startswith("SM ")
    (path,) = files(tmp_path)
    assert path.name.startswith("body-")


def test_loops_and_branches(tmp_path: pathlib.Path) -> None:
    """A scope around a loop is one range; one in it a range of each turn, of those that take its branch."""

    def body(x: Any, o: Any) -> None:
        def step(i: Any, total: Any) -> Any:
            with scope("step"):
                total += x[...]

                @pl.when(i % 2 == 0)
                def _() -> None:
                    with scope("even"):
                        o[...] = total

            return total

        with scope("loop"):
            total = lax.fori_loop(0, 5, step, jnp.zeros(128, F32))
        with scope("end"):
            o[...] = total / 5

    steps = [("step", ["even"]) if i % 2 == 0 else "step" for i in range(5)]
    assert profile(tmp_path, body).shapes() == {"block 0, warpgroup 0": [("loop", steps), "end"]}


def test_loops_that_ask(tmp_path: pathlib.Path) -> None:
    """A loop that runs as long as what it has loaded says."""

    def body(x: Any, n: Any, o: Any) -> None:
        def go_on(i: Any) -> Any:
            with scope("asks"):
                return i < n[0]

        def step(i: Any) -> Any:
            with scope("turn"):
                o[...] = x[...]
            return i + 1

        lax.while_loop(go_on, step, jnp.int32(0))

    found = profile(tmp_path, body, X, np.array([7], np.int32))
    assert found.shapes() == {"block 0, warpgroup 0": ["turn"] * 7}


def test_blocks_and_warpgroups_have_tracks(tmp_path: pathlib.Path) -> None:
    def body(x: Any, o: Any) -> None:
        wg = lax.axis_index("wg")
        with scope("all"):

            @pl.when(wg == 0)
            def _() -> None:
                with scope("first"):
                    o[lax.axis_index("i"), lax.axis_index("j")] = x[...]

            @pl.when(wg == 1)
            def _() -> None:
                with scope("second"):
                    plgpu.commit_smem()

    found = profile(
        tmp_path, body, out=like((2, 3, 128)), grid=(2, 3), grid_names=("i", "j"), num_threads=2, thread_name="wg"
    )
    shapes = found.shapes()
    assert set(shapes) == {f"block ({i}, {j}), warpgroup {w}" for i in range(2) for j in range(3) for w in range(2)}
    for name, shape in shapes.items():
        assert shape == [("all", ["first" if name.endswith("0") else "second"])], name
    assert len(set(found.tracks)) == 12


def test_clusters(tmp_path: pathlib.Path) -> None:
    def body(x: Any, o: Any) -> None:
        with scope("store"):
            o[lax.axis_index("i"), lax.axis_index("c")] = x[...]

    found = profile(tmp_path, body, out=like((2, 2, 128)), grid=(2,), grid_names=("i",), cluster=(2,), cluster_names=("c",))
    assert found.shapes() == {f"block ({i}, {c}), warpgroup 0": ["store"] for i in range(2) for c in range(2)}


def test_each_launch_has_a_file(tmp_path: pathlib.Path) -> None:
    def body(x: Any, o: Any) -> None:
        with scope("store"):
            o[...] = x[...] + 1

    f = kernel(body, like((128,)), params=params(tmp_path))
    with enabled():
        call = jax.jit(lambda x: f(f(x)))
        for i in range(3):
            assert (np.asarray(call(jnp.full(128, i, F32))) == i + 2).all()
            assert len(files(tmp_path)) == 2 * (i + 1)
    times = [int(path.name.split("-")[1]) for path in files(tmp_path)]
    assert times == sorted(set(times))
    for path in files(tmp_path):
        assert parsed(path).shapes() == {"block 0, warpgroup 0": ["store"]}


def test_kernels_of_one_program(tmp_path: pathlib.Path) -> None:
    """Equal kernels at two places may leave their files in two folders; a third leaves none."""

    def body(x: Any, o: Any) -> None:
        with scope("store"):
            o[...] = x[...]

    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    one, two = (kernel(body, like((128,)), params=params(folder)) for folder in folders)
    plain = kernel(body, like((128,)))
    assert (run(lambda x: plain(one(two(x))), X) == X).all()
    assert [len(files(folder)) for folder in folders] == [1, 1]
    assert len(files(tmp_path)) == 2


def loop_of(turns: int) -> Any:
    def body(x: Any, o: Any) -> None:
        def step(i: Any, carry: None) -> None:
            with scope("outer"), scope("inner"):
                o[...] = x[...]

        lax.fori_loop(0, turns, step, None)

    return body


def test_as_many_ranges_as_asked_for(tmp_path: pathlib.Path) -> None:
    found = profile(tmp_path, loop_of(4), space=8)
    assert found.shapes() == {"block 0, warpgroup 0": [("outer", ["inner"])] * 4}
    assert found.other["dropped"] == 0


@pytest.mark.parametrize("bounds_check", [False, True])
def test_what_does_not_fit_is_dropped_and_told(tmp_path: pathlib.Path, capfd: Any, bounds_check: bool) -> None:
    """The results are right, the first ranges are there, and nobody else's memory is written."""

    def body(x: Any, o: Any) -> None:
        wg = lax.axis_index("wg")

        @pl.when(wg == 0)
        def _() -> None:
            loop_of(1000)(x, o)

        @pl.when(wg == 1)
        def _() -> None:
            with scope("other"):
                o[...] = x[...]

    more = {"profile_bounds_check": bounds_check} if hasattr(plgpu.CompilerParams(), "profile_bounds_check") else {}
    f = kernel(body, like((128,)), params=params(tmp_path, 3, **more), num_threads=2, thread_name="wg")
    assert (run(f, X) == X).all()
    found = parsed(files(tmp_path)[0])
    assert found.shapes() == {
        "block 0, warpgroup 0": [("outer", ["inner"])] * 2,
        "block 0, warpgroup 1": ["other"],
    }
    assert found.other["dropped"] == 2 * 2000 - 6
    reported = capfd.readouterr().err
    text = "smalt: the profile of `body` is cut short: a warpgroup has room for 3 ranges and went through 2000 (set profile_space to more)"
    assert bounds_check or text in reported  # once in a process


def warp_region(x: Any, o: Any) -> None:
    with scope("region"):

        @pl.core_map(plgpu.WarpMesh(axis_name="warp"))
        def warps() -> None:
            warp = lax.axis_index("warp")
            with scope("all"):

                @pl.when(warp == 1)
                def _() -> None:
                    with scope("one"):
                        o[1] = jnp.float32(2)

                @pl.when(warp == 3)
                def _() -> None:
                    with scope("three"):
                        o[0] = jnp.float32(1)

    o[...] = x[...]


def test_warps_of_a_region_have_tracks_of_their_own(tmp_path: pathlib.Path) -> None:
    found = profile(tmp_path, warp_region)
    shapes = {name: [r.shape() for r in ranges if r.name != "Init"] for name, ranges in found.tracks.items()}
    # JAX names a region after its function, in some versions.
    assert shapes.pop("block 0, warpgroup 0") in ([("region", ["all"])], [("region", [("warps", ["all"])])])
    assert shapes == {
        "block 0, warp 1": [("all", ["one"])],
        "block 0, warp 2": ["all"],
        "block 0, warp 3": [("all", ["three"])],
    }


def test_warps_record_what_their_warpgroup_does(tmp_path: pathlib.Path) -> None:
    scopes = getattr(plgpu, "TraceScope", None) or type(plgpu.CompilerParams().profile_trace_scope)

    def body(x: Any, o: Any) -> None:
        with scope("outer"):
            o[...] = x[...]

    f = kernel(body, like((128,)), params=params(tmp_path, profile_trace_scope=scopes.WARP), num_threads=2, thread_name="wg")
    assert (run(f, X) == X).all()
    found = parsed(files(tmp_path)[0])
    assert found.shapes() == {f"block 0, warpgroup {g}, warp {w}": ["outer"] for g in range(2) for w in range(4)}


def test_pallas_call(tmp_path: pathlib.Path) -> None:
    def body(x: Any, o: Any) -> None:
        with scope("add"):
            o[...] = x[...] + 1

    f = pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((512,), F32),
        grid=(4,),
        in_specs=[pl.BlockSpec((128,), lambda i: (i,))],
        out_specs=pl.BlockSpec((128,), lambda i: (i,)),
        compiler_params=params(tmp_path, dimension_semantics=("parallel",)),
    )
    x = np.arange(512, dtype=np.float32)
    assert (run(f, x) == x + 1).all()
    (path,) = files(tmp_path)
    found = parsed(path)
    assert all(names.count("add") >= 1 for names in ([r.name for r in ranges] for ranges in found.tracks.values()))
    assert len(found.tracks) == 4


def test_vmap(tmp_path: pathlib.Path) -> None:
    def body(x: Any, o: Any) -> None:
        with scope("copy"):
            o[...] = x[...]

    x = np.arange(384, dtype=np.float32).reshape(3, 128)
    f = jax.vmap(kernel(body, like((128,)), params=params(tmp_path), grid=(2,), grid_names=("i",)))
    assert (run(f, x) == x).all()
    (path,) = files(tmp_path)
    shapes = parsed(path).shapes()
    assert shapes == {f"block ({i}, {j}), warpgroup 0": ["copy"] for i in range(3) for j in range(2)}


SWIZZLED = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))


def matmul(a: Any, b: Any, folder: pathlib.Path, space: int) -> Any:
    """A persistent matmul: one warpgroup copies, one multiplies tiles."""
    (m, k), n = a.shape, b.shape[1]
    steps, tiles, blocks, slots = k // 64, (m // 64) * (n // 64), 2, 2

    def body(a: Any, b: Any, o: Any, a_buf: Any, b_buf: Any, out: Any, full: Any, free: Any) -> None:
        wg, block = lax.axis_index("wg"), lax.axis_index("block")
        count = (tiles - block + blocks - 1) // blocks

        def corner(i: Any) -> tuple[Any, Any]:
            tile = block + i * blocks
            return pl.ds(tile // (n // 64) * 64, 64), pl.ds(tile % (n // 64) * 64, 64)

        @pl.when(wg == 1)
        def _load() -> None:
            def step(at: Any, _: None) -> None:
                (rows, columns), s, ks = corner(at // steps), at % slots, pl.ds(at % steps * 64, 64)

                @pl.when(at >= slots)
                def _() -> None:
                    with scope("wait for room"):
                        plgpu.barrier_wait(free.at[s])

                with scope("copy"):
                    plgpu.copy_gmem_to_smem(a.at[rows, ks], a_buf.at[s], full.at[s])
                    plgpu.copy_gmem_to_smem(b.at[ks, columns], b_buf.at[s], full.at[s])

            lax.fori_loop(0, count * steps, step, None)

        @pl.when(wg == 0)
        def _multiply() -> None:
            def tile(i: Any, _: None) -> None:
                def compute(acc: Any) -> Any:
                    def step(at: Any, _: None) -> None:
                        s = (i * steps + at) % slots
                        with scope("wait"):
                            plgpu.barrier_wait(full.at[s])
                        with scope("products"):
                            plgpu.wgmma(acc, a_buf.at[s], b_buf.at[s])
                            plgpu.wgmma_wait(0)
                        plgpu.barrier_arrive(free.at[s])

                    lax.fori_loop(0, steps, step, None)
                    return acc[...]

                with scope("tile"):
                    x = pl.run_scoped(compute, plgpu.ACC((64, 64), F32))
                    with scope("store"):
                        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
                        out[...] = x.astype(o.dtype)
                        plgpu.commit_smem()
                        plgpu.copy_smem_to_gmem(out, o.at[corner(i)])

            lax.fori_loop(0, count, tile, None)
            plgpu.wait_smem_to_gmem(0)

    given = params(folder, space) if space else smalt.CompilerParams()
    return kernel(
        body,
        like((m, n), jnp.float16),
        plgpu.SMEM((slots, 64, 64), jnp.float16, transforms=SWIZZLED),
        plgpu.SMEM((slots, 64, 64), jnp.float16, transforms=SWIZZLED),
        plgpu.SMEM((64, 64), jnp.float16, transforms=SWIZZLED),
        plgpu.Barrier(num_barriers=slots, num_arrivals=2),
        plgpu.Barrier(num_barriers=slots),
        params=given,
        grid=(blocks,),
        grid_names=("block",),
        num_threads=2,
        thread_name="wg",
    )(a, b)


def test_a_persistent_matmul(tmp_path: pathlib.Path) -> None:
    """The bits are those without a profile; each role has its ranges, as often as it goes through them."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((192, 256), (256, 64)))
    plain, profiled = (run(lambda a, b, space=space: matmul(a, b, tmp_path, space), a, b) for space in (0, 64))
    assert np.array_equal(plain.view(np.uint16), profiled.view(np.uint16))
    np.testing.assert_allclose(plain.astype(np.float32), a.astype(np.float32) @ b.astype(np.float32), rtol=2e-2, atol=1e-1)
    (path,) = files(tmp_path)
    found = parsed(path)
    for block, count in ((0, 2), (1, 1)):
        tile = ("tile", [name for _ in range(4) for name in ("wait", "products")] + ["store"])
        assert found.shapes()[f"block {block}, warpgroup 0"] == [tile] * count
        names = [r.name for r in found.tracks[f"block {block}, warpgroup 1"]]
        counts = collections.Counter(names)
        assert counts == {"Init": 1, "copy": 4 * count, "wait for room": 4 * count - 2}
    # Nobody multiplies what is not there.
    for block in range(2):
        copied = [r for r in found.tracks[f"block {block}, warpgroup 1"] if r.name == "copy"]
        tiles = [r for r in found.tracks[f"block {block}, warpgroup 0"] if r.name == "tile"]
        waits = [r for t in tiles for r in t.inner if r.name == "wait"]
        assert all(wait.end >= copy.begin for wait, copy in zip(waits, copied))


def test_prints_beside_a_profile(tmp_path: pathlib.Path, capfd: Any) -> None:
    def body(x: Any, o: Any) -> None:
        with scope("print"):
            pl.debug_print("x is {}", x[3])
        o[...] = x[...]

    assert profile(tmp_path, body).shapes() == {"block 0, warpgroup 0": ["print"]}
    jax.effects_barrier()
    assert "x is 3.0" in capfd.readouterr().out


def test_a_folder_that_is_gone(tmp_path: pathlib.Path, capfd: Any) -> None:
    """The run is right all the same; what is wrong is reported once."""
    folder = tmp_path / "gone"
    folder.mkdir()

    def body(x: Any, o: Any) -> None:
        with scope("store"):
            o[...] = x[...]

    with enabled():
        call = jax.jit(kernel(body, like((128,)), params=params(folder))).lower(X).compile()
        folder.rmdir()
        for _ in range(2):
            assert (np.asarray(call(X)) == X).all()
    reported = capfd.readouterr().err
    assert reported.count(f"smalt: the profile of `body` cannot be written to {folder}: ") == 1


def test_a_kernel_without_scopes(tmp_path: pathlib.Path) -> None:
    def body(x: Any, o: Any) -> None:
        o[...] = x[...]

    assert profile(tmp_path, body).shapes() == {"block 0, warpgroup 0": []}


def test_scopes_around_the_call_are_none_of_its(tmp_path: pathlib.Path) -> None:
    def body(x: Any, o: Any) -> None:
        with scope("inside"):
            o[...] = x[...]

    def outside(x: Any) -> Any:
        with scope("outside"):
            return kernel(body, like((128,)), params=params(tmp_path))(x)

    assert (run(outside, X) == X).all()
    (path,) = files(tmp_path)
    assert parsed(path).shapes() == {"block 0, warpgroup 0": ["inside"]}


def test_scopes_alone_change_nothing(tmp_path: pathlib.Path) -> None:
    """Without profile_space a descriptor has no marks, and equals that of the kernel without scopes."""

    def plain(x: Any, o: Any) -> None:
        o[...] = x[...] + 1

    def scoped(x: Any, o: Any) -> None:
        with scope("outer"):
            with scope("load"):
                v = x[...]
            o[...] = v + 1

    scoped.__name__ = "plain"
    (one,), (two,) = (smalt.descriptor(kernel(body, like((128,))), X) for body in (plain, scoped))
    assert one[1] == two[1]
    (with_marks,) = smalt.descriptor(kernel(scoped, like((128,)), params=params(tmp_path)), X)
    assert b"profile_mark" in with_marks[1] and os.fspath(tmp_path).encode() not in with_marks[1]
