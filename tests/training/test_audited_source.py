"""The door that prices come in by is audited as it is configured: every layout and field, and Yahoo's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from finflow.config import MarketConfig
from finflow.market.panel import MarketPanel
from finflow.market.price_adjustments import reinvest
from finflow.market.sources import cash, panel_loader as sources, yahoo as download
from finflow.market.sources.price_files import FILE_A_FIELD, FILE_AN_ASSET, LONG, TWO_LEVELS, WIDE
from finflow.training.audit.audited_parts import loaded, through_the_source
from finflow.training.audit.look_ahead import Component, Finding, Probe, audit

BARS = 120
LAYOUTS = (TWO_LEVELS, LONG, FILE_A_FIELD, FILE_AN_ASSET)
FIELDS = ("close", "open", "high", "low", "volume")


def panel(layout: str | None = None, **changes: Any) -> MarketPanel:
    """Four assets with every field and an index; C lists late, D ends early, and rates of cash change."""
    rng = np.random.default_rng(8)
    close = 40.0 * np.exp(np.cumsum(rng.normal(0.0, 0.02, (BARS, 4)), axis=0))
    close[:30, 2], close[90:, 3] = np.nan, np.nan
    market = MarketPanel(
        dates=pd.bdate_range("2020-01-01", periods=BARS).to_numpy("datetime64[D]"),
        assets=tuple("ABCD"),
        close=close,
        cash_returns=np.append(0.0, rng.uniform(0.0, 2e-4, BARS - 1)),
        open=close * 0.99,
        high=close * 1.02,
        low=close * 0.97,
        volume=np.where(np.isfinite(close), rng.integers(0, 99, close.shape), np.nan),
        benchmark=100.0 + np.cumsum(rng.normal(0.0, 0.5, BARS)),
        benchmark_name="IDX",
        provenance={} if layout is None else {"layout": layout},
    )
    return replace(market, **changes)


def configured(source: str, **settings: Any) -> MarketConfig:
    values = {"source": source, "path": "prices", "tickers": list("ABCD"), "benchmark": "IDX", "cash_rate": "rates.csv"}
    return MarketConfig.model_validate({**values, **settings})


def asked(market: MarketPanel, config: MarketConfig, *lasts: int) -> tuple[Finding, ...]:
    """What the audit finds in the source."""
    source = Component("source", lambda panel, _: loaded(panel, config))
    kinds = ("repeat", "cut", "replaced", "relisted")
    return audit(market, [source], [Probe(last, kind) for last in lasts for kind in kinds])


@pytest.mark.parametrize(
    ("source", "layout"),
    [*((kind, layout) for kind in ("csv", "parquet") for layout in LAYOUTS), ("csv", WIDE), ("yfinance", None)],
)
def test_everything_goes_through_the_door(source: str, layout: str | None) -> None:
    """One column an asset has closes alone."""
    fields = FIELDS[:1] if layout == WIDE else FIELDS
    market = panel(layout, **{name: None for name in FIELDS if name not in fields})
    there = through_the_source(market, configured(source))
    assert there.assets == market.assets
    assert there.dates.tolist() == market.dates.tolist()
    for field in (*fields, "benchmark", "cash_returns"):
        np.testing.assert_allclose(getattr(there, field), getattr(market, field), rtol=1e-12, atol=1e-15)
    assert there.provenance.get("layout") == layout or source == "yfinance"


def paying(layout: str | None) -> MarketPanel:
    """The same market as unadjusted prices with dividends, which are paid in cash."""
    market = panel(layout)
    paid = np.where(np.random.default_rng(9).random(market.close.shape) < 0.05, 1.5, 0.0)
    fields = {name: getattr(market, name) for name in FIELDS}
    return replace(market, **reinvest(fields, np.where(market.listed, paid, np.nan), market.dates, market.assets))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_dividends_go_through_the_door_and_cannot_be_known_before(layout: str) -> None:
    market, config = paying(layout), configured("csv", dividends="cash")
    there = through_the_source(market, config)
    for field in (*FIELDS, "dividends", "quoted"):
        np.testing.assert_allclose(getattr(there, field), getattr(market, field), rtol=1e-12, atol=1e-15)
    findings = asked(market, config, 20, 70, 92)
    assert [finding.where for finding in findings if finding.verdict != "clean"] == []


@pytest.mark.parametrize(
    ("source", "settings"),
    [
        ("csv", {}),
        ("csv", {"max_gap": 4}),
        ("yfinance", {}),
        ("yfinance", {"auto_adjust": False}),
        ("yfinance", {"max_gap": 2}),
        ("embedded", {}),
    ],
)
def test_the_doors_are_clean(source: str, settings: dict[str, Any]) -> None:
    """Also where an asset ended just before the cut, and where one has not listed yet."""
    findings = asked(panel(LONG), configured(source, **settings), 20, 70, 92)
    assert [finding.where for finding in findings if finding.verdict != "clean"] == []
    assert all(finding.rows > 0 for finding in findings)


def _filled_backwards(patch: pytest.MonkeyPatch) -> None:
    real = download.same_calendar
    patch.setattr(download, "same_calendar", lambda tables: real({f: t.bfill() for f, t in tables.items()}))


def _gaps_held_at_the_next_price(patch: pytest.MonkeyPatch) -> None:
    real = sources.hold_over_gaps

    def early(fields: Any, max_gap: int) -> Any:
        _, halted = real(fields, max_gap)
        return {name: pd.DataFrame(table).bfill(limit=max_gap).to_numpy() for name, table in fields.items()}, halted

    patch.setattr(sources, "hold_over_gaps", early)


def _adjusted_closes_anyway(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(download._FIELDS, "Adj Close", "close")
    patch.delitem(download._FIELDS, "Close")


def _volume_of_the_sample(patch: pytest.MonkeyPatch) -> None:
    real = sources.assemble

    def scaled(prices: Any, *more: Any) -> MarketPanel:
        volume = prices.tables["volume"] / prices.tables["volume"].max()
        return real(prices._replace(tables={**prices.tables, "volume": volume}), *more)

    patch.setattr(sources, "assemble", scaled)


def _dividends_before_their_ex_date(patch: pytest.MonkeyPatch) -> None:
    real = sources.reinvest

    def early(*given: Any) -> Any:
        found = real(*given)
        known = np.nan_to_num(np.roll(found["dividends"], -1, axis=0))
        return {**found, "dividends": np.where(np.isnan(found["close"]), np.nan, known)}

    patch.setattr(sources, "reinvest", early)


def _rates_of_tomorrow(patch: pytest.MonkeyPatch) -> None:
    real = cash.cash_returns

    def early(dates: Any, rate: Any, *_: Any) -> Any:
        return np.append(real(dates, rate)[1:], real(dates, rate)[-1:] * 0.0) * (np.arange(len(dates)) > 0)

    patch.setattr(sources, "cash_returns", early)


@pytest.mark.parametrize(
    ("plant", "source", "settings", "part"),
    [
        (_filled_backwards, "yfinance", {}, "close"),
        (_gaps_held_at_the_next_price, "csv", {"max_gap": 4}, "close"),
        (_adjusted_closes_anyway, "yfinance", {"auto_adjust": False}, "close"),
        (_volume_of_the_sample, "csv", {}, "volume"),
        (_dividends_before_their_ex_date, "csv", {"dividends": "cash"}, "dividends"),
        (_rates_of_tomorrow, "yfinance", {}, "cash"),
    ],
)
def test_a_door_that_looks_ahead_is_caught(
    plant: Any, source: str, settings: dict[str, Any], part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    market = paying(LONG) if "dividends" in settings else panel(LONG)
    plant(monkeypatch)
    findings = asked(market, configured(source, **settings), 20, 70)
    leaks = [finding.where for finding in findings if finding.verdict == "LEAK"]
    assert any(f"its {part}" in where for where in leaks), leaks
