"""A pathwise rollout as one differentiable function: decisions and the ledger in compiled loops, and their gradient.

A second form of the ledger's step, of the reward and of the trade rate, for the speed of learning alone: the same
numbers to double precision's rounding, where `can_follow` says that it may stand in for them. Everything that is judged
or reported is stepped by the ledger itself. Step by step, hundreds of operations on small tensors take most of their
time to be called; here each portfolio takes all its decisions in a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from finflow.agent.gradient_steps import full_precision
from finflow.agent.networks.decision import MarketReading
from finflow.agent.networks.distributions import SMALLEST_WEIGHT
from finflow.agent.networks.layers import LEAST_RATE, LEAST_SLOPE
from finflow.agent.networks.policy import LOG_SCALE_RANGE, N_TRADE_FACTS, ExpertPolicy
from finflow.agent.networks.policy_ensemble import BatchedPolicies
from finflow.arrays import FloatArray
from finflow.env.decision_process import DecisionProcess
from finflow.env.objective import CVAR_SCALE, DRAWDOWN_SCALE, LEAST_DEVIATION, TURNOVER_SCALE
from finflow.env.portfolio_state import PortfolioState
from finflow.ledger.constraints import Limits
from finflow.ledger.costs import proportional_rates
from finflow.training.data.rollout_loops import Constants, Path, Slopes, Work, fill_path, fill_slopes


class Followed(NamedTuple):
    """Outcome of a rollout, in double precision."""

    rewards: Tensor  # (horizon, batch), raw
    log_density: Tensor  # (horizon, batch), of the decisions drawn
    turnover: Tensor  # (batch,), mean of a decision
    state: PortfolioState  # its wealth has no gradient


def can_follow(
    policies: ExpertPolicy | BatchedPolicies, process: DecisionProcess, reading: MarketReading
) -> TypeGuard[BatchedPolicies]:
    """Return True where the loops know everything that happens, for policies that decide in a batch.

    That is: the built-in reward, proportional costs, no limits, a lag of a bar or more, no dividends in cash, every
    asset listed and none halted at any bar, no blend with a reference; on the CPU.
    """
    if not isinstance(policies, BatchedPolicies):
        return False
    first, rates = policies.first, proportional_rates(process.costs)
    if rates is None or process.lag == 0 or process.limits != Limits():
        return False
    if process.reward is not None or process.dividends is not None or process.panel.halted is not None:
        return False
    plain = first.blend is None and not first.keeps_slope and reading.listed is None
    return plain and reading.aim.device.type == "cpu" and bool(process.listed.all())


def follow(
    process: DecisionProcess,
    policies: BatchedPolicies,
    reading: MarketReading,
    state: PortfolioState,
    horizon: int,
    noise: Tensor,
) -> Followed:
    """Draw ``horizon`` decisions of policies, at least one; parameters as in `RolloutMarket.roll_out`."""
    given, learned = _given(process, state, horizon, noise), _learned(policies, reading, horizon)
    found = _Rollout.apply(_constants(process), given, *learned)  # type: ignore[no-untyped-call]
    rewards, density, turnover, growth, weights, objective, before = found
    after = PortfolioState(state.bar + horizon, weights, state.wealth * growth, objective, before)
    return Followed(rewards, density, turnover, after)


@torch.no_grad()
def followed_path(
    process: DecisionProcess, policies: BatchedPolicies, reading: MarketReading, state: PortfolioState, noise: Tensor
) -> Path:
    """All that `follow` meets on the way of as many decisions as there is noise for, without a gradient."""
    given, learned = _given(process, state, len(noise), noise), _learned(policies, reading, len(noise))
    return _path_of(_constants(process), given, learned)


def _constants(process: DecisionProcess) -> Constants:
    """Numbers of the ledger, the reward and the policy's layers; a ValueError where costs are not proportional."""
    moments, weights, rates = process.objective.moments, process.objective.config, proportional_rates(process.costs)
    if rates is None:
        raise ValueError("the loops know proportional costs alone")
    return Constants(
        rate=float(rates.sum()),
        first=moments.first,
        second=moments.second,
        deviation=moments.deviation,
        least_variance=(LEAST_DEVIATION * moments.deviation) ** 2,
        cvar_target=float(weights.cvar_target),
        eta=float(weights.sharpe_eta),
        sharpe=float(weights.sharpe_beta * weights.sharpe_eta),
        turnover=float(weights.lambda_turn * TURNOVER_SCALE),
        cvar=float(weights.lambda_cvar * CVAR_SCALE / weights.cvar_alpha),
        drawdown=float(weights.lambda_dd * DRAWDOWN_SCALE),
        least_weight=SMALLEST_WEIGHT,
        least_rate=LEAST_RATE,
        least_slope=LEAST_SLOPE,
        lowest_scale=LOG_SCALE_RANGE[0],
        highest_scale=LOG_SCALE_RANGE[1],
    )


