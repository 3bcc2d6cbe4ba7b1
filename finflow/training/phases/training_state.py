"""State of a training: every field is saved in checkpoints, resumed, and restored by rollbacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Generator, Tensor

from finflow.agent.learners.bcell import BCell
from finflow.agent.learners.offline_learner import METHODS, OfflineLearner, portfolio_networks
from finflow.agent.on_policy.schedules import EntropyScheduler
from finflow.config import Config
from finflow.guard.guard_state import GuardState
from finflow.guard.state_capture import capture, restore
from finflow.training.checkpoints.checkpoint_reader import OFFLINE, feature_names
from finflow.training.checkpoints.reference_policy import ReferenceControl
from finflow.training.data.reward_normalizer import RewardNormalizer
from finflow.training.data.training_data import TrainingData
from finflow.training.off_policy.evidence import OutOfFold
from finflow.training.off_policy.learners import Learners, online_updates
from finflow.training.on_policy.on_policy_state import OnPolicyState, rollouts_of, steps_per_rollout

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

    def capture(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {}, asdict(self)

    def restore(self, tensors: Mapping[str, Tensor], state: dict[str, Any]) -> None:
        if set(state) != set(asdict(self)):
            raise ValueError("they are other counters")
        for name, value in state.items():
            setattr(self, name, value)


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


def ended_early(state: TrainingState) -> bool:
    """Return True where the online phase was ended by the KL to the reference."""
    return state.reference is not None and state.reference.stopped


def take_snapshot(state: TrainingState) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Capture the state without the guard's own and without the contents of the replay."""
    return capture(_snapshot_view(state))


def rewind(state: TrainingState, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Restore what `take_snapshot` returned; the count of all updates and the best score stay as they are."""
    counters = state.counters
    kept = {name: getattr(counters, name) for name in ("update", "best_score", "best_update")}
    view = _snapshot_view(state)
    restore(view, tensors, facts)
    for one in fields(state):
        if one.name not in ("watch", "learners"):
            setattr(state, one.name, getattr(view, one.name))
    for name, value in kept.items():
        setattr(counters, name, value)


def _snapshot_view(state: TrainingState) -> TrainingState:
    learners: Any = state.learners
    if learners is not None:
        learners = SimpleNamespace(capture=partial(learners.capture, with_replay=False), restore=learners.restore)
    return replace(state, watch=cast(Any, None), learners=learners)


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
