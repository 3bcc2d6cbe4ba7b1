"""Safeguards of learning: detectors, rollback and checkpoints."""
