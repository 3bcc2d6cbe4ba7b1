"""State of a training: every field is saved in checkpoints, resumed, and restored by rollbacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Generator, Tensor

from finflow.agent.learners.bcell import BCell
from finflow.agent.learners.behaviour_cloning import BehaviourCloning
from finflow.agent.learners.iql import IQL
from finflow.agent.learners.offline_learner import OfflineLearner, portfolio_networks
from finflow.agent.learners.td3bc import TD3BC
from finflow.config import Config
from finflow.env.vector_env import PortfolioVectorEnv
from finflow.guard.rollback import GuardState
from finflow.guard.state_capture import capture, check_like, restore
from finflow.training.checkpoints.feature_names import feature_names
from finflow.training.checkpoints.reference_policy import ReferenceControl
from finflow.training.data.replay import ONLINE as FAMILY
from finflow.training.data.replay import Transitions
from finflow.training.data.reward_constraint import RewardConstraint, make_constraint
from finflow.training.data.reward_normalizer import RollingNormalizer
from finflow.training.data.training_data import TrainingData
from finflow.training.data.training_worlds import episode_worlds
from finflow.training.on_policy.on_policy_state import OnPolicyState
from finflow.training.phases.rollout_state import RolloutState
from finflow.training.phases.schedules import EntropyScheduler

OFFLINE, ONLINE = "offline", "online"
REWOUND_PURPOSE = 900_000  # generators after a rollback are numbered from here
METHODS: dict[str, type[OfflineLearner]] = {"iql": IQL, "td3bc": TD3BC, "bc": BehaviourCloning, "none": OfflineLearner}


@dataclass
class Counters:
    """Progress counters of a training.

    Attributes
    ----------
    phase : str
    update : int
        Gradient updates over both phases; never goes back.
    phase_update : int
        Gradient updates of this phase; a rollback takes it back.
    vector_step : int
        Vector steps of the online phase, warm-up included.
    best_score : float or None
        Highest validation value, or Sharpe ratio, so far: whichever ``train.best_by`` names.
    best_update : int or None
        Where it was.
    """

    phase: str = OFFLINE
    update: int = 0
    phase_update: int = 0
    vector_step: int = 0
    best_score: float | None = None
    best_update: int | None = None

    def capture(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """As JSON."""
        return {}, asdict(self)

    def restore(self, tensors: Mapping[str, Tensor], state: dict[str, Any]) -> None:
        """From JSON."""
        if set(state) != set(asdict(self)):
            raise ValueError("they are other counters")
        for name, value in state.items():
            setattr(self, name, value)


class OnlineWorld:
    """The environments and the replay of the online phase.

    Parameters
    ----------
    env : PortfolioVectorEnv
    replay : Transitions

    Attributes
    ----------
    episodes : int
        Episodes that ended so far.
    """

    def __init__(self, env: PortfolioVectorEnv, replay: Transitions) -> None:
        self.env = env
        self.replay = replay
        self.episodes = 0

    @property
    def n_universes(self) -> int:
        """Sub-universes that episodes may have."""
        inside = self.env.process.inside
        return 1 if inside is None else len(inside)

    def capture(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Environments in mid-episode, their generator, and what was written to the replay."""
        arrays, generator = self.env.get_state()
        tensors = {f"env.{name}": torch.from_numpy(array) for name, array in arrays.items()}
        kept = self.replay.occupied
        tensors |= {f"replay.{name}": column[:kept].clone() for name, column in self.replay.columns.items()}
        counts = {"written": self.replay.written, "first": self.replay.first, "episodes": self.episodes}
        return tensors, {"generator": generator, **counts}

    def restore(self, tensors: Mapping[str, Tensor], state: dict[str, Any]) -> None:
        """Restore all of it."""
        fresh, _ = self.env.get_state()
        for name, array in fresh.items():
            check_like(tensors[f"env.{name}"], torch.from_numpy(array))
        written, first = state["written"], state["first"]
        ring = first is None  # as format 1 kept it: nothing beside the transitions that may be drawn
        first = max(written - self.replay.capacity, 0) if ring and type(written) is int else first
        if type(written) is not int or type(first) is not int or not 0 <= first <= written <= 10**12:
            raise ValueError("its count of transitions is none")
        kept = min(written, self.replay.capacity) if ring else self.replay.places if first > 0 else written
        for name, column in self.replay.columns.items():
            check_like(tensors[f"replay.{name}"], column[:kept])
        bars, length = self.env.bars.tolist(), self.env.episode_length
        for name, values in (
            ("env.bar", bars),
            ("env.age", range(length)),
            ("replay.bar", bars),
            ("replay.family", range(FAMILY + 1)),
            *((f"{place}.universe", range(self.n_universes)) for place in ("env", "replay")),
        ):
            if len(tensors.get(name, ())) and not {int(tensors[name].min()), int(tensors[name].max())} <= set(values):
                raise ValueError(f"{name} is out of its range")
        if not all(bool(tensors[f"env.{name}"].isfinite().all()) for name in fresh):
            raise ValueError("an environment holds what is not a number")
        weights, wealth = tensors["env.weights"], tensors["env.wealth"]
        if bool((weights < -1e-9).any() | ((weights.sum(dim=1) - 1).abs() > 1e-6).any() | (wealth <= 0).any()):
            raise ValueError("an environment holds what is no portfolio")
        self.env.set_state({name: tensors[f"env.{name}"].numpy() for name in fresh}, state["generator"])
        self.replay.written, self.replay.first = written, first
        self.episodes = int(state.get("episodes", 0))  # older checkpoints do not count them
        stored = torch.arange(first, written)
        for name, column in self.replay.columns.items():
            rows = tensors[f"replay.{name}"].to(column.device)
            if ring and kept:
                column[:] = rows[first % kept]  # places that never held anything hold the oldest
                column[stored % self.replay.places] = rows[stored % kept]
            else:
                column[:kept] = rows


