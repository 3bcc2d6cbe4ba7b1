"""`--mode decide`: the backtest's decision, the same files again, and one line for what forbids a decision."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pandas as pd
import pytest

from finflow.cli import main
from finflow.env.market_growth import fill_prices
from finflow.evaluation.backtest import run_backtests
from finflow.strategies.strategy import Information
from finflow.trading.account_state import AccountState
from finflow.trading.decision_making import DecisionMaking
from finflow.trading.decision_page import decision_schema
from finflow.trading.live_market import load_trading_agents, market_until
from finflow.training.data.training_data import prepare
from finflow.training.judging.agent_strategy import AgentStrategy
from tests.commands import refusal
from tests.conftest import Page, check_numbers
from tests.short_trainings import config_in
from tests.trading.conftest import DAY, KEYS, NEXT, Trained
from tests.training.whole_trainings import train_through


def files_of(trained: Trained, day: str = DAY) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (trained.run / "trading" / day).iterdir()}


def refused(trained: Trained, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    return refusal(capsys, *trained.options("decide"), *options)


class Recorded(AgentStrategy):
    """Agent that keeps its decisions."""

    def decide(self, information: Information) -> Any:
        self.made = [*getattr(self, "made", []), super().decide(information)]
        return self.made[-1]


@pytest.fixture(scope="module")
def trained_on_opens(trained_once: Trained, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Agent whose prices have an open, on the way from the close before, at which its decisions fill."""
    folder = tmp_path_factory.mktemp("opens")
    close = trained_once.price_table()
    opens = close.shift(1).fillna(close) ** 0.4 * close**0.6
    table = pd.DataFrame({"open": opens.stack(), "close": close.stack()})
    table.index.names = ["date", "ticker"]
    table.to_csv(folder / "prices.csv")
    keys = {**KEYS, "market.path": str(folder / "prices.csv"), "env.fill": "open"}
    return Trained(train_through(config_in(folder, keys)).run_folder, folder / "prices.csv")


@pytest.mark.parametrize(("lag", "fill", "temperature"), [(0, "close", 0.0), (1, "close", 1.0), (2, "open", 0.0)])
def test_the_target_is_that_of_the_backtest(
    trained_once: Trained, trained_on_opens: Trained, lag: int, fill: str, temperature: float
) -> None:
    """On the evening of a decision, with no later bar at hand, for what the backtest held: the same target."""
    trained = trained_on_opens if fill == "open" else trained_once
    keys = {"env.execution_lag": lag, "env.fill": fill, "acting.temperature": temperature}
    agents = load_trading_agents([trained.run], {"market.path": str(trained.prices), **keys})
    data = prepare(agents.config)
    process, window = data.held_out_process(), data.split.test
    agent = Recorded(agents.policies[0], agents.device, acting=agents.config.acting)
    run = run_backtests(process, window, [agent])[0]
    moments = process.objective.moments
    for step in (1, 20):
        evening = process.decision_bars(window)[step] - (1 if lag else 0)
        held, observed = run.explanation["held"][step], run.explanation["reward_state"][step]
        first = observed[0] * 0.1 * moments.deviation + moments.first
        reward_state = np.array([first, (observed[1] + 1.0) * moments.second, observed[2] / 10.0])
        shares = held[:-1] * 1e6 / fill_prices(data.panel, fill)[evening]
        account = AccountState(shares, float(held[-1]) * 1e6, reward_state[None], None)
        market = market_until(data.panel.until(evening + 1), agents)
        made = DecisionMaking(agents, market, account)
        np.testing.assert_allclose(made.target, agent.made[step], atol=2e-7)
        np.testing.assert_allclose(made.reasoning.target, made.target, atol=1e-6)
        decision = made.decision([])
        assert decision.date == str(data.panel.dates[evening])
        assert decision.held_back.trade_rate == pytest.approx(float(run.explanation["trade_rate"][step]), abs=1e-5)


def test_a_decision_made_again_is_the_same_file_and_one_line_of_the_log(decided: Trained) -> None:
    first = files_of(decided)
    assert set(first) == {"decision.json", "orders.csv", "decision.html"}
    assert decided.decide("--date", DAY, "--cash", "20000") == 0
    assert files_of(decided) == first
    assert len(decided.entries()) == 1
    assert str(decided.run.parent).encode() not in first["decision.json"]


