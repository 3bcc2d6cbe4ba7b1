"""The optimum is what it says: its value is earned on the ledger, and no change of the policy earns more."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pytest

from finflow.arrays import FloatArray
from finflow.config import EnvConfig, MarketConfig
from finflow.errors import ConfigError
from finflow.ledger.accounting import drift, settle
from finflow.ledger.costs import Proportional
from finflow.market.sources.synthetic_market import PriceProcess, process_of
from finflow.strategies.dynamic_programming import trading_cost
from finflow.strategies.optimal_policy import Optimum, expected_growth, optimum, optimum_of
from tests.market.test_synthetic import market

Targets = Callable[[FloatArray, FloatArray], FloatArray]

PATHS = 60
RATE = 0.0015
BARS, SETTLING = 120, 30


@lru_cache
def process_for(kind: str, assets: int = 2) -> PriceProcess:
    return process_of(market(kind, assets=assets).synthetic)


@lru_cache
def solved(kind: str, rate: float, assets: int = 2) -> Optimum:
    return optimum(process_for(kind, assets), rate)


@lru_cache
def paths(kind: str, assets: int = 2) -> tuple[FloatArray, FloatArray]:
    """Beliefs (paths, bars) and gross growth (paths, bars - 1, K)."""
    process, rng = process_for(kind, assets), np.random.default_rng(11)
    drawn = np.stack([process.draw(rng, BARS) for _ in range(PATHS)])
    growth = np.exp(np.diff(drawn, axis=1))
    beliefs = np.stack([process.filtered(path) for path in drawn])
    return beliefs, np.concatenate([growth, np.ones_like(growth[..., :1])], 2)


def earned(kind: str, rate: float, targets: Targets, assets: int = 2) -> FloatArray:
    """Expected log growth a bar of every path on the ledger, each decision knowing bars up to one before its fill."""
    beliefs, growth = paths(kind, assets)
    weights = np.tile([*[1.0 / assets] * assets, 0.0], (PATHS, 1))
    held, paid = [], []
    for bar in range(BARS - 2):
        before, target = (drift(each, growth[:, bar]) for each in (weights, targets(beliefs[:, bar], weights)))
        fill = settle(before, target, Proportional(rate), np.ones(PATHS))
        weights = np.asarray(fill.weights)
        held.append(weights)
        paid.append(np.log(fill.wealth_factor))
    known = beliefs[:, SETTLING + 1 : -1].T.ravel()
    grown = expected_growth(process_for(kind, assets), np.concatenate(held[SETTLING:]), known)
    return np.mean(paid[SETTLING:], axis=0) + grown.reshape(-1, PATHS).mean(axis=0)


def error(values: FloatArray) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values)))


CASES = [(kind, rate, 2) for kind in ("lognormal", "mean-reverting", "regime", "exchangeable") for rate in (0.0, RATE)]
CASES += [(kind, RATE, 3) for kind in ("lognormal", "mean-reverting", "regime", "exchangeable")]


@pytest.mark.parametrize(("kind", "rate", "assets"), CASES)
def test_the_promised_utility_is_earned_and_no_other_policy_earns_more(kind: str, rate: float, assets: int) -> None:
    """5 280 bars: within three standard errors and the grid's own error, half a percent of the utility."""
    best = solved(kind, rate, assets)
    rule = best.policy.rule
    own = earned(kind, rate, rule.targets, assets)
    assert abs(own.mean() - best.utility) < 3.0 * error(own) + 0.005 * best.utility
    first, last, cash = np.eye(assets + 1)[[0, assets - 1, assets]]
    swapped = [*range(assets - 1, -1, -1), assets]
    others: dict[str, Targets] = {
        "a tenth elsewhere": lambda b, w: 0.9 * rule.targets(b, w) + 0.01 * first + 0.09 * last,
        "a tenth in cash": lambda b, w: 0.9 * rule.targets(b, w) + 0.1 * cash,
        "swapped assets at times": lambda b, w: np.where(
            (np.abs(b) > 0.3)[:, None], rule.targets(b, w), rule.targets(b, w)[:, swapped]
        ),
        "half of every trade": lambda b, w: 0.5 * rule.targets(b, w) + 0.5 * w,
    }
    if assets > 2:
        others["a tenth in the middle"] = lambda b, w: 0.9 * rule.targets(b, w) + 0.1 * np.eye(assets + 1)[1]
    if kind in ("mean-reverting", "regime"):
        threshold = 0.0 if kind == "mean-reverting" else 0.5
        others["a threshold"] = lambda b, w: np.where((b < threshold)[:, None], first, last)
    for name, other in others.items():
        gain = earned(kind, rate, other, assets) - own
        # what is exactly as good (half of a trade without costs between equals) may differ by rounding
        assert gain.mean() < 3.0 * error(gain) + 2e-6, name


def test_independent_returns_give_mertons_share() -> None:
    """mu / sigma^2 = 1/2 in the best asset (the other is not held), and half of mu^2 / sigma^2 for it.

    Merton trades without pause; here a target drifts for two bars, which costs a share of the variance per bar.
    """
    best = solved("lognormal", 0.0)
    target = best.policy.rule.targets(np.zeros(1), np.empty(0))[0]
    np.testing.assert_allclose(target, [0.5, 0.0, 0.5], atol=1e-4)
    assert best.utility == pytest.approx(0.03125**2 / 0.25**2 / 2.0, rel=0.03)
    symmetric = solved("exchangeable", 0.0).policy.rule.targets(np.zeros(1), np.empty(0))[0]
    np.testing.assert_allclose(symmetric, [0.5, 0.5, 0.0], atol=1e-4)


@pytest.mark.parametrize("assets", [2, 3, 4])
def test_one_asset_that_is_always_best_is_best_at_any_cost(assets: int) -> None:
    free, dear = (optimum(process_for("constant-drift", assets), rate) for rate in (0.0, 0.02))
    assert free.utility == dear.utility == pytest.approx(0.004 - 0.5 * 0.01**2)
    assert dear.policy.rule.targets(np.zeros(1), np.empty(0))[0].argmax() == 0


def test_the_cost_in_closed_form_is_the_ledgers() -> None:
    before, target = np.random.default_rng(0).dirichlet(np.full(3, 0.5), (2, 500))
    exact = np.log(settle(before, target, Proportional(RATE), np.ones(500)).wealth_factor)
    np.testing.assert_allclose(trading_cost(RATE, before, target), exact, atol=RATE**2)
    assert (trading_cost(RATE, before, before) == 0.0).all()


def test_a_policy_says_what_it_does() -> None:
    said = solved("mean-reverting", RATE).examples(("A", "B"))
    assert list(said.values()) == ["100% A", "100% A", "50% A and 50% B", "100% B", "100% B"]
    assert all(name.startswith("spread ") for name in said)
    assert solved("lognormal", 0.0).examples(("A", "B")) == {"always": "50% A and 50% cash"}


def test_what_has_no_known_optimum_is_refused_with_the_key_to_change() -> None:
    with pytest.raises(ConfigError, match=r"market\.source = embedded"):
        optimum_of(MarketConfig(), EnvConfig())
    for keys in ({"execution_lag": 2}, {"max_weight": 0.5}, {"max_turnover": 0.5}, {"no_trade_band": 0.1}):
        with pytest.raises(ConfigError, match=rf"env\.{next(iter(keys))} = "):
            optimum_of(market("lognormal"), EnvConfig.model_validate(keys))
