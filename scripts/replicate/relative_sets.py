"""Data sets of online portfolio selection: from the wheel of universal-portfolios, a folder, or a file.

The wheel is read as the zip archive that it is; nothing of the package is imported.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import io
import zipfile
from importlib import util
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from finflow.errors import MarketError
from scripts.convert_relatives import prices_from_relatives

FloatArray = NDArray[np.float64]

SIZES = {
    "nyse_o": (5651, 36),
    "nyse_n": (6431, 23),
    "tse": (1259, 88),
    "sp500": (1276, 25),
    "msci": (1043, 24),
    "djia": (507, 30),
}
"""Rows and assets of the sets of the papers."""
_INSIDE = "universal/data/"
_HINT = (
    "the wheel of universal-portfolios 0.4.17 has the six sets (pip download --no-deps universal-portfolios==0.4.17): "
    "name it, a folder of CSV files such as djia.csv, or one such file, with --data"
)


def read_sets(given: Path | None) -> tuple[dict[str, FloatArray], str]:
    """Prices of every set that is there, and the origin in words with its hash.

    Parameters
    ----------
    given : Path, optional
        A wheel, a folder of CSV files, or a file of price relatives or of prices that begin at the first relative. Left
        out, the installed package universal-portfolios.

    Returns
    -------
    sets : dict
        Name -> prices, (rows + 1, assets); they begin at 1.

    Raises
    ------
    MarketError
        If nothing is named or installed, or what is there cannot be read.
    """
    path = given or _installed()
    if path is None:
        raise MarketError(f"there are no price relatives: {_HINT}")
    if not path.exists():
        raise MarketError(f"there is no {path}: {_HINT}")
    if path.is_file() and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            members = {Path(name).stem: name for name in archive.namelist() if name.startswith(_INSIDE)}
            found = {name: archive.read(members[name]) for name in SIZES if name in members}
    elif path.is_dir():
        found = {name: (path / f"{name}.csv").read_bytes() for name in SIZES if (path / f"{name}.csv").is_file()}
    else:
        return {path.stem: _file_prices(path)}, f"{path.name}, SHA-256 {_hash(path.read_bytes())}"
    if not found:
        raise MarketError(f"{path} has none of {', '.join(f'{name}.csv' for name in SIZES)}: {_HINT}")
    sets = {name: _chained(content, f"{name}.csv of {path}") for name, content in found.items()}
    return sets, f"{path.name}, SHA-256 of the sets {_hash(b''.join(found.values()))}"


def _installed() -> Path | None:
    found = util.find_spec("universal")
    folders = [] if found is None else list(found.submodule_search_locations or [])
    data = [Path(folder) / "data" for folder in folders if (Path(folder) / "data" / "djia.csv").is_file()]
    return data[0] if data else None


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _file_prices(path: Path) -> FloatArray:
    """Prices of one file, of relatives or of prices: relatives jump around 1, prices move little by little."""
    try:
        table = pd.read_csv(path, header=None, skiprows=1).to_numpy(dtype=np.float64)
    except (OSError, ValueError):
        table = np.ones((1, 1))
    if len(table) > 2 and (table > 0.0).all():
        level = np.log(table)
        if np.median(np.abs(np.diff(level, axis=0))) < np.median(np.abs(level)):
            return _chained(path.read_bytes(), str(path))
    return prices_from_relatives(path, start=dt.date(2000, 1, 3)).to_numpy(dtype=np.float64)


def _chained(content: bytes, where: str) -> FloatArray:
    """Prices that begin at 1, from a CSV file of prices that begin at the first relative."""
    try:
        prices = pd.read_csv(io.BytesIO(content)).to_numpy(dtype=np.float64)
    except ValueError as error:
        raise MarketError(f"{where} is no table of prices ({' '.join(str(error).split())[:100]})") from None
    wrong = np.argwhere(~(np.isfinite(prices) & (prices > 0.0)))
    if len(wrong):
        raise MarketError(f"{where}, row {wrong[0][0] + 1}: column {wrong[0][1] + 1} has no price above zero")
    return np.vstack([np.ones(prices.shape[1]), prices])
