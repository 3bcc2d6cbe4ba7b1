"""Offline and online phase, the state of a training, and its guard."""
