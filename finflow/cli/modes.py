"""`python main.py --mode ...`: what each mode asks for, and which application function it calls."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from finflow.cli.configuration import ROOT, checkpoint_configuration, resolve, resume_configuration
from finflow.cli.options import MODES, Parser, add_configuration_options, add_recollect, one_of
from finflow.cli.output import describe_configuration
from finflow.cli.running import backtest_named, run_audit, run_evaluation, run_inspection, run_training
from finflow.cli.safety import run_safely

DESCRIPTION = """\
finflow trains a portfolio agent on a market, and answers whether it is worth trading: after
costs, on dates it never saw, beside strong classical portfolios."""

MORE = """\
modes:
  train      prices, behaviour data, offline learning, online fine-tuning, evaluation, report
  evaluate   judge a trained agent (--resume) on the test window, and write its report
  backtest   the same for an agent (--resume) or for a named strategy (--strategy), always with
             other costs, lags and capital, stress periods, and tables of trades and holdings
  audit      prove that nothing looks ahead: data, features, environment, strategies (and your
             own, --strategy), behaviour data, and an agent (--resume); exit status 2 if something does
  inspect    what the checkpoints of a run hold, and whether each is whole; exit status 2 if one is not
  demo       all of train, reduced to about a minute, without a network

examples:
  python main.py --mode demo
  python main.py --mode train
  python main.py --mode train --config configs/volatile.yaml --seed 1
  python main.py --mode train --tickers AAPL MSFT JPM KO --set market.start=2000-01-01
  python main.py --mode train --resume logs/20260131_120000
  python main.py --mode evaluate --resume logs/20260131_120000
  python main.py --mode backtest --strategy risk-parity --set env.commission_bps=20
  python main.py --mode audit --strategy mine:Rule --set features.extra=mine:feature
  python main.py --mode inspect logs/20260131_120000

A value comes from the command line (what is given last counts), then from environment
variables such as FINFLOW_BCELL__CQL_ALPHA=10, then from the file, then from the defaults.
With --resume, the configuration in the checkpoint stands in for the defaults."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run finflow; returns the exit status."""
    return run_safely(_main, arguments)


def _main(arguments: Sequence[str]) -> None:
    parser = _parser()
    if not arguments:
        parser.print_help()
        return
    given = parser.parse(arguments)
    if given.version:
        print(f"finflow {_version()}")
    elif given.help_config:
        print(describe_configuration())
    else:
        _check(given, parser)
        called = {"train": _train, "evaluate": _evaluate, "backtest": _backtest, "audit": _audit, "inspect": _inspect}
        called.get(given.mode, _demo)(given)


def _parser() -> Parser:
    parser = Parser(DESCRIPTION, epilog=MORE, usage="%(prog)s --mode MODE [options]")
    parser.add_argument("run", nargs="?", metavar="RUN", help="inspect: run folder or checkpoint file")
    parser.add_argument("--mode", type=one_of(*MODES), metavar="MODE", help=f"{', '.join(MODES[:-1])} or {MODES[-1]}")
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="RUN",
        help="run folder or checkpoint file. train: go on exactly where it stopped (from an earlier checkpoint: in a "
        "new run folder); evaluate, backtest, audit: the agent to judge; inspect: what to inspect",
    )
    parser.add_argument(
        "--strategy",
        nargs="+",
        metavar="NAME",
        help="backtest, audit: such as equal-weight or momentum, or your own as package.module:Name; backtest: also "
        "optimal, the best policy of a synthetic market",
    )
    add_recollect(parser)
    parser.add_argument("--help-config", action="store_true", help="list every configuration key, and stop")
    parser.add_argument("--version", action="store_true", help="print the version, and stop")
    add_configuration_options(parser)
    return parser


def _check(given: argparse.Namespace, parser: Parser) -> None:
    """Refuse what the mode would not use, rather than pass over it."""
    mode = given.mode
    if given.run and mode != "inspect":
        parser.refuse(given.run)
    if mode == "inspect" and bool(given.run) == bool(given.resume):
        parser.error("--mode inspect needs one run folder or checkpoint file")
    if mode is None:
        parser.error(f"--mode is missing: {', '.join(MODES[:-1])} or {MODES[-1]}")
    if given.strategy and mode not in ("backtest", "audit"):
        parser.error(f"--strategy belongs to --mode backtest or audit, not to --mode {mode}")
    if given.recollect and mode not in ("train", "demo"):
        parser.error(f"--recollect belongs to --mode train or demo, not to --mode {mode}")
    if mode == "demo" and given.resume:
        parser.error("a demo goes on as any run does, with --mode train --resume RUN")
    if mode == "demo" and given.config:
        parser.error("--mode demo has a configuration of its own; for another use --mode train --config FILE")
    if mode == "evaluate" and not given.resume:
        parser.error("--mode evaluate needs --resume with the run folder or checkpoint of the agent")
    if mode == "backtest" and bool(given.resume) == bool(given.strategy):
        parser.error("--mode backtest needs one of --resume (a trained agent) and --strategy (a named strategy)")


def _train(given: argparse.Namespace) -> None:
    config = resume_configuration(given, given.resume) if given.resume else resolve(given)
    run_training(config, resume=given.resume, recollect=given.recollect)


def _evaluate(given: argparse.Namespace) -> None:
    run_evaluation(given, given.resume)


def _backtest(given: argparse.Namespace) -> None:
    if given.resume:
        run_evaluation(given, given.resume, with_backtest=True)
    else:
        backtest_named(resolve(given), given.strategy)


def _audit(given: argparse.Namespace) -> None:
    config = resolve(given, checkpoint_configuration(given.resume)) if given.resume else resolve(given)
    run_audit(config, given.strategy or (), given.resume)


def _inspect(given: argparse.Namespace) -> None:
    run_inspection(given.resume or Path(given.run))


def _demo(given: argparse.Namespace) -> None:
    given.config = ROOT / "configs" / "demo.yaml"
    run_training(resolve(given), recollect=given.recollect)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("finflow")
    except PackageNotFoundError:
        return "(not installed)"
