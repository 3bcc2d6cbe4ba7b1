"""Trade partially toward the aim: the closed form of Garleanu and Pedersen (2013), and its form under our ledger.

Expected returns follow signals f that decay, risk is charged as a square, and so is trading:

    max E sum_t (1 - rho)^(t + 1) (x_t' B f_t - gamma / 2 x_t' Sigma x_t) - (1 - rho)^t / 2 dx_t' Lambda dx_t
    f_{t + 1} = (1 - Phi) f_t + noise

The best holdings go part of the way from what is held to an aim, which leans on the signals that last:

    x_t = x_{t - 1} + rate (aim_t - x_{t - 1})        aim_t = (gamma Sigma)^-1 B (1 + Phi a / gamma)^-1 f_t
    rate = a / lambda where Lambda = lambda Sigma,    a = (sqrt(c^2 + 4 gamma lambda (1 - rho)^2) - c) / (2 (1 - rho))
                                                      c = gamma (1 - rho) + lambda rho

For any other Lambda the problem separates into such ones along the joint eigenvectors of Sigma and Lambda. With
rho = 0 the average of a bar is maximised.

Our ledger's slippage that is linear in participation is such a cost: `slippage * participation` is a square of the
trade as long as wealth over volume stays what it is. Log growth is Markowitz's utility with gamma = 1 as long as bars
move wealth little, and no bound binds while weights stay inside (0, 1). `spread_rule` is the closed form in that limit.

References
----------
Garleanu and Pedersen (2013), Dynamic Trading with Predictable Returns and Transaction Costs, Journal of Finance 68,
propositions 1 to 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from finflow.market.synthetic.price_processes import MeanReversion

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PartialTrading:
    """The problem above and its solution for n assets and k signals.

    Parameters
    ----------
    covariance : float64 (n, n)
        Sigma.
    loadings : float64 (n, k)
        B: expected returns for each unit of a signal.
    decay : float64 (k, k)
        Phi: 1 less the autoregression.
    cost : float64 (n, n)
        Lambda, positive definite: a trade dx costs dx' Lambda dx / 2.
    aversion, discount : float
        gamma, and rho in [0, 1).
    """

    covariance: FloatArray
    loadings: FloatArray
    decay: FloatArray
    cost: FloatArray
    aversion: float = 1.0
    discount: float = 0.0

    @cached_property
    def _modes(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Joint eigenvectors (columns, of unit cost), the variance s of each, and each one's a (lambda is 1 / s)."""
        variance, modes = scipy.linalg.eigh(self.covariance, self.cost)
        kept = 1.0 - self.discount
        lam = 1.0 / variance
        c = self.aversion * kept + lam * self.discount
        a = (np.sqrt(c**2 + 4.0 * self.aversion * lam * kept**2) - c) / (2.0 * kept)
        return modes, variance, a

    @cached_property
    def rate(self) -> FloatArray:
        """Share of the way from what is held to the aim that is traded at once, (n, n)."""
        modes, variance, a = self._modes
        traded: FloatArray = modes @ np.diag(a * variance) @ modes.T @ self.cost
        return traded

    @cached_property
    def aim(self) -> FloatArray:
        """Aim for each unit of a signal, (n, k)."""
        modes, variance, a = self._modes
        lasting = np.eye(len(self.decay)) + self.decay * (a / self.aversion)[:, None, None]
        weighed = np.linalg.solve(lasting.transpose(0, 2, 1), (modes.T @ self.loadings)[:, :, None])[:, :, 0]
        slope: FloatArray = modes @ (weighed / (self.aversion * variance)[:, None])
        return slope

    def trade(self, held: FloatArray, signals: FloatArray) -> FloatArray:
        """Positions after the trade, (batch, n), from those held (batch, n) and signals (batch, k)."""
        after: FloatArray = held + (signals @ self.aim.T - held) @ self.rate.T
        return after


@dataclass(frozen=True, eq=False)
class SpreadRule:
    """Partial trading of a spread between two assets, as targets for our ledger; nothing is held in cash.

    Attributes
    ----------
    aim : float
        Excess of the first asset's weight over one half, for each unit of the belief.
    """

    rate: float
    aim: float

    def targets(self, beliefs: FloatArray, weights: FloatArray) -> FloatArray:
        """Targets (batch, 3) for beliefs (batch,) and weights held (batch, 3)."""
        risky = weights[:, 0] + weights[:, 1]
        held = np.where(risky > 0.0, weights[:, 0] / np.where(risky > 0.0, risky, 1.0), 0.5) - 0.5
        first = np.clip(0.5 + held + self.rate * (self.aim * beliefs - held), 0.0, 1.0)
        return np.stack([first, 1.0 - first, np.zeros_like(first)], axis=1)


class SpreadSolution(NamedTuple):
    """The rule and its expected utility.

    Attributes
    ----------
    utility : float
        Expected log growth a bar, costs paid, in the limit of small returns.
    deviation : float
        Standard deviation of the first asset's weight.
    move : float
        The same of what the spread moves in a bar.
    """

    rule: SpreadRule
    utility: float
    deviation: float
    move: float

    @property
    def valid(self) -> bool:
        """Bounds lie three standard deviations off, and bars move weights by little."""
        return self.deviation <= 0.5 / 3.0 and self.move <= 0.25


def spread_rule(process: MeanReversion, participation_cost: float) -> SpreadSolution:
    """The closed form for a mean-reverting spread z of two assets at lag 1, in the limit of small weights and returns.

    With the first asset's weight 1/2 + x, log growth over a bar is ``x dz + (1/4 - x^2) dz^2 / 2`` and what is common,
    to second order; trading costs ``2 participation_cost dx^2``. Weights drift: x moves by dz / 4 without a trade. So
    the position that is traded is y = x - z / 4, its Markowitz portfolio is the signal's less z / 4, and all else is
    Garleanu and Pedersen's. A decision knows z a bar late: its signal is persistence * belief.

    Parameters
    ----------
    participation_cost : float
        Cost of a trade as a share of wealth, for each unit of the squared weight traded in an asset.
    """
    stay, variance = process.persistence, process.innovation**2
    problem = PartialTrading(
        covariance=np.array([[variance]]),
        loadings=np.array([[-(1.0 - stay) - variance / 4.0]]),
        decay=np.array([[1.0 - stay]]),
        cost=np.array([[4.0 * participation_cost]]),
    )
    rate, slope = float(problem.rate[0, 0]), float(problem.aim[0, 0]) * stay
    # (y, z) before and after a decision that knows the belief z: y' = (1 - rate) y + rate slope z, z' = stay z + noise
    moves = np.array([[1.0 - rate, rate * slope], [0.0, stay]])
    moments = scipy.linalg.solve_discrete_lyapunov(moves, np.diag([0.0, variance]))
    position = np.array([1.0, 0.25])  # x of (y', z')
    trade = np.array([-rate, rate * slope])  # y' - y of (y, z)
    squared = float(position @ moments @ position)
    signal = -(1.0 - stay) * float(position @ moments[:, 1])
    paid = 2.0 * participation_cost * float(trade @ moments @ trade)
    utility = process.mean + variance / 8.0 + signal - 0.5 * variance * squared - paid
    return SpreadSolution(SpreadRule(rate, slope + 0.25), utility, float(np.sqrt(squared)), process.innovation)
