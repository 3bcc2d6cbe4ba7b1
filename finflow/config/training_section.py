"""Sections `train`, `offline` and `guard`: the length, data and safety of learning."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import model_validator

from finflow.config.section_types import (
    ConfigSection,
    FilePaths,
    Flag,
    Fraction,
    Int,
    NonNegativeInt,
    Number,
    PositiveInt,
    PositiveNumber,
    Share,
    key,
)


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
