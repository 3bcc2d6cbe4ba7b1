"""Lines about a panel: its size and windows, dividends in cash, gaps, and prices to look at."""

from __future__ import annotations

import numpy as np

from finflow.errors import first_few
from finflow.market.bar_frequency import bar_name
from finflow.market.panel import MarketPanel, Split
from finflow.market.plausibility.checks import find_implausible
from finflow.market.plausibility.finding import in_table

_SHOWN = 5

_IN_CASH = (
    "dividends are held as cash (market.dividends): paid at the ex-date to who held the asset before it, and invested "
    "again only as far as the strategy does so; features read prices with dividends reinvested"
)


def opening_lines(panel: MarketPanel, split: Split | None = None) -> list[str]:
    """Lines to begin a run with: the market and its windows, one where they hardly suit it, notes, and findings."""
    dates = panel.dates
    bars, index = f"{panel.n_bars:,} bars of one {bar_name(panel.bars_per_year)}", panel.benchmark_name or "none"
    lines = [
        f"{panel.n_assets} assets, {bars} from {dates[0]} to {dates[-1]}, {panel.bars_per_year} a year; benchmark "
        f"{index}; cash {cash_rate(panel)}"
    ]
    if split is not None and split.test:
        named = (("training", split.train), ("validation", split.validation), ("test", split.test))
        lines[0] += "".join(f"; {name} {len(bars):,} bars to {dates[bars.stop - 1]}" for name, bars in named)
        if 2 * len(split.test) > split.test_end:
            ends = [dates[int(share * split.test_end) - 1] for share in (0.6, 0.8)]
            lines.append(
                f"warning: most bars are in the test window, and {len(split.train):,} are left to learn from; windows "
                f"that suit these prices: --set market.train_end={ends[0]} --set market.validation_end={ends[1]}"
            )
    return [*lines, *price_notes(panel), *in_table(find_implausible(panel))]


def cash_rate(panel: MarketPanel) -> str:
    """Annual return of cash on the panel: one rate, or the range of a series."""
    annual = (1.0 + panel.cash_returns[1:]) ** panel.bars_per_year - 1.0
    if np.ptp(annual) < 1e-9:
        return f"{annual[0]:.2%} a year"
    return f"{annual.min():.2%} to {annual.max():.2%} a year, {annual.mean():.2%} on average"


def price_notes(panel: MarketPanel) -> list[str]:
    """Sentences on dividends in cash, and on bars without a price of their own."""
    return list(filter(None, [_IN_CASH if panel.dividends is not None else "", describe_halts(panel)]))


def describe_halts(panel: MarketPanel, since: int = 0) -> str:
    """One sentence that names the halts that reach the bar `since` or a later one, by date; empty where none does."""
    halts = []
    for column, asset in enumerate(panel.assets if panel.halted is not None else ()):
        bars = np.flatnonzero(np.asarray(panel.halted)[:, column])
        for run in np.split(bars, np.flatnonzero(np.diff(bars) > 1) + 1):
            if len(run) and run[-1] >= since:
                first, last = panel.dates[run[[0, -1]]]
                when = f"on {first}" if len(run) == 1 else f"from {first} to {last} ({len(run)} bars)"
                halts.append((first, f"{asset} {when}"))
    named = first_few([words for _, words in sorted(halts)], _SHOWN)
    return f"no price, held at the last one and not traded (market.max_gap): {named}" if halts else ""
