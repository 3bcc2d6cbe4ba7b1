"""Search for better values of configuration keys, on training and validation windows alone.

Example: python scripts/tune.py --config configs/default.yaml --n-trials 100 --objective sharpe
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from finflow.cli.exit_status import run_safely
from finflow.cli.option_table import CONFIGURATION, DRY_RUN, SCALE, SEARCH, add_options
from finflow.cli.options import Parser
from finflow.cli.runs import run_search


def main(arguments: Sequence[str]) -> None:
    """Read the options and search."""
    parser = Parser(__doc__ or "")
    parser.add_argument("--resume", type=Path, metavar="STUDY", help="folder of a study to go on with")
    add_options(parser, DRY_RUN, SCALE, SEARCH, CONFIGURATION)
    given = parser.parse(arguments)
    if given.trial is not None and given.resume is None:
        parser.error("--trial needs --resume with the folder of the study")
    if given.universe is not None:
        parser.error("--universe belongs to --mode train or to a --protocol of an evaluation")
    run_search(given)


if __name__ == "__main__":
    sys.exit(run_safely(main))
