"""Prices of Yahoo are what its server says, every failure is named as what it is; tickers of a file or a universe."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from yfinance.exceptions import YFRateLimitError

from finflow.cli import main
from finflow.cli.option_table import CONFIGURATION, SCALE, add_options
from finflow.cli.options import UNIVERSES, Parser, resolve
from finflow.config import Config, MarketConfig
from finflow.errors import FinflowError, MarketError
from finflow.market.sources.yahoo import request_end
from tests.market.conftest import DAYS, FIELDS, Load, Server, assert_refused

DOWN = ConnectionError("Could not resolve host: query2.finance.yahoo.com")


def test_many_tickers_are_adjusted_in_every_price_and_not_in_volume(server: Server, load: Load) -> None:
    server.charts["BBB"]["adjusted"] *= 0.5
    panel = load(tickers=("bbb", "AAA"), benchmark="ccc")
    assert (panel.assets, panel.benchmark_name) == (("BBB", "AAA"), "CCC")
    assert panel.dates.tolist() == DAYS[:60].to_numpy("datetime64[D]").tolist()
    charts = server.charts
    for field in FIELDS:
        expected = np.stack([charts["BBB"][field] * (1.0 if field == "volume" else 0.5), charts["AAA"][field]], axis=1)
        np.testing.assert_allclose(getattr(panel, field), expected[:60], rtol=1e-12)
    np.testing.assert_allclose(panel.benchmark, charts["CCC"]["close"][:60], rtol=1e-12)
    assert "dividends and splits" in panel.provenance["adjusted"]
    with pytest.raises(MarketError, match="names AAA more than once"):
        load(tickers=("AAA", "aaa"))


def test_without_adjustment_prices_are_yahoos_own_and_end_where_they_are_to_end(server: Server, load: Load) -> None:
    server.charts["BBB"]["adjusted"] *= 0.5
    dates = {"train_end": DAYS[20].date(), "validation_end": DAYS[30].date(), "test_end": DAYS[40].date()}
    panel = load(auto_adjust=False, start=DAYS[10].date(), **dates)
    for field in ("open", "close"):
        assert getattr(panel, field)[:, 1].tolist() == server.charts["BBB"][field][10:41].tolist()
    assert panel.provenance["adjusted"].startswith("prices adjusted for splits only")


@pytest.mark.parametrize(
    ("now", "end"),
    [
        ("2024-06-14T15:30+00:00", "2024-06-14"),  # New York trades, and the 14th has begun everywhere
        ("2024-06-15T00:30+09:00", "2024-06-14"),  # the same moment, on a desk in Tokyo
        ("2024-06-14T20:30-04:00", "2024-06-14"),  # New York has closed, and Honolulu has not
        ("2024-06-15T12:00+00:00", "2024-06-15"),
    ],
)
def test_an_unfinished_bar_is_not_asked_for_wherever_the_user_sits(
    monkeypatch: pytest.MonkeyPatch, now: str, end: str
) -> None:
    monkeypatch.setattr("finflow.market.sources.yahoo._now", lambda: dt.datetime.fromisoformat(now))
    assert str(request_end(MarketConfig(source="yfinance", tickers=("AAA", "BBB")))) == end


def test_a_delisted_name_with_prices_is_a_listing_that_ends(server: Server, load: Load) -> None:
    server.put("OLD", 3, DAYS[:25])
    server.put("NEW", 4, DAYS[10:])
    panel = load()
    assert panel.listed.sum(axis=0).tolist() == [60, 60, 60, 25, 50]
    assert panel.listed[:25, 3].all()
    assert panel.listed[10:, 4].all()
    assert panel.volume is not None


@pytest.mark.parametrize(
    "said",
    [
        "No data found, symbol may be delisted",
        "Data doesn't exist for startDate = 1, endDate = 2",
        "",  # an unknown ticker: Yahoo names no time zone, and yfinance says "possibly delisted"
    ],
)
def test_a_delisted_name_without_prices_is_named_with_what_to_do(server: Server, load: Load, said: str) -> None:
    server.said = said
    words = ("no prices for GONE, though 2 other tickers were found", "leave it out of market.tickers")
    assert_refused(words, lambda: load(tickers=("AAA", "BBB", "GONE")))


@pytest.mark.parametrize("limited", [("BBB",), ("AAA", "BBB", "CCC")])
def test_rate_limiting_is_waited_for_and_named(
    server: Server, load: Load, monkeypatch: pytest.MonkeyPatch, limited: tuple[str, ...]
) -> None:
    """Though all other waiting has lasted long enough."""
    waits: list[float] = []
    monkeypatch.setattr("finflow.market.sources.yahoo._wait", waits.append)
    monkeypatch.setattr("finflow.market.sources.yahoo._PATIENCE", -1.0)
    server.fail(YFRateLimitError(), *limited)
    with pytest.raises(MarketError, match=f"limits the rate of requests and gave no prices for {', '.join(limited)};"):
        load()
    assert waits == [5.0, 20.0]
    server.fail(YFRateLimitError(), *limited, times=2)
    assert load().n_bars == 60


def test_only_what_a_failing_network_kept_back_is_asked_for_again(server: Server, load: Load) -> None:
    """Yfinance, left to itself, calls such a ticker delisted and says nothing of the network."""
    server.fail(ConnectionError("Connection reset by peer"), "BBB", times=1)
    assert load().listed.all()
    assert sorted(ticker for ticker, _ in server.asked) == ["AAA", "BBB", "BBB", "CCC"]


@pytest.mark.parametrize(("patience", "times"), [(-1.0, 1), (6.0, 3)])
def test_a_network_that_is_down_is_not_called_delisting_nor_waited_for_long(
    server: Server, load: Load, monkeypatch: pytest.MonkeyPatch, patience: float, times: int
) -> None:
    monkeypatch.setattr("finflow.market.sources.yahoo._PATIENCE", patience)
    server.fail(DOWN)
    with pytest.raises(MarketError) as caught:
        load()
    for word in ("AAA, BBB", "check the network", "market.source=embedded", "Could not resolve host"):
        assert word in str(caught.value)
    assert "delisted" not in str(caught.value)
    assert len(server.asked) == 3 * times


def test_what_was_downloaded_needs_no_network_and_another_request_does(server: Server, load: Load) -> None:
    first = load(tickers=("AAA", "BBB"))
    server.fail(DOWN)
    again = load(tickers=("AAA", "BBB"))
    assert again.sha256 == first.sha256
    assert again.provenance == first.provenance
    others: list[dict[str, Any]] = [{"auto_adjust": False}, {"tickers": ("AAA", "CCC")}, {"benchmark": "CCC"}]
    for settings in (*others, {"use_cache": False}, {"start": dt.date(2010, 1, 1)}):
        with pytest.raises(MarketError, match="check the network"):
            load(**{"tickers": ("AAA", "BBB"), **settings})


def test_damaged_prices_are_fetched_again_or_refused(
    server: Server, load: Load, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = load()
    next((tmp_path / "store").glob("*.prices")).write_bytes(b"rotten")
    server.fail(DOWN)
    with pytest.raises(MarketError, match=r"stored prices in .* are damaged, and no prices could be downloaded"):
        load()
    server.failures.clear()
    assert load().sha256 == first.sha256
    assert "damaged" in caplog.text
    server.fail(DOWN)
    assert load().sha256 == first.sha256


def test_a_hole_in_the_prices_is_an_error(server: Server, load: Load) -> None:
    server.charts["BBB"] = server.charts["BBB"].drop(DAYS[10:25])
    with pytest.raises(MarketError, match="BBB has no prices on 15 dates in a row from 2020-01-15"):
        load()


def test_days_without_a_close_cost_no_field(server: Server, load: Load) -> None:
    """A day that Yahoo leaves empty in all columns is dropped by yfinance; one with a volume alone comes through."""
    table = server.charts["BBB"]
    table.loc[DAYS[20], ["open", "high", "low", "close", "adjusted"]] = np.nan
    table.loc[DAYS[30], "volume"] = 0.0
    table.loc[DAYS[31], "volume"] = np.nan
    panel = load()
    assert panel.n_bars == 59
    assert DAYS[20].to_datetime64() not in panel.dates
    assert panel.provenance["dates_dropped"] == 1
    assert panel.volume[29:31, 1].tolist() == [0.0, 0.0]  # row 20 is gone
    assert panel.open is not None


@pytest.mark.parametrize(
    ("field", "value", "left_out"),
    [
        ("open", 0.0, "open: missing or zero where there is a closing price"),
        ("high", np.nan, "high: missing or zero where there is a closing price"),
        ("high", 1.0, "high, low: a high is under its low"),
    ],
)
def test_a_field_with_impossible_prices_is_left_out_and_said(
    server: Server, load: Load, field: str, value: float, left_out: str
) -> None:
    """Those of the index cost the assets nothing."""
    server.charts["BBB"].loc[DAYS[3], field] = value
    panel = load()
    assert getattr(panel, field) is None
    assert panel.volume is not None
    assert panel.provenance["fields_left_out"] == left_out
    of_others = load(tickers=("AAA", "CCC"), benchmark="BBB")
    assert getattr(of_others, field) is not None
    assert "fields_left_out" not in of_others.provenance


def test_an_impossible_adjusted_close_says_whose_it_is(server: Server, load: Load) -> None:
    server.charts["BBB"].loc[: DAYS[39], "adjusted"] = -28.4
    with pytest.raises(MarketError, match=r"Yahoo's close of BBB is -28\.4.* set market\.start after 2020-02-25"):
        load()


TEXT = "\ufeff# the list\nAAPL, MSFT  # two\n\nJPM\nKO,\tPG\n"


def listed(folder: Path, text: str | bytes = TEXT) -> str:
    path = folder / "tickers.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def configured(*arguments: str) -> Config:
    parser = Parser("")
    add_options(parser, CONFIGURATION, SCALE)
    return resolve(parser.parse(list(arguments)))


def test_names_are_read_from_lines_and_commas_and_mean_yahoos_tickers(tmp_path: Path) -> None:
    market = configured("--tickers-file", listed(tmp_path)).market
    assert (market.source, market.tickers) == ("yfinance", ("AAPL", "MSFT", "JPM", "KO", "PG"))
    market = configured("--tickers-file", listed(tmp_path), "--set", "market.source=embedded").market
    assert (market.source, market.tickers) == ("embedded", ("AAPL", "MSFT", "JPM", "KO", "PG"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# nothing\n", "at least one asset is needed"),
        ("AAPL\nMSFT\nAAPL\n", "names AAPL more than once"),
        (b"AAPL\n\xff\xfe\n", "is not UTF-8 text"),
        (None, "does not exist"),
    ],
)
def test_a_bad_list_is_one_clear_line(tmp_path: Path, text: str | bytes | None, words: str) -> None:
    path = str(tmp_path / "none.txt") if text is None else listed(tmp_path, text)
    assert_refused([words], lambda: configured("--tickers-file", path), FinflowError)


@pytest.mark.parametrize(("name", "count"), [("dow30", 30), ("sectors", 11)])
def test_a_universe_by_name_stands_for_its_tickers(name: str, count: int) -> None:
    config = configured("--universe", name)
    assert (config.market.source, config.market.tickers) == ("yfinance", UNIVERSES[name])
    assert len(set(UNIVERSES[name])) == count
    assert configured("--universe", name, "--set", "market.source=csv", "--set", "market.path=a.csv").market.path


def test_tickers_are_chosen_in_one_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FinflowError, match="not allowed with argument"):
        configured("--tickers", "A", "B", "--tickers-file", listed(tmp_path))
    with pytest.raises(FinflowError, match="--universe sectors names the tickers; leave --tickers and --tickers-file"):
        configured("--universe", "sectors", "--tickers", "A", "B")
    assert main(("--mode", "train", "--universe", "dow3")) == 2
    assert "dow3 does not exist; --universe takes a file, or dow30 or sectors" in capsys.readouterr().err
