"""A file of universes: a name and a list of tickers for each."""

from __future__ import annotations

import re
from pathlib import Path

from finflow.config.yaml_text import parse_file
from finflow.errors import ConfigError, FinflowError

__all__ = ["in_universe", "read_universes"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def read_universes(path: Path) -> dict[str, list[str]]:
    """Read a file with a line for each universe: ``tech: AAPL MSFT NVDA``, or a YAML list after the name.

    Returns
    -------
    dict
        Name -> tickers, two or more, in the order of the file.

    Raises
    ------
    ConfigError
        With one line that names the file, and the universe where there is one.
    """
    try:
        content, lines = parse_file(path)
    except ConfigError as error:
        raise ConfigError(str(error).replace("configuration file", "universe file")) from None
    if not content:
        raise ConfigError(f"universe file {path} names no universe; write lines such as tech: AAPL MSFT NVDA")
    universes = {}
    for key, value in content.items():
        name = str(key)
        place = f"{path}, line {lines.get(name, 1)}: universe {name!r}"
        if not _NAME.fullmatch(name) or name == "reports":
            raise ConfigError(f"{place} cannot be the name of a folder; use letters, digits, dots and dashes")
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
            raise ConfigError(f"{place} must be a list of tickers, such as {name}: AAPL MSFT NVDA")
        tickers = [ticker for one in listed for ticker in re.split(r"[,\s]+", one) if ticker]
        twice = next((one for number, one in enumerate(tickers) if one in tickers[:number]), None)
        if twice is not None:
            raise ConfigError(f"{place} names {twice} twice; leave one of them out")
        if len(tickers) < 2:
            raise ConfigError(f"{place} has {len(tickers)} ticker{'s' if not tickers else ''}, and needs at least two")
        universes[name] = tickers
    return universes


def in_universe(name: str, error: FinflowError) -> FinflowError:
    """A mistake in one of several universes."""
    return type(error)(f"universe {name!r}: {error}")
