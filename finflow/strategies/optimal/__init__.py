"""Optimal policies of markets whose price process is known."""
