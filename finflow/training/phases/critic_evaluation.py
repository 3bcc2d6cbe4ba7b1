"""Exact returns of many actions in each state, on the same prices; critics that learn them, and how well they do.

The policy stands still and follows after each action. Returns are of a window of ``bcell.rollouts.horizon`` decisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finflow.agent.batch import States
from finflow.agent.gradient_steps import compute_gradients, cosine, polyak_update, set_learning_rate, step
from finflow.agent.learners.bcell import BCell
from finflow.agent.learners.pathwise import (
    advantage_scale,
    advantages,
    calibration,
    counterfactual_loss,
    discounted_return,
)
from finflow.agent.networks.decision import FAMILY_RATE
from finflow.agent.networks.policy import ExpertPolicy
from finflow.config import Config
from finflow.env.coverage import draw_coverage
from finflow.env.portfolio_state import PortfolioState
from finflow.training.data.rollouts import RolloutMarket, as_tensors, repeated
from finflow.training.data.training_worlds import episode_worlds
from finflow.training.phase_names import ONLINE

ROWS = 512  # states measured at once
GROUPS = 10  # of moves, by the critics' value of them
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


@torch.no_grad()
def compared_actions(
    policy: ExpertPolicy, states: States, count: int, rng: np.random.Generator, size: float | None = None
) -> Tensor:
    """Actions to compare in each state, (batch, count, n): hold, the policy's own, and moves toward any portfolio.

    Parameters
    ----------
    policy : ExpertPolicy
    states : States
    count : int
    rng : Generator
    size : float, optional
        Share of the way that every move goes, the policy's own left out; drawn from 0..1 for each when left out.
    """
    held = states.weights
    named = [held] if size is not None else [held, policy(states).distribution.centre()]
    (batch, width), moves = held.shape, count - len(named)
    drawn, _ = draw_coverage(rng, batch * moves, width)
    toward = torch.as_tensor(drawn, dtype=torch.float32, device=held.device).view(batch, moves, width)
    listed = torch.cat([states.listed, torch.ones_like(states.listed[:, :1])], dim=1).unsqueeze(1)
    toward = toward * listed
    toward = toward / toward.sum(dim=-1, keepdim=True)
    shares = rng.random((batch, moves, 1)) if size is None else np.full((batch, moves, 1), size)
    share = torch.as_tensor(shares, dtype=torch.float32, device=held.device)
    return torch.cat([torch.stack(named, dim=1), held.unsqueeze(1).lerp(toward, share)], dim=1)


class ActionSamples(NamedTuple):
    """Moves whose exact returns are compared.

    Attributes
    ----------
    horizon : int
        Decisions of a window.
    size : float or None
        Share of the way to another portfolio; None for any, the policy's own decision among them.
    """

    horizon: int
    size: float | None


DECISIONS = ActionSamples(horizon=1, size=FAMILY_RATE)
"""Decisions of the usual size, over the bar that they are made for; later bars do not depend on them alone."""


class ExactReturns(NamedTuple):
    """Exact returns of the same window for many actions in each of many states.

    Attributes
    ----------
    bars : int array, (states,)
    portfolios : Tensor, (states, K + 3)
        Observed.
    universe : int array, (states,), or None
    actions : Tensor, (states, actions, n)
    returns : Tensor, (states, actions)
        Scaled and discounted; the agent's policy follows after the action.
    """

    bars: NDArray[np.int64]
    portfolios: Tensor
    universe: NDArray[np.int64] | None
    actions: Tensor
    returns: Tensor

    def states(self, market: RolloutMarket, rows: NDArray[np.int64] | slice) -> States:
        """Some of the states, as networks read them."""
        device = self.portfolios.device
        drawn = None if self.universe is None else torch.as_tensor(self.universe[rows], device=device)
        bars = torch.as_tensor(self.bars[rows], device=device)
        return market.tensors.states(bars, self.portfolios[rows], universe=drawn)


def measure_returns(
    market: RolloutMarket,
    policy: ExpertPolicy,
    bars: NDArray[np.int64],
    config: Config,
    purpose: int,
    moves: ActionSamples | None = None,
) -> ExactReturns:
    """Exact returns in portfolios that cover the simplex, at decision bars (states,), drawn by the seed and purpose.

    ``moves`` are of any size, over a window of ``bcell.rollouts.horizon`` decisions, when left out.
    """
    keys, device = config.bcell.rollouts, market.tensors.market.device
    rng = np.random.default_rng(np.random.SeedSequence([config.train.seed, 81, purpose]))
    worlds = episode_worlds(config, market.process, ONLINE)
    horizon, size = moves or ActionSamples(keys.horizon, None)
    observed, universes, compared, returns = [], [], [], []
    for start in range(0, len(bars), ROWS):
        some = bars[start : start + ROWS]
        weights, _ = draw_coverage(rng, len(some), market.process.n_weights)
        drawn = None if worlds is None else worlds.draw(rng, len(some))
        state = as_tensors(market.process.start(some, weights, drawn), device)
        observed.append(market.process.observed_portfolio(state).float())
        universes += [] if drawn is None else [drawn.universe]
        compared.append(compared_actions(policy, market.states(state), keys.actions, rng, size))
        returns.append(exact_returns(market, policy, state, compared[-1], horizon, config.bcell.gamma))
    universe = np.concatenate(universes) if universes else None
    return ExactReturns(bars, torch.cat(observed), universe, torch.cat(compared), torch.cat(returns))


def measure_decision_scale(
    market: RolloutMarket, policy: ExpertPolicy, config: Config, segments: Sequence[range]
) -> float:
    """``sigma_A`` of decisions: standard deviation of exact advantages of decisions of the usual size over their bar.

    In each of ``DECISION_STATES`` states, portfolios that cover the simplex at random bars, holding and moves of
    ``FAMILY_RATE`` of the way toward portfolios that cover the simplex earn what they earn on the same prices. No
    decision of the policy takes part, so that it is the same number before and after learning.

    Parameters
    ----------
    market : RolloutMarket
        Its units are those of the number.
    policy : ExpertPolicy
    config : Config
    segments : sequence of range
        Bars of decisions that are learned from.
    """
    bars = np.concatenate([np.arange(own.start, own.stop) for own in segments])
    rng = np.random.default_rng(np.random.SeedSequence([config.train.seed, 84]))
    measured = measure_returns(market, policy, rng.choice(bars, DECISION_STATES), config, TO_WEIGH, DECISIONS)
    return max(float(advantage_scale(measured.returns)), SMALLEST_SCALE)


@torch.no_grad()
def set_level(market: RolloutMarket, bcell: BCell, exact: ExactReturns) -> None:
    """Shift the critics so that they are right on average: they come from returns over another horizon."""
    rows = slice(0, ROWS)
    states, mean = exact.states(market, rows), exact.returns[rows].mean()
    for critic in (bcell.critic, bcell.target_critic):
        values = critic.value(critic.encode(states), states, exact.actions[rows])
        critic.mean.bias.add_((mean - values.mean.mean(dim=(1, 2))).view_as(critic.mean.bias))
        if critic.quantiles.bias is not None:
            critic.quantiles.bias.add_((mean - values.quantiles.mean(dim=(1, 2, 3))).view(-1, 1, 1))


def update_critics(
    market: RolloutMarket, bcell: BCell, exact: ExactReturns, scale: Tensor, config: Config, done: int
) -> dict[str, Tensor]:
    """Take one step of the critics toward exact returns; ``done`` steps were taken before."""
    keys = config.bcell
    rng = np.random.default_rng(np.random.SeedSequence([config.train.seed, 82, done]))
    rows = rng.integers(len(exact.bars), size=config.train.online_batch_size)
    set_learning_rate(bcell.critic_optimiser, cosine(keys.rollouts.critic_lr, done / keys.rollouts.critic_updates))
    states, distributional = exact.states(market, rows), keys.n_quantiles > 1
    values = bcell.critic.value(
        bcell.critic.encode(states), states, exact.actions[rows], keys.rollouts.actions * int(distributional)
    )
    loss, metrics = counterfactual_loss(values, exact.returns[rows], scale, distributional)
    compute_gradients(loss, bcell.critic_optimiser)
    metrics["critic_gradient"] = step(bcell.critic_optimiser, keys.gradient_norm)
    polyak_update(bcell.target_critic, bcell.critic, keys.tau)
    return metrics


@torch.no_grad()
def calibrate(market: RolloutMarket, bcell: BCell, exact: ExactReturns) -> None:
    """Scale the critics' means so that predicted advantages are right on average, and set their level anew.

    Critics overstate advantages, since they fit some noise of single paths. The scale is the slope of exact advantages
    on theirs, in states of the training window that they did not learn from, and not below zero.
    """
    slope = calibration(critics_values(market, bcell, exact), exact.returns).slope.clamp(min=0.0)
    for critic in (bcell.critic, bcell.target_critic):
        critic.mean.weight.mul_(slope)
    set_level(market, bcell, exact)


@torch.no_grad()
def critics_values(market: RolloutMarket, bcell: BCell, exact: ExactReturns) -> Tensor:
    """Values of the actions by the critics' mean, (states, actions)."""
    states = exact.states(market, slice(None))
    return bcell.critic.value(bcell.critic.encode(states), states, exact.actions, with_quantiles=0).mean.mean(dim=0)


