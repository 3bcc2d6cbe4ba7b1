"""The mean of the critic is scalar IQL's critic: the quantiles reach it through shared layers, and in no other way."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from finflow.agent.batch import Batch
from finflow.agent.learners.iql import IQL
from finflow.agent.learners.offline_learner import portfolio_networks
from finflow.agent.losses.losses import mean_loss
from finflow.agent.losses.pinball import pinball_loss
from finflow.agent.networks.critic import CriticEnsemble, NetworkShape
from finflow.config import BCellConfig

MakeBatch = Callable[..., Batch]
# no gradient is shortened: its norm is over the whole critic, so that quantiles would scale the step of the mean
CONFIG = BCellConfig(hidden_dim=32, n_quantiles=8, gradient_norm=1e9)


def learner_of(shape: NetworkShape, quantile_weight: float) -> IQL:
    """IQL from the same weights each time but for the quantiles' own, which are multiplied."""
    networks = portfolio_networks(shape, CONFIG, torch.Generator().manual_seed(0))
    learner = IQL(networks, CONFIG, torch.device("cpu"))
    with torch.no_grad():
        for critic in (learner.critic, learner.target_critic):
            for parameter in critic.quantiles.parameters():
                parameter *= quantile_weight
    return learner


def parameters(network: nn.Module, of: str = "") -> dict[str, torch.Tensor]:
    """Parameters whose names begin so."""
    return {name: tensor for name, tensor in network.state_dict().items() if name.startswith(of)}


def equal(ours: nn.Module, theirs: nn.Module, of: str = "") -> bool:
    """Whether these parameters are the same bit for bit."""
    found = parameters(theirs, of)
    return all(torch.equal(tensor, found[name]) for name, tensor in parameters(ours, of).items())


@pytest.fixture
def gradients(shape: NetworkShape, make_batch: MakeBatch) -> Callable[[bool, bool], dict[str, torch.Tensor]]:
    """Gradients of a critic: ``gradients(with_mean, with_quantiles)``; zero where none arrives."""
    batch = make_batch()

    def gradients(with_mean: bool, with_quantiles: bool) -> dict[str, torch.Tensor]:
        critic = CriticEnsemble(shape, 8, torch.Generator().manual_seed(0))
        valuation = critic.value(critic.encode(batch.states), batch.states, batch.actions.unsqueeze(1))
        samples = torch.randn(2, len(batch.rewards), 8, generator=torch.Generator().manual_seed(1))
        loss = torch.zeros(())
        if with_mean:
            loss = loss + mean_loss(valuation.mean[..., 0], batch.rewards)
        if with_quantiles:
            loss = loss + pinball_loss(valuation.quantiles[:, :, 0], samples)
        loss.backward()
        return {
            name: torch.zeros_like(weight) if weight.grad is None else weight.grad
            for name, weight in critic.named_parameters()
        }

    return gradients


def test_the_readout_of_the_mean_has_the_same_gradient_with_and_without_quantiles(
    gradients: Callable[[bool, bool], dict[str, torch.Tensor]],
) -> None:
    both, scalar, spread = gradients(True, True), gradients(True, False), gradients(False, True)
    for name in both:
        if name.startswith("mean."):
            assert torch.equal(both[name], scalar[name])
            assert not spread[name].any()
        elif name.startswith("quantiles."):
            assert not scalar[name].any()
            assert both[name].any()
        else:  # shared layers: the sum of what either head asks for
            torch.testing.assert_close(both[name], scalar[name] + spread[name], rtol=1e-4, atol=1e-6)
    assert any(not torch.equal(both[name], scalar[name]) for name in both if name.startswith("head."))


def test_quantiles_reach_neither_v_nor_the_policy_nor_the_readout_of_the_mean(
    shape: NetworkShape, make_batch: MakeBatch
) -> None:
    batch = make_batch()
    plain, loud = learner_of(shape, 1.0), learner_of(shape, 5.0)
    first, second = (learner.update(batch, 0.0, torch.Generator()) for learner in (plain, loud))
    for name in ("v_loss", "q_loss", "policy_loss", "expert_loss", "q", "advantage"):
        assert torch.equal(first[name], second[name]), name
    assert not torch.equal(first["quantile_loss"], second["quantile_loss"])
    assert equal(plain.value, loud.value)
    assert equal(plain.policy, loud.policy)
    assert equal(plain.critic, loud.critic, "mean.")
    assert equal(plain.target_critic, loud.target_critic, "mean.")
    assert not equal(plain.critic, loud.critic, "head.")  # shared with the quantiles, and moved by them