def _work(n_weights: int) -> Work:
    return Work(*np.empty((5, n_weights)), *np.empty((2, N_TRADE_FACTS)))


def _given(process: DecisionProcess, state: PortfolioState, horizon: int, noise: Tensor) -> tuple[FloatArray, ...]:
    """Noise, growth, and the state at the beginning: nothing is learned from them."""
    bars = np.asarray(state.bar) + np.arange(horizon + 1)[:, None]
    begun = (state.weights, state.objective_before, state.objective)
    return (
        noise.double().numpy(),
        process.growth[bars],
        *(one.numpy() if isinstance(one, Tensor) else one for one in begun),
    )


def _learned(policies: BatchedPolicies, reading: MarketReading, horizon: int) -> tuple[Tensor, ...]:
    """All that is learned, the first fields of a `Path`, in double precision."""
    members, width = len(policies.weight), policies.hidden_weight.shape[1] - N_TRADE_FACTS
    seen = reading.hidden.view(horizon, members, -1, width).transpose(0, 1).flatten(1, 2)
    with full_precision(seen):  # the part of the hidden layer that does not depend on the portfolio
        added = torch.baddbmm(policies.hidden_bias, seen, policies.hidden_weight[:, :width])
    hidden = added.view(members, horizon, -1, added.shape[-1]).transpose(0, 1).flatten(1, 2)
    aim, head = (
        reading.aim.view(horizon, -1, reading.aim.shape[-1]),
        (policies.weight.transpose(1, 2), policies.bias[:, 0]),
    )
    return tuple(one.double() for one in (aim, hidden, policies.hidden_weight[:, width:], *head))


def _path_of(constants: Constants, given: Sequence[FloatArray], learned: Sequence[Tensor]) -> Path:
    noise, growth, begun, *reward_states = map(np.ascontiguousarray, given)
    aim, hidden, *layers = (np.ascontiguousarray(one.detach().numpy()) for one in learned)
    horizon, batch, n_weights = aim.shape
    if noise.shape != (horizon, batch, n_weights - 1):
        raise ValueError(f"noise is of shape {noise.shape}, decisions need {(horizon, batch, n_weights - 1)}")
    weights, objective = np.empty((horizon + 1, batch, n_weights)), np.empty((horizon + 2, batch, 3))
    weights[0], objective[:2] = begun, reward_states
    states = weights, objective, np.empty_like(aim), np.empty((horizon, batch, 5)), np.empty((4, horizon, batch))
    path = Path._make((aim, hidden.copy(), *layers, noise, growth, *states))
    fill_path(constants, path, _work(n_weights))
    return path


class _Rollout(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, constants: Constants, given: Sequence[FloatArray], *learned: Tensor) -> Any:
        context.constants, context.path = constants, _path_of(constants, given, learned)
        weights, objective, _, _, outcome = context.path[-5:]
        ended = (outcome[2].mean(axis=0), outcome[3].prod(axis=0), weights[-1], objective[-1], objective[-2])
        rewards, density, turnover, grown, *state = (torch.from_numpy(one.copy()) for one in (*outcome[:2], *ended))
        context.mark_non_differentiable(turnover, grown)
        return rewards, density, turnover, grown, *state

    @staticmethod
    @once_differentiable
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        path: Path = context.path
        given = [one.numpy().copy() for one in (*gradients[:2], *gradients[4:])]
        found = [np.zeros_like(one) for one in path[:5]]
        fill_slopes(context.constants, path, Slopes(*given, *found), _work(path.aim.shape[2]))
        return (None, None, *map(torch.from_numpy, found))
