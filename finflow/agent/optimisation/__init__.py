"""Gradient steps, numerical precision and weight averaging."""
