"""Calibration in small: nothing is found where nothing is, a large edge is, nulls are nulls, and the books are kept."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from finflow.agent.networks.policy import ExpertPolicy
from finflow.config import Config, load_config
from finflow.env.decision_process import DecisionProcess
from finflow.evaluation.statistics import metrics
from finflow.experiments.jobs.walk_forward import folds_of, history_of
from finflow.market.panel import MarketPanel
from finflow.market.sources.panel_loader import load_panel
from finflow.strategies.classical import BuyAndHold, Momentum
from finflow.strategies.strategy import Strategy
from finflow.trading.paper_page import ALPHA
from finflow.training.data.training_data import prepare
from scripts.evidence import anytime, null_markets
from scripts.evidence.anytime import AnytimeStudy, first_answers, measure, permuted
from scripts.evidence.null_markets import WARM_UP, FirstHalf, NullStudy, judge_market, permuted_panel, process_after
from scripts.evidence.walk_forward_nulls import RANDOM, WINNERS, HeldWeights, judge_joined_market, untrained

DAYS = 900


@pytest.fixture(scope="module")
def embedded() -> MarketPanel:
    return load_panel(Config().market)


@pytest.fixture(scope="module")
def bars(embedded: MarketPanel) -> range:
    return range(embedded.n_bars - WARM_UP - DAYS, embedded.n_bars)


def test_labels_change_places_within_each_day_and_nothing_else_does(embedded: MarketPanel, bars: range) -> None:
    panel = permuted_panel(embedded, bars, seed=1)
    before, after = (close[1:] / close[:-1] for close in (embedded.close[bars.start : bars.stop], panel.close))
    np.testing.assert_allclose(np.sort(before, axis=1), np.sort(after, axis=1), rtol=1e-9)
    np.testing.assert_array_equal(panel.dates, embedded.dates[bars.start : bars.stop])
    order = np.argsort(np.argsort(after, axis=1), axis=1)[:, 0] - np.argsort(np.argsort(before, axis=1), axis=1)[:, 0]
    assert np.mean(order == 0) < 0.15, "a label stays in its place one day in twenty"
    assert permuted_panel(embedded, bars, seed=1).sha256 == panel.sha256
    assert permuted_panel(embedded, bars, seed=2).sha256 != panel.sha256


def test_the_planted_edge_is_of_the_size_that_is_stated(embedded: MarketPanel, bars: range) -> None:
    found = []
    for edge in (0.0, 1.5):
        close = permuted_panel(embedded, bars, seed=3, edge=edge).close
        returns = close[1:] / close[:-1] - 1.0
        found.append(float(metrics.sharpe(returns[:, :10].mean(axis=1) - returns.mean(axis=1))))
    assert found[1] - found[0] == pytest.approx(1.5, abs=1e-9)


def test_the_verdict_finds_nothing_where_nothing_is_and_a_large_edge_where_one_is(
    embedded: MarketPanel, bars: range
) -> None:
    def judged(seed: int, edge: float, *strategies: Strategy) -> dict[str, dict[str, Any]]:
        panel = permuted_panel(embedded, bars, seed, edge)
        return judge_market(process_after(panel, WARM_UP, Config()), strategies, Config(), 200)

    null = [judged(seed, 0.0, FirstHalf(), BuyAndHold(), Momentum(63)) for seed in range(6)]
    assert sum(one["answer"] == "yes" for market in null for one in market.values()) <= 1
    rich = [judged(seed, 4.0, FirstHalf()) for seed in range(4)]
    assert sum(market["first half"]["answer"] == "yes" for market in rich) >= 3
    poor = judged(0, -4.0, FirstHalf())
    assert poor["first half"]["answer"] == "no"


def test_a_study_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[str] = []

    def once(process: DecisionProcess, *settings: object) -> dict[str, dict[str, object]]:
        judged.append(process.panel.sha256)
        assert process.panel.n_bars == WARM_UP + 1760
        assert settings[-1] == 100
        return {"first half": {"answer": "yes", "daily": True, "dsr": 0.96, "p": 0.2, "low": float("nan")}}

    monkeypatch.setattr(null_markets, "judge_market", once)
    study = NullStudy(markets=2, planted=1, sizes=(1.0,), samples=100)
    first = null_markets.study_markets(study, None, tmp_path / "notes.jsonl")
    assert len(set(judged)) == 3
    assert [(one["edge"], one["seed"]) for one in first] == [(0.0, 0), (0.0, 1), (1.0, 0)]
    null_markets.study_markets(study, None, tmp_path / "notes.jsonl")
    assert len(judged) == 3
    rows = null_markets.summarise_study(first)
    assert [(row["edge"], row["yes"], row["dsr"], row["spa"], row["interval"]) for row in rows] == [
        (0.0, 2, 2, 0, 0),
        (1.0, 1, 1, 0, 0),
    ]
    table = null_markets.study_table(rows)
    assert "| first half | 2 | 2 | 0 | 0 | 2 | 2 | 0 | 0 |" in table
    assert "| 1 | first half | 1 | 1 | 100% (21% to 100%) | 0 |" in table


def test_a_frozen_agent_reads_the_features_of_its_training(tmp_path: Path) -> None:
    """Those of the default configuration, with the models that were fitted in its training window."""
    shape = prepare(Config()).shape._replace(hidden=8)
    policy = ExpertPolicy(shape, torch.Generator().manual_seed(0))
    (found,) = null_markets.study_markets(NullStudy(1, 0, (), 50), policy, tmp_path / "notes.jsonl")
    assert found["verdicts"]["demo agent, frozen"]["answer"] in ("yes", "not shown", "no")


# --- the joined verdict of a walk-forward


@pytest.fixture(scope="module")
def config() -> Config:
    return load_config(None, {"evaluation.protocol.folds": 2, "evaluation.rebalance_every": 63}, environ={})


@pytest.fixture(scope="module")
def panel() -> MarketPanel:
    steps = np.random.default_rng(0).normal(3e-4, 0.01, (1100, 6))
    dates = np.busday_offset("2015-01-01", np.arange(1100), roll="forward")
    return MarketPanel(dates, tuple("ABCDEF"), 100.0 * np.exp(np.cumsum(steps, axis=0)))


def weights_of(rules: list, name: str) -> np.ndarray:
    (rule,) = (one for one in rules if one.name == name)
    assert isinstance(rule, HeldWeights)
    return rule.weights


def test_no_rule_knows_what_its_training_would_not(panel: MarketPanel, config: Config) -> None:
    folds = folds_of("walk-forward", panel.n_bars, config.evaluation.protocol, history_of(panel))
    close = panel.close.copy()
    close[folds[0].pieces[0].stop :] = close[folds[0].pieces[0].stop :, ::-1]
    other = MarketPanel(panel.dates, panel.assets, close)
    for name in (RANDOM, WINNERS):
        first, changed = (weights_of(untrained(folds[0], one, 3, config), name) for one in (panel, other))
        np.testing.assert_array_equal(first, changed)
        assert first.sum() == pytest.approx(1.0)
    drawn = [weights_of(untrained(fold, panel, 3, config), RANDOM) for fold in folds]
    assert not np.allclose(*drawn)
    best = weights_of(untrained(folds[0], panel, 3, config), WINNERS)
    learned = folds[0].pieces[0]
    past = panel.close[learned.stop - 1] / panel.close[0]
    assert past[best > 0.0].min() > past[best == 0.0].max()


def test_the_joined_verdict_finds_a_large_edge_and_nothing_where_nothing_is(panel: MarketPanel, config: Config) -> None:
    nothing = judge_joined_market(permuted_panel(panel, range(panel.n_bars), 1), config, 1, 0.0, 100)
    assert set(nothing) == {"first half", RANDOM, WINNERS, "inverse-volatility"}
    assert sum(one["answer"] == "yes" for one in nothing.values()) <= 1
    folds = folds_of("walk-forward", panel.n_bars, config.evaluation.protocol, history_of(panel))
    assert nothing[RANDOM]["days"] == sum(len(fold.tests[0]) - 1 for fold in folds)
    assert nothing[RANDOM]["least"] > 0.0
    rich = judge_joined_market(permuted_panel(panel, range(panel.n_bars), 1, 8.0), config, 1, 8.0, 100)
    assert rich["first half"]["answer"] == "yes"
    assert set(rich) == {"first half"}


SMALL = AnytimeStudy(paths=60, backtest=400, account=252, shifts=(6.0,))


def test_portfolios_on_permuted_labels_have_the_mean_of_equal_weight() -> None:
    returns = np.random.default_rng(0).normal(np.linspace(-0.01, 0.01, 6), 0.01, (900, 6))
    drawn = permuted(np.random.default_rng(1), 200, 500, returns)
    assert abs(float(drawn.mean())) < 4.0 * float(drawn.std()) / math.sqrt(drawn.size)


def test_the_fixed_test_is_welchs_and_the_repeated_one_looks_from_the_21st_day() -> None:
    rng = np.random.default_rng(5)
    paths = np.expm1(rng.normal(0.0, 0.01, (80, SMALL.bars)))
    found = first_answers(paths, SMALL, shift=1.0)
    logs = np.log1p(paths)
    loss = float(logs.std()) / math.sqrt(252.0)
    ends = stats.ttest_ind(logs[:, SMALL.backtest :] - loss, logs[:, : SMALL.backtest], axis=1, equal_var=False)
    np.testing.assert_array_equal(np.isfinite(found["fixed"]), ends.pvalue < ALPHA)
    assert found["repeated"].min() >= 21.0
    assert (np.isfinite(found["repeated"]) >= np.isfinite(found["fixed"])).all()


def test_looking_every_day_misleads_the_t_test_and_not_the_sequential_one() -> None:
    closes = 100.0 * np.exp(np.cumsum(np.random.default_rng(0).normal(0.0, 0.01, (900, 6)), axis=0))
    dates = np.busday_offset("2015-01-01", np.arange(900), roll="forward")
    rules = {"equal weight": np.random.default_rng(0).standard_t(4, 800) * 0.007}
    result = measure(SMALL, MarketPanel(dates, tuple("ABCDEF"), closes), rules)
    answers = {name: sum(one["answers"][name] for one in result["nulls"]) for name in anytime.TESTS}
    paths = SMALL.paths * len(result["nulls"])
    assert answers["sequential"] / paths <= ALPHA + 0.02, "600 paths: 2 standard deviations of a share of 5 %"
    assert answers["repeated"] / paths > 0.15
    assert {one["law"] for one in result["power"]} == {"normal", "equal weight, blocks of 63 days"}
    for one in result["power"]:
        assert one["answers"]["sequential"] > 0.8 * SMALL.paths
        assert one["median_day"]["sequential"] < SMALL.account
