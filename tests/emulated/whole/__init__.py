"""Whole kernels: the corpus, file tests, the GPT."""
