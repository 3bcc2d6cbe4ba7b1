"""Pathwise rollouts: a policy through the decision process on stored bars, exact and differentiable.

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

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from finflow.agent.batch import States
from finflow.agent.networks.decision import MarketReading
from finflow.agent.networks.policy import ExpertPolicy
from finflow.agent.networks.policy_ensemble import BatchedPolicies
from finflow.env.decision_process import DecisionProcess
from finflow.env.portfolio_state import PortfolioState, rows_of, universe_of
from finflow.training.data.replay import MarketTensors
from finflow.training.data.rewards import RewardUnits

WHOLE = ("bar", "universe")  # whole numbers, by which tables are looked up


class PathwiseRollout(NamedTuple):
    """Outcome of some decisions in a row.

    Attributes
    ----------
    rewards : Tensor, (horizon, batch)
        Scaled, as learners see them.
    log_growth : Tensor, (horizon, batch)
        Of wealth, net of costs.
    turnover : Tensor, (batch,)
        Mean of a decision.
    constrained : Tensor or None, (horizon, batch)
        Reward that has a limit, without gradients; None where none has.
    state : PortfolioState
        After the last decision, in tensors.
    """

    rewards: Tensor
    log_growth: Tensor
    turnover: Tensor
    constrained: Tensor | None
    state: PortfolioState


class RolloutMarket(NamedTuple):
    """Market that policies are rolled out in.

    Attributes
    ----------
    process : DecisionProcess
    tensors : MarketTensors
        Its features on the learner's device.
    units : RewardUnits
    """

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

        Parameters
        ----------
        policy : ExpertPolicy
        state : PortfolioState
        horizon : int
        noise : Generator, optional
            Switches dropout on, and noise on the features.
        observation_noise : float
            Deviation of that noise; that of the features is one.
        """
        device = self.tensors.market.device
        bars = torch.as_tensor((np.arange(horizon)[:, None] + state.bar).reshape(-1), device=device)
        universe = _universe_of(state, device)
        repeats = None if universe is None else universe.repeat(horizon)
        blank = torch.zeros(len(bars), self.process.portfolio_size, device=device)
        return policy.read_market(self.tensors.states(bars, blank, noise, observation_noise, repeats), noise)

    def states(self, state: PortfolioState) -> States:
        """Observations of portfolios, as networks read them."""
        device = self.tensors.market.device
        portfolio = self.process.observed_portfolio(state).float()
        bars = torch.as_tensor(state.bar, device=device)
        return self.tensors.states(bars, portfolio, universe=_universe_of(state, device))

    def roll_out(
        self,
        policy: ExpertPolicy | BatchedPolicies,
        reading: MarketReading,
        state: PortfolioState,
        horizon: int,
        first: Tensor | None = None,
    ) -> PathwiseRollout:
        """Follow the centre of a policy.

        Parameters
        ----------
        policy : ExpertPolicy, or several side by side
        reading : MarketReading, (horizon * batch, ...)
            What it reads at the bars.
        state : PortfolioState
            In tensors, (batch, ...).
        horizon : int
        first : Tensor, (batch, n), optional
            Action of the first decision, in place of the policy's.
        """
        batch, rewards, growth, turnover, constrained = len(state.bar), [], [], [], []
        for h in range(horizon):
            bars = torch.as_tensor(state.bar, device=state.weights.device)
            universe = _universe_of(state, bars.device)
            if h == 0 and first is not None:
                action = first
            else:
                portfolio = self.tensors.gather_assets(self.process.observed_portfolio(state).float(), universe)
                states = States(self.tensors.assets[:1, : portfolio.shape[1] - 4], self.tensors.market[:1], portfolio)
                action = policy.trade_toward(states, reading.rows(h * batch, (h + 1) * batch)).distribution.centre()
            step = self.process.step(state, self.tensors.scatter_assets(action, universe).double())
            known = bars % len(self.units.reference)  # in further tables of growth bars are counted on
            limited = None if step.constrained is None else step.constrained.float()
            rewards.append(self.units.scaled(step.reward.float(), known, universe, limited))
            constrained += [] if limited is None else [limited.detach()]
            growth.append(torch.log1p(step.simple_return))
            turnover.append(step.turnover.detach())
            state = step.state
        of_limit = torch.stack(constrained) if constrained else None
        return PathwiseRollout(
            torch.stack(rewards), torch.stack(growth), torch.stack(turnover).mean(dim=0), of_limit, state
        )


def as_tensors(state: PortfolioState, device: torch.device) -> PortfolioState:
    """Same state with everything but bars and sub-universes in tensors, for differentiable steps."""
    numbers = {name: value for name, value in vars(state).items() if name not in WHOLE}
    return replace(state, **{name: torch.as_tensor(value, device=device) for name, value in numbers.items()})


def detached(state: PortfolioState) -> PortfolioState:
    """Same state, without gradients."""
    parts = {name: value.detach() for name, value in vars(state).items() if isinstance(value, Tensor)}
    return replace(state, **parts)


def joined_states(states: Sequence[PortfolioState]) -> PortfolioState:
    """Portfolios of several states, in tensors, one after the other."""
    parts = {name: [getattr(one, name) for one in states] for name in vars(states[0])}
    return type(states[0])(
        **{name: np.concatenate(of_all) if name in WHOLE else torch.cat(of_all) for name, of_all in parts.items()}
    )


def separate_states(state: PortfolioState, count: int) -> list[PortfolioState]:
    """Portfolios in as many states of one size: the inverse of `joined_states`."""
    size = len(state.bar) // count
    return [rows_of(state, slice(size * number, size * (number + 1))) for number in range(count)]


def repeated(state: PortfolioState, count: int) -> PortfolioState:
    """Every portfolio ``count`` times in a row."""
    return type(state)(
        **{
            name: value.repeat_interleave(count, dim=0)
            if isinstance(value, Tensor)
            else np.repeat(value, count, axis=0)
            for name, value in vars(state).items()
        }
    )


def _universe_of(state: PortfolioState, device: torch.device) -> Tensor | None:
    """Sub-universes of portfolios; None where there are none."""
    universe = universe_of(state)
    return None if universe is None else torch.as_tensor(universe, device=device)
