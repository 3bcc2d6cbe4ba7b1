"""The command line: modes and options, each turned into one call of the application.

Everything heavy is imported when it is needed, so that help and mistakes are answered at once. Exit statuses: 0, 1 for
a fault in finflow itself, 2 for what the user can fix, 130 for Ctrl-C.
"""

from finflow.cli.modes import main

__all__ = ["main"]
