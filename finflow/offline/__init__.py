"""Behaviour data: collection, datasets and imports."""
