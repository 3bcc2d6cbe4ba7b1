"""Synthetic and resampled markets."""
