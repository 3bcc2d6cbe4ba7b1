"""Preferences: pairs of segments, judges of them, and the reward model that learns from their answers."""
