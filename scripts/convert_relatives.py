"""Convert price relatives without dates, such as NYSE(O), to a CSV file of prices for market.source=csv.

Examples:
  python scripts/convert_relatives.py nyse_o.csv nyse_o_prices.csv --start 1962-07-03
  python scripts/convert_relatives.py nyse_o.csv nyse_o_prices.csv --calendar nyse_days.csv
  python main.py --mode backtest --strategy olmar --set market.source=csv --set market.path=nyse_o_prices.csv \
      --set market.train_end=1975-12-31 --set market.validation_end=1979-12-31

The relatives have one row a bar and one column an asset. The calendar has the date of each row, one a line.
"""

import datetime as dt
import sys
from collections.abc import Sequence
from pathlib import Path

from finflow.cli.exit_status import run_safely
from finflow.cli.options import Parser


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
    from finflow.files import write_atomically
    from finflow.market.sources.price_relatives import prices_from_relatives

    prices = prices_from_relatives(given.relatives, start, given.calendar)
    write_atomically(given.prices, prices.to_csv(float_format="%.17g"))
    first, last = prices.index[0].date(), prices.index[-1].date()
    print(f"{given.prices}: {prices.shape[1]} assets, {len(prices)} bars from {first} to {last}")


if __name__ == "__main__":
    sys.exit(run_safely(main))
