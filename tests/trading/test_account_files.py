"""Files of an account: the log of decisions, whole after a crash, and holdings and fills that a user writes.

Orders in whole lots are the plan that enumeration finds, affordable to the cent, under every cost model.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finflow.config import EnvConfig
from finflow.errors import FinflowError
from finflow.ledger.costs import CostModel, MarketState, costs_of
from finflow.line_file import HashedLog
from finflow.trading.account_state import Fill, Holdings, read_fills, read_holdings
from finflow.trading.order_rounding import Account, price_plan, round_orders
from tests.market.conftest import assert_refused

UNIVERSE = ("AAPL", "BRK-B", "MSFT")
SAME = {
    "h.csv": "ticker,shares\nAAPL,10\nMSFT,2.5\ncash,100\n",
    "spaces.csv": "Ticker, Shares\n AAPL, 10\n\nMSFT, 2.5\ncash, 100\n",
    "h.json": '{"AAPL": 10, "MSFT": 2.5, "cash": 100}',
    "german.csv": "ticker;shares\nAAPL;10\nMSFT;2,5\nCASH;100,00\n",
    "english.csv": "ticker;shares\nAAPL;10.\nMSFT;2.5\nCash;+100\n",
    "tabs.csv": "Ticker\tShares\n\nAAPL\t10\nMSFT\t2,50\nCASH\t100\n",
    "h.yaml": "AAPL: 10\nMSFT: 2.5\ncash: 100\n",
}
WRONG = {
    ("h.csv", "name,shares\nAAPL,1\n"): "no column ticker",
    ("twice.csv", "ticker,shares\nAAPL,1\nAAPL,2\n"): "line 3: AAPL is there twice",
    ("unknown.csv", "ticker,shares\nMSTF,1\n"): "MSTF is not in the universe of the run; leave it out; did you",
    ("word.csv", "ticker,shares\nAAPL,ten\n"): "line 2: shares: Input should be a valid number",
    ("comma.csv", 'ticker,shares\nAAPL,"1,000"\n'): "line 2: shares: 1,000 could be 1000 or 1; write 1000 or 1.0",
    ("point.csv", "ticker;shares\nAAPL;1.000\nCash;1,5\n"): "line 2: shares: 1.000 could be 1000 or 1; write 1000 or",
    ("part.csv", "ticker,shares\nAAPL,12.125\n"): "12.125 could be 12125 or 12.125; write 12125 or 12.1250",
    ("marks.csv", "ticker;shares\nAAPL;1.23.4\n"): "unable to parse string as a number",
    ("debt.csv", "ticker,shares\nAAPL,5\nCash,-5\n"): "line 3: -5 of cash, but accounts hold no debt; pay in, or sell",
    ("debt.json", '{"cash": -0.5}'): "key cash: -0.5 of cash, but accounts hold no debt",
    ("cash.csv", "ticker,shares\nCASH,1\ncash,2\n"): "line 3: cash is there twice",
    ("short.csv", "ticker,shares\nAAPL,-5\n"): "long only",
    ("row.csv", "ticker,shares\nAAPL\n"): "line 2: shares: ",
    ("inf.json", '{"AAPL": Infinity}'): "should be a finite number",
    ("list.json", "[1]"): "is not a mapping",
    ("number.yaml", "005930: 3\n"): "tickers must be names; YAML reads such names as numbers without quotes: write",
    ("broken.json", "{"): "is not JSON",
    ("h.txt", "AAPL 10"): "neither .csv, .json nor .yaml",
    ("fills.csv", "ticker,shares\nAAPL,1\n"): "no column price",
    ("fills.csv", "ticker,shares,price\nAAPL,1,0\n"): "price: Input should be greater than 0",
    ("fills.csv", "ticker,shares,price\nAAPL,1,\n"): "line 2: price: ",
    ("fills.csv", "ticker,shares,price\nAAPL,-1.5,2.500\n"): "line 2: price: 2.500 could be 2500 or 2.5; write 2500",
    ("fills.csv", "ticker,shares,price\nAAPL,-1.000,2\n"): "-1.000 could be -1000 or -1; write -1000 or -1.0",
    ("fills.csv", "ticker,shares,price\nCASH,1,2\n"): "is not in the universe of the run",
}


def write(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, "utf-8")
    return folder / name


@pytest.mark.parametrize("name", SAME)
def test_holdings_are_read_from_csv_json_and_yaml(tmp_path: Path, name: str) -> None:
    assert read_holdings(write(tmp_path, name, SAME[name]), UNIVERSE) == Holdings({"AAPL": 10.0, "MSFT": 2.5}, 100.0)
    empty = write(tmp_path, "empty.csv", "ticker,shares\n")  # an account in cash
    assert read_holdings(empty, UNIVERSE) == Holdings({}, None)


@pytest.mark.parametrize(("file", "said"), WRONG.items(), ids=lambda one: one[0] if isinstance(one, tuple) else "")
def test_a_mistake_is_one_line_that_names_its_place(tmp_path: Path, file: tuple[str, str], said: str) -> None:
    read = read_fills if file[0] == "fills.csv" else read_holdings
    path = write(tmp_path, *file)
    assert_refused([said, file[0]], lambda: read(path, UNIVERSE), FinflowError)


def test_fills_have_a_price_and_may_have_a_cost(tmp_path: Path) -> None:
    path = write(tmp_path, "f.csv", "ticker,shares,price,cost\nAAPL,10,150.5,1\nMSFT,-2,300,\n")
    assert read_fills(path, UNIVERSE) == [Fill("AAPL", 10.0, 150.5, 1.0), Fill("MSFT", -2.0, 300.0, 0.0)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.234,50", 1234.5),
        ("1.234.567", 1234567.0),
        ("1.234.567,125", 1234567.125),
        ("1,234.5", 1234.5),
        ("0,125", 0.125),
        ("1234.500", 1234.5),
        ("1e3", 1000.0),
        (",5", 0.5),
        ("1.000\nMSFT;0.25", 1.0),
        ("1,000\nMSFT;2,5", 1.0),
    ],
)
def test_a_number_is_read_by_the_marks_of_its_column(tmp_path: Path, text: str, value: float) -> None:
    path = write(tmp_path, "h.csv", f"ticker;shares\nAAPL;{text}\n")
    assert (read_holdings(path, UNIVERSE).shares or {})["AAPL"] == value
    path = write(tmp_path, "f.csv", f"ticker;price;shares\nAAPL;1;-{text}\n".replace("MSFT;", "MSFT;1;"))
    assert read_fills(path, UNIVERSE)[0] == Fill("AAPL", -value, 1.0)


def test_a_ticker_that_is_called_cash_is_not_the_cash(tmp_path: Path) -> None:
    path = write(tmp_path, "h.csv", "ticker,shares\nCASH,3\nCash,50\n")
    assert read_holdings(path, ("AAPL", "CASH")) == Holdings({"CASH": 3.0}, 50.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    log = HashedLog.read(tmp_path / "state.jsonl")
    for number in range(3):
        log.append({"kind": "decision", "date": f"2020-01-0{number + 1}", "cash": 0.1 + 0.2 * number})
    return log.path


@pytest.mark.parametrize("line", [0, 1, 2])
def test_a_line_that_was_changed_or_taken_out_is_missed(path: Path, line: int) -> None:
    lines = path.read_text("utf-8").splitlines()
    path.write_text("\n".join([*lines[:line], lines[line].replace("2020", "2021"), *lines[line + 1 :]]) + "\n", "utf-8")
    with pytest.raises(FinflowError, match=f"line {line + 1} of .* was changed"):
        HashedLog.read(path)
    path.write_text("\n".join([lines[0], lines[2]]) + "\n", "utf-8")
    with pytest.raises(FinflowError, match=r"line 2 .*does not follow"):
        HashedLog.read(path)


def test_two_writers_follow_one_another(path: Path) -> None:
    first, second = HashedLog.read(path), HashedLog.read(path)
    first.append({"kind": "decision", "date": "2020-01-04"})
    second.append({"kind": "paper", "date": "2020-01-05"})
    assert [entry["date"] for entry in HashedLog.read(path).entries][3:] == ["2020-01-04", "2020-01-05"]


@pytest.mark.parametrize("left", [1, 20, -1])
def test_a_line_cut_short_by_a_crash_is_cut_off_and_said(path: Path, left: int) -> None:
    content = path.read_bytes()
    last = content.splitlines()[2]
    path.write_bytes(content[: -len(last) - 1] + last[:left])
    log = HashedLog.read(path)
    assert log.message is not None
    assert len(log.entries) == 2
    log.append({"kind": "decision", "date": "2020-01-03", "cash": 0.1 + 0.2 * 2})
    assert path.read_bytes() == content
    assert HashedLog.read(path).message is None


KINDS: dict[str, dict[str, Any]] = {
    "proportional": {},
    "minimum commission": {"costs": {"minimum": 3.0}},
    "slippage and impact": {"costs": {"slippage_sqrt_bps": 500.0, "impact": 1.0, "minimum": 1.0}},
}
NEAR = 6  # lots on both sides of the target


def enumerated(
    account: Account, wanted: Any, lot: float, reserve: float, costs: CostModel, market: MarketState
) -> float | None:
    """The least distance and cost of all affordable plans near the target."""
    middle = np.round((wanted / account.prices - account.shares) / lot)
    choices = [
        {lots for lots in range(int(at) - NEAR, int(at) + NEAR + 1) if held + lots * lot >= 0.0} | {0}
        for at, held in zip(middle, account.shares, strict=True)
    ]
    plans = (price_plan(account, np.array(lots) * lot, wanted, costs, market) for lots in itertools.product(*choices))
    return min((plan.distance + plan.cost for plan in plans if plan.cash >= reserve), default=None)


@pytest.mark.parametrize("kind", KINDS)
def test_the_plan_is_the_best_of_all(kind: str) -> None:
    rng, costs = np.random.default_rng(0), costs_of(EnvConfig.model_validate(KINDS[kind]))
    market = MarketState(np.full(3, 50_000.0), np.full(3, 0.02))
    for trial in range(8):
        prices = rng.uniform(5.0, 300.0, 3)
        shares = np.floor(rng.uniform(0.0, 20.0, 3)) * (rng.random(3) < 0.7)
        account = Account(shares, prices, rng.uniform(500.0, 5000.0))
        wanted = rng.dirichlet(np.ones(4))[:3] * account.wealth * 0.998
        lot, reserve = 1.0 + trial % 2, 0.02 * account.wealth * (trial % 3 == 0)
        plan = round_orders(account, wanted, lot, reserve, costs, market)
        best = enumerated(account, wanted, lot, reserve, costs, market)
        if best is None:
            assert not plan.trades.any()
            continue
        assert plan.distance + plan.cost == pytest.approx(best, abs=1e-6 * account.wealth), trial
        assert plan.cash >= reserve - 1e-6
        np.testing.assert_array_equal(plan.trades % lot, 0.0)


def test_twenty_assets_fully_invested_stay_within_a_share_each() -> None:
    rng = np.random.default_rng(1)
    prices = rng.uniform(5.0, 300.0, 20)
    account = Account(np.zeros(20), prices, 20_000.0)
    wanted = rng.dirichlet(np.ones(20)) * 20_000.0 * 0.9985
    plan = round_orders(account, wanted, 1.0, 0.0, costs_of(EnvConfig()))
    assert plan.cash >= 0.0
    assert (np.abs(plan.trades * prices - wanted) <= prices).all()


def test_any_fraction_of_a_share_reaches_the_target() -> None:
    account = Account(np.array([3.0, 0.0]), np.array([10.0, 40.0]), 100.0)
    wanted = np.array([20.0, 80.0])
    plan = round_orders(account, wanted, 0.0, 0.0, costs_of(EnvConfig()))
    np.testing.assert_allclose(plan.trades, [-1.0, 2.0])
    assert plan.distance == pytest.approx(0.0, abs=1e-9)


def test_fractions_that_would_cost_more_than_there_is_are_cut_to_what_there_is() -> None:
    account = Account(np.zeros(2), np.array([10.0, 40.0]), 100.0)
    plan = round_orders(account, np.array([50.0, 50.0]), 0.0, 0.0, costs_of(EnvConfig()))
    assert plan.cash == pytest.approx(0.0, abs=1e-4)
    assert plan.distance == pytest.approx(0.15, abs=0.01)


def test_an_asset_without_a_price_is_not_traded() -> None:
    account = Account(np.array([0.0, 0.0]), np.array([10.0, np.nan]), 100.0)
    plan = round_orders(account, np.array([90.0, 5.0]), 1.0, 0.0, costs_of(EnvConfig()))
    assert plan.trades.tolist() == [9.0, 0.0]
