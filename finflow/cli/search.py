"""A search from the command line."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from finflow.cli.configuration import resolve
from finflow.cli.many_trainings import read_seeds_for
from finflow.cli.runs import stopping_between_updates
from finflow.errors import ConfigError

if TYPE_CHECKING:
    from finflow.config import Config


def search_configuration(arguments: argparse.Namespace, folder: Path | None) -> Config:
    """The configuration of a search; where a study goes on, its own stands in for the defaults."""
    read_seeds_for(arguments, "tune")
    if folder is None:
        return resolve(arguments)
    from finflow.experiments.tuning.study_folder import stored_study

    return resolve(arguments, stored_study(folder))


def run_search(config: Config, arguments: argparse.Namespace) -> None:
    """Search, or do one trial again, or say how long it would take. Ctrl-C leaves a study that goes on.

    Parameters
    ----------
    config
        The resolved configuration.
    arguments
        With ``resume``, ``trial``, ``workers``, ``cluster`` and ``dry_run``.
    """
    from finflow.experiments.tasks.task_runner import Where, ready
    from finflow.experiments.tuning.search_plan import lines_of_plan
    from finflow.experiments.tuning.trial_rerun import rerun
    from finflow.experiments.tuning.tuning import tune
    from finflow.training.phases.stopping import request_stop

    if arguments.trial is not None and (arguments.workers or arguments.cluster or arguments.dry_run):
        raise ConfigError("--trial does one trial again, here: leave --workers, --cluster and --dry-run out")
    where = Where(arguments.workers, arguments.cluster, config.train.threads, config.train.device)
    with ready(where):
        if arguments.dry_run:
            print("\n".join(lines_of_plan(config, where, arguments.resume)))
            return
        with stopping_between_updates(request_stop):
            if arguments.trial is not None:
                print("\n".join(rerun(config, arguments.resume, arguments.trial)))
                return
            outcome = tune(config, arguments.resume, where)
    print("\n".join(outcome.lines))
    print(f"report: {outcome.report}")
