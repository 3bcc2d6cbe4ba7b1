"""Synthetic markets."""
