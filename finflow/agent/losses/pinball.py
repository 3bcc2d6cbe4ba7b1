"""Pinball loss of quantiles against samples.

The loss of a quantile q is quadratic in the samples within the width of q and linear in the others. With the samples
sorted, counts of those up to q, up to q + width and below q - width, and running sums of the samples and of their
squares, both parts are differences of running sums; and so is the slope. No array of all pairs is formed, which would
cost as much as the matrix products of an update. On the CPU one compiled loop does what takes some fifty tensor
operations elsewhere, to the same bits.

References
----------
Dabney et al. (2018), Distributional Reinforcement Learning with Quantile Regression, equation 10.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from finflow.compiled_function import compiled_function

PINBALL_WIDTH = 0.05
COMPILED_TYPES = (torch.float32, torch.float64)

Numbers = NDArray[np.floating[Any]]


def pinball_loss(quantiles: Tensor, samples: Tensor, width: float = PINBALL_WIDTH) -> Tensor:
    """Quantile loss, (), of every quantile (E, B, n) against every sample (E, B, n'), smoothed within ``width``.

    ``sum_E mean_B mean_i mean_j |tau_i - 1(u < 0)| * huber(u) / width``, ``u = sample_j - quantile_i``, at the levels
    ``tau_i = (i - 1/2) / n``: the mean over i, where the paper sums, so that the number of quantiles does not change
    the step. A wide Huber part learns expectiles, so the width is a small part of a typical error.
    """
    loss: Tensor = _Pinball.apply(quantiles, samples, width)  # type: ignore[no-untyped-call]
    return loss


class _Pinball(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, quantiles: Tensor, samples: Tensor, width: float) -> Tensor:
        _, batch, count = quantiles.shape
        middle = samples.mean(dim=-1, keepdim=True)  # sums of squares of small numbers lose nothing in float32
        ordered, q = (samples - middle).sort(dim=-1).values, (quantiles - middle).contiguous()
        levels = (torch.arange(count, device=q.device, dtype=q.dtype) + 0.5) / count
        is_compiled = q.device.type == "cpu" and q.dtype == ordered.dtype and q.dtype in COMPILED_TYPES
        compute = compiled_losses if is_compiled else tensor_losses
        loss, slope = compute(q, ordered, levels, width)
        scale = 1.0 / (width * batch * count * samples.shape[-1])
        context.save_for_backward(slope * scale)
        return loss.sum() * scale

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = context.saved_tensors
        return gradient * slope, None, None


def tensor_losses(q: Tensor, ordered: Tensor, levels: Tensor, width: float) -> tuple[Tensor, Tensor]:
    """Loss of every quantile (E, B, n), summed over the sorted samples and times the width, and its slope.

    On tensors.
    """
    sums = functional.pad(ordered.cumsum(dim=-1), (1, 0))
    squares = functional.pad(ordered.square().cumsum(dim=-1), (1, 0))
    a = torch.searchsorted(ordered, q, right=True)
    b = torch.searchsorted(ordered, q + width, right=True)
    c = torch.searchsorted(ordered, q - width)
    counts = (b - a, a - c, ordered.shape[-1] - b, c)
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
    return loss, slope


def compiled_losses(q: Tensor, ordered: Tensor, levels: Tensor, width: float) -> tuple[Tensor, Tensor]:
    """The same as `tensor_losses`, to the same bits, by one compiled loop on the CPU."""
    loss, slope = (torch.empty(q.shape, dtype=q.dtype) for _ in range(2))
    flat_q, flat_ordered, flat_loss, flat_slope = (
        tensor.detach().reshape(-1, tensor.shape[-1]).numpy() for tensor in (q, ordered, loss, slope)
    )
    constants = np.array([width, 0.5 * width, 0.5, 1.0, 2.0], dtype=flat_q.dtype)
    counts = np.arange(ordered.shape[-1] + 1, dtype=flat_q.dtype)
    _fill_losses(flat_q, flat_ordered, flat_loss, flat_slope, levels.numpy(), constants, counts)
    return loss, slope


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
