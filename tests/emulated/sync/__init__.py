"""Barriers, fences and scopes; PTX and MLIR that users write in kernels."""
