"""Kernels on PyTorch's tensors.

Only `calls.py` and `pulls.py` may be imported where PyTorch is not: the others are imported where there is a tensor. Imports `_lowering`, `_native`, `_config`.
"""

from smalt._torch.calls import as_torch_kernel, begin
