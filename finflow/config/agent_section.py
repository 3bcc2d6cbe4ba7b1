"""Section `bcell`: networks, losses and optimisers of the agent."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from finflow.config.section_types import (
    ConfigSection,
    Flag,
    Fraction,
    Int,
    NonNegativeInt,
    NonNegativeNumber,
    Number,
    PositiveInt,
    PositiveNumber,
    PositiveShare,
    key,
)


class AnchorConfig(ConfigSection):
    """Regularisation of the online policy towards equal weight: KL of its aim from it."""

    weight: NonNegativeNumber = key(0.0, "weight in the actor's loss at the first update, in sigma_A; 0 is off")
    final: NonNegativeNumber | None = key(None, "weight after anchor.updates, linearly; left out: anchor.weight")
    updates: PositiveInt | None = key(None, "updates from anchor.weight to anchor.final; left out: those of the phase")


class AveragingConfig(ConfigSection):
    """Policy that is validated, kept and deployed: the last one, or an average over the end of training."""

    kind: Literal["none", "ema", "swa"] = key("none", "exponential moving average, or mean, of the policy's weights")
    start: Number = key(0.5, "share of the online updates after which it begins", ge=0, lt=1)
    decay: Fraction = key(0.999, "decay of the exponential moving average, per update")


class ActingConfig(ConfigSection):
    """Portfolio that is taken from a trained policy; its centre by default."""

    temperature: Number = key(
        0.0, "variance of drawn decisions, in multiples of the policy's; 0: its centre", ge=0, le=100
    )
    top_p: PositiveShare = key(1.0, "share of the centre's assets that the largest must have together; 1: all")

    @property
    def takes_centre(self) -> bool:
        """True where decisions are the policy's centre, unchanged."""
        return self.temperature == 0.0 and self.top_p == 1.0

    def describe(self) -> str:
        """The settings in words."""
        taken = f"drawn with temperature {self.temperature:g}" if self.temperature > 0.0 else "the centre of the policy"
        return taken if self.top_p == 1.0 else f"{taken}; only the largest assets, {self.top_p:g} of all together"


class MirroredConfig(ConfigSection):
    """Bars mirrored around their predicted returns, whose rewards learning mixes with those of history."""

    weight: Number = key(0.5, "weight of mirrored bars; at 0.5 noise cancels to first order", ge=0.0, le=0.5)


class BCellConfig(ConfigSection):
    """Networks, losses and optimisers of IQL and the B-Cell."""

    iql_expectile: Fraction = key(0.7, "expectile of IQL's value function")
    iql_temperature: NonNegativeNumber = key(3.0, "beta in the weight min(exp(beta * A), 100), A in sigma_A")
    iql_extraction: Literal["awr", "gradient"] = key(
        "gradient", "IQL's policy: weighted cloning, as published, or the critics' gradient"
    )
    iql_cloning: NonNegativeNumber = key(0.1, "weight of cloning where IQL's policy follows the critics' gradient")
    expansion: Int = key(16, "exact decisions that the actor looks ahead; 0: the critic alone", ge=0, le=1024)
    counterfactual: Flag = key(True, "critics learn exact outcomes of eight actions a state; false: as published")
    mirrored: MirroredConfig = key(MirroredConfig(), "mirrored bars")
    alpha_init: PositiveNumber = key(0.75, "entropy coefficient at the start, in eightieths of sigma_A per nat")
    alpha_mode: Literal["auto", "fixed", "annealed"] = key("auto", "tuned to target_entropy, or on a schedule")
    alpha_lr: PositiveShare = key(3e-4, "learning rate of the entropy coefficient")
    target_entropy: Fraction = key(0.2, "target entropy, as a deviation of normal log ratios")
    entropy_backup: Literal["none", "relative"] = key(
        "none", "entropy in the critics' targets: none, or its excess over the target"
    )
    risk_measure: Literal["neutral", "cvar", "wang"] = key(
        "neutral", "objective of the policy, and of the best checkpoint"
    )
    risk_level: PositiveShare = key(0.25, "worst share of outcomes that cvar averages; 1 is neutral")
    cql_alpha: NonNegativeNumber = key(5.0, "weight of the conservative penalty, in hundredths of squared errors'")
    cql_mode: Literal["fixed", "lagrange"] = key("fixed", "lagrange tunes the weight, from cql_alpha on")
    cql_samples: PositiveInt = key(4, "proposals of each kind in the conservative penalty")
    calibration: Literal["fitted", "returns", "none"] = key(
        "fitted", "lower bound on values of proposals (Cal-QL); none: plain CQL"
    )
    expert_cloning: NonNegativeNumber = key(0.1, "offline weight of each expert's divergence from its family's rules")
    actor_lr: PositiveShare = key(3e-3, "learning rate of the policy")
    critic_lr: PositiveShare = key(1e-3, "learning rate of critics and value function")
    online_schedule: Literal["constant", "cosine"] = key(
        "cosine", "online learning rates: a cosine, or constant, as published"
    )
    gamma: Fraction = key(0.99, "discount per decision")
    tau: PositiveShare = key(0.01, "share of the critic that moves into its target per update")
    n_quantiles: PositiveInt = key(32, "quantiles of each critic's return distribution; 1 is a scalar critic")
    dropped_quantiles: NonNegativeInt = key(0, "top quantiles of each critic left out of online targets; 0 is off")
    hidden_dim: Int = key(256, "width of the hidden layers", ge=8, le=8192)
    memory_capacity: PositiveInt = key(50_000, "online transitions kept for replay")
    dropout: Number = key(0.0, "dropout in the hidden layers of policy and critics", ge=0, lt=1)
    gradient_norm: PositiveNumber = key(10.0, "largest norm of a gradient; larger ones are clipped")
    anchor: AnchorConfig = key(AnchorConfig(), "regularisation of the online policy")
    averaging: AveragingConfig = key(AveragingConfig(), "average of the online policy")
    mixed_precision: Flag = key(False, "matrix products of an update in bfloat16; decisions and losses stay in float32")
    gradient_checkpointing: Flag = key(False, "recompute hidden layers in the backward pass instead of keeping them")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.n_quantiles > 1:
            self.require_below("bcell", "dropped_quantiles", "n_quantiles")
        if self.risk_measure != "neutral" and self.n_quantiles == 1:
            raise ValueError(
                f"bcell.risk_measure = {self.risk_measure} needs a distribution: bcell.n_quantiles = 1 is a mean alone"
            )
        if self.cql_mode == "lagrange" and self.cql_alpha == 0.0:
            raise ValueError("bcell.cql_mode = lagrange starts from bcell.cql_alpha, which must be above 0")
        return self
