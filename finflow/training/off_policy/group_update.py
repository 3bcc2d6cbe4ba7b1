"""One update of learners side by side: critics by the outcomes of stored states, actors by exact decisions.

Learners of a group are computed together whatever the number of cores. Their critics' gradients are computed beside
their actors', on a second core where there is one: both are taken at the same parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from finflow.agent.batch import Batch
from finflow.agent.gradient_steps import compute_gradients, parameters_of
from finflow.agent.learners.sac_critics import CriticLosses, Draws, critics_losses, is_conservative
from finflow.agent.learners.soft_actor_critic import Coefficients, UpdatePoint, held_back
from finflow.agent.losses.regularisers import CoverageProposals
from finflow.agent.networks.policy_ensemble import BatchedPolicies, joined_readings
from finflow.agent.precision import no_denormals
from finflow.config import Config
from finflow.cores import run_both
from finflow.env.portfolio_state import join_states, rows_of, universe_of
from finflow.training.data.coverage_pool import CoveragePool
from finflow.training.data.replay import Transitions, join_rows
from finflow.training.data.rollouts import RolloutMarket, decide
from finflow.training.off_policy.counterfactuals import counterfactual_batch, logged_batch
from finflow.training.off_policy.exact_decisions import Ahead, Start, look_ahead
from finflow.training.off_policy.learners import Learner

Metrics = dict[str, Tensor]
STATE_SHARE = 2  # a state with several actions counts as so many transitions of a batch


class Material(NamedTuple):
    """Data that the learners of a training learn from, beside their own replays.

    Attributes
    ----------
    market : RolloutMarket
        With every learner's mirrored bars.
    offline : list of Transitions
        The behaviour's, of each learner those that it may see.
    may_start : list of bool Tensor, (bars,)
        Bars from which each learner may look ahead.
    coverage : CoveragePool
    config : Config
    """

    market: RolloutMarket
    offline: list[Transitions]
    may_start: list[Tensor]
    coverage: CoveragePool
    config: Config


class Drawn(NamedTuple):
    """States that one learner's critics learn from, with all random numbers."""

    batch: Batch
    coverage: CoverageProposals
    draws: Draws