class WorldPosition:
    """State of an online world without the contents of its replay, for snapshots in memory.

    Parameters
    ----------
    world : OnlineWorld
    """

    def __init__(self, world: OnlineWorld) -> None:
        self.world = world

    def capture(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Environments in mid-episode, their generator, and how much was written to the replay."""
        arrays, generator = self.world.env.get_state()
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return tensors, {"generator": generator, "written": self.world.replay.written}

    def restore(self, tensors: Mapping[str, Tensor], state: dict[str, Any]) -> None:
        """Restore the environments; the guard decides what the replay forgets."""
        self.world.env.set_state({name: t.numpy() for name, t in tensors.items()}, state["generator"])


@dataclass
class TrainingState:
    """The state of one training; ``guard.capture`` saves its fields.

    Attributes
    ----------
    counters : Counters
    noise : Generator
        Draws everything that is random inside an update.
    exploration : Generator
        Draws the actions of the online portfolios.
    entropy_schedule, target_entropy_schedule : EntropyScheduler
        Step with the online updates.
    reward_normalizer : RollingNormalizer or None
        With ``train.reward_normalization``.
    watch : GuardState
        State of the guard: windows of its signals, snapshots, rollbacks so far.
    learner : OfflineLearner or None
        While the offline phase runs.
    behaviour_returns : Tensor, (transitions,), or None
        The behaviour's lambda-returns as last computed, while the offline phase runs.
    bcell : BCell or None
        From the hand-over on.
    world : OnlineWorld or None
        From the hand-over on, where the online phase acts and stores transitions.
    rollouts : RolloutState or None
        From the hand-over on, where it learns from rollouts.
    on_policy : OnPolicyState or None
        From the hand-over on, where it learns on-policy.
    reference : ReferenceControl or None
        From the hand-over on, where the policy is held to a reference.
    constraint : RewardConstraint or None
        The same, where a reward has a limit.
    """

    counters: Counters
    noise: Generator
    exploration: Generator
    entropy_schedule: EntropyScheduler
    target_entropy_schedule: EntropyScheduler
    watch: GuardState
    reward_normalizer: RollingNormalizer | None = field(default=None)
    learner: OfflineLearner | None = field(default=None)
    behaviour_returns: Tensor | None = field(default=None)
    bcell: BCell | None = field(default=None)
    world: OnlineWorld | None = field(default=None)
    rollouts: RolloutState | None = field(default=None)
    on_policy: OnPolicyState | None = field(default=None)
    reference: ReferenceControl | None = field(default=None)
    constraint: RewardConstraint | None = field(default=None)


def seeded(seed: int, purpose: int, device: torch.device | str = "cpu") -> Generator:
    """A generator of its own for each purpose of a seed."""
    generator = torch.Generator(device=device)
    words = torch.tensor([seed, purpose], dtype=torch.int64)
    generator.manual_seed(int(words[0]) * 1_000_003 + int(words[1]))
    return generator


def start_offline(config: Config, training_data: TrainingData, device: torch.device, transitions: int) -> TrainingState:
    """The state before the first update over so many transitions."""
    seed = config.train.seed
    networks = portfolio_networks(training_data.shape, config.bcell, seeded(seed, 1))
    learner = METHODS[config.offline.method](networks, config.bcell, device)
    returns = torch.zeros(transitions, device=device)
    train = config.train
    return TrainingState(
        Counters(),
        seeded(seed, 2, device),
        seeded(seed, 3, device),
        EntropyScheduler.of(train.entropy_schedule),
        EntropyScheduler.of(train.target_entropy_schedule),
        GuardState(config),
        RollingNormalizer.of(train.reward_normalization) if train.reward_normalization.enabled else None,
        learner,
        returns,
    )


def start_online(state: TrainingState, config: Config, training_data: TrainingData, device: torch.device) -> BCell:
    """Put the agent, and what it learns in, into the state before the first online step; it is still to be seeded."""
    from_rollouts = config.online.algorithm == "rollouts"
    bcell = BCell(training_data.shape, config.bcell, seeded(config.train.seed, 4), device, is_blended=from_rollouts)
    state.learner = state.behaviour_returns = None
    state.bcell = bcell
    bcell.feature_names = feature_names(training_data.features)
    if config.online.reference != "none":
        state.reference = ReferenceControl(config.online, config.env.episode_length)
    state.constraint = make_constraint(config, training_data)
    if from_rollouts:
        state.rollouts = RolloutState(config, training_data, device)
    elif config.online.on_policy:
        state.on_policy = OnPolicyState(config, training_data, bcell, state.noise)
    else:
        state.world = make_world(config, training_data, device)
    return bcell


def ended_early(state: TrainingState) -> bool:
    """Return True where the online phase was ended by the KL to the reference."""
    return state.reference is not None and state.reference.stopped


def make_world(config: Config, training_data: TrainingData, device: torch.device) -> OnlineWorld:
    """Environments before their first step, and an empty replay."""
    seed = config.train.seed
    process = training_data.learning.process
    env = PortfolioVectorEnv(
        process,
        training_data.windows(ONLINE),
        config.train.n_envs,
        config.env.episode_length,
        random_portfolios=True,
        worlds=episode_worlds(config, process, ONLINE),
    )
    env.reset(seed=seed + 5)
    replay = Transitions(
        config.bcell.memory_capacity,
        process.n_weights,
        process.portfolio_size,
        device,
        slack=replay_slack(config),
        universes=process.inside is not None,
    )
    return OnlineWorld(env, replay)


def replay_slack(config: Config) -> int:
    """Transitions kept beyond those learned from, so that a rollback finds what a full replay has dropped since."""
    if not config.guard.enabled:
        return 0
    rollback, train = config.guard.rollback, config.train
    updates = rollback.save_interval * rollback.max_checkpoints + rollback.probation
    return min(-(-updates // train.updates_per_vector_step) * train.n_envs, config.bcell.memory_capacity)


def take_snapshot(state: TrainingState) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Capture the state without the guard's own and without the contents of the replay."""
    return capture(_snapshot_view(state))


def rewind(state: TrainingState, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Restore what `take_snapshot` returned; the count of all updates and the best score stay as they are."""
    counters = state.counters
    kept = {name: getattr(counters, name) for name in ("update", "best_score", "best_update")}
    view = _snapshot_view(state)
    restore(
        view, tensors, {**dict.fromkeys(one.name for one in fields(state)), **facts}
    )  # older ones know fewer fields
    for one in fields(state):
        if one.name not in ("watch", "world"):
            setattr(state, one.name, getattr(view, one.name))
    for name, value in kept.items():
        setattr(counters, name, value)


def _snapshot_view(state: TrainingState) -> TrainingState:
    """The same state with the fields that a snapshot leaves out replaced."""
    world = None if state.world is None else cast(Any, WorldPosition(state.world))
    return replace(state, watch=cast(Any, None), world=world)


def reseed(state: TrainingState, seed: int, rollbacks: int) -> None:
    """Other random numbers from here on, decided by the seed and the number of rollbacks."""
    purpose = REWOUND_PURPOSE + 10 * rollbacks
    for number, generator in enumerate((state.noise, state.exploration)):
        fresh = seeded(seed, purpose + number, generator.device)
        generator.set_state(fresh.get_state())
    if state.rollouts is not None:
        state.rollouts.reseed(seed, purpose)
    if state.on_policy is not None:
        state.on_policy.played.reseed([seed, purpose])
    if state.world is not None:
        arrays, _ = state.world.env.get_state()
        drawn = np.random.default_rng(np.random.SeedSequence([seed, purpose]))
        state.world.env.set_state(arrays, dict(drawn.bit_generator.state))
