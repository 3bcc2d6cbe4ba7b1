"""The feature is the expectation of the price process, from the past alone, on every kind of synthetic market."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from finflow.config import load_config
from finflow.errors import MarketError
from finflow.imports import import_path
from finflow.market.panel import MarketPanel
from finflow.market.sources.panel_loader import load_panel
from finflow.market.synthetic.synthetic_market import process_of
from scripts.evidence.known_state import EXPECTED_RETURNS, expected_returns


def market(kind: str, bars: int = 4000, **more: object) -> MarketPanel:
    keys = {"market.source": "synthetic", "market.synthetic.kind": kind, "market.synthetic.bars": bars}
    keys |= {f"market.synthetic.{name}": value for name, value in more.items()}
    return load_panel(load_config(None, keys, environ={}).market)


@pytest.mark.parametrize("kind", ["lognormal", "constant-drift", "mean-reverting", "regime", "exchangeable"])
def test_returns_are_on_average_what_was_expected(kind: str) -> None:
    """Regressed on what was expected, the next returns have a slope of one, within three standard errors."""
    panel = market(kind, 20_000)
    expected, returns = expected_returns(panel)[:-1], panel.close[1:] / panel.close[:-1] - 1.0
    assert expected.shape == returns.shape
    apart = returns - expected
    assert np.all(np.abs(apart.mean(axis=0)) < 4.0 * apart.std(axis=0) / np.sqrt(len(apart)))
    spread, lead = expected[:, 0] - expected[:, -1], returns[:, 0] - returns[:, -1]
    if kind in ("mean-reverting", "regime"):
        slope = spread @ lead / (spread @ spread)
        error = (lead - slope * spread).std() / np.sqrt(spread @ spread)
        assert abs(slope - 1.0) < 3.0 * error < 0.3
    else:
        assert np.ptp(spread) == pytest.approx(0.0, abs=1e-15)  # the past says nothing
        assert (spread[0] > 1e-4) == (kind != "exchangeable")


@pytest.mark.parametrize("kind", ["mean-reverting", "regime"])
def test_later_prices_change_nothing(kind: str) -> None:
    panel = market(kind)
    close = panel.close.copy()
    close[3000:] *= 1.5
    changed = expected_returns(dataclasses.replace(panel, close=close))
    np.testing.assert_array_equal(changed[:3000], expected_returns(panel)[:3000])
    assert not np.array_equal(changed[3000:], expected_returns(panel)[3000:])


def test_the_numbers_of_the_law_are_those_configured() -> None:
    panel = market("regime", defensive_ratio=0.5, edge=0.004)
    config = load_config(None, {"market.synthetic.kind": "regime"}, environ={}).market.synthetic
    process = process_of(config.model_copy(update={"defensive_ratio": 0.5, "edge": 0.004}))
    sure = process.scenarios(1.0)
    assert expected_returns(panel)[:, 1].max() <= float(sure.probability @ np.expm1(sure.returns[:, 1])) + 1e-9


def test_a_real_market_has_no_known_process() -> None:
    panel = load_panel(load_config(None, {}, environ={}).market)
    with pytest.raises(MarketError, match="known price process"):
        import_path(EXPECTED_RETURNS)(panel)
