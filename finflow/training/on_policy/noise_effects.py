"""Effect of a decision's noise on later rewards: a control variate of group-relative returns.

A return holds the noise of all later decisions, which no baseline of the prices can know. Prices are exogenous, so the
rewards that follow a drawn action can be simulated: at the same prices, with the policy's modes as later decisions.
Half of their difference from those of the action mirrored around the mode is odd in the noise of that decision. Its
mean is zero whatever came before, so subtracting the effects of later decisions from a return leaves the policy
gradient without bias.

References
----------
Cheng, Yan and Boots (2020), Trajectory-wise Control Variates for Variance Reduction in Policy Gradient Methods.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from finflow.training.data.rewards import RewardUnits
from finflow.training.on_policy.market_actor_critic import MarketActorCritic
from finflow.training.rollouts.rollout_steps import observed


class NoiseEffects(NamedTuple):
    """Effects of the noise of decisions, by simulating each of them and its mirror image.

    Attributes
    ----------
    process : DecisionProcess
    agent : MarketActorCritic
    units : RewardUnits
    horizon : int
        Decisions simulated for an effect, the drawn one among them.
    decay : float
        Weight of a reward for each decision that it is later.
    queue : RewardQueue or None
        Has the rewards of ``process``, where workers compute them.
    """

    process: DecisionProcess
    agent: MarketActorCritic
    units: RewardUnits
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
            Decisions to the end of the window or of the episode, this one among them: nothing is simulated beyond.
        """
        start, drawn = join_states(states), actions.flatten(0, 1)
        last = remaining.flatten().clamp(max=self.horizon).repeat(2).cpu().numpy()
        mode = self.agent.distribution(self._observations(start)).mode()
        state, coordinates = join_states([start, start]), torch.cat([drawn, 2.0 * mode - drawn])
        running = np.arange(len(last))
        simulated: list[_SimulatedStep] = []
        for ahead in range(int(last.max(initial=0))):
            keep = last[running] > ahead
            state, coordinates, running = rows_of(state, keep), coordinates[torch.from_numpy(keep)], running[keep]
            if ahead > 0:
                coordinates = self.agent.distribution(self._observations(state)).mode()
            state, step = self._step(state, coordinates, running)
            simulated.append(step)
        drawn_sum, mirrored = self._sum(simulated, len(last)).chunk(2)
        return (0.5 * (drawn_sum - mirrored)).view(actions.shape[:2])

    def _observations(self, state: PortfolioState) -> Observations:
        """Observations of portfolio states."""
        return observed(self.process, self.agent.market, state, state.bar)

    def _step(
        self, state: PortfolioState, coordinates: Tensor, running: NDArray[np.int64]
    ) -> tuple[PortfolioState, _SimulatedStep]:
        """States after decisions in log ratios, and their rewards."""
        observations = self._observations(state)
        targets = log_portfolio(coordinates).exp()
        outcome = self.process.step(state, targets.cpu().numpy().astype(np.float64))
        return outcome.state, _SimulatedStep(running, outcome.reward, observations[0], outcome.constrained)

    def _sum(self, simulated: Sequence[_SimulatedStep], count: int) -> Tensor:
        """Discounted scaled rewards of each decision, (count,)."""
        total, units = torch.zeros(count), self.units._replace(normalizer=None)
        known = [step.reward for step in simulated] if self.queue is None else self.queue.collect()
        for ahead, (step, reward) in enumerate(zip(simulated, known, strict=True)):
            earned = np.where(np.isfinite(reward), reward, 0.0)
            rewards = torch.as_tensor(earned, dtype=torch.float32, device=step.bars.device)
            limited = None if step.constrained is None else torch.from_numpy(step.constrained).to(rewards)
            total[step.running] += self.decay**ahead * units.scaled(rewards, step.bars, limited).cpu()
        return total


class _SimulatedStep(NamedTuple):
    """A simulated step: which decisions it follows, its raw rewards, and where it was taken."""

    running: NDArray[np.int64]
    reward: NDArray[np.float64]
    bars: Tensor
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
