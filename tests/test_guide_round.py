"""The round of docs/guide/ragged-prices.md, run as it stands: commands, files, and what a person reads of it.

Sentences and figures on the terminal and on the pages are compared with each other and with what is computed here.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest

from finflow.cli import main
from finflow.evaluation.page.section import terminal_text
from finflow.line_file import HashedLog
from finflow.training.judging import held_out
from tests.conftest import Page, draw_nothing

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "guide" / "ragged-prices.md"
RUN = re.compile(r"logs/\d{8}_\d{6}")
NUMBER = re.compile(r"[-+]?\d[\d,]*\.?\d*%?|dataset-[0-9a-f]+")
#: From here on figures depend on what was learned, which differs in its last digits between processors.
LEARNED = "## Train"


def blocks_of(text: str) -> Iterator[tuple[str, str, bool]]:
    """Language and content of each block of code, and True after the heading of the training."""
    for found in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield found[1], found[2], found.start() > text.index(LEARNED)


def as_pattern(expected: str, figures: bool) -> re.Pattern[str]:
    """Pattern of what is printed: `...` stands for anything, blanks are one, and figures perhaps any."""
    parts = [_plain(part, figures) for part in expected.split("...")]
    return re.compile(r"\s*" + ".*?".join(re.escape(part).replace(r"\ ", r"\s+") for part in parts) + r"\s*", re.DOTALL)


def _plain(text: str, figures: bool) -> str:
    if not figures:
        text = NUMBER.sub("#", RUN.sub("RUN", text))
    return " ".join(text.split())


class Step(NamedTuple):
    """A command of the page, what the page says that it prints, what it printed, and True where figures may differ."""

    command: str
    expected: str
    said: str
    learned: bool


class Round(NamedTuple):
    """The whole round: its folder, the run that was trained in it, and its commands."""

    folder: Path
    run: Path
    steps: list[Step]

    def said(self, mode: str, option: str = "") -> str:
        """What the last command of a mode printed, with an option if one is given."""
        return [one.said for one in self.steps if f"--mode {mode} " in one.command and option in one.command][-1]

    def json(self, *place: str) -> Any:
        return json.loads(self.folder.joinpath(*place).read_text("utf-8"))

    def prices(self) -> pd.DataFrame:
        return pd.read_csv(self.folder / "adjusted.csv", index_col="Date")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Round]:
    folder, steps = tmp_path_factory.mktemp("round"), []
    with pytest.MonkeyPatch.context() as patch:
        draw_nothing(patch)
        patch.setattr(held_out, "COMPARED", ("equal-weight", "buy-and-hold", "inverse-volatility"))
        patch.chdir(folder)
        for language, content, learned in blocks_of(PAGE.read_text("utf-8")):
            if language in ("yaml", "csv"):
                Path({"yaml": "round.yaml", "csv": "fills.csv"}[language]).write_text(content, "utf-8")
            elif language == "python":
                exec(compile(content, PAGE.name, "exec"), {})
            elif language == "text":
                assert Path("prices.csv").read_text("utf-8").startswith(content)
            else:
                for block in re.split(r"^\$ ", content, flags=re.MULTILINE)[1:]:
                    command, _, expected = block.partition("\n")
                    steps.append(Step(command, expected, printed_by(command, patch), learned))
        (run,) = (folder / "logs").glob("2*")
        yield Round(folder, run, steps)


def test_the_page_is_a_round_from_a_file_to_a_comparison(told: Round) -> None:
    for command, expected, said, learned in told.steps:
        found = as_pattern(expected, not learned).fullmatch(_plain(said, not learned))
        assert found, f"{command}\nprinted\n{said}\nand the page has\n{expected}"
    assert len(told.steps) == 12


def read(page: Path) -> str:
    """The visible text of a page in the characters of a terminal, in one line."""
    text = re.sub(r"<(style|script).*?</\1>", "", page.read_text("utf-8"), flags=re.DOTALL)
    return " ".join(terminal_text("".join(Page(text).words)).split())


def sentence_of(said: str, start: str) -> str:
    """The one line of an output that begins so."""
    (sentence,) = re.findall(rf"^{start}.*$", said, re.MULTILINE)
    return sentence


def number(pattern: str, text: str) -> float:
    """The one number that a sentence has in the place of the group of a pattern."""
    (found,) = re.findall(pattern, text)
    return float(found.replace(",", ""))


def test_the_verdict_reads_the_same_wherever_it_is_read(told: Round) -> None:
    """On the terminal of the training, in its report, in a decision, and beside another run."""
    said, compared = told.said("train", "adjusted.csv"), told.said("compare")
    html = (told.run / "reports" / "report.html").read_text("utf-8")
    (box,) = re.findall(r'<section class="finding.*?</section>', html, re.DOTALL)
    found = re.findall(r"<(?:h2|p)\b.*?</(?:h2|p)>", box, re.DOTALL)
    parts = [terminal_text("".join(Page(one).words)) for one in found]
    assert set(parts[:3]) <= set(said.splitlines()), "what is held, the verdict, and the condition that decided"
    answer = told.json(str(told.run), "reports", "metrics.json")["verdict"]["beats_equal_weight"]
    assert parts[1] == f"Beats equal weight: {answer}"
    shown = {"yes": "found it better than", "no": "found it worse than", "not shown": "did not show that it beats"}
    decided = told.said("decide", "--fills")
    sentence = sentence_of(decided, "The evaluation of this agent ")
    assert shown[answer] in sentence
    assert sentence in read(told.run / "trading" / "2021-03-08" / "decision.html")
    (held,) = re.findall(r"; this agent holds (.*)$", said, re.MULTILINE)
    assert sentence_of(decided, "The agent holds ").startswith(f"The agent holds {held};")
    assert f"; holds {held}." in parts[0]
    page = next((told.folder / "logs" / "comparisons").glob("*/report.html"))
    verdict = sentence_of(compared, f"{told.run.name}: ")
    assert verdict in read(page)
    content = told.json(str(page.with_name("metrics.json")))
    assert content["runs"][told.run.name]["beats_equal_weight"] == answer
    assert ("not shown" in verdict) == (answer == "not shown")


def test_figures_dates_and_assets_agree_across_the_round(told: Round) -> None:
    trained, retrained, compared = told.said("train", "adjusted.csv"), told.said("retrain"), told.said("compare")
    assets, bars, first, last = re.findall(r"^(\d+) assets, ([\d,]+) bars of one day from (\S+) to (\S+),", trained)[0]
    prices = told.prices().drop(columns="INDEX")
    assert (int(assets), int(bars.replace(",", ""))) == prices.shape[::-1]
    assert [first, last] == [prices.index[0], prices.index[-1]]
    for said in (told.said("train", "--dry-run"), retrained, told.said("backtest")):
        assert said.startswith(f"{assets} assets, {bars} bars of one day from {first} to {last},")
    assert f"tickers: all {assets} have a price\n" in told.said("decide", "--fills")
    # windows: that of the test, as it is compared, and those of the retraining
    start, end = re.findall(r"^finflow, (\S+) to (\S+), \d+ days", trained, re.MULTILINE)[0]
    assert end == last
    assert compared.splitlines()[1].startswith(f"{start} to {end}, ")
    validated = prices.index[prices.index <= "2020-12-31"][-1]
    new = int((prices.index > validated).sum())
    assert f"\n{new} bars since {validated}, up to {last}\n" in retrained
    assert start == prices.index[len(prices) - new + 1]  # the first return is that of the second bar
    # the row of a run, as its own command printed it, is the row of the comparison
    for said, name, row in (
        (trained, "finflow", told.run.name),
        (told.said("backtest"), "inverse-volatility", "backtest_inverse-volatility"),
    ):
        annual, volatility, sharpe, drawdown, turnover = re.findall(rf"^ +{name} +(\S.*)$", said, re.M)[0].split()
        figures = re.findall(rf"^ +{row} +(\S.*)$", compared, re.MULTILINE)[0].split()
        assert figures[:4] + figures[5:6] == [sharpe, annual, volatility, drawdown, turnover]


def test_orders_fills_and_cash_are_those_computed_by_hand(told: Round) -> None:
    trading, capital = told.run / "trading", 50_000.0
    entries = HashedLog.read(trading / "state.jsonl").entries
    made, orders = told.said("decide", "--cash 50000 --date"), pd.read_csv(trading / "2021-03-05" / "orders.csv")
    prices = told.prices()
    rows = re.findall(r"^ +([A-Z]+) +(buy|sell) +(\S+) +(\S+) +(\S+) +(\S+)$", made, re.MULTILINE)
    assert [row[0] for row in rows] == orders["ticker"].tolist()
    assert [float(row[2]) for row in rows] == orders["shares"].tolist()
    assert [float(row[3]) for row in rows] == prices.loc["2021-03-05", orders["ticker"]].round(2).tolist()
    planned = float((orders["shares"] * prices.loc["2021-03-05", orders["ticker"]].to_numpy()).sum())
    cost = number(r"expected to cost ([\d,.]+) in money", made)
    assert cost == pytest.approx(orders["cost"].sum(), abs=0.005 * len(orders))
    assert cost == number(r"Expected cost: ([\d,.]+)", made) == pytest.approx(0.0015 * planned, abs=0.01)
    assert number(r"Cash: ([\d.]+)%", made) == pytest.approx(100.0 * (1.0 - (planned + cost) / capital), abs=0.06)
    # what is left after the fills that were filed
    filled, fills = told.said("decide", "--fills"), pd.read_csv(told.folder / "fills.csv", index_col="ticker")
    cash = capital - float((fills["shares"] * fills["price"] + fills["cost"]).sum())
    decision = told.json(str(trading), "2021-03-08", "decision.json")
    account = [one for one in entries if one["kind"] == "decision" and one["date"] == "2021-03-08"][-1]["account"]
    assert decision["cash"] == account["cash"] == pytest.approx(cash, abs=1e-6)
    assert account["shares"] == fills["shares"].to_dict()
    worth = cash + float((fills["shares"] * prices.loc["2021-03-08", fills.index]).sum())
    assert number(r"Account: ([\d,.]+);", filled) == pytest.approx(worth, abs=0.006)
    beside = number(r"Cash is (\S+) against the plan", filled)
    assert beside == pytest.approx(cash - (capital - planned - cost), abs=0.02)
    agreed = orders.set_index("ticker")["price"].reindex(fills.index)
    lost = number(r"Lost to the price: (\S+) in all", filled)
    assert lost == pytest.approx(float((fills["shares"] * (fills["price"] - agreed)).sum()), abs=0.006)
    each = re.findall(r"^ +[A-Z]+ +\S+ +\+\d\S+ +([-+]\d\S+)$", filled.partition("Execution of")[2], re.MULTILINE)
    assert sum(map(float, each)) == pytest.approx(lost, abs=0.005 * len(each) + 0.005)
    page = read(trading / "2021-03-08" / "decision.html")
    for start in ("Cash is ", "Lost to the price: ", "The agent holds ", "The orders move "):
        assert sentence_of(filled, start) in page
    assert sentence_of(filled, "Lost").endswith("worse than the decision's prices, below zero better.")


def test_paper_and_retraining_say_the_same_on_their_pages(told: Round) -> None:
    said, folder = told.said("paper"), told.run / "trading" / "paper" / "2021-06-01"
    page, content = read(folder / "paper.html"), told.json(str(folder), "paper.json")
    assert "Nothing can be distinguished yet" in page
    assert sentence_of(said, "The band ") in page
    index = told.prices()["INDEX"].loc["2021-06-01":"2021-06-30"]
    assert f"{len(index)} evenings, up to {index.index[-1]}" in said
    tiles, last = sentence_of(said, "Account: "), content["days"][-1]
    held = 50_000.0 * index.iloc[-1] / index.iloc[0]
    for name, value in (("Account", last["value"]), ("Equal weight", last["equal_weight"]), ("Benchmark", held)):
        assert number(rf"{name}: ([\d,.]+)", tiles) == pytest.approx(value, abs=0.006)
    assert number(r"Net return: (\S+)%;", tiles) == pytest.approx(100.0 * (last["value"] / 50_000.0 - 1.0), abs=0.006)
    retrained = told.said("retrain")
    page = read(next((told.folder / "logs" / "retrainings").glob("*/*/retrain.html")))
    assert sentence_of(retrained, "On bars that neither") in page
    assert f"{'Keep' if 'Keep the old agent' in retrained else 'Replace'} the old agent" in page
    lead, agents = number(r"Lead in the Sharpe ratio: ([-+]?[\d.]+);", retrained), []
    for name in ("new agent", "old agent"):
        agents.append(float(re.findall(rf"^ +{name} +(\S+)", retrained, re.MULTILINE)[0]))
    assert lead == pytest.approx(agents[0] - agents[1], abs=0.011)


def printed_by(command: str, patch: pytest.MonkeyPatch) -> str:
    """Run a command of the page in this process; the run that it names is the one that was made here."""
    _, script, *arguments = shlex.split(command)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        if script != "main.py":
            patch.setattr(sys, "argv", [script, *arguments])
            runpy.run_path(str(ROOT / "examples" / script), run_name="__main__")
        else:
            own = [str(path) for path in Path("logs").glob("2*")]
            status = main([own[0] if RUN.fullmatch(word) else word for word in arguments])
            assert status in (0, 2)
    assert "Traceback" not in err.getvalue()
    return out.getvalue() + err.getvalue()


def test_the_comparison_sees_a_changed_line_and_not_a_changed_figure() -> None:
    page = "account: 1.50\n...\nPINE: planned +164\n"
    printed = _plain("account: 7.25\nx\ny\nPINE:  planned +3", False)
    assert as_pattern(page, False).fullmatch(printed)
    assert not as_pattern(page, False).fullmatch(printed.replace("PINE", "OAK"))
    assert not as_pattern(page, True).fullmatch("account: 7.25 x PINE: planned +164")
