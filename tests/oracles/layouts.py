"""Writes mosaic_layouts.txt: where Mosaic GPU's own Python code places every element, as hashes.

    python tests/oracles/layouts.py > tests/layout/mosaic_layouts.txt

Mosaic's layout classes emit MLIR for the index arithmetic. Here the MLIR builders that they call are replaced by integer
arithmetic on numpy arrays over all 128 threads, so the numbers come out of Mosaic's code itself.

One line per case: `layout | arguments | shape | slots per thread | hash`. The hash is the first 16 hex digits of the sha256
over the flat row-major indices (u32, little endian) of thread 0's elements in slot order, then thread 1's, and so on.
"""

import hashlib
import itertools
import math
import sys
import types

import jax
import numpy as np
from jax.experimental.mosaic.gpu import fragmented_array as fa
from jax.experimental.mosaic.gpu import utils
from jax.experimental.mosaic.gpu.mma import MMALayouts

THREADS = np.arange(128)


def evaluate_instead_of_emitting():
  arith = types.SimpleNamespace(
      addi=lambda a, b: a + b,
      muli=lambda a, b: a * b,
      divui=lambda a, b: a // b,
      remui=lambda a, b: a % b,
      index_castui=lambda _, x: x,
      constant=lambda _, x: x,
  )
  class Type32:
    def __eq__(self, other):
      return True
    __hash__ = None
  typ = Type32()
  ir = types.SimpleNamespace(
      IntegerType=types.SimpleNamespace(get_signless=lambda _: typ),
      IndexType=types.SimpleNamespace(get=lambda: typ),
      Value=object,
  )
  gpu = types.SimpleNamespace(thread_id=lambda _: THREADS, Dimension=types.SimpleNamespace(x=None))
  class Threads(np.ndarray):
    type = typ
  threads = THREADS.view(Threads)
  fa.arith, fa.ir, fa.gpu, fa.c = arith, ir, gpu, lambda x, _: x
  gpu.thread_id = lambda _: threads
  fa.utils = types.SimpleNamespace(
      **{k: getattr(utils, k) for k in dir(utils) if not k.startswith("__")} | dict(
          thread_idx=lambda: threads,
          dyn_dot=lambda xs, ys: sum((x * y for x, y in zip(xs, ys, strict=True)), np.zeros(128, np.int64)),
      ))


def flat_indices(layout, shape):
  """[thread, slot] -> flat index."""
  strides = np.array([math.prod(shape[i + 1:]) for i in range(len(shape))], np.int64)
  columns = []
  if isinstance(layout, fa.TiledLayout):
    vec_stride = layout.tiling.tile_strides(tuple(int(s) for s in strides))[layout.vector_dim]
    for idx in layout.thread_idxs(shape):
      first = sum((np.asarray(i) * s for i, s in zip(idx, strides, strict=True)), np.zeros(128, np.int64))
      columns.extend(first + v * vec_stride for v in range(layout.vector_length))
  else:
    for first in layout.linear_thread_idxs():
      columns.extend(np.asarray(first) + v for v in range(layout.vec_size))
  return np.stack(columns, axis=1)


def line(name, args, layout, shape):
  idx = flat_indices(layout, shape)
  assert idx.shape[0] == 128 and idx.min() == 0 and idx.max() == math.prod(shape) - 1
  h = hashlib.sha256(np.ascontiguousarray(idx, "<u4").tobytes()).hexdigest()[:16]
  print(" | ".join([name, args, "x".join(map(str, shape)), str(idx.shape[1]), h]))


def main():
  named = dict(
      WGMMA=fa.WGMMA_LAYOUT,
      WGMMA_ROW=fa.WGMMA_ROW_LAYOUT,
      WGMMA_COL=fa.WGMMA_COL_LAYOUT,
      WGMMA_ACC_32BIT=fa.WGMMA_LAYOUT_ACC_32BIT,
      WGMMA_8BIT=fa.WGMMA_LAYOUT_8BIT,
      WGMMA_UPCAST_2X=fa.WGMMA_LAYOUT_UPCAST_2X,
      WGMMA_UPCAST_4X=fa.WGMMA_LAYOUT_UPCAST_4X,
      WGMMA_TRANSPOSED=fa.WGMMA_TRANSPOSED_LAYOUT,
      TCGEN05=fa.TCGEN05_LAYOUT,
      TCGEN05_TRANSPOSED=fa.TCGEN05_TRANSPOSED_LAYOUT,
      TCGEN05_ROW=fa.TCGEN05_ROW_LAYOUT,
      TCGEN05_COL=fa.TCGEN05_COL_LAYOUT,
      TCGEN05_TMEM_NATIVE=fa.TMEM_NATIVE_LAYOUT,
      TMA_INDICES=fa.TMA_INDICES_LAYOUT,
      TMA_INDICES_4=fa.TMA_INDICES_4_LAYOUT,
  )
  multiples = [(1, 1), (2, 3), (3, 2), (1, 8), (5, 7)]
  def shapes(layout):
    base = layout.base_tile_shape
    for mult in multiples:
      yield tuple(b * m for b, m in zip(base, mult))
    yield (3, *base)
    yield (2, 5, *(2 * b for b in base))
  evaluate_instead_of_emitting()
  print(f"# jax {jax.__version__}: layout | arguments | shape | slots | hash; made by tests/oracles/layouts.py")
  for name, layout in named.items():
    for shape in shapes(layout):
      line(name, "", layout, shape)
    for axis in range(len(layout.base_tile_shape)) if len(layout.base_tile_shape) > 1 else ():
      reduced = layout.reduce((axis,))
      for shape in shapes(reduced):
        line(name, f"reduce {axis}", reduced, shape)
  for vec in (4, 8, 16):
    for shape in shapes(layout := fa.tmem_native_layout(vec)):
      line("tmem_native", str(vec), layout, shape)
  for bits, dtype in ((8, np.int8), (16, np.float16), (32, np.float32)):
    for m_warps in (1, 2, 4):
      mma = MMALayouts(dtype, m_warps=m_warps)
      for name, layout in (("mma_lhs", mma.lhs), ("mma_rhs", mma.rhs), ("mma_acc", mma.acc)):
        if name != "mma_acc" or bits == 32:
          for shape in shapes(layout):
            line(name, f"{bits} {m_warps}", layout, shape)
  for bits, swizzle in itertools.product((8, 16, 32), (16, 32, 64, 128)):
    cols = 8 * swizzle // bits
    for rt, ct in ((4, 1), (8, 2), (2, 2), (6, 4), (1, 4), (3, 8), (4, 8)):
      try:
        layout = fa.tiled_copy_smem_gmem_layout(rt, ct, swizzle, bits)
      except NotImplementedError:
        continue
      line("smem_gmem_copy", f"{bits} {swizzle}", layout, (8 * rt, cols * ct))
  for shape in ((128,), (256,), (384,), (1024,), (64, 64), (64, 24), (32, 48), (2, 3, 128), (40, 48), (5, 256), (16, 8, 4)):
    for vec in (1, 2, 4, 8, 16):
      if math.prod(shape) % (128 * vec) == 0:
        line("strided", str(vec), fa.WGStridedFragLayout(shape, vec), shape)


if __name__ == "__main__":
  sys.exit(main())
