"""Rules that name a portfolio: the classical ones, and the behaviour data that the agent learns from."""
