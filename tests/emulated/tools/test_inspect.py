"""`smalt.inspect`, the dumps of `SMALT_DUMP`, and the user's lines in the PTX of `SMALT_LINEINFO`."""

from __future__ import annotations

import collections
import json
import pathlib
import re
import subprocess
import sys
import xml.dom.minidom
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest
import smalt
from benchmarks import shipped
from smalt import __main__ as cli
from smalt import _native
from examples.matmul import matmul as annotated_matmul
from tests import ROOT
from tests.corpus.case import kernel, like
from tests.fresh import run_script

pytestmark = pytest.mark.shared

A = jax.ShapeDtypeStruct((64, 128), jnp.float16)
B = jax.ShapeDtypeStruct((128, 64), jnp.float16)
X = jax.ShapeDtypeStruct((128,), jnp.float32)


def line_of(mark: str) -> int:
    lines = pathlib.Path(__file__).read_text().split("\n")
    (found,) = [i + 1 for i, text in enumerate(lines) if text.endswith(f"# LINE {mark}")]
    return found


def matmul(a, b):
    def body(a, b, o, a_buf, b_buf, bars):
        plgpu.copy_gmem_to_smem(a, a_buf, bars.at[0])
        plgpu.copy_gmem_to_smem(b, b_buf, bars.at[1])
        plgpu.barrier_wait(bars.at[0])
        plgpu.barrier_wait(bars.at[1])

        def compute(acc):
            plgpu.wgmma(acc, a_buf, b_buf)
            return acc[...]  # LINE read

        o[...] = pl.run_scoped(compute, plgpu.ACC((64, 64), jnp.float32))  # LINE store

    scratch = (plgpu.SMEM((64, 128), jnp.float16), plgpu.SMEM((128, 64), jnp.float16), plgpu.Barrier(num_barriers=2))
    return kernel(body, like((64, 64)), *scratch, kernel_name="matmul")(a, b)  # LINE call


def double(x):
    def body(x, o):
        o[...] = x[...] * 2

    return kernel(body, like(x.shape, x.dtype), kernel_name="double")(x)


@jax.jit
def program(a, b):
    return jnp.sum(double(matmul(a * 2, b) + 1))


def has_assembler() -> bool:
    return _native.doctor()["assembler"].get("path") is not None


# ------------------------------------------------------------------------------------------ inspect


