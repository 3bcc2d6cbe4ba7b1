"""One-month US Treasury bills as a rate of cash: RF of Kenneth R. French's data library, as the package arch ships it.

1,109 months, July 1926 to November 2018, simple returns in percent with two decimals. The return of a month is known
when the month begins, so a rate is in force from the last day of the month before. The file is read where the package
lies; the package itself is not imported.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib import util
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from finflow.errors import MarketError

_FILE = Path("data", "frenchdata", "frenchdata.csv.gz")


class BillRates(NamedTuple):
    """Annual rates of Treasury bills.

    Attributes
    ----------
    dates : datetime64[D] array, (months,)
        From which on each is in force: the last day of the month before.
    rates : float64 array, (months,)
        Effective annual rates, ``(1 + r) ** 12 - 1`` of the month's return.
    until : datetime64[D]
        Last day of the last month.
    path : Path
    sha256 : str
        Hash of the file.
    """

    dates: NDArray[np.datetime64]
    rates: NDArray[np.float64]
    until: np.datetime64
    path: Path
    sha256: str


@lru_cache(maxsize=1)
def treasury_bills() -> BillRates:
    """Read the rates, once in a process.

    Raises
    ------
    MarketError
        If the package's file is not there, or is another one.
    """
    found = util.find_spec("arch")
    folders = None if found is None else found.submodule_search_locations
    path = Path(next(iter(folders or ["arch"]))) / _FILE
    try:
        content = path.read_bytes()
        table = pd.read_csv(path, compression="gzip")
        months = pd.PeriodIndex(pd.to_datetime(table["Date"].astype(str), format="%Y%m"), freq="M")
        monthly = table["RF"].to_numpy(dtype=np.float64) / 100.0
    except (OSError, ValueError, KeyError, EOFError) as error:
        said = " ".join(str(error).split())[:120]
        raise MarketError(f"market.cash_rate = treasury-bills: {path} of arch cannot be read ({said})") from None
    if not (np.diff(months.asi8) == 1).all() or not np.isfinite(monthly).all():
        raise MarketError(f"market.cash_rate = treasury-bills: {path} of arch lacks a month")
    begins = (months - 1).to_timestamp(how="end").to_numpy().astype("datetime64[D]")
    until = months[-1:].to_timestamp(how="end").to_numpy().astype("datetime64[D]")[0]
    return BillRates(begins, (1.0 + monthly) ** 12 - 1.0, until, path, hashlib.sha256(content).hexdigest())
