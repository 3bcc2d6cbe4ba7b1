"""Decisions of a policy in portfolios of the market: in this process, or in others."""
