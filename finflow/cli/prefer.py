"""Preferences from the command line: pairs that a judge makes of a market."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from finflow.cli.configuration import resolve
from finflow.cli.options import Parser, one_of, positive_count

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


def run_preferences(given: argparse.Namespace) -> None:
    """Make pairs of segments of the training window by a judge, and write them.

    Parameters
    ----------
    given
        With the options of `add_configuration_options`, ``judge``, ``pairs`` and ``output``.
    """
    sys.path.append(str(Path.cwd()))  # a user's own strategy lies where the user is
    config = resolve(given)
    from finflow.preferences.judges import make_judge
    from finflow.preferences.pair_files import write_pairs
    from finflow.preferences.pair_making import judge_pairs
    from finflow.preferences.path_sources import SegmentMarket
    from finflow.training.data.training_data import prepare

    data = prepare(config)
    market = SegmentMarket(data.process, data.split.train, config.evaluation)
    judge = make_judge(given.judge, config.preferences.judge, data.panel.bars_per_year)
    made = judge_pairs(market, judge, given.pairs or PAIRS, config.preferences.judge, config.train.seed)
    write_pairs(given.output, made.pairs)
    print("\n".join([*made.lines(), f"pairs: {given.output}"]))
