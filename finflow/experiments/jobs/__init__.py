"""Jobs of many trainings: seeds, folds, universes."""
