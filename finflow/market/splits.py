"""Training, validation and test windows of a panel."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from finflow.config import MarketConfig
from finflow.errors import MarketError
from finflow.market.panel import MarketPanel


@dataclass(frozen=True)
class Split:
    """Ends of the three windows as bar counts; a window starts where the one before it ends.

    The market of a fold has no test window: there `test_end` is `validation_end`.
    """

    train_end: int
    validation_end: int
    test_end: int

    def __post_init__(self) -> None:
        if not 0 < self.train_end < self.validation_end <= self.test_end:
            raise MarketError(
                "the windows to learn and to choose by must follow one another and hold a bar each, not end at bars "
                f"{self.train_end}, {self.validation_end} and {self.test_end}"
            )

    @property
    def train(self) -> range:
        return range(0, self.train_end)

    @property
    def validation(self) -> range:
        """Bars for the choice of checkpoints and settings."""
        return range(self.train_end, self.validation_end)

    @property
    def test(self) -> range:
        """Bars for the final evaluation only."""
        return range(self.validation_end, self.test_end)


_SLACK = dt.timedelta(days=31)
"""Largest distance of `market.test_end` after the last bar: a weekend, a month's end or holidays."""
_TO = "set it to that day or before, or leave it out for the last bar"


def split_panel(panel: MarketPanel, config: MarketConfig) -> Split:
    """Convert the configured dates to bar counts.

    A window ends with the last bar on or before its date, which may lie a month after the last of all. Without
    `market.test_end` the test window ends with the panel. `MarketError` names the key and the span of the data.
    """
    first, last = panel.dates[0], panel.dates[-1]
    span = f"the data runs from {first} to {last}"
    ends: list[tuple[str, dt.date | None]] = [
        ("train_end", config.train_end),
        ("validation_end", config.validation_end),
        ("test_end", config.test_end),
    ]
    counts = [0]
    for key, date in ends:
        count = panel.n_bars if date is None else panel.bars_until(date)
        if count <= counts[-1]:
            window = key.removesuffix("_end")
            shown = "the last bar" if date is None else date
            raise MarketError(f"the {window} window is empty: market.{key} is {shown} and {span}; move the dates")
        counts.append(count)
    if config.test_end is not None and config.test_end > last.astype(dt.date) + _SLACK:
        raise MarketError(f"the test window leaves the data: market.test_end is {config.test_end} and {span}; {_TO}")
    return Split(*counts[1:])
