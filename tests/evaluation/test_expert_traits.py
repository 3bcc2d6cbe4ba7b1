"""Traits of experts' portfolios are their formulas and know no future; the gate's weights are by the crisis score."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from finflow.evaluation.analysis.expert_traits import (
    CLAIMS,
    TRAITS,
    ExpertTraits,
    expert_section,
    expert_traits,
    gate_by_state,
    gate_section,
)
from finflow.market.panel import MarketPanel
from finflow.strategies.behaviour import FAMILIES, family_tables
from tests.evaluation.made_up import section_html

BARS, ASSETS = 1100, 6
GATED = ("defensive", "growth")


def make_panel(after: int | None = None) -> MarketPanel:
    """Assets that differ in risk, drift and share of the market; other returns from the bar ``after`` on."""
    rng = np.random.default_rng(0)
    returns = 0.008 * rng.normal(size=(BARS, 1)) * np.linspace(0.4, 1.6, ASSETS)
    returns += rng.normal(size=(BARS, ASSETS)) * np.linspace(0.004, 0.02, ASSETS) + np.linspace(0.0, 0.0008, ASSETS)
    if after is not None:
        returns[after:] = rng.normal(-0.02, 0.05, size=(BARS - after, ASSETS))
    return MarketPanel(
        dates=pd.bdate_range("2010-01-01", periods=BARS).to_numpy().astype("datetime64[D]"),
        assets=tuple("ABCDEF"),
        close=100.0 * np.exp(np.cumsum(returns, axis=0)),
        cash_returns=np.append(0.0, np.full(BARS - 1, 0.00005)),
    )


def test_traits_are_their_formulas() -> None:
    panel, bar = make_panel(), 900
    portfolio = np.array([0.1, 0.2, 0.1, 0.05, 0.15, 0.2, 0.2])
    found = expert_traits(panel, [bar], portfolio[None, None], ["one"])
    returns = panel.close[1:] / panel.close[:-1] - 1.0
    year, sleeve = returns[bar - 252 : bar], portfolio[:-1] / 0.8
    matrix = np.cov(year.T, ddof=0)
    variance = sleeve @ matrix @ sleeve
    mean = returns[bar - 756 : bar].mean(axis=0)
    shrunk = 0.5 * (mean + mean.mean())
    equal = np.full(ASSETS, 1 / ASSETS)
    expected = {
        "volatility": np.sqrt(252 * variance),
        "diversification": sleeve @ np.sqrt(np.diag(matrix)) / np.sqrt(variance),
        "momentum": sleeve @ np.log(panel.close[bar - 21] / panel.close[bar - 252]),
        "beta": sleeve @ matrix @ equal / (equal @ matrix @ equal),
        "growth": 252 * (sleeve @ shrunk - variance / 2),
    }
    assert found.sleeve["one"] == pytest.approx(expected, rel=1e-9)
    in_total = {name: 0.8 * expected[name] for name in ("volatility", "momentum", "beta")}
    in_total["diversification"] = expected["diversification"]
    in_total["growth"] = 252 * (0.8 * sleeve @ shrunk + 0.2 * 0.00005 - 0.64 * variance / 2)
    assert found.total["one"] == pytest.approx(in_total, rel=1e-9)
    assert found.cash["one"] == pytest.approx(0.2)
    assert found.sleeve["equal-weight"]["beta"] == pytest.approx(1.0)
    assert found.days == 1


def test_prices_to_come_change_nothing() -> None:
    portfolios = np.random.default_rng(1).dirichlet(np.ones(ASSETS + 1), size=(50, 2))
    known = range(800, 850)
    calm, crash = (expert_traits(make_panel(after=after), known, portfolios, ["a", "b"]) for after in (None, 850))
    assert calm == crash
    assert calm != expert_traits(make_panel(after=849), known, portfolios, ["a", "b"])


def test_the_families_are_what_their_experts_are_called() -> None:
    """So an expert that names what its family names is what it is called."""
    panel = make_panel()
    known = list(range(800, 1100, 10))
    named = np.stack([family_tables(panel, family).mean(axis=0)[known] for family in FAMILIES], axis=1)
    found = expert_traits(panel, known, named, FAMILIES)
    assert [name for name in FAMILIES if not found.holds(name, "sleeve")] == []
    assert all(one["invested"] for one in found.as_called.values())


def made_up(**changes: float) -> ExpertTraits:
    """Experts that are what they are called, but for ``changes``, such as ``growth_beta=0.1``."""
    table = {name: dict.fromkeys(TRAITS, 1.0) for name in (*CLAIMS, "equal-weight")}
    for expert, (trait, direction) in CLAIMS.items():
        table[expert][trait] = 2.0 if direction == "most" else 0.5
    for place, value in changes.items():
        expert, trait = place.split("_")
        table[expert][trait] = value
    return ExpertTraits(table, table, dict.fromkeys(table, 0.1), 7)


@pytest.mark.parametrize(
    ("changes", "fails"),
    [
        ({}, None),
        ({"volatility_volatility": 1.1}, "volatility"),
        ({"growth_momentum": 2.5}, "momentum"),
        ({"volatility_beta": 0.4}, "defensive"),
        ({"equal-weight_growth": 9.0}, None),
        ({"correlation_volatility": 0.1}, None),
    ],
)
def test_names_are_claims(changes: dict[str, float], fails: str | None) -> None:
    found = made_up(**changes)
    assert [name for name in CLAIMS if not found.holds(name, "total")] == ([fails] if fails else [])


def test_the_section_shows_every_number_it_has(
    read_page: Callable[[str], Any], numbers_hold: Callable[[Any, Any], int]
) -> None:
    told = expert_section(made_up(growth_momentum=2.5), "the decisions of the validation window")
    assert told.numbers["as_called"]["momentum"] == {"sleeve": False, "total": False, "invested": True}  # type: ignore[index]
    assert numbers_hold(read_page(section_html(told)), {"expert_traits": told.numbers}) == 2 * 6 * 6


def test_each_decision_counts_where_the_market_was(
    read_page: Callable[[str], Any], numbers_hold: Callable[[Any, Any], int]
) -> None:
    crisis = np.array([0.0, 0.199, 0.2, 0.79, 0.8, 1.0])
    gate = np.array([[0.1, 0.9], [0.3, 0.7], [0.5, 0.5], [0.5, 0.5], [0.8, 0.2], [1.0, 0.0]])
    cash = np.array([0.0, 0.0, 0.1, 0.3, 0.4, 0.6])
    found = gate_by_state(crisis, gate, cash, GATED)
    assert [one["decisions"] for one in found.values()] == [2, 2, 2]
    assert found["calm"]["gate"] == pytest.approx({"defensive": 0.2, "growth": 0.8})
    assert found["crisis"]["gate"] == pytest.approx({"defensive": 0.9, "growth": 0.1})
    assert [one["cash"] for one in found.values()] == pytest.approx([0.0, 0.2, 0.5])
    two = gate_by_state(crisis[[0, 5]], gate[[0, 5]], cash[[0, 5]], GATED)
    assert list(two) == ["calm", "crisis"], "a state that never was is left out"
    told = gate_section(two, GATED, "all decisions")
    assert numbers_hold(read_page(section_html(told)), {"gate_states": told.numbers}) == 2 * 4
