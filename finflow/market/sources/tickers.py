"""Names of assets from the configuration or from a text file."""

from __future__ import annotations

import re
from pathlib import Path

from finflow.config import MarketConfig
from finflow.errors import MarketError
from finflow.files import read_text_input

__all__ = ["named_assets", "read_tickers"]


def named_assets(config: MarketConfig) -> tuple[str, ...] | None:
    """Return the names of `market.tickers` or of `market.tickers_file`; None where neither is set.

    Raises
    ------
    MarketError
        If there is only one, or if the file cannot be used.
    """
    if config.tickers_file is None:
        names, key = config.tickers, "market.tickers"
    else:
        names, key = read_tickers(config.tickers_file), f"{config.tickers_file} (market.tickers_file)"
    if names is not None and len(names) == 1:
        raise MarketError(f"a portfolio needs at least two assets and {key} names {names[0]} only")
    return names


def read_tickers(path: Path) -> tuple[str, ...]:
    """Read names separated by commas, blanks or lines; text after # on a line is a comment.

    Raises
    ------
    MarketError
        With one line that names the file, and the line where there is one.
    """
    text = read_text_input(path, "market.tickers_file", MarketError)
    lines: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        for name in re.split(r"[,\s]+", line.partition("#")[0].strip()):
            if not name:
                continue
            if not name.isprintable() or re.search(r"[\"';|]", name):
                raise MarketError(f"{path}, line {number}: {name[:40]!r} is not a ticker; write names without quotes")
            if name in lines:
                raise MarketError(f"{path}, line {number}: {name!r} is there already, on line {lines[name]}")
            lines[name] = number
    if not lines:
        raise MarketError(f"market.tickers_file {path} names no asset")
    return tuple(lines)
