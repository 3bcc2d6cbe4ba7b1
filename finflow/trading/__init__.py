"""Trading with a trained agent: decisions of today, orders, the log of what was held, and paper trading."""
