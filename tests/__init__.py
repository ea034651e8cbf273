"""The tests that are written in Python; docs/ARCHITECTURE.md has their rooms."""
