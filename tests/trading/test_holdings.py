"""Files of holdings and fills: what may be written, and the one line that answers what may not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from finflow.errors import FinflowError
from finflow.trading.holdings import Fill, Holdings, read_fills, read_holdings

UNIVERSE = ("AAPL", "BRK-B", "MSFT")
Write = Callable[[str, str], Path]

SAME = {
    "h.csv": "ticker,shares\nAAPL,10\nMSFT,2.5\ncash,100\n",
    "spaces.csv": "Ticker, Shares\n AAPL, 10\n\nMSFT, 2.5\ncash, 100\n",
    "h.json": '{"AAPL": 10, "MSFT": 2.5, "cash": 100}',
    "h.yaml": "AAPL: 10\nMSFT: 2.5\ncash: 100\n",
}
WRONG = {
    ("h.csv", "name,shares\nAAPL,1\n"): "no column ticker",
    ("twice.csv", "ticker,shares\nAAPL,1\nAAPL,2\n"): "line 3: AAPL is there twice",
    (
        "unknown.csv",
        "ticker,shares\nMSTF,1\n",
    ): "MSTF is not in the universe of the run; leave it out; did you",
    ("word.csv", "ticker,shares\nAAPL,ten\n"): "line 2: the number of AAPL is 'ten'",
    ("comma.csv", 'ticker,shares\nAAPL,"1,000"\n'): "without separators",
    ("short.csv", "ticker,shares\nAAPL,-5\n"): "long only",
    ("row.csv", "ticker,shares\nAAPL\n"): "line 2: 2 values",
    ("inf.json", '{"AAPL": Infinity}'): "a number is needed",
    ("list.json", "[1]"): "is not a mapping",
    ("broken.json", "{"): "is not JSON",
    ("h.txt", "AAPL 10"): "neither .csv, .json nor .yaml",
}


@pytest.mark.parametrize("name", SAME)
def test_holdings_are_read_from_csv_json_and_yaml(write: Write, name: str) -> None:
    assert read_holdings(write(name, SAME[name]), UNIVERSE) == Holdings({"AAPL": 10.0, "MSFT": 2.5}, 100.0)


@pytest.mark.parametrize(("file", "said"), WRONG.items(), ids=lambda one: one[0] if isinstance(one, tuple) else "")
def test_a_mistake_is_one_line_that_names_its_place(write: Write, file: tuple[str, str], said: str) -> None:
    with pytest.raises(FinflowError) as error:
        read_holdings(write(*file), UNIVERSE)
    assert said in str(error.value)
    assert file[0] in str(error.value)
    assert "\n" not in str(error.value)


def test_an_empty_file_of_holdings_is_an_account_in_cash(write: Write) -> None:
    assert read_holdings(write("h.csv", "ticker,shares\n"), UNIVERSE) == Holdings({}, None)


def test_fills_have_a_price_and_may_have_a_cost(write: Write) -> None:
    path = write("f.csv", "ticker,shares,price,cost\nAAPL,10,150.5,1\nMSFT,-2,300,\n")
    assert read_fills(path, UNIVERSE) == [Fill("AAPL", 10.0, 150.5, 1.0), Fill("MSFT", -2.0, 300.0, 0.0)]


@pytest.mark.parametrize(
    ("text", "said"),
    [("ticker,shares\nAAPL,1\n", "no column price"), ("ticker,shares,price\nAAPL,1,0\n", "a price of 0")],
)
def test_fills_without_a_price_are_refused(write: Write, text: str, said: str) -> None:
    with pytest.raises(FinflowError, match=said):
        read_fills(write("f.csv", text), UNIVERSE)
