"""Accounting of trades: costs, constraints and settlement."""
