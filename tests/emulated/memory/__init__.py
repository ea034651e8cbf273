"""Loads, stores, copies, views and indices; random programs over memory."""
