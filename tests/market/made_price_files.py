"""Files of prices as people and programs write them, each with the prices that it holds or what must be said of it.

``FILES`` has forty kinds: twenty clean ones, which are read without a word, and twenty that a reader could get wrong
without noticing. ``clean`` ones that name a program are written by it, or in the form that its manual gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from finflow.arrays import FloatArray

Outcome = Literal["clean", "found", "refused"]
NAMES = ("AAA", "BBB", "CCC")


class PriceFile(NamedTuple):
    """Writer of a file or folder, and what must come of it: the right closes, and words of a finding or an error."""

    outcome: Outcome
    write: Callable[[pd.DataFrame, Path], Path | None]
    right: pd.DataFrame
    words: str = ""
    settings: Mapping[str, Any] = {}


def closes(
    names: tuple[str, ...] = NAMES, bars: int = 300, freq: str = "B", seed: int = 0, deviation: float = 0.012
) -> pd.DataFrame:
    """Random walks with two decimals from 40 up, whose logarithm moves by a normal deviation a bar."""
    rng = np.random.default_rng(seed)
    moves = rng.normal(2e-4, deviation, (bars, len(names)))
    dates = pd.date_range("2015-01-05", periods=bars, freq=freq, name="Date")
    levels = np.geomspace(40.0, 210.0, len(names))
    return pd.DataFrame((levels * np.exp(np.cumsum(moves, axis=0))).round(2), dates, list(names))


def changed(change: Callable[[FloatArray], None], digits: int = 2, **settings: Any) -> pd.DataFrame:
    """Random walks after a change to their array (bars, assets)."""
    frame = closes(**settings)
    values = frame.to_numpy(copy=True)
    change(values)
    return pd.DataFrame(values, frame.index, frame.columns).round(digits)


def fields_of(close: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Open, high, low, close and volume around closes."""
    high, low = (close * factor for factor in (1.01, 0.99))
    volume = pd.DataFrame(np.arange(close.size).reshape(close.shape) % 97 + 1000, close.index, close.columns)
    return {"Open": close.round(2), "High": high.round(2), "Low": low.round(2), "Close": close, "Volume": volume}


def text_of(
    frame: pd.DataFrame, separator: str = ",", decimal: str = ".", end: str = "\n", digits: str = "%.2f", **more: Any
) -> str:
    return frame.to_csv(sep=separator, decimal=decimal, lineterminator=end, float_format=digits, **more)


def written(text: Callable[[pd.DataFrame], str], encoding: str = "utf-8") -> Callable[[pd.DataFrame, Path], None]:
    def write(frame: pd.DataFrame, path: Path) -> None:
        path.write_bytes(text(frame).encode(encoding))

    return write


def long(frame: pd.DataFrame, name: str = "Ticker") -> pd.DataFrame:
    """One row a date and asset, with every field, sorted by asset."""
    parts = [
        pd.DataFrame({field: table[asset] for field, table in fields_of(frame).items()}).assign(**{name: asset})
        for asset in frame
    ]
    return pd.concat(parts).reset_index()


def stamped(zone: str | None, hour: int, form: str) -> Callable[[pd.DataFrame], str]:
    """Dates as time stamps of an hour of a zone, in a form of strftime."""

    def text(frame: pd.DataFrame) -> str:
        stamps = (frame.index + pd.Timedelta(hours=hour)).tz_localize(zone)
        marks = [f"{stamp.strftime(form)}{_offset(stamp)}" for stamp in stamps]
        return text_of(frame.set_axis(marks, axis=0).rename_axis("Date"))

    return text


def _offset(stamp: pd.Timestamp) -> str:
    text = stamp.strftime("%z")
    return f"{text[:3]}:{text[3:]}" if text else ""


def older_yfinance(frame: pd.DataFrame) -> str:
    """Two lines of names and one of the index, as yfinance's frames were written before they named their levels."""
    return text_of(pd.concat(fields_of(frame), axis=1))


def newer_yfinance(frame: pd.DataFrame) -> str:
    return text_of(pd.concat(fields_of(frame), axis=1, names=["Price", "Ticker"]))


def r_csv(frame: pd.DataFrame, separator: str = ",", decimal: str = ".") -> str:
    """What R's write.csv and write.csv2 make: names and texts in quotes, and a first column of row numbers."""
    table = frame.reset_index().assign(Date=lambda rows: rows["Date"].dt.strftime("%Y-%m-%d"))
    table.index = pd.Index([str(number) for number in range(1, len(table) + 1)], name="")
    return table.to_csv(sep=separator, decimal=decimal, quoting=2)  # csv.QUOTE_NONNUMERIC


