"""The wheel: built by pip from the source tree, installed elsewhere, and run."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import textwrap
import zipfile

import pytest

from smalt import _native

from tests import ROOT

pytestmark = [pytest.mark.xdist_group("wheel"), pytest.mark.shared("wheel")]


PROGRAM = """
    import jax, jax.numpy as jnp, numpy as np, smalt
    import jax.experimental.pallas.mosaic_gpu as plgpu
    from smalt import _native
    assert "SITE" in smalt.__file__ and str(_native.library_path()).startswith("SITE"), _native.library_path()
    def body(x, o):
        o[...] = x[...] + 1
    add_one = plgpu.kernel(body, out_type=jax.ShapeDtypeStruct((1024,), jnp.float32))
    smalt.enable()
    print(float(jax.jit(lambda x: jnp.sum(add_one(x * 2)))(np.ones(1024, np.float32))))
"""


def pip(*arguments: str | os.PathLike[str], **environment: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir", *arguments]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--quiet", "--no-deps", "--no-index", "--wheel-dir", folder, ROOT, SMALT_LIBRARY=str(_native.library_path()))
    (file,) = folder.glob("*.whl")
    return file


def test_one_wheel_for_every_python(wheel: pathlib.Path) -> None:
    assert wheel.name.startswith("smalt-0.1.0-py3-none-") and not wheel.name.endswith("-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        package = ROOT / "jax_plugin/smalt"
        sources = {f"smalt/{p.relative_to(package).as_posix()}" for p in package.rglob("*.py")}
        assert sources | {"smalt/libsmalt.so"} <= names
        metadata = archive.read("smalt-0.1.0.dist-info/METADATA").decode()
        assert archive.read("smalt-0.1.0.dist-info/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    assert "Requires-Dist: jax>=0.10.2,<0.13" in metadata and "Requires-Python: >=3.11" in metadata
    assert "License-Expression: Apache-2.0\nLicense-File: LICENSE\n" in metadata
    assert not [n for n in names if "__pycache__" in n]


def test_installed_wheel_runs(wheel: pathlib.Path, tmp_path: pathlib.Path) -> None:
    site = tmp_path / "site-packages"
    pip("install", "--quiet", "--no-deps", "--no-index", "--target", site, wheel)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SMALT_")}
    environment |= dict(PYTHONPATH=str(site), JAX_PLATFORMS="cpu")
    script = textwrap.dedent(PROGRAM).replace("SITE", str(site))
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout.strip() == "3072.0", done.stderr
