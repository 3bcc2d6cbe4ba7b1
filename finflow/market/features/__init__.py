"""Causal features of assets and of the market."""
