"""Ranges, opens and volumes become features where a panel has them, and leave the others as they were."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from finflow.config import LENSES
from finflow.market.features.asset_features import ASSET_FEATURES
from finflow.market.features.feature_set import compute_features
from finflow.market.features.rolling_windows import PanelView
from finflow.market.features.trading_features import TRADING_FEATURES
from finflow.market.panel import MarketPanel

FloatArray = NDArray[np.float64]
BARS, FIT, ASSETS = 700, 450, 5
FIELDS = ("open", "high", "low", "volume")


def market(ragged: bool = False, seed: int = 0) -> MarketPanel:
    rng = np.random.default_rng(seed)
    shape = (BARS, ASSETS)
    night = rng.standard_normal(shape) * 0.006
    day = rng.standard_normal(shape) * 0.01
    day[0] = night[0] = 0.0
    close = 50.0 * np.exp(np.cumsum(night + day, axis=0))
    opens = close / np.exp(day)
    high = np.maximum(opens, close) * np.exp(np.abs(rng.standard_normal(shape)) * 0.004)
    low = np.minimum(opens, close) * np.exp(-np.abs(rng.standard_normal(shape)) * 0.004)
    volume = np.round(np.exp(13.0 + rng.standard_normal(shape) * 0.4))
    if ragged:
        for values in (opens, high, low, close, volume):
            values[:120, 0] = np.nan
            values[560:, 1] = np.nan
    dates = np.datetime64("2000-01-03") + np.arange(BARS)
    names = tuple("ABCDE")
    return MarketPanel(dates=dates, assets=names, close=close, open=opens, high=high, low=low, volume=volume)


def field(panel: MarketPanel, name: str) -> FloatArray:
    values: FloatArray | None = getattr(panel, name)
    assert values is not None
    return np.array(values)


def closes_only(panel: MarketPanel) -> MarketPanel:
    return replace(panel, open=None, high=None, low=None, volume=None)


def test_they_follow_the_others_and_change_none_of_them() -> None:
    panel = market(ragged=True)
    plain, full = compute_features(closes_only(panel), FIT), compute_features(panel, FIT)
    size = len(plain.asset_names)
    assert plain.asset_names == tuple(feature.name for feature in ASSET_FEATURES)
    assert full.asset_names == (*plain.asset_names, *(feature.name for feature in TRADING_FEATURES))
    assert len(set(full.asset_names)) == len(full.asset_names)
    np.testing.assert_array_equal(full.assets[..., :size], plain.assets)
    np.testing.assert_array_equal(full.market, plain.market)
    assert full.market_names == plain.market_names
    assert full.first_bar == plain.first_bar
    for index in range(size, len(full.asset_names)):
        assert full.assets[full.first_bar :, :, index].std() > 0.3, full.asset_names[index]


def test_every_lens_gains_and_every_feature_is_read_and_described() -> None:
    plain, full = compute_features(closes_only(market()), FIT), compute_features(market(), FIT)
    for lens in LENSES:
        assert len(full.lenses[lens]) > len(plain.lenses[lens])
        assert full.lenses[lens][: len(plain.lenses[lens])] == plain.lenses[lens]
    assert set().union(*full.lenses.values()) == set(range(len(full.asset_names)))
    for feature in TRADING_FEATURES:
        assert re.search(r"[12]\d{3}[,)]", str(feature.raw.__doc__)), f"{feature.name} names no source"
        assert set(feature.needs) <= set(FIELDS)


@pytest.mark.parametrize("missing", FIELDS)
def test_a_feature_is_there_when_its_fields_are(missing: str) -> None:
    panel = replace(market(), **{missing: None})
    names = compute_features(panel, FIT).asset_names
    expected = [feature.name for feature in TRADING_FEATURES if missing not in feature.needs]
    assert names[len(ASSET_FEATURES) :] == tuple(expected)
    assert 0 < len(expected) < len(TRADING_FEATURES)


def test_they_are_what_their_formulas_say() -> None:
    panel = market()
    o, h, low, c, v = (field(panel, name) for name in ("open", "high", "low", "close", "volume"))
    view = PanelView(panel)
    values = {feature.name: feature.compute(view) for feature in TRADING_FEATURES}
    t, a = 640, 2
    r = np.diff(np.log(c), axis=0, prepend=np.nan)
    night = np.log(o[1:] / c[:-1])
    night = np.vstack([np.full(ASSETS, np.nan), night])

    def last(bars: int) -> slice:
        return slice(t - bars + 1, t + 1)

    def amihud(bars: int, asset: int) -> float:
        return float((np.abs(r) / (c * v))[last(bars), asset].mean())

    location = (2 * c - h - low) / (h - low)
    garman = 0.5 * np.log(h / low) ** 2 - (2 * np.log(2) - 1) * np.log(c / o) ** 2
    spread = r[last(63), a].std(ddof=1)
    nights, days = (night[last(63), a] ** 2).sum(), (np.log(c / o)[last(63), a] ** 2).sum()
    order = np.argsort(np.argsort([amihud(63, asset) for asset in range(ASSETS)]))
    expected = {
        "parkinson_21": np.log(np.sqrt((np.log(h / low)[last(21), a] ** 2).mean() / (4 * np.log(2)) * 252)),
        "garman_klass_5": np.log(np.sqrt(garman[last(5), a].mean() * 252)),
        "close_location_10": location[last(10), a].mean(),
        "overnight_21": night[last(21), a].sum() / (spread * 21**0.5),
        "overnight_risk_63": nights / (nights + days),
        "abnormal_volume_63": np.log(v[t, a] / v[last(63), a].mean()),
        "volume_trend": np.log(v[last(21), a].mean() / v[last(252), a].mean()),
        "illiquidity_rank": 2 * order[a] / (ASSETS - 1) - 1,
        "illiquidity_change": np.log(amihud(21, a) / amihud(252, a)),
        "money_flow_21": (location * v)[last(21), a].sum() / v[last(21), a].sum(),
        "balance_volume_63": (np.sign(r) * v)[last(63), a].sum() / v[last(63), a].sum(),
    }
    assert set(expected) == set(values)
    for name, value in expected.items():
        assert values[name][t, a] == pytest.approx(value, rel=1e-9), name


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("bar", [FIT, 520])
def test_another_future_changes_no_bit_of_the_past(ragged: bool, bar: int) -> None:
    panel = market(ragged)
    rng = np.random.default_rng(1)
    changed = {name: field(panel, name) for name in FIELDS}
    for name, values in changed.items():
        values[bar:] *= rng.uniform(0.1, 10.0, values[bar:].shape) if name == "volume" else 1.0
    changed["high"][bar:] *= 1.02
    changed["low"][bar:] *= 0.97
    changed["open"][bar:] *= 0.99
    before, after = compute_features(panel, FIT), compute_features(replace(panel, **changed), FIT)
    np.testing.assert_array_equal(before.assets[:bar], after.assets[:bar])
    for index, feature in enumerate(TRADING_FEATURES, start=len(ASSET_FEATURES)):
        if feature.name != "illiquidity_rank":
            assert not np.array_equal(before.assets[bar, :, index], after.assets[bar, :, index]), feature.name
    short = compute_features(panel.until(bar), FIT)
    np.testing.assert_array_equal(before.assets[:bar], short.assets)


def test_days_without_trades_or_range_are_small_and_not_infinite() -> None:
    panel = market(ragged=True)
    changed = {name: field(panel, name) for name in FIELDS}
    changed["volume"][:, 2] = 0.0
    changed["volume"][::2, 3] = 0.0
    changed["volume"][400:, 4] = 0.0
    for name in ("open", "high", "low"):
        changed[name][:, 3] = panel.close[:, 3]
    quiet = replace(panel, **changed)
    view = PanelView(quiet)
    values = {feature.name: feature.compute(view) for feature in TRADING_FEATURES}
    for name, raw in values.items():
        assert np.isfinite(raw[252:, 2:]).all(), name
    assert (values["abnormal_volume_63"][252:, 2] == 0.0).all()
    assert (values["illiquidity_rank"][500:, [2, 4]] > 0.0).all()
    assert (np.abs(values["money_flow_21"][252:]) <= 1.0)[:, 2:].all()
    assert (values["close_location_10"][252:, 3] == 0.0).all()
    features = compute_features(quiet, FIT)
    assert np.isfinite(features.assets).all()
    assert (features.assets[500, 2:] != 0.0).any(axis=1).all()


def test_neither_the_unit_of_a_price_nor_that_of_volume_matters() -> None:
    panel = market()
    units = np.array([1e-4, 0.5, 1.0, 3.0, 1e4])
    prices = {name: field(panel, name) * units for name in ("close", "open", "high", "low")}
    split = replace(panel, **prices, volume=field(panel, "volume") / units)
    np.testing.assert_allclose(compute_features(split, FIT).assets, compute_features(panel, FIT).assets, atol=1e-5)
