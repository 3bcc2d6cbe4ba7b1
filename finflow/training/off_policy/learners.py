"""Learners of the online phase: the agent that is delivered, and one for each block of the training years.

They learn in groups. Those after the first group learn in a process of their own where there is a second core: they do
the same pieces of work in the same order as they would in this process, so that results have the same bits. What a
piece needs of the delivered agent's training is in the piece itself. Their state comes back when it is saved; where
their process fails, the pieces since then are done again in this one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from finflow.agent.learners.bcell import BCell
from finflow.agent.learners.soft_actor_critic import UpdatePoint
from finflow.config import Config
from finflow.cores import ForkedCalls
from finflow.errors import FinflowError
from finflow.guard.checkpoint_folder import capture, restore
from finflow.tensor_file import without_prefix
from finflow.training.data.mirrored_growth import Predictions, with_mirrored_bars
from finflow.training.data.replay import Transitions
from finflow.training.data.rollouts import Portfolios, RolloutMarket
from finflow.training.data.training_data import TrainingData
from finflow.training.off_policy.evidence import training_blocks, training_segments

PURPOSE = 80  # of the generators of portfolios
LEARNER_WEIGHTS = 60  # purpose of the generators of initial weights and noise of the blocks' learners
GROUP = 3  # learners whose decisions are computed together, at most: bits do not depend on the number of cores


def vector_steps(config: Config, episodes: int) -> int:
    """Number of vector steps for ``episodes`` episodes, rounded up."""
    decisions = config.train.n_envs * max(config.bcell.expansion, 1)
    return math.ceil(episodes * config.env.episode_length / decisions)


def online_updates(config: Config) -> int:
    return vector_steps(config, config.train.online_episodes) * config.train.updates_per_vector_step


class Work(NamedTuple):
    """A vector step, or an update, of some learners."""

    point: UpdatePoint | None = None  # of an update; None for a vector step
    rates: float = 1.0  # share of all learning rates that the guard leaves


Figures = list[dict[str, float]]
"""The largest figures of each learner's update."""


@dataclass
class Learner:
    """An agent that learns, its portfolios, the replay of their transitions, and its random numbers.

    ``number``: 0 is the agent that is delivered. ``behaviour``: those transitions of the behaviour that it may see.
    """

    number: int
    agent: BCell
    portfolios: Portfolios
    replay: Transitions
    noise: Generator
    behaviour: Transitions = field(init=False)

    @property
    def SAVED(self) -> tuple[str, ...]:
        """Parts that are saved with the learners; the delivered agent is saved on its own."""
        return ("agent", "portfolios", "noise") if self.number else ("portfolios", "noise")


