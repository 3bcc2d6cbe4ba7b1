"""The on-policy update: one rollout in, an improved policy and value function out.

PPO with clipping, PPO with a KL penalty, TRPO, A2C and REINFORCE are settings of it: they differ in the loss of the
policy, in how often a rollout is used, and in how advantages are estimated.

References
----------
Schulman and others (2017), Proximal Policy Optimization Algorithms, algorithm 1.
Schulman and others (2015), Trust Region Policy Optimization, algorithm 1.
Mnih and others (2016), Asynchronous Methods for Deep Reinforcement Learning.
Williams (1992), Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import Generator, Tensor, nn

from finflow.agent.gradient_steps import SkippingAdam, gradient_step, step
from finflow.agent.on_policy.on_policy_losses import (
    DoublingKL,
    approximate_kl,
    clip_fraction,
    explained_variance,
    standardised,
    surrogate_loss,
    trust_region_step,
    value_loss,
)
from finflow.agent.on_policy.on_policy_settings import (
    WHOLE_ROLLOUT,
    ActionDistribution,
    ActorCritic,
    OnPolicySettings,
    Rollout,
)
from finflow.errors import ConfigError

Figures = dict[str, float]


def as_one_vector(parameters: Iterable[nn.Parameter]) -> nn.Parameter:
    """Make parameters, and their gradients, views of one vector and its gradient, (n,).

    Small networks spend their time on the number of operations: an optimiser that walks over twelve tensors takes
    several times as long as over one. The parameters stay in their networks.
    """
    parts = list(parameters)
    vector = nn.Parameter(torch.cat([part.detach().reshape(-1) for part in parts]))
    vector.grad = torch.zeros_like(vector)
    sizes = [part.numel() for part in parts]
    for part, values, gradient in zip(
        parts, torch.split(vector.detach(), sizes), torch.split(vector.grad, sizes), strict=True
    ):
        part.data, part.grad = values.view_as(part), gradient.view_as(part)
    return vector


class OnPolicyLearner:
    """An actor-critic that learns from rollouts of its own policy.

    Parameters
    ----------
    agent : ActorCritic
        Policy and value function, changed in place.
    generator : Generator
        Draws the order of decisions in the epochs.
    flat : bool
        Make the parameters views of one vector, which is faster for small networks that nobody else steps.

    Attributes
    ----------
    optimiser : SkippingAdam
        Of both; with ``trpo`` of the value function alone. Steps whose gradient is not finite are skipped.
    penalty : DoublingKL
        Coefficient of the KL penalty, with ``ppo-kl``.
    """

    def __init__(
        self, agent: ActorCritic, settings: OnPolicySettings, generator: Generator, flat: bool = False
    ) -> None:
        self.agent = agent
        self.settings = settings
        self.generator = generator
        self.penalty = DoublingKL(settings.kl_beta, settings.kl_target)
        self.optimiser, self._flat = _optimiser(agent, settings, flat), flat

    def update(self, rollout: Rollout, entropy_coefficient: float | None = None) -> Figures:
        """Learn from one rollout; a scheduled entropy coefficient may replace that of the settings.

        Returns
        -------
        dict
            ``policy_loss``, ``value_loss`` and ``gradient_norm`` (means over the steps), and over the whole rollout
            after the update ``kl`` (exact KL(old || new)), ``approximate_kl``, ``clip_fraction`` and ``entropy``;
            ``explained_variance`` of the values before it, ``beta``, ``policy_steps``, and with ``trpo`` ``accepted``.

        Raises ConfigError if the rollout is shorter than a minibatch.
        """
        settings = self.settings
        check_minibatch(settings, len(rollout.log_prob))
        if entropy_coefficient is not None:
            settings = replace(settings, entropy_coefficient=entropy_coefficient)
        if settings.normalise:
            rollout = rollout._replace(advantages=standardised(rollout.advantages))
        with torch.no_grad():
            old = self.agent.distribution(rollout.observations)
        if settings.algorithm == "trpo":
            figures = self._natural_step(rollout, old, settings) | self.update_critic(rollout)
        else:
            figures = self._epochs(rollout, old, settings)
        figures |= self._measured(rollout, old)
        if settings.algorithm == "ppo-kl":
            self.penalty.update(figures["kl"])
        return figures | {"beta": self.penalty.beta}

    def update_critic(self, rollout: Rollout) -> Figures:
        """Learn the value function alone."""
        settings, losses = self.settings, []
        if settings.value_coefficient == 0.0:
            return {}
        for part, _ in self._minibatches(rollout):
            loss = value_loss(self.agent.value(part.observations), part.returns)
            self._descend(loss)
            losses.append(loss.detach())
        return {"value_loss": float(torch.stack(losses).mean())}

    def _epochs(self, rollout: Rollout, old: ActionDistribution, settings: OnPolicySettings) -> Figures:
        """Steps down the joint loss of policy and value function."""
        taken: list[Tensor] = []
        for part, index in self._minibatches(rollout):
            before = old.rows(index) if settings.algorithm == "ppo-kl" else None
            loss, parts = _joint_loss(self.agent, part, before, settings, self.penalty)
            taken.append(torch.stack((*parts, self._descend(loss))))
        means = torch.stack(taken).mean(dim=0).tolist()
        names = ("policy_loss", "value_loss", "gradient_norm")
        return dict(zip(names, means, strict=True)) | {"policy_steps": len(taken)}

    def _descend(self, loss: Tensor) -> Tensor:
        """Take one step down a loss, (); returns the norm of the gradient, ()."""
        if not self._flat:
            return gradient_step(loss, self.optimiser, self.settings.gradient_norm)
        self.optimiser.zero_grad(set_to_none=False)  # gradients stay views of the vectors'
        loss.backward()  # type: ignore[no-untyped-call]
        return step(self.optimiser, self.settings.gradient_norm)

    def _natural_step(self, rollout: Rollout, old: ActionDistribution, settings: OnPolicySettings) -> Figures:
        def divergence() -> Tensor:
            return old.kl(self.agent.distribution(rollout.observations)).mean()

        def objective() -> Tensor:
            new = self.agent.distribution(rollout.observations)
            ratio = (new.log_prob(rollout.actions) - rollout.log_prob).exp()
            gain = -surrogate_loss(ratio, rollout.advantages)
            if settings.entropy_coefficient == 0.0:
                return gain
            return gain + settings.entropy_coefficient * new.entropy().mean()

        actor = list(self.agent.actor_parameters())
        _, improvement = trust_region_step(actor, objective, divergence, settings.trust_region)
        return {"policy_loss": -improvement, "accepted": float(improvement > 0.0), "policy_steps": 1}

    def _minibatches(self, rollout: Rollout) -> Iterator[tuple[Rollout, Tensor]]:
        """Parts of the rollout and their decisions' numbers, in a new order in each epoch."""
        decisions, size = len(rollout.log_prob), self.settings.minibatch
        device = rollout.log_prob.device
        for _ in range(self.settings.epochs):
            if size >= decisions:
                yield rollout, torch.arange(decisions, device=device)
                continue
            order = torch.randperm(decisions, generator=self.generator, device=self.generator.device).to(device)
            shuffled = rollout.rows(order)
            for start in range(0, decisions, size):
                rows = slice(start, start + size)
                yield shuffled.rows(rows), order[rows]

    @torch.no_grad()
    def _measured(self, rollout: Rollout, old: ActionDistribution) -> Figures:
        """Movement of the policy on the rollout, its entropy, and the fit of the values before the update."""
        new = self.agent.distribution(rollout.observations)
        log_ratio = new.log_prob(rollout.actions) - rollout.log_prob
        figures = {
            "kl": old.kl(new).mean(),
            "approximate_kl": approximate_kl(log_ratio),
            "clip_fraction": clip_fraction(log_ratio.exp(), self.settings.clip),
            "entropy": new.entropy().mean(),
            "explained_variance": explained_variance(rollout.values, rollout.returns),
        }
        return dict(zip(figures, torch.stack(list(figures.values())).tolist(), strict=True))


