"""State of a training: every field is saved in checkpoints, resumed, and restored by rollbacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Generator, Tensor

from finflow.agent.learners.bcell import BCell
from finflow.agent.learners.offline_learner import METHODS, OfflineLearner, portfolio_networks
from finflow.agent.networks.critic import NetworkShape
from finflow.agent.on_policy.on_policy_settings import EntropyScheduler
from finflow.config import Config
from finflow.errors import CheckpointError, refuse
from finflow.files import write_atomically
from finflow.guard.checkpoint_folder import BEST, LATEST, MODELS, SUFFIX, CheckpointFolder, numbered, restore
from finflow.guard.stability import GuardState
from finflow.training.checkpoints.checkpoint_reader import (
    OFFLINE,
    ONLINE,
    PREFERENCES,
    Checkpoint,
    check_same_configuration,
    check_same_features,
    feature_names,
    read_checkpoint,
)
from finflow.training.checkpoints.reference_policy import ReferenceControl, saved_reference
from finflow.training.checkpoints.run_folder import changed, runtime
from finflow.training.data.reward_normalizer import RewardNormalizer
from finflow.training.data.training_data import TrainingData
from finflow.training.logs.run_log import METRICS, RunLog
from finflow.training.off_policy.evidence import OutOfFold
from finflow.training.off_policy.learners import Learners, online_updates
from finflow.training.on_policy.on_policy_market import OnPolicyState, rollouts_of, steps_per_rollout

REWOUND_PURPOSE = 900_000  # generators after a rollback are numbered from here


@dataclass
class Counters:
    """Progress counters of a training.

    ``update``: gradient updates over both phases; never goes back. ``phase_update``: gradient updates of this phase; a
    rollback takes it back.
    """

    phase: str = OFFLINE
    update: int = 0
    phase_update: int = 0
    vector_step: int = 0
    best_score: float | None = None
    best_update: int | None = None
    running: dict[str, float] = field(default_factory=dict)  # figures of the portfolios in the newest vector step


@dataclass
class TrainingState:
    """The state of one training; ``guard.capture`` saves its fields.

    ``noise`` draws everything that is random inside an update, ``exploration`` the actions of the online portfolios.
    What is None belongs to the other phase, the other kind of online algorithm, or to an option that is off.
    """

    counters: Counters
    noise: Generator
    exploration: Generator
    entropy_schedule: EntropyScheduler
    target_entropy_schedule: EntropyScheduler
    watch: GuardState
    reward_normalizer: RewardNormalizer | None = None
    learner: OfflineLearner | None = None
    behaviour_returns: Tensor | None = None
    bcell: BCell | None = None
    learners: Learners | None = None
    out_of_fold: OutOfFold | None = None
    on_policy: OnPolicyState | None = None
    reference: ReferenceControl | None = None


def seeded(seed: int, purpose: int, device: torch.device | str = "cpu") -> Generator:
    """A generator of its own for each purpose of a seed."""
    return torch.Generator(device=device).manual_seed(seed * 1_000_003 + purpose)


def start_offline(config: Config, training_data: TrainingData, device: torch.device, transitions: int) -> TrainingState:
    """The state before the first update over so many transitions."""
    seed = config.train.seed
    networks = portfolio_networks(training_data.shape, config.bcell, seeded(seed, 1))
    learner = METHODS[config.offline.method](networks, config.bcell, device)
    train, on_policy = config.train, config.online.on_policy
    total = rollouts_of(config) * steps_per_rollout(config) if on_policy else online_updates(config)
    return TrainingState(
        Counters(),
        seeded(seed, 2, device),
        seeded(seed, 3, device),
        EntropyScheduler.of(train.entropy_schedule, total),
        EntropyScheduler.of(train.target_entropy_schedule, total),
        GuardState(config),
        RewardNormalizer.of(train.reward_normalization) if train.reward_normalization.enabled else None,
        learner,
        torch.zeros(transitions, device=device),
    )


def start_online(state: TrainingState, config: Config, training_data: TrainingData, device: torch.device) -> BCell:
    """Put the agent, and what it learns in, into the state before the first online step; it is still to be seeded."""
    evidence = None if config.online.on_policy else OutOfFold(config, training_data)
    blocks = None if evidence is None else len(evidence.blocks)
    bcell = BCell(training_data.shape, config.bcell, seeded(config.train.seed, 4), device, blocks=blocks)
    state.learner = state.behaviour_returns = None
    state.bcell = bcell
    bcell.feature_names = feature_names(training_data.features)
    if config.online.reference != "none":
        state.reference = ReferenceControl(config.online, config.env.episode_length)
    state.out_of_fold = evidence
    if evidence is None:
        state.on_policy = OnPolicyState(config, training_data, bcell, state.noise)
    else:
        state.learners = Learners(config, training_data, bcell, device)
    return bcell


def rewindable(state: TrainingState) -> TrainingState:
    """The parts of the state that a rollback restores: without the guard's own and the contents of the replay."""
    learners: Any = state.learners
    if learners is not None:
        learners = SimpleNamespace(capture=partial(learners.capture, with_replay=False), restore=learners.restore)
    return replace(state, watch=cast(Any, None), learners=learners)


def rewind(state: TrainingState, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Restore what was captured of `rewindable`; the count of all updates and the best score stay as they are."""
    counters, kept = state.counters, replace(state.counters)
    restore(rewindable(state), tensors, facts)
    counters.update, counters.best_score, counters.best_update = kept.update, kept.best_score, kept.best_update


def reseed(state: TrainingState, seed: int, rollbacks: int) -> None:
    """Other random numbers from here on, decided by the seed and the number of rollbacks."""
    purpose = REWOUND_PURPOSE + 10 * rollbacks
    for number, generator in enumerate((state.noise, state.exploration)):
        fresh = seeded(seed, purpose + number, generator.device)
        generator.set_state(fresh.get_state())
    if state.learners is not None:
        state.learners.reseed(seed, purpose)
    if state.on_policy is not None:
        state.on_policy.played.reseed([seed, purpose])


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
        fits = NetworkShape.from_facts(checkpoint.facts["shape"]) == data.shape
        if self.moved:
            if not fits:
                raise CheckpointError(
                    f"the networks in {checkpoint.path} have other sizes than configured; leave bcell.hidden_dim as it "
                    "was"
                )
            checkpoint.agent.carry_over(start_online(state, data.config, data, self.device))
            state.counters.phase = ONLINE
            return state
        if checkpoint.counters["phase"] == ONLINE:
            start_online(state, data.config, data, self.device)
        try:
            refuse(not fits, "its networks have other sizes", CheckpointError)
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
        for path in filter(Path.is_file, (source.path(BEST), source.path(numbered(update)))):
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
