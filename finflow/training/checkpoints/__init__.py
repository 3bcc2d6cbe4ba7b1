"""Checkpoints: reading, inspection, provenance."""
