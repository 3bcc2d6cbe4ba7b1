"""Metrics, their uncertainty, and tests that allow for luck and for many tries."""
