"""Analyses of a backtest: attribution, stress, costs, taxes, factors."""
