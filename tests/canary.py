"""Whether JAX's newest release, or another one, is as smalt reads it.

    python -m tests.canary                 the newest, releases to come included
    python -m tests.canary 0.12.0 0.11.1   these

Each goes into a virtual environment of its own (`build/canary-…`), made anew. There the contract on JAX's private parts is looked at
(`_versions/contract_rows.py`), and some kernels run in the emulator. The exit status is 1 if something is not as it was.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time

from tests import ROOT

PACKAGES = ("numpy", "ml_dtypes", "absl-py", "flatbuffers")

#: One or two of each kind: copies, barriers, clusters, products, control flow, blocks, layouts, MLIR, derivatives.
KERNELS = """
    add_one atomics attention_plain barrier_test binary_float bitcast_ref carries_swapped cluster_barrier copy_gather copy_ring
    copy_out_of_bounds copy_tiled_swizzled counted_barriers dot_general dynamic_index dynamic_scheduling grad_and_vmap_in_body inline_mgpu_values
    inline_ptx iota_and_masks layouts leader_tracked_copies map_in_body matmul_warp_specialized matmul_with_emit_pipeline multicast_copy mutable_ref
    nested_scopes pallas_call_elementwise pallas_call_matmul pallas_call_vmapped pipeline pipeline_warp_specialized program_ids random_bits
    ref_union remat_and_custom_calls reshaped_ref scan_with_xs_and_ys scattered_updates semaphores_in_scope sort_and_scan static_loop switch
    transposed_ref triton_assembly triton_histogram warp_region wgmma_a_in_registers wgmma_bf16 wgmma_fp8 when while_that_reads
""".split()


def elsewhere(version: str) -> int:
    """Runs `here` in an environment with this JAX."""
    from smalt import _native

    folder = ROOT / "build" / f"canary-{version or 'newest'}"
    shutil.rmtree(folder, ignore_errors=True)
    jax = ["--pre", "jax"] if not version else [f"jax=={version}"]
    if subprocess.run([ROOT / "scripts/venv.sh", folder, sys.executable, *jax, *PACKAGES], cwd=ROOT).returncode:
        print(f"no environment with {jax[-1]} for Python {sys.version.split()[0]}: what pip says is above", file=sys.stderr)
        return 2
    paths = os.pathsep.join([str(ROOT / "jax_plugin"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": paths, "JAX_PLATFORMS": "cpu", "SMALT_LIBRARY": str(_native.library_path())}
    command = [folder / "bin/python", "-m", "tests.canary", "--here"]
    return subprocess.run(command, cwd=ROOT, env=environment).returncode


def here() -> int:
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    import jax

    begun = time.monotonic()
    print(f"JAX {jax.__version__}, Python {sys.version.split()[0]}")
    try:
        import smalt
    except ImportError as e:
        print(f"smalt cannot be imported\n{e}")
        return 1
    from smalt._versions import contract

    broken = list(contract.broken())
    print("\n".join([f"the contract: {len(contract.ROWS)} rows, {len(broken)} of them broken", *(f"  {row}" for row in broken)]))
    if broken:
        return 1
    from tests.corpus import __main__ as corpus

    smalt.enable()
    try:
        return corpus.run(KERNELS)
    finally:
        print(f"{time.monotonic() - begun:.0f} s")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.canary", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", default=[""], metavar="VERSION")
    parser.add_argument("--here", action="store_true", help="in this process, with the JAX that it has")
    args = parser.parse_args()
    return here() if args.here else max(map(elsewhere, args.versions))


if __name__ == "__main__":
    sys.exit(main())
