"""Effect of a decision's own noise on what follows: a control variate of group-relative returns.

A return holds the noise of all later decisions, which no baseline of the prices can know. Prices are exogenous, so what
a drawn action brings can be lived through: followed by the policy's modes, at the same prices. Half of what it brings
more than its mirror image around the mode is odd in the noise of that decision. Its mean is zero whatever came before,
so the effects of later decisions can be taken off a return, and the policy gradient stays without bias.

References
----------
Cheng, Yan and Boots (2020), Trajectory-wise Control Variates for Variance Reduction in Policy Gradient Methods.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finflow.agent.networks.logistic_normal import log_portfolio
from finflow.agent.on_policy.policy_interface import Observations
from finflow.env.decision_process import DecisionProcess
from finflow.env.portfolio_state import PortfolioState, join_states, rows_of
from finflow.env.rewards.reward_queue import RewardQueue
from finflow.training.data.replay import MarketTensors
from finflow.training.data.rewards import RewardUnits
from finflow.training.on_policy.market_actor_critic import MarketActorCritic


class NoiseEffects(NamedTuple):
    """Effects of the noise of decisions, by playing each of them and its mirror image on.

    Attributes
    ----------
    process : DecisionProcess
    agent : MarketActorCritic
    units : RewardUnits
    observe : callable
        Observations of portfolio states.
    horizon : int
        Decisions that an effect is followed for, the drawn one among them.
    decay : float
        Weight of a reward for each decision that it is later.
    queue : RewardQueue or None
        Has the rewards of ``process``, where workers compute them.
    """

    process: DecisionProcess
    agent: MarketActorCritic
    units: RewardUnits
    observe: Callable[[PortfolioState], Observations]
    horizon: int
    decay: float
    queue: RewardQueue | None = None

    @torch.no_grad()
    def of(self, states: Sequence[PortfolioState], actions: Tensor, remaining: Tensor) -> Tensor:
        """Effects of drawn actions, in scaled rewards, (steps, portfolios).

        Parameters
        ----------
        states : sequence of PortfolioState
            Before each step.
        actions : Tensor, (steps, portfolios, K - 1)
            Log ratios that were drawn there.
        remaining : int Tensor, (steps, portfolios)
            Decisions to the end of the window or of the episode, this one among them: nothing is played beyond.
        """
        start, drawn = join_states(states), actions.flatten(0, 1)
        last = remaining.flatten().clamp(max=self.horizon).repeat(2).cpu().numpy()
        mode = self.agent.distribution(self.observe(start)).mode()
        state, coordinates = join_states([start, start]), torch.cat([drawn, 2.0 * mode - drawn])
        running = np.arange(len(last))
        played: list[_PlayedOn] = []
        for ahead in range(int(last.max(initial=0))):
            keep = last[running] > ahead
            state, coordinates, running = rows_of(state, keep), coordinates[torch.from_numpy(keep)], running[keep]
            if ahead > 0:
                coordinates = self.agent.distribution(self.observe(state)).mode()
            state, step = self._step(state, coordinates, running)
            played.append(step)
        own, mirrored = self._sum(played, len(last)).chunk(2)
        return (0.5 * (own - mirrored)).view(actions.shape[:2])

    def _step(
        self, state: PortfolioState, coordinates: Tensor, running: NDArray[np.int64]
    ) -> tuple[PortfolioState, _PlayedOn]:
        """States after decisions in log ratios, and what they brought."""
        market: MarketTensors = self.agent.market
        observed = self.observe(state)
        universe = observed[2] if len(observed) > 2 else None
        targets = market.scatter_assets(log_portfolio(coordinates).exp(), universe)
        outcome = self.process.step(state, targets.cpu().numpy().astype(np.float64))
        return outcome.state, _PlayedOn(running, outcome.reward, observed[0], universe, outcome.constrained)

    def _sum(self, played: Sequence[_PlayedOn], count: int) -> Tensor:
        """Discounted scaled rewards of each decision, (count,)."""
        total, units = torch.zeros(count), self.units._replace(normalizer=None)
        known = [step.reward for step in played] if self.queue is None else self.queue.collect()
        for ahead, (step, reward) in enumerate(zip(played, known, strict=True)):
            earned = np.where(np.isfinite(reward), reward, 0.0)
            rewards = torch.as_tensor(earned, dtype=torch.float32, device=step.bars.device)
            limited = None if step.constrained is None else torch.from_numpy(step.constrained).to(rewards)
            total[step.running] += self.decay**ahead * units.scaled(rewards, step.bars, step.universe, limited).cpu()
        return total


class _PlayedOn(NamedTuple):
    """A step of decisions that are played on: which, their raw rewards, and where they were taken."""

    running: NDArray[np.int64]
    reward: NDArray[np.float64]
    bars: Tensor
    universe: Tensor | None
    constrained: NDArray[np.float64] | None


def remaining_decisions(ended: Tensor) -> Tensor:
    """Decisions to the end of each episode, or of the rollout, this one among them, (steps, portfolios).

    Parameters
    ----------
    ended : Tensor, (steps, portfolios)
        1 where an episode ended with that decision.
    """
    counted = torch.empty(ended.shape, dtype=torch.int64)
    following = torch.zeros(ended.shape[1], dtype=torch.int64)
    for step in range(len(ended) - 1, -1, -1):
        following = torch.where(ended[step] > 0.0, torch.zeros_like(following), following) + 1
        counted[step] = following
    return counted
