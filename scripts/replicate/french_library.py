"""Monthly tables of Kenneth R. French's data library: from its server, kept on the disk, or from files that a user has.

A file of the library is a zip archive with one CSV file: lines about the data, then tables one below the other, each
under a line that begins with a comma and names the columns. The first table is the monthly one, value-weighted where
there are both weightings, in percent; -99.99 and -999 stand for what is missing.
"""

from __future__ import annotations

import http.client
import io
import re
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from finflow.errors import MarketError
from finflow.files import write_atomically

URL = "https://mba.tuck.dartmouth.edu/pages/faculty/ken.french/ftp/{name}_CSV.zip"
_LARGEST = 20_000_000  # bytes of an answer
_SECONDS = 60.0
_MISSING = (-99.99, -999.0)
_ROW = re.compile(r"\s*\d{6}\s*,")

Fetch = Callable[[str], bytes]


def fetch_url(url: str) -> bytes:
    """The answer of the library's server.

    Raises
    ------
    OSError
        If it does not answer, or answers with an error.
    """
    request = urllib.request.Request(url, headers={"User-Agent": "finflow"})
    with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
        content: bytes = answer.read(_LARGEST + 1)
    return content


def download_table(name: str, folder: Path, fetch: Fetch = fetch_url) -> pd.DataFrame:
    """Return a monthly table of the library; asked for once, and then read from the folder.

    Parameters
    ----------
    name : str
        As in the library's addresses, such as 10_Industry_Portfolios.
    folder : Path
        Keeps the archive as it came.
    fetch : callable
        Answers an address with bytes, or raises OSError.

    Returns
    -------
    DataFrame
        Simple returns, not in percent, with months as the index.

    Raises
    ------
    MarketError
        If the server does not answer, or what comes is no such table; nothing is kept then.
    """
    path = folder / f"{name}_CSV.zip"
    if path.is_file():
        return read_table(path)
    address = URL.format(name=name)
    try:
        content = fetch(address)
    except (OSError, http.client.HTTPException) as error:
        said = " ".join(str(error).split())[:120] or type(error).__name__
        raise MarketError(f"{address} cannot be fetched ({said}): fetch it yourself, and name it with --data") from None
    if len(content) > _LARGEST:
        raise MarketError(f"{address} answers with more than {_LARGEST:,} bytes, which no table of the library has")
    table = _table_of(content, address)
    write_atomically(path, content)
    return table


def read_table(path: Path) -> pd.DataFrame:
    """The monthly table of a file of the library, zip or CSV; see `download_table`.

    Raises
    ------
    MarketError
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise MarketError(f"{path} cannot be read: {error.strerror or error}") from None
    return _table_of(content, str(path))


def _table_of(content: bytes, where: str) -> pd.DataFrame:
    lines = _text_of(content, where).splitlines()
    first = next((row for row, line in enumerate(lines) if _ROW.match(line)), None)
    if not first:
        raise MarketError(f"{where} has no table of months (rows such as 196307,1.23) of French's data library")
    title = " ".join(line.strip(", ") for line in lines[max(first - 3, 0) : first - 1])
    if "Equal Weighted" in title:
        raise MarketError(
            f"{where} begins with equal-weighted returns; the value-weighted ones come first in a whole file"
        )
    last = next((row for row in range(first, len(lines)) if not _ROW.match(lines[row])), len(lines))
    names = [name.strip() for name in lines[first - 1].split(",")][1:]
    try:
        body = pd.read_csv(io.StringIO("\n".join(lines[first:last])), header=None)
        months = pd.PeriodIndex(pd.to_datetime(body[0].astype(str), format="%Y%m"), freq="M")
        values = body.iloc[:, 1 : len(names) + 1].astype(float)
    except (ValueError, pd.errors.ParserError) as error:
        said = " ".join(str(error).split())[:120]
        raise MarketError(f"{where}: the table below line {first} cannot be read ({said})") from None
    if values.shape[1] != len(names) or not names:
        raise MarketError(f"{where}, line {first}: {len(names)} names stand over {body.shape[1] - 1} columns")
    values = values.mask(values.isin(_MISSING)) / 100.0
    return pd.DataFrame(values.to_numpy(), index=months, columns=names)


def _text_of(content: bytes, where: str) -> str:
    if not zipfile.is_zipfile(io.BytesIO(content)):
        return content.decode("latin-1")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        inside = [name for name in archive.namelist() if name.lower().endswith((".csv", ".txt"))]
        if len(inside) != 1:
            raise MarketError(f"{where} holds {len(inside)} CSV files; an archive of the library holds one")
        return archive.read(inside[0]).decode("latin-1")
