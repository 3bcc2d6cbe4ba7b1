"""Convert price relatives without dates, such as NYSE(O), to a CSV file of prices for market.source=csv.

Examples:
  python scripts/convert_relatives.py nyse_o.csv nyse_o_prices.csv --start 1962-07-03
  python scripts/convert_relatives.py nyse_o.csv nyse_o_prices.csv --calendar nyse_days.csv
  python main.py --mode backtest --strategy olmar --set market.source=csv --set market.path=nyse_o_prices.csv \
      --set market.train_end=1975-12-31 --set market.validation_end=1979-12-31

The relatives have one row a bar and one column an asset. The calendar has the date of each row, one a line. A price
relative is the price of a bar over the price of the bar before. The data sets of online portfolio selection (NYSE(O),
Cover 1991; NYSE(N), TSE, MSCI, Li and Hoi 2014) have no dates and often no names.
"""

import datetime as dt
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from finflow.cli.exit_status import run_safely
from finflow.cli.options import Parser
from finflow.errors import MarketError
from finflow.files import read_text_input, write_atomically

_LOWEST, _HIGHEST = 0.5, 2.0
"""Bounds of the median relative; prices and returns lie elsewhere."""


def main(arguments: Sequence[str]) -> None:
    """Read the options, and write the prices."""
    parser = Parser(__doc__ or "", usage="%(prog)s RELATIVES PRICES --start DATE|--calendar FILE")
    parser.add_argument("relatives", nargs="?", type=Path, metavar="RELATIVES", help="text file of price relatives")
    parser.add_argument("prices", nargs="?", type=Path, metavar="PRICES", help="CSV file to write")
    parser.add_argument("--start", metavar="DATE", help="date of the first row; business days follow")
    parser.add_argument("--calendar", type=Path, metavar="FILE", help="text file with the date of each row")
    parser.add_argument("--verbose", action="store_true", help="show where an error came from")
    given = parser.parse(arguments)
    if given.relatives is None or given.prices is None:
        parser.error("name the file of price relatives, and the CSV file to write")
    if (given.start is None) == (given.calendar is None):
        parser.error("price relatives have no dates: give --start DATE or --calendar FILE, one of the two")
    if given.prices.suffix != ".csv":
        parser.error(f"{given.prices} must end in .csv")
    if given.prices.absolute() == given.relatives.absolute():
        parser.error(f"{given.prices} holds the relatives; name another file to write")
    try:
        start = None if given.start is None else dt.date.fromisoformat(given.start)
    except ValueError:
        parser.error(f"--start {given.start!r} is not a date of the form YYYY-MM-DD")
    prices = prices_from_relatives(given.relatives, start, given.calendar)
    write_atomically(given.prices, prices.to_csv(float_format="%.17g"))
    first, last = prices.index[0].date(), prices.index[-1].date()
    print(f"{given.prices}: {prices.shape[1]} assets, {len(prices)} bars from {first} to {last}")


def prices_from_relatives(path: Path, start: dt.date | None = None, calendar: Path | None = None) -> pd.DataFrame:
    """Read price relatives, and chain them to prices that begin at 1 on the bar before the first.

    Parameters
    ----------
    path : Path
        Text with one row a bar and one column an asset, separated by commas, semicolons, tabs or blanks. The first line
        may hold names; without them assets are A1, A2, ... A first column that counts the rows is left out.
    start : date, optional
        Date of the first row; business days follow. They know no holidays, so that the last date is too early.
    calendar : Path, optional
        Text file with the date of each row, YYYY-MM-DD, first on its line; one more is the date of the prices of 1.

    Returns
    -------
    DataFrame
        Prices, (rows + 1, assets), with the index Date. The bar before the first row is the business day before it,
        where the calendar does not have it.

    Raises
    ------
    MarketError
        With one line that names the file, and line and column where there is one.
    """
    if (start is None) == (calendar is None):
        raise MarketError("price relatives have no dates: give the date of the first row, or a file of all dates")
    names, relatives = _read(path)
    dates = _business_days(start, len(relatives)) if start is not None else _calendar(calendar, path, len(relatives))
    prices = np.vstack([np.ones(len(names)), np.cumprod(relatives, axis=0)])
    if not np.isfinite(prices).all() or (prices <= 0.0).any():
        raise MarketError(f"{path}: the prices that the relatives make leave the range of numbers")
    return pd.DataFrame(prices, index=pd.DatetimeIndex(dates, name="Date"), columns=names)


