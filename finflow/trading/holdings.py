"""Files that say what is held and what was filled: shares by ticker, and cash."""

from __future__ import annotations

import csv
import difflib
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from finflow.config.yaml_text import parse_scalar
from finflow.errors import FinflowError
from finflow.files import read_text_input
from finflow.json_text import parse_json

CASH = "cash"


class Fill(NamedTuple):
    """One execution: shares (negative where sold), their price, and what the broker took for it, in money."""

    ticker: str
    shares: float
    price: float
    cost: float = 0.0


@dataclass(frozen=True)
class Holdings:
    """Account as a file, a command or a broker states it: shares by ticker, cash in money, fills; None where unsaid."""

    shares: dict[str, float] | None = None
    cash: float | None = None
    fills: Sequence[Fill] | None = None


def read_holdings(path: Path, universe: Sequence[str]) -> Holdings:
    """Read what is held of a universe of tickers; an error names the file, the place and the remedy.

    CSV with the columns ``ticker,shares``, in which ``cash`` may stand for a ticker; or JSON or YAML, a mapping of
    tickers (and ``cash``) to numbers.
    """
    text, where = read_text_input(path, "--holdings", FinflowError), f"--holdings {path}"
    suffix = path.suffix.lower()
    pairs: Iterable[tuple[Any, Any, str]]
    if suffix in (".json", ".yaml", ".yml"):
        try:
            content = parse_json(text) if suffix == ".json" else parse_scalar(text)
        except (ValueError, yaml.YAMLError, RecursionError):
            kind = "JSON" if suffix == ".json" else "YAML"
            raise FinflowError(f"{where} is not {kind}; write a mapping of tickers to shares") from None
        if not isinstance(content, Mapping):
            raise FinflowError(f"{where} is not a mapping; write tickers with their shares, and cash")
        pairs = [(name, value, f"key {str(name)[:40]}") for name, value in content.items()]
    elif suffix == ".csv":
        pairs = [(row["ticker"], row["shares"], f"line {number}") for number, row in _rows(text, where)]
    else:
        raise FinflowError(f"{where} is neither .csv, .json nor .yaml; write ticker,shares lines as .csv")
    shares: dict[str, float] = {}
    for name, value, place in pairs:
        ticker = str(name).strip()
        if ticker in shares:
            raise FinflowError(f"{where}, {place}: {ticker[:40]} is there twice; add the two up")
        shares[ticker] = _number(value, f"{where}, {place}: the number of {ticker[:40]}")
        if ticker != CASH and shares[ticker] < 0.0:
            raise FinflowError(
                f"{where}, {place}: {shares[ticker]:g} of {ticker}, but accounts are long only; close the position, "
                "or leave it out"
            )
    cash = shares.pop(CASH, None)
    _check_known(shares, universe, where)
    return Holdings({ticker: count for ticker, count in shares.items() if count > 0.0}, cash)


def read_fills(path: Path, universe: Sequence[str]) -> list[Fill]:
    """Read executions: CSV with the columns ``ticker,shares,price`` and, if there is one, ``cost``.

    Shares are negative where they were sold. Several lines of a ticker add up.
    """
    text, where = read_text_input(path, "--fills", FinflowError), f"--fills {path}"
    fills = []
    for number, row in _rows(text, where, "price"):
        place, ticker = f"{where}, line {number}", row["ticker"].strip()
        shares, price = (
            _number(row[column], f"{place}: the {word} of {ticker[:40]}")
            for column, word in (("shares", "number"), ("price", "price"))
        )
        if price <= 0.0:
            raise FinflowError(f"{place}: a price of {price:g}; a fill has one above zero (and shares below, sold)")
        fills.append(
            Fill(ticker, shares, price, _number(row.get("cost") or 0.0, f"{place}: the cost of {ticker[:40]}"))
        )
    _check_known([fill.ticker for fill in fills], universe, where)
    return fills


def _rows(text: str, where: str, *more: str) -> Iterator[tuple[int, dict[str, str]]]:
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    needed = ("ticker", "shares", *more)
    try:
        columns = reader.fieldnames = [str(name).strip().lower() for name in reader.fieldnames or ()]
        lacking = [name for name in needed if name not in columns]
        if lacking:
            raise FinflowError(
                f"{where} has no column {lacking[0]}; its first line must name the columns {','.join(needed)}"
            )
        for row in reader:
            if None in row or any(row[name] is None for name in needed):
                raise FinflowError(f"{where}, line {reader.line_num}: {len(columns)} values are needed")
            if any(value.strip() for value in row.values() if value):
                yield reader.line_num, row
    except csv.Error as error:
        raise FinflowError(f"{where}, line {max(reader.line_num, 1)}: not CSV ({error})") from None


def _number(value: Any, what: str) -> float:
    plain = isinstance(value, int | float | str) and not isinstance(value, bool)
    try:
        number = float(value) if plain else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        shown = repr(str(value)[:40]) if isinstance(value, float | str) else f"a {type(value).__name__}"
        raise FinflowError(f"{what} is {shown}; a number is needed, with a point and without separators")
    return number


def _check_known(tickers: Iterable[str], universe: Sequence[str], where: str) -> None:
    for ticker in tickers:
        if ticker in universe:
            continue
        near = difflib.get_close_matches(ticker.upper(), universe, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the agent trades {', '.join(universe[:25])}"
        raise FinflowError(
            f"{where}: {ticker[:40] or 'an empty name'} is not in the universe of the run; leave it out; {hint}"
        )
