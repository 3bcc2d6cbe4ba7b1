"""Data sets of DeMiguel, Garlappi and Uppal that French's data library has, July 1963 to November 2004, monthly.

The factors are shipped by two packages: by arch as of 2018 and by linearmodels as of 2017. The portfolios come from the
library's server or from files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import util
from pathlib import Path

import pandas as pd

from finflow.errors import MarketError
from scripts.replicate.french_library import Fetch, download_table, fetch_url, read_table

FIRST, LAST = "1963-07", "2004-11"
FACTORS, INDUSTRIES, SIZES, MOMENTUM = (
    *("F-F_Research_Data_Factors", "10_Industry_Portfolios", "25_Portfolios_5x5", "F-F_Momentum_Factor"),
)
LIBRARY = Path("data") / "market" / "french"
"""Folder of what was downloaded."""
_THREE = ("Mkt-RF", "SMB", "HML")
_BIGGEST = 5  # of 25 portfolios: the authors leave them out, as the factors nearly span all 25


def shipped_sets() -> dict[tuple[str, str], pd.DataFrame]:
    """MKT/SMB/HML from both packages, as far as they are installed: by data set and origin.

    Raises
    ------
    MarketError
        If neither is.
    """
    found = {
        ("MKT/SMB/HML", origin): _cut(table[list(_THREE)])
        for origin, table in (("arch, 2018", _of_arch()), ("linearmodels, 2017", _of_linearmodels()))
        if table is not None
    }
    if not found:
        raise MarketError("the factors are shipped by arch and by linearmodels: pip install 'finflow[markets]'")
    return found


def downloaded_sets(folder: Path = LIBRARY, fetch: Fetch = fetch_url) -> dict[tuple[str, str], pd.DataFrame]:
    """All four data sets from the library's server, or from what is kept of it."""
    names = (FACTORS, INDUSTRIES, SIZES, MOMENTUM)
    return _assembled([download_table(name, folder, fetch) for name in names], "library, downloaded")


def sets_of_files(paths: Sequence[Path]) -> dict[tuple[str, str], pd.DataFrame]:
    """Data sets that files of the library make; factors that are not among them are the shipped ones.

    Raises
    ------
    MarketError
        If a file is none of the library's, or has other columns.
    """
    return _assembled([read_table(path) for path in paths], ", ".join(path.name for path in paths))


def _assembled(tables: Sequence[pd.DataFrame], origin: str) -> dict[tuple[str, str], pd.DataFrame]:
    by_kind = {_kind(table): table for table in tables}
    given = by_kind.get(FACTORS)
    factors = _of_arch() if given is None else given
    if factors is None:
        raise MarketError("the factors are shipped by arch; without it name F-F_Research_Data_Factors with --data, too")
    found: dict[tuple[str, str], pd.DataFrame] = {}
    if given is not None:
        found["MKT/SMB/HML", origin] = _cut(factors[list(_THREE)])
    if INDUSTRIES in by_kind:
        found["10 industries", origin] = _cut(_excess(by_kind[INDUSTRIES], factors).join(factors["Mkt-RF"]))
    if SIZES in by_kind:
        smaller = _excess(by_kind[SIZES].iloc[:, :-_BIGGEST], factors)
        found["FF 1-factor", origin] = _cut(smaller.join(factors["Mkt-RF"]))
        momentum = by_kind[MOMENTUM] if MOMENTUM in by_kind else _of_linearmodels()
        if momentum is not None:
            four = factors[list(_THREE)].join(momentum["Mom"])
            found["FF 4-factor", origin] = _cut(smaller.join(four))
    if not found:
        raise MarketError(f"{origin} makes no data set alone: name {INDUSTRIES} or {SIZES} with --data as well")
    return found


def _kind(table: pd.DataFrame) -> str:
    """Table of the library that has such columns."""
    columns = list(table.columns)
    if set(_THREE) | {"RF"} <= set(columns):
        return FACTORS
    if columns == ["Mom"]:
        return MOMENTUM
    kinds = {10: INDUSTRIES, 25: SIZES}
    if len(columns) not in kinds or (len(columns) == 10 and columns[-1] != "Other"):
        raise MarketError(
            f"a table with the columns {', '.join(map(str, columns[:3]))}, ... ({len(columns)} in all) is none of "
            f"{FACTORS}, {INDUSTRIES}, {SIZES} and {MOMENTUM}"
        )
    return kinds[len(columns)]


def _excess(returns: pd.DataFrame, factors: pd.DataFrame) -> pd.DataFrame:
    return returns.sub(factors["RF"], axis=0)


def _cut(table: pd.DataFrame) -> pd.DataFrame:
    """The months of the paper, all of them.

    Raises
    ------
    MarketError
        If one is missing, or has no figure.
    """
    wanted = pd.period_range(FIRST, LAST, freq="M")
    part = table.reindex(wanted)
    missing = part.index[part.isna().any(axis=1)]
    if len(missing):
        raise MarketError(f"the returns of {missing[0]} are not all there; the paper's months are {FIRST} to {LAST}")
    return part


def _of_arch() -> pd.DataFrame | None:
    path = _shipped("arch", Path("data", "frenchdata", "frenchdata.csv.gz"))
    if path is None:
        return None
    table = pd.read_csv(path)
    months = pd.PeriodIndex(pd.to_datetime(table.pop("Date").astype(str), format="%Y%m"), freq="M")
    return table.set_index(months) / 100.0


def _of_linearmodels() -> pd.DataFrame | None:
    path = _shipped("linearmodels", Path("datasets", "french", "french.csv.bz2"))
    if path is None:
        return None
    table = pd.read_csv(path).rename(columns={"MktRF": "Mkt-RF"})
    months = pd.PeriodIndex(pd.to_datetime(table.pop("dates")), freq="M")
    return table.set_index(months)


def _shipped(package: str, inside: Path) -> Path | None:
    """A file of an installed package, which is not imported."""
    found = util.find_spec(package)
    folders: Mapping[str, object] | list[str] = [] if found is None else list(found.submodule_search_locations or [])
    paths = [Path(folder) / inside for folder in folders]
    return next((path for path in paths if path.is_file()), None)
