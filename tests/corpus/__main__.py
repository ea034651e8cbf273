"""Writes, checks and shows the golden descriptors.

    python -m tests.corpus --check            compare every case with golden/<version>/ (exit status 1 on a difference)
    python -m tests.corpus --write            write golden/<version>/
    python -m tests.corpus --show NAME...     print descriptors as text
    python -m tests.corpus --run [NAME...]    run cases through smalt against their references
    python -m tests.corpus --interpret        hold the references against JAX's GPU interpreter
    python -m tests.corpus --diff A B         kernels that two versions of JAX write differently
    python -m tests.corpus --hashes           print "name index sha256" of every kernel

Nothing needs a GPU.
"""

from __future__ import annotations

import argparse
import os
import sys

if "--run" not in sys.argv:  # which runs on a GPU if there is one
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import jax  # noqa: E402

from tests.corpus import golden  # noqa: E402
from tests.corpus.decode import show  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--check", action="store_true")
    mode.add_argument("--write", action="store_true")
    mode.add_argument("--hashes", action="store_true")
    mode.add_argument("--run", nargs="*", metavar="NAME", help="run cases through smalt, on the GPU if there is one")
    mode.add_argument("--interpret", nargs="*", metavar="NAME", help="hold references against JAX's GPU interpreter")
    mode.add_argument("--show", nargs="+", metavar="NAME")
    mode.add_argument("--diff", nargs=2, metavar="VERSION", help="kernels that two versions write differently")
    parser.add_argument("--to", help="with --write: another directory than golden/")
    args = parser.parse_args()
    if args.diff:
        print("\n".join(golden.differences(*args.diff)))
        return 0
    if args.interpret is not None:
        return interpret(args.interpret)
    if args.run is not None:
        return run(args.run)
    kernels = golden.serialize_all(args.show)
    if args.show:
        for kernel in kernels:
            print(f"# {kernel.key}\n{show(kernel.descriptor)}")
    elif args.hashes:
        print("\n".join(f"{k.key} {k.hash}" for k in kernels))
    elif args.write:
        golden.write(kernels, args.to)
        print(f"{len(kernels)} descriptors, {sum(len(k.descriptor) for k in kernels)} bytes")
    else:
        problems = golden.check(kernels)
        print("\n".join(problems) or f"{len(kernels)} descriptors as committed")
        return 1 if problems else 0
    return 0


def run(names: list[str]) -> int:
    """Runs cases and prints one line for each that does not pass."""
    import smalt

    from tests.corpus import load_all

    counts: dict[str, list[str]] = {"pass": [], "wrong": [], "unsupported": [], "failed": []}
    for name, c in sorted(load_all().items()):
        if (names and name not in names) or c.reference is None or c.target != "hopper" or (not names and c.large):
            continue
        try:
            c.run()
            counts["pass"].append(name)
        except AssertionError as e:
            counts["wrong"].append(name)
            print(f"WRONG        {e}")
        except smalt.Unsupported as e:
            counts["unsupported"].append(name)
            print(f"unsupported  {name}: {_first_line(e)}")
        except Exception as e:
            counts["failed"].append(name)
            print(f"FAILED       {name}: {type(e).__name__}: {_first_line(e)}")
    print({k: len(v) for k, v in counts.items()})
    return 1 if counts["wrong"] or counts["failed"] else 0


def _first_line(e: Exception) -> str:
    return (str(e).splitlines() or [""])[0][:160]


def interpret(names: list[str]) -> int:
    """Runs cases in JAX's interpreter, a second opinion on the references. What it does not support is listed."""
    import jax.experimental.pallas.mosaic_gpu as plgpu

    from tests.corpus import case, load_all

    case.INTERPRET = plgpu.InterpretGPUParams()
    counts = {"agree": 0, "differ": 0, "not supported there": 0}
    for name, c in sorted(load_all().items()):
        if (names and name not in names) or c.reference is None or c.target != "hopper" or (not names and c.large):
            continue
        inputs = c.inputs()
        try:
            with c.scope():
                got = jax.jit(c.fn)(*inputs)
            c.check(got, inputs)
            counts["agree"] += 1
        except AssertionError as e:
            counts["differ"] += 1
            print(f"{name}: {e}")
        except Exception as e:
            counts["not supported there"] += 1
            print(f"{name}: {type(e).__name__}: {_first_line(e)}")
    print(counts)
    return 1 if counts["differ"] else 0


if __name__ == "__main__":
    sys.exit(main())
