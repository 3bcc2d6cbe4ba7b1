"""Decisions, paper trading and retraining from the command line."""

from __future__ import annotations

import argparse
import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from finflow.cli.configuration import checkpoint_configuration, evaluation_overrides, resolve
from finflow.cli.exit_status import stopping_between_updates
from finflow.cli.options import explicit
from finflow.cli.output import resume_command, show_report
from finflow.errors import ConfigError

if TYPE_CHECKING:
    from finflow.config import Config

_SHOWN = 8


def run_decision(given: argparse.Namespace, runs: Sequence[Path]) -> None:
    """Decide with the agent of a run, or with several (or a job) as one, and print the decision."""
    overrides = evaluation_overrides(given, runs[0]) | {
        key: value for key, value in explicit(given).items() if key.startswith("market.tickers")
    }
    date = None if not given.date else read_date(given.date[0], "--date")
    from finflow.trading.deciding import Request, decide
    from finflow.trading.decision_results import decision_page

    outcome = decide(
        Request(
            tuple(runs),
            overrides,
            holdings=given.holdings,
            fills=given.fills,
            cash=given.cash,
            date=date,
            accept_drift=given.accept_drift,
            accept_verdict=given.i_know,
            dry_run=given.dry_run,
            broker=given.broker,
            live=given.live,
        )
    )
    if outcome.decision is not None:
        print("\n".join(decision_page(outcome.decision).text()))
    for remark in outcome.remarks:
        print(f"note: {remark}")
    if outcome.folder is None:
        print("nothing was written (--dry-run)")
    elif outcome.decision is not None:
        print(f"written: decision.json, orders.csv and decision.html in {outcome.folder}")


def run_paper(given: argparse.Namespace, runs: Sequence[Path]) -> None:
    """Trade on paper with the agent of a run, or with several (or a job) as one, and print the state of the account."""
    overrides = evaluation_overrides(given, runs[0])
    if given.broker:
        overrides = {**overrides, "trading.broker": given.broker}
    first, until = (
        None if vars(given)[name] is None else read_date(vars(given)[name], f"--{name}") for name in ("from", "until")
    )
    from finflow.trading.deciding import Request
    from finflow.trading.paper.paper_page import paper_page
    from finflow.trading.paper.paper_trading import trade_on_paper

    outcome = trade_on_paper(
        Request(
            tuple(runs),
            overrides,
            first=first,
            until=until,
            follow=given.follow,
            accept_drift=given.accept_drift,
            accept_verdict=given.i_know,
            live=given.live,
        )
    )
    print("\n".join(paper_page(outcome.numbers).text("evenings")))
    if outcome.message is not None:
        print(f"note: {outcome.message}")
    print(f"page: {outcome.page}")


def read_date(text: str, option: str) -> dt.date:
    try:
        return dt.date.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{option} {text!r} is not a date: write it as 2020-03-16") from None


def run_retraining(given: argparse.Namespace, run: Path) -> None:
    """Retrain the agent of a run, which is left as it is, on the newest prices, and print which of both to keep."""
    config = retraining_configuration(given, run)
    from finflow.experiments.jobs.independent_trainings import describe_trainings
    from finflow.experiments.retraining.retraining import FOLDER, compare_and_train, prepare_retraining
    from finflow.experiments.tasks import ComputeResources
    from finflow.training.checkpoints.run_folder import resolve_run
    from finflow.training.phases.stopping import request_stop

    elsewhere = explicit(given).get("output.logs_dir")
    parent = None if elsewhere is None else Path(str(elsewhere)) / FOLDER / resolve_run(run).folder.name
    retraining = prepare_retraining(run, config, parent)
    print("\n".join(retraining.lines()))
    resources = ComputeResources(given.workers, None, config.train.threads, config.train.device)
    with resources.ready():
        if given.dry_run:
            print("\n".join(describe_trainings(config, retraining.trainings, {"": retraining.panel})))
            return
        with stopping_between_updates(request_stop):
            try:
                page, path, new = compare_and_train(retraining, resources)
            except KeyboardInterrupt:
                raise KeyboardInterrupt("stopped; the same command continues from there") from None
    print("\n".join(page.text("compared", "rule")))
    print(f"continue with: {resume_command('decide', new or run)}")
    show_report(path)


def retraining_configuration(given: argparse.Namespace, run: Path) -> Config:
    """The configuration of the old run, with the changes that were asked for, up to the newest bar.

    A ConfigError refuses another universe or other windows.
    """
    if given.tickers:
        raise ConfigError("a retraining keeps the universe of its run: leave --tickers and --tickers-file out")
    before = checkpoint_configuration(run)
    from finflow.config import replace_values

    config = resolve(given, replace_values(before, {"market.test_end": None, "market.extend_cache": True}))
    for name in ("train_end", "validation_end"):
        if getattr(config.market, name) != getattr(before.market, name):
            raise ConfigError(
                f"market.{name} says what the old agent was trained on, {getattr(before.market, name)}, and cannot be "
                "another for a retraining; leave it out"
            )
    return config
