"""What a strategy is worth: backtests, metrics, significance and reports."""
