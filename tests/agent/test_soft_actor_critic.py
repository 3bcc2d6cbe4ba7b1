"""Losses of soft actor-critic, against their formulas written out; schedules and precision of an update."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from finflow.agent.batch import OWN, Batch
from finflow.agent.gradient_steps import no_denormals
from finflow.agent.learners.bcell import LEVEL_RATE, BCell
from finflow.agent.learners.offline_learner import IQL, TD3BC, BehaviourCloning, portfolio_networks
from finflow.agent.learners.soft_actor_critic import Expansion, UpdatePoint, ascent, expanded
from finflow.agent.losses.off_policy_losses import CriticTarget, critic_target, mean_loss
from finflow.agent.losses.quantiles import pinball_loss, truncated_spread
from finflow.agent.networks.critic import NetworkShape, Valuation
from finflow.agent.networks.distributions import log_ratio_entropy
from finflow.agent.networks.layers import EnsembleReadout
from finflow.config import BCellConfig
from tests.agent.conftest import CPU, SMALL, MakeBatch, coverage, generator, make_agent, parameters, with_choices


@pytest.mark.parametrize("horizon", [0, 1, 5])
def test_the_actor_ascends_rewards_entropies_and_the_value_at_the_end(horizon: int) -> None:
    rng = np.random.default_rng(horizon)
    rewards, end = rng.normal(size=(horizon, 4)), rng.normal(size=4)
    log_density = rng.normal(size=(horizon + 1, 4))
    earned, ahead = ascent(
        *(torch.from_numpy(array) for array in (rewards, log_density, end)), torch.tensor(0.3).double(), 0.9
    )
    expected = np.zeros(4)
    for step in range(horizon):
        expected += 0.9**step * (rewards[step] - 0.3 * log_density[step])
    expected -= 0.3 * 0.9**horizon * log_density[horizon]
    # double precision; a coefficient that is written in single precision has an error of 1e-8
    np.testing.assert_allclose(earned, expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(ahead, 0.9**horizon * end, rtol=1e-12)


def test_what_lies_further_ahead_moves_all_targets_of_a_state_alike() -> None:
    """That of the policy's own action becomes what was found; differences stay; others are left alone."""
    rng = np.random.default_rng(4)
    mean, samples = (torch.from_numpy(rng.normal(size=size)) for size in ((5, 4), (2, 5, 4, 3)))
    value, spread, references = (torch.from_numpy(rng.normal(size=size)) for size in (3, (2, 3, 3), 3))
    found = expanded(CriticTarget(mean, samples), Expansion(value, spread, references, 0.25))
    torch.testing.assert_close(found.mean[:3, OWN], value)
    torch.testing.assert_close(found.mean.diff(dim=1), mean.diff(dim=1))
    assert torch.equal(found.mean[3:], mean[3:])
    whole = found.mean[:3] + references.unsqueeze(-1)
    torch.testing.assert_close(found.samples[:, :3], whole.unsqueeze(-1) + spread.unsqueeze(2))
    assert torch.equal(found.samples[:, 3:], samples[:, 3:])
    assert found.weights is not None
    assert found.weights.tolist() == [0.25, 0.25, 0.25, 1.0, 1.0]
    more = expanded(CriticTarget(mean[:2], samples[:, :2]), Expansion(value, spread, None, 0.25))
    torch.testing.assert_close(more.mean[:, OWN], value[:2])  # of the states that there are


def test_the_level_of_all_values_follows_their_mean_error(make_batch: MakeBatch, shape: NetworkShape) -> None:
    """A fifth of it at the beginning, nothing at the end of the schedule; no weight is moved."""
    agent, batch = make_agent(shape), make_batch()
    portfolios = batch.actions.unsqueeze(1)

    def values() -> list[Tensor]:
        states = batch.states
        parts = [one.value(one.encode(states), states, portfolios) for one in (agent.critic, agent.target_critic)]
        return [part.detach() for one in parts for part in (one.mean, one.quantiles)]

    before, weights = values(), [p.detach().clone() for p in agent.critic.parameters()]
    agent.move_level(torch.tensor(3.0), UpdatePoint(0, 10))
    for old, new in zip(before, values(), strict=True):
        torch.testing.assert_close(new - old, torch.full_like(old, LEVEL_RATE * 3.0))
    assert all(torch.equal(a, b) for a, b in zip(weights, agent.critic.parameters(), strict=True))
    level = float(agent.critic.level)
    assert [UpdatePoint(update, 40).progress for update in (0, 10, 40, 90)] == [0.0, 0.25, 1.0, 1.0]
    agent.move_level(torch.tensor(3.0), UpdatePoint(10, 10))
    assert float(agent.critic.level) == level
    for broken in (float("nan"), float("inf"), -float("inf")):
        agent.move_level(torch.tensor(broken), UpdatePoint(0, 10))
    assert float(agent.critic.level) == float(agent.target_critic.level) == level


