"""Evaluate a trained agent on the test window, or by a protocol that trains anew, and write the report.

Example: python scripts/evaluate.py --checkpoint logs/20260131_120000/models/checkpoint_best.safetensors --with-backtest
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from finflow.cli.exit_status import run_safely
from finflow.cli.option_table import CONFIGURATION, DRY_RUN, PROTOCOL, SCALE, add_options, check_protocol
from finflow.cli.options import Parser
from finflow.cli.runs import run_protocol
from finflow.cli.trained_agents import run_evaluation


def main(arguments: Sequence[str]) -> None:
    """Read the options and evaluate."""
    parser = Parser(__doc__ or "")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="checkpoint file or run folder of the agent")
    parser.add_argument(
        "--with-backtest",
        action="store_true",
        help="run at other costs, lags and capital and over stress periods, whatever evaluation.sweeps says, and list "
        "every classical strategy beside the agent, not equal weight alone (the report has them all in any case)",
    )
    add_options(parser, PROTOCOL, DRY_RUN, SCALE, CONFIGURATION)
    given = parser.parse(arguments)
    check_protocol(parser, given)
    if given.protocol not in (None, "holdout"):
        if given.with_backtest:
            parser.error(f"--with-backtest belongs to a holdout evaluation, not to --protocol {given.protocol}")
        run_protocol(given, given.checkpoint)
        return
    if given.checkpoint is None:
        parser.error("--checkpoint is missing: the checkpoint file or run folder of the agent")
    only = None if given.with_backtest else ["equal-weight"]
    run_evaluation(given, [given.checkpoint], only, with_backtest=given.with_backtest)


if __name__ == "__main__":
    sys.exit(run_safely(main))
