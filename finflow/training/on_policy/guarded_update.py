"""One guarded update of an on-policy training: learn, check, and roll back where a check fails."""

from __future__ import annotations

from torch import Tensor

from finflow.agent.gradient_steps import set_learning_rate
from finflow.agent.on_policy.on_policy_settings import OnPolicySettings
from finflow.agent.on_policy.on_policy_update import Figures
from finflow.agent.on_policy.policy_interface import Rollout
from finflow.errors import TrainingError
from finflow.training.on_policy.checkpoint_manager import CheckpointMetrics
from finflow.training.on_policy.training_progress import Learning, TrainingProgress, task_seed

SMALLEST_SQUARE = 1e-8
LARGEST_STEP = 10.0  # of one update, in multiples of the KL threshold; a step of PPO or TRPO is a fraction of it
BEFORE_LEARNING = CheckpointMetrics(loss=0.0, reward=float("-inf"))


def guarded_update(
    progress: TrainingProgress, rollout: Rollout | None, settings: OnPolicySettings, seed: int
) -> tuple[Figures, str]:
    """Learn from a rollout; keep a checkpoint where one is due, or roll back to one.

    Parameters
    ----------
    progress : TrainingProgress
        Changed in place.
    rollout : Rollout or None
        None where a reward or an observation is not finite, so that nothing can be learned.
    seed : int
        From which the generator is seeded anew after a rollback, so that the fault is not repeated.

    Returns
    -------
    figures : dict
        Of `OnPolicyLearner.update`; empty without a rollout.
    reason : str
        Of the rollback; empty where there was none.

    Raises
    ------
    TrainingError
        If rolling back does not help.
    """
    learning, checkpoints = progress.learning, progress.checkpoints
    if checkpoints.last_saved is None:
        checkpoints.save_state(learning.steps, *learning.capture(), BEFORE_LEARNING)
    progress.training_step += 1
    if rollout is None:
        share = checkpoints.manager.share
        if not checkpoints.suspicious:  # nothing was learned from what is not finite
            checkpoints.save_state(learning.steps, *learning.capture(), BEFORE_LEARNING)
        reason = "a reward or an observation is not a finite number"
        _roll_back(progress, settings, reason, seed)
        checkpoints.manager.share = share
        set_learning_rate(learning.learner.optimiser, settings.learning_rate * share)
        return {}, reason
    learning.learner.settings = settings
    figures = learning.learner.update(rollout, learning.entropy_coefficient)
    learning.steps += int(figures["policy_steps"])
    learning.entropy.advance(int(figures["policy_steps"]))
    metrics = metrics_of(figures, rollout, learning)
    _, reason = checkpoints.should_rollback(metrics)
    reason = reason or _moved_too_far(metrics, LARGEST_STEP * checkpoints.config.kl_threshold)
    if reason:
        _roll_back(progress, settings, reason, seed)
        return figures, reason
    if checkpoints.should_save_checkpoint(learning.steps):
        checkpoints.save_state(learning.steps, *learning.capture(), metrics)
    if checkpoints.manager.advance(learning.steps, alarmed=False):
        set_learning_rate(learning.learner.optimiser, settings.learning_rate * checkpoints.manager.share)
    return figures, ""


def metrics_of(figures: Figures, rollout: Rollout, learning: Learning) -> CheckpointMetrics:
    """Figures of an update as the guard compares them.

    The loss is the value function's, over the mean square of the returns, and the policy's is over the size of the
    advantages that it was computed with: returns that grow are no alarm. The KL is in nats per free dimension of the
    action.
    """
    normalised = learning.learner.settings.normalise != "none"
    size = 1.0 if normalised else max(float(rollout.advantages.square().mean()) ** 0.5, SMALLEST_SQUARE)
    scale = max(float(rollout.returns.square().mean()), SMALLEST_SQUARE)
    return CheckpointMetrics(
        loss=figures.get("value_loss", 0.0) / scale,
        reward=learning.mean_return if learning.mean_return is not None else float(rollout.returns.mean()),
        kl=figures["kl"] / free_dimensions(rollout.actions, learning),
        entropy=figures["entropy"],
        value_loss=figures.get("value_loss"),
        policy_loss=figures["policy_loss"] / size,
        explained_variance=figures["explained_variance"],
    )


def _moved_too_far(metrics: CheckpointMetrics, limit: float) -> str:
    """Reason where one update moved the policy so far that no second check is needed."""
    if metrics.kl is None or metrics.kl <= limit:
        return ""
    return f"one update moved the policy {metrics.kl:.3g} nats per free dimension, the limit is {limit:.3g}"


def free_dimensions(actions: Tensor, learning: Learning) -> int:
    """Free dimensions of an action: those of a Box, or the number of actions less one."""
    if actions.ndim > 1:
        return actions.shape[1]
    return max(learning.agent.actions - 1, 1)


def _roll_back(progress: TrainingProgress, settings: OnPolicySettings, reason: str, seed: int) -> None:
    """Restore the last healthy state, with lower learning rates and other random numbers."""
    learning, checkpoints = progress.learning, progress.checkpoints
    if checkpoints.exhausted:
        raise TrainingError(
            f"{reason}, and {checkpoints.manager.phase_rollbacks} rollbacks have not helped; "
            "lower the learning rate, or look for rewards that are not finite in the environment"
        )
    step, tensors, state = checkpoints.rollback_state()
    learning.restore(tensors, state)
    checkpoints.manager.last_alarm = step
    learning.learner.generator.manual_seed(task_seed(seed, checkpoints.manager.rollback_count))
    set_learning_rate(learning.learner.optimiser, settings.learning_rate * checkpoints.manager.share)