def test_the_orders_can_be_paid_for_and_all_files_agree(decided_once: Trained) -> None:
    made = decided_once.decision(DAY)
    jsonschema.validate(made, decision_schema())
    page = Page((decided_once.run / "trading" / DAY / "decision.html").read_text("utf-8"))
    assert check_numbers(page, made) > 30
    rows = list(csv.DictReader((decided_once.run / "trading" / DAY / "orders.csv").open(encoding="utf-8")))
    assert [(row["ticker"], float(row["shares"])) for row in rows] == [
        (order["ticker"], order["shares"]) for order in made["orders"]
    ]
    spent = sum(order["value"] + order["cost"] for order in made["orders"])
    assert made["cash_after"] == pytest.approx(20000.0 - spent)
    assert made["cash_after"] >= 0.0
    for order in made["orders"]:
        share = order["shares"] * order["price"] / (20000.0 - made["cost"])
        assert made["assets"][order["ticker"]]["planned"] == pytest.approx(share)
    assert sum(one["planned"] for one in made["assets"].values()) == pytest.approx(1.0)
    reasons = made["reasons"]
    assert reasons["aim_change"] > 0.0
    assert sum(one["part"] for one in reasons["features"].values()) == pytest.approx(reasons["aim_change"], abs=1e-4)
    assert sum(reasons["gate"].values()) == pytest.approx(1.0)


