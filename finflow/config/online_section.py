"""Section `online`: the learning of the online phase."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import model_validator

from finflow.config.section_types import (
    ConfigSection,
    Int,
    NonNegativeNumber,
    PositiveInt,
    PositiveNumber,
    PositiveShare,
    Share,
    key,
)

ON_POLICY = ("ppo", "ppo-kl", "trpo", "a2c", "reinforce")
"""Algorithms that learn from rollouts of their own policy."""
USUAL_MINIBATCH = {"ppo": 64, "ppo-kl": 64, "trpo": 128}


class OnlineConfig(ConfigSection):
    """Algorithm of the online phase, the on-policy algorithms' own keys, and the reference policy."""

    algorithm: Literal["sac", "ppo", "ppo-kl", "trpo", "a2c", "reinforce"] = key(
        "sac", "distributional SAC with CQL, or an on-policy algorithm"
    )
    learning_rate: PositiveShare = key(3e-4, "on-policy: learning rate of the policy")
    rollout: Int = key(2048, "on-policy: decisions of all portfolios together between two updates", ge=2)
    portfolios: PositiveInt = key(8, "on-policy: portfolios that step together")
    epochs: PositiveInt | None = key(None, "on-policy: passes over a rollout; left out: 10; 1 with a2c and reinforce")
    minibatch: PositiveInt | None = key(None, "on-policy: decisions in a gradient step; null: 64, trpo 128, a2c all")
    gae_lambda: Share = key(0.95, "lambda of generalised advantage estimation: 0 is one-step, 1 Monte Carlo")
    clip: PositiveNumber = key(0.2, "epsilon of PPO's clipped objective")
    entropy_coefficient: NonNegativeNumber = key(0.01, "weight of the policy's entropy per free dimension")
    reference: Literal["none", "pretrained"] | Path = key(
        "none", "frozen policy of the on-policy penalty: none, pretrained, or a checkpoint"
    )
    reference_beta: PositiveNumber = key(0.1, "beta at the start, in scaled rewards per nat and free dimension")
    reference_target: PositiveNumber = key(6.0, "target of the KL to it, in nats per free dimension an episode")

    @property
    def on_policy(self) -> bool:
        """True where the algorithm learns from rollouts of its own policy."""
        return self.algorithm in ON_POLICY

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.reference != "none" and not self.on_policy:
            raise ValueError(
                f"online.reference = {self.reference} needs an on-policy online.algorithm: "
                f"{', '.join(ON_POLICY)}; {self.algorithm} is held to no reference"
            )
        if self.on_policy:
            if self.rollout < self.portfolios or self.rollout % self.portfolios:
                raise ValueError(
                    f"online.rollout = {self.rollout} must be a multiple of online.portfolios = {self.portfolios}"
                )
            minibatch = self.minibatch or USUAL_MINIBATCH.get(self.algorithm, 1)
            if minibatch > self.rollout:
                raise ValueError(f"online.rollout = {self.rollout} is shorter than online.minibatch = {minibatch}")
        return self
