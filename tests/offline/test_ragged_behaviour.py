"""Behaviour data of a market with listings: no decision names an asset that is not known to be listed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finflow.market.panel import MarketPanel
from finflow.offline.dataset import OfflineDataset

STARTS = (0, 0, 420, 450, 0)  # bars of the first prices
ENDS = (None, None, None, None, 520)


def ragged(panel: MarketPanel) -> MarketPanel:
    """The panel with later listings and earlier ends."""
    close = panel.close.copy()
    for asset, (start, end) in enumerate(zip(STARTS, ENDS, strict=True)):
        close[:start, asset] = np.nan
        if end is not None:
            close[end:, asset] = np.nan
    return replace(panel, close=close)


def assert_listed(dataset: OfflineDataset, process: Any, lag: int) -> None:
    """Decisions name what was listed ``lag`` bars before, and so do the next ones; every weight of it is positive."""
    known = process.panel.listed
    for weights, bars in ((dataset.action, dataset.bar), (dataset.next_action, dataset.bar + 1)):
        listed = known[bars - lag]
        assert (weights[:, :-1][~listed] == 0.0).all()
        np.testing.assert_allclose(weights.sum(axis=1), 1.0, atol=1e-5)
    assert (~known[dataset.bar - lag]).any(axis=0).sum() >= 3  # there was something to hold it to


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_no_decision_names_an_asset_that_is_not_listed(small: Any, small_of: Callable[..., Any], lag: int) -> None:
    made = small_of(ragged(small.process.panel), env__execution_lag=lag)
    dataset = made.collect()
    assert_listed(dataset, made.process, lag)
    portfolios = dataset.portfolio[:, : made.process.n_weights]
    listed = made.process.panel.listed[dataset.bar - lag]
    assert (portfolios[:, :-1][~listed] == 0.0).all()  # what is held is known as well


def test_stated_decisions_are_smoothed_over_what_is_listed(
    small: Any, small_of: Callable[..., Any], tmp_path: Path
) -> None:
    panel = ragged(small.process.panel)
    rows = ["date,AAPL,AMD,GE,JNJ,WMT,cash"]
    rows += [f"{panel.dates[bar]},0.5,0.5,0,0,0,0" for bar in range(400, 500, 7)]
    (tmp_path / "stated.csv").write_text("\n".join(rows))
    made = small_of(panel, offline__decisions=[str(tmp_path / "stated.csv")])
    dataset = made.collect()
    own = dataset.family == dataset.family.max()
    assert own.sum() > 50
    listed = panel.listed[dataset.bar[own] - 1]
    assert (dataset.action[own][:, :-1][~listed] == 0.0).all()
    assert (~listed).any()
