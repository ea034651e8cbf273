"""What kernels are held against: NumPy's semantics, special numbers, Mosaic's layouts, how exact attention and division are, JAX's functions.

An oracle knows nothing of how smalt compiles, and imports no grammar, suite or test.
"""
