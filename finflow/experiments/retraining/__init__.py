"""Retraining of an agent on newer prices, and the comparison that decides whether it replaces the old one."""
