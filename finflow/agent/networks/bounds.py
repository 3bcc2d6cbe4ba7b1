"""Bounds of what a policy's head gives, trade rate and scale: learning comes back from them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

LEAST_RATE = 1e-3  # smallest trade rate: a half-life of 693 decisions
LEAST_SLOPE = 0.02  # smallest slope of the trade rate in its logit: that at a rate of a fiftieth


def open_rate(logit: Tensor, keeps_slope: bool = False) -> Tensor:
    """Trade rate of a logit; with its own slope where a decision is explained and not learned."""
    if keeps_slope:
        return torch.sigmoid(logit).clamp(min=LEAST_RATE)
    rate: Tensor = OpenRate.apply(logit)  # type: ignore[no-untyped-call]
    return rate


class OpenRate(torch.autograd.Function):
    """Trade rate of a logit: a sigmoid, of at least ``LEAST_RATE``, that no gradient can close for good.

    While the aim is bad, trading toward it loses, and the logit falls; at a rate near zero neither the rate nor the aim
    would have a gradient to come back by. So the slope is at least ``LEAST_SLOPE``, and below the smallest rate only
    gradients that raise the logit pass.
    """

    @staticmethod
    def forward(context: Any, logit: Tensor) -> Tensor:
        rate = torch.sigmoid(logit)
        context.save_for_backward(rate)
        return rate.clamp(min=LEAST_RATE)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        rate: Tensor = context.saved_tensors[0]
        slope = (rate * (1.0 - rate)).clamp(min=LEAST_SLOPE)
        raising = torch.where(rate < LEAST_RATE, gradient.clamp(max=0.0), gradient)
        return raising * slope


def inward_clamp(values: Tensor, low: float, high: float) -> Tensor:
    """Values within bounds; beyond one, only gradients of a descent that leads back pass.

    With none, as by ``Tensor.clamp``, a scale that imitation has driven past its bound would stay there for good.
    """
    bounded: Tensor = InwardClamp.apply(values, low, high)  # type: ignore[no-untyped-call]
    return bounded


class InwardClamp(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, values: Tensor, low: float, high: float) -> Tensor:
        context.save_for_backward(values)
        context.bounds = low, high
        return values.clamp(low, high)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (values,), (low, high) = context.saved_tensors, context.bounds
        down = torch.where(values > high, gradient.clamp(min=0.0), gradient)
        return torch.where(values < low, down.clamp(max=0.0), down), None, None
