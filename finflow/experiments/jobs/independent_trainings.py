"""Jobs of independent trainings, each in a folder of its own: run here, in other processes, or on a cluster.

Beside the run of a training lies a note with its configuration, code and prices. A finished training is not repeated;
one that was stopped or killed resumes from its last checkpoint, to the same bits. A job evaluates the agents of its
trainings, which run side by side with those of other markets.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from finflow.config import Config, EvaluationConfig, changed_values, config_hash, dump_run, replace_values
from finflow.errors import CheckpointError, MarketError
from finflow.evaluation.multi_run.comparison_page import universes_page
from finflow.experiments.jobs.walk_forward import Fold
from finflow.experiments.task_progress import task_folder, task_progress
from finflow.experiments.tasks import ComputeResources, Result, Task, run_tasks
from finflow.files import check_writable, in_use, write_atomically, write_together
from finflow.guard.checkpoint_folder import LATEST, MODELS, CheckpointFolder
from finflow.json_text import format_json, read_object
from finflow.market.panel import MarketPanel
from finflow.market.plausibility.price_notes import opening_lines
from finflow.market.sources.panel_loader import load_panel
from finflow.provenance import code_hash, short_hash
from finflow.training.checkpoints.checkpoint_reader import read_checkpoint
from finflow.training.checkpoints.run_folder import CONFIG, JOB, NOTE, best_in, is_plain_name, write_manifest
from finflow.training.data.training_data import TrainingData, device_here, prepare_from
from finflow.training.judging.agent_strategy import Agents
from finflow.training.judging.evaluations import judge_agents
from finflow.training.judging.held_out import REPORTS, EvaluationOutcome, ledger_of
from finflow.training.phases.stopping import stopping_at_once
from finflow.training.trainer import FinFlowTrainer

NOT_SENT = "checkpoint_[0-9]*"  # numbered checkpoints of a node: the latest and the best are enough


@dataclass(frozen=True)
class Training:
    """One independent training."""

    name: str
    folder: Path
    config: Config
    market: str = ""  # name of its panel among several
    fold: Fold | None = None  # pieces of the panel that it may see; all of it, split by date, when left out
    warm_start: Path | None = None  # checkpoint whose networks go on learning online here, with no offline phase

    def training_data(self, panel: MarketPanel) -> TrainingData:
        if self.fold is None:
            return prepare_from(panel, self.config)
        try:
            return self.fold.training_data(panel, self.config)
        except MarketError as error:
            raise MarketError(f"{self.name} cannot be trained: {error}") from error

    def fingerprint(self, panel: MarketPanel) -> dict[str, Any]:
        """Hashes and bars that decide its result."""
        fold, before = self.fold, self.warm_start
        return {
            "configuration": config_hash(self.config),
            "code": code_hash(),
            "market": panel.sha256,
            "pieces": [] if fold is None else [[piece.start, piece.stop] for piece in fold.pieces],
            "validation": None if fold is None else fold.validation,
            **({} if before is None else {"warm_start": hashlib.sha256(before.read_bytes()).hexdigest()}),
        }

    def note(self, panel: MarketPanel) -> dict[str, Any]:
        """Note in its folder; empty where that is of another training, or missing."""
        note = read_object(self.folder / NOTE)
        if note is None or not self.fingerprint(panel).items() <= note.items():
            return {}
        return note if is_plain_name(str(note.get("run", "none"))) else {}


@dataclass(frozen=True)
class Job:
    """Several trainings in one market, in folders below that of the job, and the evaluation of their agents."""

    config: Config
    panel: MarketPanel
    folder: Path
    market: str = ""

    @property
    def trainings(self) -> list[Training]:
        raise NotImplementedError

    def lines(self) -> list[str]:
        """Lines that say what is evaluated; none where that is the test window."""
        return []

    def begin(self) -> None:
        """Write what makes the folder a job's, if anything does."""

    def judge(self, checkpoints: Sequence[Path]) -> EvaluationOutcome:
        """Evaluate the agents of the trainings, and write the report."""
        raise NotImplementedError

    def training(self, name: str, folder: str, seed: int, fold: Fold | None = None, **details: Any) -> Training:
        """One of the trainings; where it is evaluated by others, settings of the evaluation are no part of it."""
        place, details = self.folder / folder, {"market": self.market, "fold": fold, **details}
        evaluation = self.config.evaluation if fold is None else EvaluationConfig()
        changes = {"train.seed": seed, "train.seeds": 1, "evaluation": evaluation}
        # A reading of the test window by one of them counts in the ledger of all.
        changes |= {"output.logs_dir": place, "output.readings": ledger_of(self.config)}
        of = f"{self.market}, " if self.market else ""
        return Training(f"{of}{name}", place, replace_values(self.config, changes), **details)


