"""What keeps learning safe: detectors, rollback and checkpoints."""
