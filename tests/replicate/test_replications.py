"""Replications: wealth and weights by the formulas of the papers, and the command."""

from __future__ import annotations

import importlib.util
import json
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.optimize
from numpy.typing import NDArray

from finflow.cli.exit_status import run_safely
from finflow.errors import MarketError
from finflow.strategies.classical import BuyAndHold
from finflow.strategies.online_selection import ConstantRebalanced, MeanReversion, PassiveAggressiveMeanReversion
from scripts.replicate import __main__ as command
from scripts.replicate.comparison import NAIVE_DIVERSIFICATION, Comparison, in_digits_of
from scripts.replicate.naive_diversification import POLICIES, WINDOW, hold, in_sample, sharpe, shipped_sets
from scripts.replicate.online_wealth import TOOLBOX_OPENING, ToolboxOpening, final_wealth, read_sets
from tests.commands import refusal


def relatives(rows: int = 40, assets: int = 4) -> NDArray[np.float64]:
    return np.exp(0.02 * np.random.default_rng(5).standard_normal((rows, assets)))


def projected(point: NDArray[np.float64]) -> NDArray[np.float64]:
    """The nearest portfolio, by bisection of the amount that is taken from every weight."""
    low, high = point.min() - 1.0, point.max()
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if np.maximum(point - middle, 0.0).sum() > 1.0 else (low, middle)
    return np.maximum(point - low, 0.0)


def by_hand(x: NDArray[np.float64], rule: str) -> float:
    """Wealth by the formulas of the papers, with none of finflow's code."""
    weights, wealth = np.full(x.shape[1], 1.0 / x.shape[1]), 1.0
    for day in range(len(x)):
        known = x[:day]
        if rule == "pamr" and day:
            loss = max(0.0, weights @ known[-1] - 0.5)
            away = known[-1] - known[-1].mean()
            weights = projected(weights - loss / (away @ away) * away)
        if rule == TOOLBOX_OPENING and day >= 2:
            inverse = [np.ones(x.shape[1])]
            for back in range(1, 5):
                inverse.append(inverse[-1] / known[-back] if back <= day else inverse[-1])
            predicted = known[-1] if day < 6 else np.mean(inverse, axis=0)
            away = predicted - predicted.mean()
            weights = projected(weights + max(0.0, 10.0 - weights @ predicted) / (away @ away) * away)
        wealth *= weights @ x[day]
    return float(wealth)


def test_the_ledger_without_costs_has_the_wealth_of_the_papers_formulas() -> None:
    x = relatives()
    prices = np.vstack([np.ones(4), np.cumprod(x, axis=0)])
    made = [BuyAndHold(), ConstantRebalanced(), PassiveAggressiveMeanReversion(), ToolboxOpening(), MeanReversion()]
    found = final_wealth(prices, made)
    assert found["buy-and-hold"] == pytest.approx(prices[-1].mean(), rel=1e-9)
    assert found["crp"] == pytest.approx(np.prod(x.mean(axis=1)), rel=1e-9)
    assert found["pamr"] == pytest.approx(by_hand(x, "pamr"), rel=1e-9)
    assert found[TOOLBOX_OPENING] == pytest.approx(by_hand(x, TOOLBOX_OPENING), rel=1e-9)
    assert found["olmar"] != pytest.approx(found[TOOLBOX_OPENING], rel=1e-6)


def test_a_set_is_the_same_from_a_wheel_and_a_folder(tmp_path: Path) -> None:
    x = relatives()
    frame = pd.DataFrame(np.cumprod(x, axis=0), columns=list("ABCD"))
    frame.to_csv(tmp_path / "djia.csv", index=False)
    with zipfile.ZipFile(tmp_path / "made.whl", "w") as archive:
        archive.write(tmp_path / "djia.csv", "universal/data/djia.csv")
    for name in ("made.whl", ""):
        ((_, prices),) = read_sets(tmp_path / name)[0].items()
        np.testing.assert_allclose(prices[0], 1.0)
        np.testing.assert_allclose(prices[1:] / prices[:-1], x, rtol=1e-12)


@pytest.mark.parametrize(
    ("content", "words"),
    [("A,B\n1.0,x\n", "is no table of prices"), ("A,B\n1.0,1.0\n1.0,-2\n", "row 2: column 2 has no price above zero")],
)
def test_a_set_that_is_none_is_one_line(content: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "djia.csv").write_text(content)
    with pytest.raises(MarketError, match=words):
        read_sets(tmp_path)


