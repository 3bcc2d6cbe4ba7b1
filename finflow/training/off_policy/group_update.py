"""One update of learners side by side: critics by the outcomes of stored states, actors by exact decisions.

Learners of a group are computed together whatever the number of cores. Both gradients are taken at the same parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from finflow.agent.batch import Batch, States, repeat_groups
from finflow.agent.gradient_steps import compute_gradients, no_denormals
from finflow.agent.learners.soft_actor_critic import (
    Coefficients,
    Draws,
    UpdatePoint,
    critics_losses,
    held_back,
    is_conservative,
)
from finflow.agent.losses.critic_losses import CoverageProposals
from finflow.agent.networks.distributions import LogisticNormal
from finflow.agent.networks.policy_ensemble import BatchedPolicies, joined_readings
from finflow.config import Config
from finflow.env.coverage import coverage_portfolios, draw_log_gammas
from finflow.env.portfolio_state import join_states, rows_of
from finflow.training.data.replay import join_rows, make_batch
from finflow.training.data.rollouts import RolloutMarket, decide
from finflow.training.off_policy.exact_decisions import (
    ACTIONS,
    Ahead,
    Comparison,
    Start,
    counterfactual_batch,
    look_ahead,
)
from finflow.training.off_policy.learners import Learner

COVERAGE_POOL = 65_536


class CoveragePool:
    """Portfolios that cover the simplex, drawn once, as proposals for CQL."""

    def __init__(self, seed: int, n_weights: int, device: torch.device) -> None:
        rng = np.random.default_rng(np.random.SeedSequence([seed, 6]))
        self.log_gamma = draw_log_gammas(rng, COVERAGE_POOL, n_weights)
        portfolios, log_density = coverage_portfolios(self.log_gamma)
        self.portfolios = torch.from_numpy(portfolios).float().to(device)
        self.log_density = torch.from_numpy(log_density).float().to(device)

    def draw(self, states: States, proposals: int, generator: Generator) -> CoverageProposals:
        """Proposals for a batch of states, of the assets that are listed in each."""
        batch, device = len(states.portfolio), self.portfolios.device
        places = torch.randint(COVERAGE_POOL, (batch, proposals), generator=generator, device=device)
        if states.complete:
            return CoverageProposals(self.portfolios[places], self.log_density[places])
        listed = repeat_groups(states.listed, states).unsqueeze(1).expand(-1, proposals, -1).cpu().numpy()
        drawn = coverage_portfolios(self.log_gamma[places.cpu().numpy()], listed)
        return CoverageProposals(*(torch.from_numpy(part).float().to(device) for part in drawn))


Metrics = dict[str, Tensor]
FIRST_SHARE, LAST_SHARE = 0.75, 0.25  # of the behaviour's data in the first and the last batch


class Material(NamedTuple):
    """Data that the learners of a training share; ``market``: with their mirrored bars."""

    market: RolloutMarket
    coverage: CoveragePool
    config: Config


class Drawn(NamedTuple):
    """States that one learner learns from, with all random numbers.

    ``own``: the policy's decisions in its states, where they are known. ``start``: portfolios that the actor looks
    ahead from, where it learns: the first states of the batch among them.
    """

    batch: Batch
    own: LogisticNormal | None
    coverage: CoverageProposals
    draws: Draws
    start: Start | None


def draw(material: Material, learner: Learner, point: UpdatePoint, actor: bool) -> Drawn:
    """Draw states of the behaviour and of the learner's own, their shares annealed.

    The actor decides as often as critics have transitions: it looks ahead from ``online_batch_size / H`` states.
    """
    config, market = material.config, material.market
    bcell, size, noise = config.bcell, config.train.online_batch_size, config.train.observation_noise
    count = max(size // (ACTIONS if bcell.counterfactual else 1), 2)  # each action is a transition
    starts = max(size // max(bcell.expansion, 1), 1) if actor else 0
    may_start = torch.from_numpy(learner.portfolios.may_start).to(learner.noise.device)
    rows = _mixed(learner, starts, point, may_start) if starts else {}
    if count > starts:
        others = _mixed(learner, count - starts, point)
        rows = join_rows([rows, others]) if rows else others
    state = market.resumed(rows)
    start = Start.of(market, learner, rows_of(state, slice(starts)), config) if starts else None
    rows, own = {name: column[:count] for name, column in rows.items()}, None
    if bcell.counterfactual:
        compared = Comparison(learner.agent.policy, learner.portfolios.rng, learner.noise, learner.portfolios.mirror)
        batch, own = counterfactual_batch(market, rows, rows_of(state, slice(count)), compared, noise)
    else:
        batch = make_batch(rows, market.tensors, market.units, learner.noise, noise)
    coverage = material.coverage.draw(batch.states, bcell.cql_samples, learner.noise)
    draws = Draws.of(learner.agent, batch, learner.noise, is_conservative(bcell, coverage))
    return Drawn(batch, own, coverage, draws, start)


def _mixed(learner: Learner, count: int, point: UpdatePoint, allowed: Tensor | None = None) -> dict[str, Tensor]:
    share = FIRST_SHARE + (LAST_SHARE - FIRST_SHARE) * point.progress
    behaviour = round(share * count) if len(learner.replay) else count
    parts = ((learner.behaviour, behaviour), (learner.replay, count - behaviour))
    return join_rows([store.draw(size, learner.noise, allowed) for store, size in parts if size > 0])


@no_denormals()
def update_group(
    material: Material,
    learners: Sequence[Learner],
    point: UpdatePoint,
    actor: bool,
    accepts: Callable[[Batch], bool] = lambda _: True,
) -> list[Metrics]:
    """Take one step of critics, policies and temperatures of the learners of a group.

    Where ``accepts`` refuses a batch, nobody in the group takes a step.

    Returns figures of each; none where no step was taken.
    """
    config, device = material.config, material.market.tensors.market.device
    drawn = [draw(material, one, point, actor) for one in learners]
    if not all(accepts(its.batch) for its in drawn):
        return [{} for _ in learners]
    with torch.autocast(device.type, torch.bfloat16, enabled=config.bcell.mixed_precision, cache_enabled=False):
        ahead = _actors(material, learners, drawn, point) if actor else None
        losses = []
        for place, (one, its) in enumerate(zip(learners, drawn, strict=True)):
            coefficients = Coefficients.of(one.agent, its.batch.actions, its.batch.states, point)
            expansion = None if ahead is None else ahead[place][0].expansion
            of_critics = critics_losses(
                one.agent, its.batch, its.coverage, its.draws, coefficients, point, None, its.own, expansion
            )
            compute_gradients(of_critics.loss, one.agent.critic_optimiser)
            losses.append((of_critics, coefficients))
    found: list[Metrics] = []
    for place, (one, (of_critics, coefficients)) in enumerate(zip(learners, losses, strict=True)):
        if of_critics.level_error is not None:
            one.agent.move_level(of_critics.level_error, point)
        metrics = of_critics.metrics | one.agent.step_critics(of_critics.cql_weight) | one.agent.logged(coefficients)
        if ahead is not None:
            own, penalties = ahead[place]
            metrics |= own.metrics | penalties | one.agent.step_policy(own.temperature, point)
        found.append(metrics)
    return found


def _actors(
    material: Material, learners: Sequence[Learner], drawn: Sequence[Drawn], point: UpdatePoint
) -> list[tuple[Ahead, Metrics]]:
    config = material.config
    starts = [its.start for its in drawn if its.start is not None]
    ahead = look_ahead(material.market, learners, starts, point, config)
    loss = -torch.stack([one.earned + one.end for one in ahead]).sum()
    figures: list[Metrics] = [{} for _ in learners]
    for place, (one, its) in enumerate(zip(learners, drawn, strict=True)):
        if max(config.bcell.anchor.weight, config.bcell.anchor.final or 0.0) == 0.0:  # no anchor
            break
        decision = one.agent.policy(its.batch.states, starts[place].dropout)
        penalty, figures[place] = held_back(one.agent, decision, its.batch, point)
        loss = loss + penalty / one.agent.advantage_scale
    compute_gradients(loss, *(one.agent.policy_optimiser for one in learners))
    return list(zip(ahead, figures, strict=True))


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
    for h in range(horizon):
        portfolio = torch.as_tensor(before, dtype=torch.float32, device=device)
        distribution = decide(policies, portfolio, reading.rows(h * rows, (h + 1) * rows))
        sampled, _ = distribution.sample(noise[h].unsqueeze(1))
        action = sampled[:, 0].cpu().numpy()
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
        found.append({name: part[:, own] for name, part in stacked.items()})
    return found
