"""Configurations from arguments: of a new run, of one that is resumed, of an evaluation, of several universes."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from finflow.cli.options import UNIVERSES, explicit
from finflow.cli.output import plain
from finflow.errors import ConfigError

if TYPE_CHECKING:
    from finflow.config import Config

#: Names of universes.
_UNIVERSE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

_PACKAGE = Path(__file__).resolve().parents[1]


def resolve(arguments: argparse.Namespace, base: Config | None = None) -> Config:
    """The configuration that the arguments ask for; `base`, that of a checkpoint, stands in for the defaults.

    `--tickers` and those of `--tickers-file` are Yahoo's unless the source is a file, or the command line or the
    environment names a source: the "embedded" of a configuration file goes with the file's own tickers.
    """
    from finflow.config import load_config

    path = _existing_path(arguments.config)
    overrides = explicit(arguments)
    config = load_config(path, overrides, base=base)
    chosen = "market.source" in overrides or "FINFLOW_MARKET__SOURCE" in os.environ
    if arguments.tickers and config.market.source == "embedded" and not chosen:
        config = load_config(path, {**overrides, "market.source": "yfinance"}, base=base)
    return config


def checkpoint_configuration(path: Path) -> Config:
    """The configuration in a checkpoint file, or in the folder of a run, a job or a study."""
    from finflow.training.checkpoints.checkpoint_reader import configuration_of

    return configuration_of(path)


def resume_configuration(arguments: argparse.Namespace, path: Path) -> Config:
    """The configuration of the run that is resumed; a ConfigError names the first key that would change results."""
    from finflow.config import config_hash, replace_values, values_by_key

    base = checkpoint_configuration(path)
    config = resolve(arguments, base)
    before = values_by_key(base)
    for key, value in _changes(base, config).items():
        if config_hash(replace_values(base, {key: value})) != config_hash(base):
            raise ConfigError(
                f"{key} is {plain(value)}, but the run in {path} has {plain(before[key])}; a resumed run keeps its "
                "configuration: leave that out, or start a new run"
            )
    return config


def evaluation_overrides(arguments: argparse.Namespace, path: Path) -> dict[str, object]:
    """Keys that an evaluation changes of the configuration in a checkpoint.

    Keys of learning in a file or the environment are ignored, since that is over; on the command line it is a
    mistake, which the evaluation refuses.
    """
    base = checkpoint_configuration(path)
    changes = _changes(base, resolve(arguments, base))
    from finflow.training.checkpoints.checkpoint_reader import FREE_SECTIONS

    allowed = (*FREE_SECTIONS, *explicit(arguments))
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
        if twice is not None:
            raise ConfigError(f"{place} names {twice} twice; leave one of them out")
        if len(tickers) < 2:
            raise ConfigError(f"{place} has {len(tickers)} ticker{'s' if not tickers else ''}, and needs at least two")
        universes[name] = tickers
    return universes


def shipped_configuration(name: str) -> Path:
    """Path of a configuration that finflow ships, if it is there: in the package, or in `configs/` of a checkout."""
    installed = _PACKAGE / "presets"
    return (installed if installed.is_dir() else _PACKAGE.parent / "configs") / name


def _existing_path(path: Path | None) -> Path | None:
    """The file named, or else the shipped one: `--config configs/volatile.yaml` is found from any folder."""
    if path is None or path.exists() or path.parts[:1] != ("configs",):
        return path
    shipped = shipped_configuration(str(Path(*path.parts[1:])))
    return shipped if shipped.is_file() else path


def _changes(base: Config, config: Config) -> dict[str, object]:
    from finflow.config import values_by_key

    before = values_by_key(base)
    return {key: value for key, value in values_by_key(config).items() if value != before[key]}
