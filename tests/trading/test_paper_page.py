"""The page of a paper account: an honest test of what was expected, and what the account is compared with."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import numpy as np
import pytest

from finflow.evaluation.backtest import run_backtests
from finflow.evaluation.page.page_numbers import schema_of
from finflow.market.panel import MarketPanel
from finflow.strategies.classical import EqualWeight
from finflow.trading.live_market import load_trading_agents
from finflow.trading.paper_page import ALPHA, Expectation, PaperNumbers, paper_numbers, paper_page, variance_ratio
from finflow.training.data.training_data import prepare
from tests.conftest import Page, check_numbers
from tests.trading.conftest import Trained

FIRST, UNTIL = "2011-11-10", "2011-12-30"


@pytest.mark.usefixtures("images")
def test_the_page_agrees_with_its_numbers(trained: Trained) -> None:
    assert trained.paper("--from", FIRST, "--until", UNTIL) == 0
    folder = trained.run / "trading" / "paper" / FIRST
    content = json.loads((folder / "paper.json").read_text("utf-8"))
    jsonschema.validate(content, schema_of(PaperNumbers, "paper.json"))
    assert check_numbers(Page((folder / "paper.html").read_text("utf-8")), content) > 20
    growth = np.prod([1.0 + (day["simple_return"] or 0.0) for day in content["days"]])
    assert content["total_return"] == pytest.approx(growth - 1.0)


def test_equal_weight_and_the_benchmark_stand_beside_the_account(
    trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    """Equal weight at the ledger's costs over the same bars, as its backtest; the benchmark as gross growth."""
    keys = {"market.path": str(trained.prices), "market.benchmark": "index"}
    table = trained.price_table().eval("index = A ** 0.5")
    table.to_csv(trained.prices)
    assert trained.paper("--from", FIRST, "--until", UNTIL, "--set", "market.benchmark=index") == 0
    content = json.loads((trained.run / "trading" / "paper" / FIRST / "paper.json").read_text("utf-8"))
    data = prepare(load_trading_agents([trained.run], keys).config)
    window = range(data.panel.bars_until("2011-11-09"), data.split.test_end)
    run = run_backtests(data.held_out_process(), window, [EqualWeight()])[0]
    assert run.costs.sum() > 0.0
    np.testing.assert_allclose([day["equal_weight"] for day in content["days"]], 1e6 * run.wealth, rtol=1e-9)
    index = table["index"].loc[FIRST:UNTIL]
    np.testing.assert_allclose([day["benchmark"] for day in content["days"]], 1e6 * index / index.iloc[0])
    shown = "Equal weight: {equal_weight:,.2f}; Benchmark: {benchmark:,.2f}".format(**content["days"][-1])
    assert shown in capsys.readouterr().out


def test_a_band_that_holds_all_is_not_as_expected() -> None:
    """Until it excludes an account that earns nothing, after as many returns as the page says."""
    expected = Expectation(0.001, 0.01, 2_000, 252)
    panel = MarketPanel(np.datetime64("2000-01-03") + np.arange(3_000), ("A", "B"), np.ones((3_000, 2)))
    steps = np.where(np.arange(2_999) % 2, -0.01, 0.01)  # of the backtest's own mean and deviation
    returns = np.expm1(expected.mean + steps)
    wealth = 1e6 * np.cumprod(np.append(1.0, 1.0 + returns))
    rows = zip(panel.dates.astype(str).tolist(), wealth.tolist(), [None, *returns.tolist()], strict=True)
    account = {"account": "2000-01-03", "filled": [], "cost": 0.0, "turnover": 0.0}
    lines = [{**account, "date": date, "wealth": value, "simple_return": net} for date, value, net in rows]
    count = expected.told_from(np.zeros(0))
    assert count is not None
    for evenings, heading in ((count, "Nothing can be distinguished yet"), (count + 1, "As expected")):
        finding = paper_page(paper_numbers(lines[:evenings], expected, panel, {})).finding
        assert (finding.title, finding.kind == "ahead") == (heading, heading == "As expected")
        assert ("Sharpe ratio" in [tile.heading for tile in finding.tiles]) == (heading == "As expected")
        assert (f"from about {count:,} evenings on" in str(finding.words)) == (evenings == count)
    assert Expectation(0.0001, 0.01, 500, 252).told_from(np.zeros(0)) is None


def simulated(count: int, draw: Callable[[np.random.Generator, int], Any], scale: float, shift: float) -> float:
    """Share of accounts that ever leave what a backtest of 500 days led one to expect, in three years."""
    rng, left = np.random.default_rng(0), 0
    for _ in range(count):
        backtest, account = 0.01 * draw(rng, 500), 0.01 * scale * draw(rng, 756) + shift
        expected = Expectation.of(np.expm1(backtest), 252)
        left += expected.left_on(np.expm1(account)) is not None
    return left / count


@pytest.mark.parametrize("scale", [1.0, 3.0], ids=["alike", "turbulent"])
@pytest.mark.parametrize("tails", ["normal", "heavy"])
def test_an_account_like_its_backtest_is_seldom_outside_however_often_one_looks(tails: str, scale: float) -> None:
    """Neither is one of three times the deviation, as of accounts that begin before a crisis."""
    draws: dict[str, Callable[[np.random.Generator, int], Any]] = {
        "normal": lambda rng, size: rng.standard_normal(size),
        "heavy": lambda rng, size: rng.standard_t(4, size) / np.sqrt(2.0),
    }
    assert simulated(300, draws[tails], scale, 0.0) <= ALPHA + 0.02


def test_an_account_that_loses_what_the_backtest_gained_is_found_out() -> None:
    assert simulated(50, lambda rng, size: rng.standard_normal(size), 1.0, -0.004) > 0.8


def test_the_edges_of_the_band_are_where_the_evidence_is_twenty() -> None:
    expected = Expectation(0.0004, 0.01, 500, 252, ratio=1.1)
    returns = np.expm1(np.random.default_rng(0).normal(-0.002, 0.01, 800))
    low, high = expected.band(returns)
    growth = np.cumprod(1.0 + returns)
    outside = (growth <= low) | (growth >= high)
    assert 0 < outside.sum() < 700
    np.testing.assert_array_equal(outside, np.exp(expected.log_evidence(returns)) >= 1.0 / ALPHA)
    assert expected.left_on(returns) == int(np.flatnonzero(outside)[0])


def test_returns_that_hang_together_slow_the_evidence() -> None:
    noise = np.random.default_rng(2).standard_normal(100_000)
    together = noise[1:] + 0.3 * noise[:-1]
    assert variance_ratio(noise) == pytest.approx(1.0, abs=0.03)
    assert variance_ratio(together) == pytest.approx(1.0 + 2.0 * 0.3 / 1.09 * (1.0 - 1.0 / 11.0), abs=0.03)
    assert variance_ratio(noise[1:] - 0.3 * noise[:-1]) == 1.0, "returns that revert are given no faster clock"