def values_of(agent: BCell, batch: Batch, part: str, of: str, actions: Tensor) -> Valuation:
    """Values of actions (batch, P, K) in the states or the next states."""
    critic, states = getattr(agent, part), getattr(batch, of)
    with torch.no_grad():
        return critic.value(critic.encode(states), states, actions, actions.shape[1])


def next_draws(agent: BCell, batch: Batch, seed: int, proposals: int = 0) -> tuple[Tensor, Tensor]:
    """The next actions, (batch, 1, K), and the noise of the policy's own, of an update by this generator."""
    noise = generator(seed)
    drawn = torch.randn(16, 4, generator=noise)
    torch.randn(16, proposals, 4, generator=noise)
    with torch.no_grad():
        following = agent.policy(batch.next_states).distribution
        return following.sample(torch.randn(16, 1 + proposals, 4, generator=noise))[0][:, :1], drawn


def with_own_targets(agent: BCell) -> BCell:
    """The same agent with target critics that are not its critics."""
    with torch.no_grad():
        for parameter in agent.target_critic.parameters():
            parameter.mul_(1.5)
    return agent


@pytest.mark.parametrize(("update", "share"), [(0, 0.0), (5, 0.5), (25, 1.0)])
def test_top_quantiles_are_dropped_as_the_phase_proceeds(
    update: int, share: float, shape: NetworkShape, make_batch: MakeBatch
) -> None:
    batch, agent = make_batch(), with_own_targets(make_agent(shape, dropped_quantiles=3))
    actions, _ = next_draws(agent, batch, 3)
    ahead = values_of(agent, batch, "target_critic", "next_states", actions)
    cut = truncated_spread(ahead.spread[:, :, 0], 3)
    assert cut.abs().max() > 1e-3
    least = (ahead.mean[..., 0] + share * cut).min(dim=0).values
    target = batch.rewards + 0.99 * (1.0 - batch.terminated) * least
    own = values_of(agent, batch, "critic", "states", batch.actions.unsqueeze(1)).mean[..., 0]
    metrics = agent.update_sac(batch, None, generator(3), update, actor=False, total=10)
    torch.testing.assert_close(metrics["q_loss"], (own - target).square().mean(dim=1).sum())


@pytest.mark.parametrize("quantiles", [1, 8])
def test_critics_learn_the_published_loss_of_a_batch_of_transitions(
    quantiles: int, shape: NetworkShape, make_batch: MakeBatch
) -> None:
    """And the same, bit for bit, where the batch says that each state has one action, its own."""
    batch, found = make_batch(), []
    plain = with_own_targets(make_agent(shape, n_quantiles=quantiles))
    for told in (batch, batch._replace(choices=batch.outcomes)):
        agent = with_own_targets(make_agent(shape, n_quantiles=quantiles))
        agent.advantage_scale = 0.05  # the unit of differences, of which there are none
        metrics = agent.update_sac(told, None, generator(3), actor=False)
        found.append((metrics, parameters(agent.critic, agent.target_critic)))
    assert torch.equal(found[0][1], found[1][1])
    actions, _ = next_draws(plain, batch, 3)
    ahead = values_of(plain, batch, "target_critic", "next_states", actions)
    own = values_of(plain, batch, "critic", "states", batch.actions.unsqueeze(1))
    target = critic_target(batch, ahead.mean.min(dim=0).values, ahead.spread, 0.99)
    expected = {"q_loss": mean_loss(own.mean[..., 0], target.mean[:, 0]), "q": own.mean.mean()}
    expected["quantile_loss"] = torch.zeros(())
    if quantiles > 1:
        expected["quantile_loss"] = pinball_loss(own.quantiles[:, :, 0], target.samples[:, :, 0])
    for metrics, _ in found:
        for name, value in expected.items():
            torch.testing.assert_close(metrics[name], value, msg=lambda text, name=name: f"{name}: {text}")


