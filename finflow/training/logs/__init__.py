"""Logs, progress display and profiles of a run."""