def draw(material: Material, number: int, learner: Learner, point: UpdatePoint) -> Drawn:
    """Draw the states that critics learn from: the behaviour's and the learner's own, their shares annealed."""
    config, market = material.config, material.market
    several = config.bcell.counterfactual
    states = max(config.train.online_batch_size // (STATE_SHARE if several else 1), 2)
    rows = _mixed(material, number, learner, states, point)
    make = counterfactual_batch if config.bcell.counterfactual else logged_batch
    batch = make(market, rows, learner, config.train.observation_noise)
    coverage = material.coverage.draw(batch.states, config.bcell.cql_samples, learner.noise)
    return Drawn(
        batch, coverage, Draws.of(learner.agent, batch, learner.noise, is_conservative(config.bcell, coverage))
    )


def draw_start(material: Material, number: int, learner: Learner, point: UpdatePoint) -> Start:
    """Draw the portfolios that the actor looks ahead from, likewise: as many decisions as critics have states."""
    config = material.config
    count = max(config.train.online_batch_size // max(config.bcell.expansion, 1), 1)
    rows = _mixed(material, number, learner, count, point, material.may_start[number])
    return Start.of(material.market, learner, learner.portfolios.resumed(rows), config)


def _mixed(
    material: Material, number: int, learner: Learner, count: int, point: UpdatePoint, allowed: Tensor | None = None
) -> dict[str, Tensor]:
    """Stored transitions of the behaviour and of the learner."""
    train = material.config.train
    share = train.offline_share_start + (train.offline_share_end - train.offline_share_start) * point.progress
    behaviour = round(share * count) if len(learner.replay) else count
    parts = ((material.offline[number], behaviour), (learner.replay, count - behaviour))
    return join_rows([store.draw(size, learner.noise, allowed) for store, size in parts if size > 0])


@no_denormals()
def update_group(
    material: Material,
    learners: Mapping[int, Learner],
    point: UpdatePoint,
    actor: bool,
    measured: bool,
    accepts: Callable[[Batch], bool] = lambda _: True,
) -> list[tuple[Metrics, Tensor | None]]:
    """Take one step of critics, policies and temperatures of the learners of a group.

    Parameters
    ----------
    material : Material
    learners : mapping of Learner
        By their numbers.
    point : UpdatePoint
    actor : bool
        Whether the policies learn too.
    measured : bool
        Measure the critics' share of the actor's gradient, of the first learner.
    accepts : callable, optional
        Returns False for a batch that must not be learned from: nobody in the group takes a step then.

    Returns
    -------
    list of tuple
        Figures of each, none where no step was taken, and the mean of the reward that has a limit.
    """
    config, everyone = material.config, list(learners.values())
    device = material.market.tensors.market.device
    held = [is_held_back(config, one) for one in everyone]
    starts = [draw_start(material, number, one, point) for number, one in learners.items()] if actor else []

    def drawn() -> list[Drawn]:
        return [draw(material, number, one, point) for number, one in learners.items()]

    first = drawn() if any(held) else None  # the actors' part reads the batches as well
    with torch.autocast(device.type, torch.bfloat16, enabled=config.bcell.mixed_precision, cache_enabled=False):
        critics = partial(_critics, everyone, drawn if first is None else lambda: first, point, accepts)
        ahead = None
        if actor:
            actors = partial(_actors, material, everyone, starts, first, point, measured)
            ahead, losses = run_both(actors, critics, device)
        else:
            losses = critics()
    if losses is None:
        return [({}, None) for _ in everyone]
    found: list[tuple[Metrics, Tensor | None]] = []
    for place, one in enumerate(everyone):
        of_critics, coefficients = losses[place]
        metrics = of_critics.metrics | one.agent.step_critics(of_critics.cql_weight) | one.agent.logged(coefficients)
        limited = None
        if ahead is not None:
            own, penalties = ahead[place]
            metrics |= own.metrics | penalties | one.agent.step_policy(own.temperature, point)
            limited = own.constrained
        found.append((metrics, limited))
    return found


def _critics(
    learners: Sequence[Learner],
    drawn: Callable[[], list[Drawn]],
    point: UpdatePoint,
    accepts: Callable[[Batch], bool],
) -> list[tuple[CriticLosses, Coefficients]] | None:
    """Gradients of the learners' critics; None where a batch is not accepted."""
    found, material = [], drawn()
    if not all(accepts(its.batch) for its in material):
        return None
    for one, its in zip(learners, material, strict=True):
        coefficients = Coefficients.of(one.agent, its.batch.actions, its.batch.states, point)
        losses = critics_losses(one.agent, its.batch, its.coverage, its.draws, coefficients, point)
        compute_gradients(losses.loss, one.agent.critic_optimiser)
        found.append((losses, coefficients))
    return found


def _actors(
    material: Material,
    learners: Sequence[Learner],
    starts: Sequence[Start],
    drawn: Sequence[Drawn] | None,
    point: UpdatePoint,
    measured: bool,
) -> list[tuple[Ahead, Metrics]]:
    """Gradients of the learners' policies, and figures of their penalties."""
    config = material.config
    ahead = look_ahead(material.market, learners, starts, point, config)
    loss = -torch.stack([one.earned + one.end for one in ahead]).sum()
    figures: list[Metrics] = [{} for _ in learners]
    for place, one in enumerate(learners if drawn is not None else ()):
        its = (drawn or ())[place]
        decision = one.agent.policy(its.batch.states, starts[place].dropout, least_pull=config.bcell.least_pull)
        penalty, figures[place] = held_back(one.agent, decision, its.batch, point)
        loss = loss + penalty / one.agent.advantage_scale
    if measured:
        figures[0]["end_share"] = _end_share(ahead[0], learners[0])
    compute_gradients(loss, *(one.agent.policy_optimiser for one in learners))
    return list(zip(ahead, figures, strict=True))


def is_held_back(config: Config, learner: Learner) -> bool:
    """Return True where a penalty holds the policy back."""
    weights = (config.bcell.gate_balance, config.bcell.anchor.weight, config.bcell.anchor.final or 0.0)
    return bool(max(*weights, learner.agent.reference_beta) > 0.0)


def _end_share(ahead: Ahead, learner: Learner) -> Tensor:
    """``|g_end| / (|g_rewards| + |g_end|)`` of the two parts of the actor's gradient, ()."""
    parameters = parameters_of(learner.agent.policy_optimiser)
    norms = []
    for part in (ahead.earned, ahead.end):
        slopes = torch.autograd.grad(part, parameters, retain_graph=True, allow_unused=True)
        norms.append(torch.stack([slope.square().sum() for slope in slopes if slope is not None]).sum().sqrt())
    return (norms[1] / (norms[0] + norms[1]).clamp(min=1e-30)).detach()


@torch.no_grad()
def step_portfolios(market: RolloutMarket, learners: Sequence[Learner], config: Config) -> list[dict[str, np.ndarray]]:
    """Move every portfolio of a group by a step of exact decisions drawn from its policy; the transitions of each.

    Portfolios that are ruined on the way have no transitions after that.
    """
    horizon, tensors = max(config.bcell.expansion, 1), market.tensors
    device = tensors.market.device
    states = [one.portfolios.state for one in learners]
    readings = [market.read(one.agent.policy, state, horizon) for one, state in zip(learners, states, strict=True)]
    policies, reading = BatchedPolicies([one.agent.policy for one in learners]), joined_readings(readings, horizon)
    state, count = join_states(states), len(states[0].bar)
    size = (horizon, count, tensors.n_weights - 1)
    noise = torch.cat([torch.randn(size, generator=one.noise, device=device) for one in learners], dim=1)
    rows, steps = len(state.bar), []
    alive = np.ones(rows, dtype=np.bool_)
    before = market.process.observed_portfolio(state)
    universe = universe_of(state)
    drawn = None if universe is None else torch.as_tensor(universe, device=device)
    for h in range(horizon):
        portfolio = tensors.gather_assets(torch.as_tensor(before, dtype=torch.float32, device=device), drawn)
        distribution = decide(policies, portfolio, reading.rows(h * rows, (h + 1) * rows))
        sampled, _ = distribution.sample(noise[h].unsqueeze(1))
        action = tensors.scatter_assets(sampled[:, 0], drawn).cpu().numpy()
        step = market.process.step(state, action.astype(np.float64))
        after = market.process.observed_portfolio(step.state)
        steps.append((alive, state.bar, before, action, step.reward, after, step.terminated))
        alive, state, before = alive & ~step.terminated, step.state, after
    found = []
    names = ("alive", "bar", "portfolio", "action", "reward", "next_portfolio", "terminated")
    stacked = {name: np.stack(parts) for name, parts in zip(names, zip(*steps, strict=True), strict=True)}
    for place, one in enumerate(learners):
        own = slice(place * count, (place + 1) * count)
        one.portfolios.move_on(rows_of(state, own))
        moved = {name: part[:, own] for name, part in stacked.items()}
        if universe is not None:
            moved["universe"] = np.broadcast_to(universe[own], moved["bar"].shape)
        found.append(moved)
    return found
