"""Checkpoints: reading, migration, inspection, provenance."""