@dataclass(frozen=True)
class SeedJob(Job):
    """Agents of several seeds in one market, evaluated together on the test window."""

    @property
    def trainings(self) -> list[Training]:
        first = self.config.train.seed
        return [
            self.training(f"seed {seed}", f"seed-{seed}", seed)
            for seed in range(first, first + self.config.train.seeds)
        ]

    def begin(self) -> None:
        note = {"seed": self.config.train.seed, "seeds": self.config.train.seeds}
        write_together({self.folder / CONFIG: dump_run(self.config), self.folder / JOB: format_json(note)})

    @stopping_at_once()
    def judge(self, checkpoints: Sequence[Path]) -> EvaluationOutcome:
        training_data = prepare_from(self.panel, self.config)
        device = device_here(self.config.train.device)
        agents = Agents.of([read_checkpoint(path) for path in checkpoints], training_data.config, device)
        outcome = judge_agents(training_data, agents, self.folder)
        write_manifest(self.folder, training_data, device, seeds=[one.config.train.seed for one in self.trainings])
        return outcome


def mark_of(config: Config, *cuts: object) -> str:
    """A hash of all that decides the trainings of a job: keys of learning, and how the market is cut."""
    learning = config_hash(replace_values(config, {"evaluation": EvaluationConfig()}))
    return short_hash(json.dumps([learning, *cuts], sort_keys=True))


def make_seed_job(config: Config, folder: Path, market: str = "") -> SeedJob:
    """Load the prices of a job, and check that an agent can be trained and evaluated.

    Raises FinflowError if a setting or the prices cannot be used; nothing has been written then.
    """
    panel = load_panel(config.market)
    prepare_from(panel, config)
    return SeedJob(config, panel, folder, market)


def describe_trainings(jobs: Sequence[Job]) -> list[str]:
    """Say which trainings are left, and which keys of their configuration are not the defaults, for a dry run."""
    panels, trainings = _trainings_of(jobs)
    left = [one.name for one in trainings if finished_best(one, panels[one.market]) is None]
    count, finished = len(trainings), len(trainings) - len(left)
    if not left:
        return [f"{count} trainings, all of them finished already; only their evaluation is left"]
    there = f", {finished} of them finished already" if finished else ""
    changed = ", ".join(changed_values(Config(), jobs[0].config))
    return [
        f"{count} training{'s' if count > 1 else ''}{there}; to run: {'; '.join(left)}",
        f"configuration: the defaults{f', except {changed}' if changed else ''}",
    ]


def _trainings_of(jobs: Sequence[Job]) -> tuple[dict[str, MarketPanel], list[Training]]:
    return {job.market: job.panel for job in jobs}, [training for job in jobs for training in job.trainings]


def run_all(jobs: Sequence[Job], resources: ComputeResources | None = None) -> list[EvaluationOutcome]:
    """Run the trainings that are missing, of all jobs side by side, and evaluate each job.

    Finished trainings are kept where it raises FinflowError or KeyboardInterrupt: the same jobs continue from there.
    """
    for job in jobs:
        check_writable(job.folder, keep=False)
        job.begin()
        for line in (*opening_lines(job.panel), *job.lines()):
            print(line)
    panels, trainings = _trainings_of(jobs)
    checkpoints = iter(train_all(trainings, panels, resources))
    outcomes = []
    for job in jobs:
        count = len(job.trainings)
        print(f"evaluating {job.market or ('the trainings' if count > 1 else 'the agent')}")
        outcomes.append(job.judge([next(checkpoints) for _ in range(count)]))
    return outcomes


def write_universes(folder: Path, names: Sequence[str]) -> None:
    """Write the note of a folder that holds the same job in several universes, each in a folder of its name."""
    write_atomically(folder / JOB, format_json({"universes": list(names)}))


def report_universes(
    names: Sequence[str], outcomes: Sequence[EvaluationOutcome], folder: Path
) -> tuple[list[str], Path]:
    """Report the universes together, from the numbers of each one's own report."""
    page = universes_page({name: one.page.document for name, one in zip(names, outcomes, strict=True)})
    write_together({folder / REPORTS / file: content for file, content in page.files().items()})
    return page.text(), folder / REPORTS / "report.html"


