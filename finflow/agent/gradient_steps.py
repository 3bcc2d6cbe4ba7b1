"""Optimiser steps, learning-rate schedules and target networks, as every learner uses them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from finflow.agent.precision import full_precision


class SkippingAdam(torch.optim.Adam):
    """Adam, fused into one pass, that can skip steps whose gradient is not finite (``skip_nonfinite``).

    torch wraps these methods so that ``torch.compile`` leaves them alone; the wrappers load its compiler, which takes a
    second of every process that learns. Nothing here is compiled by torch, so the methods go without.
    """

    skip_nonfinite = False
    found_inf: Tensor | None = None

    add_param_group: Any = inspect.unwrap(torch.optim.Adam.add_param_group)
    state_dict: Any = inspect.unwrap(torch.optim.Adam.state_dict)
    load_state_dict: Any = inspect.unwrap(torch.optim.Adam.load_state_dict)
    zero_grad: Any = inspect.unwrap(torch.optim.Adam.zero_grad)
    step: Any = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))

    def mark_nonfinite(self, norm: Tensor) -> None:
        """Mark the next step as one to skip where ``norm``, of its gradient or loss, is not finite."""
        self.found_inf = (norm - norm).ne(0.0).float() if self.skip_nonfinite else None  # 1 where it is not finite


def make_optimiser(modules: nn.Module | Iterable[nn.Module], learning_rate: float) -> SkippingAdam:
    """Adam over the parameters of a module, or of several, fused into one pass."""
    parts = [modules] if isinstance(modules, nn.Module) else modules
    return SkippingAdam([p for part in parts for p in part.parameters()], lr=learning_rate, fused=True)


def parameters_of(optimiser: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimiser.param_groups for parameter in group["params"]]


def clear_gradients(optimiser: torch.optim.Optimizer) -> None:
    """Drop the gradients of an optimiser's parameters: ``zero_grad`` without its hooks, which take longer."""
    for parameter in parameters_of(optimiser):
        parameter.grad = None


def gradient_step(loss: Tensor, optimiser: torch.optim.Optimizer, gradient_norm: float) -> Tensor:
    """Take one step down a loss, (), with gradients shortened to ``gradient_norm``; returns their norm before, ()."""
    compute_gradients(loss, optimiser)
    return step(optimiser, gradient_norm)


def compute_gradients(loss: Tensor, *optimisers: torch.optim.Optimizer) -> None:
    """Set the gradients of the optimisers' parameters to those of a loss, (): the first half of `gradient_step`."""
    for optimiser in optimisers:
        clear_gradients(optimiser)
    with full_precision(loss):
        loss.backward()  # type: ignore[no-untyped-call]


def step(optimiser: torch.optim.Optimizer, gradient_norm: float) -> Tensor:
    """Take one step along computed gradients: the second half of `gradient_step`."""
    norm = nn.utils.clip_grad_norm_(parameters_of(optimiser), gradient_norm)
    if isinstance(optimiser, SkippingAdam):
        optimiser.mark_nonfinite(norm)
    optimiser.step()
    return norm.detach()


def tune(optimiser: SkippingAdam, loss: Tensor) -> None:
    """Take one step of a coefficient down its own loss, (); gradients are not clipped."""
    clear_gradients(optimiser)
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.mark_nonfinite(loss)
    optimiser.step()


@torch.no_grad()
def polyak_update(target: nn.Module, source: nn.Module, tau: float) -> None:
    """Move a target network's parameters a share ``tau`` toward the source's."""
    torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), tau)


def set_learning_rate(optimiser: torch.optim.Optimizer, learning_rate: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = learning_rate


def cosine(initial: float, progress: float) -> float:
    """Cosine decay from ``initial`` at progress 0 to zero at progress 1."""
    return 0.5 * initial * (1.0 + math.cos(math.pi * min(max(progress, 0.0), 1.0)))


def freeze(modules: Iterable[nn.Module]) -> None:
    """Switch gradients off for networks that only follow others."""
    for module in modules:
        module.requires_grad_(False)


def linearised(value_of: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Value (batch,) of inputs (batch, ...) with its gradient for them, and none for the parameters behind it.

    Inputs without gradients stay so; the value need not depend on all of them.
    """
    points = [one.detach().requires_grad_(one.requires_grad) for one in inputs]
    value = value_of(*points)
    learned = [(one, point) for one, point in zip(inputs, points, strict=True) if one.requires_grad]
    with full_precision(value):
        slopes = torch.autograd.grad(value.sum(), [point for _, point in learned], allow_unused=True)
    result = value.detach()
    for slope, (one, point) in zip(slopes, learned, strict=True):
        if slope is not None:
            result = result + (slope * (one - point.detach())).flatten(1).sum(dim=-1)
    return result
