"""Write made-up prices that look as a user's own do: late listings, two holes and a split that nobody adjusted for.

    python ragged_prices.py prices.csv

The round that begins with this file is told in docs/guide/ragged-prices.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

TICKERS = ("ASH", "BEECH", "CEDAR", "ELM", "FIR", "HAZEL", "LARCH", "MAPLE", "OAK", "PINE", "ROWAN", "YEW")
LISTED = {"HAZEL": "2014-05-19", "ROWAN": "2014-05-19", "LARCH": "2015-09-01", "YEW": "2017-02-06"}
SPLIT = ("OAK", "2018-06-11", 4.0)  # new shares for each old one
HOLES = (("ELM", "2016-10-17", "2016-10-19"), ("PINE", "2021-03-08", "2021-03-08"))


def ragged_prices(seed: int = 12) -> pd.DataFrame:
    """Closes of business days, 2012 to 2022, dates by tickers: a common movement, and one of each ticker's own."""
    rng = np.random.default_rng(seed)
    days = pd.bdate_range("2012-01-02", "2022-12-30", name="Date")
    common = rng.standard_t(5, (len(days), 1)) * 0.007
    own = rng.standard_t(5, (len(days), len(TICKERS))) * rng.uniform(0.006, 0.014, len(TICKERS))
    returns = rng.uniform(0.0001, 0.0006, len(TICKERS)) + common + own
    close = pd.DataFrame(rng.uniform(20.0, 160.0, len(TICKERS)) * np.exp(np.cumsum(returns, axis=0)), days, TICKERS)
    ticker, day, ratio = SPLIT
    close.loc[day:, ticker] /= ratio
    for ticker, listed in LISTED.items():
        close.loc[: pd.Timestamp(listed) - pd.Timedelta(days=1), ticker] = np.nan
    for ticker, first, last in HOLES:
        close.loc[first:last, ticker] = np.nan
    return close.round(2)


if __name__ == "__main__":
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "prices.csv")
    ragged_prices().to_csv(path)
    print(f"wrote {path}")
