"""Several devices and hosts; tensors of PyTorch."""
