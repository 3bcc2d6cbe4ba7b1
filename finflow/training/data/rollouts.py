"""Portfolios in progress, and pathwise rollouts: a policy on stored bars, exact and differentiable.

Prices do not react to trades, and costs are known: the rewards of a policy over stored bars are computed by the ledger
itself, with their gradient for every action on the way. What a policy reads of the market does not depend on its
portfolio, so that it is computed once for all portfolios on the same bars.

References
----------
Madeka et al. (2022), Deep Inventory Management (DirectBackprop). Alvo et al. (2023), Neural Inventory Control in
Networks via Hindsight Differentiable Policy Optimization. Sinclair et al. (2023), Hindsight Learning for MDPs with
Exogenous Inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from finflow.agent.batch import States
from finflow.agent.networks.decision import MarketReading
from finflow.agent.networks.distributions import LogisticNormal, sampled_density
from finflow.agent.networks.policy import ExpertPolicy
from finflow.agent.networks.policy_ensemble import BatchedPolicies
from finflow.arrays import IntArray
from finflow.env.coverage import draw_coverage
from finflow.env.decision_process import RUIN, DecisionProcess, resumed_state
from finflow.env.portfolio_state import PortfolioState, replace_rows, rows_of
from finflow.errors import MarketError
from finflow.guard.checkpoint_folder import check_like
from finflow.offline.dataset import OfflineDataset
from finflow.training.data.fused_rollout import can_follow, follow
from finflow.training.data.replay import MarketTensors
from finflow.training.data.reward_normalizer import RewardNormalizer
from finflow.training.data.rewards import RewardUnits


class PathwiseRollout(NamedTuple):
    """Outcome of some decisions in a row."""

    rewards: Tensor  # (horizon, batch): scaled, as learners see them
    turnover: Tensor  # (batch,): mean of a decision
    log_density: Tensor | None  # (horizon, batch): of drawn decisions per free dimension; None for the centre
    state: PortfolioState  # after the last decision, in tensors


class RolloutMarket(NamedTuple):
    process: DecisionProcess
    tensors: MarketTensors
    units: RewardUnits

    def read(
        self,
        policy: ExpertPolicy,
        state: PortfolioState,
        horizon: int,
        noise: Generator | None = None,
        observation_noise: float = 0.0,
    ) -> MarketReading:
        """Reading of a policy of the market at the next bars of every portfolio, (horizon * batch, ...).

        It is without the experts' portfolios: decisions need the aim alone, and they are most of a reading.
        """
        device = self.tensors.market.device
        bars = torch.as_tensor((np.arange(horizon)[:, None] + state.bar).reshape(-1), device=device)
        blank = torch.zeros(len(bars), self.process.portfolio_size, device=device)
        if noise is None and not torch.is_grad_enabled():  # windows overlap: each bar once
            known, place = torch.unique(bars, return_inverse=True)
            reading = policy.read_market(self.tensors.states(known, blank[: len(known)]))
            return reading.without_experts().each(lambda part: part[place])
        return policy.read_market(self.tensors.states(bars, blank, noise, observation_noise), noise).without_experts()

    def resumed(self, rows: Mapping[str, Tensor]) -> PortfolioState:
        """Portfolios as they were at the decisions of some transitions."""
        return resumed_state(self.process, rows["bar"].cpu().numpy(), rows["portfolio"].double().cpu().numpy())

    def states(self, state: PortfolioState) -> States:
        bars = torch.as_tensor(state.bar, device=self.tensors.market.device)
        return self.tensors.states(bars, self.process.observed_portfolio(state).float())

    def roll_out(
        self,
        policy: ExpertPolicy | BatchedPolicies,
        reading: MarketReading,
        state: PortfolioState,
        horizon: int,
        first: Tensor | None = None,
        noise: Tensor | None = None,
    ) -> PathwiseRollout:
        """Follow a policy: its centre, or decisions drawn from it.

        Parameters
        ----------
        reading : MarketReading, (horizon * batch, ...)
            What it reads at the bars.
        first : Tensor, (batch, n), optional
            Action of the first decision, in place of the policy's.
        noise : Tensor, (horizon, batch, n - 1), optional
            Standard normal, by which decisions are drawn.
        """
        batch, drawn, steps, bars = len(state.bar), [], [], []
        if can_follow(policy, self.process, reading) and horizon and first is None and noise is not None:
            return self._followed(policy, reading, state, horizon, noise)
        for h in range(horizon):
            bars.append(np.asarray(state.bar))
            if h == 0 and first is not None:
                action = first
            else:
                portfolio = self.process.observed_portfolio(state).float()
                distribution = decided(policy, portfolio, reading.rows(h * batch, (h + 1) * batch))
                if noise is None:
                    action = distribution.centre()
                else:
                    log_weights = distribution.draw(noise[h])
                    action = log_weights.exp()
                    drawn.append((distribution, log_weights))
            step = self.process.step(state, action.double())
            steps.append(step)
            state = step.state
        shape = (horizon, batch)
        if not steps:
            nothing = state.weights.new_zeros(shape, dtype=torch.float32)
            return PathwiseRollout(nothing, state.weights.new_zeros(batch), None, state)
        scaled = self._scaled(torch.cat([step.reward for step in steps]), np.concatenate(bars))
        turnover = torch.stack([step.turnover.detach() for step in steps]).mean(dim=0)
        return PathwiseRollout(scaled.view(shape), turnover, _densities(drawn, noise), state)

    def _followed(
        self, policy: BatchedPolicies, reading: MarketReading, state: PortfolioState, horizon: int, noise: Tensor
    ) -> PathwiseRollout:
        """The same by compiled loops."""
        found = follow(self.process, policy, reading, state, horizon, noise)
        bars = np.asarray(state.bar) + np.arange(horizon)[:, None]
        rewards = self._scaled(found.rewards.flatten(), bars.flatten()).view(bars.shape)
        density = found.log_density.to(noise.dtype) / noise.shape[-1]
        return PathwiseRollout(rewards, found.turnover, density, found.state)

    def _scaled(self, rewards: Tensor, bars: IntArray) -> Tensor:
        """Raw rewards of decisions at ``bars``, each (batch,), as learners see them."""
        # in further tables of growth bars are counted on
        known = torch.as_tensor(bars, device=rewards.device) % len(self.units.reference)
        return self.units.scaled(rewards.float(), known)


def _densities(drawn: Sequence[tuple[LogisticNormal, Tensor]], noise: Tensor | None) -> Tensor | None:
    """Log densities of drawn decisions per free dimension, (horizon, batch); None where none was drawn."""
    if not drawn or noise is None:
        return None
    scale = torch.stack([distribution.log_scale for distribution, _ in drawn])
    known = [distribution.listed for distribution, _ in drawn if distribution.listed is not None]
    listed = torch.stack(known) if known else None
    density = sampled_density(noise[-len(drawn) :], scale, torch.stack([weights for _, weights in drawn]), listed)
    dimensions = [distribution.dimensions for distribution, _ in drawn]
    if isinstance(dimensions[0], int):
        return density / dimensions[0]
    return density / torch.stack([one for one in dimensions if isinstance(one, Tensor)])


def decided(policy: ExpertPolicy | BatchedPolicies, portfolio: Tensor, reading: MarketReading) -> LogisticNormal:
    """Distribution of the decisions for observed portfolios (batch, n + 4), by what is read of their markets."""
    blank = portfolio.new_zeros(1, portfolio.shape[1] - 4, 1)
    return policy.trade_toward(States(blank, blank[:, 0], portfolio), reading).distribution


def as_tensors(state: PortfolioState, device: torch.device) -> PortfolioState:
    """Same state with everything but bars in tensors, for differentiable steps."""
    numbers = {name: value for name, value in vars(state).items() if name != "bar"}
    return replace(state, **{name: torch.as_tensor(value, device=device) for name, value in numbers.items()})


def repeated(state: PortfolioState, count: int) -> PortfolioState:
    """Each portfolio so many times, one after the other."""
    return rows_of(state, np.arange(len(state.bar)).repeat(count))


def with_normalizer(
    market: RolloutMarket, normalizer: RewardNormalizer | None, dataset: OfflineDataset
) -> RolloutMarket:
    """Market with a normaliser of rewards; an empty window is filled with the behaviour's, evenly from all of them.

    Both phases then begin in the same units; online rewards replace them.
    """
    units = market.units._replace(normalizer=normalizer)
    if normalizer is not None and not normalizer.get_statistics()["count"]:
        count = min(normalizer.config.window_size, len(dataset))
        places = np.linspace(0, len(dataset) - 1, count).astype(np.int64)
        units.remember(dataset.reward[places].astype(np.float64), dataset.bar[places])
    return market._replace(units=units)


class Mirror(NamedTuple):
    """Mirrored bars of some segments.

    ``offset``: bars from a bar to its mirrored one in the table of growth; 0 where there is none. ``weight``: of what
    is earned there.
    """

    offset: int
    weight: float


NO_MIRROR = Mirror(0, 0.0)


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

    def capture(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {name: torch.from_numpy(np.array(value)) for name, value in vars(self.state).items()}
        return tensors, {"generator": self.rng.bit_generator.state}

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        fresh, _ = self.capture()
        check_portfolios(tensors, fresh, self.starts)
        self.state = PortfolioState(**{name: tensors[name].numpy().copy() for name in fresh})
        self.rng.bit_generator.state = state["generator"]

    def _draw(self, count: int) -> PortfolioState:
        bars: IntArray = self.rng.choice(self.starts, size=count)
        weights, _ = draw_coverage(self.rng, count, self.process.n_weights)
        return self.process.start(bars, weights)


def check_portfolios(tensors: Mapping[str, Tensor], fresh: Mapping[str, Tensor], bars: IntArray) -> None:
    """Raise a ValueError where saved portfolios are not like fresh ones, hold what is none, or are at no such bar."""
    for name, tensor in fresh.items():
        check_like(tensors[name], tensor)
    if not bool(np.isin(tensors["bar"].numpy(), bars).all()):
        raise ValueError("a portfolio is at a bar where no step begins")
    weights = tensors["weights"]
    if not bool(((weights.sum(dim=1) - 1.0).abs() < 1e-6).all() & (weights > -1e-9).all()):
        raise ValueError("its weights are no portfolio")
    if not bool((tensors["wealth"] > 0.0).all()):
        raise ValueError("the wealth of a portfolio is not above zero")
