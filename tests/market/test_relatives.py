"""Price relatives without dates become prices with the user's calendar, and mistakes are told in one line."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from finflow.cli.exit_status import run_safely
from finflow.config import MarketConfig
from finflow.errors import MarketError
from finflow.market.sources.panel_loader import load_panel
from scripts.convert_relatives import main, prices_from_relatives
from tests.commands import refusal
from tests.market.conftest import assert_refused

START = dt.date(1962, 7, 3)


def relatives(rows: int = 30, assets: int = 4) -> NDArray[np.float64]:
    return 1.0 + 0.01 * np.random.default_rng(0).standard_normal((rows, assets)).round(6)


def written(folder: Path, separator: str = ",", names: bool = False, counted: bool = False) -> Path:
    frame = pd.DataFrame(relatives(), columns=["ahp", "alcoa", "amer", "coke"])
    path = folder / "nyse.csv"
    frame.to_csv(path, sep=separator, header=names, index=counted)
    return path


@pytest.mark.parametrize("separator", [",", ";", "\t", " "])
@pytest.mark.parametrize("names", [False, True])
@pytest.mark.parametrize("counted", [False, True])
def test_relatives_are_chained_to_prices(tmp_path: Path, separator: str, names: bool, counted: bool) -> None:
    prices = prices_from_relatives(written(tmp_path, separator, names, counted), START)
    assert list(prices.columns) == (["ahp", "alcoa", "amer", "coke"] if names else ["A1", "A2", "A3", "A4"])
    np.testing.assert_allclose(prices.to_numpy()[1:] / prices.to_numpy()[:-1], relatives(), rtol=1e-12)
    assert (prices.iloc[0] == 1.0).all()
    assert [str(day.date()) for day in prices.index[[0, 1, 2]]] == ["1962-07-02", "1962-07-03", "1962-07-04"]


@pytest.mark.parametrize("more", [0, 1])
def test_a_calendar_knows_the_holidays(tmp_path: Path, more: int) -> None:
    days = [day for day in pd.bdate_range("1962-07-02", periods=32) if day.date() != dt.date(1962, 7, 4)]
    calendar = tmp_path / "days.csv"
    calendar.write_text("Date\n" + "".join(f"{day.date()}\n" for day in days[1 - more :]), encoding="utf-8")
    prices = prices_from_relatives(written(tmp_path), None, calendar)
    assert list(prices.index) == days


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("a,b\n", "no relatives"),
        ("1.0,1.1\n1.0\n", "line 2: 1 cells, and 2 on line 1"),
        ("1.0,1.1\n1.0,x\n", "line 2: column 2 has 'x', which is not a number"),
        ("1.0,1.1\n1.0,-0.5\n", "line 2: -0.5 of asset 2 is no price relative"),
        ("1.0,1.1\n1.0,0\n", "above zero"),
        ("1.0,1.1\n1.0,nan\n", "line 2: nan of asset 2"),
        ("41.5,30.2\n41.7,30.1\n", "are about 1; a file of prices is read by market.source=csv"),
        ("a,b,c\n1.0,1.1\n", "names and 2 columns"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "wrong.csv"
    path.write_text(text, encoding="utf-8")
    assert_refused([words], lambda: prices_from_relatives(path, START))


@pytest.mark.parametrize(
    ("start", "calendar", "words"),
    [
        (None, None, "have no dates"),
        (dt.date(1962, 7, 1), None, "no business day"),
        (None, "1962-07-03\n", "has 1 dates, and"),
        (None, "1962-07-03\n" * 30, "line 2: 1962-07-03 follows 1962-07-03"),
        (None, "3.7.1962\n" * 30, "line 1: '3.7.1962' is not a date"),
    ],
)
def test_wrong_dates_are_one_line(tmp_path: Path, start: dt.date | None, calendar: str | None, words: str) -> None:
    path = tmp_path / "days.csv"
    path.write_text(calendar or "", encoding="utf-8")
    with pytest.raises(MarketError, match=words):
        prices_from_relatives(written(tmp_path), start, path if calendar else None)


def test_the_script_writes_what_the_csv_source_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, prices = written(tmp_path, names=True), tmp_path / "prices.csv"
    assert run_safely(main, [str(path), str(prices), "--start", "1962-07-03"]) == 0
    assert "4 assets, 31 bars from 1962-07-02 to 1962-08-13" in capsys.readouterr().out
    panel = load_panel(MarketConfig(source="csv", path=prices))
    np.testing.assert_allclose(panel.close[1:] / panel.close[:-1], relatives(), rtol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name the file of price relatives"),
        (["a.csv", "b.csv"], "give --start DATE or --calendar FILE"),
        (["a.csv", "b.csv", "--start", "1962-07-03", "--calendar", "c.csv"], "one of the two"),
        (["a.csv", "b.txt", "--start", "1962-07-03"], "must end in .csv"),
        (["a.csv", "a.csv", "--start", "1962-07-03"], "holds the relatives"),
        (["a.csv", "b.csv", "--start", "July"], "is not a date"),
        (["nowhere.csv", "b.csv", "--start", "1962-07-03"], "nowhere.csv"),
    ],
)
def test_the_script_names_the_mistake(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in refusal(capsys, *arguments, command=lambda given: run_safely(main, given))
