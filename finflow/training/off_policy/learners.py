"""Learners of the online phase: the agent that is delivered, and one for each block of the training years."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from finflow.agent.gradient_steps import SkippingAdam
from finflow.agent.learners.bcell import BCell
from finflow.config import Config
from finflow.env.coverage import draw_coverage
from finflow.env.decision_process import RUIN, DecisionProcess, resumed_state
from finflow.env.portfolio_state import PortfolioState, replace_rows, rows_of
from finflow.errors import MarketError
from finflow.guard.state_capture import capture, check_like, restore, without_prefix
from finflow.training.data.mirrored_growth import NO_MIRROR, with_mirrored_bars
from finflow.training.data.replay import Transitions
from finflow.training.data.rollouts import RolloutMarket
from finflow.training.data.training_data import TrainingData
from finflow.training.off_policy.counterfactuals import Comparison
from finflow.training.off_policy.evidence import training_blocks, training_segments
from finflow.training.off_policy.later_groups import LaterGroups


class Portfolios:
    """Portfolios in progress, of which some begin anew after each step: an episode ends on average after its length.

    Parameters
    ----------
    segments : sequence of range
        Bars of decisions that are stayed within.
    horizon : int
        Decisions of a step.
    restart : float
        Chance that a portfolio begins anew after a step.

    Raises MarketError if no segment has room for a step.
    """

    def __init__(
        self,
        process: DecisionProcess,
        segments: Sequence[range],
        horizon: int,
        count: int,
        restart: float,
        seed: Sequence[int],
    ) -> None:
        self.process, self.horizon, self.restart = process, horizon, restart
        self.segments, self.mirror = tuple(segments), NO_MIRROR
        starts = [np.arange(one.start, one.stop - horizon + 1) for one in segments if len(one) >= horizon]
        if not starts:
            raise MarketError(
                f"no segment of the training window has room for bcell.expansion ({horizon}) decisions; use more data "
                "or a smaller expansion"
            )
        self.starts = np.concatenate(starts)
        self.may_start = np.zeros(len(process.growth) + horizon, dtype=np.bool_)
        self.may_start[self.starts] = True
        self.rng = np.random.default_rng(np.random.SeedSequence(list(seed)))
        self.state = self._draw(count)

    def move_on(self, after: PortfolioState) -> None:
        """Take the portfolios after a step; at the end of a segment, at ruin, and by chance they begin anew."""
        self.state, count = after, len(after.bar)
        anew = ~self.may_start[after.bar] | (self.rng.random(count) < self.restart)
        anew |= ~(after.wealth > RUIN * self.process.env.initial_capital)
        if anew.any():
            self.state = replace_rows(self.state, anew, rows_of(self._draw(count), anew))

    def resumed(self, rows: Mapping[str, Tensor]) -> PortfolioState:
        return resumed_state(self.process, rows["bar"].cpu().numpy(), rows["portfolio"].double().cpu().numpy())

    def capture(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {name: torch.from_numpy(np.array(value)) for name, value in vars(self.state).items()}
        return tensors, {"generator": self.rng.bit_generator.state}

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        fresh, _ = self.capture()
        for name, tensor in fresh.items():
            check_like(tensors[name], tensor)
        if not bool(np.isin(tensors["bar"].numpy(), self.starts).all()):
            raise ValueError("a portfolio is at a bar where no step begins")
        weights = tensors["weights"]
        if not bool(((weights.sum(dim=1) - 1.0).abs() < 1e-6).all() & (weights > -1e-9).all()):
            raise ValueError("its weights are no portfolio")
        if not bool((tensors["wealth"] > 0.0).all()):
            raise ValueError("the wealth of a portfolio is not above zero")
        self.state = PortfolioState(**{name: tensors[name].numpy().copy() for name in fresh})
        self.rng.bit_generator.state = state["generator"]

    def _draw(self, count: int) -> PortfolioState:
        bars: NDArray[np.int64] = self.rng.choice(self.starts, size=count)
        weights, _ = draw_coverage(self.rng, count, self.process.n_weights)
        return self.process.start(bars, weights)


PURPOSE = 80  # of the generators of portfolios
LEARNER_WEIGHTS = 60  # purpose of the generators of initial weights and noise of the blocks' learners
GROUP = 3  # learners whose decisions are computed together, at most: bits do not depend on the number of cores


def vector_steps(config: Config, episodes: int) -> int:
    """Number of vector steps for ``episodes`` episodes, rounded up."""
    decisions = config.train.n_envs * max(config.bcell.expansion, 1)
    return math.ceil(episodes * config.env.episode_length / decisions)


def online_updates(config: Config) -> int:
    return vector_steps(config, config.train.online_episodes) * config.train.updates_per_vector_step


@dataclass
class Learner:
    """An agent that learns, its portfolios, the replay of their transitions, and its random numbers."""

    agent: BCell
    portfolios: Portfolios
    replay: Transitions
    noise: Generator

    @property
    def optimisers(self) -> list[SkippingAdam]:
        return [part for part in vars(self.agent).values() if isinstance(part, SkippingAdam)]

    @property
    def comparison(self) -> Comparison:
        """Policy and random numbers by which further actions of its states are drawn."""
        return Comparison(self.agent.policy, self.portfolios.rng, self.noise, self.portfolios.mirror)


class Learners:
    """All learners of a training, the delivered agent's first.

    ``later_groups``: the learners after the first group, which may be in another process during the online phase.
    """

    def __init__(self, config: Config, training_data: TrainingData, agent: BCell, device: torch.device) -> None:
        seed, process = config.train.seed, training_data.learning
        horizon, count = max(config.bcell.expansion, 1), config.train.n_envs
        restart = min(horizon / config.env.episode_length, 1.0)
        blocks = training_blocks(config, training_data)
        capacity = max(config.bcell.memory_capacity // (1 + len(blocks)), 1)
        settings = config.bcell.model_copy(
            update={"averaging": config.bcell.averaging.model_copy(update={"kind": "none"})}
        )

        def learner(number: int, own: BCell, segments: Sequence[range]) -> Learner:
            portfolios = Portfolios(process, segments, horizon, count, restart, (seed, PURPOSE, number))
            slack = _slack(config, capacity)
            replay = Transitions(capacity, process.n_weights, process.portfolio_size, device, slack)
            noise = Generator(device=device).manual_seed(seed * 1_000_003 + LEARNER_WEIGHTS + 20 + number)
            return Learner(own, portfolios, replay, noise)

        self.later_groups: LaterGroups | None = None
        self.everyone = [learner(0, agent, training_segments(training_data))]
        for number, block in enumerate(blocks):
            weights = Generator().manual_seed(seed * 1_000_003 + LEARNER_WEIGHTS + number)
            own = BCell(training_data.shape, settings, weights, device)
            self.everyone.append(learner(1 + number, own, block.learned))

    @property
    def of_blocks(self) -> list[Learner]:
        return self.everyone[1:]

    @property
    def first(self) -> dict[int, Learner]:
        """The first group, by their numbers: the delivered agent's learner is among them."""
        return dict(list(enumerate(self.everyone))[:GROUP])

    @property
    def later(self) -> dict[int, Learner]:
        return dict(list(enumerate(self.everyone))[GROUP:])

    @property
    def replays(self) -> list[Transitions]:
        return [one.replay for one in self.everyone]

    def forget_after(self, written: Sequence[int]) -> int:
        """Drop the newest transitions of every replay, down to so many written; returns how many were dropped."""
        self._bring_back()
        return sum(replay.forget_after(count) for replay, count in zip(self.replays, written, strict=True))

    def reseed(self, seed: int, purpose: int) -> None:
        self._bring_back()
        for number, one in enumerate(self.everyone):
            words = np.random.SeedSequence([seed, purpose, PURPOSE, number])
            one.portfolios.rng = np.random.default_rng(words)
            one.noise.manual_seed(int(words.generate_state(1, np.uint64)[0] >> 1))

    def capture(self, with_replay: bool = True) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All of it but the delivered agent; of replays on request no more than how much was written."""
        if self.later_groups is not None:
            self.later_groups.fetch()
        return capture_learners(dict(enumerate(self.everyone)), with_replay)

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Restore what `capture` returned; replays stay as they are where it left them out."""
        self._bring_back()
        if len(state["learners"]) != len(self.everyone):
            raise ValueError("it has other blocks")
        restore_learners(dict(enumerate(self.everyone)), tensors, state)

    def _bring_back(self) -> None:
        if self.later_groups is not None:
            self.later_groups.bring_back()


