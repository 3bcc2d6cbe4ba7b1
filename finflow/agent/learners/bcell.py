"""The B-Cell agent online: distributional soft actor-critic with calibrated CQL, seeded from IQL.

References
----------
Haarnoja et al. (2018), Soft Actor-Critic Algorithms and Applications.
Kuznetsov et al. (2020), Truncated Quantile Critics.
Kumar et al. (2020), Conservative Q-Learning. Nakamoto et al. (2023), Cal-QL.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from finflow.agent.agent_file import no_agent, read_agent, write_agent
from finflow.agent.batch import Batch, States
from finflow.agent.learners.acting import Deciding
from finflow.agent.learners.offline_learner import OfflineLearner, make_critics, make_policy
from finflow.agent.losses.anchor import anchor_loss, anchor_weight, gate_imbalance
from finflow.agent.losses.conservative import (
    CoverageProposals,
    indifferent_penalty,
    lagrange_loss,
    lower_bound,
    overestimation,
    tuned_weight,
)
from finflow.agent.losses.losses import (
    actor_loss,
    bellman_target,
    conservative_loss,
    mean_loss,
    pessimistic_value,
    pinball_loss,
    temperature_loss,
)
from finflow.agent.losses.risk import needs_quantiles, valued
from finflow.agent.networks.critic import CriticEnsemble, NetworkShape, ValueNetwork
from finflow.agent.networks.layers import Encoding
from finflow.agent.networks.logistic_normal import LogisticNormal, standard_normal
from finflow.agent.networks.policy import Decision, ExpertPolicy
from finflow.agent.observation import states_of
from finflow.agent.optimisation.gradient_steps import (
    CarefulAdam,
    cosine,
    descend,
    descending,
    follow,
    freeze,
    make_optimiser,
    set_learning_rate,
    step,
    tune,
)
from finflow.agent.optimisation.policy_gradient import linear_in
from finflow.agent.optimisation.precision import in_its_precision
from finflow.agent.optimisation.weight_averaging import PolicyAverage
from finflow.config import BCellConfig
from finflow.cores import meanwhile

__all__ = ["BCell", "CoverageProposals", "states_of"]

TRUNCATION_UPDATES = 2000  # over which the truncation of top quantiles is switched on, from IQL's none


class AgentNetworks(NamedTuple):
    """The networks of an agent, or what answers the same calls on another task."""

    policy: ExpertPolicy
    critic: CriticEnsemble
    value: ValueNetwork


class BCell(Deciding):
    """Five experts, their critics, and one update.

    Parameters
    ----------
    shape : NetworkShape
    config : BCellConfig
    generator : Generator
        Draws initial weights, on the CPU.
    device : torch.device
    networks : AgentNetworks, optional
        In place of those that decide on portfolios: see `box_sac`.
    """

    def __init__(
        self,
        shape: NetworkShape,
        config: BCellConfig,
        generator: Generator,
        device: torch.device,
        networks: AgentNetworks | None = None,
    ) -> None:
        self.shape = shape
        self.config = config
        self.device = device
        parts = networks or AgentNetworks(
            make_policy(shape, config, generator),
            make_critics(shape, config, generator),
            ValueNetwork(shape, generator),
        )
        self.policy = parts.policy.to(device)
        self.critic = parts.critic.to(device)
        self.target_critic = copy.deepcopy(self.critic)
        self.behaviour_value = parts.value.to(device)
        self.prior = copy.deepcopy(self.policy)
        self.average = PolicyAverage.of(config.averaging, self.policy)
        freeze([self.target_critic, self.behaviour_value, self.prior])
        self.log_alpha = torch.tensor(math.log(config.alpha_init), device=device, requires_grad=True)
        self.policy_optimiser = make_optimiser(self.policy, config.actor_lr, config.actor_weight_decay)
        self.critic_optimiser = make_optimiser(self.critic, config.critic_lr, config.critic_weight_decay)
        self.alpha_optimiser = CarefulAdam([self.log_alpha], lr=config.alpha_lr, fused=True)
        self.log_cql_alpha: Tensor | None = None
        self.cql_optimiser: CarefulAdam | None = None
        if config.cql_mode == "lagrange":
            self.log_cql_alpha = torch.tensor(math.log(config.cql_alpha), device=device, requires_grad=True)
            self.cql_optimiser = CarefulAdam([self.log_cql_alpha], lr=config.critic_lr, fused=True)
        self.action_noise = Generator(device=device).manual_seed(0)

    def seed_from(self, learner: OfflineLearner) -> None:
        """Take policy, critics and targets over from the offline phase, bit for bit; the optimisers start afresh."""
        self.policy.load_state_dict(learner.policy.state_dict())
        self.critic.load_state_dict(learner.critic.state_dict())
        self.target_critic.load_state_dict(learner.target_critic.state_dict())
        self.behaviour_value.load_state_dict(learner.value.state_dict())
        self.begin()

    def begin(self) -> None:
        """The policy as it stands is the one that was pretrained: the anchor's, and the average's first."""
        self.prior.load_state_dict(self.policy.state_dict())
        self.follow_average(0.0)

    def follow_average(self, progress: float) -> None:
        """Take an update into the average, at a share of the online updates."""
        if self.average is not None:
            self.average.follow(self.policy, progress)

    def follow_schedule(self, progress: float, ramp: float | None = None) -> None:
        """Learning rates at a share of the online updates; the policy's times its ramp's share, where it has one."""
        resting = self.config.online_schedule == "cosine"
        if ramp is None and not resting:
            return
        actor, critic = (cosine(rate, progress * resting) for rate in (self.config.actor_lr, self.config.critic_lr))
        set_learning_rate(self.policy_optimiser, actor if ramp is None else actor * ramp)
        set_learning_rate(self.critic_optimiser, critic)

    @in_its_precision
    def update_sac(
        self,
        batch: Batch,
        coverage: CoverageProposals | None = None,
        noise: Generator | None = None,
        update: int = TRUNCATION_UPDATES,
        actor: bool = True,
        alpha: float | None = None,
        target: float | None = None,
    ) -> dict[str, Tensor]:
        """One update of critics, policy and temperature.

        Parameters
        ----------
        batch : Batch
        coverage : CoverageProposals, optional
            For CQL, which without them, or where its weight is zero, has no penalty.
        noise : Generator, optional
            Draws the actions; the agent's own, which also draws those of `act`, when left out.
        update : int
            Updates done before this one; when left out, as many as it takes until top quantiles are cut in full.
        actor : bool
            Whether the policy learns too: right after the hand-over only the critics do.
        alpha : float, optional
            A scheduled entropy coefficient, in place of the tuned one.
        target : float, optional
            A scheduled target entropy, in place of ``bcell.target_entropy``.

        Returns
        -------
        dict of Tensor, ()
        """
        config, states = self.config, batch.states
        noise = noise or self.action_noise
        dropout_noise = noise if config.dropout > 0.0 else None
        with meanwhile(partial(self._next_distribution, batch), self.device) as found:
            decision = self.policy(states, dropout_noise, least_pull=config.least_pull)
        next_distribution = found.result()
        size, dimensions = next_distribution.location.shape
        conservative = coverage is not None and config.cql_alpha > 0.0
        draws = (size, 1 + config.cql_samples * int(conservative), dimensions)
        drawn, log_density = decision.distribution.sample(standard_normal(draws, noise, batch.actions))
        next_drawn, next_log_density = next_distribution.sample(standard_normal(draws, noise, batch.actions))

        temperature = self.log_alpha.detach().exp() if alpha is None else torch.tensor(alpha, device=self.device)
        aimed_entropy = self.policy.target_entropy(config.target_entropy if target is None else target, dimensions)
        bonus = None
        if config.entropy_backup == "relative":
            bonus = temperature * (-next_log_density[:, 0] - aimed_entropy) / dimensions
        with meanwhile(partial(self._targets, batch, next_drawn[:, :1], update, bonus), self.device) as aimed:
            encoding = self.critic.encode(states)
        goal, samples = aimed.result()
        proposals = None
        if coverage is not None and conservative:
            drawn_too, densities = (drawn[:, 1:], next_drawn[:, 1:]), (log_density[:, 1:], next_log_density[:, 1:])
            proposals = coverage.joined(drawn_too, densities)
        critic_loss, metrics = self._critic_loss(batch, encoding, proposals, goal, samples, dropout_noise)
        with descending(critic_loss, self.critic_optimiser):
            if actor:
                policy_loss, entropy = self._policy_loss(
                    states, encoding.detach(), drawn[:, :1], log_density[:, 0], temperature
                )
                metrics |= {"actor_loss": policy_loss.detach(), "entropy": entropy}
                policy_loss = policy_loss + self._held(decision, batch, update, metrics)
                metrics["policy_gradient"] = descend(policy_loss, self.policy_optimiser, config.gradient_norm)
        metrics["critic_gradient"] = step(self.critic_optimiser, config.gradient_norm)
        if actor:
            metrics |= decision.figures()
            if alpha is None and config.alpha_mode == "auto":
                loss = temperature_loss(self.log_alpha, log_density[:, 0], aimed_entropy, dimensions)
                tune(self.alpha_optimiser, loss)
        metrics["alpha"] = temperature
        follow(self.target_critic, self.critic, config.tau)
        return metrics

    @torch.no_grad()
    def _next_distribution(self, batch: Batch) -> LogisticNormal:
        """Of the policy's next actions."""
        decision: Decision = self.policy(batch.next_states)
        return decision.distribution

    def _targets(
        self, batch: Batch, next_actions: Tensor, update: int, bonus: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Targets of m, (B,), and samples for q, (E, B, n); ``bonus`` (B,) is what entropy adds to the next value."""
        config, next_states = self.config, batch.next_states
        with torch.no_grad():
            ahead = self.target_critic.value(self.target_critic.encode(next_states), next_states, next_actions)
            spread = ahead.spread[:, :, 0]
            share = min(update / TRUNCATION_UPDATES, 1.0)
            dropped = min(config.dropped_quantiles, config.n_quantiles - 1)
            next_value = pessimistic_value(ahead.mean[..., 0], spread, dropped, share)
            next_value = next_value if bonus is None else next_value + bonus
            target = bellman_target(batch.rewards, batch.terminated, next_value, config.gamma)
            left = config.gamma * (1.0 - batch.terminated).unsqueeze(-1)
            samples = batch.whole(target).unsqueeze(-1) + left * spread
        return target, samples

    def _critic_loss(
        self,
        batch: Batch,
        encoding: Encoding,
        proposals: CoverageProposals | None,
        target: Tensor,
        samples: Tensor,
        noise: Generator | None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Squared loss of m, pinball loss of q and the conservative penalty, from one encoding of the states."""
        portfolios = batch.actions.unsqueeze(1)
        if proposals is not None:
            portfolios = torch.cat([portfolios, proposals.portfolios], dim=1)
        valuation = self.critic.value(encoding, batch.states, portfolios, noise=noise)
        data = valuation.mean[..., 0]
        q_loss = mean_loss(data, target)
        quantile_loss = torch.zeros_like(q_loss)
        if self.config.n_quantiles > 1:
            quantile_loss = pinball_loss(valuation.quantiles[:, :, 0], samples)
        loss = q_loss + quantile_loss
        metrics = {
            "q_loss": q_loss.detach(),
            "quantile_loss": quantile_loss.detach(),
            "q": data.mean().detach(),
            "q_largest": data.detach().abs().max(),
        }
        if proposals is None:
            return loss, metrics
        count, dimensions = proposals.portfolios.shape[1], self.policy.free_dimensions(batch.actions)
        policy_drawn = torch.arange(count, device=data.device) >= self.config.cql_samples
        penalty = conservative_loss(
            valuation.mean[..., 1:],
            proposals.log_density,
            data,
            policy_drawn,
            lower_bound(batch.calibrations, self.config.calibration),
            n_dimensions=dimensions,
        )
        metrics["cql_loss"] = penalty.detach()
        return loss + self._weight_of(penalty, proposals.log_density, dimensions, metrics) * penalty, metrics

    def _weight_of(
        self, penalty: Tensor, log_density: Tensor, dimensions: int, metrics: dict[str, Tensor]
    ) -> Tensor | float:
        """The weight of the conservative penalty; one that is tuned moves toward its gap, and is used as it was."""
        config = self.config
        if self.log_cql_alpha is None or self.cql_optimiser is None:
            return config.cql_alpha
        weight = tuned_weight(self.log_cql_alpha).detach().clone()
        excess = overestimation(penalty, config.n_critics, indifferent_penalty(log_density, dimensions))
        tune(self.cql_optimiser, lagrange_loss(self.log_cql_alpha, excess, config.cql_gap))
        metrics |= {"cql_alpha": weight, "cql_excess": excess}
        return weight

    def _held(self, decision: Decision, batch: Batch, update: int, metrics: dict[str, Tensor]) -> Tensor | float:
        """What holds the policy beside its critics: its experts to their names, its gate open, itself to its anchor."""
        held = self.policy.apart(decision, batch, metrics)
        if self.config.gate_balance > 0.0:
            imbalance = gate_imbalance(decision.gate)
            metrics["gate_imbalance"] = imbalance.detach()
            held = held + self.config.gate_balance * imbalance
        weight = anchor_weight(self.config.anchor, update)
        if weight > 0.0:
            found = anchor_loss(self.config.anchor, decision, batch, self.prior)
            metrics["anchor_loss"] = found.detach()
            held = held + weight * found
        return held

    def _policy_loss(
        self, states: States, encoding: Encoding, drawn: Tensor, log_density: Tensor, alpha: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The actor's loss, with gradients through the action and none for the critics."""

        def least(action: Tensor) -> Tensor:
            found = self.critic.value(encoding, states, action, int(needs_quantiles(self.config)))
            return valued(found, self.config).min(dim=0).values

        value = linear_in(drawn, least)
        dimensions = self.policy.free_dimensions(drawn)
        return actor_loss(log_density, value[:, 0], alpha, dimensions), -log_density.mean().detach()

    def save(self, path: str | Path) -> None:
        """Write the agent as one verified safetensors file."""
        write_agent(Path(path), dict(self._tensors()), self.shape, self.config)

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> BCell:
        """Read an agent from its own file or from a training's checkpoint of the online phase.

        Raises
        ------
        CheckpointError
            If the file is missing, damaged, or holds no B-Cell agent.
        """
        found = read_agent(Path(path))
        try:
            agent = cls(found.shape, found.config, Generator(), torch.device(device))
        except (TypeError, ValueError, RuntimeError) as error:
            raise no_agent(found.path, error) from error
        found.fill(agent._tensors())
        agent.prior.load_state_dict(agent.policy.state_dict())
        return agent

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        """What the agent has learned, by name, as training checkpoints name it."""
        for part in ("policy", "critic", "target_critic", "behaviour_value"):
            for name, tensor in getattr(self, part).state_dict().items():
                yield f"{part}/{name}", tensor
        if self.average is not None:
            for name, tensor in self.average.policy.state_dict().items():
                yield f"average/{name}", tensor
        yield "log_alpha", self.log_alpha
        if self.log_cql_alpha is not None:
            yield "log_cql_alpha", self.log_cql_alpha
