"""Collect an offline dataset, save it, and train IQL on it.

Example: python scripts/pretrain_iql.py --collect-episodes 1000 --save-path data/offline/dataset.npz
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from finflow.cli.exit_status import run_safely
from finflow.cli.option_table import CONFIGURATION, RECOLLECT, add_options
from finflow.cli.options import Parser, resolve
from finflow.cli.runs import run_training


def main(arguments: Sequence[str]) -> None:
    """Read the options, collect and pretrain."""
    parser = Parser(__doc__ or "")
    parser.add_argument("--collect-episodes", metavar="N", help="behaviour episodes (train.offline_episodes)")
    parser.add_argument(
        "--save-path",
        type=Path,
        metavar="FILE",
        help="the dataset, as npz; reused where it is there, and refused where it would come out differently now",
    )
    add_options(parser, RECOLLECT, CONFIGURATION)
    given = parser.parse(arguments)
    if given.collect_episodes is not None:
        given.overrides = {**given.overrides, "train.offline_episodes": given.collect_episodes}
    if given.save_path is not None and given.save_path.suffix != ".npz":
        parser.error(f"--save-path {given.save_path} must end in .npz")
    run_training(resolve(given), dataset=given.save_path, recollect=given.recollect, offline_only=True)


if __name__ == "__main__":
    sys.exit(run_safely(main))