def test_a_dry_run_writes_nothing(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(trained.run.rglob("*"))
    assert trained.decide("--date", DAY, "--dry-run") == 0
    assert sorted(trained.run.rglob("*")) == before
    out = capsys.readouterr().out
    assert "nothing was written" in out
    assert "; sessions are those of the weekdays of the prices, less their holidays\n" in out


def test_the_next_decision_goes_on_from_the_plan(decided: Trained) -> None:
    """Of the orders as planned, filled at the next close: shares to the letter, and the cash that is left."""
    assert decided.decide("--date", NEXT) == 0
    first, second = decided.decision(DAY), decided.decision(NEXT)
    prices = decided.price_table().loc[NEXT]
    shares = {order["ticker"]: order["shares"] for order in first["orders"]}
    assert {name: one["shares"] for name, one in second["assets"].items() if name != "cash"} == {
        name: shares.get(name, 0.0) for name in "ABCD"
    }
    paid = sum(count * prices[name] for name, count in shares.items())
    assert second["cash"] == pytest.approx(20000.0 - paid - first["cost"])
    expected = {"cash": 0.0, "date": DAY, "differences": {}, "shortfall": None, "source": "plan"}
    assert second["follow_up"] == expected


def test_fills_say_what_was_really_held(decided: Trained) -> None:
    orders = decided.decision(DAY)["orders"]
    missed, *filled = orders
    lines = [f"{one['ticker']},{one['shares']},{one['price'] + 0.5},1.25\n" for one in filled]
    path = decided.run / "fills.csv"
    path.write_text("ticker,shares,price,cost\n" + "".join(lines), "utf-8")
    assert decided.decide("--date", NEXT, "--fills", str(path)) == 0
    made, first = decided.decision(NEXT), files_of(decided, NEXT)
    differences = made["follow_up"]["differences"]
    assert differences[missed["ticker"]] == {"planned": missed["shares"], "done": 0.0, "shortfall": None}
    for one in filled:
        assert differences[one["ticker"]]["shortfall"] == pytest.approx(0.5 * one["shares"])
    spent = sum(one["shares"] * (one["price"] + 0.5) + 1.25 for one in filled)
    assert made["cash"] == pytest.approx(20000.0 - spent)
    assert decided.decide("--date", NEXT) == 0  # the log has them now
    assert files_of(decided, NEXT) == first


def test_cash_is_compared_with_the_plan_and_shortfalls_have_a_total_and_a_sign(
    decided: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    """Computed by hand: one order at 2 more a share, one at .5 less and half of it, the others not done, 7 of cost."""
    made = decided.decision(DAY)
    dear, cheap, *_ = made["orders"]
    half = cheap["shares"] / 2.0
    path = decided.run / "fills.csv"
    first = f"{dear['ticker']},{dear['shares']},{dear['price'] + 2.0},4\n"
    second = f"{cheap['ticker']},{half},{cheap['price'] - 0.5},3\n"
    path.write_text("ticker,shares,price,cost\n" + first + second, "utf-8")
    assert decided.decide("--date", NEXT, "--fills", str(path)) == 0
    follow_up = decided.decision(NEXT)["follow_up"]
    lost = 2.0 * dear["shares"] - 0.5 * half
    unspent = sum(one["value"] for one in made["orders"]) - dear["value"] - half * cheap["price"]
    assert unspent > 0.0
    assert follow_up["shortfall"] == pytest.approx(lost)
    assert follow_up["cash"] == pytest.approx(unspent - lost + made["cost"] - 7.0)
    out = capsys.readouterr().out
    assert f"Lost to the price: {lost:+,.2f} in all" in out
    assert "Above zero the fills were worse than the decision's prices" in out
    assert f"Cash is {follow_up['cash']:+,.2f} against the plan: the shares ordered" in out


def test_a_split_restates_what_the_log_holds(decided: Trained) -> None:
    """The account is worth the same: prices of A are halved in the whole history, so there are twice the shares."""
    table = decided.price_table()
    table["A"] /= 2.0
    table.to_csv(decided.prices)
    assert decided.decide("--date", NEXT, "--accept-drift") == 0
    made = decided.decision(NEXT)
    bought = {order["ticker"]: order["shares"] for order in decided.decision(DAY)["orders"]}
    assert made["assets"]["A"]["shares"] == pytest.approx(2.0 * bought["A"])
    (said,) = [check["said"] for check in made["checks"] if check["name"] == "history"]
    assert "A was restated by a factor of 0.5" in said


def test_the_no_trade_band_is_said_and_cash_that_a_fill_left_short_is_made_up(trained: Trained) -> None:
    """Prices that rose until the fill leave the account short: the plan sells in spite of the band."""
    held, fills = trained.run.parent / "held.json", trained.run.parent / "fills.csv"
    held.write_text(json.dumps({**dict.fromkeys("ABCD", 10), "cash": 10}), "utf-8")
    fills.write_text("ticker;shares;price\nA;0,5;60,0\n", "utf-8")
    for cash, day, option in ((10.0, DAY, ("--holdings", held)), (-20.0, NEXT, ("--fills", fills))):
        assert trained.decide("--date", day, option[0], str(option[1]), "--set", "env.no_trade_band=0.9") == 0
        made = trained.decision(day)
        assert made["cash"] == cash
        assert made["cash_after"] >= 0.0
        assert {order["side"] for order in made["orders"]} == ({"sell"} if cash < 0.0 else set())
        assert made["held_back"]["in_band"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), r"the newest prices are of 2012-02-03, and \d+ sessions have passed .*--date 2012-02-03"),
        (("--date", "2012-03-30"), "bring market.path up to date"),
        (("--date", "2011-10-03"), "the years that the agent learned from"),
        (("--date", "soon"), "write it as 2020-03-16"),
        (("--date", DAY, DAY), "on one day"),
        (("--cash", "-1"), "an amount of money .*no debt: pay in"),
        (("--fills", "fills.csv", "--date", DAY), "fills.csv does not exist"),
        (("--date", DAY, "--set", "trading.calendar=XXXX"), "exchange_calendars"),
        (("--date", DAY, "--set", "trading.lott=2"), "the nearest valid key is trading.lot"),
    ],
)
def test_what_forbids_a_decision_is_one_line(
    trained: Trained, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    assert re.search(said, refused(trained, capsys, "--i-know", *options))
    assert not (trained.run / "trading").exists()


def test_a_ticker_that_is_gone_is_refused(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    table = trained.price_table()
    table.drop(columns="C").to_csv(trained.prices)
    assert "C is not in the data any more" in refused(trained, capsys, "--date", DAY, "--i-know")
    table.loc[table.index > "2011-12-09", "C"] = np.nan
    table.to_csv(trained.prices)
    for gap in ("0", "5"):  # carried on over a gap, it has no price either
        options = ("--date", DAY if gap == "0" else "2011-12-20", "--i-know", "--set", f"market.max_gap={gap}")
        assert "C has had no price since 2011-12-09" in refused(trained, capsys, *options)


@pytest.mark.parametrize("dropped", [True, False])
def test_a_ticker_once_left_out_stays_out_until_it_is_named_again(
    decided: Trained, capsys: pytest.CaptureFixture[str], dropped: bool
) -> None:
    """The account held it: the log goes on from the holdings after its sale, and compares prices of the others."""
    whole = decided.price_table()
    table = whole.drop(columns="C") if dropped else whole.assign(C=whole["C"].where(whole.index <= "2011-12-09"))
    table.to_csv(decided.prices)
    held = decided.run / "held.csv"
    held.write_text("ticker,shares\nA,10\n", "utf-8")
    named = ("--date", NEXT, "--tickers", "A", "B", "D")
    assert "name what is held with --holdings" in refused(decided, capsys, "--i-know", *named)
    assert "add --cash" in refused(decided, capsys, "--i-know", *named, "--holdings", str(held))
    held.write_text("ticker,shares\nA,10\ncash,15000\n", "utf-8")
    assert decided.decide(*named, "--holdings", str(held)) == 0
    assert decided.decision(NEXT)["assets"]["A"]["shares"] == 10.0
    first = files_of(decided, NEXT)
    assert decided.decide("--date", NEXT, "--holdings", str(held)) == 0
    assert files_of(decided, NEXT) == first
    assert len(decided.entries("decision")) == 2
    capsys.readouterr()
    assert decided.decide("--date", "2011-12-16") == 0
    assert "; decided without C, until --tickers names it again\n" in capsys.readouterr().out
    (history,) = [one for one in decided.decision("2011-12-16")["checks"] if one["name"] == "history"]
    assert history["passed"]
    assert history["said"].endswith("without C; those at earlier decisions are unchanged")
    whole.to_csv(decided.prices)
    assert decided.decide("--date", "2011-12-19", "--tickers", *"ABCD") == 0
    assert decided.decide("--date", "2011-12-20") == 0
    assert decided.decision("2011-12-20")["assets"].keys() == {*"ABCD", "cash"}
    table["A"] *= 1.5
    table.to_csv(decided.prices)
    assert decided.decide("--date", "2011-12-21", "--tickers", *"ABD", "--holdings", str(held), "--accept-drift") == 0
    warned = {one["name"]: one["said"] for one in decided.decision("2011-12-21")["checks"] if not one["passed"]}
    assert "A was restated by a factor of 1.5" in warned["history"]


def test_features_far_from_training_are_refused_with_how_far(
    trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    table = trained.price_table()
    table.loc[table.index >= DAY, "B"] *= 1.8
    table.to_csv(trained.prices)
    said = refused(trained, capsys, "--date", DAY, "--i-know")
    assert re.search(r"is [+-][\d.]+, [\d.]+ training deviations outside its range in training .* --accept-drift", said)
    assert trained.decide("--date", DAY, "--accept-drift") == 0
    made = trained.decision(DAY)
    warned = {check["name"]: check["said"] for check in made["checks"] if not check["passed"]}
    assert float(re.findall(r"([\d.]+) training deviations outside", warned["features"])[0]) > 4.0
    assert "B +8" in warned["jumps"]


def test_a_verdict_of_worse_asks_for_a_word(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    path = trained.run / "reports" / "metrics.json"
    content = json.loads(path.read_text("utf-8"))
    content["verdict"]["beats_equal_weight"] = "no"
    path.write_text(json.dumps(content), "utf-8")
    assert "worse than equal weight" in refused(trained, capsys, "--date", DAY)
    assert trained.decide("--date", DAY) == 0
    assert trained.decision(DAY)["verdict"] == "no"
    shutil.rmtree(trained.run / "reports")
    assert trained.decide("--date", DAY) == 0
    assert trained.decision(DAY)["verdict"] is None
    assert "never evaluated" in capsys.readouterr().out


def test_a_day_before_the_last_decision_can_be_looked_at_only(
    trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    assert trained.decide("--date", NEXT) == 0
    assert "the log has a decision of 2011-12-15 already" in refused(trained, capsys, "--date", DAY, "--i-know")
    assert trained.decide("--date", DAY, "--dry-run") == 0


def test_several_agents_answer_with_their_spread(trained: Trained, tmp_path: Path) -> None:
    """Two checkpoints of a training stand for two agents: the target is the mean, the spread their extremes."""
    paths = [str(trained.run / "models" / f"checkpoint_{name}.safetensors") for name in ("pretrained", "latest")]
    given = ("--mode", "decide", "--i-know", "--set", f"market.path={trained.prices}", "--date", DAY)
    assert main([*given, "--resume", *paths]) == 0
    (folder,) = tmp_path.glob("ensembles/*/trading")
    made = json.loads((folder / DAY / "decision.json").read_text("utf-8"))
    assert len(made["agents"]) == 2
    for one in made["assets"].values():
        middle = (one["spread"]["low"] + one["spread"]["high"]) / 2.0
        assert one["target"] == pytest.approx(middle)