def test_one_report_per_kernel() -> None:
    first, second = report = smalt.inspect(program, A, B)
    assert (first.name, second.name, len(report)) == ("matmul", "double", 2)
    assert first.target == "sm_90a" and first.threads == 128 and first.grid == (1, 1, 1)
    assert ".entry" in first.ptx and "wgmma.mma_async" in first.ptx and "wgmma" not in second.ptx
    if has_assembler():
        assert first.registers >= 32 and first.spill_bytes == 0 and first.cubin.startswith(b"\x7fELF")
        assert first.phases[-1].name == "assemble"
        assert first.occupancy == min(65536 // (-(-first.registers * 32 // 256) * 256 * 4), 233472 // (first.smem_bytes + 1024))
    bare = smalt.inspect(program, A, B, assemble=False)
    assert bare[0].ptx == first.ptx and bare[0].hash == first.hash
    assert _native.compile(first.descriptor, first.debug, first.target).ptx == first.ptx


def test_choices_have_reasons_and_lines() -> None:
    (report,) = smalt.inspect(matmul, A, B, assemble=False)
    here = f"{__file__}:"
    (swizzled, *_) = [r for r in report.layouts if r.what == "SMEM"]
    assert swizzled.type == "f16[64, 128]" and "128" in swizzled.choice and "widest swizzle" in swizzled.why
    assert swizzled.at == f"{here}{line_of('call')}"
    values = {r.at: r for r in report.layouts if r.what != "SMEM"}
    assert "WGMMA" in values[f"{here}{line_of('read')}"].choice
    assert all(r.why for r in report.layouts)
    rows = {r.what: r for r in report.shared_memory}
    assert rows["f16[64, 128]"].bytes == 64 * 128 * 2 and rows["2 barriers of 1 arrival"].bytes == 16
    assert max(r.offset + r.bytes for r in report.shared_memory) <= report.smem_bytes


def test_passes_and_times() -> None:
    (report,) = smalt.inspect(double, X, assemble=False)
    assert list(report.passes)[0] == "import" and report.passes["print"] == report.ptx
    assert "load" in report.ir and "mul" in report.ir
    names = [p.name for p in report.phases]
    assert names[0] == "serialise" and {"import", "infer_layouts", "lower", "out_of_ssa", "verify", "print"} <= set(names)
    normalising, optimising = passes_in("src/passes/mod.rs", r'\("(\w+)", \w+(?:::\w+)*\)'), passes_in("src/ptx/optimize.rs", r'pass\("(\w+)", None\)')
    assert len(normalising) >= 19 and len(optimising) >= 5
    optimising.remove("contract")  # the kernel says `fp_contract=False`
    # Every pass, each time that it runs, under its own name, with its text.
    wanted = []
    for name in [*normalising, *optimising]:
        before = sum(re.sub(r"_\d+$", "", known) == name for known in wanted)
        wanted.append(f"{name}_{before + 1}" if before else name)
    assert [name for name in names if name in wanted] == wanted == [name for name in report.passes if name in wanted]
    assert "simplify_3" in wanted and report.passes["normalize"] == report.ir
    assert report.passes["lower"] != report.passes["merge_equal"] and "MulFloat" in report.passes["infer_uniformity"]
    assert all(p.ms >= 0 for p in report.phases) and sum(p.ms for p in report.phases) > 0


CHECKERS = ["verify_layouts", "verify_order", "verify_ssa"]

VERIFIED = """
import hashlib, jax, jax.numpy as jnp, smalt
from tests.corpus.case import kernel, like

def body(x, o):
    o[...] = x[...] * 2

(report,) = smalt.inspect(lambda x: kernel(body, like((128,), jnp.float32))(x), jax.ShapeDtypeStruct((128,), jnp.float32), assemble=False)
print([p.name for p in report.phases if p.name.startswith("verify_")], hashlib.sha256(report.ptx.encode()).hexdigest())
"""


def test_the_compilers_own_checkers_run() -> None:
    """In every build, unless the environment says not to; nothing that is made hangs on it."""

    library = str(_native.library_path())
    on, off, wrong = (run_script(VERIFIED, SMALT_LIBRARY=library, SMALT_VERIFY=how) for how in ("", "off", "no"))
    assert on.stdout.startswith(str(CHECKERS)), on.stderr
    assert off.stdout.startswith("[] "), off.stderr
    assert on.stdout.split()[-1] == off.stdout.split()[-1]
    assert wrong.returncode != 0 and "SMALT_VERIFY" in wrong.stderr and "expected: on or off" in wrong.stderr


def passes_in(file: str, pattern: str) -> list[str]:
    text = (ROOT / file).read_text()
    return re.findall(pattern, text.split("#[cfg(test)]")[0], re.M)


def test_prints_and_exports() -> None:
    report = smalt.inspect(program, A, B)
    text = str(report)
    assert text.startswith("2 kernels; traced and lowered by JAX in ")
    for word in ("kernel matmul for sm_90a", "occupancy", "registers", "time  ", "shared memory", "layouts", "widest swizzle"):
        assert word in text
    assert max(map(len, text.split("\n"))) < 400
    data = json.loads(report.json())
    assert [k["name"] for k in data["kernels"]] == ["matmul", "double"]
    assert data["kernels"][0]["layouts"][0]["why"] and data["kernels"][0]["ir"]["normalize"]


def test_what_is_moved(tmp_path: pathlib.Path) -> None:
    (report,) = smalt.inspect(matmul, A, B, assemble=False)
    moves = [(m.what, m.of, m.source, m.target, m.bytes) for m in report.moves]
    assert moves[:2] == [
        ("copy_gmem_to_smem", "f16[64, 128]", "GMEM", "SMEM", 64 * 128 * 2),
        ("copy_gmem_to_smem", "f16[128, 64]", "GMEM", "SMEM", 64 * 128 * 2),
    ]
    assert report.moved == {
        "GMEM → SMEM": 2 * 64 * 128 * 2,
        "SMEM → tensor core": 2 * 64 * 128 * 2,
        "registers → GMEM": 64 * 64 * 4,
    }
    (stored,) = [m for m in report.moves if m.target == "GMEM"]
    assert stored.what == "store" and stored.at and stored.at.endswith(f":{line_of('store')}")
    # Four lanes have 32 bytes of a row: a sector, all of which is written.
    assert stored.sector_percent == 100 and stored.conflicts is None
    # What a run moves.
    x = np.ones((64, 128), np.float16)
    with smalt.enabled(True), smalt.trace(tmp_path / "t"):
        jax.block_until_ready(jax.jit(matmul)(x, x.T.copy()))
    copies = [e for e in json.loads((tmp_path / "t").read_text())["traceEvents"] if e.get("cat") == "copy"]
    assert sum(e["args"]["bytes"] for e in copies) == report.moved["GMEM → SMEM"]
    assert len(copies) == sum(m.instructions for m in report.moves if m.what == "copy_gmem_to_smem")


@pytest.mark.parametrize("shape", [(128, 40), (64, 64), (64, 128)])
@pytest.mark.parametrize("layout", ["WGMMA", "WGMMA_TRANSPOSED"])
def test_bank_conflicts(layout: str, shape: tuple[int, int]) -> None:
    """Of accesses of one word, lanes in one bank at different words; where the compiler staggers, it reports none."""

    def body(x, o, buf):
        buf[...] = plgpu.layout_cast(x[...], plgpu.Layout[layout])
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(buf, o)
        plgpu.wait_smem_to_gmem(0)

    f = kernel(body, like(shape), plgpu.SMEM(shape, jnp.float32))
    (report,) = smalt.inspect(f, jax.ShapeDtypeStruct(shape, jnp.float32), assemble=False)
    (store,) = [m for m in report.moves if (m.source, m.target) == ("registers", "SMEM")]
    drawn = smalt.draw_layout(plgpu.Layout[layout], shape, jnp.float32)
    assert store.bytes == 4 * shape[0] * shape[1] and store.instructions * (2 if layout == "WGMMA" else 1) == drawn.registers
    if layout == "WGMMA":
        return
    worst = 0
    for register in range(drawn.registers):
        words = {i * shape[1] + j for lane in range(32) for i, j in drawn.elements(0, lane, register)}
        worst = max(worst, *collections.Counter(word % 32 for word in words).values())
    assert worst > 1 and store.conflicts in (1, worst)
    assert (f"{worst}-way conflicts" if store.conflicts == worst else "no conflicts") in str(report)


def test_relayouts_have_costs() -> None:
    def body(x, o):
        y = plgpu.layout_cast(x[...], plgpu.Layout.WGMMA)
        o[...] = plgpu.layout_cast(y * 2, plgpu.Layout.WG_STRIDED((64, 64), 2)).T

    (report,) = smalt.inspect(kernel(body, like((64, 64))), jax.ShapeDtypeStruct((64, 64), jnp.float32), assemble=False)
    rows = [row for row in report.layouts if row.what == "relayout"]
    assert len(rows) == len(report.relayouts) > 0
    for row, cost in zip(rows, report.relayouts):
        assert row.choice.startswith(cost.change) and cost.type == row.type and cost.why.startswith("for ")
        if cost.trips:
            assert f"{cost.trips} trips through {cost.scratch_bytes} bytes" in row.choice and cost.instructions >= 2 and cost.shuffles == 0
        elif cost.instructions:
            assert f"{cost.instructions} instructions, {cost.shuffles} of them shuffles" in row.choice
    assert any(cost.trips for cost in report.relayouts)
    assert f"  relayouts   {len(rows)}: " in str(report)
    assert rows[0].draw().shape == (64, 64)


def test_the_instruction_mix() -> None:
    (report,) = smalt.inspect(matmul, A, B, assemble=False)
    mix = report.instructions
    assert mix["wgmma.mma_async"] == 8 and mix["cp.async.bulk.tensor"] == 2 and mix["mbarrier.init"] == 2
    assert mix["st.global"] == report.ptx.count("st.global") > 0
    body = report.ptx[report.ptx.index("{") :]
    ends = [line for line in body.split("\n") if ";" in line.split("//")[0] and not line.split("//")[0].strip("{ \t").startswith(".")]
    assert sum(mix.values()) == len(ends)
    assert list(mix.values()) == sorted(mix.values(), reverse=True)


def test_differences() -> None:
    def of(**fields: int) -> Any:
        x = jax.ShapeDtypeStruct((256, 256), jnp.float16)
        return smalt.inspect(lambda a, b: annotated_matmul(a, b, tile_m=64, **fields), x, x, assemble=False)

    a, b = of(tile_n=64), of(tile_n=128)
    assert a.diff(a) == "kernel 0, body\nno difference" and a[0].diff(of(tile_n=64)[0]) == "no difference"
    text = a[0].diff(b[0])
    assert "grid: 4×2×1 → 2×2×1" in text and "bytes GMEM → SMEM: 24576 → 32768 (+8192)" in text
    assert "  stmatrix: 4 → 8 (+4)" in text and "  + 16,384  1  copy_gmem_to_smem  f16[64, 128]" in text and " ms" not in text
    x = jax.ShapeDtypeStruct((128,), jnp.float32)
    one, two = (smalt.inspect(lambda x: double(double(x)) if n == 2 else double(x), x, assemble=False) for n in (1, 2))
    assert one.diff(two).endswith("+ kernel double") and two.diff(one).endswith("- kernel double")


def test_notebooks_show_tables() -> None:
    report = smalt.inspect(matmul, A, B, assemble=False)
    page = xml.dom.minidom.parseString(f"<div>{report._repr_html_()}</div>")
    assert len(page.getElementsByTagName("table")) >= 3
    assert "GMEM → SMEM" in report._repr_html_()


def test_nothing_is_run_or_kept_and_the_choice_does_not_matter() -> None:
    assert not smalt._config.settings().enabled
    assert len(smalt.inspect(double, np.zeros(128, np.float32), assemble=False)) == 1
    with smalt.enabled(True):
        assert len(smalt.inspect(double, X, assemble=False)) == 1
    empty = smalt.inspect(lambda x: x + 1, X)
    assert len(empty) == 0 and str(empty) == "no Pallas:MGPU kernels"


def test_shipped_kernels_under_an_emulated_device() -> None:
    hopper_matmul = pytest.importorskip("jax.experimental.pallas.ops.gpu.hopper_matmul_mgpu")
    fields = dict(tile_m=64, tile_n=64, tile_k=64, max_concurrent_steps=2)
    config = hopper_matmul.TuningConfig(**fields)
    a = jax.ShapeDtypeStruct((256, 256), jnp.float16)
    with smalt.emulated("H100"):
        (report,) = smalt.inspect(lambda a, b: hopper_matmul.matmul(a, b, None, config), a, a)
    assert report.threads == 384 and report.grid[0] <= 132
    assert any(r.at and "hopper_matmul_mgpu.py" in r.at for r in report.layouts)
    assert not report.warnings and not report.spill_bytes
    print(report)


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("cluster", [None, 0, 1])
@pytest.mark.parametrize(("tile", "wg"), [((128, 64), 0), ((128, 64), 1), ((128, 128), 0), ((128, 128), 1), ((256, 64), 1)])
def test_the_matmuls_of_the_tuning_space_neither_spill_nor_serialise(
    tile: tuple[int, int], wg: int, cluster: int | None, added: bool
) -> None:
    """ptxas says nothing of C75xx, and every register has its place."""
    hopper_matmul = pytest.importorskip("jax.experimental.pallas.ops.gpu.hopper_matmul_mgpu")
    sides = list(hopper_matmul.MatmulDimension)
    config = hopper_matmul.TuningConfig(
        tile_m=tile[0], tile_n=tile[1], tile_k=64, max_concurrent_steps=4, epi_tile_n=64, epi_tile_m=64, grid_tile_width=8,
        wg_dimension=sides[wg], cluster_dimension=None if cluster is None else sides[cluster],
    )  # fmt: skip
    a, b = jax.ShapeDtypeStruct((4096, 4096), jnp.float16), jax.ShapeDtypeStruct((4096, 8192), jnp.float16)
    with smalt.emulated("H100"):
        (report,) = smalt.inspect(lambda a, b, c: hopper_matmul.matmul(a, b, c, config), a, b, b if added else None)
    assert not report.warnings and not report.spill_bytes


#: The benchmark's, but for those that another length of the sequence makes the same.
PARKED = "attention backward S4096 D256 kv 64"  # Its dk and dv are 256 registers a thread.
CHOSEN = [*shipped.kernels(), *(kernel for kernel in shipped.kernels(full=True) if kernel.name == PARKED)]
SHIPPED = [pytest.param(kernel, id=kernel.name) for kernel in CHOSEN if "S16384" not in kernel.name]


@pytest.mark.parametrize("kernel", SHIPPED)
def test_the_other_shipped_kernels_neither_spill_nor_serialise(kernel: shipped.Kernel) -> None:
    """Nor do they divide by constants; and their waits poll."""
    with smalt.emulated("H200"):
        reports = smalt.inspect(kernel.fn, *jax.eval_shape(kernel.args))
    assert len(reports) == (3 if "backward" in kernel.name else 1)
    for report in reports:
        assert not report.warnings and not report.spill_bytes
        assert not re.findall(r"(?:div|rem)\.[su]\d+ .*, \d+;", report.ptx)
        waits = re.findall(r"mbarrier\.try_wait.*;", report.ptx)
        assert waits and all(wait.count(",") == 2 for wait in waits)
    parked = [note for report in reports for note in report.notes if note.by == "park_accumulators"]
    assert bool(parked) == (kernel.name == PARKED)


@pytest.mark.parametrize(("shape", "matrices", "count"), [((64, 64), 2, 8), ((64, 128), 4, 8), ((128, 128), 4, 16), ((64, 192), 2, 24)])
def test_rows_in_the_same_banks_are_stored_as_staggered_matrices(shape: tuple[int, int], matrices: int, count: int) -> None:
    """Each word is selected once per bit of the row, and three conditions are all that is asked."""
    rows, columns = shape

    def body(a, b, o, a_buf, b_buf, tile, bars):
        plgpu.copy_gmem_to_smem(a, a_buf, bars.at[0])
        plgpu.copy_gmem_to_smem(b, b_buf, bars.at[1])
        plgpu.barrier_wait(bars.at[0])
        plgpu.barrier_wait(bars.at[1])

        def compute(acc):
            plgpu.wgmma(acc, a_buf, b_buf)
            return acc[...]

        tile[...] = pl.run_scoped(compute, plgpu.ACC(shape, jnp.float32)).astype(jnp.float16)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(tile, o)
        plgpu.wait_smem_to_gmem(0)

    transforms = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
    operands = [plgpu.SMEM(s, jnp.float16, transforms=transforms) for s in ((rows, 64), (64, columns))]
    fn = kernel(body, like(shape, jnp.float16), *operands, plgpu.SMEM(shape, jnp.float16), plgpu.Barrier(num_barriers=2))
    args = [jax.ShapeDtypeStruct(s, jnp.float16) for s in ((rows, 64), (64, columns))]
    with smalt.emulated("H100"):
        (report,) = smalt.inspect(fn, *args)
    assert re.findall(r"stmatrix\S*", report.ptx) == [f"stmatrix.sync.aligned.m8n8.x{matrices}.shared.b16"] * count
    selects = re.findall(r"selp\.b32 .*, (%p\d+);", report.ptx)
    words = rows * columns // 128 // 2
    assert collections.Counter(collections.Counter(selects).values())[words] == 3, report.ptx
    assert not report.spill_bytes


def test_groups_of_copies_are_ended_without_a_branch() -> None:
    def body(x, o, tile):
        tile[...] = x[...]
        plgpu.commit_smem()
        for half in range(2):
            part = pl.ds(64 * half, 64)
            plgpu.copy_smem_to_gmem(tile.at[part], o.at[part], commit_group=False)
        plgpu.commit_smem_to_gmem_group()
        plgpu.wait_smem_to_gmem(0)

    (report,) = smalt.inspect(kernel(body, like((128,)), plgpu.SMEM((128,), jnp.float32)), X, assemble=False)
    assert re.findall(r".*cp\.async\.bulk\.commit_group;", report.ptx) == ["\tcp.async.bulk.commit_group;"]


@pytest.mark.parametrize("cluster", [1, 2])
def test_the_annotated_matmul_neither_spills_nor_serialises(cluster: int) -> None:
    a = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
    (report,) = smalt.inspect(lambda a, b: annotated_matmul(a, b, cluster=cluster), a, a)
    assert not report.warnings and not report.spill_bytes and report.registers == 168


def test_errors_are_those_of_the_compiler() -> None:
    def body(x, o):
        o[...] = jnp.fft.fft(x[...]).real

    with pytest.raises(smalt.Unsupported, match=r"fft[\s\S]*test_inspect.py"):
        smalt.inspect(kernel(body, like((16, 16))), like((16, 16)))


# ------------------------------------------------------------------------------------------ dumps

PROGRAM = """
    import jax, jax.numpy as jnp, numpy as np, smalt
    import jax.experimental.pallas.mosaic_gpu as plgpu
    def body(x, o):
        o[...] = x[...] + 1
    f = plgpu.kernel(body, out_type=jax.ShapeDtypeStruct((128,), jnp.float32), kernel_name="add/one")
    with smalt.emulated("H100"):
        print(jax.jit(f)(np.arange(128, dtype=np.float32))[3])
"""


def run_program(**environment: str) -> str:
    done = run_script(PROGRAM, SMALT_LIBRARY=str(_native.library_path()), **environment)
    assert done.returncode == 0 and done.stdout.strip() == "4.0", done.stderr
    return done.stderr


def test_every_artefact_is_dumped(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "made" / "here"
    run_program(SMALT_DUMP="all", SMALT_DUMP_DIR=str(folder), SMALT_LINEINFO="1")
    files = {re.sub(r"-[0-9a-f]{12}\.", ".", f.name): f for f in folder.iterdir()}
    # The descriptor, replayable without JAX.
    assert cli.main(["compile", str(files["add_one.smalt"])]) == 0
    assert "add/one for sm_90a" in capsys.readouterr().out
    assert cli.main(["run", str(files["add_one.smalt"])]) == 0
    capsys.readouterr()
    # The kernel after each pass.
    passes = sorted(name for name in files if name.endswith(".ir"))
    assert passes[0] == "add_one.00-import.ir" and len(passes) >= 28
    assert passes[1] == "add_one.01-check_launch.ir" and passes[-1].endswith("-print.ir")
    assert all(files[name].read_text().strip() for name in passes)
    # PTX, with the user's lines.
    ptx = files["add_one.sm_90a.ptx"].read_text()
    assert ".entry" in ptx and '.file 2 "<string>"' in ptx and re.search(r"\.loc 2 5 \d+ // op\d+", ptx)
    report = json.loads(files["add_one.sm_90a.report.json"].read_text())
    assert report["name"] == "add/one" and report["line_info"]
    wanted = {"add_one.smalt", *passes, "add_one.sm_90a.ptx", "add_one.sm_90a.report.json"}
    if has_assembler():
        assert files["add_one.sm_90a.cubin"].read_bytes().startswith(b"\x7fELF")
        assert "registers" in files["add_one.sm_90a.ptxas.txt"].read_text()
        assert report["assembled"]["log"]["registers"] >= 8
        wanted |= {"add_one.sm_90a.cubin", "add_one.sm_90a.ptxas.txt"}
    assert set(files) == wanted


def test_only_what_is_asked_for_is_dumped(tmp_path: pathlib.Path) -> None:
    run_program(SMALT_DUMP="ptx", SMALT_DUMP_DIR=str(tmp_path))
    (file,) = tmp_path.iterdir()
    assert file.suffix == ".ptx" and str(tmp_path) not in file.read_text() and "<string>" not in file.read_text()


def test_a_folder_that_cannot_be_written_fails_nothing(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    assert "smalt: SMALT_DUMP: " in run_program(SMALT_DUMP="ptx,report", SMALT_DUMP_DIR=str(tmp_path / "file" / "folder"))


# ------------------------------------------------------------------------------------------ lines


def test_an_option_that_does_not_exist_is_not_ignored() -> None:
    [(_, descriptor, debug)] = smalt.descriptor(double, X)
    with pytest.raises(smalt.Error, match="racechek"):
        _native.compile(descriptor, debug, "sm_90a", {"racechek": True})


def compiled_with_lines(line_info: bool) -> _native.Artifact:
    ((_, descriptor, debug),) = smalt.descriptor(matmul, A, B)
    return _native.compile(descriptor, debug, "sm_90a", {"line_info": line_info})


def test_lines_of_the_user_in_the_ptx() -> None:
    ptx = compiled_with_lines(True).ptx
    number = re.search(rf'\.file (\d+) "{re.escape(__file__)}"', ptx)[1]
    lines = {int(n) for n in re.findall(rf"\.loc {number} (\d+) ", ptx)}
    assert line_of("store") in lines and min(lines) >= line_of("read") - 12 and max(lines) <= line_of("call")
    without = compiled_with_lines(False).ptx
    assert __file__ not in without and set(re.findall(r"\.loc (\d+)", without)) == {"1"}
    strip = lambda text: re.sub(r"\t\.loc.*\n|\.file.*\n", "", text)  # noqa: E731
    assert strip(ptx) == strip(without), "lines change no code"


def test_lines_are_part_of_the_key_only_then() -> None:
    ((_, descriptor, debug),) = smalt.descriptor(matmul, A, B)
    other = debug.replace(b"matmul", b"mutmal")
    assert other != debug
    before = _native.cache_stats()["compiled"]
    for table in (debug, other):
        _native.compile(descriptor, table, "sm_90a")
    assert _native.cache_stats()["compiled"] - before <= 1
    before = _native.cache_stats()["compiled"]
    for table in (debug + b"", other):
        _native.compile(descriptor, table, "sm_90a", {"line_info": True})
    assert _native.cache_stats()["compiled"] - before >= 1


def test_lines_of_the_user_in_the_cubin(tmp_path: pathlib.Path) -> None:
    tools = [p for folder in sys.path for p in pathlib.Path(folder).glob("nvidia/cu*/bin/nvdisasm")]
    if not tools or not has_assembler():
        pytest.skip("no ptxas or no nvdisasm on this machine")
    artifact = compiled_with_lines(True)
    (tmp_path / "kernel.cubin").write_bytes(artifact.assemble())
    done = subprocess.run([str(tools[0]), "-g", str(tmp_path / "kernel.cubin")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = {int(n) for n in re.findall(rf'//## File "{re.escape(__file__)}", line (\d+)', done.stdout)}
    assert line_of("store") in lines and lines <= set(range(line_of("read") - 12, line_of("call") + 1)), lines
    plain = tmp_path / "plain.cubin"
    plain.write_bytes(compiled_with_lines(False).assemble())
    assert __file__.encode() not in plain.read_bytes()

