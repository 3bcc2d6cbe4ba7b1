"""Trainings and searches from the command line: one, or many that are shared out."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from finflow.cli.exit_status import stopping_between_updates
from finflow.cli.options import (
    checkpoint_configuration,
    place_of,
    read_universes,
    resolve,
    resume_configuration,
    retraining_configuration,
    shipped_configuration,
)
from finflow.cli.output import show_outcome, show_report
from finflow.errors import ConfigError, FinflowError, OutputError, TrainingError, command, refuse
from finflow.provenance import short_hash

if TYPE_CHECKING:
    from finflow.config import Config
    from finflow.experiments.jobs.independent_trainings import Job, SeedJob
    from finflow.experiments.jobs.walk_forward import Protocol
    from finflow.experiments.tasks import ComputeResources

Made = TypeVar("Made")

_SEEDS = {"train": "train.seeds", "evaluate": "evaluation.protocol.seeds", "tune": "tune.seeds"}
"""Key of --seeds that each mode reads; the others are left as they are."""
_SAME_COMMAND = "the same command continues from there"


def train(given: argparse.Namespace) -> None:
    """Train one agent, or with --seeds, --universe or the folder of a job, several that are evaluated together."""
    _read_seeds_for(given, "train")
    if given.resume is not None:
        from finflow.training.checkpoints.run_folder import Kind, resolve_run

        if resolve_run(given.resume).kind is Kind.JOB:
            _train_seeds(given, _resumed(given), given.resume)
            return
        if given.universe is not None:
            raise ConfigError("--universe starts a new job; a job's folder after --resume knows its universes")
    if given.universe is None:
        config = resume_configuration(given, given.resume) if given.resume else resolve(given)
        alone = config.train.seeds == 1 and given.cluster is None
        if alone and (given.workers or 1) > 1:
            raise ConfigError("--workers has one training to share out; train several with --seeds N")
        if alone and not given.dry_run:
            run_training(config, resume=given.resume, recollect=given.recollect)
            return
        if given.resume is not None:
            options = {"--seeds": config.train.seeds > 1, "--cluster": given.cluster, "--dry-run": given.dry_run}
            out = " and ".join(option for option, was_given in options.items() if was_given)
            raise ConfigError(f"{given.resume} is one training, and goes on as one: leave {out} out")
    from finflow.experiments.jobs.independent_trainings import make_seed_job

    _train_seeds(given, _in_universes(given, lambda name, config: make_seed_job(config, Path(name), name)))


def _train_seeds(given: argparse.Namespace, jobs: list[SeedJob], folder: Path | None = None) -> None:
    """Train the agents of jobs in a folder, a new one when left out, and show their outcome."""
    refuse(given.recollect, "--recollect belongs to a single training", ConfigError)
    from finflow.experiments.jobs.independent_trainings import write_universes
    from finflow.training.trainer import new_run_folder

    with _ready(given, jobs) as resources:
        if resources is None:
            return
        if folder is None:
            folder = new_run_folder(jobs[0].config.output.logs_dir)
            jobs = [replace(job, folder=folder / job.market) for job in jobs]
        if jobs[0].market:
            write_universes(folder, [job.market for job in jobs])
        _run(jobs, resources, folder, f"to continue: {command('train', '--resume', folder)}")


def run_training(
    config: Config,
    *,
    resume: Path | None = None,
    pretrained: Path | None = None,
    dataset: Path | None = None,
    recollect: bool = False,
    offline_only: bool = False,
) -> None:
    """Train, and show the outcome. Ctrl-C stops between two updates, after writing `checkpoint_latest`.

    ``pretrained`` is the offline phase's checkpoint to start the online phase from, ``dataset`` the file of the offline
    dataset (one under `output.offline_dir` when left out); ``recollect`` collects it even where it is there.
    """
    from finflow.training.trainer import FinFlowTrainer

    with stopping_between_updates():
        trainer = FinFlowTrainer(config, resume=resume, pretrained=pretrained)
        again = command("train", "--resume", trainer.run_folder)
        try:
            if dataset is not None or recollect:
                trainer.collect_offline_data(dataset, recollect)
            outcome = trainer.train_offline() if offline_only else trainer.train()
        except KeyboardInterrupt:
            if _has_checkpoint(trainer.run_folder):
                raise KeyboardInterrupt(f"stopped; to continue: {again}") from None
            raise KeyboardInterrupt("stopped before the first checkpoint: nothing to continue from") from None
        except OutputError as error:
            if not _has_checkpoint(trainer.run_folder):
                raise
            raise OutputError(f"{error}; then continue with: {again}") from error
        finally:
            trainer.discard_if_unused()
    show_outcome(outcome)


def train_planted(given: argparse.Namespace) -> None:
    """Train in a market with a planted signal and in one without any, at the same time, and say what was found."""
    files = [shipped_configuration(name) for name in ("planted.yaml", "planted-null.yaml")]
    planted, null = (resolve(argparse.Namespace(**{**vars(given), "config": own})) for own in (files[:1], files))
    from finflow.experiments.jobs.planted_market import train_markets
    from finflow.strategies.optimal_policy import optimum_of
    from finflow.training.trainer import new_run_folder

    for market, kind in ((planted.market, "mean-reverting"), (null.market, "exchangeable")):
        if (market.source, market.synthetic.kind) != ("synthetic", kind):
            raise ConfigError("--market planted has two markets of its own: leave FINFLOW_MARKET__... out")
    for own in (planted, null):
        optimum_of(own.market, own.env)  # refuses what no best policy is known of

    folder = new_run_folder(planted.output.logs_dir)
    with stopping_between_updates(), _continued(f"what was kept is in {folder}"):
        lines, reports = train_markets({"planted": planted, "null": null}, folder)
    print("\n".join(["", *lines]))
    for report in reports:
        show_report(report)


def _has_checkpoint(run_folder: Path) -> bool:
    return any(run_folder.glob("models/checkpoint_latest*"))


def run_protocol(given: argparse.Namespace, checkpoint: Path | None) -> None:
    """Train anew for every fold of `--protocol`, and show the outcome. The same command resumes a stopped one.

    The configuration of ``checkpoint`` replaces the defaults, and its run's folder takes the protocol's.
    """
    _read_seeds_for(given, "evaluate")
    protocol: Protocol = given.protocol
    base = parent = None
    if checkpoint is not None:
        from finflow.training.checkpoints.run_folder import resolve_run

        base = checkpoint_configuration(checkpoint)
        parent = place_of(given, resolve_run(checkpoint).folder) / "protocols"
    from finflow.experiments.jobs.protocols import make_protocol_job

    jobs = _in_universes(given, lambda name, config: make_protocol_job(config, protocol, parent, name), base)
    mark = short_hash("\n".join(str(job.folder) for job in jobs))
    with _ready(given, jobs) as resources:
        if resources is not None:
            window = "the evaluated windows, in the path of median Sharpe ratio"
            _run(jobs, resources, jobs[0].folder.parent / f"universes-{mark}", _SAME_COMMAND, window)


def run_retraining(given: argparse.Namespace) -> None:
    """Retrain the agent of a run, which is left as it is, on the newest prices, and print which of both to keep."""
    config = retraining_configuration(given)
    from finflow.experiments.jobs.independent_trainings import run_all
    from finflow.experiments.jobs.retraining import FOLDER, prepare_retraining
    from finflow.training.checkpoints.run_folder import resolve_run

    run = place_of(given, resolve_run(given.resume).folder)
    job = prepare_retraining(given.resume, config, run.parent / FOLDER / run.name)
    with _ready(given, [job]) as resources:
        if resources is not None:
            with _continued(_SAME_COMMAND):
                (outcome,) = run_all([job], resources)
            print("\n".join(outcome.page.text("compared", "rule")))
            print(f"continue with: {command('decide', '--resume', outcome.run_folder)}")
            show_report(outcome.report)


def run_search(given: argparse.Namespace) -> None:
    """Search, run one trial again, or count the trainings. After Ctrl-C the study can be resumed.

    The configuration of a resumed study replaces the defaults.
    """
    _read_seeds_for(given, "tune")
    base = None
    if given.resume is not None:
        from finflow.experiments.tuning.study import stored_study

        base = stored_study(given.resume)
    config = resolve(given, base)
    from finflow.experiments.tasks import ComputeResources
    from finflow.experiments.tuning.tuning import describe_plan, rerun, tune

    if given.trial is not None and (given.workers or given.cluster or given.dry_run):
        raise ConfigError("--trial does one trial again, here: leave --workers, --cluster and --dry-run out")
    resources = ComputeResources(given.workers, given.cluster, config.train.threads, config.train.device)
    with resources.ready():
        if given.dry_run:
            print(describe_plan(config, given.resume))
            return
        with stopping_between_updates():
            if given.trial is not None:
                print("\n".join(rerun(config, given.resume, given.trial)))
                return
            outcome = tune(config, given.resume, resources)
    print("\n".join(outcome.lines))
    show_report(outcome.report)


def _read_seeds_for(given: argparse.Namespace, mode: str) -> None:
    """Of the keys that --seeds stands for, keep the one that a mode reads."""
    others = {key for name, key in _SEEDS.items() if name != mode}
    given.overrides = {name: value for name, value in given.overrides.items() if name not in others}


@contextmanager
def _ready(given: argparse.Namespace, jobs: Sequence[Job]) -> Iterator[ComputeResources | None]:
    """Resources of the jobs' trainings, with Ctrl-C taken care of; None after a dry run, which is printed."""
    from finflow.experiments.jobs.independent_trainings import describe_trainings
    from finflow.experiments.tasks import ComputeResources
    from finflow.market.plausibility.price_notes import opening_lines

    settings = jobs[0].config.train
    resources = ComputeResources(given.workers, given.cluster, settings.threads, settings.device)
    with resources.ready():
        if given.dry_run:
            notes = dict.fromkeys(note for job in jobs for note in (*opening_lines(job.panel), *job.lines()))
            print("\n".join([*notes, *describe_trainings(jobs)]))
            yield None
            return
        with stopping_between_updates():
            yield resources