def train_all(
    trainings: Sequence[Training], panels: Mapping[str, MarketPanel], resources: ComputeResources | None = None
) -> list[Path]:
    """Run the trainings that are not finished yet, and find the best checkpoint of each.

    On a cluster their files travel with them, and their folders here are locked meanwhile.

    Raises CheckpointError if one is not finished even then.
    """
    resources = resources or ComputeResources()
    missing = [one for one in trainings if finished_best(one, panels[one.market]) is None]
    changed = [one.name for one in missing if (one.folder / NOTE).is_file() and not one.note(panels[one.market])]
    if changed:
        print(
            "trained before by another configuration or code, or on other prices, and trained again: "
            + ", ".join(changed)
        )
    with ExitStack() as locks:
        tasks = [Task(one.name, train_one, {"training": one}) for one in missing]
        if resources.cluster is not None:
            for one in missing:
                locks.enter_context(in_use(one.folder))
            tasks = [
                Task(one.name, train_remotely, {"training": one, "files": _files_to_resume(one, panels)})
                for one in missing
            ]
        run_tasks(tasks, resources, _store_files, shared={"panels": dict(panels)}, kind="trainings")
    checkpoints = []
    for one in trainings:
        if (best := finished_best(one, panels[one.market])) is None:
            raise CheckpointError(f"{one.name} is not finished in {one.folder}; give the same command again")
        checkpoints.append(best)
    return checkpoints


def finished_best(training: Training, panel: MarketPanel) -> Path | None:
    """Best checkpoint of a training that was finished by this configuration and code; None for any other."""
    note = training.note(panel)
    return best_in(training.folder / str(note["run"])) if note.get("finished") else None


def train_one(panels: Mapping[str, MarketPanel], training: Training) -> Result:
    """Run a training in its folder, or resume it there; an OutputError if another process is doing so."""
    panel = panels[training.market]
    with in_use(training.folder):
        if finished_best(training, panel) is not None:
            return {"run": training.note(panel)["run"]}
        run = _run_to_resume(training, panel)
        trainer = FinFlowTrainer(
            training.config,
            resume=run,
            pretrained=training.warm_start if run is None else None,
            training_data=training.training_data(panel),
            progress=task_progress(),
        )
        note = {**training.fingerprint(panel), "run": trainer.run_folder.name}
        try:
            write_atomically(training.folder / NOTE, format_json({**note, "finished": False}))
            trainer.train_iql()
            trainer.finetune()
        finally:
            trainer.discard_if_unused()
        write_atomically(training.folder / NOTE, format_json({**note, "finished": True}))
        return {"run": trainer.run_folder.name}


def _run_to_resume(training: Training, panel: MarketPanel) -> Path | None:
    """The run that a training goes on with; where there is none, those that were killed before are removed: the noted
    one if it has no latest checkpoint, and any other next to it that has no checkpoint at all."""
    run = training.folder / str(training.note(panel).get("run", "none"))
    if CheckpointFolder(run / MODELS).path(LATEST).is_file():
        return run
    for other in training.folder.glob("*/"):
        begun = (other / MODELS).is_dir() or not any(other.iterdir())
        if other == run or (begun and not any((other / MODELS).glob("checkpoint_*"))):
            shutil.rmtree(other)
    return None


def train_remotely(panels: Mapping[str, MarketPanel], training: Training, files: Mapping[str, bytes]) -> Result:
    """Run or resume a training on a node that need not see the files of this machine: they travel with the task."""
    with task_folder("training") as path:
        parent, folder = Path(path), Path(path, "place")
        write_together({folder / name: content for name, content in files.items()})
        folders = {"output.logs_dir": folder, "output.offline_dir": parent / "offline", "output.readings": None}
        result = train_one(panels, replace(training, folder=folder, config=replace_values(training.config, folders)))
        return {**result, "files": _read_files(folder)}


def _files_to_resume(training: Training, panels: Mapping[str, MarketPanel]) -> dict[str, bytes]:
    run = _run_to_resume(training, panels[training.market])
    return {} if run is None else _read_files(training.folder, run.name)


def _read_files(folder: Path, run: str = "*") -> dict[str, bytes]:
    """The note and the files of a run, without numbered checkpoints."""
    paths = [folder / NOTE, *(path for path in sorted(folder.glob(f"{run}/**/*")) if path.is_file())]
    kept = [path for path in paths if not path.match(NOT_SENT) and not path.name.startswith(".")]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in kept}


def _store_files(task: Task, result: Result) -> None:
    """Write the files that came back from a node into the training's own folder, the note last."""
    training, files = task.arguments["training"], dict(result.get("files", {}))
    note = {name: files.pop(name) for name in (NOTE,) if name in files}
    for name in files:
        if Path(name).name == CONFIG:
            files[name] = dump_run(training.config).encode()
    write_together({training.folder / name: content for name, content in {**files, **note}.items()})
