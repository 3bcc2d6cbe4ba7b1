"""Parameters after 1 and after 100 updates of IQL, against a reference written from the paper.

Kostrikov, Nair and Levine (2022), algorithm 1, in float64. Of finflow the reference takes what it is not about: the
forward passes of the networks, which are copies, and the batch. Losses, densities, schedule, clipping, Adam and target
updates are written out below.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from finflow.agent.batch import Batch, States
from finflow.agent.learners.offline_learner import IQL, portfolio_networks
from finflow.agent.networks.critic import NetworkShape
from finflow.agent.networks.decision import FAMILY_RATE
from finflow.config import BCellConfig
from tests.agent.conftest import MakeBatch

UPDATES = 100
CONFIG = BCellConfig(
    hidden_dim=16,
    n_quantiles=4,
    actor_lr=3e-3,
    critic_lr=2e-3,
    iql_expectile=0.9,
    iql_temperature=4.0,
    iql_extraction="awr",
    tau=0.05,
    gradient_norm=0.1,  # short enough that clipping is at work
)


class Adam:
    """Kingma and Ba (2015), algorithm 1, on gradients cut to a norm over all parameters together."""

    def __init__(self, parameters: list[nn.Parameter], longest: float) -> None:
        self.parameters, self.longest, self.time, self.cuts = parameters, longest, 0, 0
        self.first = [torch.zeros_like(parameter) for parameter in parameters]
        self.second = [torch.zeros_like(parameter) for parameter in parameters]

    def gradient_step(self, loss: Tensor, rate: float) -> None:
        """One step; parameters that the loss does not reach stay where they are."""
        self.step(self.gradient(loss), rate)

    def gradient(self, loss: Tensor) -> tuple[Tensor | None, ...]:
        """Of a loss, by parameter; none where it does not reach."""
        return torch.autograd.grad(loss, self.parameters, allow_unused=True)

    def step(self, gradients: tuple[Tensor | None, ...], rate: float) -> None:
        """Cut the gradient and move."""
        norm = math.sqrt(sum(float((g * g).sum()) for g in gradients if g is not None))
        # torch divides by the norm and 1e-6, and so do we
        factor = min(self.longest / (norm + 1e-6), 1.0)
        self.cuts += factor < 1.0
        self.time += 1
        with torch.no_grad():
            for place, gradient in enumerate(gradients):
                if gradient is None:
                    continue
                self.first[place] = 0.9 * self.first[place] + 0.1 * factor * gradient
                self.second[place] = 0.999 * self.second[place] + 0.001 * (factor * gradient) ** 2
                mean = self.first[place] / (1.0 - 0.9**self.time)
                square = self.second[place] / (1.0 - 0.999**self.time)
                self.parameters[place] -= rate * mean / (square.sqrt() + 1e-8)


class Reference:
    """IQL on copies of a learner's networks."""

    def __init__(self, learner: IQL) -> None:
        self.policy, self.critic = copy.deepcopy(learner.policy), copy.deepcopy(learner.critic)
        self.value, self.target = copy.deepcopy(learner.value), copy.deepcopy(learner.target_critic)
        longest = CONFIG.gradient_norm
        self.policy_step = Adam(list(self.policy.parameters()), longest)
        self.critic_step = Adam(list(self.critic.parameters()), longest)
        self.value_step = Adam([*self.value.encoder.parameters(), *self.value.own.parameters()], longest)
        self.behaviour_step = Adam(list(self.value.behaviour.parameters()), longest)

    def values(self, network: Any, states: States, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Means (E, B) and quantiles (E, B, n) of the critics."""
        valuation = network.value(network.encode(states), states, actions.unsqueeze(1))
        return valuation.mean[:, :, 0], valuation.quantiles[:, :, 0]

    def update(self, batch: Batch, progress: float) -> None:
        """Algorithm 1: V, then the policy, then Q, then the targets."""
        states, following, gamma = batch.states, batch.next_states, CONFIG.gamma
        alive = 1.0 - batch.terminated
        with torch.no_grad():
            data = self.values(self.target, states, batch.actions)[0].amin(dim=0)
            ahead = self.values(self.target, following, batch.next_actions)[1]
        self.update_value(batch, data)
        with torch.no_grad():
            advantage = data - self.value(states)
            next_value = self.value(following)
        rate = CONFIG.actor_lr * (1.0 + math.cos(math.pi * progress)) / 2.0
        self.policy_step.gradient_step(self.policy_loss(batch, advantage), rate)
        # equation 6 for the mean; for the quantiles the same target, spread as the data's own continuation
        target = batch.rewards + gamma * alive * next_value
        samples = target[:, None] + gamma * alive[:, None] * (ahead - ahead.mean(dim=-1, keepdim=True))
        mean, quantiles = self.values(self.critic, states, batch.actions)
        loss = sum(((critic - target) ** 2).mean() for critic in mean)
        loss = loss + sum(quantile_loss(quantiles[e], samples[e]) for e in range(len(quantiles)))
        self.critic_step.gradient_step(loss, CONFIG.critic_lr)
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), self.critic.parameters(), strict=True):
                slow.copy_((1.0 - CONFIG.tau) * slow + CONFIG.tau * fast)

    def update_value(self, batch: Batch, data: Tensor) -> None:
        """Equation 5; and V_mu toward the behaviour's returns, reading V's encoding of before its step."""
        error = data - self.value(batch.states)
        behaviour = ((self.value.of_behaviour(batch.states) - batch.behaviour_returns) ** 2).mean()
        tau = CONFIG.iql_expectile
        expectile = torch.where(error > 0.0, tau * error**2, (1.0 - tau) * error**2).mean()
        gradient = self.behaviour_step.gradient(behaviour)
        self.value_step.gradient_step(expectile, CONFIG.critic_lr)
        self.behaviour_step.step(gradient, CONFIG.critic_lr)

    def policy_loss(self, batch: Batch, advantage: Tensor) -> Tensor:
        """Equation 7: the whole policy on all data, and each expert on the transitions of its own family."""
        weights = (CONFIG.iql_temperature * advantage).exp().clamp(max=100.0)
        decision = self.policy(batch.states, gate_only=True)
        dimensions = batch.actions.shape[1] - 1
        loss = -(weights * log_density(batch.actions, decision.centre, decision.log_scale)).mean() / dimensions
        for row, family in enumerate(batch.families.tolist()):
            if family < 5:
                aim, scale = decision.experts[row, family], decision.log_scale[row].detach()
                moved = (1.0 - FAMILY_RATE) * batch.states.weights[row] + FAMILY_RATE * aim
                own = log_density(batch.actions[row], moved, scale)
                loss = loss - weights[row] * own / len(batch.rewards) / dimensions
        return loss


def log_density(action: Tensor, centre: Tensor, log_scale: Tensor) -> Tensor:
    """Logistic-normal: independent normals over the log ratios to the last weight, and the Jacobian 1 / prod w."""
    ratio = (action[..., :-1] / action[..., -1:]).log()
    location = (centre[..., :-1] / centre[..., -1:]).log()
    normal = torch.distributions.Normal(location, log_scale.exp().expand_as(location))
    return normal.log_prob(ratio).sum(dim=-1) - action.log().sum(dim=-1)


def quantile_loss(quantiles: Tensor, samples: Tensor, width: float = 0.05) -> Tensor:
    """Dabney et al. (2018), equation 10, averaged over the batch and both kinds of quantiles."""
    count = quantiles.shape[-1]
    loss = quantiles.new_zeros(())
    for place in range(count):
        error = samples - quantiles[:, place, None]
        level = (place + 0.5) / count
        side = torch.where(error < 0.0, 1.0 - level, level)
        huber = torch.where(error.abs() <= width, 0.5 * error**2, width * (error.abs() - 0.5 * width))
        loss = loss + (side * huber / width).mean() / count
    return loss


def double(batch: Batch) -> Batch:
    """The same transitions in float64."""
    both = States(*(part.double() for part in batch.both[:3]))
    kept = ("both", "families")
    rest = {name: part.double() for name, part in batch._asdict().items() if name not in kept and part is not None}
    return batch._replace(both=both, **rest)


@pytest.fixture
def learner(shape: NetworkShape) -> IQL:
    """IQL in float64; targets apart from the critics, as in the midst of learning."""
    networks = portfolio_networks(shape._replace(hidden=CONFIG.hidden_dim), CONFIG, torch.Generator().manual_seed(0))
    made = IQL(networks, CONFIG, torch.device("cpu"))
    generator = torch.Generator().manual_seed(1)
    for network in (made.policy, made.critic, made.value, made.target_critic):
        network.double()
    with torch.no_grad():
        for parameter in made.target_critic.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return made


def test_parameters_follow_the_published_algorithm_for_a_hundred_updates(learner: IQL, make_batch: MakeBatch) -> None:
    reference = Reference(learner)
    pairs = {
        "value": (learner.value, reference.value),
        "policy": (learner.policy, reference.policy),
        "critic": (learner.critic, reference.critic),
        "target": (learner.target_critic, reference.target),
    }
    start = {name: copy.deepcopy(theirs).state_dict() for name, (_, theirs) in pairs.items()}
    for update in range(UPDATES):
        batch = double(make_batch(8, 3, seed=10 * update))
        learner.update(batch, update / UPDATES, torch.Generator())
        reference.update(batch, update / UPDATES)
        if update + 1 not in (1, UPDATES):
            continue
        # to rounding, which Adam divides by gradients that may be next to nothing
        tolerance = 1e-10 if update == 0 else 1e-8
        for name, (ours, theirs) in pairs.items():
            for key, tensor in theirs.state_dict().items():
                found = ours.state_dict()[key]
                torch.testing.assert_close(
                    found, tensor, rtol=0.0, atol=tolerance, msg=lambda text, at=f"{name}.{key}": f"{at}: {text}"
                )
    for name, (ours, _) in pairs.items():
        moved = [float((tensor - start[name][key]).abs().max()) for key, tensor in ours.state_dict().items()]
        assert max(moved) > 0.05, name  # agreement of networks that learnt something
    for step in (reference.behaviour_step, reference.policy_step, reference.critic_step):
        assert step.cuts > 0
