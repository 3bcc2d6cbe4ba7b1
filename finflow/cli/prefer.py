"""Preferences from the command line: pairs that a judge makes of a market, and reward models that learn from pairs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from finflow.cli.configuration import resolve
from finflow.cli.options import Parser, one_of, positive_count

if TYPE_CHECKING:
    from finflow.config import Config

PAIRS = 2000
"""Pairs that are made when `--pairs` is left out."""


def add_preferences(parser: Parser) -> None:
    """Add the options of preferences: the judge of pairs, how many, and the file to learn from."""
    group = parser.add_argument_group("preferences (--mode prefer, with --output FILE); docs/reference/preferences.md")
    group.add_argument(
        "--judge",
        type=one_of("mean-variance", "calmar", "log-growth", "rules"),
        metavar="NAME",
        help="make pairs of segments of the training window by this judge, and write them to --output: mean-variance, "
        "calmar, log-growth, or rules (preferences.judge.rules)",
    )
    group.add_argument("--pairs", type=positive_count, metavar="N", help="how many; 2000 when left out")
    group.add_argument(
        "--learn",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="learn a reward model from these files of pairs, .csv or lines of JSON, and write it to --output",
    )


def run_preferences(given: argparse.Namespace) -> None:
    """Make pairs of segments of the training window by a judge, or learn a reward model from files of pairs.

    Parameters
    ----------
    given
        With the options of `add_configuration_options`, ``judge``, ``pairs``, ``learn`` and ``output``.
    """
    sys.path.append(str(Path.cwd()))  # a user's own strategy lies where the user is
    config = resolve(given)
    if given.learn:
        _learn(config, given.learn, given.output)
    else:
        _make_pairs(config, given.judge, given.pairs or PAIRS, given.output)


def _make_pairs(config: Config, name: str, count: int, output: Path) -> None:
    from finflow.preferences.judges import make_judge
    from finflow.preferences.pair_files import write_pairs
    from finflow.preferences.pair_making import judge_pairs
    from finflow.preferences.path_sources import SegmentMarket
    from finflow.training.data.training_data import prepare

    data = prepare(config)
    market = SegmentMarket(data.process, data.split.train, config.evaluation)
    judge = make_judge(name, config.preferences.judge, data.panel.bars_per_year)
    made = judge_pairs(market, judge, count, config.preferences.judge, config.train.seed)
    write_pairs(output, made.pairs)
    print("\n".join([*made.lines(), f"pairs: {output}"]))


def _learn(config: Config, files: Sequence[Path], output: Path) -> None:
    from finflow.preferences.pair_files import read_pairs

    file = read_pairs(files)  # a file that cannot be used is told before any work is done
    import torch

    from finflow.preferences.model_files import save_model
    from finflow.preferences.model_report import learn_model
    from finflow.preferences.pair_tensors import pair_tensors
    from finflow.preferences.path_sources import SegmentMarket
    from finflow.training.data.training_data import prepare

    torch.set_num_threads(config.train.threads)
    data = prepare(config)
    pairs = pair_tensors(SegmentMarket(data.process, data.split.train, config.evaluation), file)
    learned = learn_model(pairs, data.shape, config.preferences.model, config.train.seed, file.contradictions)
    save_model(output, learned, config.preferences.model, (*data.features.asset_names, *data.features.market_names))
    print("\n".join([file.line(), *learned.lines(), f"reward model: {output}"]))
