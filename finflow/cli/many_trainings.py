"""Several trainings from the command line: seeds, folds, universes, here or elsewhere."""

from __future__ import annotations

import argparse
import hashlib
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from finflow.cli import runs as running
from finflow.cli.configuration import checkpoint_configuration, resolve, resume_configuration
from finflow.cli.options import explicit, program
from finflow.cli.output import show_outcome
from finflow.cli.runs import stopping_between_updates
from finflow.errors import ConfigError, FinflowError, OutputError, TrainingError

if TYPE_CHECKING:
    from finflow.config import Config
    from finflow.experiments.jobs.folds import Protocol
    from finflow.experiments.jobs.seed_job import Job, Judged
    from finflow.experiments.tasks.task_runner import Where

Made = TypeVar("Made")

MATTERS = {"train": "train.seeds", "evaluate": "evaluation.protocol.seeds", "tune": "tune.seeds"}
"""Which of the keys of --seeds a mode reads; the others are left as they are."""


def train(given: argparse.Namespace) -> None:
    """Train one agent, or with --seeds, --universe or the folder of a job, several that are judged together.

    Parameters
    ----------
    given
        With the options of `add_configuration_options`, `add_scale` and `add_recollect`, ``resume`` and ``dry_run``.
    """
    read_seeds_for(given, "train")
    if given.resume is not None:
        from finflow.training.checkpoints.run_resolver import Kind, resolve_run

        if resolve_run(given.resume).kind is Kind.JOB:
            _several(given, lambda: _resumed(given), folder=given.resume)
            return
    if given.universe is not None:
        if given.resume is not None:
            raise ConfigError("--universe starts a new job; a job's folder after --resume knows its universes")
        _several(given, lambda: _in_universes(given, lambda name, config: _job(config, Path(name), name)))
        return
    config = resume_configuration(given, given.resume) if given.resume else resolve(given)
    alone = config.train.seeds == 1 and given.cluster is None
    if alone and (given.workers or 1) > 1:
        raise ConfigError("--workers has one training to share out; train several with --seeds N")
    if alone and not given.dry_run:
        running.run_training(config, resume=given.resume, recollect=given.recollect)
    elif given.resume is not None:
        raise ConfigError(f"{given.resume} is one training, and goes on as one: leave --seeds, --cluster and such out")
    else:
        _several(given, lambda: [_job(config, Path())])


def run_protocol(given: argparse.Namespace, protocol: Protocol, checkpoint: Path | None, dry_run: bool) -> None:
    """Train anew for every fold of a protocol, and show the outcome. The same command goes on where one was stopped.

    Parameters
    ----------
    given
        With the options of `add_configuration_options` and `add_scale`.
    protocol
        `walk-forward` or `cpcv`.
    checkpoint
        A run folder or checkpoint file whose configuration stands in for the defaults; its run's folder takes the
        protocol's.
    dry_run
        Only say how many trainings there are and how long they will take.
    """
    read_seeds_for(given, "evaluate")
    base = None if checkpoint is None else checkpoint_configuration(checkpoint)
    parent = None
    if checkpoint is not None:
        elsewhere = explicit(given).get("output.logs_dir")
        from finflow.training.checkpoints.run_resolver import resolve_run

        run = resolve_run(checkpoint).folder
        parent = (run if elsewhere is None else Path(str(elsewhere)) / run.name) / "protocols"
    if given.universe is not None:
        from finflow.experiments.jobs import protocols

        plans: Sequence[Judged] = _in_universes(
            given, lambda name, config: protocols.plan_of(config, protocol, parent, name), base
        )
    else:
        config = resolve(given, base)
        from finflow.experiments.jobs import protocols

        plans = [protocols.plan_of(config, protocol, parent)]
    from finflow.experiments.jobs import seed_job as jobs
    from finflow.experiments.tasks.task_runner import ready
    from finflow.training.phases.stopping import request_stop

    where = _where(given, plans)
    with ready(where):
        if dry_run:
            print("\n".join(jobs.estimate_all(plans, where).lines()))
            return
        with stopping_between_updates(request_stop):
            try:
                outcomes = jobs.run_all(plans, where)
            except KeyboardInterrupt:
                raise KeyboardInterrupt("stopped; the same command goes on from there") from None
    if given.universe is None:
        show_outcome(outcomes[0], where="the judged windows, in the path of median Sharpe ratio")
        return
    from finflow.experiments.jobs.universes import report_universes

    mark = hashlib.sha256("\n".join(str(plan.folder) for plan in plans).encode()).hexdigest()[:8]
    together = plans[0].folder.parent / f"universes-{mark}"
    print("\n".join(report_universes([plan.market for plan in plans], outcomes, together)))