def finrl(frame: pd.DataFrame) -> str:
    rows = long(frame, "tic").rename(columns=str.lower).sort_values(["date", "tic"], ignore_index=True)
    return text_of(rows.assign(day=rows["date"].dt.day_of_week))


def tushare(frame: pd.DataFrame) -> str:
    rows = long(frame, "ts_code").rename(columns={"Date": "trade_date", "Volume": "vol"})
    return text_of(rows.rename(columns=str.lower), index=False, date_format="%Y%m%d")


def stooq(frame: pd.DataFrame) -> str:
    rows = long(frame, "<TICKER>").rename(columns=lambda name: name if name[0] == "<" else f"<{name.upper()}>")
    rows = rows.rename(columns={"<VOLUME>": "<VOL>"}).assign(**{"<PER>": "D", "<TIME>": "000000"})
    return text_of(rows, index=False, date_format="%Y%m%d")


def files_of_assets(frame: pd.DataFrame, path: Path) -> Path:
    folder = path.with_suffix("")
    folder.mkdir()
    for name in frame:
        one = pd.DataFrame({field: table[name] for field, table in fields_of(frame).items()})
        (folder / f"{name}.csv").write_text(text_of(one))
    return folder


def parquet(frame: pd.DataFrame, path: Path) -> Path:
    path = path.with_suffix(".parquet")
    frame.to_parquet(path)
    return path


def numbered(name: str) -> Callable[[pd.DataFrame], str]:
    def text(frame: pd.DataFrame) -> str:
        table = frame.reset_index()
        table.insert(1, name, np.arange(1, len(table) + 1))
        return text_of(table, index=False)

    return text


def wide(frame: pd.DataFrame) -> str:
    return text_of(frame)


def grouped(frame: pd.DataFrame) -> str:
    """Thousands by points and no decimals: 1.234, as a German locale prints the integer."""
    table = frame.map(lambda value: f"{round(value * 10):,}".replace(",", "."))
    return table.to_csv()