def capture_learners(learners: Mapping[int, Learner], with_replay: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """State of learners by their numbers, without the delivered agent, number 0."""
    tensors: dict[str, Tensor] = {}
    facts = []
    for number, one in learners.items():
        parts, state = capture(_Saved(None if number == 0 else one.agent, one.portfolios, one.noise))
        tensors |= {f"{number}/{name}": tensor for name, tensor in parts.items()}
        facts.append({**state, "written": one.replay.written, "first": one.replay.first})
        if with_replay:
            kept = one.replay.occupied
            columns = one.replay.columns.items()
            tensors |= {f"{number}/replay/{name}": column[:kept].clone() for name, column in columns}
    return tensors, {"learners": facts}


def restore_learners(learners: Mapping[int, Learner], tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    for (number, one), facts in zip(learners.items(), state["learners"], strict=True):
        own = without_prefix(tensors, f"{number}/")
        rows = without_prefix(own, "replay/")
        if rows:
            one.replay.restore(rows, facts["written"], facts["first"], one.portfolios.process)
        own = {name: tensor for name, tensor in own.items() if not name.startswith("replay/")}
        saved = _Saved(None if number == 0 else one.agent, one.portfolios, one.noise)
        restore(saved, own, {name: facts[name] for name in vars(saved)})


def groups(learners: Mapping[int, Learner]) -> list[dict[int, Learner]]:
    """Learners whose decisions are computed together, in order."""
    numbered = list(learners.items())
    return [dict(numbered[at : at + GROUP]) for at in range(0, len(numbered), GROUP)]


def rewinder(learners: Iterable[Learner]) -> Callable[[], None]:
    """Remember where portfolios and random numbers stand; returns a function that puts both back there."""
    saved = [
        (one, one.portfolios.state, one.portfolios.rng.bit_generator.state, one.noise.get_state()) for one in learners
    ]

    def put_back() -> None:
        for one, state, generator, noise in saved:
            one.portfolios.state, one.portfolios.rng.bit_generator.state = state, generator
            one.noise.set_state(noise)

    return put_back


@dataclass
class _Saved:
    agent: BCell | None
    portfolios: Portfolios
    noise: Generator


def _slack(config: Config, capacity: int) -> int:
    """Transitions kept beyond those learned from, so that a rollback finds what a full replay has dropped since."""
    if not config.guard.enabled:
        return 0
    rollback, train = config.guard.rollback, config.train
    updates = rollback.save_interval * rollback.max_checkpoints + rollback.probation
    steps = -(-updates // train.updates_per_vector_step) * max(config.bcell.expansion, 1)
    return min(steps * train.n_envs, capacity)


def with_mirrors(market: RolloutMarket, learners: Learners, config: Config) -> RolloutMarket:
    """Market that has each learner's mirrored bars, which its portfolios are told."""
    everyone = [one.portfolios for one in learners.everyone]
    market, mirrors = with_mirrored_bars(market, [one.segments for one in everyone], config.bcell.mirrored.weight)
    for portfolios, mirror in zip(everyone, mirrors, strict=True):
        portfolios.mirror = mirror
    return market
