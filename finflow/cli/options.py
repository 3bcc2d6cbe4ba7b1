"""The parser of the command line, its answers to wrong options, and the configuration that the arguments ask for."""

from __future__ import annotations

import argparse
import difflib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from finflow.errors import ConfigError, FinflowError, program, refuse
from finflow.files import read_text_input

if TYPE_CHECKING:
    from finflow.config import Config

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
        if sum(word.partition("=")[0] == "--mode" for word in arguments) > 1:
            self.error("--mode is given twice: leave one out")
        if unknown:
            self.refuse(unknown[0])
        if len(files := getattr(given, "config", None) or ()) > 1:
            print(f"configuration files: {', then '.join(map(str, files))}; the last one that has a key counts")
        name = str(getattr(given, "universe", None))
        if name in UNIVERSES:  # its tickers are in the place of --tickers
            if given.tickers:
                self.error(f"--universe {name} names the tickers; leave --tickers and --tickers-file out")
            given.tickers, given.universe = list(UNIVERSES[name]), None
        return given

    def refuse(self, word: str) -> NoReturn:
        self.error(f"unknown argument {word}{self._hint(word)}")

    def error(self, message: str) -> NoReturn:
        """Raise a mistake as a FinflowError, like every other."""
        raise FinflowError(f"{message} ({self.prog} --help lists the options)")

    def _hint(self, word: str) -> str:
        options = [option for option in self._option_string_actions if option.startswith("--")]
        near = difflib.get_close_matches(word.partition("=")[0], options, n=1, cutoff=0.7)
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


#: Names of universes.
_UNIVERSE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

_PACKAGE = Path(__file__).resolve().parents[1]


def resolve(arguments: argparse.Namespace, base: Config | None = None) -> Config:
    """The configuration that the arguments ask for; `base`, that of a checkpoint, stands in for the defaults.

    `--tickers` and those of `--tickers-file` are Yahoo's unless the source is a file, or the command line or the
    environment names a source: the "embedded" of a configuration file goes with the file's own tickers.
    """
    from finflow.config import load_config

    paths = [_existing_path(path) for path in arguments.config or ()]
    overrides = explicit(arguments)
    config = load_config(paths, overrides, base=base, origin="command line")
    chosen = "market.source" in overrides or "FINFLOW_MARKET__SOURCE" in os.environ
    if arguments.tickers and config.market.source == "embedded" and not chosen:
        config = load_config(paths, {**overrides, "market.source": "yfinance"}, base=base, origin="command line")
    return config


def checkpoint_configuration(path: Path) -> Config:
    """The configuration in a checkpoint file, or in the folder of a run, a job or a study."""
    from finflow.training.checkpoints.checkpoint_reader import configuration_of

    return configuration_of(path)


def resume_configuration(arguments: argparse.Namespace, path: Path) -> Config:
    """The configuration of the run that is resumed; a ConfigError names the first key that would change results."""
    from finflow.config import changed_values, config_hash, replace_values, values_by_key

    base = checkpoint_configuration(path)
    config = resolve(arguments, base)
    for key, value in changed_values(base, config).items():
        if config_hash(replace_values(base, {key: value})) != config_hash(base):
            before = as_yaml(values_by_key(base)[key])
            raise ConfigError(
                f"{key} is {as_yaml(value)}, but the run in {path} has {before}; a resumed run keeps its "
                "configuration: leave that out, or start a new run"
            )
    return config


def evaluation_overrides(arguments: argparse.Namespace, path: Path) -> dict[str, object]:
    """Keys that an evaluation changes of the configuration in a checkpoint.

    Keys of learning in a file or the environment are ignored, since that is over; on the command line it is a
    mistake, which the evaluation refuses.
    """
    base = checkpoint_configuration(path)
    from finflow.config import changed_values
    from finflow.training.checkpoints.checkpoint_reader import FREE_SECTIONS

    changes, allowed = changed_values(base, resolve(arguments, base)), (*FREE_SECTIONS, *explicit(arguments))
    return {key: value for key, value in changes.items() if key.startswith(allowed)}


def retraining_configuration(given: argparse.Namespace) -> Config:
    """The configuration of the old run, with the changes that were asked for, up to the newest bar.

    A ConfigError refuses another universe or other windows.
    """
    if given.tickers:
        raise ConfigError("a retraining keeps the universe of its run: leave --tickers and --tickers-file out")
    before = checkpoint_configuration(given.resume)
    from finflow.config import replace_values

    config = resolve(given, replace_values(before, {"market.test_end": None, "market.extend_cache": True}))
    for name in ("train_end", "validation_end"):
        if getattr(config.market, name) != getattr(before.market, name):
            raise ConfigError(
                f"market.{name} says what the old agent was trained on, {getattr(before.market, name)}, and cannot be "
                "another for a retraining; leave it out"
            )
    return config


def place_of(arguments: argparse.Namespace, folder: Path, parts: int = 1) -> Path:
    """Folder of a run; where the command line names an `output.logs_dir`, its last parts in there."""
    elsewhere = explicit(arguments).get("output.logs_dir")
    return folder if elsewhere is None else Path(str(elsewhere), *folder.parts[-parts:])


def read_universes(path: Path) -> dict[str, list[str]]:
    """Tickers by universe, two or more each, of a file with a line for each: ``tech: AAPL MSFT NVDA``, or a YAML list.

    A ConfigError has one line that names the file, and the universe where there is one.
    """
    from finflow.config.yaml_text import parse_file

    try:
        content, lines = parse_file(path)
    except ConfigError as error:
        named = "" if path.exists() else f"; --universe takes a file, or {' or '.join(UNIVERSES)}"
        raise ConfigError(str(error).replace("configuration file", "universe file") + named) from None
    if not content:
        raise ConfigError(f"universe file {path} names no universe; write lines such as tech: AAPL MSFT NVDA")
    universes = {}
    for key, value in content.items():
        name = str(key)
        place = f"{path}, line {lines.get(name, 1)}: universe {name!r}"
        if not _UNIVERSE.fullmatch(name) or name == "reports":
            raise ConfigError(f"{place} cannot be the name of a folder; use letters, digits, dots and dashes")
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
            raise ConfigError(f"{place} must be a list of tickers, such as {name}: AAPL MSFT NVDA")
        tickers = [ticker for one in listed for ticker in re.split(r"[,\s]+", one) if ticker]
        twice = next((one for number, one in enumerate(tickers) if one in tickers[:number]), None)
        refuse(twice is not None, f"{place} names {twice} twice; leave one of them out", ConfigError)
        if len(tickers) < 2:
            raise ConfigError(f"{place} has {len(tickers)} ticker{'s' if not tickers else ''}, and needs at least two")
        universes[name] = tickers
    return universes


def shipped_configuration(name: str) -> Path:
    """Path of a configuration that finflow ships, if it is there: in the package, or in `configs/` of a checkout."""
    installed = _PACKAGE / "presets"
    return (installed if installed.is_dir() else _PACKAGE.parent / "configs") / name


def _existing_path(path: Path) -> Path:
    """The file named, or else the shipped one: `--config configs/volatile.yaml` is found from any folder."""
    if path.exists() or path.parts[:1] != ("configs",):
        return path
    shipped = shipped_configuration(str(Path(*path.parts[1:])))
    return shipped if shipped.is_file() else path


def as_yaml(value: object) -> str:
    """A value as it is written in YAML."""
    if value is None:
        return "null"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)
