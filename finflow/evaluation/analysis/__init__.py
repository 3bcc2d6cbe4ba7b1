"""Analyses of a backtest: attribution, stress, costs, factors."""
