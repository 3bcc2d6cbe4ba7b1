"""Learning, choosing and judging happen on bars that do not overlap."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pytest

from finflow.config import MarketConfig
from finflow.errors import MarketError
from finflow.market.panel import MarketPanel
from finflow.market.splits import Split, split_panel


def daily(first: str = "2010-01-01", bars: int = 1000) -> MarketPanel:
    dates = np.datetime64(first) + np.arange(bars)
    return MarketPanel(dates=dates, assets=("A", "B"), close=np.full((bars, 2), 10.0))


def config(train: str, validation: str, test: str | None = None) -> MarketConfig:
    day = dt.date.fromisoformat
    return MarketConfig(train_end=day(train), validation_end=day(validation), test_end=day(test) if test else None)


def test_windows_follow_one_another_and_end_on_their_dates() -> None:
    panel = daily()
    split = split_panel(panel, config("2010-12-31", "2011-06-30", "2012-01-31"))
    assert list(split.train) + list(split.validation) + list(split.test) == list(range(split.test_end))
    for window, last in ((split.train, "2010-12-31"), (split.validation, "2011-06-30"), (split.test, "2012-01-31")):
        assert panel.dates[window[-1]] == np.datetime64(last)


def test_the_test_runs_to_the_last_bar_without_an_end_or_with_one_soon_after_it() -> None:
    for end in (None, "2012-10-15"):
        assert split_panel(daily(), config("2010-12-31", "2011-12-31", end)).test[-1] == 999


def test_a_date_without_a_bar_ends_with_the_bar_before() -> None:
    panel = daily()
    gap = panel.dates != np.datetime64("2010-12-31")
    holed = MarketPanel(dates=panel.dates[gap], assets=panel.assets, close=panel.close[gap])
    split = split_panel(holed, config("2010-12-31", "2011-06-30"))
    assert holed.dates[split.train[-1]] == np.datetime64("2010-12-30")


@pytest.mark.parametrize(
    ("dates", "key"),
    [
        (("2009-01-01", "2011-01-01", None), "market.train_end"),
        (("2010-12-31", "2013-12-31", None), "test window is empty: market.test_end is the last bar"),
        (("2013-12-31", "2014-12-31", "2015-12-31"), "market.validation_end"),
        (("2010-12-31", "2011-12-31", "2013-12-31"), "test window leaves the data: market.test_end is 2013-12-31"),
    ],
)
def test_a_window_that_is_empty_or_leaves_the_data_names_its_key_and_the_span_of_the_data(
    dates: tuple[str, str, str | None], key: str
) -> None:
    with pytest.raises(MarketError) as caught:
        split_panel(daily(), config(*dates))
    assert key in str(caught.value)
    assert "2010-01-01 to 2012-09-26" in str(caught.value)


def test_a_split_out_of_order_cannot_be_made() -> None:
    with pytest.raises(MarketError):
        Split(train_end=10, validation_end=10, test_end=20)
