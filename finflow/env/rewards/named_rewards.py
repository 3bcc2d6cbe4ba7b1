"""Rewards with a name that are one number of the step itself: the turnover, and the squared return."""

from __future__ import annotations

from typing import Any

from finflow.env.rewards.reward_context import RewardContext


class Turnover:
    """Minus the turnover of the decision, half the sum of all absolute trades as a share of wealth."""

    horizon = 1
    differentiable = True

    def __call__(self, context: RewardContext) -> Any:
        """Reward of each decision, (batch,), 0 at most."""
        return -context.turnover


class Variance:
    """Minus the squared net log return: its mean is minus the variance of a bar, but for the mean return squared."""

    horizon = 1
    differentiable = True

    def __call__(self, context: RewardContext) -> Any:
        """Reward of each decision, (batch,), 0 at most."""
        return -(context.log_return**2)
