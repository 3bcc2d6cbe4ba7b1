"""Trainings that need none of the others: each in a folder of its own, made here, in other processes, or on a cluster.

Beside the run of a training lies a note that says by which configuration, code and prices it was made. One that was
finished is not made again; one that was stopped or killed goes on from its last checkpoint, to the same bits.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from finflow.config import Config, EvaluationConfig, config_hash, dump_run
from finflow.errors import CheckpointError, MarketError
from finflow.experiments.tasks.task_runner import ComputeResources, Result, Task, run_tasks
from finflow.experiments.tasks.worker import task_folder, task_progress
from finflow.files import in_use, write_atomically, write_together
from finflow.guard.checkpoint_folder import LATEST, MODELS, CheckpointFolder
from finflow.market.panel import MarketPanel
from finflow.provenance import code_hash
from finflow.training.checkpoints.run_resolver import CONFIG, NOTE, best_in
from finflow.training.data.training_data import TrainingData, prepare_from, prepare_pieces
from finflow.training.judging.reading_count import ledger_of
from finflow.training.trainer import FinFlowTrainer

__all__ = ["Cut", "Training", "best_of", "is_finished", "own_settings", "train", "train_all"]

KEPT_AT_HOME = "checkpoint_[0-9]*"  # numbered checkpoints of a node: the latest and the best are enough


@dataclass(frozen=True)
class Cut:
    """What of its panel a training may see: pieces of bars, the last ``validation`` of them to choose by."""

    pieces: tuple[range, ...]
    validation: int


@dataclass(frozen=True)
class Training:
    """One of them.

    Attributes
    ----------
    name : str
        What it is called among the others.
    place : Path
        Folder of its run and its note.
    config : Config
        From `own_settings`.
    market : str
        Which of several panels it learns in.
    cut : Cut, optional
        All of the panel, split by date, when left out.
    """

    name: str
    place: Path
    config: Config
    market: str = ""
    cut: Cut | None = None

    def training_data(self, panel: MarketPanel, config: Config | None = None) -> TrainingData:
        """Its market; by another configuration, if one is given."""
        config = config or self.config
        if self.cut is None:
            return prepare_from(panel, config)
        try:
            return prepare_pieces(panel, config, self.cut.pieces, self.cut.validation)
        except MarketError as error:
            raise MarketError(f"{self.name} cannot be trained: {error}") from error

    def stamp(self, panel: MarketPanel) -> dict[str, Any]:
        """What decides its result."""
        pieces = [] if self.cut is None else [[piece.start, piece.stop] for piece in self.cut.pieces]
        return {
            "configuration": config_hash(self.config),
            "code": code_hash(),
            "market": panel.sha256,
            "pieces": pieces,
            "validation": None if self.cut is None else self.cut.validation,
        }

    def note(self, panel: MarketPanel) -> dict[str, Any]:
        """What was noted of it; empty where that was another training, or none."""
        try:
            found = json.loads((self.place / NOTE).read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        stamp = self.stamp(panel)
        return found if isinstance(found, dict) and {name: found.get(name) for name in stamp} == stamp else {}


def own_settings(config: Config, place: Path, seed: int, evaluation: EvaluationConfig | None = None) -> Config:
    """The configuration of one training among several.

    A reading of the test window by one of them counts in the ledger of all. How it will be judged is part of it only
    where that is given.
    """
    output = config.output.model_copy(update={"logs_dir": place, "readings": ledger_of(config)})
    train = config.train.model_copy(update={"seed": seed, "seeds": 1})
    changes = {"train": train, "output": output, "evaluation": evaluation or EvaluationConfig()}
    return config.model_copy(update=changes)


def train_all(
    trainings: Sequence[Training],
    panels: Mapping[str, MarketPanel],
    resources: ComputeResources | None = None,
    tell: Callable[[str], None] = print,
) -> list[Path]:
    """Make what is not there yet.

    Parameters
    ----------
    trainings : sequence of Training
    panels : mapping of MarketPanel
        By the trainings' ``market``.
    resources : ComputeResources, optional
        In this process, one after another, when left out.

    Returns
    -------
    list of Path
        The best checkpoint of each training.
    """
    resources = resources or ComputeResources()
    missing = [one for one in trainings if not is_finished(one, panels[one.market])]
    changed = [one for one in missing if (one.place / NOTE).is_file() and not one.note(panels[one.market])]
    if changed:
        names = ", ".join(one.name for one in changed)
        tell(f"made before by another configuration or code, or from other prices, and made anew: {names}")
    if resources.cluster is None:
        tasks = [Task(one.name, train, {"training": one}) for one in missing]
        run_tasks(tasks, resources, shared={"panels": dict(panels)}, kind="trainings")
    else:
        _train_all_away(missing, panels, resources)
    return [best_of(one, panels[one.market]) for one in trainings]


def _train_all_away(
    trainings: Sequence[Training], panels: Mapping[str, MarketPanel], resources: ComputeResources
) -> None:
    """Make trainings on a cluster; here, their folders are in use meanwhile."""
    by_name = {one.name: one for one in trainings}
    with ExitStack() as places:
        for one in trainings:
            places.enter_context(in_use(one.place))
        tasks = [Task(one.name, train_away, {"training": one, "files": _begun(one, panels)}) for one in trainings]
        run_tasks(
            tasks,
            resources,
            lambda task, result: _bring_home(by_name[task.name], result["files"]),
            shared={"panels": dict(panels)},
            kind="trainings",
        )


def is_finished(training: Training, panel: MarketPanel) -> bool:
    """Whether it was made, by this configuration and code."""
    return _finished(training, panel) is not None


def best_of(training: Training, panel: MarketPanel) -> Path:
    """The best checkpoint of a finished training.

    Raises
    ------
    CheckpointError
        If it is not finished.
    """
    best = _finished(training, panel)
    if best is None:
        raise CheckpointError(f"{training.name} is not finished in {training.place}; give the same command again")
    return best


def _finished(training: Training, panel: MarketPanel) -> Path | None:
    """The best checkpoint of a training; None where it is not finished."""
    note = training.note(panel)
    return best_in(training.place / str(note["run"])) if note.get("finished") else None


def train(panels: Mapping[str, MarketPanel], training: Training) -> Result:
    """Make a training in its place, or go on with it there.

    Raises
    ------
    OutputError
        If another process is doing so.
    """
    with in_use(training.place):
        return _train_alone(panels[training.market], training)


def _train_alone(panel: MarketPanel, training: Training) -> Result:
    if is_finished(training, panel):
        return {"run": training.note(panel)["run"]}
    run = training.place / str(training.note(panel).get("run", "none"))
    goes_on = CheckpointFolder(run / MODELS).path(LATEST).is_file()
    if not goes_on:
        _remove_unused(run)
    trainer = FinFlowTrainer(
        training.config,
        resume=run if goes_on else None,
        training_data=training.training_data(panel),
        progress=task_progress(),
    )
    note = {**training.stamp(panel), "run": trainer.run_folder.name}
    try:
        _write(training, {**note, "finished": False})
        trainer.train_iql()
        trainer.finetune()
    finally:
        trainer.discard_if_unused()
    _write(training, {**note, "finished": True})
    return {"run": trainer.run_folder.name}


def _remove_unused(run: Path) -> None:
    """Remove what was killed before it could be gone on with: a run without its latest checkpoint, and any beside it
    that was not even noted, which has no checkpoint at all."""
    if run.is_dir() and not CheckpointFolder(run / MODELS).path(LATEST).is_file():
        shutil.rmtree(run)
    for other in run.parent.glob("*/"):
        begun = (other / MODELS).is_dir() or not any(other.iterdir())
        if other != run and begun and not any((other / MODELS).glob("checkpoint_*")):
            shutil.rmtree(other)


def train_away(panels: Mapping[str, MarketPanel], training: Training, files: Mapping[str, bytes]) -> Result:
    """Make a training, or go on with it, where the files of this machine may not be seen: they come, and go back."""
    with task_folder("training") as folder:
        place = folder / "place"
        write_together({place / name: content for name, content in files.items()})
        output = training.config.output.model_copy(
            update={"logs_dir": place, "offline_dir": folder / "offline", "readings": None}
        )
        config = training.config.model_copy(update={"output": output})
        found = train(panels, replace(training, place=place, config=config))
        return {**found, "files": _packed(place)}


def _begun(training: Training, panels: Mapping[str, MarketPanel]) -> dict[str, bytes]:
    """What there is of a training that was stopped; nothing where it cannot go on from that."""
    note = training.note(panels[training.market])
    run = training.place / str(note.get("run", "none"))
    if not CheckpointFolder(run / MODELS).path(LATEST).is_file():
        _remove_unused(run)
        return {}
    return _packed(training.place, str(note["run"]))


def _packed(place: Path, run: str = "*") -> dict[str, bytes]:
    """The note and the files of a run, without numbered checkpoints."""
    paths = [place / NOTE, *(path for path in sorted(place.glob(f"{run}/**/*")) if path.is_file())]
    kept = [path for path in paths if not path.match(KEPT_AT_HOME) and not path.name.startswith(".")]
    return {path.relative_to(place).as_posix(): path.read_bytes() for path in kept}


def _bring_home(training: Training, files: Mapping[str, bytes]) -> None:
    """Put what a node made where it belongs, the note last; its configuration says where that is."""
    own = {name: content for name, content in files.items() if name != NOTE}
    for name in own:
        if Path(name).name == CONFIG:
            own[name] = dump_run(training.config).encode()
    write_together({training.place / name: content for name, content in {**own, NOTE: files[NOTE]}.items()})


def _write(training: Training, note: Mapping[str, object]) -> None:
    write_atomically(training.place / NOTE, json.dumps(note, indent=2, sort_keys=True) + "\n")