def beside(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([first, second], axis=1, sort=True)


def with_column(name: str, column: Callable[[pd.DataFrame], Any]) -> pd.DataFrame:
    frame = closes(("AAA", "BBB", "CCC", "DDD"))
    return frame.assign(**{name: column(frame)})


def crypto() -> pd.DataFrame:
    """Every day of the week, 5 % a day, and some days of more than 50 % up and down."""

    def wild(values: FloatArray) -> None:
        for row, jump in ((60, 1.62), (130, 0.45), (200, 1.55), (250, 1.7)):
            values[row:, 0] *= jump

    return changed(wild, freq="D", bars=400, deviation=0.05, seed=3).round(2)


def currencies() -> pd.DataFrame:
    """An exchange rate near one that wanders, and a coin held at one."""
    rng, frame = np.random.default_rng(4), closes()
    rate = 1.1 * np.exp(np.cumsum(rng.normal(0.0, 0.005, len(frame))))
    return frame.assign(EURUSD=rate.round(4), USDX=(1.0 + rng.normal(0.0, 4e-4, len(frame))).round(5))


def scaled(rows: slice, column: int, factor: float) -> Callable[[FloatArray], None]:
    def change(values: FloatArray) -> None:
        values[rows, column] *= factor

    return change


def held(rows: slice, column: int) -> Callable[[FloatArray], None]:
    def change(values: FloatArray) -> None:
        values[rows, column] = values[rows.start or 0, column]

    return change


def with_empty_row(frame: pd.DataFrame) -> str:
    last = frame.index[-1] + pd.offsets.BDay()
    return wide(frame) + f"{last.date()},,,\n"


def gross_returns() -> pd.DataFrame:
    frame = closes(bars=301)
    return (frame / frame.shift(1)).iloc[1:].round(6)


STOCKS_AND_COIN = beside(closes(bars=285), closes(("COIN",), bars=398, freq="D", seed=9, deviation=0.03))
NO_DATES = pd.DataFrame()

FILES: dict[str, PriceFile] = {
    "pandas, one column an asset": PriceFile("clean", written(wide), closes()),
    "pandas, with row numbers": PriceFile("clean", written(lambda f: text_of(f.reset_index())), closes()),
    "pandas, one row an asset": PriceFile("clean", written(lambda f: text_of(long(f), index=False)), closes()),
    "pandas, Parquet": PriceFile("clean", parquet, closes(), "", {"source": "parquet"}),
    "polars, time stamps without a zone": PriceFile(
        "clean", written(stamped(None, 0, "%Y-%m-%dT%H:%M:%S.000000")), closes()
    ),
    "Excel, UTF-8": PriceFile("clean", written(lambda f: text_of(f, end="\r\n"), "utf-8-sig"), closes()),
    "Excel, German": PriceFile("clean", written(lambda f: text_of(f, ";", ",", "\r\n"), "utf-8-sig"), closes()),
    "Excel, tabs": PriceFile("clean", written(lambda f: text_of(f, "\t", ".", "\r\n")), closes()),
    "yfinance": PriceFile("clean", written(newer_yfinance), closes()),
    "yfinance, older": PriceFile("clean", written(older_yfinance), closes()),
    "yfinance, history of a ticker": PriceFile(
        "clean", written(stamped("America/New_York", 0, "%Y-%m-%d %H:%M:%S")), closes()
    ),
    "R, write.csv": PriceFile("clean", written(r_csv), closes()),
    "R, write.csv2": PriceFile("clean", written(lambda f: r_csv(f, ";", ",")), closes()),
    "FinRL": PriceFile("clean", written(finrl), closes()),
    "Tushare": PriceFile("clean", written(tushare), closes()),
    "Stooq": PriceFile("clean", written(stooq), closes()),
    "a file an asset": PriceFile("clean", files_of_assets, closes()),
    "Tokyo's midnight": PriceFile("clean", written(stamped("Asia/Tokyo", 0, "%Y-%m-%dT%H:%M")), closes()),
    "exchange rate and stablecoin": PriceFile("clean", written(lambda f: text_of(f, digits="%.5f")), currencies()),
    "crypto": PriceFile("clean", written(wide), crypto()),
    "row numbers called No": PriceFile("found", written(numbered("No")), closes(), "row numbers"),
    "row numbers called #": PriceFile("found", written(numbered("#")), closes(), "row numbers"),
    "empty last row": PriceFile("found", written(with_empty_row), closes(), "2016-02-29"),
    "unadjusted split": PriceFile(
        "found", written(wide), changed(scaled(slice(150, None), 1, 0.25)), "BBB 2015-08-03.*4 for 1"
    ),
    "change of unit": PriceFile(
        "found", written(wide), changed(scaled(slice(150, None), 2, 0.01)), "unit CCC .*1e-02, from 213.28 to 2.15"
    ),
    "thousands lost": PriceFile(
        "found",
        written(lambda f: text_of(f, digits="%.6f")),
        changed(scaled(slice(150, 152), 2, 1e-3), 6),
        "CCC.*1e-03",
    ),
    "one price mistyped": PriceFile("found", written(wide), changed(scaled(slice(80, 81), 0, 1.9)), "AAA.*2015-04-27"),
    "the index among the assets": PriceFile(
        "found",
        written(wide),
        with_column("BENCH", lambda f: ((f / f.iloc[0]).mean(axis=1) * 100.0).round(2)),
        "market.benchmark",
    ),
    "the same asset twice": PriceFile("found", written(wide), with_column("AAA2", lambda f: f["AAA"]), "AAA2.*AAA"),
    "a price that never moves": PriceFile("found", written(wide), changed(held(slice(None), 1)), "BBB"),
    "a price that stands still": PriceFile(
        "found", written(wide), changed(held(slice(100, 140), 1)), "BBB.*2015-05-25"
    ),
    "a column that only rises": PriceFile(
        "found", written(wide), with_column("ID", lambda f: 1000.0 + 7.0 * np.arange(len(f))), "ID.*never falls"
    ),
    "months without a row": PriceFile("found", written(wide), closes().drop(closes().index[100:150]), "2015-05-22"),
    "stocks beside a coin": PriceFile("found", written(wide), STOCKS_AND_COIN.ffill(), "market.align", {"max_gap": 5}),
    "stocks beside a coin, gaps": PriceFile("refused", written(wide), STOCKS_AND_COIN, "market.align"),
    "gross returns": PriceFile(
        "refused", written(lambda f: text_of(f, digits="%.6f")), gross_returns(), "gross returns"
    ),
    "simple returns": PriceFile(
        "refused", written(lambda f: text_of(f, digits="%.6f")), gross_returns() - 1.0, "looks like returns"
    ),
    "thousands by points": PriceFile(
        "refused", written(grouped), closes(), "1.004 could be 1004 or 1.004; write 1004 or 1.0040, as with every"
    ),
    "UTC, afternoon": PriceFile("refused", written(stamped("UTC", 15, "%Y-%m-%dT%H:%M:%S")), closes(), "time zone"),
    "days before months": PriceFile("refused", written(lambda f: text_of(f, date_format="%d/%m/%Y")), closes(), "YYYY"),
}
