"""A limit on the mean of one reward, held by a Lagrange multiplier while the others are maximised.

Maximise the mean of the reward r per decision subject to ``mean c >= X``. Learners see the reward

    (r + lambda (c - X)) / (1 + m),    lambda = m u_r / u_c,

where u_r and u_c are the deviations of r and c between decisions on the same bar, so that the multiplier m has no unit,
and the division keeps rewards in the scale that they had. m ascends the dual function by the mean of c over the
policy's own decisions, with a proportional term against oscillation:

    e = (X - mean c) / u_c,    I <- max(0, I + rate e),    m = max(0, I + proportional e).

Both terms end where e does, so that m becomes the multiplier of the problem. It stays at 0 where the limit does not
bind: r alone is learned from. lambda is the price of the limit: what a limit that is lower by one unit would add to the
mean of r.

References
----------
Altman (1999), Constrained Markov Decision Processes, chapter 3.
Tessler, Mankowitz and Mannor (2019), Reward Constrained Policy Optimization, equation 5.
Stooke, Achiam and Abbeel (2020), Responsive Safety in Reinforcement Learning by PID Lagrangian Methods, algorithm 2
(the proportional and the integral term) and section 5 (the division by ``1 + m``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from numpy.typing import NDArray
from torch import Tensor

from finflow.config import Config, ConstraintConfig
from finflow.training.data.reward_choice import constraint_units_of
from finflow.training.data.training_data import TrainingData

LARGEST = 1e3  # multiplier: beyond it the reward itself is a thousandth of what is seen
INFEASIBLE = -1e6  # score of a policy on the edge of the limit, below that of every policy within it
Rewards = TypeVar("Rewards", NDArray[Any], Tensor)


class RewardConstraint:
    """The limit, its multiplier, and the last measurement.

    Parameters
    ----------
    keys : ConstraintConfig
        With a reward and a limit.
    units : tuple of float
        Deviations of the reward and of the constrained one between decisions on the same bar.

    Attributes
    ----------
    multiplier, integral : float
        m and I.
    mean : float or None
        Of the constrained reward per decision, over the decisions of the last update.

    Raises
    ------
    ValueError
        If there is no limit.
    """

    def __init__(self, keys: ConstraintConfig, units: tuple[float, float]) -> None:
        if keys.at_least is None:
            raise ValueError("a constraint has a limit")
        self.limit, self.rate = keys.at_least, keys.rate
        self.units = units
        self.proportional = keys.proportional
        self.multiplier = self.integral = keys.multiplier
        self.mean: float | None = None

    @property
    def price(self) -> float:
        """Lambda, in units of the reward over units of the constrained one."""
        of_reward, of_constrained = self.units
        return self.multiplier * of_reward / of_constrained

    def combined(self, rewards: Rewards, constrained: Rewards) -> Rewards:
        """The reward that is learned from, of rewards and constrained rewards (batch,)."""
        if self.multiplier == 0.0:
            return rewards
        return (rewards + self.price * (constrained - self.limit)) / (1.0 + self.multiplier)

    def update(self, mean: float) -> None:
        """Move the multiplier by the mean of the constrained reward over decisions of the policy."""
        if not math.isfinite(mean):
            return
        self.mean = mean
        violation = (self.limit - mean) / self.units[1]
        self.integral = min(max(self.integral + self.rate * violation, 0.0), LARGEST)
        self.multiplier = min(max(self.integral + self.proportional * violation, 0.0), LARGEST)

    def figures(self) -> dict[str, float]:
        """Multiplier, price and last mean, for the log."""
        measured = {} if self.mean is None else {"constraint_mean": self.mean}
        return {"constraint_multiplier": self.multiplier, "constraint_price": self.price, **measured}

    def capture(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Capture multiplier, integral and mean; the rest is configuration."""
        return {}, {"multiplier": self.multiplier, "integral": self.integral, "mean": self.mean}

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Restore them."""
        mean, multipliers = state["mean"], [state["multiplier"], state["integral"]]
        known = mean is None or (isinstance(mean, int | float) and math.isfinite(mean))
        if not known or not all(isinstance(one, int | float) and 0.0 <= one <= LARGEST for one in multipliers):
            raise ValueError("the multiplier of the constraint is out of its range")
        self.mean = mean
        self.multiplier, self.integral = (float(one) for one in multipliers)


def make_constraint(config: Config, training_data: TrainingData) -> RewardConstraint | None:
    """The configured limit, in units of the training window; None where there is none.

    Raises
    ------
    ConfigError
        If a reward is the same for every decision.
    """
    keys = config.objectives.constraint
    if keys.reward is None:
        return None
    process, segments = training_data.learning, training_data.train_segments
    return RewardConstraint(keys, constraint_units_of(process, keys.reward, segments))


def constrained_score(score: float, mean: float, keys: ConstraintConfig) -> float:
    """Score that ranks policies within the limit by ``score``, and all others below them by their violation."""
    limit = -math.inf if keys.at_least is None else keys.at_least
    return score if mean >= limit else INFEASIBLE * (1.0 + (limit - mean))