def _run(
    jobs: Sequence[Job], resources: ComputeResources, folder: Path, resume: str, window: str = "the test window"
) -> None:
    """Run jobs, and show the outcome of one; of jobs in several universes, the report of all together in a folder."""
    from finflow.experiments.jobs.independent_trainings import report_universes, run_all

    with _continued(resume):
        outcomes = run_all(jobs, resources)
    if not jobs[0].market:
        show_outcome(outcomes[0], where=window)
        return
    lines, page = report_universes([job.market for job in jobs], outcomes, folder)
    print("\n".join(lines))
    show_report(page)


@contextmanager
def _continued(how: str) -> Iterator[None]:
    """Say how to go on after a stop."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped; {how}") from None
    except (OutputError, TrainingError) as error:
        raise type(error)(f"{error}; {how}") from error


def _in_universes(
    given: argparse.Namespace, make: Callable[[str, Config], Made], base: Config | None = None
) -> list[Made]:
    """The same for each universe of the file, whose name a mistake begins with; without a file once, for no name."""
    if given.universe is None:
        return [make("", resolve(given, base))]
    refuse(given.tickers, "--universe names the tickers; leave --tickers and --tickers-file out", ConfigError)
    jobs = []
    for name, tickers in read_universes(given.universe).items():
        try:
            jobs.append(make(name, resolve(argparse.Namespace(**{**vars(given), "tickers": tickers}), base)))
        except FinflowError as error:
            raise type(error)(f"universe {name!r}: {error}") from error
    return jobs


def _resumed(given: argparse.Namespace) -> list[SeedJob]:
    from finflow.experiments.jobs.independent_trainings import make_seed_job
    from finflow.training.checkpoints.run_folder import resolve_run

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
        jobs.append(make_seed_job(config, folder, name))
    return jobs
