"""Independent trainings, each in a folder of its own: run here, in other processes, or on a cluster.

Beside the run of a training lies a note with its configuration, code and prices. A finished training is not repeated;
one that was stopped or killed resumes from its last checkpoint, to the same bits.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from finflow.config import Config, EvaluationConfig, changed_keys, config_hash, dump_run, replace_values
from finflow.config.schema import KEYS
from finflow.errors import CheckpointError, MarketError
from finflow.experiments.jobs.folds import Fold
from finflow.experiments.task_progress import task_folder, task_progress
from finflow.experiments.tasks import ComputeResources, Result, Task, run_tasks
from finflow.files import in_use, write_atomically, write_together
from finflow.guard.checkpoint_folder import LATEST, MODELS, CheckpointFolder
from finflow.json_text import format_json, parse_json
from finflow.market.panel import MarketPanel
from finflow.provenance import code_hash
from finflow.training.checkpoints.run_folder import CONFIG, NOTE, best_in, is_plain_name
from finflow.training.data.training_data import TrainingData, prepare_from, prepare_pieces
from finflow.training.judging.held_out import ledger_of
from finflow.training.trainer import FinFlowTrainer

NOT_SENT = "checkpoint_[0-9]*"  # numbered checkpoints of a node: the latest and the best are enough


@dataclass(frozen=True)
class Training:
    """One independent training.

    Attributes
    ----------
    market : str
        Name of its panel among several.
    fold : Fold, optional
        Pieces of the panel that it may see; all of the panel, split by date, when left out.
    warm_start : Path, optional
        Checkpoint whose networks go on learning online in its market, in place of an offline phase.
    """

    name: str
    folder: Path
    config: Config
    market: str = ""
    fold: Fold | None = None
    warm_start: Path | None = None

    def training_data(self, panel: MarketPanel) -> TrainingData:
        if self.fold is None:
            return prepare_from(panel, self.config)
        try:
            return prepare_pieces(panel, self.config, self.fold.pieces, self.fold.validation)
        except MarketError as error:
            raise MarketError(f"{self.name} cannot be trained: {error}") from error

    def fingerprint(self, panel: MarketPanel) -> dict[str, Any]:
        """Hashes and bars that decide its result."""
        pieces = [] if self.fold is None else [[piece.start, piece.stop] for piece in self.fold.pieces]
        fingerprint = {
            "configuration": config_hash(self.config),
            "code": code_hash(),
            "market": panel.sha256,
            "pieces": pieces,
            "validation": None if self.fold is None else self.fold.validation,
        }
        if self.warm_start is not None:
            fingerprint["warm_start"] = hashlib.sha256(self.warm_start.read_bytes()).hexdigest()
        return fingerprint

    def note(self, panel: MarketPanel) -> dict[str, Any]:
        """Note in its folder; empty where that is of another training, or missing."""
        try:
            note = parse_json((self.folder / NOTE).read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        fingerprint = self.fingerprint(panel)
        own = isinstance(note, dict) and {name: note.get(name) for name in fingerprint} == fingerprint
        return note if own and is_plain_name(str(note.get("run", "none"))) else {}


def training_config(config: Config, folder: Path, seed: int, evaluation: EvaluationConfig | None = None) -> Config:
    """The configuration of one training among several.

    A reading of the test window by one of them counts in the ledger of all. Settings of the evaluation are part of it
    only where they are given.
    """
    folders = {"output.logs_dir": folder, "output.readings": ledger_of(config)}
    changes = {"train.seed": seed, "train.seeds": 1, "evaluation": evaluation or EvaluationConfig()}
    return replace_values(config, {**folders, **changes})


def describe_trainings(config: Config, trainings: Sequence[Training], panels: Mapping[str, MarketPanel]) -> list[str]:
    """Say which trainings are left, and which keys of their configuration are not the defaults, for a dry run."""
    left = [one.name for one in trainings if finished_best(one, panels[one.market]) is None]
    count, finished = len(trainings), len(trainings) - len(left)
    if not left:
        return [f"{count} trainings, all of them finished already; only their evaluation is left"]
    there = f", {finished} of them finished already" if finished else ""
    changed = ", ".join(changed_keys(config, KEYS))
    return [
        f"{count} training{'s' if count > 1 else ''}{there}; to run: {'; '.join(left)}",
        f"configuration: the defaults{f', except {changed}' if changed else ''}",
    ]


def train_all(
    trainings: Sequence[Training],
    panels: Mapping[str, MarketPanel],
    resources: ComputeResources | None = None,
) -> list[Path]:
    """Run the trainings that are not finished yet, and find the best checkpoint of each.

    Raises
    ------
    CheckpointError
        If one is not finished even then.
    """
    resources = resources or ComputeResources()
    missing = [one for one in trainings if finished_best(one, panels[one.market]) is None]
    changed = [one for one in missing if (one.folder / NOTE).is_file() and not one.note(panels[one.market])]
    if changed:
        names = ", ".join(one.name for one in changed)
        print(f"trained before by another configuration or code, or on other prices, and trained again: {names}")
    if resources.cluster is None:
        tasks = [Task(one.name, train, {"training": one}) for one in missing]
        run_tasks(tasks, resources, shared={"panels": dict(panels)}, kind="trainings")
    else:
        _train_on_cluster(missing, panels, resources)
    checkpoints = []
    for one in trainings:
        if (best := finished_best(one, panels[one.market])) is None:
            raise CheckpointError(f"{one.name} is not finished in {one.folder}; give the same command again")
        checkpoints.append(best)
    return checkpoints


def _train_on_cluster(
    trainings: Sequence[Training], panels: Mapping[str, MarketPanel], resources: ComputeResources
) -> None:
    """Run trainings on a cluster; here, their folders are locked meanwhile."""
    by_name = {one.name: one for one in trainings}
    with ExitStack() as locks:
        for one in trainings:
            locks.enter_context(in_use(one.folder))
        tasks = [
            Task(one.name, train_remotely, {"training": one, "files": _files_to_resume(one, panels)})
            for one in trainings
        ]
        run_tasks(
            tasks,
            resources,
            lambda task, result: _store_files(by_name[task.name], result["files"]),
            shared={"panels": dict(panels)},
            kind="trainings",
        )


def finished_best(training: Training, panel: MarketPanel) -> Path | None:
    """Best checkpoint of a training that was finished by this configuration and code; None for any other."""
    note = training.note(panel)
    return best_in(training.folder / str(note["run"])) if note.get("finished") else None


def train(panels: Mapping[str, MarketPanel], training: Training) -> Result:
    """Run a training in its folder, or resume it there.

    Raises
    ------
    OutputError
        If another process is doing so.
    """
    with in_use(training.folder):
        return _train_alone(panels[training.market], training)


def _train_alone(panel: MarketPanel, training: Training) -> Result:
    if finished_best(training, panel) is not None:
        return {"run": training.note(panel)["run"]}
    run = training.folder / str(training.note(panel).get("run", "none"))
    resumes = CheckpointFolder(run / MODELS).path(LATEST).is_file()
    if not resumes:
        _remove_unused(run)
    trainer = FinFlowTrainer(
        training.config,
        resume=run if resumes else None,
        pretrained=None if resumes else training.warm_start,
        training_data=training.training_data(panel),
        progress=task_progress(),
    )
    note = {**training.fingerprint(panel), "run": trainer.run_folder.name}
    try:
        _write(training, {**note, "finished": False})
        trainer.train_iql()
        trainer.finetune()
    finally:
        trainer.discard_if_unused()
    _write(training, {**note, "finished": True})
    return {"run": trainer.run_folder.name}


def _remove_unused(run: Path) -> None:
    """Remove runs that were killed before they could be resumed: the noted one if it has no latest checkpoint, and any
    other next to it that has no checkpoint at all."""
    if run.is_dir() and not CheckpointFolder(run / MODELS).path(LATEST).is_file():
        shutil.rmtree(run)
    for other in run.parent.glob("*/"):
        begun = (other / MODELS).is_dir() or not any(other.iterdir())
        if other != run and begun and not any((other / MODELS).glob("checkpoint_*")):
            shutil.rmtree(other)


def train_remotely(panels: Mapping[str, MarketPanel], training: Training, files: Mapping[str, bytes]) -> Result:
    """Run or resume a training on a node that need not see the files of this machine: they travel with the task."""
    with task_folder("training") as parent:
        folder = parent / "place"
        write_together({folder / name: content for name, content in files.items()})
        folders = {"output.logs_dir": folder, "output.offline_dir": parent / "offline", "output.readings": None}
        result = train(panels, replace(training, folder=folder, config=replace_values(training.config, folders)))
        return {**result, "files": _read_files(folder)}


def _files_to_resume(training: Training, panels: Mapping[str, MarketPanel]) -> dict[str, bytes]:
    note = training.note(panels[training.market])
    run = training.folder / str(note.get("run", "none"))
    if not CheckpointFolder(run / MODELS).path(LATEST).is_file():
        _remove_unused(run)
        return {}
    return _read_files(training.folder, str(note["run"]))


def _read_files(folder: Path, run: str = "*") -> dict[str, bytes]:
    """The note and the files of a run, without numbered checkpoints."""
    paths = [folder / NOTE, *(path for path in sorted(folder.glob(f"{run}/**/*")) if path.is_file())]
    kept = [path for path in paths if not path.match(NOT_SENT) and not path.name.startswith(".")]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in kept}


def _store_files(training: Training, files: Mapping[str, bytes]) -> None:
    """Write the files of a node into the training's own folder, the note last."""
    contents = {name: content for name, content in files.items() if name != NOTE}
    for name in contents:
        if Path(name).name == CONFIG:
            contents[name] = dump_run(training.config).encode()
    write_together({training.folder / name: content for name, content in {**contents, NOTE: files[NOTE]}.items()})


def _write(training: Training, note: Mapping[str, object]) -> None:
    write_atomically(training.folder / NOTE, format_json(note))
