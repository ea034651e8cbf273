"""The corpus: kernels to serialise, and (those with a reference) to run."""

import importlib

THEMES = ("elementwise", "arrays", "control", "memory", "synchronisation", "tensorcore", "blackwell", "devices", "seeds", "pallas_calls", "shipped")


def load_all():
    """Registers every theme's cases and returns them by name."""
    from tests.corpus.case import REGISTRY

    for theme in THEMES:
        importlib.import_module(f"tests.corpus.{theme}")
    return dict(REGISTRY)
