"""Prices in, causal features out: panel, sources, store, features, splits."""
