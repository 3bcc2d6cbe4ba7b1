"""IQL and the B-Cell: what an update does, and that both learn where the answer is known."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

import pytest
import torch

from finflow.agent.batch import Batch, States
from finflow.agent.learners.bcell import BCell
from finflow.agent.learners.iql import IQL
from finflow.agent.learners.offline_learner import BehaviourCloning, BehaviourValues, portfolio_networks
from finflow.agent.learners.soft_actor_critic import minimum_value
from finflow.agent.learners.td3bc import TD3BC
from finflow.agent.networks.critic import NetworkShape
from finflow.config import AnchorConfig, BCellConfig
from tests.agent import helpers
from tests.agent.helpers import CPU, coverage, generator

MakeBatch = Callable[..., Batch]
CONFIG = BCellConfig(hidden_dim=32, n_quantiles=8, cql_samples=3, iql_extraction="awr")


def make_iql(shape: NetworkShape, config: BCellConfig = CONFIG) -> IQL:
    return helpers.make_iql(shape, config)


def test_seeding_is_exact(shape: NetworkShape, make_batch: MakeBatch) -> None:
    batch, iql = make_batch(), make_iql(shape)
    for _ in range(3):
        iql.update(batch, 0.5, generator())
    iql.advantage_scale = 0.05
    agent = BCell(shape, CONFIG, generator(9), CPU)
    agent.seed_from(iql)
    assert agent.advantage_scale == 0.05
    actions = batch.actions.unsqueeze(1)
    with torch.no_grad():
        assert torch.equal(agent.policy(batch.states).centre, iql.policy(batch.states).centre)
        for part in ("critic", "target_critic"):
            ours, theirs = getattr(agent, part), getattr(iql, part)
            first = ours.value(ours.encode(batch.states), batch.states, actions)
            second = theirs.value(theirs.encode(batch.states), batch.states, actions)
            assert torch.equal(first.mean, second.mean)
            assert torch.equal(first.quantiles, second.quantiles)


def test_transitions_of_one_bar_learn_the_same_from_one_row_of_the_market_as_from_copies(
    shape: NetworkShape, make_batch: MakeBatch
) -> None:
    copies = make_batch()
    markets = torch.arange(32).view(2, 4, 4)[:, :, :1].flatten()  # groups of four, the states' and the next ones'
    assets, market = copies.both.assets[markets], copies.both.market[markets]
    grouped = copies._replace(both=copies.both._replace(assets=assets, market=market))
    repeated = copies._replace(
        both=copies.both._replace(assets=assets.repeat_interleave(4, 0), market=market.repeat_interleave(4, 0))
    )
    assert grouped.states.group_size == 4
    for method in (IQL, TD3BC, BehaviourCloning):
        one, other = (
            method(portfolio_networks(shape, CONFIG, generator()), CONFIG, CPU).update(batch, 0.3, generator(2))
            for batch in (grouped, repeated)
        )
        for name, value in one.items():  # sums in another order: float32
            torch.testing.assert_close(value, other[name], rtol=1e-4, atol=1e-6, msg=f"{method.__name__} {name}")


def test_cloning_is_iql_without_preference(shape: NetworkShape, make_batch: MakeBatch) -> None:
    batch, indifferent = make_batch(), CONFIG.model_copy(update={"iql_temperature": 0.0})
    one = make_iql(shape, indifferent)
    other = BehaviourCloning(portfolio_networks(shape, CONFIG, generator()), CONFIG, CPU)
    one.update(batch, 0.0, generator())
    other.update(batch, 0.0, generator())
    for ours, theirs in zip(one.policy.parameters(), other.policy.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_td3bc_moves_the_policy_at_every_second_update(shape: NetworkShape, make_batch: MakeBatch) -> None:
    learner = TD3BC(portfolio_networks(shape, CONFIG, generator()), CONFIG, CPU)
    before = learner.policy.gate.weight.detach().clone()
    learner.update(make_batch(), 0.0, generator())
    assert torch.equal(learner.policy.gate.weight, before)
    learner.update(make_batch(), 0.0, generator())
    assert not torch.equal(learner.policy.gate.weight, before)


def test_critics_learn_the_same_with_the_actor_and_without_which_leaves_the_policy_alone(
    shape: NetworkShape, make_batch: MakeBatch
) -> None:
    learned = []
    for actor in (True, False):
        agent = BCell(shape, CONFIG, generator(), CPU)
        before = helpers.parameters(agent.policy), helpers.parameters(agent.critic)
        agent.update_sac(make_batch(), coverage(16, 5), generator(3), 0, actor=actor)
        assert torch.equal(helpers.parameters(agent.policy), before[0]) is not actor
        assert not torch.equal(helpers.parameters(agent.critic), before[1])
        learned.append(helpers.parameters(agent.critic))
    assert torch.equal(*learned)


def test_the_actor_gradient_equals_backpropagation_through_the_critic(
    shape: NetworkShape, make_batch: MakeBatch
) -> None:
    agent, states = BCell(shape, CONFIG, generator(), CPU), make_batch().states
    noise = torch.randn(16, 1, 4, generator=generator(1))
    encoding = agent.critic.encode(states).detach()

    def gradient(direct: bool) -> torch.Tensor:
        agent.policy.zero_grad()
        drawn, _ = agent.policy(states).distribution.sample(noise)
        if direct:
            value = agent.critic.value(encoding, states, drawn).mean[..., 0].min(dim=0).values
        else:
            value = minimum_value(agent.critic, encoding, states, drawn[:, 0], agent.config)
        value.sum().backward()
        return torch.cat([p.grad.flatten() for p in agent.policy.parameters() if p.grad is not None])

    torch.testing.assert_close(gradient(direct=False), gradient(direct=True), rtol=1e-4, atol=1e-7)


def bandit(batch: Batch, portfolio: torch.Tensor) -> torch.Tensor:
    """Reward of a one-step problem: whatever is held of the asset with the highest first feature pays one."""
    best = batch.states.assets[..., 0].argmax(dim=1)
    return portfolio.gather(1, best.unsqueeze(1)).squeeze(1)


@pytest.mark.timeout(120)
def test_both_phases_learn_to_hold_the_asset_that_pays(make_batch: MakeBatch) -> None:
    shape = NetworkShape(7, 4, 32, ((0,), (0, 2), (0, 3), (0, 4), (0, 5)))
    sizes = {"hidden_dim": 32, "n_quantiles": 4, "cql_samples": 1, "actor_lr": 1e-2, "critic_lr": 1e-2}
    free = {"cql_alpha": 0.01, "alpha_init": 0.01, "alpha_mode": "fixed", "anchor": AnchorConfig(weight=0.0)}
    config = BCellConfig(**sizes, **free, iql_temperature=30.0)
    iql = make_iql(shape, config)
    test = make_batch(256, 4, seed=10_000)

    def value(policy: torch.nn.Module, states: States) -> float:
        with torch.no_grad():
            return bandit(test, policy(states).distribution.centre()).mean().item()

    def data(seed: int) -> Batch:
        batch = make_batch(64, 4, seed=seed)
        return batch._replace(rewards=bandit(batch, batch.actions), terminated=torch.ones(64))

    untrained = value(iql.policy, test.states)
    for update in range(300):
        iql.update(data(update), 0.0, generator())
    offline = value(iql.policy, test.states)
    behaviour = bandit(test, test.actions).mean().item()
    agent = BCell(shape, config, generator(1), CPU)
    agent.seed_from(iql)
    for update in range(100):
        agent.update_sac(data(1000 + update), coverage(64, 5, 1), generator(update), update)
    online = value(agent.policy, test.states)
    # all of the best asset pays 1, a random portfolio 0.2; seen: 0.45 after IQL, 0.91 at the end
    assert untrained < 0.25
    assert offline > behaviour + 0.08
    assert online > 0.85


def test_quantiles_reach_neither_v_nor_the_policy_nor_the_readout_of_the_mean(
    shape: NetworkShape, make_batch: MakeBatch
) -> None:
    """The mean of the critic is scalar IQL's critic: layers that it shares with the quantiles apart."""
    # no gradient is shortened: its norm is over the whole critic, so that quantiles would scale the step of the mean
    config = CONFIG.model_copy(update={"gradient_norm": 1e9})
    plain, loud = (make_iql(shape, config) for _ in range(2))
    with torch.no_grad():
        for critic in (loud.critic, loud.target_critic):
            critic.quantiles.weight *= 5.0
    found = [learner.update(make_batch(), 0.0, generator()) for learner in (plain, loud)]
    for name in ("v_loss", "q_loss", "policy_loss", "expert_loss", "q", "advantage"):
        assert torch.equal(found[0][name], found[1][name]), name
    assert not torch.equal(found[0]["quantile_loss"], found[1]["quantile_loss"])
    for part in ("value", "policy", "critic.mean", "target_critic.mean", "critic.head"):
        ours, theirs = (helpers.parameters(attrgetter(part)(learner)) for learner in (plain, loud))
        assert torch.equal(ours, theirs) is (part != "critic.head"), part


def test_without_a_method_critics_alone_are_fitted(shape: NetworkShape, make_batch: MakeBatch) -> None:
    """As behaviour cloning fits them, bit for bit; the policy keeps its initial weights."""
    learners = [
        method(portfolio_networks(shape, CONFIG, generator()), CONFIG, CPU)
        for method in (BehaviourCloning, BehaviourValues)
    ]
    untouched = helpers.parameters(learners[1].policy).clone()
    for learner in learners:
        for step in range(3):
            learner.update(make_batch(), step / 3, generator(step))
    cloning, alone = learners
    parts = ("critic", "target_critic", "value")
    of_each = [helpers.parameters(*(getattr(one, part) for part in parts)) for one in learners]
    assert torch.equal(*of_each)
    assert torch.equal(helpers.parameters(alone.policy), untouched)
    assert not torch.equal(helpers.parameters(cloning.policy), untouched)
