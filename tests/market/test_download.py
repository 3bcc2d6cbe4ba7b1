"""Yahoo's shapes and failures, without a network: frames as yfinance returns them."""

from __future__ import annotations

import datetime as dt
import logging
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from finflow.config import MarketConfig
from finflow.errors import MarketError
from finflow.market.panel import MarketPanel
from finflow.market.sources.panel_loader import load_panel
from finflow.market.sources.yahoo import tables_from_frame

FIELDS = ("Close", "High", "Low", "Open", "Volume")
DAYS = pd.DatetimeIndex(pd.bdate_range("2020-01-01", periods=60), name="Date")


def yahoo(tickers: Sequence[str], days: pd.DatetimeIndex = DAYS, adjusted: bool = True) -> pd.DataFrame:
    """A frame of the shape of yfinance.download(..., group_by="column", multi_level_index=True)."""
    fields = FIELDS if adjusted else ("Adj Close", *FIELDS)
    columns = pd.MultiIndex.from_product([fields, tickers], names=["Price", "Ticker"])
    number = np.arange(len(days))[:, None] + np.arange(len(columns)) + 10.0
    frame = pd.DataFrame(number, index=days, columns=columns)
    for ticker in tickers:
        frame["Low", ticker] = frame["High", ticker] - 0.5
    return frame


class Fake:
    """Stands in for yfinance.download: answers in turn, and writes down what it was asked."""

    def __init__(self, *answers: Callable[[list[str]], pd.DataFrame | None] | Exception, says: str = "") -> None:
        self.answers = answers or (yahoo,)
        self.says = says
        self.asked: list[tuple[list[str], dict[str, Any]]] = []

    def __call__(self, tickers: list[str], **options: Any) -> pd.DataFrame | None:
        answer = self.answers[min(len(self.asked), len(self.answers) - 1)]
        self.asked.append((list(tickers), options))
        if self.says:
            logging.getLogger("yfinance").error("\n1 Failed download:")
            logging.getLogger("yfinance").error(self.says)
        if isinstance(answer, Exception):
            raise answer
        return answer(tickers)


def config(tmp_path: Path, **settings: Any) -> MarketConfig:
    values = {"source": "yfinance", "tickers": ("AAA", "BBB"), "cache_dir": tmp_path / "store", **settings}
    return MarketConfig.model_validate(values)


def load(tmp_path: Path, fake: Fake, **settings: Any) -> MarketPanel:
    return load_panel(config(tmp_path, **settings), fake)


def nothing(tickers: Sequence[str]) -> pd.DataFrame:
    return yahoo(tickers).iloc[:0]


