"""Prices in every layout that users have them in: all come in alike, and what cannot be told apart is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from finflow.config import MarketConfig
from finflow.errors import MarketError
from finflow.market.panel import MarketPanel
from finflow.market.sources.panel_loader import load_panel
from tests.market.conftest import assert_refused

NAMES = ("AAA", "NA", "IDX")
FIELDS = ("Open", "High", "Low", "Close", "Volume")


def days(count: int) -> pd.DatetimeIndex:
    return pd.DatetimeIndex(pd.bdate_range("2020-01-01", periods=count), name="Date")


DAYS = days(30)


def bars(count: int = 30, late: int = 4, **more: np.ndarray) -> pd.DataFrame:
    """Fields by assets; NA lists late, and a bank's ticker must not be taken for a missing value."""
    rng = np.random.default_rng(5)
    close = 50.0 * np.exp(np.cumsum(rng.normal(0.0, 0.01, (count, 3)), axis=0))
    opens, volume = close * np.exp(rng.normal(0.0, 0.002, close.shape)), rng.integers(1, 9, close.shape).astype(float)
    tables = dict(zip(FIELDS, (opens, close * 1.02, close * 0.97, close, volume), strict=True)) | more
    frame = pd.concat({name: pd.DataFrame(table, days(count), list(NAMES)) for name, table in tables.items()}, axis=1)
    frame.columns.names = ["Price", "Ticker"]
    frame.loc[frame.index[:late], (slice(None), "NA")] = np.nan
    return frame


def long(frame: pd.DataFrame, name: str = "Ticker") -> pd.DataFrame:
    rows = frame.stack(level="Ticker", future_stack=True).dropna(how="all").reset_index()
    return rows.rename(columns={"Ticker": name}).rename_axis(None, axis=1)