class Learners:
    """All learners of a training, the delivered agent's first.

    Those after the first group work beside this process during the online phase, if there is a second core.
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
        self.everyone: list[Learner] = []
        for number, segments in enumerate([training_segments(training_data), *(block.learned for block in blocks)]):
            own = agent
            if number:
                weights = Generator().manual_seed(seed * 1_000_003 + LEARNER_WEIGHTS + number - 1)
                own = BCell(training_data.shape, settings, weights, device)
            portfolios = Portfolios(process, segments, horizon, count, restart, (seed, PURPOSE, number))
            slack = _slack(config, capacity)
            replay = Transitions(capacity, process.n_weights, process.portfolio_size, device, slack)
            noise = Generator(device=device).manual_seed(seed * 1_000_003 + LEARNER_WEIGHTS + 20 + number)
            self.everyone.append(Learner(number, own, portfolios, replay, noise))
        self.of_blocks, self.first, self.later = self.everyone[1:], self.everyone[:GROUP], self.everyone[GROUP:]
        self._calls: ForkedCalls[Work | None, Any] | None = None
        self._since: list[Work] = []
        self._may_leave = False

    def share(self, perform: Callable[[Work], Figures], may_leave: bool) -> None:
        """Have later groups do their work by a function.

        ``may_leave``: they depend on nothing that the delivered agent's training changes but what a `Work` says.
        """
        self._perform, self._may_leave = perform, may_leave and bool(self.later)

    def forget_after(self, written: Sequence[int]) -> int:
        """Drop the newest transitions of every replay, down to so many written; returns how many were dropped."""
        self.bring_back()
        return sum(one.replay.forget_after(count) for one, count in zip(self.everyone, written, strict=True))

    def reseed(self, seed: int, purpose: int) -> None:
        self.bring_back()
        for one in self.everyone:
            words = np.random.SeedSequence([seed, purpose, PURPOSE, one.number])
            one.portfolios.rng = np.random.default_rng(words)
            one.noise.manual_seed(int(words.generate_state(1, np.uint64)[0] >> 1))

    def capture(self, with_replay: bool = True) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All of it but the delivered agent; of replays on request no more than how much was written."""
        self.fetch()
        return capture_learners(self.everyone, with_replay)

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Restore what `capture` returned; replays stay as they are where it left them out."""
        self.bring_back()
        if len(state["learners"]) != len(self.everyone):
            raise ValueError("it has other blocks")
        restore_learners(self.everyone, tensors, state)

    def begin(self, work: Work) -> None:
        """Begin a piece of work of later groups."""
        if self._calls is None and self._may_leave:
            self._calls = ForkedCalls.start(self._answer)
        if self._calls is not None:
            self._since.append(work)
            self._calls.begin(work)

    def result(self, work: Work) -> Figures:
        """Wait for the piece that was begun, or do it here, where an error leaves them as before."""
        if self._calls is not None:
            try:
                figures: Figures = self._calls.result()
                return figures
            except EOFError:
                self.undo()
        put_back = rewinder(self.later)
        try:
            return self._perform(work)
        except FinflowError:
            put_back()
            raise

    def undo(self) -> None:
        """Have later groups in this process, as before the piece that was begun; they stay here."""
        if self._calls is None:
            return
        self.end()
        self._may_leave = False
        before, self._since = self._since[:-1], []
        for work in before:
            self._perform(work)

    def fetch(self) -> None:
        """Bring the state of later groups into this process, where it is saved from."""
        if self._calls is None or not self._since:
            return
        self._calls.begin(None)
        try:
            arrays, facts = self._calls.result()
        except EOFError:
            self._since.append(Work())
            self.undo()
            return
        restore_learners(self.later, {name: torch.from_numpy(array) for name, array in arrays.items()}, facts)
        self._since = []

    def bring_back(self) -> None:
        """Bring later groups into this process, where something else will change them."""
        self.fetch()
        self.end()

    def end(self) -> None:
        """End the other process, whatever later groups have learned since `fetch`."""
        if self._calls is not None:
            self._calls.end()
        self._calls = None

    def _answer(self, work: Work | None) -> object:
        """Answer in the other process: figures of a piece of work; the state, for None."""
        if work is not None:
            return self._perform(work)
        tensors, facts = capture_learners(self.later, True)
        return {name: tensor.numpy() for name, tensor in tensors.items()}, facts


def capture_learners(learners: Sequence[Learner], with_replay: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """State of learners, without the delivered agent."""
    tensors: dict[str, Tensor] = {}
    facts = []
    for one in learners:
        parts, state = capture(one)
        if with_replay:
            kept = one.replay.occupied
            parts |= {f"replay/{name}": column[:kept].clone() for name, column in one.replay.columns.items()}
        tensors |= {f"{one.number}/{name}": tensor for name, tensor in parts.items()}
        facts.append({**state, "written": one.replay.written, "first": one.replay.first})
    return tensors, {"learners": facts}


def restore_learners(learners: Sequence[Learner], tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    for one, facts in zip(learners, state["learners"], strict=True):
        own = without_prefix(tensors, f"{one.number}/")
        if rows := without_prefix(own, "replay/"):
            one.replay.restore(rows, facts["written"], facts["first"], one.portfolios.process)
        own = {name: tensor for name, tensor in own.items() if not name.startswith("replay/")}
        restore(one, own, {name: facts[name] for name in one.SAVED})


def groups(learners: Sequence[Learner]) -> list[Sequence[Learner]]:
    """Learners whose decisions are computed together, in order."""
    return [learners[at : at + GROUP] for at in range(0, len(learners), GROUP)]


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


def _slack(config: Config, capacity: int) -> int:
    """Transitions kept beyond those learned from, so that a rollback finds what a full replay has dropped since."""
    if not config.guard.enabled:
        return 0
    rollback, train = config.guard.rollback, config.train
    updates = rollback.save_interval * rollback.max_checkpoints + rollback.probation
    steps = -(-updates // train.updates_per_vector_step) * max(config.bcell.expansion, 1)
    return min(steps * train.n_envs, capacity)


def with_mirrors(
    market: RolloutMarket, learners: Learners, config: Config, known: Predictions | None = None
) -> RolloutMarket:
    """Market that has each learner's mirrored bars, which its portfolios are told; by predictions so far ``known``."""
    everyone, weight = [one.portfolios for one in learners.everyone], config.bcell.mirrored.weight
    market, mirrors = with_mirrored_bars(market, [one.segments for one in everyone], weight, known)
    for portfolios, mirror in zip(everyone, mirrors, strict=True):
        portfolios.mirror = mirror
    return market
