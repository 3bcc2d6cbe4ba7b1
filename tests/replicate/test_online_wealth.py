"""Wealth of online portfolio selection by hand, and sets in every form they are handed on in."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from finflow.errors import MarketError
from finflow.strategies.classical import BuyAndHold
from finflow.strategies.online_selection import ConstantRebalanced, MeanReversion, PassiveAggressiveMeanReversion
from scripts.replicate.comparison import Comparison, in_digits_of
from scripts.replicate.online_wealth import TOOLBOX_OPENING, ToolboxOpening, compare_wealth, final_wealth
from scripts.replicate.relative_sets import read_sets


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


def test_a_set_is_the_same_from_a_wheel_a_folder_and_a_file(tmp_path: Path) -> None:
    x = relatives()
    frame = pd.DataFrame(np.cumprod(x, axis=0), columns=list("ABCD"))
    frame.to_csv(tmp_path / "djia.csv", index=False)
    with zipfile.ZipFile(tmp_path / "made.whl", "w") as archive:
        archive.write(tmp_path / "djia.csv", "universal/data/djia.csv")
    pd.DataFrame(x, columns=list("ABCD")).to_csv(tmp_path / "relatives.csv", index=False)
    for name in ("made.whl", "", "djia.csv", "relatives.csv"):
        ((_, prices),) = read_sets(tmp_path / name)[0].items()
        np.testing.assert_allclose(prices[0], 1.0)
        np.testing.assert_allclose(prices[1:] / prices[:-1], x, rtol=1e-12)


def test_another_set_of_the_same_name_is_not_held_to_the_paper() -> None:
    prices = np.vstack([np.ones(4), np.cumprod(relatives(), axis=0)])
    rows = compare_wealth("pamr", {"djia": prices, "mine": prices})
    assert [row.published for row in rows] == [None] * 6
    assert {row.said for row in rows} == {"another set than the papers'", "no set of the papers by its name"}


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
