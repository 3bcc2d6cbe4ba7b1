"""Factors of Kenneth R. French's data library, monthly from July 1963 on, as two packages ship them."""

from __future__ import annotations

from importlib import util
from pathlib import Path

import pandas as pd

from finflow.errors import MarketError

FIRST, LAST = "1963-07", "2004-11"
FACTORS = ["Mkt-RF", "SMB", "HML"]


def shipped_sets() -> dict[str, pd.DataFrame]:
    """MKT/SMB/HML from both packages, as far as they are installed: by origin.

    Raises
    ------
    MarketError
        If neither is, or a month of the paper is missing.
    """
    found = {}
    if (path := _shipped("arch", Path("data", "frenchdata", "frenchdata.csv.gz"))) is not None:
        table = pd.read_csv(path)
        months = pd.to_datetime(table.pop("Date").astype(str), format="%Y%m")
        found["arch, 2018"] = _cut(table / 100.0, months)
    if (path := _shipped("linearmodels", Path("datasets", "french", "french.csv.bz2"))) is not None:
        table = pd.read_csv(path).rename(columns={"MktRF": "Mkt-RF"})
        found["linearmodels, 2017"] = _cut(table, pd.to_datetime(table.pop("dates")))
    if not found:
        raise MarketError("the factors are shipped by arch and by linearmodels: pip install 'finflow[markets]'")
    return found


def _cut(table: pd.DataFrame, dates: pd.Series) -> pd.DataFrame:
    """The months of the paper, all of them."""
    wanted = pd.period_range(FIRST, LAST, freq="M")
    part = table.set_index(pd.PeriodIndex(dates, freq="M"))[FACTORS].reindex(wanted)
    missing = part.index[part.isna().any(axis=1)]
    if len(missing):
        raise MarketError(f"the returns of {missing[0]} are not all there; the paper's months are {FIRST} to {LAST}")
    return part


def _shipped(package: str, inside: Path) -> Path | None:
    """A file of an installed package, which is not imported."""
    found = util.find_spec(package)
    folders = [] if found is None else list(found.submodule_search_locations or [])
    return next((path for folder in folders if (path := Path(folder) / inside).is_file()), None)