@pytest.mark.parametrize(
    ("published", "value", "shown", "difference"),
    [
        ("0.2240", 0.22399, "0.2240", "0"),
        ("0.2240", 0.2348, "0.2348", "+0.0108"),
        ("-0.0183", -0.02, "-0.0200", "-0.0017"),
        ("5.14E+15", 5.13843e15, "5.14E+15", "0"),
    ],
)
def test_figures_are_compared_in_the_digits_that_were_published(
    published: str, value: float, shown: str, difference: str
) -> None:
    row = Comparison("set", "rule", value, published)
    assert (in_digits_of(published, value), row.shown, row.difference) == (shown, shown, difference)


def months(count: int = WINDOW + 3, assets: int = 4) -> np.ndarray:
    rng = np.random.default_rng(3)
    return 0.005 + 0.03 * rng.standard_normal((count, 1)) + 0.02 * rng.standard_normal((count, assets))


@pytest.mark.parametrize(
    ("name", "linear", "bounded"),
    [
        ("minimum variance", False, False),
        ("minimum variance, long only", False, True),
        ("mean-variance, long only", True, True),
    ],
)
def test_weights_solve_the_policies_problem(name: str, linear: bool, bounded: bool) -> None:
    """Against a general solver; its tolerance bounds the agreement."""
    window = months()[:WINDOW]
    mean, covariance = window.mean(axis=0), np.cov(window.T)

    def loss(weights: np.ndarray) -> float:
        return 1e4 * float(0.5 * weights @ covariance @ weights - linear * (weights @ mean))

    solved = scipy.optimize.minimize(
        loss,
        np.full(4, 0.25),
        method="SLSQP",
        bounds=[(0.0, 1.0)] * 4 if bounded else None,
        constraints={"type": "eq", "fun": lambda weights: weights.sum() - 1.0},
        options={"ftol": 1e-12},
    ).x
    weights = POLICIES[name](window)
    np.testing.assert_allclose(weights / weights.sum(), solved, atol=2e-3)


def test_a_policy_knows_the_120_months_before_and_no_other() -> None:
    returns = months(WINDOW + 5)
    changed = returns.copy()
    changed[0] = changed[WINDOW + 2 :] = 9.0
    for name in ("minimum variance", "mean-variance"):
        before, after = (hold(one, POLICIES[name]) for one in (returns, changed))
        assert before[1] == after[1]
        assert before[0] != after[0]
        assert before[3] != after[3]


def test_the_ratio_in_sample_is_that_of_the_tangency_portfolio() -> None:
    returns = months(200)
    best = in_sample(returns)
    tangency = np.linalg.solve(np.cov(returns.T), returns.mean(axis=0))
    assert sharpe(returns @ tangency) == pytest.approx(best)


@pytest.mark.skipif(importlib.util.find_spec("arch") is None, reason="arch is not installed")
@pytest.mark.parametrize("policy", ["1/N", "minimum variance", "mean-variance"])
def test_the_shipped_factors_come_near_table_3(policy: str) -> None:
    """0.012 is what thirteen years of revisions moved the largest figure by; another window or divisor moves more."""
    found = sharpe(hold(shipped_sets()["arch, 2018"].to_numpy(), POLICIES[policy]))
    assert found == pytest.approx(float(NAIVE_DIVERSIFICATION[policy]), abs=0.012)


@pytest.mark.skipif(importlib.util.find_spec("arch") is None, reason="arch is not installed")
def test_figures_are_printed_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "KEPT", tmp_path / "replication.json")
    assert run_safely(command.main, ["demiguel", "--save"]) == 0
    printed = capsys.readouterr().out
    kept = json.loads((tmp_path / "replication.json").read_text("utf-8"))["demiguel"]
    assert {row["what"] for row in kept["rows"]} == set(NAIVE_DIVERSIFICATION)
    assert all(Comparison(**row).shown in printed for row in kept["rows"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "name a replication: demiguel, olmar, pamr"),
        (["bollinger"], "name a replication"),
        (["olmar"], "pip download --no-deps universal-portfolios==0.4.17"),
        (["pamr", "--data", "away.whl"], "away.whl has none of nyse_o.csv"),
        (["demiguel", "--data", "a.csv"], "demiguel reads the factors that arch and linearmodels ship"),
    ],
)
def test_what_cannot_be_is_one_line(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in refusal(capsys, *options, command=partial(run_safely, command.main))
