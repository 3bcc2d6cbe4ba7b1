"""An asset that is not listed has no part in a decision, a density, an entropy or a loss.

The measure of it: states with two more assets, neither of them listed, give every learner the numbers of the states
without.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from finflow.agent.batch import Batch, States
from finflow.agent.learners import bcell, soft_actor_critic
from finflow.agent.learners.offline_learner import IQL, TD3BC, BehaviourCloning, portfolio_networks
from finflow.agent.losses.off_policy_losses import CoverageProposals
from finflow.agent.networks.critic import NetworkShape
from finflow.agent.networks.distributions import LogisticNormal, kl_per_dimension, log_ratio_entropy, log_ratios
from finflow.agent.networks.policy import ExpertPolicy
from finflow.agent.networks.policy_ensemble import PolicyEnsemble
from finflow.config import BCellConfig
from tests.agent.conftest import CPU, SMALL, MakeBatch, coverage, generator, make_agent, with_choices

MORE, FIRST = 2, 1  # assets that are not listed, and the place of the first of them among the others


def wider(weights: Tensor, value: float = 0.0) -> Tensor:
    """Columns of assets that are not listed among those of the others."""
    added = weights.new_full((*weights.shape[:-1], MORE), value)
    return torch.cat([weights[..., :FIRST], added, weights[..., FIRST:]], dim=-1)


def wider_states(states: States) -> States:
    added = torch.zeros(len(states.assets), MORE, states.assets.shape[2])
    assets = torch.cat([states.assets[:, :FIRST], added, states.assets[:, FIRST:]], dim=1)
    return States(assets, states.market, wider(states.portfolio), complete=False)


def wider_batch(batch: Batch) -> Batch:
    actions, following, choices = wider(batch.actions), wider(batch.next_actions), batch.choices
    if choices is not None:
        choices = choices._replace(actions=wider(choices.actions), next_states=wider_states(choices.next_states))
    return batch._replace(both=wider_states(batch.both), actions=actions, next_actions=following, choices=choices)


def complete(batch: Batch) -> Batch:
    return batch._replace(both=batch.both._replace(complete=True))


def same_draws(shape: tuple[int, ...], generator: object, like: Tensor) -> Tensor:
    """In place of draws: the same numbers for the listed assets, however many others there are."""
    noise = torch.randn(*shape[:-1], 4, generator=torch.Generator().manual_seed(len(shape)))
    return noise if shape[-1] == 4 else wider(noise, 1.0)


def agree(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, rtol=2e-4, atol=2e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_the_policy_decides_as_without_them(shape: NetworkShape, make_batch: MakeBatch) -> None:
    policy, states = ExpertPolicy(shape, generator()), complete(make_batch()).states
    for decider in (policy, PolicyEnsemble([policy, ExpertPolicy(shape, generator(1))])):
        with torch.no_grad():
            narrow, wide = decider(states).distribution, decider(wider_states(states)).distribution
        torch.testing.assert_close(wide.centre(), wider(narrow.centre()), rtol=1e-4, atol=1e-6)
        assert (wide.centre()[:, FIRST : FIRST + MORE] == 0.0).all()
        assert torch.equal(wide.dimensions, torch.full((16,), 4.0))
        noise = torch.randn(16, 3, 4, generator=generator(2))
        drawn, density = wide.sample(wider(noise, 3.0))
        expected, expected_density = narrow.sample(noise)
        torch.testing.assert_close(drawn, wider(expected), rtol=1e-4, atol=1e-6)
        assert (drawn[..., FIRST : FIRST + MORE] == 0.0).all()
        torch.testing.assert_close(density, expected_density, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(
            wide.log_density(drawn[:, 0]), narrow.log_density(expected[:, 0]), rtol=1e-4, atol=1e-3
        )
        torch.testing.assert_close(
            wide.entropy_density(wider(noise[:, 0], 3.0)), narrow.entropy_density(noise[:, 0]), rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("learner", [IQL, TD3BC, BehaviourCloning])
def test_offline_learners_learn_the_same(
    learner: Any, shape: NetworkShape, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, batch = BCellConfig.model_validate(SMALL), complete(make_batch())
    pair = [learner(portfolio_networks(shape, config, generator()), config, CPU) for _ in range(2)]
    monkeypatch.setattr("finflow.agent.learners.offline_learner.standard_normal", same_draws)
    for _ in range(2):
        narrow, wide = (
            one.update(data, 0.0, generator()) for one, data in zip(pair, (batch, wider_batch(batch)), strict=True)
        )
        agree(wide, narrow)
    for one, other in zip(pair[0].policy.parameters(), pair[1].policy.parameters(), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("changes", [{}, {"cql_mode": "lagrange"}, {"entropy_backup": "relative"}], ids=str)
def test_the_online_update_learns_the_same(
    changes: dict[str, Any], several: bool, shape: NetworkShape, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Densities, entropy and its target, CQL's proposals, anchors: one update of soft actor-critic."""
    for module in (bcell, soft_actor_critic):
        monkeypatch.setattr(module, "standard_normal", same_draws)
    batch, settings = complete(make_batch()), {"anchor": {"weight": 0.3}, **changes}
    batch, proposals = with_choices(batch) if several else batch, coverage()
    wide_proposals = CoverageProposals(wider(proposals.portfolios), proposals.log_density)
    without, with_others = (make_agent(shape, **settings) for _ in range(2))
    for _ in range(2):
        narrow = without.update_sac(batch, proposals, generator(1), 0)
        agree(with_others.update_sac(wider_batch(batch), wide_proposals, generator(1), 0), narrow)
    assert with_others.log_alpha.item() == pytest.approx(without.log_alpha.item(), abs=1e-6)