def _joint_loss(
    agent: ActorCritic, part: Rollout, old: ActionDistribution | None, settings: OnPolicySettings, penalty: DoublingKL
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """``L_policy + c_v L_V - c_e H`` of a minibatch; ``old`` are its distributions before the update, for a penalty.

    Also returns the losses of policy and value function, without gradients; each is ().
    """
    new = agent.distribution(part.observations)
    log_ratio = new.log_prob(part.actions) - part.log_prob
    ratio = log_ratio.exp()
    clip = settings.clip if settings.algorithm == "ppo" else None
    policy = surrogate_loss(ratio, part.advantages, clip)
    if old is not None:
        policy = policy + penalty.beta * old.kl(new).mean()
    whole, value = policy, torch.zeros_like(policy)
    if settings.value_coefficient > 0.0:
        value = value_loss(agent.value(part.observations), part.returns)
        whole = whole + settings.value_coefficient * value
    if settings.entropy_coefficient > 0.0:
        whole = whole - settings.entropy_coefficient * new.entropy().mean()
    return whole, (policy.detach(), value.detach())


def check_minibatch(settings: OnPolicySettings, decisions: int) -> None:
    """Raise a ConfigError where a rollout does not hold one minibatch."""
    if settings.minibatch != WHOLE_ROLLOUT and decisions < settings.minibatch:
        raise ConfigError(
            f"a rollout of {decisions} decisions is shorter than a minibatch of {settings.minibatch}; "
            "take longer rollouts or smaller minibatches"
        )


def _optimiser(agent: ActorCritic, settings: OnPolicySettings, flat: bool) -> SkippingAdam:
    """Adam over policy and value function; over the value function alone where the policy takes natural steps.

    With ``flat`` over vectors that their parameters are then views of.
    """
    critic, rate = list(agent.critic_parameters()), settings.learning_rate
    actor = [] if settings.algorithm == "trpo" else list(agent.actor_parameters())
    parts = [(actor, rate), (critic, rate * settings.critic_rate_multiple)]
    if flat and settings.critic_rate_multiple == 1.0:
        parts = [(actor + critic, rate)]
    groups = [
        {"params": [as_one_vector(parameters)] if flat else parameters, "lr": own_rate}
        for parameters, own_rate in parts
        if parameters
    ]
    optimiser = SkippingAdam(groups, lr=rate, eps=settings.adam_epsilon, fused=True)
    optimiser.skip_nonfinite = True
    return optimiser
