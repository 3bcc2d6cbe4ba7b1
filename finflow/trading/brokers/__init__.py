"""Brokers: the small interface that decisions are carried out through, and the paper broker on the ledger."""
