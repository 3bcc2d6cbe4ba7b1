"""The parser of the command line, and its answers to wrong options."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from finflow.errors import FinflowError
from finflow.files import read_text_input

MODES = (
    *("train", "evaluate", "backtest", "tune", "explain", "compare", "decide", "paper", "retrain", "audit", "inspect"),
    *("prefer", "demo"),
)

# fmt: off
UNIVERSES: Mapping[str, tuple[str, ...]] = {
    "dow30": (
        "AAPL", "AMGN", "AMZN", "AXP", "BA", "CAT", "CRM", "CSCO", "CVX", "DIS",
        "GS", "HD", "HON", "IBM", "JNJ", "JPM", "KO", "MCD", "MMM", "MRK",
        "MSFT", "NKE", "NVDA", "PG", "SHW", "TRV", "UNH", "V", "VZ", "WMT",
    ),
    "sectors": ("XLB", "XLC", "XLE", "XLF", "XLI", "XLK", "XLP", "XLRE", "XLU", "XLV", "XLY"),
}
# fmt: on
"""`dow30`: the Dow Jones Industrial Average as of 8 November 2024. Its members were chosen with hindsight, and some
list late (CRM 2004, V 2008). `sectors`: the Select Sector SPDR funds; XLRE lists in October 2015, XLC in June 2018."""


def program() -> str:
    """Name that finflow was called by, for messages with commands."""
    path = Path(sys.argv[0])
    if path.suffix != ".py":
        return "finflow"
    if path.name == "__main__.py" and path.parent.parent.name == "scripts":
        return "python -m scripts." + path.parent.name
    return "python scripts/" + path.name if path.parent.name == "scripts" else "python main.py"


class Parser(argparse.ArgumentParser):
    """Options whose mistakes are answered with one line that names the nearest option."""

    def __init__(self, description: str, **settings: Any) -> None:
        super().__init__(
            prog=program(),
            description=description,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **settings,
        )

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Read the arguments; raises a FinflowError for the first that is unknown or lacks its value."""
        given, unknown = self.parse_known_args(arguments)
        if unknown:
            self.refuse(unknown[0])
        self._name_universe(given)
        return given

    def _name_universe(self, given: argparse.Namespace) -> None:
        """Put the tickers of a universe that `--universe` names in the place of `--tickers`."""
        name = str(getattr(given, "universe", None))
        if name not in UNIVERSES:
            return
        if given.tickers:
            self.error(f"--universe {name} names the tickers; leave --tickers and --tickers-file out")
        given.tickers, given.universe = list(UNIVERSES[name]), None

    def refuse(self, word: str) -> NoReturn:
        self.error(f"unknown argument {word}{self._hint(word)}")

    def error(self, message: str) -> NoReturn:
        """Raise a mistake as a FinflowError, like every other."""
        raise FinflowError(f"{message} ({self.prog} --help lists the options)")

    def _hint(self, word: str) -> str:
        options = [option for option in self._option_string_actions if option.startswith("--")]
        near = difflib.get_close_matches(word.partition("=")[0], options, n=1, cutoff=0.5)
        if word in MODES and "--mode" in options:
            near = [f"--mode {word}"]
        elif "=" in word and not word.startswith("-"):
            near = [f"--set {word}"]
        return f"; did you mean {near[0]}?" if near else ""


class Override(argparse.Action):
    """Set configuration keys; a later value replaces an earlier one."""

    def __init__(self, *, keys: tuple[str, ...] = (), **settings: Any) -> None:
        super().__init__(**{**settings, "dest": "overrides", "default": {}})
        self.keys = keys

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        value, keys = self.const or values, self.keys
        if not keys:
            key, sign, value = values.partition("=")
            if not sign or not key.strip():
                raise argparse.ArgumentError(self, f"needs key=value, as in bcell.cql_alpha=10, not {values!r}")
            keys = (key.strip(),)
        namespace.overrides = {**namespace.overrides, **dict.fromkeys(keys, value)}


def number(words: str, least: float, most: float, kind: type[int] | type[float] = int) -> Any:
    """A type for argparse: a number within bounds, which are told in words."""

    def check(word: str) -> float:
        try:
            value = kind(word)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{word!r} must be {words}")
        return value

    return check


positive_count = number("a whole number, 1 or more", 1, 10**6 - 1)


def one_of(*names: str) -> Any:
    """A type for argparse: one of a few words, with the nearest named in the answer to any other."""

    def check(word: str) -> str:
        if word in names:
            return word
        near = difflib.get_close_matches(word, names, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise argparse.ArgumentTypeError(f"{word!r} is not one of {', '.join(names)}{hint}")

    return check


def read_tickers(path: str) -> list[str]:
    """Names in a text file, separated by commas, blanks or lines; text after # on a line is a comment."""
    text = read_text_input(Path(path), "--tickers-file", FinflowError)
    return re.split(r"[,\s]+", " ".join(line.partition("#")[0] for line in text.splitlines()))


def explicit(arguments: argparse.Namespace) -> dict[str, object]:
    """Configuration keys that the command line itself names, and their values."""
    overrides: dict[str, object] = dict(arguments.overrides)
    if arguments.tickers:
        overrides["market.tickers"] = [name for word in arguments.tickers for name in word.split(",") if name]
    return overrides
