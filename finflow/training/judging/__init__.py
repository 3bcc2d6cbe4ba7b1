"""Held-out evaluation of trained agents."""
