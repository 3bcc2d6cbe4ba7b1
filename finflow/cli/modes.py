"""`python main.py --mode ...`: the options of each mode, and the application function that it calls."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Sequence

from finflow.cli.exit_status import run_safely
from finflow.cli.option_table import DIRECT, OPTIONS, add_options, check_protocol
from finflow.cli.options import MODES, Parser, resolve, shipped_configuration
from finflow.cli.output import describe_configuration, open_report
from finflow.cli.runs import run_protocol, run_retraining, run_search, train, train_planted
from finflow.cli.trained_agents import (
    backtest_named,
    run_audit,
    run_comparison,
    run_decision,
    run_evaluation,
    run_explanation,
    run_inspection,
    run_paper,
    run_preferences,
)
from finflow.errors import program
from finflow.provenance import package_version

DESCRIPTION = """\
finflow trains a portfolio agent on a market and tests whether it beats strong classical
portfolios after costs, out of sample."""

MORE = """\
modes:
  train      prices, behaviour data, offline learning, online fine-tuning, evaluation, report
  evaluate   evaluate a trained agent (--resume) on the test window, and write its report; with
             --protocol walk-forward or cpcv: train a new agent for every fold before that window
  backtest   the same for an agent (--resume) or for a named strategy (--strategy), always with
             other costs, lags and capital, stress periods, and tables of trades and holdings
  tune       search for better values of configuration keys, on validation only: trains many agents
             (--n-trials, --objective), and writes the best configuration; --resume continues a study
  explain    why an agent (--resume) traded on a date of its test window (--date): gate, experts, aim,
             and the features that moved it
  compare    compare several runs: metrics with intervals, verdicts, equity, differences of
             configuration; runs that differ by the seed alone are grouped; and the selection of the
             best run: its probability of overfitting, and its verdict as the best of several
  decide     portfolio and orders of today: checks the newest prices; target weights, orders, reasons
             (--resume; --holdings, --cash or the log of earlier decisions say what is held)
  paper      trade the agent (--resume) on paper, day by day from --from on, with the information of each
             evening; logs every decision, and tests the account against its backtest; with --broker
             alpaca: one decision an evening for an account at Alpaca
  retrain    train the agent (--resume) further on the newest prices, compare both on bars that neither was
             trained on, and answer keep or replace; the old run is not changed
  audit      test for look-ahead: data, features, environment, strategies (and your own,
             --strategy), behaviour data, and an agent (--resume); exit status 2 if there is any
  prefer     compare pairs of segments of strategies on a local web page (--ask), have a judge compare them
             (--judge), or learn from files of them (--learn): a reward model, or an agent (--resume) itself
             (--method dpo or simpo)
  inspect    of a file or folder of prices: layout, marks, dates, assets, bars a year, and what is implausible;
             of a run: the contents of its checkpoints, verified; exit status 2 if one is damaged
  demo       all of train, reduced to about a minute, without a network; with --market planted: learn a
             known signal and, beside it, find nothing in a market without any, in two minutes

examples:
  {program} --mode demo
  {program} --mode demo --market planted
  {program} --mode train
  {program} --mode train --tickers AAPL MSFT JPM KO --set market.start=2000-01-01
  {program} --mode train --resume logs/20260131_120000
  {program} --mode evaluate --resume logs/20260131_120000
  {program} --mode backtest --strategy risk-parity --set env.commission_bps=20
  {program} --mode tune --n-trials 100 --objective sharpe --workers 2
  {program} --mode compare logs/20260131_120000 logs/20260131_130000
  {program} --mode decide --resume logs/20260131_120000 --holdings holdings.csv
  {program} --mode paper --resume logs/20260131_120000 --from 2021-01-04 --until 2021-12-31
  {program} --mode retrain --resume logs/20260131_120000

A value comes from the command line (the last one counts), then from environment
variables such as FINFLOW_BCELL__CQL_ALPHA=10, then from the file, then from the defaults.
With --resume, the configuration in the checkpoint replaces the defaults."""
_OF_TRAINING = ("train.", "bcell.", "offline.", "online.")
_NOT_PLANTED = (
    "dry_run workers cluster universe tickers recollect train.seeds market.source market.synthetic.kind "
    "market.synthetic.persistence market.synthetic.drift"
)
_AGENT = "with the run folder or checkpoint of the agent"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run finflow; returns the exit status."""
    return run_safely(_main, arguments)


def _main(arguments: Sequence[str]) -> None:
    parser = Parser(DESCRIPTION, epilog=MORE.format(program=program()), usage="%(prog)s --mode MODE [options]")
    parser.add_argument(
        "run", nargs="*", metavar="RUN", help="inspect, compare: run folders; inspect: or a checkpoint, or prices"
    )
    add_options(parser)
    if not arguments:
        parser.print_help()
        return
    given = parser.parse(arguments)
    if given.version:
        print(f"finflow {package_version()}")
    elif given.help_config is not None:
        print(describe_configuration(given.help_config))
    else:
        given.typed = arguments
        sys.path.append(os.getcwd())  # a user's own strategy or feature lies where the user is
        _check(given, parser)
        _FUNCTIONS[given.mode](given)
        if given.open:
            open_report()


