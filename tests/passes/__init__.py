"""Descriptors of random kernels for Rust's tests of passes."""
