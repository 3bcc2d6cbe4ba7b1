"""The list of checks, and all that they find in a panel."""

from __future__ import annotations

import numpy as np

from finflow.market.panel import MarketPanel
from finflow.market.plausibility.finding import Finding
from finflow.market.plausibility.price_levels import counters, levels, standing_still
from finflow.market.plausibility.price_moves import jumps
from finflow.market.plausibility.universe import calendars, doubles, gaps, indices, left_out

CHECKS = (left_out, levels, jumps, counters, standing_still, doubles, indices, calendars, gaps)

DATED = ("return", "stale", "calendars", "gap", "end", "empty row")
"""Findings of a date that are no jumps by a ratio; the others are of a whole series, dated on its last bar."""
_LOOKED_UP = {
    *(("AAPL", "2000-09-29"), ("AMD", "2002-10-03"), ("BBY", "1991-12-19")),
    *(("RRC", "1990-01-02"), ("RRC", "1990-04-10")),
}
"""Findings in the embedded prices that are known: returns of those days, and cents of RRC that were rounded."""


def find_implausible(panel: MarketPanel, since: int = 0) -> list[Finding]:
    """Findings of every check that are dated on the bar ``since`` or later, check by check."""
    known = _LOOKED_UP if panel.provenance.get("source") == "embedded" else ()
    with np.errstate(all="ignore"):
        found = [finding for check in CHECKS for finding in check(panel)]
    first = str(panel.dates[since])
    return [finding for finding in found if finding.date >= first and (finding.ticker, finding.date) not in known]
