"""Errors a user can act on.

Each message is one line that says what is wrong, where, and what to do about it. The command line prints the
message and exits with status 2; anything that is not a `FinflowError` is a fault in finflow itself.
"""

from __future__ import annotations


class FinflowError(Exception):
    """A user's mistake, or an outside condition that the user can mend."""


class ConfigError(FinflowError):
    """A configuration key, value or file that cannot be used."""


class MarketError(FinflowError):
    """Market data that is missing, malformed or too short."""


class CheckpointError(FinflowError):
    """A checkpoint that is missing, damaged, or made by another version or configuration."""


class OutputError(FinflowError):
    """A folder or file that cannot be written."""


class EvidenceError(FinflowError):
    """Numbers that cannot carry the statistic asked of them: gaps, too few returns, too few seeds."""


class TrainingError(FinflowError):
    """A training that cannot go on, and what to try."""
