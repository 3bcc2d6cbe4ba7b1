"""Tables of prices that skfolio ships."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pandas as pd


def shipped_table(name: str) -> pd.DataFrame:
    """Read a table that skfolio ships, as its own loader does, but without importing skfolio, which takes seconds.

    Parameters
    ----------
    name : str
        "sp500_dataset", "sp500_index" or "factors_dataset".
    """
    package = find_spec("skfolio")
    folders = package.submodule_search_locations if package is not None else None
    path = Path(folders[0], "datasets", "data", f"{name}.csv.gz") if folders else None
    if path is not None and path.is_file():
        return pd.read_csv(path, index_col=0, parse_dates=[0], date_format="%Y-%m-%d")
    table: pd.DataFrame = getattr(import_module("skfolio.datasets"), f"load_{name}")()
    return table
