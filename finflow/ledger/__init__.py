"""Accounting of trades: costs, constraints, settlement, tax lots."""