def only(*names: str) -> Callable[[Sequence[str]], pd.DataFrame]:
    """Values for some tickers; the others as yfinance gives them, as columns without a value."""

    def answer(tickers: Sequence[str]) -> pd.DataFrame:
        frame = yahoo(tickers)
        frame.loc[:, [column for column in frame.columns if column[1] not in names]] = np.nan
        return frame

    return answer


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds waited between attempts, without waiting them."""
    seconds: list[float] = []
    monkeypatch.setattr("finflow.market.sources.yahoo._wait", seconds.append)
    return seconds


def test_many_tickers_become_one_panel_in_the_order_asked(tmp_path: Path) -> None:
    fake = Fake()
    panel = load(tmp_path, fake, tickers=("bbb", "AAA"), benchmark="^IDX")
    assert panel.assets == ("BBB", "AAA")
    assert panel.benchmark_name == "^IDX"
    frame = yahoo(["BBB", "AAA", "^IDX"])
    np.testing.assert_array_equal(panel.close, frame["Close"][["BBB", "AAA"]])
    np.testing.assert_array_equal(panel.benchmark, frame["Close"]["^IDX"])
    for field in ("open", "high", "low", "volume"):
        np.testing.assert_array_equal(getattr(panel, field), frame[field.capitalize()][["BBB", "AAA"]])
    assert panel.provenance["source"] == "yfinance"
    assert "dividends and splits" in panel.provenance["adjusted"]


def test_yahoo_is_asked_explicitly(tmp_path: Path) -> None:
    fake = Fake(lambda tickers: yahoo(tickers, adjusted=False))
    panel = load(tmp_path, fake, auto_adjust=False, start=dt.date(2020, 1, 1), test_end=dt.date(2020, 12, 31),
                 train_end=dt.date(2020, 3, 1), validation_end=dt.date(2020, 6, 1))  # fmt: skip
    tickers, options = fake.asked[0]
    assert tickers == ["AAA", "BBB"]
    assert options["auto_adjust"] is False
    assert (options["start"], options["end"]) == ("2020-01-01", "2021-01-01")
    assert (options["group_by"], options["multi_level_index"], options["ignore_tz"]) == ("column", True, True)
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: str, end: str
) -> None:
    monkeypatch.setattr("finflow.market.sources.yahoo._now", lambda: dt.datetime.fromisoformat(now))
    fake = Fake()
    load(tmp_path, fake)
    assert fake.asked[0][1]["end"] == end  # exclusive at Yahoo


def test_every_shape_yfinance_knows_is_read_alike() -> None:
    one = yahoo(["AAA"])
    expected = tables_from_frame(one, ["AAA"])
    shapes = [
        one.swaplevel(axis=1),
        one.droplevel(1, axis=1),
        one.rename(columns=str.lower, level=1),
        one.tz_localize("America/New_York"),
        one.tz_localize("Asia/Tokyo"),
        pd.concat([one, one.iloc[-1:]]),
        one.iloc[::-1],
        one.astype(object),
    ]
    for shape in shapes:
        tables = tables_from_frame(shape, ["AAA"])
        assert tables.keys() == expected.keys() == {"close", "open", "high", "low", "volume"}
        for field, table in tables.items():
            np.testing.assert_array_equal(table.to_numpy(), expected[field].to_numpy())
            assert list(table.index) == list(expected[field].index)
            assert table.index.tz is None


@pytest.mark.parametrize("empty", [None, pd.DataFrame(), yahoo(["AAA"]).iloc[:0], yahoo(["AAA"]) * np.nan])
def test_an_empty_answer_is_no_prices(empty: pd.DataFrame | None) -> None:
    tables = tables_from_frame(empty, ["AAA"])
    assert not tables or tables["close"].empty


def test_a_request_seen_before_needs_no_network(tmp_path: Path) -> None:
    first = load(tmp_path, Fake())
    offline = Fake(ConnectionError("no network"))
    again = load(tmp_path, offline)
    assert not offline.asked
    assert again.sha256 == first.sha256
    assert again.provenance == first.provenance


def test_another_request_is_another_download(tmp_path: Path) -> None:
    load(tmp_path, Fake())
    others: list[dict[str, Any]] = [{"auto_adjust": False}, {"tickers": ("AAA", "CCC")}, {"benchmark": "CCC"}]
    for settings in (*others, {"use_cache": False}):
        fake = Fake()
        load(tmp_path, fake, **settings)
        assert len(fake.asked) == 1


def test_damaged_prices_are_fetched_again_or_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = load(tmp_path, Fake())
    stored = next((tmp_path / "store").glob("*.parquet"))
    stored.write_bytes(b"rotten")
    with pytest.raises(MarketError, match=r"stored prices in .* are damaged, and no prices could be downloaded"):
        load(tmp_path, Fake(ConnectionError("no network")))
    assert load(tmp_path, Fake()).sha256 == first.sha256
    assert "damaged" in caplog.text
    assert load(tmp_path, Fake(ConnectionError("no network"))).sha256 == first.sha256


def test_only_what_is_missing_is_asked_for_again(tmp_path: Path) -> None:
    fake = Fake(only("AAA"), nothing, yahoo)
    panel = load(tmp_path, fake)
    assert [tickers for tickers, _ in fake.asked] == [["AAA", "BBB"], ["BBB"], ["BBB"]]
    assert panel.assets == ("AAA", "BBB")


def test_a_dead_network_is_not_waited_for_three_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finflow.market.sources.yahoo._PATIENCE", -1.0)
    fake = Fake(TimeoutError("timed out"))
    with pytest.raises(MarketError, match="timed out"):
        load(tmp_path, fake)
    assert len(fake.asked) == 1


@pytest.mark.parametrize("answer", [nothing, only("AAA")])
def test_rate_limiting_says_to_wait(
    tmp_path: Path, answer: Callable[[list[str]], pd.DataFrame], waits: list[float]
) -> None:
    fake = Fake(answer, says="['BBB']: YFRateLimitError('Too Many Requests. Rate limited. Try after a while.')")
    with pytest.raises(MarketError, match=r"limits the rate .* BBB; wait"):
        load(tmp_path, fake)
    assert len(fake.asked) == 3
    assert waits == [5.0, 20.0]


def test_rate_limiting_that_passes_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finflow.market.sources.yahoo._PATIENCE", -1.0)
    limited = RuntimeError("YFRateLimitError('Too Many Requests. Rate limited. Try after a while.')")
    fake = Fake(limited, yahoo)
    assert load(tmp_path, fake).n_bars == 60
    assert len(fake.asked) == 2


@pytest.mark.parametrize("settings", [{"tickers": ("AAA",)}, {"tickers": ("AAA", "aaa")}])
def test_one_asset_is_too_few_to_ask_for(tmp_path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(MarketError, match=r"at least two assets|more than once"):
        load(tmp_path, Fake(), **settings)


def test_holidays_of_other_exchanges_are_left_out_not_filled(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def answer(tickers: list[str]) -> pd.DataFrame:
        frame = yahoo(tickers)
        for day in (10, 11, 30, 59):  # the last one: Tokyo has closed, New York has not
            frame.loc[frame.index[day], [column for column in frame.columns if column[1] == "BBB"]] = np.nan
        return frame

    panel = load(tmp_path, Fake(answer))
    assert panel.listed.all()
    assert panel.n_bars == 56
    assert panel.provenance["dates_dropped"] == 4
    assert "4 dates left out" in caplog.text


def test_a_hole_in_the_prices_is_an_error(tmp_path: Path) -> None:
    def answer(tickers: list[str]) -> pd.DataFrame:
        frame = yahoo(tickers)
        frame.loc[frame.index[10:25], [column for column in frame.columns if column[1] == "BBB"]] = np.nan
        return frame

    with pytest.raises(MarketError, match="BBB has no prices on 15 dates in a row from 2020-01-15"):
        load(tmp_path, Fake(answer))


def test_a_high_under_its_low_costs_both_fields_and_is_said(tmp_path: Path) -> None:
    def answer(tickers: list[str]) -> pd.DataFrame:
        frame = yahoo(tickers)
        frame.loc[frame.index[3], ("High", "AAA")] = frame.loc[frame.index[3], ("Low", "AAA")] * 0.99
        frame.loc[frame.index[4], ("Open", "AAA")] = 0.0
        return frame

    panel = load(tmp_path, Fake(answer))
    assert panel.high is None
    assert panel.low is None
    assert panel.volume is not None
    noted = panel.provenance["fields_left_out"]
    assert noted == "open: missing or zero where there is a closing price; high, low: a high is under its low"


def test_the_indexs_own_gaps_cost_the_assets_no_field(tmp_path: Path) -> None:
    def answer(tickers: list[str]) -> pd.DataFrame:
        frame = yahoo(tickers)
        frame.loc[frame.index[3], ("Open", "^IDX")] = 0.0  # as Yahoo has it for the index before 1962
        frame[("Volume", "^IDX")] = np.nan
        return frame

    panel = load(tmp_path, Fake(answer), benchmark="^IDX")
    assert panel.open is not None
    assert panel.volume is not None
    assert "fields_left_out" not in panel.provenance


def test_yfinance_keeps_quiet_and_gets_its_log_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    log = logging.getLogger("yfinance")
    before = (log.handlers[:], log.propagate, log.level)

    def answer(tickers: list[str]) -> pd.DataFrame:
        warnings.warn("pandas will change", FutureWarning, stacklevel=1)
        return yahoo(tickers)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(tmp_path, Fake(answer, says="noise"))
    assert "noise" not in capsys.readouterr().err + caplog.text
    assert (log.handlers, log.propagate, log.level) == before