class AdvantageComparison(NamedTuple):
    """Agreement of the critics with the exact values of moves.

    Attributes
    ----------
    slope : float
        Of exact advantages on the critics'.
    slope_error : float
        Standard error over blocks of bars.
    correlation : float
    critics, exact, error : list of float
        Moves in groups of one size by the critics' advantage: mean of that, of the exact advantage, and the latter's
        standard error over blocks of bars.
    """

    slope: float
    slope_error: float
    correlation: float
    critics: list[float]
    exact: list[float]
    error: list[float]


def compare_advantages(values: Tensor, exact: ExactReturns) -> AdvantageComparison:
    """Compare the critics' values (states, actions) with exact returns, in groups of moves.

    Windows overlap, so that states near each other share their luck: errors are over contiguous blocks of bars.
    """
    fit = calibration(values, exact.returns)
    predicted, measured = (advantages(one).double().cpu().numpy() for one in (values, exact.returns))
    block = np.empty(len(exact.bars), dtype=np.int64)
    for number, rows in enumerate(np.array_split(np.argsort(exact.bars, kind="stable"), BLOCKS)):
        block[rows] = number
    sums = np.stack(
        [_by_block((predicted * measured).sum(axis=1), block), _by_block((predicted**2).sum(axis=1), block)]
    )
    residual = sums[0] - float(fit.slope) * sums[1]
    order = np.argsort(predicted.ravel(), kind="stable")
    of_move = np.repeat(block, predicted.shape[1])
    means: list[tuple[float, float, float]] = []
    for rows in np.array_split(order, GROUPS):
        total, count = (_by_block(one, of_move[rows]) for one in (measured.ravel()[rows], np.ones(len(rows))))
        mean = float(total.sum() / count.sum())
        error = float(np.sqrt(((total - mean * count) ** 2).sum()) / count.sum())
        means.append((float(predicted.ravel()[rows].mean()), mean, error))
    critics, exact_means, errors = (list(column) for column in zip(*means, strict=True))
    slope_error = float(np.sqrt((residual**2).sum()) / max(sums[1].sum(), 1e-12))
    return AdvantageComparison(float(fit.slope), slope_error, float(fit.correlation), critics, exact_means, errors)


def _by_block(values: NDArray[np.float64], block: NDArray[np.int64]) -> NDArray[np.float64]:
    """Sums over the blocks of bars, (BLOCKS,)."""
    sums: NDArray[np.float64] = np.bincount(block, weights=values, minlength=BLOCKS).astype(np.float64)
    return sums
