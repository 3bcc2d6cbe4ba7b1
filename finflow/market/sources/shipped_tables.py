"""Tables that other packages ship, read without importing the packages, which takes seconds."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pandas as pd


def package_file(package: str, *parts: str) -> Path | None:
    """Path of a file inside an installed package; None where the package is not installed."""
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec is not None else None
    return Path(folders[0], *parts) if folders else None


def shipped_table(name: str) -> pd.DataFrame:
    """Read a table that skfolio ships: "sp500_dataset", "sp500_index" or "factors_dataset"."""
    path = package_file("skfolio", "datasets", "data", f"{name}.csv.gz") or Path(f"{name}.csv.gz")
    return pd.read_csv(path, index_col=0, parse_dates=[0], date_format="%Y-%m-%d")
