"""Risk measures of the distribution of the return, as objectives of the policy in place of its mean.

All three are weighted means of the quantiles in their order, ``sum_i w_i q_(i)`` with weights that sum to one, so that
a critic's value under a measure is its mean m plus the measure of its centred quantiles.

References
----------
Rockafellar and Uryasev (2000), Optimization of Conditional Value-at-Risk.
Wang (2000), A Class of Distortion Operators for Pricing Financial and Insurance Risks, equation 9.
Dabney et al. (2018), Implicit Quantile Networks for Distributional Reinforcement Learning, section 3.1.
"""

from __future__ import annotations

from functools import lru_cache
from statistics import NormalDist

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finflow.agent.networks.critic import Valuation
from finflow.config import BCellConfig

FloatArray = NDArray[np.float64]
WANG_STRENGTH = 0.75  # risk aversion of Wang's transform


@lru_cache(maxsize=16)
def _weights(measure: str, level: float, count: int) -> tuple[float, ...]:
    edges = np.arange(count + 1) / count
    if measure == "neutral":
        distorted = edges
    elif measure == "cvar":
        distorted = np.minimum(edges / level, 1.0)
    else:
        normal = NormalDist()
        inner = [normal.cdf(normal.inv_cdf(float(edge)) + WANG_STRENGTH) for edge in edges[1:-1]]
        distorted = np.array([0.0, *inner, 1.0])
    return tuple(np.diff(distorted).tolist())


def quantile_weights(config: BCellConfig, count: int) -> FloatArray:
    """Weights of ``count`` quantiles in rising order, (count,): increments of the distortion ``g`` of probability.

    ``g(u) = u`` where neutral, ``min(u / level, 1)`` for CVaR, ``Phi(Phi^-1(u) + 0.75)`` for Wang.
    """
    return np.array(_weights(config.risk_measure, config.risk_level, count))


def needs_quantiles(config: BCellConfig) -> bool:
    """Return True where the measure depends on more than the mean."""
    return config.risk_measure != "neutral"


def risk_adjusted_value(valuation: Valuation, config: BCellConfig) -> Tensor:
    """Values under the risk measure, (E, B, P): ``m + sum_i w_i (q_(i) - mean q)``; m itself where neutral."""
    if not needs_quantiles(config):
        return valuation.mean
    ordered = valuation.spread.sort(dim=-1).values
    weights = torch.as_tensor(quantile_weights(config, ordered.shape[-1]), dtype=ordered.dtype, device=ordered.device)
    return valuation.mean + (ordered * weights).sum(dim=-1)


def sample_risk(samples: FloatArray, config: BCellConfig) -> float:
    """Risk measure of a sample (n,) of equally likely values."""
    return float(np.sort(samples) @ quantile_weights(config, len(samples)))


def discounted_means(rewards: FloatArray, gamma: float) -> FloatArray:
    """Mean of consecutive rewards (n,) from each day on, weighted by ``gamma ** k``: in units of a daily reward.

    Of the days (days,) that have a horizon, ``1 / (1 - gamma)``, ahead of them; of the first alone in a shorter window.
    """
    sums, masses = np.empty(len(rewards)), np.empty(len(rewards))
    total = mass = 0.0
    for day in range(len(rewards) - 1, -1, -1):
        total, mass = float(rewards[day]) + gamma * total, 1.0 + gamma * mass
        sums[day], masses[day] = total, mass
    horizon = round(1.0 / (1.0 - gamma))
    days = max(len(rewards) - horizon, 1)
    means: FloatArray = sums[:days] / masses[:days]
    return means