def test_the_critics_learn_the_outcomes_of_all_actions(shape: NetworkShape, make_batch: MakeBatch) -> None:
    """Temporal differences, shared and apart, by the critic that values the decisions after a state's actions least."""
    batch, agent = with_choices(make_batch(), 4), with_own_targets(make_agent(shape))
    agent.advantage_scale = 0.5
    choices, noise = batch.outcomes, generator(3)
    torch.randn(16, 4, generator=noise)
    torch.randn(16, 3, 4, generator=noise)  # proposals, of the states alone
    with torch.no_grad():
        following = agent.policy(choices.next_states).distribution
        actions, _ = following.sample(torch.randn(64, 1, 4, generator=noise))
        critic = agent.target_critic
        ahead = critic.value(critic.encode(choices.next_states), choices.next_states, actions).mean[..., 0]
        level = ahead.mean(dim=1)  # without which each values least in some of the states
        critic.mean.bias -= level.view(critic.mean.bias.shape)
        ahead = ahead - level.unsqueeze(1)
    of_states = ahead.view(2, 16, 4)
    least = of_states.mean(dim=-1).argmin(dim=0)
    assert least.unique().tolist() == [0, 1]
    value = of_states[least, torch.arange(16)]
    assert not torch.equal(value, of_states.min(dim=0).values)
    target = choices.rewards + 0.99 * (1.0 - choices.terminated) * value
    error = values_of(agent, batch, "critic", "states", choices.actions).mean - target
    shared = error.mean(dim=-1, keepdim=True)
    metrics = agent.update_sac(batch, coverage(), generator(3), actor=False)
    torch.testing.assert_close(metrics["q_loss"], shared.square().mean(dim=(1, 2)).sum())
    torch.testing.assert_close(metrics["advantage_loss"], (error - shared).square().mean(dim=(1, 2)).sum() / 0.5**2)
    assert "cql_loss" in metrics


def test_the_actor_has_the_entropy_of_weights_and_the_temperature_that_of_log_ratios(
    shape: NetworkShape, make_batch: MakeBatch
) -> None:
    """The first in an eightieth of sigma_A per nat and free dimension; the second against its target."""
    batch, agent = make_batch(), make_agent(shape, target_entropy=0.3)
    agent.advantage_scale = 0.5
    _, drawn = next_draws(agent, batch, 3)
    with torch.no_grad():
        distribution = agent.policy(batch.states).distribution
        actions, log_density = distribution.sample(drawn.unsqueeze(1))
        value = values_of(agent, batch, "critic", "states", actions).mean[..., 0].min(dim=0).values
        of_ratios = distribution.entropy_density(drawn)
    before, alpha = agent.log_alpha.item(), agent.log_alpha.exp().item()
    metrics = agent.update_sac(batch, None, generator(3))
    effective = 0.5 * 0.0125 * alpha
    assert metrics["effective_alpha"].item() == pytest.approx(effective)
    torch.testing.assert_close(metrics["actor_loss"], (effective * log_density[:, 0] / 4 - value).mean())
    assert metrics["entropy"].item() == pytest.approx(-log_density.mean().item(), rel=1e-5)  # float32
    excess = (of_ratios + log_ratio_entropy(0.3, 4)).mean() / 4
    assert agent.log_alpha.grad.item() == pytest.approx(-excess.item(), rel=1e-5)
    assert abs(excess.item() - (log_density.mean().item() + log_ratio_entropy(0.3, 4)) / 4) > 0.1  # two entropies
    assert math.copysign(1.0, agent.log_alpha.item() - before) == math.copysign(1.0, excess.item())


def test_scheduled_coefficients_take_the_place_of_the_configured_ones(
    shape: NetworkShape, make_batch: MakeBatch
) -> None:
    slopes = {}
    for configured, scheduled in ((0.2, None), (0.2, 0.4), (0.4, None)):
        agent = make_agent(shape, target_entropy=configured)
        agent.update_sac(make_batch(), None, generator(3), target=scheduled)
        slopes[configured, scheduled] = agent.log_alpha.grad.item()
    assert slopes[0.2, 0.4] == slopes[0.4, None] != slopes[0.2, None]
    agent = make_agent(shape)
    before = agent.log_alpha.item()
    assert agent.update_sac(make_batch(), None, generator(3), alpha=0.4)["alpha"].item() == pytest.approx(0.4)
    assert agent.log_alpha.item() == before  # the tuned one is left alone


PRODUCTS = ("bmm", "baddbmm", "mm", "addmm")


