"""The reward: net log return and the penalties a user may weigh, each reported separately and summing to it.

All terms are in units of a daily log return. Every term has a fixed scale, chosen such that at the default weights
none outweighs equal weight's own mean net return (a test holds that):

=================  ==========================================================================================
``log_return``     ``log(W_after / W_before)`` net of costs
``sharpe``         ``beta * eta * D``, D the differential Sharpe ratio; eta is its natural scale, since
                   eta * D is the change of the moving Sharpe ratio to first order, of returns in excess of
                   cash. The moving deviation counts as a quarter of equal weight's at least
``turnover``       ``- lambda_turn * 0.01 * turnover``: lambda 0.1 feels like a further 10 basis points
``cvar``           ``- lambda_cvar * (0.005 / alpha) * max(0, -r - zeta)``, zeta = -cvar_target: Rockafellar and
                   Uryasev's excess over alpha, whose mean plus zeta bounds CVaR from above
``drawdown``       ``- lambda_dd * 0.1 * max(0, increase of drawdown)``
=================  ==========================================================================================

References
----------
Moody and Saffell (2001), Learning to Trade via Direct Reinforcement, equations 7 to 9.
Rockafellar and Uryasev (2000), Optimization of Conditional Value-at-Risk, equation 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from array_api_compat import array_namespace

from finflow.config import ObjectivesConfig

TURNOVER_SCALE = 0.01
CVAR_SCALE = 0.005
DRAWDOWN_SCALE = 0.1
LEAST_DEVIATION = 0.25  # of equal weight's: after long in cash the ratio would explode at the first risky day
COMPONENTS = ("log_return", "sharpe", "turnover", "cvar", "drawdown")
STATE_SIZE = 3


@dataclass(frozen=True)
class Moments:
    """Means of equal weight's log return in excess of cash and of its square on the training window.

    They are the initial values of the moving averages.
    """

    first: float
    second: float

    @property
    def deviation(self) -> float:
        """Standard deviation of the daily log return."""
        return float(max(self.second - self.first**2, 1e-12) ** 0.5)


class Objective:
    """The reward as a function of the step and of a small state that makes it Markov.

    The state of a portfolio, (batch, 3): exponential averages of the log return in excess of cash and of its square,
    and the log of wealth over its peak.
    """

    def __init__(self, config: ObjectivesConfig, moments: Moments) -> None:
        self.config = config
        self.moments = moments

    def initial(self, like: Any) -> Any:
        """State (batch, 3) of portfolios that start now, in the library, precision and on the device of ``like``."""
        xp = array_namespace(like)
        zero = xp.zeros_like(like[..., :1])
        return xp.concat([zero + self.moments.first, zero + self.moments.second, zero], axis=-1)

    def observe(self, state: Any) -> Any:
        """The state in units a network can read, (batch, 3): deviations of the moments, and drawdown times ten."""
        xp = array_namespace(state)
        deviation = self.moments.deviation
        first = (state[..., :1] - self.moments.first) / (0.1 * deviation)
        second = state[..., 1:2] / self.moments.second - 1.0
        return xp.concat([first, second, 10.0 * state[..., 2:]], axis=-1)

    def recall(self, observed: Any) -> Any:
        """The state (batch, 3) that is observed as ``observed``: the inverse of `observe`."""
        xp = array_namespace(observed)
        first = self.moments.first + 0.1 * self.moments.deviation * observed[..., :1]
        second = self.moments.second * (1.0 + observed[..., 1:2])
        return xp.concat([first, second, 0.1 * observed[..., 2:]], axis=-1)

    def step(self, state: Any, log_return: Any, turnover: Any, cash_return: Any = 0.0) -> tuple[Any, Any]:
        """Reward of one step, as components (batch, 5) by ``COMPONENTS`` that sum to it, and the next state.

        Parameters
        ----------
        state : array, (batch, 3)
        log_return : array, (batch,)
            Net of costs.
        turnover : array, (batch,)
        cash_return : array, (batch,)
            Log return of cash over the bar: what it earns without risk would otherwise be a Sharpe ratio without bound.
        """
        xp = array_namespace(state)
        weights = self.config
        first, second, below_peak = state[..., 0], state[..., 1], state[..., 2]
        risky = log_return - cash_return
        step_first, step_second = risky - first, risky**2 - second
        variance = (second - first**2).clip((LEAST_DEVIATION * self.moments.deviation) ** 2)
        differential_sharpe = (second * step_first - 0.5 * first * step_second) / variance**1.5
        zeta = -weights.cvar_target
        excess = (-log_return - zeta).clip(0.0)
        below_after = (below_peak + log_return).clip(None, 0.0)
        drawdown_increase = (xp.exp(below_peak) - xp.exp(below_after)).clip(0.0)
        components = xp.stack(
            [
                log_return,
                weights.sharpe_beta * weights.sharpe_eta * differential_sharpe,
                -weights.lambda_turn * TURNOVER_SCALE * turnover,
                -weights.lambda_cvar * (CVAR_SCALE / weights.cvar_alpha) * excess,
                -weights.lambda_dd * DRAWDOWN_SCALE * drawdown_increase,
            ],
            axis=-1,
        )
        eta = weights.sharpe_eta
        renewed = xp.stack([first + eta * step_first, second + eta * step_second, below_after], axis=-1)
        return components, renewed
