"""Prices that other packages ship, read without importing the packages, which takes seconds.

skfolio has the embedded ones: 20 stocks of the S&P 500 and the index. linearmodels has monthly portfolios of US stocks
(docs/guide/your-data.md): 9 of 25 by size (1 small, 5 big) and book-to-market or past return (1 low, 5 high), value
weighted, with dividends. The market, MktRF + RF, is the index; the one-month Treasury bill, RF, is what cash earns.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from finflow.errors import MarketError, one_line, refuse
from finflow.market.price_adjustments import SourcePrices

SP500, MARKET = "SP500", "Market"
"""Columns of the indices."""
INDUSTRIES = (
    *("NoDur", "Durbl", "Manuf", "Enrgy", "Chems", "BusEq"),
    *("Telcm", "Utils", "Shops", "Hlth", "Money", "Other"),
)
SIZE_AND_VALUE = tuple(f"S{size}V{value}" for size in (1, 3, 5) for value in (1, 3, 5))
SIZE_AND_MOMENTUM = tuple(f"S{size}M{past}" for size in (1, 3, 5) for past in (1, 3, 5))
_PORTFOLIOS = (*INDUSTRIES, *SIZE_AND_VALUE, *SIZE_AND_MOMENTUM)
_COLUMNS = ("dates", "MktRF", "RF", *_PORTFOLIOS)


def package_file(package: str, *parts: str) -> Path | None:
    """Path of a file inside an installed package; None where the package is not installed."""
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec is not None else None
    return Path(folders[0], *parts) if folders else None


def package_table(path: Path, compression: Literal["gzip", "bz2"], said: str) -> tuple[pd.DataFrame, str]:
    """Read a CSV file of a package, and the hash of its bytes; `MarketError`, naming it as ``said``, if it fails."""
    try:
        return pd.read_csv(path, compression=compression), hashlib.sha256(path.read_bytes()).hexdigest()
    except (OSError, ValueError, EOFError) as error:
        raise MarketError(f"{said} cannot be read ({one_line(error, 120)})") from None


def shipped_table(name: str) -> pd.DataFrame:
    """Read a table that skfolio ships: "sp500_dataset", "sp500_index" or "factors_dataset"."""
    path = package_file("skfolio", "datasets", "data", f"{name}.csv.gz") or Path(f"{name}.csv.gz")
    return pd.read_csv(path, index_col=0, parse_dates=[0], date_format="%Y-%m-%d")


@lru_cache(maxsize=1)
def embedded_prices() -> SourcePrices:
    close, index = shipped_table("sp500_dataset"), shipped_table("sp500_index")
    facts = {
        "source": "embedded",
        "data": "20 S&P 500 stocks and the index, daily, 1990 to 2022, shipped with skfolio",
        "skfolio": metadata.version("skfolio"),
        "adjusted": "closing prices adjusted for dividends and splits",
        "benchmark_note": "the index is a price index: its dividends are left out, those of the stocks are in",
        "survivorship": (
            "the 20 names were chosen with hindsight: all of them were still listed in 2022, so any long-only "
            "portfolio of them looks better than one of names chosen in 1990 would have"
        ),
    }
    return SourcePrices({"close": close.join(index[[SP500]])}, facts, benchmark=SP500)


@lru_cache(maxsize=1)
def french_portfolios() -> SourcePrices:
    """Read the portfolios, once in a process: their value at each month's end of 1 at the end of December 1948.

    `MarketError` if the file is not there, or is another.
    """
    path = package_file("linearmodels", "datasets", "french", "french.csv.bz2")
    if path is None:
        raise MarketError(
            "market.source = french needs the package linearmodels, which has the data: pip install 'finflow[markets]'"
        )
    table, digest = package_table(path, "bz2", f"{path} of linearmodels")
    lacking = next((name for name in _COLUMNS if name not in table), None)
    refuse(lacking, f"{path} of linearmodels has no column {lacking!r}; install linearmodels 7.1", MarketError)
    months = pd.DatetimeIndex(pd.to_datetime(table["dates"])).to_period("M")
    ends = pd.period_range(months[0] - 1, months[-1], freq="M")
    returns = table.loc[:, list(_PORTFOLIOS)].assign(**{MARKET: table["MktRF"] + table["RF"]})
    if len(ends) != len(months) + 1 or returns.isna().to_numpy().any() or table["RF"].isna().any():
        raise MarketError(f"{path} of linearmodels lacks a month or a return; install linearmodels 7.1")
    growth = np.vstack([np.ones(returns.shape[1]), np.cumprod(1.0 + returns.to_numpy(dtype=np.float64), axis=0)])
    cash = np.concatenate([[0.0], table["RF"].to_numpy(dtype=np.float64)])
    facts = {
        "source": "french",
        "data": (
            "30 portfolios of US stocks, monthly, 1949 to 2017: 12 industries, 9 by size and book-to-market, 9 by size "
            "and past return; Kenneth R. French's data library, shipped with linearmodels"
        ),
        "linearmodels": metadata.version("linearmodels"),
        "file_sha256": digest,
        "licence": (
            "linearmodels is under the NCSA licence; the returns are from Kenneth R. French's data library, copyright "
            "Eugene F. Fama and Kenneth R. French, with no licence of their own: ask before publishing them anew"
        ),
        "adjusted": "total returns, before any cost; a portfolio is rebalanced for nothing inside",
        "survivorship": (
            "delisted stocks are in the portfolios while they traded, so no stock was chosen with hindsight, but the "
            "sorts were: size, value and momentum portfolios are known because they once paid; small stocks could not "
            "be traded at the costs assumed here, and CRSP has been corrected since"
        ),
    }
    close = pd.DataFrame(growth, index=ends.to_timestamp(how="end").normalize(), columns=list(returns.columns))
    return SourcePrices({"close": close}, facts, benchmark=MARKET, cash=cash)
