"""The report of one run: results, figures, page."""
