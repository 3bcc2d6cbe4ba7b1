"""Training of one agent, from data to report."""