def of(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    return frame.xs(name, axis=1, level="Ticker").dropna(how="all").rename_axis(None, axis=1)


def save(table: pd.DataFrame, path: Path, index: bool = True) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".csv":
        table.to_csv(path, index=index)
    else:
        table.to_parquet(path, index=index)
    return path


def load(path: Path, kind: str = "csv", **settings: Any) -> MarketPanel:
    values = {"source": kind, "path": path, "benchmark": "IDX", **settings}
    return load_panel(MarketConfig.model_validate(values))


def as_rows(frame: pd.DataFrame, folder: Path, kind: str = "csv") -> Path:
    return save(long(frame), folder / f"prices.{kind}", index=False)


def as_shuffled_rows(frame: pd.DataFrame, folder: Path, kind: str) -> Path:
    table = long(frame, "symbol").rename(columns=str.lower)
    return save(table.sample(frac=1.0, random_state=1), folder / f"prices.{kind}", index=False)


def as_rows_with_more(frame: pd.DataFrame, folder: Path, kind: str) -> Path:
    table = long(frame, "Asset").assign(Sector="Banks", Dividends=0.0)
    return save(table[[*reversed(table.columns)]], folder / f"prices.{kind}", index=False)


def as_files_of_assets(frame: pd.DataFrame, folder: Path, kind: str = "csv") -> Path:
    for name in NAMES:
        save(of(frame, name), folder / "assets" / f"{name}.{kind}")
    (folder / "assets" / "README.md").write_text("daily")
    (folder / "assets" / f".hidden.{kind}").write_text("no")
    return folder / "assets"


def as_files_of_assets_newest_first(frame: pd.DataFrame, folder: Path, kind: str) -> Path:
    return as_files_of_assets(frame.iloc[::-1], folder, kind)


def as_files_of_fields(frame: pd.DataFrame, folder: Path, kind: str = "csv") -> Path:
    for field in FIELDS:
        save(frame[field].rename_axis(None, axis=1), folder / "fields" / f"{field.lower()}.{kind}")
    return folder / "fields"


def as_yfinance_frame(frame: pd.DataFrame, folder: Path, kind: str = "csv") -> Path:
    return save(frame, folder / f"prices.{kind}")


def as_yfinance_frame_by_ticker(frame: pd.DataFrame, folder: Path, kind: str) -> Path:
    return save(frame.swaplevel(axis=1).sort_index(axis=1), folder / f"prices.{kind}")


def as_yfinance_frames_of_one(frame: pd.DataFrame, folder: Path, kind: str) -> Path:
    for name in NAMES:
        save(frame.loc[:, (slice(None), [name])].dropna(how="all"), folder / "assets" / f"{name}.{kind}")
    return folder / "assets"


LAYOUTS = [
    as_rows, as_shuffled_rows, as_rows_with_more, as_files_of_assets,
    as_files_of_assets_newest_first, as_files_of_fields, as_yfinance_frame, as_yfinance_frame_by_ticker,
    as_yfinance_frames_of_one,
]  # fmt: skip


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("write", LAYOUTS)
def test_every_layout_brings_every_field_and_the_benchmark(
    tmp_path: Path, write: Callable[[pd.DataFrame, Path, str], Path], kind: str
) -> None:
    frame = bars()
    path = write(frame, tmp_path, kind)
    panel = load(path, kind, tickers=["NA", "AAA"])
    assert panel.assets == ("NA", "AAA")
    np.testing.assert_allclose(panel.benchmark, frame["Close"]["IDX"], rtol=1e-15)
    for field in FIELDS:
        expected = frame[field][["NA", "AAA"]].to_numpy()
        np.testing.assert_allclose(getattr(panel, field.lower()), expected, rtol=1e-15)
    assert panel.listed.sum(axis=0).tolist() == [26, 30]
    assert len(panel.provenance["file_sha256"]) == 64
    assert panel.provenance["adjusted"].startswith("as in the file")
    assert str(tmp_path) not in str(panel.describe())
    assert sorted(load(path, kind).assets) == ["AAA", "NA"]
    with pytest.raises(MarketError, match=rf"'AAB' is not in the {kind} data; did you mean 'AAA'"):
        load(path, kind, tickers=["NA", "AAB"])


def test_closes_alone_are_enough_in_any_layout(tmp_path: Path) -> None:
    rows = save(long(bars()[["Close"]]), tmp_path / "rows.csv", index=False)
    for name in NAMES:
        save(of(bars(), name)[["Close"]], tmp_path / "assets" / f"{name}.csv")
    save(bars()["Close"], tmp_path / "fields" / "close.csv")
    wide = save(bars()["Close"], tmp_path / "wide.csv")
    hashes = {load(path).sha256 for path in (rows, tmp_path / "assets", tmp_path / "fields", wide)}
    assert len(hashes) == 1
    assert load(rows).open is None


def test_tickers_called_low_and_open_are_assets_and_no_fields(tmp_path: Path) -> None:
    for stem, name in (("LOW", "AAA"), ("OPEN", "NA")):
        save(of(bars(), name), tmp_path / f"{stem}.csv")
    panel = load(tmp_path, benchmark=None)
    assert panel.assets == ("LOW", "OPEN")
    wide = bars()["Close"][["AAA", "NA"]].set_axis(["LOW", "OPEN"], axis=1)
    assert load(save(wide, tmp_path / "wide" / "prices.csv"), benchmark=None).assets == ("LOW", "OPEN")


def test_an_asset_without_a_field_costs_all_of_them_the_field_and_it_is_said(tmp_path: Path) -> None:
    folder = as_files_of_assets(bars(), tmp_path)
    save(of(bars(), "NA")[["Close", "Volume"]], folder / "NA.csv")
    save(of(bars(), "IDX")[["Close"]], folder / "IDX.csv")  # the benchmark needs its close alone
    panel = load(folder)
    assert (panel.open, panel.high, panel.low) == (None, None, None)
    assert panel.volume is not None
    assert panel.provenance["fields_left_out"] == "open: NA has none; high: NA has none; low: NA has none"


def test_volumes_of_zero_where_nothing_is_listed_are_no_volumes(tmp_path: Path) -> None:
    folder = as_files_of_fields(bars(), tmp_path)
    save(bars()["Volume"].fillna(0.0), folder / "volume.csv")
    assert load(folder).sha256 == load(as_files_of_assets(bars(), tmp_path)).sha256


def adjusted(folder: Path, drop: tuple[str, ...] = ()) -> Path:
    for name in NAMES:
        table = of(bars(), name)
        ratio = np.linspace(0.5, 1.0, len(table))
        save(table.assign(**{"Adj Close": table["Close"] * ratio}).drop(columns=list(drop)), folder / f"{name}.csv")
    return folder


def test_adjusted_closes_adjust_opens_highs_and_lows_as_yfinance_does(tmp_path: Path) -> None:
    from yfinance.utils import auto_adjust

    panel = load(adjusted(tmp_path), tickers=["AAA", "NA"])
    table = pd.read_csv(tmp_path / "AAA.csv", index_col=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = auto_adjust(table)
    for field in FIELDS:
        np.testing.assert_allclose(getattr(panel, field.lower())[:, 0], expected[field], rtol=1e-14)
    assert "Adj Close" in panel.provenance["adjusted"]


def test_adjusted_closes_can_be_left_alone(tmp_path: Path) -> None:
    panel = load(adjusted(tmp_path), auto_adjust=False)
    assert panel.sha256 == load(as_files_of_assets(bars(), tmp_path / "plain")).sha256
    assert "dividends are left out" in panel.provenance["adjusted"]


def test_adjusted_closes_without_closes_leave_the_other_prices_out(tmp_path: Path) -> None:
    panel = load(adjusted(tmp_path, drop=("Close",)))
    whole = load(adjusted(tmp_path / "whole"))
    np.testing.assert_array_equal(panel.close, whole.close)
    assert panel.open is None
    np.testing.assert_array_equal(panel.volume, whole.volume)
    assert panel.provenance["fields_left_out"].startswith("open, high, low: the file has no Close")
    with pytest.raises(MarketError, match=r"has Adj Close and no Close; set market\.auto_adjust=true"):
        load(tmp_path, auto_adjust=False)


def test_adjusted_closes_of_some_assets_alone_are_refused(tmp_path: Path) -> None:
    folder = adjusted(tmp_path)
    save(of(bars(), "NA"), folder / "NA.csv")
    with pytest.raises(MarketError, match=r"'NA' has no Adj Close, and others have.*market\.auto_adjust=false"):
        load(folder)


def rows_with(change: Callable[[pd.DataFrame], pd.DataFrame]) -> Callable[[Path], Path]:
    return lambda folder: save(change(long(bars())), folder / "prices.csv", index=False)


def asset_file(name: str, text: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = as_files_of_assets(bars(), folder)
        (path / name).write_text(text)
        return path

    return write


def field_file(field: str, change: Callable[[pd.DataFrame], pd.DataFrame]) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = as_files_of_fields(bars(), folder)
        save(change(bars()[field.capitalize()]), path / f"{field}.csv")
        return path

    return write


def put(row: int, column: str, value: Any) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def change(table: pd.DataFrame) -> pd.DataFrame:
        table = table.astype({column: object})
        table.loc[table.index[row], column] = value
        return table

    return change


BAD: dict[str, tuple[Callable[[Path], Path], list[str]]] = {
    "a row twice": (
        rows_with(lambda table: pd.concat([table, table.iloc[[6]]])),
        ["prices.csv, line 88", "'AAA' has a second row of 2020-01-06", "prices.csv, line 8)"],
    ),
    "text": (rows_with(put(9, "High", "n/q")), ["prices.csv, line 11", "'High'", "'n/q'", "not a number"]),
    "no asset": (rows_with(put(9, "Ticker", "")), ["line 11", "'Ticker' is empty"]),
    "no close": (rows_with(lambda table: table.drop(columns="Close")), ["no column Close", "rename"]),
    "two names": (rows_with(lambda table: table.assign(Symbol="x")), ["'Ticker' and 'Symbol'"]),
    "two closes": (rows_with(lambda table: table.assign(close=1.0)), ["'Close' and 'close' are the same field"]),
    "one asset in one file": (
        lambda folder: save(of(bars(), "AAA"), folder / "AAA.csv"),
        ["'Close'", "single asset", "name the folder", "Ticker"],
    ),
    "a folder of the other kind": (
        lambda folder: as_files_of_assets(bars(), folder, "parquet"),
        ["set market.source=parquet"],
    ),
    "fields and assets in one folder": (asset_file("close.csv", "Date,A\n"), ["close.csv", "AAA.csv", "not both"]),
    "a file that is no asset": (asset_file("notes.csv", "a,b\n2020-01-01,2\n"), ["notes.csv", "no column Close (b)"]),
    "a file of rows among assets": (
        asset_file("more.csv", "Date,Ticker,Close\n2020-01-01,A,1\n"),
        ["more.csv has a column that names the asset", "join such files"],
    ),
    "a date twice in a file of an asset": (
        asset_file("AAA.csv", "Date,Close\n2020-01-01,1\n2020-01-01,2\n"),
        ["AAA.csv, line 3", "second row of 2020-01-01", "AAA.csv, line 2"],
    ),
    "a file named after another asset": (
        asset_file("AAA.csv", "Price,Close\nTicker,MSFT\nDate,\n2020-01-01,1\n"),
        ["AAA.csv holds prices of 'MSFT'"],
    ),
    "a field with other dates": (
        field_file("open", lambda table: table.drop(index=DAYS[7])),
        ["open.csv has no row of 2020-01-10", "close.csv has one"],
    ),
    "a field in another order": (field_file("open", lambda table: table.iloc[::-1]), ["open.csv", "another order"]),
    "a field of a stranger": (field_file("open", lambda table: table.assign(X=1.0)), ["open.csv", "'X'", "close.csv"]),
    "a field with a hole": (
        field_file("open", lambda table: table.drop(index=DAYS[7]).reindex(DAYS)),
        ["close but none of open on 2020-01-10"],
    ),
    "two closes in a folder": (field_file("Close", lambda table: table), ["two files of one field"]),
    "two lines without a close": (
        lambda folder: save(bars().drop(columns="Close", level=0), folder / "prices.csv"),
        ["no column Close under its two lines"],
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_layout_is_one_clear_line(tmp_path: Path, case: str) -> None:
    write, words = BAD[case]
    assert_refused(words, lambda: load(write(tmp_path)))


def test_dates_of_assets_that_are_not_wanted_make_no_gaps(tmp_path: Path) -> None:
    """A holiday of one exchange is a date of the other's rows only."""
    table = long(bars())
    table = table[~((table["Ticker"] != "IDX") & (table["Date"] == DAYS[9]))]
    path = save(table, tmp_path / "prices.csv", index=False)
    assert load(path, tickers=["AAA", "NA"], benchmark=None).n_bars == 29
    with pytest.raises(MarketError, match=r"no price on 2020-01-14.*drop the date or the asset"):
        load(path)