def _read(path: Path) -> tuple[list[str], NDArray[np.float64]]:
    """Names and relatives of a file."""
    lines = [
        (number, line.strip())
        for number, line in enumerate(read_text_input(path, "the file of price relatives", MarketError).splitlines(), 1)
        if line.strip()
    ]
    if not lines:
        raise MarketError(f"{path} is empty")
    first = lines[0][1]
    separator = next((mark for mark in (",", ";", "\t") if mark in first), None)
    rows = [(number, [cell.strip() for cell in line.split(separator)]) for number, line in lines]
    names = None if all(_number(cell) is not None for cell in rows[0][1]) else rows.pop(0)[1]
    if not rows:
        raise MarketError(f"{path} has one line of names and no relatives")
    width = len(rows[0][1])
    for number, cells in rows:
        if len(cells) != width:
            raise MarketError(f"{path}, line {number}: {len(cells)} cells, and {width} on line {rows[0][0]}")
    table = np.array([[_relative(path, number, i, cell) for i, cell in enumerate(cells)] for number, cells in rows])
    names = names if names is None or len(names) == width else ["", *names]  # R leaves the name of row numbers out
    if names is not None and len(names) != width:
        raise MarketError(f"{path} has {len(names) - 1} names and {width} columns")
    if width > 1 and len(table) > 1 and (np.diff(table[:, 0]) == 1.0).all():
        table, names = table[:, 1:], None if names is None else names[1:]
    _check(path, table, [number for number, _ in rows])
    return names or [f"A{number}" for number in range(1, table.shape[1] + 1)], table


def _check(path: Path, table: NDArray[np.float64], lines: list[int]) -> None:
    wrong = np.argwhere(~(np.isfinite(table) & (table > 0.0)))
    if len(wrong):
        row, column = wrong[0]
        raise MarketError(
            f"{path}, line {lines[row]}: {table[row, column]:g} of asset {column + 1} is no price relative, which is "
            "above zero"
        )
    middle = float(np.median(table))
    if not _LOWEST < middle < _HIGHEST:
        raise MarketError(
            f"{path} has a median of {middle:g}, and price relatives (price over the last price) are about 1; a "
            "file of prices is read by market.source=csv"
        )


def _number(cell: str) -> float | None:
    try:
        return float(cell.strip("\"'"))
    except ValueError:
        return None


def _relative(path: Path, line: int, column: int, cell: str) -> float:
    found = _number(cell)
    if found is None:
        raise MarketError(f"{path}, line {line}: column {column + 1} has {cell[:40]!r}, which is not a number")
    return found


def _business_days(start: dt.date, rows: int) -> list[dt.date]:
    first = pd.Timestamp(start)
    if first.day_of_week > 4:
        raise MarketError(f"the first row is dated {start}, which is no business day")
    return [day.date() for day in pd.bdate_range(first - pd.offsets.BDay(1), periods=rows + 1)]


def _calendar(calendar: Path | None, path: Path, rows: int) -> list[dt.date]:
    """Dates of a file, with the one before the first row."""
    assert calendar is not None
    text = read_text_input(calendar, "the calendar", MarketError)
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if lines and not re.match(r"[\"']?\d", lines[0][1]):
        lines = lines[1:]
    dates = [_date(calendar, number, line) for number, line in lines]
    if len(dates) not in (rows, rows + 1):
        raise MarketError(
            f"{calendar} has {len(dates)} dates, and {path} {rows} rows; there must be as many, or one more"
        )
    for (number, _), before, date in zip(lines[1:], dates, dates[1:], strict=False):
        if date <= before:
            raise MarketError(f"{calendar}, line {number}: {date} follows {before}; dates must ascend")
    before_first = [] if len(dates) > rows else [(pd.Timestamp(dates[0]) - pd.offsets.BDay(1)).date()]
    return [*before_first, *dates]


def _date(calendar: Path, line: int, text: str) -> dt.date:
    cell = re.split(r"[,;\s]", text)[0].strip("\"'")
    try:
        return dt.date.fromisoformat(cell)
    except ValueError:
        raise MarketError(f"{calendar}, line {line}: {cell[:40]!r} is not a date of the form YYYY-MM-DD") from None


if __name__ == "__main__":
    sys.exit(run_safely(main))
