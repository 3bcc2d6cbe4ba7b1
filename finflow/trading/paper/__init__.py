"""Paper trading: an agent day by day on the ledger, its log, and the test of what was to be expected."""
