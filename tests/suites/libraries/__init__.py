"""Other people's tests of their kernels, and their kernels, run by smalt."""
