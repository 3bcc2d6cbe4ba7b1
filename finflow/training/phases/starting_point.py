"""Starting points of a training: afresh, or a checkpoint to resume, to branch from, or to take networks of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from finflow.agent.networks.critic import NetworkShape
from finflow.config import Config
from finflow.errors import CheckpointError
from finflow.files import write_atomically
from finflow.guard.checkpoint_folder import BEST, LATEST, MODELS, SUFFIX, CheckpointFolder, numbered
from finflow.guard.state_capture import restore
from finflow.training.checkpoints.checkpoint_reader import (
    OFFLINE,
    ONLINE,
    PREFERENCES,
    Checkpoint,
    check_same_configuration,
    check_same_features,
    read_checkpoint,
)
from finflow.training.checkpoints.reference_policy import saved_reference
from finflow.training.checkpoints.run_folder import changed, runtime
from finflow.training.data.training_data import TrainingData
from finflow.training.logs.run_log import METRICS, RunLog
from finflow.training.phases.training_state import TrainingState, start_offline, start_online


@dataclass(frozen=True)
class StartingPoint:
    """Start of a training: afresh without a checkpoint, else from one.

    ``resumes``: in the run's folder, exactly where it stopped; ``branches``: in a new folder, from an earlier
    checkpoint of a run; ``moved``: online, with networks that were trained on other prices. From the end of an offline
    phase of the same market it is none of them.
    """

    checkpoint: Checkpoint | None
    training_data: TrainingData
    device: torch.device
    resumes: bool = False
    branches: bool = False
    moved: bool = False

    def remarks(self) -> list[str]:
        """Lines for the user: damage of the checkpoint, another market, another runtime."""
        checkpoint = self.checkpoint
        if checkpoint is None:
            return []
        remarks = [checkpoint.warning, changed(checkpoint.facts["runtime"], runtime(self.device))]
        if self.moved:
            remarks.insert(
                1,
                f"{checkpoint.path} was trained on other prices: its networks continue to learn online in this market; "
                "optimisers, replay and counters start new",
            )
        return [remark for remark in remarks if remark is not None]

    def make_state(self, transitions: int) -> TrainingState:
        """The state that the training begins with.

        Raises CheckpointError if the checkpoint does not fit the configuration.
        """
        data, checkpoint = self.training_data, self.checkpoint
        state = start_offline(data.config, data, self.device, transitions)
        if checkpoint is None:
            return state
        if self.moved or checkpoint.counters["phase"] == ONLINE:
            start_online(state, data.config, data, self.device)
        fits = NetworkShape.from_facts(checkpoint.facts["shape"]) == data.shape
        if self.moved:
            if not fits:
                raise CheckpointError(
                    f"the networks in {checkpoint.path} have other sizes than configured; leave bcell.hidden_dim as it "
                    "was"
                )
            if state.bcell is not None:
                checkpoint.agent.carry_over(state.bcell)
            state.counters.phase = ONLINE
            return state
        try:
            if not fits:
                raise CheckpointError("its networks have other sizes")
            if state.bcell is not None and state.reference is not None:
                state.bcell.reference = saved_reference(checkpoint, state.bcell.policy)
            restore(state, checkpoint.tensors, checkpoint.facts["training"])
        except CheckpointError as error:
            raise CheckpointError(
                f"{checkpoint.path} is of another configuration or another version of finflow: {error}; start a new "
                "run, or use the configuration and the finflow that it was written with"
            ) from error
        return state

    def open_log(self, folder: Path) -> RunLog:
        """The run's log, cut off at the checkpoint where a run is resumed or branched."""
        checkpoint = self.checkpoint
        if checkpoint is None or not (self.resumes or (self.branches and (checkpoint.run_folder / METRICS).is_file())):
            return RunLog(folder)
        return RunLog(folder, checkpoint.facts["log"], branch_from=None if self.resumes else checkpoint.run_folder)

    def bring_best(self, state: TrainingState, folder: Path) -> str | None:
        """Copy the best checkpoint so far into the run's folder; where it is gone, the search for the best restarts."""
        update = state.counters.best_update
        if self.checkpoint is None or update is None:
            return None
        source, target = CheckpointFolder(self.checkpoint.run_folder / MODELS), CheckpointFolder(folder / MODELS)
        in_place = source.folder.resolve() == target.folder.resolve()
        problem = f"{source.path(BEST)} is not there"
        for path in (source.path(BEST), source.path(numbered(update))):
            if not path.is_file():
                continue
            try:
                saved_update = read_checkpoint(path).counters["update"]
            except CheckpointError as error:
                problem = str(error)
                continue
            if in_place and path == source.path(BEST) and saved_update >= update:
                return None  # a best one after the checkpoint will be reached again
            if saved_update == update:
                write_atomically(target.path(BEST), path.read_bytes())
                return None
        state.counters.best_score = state.counters.best_update = None
        return f"{problem}; the best checkpoint is chosen from here on" if in_place else None


def read_start(config: Config, resume: Path | None, pretrained: Path | None) -> Checkpoint | None:
    """Read the checkpoint to start from, if there is one; a resumed run keeps its configuration.

    Raises CheckpointError if it cannot be read, or is to be resumed by another configuration.
    """
    path = resume or pretrained
    if path is None:
        return None
    checkpoint = read_checkpoint(path)
    if PREFERENCES in checkpoint.facts:
        raise CheckpointError(
            f"{path} holds an agent that learned from preferences, without the state of a training to go on from; "
            "name it as online.reference of another training, or train on with the run that it came from"
        )
    if pretrained is None:
        check_same_configuration(checkpoint, config)
    return checkpoint


def starting_point(
    checkpoint: Checkpoint | None, resume: Path | None, training_data: TrainingData, device: torch.device
) -> StartingPoint:
    """Choose how to start, once the market is known.

    Raises CheckpointError if the checkpoint is of another market and may not be, of other features, or of no phase to
    start from.
    """
    if checkpoint is None:
        return StartingPoint(None, training_data, device)
    resumes = resume is not None and (resume.is_dir() or checkpoint.path.name == f"{LATEST}{SUFFIX}")
    moved = checkpoint.facts["market"] != training_data.process.panel.sha256
    if moved and resume is not None:
        raise CheckpointError(f"{checkpoint.path} was trained on other prices than the configured market has now")
    if not moved and resume is None and checkpoint.counters["phase"] != OFFLINE:
        raise CheckpointError(f"{checkpoint.path} is from the online phase; give one of the offline phase's end")
    check_same_features(checkpoint, training_data.features)
    return StartingPoint(checkpoint, training_data, device, resumes, resume is not None and not resumes, moved)