class Products(TorchDispatchMode):
    """Counts matrix products by the type of their first input."""

    def __init__(self) -> None:
        super().__init__()
        self.count: dict[torch.dtype, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func.overloadpacket.__name__ in PRODUCTS:
            self.count[args[0].dtype] = self.count.get(args[0].dtype, 0) + 1
        return func(*args, **(kwargs or {}))


def test_what_is_read_out_is_in_float32() -> None:
    """A value of 3 in eight bits is known to 1/64, and targets, advantages and slopes are differences of values."""
    readout, hidden = EnsembleReadout(2, 64, generator()), torch.rand(2, 16, 3, 64, generator=generator(1)).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = readout(hidden)
    torch.testing.assert_close(found, readout(hidden.float()), rtol=0.0, atol=0.0)


def test_parameters_moments_and_decisions_stay_in_float32(shape: NetworkShape, make_batch: MakeBatch) -> None:
    agent, batch = make_agent(shape, mixed_precision=True), with_choices(make_batch())
    metrics = agent.update_sac(batch, coverage(), generator(3), 0)
    for part in (agent.policy, agent.critic):
        assert {parameter.dtype for parameter in part.parameters()} == {torch.float32}
        gradients = [parameter.grad for parameter in part.parameters() if parameter.grad is not None]
        assert {gradient.dtype for gradient in gradients} == {torch.float32}
    for state in agent.critic_optimiser.state.values():
        assert state["exp_avg"].dtype == torch.float32
    assert {value.dtype for value in metrics.values()} == {torch.float32}
    with torch.autocast("cpu", torch.bfloat16):
        decision = agent.policy(batch.states)
    assert {part.dtype for part in decision[:6]} == {torch.float32}
    torch.testing.assert_close(decision.experts.sum(-1), torch.ones(16, 5), atol=1e-6, rtol=0)


@pytest.mark.parametrize("method", [BCell, IQL, TD3BC, BehaviourCloning])
def test_products_of_an_update_are_in_bfloat16(method: Any, shape: NetworkShape, make_batch: MakeBatch) -> None:
    """Most of them: experts' mixing, gate, readouts, quantiles and what their gradients need stay in float32."""
    found = {}
    for mixed in (False, True):
        config = BCellConfig(**SMALL, mixed_precision=mixed)
        with Products() as products:
            if method is BCell:
                found[mixed] = make_agent(shape, mixed_precision=mixed).update_sac(make_batch(), coverage())
            else:
                learner = method(portfolio_networks(shape, config, generator()), config, CPU)
                found[mixed] = learner.update(make_batch(), 0.0, generator())
        narrow, wide = products.count.get(torch.bfloat16, 0), products.count.get(torch.float32, 0)
        assert (narrow > wide) if mixed else (narrow == 0 and wide > 0), products.count
    name = "q_loss" if method is BCell else "v_loss"
    assert found[True][name].item() == pytest.approx(found[False][name].item(), rel=0.03)


@pytest.mark.parametrize(
    ("options", "several"),
    [({}, False), ({"dropout": 0.3}, True), ({"mixed_precision": True}, True), ({"risk_measure": "cvar"}, True)],
)
def test_computing_twice_gives_the_same_update(
    options: dict[str, object], several: bool, shape: NetworkShape, make_batch: MakeBatch
) -> None:
    """The same gradients, bit for bit, and the same random numbers afterwards."""
    batch = with_choices(make_batch()) if several else make_batch()
    results, left = [], []
    for twice in (False, True):
        agent, noise = make_agent(shape, gradient_checkpointing=twice, **options), generator(3)
        for update in range(2):
            agent.update_sac(batch, coverage(), noise, update)
        results.append(parameters(agent.policy, agent.critic))
        left.append(torch.rand(4, generator=noise))
    assert torch.equal(*results)
    assert torch.equal(*left)


def kept_bytes(agent: BCell, batch: Batch) -> int:
    """Memory of different tensors that the critic's part of an update keeps for its backward pass."""
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    portfolios = torch.softmax(torch.randn(16, 31, 5, generator=generator(2)), dim=-1)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        encoding = agent.critic.encode(batch.states)
        valuation = agent.critic.value(encoding, batch.states, portfolios)
    inputs = {part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in (*encoding, portfolios)}
    kept |= inputs  # computing again needs these, saved or not
    assert valuation.mean.requires_grad
    return sum(kept.values())


def test_computing_twice_keeps_less(shape: NetworkShape, make_batch: MakeBatch) -> None:
    batch = make_batch()
    once, twice = (
        kept_bytes(make_agent(shape, hidden_dim=64, gradient_checkpointing=option), batch) for option in (False, True)
    )
    assert twice < 0.6 * once, (once, twice)


def test_there_are_no_denormal_numbers_in_an_update_and_elsewhere_there_are() -> None:
    """Also after an update that failed: the ledger's numbers are nobody else's business."""
    with no_denormals():
        assert torch.tensor(1e-40) * 1.0 == 0.0
    assert torch.tensor(1e-40) * 1.0 != 0.0
    with pytest.raises(ArithmeticError), no_denormals():
        raise ArithmeticError
    assert torch.tensor(1e-40) * 1.0 != 0.0
