"""Evaluation of strategies: backtests, metrics, significance and reports."""
