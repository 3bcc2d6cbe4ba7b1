"""Files of an account: the log of decisions, whole after a crash, and holdings and fills that a user writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from finflow.errors import FinflowError
from finflow.line_file import HashedLog
from finflow.trading.account_state import Fill, Holdings, read_fills, read_holdings

UNIVERSE = ("AAPL", "BRK-B", "MSFT")
SAME = {
    "h.csv": "ticker,shares\nAAPL,10\nMSFT,2.5\ncash,100\n",
    "spaces.csv": "Ticker, Shares\n AAPL, 10\n\nMSFT, 2.5\ncash, 100\n",
    "h.json": '{"AAPL": 10, "MSFT": 2.5, "cash": 100}',
    "h.yaml": "AAPL: 10\nMSFT: 2.5\ncash: 100\n",
}
WRONG = {
    ("h.csv", "name,shares\nAAPL,1\n"): "no column ticker",
    ("twice.csv", "ticker,shares\nAAPL,1\nAAPL,2\n"): "line 3: AAPL is there twice",
    ("unknown.csv", "ticker,shares\nMSTF,1\n"): "MSTF is not in the universe of the run; leave it out; did you",
    ("word.csv", "ticker,shares\nAAPL,ten\n"): "line 2: shares: Input should be a valid number",
    ("comma.csv", 'ticker,shares\nAAPL,"1,000"\n'): "unable to parse string as a number",
    ("short.csv", "ticker,shares\nAAPL,-5\n"): "long only",
    ("row.csv", "ticker,shares\nAAPL\n"): "line 2: shares: ",
    ("inf.json", '{"AAPL": Infinity}'): "should be a finite number",
    ("list.json", "[1]"): "is not a mapping",
    ("broken.json", "{"): "is not JSON",
    ("h.txt", "AAPL 10"): "neither .csv, .json nor .yaml",
}


def write(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, "utf-8")
    return folder / name


@pytest.mark.parametrize("name", SAME)
def test_holdings_are_read_from_csv_json_and_yaml(tmp_path: Path, name: str) -> None:
    assert read_holdings(write(tmp_path, name, SAME[name]), UNIVERSE) == Holdings({"AAPL": 10.0, "MSFT": 2.5}, 100.0)


@pytest.mark.parametrize(("file", "said"), WRONG.items(), ids=lambda one: one[0] if isinstance(one, tuple) else "")
def test_a_mistake_is_one_line_that_names_its_place(tmp_path: Path, file: tuple[str, str], said: str) -> None:
    with pytest.raises(FinflowError) as error:
        read_holdings(write(tmp_path, *file), UNIVERSE)
    assert said in str(error.value)
    assert file[0] in str(error.value)
    assert "\n" not in str(error.value)


def test_an_empty_file_of_holdings_is_an_account_in_cash(tmp_path: Path) -> None:
    assert read_holdings(write(tmp_path, "h.csv", "ticker,shares\n"), UNIVERSE) == Holdings({}, None)


def test_fills_have_a_price_and_may_have_a_cost(tmp_path: Path) -> None:
    path = write(tmp_path, "f.csv", "ticker,shares,price,cost\nAAPL,10,150.5,1\nMSFT,-2,300,\n")
    assert read_fills(path, UNIVERSE) == [Fill("AAPL", 10.0, 150.5, 1.0), Fill("MSFT", -2.0, 300.0, 0.0)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ticker,shares\nAAPL,1\n", "no column price"),
        ("ticker,shares,price\nAAPL,1,0\n", "price: Input should be greater than 0"),
        ("ticker,shares,price\nAAPL,1,\n", "line 2: price: "),
    ],
)
def test_fills_without_a_price_are_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(FinflowError, match=said):
        read_fills(write(tmp_path, "f.csv", text), UNIVERSE)


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