def _check(given: argparse.Namespace, parser: Parser) -> None:
    """Refuse the first thing that does not fit the mode; ``agents`` is all that `--resume` or `--agent` names."""
    mode = given.mode
    if given.agent and given.resume:
        parser.error("--agent and --resume both name the agent: leave one of them out")
    given.agents = given.resume or []
    if given.agent:
        from finflow.training.checkpoints.packaged_agents import packaged_agent

        given.agents = [packaged_agent(given.agent)]
    given.resume = given.agents[0] if given.agents else None
    own = {
        option.name: option.modes
        for group in OPTIONS.values()
        for option in group
        if option.modes and option.value(given) is not None and option.value(given) is not False
    }
    if given.run and mode not in ("inspect", "compare"):
        parser.refuse(given.run[0])
    learned = [key for key in given.overrides if key not in ("train.seed", "train.device")]
    trains = learned and all(key.startswith(_OF_TRAINING) for key in learned) and not given.agents
    if mode is None and trains and all("train" in modes for modes in own.values()):
        mode = given.mode = "train"
        print("training, as --mode train does: no --mode is given")
    if mode is None:
        searches = any(key.startswith("tune.") and key != "tune.seeds" for key in given.overrides)
        meant = "tune" if searches else next((modes[0] for modes in own.values()), "train")
        command = f"{program()} --mode {meant} {shlex.join(given.typed)}"
        parser.error(f"--mode is missing: {', '.join(MODES[:-1])} or {MODES[-1]}; type {command}")
    if len(given.agents) > 1 and mode not in ("evaluate", "backtest", "decide", "paper"):
        parser.error(f"--resume takes one run folder or checkpoint with --mode {mode}")
    for name, modes in own.items():
        if mode not in modes:
            parser.error(f"{name} belongs to --mode {' or '.join(modes)}, not to --mode {mode}")
    if mode == "evaluate":
        check_protocol(parser, given)
    for wrong, message in _mistakes(given).get(mode, []):
        if wrong:
            parser.error(message)


def _mistakes(given: argparse.Namespace) -> dict[str, list[tuple[object, str]]]:
    """Mistakes by mode: true for what was made, and the answer."""
    agent, trains = given.resume, given.protocol not in (None, "holdout")
    asks, direct = not (given.judge or given.learn), given.method in DIRECT
    ways = bool(given.judge) + bool(given.learn) + bool(given.ask)
    fixed = [one.replace("_", "-") for one in _NOT_PLANTED.split() if {**vars(given), **given.overrides}.get(one)]
    other = "" if given.mode == "retrain" else ", or --agent sp500"
    needed = (not agent, f"--mode {given.mode} needs --resume {_AGENT}{other}")
    return {
        "paper": [needed],
        "retrain": [needed],
        "tune": [(given.trial is not None and not agent, "--trial belongs to --mode tune with --resume STUDY")],
        "evaluate": [
            (trains and len(given.agents) > 1, "--protocol trains by the configuration of one run after --resume"),
            (not trains and not agent, needed[1]),
        ],
        "inspect": [(len(given.run) + bool(agent) != 1, "--mode inspect needs one run, checkpoint or file of prices")],
        "explain": [(not (agent and given.date), f"{needed[1]}, and --date with a date")],
        "decide": [needed, (len(given.date or ()) > 1, "--mode decide decides on one day; name one after --date")],
        "compare": [(len(given.run) < 2, "--mode compare needs two run folders or more, as in logs/RUN logs/RUN")],
        "demo": [
            (agent, "a demo goes on as any run does, with --mode train --resume RUN"),
            (given.config, "--mode demo has its own configuration; for another use --mode train --config FILE"),
            (
                given.market == "planted" and fixed,
                f"--market planted trains in two markets of its own: leave {', '.join(fixed)} out",
            ),
        ],
        "prefer": [
            *((vars(given)[one] and not given.learn, f"--{one} belongs to --learn") for one in ("method", "strict")),
            (direct and not given.resume, f"--method {given.method} needs --resume {_AGENT}"),
            (
                given.resume and not direct,
                f"--mode prefer has an agent (--resume) with --learn and --method {' or '.join(DIRECT)} alone",
            ),
            (ways > 1, "--mode prefer does one of --ask, --judge and --learn at a time"),
            (not (asks or given.output), "--judge and --learn need --output with the file to write"),
            (asks and given.output, "--output is not of --ask; name the file of your answers after --ask"),
            *((vars(given)[one] and not asks, f"--{one} belongs to --ask") for one in ("port", "open")),
            (given.pairs and given.learn, "--pairs belongs to --ask and --judge; --learn uses all pairs of its files"),
        ],
        "backtest": [(bool(agent) == bool(given.strategy), "--mode backtest needs one of --resume and --strategy")],
    }


def _evaluate(given: argparse.Namespace) -> None:
    if given.protocol in (None, "holdout"):
        run_evaluation(given, given.agents)
    else:
        run_protocol(given, given.resume)


def _backtest(given: argparse.Namespace) -> None:
    if given.resume:
        run_evaluation(given, given.agents, with_backtest=True)
    else:
        backtest_named(resolve(given), given.strategy)


def _demo(given: argparse.Namespace) -> None:
    given.config = [shipped_configuration("demo.yaml")]
    (train_planted if given.market == "planted" else train)(given)


#: Function of each mode.
_FUNCTIONS: dict[str, Callable[[argparse.Namespace], None]] = {
    "train": train,
    "evaluate": _evaluate,
    "backtest": _backtest,
    "tune": run_search,
    "explain": run_explanation,
    "compare": run_comparison,
    "paper": run_paper,
    "decide": run_decision,
    "retrain": run_retraining,
    "audit": run_audit,
    "prefer": run_preferences,
    "inspect": run_inspection,
    "demo": _demo,
}
