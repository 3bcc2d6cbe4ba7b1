"""State of learning from exact rollouts: portfolios in progress, policies of the folds, and their evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finflow.agent.gradient_steps import SkippingAdam, make_optimiser
from finflow.agent.learners.offline_learner import make_policy
from finflow.agent.networks.policy import ExpertPolicy
from finflow.config import Config, RolloutsConfig
from finflow.cores import forked
from finflow.env.coverage import draw_coverage
from finflow.env.decision_process import DecisionProcess
from finflow.env.episode_worlds import EpisodeWorlds
from finflow.env.portfolio_state import PortfolioState, replace_rows, rows_of
from finflow.env.process_variants import with_growths
from finflow.errors import MarketError
from finflow.guard.state_capture import capture, check_like, restore, without_prefix
from finflow.training.data.mirrored_growth import Predictions, mirrored_growth, predicted_returns
from finflow.training.data.return_rankings import ranking_horizon
from finflow.training.data.rollouts import RolloutMarket, as_tensors, detached
from finflow.training.data.training_data import TrainingData
from finflow.training.data.training_worlds import episode_worlds
from finflow.training.phase_names import ONLINE

PURPOSE = 80  # of the generators of portfolios
FOLD_WEIGHTS = 60  # purpose of the generators of the folds' initial weights


class Block(NamedTuple):
    """A fold: bars of decisions that one policy does not learn from, and those that it learns from.

    Attributes
    ----------
    held_out : range
        Bars of decisions.
    learned : tuple of range
        Bars of decisions; those whose rewards or windows of rollouts would reach into the block are left out.
    """

    held_out: range
    learned: tuple[range, ...]


def make_blocks(segments: Sequence[range], count: int, purge: int) -> tuple[Block, ...]:
    """Split decision bars into contiguous blocks of equal length.

    Parameters
    ----------
    segments : sequence of range
        Bars of decisions, in order.
    count : int
    purge : int
        Bars left out on both sides of a block.
    """
    bars = np.concatenate([np.arange(one.start, one.stop) for one in segments])
    parts = [part for part in np.array_split(bars, count) if len(part)]
    blocks = []
    for part in parts:
        first, last = int(part[0]), int(part[-1])
        learned = [range(one.start, min(one.stop, first - purge)) for one in segments]
        learned += [range(max(one.start, last + 1 + purge), one.stop) for one in segments]
        blocks.append(Block(range(first, last + 1), tuple(one for one in learned if len(one))))
    return tuple(blocks)


def training_blocks(config: Config, training_data: TrainingData) -> tuple[Block, ...]:
    """Blocks of the training years that a policy each does not see; none with one block or fewer."""
    count, process = config.bcell.rollouts.blocks, training_data.learning.process
    if count <= 1:
        return ()
    # a window's last reward is earned on the bars after its last decision, and what experts learn to rank too
    horizon = max(process.reward_horizon, ranking_horizon(config))
    return make_blocks(training_segments(training_data), count, process.lag + horizon)


def training_segments(training_data: TrainingData) -> list[range]:
    """Bars of decisions of the training years, in order."""
    return [training_data.learning.process.decision_bars(window) for window in training_data.train_segments]


class Pretrained(NamedTuple):
    """Policies that were pretrained for the evidence of the blocks.

    Attributes
    ----------
    folds : list of dict of Tensor
        Weights of each block's, without it; none where nothing is pretrained.
    reference : dict of Tensor or None
        From all data in as many epochs, which is what the folds are evidence about. None where the agent's own
        pretraining was no longer than theirs.
    """

    folds: list[dict[str, Tensor]]
    reference: dict[str, Tensor] | None


class Portfolios:
    """Portfolios that step through stored bars, window after window; some restart elsewhere after each.

    Parameters
    ----------
    process : DecisionProcess
    segments : sequence of range
        Bars of decisions that windows stay within.
    horizon : int
        Decisions of a window.
    count : int
    restart : float
        Chance that a portfolio begins anew after a window.
    worlds : EpisodeWorlds or None
    seed : sequence of int

    Attributes
    ----------
    mirror : int
        Bars from a bar to itself in the table of growth that mirrors these segments; 0 where there is none.
    mirrored : float
        Weight of what is earned there.

    Raises
    ------
    MarketError
        If no segment has room for a window.
    """

    def __init__(
        self,
        process: DecisionProcess,
        segments: Sequence[range],
        horizon: int,
        count: int,
        restart: float,
        worlds: EpisodeWorlds | None,
        seed: Sequence[int],
    ) -> None:
        self.process, self.worlds, self.horizon, self.restart = process, worlds, horizon, restart
        self.segments, self.mirror, self.mirrored = tuple(segments), 0, 0.0
        starts = [np.arange(one.start, one.stop - horizon + 1) for one in segments if len(one) >= horizon]
        if not starts:
            raise MarketError(
                f"no segment of the training window has room for bcell.rollouts.horizon ({horizon}) decisions; use "
                "more data or a shorter horizon"
            )
        self.starts = np.concatenate(starts)
        self._allowed = np.zeros(len(process.growth) + horizon, dtype=np.bool_)
        self._allowed[self.starts] = True
        self.rng = np.random.default_rng(np.random.SeedSequence(list(seed)))
        self.state = self._draw(count)

    def window(self, device: torch.device) -> PortfolioState:
        """Portfolios at the beginning of their next window, in tensors."""
        return as_tensors(self.state, device)

    def move_on(self, after: PortfolioState) -> None:
        """Take the portfolios after a window, in tensors; those whose stretch ends, and some others, begin anew."""
        numbers = {n: v.cpu().numpy() if isinstance(v, Tensor) else v for n, v in vars(detached(after)).items()}
        self.state = type(self.state)(**numbers)
        count = len(self.state.bar)
        anew = ~self._allowed[self.state.bar] | (self.rng.random(count) < self.restart)
        anew |= ~(self.state.wealth > 0.0)
        if anew.any():
            self.state = replace_rows(self.state, anew, rows_of(self._draw(count), anew))

    def capture(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Portfolios and generator."""
        tensors = {name: torch.from_numpy(np.array(value)) for name, value in vars(self.state).items()}
        return tensors, {"generator": self.rng.bit_generator.state}

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Restore both."""
        fresh, _ = self.capture()
        for name, tensor in fresh.items():
            check_like(tensors[name], tensor)
        if not bool(np.isin(tensors["bar"].numpy(), self.starts).all()):
            raise ValueError("a portfolio is at a bar where no window begins")
        self.state = type(self.state)(**{name: tensors[name].numpy().copy() for name in fresh})
        self.rng.bit_generator.state = state["generator"]

    def _draw(self, count: int) -> PortfolioState:
        """New portfolios, anywhere, of weights that cover the simplex."""
        bars: NDArray[np.int64] = self.rng.choice(self.starts, size=count)
        weights, _ = draw_coverage(self.rng, count, self.process.n_weights)
        return self.process.start(bars, weights, None if self.worlds is None else self.worlds.draw(self.rng, count))


@dataclass
class Member:
    """A policy that learns from rollouts, with its optimiser and its portfolios."""

    policy: ExpertPolicy
    optimiser: SkippingAdam
    portfolios: Portfolios


class RolloutState:
    """Everything that learning from rollouts adds to the agent.

    Attributes
    ----------
    portfolios : Portfolios
        Of the agent's own policy, which learns from all bars.
    folds : list of Member
        A policy for each block, which learns without it.
    blocks : tuple of Block
    advantage_scales : Tensor, (1 + blocks,)
        ``sigma_A`` of the agent's policy and of each block's, on the bars that it learns from; zero until measured.
    pretrained : list of dict of Tensor
        Policies of the folds before their first update, where they were pretrained.
    looks : list of list of dict of Tensor
        The agent's policy, then those of the folds, at each look so far; none once a blend was decided on.
    evidence : dict or None
        Figures of the out-of-fold backtests, once the blend was decided on.
    judged : bool
        Whether the finished agent was judged on the validation window.
    """

    def __init__(self, config: Config, training_data: TrainingData, device: torch.device) -> None:
        keys, seed, process = config.bcell.rollouts, config.train.seed, training_data.learning.process
        segments = training_segments(training_data)
        worlds = episode_worlds(config, process, ONLINE)
        restart = min(keys.horizon / config.env.episode_length, 1.0)

        def portfolios(bars: Sequence[range], member: int) -> Portfolios:
            words = (seed, PURPOSE, member)
            return Portfolios(process, bars, keys.horizon, keys.portfolios, restart, worlds, words)

        self.blocks = training_blocks(config, training_data)
        self.portfolios = portfolios(segments, 0)
        self.folds = []
        for number, block in enumerate(self.blocks):
            generator = torch.Generator().manual_seed(seed * 1_000_003 + FOLD_WEIGHTS + number)
            policy = make_policy(training_data.shape, config.bcell, generator).to(device)
            optimiser = make_optimiser(policy, keys.learning_rate, config.bcell.actor_weight_decay)
            self.folds.append(Member(policy, optimiser, portfolios(block.learned, 1 + number)))
        self.advantage_scales = torch.zeros(1 + len(self.blocks), device=device)
        self.pretrained: list[dict[str, Tensor]] = []
        self.looks: list[list[dict[str, Tensor]]] = []
        self.evidence: dict[str, float] | None = None
        self.judged = False

    def members(self, policy: ExpertPolicy) -> list[tuple[ExpertPolicy, Portfolios]]:
        """Every policy with its portfolios: ``policy``, the agent's own, then those of the folds."""
        return [(policy, self.portfolios), *((fold.policy, fold.portfolios) for fold in self.folds)]

    def begin_from(self, policies: Sequence[Mapping[str, Tensor]]) -> None:
        """Let the folds' policies begin from pretrained ones, and keep those; as they are where there are none."""
        device = self.advantage_scales.device
        self.pretrained = [{name: tensor.to(device) for name, tensor in one.items()} for one in policies]
        for fold, weights in zip(self.folds, self.pretrained, strict=False):
            fold.policy.load_state_dict(weights)

    def reseed(self, seed: int, purpose: int) -> None:
        """Other random numbers from here on."""
        for number, portfolios in enumerate([self.portfolios, *(fold.portfolios for fold in self.folds)]):
            portfolios.rng = np.random.default_rng(np.random.SeedSequence([seed, purpose, PURPOSE, number]))

    def capture(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All of it."""
        own, facts = self.portfolios.capture()
        tensors = {f"portfolios/{name}": tensor for name, tensor in own.items()}
        tensors["advantage_scales"] = self.advantage_scales.clone()
        folds = []
        for number, fold in enumerate(self.folds):
            of_fold, state = capture(fold)
            tensors |= {f"fold{number}/{name}": tensor for name, tensor in of_fold.items()}
            folds.append(state)
        for number, look in enumerate(self.looks):
            for member, policy in enumerate(look):
                tensors |= {f"look{number}/{member}/{name}": tensor.clone() for name, tensor in policy.items()}
        for number, policy in enumerate(self.pretrained):
            tensors |= {f"pretrained{number}/{name}": tensor.clone() for name, tensor in policy.items()}
        return tensors, {
            "portfolios": facts,
            "folds": folds,
            "looks": len(self.looks),
            "pretrained": len(self.pretrained),
            "judged": self.judged,
            "evidence": self.evidence,
        }

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Restore all of it."""
        if (
            type(state["looks"]) is not int
            or type(state["judged"]) is not bool
            or len(state["folds"]) != len(self.folds)
        ):
            raise ValueError("it has other folds")
        self.portfolios.restore(without_prefix(tensors, "portfolios/"), state["portfolios"])
        for number, (fold, facts) in enumerate(zip(self.folds, state["folds"], strict=True)):
            restore(fold, without_prefix(tensors, f"fold{number}/"), facts)
        check_like(tensors["advantage_scales"], self.advantage_scales)
        self.advantage_scales.copy_(tensors["advantage_scales"])
        self.judged, self.evidence = state["judged"], state["evidence"]
        numbers = range(state.get("pretrained", 0))
        self.pretrained = [without_prefix(tensors, f"pretrained{number}/") for number in numbers]
        members = range(1 + len(self.folds))
        self.looks = [
            [without_prefix(tensors, f"look{number}/{member}/") for member in members]
            for number in range(state["looks"])
        ]


def with_mirrors(market: RolloutMarket, state: RolloutState, keys: RolloutsConfig) -> RolloutMarket:
    """Market that has, for each member, its bars mirrored around returns predicted from the bars that it learns from.

    Sets where in the tables of growth each member's mirrored bars are, and how much they weigh.
    """
    everyone = [state.portfolios, *(fold.portfolios for fold in state.folds)]
    half = (len(everyone) + 1) // 2
    with forked(partial(_predictions, market.process, everyone[half:], keys.regimes)) as second:
        first = _predictions(market.process, everyone[:half], keys.regimes)
    growths = []
    for number, (portfolios, expected) in enumerate(zip(everyone, [*first, *second()], strict=True)):
        growths.append(mirrored_growth(market.process, expected.returns))
        portfolios.mirror = (1 + number) * len(market.process.growth)
        portfolios.mirrored = keys.mirrored * (mirror_scale(expected.slope) if keys.mirrored_scaled else 1.0)
    return market._replace(process=with_growths(market.process, growths))


def _predictions(process: DecisionProcess, members: Sequence[Portfolios], regimes: bool) -> list[Predictions]:
    """Predicted returns of some members' bars."""
    return [predicted_returns(process, one.segments, regimes) for one in members]


def mirror_scale(slope: float) -> float:
    """Share of the weight of mirrored bars, 0 to 1, where returns have a slope on predictions from other bars."""
    return min(max(2.0 * slope - 1.0, 0.0), 1.0)
