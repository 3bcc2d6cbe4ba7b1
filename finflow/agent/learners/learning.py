"""The update of an agent online: one step of critics, policy and temperature down their losses."""

from __future__ import annotations

from functools import partial

import torch
from torch import Generator, Tensor

from finflow.agent.batch import Batch
from finflow.agent.gradient_steps import (
    SkippingAdam,
    compute_gradients,
    cosine,
    polyak_update,
    set_learning_rate,
    step,
    tune,
)
from finflow.agent.learners.acting import ActingAgent
from finflow.agent.learners.sac_critics import Draws, critics_losses, is_conservative
from finflow.agent.learners.soft_actor_critic import Coefficients, Metrics, UpdatePoint, policy_losses
from finflow.agent.losses.regularisers import CoverageProposals
from finflow.agent.networks.critic import CriticEnsemble
from finflow.agent.networks.layers import Encoding
from finflow.agent.networks.logistic_normal import standard_normal
from finflow.agent.precision import autocast_update
from finflow.config import BCellConfig
from finflow.cores import run_both

LEVEL_RATE = 0.2  # share of the values' mean error over several decisions that an update takes away


class LearningAgent(ActingAgent):
    """An agent that learns by soft actor-critic; ``log_cql_alpha`` is None unless the penalty's weight is tuned."""

    config: BCellConfig
    critic: CriticEnsemble
    target_critic: CriticEnsemble
    log_alpha: Tensor
    log_cql_alpha: Tensor | None
    policy_optimiser: SkippingAdam
    critic_optimiser: SkippingAdam
    alpha_optimiser: SkippingAdam
    cql_optimiser: SkippingAdam | None

    def update_average(self, progress: float) -> None:
        """Add the policy to its average, at a share of the online updates."""
        if self.average is not None:
            self.average.update(self.policy, progress)

    def leave_blend(self) -> None:
        """Decide by the own policy alone from here on."""

    def set_learning_rates(self, progress: float, ramp: float | None = None) -> None:
        """Set learning rates for a share of the online updates; ``ramp``, where given, multiplies the policy's."""
        decays = self.config.online_schedule == "cosine"
        if ramp is None and not decays:
            return
        actor, critic = (cosine(rate, progress * decays) for rate in (self.config.actor_lr, self.config.critic_lr))
        set_learning_rate(self.policy_optimiser, actor if ramp is None else actor * ramp)
        set_learning_rate(self.critic_optimiser, critic)

    @autocast_update
    def update_sac(
        self,
        batch: Batch,
        coverage: CoverageProposals | None = None,
        noise: Generator | None = None,
        update: int = 1,
        actor: bool = True,
        alpha: float | None = None,
        target: float | None = None,
        total: int = 1,
    ) -> dict[str, Tensor]:
        """Take one step of critics, policy and temperature down their losses: see `soft_actor_critic`.

        An agent in a blend with a reference leaves it, with a warning, when its policy learns.

        Parameters
        ----------
        coverage : CoverageProposals, optional
            For CQL, which without them, or where its weight is zero, has no penalty.
        noise : Generator, optional
            Draws the actions; by default the agent's own, which also draws those of `act`.
        update, total : int
            Updates done before this one, and all of them; by default schedules are at their end.
        actor : bool
            False right after the hand-over, when only the critics learn.
        alpha, target : float, optional
            Scheduled entropy coefficient and target entropy, in place of the tuned one and of ``bcell.target_entropy``.

        Returns
        -------
        dict of Tensor, ()
        """
        if actor:
            self.leave_blend()
        noise, point = noise or self.action_noise, UpdatePoint(update, total, alpha, target)
        coefficients = Coefficients.of(self, batch.actions, batch.states, point)
        size = (len(batch.actions), self.policy.coordinate_count(batch.actions))
        drawn = standard_normal(size, noise, batch.actions)
        draws = Draws.of(self, batch, noise, is_conservative(self.config, coverage))
        dropout = noise if self.config.dropout > 0.0 else None
        encoding = self.critic.encode(batch.states)
        critics = critics_losses(self, batch, coverage, draws, coefficients, point, encoding)
        metrics: dict[str, Tensor] = {}
        if actor:
            metrics, _ = run_both(
                partial(self._update_policy, batch, drawn, coefficients, point, encoding, dropout),
                partial(compute_gradients, critics.loss, self.critic_optimiser),
                self.device,
            )
            self.update_average(point.progress)
        else:
            compute_gradients(critics.loss, self.critic_optimiser)
        return critics.metrics | self.step_critics(critics.cql_weight) | metrics | self.logged(coefficients)

    def _update_policy(
        self,
        batch: Batch,
        drawn: Tensor,
        coefficients: Coefficients,
        point: UpdatePoint,
        encoding: Encoding,
        dropout: Generator | None,
    ) -> Metrics:
        losses = policy_losses(self, batch, drawn, coefficients, point, encoding, dropout)
        compute_gradients(losses.loss, self.policy_optimiser)
        return losses.metrics | self.step_policy(losses.temperature, point) | losses.decision.figures()

    def step_policy(self, temperature: Tensor, point: UpdatePoint) -> Metrics:
        """Step along the policy's computed gradients, and tune the temperature down its loss where it is tuned."""
        norm = step(self.policy_optimiser, self.config.gradient_norm)
        if point.alpha is None and self.config.alpha_mode == "auto":
            tune(self.alpha_optimiser, temperature)
        return {"policy_gradient": norm}

    def step_critics(self, cql_weight: Tensor | None) -> Metrics:
        """Step along the critics' computed gradients, tune the penalty's weight, and move the targets."""
        if cql_weight is not None and self.cql_optimiser is not None:
            tune(self.cql_optimiser, cql_weight)
        norm = step(self.critic_optimiser, self.config.gradient_norm)
        polyak_update(self.target_critic, self.critic, self.config.tau)
        return {"critic_gradient": norm}

    @torch.no_grad()
    def move_level(self, error: Tensor, point: UpdatePoint) -> None:
        """Move all values by a share of their mean error, (), over several decisions (Naik et al. 2024).

        Most of a value over a hundred decisions is the same in all states, and learned by weights for hundreds of
        updates. An error that is not finite moves nothing, as its gradient does not.
        """
        rate = LEVEL_RATE if self.config.online_schedule == "constant" else cosine(LEVEL_RATE, point.progress)
        for critic in (self.critic, self.target_critic):
            critic.level.add_(rate * error.nan_to_num(0.0, 0.0, 0.0))

    def logged(self, coefficients: Coefficients) -> Metrics:
        scale = coefficients.alpha.new_tensor(self.advantage_scale)
        effective = coefficients.effective_alpha
        return {"alpha": coefficients.alpha, "advantage_scale": scale, "effective_alpha": effective}
