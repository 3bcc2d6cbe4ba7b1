"""Sections of learning: `train`, `offline`, `online`, `out_of_fold`, `bcell`, `acting` and `guard`."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import model_validator

from finflow.config.section_types import (
    ConfigSection,
    FilePath,
    FilePaths,
    Flag,
    Fraction,
    Int,
    NonNegativeInt,
    NonNegativeNumber,
    Number,
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
    reference: Literal["none", "pretrained"] | FilePath = key(
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


class EntropyAnnealing(ConfigSection):
    """Annealing of the entropy coefficient where bcell.alpha_mode is annealed."""

    kind: Literal["linear", "cosine", "exponential"] = key("linear", "shape of the schedule")
    initial: PositiveNumber = key(0.01, "entropy coefficient at the first online update")
    final: PositiveNumber = key(0.001, "entropy coefficient after the last step, and from then on")
    steps: PositiveInt | None = key(None, "gradient updates from initial to final; left out: those of the online phase")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.final > self.initial:
            raise ValueError(
                f"train.entropy_schedule.final = {self.final} must not exceed "
                f"train.entropy_schedule.initial = {self.initial}"
            )
        return self


class TargetEntropyAnnealing(ConfigSection):
    """Schedule of the target entropy where bcell.alpha_mode is auto, in the units of bcell.target_entropy."""

    enabled: Flag = key(False, "move the target entropy; otherwise bcell.target_entropy stays")
    kind: Literal["linear", "cosine", "exponential"] = key("linear", "shape of the schedule")
    initial: Fraction = key(0.4, "target entropy at the first online update")
    final: Fraction = key(0.1, "target entropy after the last step, and from then on")
    steps: PositiveInt | None = key(None, "gradient updates from initial to final; left out: those of the online phase")


class RewardNormalizationConfig(ConfigSection):
    """Rewards standardised by their recent past, after the fixed scale; off by default, which keeps the units."""

    enabled: Flag = key(False, "normalise rewards as they are sampled, in both phases")
    window_size: Int = key(1000, "rewards in the moving mean and deviation", ge=2, le=1_000_000)
    warmup: NonNegativeInt = key(30, "rewards seen before any is normalised")
    clip: PositiveNumber = key(10.0, "largest magnitude of a normalised reward")
    shift: Flag = key(True, "subtract the mean; otherwise rewards are scaled only and the objective is unchanged")


class TrainConfig(ConfigSection):
    """Length of training, batches, devices, checkpoints and validation."""

    seed: Int = key(0, "seed of every random number of a run", ge=0, lt=2**32)
    seeds: PositiveInt = key(1, "agents that are trained, with the seeds from train.seed on, and evaluated together")
    device: Literal["auto", "cpu", "cuda", "mps"] = key("auto", "device to train on")
    threads: Int = key(1, "threads for learning; runs repeat bit for bit at one number of threads", ge=1, le=1024)
    n_envs: PositiveInt = key(16, "portfolios of each learner that step together online")
    updates_per_vector_step: PositiveInt = key(1, "gradient updates after each vector step")
    offline_episodes: PositiveInt = key(500, "behaviour episodes collected")
    offline_training_epochs: NonNegativeInt = key(50, "passes of the offline phase over its data")
    online_episodes: NonNegativeInt = key(1000, "episodes of online fine-tuning")
    offline_batch_size: Int = key(512, "transitions in a batch of the offline phase", ge=2)
    online_batch_size: Int = key(256, "transitions in a batch of the online phase", ge=2)
    warmup_episodes: NonNegativeInt = key(16, "episodes of the pretrained policy before the first update")
    critic_only_updates: NonNegativeInt = key(0, "online updates of the critics before the policy is trained")
    actor_ramp_updates: NonNegativeInt = key(20, "further updates over which the policy's learning rate rises")
    checkpoint_interval: PositiveInt = key(100, "online episodes between checkpoints")
    checkpoint_updates: PositiveInt = key(1200, "updates between checkpoints, if that comes first")
    validation_updates: PositiveInt = key(500, "updates between backtests on the validation window")
    best_by: Literal["value", "sharpe"] = key("value", "best checkpoint in validation: mean reward, or Sharpe ratio")
    save_best: Flag = key(True, "keep the checkpoint that is best on the validation window")
    save_latest: Flag = key(True, "keep the newest checkpoint, for --resume")
    max_checkpoints: NonNegativeInt = key(5, "numbered checkpoints kept, newest first")
    reward_reference: Literal["equal-weight", "none"] = key(
        "equal-weight", "portfolio whose return is subtracted from rewards"
    )
    profile: Flag = key(False, "write a torch profiler trace of a few updates of each phase into the run folder")
    observation_noise: Share = key(0.0, "deviation of noise on the features to learn from, in units of theirs")
    entropy_schedule: EntropyAnnealing = key(EntropyAnnealing(), "annealing of the entropy coefficient")
    target_entropy_schedule: TargetEntropyAnnealing = key(TargetEntropyAnnealing(), "target entropy")
    reward_normalization: RewardNormalizationConfig = key(RewardNormalizationConfig(), "rewards by their recent past")


class OutOfFoldConfig(ConfigSection):
    """Evidence from learners that do not see a block of the training years, which decides how much of it is used."""

    blocks: Int = key(4, "blocks of the training years, each held out from one learner; 1: off", ge=1, le=20)
    pretraining_epochs: Int = key(5, "offline epochs without a block, at most; 0: random weights", ge=0, le=10_000)
    looks: PositiveInt = key(6, "stages of the training at which the blocks' policies are evaluated")


class OfflineConfig(ConfigSection):
    """Method and data of the offline phase."""

    method: Literal["iql", "td3bc", "bc", "none"] = key(
        "iql", "implicit Q-learning, TD3+BC, behaviour cloning, or none"
    )
    counterfactual: Flag = key(True, "learn from exact rewards of eight actions a state; false: as published")
    group_size: PositiveInt = key(8, "transitions of one bar that share a batch; 1 draws freely")
    evaluation_updates: NonNegativeInt = key(400, "updates of fitted Q evaluation after the offline phase; 0 skips it")
    patience: NonNegativeInt = key(500, "updates without a better validation after which the phase ends; 0: never")
    decisions: FilePaths = key((), "CSV files of your own decisions, dates and weights, to learn from as well")


class StabilityConfig(ConfigSection):
    """Limits of the stability monitor; values are in scaled rewards."""

    critic_loss_limit: PositiveNumber = key(20.0, "largest healthy critic loss")
    reward_outlier: PositiveNumber = key(50.0, "robust deviations from the median at which a reward is an outlier")
    deviations: PositiveNumber = key(10.0, "robust deviations from its recent values at which a signal is unusual")
    warmup: Int = key(30, "updates of a phase before a signal is compared with itself", ge=5, le=100)
    hits: PositiveInt = key(5, "updates in a row beyond a limit before there is an alarm")
    quiet: NonNegativeInt = key(30, "updates without alarms after a phase begins or is restored")
    check_interval: PositiveInt = key(10, "updates between checks of the policy and the parameters")


#: save_interval, max_checkpoints, kl_threshold, loss_spike, reward_drop of the presets
_ROLLBACK_PRESETS = {"conservative": (50, 10, 0.05, 2.0, 0.7), "aggressive": (200, 3, 0.15, 5.0, 0.3)}


class RollbackConfig(ConfigSection):
    """Triggers and extent of a rollback to an earlier state; intervals are in gradient updates."""

    preset: Literal["default", "conservative", "standard", "aggressive"] = key(
        "default", "values of save_interval to reward_drop that are not given"
    )
    mode: Literal["strict", "robust"] = key("robust", "thresholds as written, or with an allowance for what is usual")
    save_interval: PositiveInt = key(100, "updates between snapshots in memory")
    max_checkpoints: PositiveInt = key(5, "newest snapshots kept, in addition to the best one")
    kl_threshold: PositiveNumber = key(0.1, "largest KL to the last healthy policy, nats per free dimension")
    loss_spike: Number = key(3.0, "rise of a loss that triggers a rollback, in multiples of usual", gt=1)
    reward_drop: Fraction = key(0.5, "share of the usual mean reward below which a rollback is triggered")
    metric_window_size: Int = key(10, "recent checks that losses and rewards are compared with", ge=3)
    probation: NonNegativeInt = key(100, "updates without an alarm after which a snapshot is healthy")
    recovery: PositiveInt = key(200, "updates without an alarm after which learning rates rise again by one step")
    max_retries: NonNegativeInt = key(3, "rollbacks in a row, without a recovery, before a stop")

    @model_validator(mode="before")
    @classmethod
    def _from_preset(cls, given: Any) -> Any:
        """Fill in the preset's values where a key was not given."""
        if not isinstance(given, dict) or given.get("preset") not in _ROLLBACK_PRESETS:
            return given
        names = ("save_interval", "max_checkpoints", "kl_threshold", "loss_spike", "reward_drop")
        return dict(zip(names, _ROLLBACK_PRESETS[given["preset"]], strict=True)) | given


class GuardConfig(ConfigSection):
    """Monitoring of updates and rollback."""

    enabled: Flag = key(True, "monitor every update, and roll back to a healthy state where needed")
    stability: StabilityConfig = key(StabilityConfig(), "limits of healthy signals")
    rollback: RollbackConfig = key(RollbackConfig(), "rollback to an earlier state")


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
        if self.dropped_quantiles >= self.n_quantiles > 1:
            raise ValueError(
                f"bcell.dropped_quantiles = {self.dropped_quantiles} must be below "
                f"bcell.n_quantiles = {self.n_quantiles}"
            )
        if self.risk_measure != "neutral" and self.n_quantiles == 1:
            raise ValueError(
                f"bcell.risk_measure = {self.risk_measure} needs a distribution: bcell.n_quantiles = 1 is a mean alone"
            )
        if self.cql_mode == "lagrange" and self.cql_alpha == 0.0:
            raise ValueError("bcell.cql_mode = lagrange starts from bcell.cql_alpha, which must be above 0")
        return self
