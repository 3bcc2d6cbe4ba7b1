"""Retraining of an agent from the command line."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from finflow.cli.configuration import checkpoint_configuration, resolve
from finflow.cli.exit_status import stopping_between_updates
from finflow.cli.options import explicit
from finflow.cli.output import resume_command, show_report
from finflow.errors import ConfigError
from finflow.text_table import table_lines

if TYPE_CHECKING:
    from finflow.config import Config
    from finflow.experiments.retraining.retrain_results import RetrainNumbers


def run_retraining(given: argparse.Namespace, run: Path) -> None:
    """Retrain the agent of a run, which is left as it is, on the newest prices, and print which of both to keep."""
    config = retraining_configuration(given, run)
    from finflow.experiments.jobs.independent_trainings import describe_trainings
    from finflow.experiments.retraining.retraining import FOLDER, compare_and_train, prepare_retraining
    from finflow.experiments.tasks.task_runner import ComputeResources, ready
    from finflow.training.checkpoints.run_resolver import resolve_run
    from finflow.training.phases.stopping import request_stop

    elsewhere = explicit(given).get("output.logs_dir")
    parent = None if elsewhere is None else Path(str(elsewhere)) / FOLDER / resolve_run(run).folder.name
    retraining = prepare_retraining(run, config, parent)
    print("\n".join(retraining.lines()))
    resources = ComputeResources(given.workers, None, config.train.threads, config.train.device)
    with ready(resources):
        if given.dry_run:
            print("\n".join(describe_trainings(config, retraining.trainings, {"": retraining.panel})))
            return
        with stopping_between_updates(request_stop):
            try:
                numbers, page, new = compare_and_train(retraining, resources)
            except KeyboardInterrupt:
                raise KeyboardInterrupt("stopped; the same command continues from there") from None
    print("\n".join(retraining_lines(numbers)))
    print(f"continue with: {resume_command('decide', new or run)}")
    show_report(page)


def retraining_configuration(given: argparse.Namespace, run: Path) -> Config:
    """The configuration of the old run, with the changes that were asked for, up to the newest bar.

    A ConfigError refuses another universe or other windows.
    """
    if given.tickers or given.tickers_file:
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


def retraining_lines(numbers: RetrainNumbers) -> list[str]:
    table = [("compared", "sharpe", "return a year", "drawdown", "turnover a year")]
    for name, one in numbers.figures.items():
        cells = (f"{one.sharpe:.2f}", f"{one.annual_return:+.1%}", f"{one.max_drawdown:.1%}")
        table.append((name, *cells, f"{one.annual_turnover:.1f}"))
    chance = (1.0 - numbers.coverage) / 2.0
    lead = (
        f"Sharpe ratio of the new agent less that of the old: {numbers.lead:+.2f}, {numbers.bounds.low:+.2f} to "
        f"{numbers.bounds.high:+.2f} (paired bootstrap, {numbers.coverage:.1%}, {numbers.returns} returns)"
    )
    above = "above" if numbers.answer == "replace" else "not above"
    return [
        *table_lines(table),
        lead,
        f"{numbers.answer}: the lower bound is {above} the margin of {numbers.margin:g}; without a true lead the "
        f"chance of a replacement is {chance:.2%} here (comparison {numbers.comparison} of this agent)",
        *(f"warning: {note}" for note in numbers.notes),
    ]
