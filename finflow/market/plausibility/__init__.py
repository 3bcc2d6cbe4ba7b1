"""Checks for prices that are possible and not plausible."""
