"""Exact outcomes of further actions of stored states: to learn from, and to judge the critics by.

Prices do not react to trades and costs are known, so the rewards of any action are computed by the ledger itself. What
a policy reads of the market does not depend on its portfolio and is read once. Where the critics are judged, the policy
stands still and follows after each action.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from finflow.agent.batch import Batch, Choices, States
from finflow.agent.learners.bcell import BCell
from finflow.agent.learners.soft_actor_critic import action_distribution
from finflow.agent.losses.off_policy_losses import advantage_scale, advantages, calibration, discounted_return
from finflow.agent.networks.critic import ValueNetwork
from finflow.agent.networks.decision import FAMILY_RATE
from finflow.agent.networks.distributions import LogisticNormal
from finflow.agent.networks.policy import ExpertPolicy
from finflow.arrays import FloatArray, IntArray
from finflow.config import Config
from finflow.env.coverage import draw_coverage
from finflow.env.portfolio_state import PortfolioState, Step, rows_of
from finflow.training.data.replay import make_batch
from finflow.training.data.rollouts import Mirror, RolloutMarket, as_tensors, repeated

ACTIONS = 8  # of each state: the logged one, holding, the policy's own, and moves
FOLLOWED = 64  # decisions over which the returns of an action are measured: differences fade as the policy trades on
SETTLED = 16  # decisions after which portfolios are the policy's own
JUDGED = 512  # states of each window in which the critics are judged
ROWS = 512  # states measured at once
WEIGHTS_AT_ONCE = 2**24  # read together over all decisions of a window: 64 MB
BLOCKS = 20  # of bars, for standard errors
DECISION_STATES = 4096  # in which decisions are compared
TO_WEIGH = 100  # purpose of the draws of decisions, beside those of the phases
SMALLEST_SCALE = 1e-6


@torch.no_grad()
def compared_actions(
    own: Tensor | None, states: States, count: int, rng: np.random.Generator, size: float | None = None
) -> Tensor:
    """Actions to compare in each state, (batch, count, n): hold, the policy's own, and moves toward any portfolio.

    ``own`` (batch, n): the policy's own, where it is among them. ``size``: share of the way that every move goes; drawn
    from 0..1 for each when left out.
    """
    held = states.weights
    named = [held] if own is None else [held, own]
    (batch, width), moves = held.shape, count - len(named)
    drawn, _ = draw_coverage(rng, batch * moves, width)
    toward = torch.as_tensor(drawn, dtype=torch.float32, device=held.device).view(batch, moves, width)
    listed = torch.cat([states.listed, torch.ones_like(states.listed[:, :1])], dim=1).unsqueeze(1)
    toward = toward * listed
    toward = toward / toward.sum(dim=-1, keepdim=True)
    shares = rng.random((batch, moves, 1)) if size is None else np.full((batch, moves, 1), size)
    share = torch.as_tensor(shares, dtype=torch.float32, device=held.device)
    return torch.cat([torch.stack(named, dim=1), held.unsqueeze(1).lerp(toward, share)], dim=1)


def counterfactual_batch(
    market: RolloutMarket,
    rows: dict[str, Tensor],
    policy: ExpertPolicy,
    rng: np.random.Generator,
    noise: Generator,
    mirror: Mirror,
    observation_noise: float,
) -> tuple[Batch, LogisticNormal]:
    """Stored states, each with `ACTIONS` actions, the stored one first, and exact outcomes; the policy's own decisions.

    ``market``: with mirrored bars, where there are: rewards are means over both. ``rng``: draws the moves.
    """
    device, state = market.tensors.market.device, market.resumed(rows)
    observed = torch.as_tensor(market.process.observed_portfolio(state), dtype=torch.float32, device=device)
    rows = {**rows, "portfolio": observed}
    batch = make_batch(rows, market.tensors, market.units, noise, observation_noise)
    own = action_distribution(policy, batch.states)
    others = compared_actions(own.centre(), batch.states, ACTIONS - 1, rng)
    actions = torch.cat([batch.actions.unsqueeze(1), others], dim=1)
    many, bars = repeated(state, ACTIONS), rows["bar"].repeat_interleave(ACTIONS)
    targets = actions.flatten(0, 1).double().cpu().numpy()

    def scaled(step: Step) -> Tensor:
        return market.units.scaled(torch.as_tensor(step.reward, device=device).float(), bars)

    step = market.process.step(many, targets)
    rewards = scaled(step)
    if mirror.weight > 0.0:
        rewards = rewards.lerp(
            scaled(market.process.step(replace(many, bar=many.bar + mirror.offset), targets)), mirror.weight
        )
    after = torch.as_tensor(market.process.observed_portfolio(step.state), dtype=torch.float32, device=device)
    following = batch.next_states._replace(portfolio=after)
    ended = torch.as_tensor(step.terminated, device=device).float()
    shape = (len(observed), ACTIONS)
    return batch._replace(choices=Choices(actions, rewards.view(shape), ended.view(shape), following)), own


@torch.no_grad()
def exact_bounds(
    market: RolloutMarket, behaviour_value: ValueNetwork, rows: Mapping[str, NDArray[Any]], gamma: float
) -> NDArray[np.float32]:
    """Exact returns of a vector step's decisions to its end with the behaviour's value there, (H, n_envs).

    Cal-QL's bound (Nakamoto et al. 2023) of values that were simulated.
    """
    device = market.tensors.market.device
    bars = torch.as_tensor(rows["bar"], device=device)
    portfolio = torch.as_tensor(rows["next_portfolio"][-1], dtype=torch.float32, device=device)
    value = behaviour_value.of_behaviour(market.tensors.states(bars[-1] + 1, portfolio))
    rewards = torch.as_tensor(rows["reward"], device=device).float().flatten()
    earned = market.units.scaled(rewards, bars.flatten())
    going = torch.as_tensor(gamma * ~rows["terminated"], dtype=torch.float32, device=device)
    bounds = [value]
    for reward, discount in zip(earned.view(len(bars), -1).flip(0), going.flip(0), strict=True):
        bounds.append(reward + discount * bounds[-1])
    return torch.stack(bounds[:0:-1]).cpu().numpy()


@torch.no_grad()
def exact_returns(
    market: RolloutMarket, policy: ExpertPolicy, state: PortfolioState, actions: Tensor, horizon: int, gamma: float
) -> Tensor:
    """Exact scaled returns of actions (batch, P, n) over a window in which the policy follows, (batch, P)."""
    batch, count, width = actions.shape
    size, found = max(WEIGHTS_AT_ONCE // (horizon * count * width), 1), []
    for start in range(0, batch, size):
        own, its = rows_of(state, slice(start, start + size)), actions[start : start + size].flatten(0, 1)
        many = market.read(policy, own, horizon).each(lambda part: part.repeat_interleave(count, dim=0))
        rollout = market.roll_out(policy, many, repeated(own, count), horizon, its)
        found.append(discounted_return(rollout.rewards, gamma).view(-1, count))
    return torch.cat(found)


class ExactReturns(NamedTuple):
    """Exact returns of the same window for many actions in each of many states."""

    bars: IntArray  # (states,)
    portfolios: Tensor  # (states, K + 3): observed
    actions: Tensor  # (states, actions, n)
    returns: Tensor  # (states, actions): scaled and discounted; the agent's policy follows after the action


def measure_returns(
    market: RolloutMarket, policy: ExpertPolicy, bars: IntArray, config: Config, purpose: int, decisions: bool = False
) -> ExactReturns:
    """Exact returns at decision bars (states,) in portfolios that cover the simplex, drawn by the seed and purpose.

    With ``decisions`` the actions are decisions of the usual size, over the bar that they are made for: later bars do
    not depend on them alone. Else they are of any size, over `FOLLOWED` decisions, in the portfolios that the policy
    reaches from there in `SETTLED` decisions: those whose values end the actor's look ahead.
    """
    device = market.tensors.market.device
    rng = np.random.default_rng(np.random.SeedSequence([config.train.seed, 81, purpose]))
    horizon, size = (1, FAMILY_RATE) if decisions else (FOLLOWED, None)
    found: list[tuple[Any, Tensor, Tensor, Tensor]] = []
    for start in range(0, len(bars), ROWS):
        some = bars[start : start + ROWS]
        weights, _ = draw_coverage(rng, len(some), market.process.n_weights)
        state = as_tensors(market.process.start(some, weights), device)
        if not decisions:
            with torch.no_grad():
                state = market.roll_out(policy, market.read(policy, state, SETTLED), state, SETTLED).state
        states = market.states(state)
        own = action_distribution(policy, states).centre() if not decisions else None
        actions = compared_actions(own, states, ACTIONS, rng, size)
        returns = exact_returns(market, policy, state, actions, horizon, config.bcell.gamma)
        found.append((state.bar, states.portfolio, actions, returns))
    reached, *parts = zip(*found, strict=True)
    return ExactReturns(np.concatenate(reached), *(torch.cat(part) for part in parts))


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

    def by_block(values: FloatArray) -> FloatArray:
        return np.bincount(block, weights=values, minlength=BLOCKS).astype(np.float64)

    squares = by_block((predicted**2).sum(axis=1))
    residual = by_block((predicted * measured).sum(axis=1)) - slope * squares
    slope_error = float(np.sqrt((residual**2).sum()) / max(squares.sum(), 1e-12))
    return dict(slope=slope, slope_error=slope_error, correlation=correlation)


def critics_facts(
    market: RolloutMarket, agent: BCell, windows: Mapping[str, IntArray], config: Config
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