def test_the_entropy_of_the_next_decision_is_compared_with_the_target_of_what_is_listed_then(
    shape: NetworkShape, make_batch: MakeBatch
) -> None:
    """An asset that ends after every state takes a dimension of the entropy and of its target with it."""
    batch = make_batch()
    batch.both.assets[16:, 2] = 0.0
    losses = {}
    for backup in ("none", "relative"):
        agent = make_agent(shape, entropy_backup=backup)
        metrics = agent.update_sac(batch, None, generator(3), actor=False, alpha=8.0)
        losses[backup] = metrics["q_loss"]
    reference, noise = make_agent(shape), generator(3)
    torch.randn(16, 4, generator=noise)  # of the policy's part
    drawn = torch.randn(16, 1, 4, generator=noise)[:, 0]
    with torch.no_grad():
        following = reference.policy(batch.next_states).distribution
        over = (-following.entropy_density(drawn) - log_ratio_entropy(0.2, 3)) / 3
        bonus = 8.0 * reference.policy.entropy_unit * over
        held = batch._replace(rewards=batch.rewards + 0.99 * (1.0 - batch.terminated) * bonus)
    told = make_agent(shape).update_sac(held, None, generator(3), actor=False)
    torch.testing.assert_close(losses["relative"], told["q_loss"])  # the bonus of the target, handed over as reward
    assert abs(losses["relative"] - losses["none"]) > 1e-3


def test_a_proposal_of_the_next_state_has_no_weight_where_listings_change(
    shape: NetworkShape, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lies on another simplex than the state's: moving it elsewhere changes nothing."""
    batch, seen = make_batch(), []
    batch.both.assets[16:20, 2] = 0.0  # ends after the first four states
    original = soft_actor_critic.conservative_penalty

    def recorded(values: Tensor, proposals: CoverageProposals, *others: Any) -> Any:
        seen.append(proposals.log_density)
        return original(values, proposals, *others)

    monkeypatch.setattr(soft_actor_critic, "conservative_penalty", recorded)
    metrics = make_agent(shape).update_sac(batch, coverage(), generator(1), 0)
    assert torch.isinf(seen[0][:4, -3:]).all()
    assert torch.isfinite(seen[0][4:]).all()
    assert torch.isfinite(seen[0][:, :-3]).all()
    assert all(math.isfinite(float(value)) for value in metrics.values())


def test_on_policy_densities_entropies_and_divergences_are_those_without_them(
    shape: NetworkShape, make_batch: MakeBatch
) -> None:
    own, other = (ExpertPolicy(shape, generator(seed)) for seed in (0, 1))
    states = complete(make_batch()).states
    with torch.no_grad():
        narrow, wide = own(states).distribution, own(wider_states(states)).distribution
        reference = other(states).distribution, other(wider_states(states)).distribution
    drawn = narrow.draw_action(generator(2))
    torch.testing.assert_close(wide.log_prob(wider(drawn, 7.0)), narrow.log_prob(drawn), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(wide.entropy(), narrow.entropy(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(wide.kl(reference[1]), narrow.kl(reference[0]), rtol=1e-4, atol=1e-4)
    assert torch.equal(wide.rows(torch.tensor([3, 5])).dimensions, torch.full((2,), 4.0))
    portfolio = LogisticNormal(wide.draw_action(generator(3)), wide.log_scale, wide.listed).centre()
    assert (portfolio[:, FIRST : FIRST + MORE] == 0.0).all()


def test_a_divergence_is_counted_over_the_dimensions_of_each_state() -> None:
    listed = torch.tensor([[True, False, True], [True, True, True], [False, False, False]])
    equal = torch.full((3, 4), 0.25)
    scale = torch.full((3, 3), math.log(0.5))
    one, other = (LogisticNormal(log_ratios(equal, listed), scale + more, listed) for more in (0.0, math.log(2.0)))
    expected = 0.5 * (0.25 - 1.0) + math.log(2.0)
    torch.testing.assert_close(kl_per_dimension(one, other), torch.tensor([expected, expected, 0.0]))
    assert torch.equal(one.centre()[2], torch.tensor([0.0, 0.0, 0.0, 1.0]))  # nothing to hold but cash
    assert torch.isfinite(one.log_density(equal)).all()
