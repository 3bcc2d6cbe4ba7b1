"""Small steps that every learner shares: optimisers, gradients, target networks."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn


def make_optimiser(modules: nn.Module | Iterable[nn.Module], learning_rate: float) -> torch.optim.Adam:
    """Adam over the parameters of a module, or of several, fused into one pass."""
    parts = [modules] if isinstance(modules, nn.Module) else modules
    return torch.optim.Adam([p for part in parts for p in part.parameters()], lr=learning_rate, fused=True)


def descend(loss: Tensor, optimiser: torch.optim.Optimizer, gradient_norm: float) -> Tensor:
    """One step down a loss.

    Parameters
    ----------
    loss : Tensor, ()
    optimiser : Optimizer
    gradient_norm : float
        Gradients longer than this are shortened to it.

    Returns
    -------
    Tensor, ()
        Length of the gradient before it was shortened.
    """
    optimiser.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    length = nn.utils.clip_grad_norm_(parameters, gradient_norm)
    optimiser.step()
    return length.detach()


@torch.no_grad()
def follow(target: nn.Module, source: nn.Module, tau: float) -> None:
    """Move a target network's parameters a share ``tau`` toward the source's."""
    torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), tau)


def set_learning_rate(optimiser: torch.optim.Optimizer, learning_rate: float) -> None:
    """Set the learning rate of every parameter."""
    for group in optimiser.param_groups:
        group["lr"] = learning_rate


def cosine(initial: float, progress: float) -> float:
    """Cosine decay from ``initial`` at progress 0 to zero at progress 1."""
    return 0.5 * initial * (1.0 + math.cos(math.pi * min(max(progress, 0.0), 1.0)))


def freeze(modules: Iterable[nn.Module]) -> None:
    """Parameters of these networks take no gradients: they follow others."""
    for module in modules:
        module.requires_grad_(False)
