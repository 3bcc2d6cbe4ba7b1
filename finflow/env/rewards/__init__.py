"""Rewards that are chosen by name: rankings, a user's rewards, and weighted sums of them."""
