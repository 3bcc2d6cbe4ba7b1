"""Histories that did not happen: made of real days, in blocks, all assets at once."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from finflow.market.features.feature_set import apply_features, compute_features
from finflow.market.panel import MarketPanel
from finflow.market.synthetic.block_bootstrap import draw_days, resampled_panel

FloatArray = NDArray[np.float64]


def panel_of(bars: int = 800, assets: int = 4, ragged: bool = False) -> MarketPanel:
    rng = np.random.default_rng(5)
    close = 50.0 * np.exp(np.cumsum(rng.normal(0.0, 0.01, size=(bars, assets)), axis=0))
    if ragged:
        close[:200, 1] = np.nan
        close[600:, 2] = np.nan
    cash = np.full(bars, 1e-4) + np.arange(bars) * 1e-8
    cash[0] = 0.0
    return MarketPanel(
        dates=np.datetime64("2001-01-01") + np.arange(bars),
        assets=tuple("ABCD"[:assets]),
        close=close,
        cash_returns=cash,
        open=close * 1.001,
        high=close * 1.01,
        low=close * 0.99,
        volume=np.where(np.isfinite(close), 1e4 + np.arange(bars)[:, None], np.nan),
        benchmark=np.exp(np.cumsum(rng.normal(0.0, 0.01, bars))),
    )


def drawn(panel: MarketPanel, eligible: NDArray[np.bool_] | None = None, block: int = 20, seed: int = 0) -> MarketPanel:
    whole = np.ones(panel.n_bars, dtype=np.bool_) if eligible is None else eligible
    return resampled_panel(panel, draw_days(panel.listed, whole, block, np.random.default_rng(seed)))


def test_every_day_of_a_resampled_history_is_a_whole_day_that_may_be_learned_from() -> None:
    panel = panel_of()
    eligible = np.zeros(800, dtype=np.bool_)
    eligible[101:500] = True
    source = draw_days(panel.listed, eligible, 20, np.random.default_rng(1))
    assert source[1:].min() >= 101
    assert source[1:].max() < 500
    other = resampled_panel(panel, source)
    for own, real in ((other.close, panel.close), (other.benchmark, panel.benchmark)):
        assert own is not None
        assert real is not None
        moves, days = own[1:] / own[:-1], real[source[1:]] / real[source[1:] - 1]
        np.testing.assert_allclose(moves, days, rtol=1e-12)  # all assets of one day, and the index of that day
    np.testing.assert_array_equal(other.cash_returns[1:], panel.cash_returns[source[1:]])


def test_what_happens_within_a_day_goes_with_it() -> None:
    panel = panel_of()
    source = draw_days(panel.listed, np.ones(800, dtype=np.bool_), 20, np.random.default_rng(2))
    other = resampled_panel(panel, source)
    assert other.open is not None
    assert panel.open is not None
    overnight = other.open[1:] / other.close[:-1]
    np.testing.assert_allclose(overnight, panel.open[source[1:]] / panel.close[source[1:] - 1], rtol=1e-12)
    assert other.volume is not None
    assert panel.volume is not None
    money = other.volume[1:] * other.close[1:]
    np.testing.assert_allclose(money, (panel.volume * panel.close)[source[1:]], rtol=1e-12)


@pytest.mark.parametrize("block", [5, 40])
def test_blocks_have_the_mean_length_that_is_asked_for(block: int) -> None:
    listed = np.ones((40_000, 2), dtype=np.bool_)
    source = draw_days(listed, np.ones(40_000, dtype=np.bool_), block, np.random.default_rng(3))
    breaks = np.flatnonzero(np.diff(source[1:]) != 1)
    lengths = np.diff(breaks)
    # geometric with mean b: deviation of the mean of n lengths is b sqrt(1 - 1/b) / sqrt(n)
    deviation = block * np.sqrt(1.0 - 1.0 / block) / np.sqrt(len(lengths))
    assert abs(lengths.mean() - block) < 4.0 * deviation
    assert abs((lengths == 1).mean() - 1.0 / block) < 0.02


def test_assets_are_listed_when_they_really_were_and_never_filled() -> None:
    panel = panel_of(ragged=True)
    source = draw_days(panel.listed, np.ones(800, dtype=np.bool_), 20, np.random.default_rng(4))
    other = resampled_panel(panel, source)
    np.testing.assert_array_equal(other.listed, panel.listed)
    real = np.log(panel.close[1:, 1] / panel.close[:-1, 1])
    made = np.log(other.close[1:, 1] / other.close[:-1, 1])
    known = real[np.isfinite(real)]
    nearest = np.abs(made[np.isfinite(made)][:, None] - known[None, :]).min(axis=1)
    assert nearest.max() < 1e-10  # each of its returns is one that it had


def test_a_seed_decides_the_history_and_another_makes_another() -> None:
    panel = panel_of()
    first, again, other = drawn(panel), drawn(panel), drawn(panel, seed=1)
    assert first.sha256 == again.sha256
    assert first.sha256 != other.sha256
    assert first.sha256 != panel.sha256


def test_features_are_computed_on_the_resampled_path() -> None:
    panel = panel_of(bars=700)
    fitted = compute_features(panel, 600).fitted
    assert fitted is not None
    other = drawn(panel)
    made = apply_features(other, fitted)
    shorter = apply_features(other.until(500), fitted)
    np.testing.assert_allclose(made.assets[:500], shorter.assets, atol=2e-4)  # from its own past alone
    column = made.asset_names.index("return_1")
    returns = np.log(other.close[1:] / other.close[:-1])
    assert np.corrcoef(made.assets[300:, 0, column], returns[299:, 0])[0, 1] > 0.9
