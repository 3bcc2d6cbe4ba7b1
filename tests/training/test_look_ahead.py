"""The audit catches leaks known from this field, names them, and raises no false alarm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st

from finflow.arrays import FloatArray
from finflow.market.features.asset_features import features_of
from finflow.market.features.rolling_windows import PanelView
from finflow.market.panel import MarketPanel
from finflow.training.audit.look_ahead import Answer, Component, Probe, Rows, audit, rows_by_bar, verdict_of
from finflow.training.audit.shocked_panels import REPEAT, SHOCKS, shocked

BARS, ASSETS = 240, 5
PROBES = tuple(Probe(last, kind) for last in (60, 149, 200, BARS - 4) for kind in SHOCKS)


def market(seed: int = 0, ragged: bool = True, fields: bool = True) -> MarketPanel:
    """Correlated walks with every field; where ragged, one asset ends early and one lists late."""
    rng = np.random.default_rng(seed)
    close = 40.0 * np.exp(np.cumsum(0.012 * rng.standard_normal((BARS, ASSETS)), axis=0))
    if ragged:
        close[BARS // 2 :, 0] = np.nan
        close[: BARS // 3, 1] = np.nan
        close[: BARS - 30, 2] = np.nan
    more: dict[str, FloatArray] = {}
    if fields:
        more = {
            "open": close * np.exp(0.003 * rng.standard_normal(close.shape)),
            "high": close * 1.01,
            "low": close * 0.99,
            "volume": np.where(np.isfinite(close), rng.integers(1, 10**6, close.shape), np.nan),
            "benchmark": 100.0 * np.exp(np.cumsum(0.01 * rng.standard_normal(BARS))),
        }
    dates = np.busday_offset("2001-01-01", np.arange(BARS), roll="forward")
    cash = np.append(0.0, np.full(BARS - 1, 1e-4))
    return MarketPanel(dates=dates, assets=tuple("ABCDE"), close=close, cash_returns=cash, **more)


def returns(panel: MarketPanel) -> FloatArray:
    result = np.zeros(panel.close.shape)
    result[1:] = np.nan_to_num(np.log(panel.close[1:] / panel.close[:-1]))
    return result


def component(make: Callable[[MarketPanel], FloatArray], name: str = "planted", lag: int = 0) -> Component:
    return Component(
        name, lambda panel, last: {"value": rows_by_bar({"value": make(panel)})["value"]._replace(lag=lag)}
    )


# --- leaks: each is a fault that was published, sold or traded on


LEAKS: dict[str, Callable[[Any], FloatArray]] = {
    "full-sample scaling": lambda panel: (returns(panel) - returns(panel).mean()) / returns(panel).std(),
    "back-filling": lambda panel: pd.DataFrame(panel.close).bfill().to_numpy(),
    "a calendar that knows listings": lambda panel: np.where(panel.listed[-1], returns(panel), 0.0),
    "a benchmark with hindsight": lambda panel: np.nan_to_num(panel.close) / panel.benchmark[-1],
    "a negative shift": lambda panel: np.roll(returns(panel), -1, axis=0),
    "volume still to come": lambda panel: np.cumsum(np.nan_to_num(panel.volume)[::-1], axis=0)[::-1],
    "interest of tomorrow": lambda panel: np.append(panel.cash_returns[1:], 0.0),
    "a stop that knows it will be hit": lambda panel: np.roll(panel.low, -1, axis=0) < 0.95 * panel.close,
}


@pytest.mark.parametrize("name", LEAKS)
def test_a_planted_leak_is_caught_and_named(name: str) -> None:
    findings = audit(market(), [component(returns, "honest"), component(LEAKS[name], name)], PROBES)
    assert {finding.component for finding in findings if finding.verdict != "clean"} == {name}
    said = str(verdict_of(findings))
    assert said.startswith(f"{name} looks ahead: with the future ")
    assert "2001-" in said


def test_a_fill_at_the_bar_of_the_signal_is_caught_at_lag_1_and_allowed_at_lag_0() -> None:
    late, paper = component(returns, "late", lag=1), component(returns, "paper", lag=0)
    findings = audit(market(), [paper, late], PROBES)
    assert {finding.component for finding in findings if finding.verdict == "LEAK"} == {"late"}


def test_a_leak_says_where_it_begins_and_how_large_it_is() -> None:
    panel = market()
    (finding,) = audit(panel, [component(LEAKS["a negative shift"])], [Probe(100, "crash")])
    assert finding.verdict == "LEAK"
    assert finding.difference == pytest.approx(np.log(2.0), rel=1e-9)
    assert finding.where.startswith("its value [")
    assert f"of {panel.dates[100]} changes by up to 0.693, known: {panel.dates[100]}" in finding.where


def test_what_answers_differently_when_asked_again_cannot_be_audited() -> None:
    seen: list[int] = []

    def remembers(panel: MarketPanel) -> FloatArray:
        seen.append(panel.n_bars)
        return returns(panel) + len(seen)

    findings = audit(market(), [component(remembers)], [Probe(100, REPEAT)])
    assert findings[0].verdict == "NOT REPEATABLE"
    assert "cannot be audited" in str(verdict_of(findings))


def test_a_component_that_works_with_one_future_alone_is_named() -> None:
    def brittle(panel: MarketPanel) -> FloatArray:
        if panel.n_bars < BARS:
            raise ValueError("too short")
        return returns(panel)

    findings = audit(market(), [component(brittle, "brittle")], PROBES)
    assert [(f.component, f.probe) for f in findings if f.verdict == "FAILED"] == [("brittle", "cut")]
    assert "ValueError: too short" in str(verdict_of(findings))


def test_rows_that_come_or_go_with_the_future_are_a_leak() -> None:
    def chosen(panel: MarketPanel, last: int) -> Answer:
        bars = np.flatnonzero(np.roll(returns(panel)[:, 3], -1) > 0.0)  # only the days before a gain are kept
        return {"kept": Rows(np.ones(len(bars)), bars)}

    findings = audit(market(), [Component("chooser", chosen)], PROBES)
    assert "chooser looks ahead" in str(verdict_of(findings))


# --- no false alarms


def causal(panel: MarketPanel) -> dict[str, Rows]:
    view = PanelView(panel)
    fields = {name: getattr(panel, name) for name in ("open", "high", "low", "volume", "benchmark", "cash_returns")}
    parts = dict(rows_by_bar({one.name: one.compute(view) for one in features_of(panel, "none")} | fields))
    parts["yesterday"] = Rows(returns(panel)[:-1], np.arange(1, panel.n_bars), lag=1)
    fitted = returns(panel)[: min(60, panel.n_bars)].std()
    parts["scaled"] = Rows((returns(panel) / max(fitted, 1e-9))[60:], np.arange(60, panel.n_bars))
    return parts


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), ragged=st.booleans(), fields=st.booleans(), last=st.integers(60, BARS - 3))
def test_what_is_causal_passes_on_any_panel(seed: int, ragged: bool, fields: bool, last: int) -> None:
    panel = market(seed, ragged, fields=fields)
    probes = [Probe(last, kind) for kind in SHOCKS]
    findings = audit(panel, [Component("causal", lambda panel, _: causal(panel))], probes, seed)
    assert verdict_of(findings) is None
    assert {finding.probe for finding in findings} == set(SHOCKS)
    assert all(finding.rows > 0 for finding in findings)


# --- the shocks themselves


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), ragged=st.booleans(), fields=st.booleans(), last=st.integers(1, BARS - 3))
def test_a_shock_leaves_the_past_alone_and_changes_what_comes(seed: int, ragged: bool, fields: bool, last: int) -> None:
    panel = market(seed, ragged, fields=fields)
    for kind in SHOCKS:
        other = shocked(panel, kind, last, seed)
        assert other.until(last + 1).sha256 == panel.until(last + 1).sha256
        assert (other.sha256 == panel.sha256) == (kind == REPEAT)
        assert shocked(panel, kind, last, seed).sha256 == other.sha256


@pytest.mark.parametrize("kind", ["replaced", "rescaled", "crash", "boom", "nudged", "shuffled"])
def test_a_shock_reaches_every_field(kind: str) -> None:
    panel = market(ragged=False)
    other = shocked(panel, kind, 100, 0)
    for name in ("close", "open", "high", "low", "volume", "benchmark"):
        before, after = getattr(panel, name)[101:], getattr(other, name)[101:]
        assert (before != after).mean() > 0.9, name
    if kind != "shuffled":  # a constant rate is the same in any order
        assert (panel.cash_returns[101:] != other.cash_returns[101:]).all()