def read_seeds_for(given: argparse.Namespace, mode: str) -> None:
    """Of the keys that --seeds stands for, keep the one that a mode reads."""
    others = {key for name, key in MATTERS.items() if name != mode}
    given.overrides = {name: value for name, value in given.overrides.items() if name not in others}


def _where(given: argparse.Namespace, jobs: Sequence[Judged]) -> Where:
    from finflow.experiments.tasks.task_runner import Where

    train = jobs[0].trainings[0].config.train
    return Where(given.workers, given.cluster, train.threads, train.device)


def _job(config: Config, folder: Path, market: str = "") -> Job:
    from finflow.experiments.jobs.seed_job import job_of

    return job_of(config, folder, market)


def _in_universes(
    given: argparse.Namespace, make: Callable[[str, Config], Made], base: Config | None = None
) -> list[Made]:
    """The same for each universe of the file; a mistake names the universe."""
    from finflow.experiments.jobs.universe_file import in_universe, read_universes

    if given.tickers or given.tickers_file:
        raise ConfigError("--universe names the tickers; leave --tickers and --tickers-file out")
    made = []
    for name, tickers in read_universes(given.universe).items():
        try:
            made.append(make(name, resolve(argparse.Namespace(**{**vars(given), "tickers": tickers}), base)))
        except FinflowError as error:
            raise in_universe(name, error) from error
    return made


def _resumed(given: argparse.Namespace) -> list[Job]:
    """The jobs in a folder, with as many agents as they have or more."""
    from finflow.training.checkpoints.run_resolver import resolve_run

    if given.universe is not None or given.recollect:
        raise ConfigError("a job that goes on keeps its universes and its data: leave --universe and --recollect out")
    jobs = []
    for name in resolve_run(given.resume).universes or [""]:
        folder = given.resume / name
        before, config = checkpoint_configuration(folder), resume_configuration(given, folder)
        if config.train.seeds < before.train.seeds:
            raise ConfigError(
                f"the job in {folder} has {before.train.seeds} agents, and --seeds is {config.train.seeds}: to leave "
                "some out would be to choose among them; name as many or more"
            )
        jobs.append(_job(config, folder, name))
    return jobs


def _several(given: argparse.Namespace, make: Callable[[], list[Job]], folder: Path | None = None) -> None:
    """Make jobs, and the trainings that they miss, and show what came of them."""
    if given.recollect:
        raise ConfigError("--recollect belongs to a single training")
    jobs: list[Job] = make()
    from finflow.experiments.jobs.job_folder import begin_sweep
    from finflow.experiments.jobs.seed_job import estimate_all, run_all
    from finflow.experiments.tasks.task_runner import ready
    from finflow.training.phases.stopping import request_stop
    from finflow.training.trainer import new_run_folder

    where = _where(given, jobs)
    with ready(where):
        if given.dry_run:
            print("\n".join(estimate_all(jobs, where).lines()))
            return
        if folder is None:
            folder = new_run_folder(jobs[0].config.output.logs_dir)
            jobs = [replace(job, folder=folder / job.market) for job in jobs]
        names = [job.market for job in jobs if job.market]
        with stopping_between_updates(request_stop), _saying_how_to_go_on(folder):
            if names:
                begin_sweep(folder, names)
            outcomes = run_all(jobs, where)
    if not names:
        show_outcome(outcomes[0])
        return
    from finflow.experiments.jobs.universes import report_universes

    print("\n".join(report_universes(names, outcomes, folder)))


@contextmanager
def _saying_how_to_go_on(folder: Path) -> Iterator[None]:
    command = program() if program() == "finflow" else "python main.py"
    command = f"{command} --mode train --resume {shlex.quote(str(folder))}"
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped; to go on: {command}") from None
    except (OutputError, TrainingError) as error:
        raise type(error)(f"{error}; then go on with: {command}") from error
