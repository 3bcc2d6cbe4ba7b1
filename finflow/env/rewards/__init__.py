"""Rewards that are chosen by name: rankings, rewards of a user's own, and weighted sums of them."""
