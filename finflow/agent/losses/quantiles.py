"""Quantiles of the return: their pinball loss against samples, pessimism, and risk measures in place of the mean.

The loss of a quantile q is quadratic in the samples within the width of q and linear in the others. With the samples
sorted, counts of those up to q, up to q + width and below q - width, and running sums of the samples and of their
squares, both parts are differences of running sums; and so is the slope. On the CPU no array of all pairs is formed,
which would cost as much as the matrix products of an update.

All risk measures are weighted means of the quantiles in their order, ``sum_i w_i q_(i)`` with weights that sum to one,
so that a critic's value under a measure is its mean m plus the measure of its centred quantiles.

References
----------
Dabney et al. (2018), Distributional Reinforcement Learning with Quantile Regression, equation 10.
Kuznetsov et al. (2020), Truncated Quantile Critics, equation 4.
Rockafellar and Uryasev (2000), Optimization of Conditional Value-at-Risk.
Wang (2000), A Class of Distortion Operators for Pricing Financial and Insurance Risks, equation 9.
Dabney et al. (2018), Implicit Quantile Networks for Distributional Reinforcement Learning, section 3.1.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from finflow.agent.networks.critic import Valuation
from finflow.arrays import FloatArray
from finflow.compiled_function import compiled_function
from finflow.config import BCellConfig

PINBALL_WIDTH = 0.05
WANG_STRENGTH = 0.75  # risk aversion of Wang's transform

Numbers = NDArray[np.floating[Any]]


def pinball_loss(quantiles: Tensor, samples: Tensor, width: float = PINBALL_WIDTH) -> Tensor:
    """Quantile loss, (), of every quantile (E, B, n) against every sample (E, B, n'), smoothed within ``width``.

    ``sum_E mean_B mean_i mean_j |tau_i - 1(u < 0)| * huber(u) / width``, ``u = sample_j - quantile_i``, at the levels
    ``tau_i = (i - 1/2) / n``: the mean over i, where the paper sums, so that the number of quantiles does not change
    the step. A wide Huber part learns expectiles, so the width is a small part of a typical error.
    """
    if quantiles.device.type != "cpu":
        return pairwise_loss(quantiles, samples, width)
    loss: Tensor = _Pinball.apply(quantiles, samples, width)  # type: ignore[no-untyped-call]
    return loss


def pairwise_loss(quantiles: Tensor, samples: Tensor, width: float) -> Tensor:
    """`pinball_loss` as it is written, by an array of all pairs."""
    count = quantiles.shape[-1]
    levels = (torch.arange(count, device=quantiles.device, dtype=quantiles.dtype) + 0.5) / count
    difference = samples.unsqueeze(-2) - quantiles.unsqueeze(-1)
    huber = functional.huber_loss(difference, torch.zeros_like(difference), reduction="none", delta=width)
    weight = torch.where(difference < 0.0, 1.0 - levels.unsqueeze(-1), levels.unsqueeze(-1))
    return (weight * huber / width).mean(dim=(1, 2, 3)).sum()


class _Pinball(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, quantiles: Tensor, samples: Tensor, width: float) -> Tensor:
        _, batch, count = quantiles.shape
        middle = samples.mean(dim=-1, keepdim=True)  # sums of squares of small numbers lose nothing in float32
        ordered, q = (samples - middle).sort(dim=-1).values, (quantiles - middle).contiguous()
        loss, slope = compiled_losses(q, ordered, width)
        scale = 1.0 / (width * batch * count * samples.shape[-1])
        context.save_for_backward(slope * scale)
        return loss.sum() * scale

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = context.saved_tensors
        return gradient * slope, None, None


def compiled_losses(q: Tensor, ordered: Tensor, width: float) -> tuple[Tensor, Tensor]:
    """Loss of every quantile (E, B, n), summed over sorted samples and times the width, and its slope, on the CPU."""
    flat_q, flat_ordered = (tensor.detach().reshape(-1, tensor.shape[-1]).numpy() for tensor in (q, ordered))
    levels = (torch.arange(q.shape[-1], dtype=q.dtype) + 0.5) / q.shape[-1]
    constants = np.array([width, 0.5 * width, 0.5, 1.0, 2.0], dtype=flat_q.dtype)
    counts = np.arange(ordered.shape[-1] + 1, dtype=flat_q.dtype)
    loss, slope = np.empty_like(flat_q), np.empty_like(flat_q)
    _fill_losses(flat_q, flat_ordered, loss, slope, levels.numpy(), constants, counts)
    return torch.from_numpy(loss).view(q.shape), torch.from_numpy(slope).view(q.shape)


@compiled_function(nogil=True)
def _fill_losses(
    q: Numbers, ordered: Numbers, loss: Numbers, slope: Numbers, levels: Numbers, constants: Numbers, counts: Numbers
) -> None:
    """Fill ``loss`` and ``slope``, (rows, n).

    Constants and counts are in the samples' type: others would be doubles.
    """
    width, half_width, half, one, two = constants[0], constants[1], constants[2], constants[3], constants[4]
    n_samples = ordered.shape[1]
    sums, squares = np.zeros_like(counts), np.zeros_like(counts)
    for row in range(q.shape[0]):
        total, total_squared = 0.0, 0.0  # in double precision, as tensors are summed
        for j in range(n_samples):
            sample = ordered[row, j]
            total += sample
            total_squared += sample * sample
            sums[j + 1], squares[j + 1] = total, total_squared
        for i in range(q.shape[1]):
            point = q[row, i]
            upper, lower = point + width, point - width
            a, b, c = 0, 0, 0
            for j in range(n_samples):
                a += ordered[row, j] <= point
                b += ordered[row, j] <= upper
                c += ordered[row, j] < lower
            n_above, n_below, n_far, n_far_below = counts[b - a], counts[a - c], counts[n_samples - b], counts[c]
            between, behind, squared = sums[b] - sums[a], sums[a] - sums[c], point * point
            above, below = between - n_above * point, behind - n_below * point
            square_above = squares[b] - squares[a] - two * point * between + n_above * squared
            square_below = squares[a] - squares[c] - two * point * behind + n_below * squared
            far_above = sums[n_samples] - sums[b] - n_far * (point + half_width)
            far_below = n_far_below * (point - half_width) - sums[c]
            level, rest = levels[i], one - levels[i]
            loss[row, i] = level * (half * square_above + width * far_above)
            loss[row, i] += rest * (half * square_below + width * far_below)
            slope[row, i] = -level * (above + width * n_far) - rest * (below - width * n_far_below)


def truncated_spread(spread: Tensor, dropped: int) -> Tensor:
    """Mean of centred quantiles (..., n) without the largest ``dropped``, (...): a pessimism to add to m."""
    if dropped == 0:
        return torch.zeros_like(spread[..., 0])
    kept = spread.sort(dim=-1).values[..., : spread.shape[-1] - dropped]
    return kept.mean(dim=-1)


def pessimistic_value(mean: Tensor, spread: Tensor, dropped: int, share: float, choices: int = 1) -> Tensor:
    """Least value over critics, ``min_e m_e + share * truncated spread_e``, of means (E, B) and spreads (E, B, n).

    At a ``share`` of zero it is IQL's own aggregation. Of several choices of a state, which are consecutive, all are
    valued by the critic that values them least on average: the least of each would count the critics' disagreement
    about a choice against it, and differences between choices add up over the decisions that they last.
    """
    value = mean if share == 0.0 else mean + share * truncated_spread(spread, dropped)
    if choices == 1:
        return value.min(dim=0).values
    of_states = value.view(len(value), -1, choices)
    least = of_states.mean(dim=-1, keepdim=True).argmin(dim=0, keepdim=True).expand(-1, -1, choices)
    return of_states.gather(0, least).flatten()


def quantile_weights(config: BCellConfig, count: int) -> FloatArray:
    """Weights of ``count`` quantiles in rising order, (count,): increments of the distortion ``g`` of probability.

    ``g(u) = u`` where neutral, ``min(u / level, 1)`` for CVaR, ``Phi(Phi^-1(u) + 0.75)`` for Wang.
    """
    distorted = np.arange(count + 1) / count
    if config.risk_measure == "cvar":
        distorted = np.minimum(distorted / config.risk_level, 1.0)
    elif config.risk_measure == "wang":
        normal = NormalDist()
        distorted[1:-1] = [normal.cdf(normal.inv_cdf(edge) + WANG_STRENGTH) for edge in distorted[1:-1].tolist()]
    return np.diff(distorted)


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
    return sums[:days] / masses[:days]
