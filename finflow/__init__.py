"""finflow: a portfolio agent trained on a market, and an honest answer to whether it is worth trading."""
