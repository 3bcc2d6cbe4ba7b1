"""Agreement of the critics with exact returns of many actions in each state, on the same prices.

The policy stands still and follows after each action.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finflow.agent.learners.bcell import BCell
from finflow.agent.learners.soft_actor_critic import action_distribution
from finflow.agent.losses.critic_losses import advantage_scale, advantages, calibration, discounted_return
from finflow.agent.networks.decision import FAMILY_RATE
from finflow.agent.networks.policy import ExpertPolicy
from finflow.config import Config
from finflow.env.coverage import draw_coverage
from finflow.env.portfolio_state import PortfolioState
from finflow.training.data.rollouts import RolloutMarket, as_tensors, repeated
from finflow.training.off_policy.exact_decisions import ACTIONS, compared_actions

FOLLOWED = 64  # decisions over which the returns of an action are measured: differences fade as the policy trades on
SETTLED = 16  # decisions after which portfolios are the policy's own
JUDGED = 512  # states of each window in which the critics are judged
ROWS = 512  # states measured at once
BLOCKS = 20  # of bars, for standard errors
DECISION_STATES = 4096  # in which decisions are compared
TO_WEIGH = 100  # purpose of the draws of decisions, beside those of the phases
SMALLEST_SCALE = 1e-6


@torch.no_grad()
def exact_returns(
    market: RolloutMarket, policy: ExpertPolicy, state: PortfolioState, actions: Tensor, horizon: int, gamma: float
) -> Tensor:
    """Exact scaled returns of actions (batch, P, n) over a window in which the policy follows, (batch, P)."""
    count = actions.shape[1]
    reading = market.read(policy, state, horizon)
    many = reading.each(lambda part: part.repeat_interleave(count, dim=0))
    rollout = market.roll_out(policy, many, repeated(state, count), horizon, actions.flatten(0, 1))
    return discounted_return(rollout.rewards, gamma).view(-1, count)


class ExactReturns(NamedTuple):
    """Exact returns of the same window for many actions in each of many states."""

    bars: NDArray[np.int64]  # (states,)
    portfolios: Tensor  # (states, K + 3): observed
    actions: Tensor  # (states, actions, n)
    returns: Tensor  # (states, actions): scaled and discounted; the agent's policy follows after the action


def measure_returns(
    market: RolloutMarket,
    policy: ExpertPolicy,
    bars: NDArray[np.int64],
    config: Config,
    purpose: int,
    decisions: bool = False,
) -> ExactReturns:
    """Exact returns at decision bars (states,) in portfolios that cover the simplex, drawn by the seed and purpose.

    With ``decisions`` the actions are decisions of the usual size, over the bar that they are made for: later bars do
    not depend on them alone. Else they are of any size, over `FOLLOWED` decisions, in the portfolios that the policy
    reaches from there in `SETTLED` decisions: those whose values end the actor's look ahead.
    """
    device = market.tensors.market.device
    rng = np.random.default_rng(np.random.SeedSequence([config.train.seed, 81, purpose]))
    horizon, size = (1, FAMILY_RATE) if decisions else (FOLLOWED, None)
    reached, observed, compared, returns = [], [], [], []
    for start in range(0, len(bars), ROWS):
        some = bars[start : start + ROWS]
        weights, _ = draw_coverage(rng, len(some), market.process.n_weights)
        state = as_tensors(market.process.start(some, weights), device)
        if not decisions:
            with torch.no_grad():
                state = market.roll_out(policy, market.read(policy, state, SETTLED), state, SETTLED).state
        reached.append(state.bar)
        observed.append(market.process.observed_portfolio(state).float())
        states = market.states(state)
        own = action_distribution(policy, states).centre() if not decisions else None
        compared.append(compared_actions(own, states, ACTIONS, rng, size))
        returns.append(exact_returns(market, policy, state, compared[-1], horizon, config.bcell.gamma))
    return ExactReturns(np.concatenate(reached), torch.cat(observed), torch.cat(compared), torch.cat(returns))


def measure_decision_scale(
    market: RolloutMarket, policy: ExpertPolicy, config: Config, segments: Sequence[range]
) -> float:
    """``sigma_A`` of decisions: standard deviation of exact advantages of decisions of the usual size over their bar.

    In each of ``DECISION_STATES`` states, portfolios that cover the simplex at random bars, holding and moves of
    ``FAMILY_RATE`` of the way toward portfolios that cover the simplex earn what they earn on the same prices. No
    decision of the policy takes part, so that it is the same number before and after learning.
    """
    bars = np.concatenate([np.arange(own.start, own.stop) for own in segments])
    rng = np.random.default_rng(np.random.SeedSequence([config.train.seed, 84]))
    measured = measure_returns(market, policy, rng.choice(bars, DECISION_STATES), config, TO_WEIGH, True)
    return max(float(advantage_scale(measured.returns)), SMALLEST_SCALE)


@torch.no_grad()
def critics_values(market: RolloutMarket, bcell: BCell, exact: ExactReturns) -> Tensor:
    """Values of the actions by the critics' mean, (states, actions)."""
    bars = torch.as_tensor(exact.bars, device=exact.portfolios.device)
    states = market.tensors.states(bars, exact.portfolios)
    return bcell.critic.value(bcell.critic.encode(states), states, exact.actions, with_quantiles=0).mean.mean(dim=0)


def compare_advantages(values: Tensor, exact: ExactReturns) -> dict[str, float]:
    """Compare the critics' values (states, actions) with exact returns.

    Windows overlap, so that states near each other share their luck: errors are over contiguous blocks of bars.

    Returns ``slope`` with ``slope_error``, and ``correlation``.
    """
    slope, correlation = (float(one) for one in calibration(values, exact.returns))
    predicted, measured = (advantages(one).double().cpu().numpy() for one in (values, exact.returns))
    block = np.empty(len(exact.bars), dtype=np.int64)
    for number, rows in enumerate(np.array_split(np.argsort(exact.bars, kind="stable"), BLOCKS)):
        block[rows] = number

    def by_block(values: NDArray[np.float64]) -> NDArray[np.float64]:
        sums: NDArray[np.float64] = np.bincount(block, weights=values, minlength=BLOCKS).astype(np.float64)
        return sums

    squares = by_block((predicted**2).sum(axis=1))
    residual = by_block((predicted * measured).sum(axis=1)) - slope * squares
    slope_error = float(np.sqrt((residual**2).sum()) / max(squares.sum(), 1e-12))
    return dict(slope=slope, slope_error=slope_error, correlation=correlation)


def critics_facts(
    market: RolloutMarket, agent: BCell, windows: Mapping[str, NDArray[np.int64]], config: Config
) -> dict[str, float]:
    """Slope and correlation of the critics in each window, of the bars from which returns can be measured."""
    facts: dict[str, float] = {}
    stop = len(market.process.growth) - market.process.reward_horizon - SETTLED
    for number, (window, bars) in enumerate(windows.items()):
        fitting = bars[bars + FOLLOWED < stop]
        if len(fitting):
            rng = np.random.default_rng(np.random.SeedSequence([config.train.seed, 83, number]))
            exact = measure_returns(market, agent.policy, rng.choice(fitting, JUDGED), config, number)
            compared = compare_advantages(critics_values(market, agent, exact), exact)
            facts |= {f"{window}_advantage_{name}": value for name, value in compared.items()}
    return facts
