"""The losses, as pure functions of tensors: each is one formula of its paper.

Symbols: m is a critic's mean, q its quantiles, V IQL's value, A = m - V the advantage, r a scaled reward, d the
termination flag, E critics, B transitions, P proposals, n quantiles, K weights.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

ADVANTAGE_WEIGHT_LIMIT = 100.0
TD3BC_ALPHA = 2.5
PINBALL_WIDTH = 0.05


def expectile_loss(target: Tensor, value: Tensor, expectile: float) -> Tensor:
    """``mean |tau - 1(u < 0)| u^2`` with ``u = target - value``.

    Parameters
    ----------
    target, value : Tensor, (B,)
    expectile : float
        tau, in (0, 1); a half gives half the squared loss.

    Returns
    -------
    Tensor, ()

    References
    ----------
    Kostrikov, Nair and Levine (2022), Offline Reinforcement Learning with Implicit Q-Learning, equation 5.
    """
    difference = target - value
    below, above = (
        difference.new_full((), 1.0 - expectile),
        difference.new_full((), expectile),
    )  # plain ones are float32
    weight = torch.where(difference < 0.0, below, above)
    return (weight * difference.square()).mean()


def advantage_weights(advantage: Tensor, temperature: float) -> Tensor:
    """``min(exp(beta * A), 100)``, (B,); equation 7 of the same paper, with the clip of its code."""
    limit = math.log(ADVANTAGE_WEIGHT_LIMIT)
    return (temperature * advantage).clamp(max=limit).exp()


def weighted_likelihood_loss(log_density: Tensor, weights: Tensor, n_dimensions: int) -> Tensor:
    """``- mean weight * log pi(a | s)`` per free dimension of the action.

    Dividing by K - 1 keeps the step the same size for any number of assets.
    """
    return -(weights * log_density).mean() / n_dimensions


def td3bc_loss(value: Tensor, distance: Tensor) -> Tensor:
    """``mean [distance - lambda * value]`` with ``lambda = 2.5 / mean |value|``, held fixed.

    Parameters
    ----------
    value : Tensor, (B,)
        Of the policy's own action.
    distance : Tensor, (B,)
        Mean squared difference from the data's action.

    References
    ----------
    Fujimoto and Gu (2021), A Minimalist Approach to Offline Reinforcement Learning, equations 3 and 5.
    """
    scale = TD3BC_ALPHA / value.detach().abs().mean().clamp(min=1e-6)
    return (distance - scale * value).mean()


def bellman_target(rewards: Tensor, terminated: Tensor, next_value: Tensor, gamma: float) -> Tensor:
    """``r + gamma * (1 - d) * V(s')``, (B,): truncation bootstraps, termination does not."""
    return rewards + gamma * (1.0 - terminated) * next_value


def mean_loss(mean: Tensor, target: Tensor) -> Tensor:
    """``sum over critics of mean (m - target)^2``.

    Parameters
    ----------
    mean : Tensor, (E, B)
    target : Tensor, (B,)
    """
    return (mean - target).square().mean(dim=1).sum()


def pinball_loss(quantiles: Tensor, samples: Tensor, width: float = PINBALL_WIDTH) -> Tensor:
    """Quantile loss of every quantile against every sample, smoothed within ``width``.

    Parameters
    ----------
    quantiles : Tensor, (E, B, n)
        At the levels (i - 1/2) / n.
    samples : Tensor, (E, B, n')
        Of the target distribution.
    width : float
        Huber width; a wide one learns expectiles, so it is a small part of a typical error.

    Returns
    -------
    Tensor, ()
        ``sum_E mean_B mean_i mean_j |tau_i - 1(u < 0)| * huber(u) / width``, ``u = sample_j - quantile_i``: the
        mean over i, where the paper sums, so that the number of quantiles does not change the step.

    References
    ----------
    Dabney et al. (2018), Distributional Reinforcement Learning with Quantile Regression, equation 10.
    """
    loss: Tensor = _Pinball.apply(quantiles, samples, width)  # type: ignore[no-untyped-call]
    return loss


class _Pinball(torch.autograd.Function):
    """The pairwise loss without the pairs: unfused they cost as much as all matrix products of an update.

    The loss of a quantile q is quadratic in the samples within the width of q and linear in the others. With the
    samples sorted, counts a, b, c of those up to q, up to q + width and below q - width, and running sums of the
    samples and of their squares, both parts are differences of running sums; and so is the slope.
    """

    @staticmethod
    def forward(context: Any, quantiles: Tensor, samples: Tensor, width: float) -> Tensor:
        _, batch, count = quantiles.shape
        levels = (torch.arange(count, device=quantiles.device, dtype=quantiles.dtype) + 0.5) / count
        middle = samples.mean(dim=-1, keepdim=True)  # sums of squares of small numbers lose nothing in float32
        ordered, q = (samples - middle).sort(dim=-1).values, (quantiles - middle).contiguous()
        sums = functional.pad(ordered.cumsum(dim=-1), (1, 0))
        squares = functional.pad(ordered.square().cumsum(dim=-1), (1, 0))
        a = torch.searchsorted(ordered, q, right=True)
        b = torch.searchsorted(ordered, q + width, right=True)
        c = torch.searchsorted(ordered, q - width)
        counts = (b - a, a - c, samples.shape[-1] - b, c)
        n_above, n_below, n_far, n_far_below = (number.to(q.dtype) for number in counts)
        sum_a, sum_b, sum_c = (sums.gather(-1, place) for place in (a, b, c))
        square_a, square_b, square_c = (squares.gather(-1, place) for place in (a, b, c))
        above, below = sum_b - sum_a - n_above * q, sum_a - sum_c - n_below * q  # sums of u within the width
        square_above = square_b - square_a - 2.0 * q * (sum_b - sum_a) + n_above * q.square()
        square_below = square_a - square_c - 2.0 * q * (sum_a - sum_c) + n_below * q.square()
        far_above = sums[..., -1:] - sum_b - n_far * (q + 0.5 * width)
        far_below = n_far_below * (q - 0.5 * width) - sum_c
        loss = levels * (0.5 * square_above + width * far_above)
        loss = loss + (1.0 - levels) * (0.5 * square_below + width * far_below)
        slope = -levels * (above + width * n_far) - (1.0 - levels) * (below - width * n_far_below)
        scale = 1.0 / (width * batch * count * samples.shape[-1])
        context.save_for_backward(slope * scale)
        return loss.sum() * scale

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = context.saved_tensors
        return gradient * slope, None, None


def truncated_spread(spread: Tensor, dropped: int) -> Tensor:
    """Mean of centred quantiles without the largest ``dropped``: at most zero, a pessimism to add to m.

    Parameters
    ----------
    spread : Tensor, (..., n)
        ``q - mean q``.
    dropped : int

    Returns
    -------
    Tensor, (...)

    References
    ----------
    Kuznetsov et al. (2020), Controlling Overestimation Bias with Truncated Mixture of Continuous Distributional
    Quantile Critics, equation 4.
    """
    if dropped == 0:
        return torch.zeros_like(spread[..., 0])
    kept = spread.sort(dim=-1).values[..., : spread.shape[-1] - dropped]
    return kept.mean(dim=-1)


def pessimistic_value(mean: Tensor, spread: Tensor, dropped: int, share: float) -> Tensor:
    """Least value over critics, ``min_e m_e + share * truncated spread_e``.

    Parameters
    ----------
    mean : Tensor, (E, B)
    spread : Tensor, (E, B, n)
    dropped : int
        Top quantiles left out.
    share : float
        In 0..1: how far the truncation is switched on; at zero this is IQL's own aggregation.
    """
    if share == 0.0:
        return mean.min(dim=0).values
    return (mean + share * truncated_spread(spread, dropped)).min(dim=0).values


def conservative_loss(
    proposals: Tensor,
    log_density: Tensor,
    data: Tensor,
    policy_drawn: Tensor,
    calibration: Tensor,
    n_dimensions: int = 1,
) -> Tensor:
    """CQL(H), importance-corrected and calibrated, with entropy counted per free dimension as in the actor's loss.

    Counted whole, the densities of twenty dimensions differ by tens of nats, and the soft maximum looks at nothing but
    uniform portfolios until their values have been pushed that far down (measured: critics off by 40 daily rewards).

    Parameters
    ----------
    proposals : Tensor, (E, B, P)
        m at the proposed actions.
    log_density : Tensor, (B, P)
        Log density that each proposal was drawn with.
    data : Tensor, (E, B)
        m at the actions of the data.
    policy_drawn : bool Tensor, (P,)
        Which proposals were drawn from the policy: these are not pushed under the calibration.
    calibration : Tensor, (B,)
        Value of the behaviour at the state; minus infinity turns the calibration off.
    n_dimensions : int
        D = K - 1; with 1 the published form.

    Returns
    -------
    Tensor, ()
        ``sum_E mean_B [log mean_P exp(D m - log density) / D - m(data)]``.

    References
    ----------
    Kumar et al. (2020), Conservative Q-Learning, equation 4 and appendix F.
    Nakamoto et al. (2023), Cal-QL, equation 5.1.
    """
    calibrated = torch.where(policy_drawn, torch.maximum(proposals, calibration[:, None]), proposals)
    soft_maximum = torch.logsumexp(n_dimensions * calibrated - log_density, dim=-1) - math.log(proposals.shape[-1])
    return (soft_maximum / n_dimensions - data).mean(dim=1).sum()


def actor_loss(log_density: Tensor, value: Tensor, alpha: Tensor, n_dimensions: int) -> Tensor:
    """``mean alpha * log pi / (K - 1) - m(s, a)``: entropy is counted per free dimension.

    References
    ----------
    Haarnoja et al. (2018), Soft Actor-Critic Algorithms and Applications, equation 7.
    """
    return (alpha * log_density / n_dimensions - value).mean()


def temperature_loss(log_alpha: Tensor, log_density: Tensor, target: float, n_dimensions: int) -> Tensor:
    """``- log alpha * mean (log pi + H_target) / (K - 1)``; equation 18 of the same paper, in log alpha."""
    return -(log_alpha * (log_density.detach() + target).mean() / n_dimensions)
