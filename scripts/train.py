"""Train an agent: both phases, the offline phase alone, or the online phase from a pretrained file.

Example: python scripts/train.py --config configs/default.yaml --mode full
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from finflow.cli.exit_status import run_safely
from finflow.cli.option_table import CONFIGURATION, DRY_RUN, RECOLLECT, SCALE, add_options
from finflow.cli.options import Parser, checkpoint_configuration, one_of, resolve
from finflow.cli.runs import run_training, train


def main(arguments: Sequence[str]) -> None:
    """Read the options and train."""
    parser = Parser(__doc__ or "")
    parser.add_argument(
        "--mode",
        type=one_of("full", "offline", "online"),
        default="full",
        metavar="MODE",
        help="full (default), offline (stops before the online phase) or online (starts from --pretrained)",
    )
    parser.add_argument(
        "--pretrained",
        type=Path,
        metavar="FILE",
        help="online: checkpoint_pretrained of an offline run, whose configuration stands in for the defaults; or any "
        "checkpoint, with the keys of another market, whose assets its networks then learn to trade",
    )
    add_options(parser, RECOLLECT, DRY_RUN, SCALE, CONFIGURATION)
    given = parser.parse(arguments)
    if (given.mode == "online") != (given.pretrained is not None):
        parser.error("--mode online and --pretrained FILE go together")
    if given.mode == "full":
        train(argparse.Namespace(**vars(given), resume=None))
        return
    if given.dry_run:
        parser.error(f"--dry-run belongs to --mode full, not to {given.mode}")
    if given.workers or given.cluster or given.universe or "train.seeds" in given.overrides:
        parser.error(f"--seeds, --workers, --cluster and --universe belong to --mode full, not to {given.mode}")
    base = None if given.pretrained is None else checkpoint_configuration(given.pretrained)
    run_training(
        resolve(given, base),
        pretrained=given.pretrained,
        recollect=given.recollect,
        offline_only=given.mode == "offline",
    )


if __name__ == "__main__":
    sys.exit(run_safely(main))
